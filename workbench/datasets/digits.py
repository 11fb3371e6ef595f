"""Scikit-learn's handwritten digits, real images on every machine, in the shape of the images that they replace.

They are far easier than CIFAR-10, so accuracy on them says nothing about it. The first 1,500 of 1,797 are for training,
the others, by other writers, for testing.
"""

from __future__ import annotations

from hashlib import sha256
from types import MappingProxyType

import numpy as np

from workbench.checks import require_one_of
from workbench.datasets.source import DataSource, ImageDataset, SourceKind

__all__ = ["load"]

ROWS = MappingProxyType({"train": slice(0, 1500), "test": slice(1500, 1797)})  # images of each split
SIDE_PIXELS = 8  # side of an original image
WHITEST = 16  # the highest grey level


def load(split: str = "train", *, instead_of: str, side_pixels: int = 32, num_colours: int = 3) -> ImageDataset:
    """Load a split in the shape of the missing images, uint8 [N, num_colours, side_pixels, side_pixels]."""
    from sklearn.datasets import load_digits

    require_one_of(ROWS, split=split)
    if side_pixels < SIDE_PIXELS or side_pixels % SIDE_PIXELS:
        raise ValueError(f"side_pixels is {side_pixels}, must be a multiple of {SIDE_PIXELS}")
    grey_NHW, labels = load_digits().images[ROWS[split]], load_digits().target[ROWS[split]]
    times = side_pixels // SIDE_PIXELS
    larger_NHW = (grey_NHW * (255 / WHITEST)).round().astype(np.uint8).repeat(times, axis=1).repeat(times, axis=2)
    shape = (len(labels), num_colours, side_pixels, side_pixels)
    images = np.ascontiguousarray(np.broadcast_to(larger_NHW[:, None], shape))
    detail = (
        f"{len(labels):,} of scikit-learn's digits instead of {instead_of}: real images, but another data set; "
        "accuracies say nothing about the one that is missing"
    )
    labels, names = labels.astype(np.int64), tuple(str(digit) for digit in range(10))
    digest, name = sha256(images.tobytes() + labels.tobytes()).hexdigest(), f"digits/{split}"
    source = DataSource(name=name, kind=SourceKind.STAND_IN, detail=detail, sha256=digest, complete=False)
    return ImageDataset(name="digits", split=split, images=images, labels=labels, class_names=names, source=source)
