"""Which published cells the paper's machines are fitted to; their values stay in the published files.

Source: "Does compressing activations help model parallel training?", tables 2 to 4, 6, 7, 9 and 12, as read from
`reproductions/activation_compression/published`. Of no table more than one cell in five is used, nor of all of them
together; the rest is predicted. A cell that two tables print (table 3 repeats nine of table 2) counts in both.
Simplified: a cell's last digit is taken as it stands.
Left out: nothing.

Units: milliseconds, as printed.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

__all__ = ["CALIBRATION", "PublishedCell", "calibration_cells", "published_ms"]

PUBLISHED = Path(__file__).parents[4] / "reproductions/activation_compression/published"


@dataclass(frozen=True, slots=True)
class PublishedCell:
    """The place of one number in one table.

    Attributes:
        table: such as "table-4".
        quantity: as in the published file.
        method: a name of table 1, or "w/o".
        tp: tensor-parallel ranks.
        pp: pipeline stages.
        nvlink: 1 or 0 where the table tells the two machines apart.
        boundary: in front of stage boundary + 1, where the table has boundaries.
    """

    table: str
    quantity: str
    method: str
    tp: int
    pp: int
    nvlink: int | None = None
    boundary: int | None = None

    def __str__(self) -> str:
        return f"{self.quantity} of {self.method} at TP {self.tp}, PP {self.pp} in {self.table}"

    def keys(self) -> dict[str, Any]:
        """Return quantity and keys, as a record names a cell."""
        named = {"quantity": self.quantity, "method": self.method, "tp": self.tp, "pp": self.pp}
        optional = {"nvlink": self.nvlink, "boundary": self.boundary}
        return named | {name: value for name, value in optional.items() if value is not None}


def _cells(table: str, tp: int, pp: int, columns: Mapping[str, str], **keys: int) -> tuple[PublishedCell, ...]:
    """Name cells of one mesh: methods, and the columns of each in one text."""
    return tuple(
        PublishedCell(table, f"{column}_ms", name, tp, pp, **keys)
        for name, wanted in columns.items()
        for column in wanted.split()
    )


CALIBRATION: tuple[PublishedCell, ...] = (
    # p3.8xlarge, batch 32, sequence 512: compute with and without tensor parallelism, Python's sampling
    *_cells("table-2", 1, 4, {"w/o": "iteration"}),
    *_cells("table-2", 4, 1, {"w/o": "iteration", "R1": "iteration", "R3": "iteration"}),
    *_cells("table-3", 1, 4, {"w/o": "iteration"}, nvlink=1),
    *_cells("table-3", 4, 1, {"w/o": "iteration"}, nvlink=1),
    # local machine, likewise: four ranks on its PCIe bridge, and the parts of an iteration
    *_cells("table-3", 4, 1, {"w/o": "iteration"}, nvlink=0),
    *_cells(
        "table-4",
        2,
        2,
        {
            "w/o": "forward tensor",
            "A1": "encode decode tensor optimizer",
            "A2": "encode decode backward waiting_and_pipeline",
            "T1": "encode decode tensor backward",
            "T4": "encode decode",
            "R3": "encode",
            "R4": "encode",
            "Q1": "encode decode",
        },
    ),
    # four p3.8xlarge, pre-training: all-reduce across hosts; NVLink, codecs, language-model head
    *_cells("table-6", 8, 2, {"w/o": "iteration"}),
    *_cells(
        "table-7",
        4,
        4,
        {
            "w/o": "forward backward tensor optimizer",
            "A1": "tensor",
            "T1": "encode decode tensor",
            "T4": "encode decode",
        },
    ),
    *_cells("table-9", 4, 4, {"w/o": "boundary"}, boundary=0),
    # p3.8xlarge, batch 8, sequence 128: launching kernels
    *_cells("table-12", 1, 4, {"w/o": "iteration"}),
    *_cells("table-12", 2, 2, dict.fromkeys(("w/o", "A1", "T1", "Q2"), "iteration")),
    *_cells("table-12", 4, 1, dict.fromkeys(("T1", "Q2"), "iteration")),
)
"""Every published number that a constant of the paper's machines comes from."""


def calibration_cells(table: str) -> list[dict[str, Any]]:
    """Return the cells of one table that calibrate, as `record(calibration={"cells": ...})` takes them."""
    return [cell.keys() for cell in CALIBRATION if cell.table == table]


def published_ms(cells: Iterable[PublishedCell] = CALIBRATION) -> dict[PublishedCell, float]:
    """Read cells from the published files.

    Returns:
        Milliseconds by cell.

    Raises:
        ValueError: naming a cell that its file does not hold.
    """
    found = {}
    for cell in cells:
        table = _table_ms(cell.table)
        if cell not in table:
            raise ValueError(f"cells: {cell} is not in {PUBLISHED / cell.table}.csv")
        found[cell] = table[cell]
    return found


@cache
def _table_ms(table: str) -> Mapping[PublishedCell, float]:
    with (PUBLISHED / f"{table}.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["unit"] == "ms"]
    return MappingProxyType({_cell_of(table, row): float(row["value"]) for row in rows})


def _cell_of(table: str, row: Mapping[str, str]) -> PublishedCell:
    optional = {name: int(row[name]) for name in ("nvlink", "boundary") if row.get(name)}
    return PublishedCell(table, row["quantity"], row["method"], int(row["tp"]), int(row["pp"]), **optional)
