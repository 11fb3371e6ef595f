"""How far the cells are and how long the rest will take, told in lines and in a small file that the runner reads.

Source: the workbench's own rule: a cell is expected to take the mean of the finished ones that share most arguments.
Simplified: seconds of another machine count like those of this one.
Left out: drawing; the command line shows what the file says.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.reproduction.cells.cell import Cell
from workbench.reproduction.records import canonical_json, write_json

__all__ = ["PROGRESS_FILE", "CellProgress", "Estimate", "describe", "read_progress", "say", "write_progress"]

PROGRESS_FILE = "cells_progress.json"  # in the folder of the run


@dataclass(frozen=True, kw_only=True, slots=True)
class CellProgress:
    """How far the cells of an item are."""

    num_done: int  # cells that are there, reused ones included
    num_cells: int  # cells in all
    remaining_s: float | None  # estimate of the seconds to go; None while nothing has been timed


class Estimate:
    """Expected seconds of cells, from those that have run.

    Args:
        timed: arguments and seconds of cells that have run.
    """

    def __init__(self, timed: Iterable[tuple[Mapping[str, Any], float]]):
        self._timed = [(_pairs(arguments), seconds) for arguments, seconds in timed]

    def add(self, arguments: Mapping[str, Any], seconds: float) -> None:
        """Learn from one more cell."""
        self._timed.append((_pairs(arguments), seconds))

    def seconds(self, arguments: Mapping[str, Any]) -> float | None:
        """Return the seconds expected of a cell: the mean of those that share most arguments; None if none has run."""
        if not self._timed:
            return None
        own = _pairs(arguments)
        shared = [len(own & pairs) for pairs, _ in self._timed]
        nearest = [seconds for (_, seconds), count in zip(self._timed, shared, strict=True) if count == max(shared)]
        return sum(nearest) / len(nearest)

    def remaining_s(self, waiting: Iterable[Cell], running: Iterable[tuple[Cell, float]], jobs: int) -> float | None:
        """Return the seconds until all have run.

        Args:
            waiting: cells not yet begun.
            running: cells under way, each with the seconds spent on it.
            jobs: how many run side by side.
        """
        if not self._timed:
            return None
        left = [self.seconds(cell.arguments) for cell in waiting]
        left += [max(self.seconds(cell.arguments) - spent_s, 0.0) for cell, spent_s in running]
        return max(sum(left) / jobs, max(left)) if left else 0.0


def _pairs(arguments: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(canonical_json([name, value]) for name, value in arguments.items())


def describe(cell: Cell, cells: Sequence[Cell]) -> str:
    """Name a cell by the arguments in which the cells differ: "rte A1 seed 2"."""
    first = cells[0].arguments
    differing = [name for name in cell.arguments if any(other.arguments.get(name) != first.get(name) for other in cells)]
    return " ".join(_word(name, cell.arguments[name]) for name in differing) or cell.name


def _word(name: str, value: Any) -> str:
    return value if isinstance(value, str) else f"{name.replace('_', ' ')} {canonical_json(value)}"


def say(line: str) -> None:
    """Write one line to standard output: in a run to the item's log and notebook."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def write_progress(folder: Path, progress: CellProgress) -> None:
    """Leave in the folder of a run how far its cells are."""
    write_json(folder / PROGRESS_FILE, progress)


def read_progress(folder: Path) -> CellProgress | None:
    """Return how far the cells of a run are; None where it has none, or none yet."""
    try:
        return CellProgress(**json.loads((folder / PROGRESS_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
