"""The paper's numbers, for fitting and judging cost models: cells, values, and errors of the held-out cells."""

import csv
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from workbench.checkout import HOME
from workbench.rows import NOT_KEYS, Key, Row, canonical, matches, read_row, value_row

__all__ = ["Cell", "error_rows", "published_value", "summary_rows"]


@dataclass(frozen=True, slots=True)
class Cell:
    """The place of one published number; `Cell.of("table-4", "encode_ms", method="A1", tp=2, pp=2)` makes one."""

    table: str  # the published file, without its ending
    quantity: str  # as in the file
    columns: tuple[tuple[str, Key], ...]  # key columns and their values

    @classmethod
    def of(cls, table: str, quantity: str, **keys: Key) -> "Cell":
        """Return a cell by its keys."""
        return cls(table, quantity, tuple(keys.items()))

    def keys(self) -> dict[str, Key]:
        """Return quantity and keys, as a record names a cell that calibrates."""
        return {"quantity": self.quantity, **dict(self.columns)}

    def value(self, technique: str) -> float:
        """Read the number from the technique's published files."""
        return published_value(technique, self.table, self.quantity, **dict(self.columns))

    def __str__(self) -> str:
        return f"{self.quantity} of {', '.join(f'{name} {value}' for name, value in self.columns)} in {self.table}"


def published_value(technique: str, table: str, quantity: str, **keys: Key) -> float:
    """Read one published number of a technique; the keys must tell its row from all others of the table."""
    rows = [row for row in _table(technique, table) if row.quantity == quantity and matches(row, keys)]
    if len(rows) != 1:
        raise ValueError(f"{table} has {len(rows)} rows of {quantity} with {keys}; it must have one")
    return rows[0].value


@cache
def _table(technique: str, table: str) -> tuple[Row, ...]:
    with (HOME / "reproductions" / technique / "published" / f"{table}.csv").open(encoding="utf-8") as file:
        return tuple(read_row(raw) for raw in csv.DictReader(file))


def error_rows(
    values: Sequence[Mapping[str, Any]],
    published: Iterable[Mapping[str, Any]],
    calibration: Sequence[Mapping[str, Any]],
    unit: str = "ms",
) -> list[dict[str, Any]]:
    """Compare predicted with published cells, those that calibrate left out.

    Args:
        values: ours, flat rows.
        published: flat rows; those in `unit` are compared.
        calibration: quantity and keys of the cells that calibrate.
        unit: unit of the compared quantities.

    Returns:
        Rows: relative_error of each cell (keys: the cell's and `of`, its quantity), and those of `summary_rows`.
    """
    ours = {_identity(row): row["value"] for row in values}
    used = {_identity(cell) for cell in calibration}
    rows = []
    for cell in published:
        identity = _identity(cell)
        if cell["unit"] == unit and identity in ours and identity not in used:
            keys = {name: key for name, key in identity if name != "quantity"}
            error = ours[identity] / cell["value"] - 1
            rows.append(value_row("relative_error", error, of=cell["quantity"], **keys))
    if not rows:
        raise ValueError(f"published has no cell in {unit} that is predicted and does not calibrate; it must have one")
    return rows + summary_rows(abs(row["value"]) for row in rows)


def summary_rows(sizes: Iterable[float]) -> list[dict[str, Any]]:
    """Summarise the sizes of relative errors: median, 90th percentile, largest, and how many there are."""
    sizes = sorted(sizes)
    tenth = statistics.quantiles(sizes, n=10, method="inclusive")[-1] if len(sizes) > 1 else sizes[0]
    summary = {"median_error": statistics.median(sizes), "p90_error": tenth, "largest_error": sizes[-1]}
    return [value_row(name, value) for name, value in (summary | {"held_out_cells": len(sizes)}).items()]


def _identity(row: Mapping[str, Any]) -> frozenset[tuple[str, Key]]:
    """Return quantity and keys; an empty column, as tables read from files have them, is no key."""
    keys = {name: canonical(key) for name, key in row.items() if name == "quantity" or name not in NOT_KEYS}
    return frozenset((name, key) for name, key in keys.items() if key is not None)
