"""The model whose iterations are timed, and its batch.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section V-A; 65 tokens an image,
as `workbench.models.vit_config` infers.
Simplified: one fixed batch of random numbers; only the time of a step is looked at.
Left out: reading images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.models.vit import ViTConfig

__all__ = ["Size"]

NUM_IMAGES = 50_000  # of an epoch of CIFAR-10
NUM_LABELS = 10
MLP_WIDTH = 4  # of a perceptron, in hidden sizes


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """A Vision Transformer for images of 32 x 32 pixels, and a batch.

    Attributes:
        hidden: units of a hidden state; a multiple of `heads`.
        layers: transformer layers.
        heads: attention heads; a multiple of the ranks.
        patch: pixels of a patch's side; 4 makes 65 tokens.
        batch: images of an iteration.
    """

    hidden: int = 256
    layers: int = 2
    heads: int = 8
    patch: int = 4
    batch: int = 32

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"batch is {self.batch}, must be at least 1")
        self.config(seed=0)

    @property
    def num_iterations(self) -> int:
        """Iterations of an epoch of CIFAR-10's training images."""
        return math.ceil(NUM_IMAGES / self.batch)

    def config(self, seed: int) -> ViTConfig:
        """Return the model's configuration."""
        return ViTConfig(
            hidden_size=self.hidden,
            num_layers=self.layers,
            num_heads=self.heads,
            mlp_size=MLP_WIDTH * self.hidden,
            image_size=32,
            patch_size=self.patch,
            seed=seed,
        )

    def images_and_labels(self, seed: int) -> tuple[Tensor, Tensor]:
        """Draw the batch: floats [batch, 3, 32, 32] and int64 [batch]."""
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(self.batch, 3, 32, 32, generator=generator)
        return images, torch.randint(NUM_LABELS, (self.batch,), generator=generator)
