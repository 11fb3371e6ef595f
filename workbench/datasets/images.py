"""A loaded set of labelled images, all of one size and in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from workbench.datasets.source import DataSource, drawn_rows

__all__ = ["ImageDataset"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageDataset:
    """Labelled images of one split with their source."""

    name: str  # the data set, such as "cifar10"
    split: str  # the split's name
    images: np.ndarray  # uint8 [N, colours, height, width]
    labels: np.ndarray  # int64 [N], 0, 1,
    class_names: tuple[str, ...]  # meaning of the labels
    source: DataSource  # where the images came from

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.dtype != np.uint8:
            found = f"{self.images.dtype} {self.images.shape}"
            raise ValueError(f"images of {self.name}: {found}, must be uint8 [N, C, H, W]")
        if self.labels.shape != self.images.shape[:1]:
            found = f"{self.labels.shape} for {len(self.images)} images"
            raise ValueError(f"labels of {self.name}: {found}, must be as many")
        if not np.isin(self.labels, range(len(self.class_names))).all():
            raise ValueError(f"labels of {self.name}: must lie in 0 .. {len(self.class_names) - 1}")

    def __len__(self) -> int:
        return len(self.images)

    def sample(self, limit: int | None, seed: int) -> ImageDataset:
        """Draw `limit` images without replacement, None takes all; a smaller draw is a prefix of a larger one."""
        if limit is None:
            return self
        rows = drawn_rows(len(self), limit, seed)
        detail = f"{len(rows):,} images chosen from: {self.source.detail}"
        source = replace(self.source, detail=detail)
        return replace(self, images=self.images[rows], labels=self.labels[rows], source=source)
