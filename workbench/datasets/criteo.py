"""Criteo's display advertising challenge (2014): 13 counts and 26 hashed categories of each advertisement shown.

The label says whether it was clicked. Only `WORKBENCH_DATA` is read: the hub's copies hold 45.8 million rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from workbench.checks import require_one_of
from workbench.datasets.places import workbench_data
from workbench.datasets.source import DataSource, read_tables, resolve, source_of
from workbench.datasets.stand_in import STAND_IN_ROWS, stand_in_source

__all__ = ["MISSING", "NUM_CATEGORIES", "NUM_NUMBERS", "ROWS", "ClickDataset", "FieldRows", "load"]

NUM_NUMBERS, NUM_CATEGORIES = 13, 26  # columns of a row
ROWS: Mapping[str, int] = MappingProxyType({"train": 8_000, "test": 2_000})  # rows of each split
PUBLISHED_ROWS = 45_840_617  # rows of the challenge's training file, from which both splits are cut
MISSING = -1  # the category of an empty cell
STAND_IN_VALUES = 50  # distinct values of a generated field


@dataclass(frozen=True, kw_only=True, slots=True)
class ClickDataset:
    """Advertisements of one split, in the order of time, with their source."""

    split: str  # the split's name
    numbers: np.ndarray  # float32 [N, 13]: log(1 + count); 0 where the count is missing or below 0
    categories: np.ndarray  # int64 [N, 26]: hashed values, MISSING where there is none
    labels: np.ndarray  # int64 [N]: 1 for a click
    source: DataSource  # where the rows came from

    def __post_init__(self) -> None:
        wanted = {"numbers": (NUM_NUMBERS,), "categories": (NUM_CATEGORIES,), "labels": ()}
        for name, width in wanted.items():
            if getattr(self, name).shape != (len(self), *width):
                raise ValueError(f"{name} has the shape {getattr(self, name).shape}, must be {(len(self), *width)}")

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, limit: int) -> ClickDataset:
        """Return the first rows, with a source that states their number."""
        kept = {name: getattr(self, name)[:limit] for name in ("numbers", "categories", "labels")}
        detail = f"{len(kept['labels']):,} rows chosen from: {self.source.detail}"
        return replace(self, **kept, source=replace(self.source, detail=detail))


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldRows:
    """One embedding table for all fields: field after field, first its unseen value, then the most frequent ones."""

    values: tuple[np.ndarray, ...]  # the known values of each field, the most frequent first

    @classmethod
    def of(cls, categories: np.ndarray) -> FieldRows:
        """Collect the values of int64 [N, fields]; equally frequent values are in ascending order."""
        values = []
        for column in categories.T:
            distinct, counts = np.unique(column, return_counts=True)
            values.append(distinct[np.argsort(-counts, kind="stable")])
        return cls(values=tuple(values))

    @property
    def first_rows(self) -> np.ndarray:
        """The first row of each field, and last the number of all rows."""
        return np.cumsum([0, *(1 + len(known) for known in self.values)])

    @property
    def num_rows(self) -> int:
        """Rows of the table."""
        return int(self.first_rows[-1])

    def rows(self, categories: np.ndarray) -> np.ndarray:
        """Return the table's row of every value, int64 [N, fields]."""
        rows = np.empty_like(categories)
        for field, known in enumerate(self.values):
            column, order = categories[:, field], np.argsort(known)
            place = order[np.searchsorted(known, column, sorter=order).clip(max=len(known) - 1)]
            rows[:, field] = self.first_rows[field] + np.where(known[place] == column, 1 + place, 0)
        return rows


def load(split: str = "train", limit: int | None = None) -> ClickDataset:
    """Load a split, or generate a stand-in where `WORKBENCH_DATA` is unset; `limit` keeps the first rows."""
    require_one_of(ROWS, split=split)
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}, must be at least 1 or None")
    name = f"criteo/{split}"
    files = resolve("criteo", split) if workbench_data() else None
    if files is None:
        counts, categories, labels = _stand_in(split)
        columns = {"counts": counts.tolist(), "categories": categories.tolist(), "labels": labels.tolist()}
        source = stand_in_source(name, columns, "rows", "scores")
    else:
        counts, categories, labels = _read(files.paths[0])
        source = source_of(name, files, len(labels), PUBLISHED_ROWS, "rows", "scores are not comparable")
    numbers = np.log1p(np.nan_to_num(counts).clip(min=0)).astype(np.float32)
    dataset = ClickDataset(split=split, numbers=numbers, categories=categories, labels=labels, source=source)
    return dataset if limit is None else dataset.first(limit)


def _read(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read counts (NaN where one is missing), categories and labels."""
    names = [[f"I{place + 1}" for place in range(NUM_NUMBERS)], [f"C{place + 1}" for place in range(NUM_CATEGORIES)]]
    table = read_tables([path], ["label", *names[0], *names[1]])
    counts = np.array([table[name] for name in names[0]], dtype=np.float64).T
    codes = [[MISSING if cell is None else int(cell, 16) for cell in table[name]] for name in names[1]]
    return counts, np.array(codes, dtype=np.int64).T.copy(), np.array(table["label"], dtype=np.int64)


def _stand_in(split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw rows whose small values are frequent; a click follows two or three good values in the first three fields."""
    draw = np.random.default_rng(list(ROWS).index(split))
    num_rows = STAND_IN_ROWS[split]
    counts = draw.integers(20, size=(2, num_rows, NUM_NUMBERS)).min(axis=0)
    categories = draw.integers(STAND_IN_VALUES, size=(3, num_rows, NUM_CATEGORIES)).min(axis=0)
    is_good = np.random.default_rng(len(ROWS)).integers(2, size=(3, STAND_IN_VALUES))
    num_good = sum(is_good[field, categories[:, field]] for field in range(3))
    return counts.astype(np.float64), categories, (num_good >= 2).astype(np.int64)
