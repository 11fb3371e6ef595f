"""Labelled images to learn from, normalised, and flipped and shifted at random alike on every rank.

Flips and shifts by whole pixels follow Krizhevsky et al., 2012, section 4.1, in the sizes of He et al., 2016, 4.2.
A model on one stage is `VirtualPipeline([model], loss=cross_entropy)`, on real tensor-parallel ranks too.

Shapes: B = batch, C = colours, H = height, W = width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from workbench.datasets import ImageDataset
from workbench.parallel.seeds import generator_for
from workbench.study.loop import Recipe, Trainable, predict

__all__ = ["Augmentation", "ImageBatch", "ImageExamples", "accuracy"]

MEAN = (0.4914, 0.4822, 0.4465)  # mean of each colour of CIFAR-10's training images, 0 black, 1 white
DEVIATION = (0.2470, 0.2435, 0.2616)  # standard deviation of each colour; both as CIFAR-10's users publish them
WHITE = 255  # highest value of a uint8 pixel
SHIFT_PIXELS = 4  # He et al., section 4.2


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageBatch:
    """Normalised images with their labels."""

    inputs: Tensor  # [B, C, H, W], float32
    labels: Tensor  # [B], int64

    @property
    def context(self) -> dict[str, Tensor]:
        """Nothing: a model takes the images alone."""
        return {}


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageExamples:
    """Images with their labels."""

    images: Tensor  # uint8 [N, C, H, W]
    labels: Tensor  # int64 [N]

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise ValueError(f"labels has {len(self.labels)} rows; it must have {len(self.images)}, as images")
        if self.images.ndim != 4 or self.images.shape[1] != len(MEAN):
            raise ValueError(f"shape of images is {tuple(self.images.shape)}; it must be [N, {len(MEAN)}, H, W]")

    @classmethod
    def of(cls, dataset: ImageDataset) -> ImageExamples:
        """Take the images and labels of a data set."""
        return cls(images=torch.from_numpy(dataset.images), labels=torch.from_numpy(dataset.labels))

    def __len__(self) -> int:
        return len(self.images)

    @property
    def lengths(self) -> np.ndarray:
        """1 for every image: all have the same size, so that batches take them in any order."""
        return np.ones(len(self), dtype=np.int64)

    def batch(self, rows: Sequence[int] | np.ndarray, device: str | torch.device = "cpu") -> ImageBatch:
        """Normalise the images of these row numbers."""
        chosen = torch.as_tensor(rows)
        pixels_BCHW = self.images[chosen].to(device).float() / WHITE
        mean, deviation = (torch.tensor(colours, device=device).view(-1, 1, 1) for colours in (MEAN, DEVIATION))
        return ImageBatch(inputs=(pixels_BCHW - mean) / deviation, labels=self.labels[chosen].to(device))


@dataclass(frozen=True, kw_only=True, slots=True)
class Augmentation:
    """Random variations of training images, the same for equal (seed, step) whatever the rank or the method."""

    seed: int = 0  # seed of all draws
    flips: bool = True  # mirror each image with probability 1/2
    shift_pixels: int = SHIFT_PIXELS  # most pixels that an image moves up, down and sideways; uncovered ones are grey

    def __post_init__(self) -> None:
        if self.shift_pixels < 0:
            raise ValueError(f"shift_pixels is {self.shift_pixels}; it must be at least 0")

    def __call__(self, batch: ImageBatch, step: int) -> ImageBatch:
        """Vary the images of a batch, by the number of the training step, from 0."""
        draw = generator_for(self.seed, f"augmentation.{step}")
        images_BCHW = batch.inputs
        if self.flips:
            is_flipped = torch.rand(len(images_BCHW), generator=draw) < 0.5
            is_flipped = is_flipped.to(images_BCHW.device).view(-1, 1, 1, 1)
            images_BCHW = torch.where(is_flipped, images_BCHW.flip(-1), images_BCHW)
        return replace(batch, inputs=self._shifted(images_BCHW, draw))

    def _shifted(self, images_BCHW: Tensor, draw: torch.Generator) -> Tensor:
        most = self.shift_pixels
        if not most:
            return images_BCHW
        batch, _, height, width = images_BCHW.shape
        start_B2 = torch.randint(0, 2 * most + 1, (batch, 2), generator=draw).to(images_BCHW.device)
        padded = functional.pad(images_BCHW, (most,) * 4)
        rows, columns = (torch.arange(size, device=padded.device) for size in (height, width))
        image = torch.arange(batch, device=padded.device).view(-1, 1, 1, 1)
        colour = torch.arange(padded.shape[1], device=padded.device).view(1, -1, 1, 1)
        row = (start_B2[:, :1] + rows).view(batch, 1, height, 1)
        column = (start_B2[:, 1:] + columns).view(batch, 1, 1, width)
        return padded[image, colour, row, column]


def accuracy(pipeline: Trainable, examples: ImageExamples, recipe: Recipe) -> float | None:
    """Return the share of images whose label a model scores highest; None except in the last stage."""
    logits = predict(pipeline, examples, recipe)
    return None if logits is None else (logits.argmax(-1) == examples.labels.cpu()).double().mean().item()
