"""Modules that every rank holds whole, drawn from a generator named by seed and site, so that replicas are equal."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from workbench.parallel.seeds import generator_for

__all__ = ["draw_", "linear", "undrawn"]

Made = TypeVar("Made", bound=nn.Module)


def undrawn(kind: type[Made], *sizes: int, place: Mapping[str, Any], **options: Any) -> Made:
    """Make a module without torch's own initialisation, which draws from the global generator."""
    place = {name: value for name, value in place.items() if value is not None}
    return nn.utils.skip_init(kind, *sizes, **options, **place)


class Drawn(Protocol):
    """The fields of a configuration that say how weights are drawn."""

    @property
    def init_std(self) -> float: ...

    @property
    def seed(self) -> int: ...


@torch.no_grad()
def draw_(weight: Tensor, config: Drawn, site: str, *, std: float | None = None) -> None:
    """Fill a weight with normal numbers, the same on every rank; one on the meta device is left as it is."""
    if not weight.is_meta:
        drawn = torch.empty(weight.shape)
        std = config.init_std if std is None else std
        drawn.normal_(std=std, generator=generator_for(config.seed, f"{site}.weight"))
        weight.copy_(drawn)


def linear(
    inputs: int, outputs: int, config: Drawn, site: str, place: Mapping[str, Any], *, std: float | None = None
) -> nn.Linear:
    """Make a replicated linear: drawn weight, zero bias."""
    made = undrawn(nn.Linear, inputs, outputs, place=place)
    draw_(made.weight, config, site, std=std)
    nn.init.zeros_(made.bias)
    return made
