"""CIFAR-10 (Krizhevsky, 2009): colour images of 32 x 32 pixels in ten classes; without it, scikit-learn's digits.

The folder layout holds a balanced subset that was decoded from JPEG; its source says so.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from workbench.checks import require_one_of
from workbench.datasets import digits
from workbench.datasets.source import ImageDataset, read_tables, resolve, source_of

__all__ = ["CLASS_NAMES", "NAME", "PUBLISHED_IMAGES", "load"]

NAME = "cifar10"
PUBLISHED_IMAGES = MappingProxyType({"train": 50_000, "test": 10_000})  # images of each split
CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIDE_PIXELS = 32  # side of an image


def load(split: str = "train", limit: int | None = None, seed: int = 0) -> ImageDataset:
    """Load a split, or the digits where there is none; `limit` images are drawn by `seed`, None takes all."""
    require_one_of(PUBLISHED_IMAGES, split=split)
    files = resolve(NAME, split)
    if files is None:
        return digits.load(split, instead_of=NAME, side_pixels=SIDE_PIXELS, num_colours=3).sample(limit, seed)
    images, labels = _read(files.paths)
    warning = "accuracies are not comparable with those of the whole set"
    source = source_of(f"{NAME}/{split}", files, len(labels), PUBLISHED_IMAGES[split], "images", warning)
    dataset = ImageDataset(name=NAME, split=split, images=images, labels=labels, class_names=CLASS_NAMES, source=source)
    return dataset.sample(limit, seed)


def _read(paths: Sequence[Path]) -> tuple[np.ndarray, np.ndarray]:
    """Read images [N, 3, 32, 32] and labels from the folder's file, or from the PNG images of the hub's files."""
    from PIL import Image

    if paths[0].suffix == ".npz":
        with np.load(paths[0], allow_pickle=False) as arrays:
            images_NHWC, labels = arrays["x"], arrays["y"]
    else:
        table = read_tables(paths, ("img", "label"))
        images = [Image.open(io.BytesIO(cell["bytes"])).convert("RGB") for cell in table["img"]]
        images_NHWC, labels = np.stack([np.asarray(image) for image in images]), np.array(table["label"])
    return np.ascontiguousarray(images_NHWC.transpose(0, 3, 1, 2)), labels.astype(np.int64)
