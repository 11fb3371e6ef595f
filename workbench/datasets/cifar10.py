"""CIFAR-10 (Krizhevsky, 2009): colour images of 32 x 32 pixels in ten classes; without it, scikit-learn's digits.

The folder layout holds a balanced subset that was decoded from JPEG; its source says so.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from workbench.datasets import digits
from workbench.datasets.images import ImageDataset
from workbench.datasets.source import DataSource, Found, resolve

__all__ = ["CLASS_NAMES", "NAME", "PUBLISHED_IMAGES", "load"]

NAME = "cifar10"
PUBLISHED_IMAGES = MappingProxyType({"train": 50_000, "test": 10_000})  # images of each split
CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIDE_PIXELS = 32  # of an image


def load(split: str = "train", limit: int | None = None, seed: int = 0) -> ImageDataset:
    """Load a split, or the digits where there is none; `limit` images are drawn by `seed`, None takes all."""
    if split not in PUBLISHED_IMAGES:
        raise ValueError(f"split is {split!r}, must be one of {', '.join(PUBLISHED_IMAGES)}")
    found = resolve(NAME, split)
    if found is None:
        return digits.load(split, instead_of=NAME, side_pixels=SIDE_PIXELS, num_colours=3).sample(limit, seed)
    images, labels = _read(found.paths)
    source = _source(split, found, len(labels))
    dataset = ImageDataset(name=NAME, split=split, images=images, labels=labels, class_names=CLASS_NAMES, source=source)
    return dataset.sample(limit, seed)


def _read(paths: Sequence[Path]) -> tuple[np.ndarray, np.ndarray]:
    if paths[0].suffix == ".npz":
        with np.load(paths[0], allow_pickle=False) as arrays:
            images_NHWC, labels = arrays["x"], arrays["y"]
    else:
        images_NHWC, labels = _read_hub(paths)
    return np.ascontiguousarray(images_NHWC.transpose(0, 3, 1, 2)), labels.astype(np.int64)


def _read_hub(paths: Sequence[Path]) -> tuple[np.ndarray, np.ndarray]:
    """Decode the PNG images of Parquet files, or of Arrow streams prepared by the `datasets` library."""
    import pyarrow as pa
    from PIL import Image
    from pyarrow import parquet

    images, labels = [], []
    for path in paths:
        table = parquet.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_stream(path).read_all()
        for cell in table["img"].to_pylist():
            images.append(np.asarray(Image.open(io.BytesIO(cell["bytes"])).convert("RGB")))
        labels.extend(table["label"].to_pylist())
    return np.stack(images), np.array(labels)


def _source(split: str, found: Found, num_images: int) -> DataSource:
    published = PUBLISHED_IMAGES[split]
    complete = num_images == published
    warning = f"{num_images:,} of {published:,} images: accuracies are not comparable with those of the whole set"
    parts = [f"all {num_images:,} images" if complete else warning, found.note]
    detail = "; ".join(part for part in parts if part)
    return DataSource(name=f"{NAME}/{split}", kind=found.kind, detail=detail, sha256=found.sha256, complete=complete)
