"""How long the rest of the cells will take, and each cell and time in words.

Source: the workbench's own rule: a cell is expected to take the mean of the finished ones that share most arguments.
Simplified: seconds of another machine count like those of this one.
Left out: drawing; the command line shows what `notes` says.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workbench.reproduction.cells.cell import Cell
from workbench.reproduction.records import canonical_json

__all__ = ["Estimate", "describe", "say"]


class Estimate:
    """Expected seconds of cells, from those that have run.

    Args:
        cells: those to expect something of.
        timed: arguments and seconds of cells that have run.
    """

    def __init__(self, cells: Iterable[Cell], timed: Iterable[tuple[Mapping[str, Any], float]] = ()):
        self._pairs = {cell.digest: _pairs(cell.arguments) for cell in cells}
        self._nearest: dict[str, tuple[int, list[float]]] = {}  # digest to the most shared arguments and the seconds there
        for arguments, seconds in timed:
            self.add(arguments, seconds)

    def add(self, arguments: Mapping[str, Any], seconds: float) -> None:
        """Learn from one more cell."""
        pairs = _pairs(arguments)
        for digest, own in self._pairs.items():
            shared = len(own & pairs)
            most, found = self._nearest.get(digest, (-1, []))
            if shared >= most:
                self._nearest[digest] = (shared, [*found, seconds] if shared == most else [seconds])

    def seconds(self, cell: Cell) -> float | None:
        """Return the seconds expected of a cell; None while none has run."""
        found = self._nearest.get(cell.digest, (0, []))[1]
        return sum(found) / len(found) if found else None

    def remaining_s(self, waiting: Iterable[Cell], running: Iterable[tuple[Cell, float]], jobs: int) -> float | None:
        """Return the seconds until all have run; None while none has.

        Args:
            waiting: cells not yet begun.
            running: cells under way, each with the seconds spent on it.
            jobs: how many run side by side.
        """
        if not self._nearest:
            return None
        left = [self.seconds(cell) for cell in waiting]
        left += [max(self.seconds(cell) - spent_s, 0.0) for cell, spent_s in running]
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
