"""A random stream for every named place in a model: ranks with the same place draw the same numbers.

A model that is cut over ranks thus starts equal to the uncut one. The global generator is never touched.
"""

import torch

from workbench.compression.codec import site_seed

__all__ = ["generator_for"]


def generator_for(seed: int, site: str, device: torch.device | str = "cpu") -> torch.Generator:
    """Make a fresh generator for a named place, such as "layers.3.mlp.input.weight", alike for equal seed and site."""
    return torch.Generator(device).manual_seed(site_seed(seed, site))
