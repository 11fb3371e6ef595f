"""A loaded data set of rows or images, its `DataSource`, which ends in the record, and the search for its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from workbench.datasets import places
from workbench.datasets.manifest import DataFile, Entry, entry_named, file_named
from workbench.datasets.places import DataError

__all__ = ["DataError", "DataSource", "Dataset", "Found", "ImageDataset", "SourceKind", "read_tables", "resolve"]
__all__ += ["source_of"]


class SourceKind(str, Enum):
    """Which of the places the data came from."""

    WORKBENCH_DATA = "WORKBENCH_DATA"
    HUB = "hub"
    PACKAGE = "package"
    STAND_IN = "stand-in"


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSource:
    """Where a data set came from, as it is written into a record."""

    name: str  # the data set and split, such as "glue/sst2/train"
    kind: SourceKind  # the place it came from
    detail: str  # rows used, and a warning where they are not the published split
    sha256: str  # digest of the files that were read, or of the generated rows
    complete: bool = True  # whether all rows of the published split were there to choose from

    @property
    def is_real(self) -> bool:
        """Whether this is real data; a stand-in can never support a claim about accuracy."""
        return self.kind is not SourceKind.STAND_IN

    def as_record(self) -> dict[str, str]:
        """Return the four fields that a record holds, as plain strings."""
        return {"name": self.name, "source": self.kind.value, "detail": self.detail, "sha256": self.sha256}


def _drawn_rows(num_rows: int, limit: int, seed: int) -> np.ndarray:
    """Draw row numbers without replacement; a smaller draw with the same seed is a prefix of a larger one."""
    if limit < 1:
        raise ValueError(f"limit is {limit}, must be at least 1 or None")
    return np.random.default_rng(seed).permutation(num_rows)[:limit]


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """Rows of one split, column by column, with their source."""

    name: str  # the data set, such as "glue/sst2"
    split: str  # the split's name
    columns: Mapping[str, Sequence[Any]]  # column name to its values, all of equal length
    text_columns: tuple[str, ...]  # the columns a model reads, in order: one, or two for sentence pairs
    source: DataSource  # where the rows came from

    def __post_init__(self) -> None:
        lengths = {column: len(values) for column, values in self.columns.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"columns of {self.name}: lengths {lengths} differ; all must be equal")
        for column in self.text_columns:
            if column not in self.columns:
                raise ValueError(f"text_columns of {self.name}: {column!r} is none of {sorted(self.columns)}")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {column: values[row] for column, values in self.columns.items()}

    @property
    def texts(self) -> tuple[list[str], ...]:
        """The text columns as lists: `tokenizer(*dataset.texts)` takes them as they are."""
        return tuple(list(self.columns[column]) for column in self.text_columns)

    @property
    def labels(self) -> list[Any]:
        """The labels, one a row."""
        if "label" not in self.columns:
            raise ValueError(f"labels of {self.name}: it has only the columns {sorted(self.columns)}")
        return list(self.columns["label"])

    def rows(self, chosen: Sequence[int]) -> Dataset:
        """Return the chosen rows in the given order, with a source that states their number."""
        columns = {name: [values[row] for row in chosen] for name, values in self.columns.items()}
        detail = f"{len(chosen):,} rows chosen from: {self.source.detail}"
        return replace(self, columns=columns, source=replace(self.source, detail=detail))

    def sample(self, limit: int | None, seed: int) -> Dataset:
        """Draw `limit` rows without replacement, None takes all; a smaller draw is a prefix of a larger one."""
        return self if limit is None else self.rows(_drawn_rows(len(self), limit, seed).tolist())


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
            shape = f"{self.images.dtype} {self.images.shape}"
            raise ValueError(f"images of {self.name}: {shape}, must be uint8 [N, C, H, W]")
        if self.labels.shape != self.images.shape[:1]:
            shape = f"{self.labels.shape} for {len(self.images)} images"
            raise ValueError(f"labels of {self.name}: {shape}, must be as many")
        if not np.isin(self.labels, range(len(self.class_names))).all():
            raise ValueError(f"labels of {self.name}: must lie in 0 .. {len(self.class_names) - 1}")

    def __len__(self) -> int:
        return len(self.images)

    def sample(self, limit: int | None, seed: int) -> ImageDataset:
        """Draw `limit` images without replacement, None takes all; a smaller draw is a prefix of a larger one."""
        if limit is None:
            return self
        rows = _drawn_rows(len(self), limit, seed)
        detail = f"{len(rows):,} images chosen from: {self.source.detail}"
        source = replace(self.source, detail=detail)
        return replace(self, images=self.images[rows], labels=self.labels[rows], source=source)


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Files of one split that were found on this machine."""

    paths: tuple[Path, ...]  # the files, in order
    kind: SourceKind  # the place
    sha256: str  # digest of their bytes, one file after the other
    note: str = ""  # further information for readers, empty if there is none


def _in_workbench_data(folder: Path, entry: Entry, file: DataFile) -> Found:
    path = folder / file.file
    remedy = f"mend it, or unset {places.DATA_VARIABLE} to use the Hugging Face cache or a stand-in"
    if not path.is_file():
        raise DataError(f"{places.DATA_VARIABLE} is set, but {file.file} is not in {folder}; {remedy}")
    digest = places.sha256_of(path)
    if file.sha256 and digest != file.sha256:
        wanted = f"sha256 {digest[:12]}… where the manifest has {file.sha256[:12]}…"
        raise DataError(f"{path} has {wanted}; {remedy}")
    note = entry.note if file.sha256 else "not in the manifest, so its checksum was compared with nothing"
    return Found(paths=(path,), kind=SourceKind.WORKBENCH_DATA, sha256=digest, note=note)


def resolve(name: str, split: str) -> Found | None:
    """Find the files of a split in `WORKBENCH_DATA` if it is set, else in the Hugging Face cache, or return None."""
    entry = entry_named(name)
    file = file_named(entry, split)
    folder = places.workbench_data()
    if folder is not None:
        return _in_workbench_data(folder, entry, file)
    paths = entry.cached(file) or places.prepared_files(entry.hub_id, entry.hub_config, file.hub_split)
    if not paths:
        return None
    return Found(paths=paths, kind=SourceKind.HUB, sha256=places.sha256_of(*paths), note=entry.hub_id)


def read_tables(paths: Sequence[Path], columns: Sequence[str]) -> dict[str, list[Any]]:
    """Read columns of Parquet files, or of Arrow streams prepared by the `datasets` library."""
    import pyarrow as pa
    from pyarrow import parquet

    values: dict[str, list[Any]] = {name: [] for name in columns}
    for path in paths:
        table = parquet.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_stream(path).read_all()
        for name in columns:
            values[name] += table[name].to_pylist()
    return values


def source_of(name: str, files: Found, num_rows: int, num_published: int, unit: str, warning: str) -> DataSource:
    """Return the source of the rows of a split, with a warning if published rows are missing."""
    complete = num_rows == num_published
    rows = f"all {num_rows:,} {unit}" if complete else f"{num_rows:,} of {num_published:,} {unit}: {warning}"
    detail = "; ".join(filter(None, (rows, files.note)))
    return DataSource(name=name, kind=files.kind, detail=detail, sha256=files.sha256, complete=complete)
