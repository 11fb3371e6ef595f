"""A study in cells: take the cells that are there, run the rest side by side, longest first, keep each result at once.

Each process is a worker group of one rank, so that its death costs one cell. A cell is expected to take the mean of the
finished cells most like it, where an argument counts by how much of the differences in time it explains (adjusted R
squared of its groups, on logarithms).
"""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic, sleep
from typing import Any

from workbench.reproduction.cells.cell import Cell, CellResult, Finished, perform
from workbench.reproduction.cells.store import CellClaims, CellStore, Notes, StoredCell
from workbench.reproduction.errors import RecordError
from workbench.reproduction.files import canonical_json
from workbench.reproduction.jobs import Engine, Jobs, Needs
from workbench.reproduction.machine import num_cores
from workbench.rows.progress import say_progress

__all__ = ["CellsFailed", "Ended", "Estimate", "JobPool", "Pool", "Study", "describe"]

NOTE_S = 1.0  # seconds between two notes of the progress, as often as the runner looks
LOOK_S = 1.0  # seconds between two looks at cells that another study is running
TICK_S = 0.05  # seconds between two looks at what has ended; cells take seconds to hours
JOBS_TICK_S = 0.5  # the same where they are jobs, whose answers come through a file system
NO_LIMIT_S = 7 * 86_400.0  # seconds: longer than any cell, and short enough for a selector's milliseconds
LEAST_WEIGHT = 0.01  # of an argument that explains nothing: it decides between cells that are alike in all else
LEAST_S = 1e-3  # seconds below which times are taken for equal


class CellsFailed(RuntimeError):
    """Cells that raised, died, took too long or could not be written; all others have been kept."""


@dataclass(slots=True)
class Study:
    """The cells that one call asks for."""

    store: CellStore  # where they are kept
    notes: Notes  # what is noted for others
    cells: list[Cell]  # those asked for, in order
    _distinct: dict[str, Cell] = field(init=False)  # by digest
    _stored: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # digest to what is on disk
    _new: set[str] = field(default_factory=set)  # digests of the cells of this call
    _failures: dict[str, str] = field(default_factory=dict)  # digest to traceback
    _unwritten: dict[str, Finished] = field(default_factory=dict)  # digest to what could not be written
    _next_note_s: float = 0.0  # on the monotonic clock
    _next_look_s: float = 0.0  # the same

    def __post_init__(self) -> None:
        self._distinct = {cell.digest: cell for cell in self.cells}

    def take_what_is_there(self) -> None:
        """Take the cells that can be used, and say how many and why not the others."""
        refused: list[str] = []
        kept: Counter[str] = Counter()
        stale: Counter[str] = Counter()
        for digest, cell in self._distinct.items():
            try:
                stored, why = self.store.find(cell)
            except RecordError as error:
                refused.append(str(error))
                continue
            if stored is not None:
                self._stored[digest] = stored
            (stale if stored is None else kept).update([why] if why else [])
        if refused:
            raise RecordError("; ".join(refused))
        there = f"{len(self._stored)} are there{_reasons(kept, 'kept')}"
        to_run = f"{len(self._distinct) - len(self._stored)} to run{_reasons(stale, 'out of date')}"
        _say(f"{len(self._distinct)} cells: {there}, {to_run}")

    def run_the_rest(self, jobs: int | None, timeout_s: float | None, *, times: bool = False) -> None:
        """Run what is missing, and note where everything came from."""
        waiting = [cell for digest, cell in self._distinct.items() if digest not in self._stored]
        self.notes.begin(self.cells)
        if waiting:
            import torch

            takes_all = jobs == 1
            jobs = min(jobs or torch.cuda.device_count() or num_cores(), len(waiting))
            estimate = Estimate(self.store.durations())
            processes: Any = Pool(jobs=jobs, preload=waiting[0].module, timeout_s=timeout_s)
            if engine := Engine.of_environment():
                names = {cell.digest: describe(cell, self.cells) for cell in waiting}
                processes = JobPool(engine, self.store, estimate, names, takes_all, times, timeout_s)
            with processes as pool, CellClaims(self.store.folder) as claims:
                self._run(waiting, pool, claims, estimate)
        self._raise_failures()
        self.notes.end(self.cells, self._stored)

    def _run(self, waiting: list[Cell], pool: Pool | JobPool, claims: CellClaims, estimate: Estimate) -> None:
        while waiting or pool.running():
            while pool.has_room and (cell := self._next(waiting, claims, estimate)):
                if pool.start(cell) is False:  # no room now
                    waiting.append(cell)
                    claims.free(cell.digest)
                    break
            for ended in pool.ended():
                self._take(ended, estimate)
                claims.free(ended.cell.digest)
                self._say_ended(ended, estimate.remaining_s(waiting, pool.running(), pool.jobs))
            if self._unwritten:
                waiting.clear()
            if monotonic() >= self._next_note_s:
                self._next_note_s = monotonic() + NOTE_S
                left_s = estimate.remaining_s(waiting, pool.running(), pool.jobs)
                say_progress(self._num_ended(), len(self._distinct), "cells", left_s)

    def _next(self, waiting: list[Cell], claims: CellClaims, estimate: Estimate) -> Cell | None:
        """Take the longest waiting cell that no other study runs; what another has finished meanwhile is there."""
        if monotonic() < self._next_look_s:
            return None
        for cell in sorted(waiting, key=estimate.seconds, reverse=True):
            if not claims.take(cell):
                continue
            waiting.remove(cell)
            stored, why = self.store.find(cell)
            if stored is None or why:
                return cell
            self._stored[cell.digest] = stored
            claims.free(cell.digest)
        self._next_look_s = monotonic() + LOOK_S if waiting else 0.0
        return None

    def _take(self, ended: Ended, estimate: Estimate) -> None:
        digest = ended.cell.digest
        if ended.finished is None:
            self._failures[digest] = ended.failure
            return
        estimate.add(ended.cell.arguments, ended.finished.seconds)
        try:
            self._keep(ended.cell, ended.finished, ended.stored)
        except OSError as error:
            self._unwritten[digest] = ended.finished
            _say(f"{self.store.path(ended.cell)} cannot be written: {error.strerror}; no more cells are started")

    def _keep(self, cell: Cell, finished: Finished, stored: StoredCell | None = None) -> None:
        self._stored[cell.digest] = stored or self.store.write(cell, finished)
        self._new.add(cell.digest)

    def _num_ended(self) -> int:
        return len(self._stored) + len(self._failures) + len(self._unwritten)

    def _say_ended(self, ended: Ended, left_s: float | None) -> None:
        from workbench.reproduction.report.texts import about_text

        what = "failed" if ended.finished is None else about_text(ended.finished.seconds)
        left = f" · about {about_text(left_s)} left" if left_s else ""
        _say(f"cell {self._num_ended()} of {len(self._distinct)} · {describe(ended.cell, self.cells)} · {what}{left}")

    def _raise_failures(self) -> None:
        failed = self._failures | self._still_unwritten()
        not_begun = len(self._distinct) - len(self._stored) - len(failed)
        if failed or not_begun:
            names = ", ".join(map(self._name, failed))
            rest = f"; {not_begun} were not begun" if not_begun else ""
            first = f"{len(failed)} of {len(self._distinct)} cells failed ({names}){rest}; the others are kept"
            reasons = [f"{self._name(digest)}: {failure}" for digest, failure in failed.items()]
            raise CellsFailed("\n\n".join([first, *reasons]))

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
        results = []
        for cell in self.cells:
            stored = self._stored[cell.digest]
            copied = {name: stored[name] for name in ("values", "seconds", "started", "commit", "versions")}
            machine, is_new = str(stored["machine"].get("host", "")), cell.digest in self._new
            results.append(CellResult(arguments=cell.arguments, machine=machine, reused=not is_new, **copied))
        return results


def _reasons(counts: Mapping[str, int], what: str) -> str:
    return "".join(f"; {count} {what} ({why})" for why, count in counts.items())


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A cell that has ended: finished, or failed."""

    cell: Cell
    finished: Finished | None  # None where it failed
    failure: str = ""  # with its traceback
    stored: StoredCell | None = None  # as its job has written it


@dataclass(slots=True)
class Slot:
    """A process that runs one cell after the other."""

    number: int
    ranks: Any  # Ranks of one rank
    cell: Cell | None = None  # the cell that it runs now
    run: Any = None  # the call of that cell
    began_s: float = 0.0  # on the monotonic clock


@dataclass(slots=True)
class Pool:
    """Processes for cells; leaving the block ends them."""

    jobs: int  # how many processes at most
    preload: str  # module that is imported before the processes are forked
    timeout_s: float | None  # seconds one cell may take; None for no limit
    _slots: list[Slot] = field(default_factory=list)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        for slot in self._slots:
            slot.ranks.close()

    @property
    def has_room(self) -> bool:
        """Whether another cell may start now."""
        return len(self._slots) < self.jobs or any(slot.cell is None for slot in self._slots)

    def running(self) -> list[tuple[Cell, float]]:
        """Return the cells under way, each with the seconds spent on it."""
        now = monotonic()
        return [(slot.cell, now - slot.began_s) for slot in self._slots if slot.cell is not None]

    def start(self, cell: Cell) -> bool:
        """Start a cell in a process that is free, or in a new one."""
        slot = next((slot for slot in self._slots if slot.cell is None), None) or self._new_slot()
        slot.run = slot.ranks.start(perform, cell, slot.number, timeout_s=self.timeout_s or NO_LIMIT_S)
        slot.cell, slot.began_s = cell, monotonic()
        return True

    def _new_slot(self) -> Slot:
        from workbench.launch import Ranks

        # The CPU's process group: cells do not talk to each other, and each chooses its GPU by itself.
        ranks = Ranks(1, device="cpu", preload=(self.preload,), echo=False)
        self._slots.append(Slot(number=len(self._slots), ranks=ranks))
        return self._slots[-1]

    def ended(self) -> Iterator[Ended]:
        """Wait a moment and return the cells that have ended."""
        from workbench.launch import RankFailed

        sleep(TICK_S)
        for slot in self._slots:
            if slot.cell is None or not slot.run.done():
                continue
            cell, slot.cell = slot.cell, None
            try:
                yield Ended(cell=cell, finished=slot.run.result()[0])
            except RankFailed as error:
                yield Ended(cell=cell, finished=None, failure=_reason(error))


def _reason(error: Any) -> str:
    failure = error.failures[0]
    return f"{failure.message}\n{failure.traceback.rstrip()}".rstrip()


@dataclass(slots=True)
class JobPool:
    """Cells as jobs of a cluster, each of which writes its result; leaving the block by an error cancels them."""

    engine: Engine
    store: CellStore
    estimate: Estimate
    names: Mapping[str, str]  # digest to words
    takes_all: bool  # whether a cell takes all cores of a machine, unless its arguments say how many
    times: bool  # whether its time is judged
    timeout_s: float | None  # seconds one cell may take; None for no limit
    _jobs: Jobs = field(init=False)
    _cells: dict[str, Cell] = field(default_factory=dict)  # by the key of its job

    def __post_init__(self) -> None:
        self._jobs = Jobs(self.engine)

    def __enter__(self) -> JobPool:
        return self

    def __exit__(self, *error: Any) -> None:
        self._jobs.__exit__(*error)

    @property
    def has_room(self) -> bool:
        """Whether another cell may be submitted now."""
        return self._jobs.has_room

    @property
    def jobs(self) -> int:
        """Cells that run side by side, as far as is known."""
        return max(sum(spent_s > 0 for _, spent_s in self.running()), 1)

    def running(self) -> list[tuple[Cell, float]]:
        """Return the cells under way or in the queue, each with the seconds spent on it."""
        began = {key: job.began_s for key in self._cells if (job := self._jobs.get(key))}
        now = monotonic()
        return [(self._cells[key], now - began_s if began_s else 0.0) for key, began_s in began.items()]

    def start(self, cell: Cell) -> bool:
        """Submit a cell, or take over its job of an earlier call."""
        key, ranks = f"{cell.name}-{cell.digest}", cell.arguments.get("num_ranks")
        cores = ranks if self.takes_all and isinstance(ranks, int) else 1  # else the ranks are virtual
        alone = self.times or (self.takes_all and ranks is None)
        needs = Needs(cores=cores, expected_s=self.estimate.seconds(cell), alone=alone)
        store, name = replace(self.store, keep=False, committed={}), f"{cell.name} {self.names[cell.digest]}"
        started = self._jobs.start(key, name, needs, perform_and_keep, store, cell, self.timeout_s)
        if started:
            self._cells[key] = cell
        return started

    def ended(self) -> Iterator[Ended]:
        """Wait a moment and return the cells that have ended."""
        sleep(JOBS_TICK_S)
        for key in list(self._cells):
            if (answer := self._jobs.answer(key)) is None:
                continue
            cell = self._cells.pop(key)
            stored, why = self.store.find(cell)
            if stored is None or why:
                yield Ended(cell=cell, finished=None, failure=answer.failure or f"its job left no result; {why}")
            else:
                run = {name: stored[name] for name in ("values", "started", "seconds", "machine")}
                yield Ended(cell=cell, finished=Finished(**run), stored=stored)


def perform_and_keep(store: CellStore, cell: Cell, timeout_s: float | None) -> None:
    """Run a cell in a job and write its result, unless it is there."""
    from workbench.launch import RankFailed, Ranks

    stored, why = store.find(cell)
    if stored is not None and not why:
        return
    try:
        with Ranks(1, device="cpu", preload=(cell.module,), timeout_s=timeout_s or NO_LIMIT_S) as ranks:
            (finished,) = ranks.run(perform, cell, 0)
    except RankFailed as error:
        raise CellsFailed(_reason(error)) from None
    store.write(cell, finished)


class Estimate:
    """Expected seconds of cells, from those that have run."""

    def __init__(self, timed: Iterable[tuple[Mapping[str, Any], float]]):
        self._timed = [(_canonical(arguments), seconds) for arguments, seconds in timed]
        self._weights: dict[str, float] = {}
        self._expected: dict[str, float] = {}  # by digest, as long as no other cell has run

    def add(self, arguments: Mapping[str, Any], seconds: float) -> None:
        """Learn from one more cell."""
        self._timed.append((_canonical(arguments), seconds))
        self._weights, self._expected = {}, {}

    def seconds(self, cell: Cell) -> float:
        """Return the seconds expected of a cell; 0 while none has run."""
        if self._timed and cell.digest not in self._expected:
            self._expected[cell.digest] = self._mean_of_the_nearest(_canonical(cell.arguments))
        return self._expected.get(cell.digest, 0.0)

    def _mean_of_the_nearest(self, arguments: Mapping[str, str]) -> float:
        self._weights = self._weights or _weights(self._timed)
        likeness = [
            sum(weight for name, weight in self._weights.items() if arguments.get(name) == other.get(name))
            for other, _ in self._timed
        ]
        nearest = [seconds for like, (_, seconds) in zip(likeness, self._timed, strict=True) if like == max(likeness)]
        return sum(nearest) / len(nearest)

    def remaining_s(self, waiting: Iterable[Cell], running: Iterable[tuple[Cell, float]], jobs: int) -> float | None:
        """Return the seconds until all have run; None while none has."""
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
    first = cells[0].arguments
    words = (
        value if isinstance(value, str) else f"{name.replace('_', ' ')} {canonical_json(value)}"
        for name, value in cell.arguments.items()
        if any(first.get(name) != other.arguments.get(name) for other in cells)
    )
    return " ".join(words) or cell.name


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
