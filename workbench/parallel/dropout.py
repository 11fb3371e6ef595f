"""Dropout that tensor-parallel ranks agree on: every rank draws the full mask from one seed and keeps its part."""

import torch
from torch import Tensor, nn

from workbench.parallel.seeds import generator_for

__all__ = ["Dropout"]


class Dropout(nn.Module):
    """Zero units with a probability and scale the rest, by a stream of its own.

    Args:
        probability: Of a unit being zeroed, in [0, 1).
        seed, site: Name the random stream; equal on all tensor-parallel ranks.

    Raises:
        ValueError: If the probability is outside [0, 1).
    """

    def __init__(self, probability: float, *, seed: int = 0, site: str = "dropout"):
        super().__init__()
        if not 0 <= probability < 1:
            raise ValueError(f"probability: {probability} is not in [0, 1)")
        self.probability = probability
        self.generator = generator_for(seed, site)

    @property
    def is_active(self) -> bool:
        """Whether anything is dropped now."""
        return self.training and self.probability > 0

    def scale(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Draw what a tensor is multiplied with: 0 or 1 / (1 - probability).

        Args:
            shape: Shape of the mask.
            like: Gives device and dtype.
        """
        kept = torch.rand(shape, generator=self.generator) >= self.probability
        return kept.to(device=like.device, dtype=like.dtype) / (1 - self.probability)

    def forward(self, x: Tensor) -> Tensor:
        """Drop units of a replicated tensor.

        Args:
            x: Any shape, the same on every rank.
        """
        return x * self.scale(tuple(x.shape), x) if self.is_active else x
