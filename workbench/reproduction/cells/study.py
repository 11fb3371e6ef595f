"""The course of a study: take what is there, run the rest, longest first, keep each result at once.

Source: the workbench's own convention.
Simplified: nothing.
Left out: what a cell is (`cell`), where it lies (`store`), who runs it (`pool`).
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from workbench.reproduction.cells.cell import Cell, CellResult
from workbench.reproduction.cells.pool import Ended, Pool
from workbench.reproduction.cells.progress import CellProgress, Estimate, describe, say, write_progress
from workbench.reproduction.cells.store import CellStore
from workbench.reproduction.errors import RecordError
from workbench.reproduction.machine import num_cores

__all__ = ["CellsFailed", "Study"]

NOTE_S = 1.0  # seconds between two notes of the progress, as often as the runner looks


class CellsFailed(RuntimeError):
    """Cells that raised, died or took too long, each with its traceback; all others have been kept."""


@dataclass(slots=True)
class Study:
    """The cells that one call asks for.

    Attributes:
        store: where they are kept.
        cells: those asked for, in order.
        run_folder: folder of the run, None outside one.
    """

    store: CellStore
    cells: list[Cell]
    run_folder: Path | None
    _held: dict[str, dict[str, Any]] = field(default_factory=dict)  # digest to what is on disk
    _new: set[str] = field(default_factory=set)  # digests of the cells of this call
    _failures: dict[str, str] = field(default_factory=dict)  # digest to traceback
    _next_note_s: float = 0.0  # on the monotonic clock

    def take_what_is_there(self, keep: bool) -> None:
        """Take the cells that are up to date, or, with `keep`, whatever has the arguments.

        Raises:
            RecordError: naming every cell that cannot be trusted.
        """
        refused, stale = [], Counter()
        for cell in self._distinct():
            try:
                held = self.store.read(cell)
            except RecordError as error:
                refused.append(str(error))
                continue
            why = "" if held is None else self.store.changed(held)
            if held is not None and (keep or not why):
                self._held[cell.digest] = held
            elif why:
                stale[why] += 1
        if refused:
            raise RecordError("; ".join(refused))
        reasons = "".join(f"; {count} out of date ({why})" for why, count in stale.items())
        say(f"{len(self._distinct())} cells: {len(self._held)} are there, {len(self._waiting())} to run{reasons}")

    def _distinct(self) -> list[Cell]:
        return list({cell.digest: cell for cell in self.cells}.values())

    def _waiting(self) -> list[Cell]:
        return [cell for cell in self._distinct() if cell.digest not in self._held]

    def run_the_rest(self, jobs: int | None, timeout_s: float | None) -> None:
        """Run what is missing.

        Raises:
            CellsFailed: naming each cell that failed, once all others have finished.
        """
        waiting = self._waiting()
        if not waiting:
            return
        jobs = min(jobs or _default_jobs(), len(waiting))
        estimate = Estimate(self.store.durations())
        with Pool(jobs=jobs, preload=waiting[0].module, timeout_s=timeout_s) as pool:
            while waiting or pool.running():
                while waiting and pool.has_room:
                    pool.start(_longest_first(waiting, estimate))
                for ended in pool.ended():
                    self._take(ended, estimate)
                    self._tell(ended, estimate.remaining_s(waiting, pool.running(), jobs))
                self._note(lambda: estimate.remaining_s(waiting, pool.running(), jobs))
        self._raise_failures()

    def _take(self, ended: Ended, estimate: Estimate) -> None:
        if ended.finished is None:
            self._failures[ended.cell.digest] = ended.failure
            return
        self._held[ended.cell.digest] = self.store.write(ended.cell, ended.finished)
        self._new.add(ended.cell.digest)
        estimate.add(ended.cell.arguments, ended.finished.seconds)

    def _tell(self, ended: Ended, left_s: float | None) -> None:
        from workbench.reproduction.report.numbers import about_text

        number, total = len(self._held) + len(self._failures), len(self._distinct())
        what = "failed" if ended.finished is None else about_text(ended.finished.seconds)
        left = "" if left_s is None else f" · about {about_text(left_s)} left"
        say(f"cell {number} of {total} · {describe(ended.cell, self.cells)} · {what}{left}")

    def _note(self, remaining_s: Callable[[], float | None]) -> None:
        if self.run_folder is None or monotonic() < self._next_note_s:
            return
        self._next_note_s = monotonic() + NOTE_S
        done = len(self._held) + len(self._failures)
        told = CellProgress(num_done=done, num_cells=len(self._distinct()), remaining_s=remaining_s())
        write_progress(self.run_folder, told)

    def _raise_failures(self) -> None:
        if not self._failures:
            return
        named = {cell.digest: describe(cell, self.cells) for cell in self.cells}
        told = [f"{named[digest]}: {failure}" for digest, failure in self._failures.items()]
        names = ", ".join(named[digest] for digest in self._failures)
        raise CellsFailed(f"{len(told)} of {len(named)} cells failed ({names}); the others are kept\n\n" + "\n\n".join(told))

    def results(self) -> list[CellResult]:
        """Return the result of every cell that was asked for, in order."""
        return [self._result(cell) for cell in self.cells]

    def _result(self, cell: Cell) -> CellResult:
        held = self._held[cell.digest]
        return CellResult(
            arguments=cell.arguments, values=held["values"], seconds=held["seconds"], started=held["started"],
            commit=held["commit"], machine=str(held["machine"].get("host", "")), versions=held["versions"],
            reused=cell.digest not in self._new,
        )  # fmt: skip


def _longest_first(waiting: list[Cell], estimate: Estimate) -> Cell:
    """Take the cell that is expected to take longest; the first one where nothing is known."""
    chosen = max(range(len(waiting)), key=lambda place: (estimate.seconds(waiting[place].arguments) or 0.0, -place))
    return waiting.pop(chosen)


def _default_jobs() -> int:
    import torch

    return torch.cuda.device_count() or num_cores()
