"""The order of a run: quick items of all techniques first; untimed items side by side, timed ones alone."""

import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from time import monotonic

from workbench.reproduction.jobs import Engine
from workbench.reproduction.runner.execute import INTERRUPTED, Execution, Failure
from workbench.reproduction.runner.plan import (
    Action,
    ItemFinished,
    ItemOutcome,
    ItemStarted,
    OnEvent,
    PlannedItem,
    Progress,
    Status,
    Stopping,
)

__all__ = ["Schedule", "expected_s", "in_order"]

QUICK_S = 30.0  # expected seconds up to which an item is quick
TICK_S = 0.1  # seconds between two looks at timeouts
PROGRESS_S = 1.0  # seconds between two Progress events
STOP_PATIENCE_S = 10.0  # seconds the threads of stopped kernels, and their ranks, may take to end


def expected_s(items: Sequence[PlannedItem], jobs: int, spent: Mapping[str, float] | None = None) -> float:
    """Estimate the seconds until items have run: timed ones one after another, the others `jobs` at a time."""
    left = {item.id: max(item.expected_s - (spent or {}).get(item.id, 0.0), 0.0) for item in items}
    alone = sum(left[item.id] for item in items if item.times)
    shared = [left[item.id] for item in items if not item.times]
    return alone + (max(sum(shared) / jobs, max(shared)) if shared else 0.0)


def in_order(items: Sequence[PlannedItem]) -> list[PlannedItem]:
    """Put quick items first, then untimed ones, in turn one of each technique: each soon has verdicts on the report.

    The quickest of the timed ones leads: real ranks are something to see at once.
    """
    leading = min((item for item in items if item.times), key=lambda item: item.expected_s, default=None)
    ordered = [leading] if leading is not None and leading.expected_s <= QUICK_S else []
    items = [item for item in items if item not in ordered]
    for is_long, times in ((False, False), (False, True), (True, False), (True, True)):
        of_technique: dict[str, list[PlannedItem]] = {}
        for item in sorted(items, key=lambda item: item.expected_s):
            if (item.expected_s > QUICK_S, item.times) == (is_long, times):
                of_technique.setdefault(item.id.split("/")[0], []).append(item)
        techniques = [of_technique[name] for name in sorted(of_technique)]
        ordered += [item for turn in zip_longest(*techniques) for item in turn if item is not None]
    return ordered


@dataclass(slots=True)
class Schedule:
    """Runs items in threads and sends events."""

    runs: Mapping[str, Execution]  # by id
    jobs: int  # untimed items that may run side by side
    timeout_s: float | None  # seconds one item may take; None for no limit
    on_event: OnEvent  # called with every event, in the calling thread
    engine: Engine | None = None  # where items and cells are jobs; None for this machine
    _ended: "queue.Queue[ItemOutcome]" = field(default_factory=queue.Queue)
    _threads: dict[str, threading.Thread] = field(default_factory=dict)

    def run(self, planned: Sequence[PlannedItem]) -> dict[str, ItemOutcome]:
        """Run the planned items; return id to outcome. On any exception all kernels are ended before it is raised."""
        todo = [item for item in planned if item.action is Action.RUN]
        waiting = in_order(todo)
        done: dict[str, ItemOutcome] = {}
        began = reported = monotonic()
        try:
            while len(done) < len(todo):
                # Jobs do not wait for one another.
                while item := next(
                    filter(partial(self._may_start, todo), waiting if self.engine else waiting[:1]), None
                ):
                    waiting.remove(item)
                    self._start(item, len(todo) - len(waiting), len(todo))
                outcome = self._next_end()
                if outcome is not None:
                    self._threads.pop(outcome.id).join()
                    done[outcome.id] = outcome
                    self.on_event(ItemFinished(outcome=outcome))
                if monotonic() - reported >= PROGRESS_S:
                    reported = monotonic()
                    self._report(todo, done, reported - began)
        except BaseException:
            self._stop_all()
            raise
        return done

    def _may_start(self, todo: Sequence[PlannedItem], item: PlannedItem) -> bool:
        if self.engine is not None and (self.engine.cluster == "slurm" or self.runs[item.id].is_job is False):
            side = [id for id in self._threads if self.runs[id].is_job is self.runs[item.id].is_job]
            return len(side) < (self.engine.most if self.runs[item.id].is_job else self.jobs)
        running_alone = any(other.times for other in todo if other.id in self._threads)
        return not self._threads if item.times else not running_alone and len(self._threads) < self.jobs

    def _start(self, item: PlannedItem, number: int, num_items: int) -> None:
        self.on_event(ItemStarted(id=item.id, number=number, num_items=num_items, expected_s=item.expected_s))
        thread = threading.Thread(target=self._run_one, args=(item.id,), name=item.id, daemon=True)
        self._threads[item.id] = thread
        thread.start()

    def _run_one(self, id: str) -> None:
        outcome = ItemOutcome(id=id, status=Status.FAILED, reason="its thread ended without an outcome")
        try:
            outcome = self.runs[id].run()
        except Exception as error:  # an item without an end would be waited for for ever
            outcome = ItemOutcome(id=id, status=Status.FAILED, reason=Failure.of(error).reason)
        finally:
            self._ended.put(outcome)

    def _next_end(self) -> ItemOutcome | None:
        for id in self._threads:
            if self.timeout_s is not None and self.runs[id].seconds_so_far() > self.timeout_s:
                self.runs[id].stop(f"took longer than the timeout of {self.timeout_s:g} s")
        try:
            return self._ended.get(timeout=TICK_S)
        except queue.Empty:
            return None

    def _report(self, todo: Sequence[PlannedItem], done: Mapping[str, ItemOutcome], elapsed_s: float) -> None:
        spent = {id: self.runs[id].seconds_so_far() for id in self._threads}
        left = {item.id: item for item in todo if item.id not in done}
        looked = {id: self.runs[id].how_far(max(left[id].expected_s - spent[id], 0.0)) for id in spent}
        parts = {id: far for id, far in looked.items() if far is not None}
        for id, far in parts.items():
            if far.remaining_s is not None:  # it knows better than its last run
                left[id] = replace(left[id], expected_s=spent[id] + far.remaining_s)
        self.on_event(
            Progress(
                running=spent,
                parts=parts,
                num_done=len(done),
                num_items=len(todo),
                elapsed_s=elapsed_s,
                remaining_s=expected_s([*left.values()], self.jobs, spent),
            )
        )

    def _stop_all(self) -> None:
        ending = [thread for id, thread in self._threads.items() if self.runs[id].has_kernel]
        for id in self._threads:
            self.runs[id].stop(INTERRUPTED)
        try:
            if self._threads:
                self.on_event(Stopping(ids=tuple(self._threads), at_most_s=STOP_PATIENCE_S))
        finally:
            give_up = monotonic() + STOP_PATIENCE_S
            for thread in ending:
                thread.join(max(give_up - monotonic(), 0.0))
