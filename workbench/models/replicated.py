"""Modules that every rank holds whole, drawn from a generator named by seed and site, so that replicas are equal."""

import torch
from torch import Tensor, nn

from workbench.parallel.seeds import generator_for
from workbench.parallel.transformer import TransformerConfig

__all__ = ["draw_", "linear", "undrawn"]


def undrawn(kind: type[nn.Module], *sizes: int, place: dict, **options) -> nn.Module:
    """Make a module without torch's own initialisation, which draws from the global generator."""
    place = {name: value for name, value in place.items() if value is not None}
    return nn.utils.skip_init(kind, *sizes, **options, **place)


@torch.no_grad()
def draw_(weight: Tensor, config: TransformerConfig, site: str) -> None:
    """Fill a weight with normal numbers, the same on every rank; one on the meta device is left as it is."""
    if not weight.is_meta:
        drawn = torch.empty(weight.shape)
        drawn.normal_(std=config.init_std, generator=generator_for(config.seed, f"{site}.weight"))
        weight.copy_(drawn)


def linear(inputs: int, outputs: int, config: TransformerConfig, site: str, place: dict) -> nn.Linear:
    """Make a replicated linear: drawn weight, zero bias."""
    made = undrawn(nn.Linear, inputs, outputs, place=place)
    draw_(made.weight, config, site)
    nn.init.zeros_(made.bias)
    return made
