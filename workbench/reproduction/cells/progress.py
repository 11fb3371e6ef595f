"""How long the rest of the cells will take, and each cell and time in words.

Source: the workbench's own rule: a cell is expected to take the mean of the finished ones most like it, where an
argument counts by how much of the differences in time it explains (adjusted R squared of its groups, on logarithms).
Simplified: seconds of another machine count like those of this one; arguments are taken one by one.
Left out: drawing; the command line shows what `notes` says.
"""

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workbench.reproduction.cells.cell import Cell
from workbench.reproduction.records import canonical_json

__all__ = ["Estimate", "describe", "say"]

LEAST_WEIGHT = 0.01  # of an argument that explains nothing: it decides between cells that are alike in all else
LEAST_S = 1e-3  # seconds below which times are taken for equal


class Estimate:
    """Expected seconds of cells, from those that have run.

    Args:
        timed: arguments and seconds of cells that have run.
    """

    def __init__(self, timed: Iterable[tuple[Mapping[str, Any], float]]):
        self._timed = [(_canonical(arguments), seconds) for arguments, seconds in timed]
        self._weights: dict[str, float] = {}
        self._expected: dict[str, float] = {}  # by digest, as long as no other cell has run

    def add(self, arguments: Mapping[str, Any], seconds: float) -> None:
        """Learn from one more cell."""
        self._timed.append((_canonical(arguments), seconds))
        self._weights, self._expected = {}, {}

    def seconds(self, cell: Cell) -> float | None:
        """Return the seconds expected of a cell; None while none has run."""
        if self._timed and cell.digest not in self._expected:
            self._expected[cell.digest] = self._mean_of_the_nearest(_canonical(cell.arguments))
        return self._expected.get(cell.digest)

    def _mean_of_the_nearest(self, own: Mapping[str, str]) -> float:
        self._weights = self._weights or _weights(self._timed)
        likeness = [
            sum(weight for name, weight in self._weights.items() if own.get(name) == other.get(name))
            for other, _ in self._timed
        ]
        nearest = [seconds for like, (_, seconds) in zip(likeness, self._timed, strict=True) if like == max(likeness)]
        return sum(nearest) / len(nearest)

    def remaining_s(self, waiting: Iterable[Cell], running: Iterable[tuple[Cell, float]], jobs: int) -> float | None:
        """Return the seconds until all have run; None while none has.

        Args:
            waiting: cells not yet begun.
            running: cells under way, each with the seconds spent on it.
            jobs: how many run side by side.
        """
        if not self._timed:
            return None
        left = [self.seconds(cell) for cell in waiting]
        left += [max(self.seconds(cell) - spent_s, 0.0) for cell, spent_s in running]
        return max(sum(left) / jobs, max(left)) if left else 0.0


def _canonical(arguments: Mapping[str, Any]) -> dict[str, str]:
    return {name: canonical_json(value) for name, value in arguments.items()}


def _weights(timed: Sequence[tuple[Mapping[str, str], float]]) -> dict[str, float]:
    """Return for each argument how much of the differences in time it explains, from LEAST_WEIGHT to 1."""
    logs = [math.log(max(seconds, LEAST_S)) for _, seconds in timed]
    names = dict.fromkeys(name for arguments, _ in timed for name in arguments)
    total = _squares(logs)
    weights = {}
    for name in names:
        groups = defaultdict(list)
        for (arguments, _), value in zip(timed, logs, strict=True):
            groups[arguments.get(name)].append(value)
        freedom = len(logs) - len(groups)  # without any, groups of one explain everything and say nothing
        within = sum(map(_squares, groups.values()))
        explained = 1 - (within / freedom) / (total / (len(logs) - 1)) if freedom and total else 0.0
        weights[name] = max(explained, LEAST_WEIGHT)
    return weights


def _squares(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values)


def describe(cell: Cell, cells: Sequence[Cell]) -> str:
    """Name a cell by the arguments in which the cells differ: "rte A1 seed 2"."""
    differing = [name for name in cell.arguments if any(_differ(name, cells[0], other) for other in cells)]
    return " ".join(_word(name, cell.arguments[name]) for name in differing) or cell.name


def _differ(name: str, one: Cell, other: Cell) -> bool:
    return one.arguments.get(name) != other.arguments.get(name)


def _word(name: str, value: Any) -> str:
    return value if isinstance(value, str) else f"{name.replace('_', ' ')} {canonical_json(value)}"


def say(line: str) -> None:
    """Write one line to standard output: in a run to the item's log and notebook."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
