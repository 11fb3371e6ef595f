"""The course of a study: take what is there, run the rest, longest first, keep each result at once.

Source: the workbench's own convention.
Simplified: a result that cannot be written, on a full disk, ends the study; it is tried again at the end, and what
still cannot be written stands in the error.
Left out: what a cell is (`cell`), where it lies (`store`), who runs it (`pool`).
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from workbench.reproduction.cells.cell import Cell, CellResult
from workbench.reproduction.cells.claims import Claims
from workbench.reproduction.cells.notes import CellProgress, Notes
from workbench.reproduction.cells.pool import Ended, Pool
from workbench.reproduction.cells.progress import Estimate, describe, say
from workbench.reproduction.cells.store import CellStore
from workbench.reproduction.cells.work import Finished
from workbench.reproduction.errors import RecordError
from workbench.reproduction.machine import num_cores
from workbench.reproduction.records import canonical_json

__all__ = ["CellsFailed", "Study"]

NOTE_S = 1.0  # seconds between two notes of the progress, as often as the runner looks
LOOK_S = 1.0  # seconds between two looks at cells that another study is running


class CellsFailed(RuntimeError):
    """Cells that raised, died, took too long or could not be written; all others have been kept."""


@dataclass(slots=True)
class Study:
    """The cells that one call asks for.

    Attributes:
        store: where they are kept.
        notes: what is noted for others.
        cells: those asked for, in order.
    """

    store: CellStore
    notes: Notes
    cells: list[Cell]
    _distinct: dict[str, Cell] = field(init=False)  # by digest
    _held: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # digest to what is on disk
    _new: set[str] = field(default_factory=set)  # digests of the cells of this call
    _failures: dict[str, str] = field(default_factory=dict)  # digest to traceback
    _unwritten: dict[str, Finished] = field(default_factory=dict)  # digest to what could not be written
    _next_note_s: float = 0.0  # on the monotonic clock
    _next_look_s: float = 0.0  # the same

    def __post_init__(self) -> None:
        self._distinct = {cell.digest: cell for cell in self.cells}

    def take_what_is_there(self) -> None:
        """Take the cells that can be used, and say how many and why not the others.

        Raises:
            RecordError: naming every cell that cannot be trusted.
        """
        refused, kept, stale = [], Counter(), Counter()
        for digest, cell in self._distinct.items():
            try:
                held, why = self.store.find(cell)
            except RecordError as error:
                refused.append(str(error))
                continue
            if held is not None:
                self._held[digest] = held
            (stale if held is None else kept).update([why] if why else [])
        if refused:
            raise RecordError("; ".join(refused))
        there = f"{len(self._held)} are there{_reasons(kept, 'kept')}"
        to_run = f"{len(self._distinct) - len(self._held)} to run{_reasons(stale, 'out of date')}"
        say(f"{len(self._distinct)} cells: {there}, {to_run}")

    def run_the_rest(self, jobs: int | None, timeout_s: float | None) -> None:
        """Run what is missing, and note where everything came from.

        Raises:
            CellsFailed: naming each cell that failed, once all others have finished.
        """
        waiting = [cell for digest, cell in self._distinct.items() if digest not in self._held]
        self.notes.begin(self.cells)
        if waiting:
            jobs = min(jobs or _default_jobs(), len(waiting))
            processes = Pool(jobs=jobs, preload=waiting[0].module, timeout_s=timeout_s)
            with processes as pool, Claims(self.store.folder) as claims:
                self._run(waiting, pool, claims, Estimate(self.store.durations()))
        self._raise_failures()
        self.notes.end(self.cells, self._held)

    def _run(self, waiting: list[Cell], pool: Pool, claims: Claims, estimate: Estimate) -> None:
        while waiting or pool.running():
            while pool.has_room and (cell := self._next(waiting, claims, estimate)):
                pool.start(cell)
            for ended in pool.ended():
                self._take(ended, estimate)
                claims.free(ended.cell)
                self._tell(ended, estimate.remaining_s(waiting, pool.running(), pool.jobs))
            if self._unwritten:
                waiting.clear()
            if monotonic() >= self._next_note_s:
                self._note(estimate.remaining_s(waiting, pool.running(), pool.jobs))

    def _next(self, waiting: list[Cell], claims: Claims, estimate: Estimate) -> Cell | None:
        """Take the longest waiting cell that no other study runs; what another has finished meanwhile is there."""
        if monotonic() < self._next_look_s:
            return None
        for cell in sorted(waiting, key=lambda cell: -(estimate.seconds(cell) or 0.0)):
            if not claims.take(cell):
                continue
            waiting.remove(cell)
            held, why = self.store.find(cell)
            if held is None or why:
                return cell
            self._held[cell.digest] = held
            claims.free(cell)
        self._next_look_s = monotonic() + LOOK_S if waiting else 0.0
        return None

    def _take(self, ended: Ended, estimate: Estimate) -> None:
        digest = ended.cell.digest
        if ended.finished is None:
            self._failures[digest] = ended.failure
            return
        estimate.add(ended.cell.arguments, ended.finished.seconds)
        try:
            self._keep(ended.cell, ended.finished)
        except OSError as error:
            self._unwritten[digest] = ended.finished
            say(f"{self.store.path(ended.cell)} cannot be written: {error.strerror}; no more cells are started")

    def _keep(self, cell: Cell, finished: Finished) -> None:
        self._held[cell.digest] = self.store.write(cell, finished)
        self._new.add(cell.digest)

    def _num_ended(self) -> int:
        return len(self._held) + len(self._failures) + len(self._unwritten)

    def _tell(self, ended: Ended, left_s: float | None) -> None:
        from workbench.reproduction.report.numbers import about_text

        what = "failed" if ended.finished is None else about_text(ended.finished.seconds)
        left = f" · about {about_text(left_s)} left" if left_s else ""
        say(f"cell {self._num_ended()} of {len(self._distinct)} · {describe(ended.cell, self.cells)} · {what}{left}")

    def _note(self, left_s: float | None) -> None:
        self._next_note_s = monotonic() + NOTE_S
        told = CellProgress(num_done=self._num_ended(), num_cells=len(self._distinct), remaining_s=left_s)
        self.notes.progress(told)

    def _raise_failures(self) -> None:
        failed = self._failures | self._still_unwritten()
        not_begun = len(self._distinct) - len(self._held) - len(failed)
        if failed or not_begun:
            names = ", ".join(map(self._name, failed))
            rest = f"; {not_begun} were not begun" if not_begun else ""
            first = f"{len(failed)} of {len(self._distinct)} cells failed ({names}){rest}; the others are kept"
            told = [f"{self._name(digest)}: {failure}" for digest, failure in failed.items()]
            raise CellsFailed("\n\n".join([first, *told]))

    def _still_unwritten(self) -> dict[str, str]:
        """Try once more to write what could not be written; return what still cannot, digest to the reason."""
        failed = {}
        for digest, finished in self._unwritten.items():
            try:
                self._keep(self._distinct[digest], finished)
            except OSError as error:
                failed[digest] = f"ran, and cannot be written: {error}\nIts values: {canonical_json(finished.values)}"
        return failed

    def _name(self, digest: str) -> str:
        return describe(self._distinct[digest], self.cells)

    def results(self) -> list[CellResult]:
        """Return the result of every cell that was asked for, in order."""
        return [self._result(cell) for cell in self.cells]

    def _result(self, cell: Cell) -> CellResult:
        held = self._held[cell.digest]
        return CellResult(
            arguments=cell.arguments,
            values=held["values"],
            seconds=held["seconds"],
            started=held["started"],
            commit=held["commit"],
            machine=str(held["machine"].get("host", "")),
            versions=held["versions"],
            reused=cell.digest not in self._new,
        )


def _reasons(counts: Mapping[str, int], what: str) -> str:
    return "".join(f"; {count} {what} ({why})" for why, count in counts.items())


def _default_jobs() -> int:
    import torch

    return torch.cuda.device_count() or num_cores()
