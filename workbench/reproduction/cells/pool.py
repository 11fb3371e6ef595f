"""Cells side by side, each in a process of its own that is used again for the next cell.

Source: `workbench.launch.Ranks`: every process is a pool of one rank, so that one that dies takes no other cell along.
Simplified: one thread a process; a machine with GPUs gives each process its own.
Left out: what is done with results.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from workbench.reproduction.cells.cell import Cell
from workbench.reproduction.cells.work import Finished, perform

__all__ = ["Ended", "Pool"]

TICK_S = 0.05  # seconds between two looks at what has ended; cells take seconds to hours
NO_LIMIT_S = 7 * 86_400.0  # seconds: longer than any cell, and short enough for a selector's milliseconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A cell that has ended: finished, or failed."""

    cell: Cell
    finished: Finished | None  # None where it failed
    failure: str = ""  # with its traceback


@dataclass(slots=True)
class Slot:
    """A process that runs one cell after the other."""

    number: int
    ranks: Any  # Ranks of one rank
    run: Any = None  # what it runs now; None: nothing
    cell: Cell | None = None
    began_s: float = 0.0  # on the monotonic clock


@dataclass(slots=True)
class Pool:
    """Processes for cells; leaving the block ends them.

    Attributes:
        jobs: how many processes at most.
        preload: module that is imported before the processes are forked.
        timeout_s: seconds one cell may take; None for no limit.
    """

    jobs: int
    preload: str
    timeout_s: float | None
    _slots: list[Slot] = field(default_factory=list)

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *error: object) -> None:
        for slot in self._slots:
            slot.ranks.close()

    @property
    def has_room(self) -> bool:
        """Whether another cell may start now."""
        return len(self._slots) < self.jobs or any(slot.run is None for slot in self._slots)

    def running(self) -> list[tuple[Cell, float]]:
        """Return the cells under way, each with the seconds spent on it."""
        now = time.monotonic()
        return [(slot.cell, now - slot.began_s) for slot in self._slots if slot.run is not None]

    def start(self, cell: Cell) -> None:
        """Start a cell in a process that is free, or in a new one."""
        slot = next((slot for slot in self._slots if slot.run is None), None) or self._new_slot()
        slot.run = slot.ranks.start(perform, cell, slot.number, timeout_s=self.timeout_s or NO_LIMIT_S)
        slot.cell, slot.began_s = cell, time.monotonic()

    def _new_slot(self) -> Slot:
        from workbench.launch import Ranks

        # The CPU's process group: cells do not talk to each other, and each chooses its GPU by itself.
        ranks = Ranks(1, device="cpu", preload=(self.preload,), echo=False)
        self._slots.append(Slot(number=len(self._slots), ranks=ranks))
        return self._slots[-1]

    def ended(self) -> Iterator[Ended]:
        """Wait a moment and return the cells that have ended."""
        time.sleep(TICK_S)
        for slot in self._slots:
            if slot.run is not None and slot.run.done():
                run, slot.run = slot.run, None
                yield _end_of(run, slot.cell)


def _end_of(run: Any, cell: Cell) -> Ended:
    from workbench.launch import RankFailed

    try:
        return Ended(cell=cell, finished=run.result()[0])
    except RankFailed as error:
        failure = error.failures[0]
        return Ended(cell=cell, finished=None, failure=f"{failure.message}\n{failure.traceback.rstrip()}".rstrip())
