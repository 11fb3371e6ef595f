"""The published cells that the paper's machines are fitted to, and no other.

Source: "Does compressing activations help model parallel training?", tables 2 to 4, 6, 7, 9 and 12. Of no table more
than one cell in five is used, nor of all of them together; the rest is predicted. A cell that two tables print (table
3 repeats nine of table 2) counts in both.
Simplified: a cell's last digit is taken as it stands.
Left out: nothing.

Units: milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["CALIBRATION", "PublishedCell", "calibration_cells", "value_ms"]


@dataclass(frozen=True, slots=True)
class PublishedCell:
    """One number of one table.

    Attributes:
        table: such as "table-4".
        quantity: as in the published CSV file.
        method: a name of table 1, or "w/o".
        tp: tensor-parallel ranks.
        pp: pipeline stages.
        value_ms: milliseconds.
        nvlink: 1 or 0 where the table tells the two machines apart.
        boundary: in front of stage boundary + 1, where the table has boundaries.
    """

    table: str
    quantity: str
    method: str
    tp: int
    pp: int
    value_ms: float
    nvlink: int | None = None
    boundary: int | None = None

    def keys(self) -> dict[str, Any]:
        """Return quantity and keys, as a record names a cell."""
        named = {"quantity": self.quantity, "method": self.method, "tp": self.tp, "pp": self.pp}
        optional = {"nvlink": self.nvlink, "boundary": self.boundary}
        return named | {name: value for name, value in optional.items() if value is not None}


def _cells(table: str, tp: int, pp: int, rows: Mapping[str, Mapping[str, float]], **keys: int) -> tuple[PublishedCell, ...]:
    return tuple(
        PublishedCell(table, quantity, name, tp, pp, value, **keys)
        for name, row in rows.items()
        for quantity, value in row.items()
    )


CALIBRATION: tuple[PublishedCell, ...] = (
    # p3.8xlarge, batch 32, sequence 512: compute with and without tensor parallelism, Python's sampling
    *_cells("table-2", 1, 4, {"w/o": {"iteration_ms": 591.96}, "R3": {"iteration_ms": 1824.36}}),
    *_cells("table-2", 4, 1, {"w/o": {"iteration_ms": 261.48}}),
    *_cells("table-3", 1, 4, {"w/o": {"iteration_ms": 591.96}}, nvlink=1),
    *_cells("table-3", 4, 1, {"w/o": {"iteration_ms": 261.48}}, nvlink=1),
    # local machine, likewise: four ranks on its PCIe bridge, and the parts of an iteration
    *_cells("table-3", 4, 1, {"w/o": {"iteration_ms": 736.01}}, nvlink=0),
    *_cells(
        "table-4",
        2,
        2,
        {
            "w/o": {"forward_ms": 276.34, "tensor_ms": 150.72},
            "A1": {"encode_ms": 2.16, "decode_ms": 3.12, "tensor_ms": 80.88, "optimizer_ms": 6.16},
            "A2": {"encode_ms": 3.12, "decode_ms": 4.56, "backward_ms": 366.51, "waiting_and_pipeline_ms": 4.07},
            "T1": {"encode_ms": 70.08, "decode_ms": 13.68, "tensor_ms": 85.20, "backward_ms": 355.71},
            "T4": {"encode_ms": 74.88, "decode_ms": 45.36},
            "R3": {"encode_ms": 11499.12},
            "R4": {"encode_ms": 44038.56},
            "Q1": {"encode_ms": 20.64, "decode_ms": 32.16},
        },
    ),
    # four p3.8xlarge, pre-training: all-reduce across hosts; NVLink, codecs, language-model head
    *_cells("table-6", 8, 2, {"w/o": {"iteration_ms": 15642.30}}),
    *_cells(
        "table-7",
        4,
        4,
        {
            "w/o": {"forward_ms": 467.73, "backward_ms": 419.26, "tensor_ms": 91.08, "optimizer_ms": 7.42},
            "A1": {"encode_ms": 8.64, "decode_ms": 16.20, "tensor_ms": 32.76},
            "A2": {"encode_ms": 12.96, "decode_ms": 20.52},
            "T1": {"encode_ms": 73.44, "decode_ms": 140.40, "tensor_ms": 80.28},
            "T4": {"encode_ms": 153.36, "decode_ms": 427.68},
            "Q1": {"encode_ms": 90.72, "decode_ms": 304.56},
        },
    ),
    *_cells("table-9", 4, 4, {"w/o": {"boundary_ms": 77.82}}, boundary=0),
    # p3.8xlarge, batch 8, sequence 128: launching kernels
    *_cells("table-12", 1, 4, {"w/o": {"iteration_ms": 106.04}}),
    *_cells("table-12", 2, 2, {name: {"iteration_ms": value} for name, value in (
        ("w/o", 121.26), ("A1", 142.41), ("T1", 152.91), ("Q1", 163.18),
    )}),
    *_cells("table-12", 4, 1, {"T1": {"iteration_ms": 171.24}, "Q1": {"iteration_ms": 171.06}}),
)  # fmt: skip
"""Every published number that a constant of the paper's machines comes from."""


def calibration_cells(table: str) -> list[dict[str, Any]]:
    """Return the cells of one table that calibrate, as `record(calibration={"cells": ...})` takes them."""
    return [cell.keys() for cell in CALIBRATION if cell.table == table]


def value_ms(cells: Iterable[PublishedCell], table: str, quantity: str, name: str, tp: int, pp: int, **keys: int) -> float:
    """Return the milliseconds of one cell.

    Raises:
        ValueError: where the cells do not hold it.
    """
    for cell in cells:
        same = (cell.table, cell.quantity, cell.method, cell.tp, cell.pp) == (table, quantity, name, tp, pp)
        if same and all(getattr(cell, key) == wanted for key, wanted in keys.items()):
            return cell.value_ms
    raise ValueError(f"cells: they must hold {quantity} of {name} at TP {tp}, PP {pp} in {table}")
