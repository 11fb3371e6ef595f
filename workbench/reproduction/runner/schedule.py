"""Running the planned items: side by side where nothing is timed, alone where something is.

Source: the workbench's own rule: an item whose evidence is a measured time runs alone.
Simplified: what can run side by side runs first, the timed items after it, each group in the order of the catalogue.
Left out: priorities and memory.
"""

import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic

from workbench.reproduction.cells.notes import CellProgress
from workbench.reproduction.runner.events import (
    Action,
    ItemFinished,
    ItemOutcome,
    ItemStarted,
    OnEvent,
    PlannedItem,
    Progress,
    Status,
)
from workbench.reproduction.runner.execute import Failure
from workbench.reproduction.runner.work import INTERRUPTED, Work

__all__ = ["Schedule", "expected_s"]

TICK_S = 0.1  # seconds between two looks at timeouts
PROGRESS_S = 1.0  # seconds between two Progress events
STOP_PATIENCE_S = 10.0  # seconds the threads of stopped kernels may take to notice


def expected_s(items: Sequence[PlannedItem], jobs: int, spent: Mapping[str, float] | None = None) -> float:
    """Estimate the seconds until items have run: timed ones one after another, the others `jobs` at a time.

    Args:
        items: those still to end.
        jobs: how many run side by side.
        spent: id to seconds already spent on it.
    """
    left = {item.id: max(item.expected_s - (spent or {}).get(item.id, 0.0), 0.0) for item in items}
    alone = sum(left[item.id] for item in items if item.times)
    shared = [left[item.id] for item in items if not item.times]
    return alone + (max(sum(shared) / jobs, max(shared)) if shared else 0.0)


def _by_its_cells(item: PlannedItem, spent_s: float, cells: CellProgress | None) -> PlannedItem:
    """Expect of a running item what its cells say, which know better than its last run."""
    if cells is None or cells.remaining_s is None:
        return item
    return replace(item, expected_s=spent_s + cells.remaining_s)


@dataclass(slots=True)
class Schedule:
    """Runs items in threads and tells what happens.

    Attributes:
        work: what running one item means.
        jobs: how many untimed items may run side by side.
        timeout_s: seconds one item may take; None for no limit.
        on_event: told of every event, in the calling thread.
    """

    work: Work
    jobs: int
    timeout_s: float | None
    on_event: OnEvent
    _ended: "queue.Queue[ItemOutcome]" = field(default_factory=queue.Queue)
    _threads: dict[str, threading.Thread] = field(default_factory=dict)

    def run(self, planned: Sequence[PlannedItem]) -> dict[str, ItemOutcome]:
        """Run the planned items; return id to outcome.

        On any exception, an interrupt included, all kernels are ended before it goes on.
        """
        todo = [item for item in planned if item.action is Action.RUN]
        waiting = [item for item in todo if not item.times] + [item for item in todo if item.times]
        done: dict[str, ItemOutcome] = {}
        began = told = monotonic()
        try:
            while len(done) < len(todo):
                while waiting and self._may_start(waiting[0], todo):
                    self._start(waiting.pop(0), len(todo) - len(waiting), len(todo))
                outcome = self._next_end()
                if outcome is not None:
                    self._threads.pop(outcome.id).join()
                    done[outcome.id] = outcome
                    self.on_event(ItemFinished(outcome=outcome))
                if monotonic() - told >= PROGRESS_S:
                    told = monotonic()
                    self._tell(todo, done, told - began)
        except BaseException:
            self._stop_all()
            raise
        return done

    def _may_start(self, item: PlannedItem, todo: Sequence[PlannedItem]) -> bool:
        running_alone = any(each.times for each in todo if each.id in self._threads)
        return not self._threads if item.times else not running_alone and len(self._threads) < self.jobs

    def _start(self, item: PlannedItem, number: int, num_items: int) -> None:
        self.on_event(ItemStarted(id=item.id, number=number, num_items=num_items, expected_s=item.expected_s))
        thread = threading.Thread(target=self._run_one, args=(item.id,), name=item.id, daemon=True)
        self._threads[item.id] = thread
        thread.start()

    def _run_one(self, id: str) -> None:
        outcome = ItemOutcome(id=id, status=Status.FAILED, reason="its thread ended without an outcome")
        try:
            outcome = self.work.run(id)
        except Exception as error:  # an item whose end nobody tells would be waited for for ever
            outcome = ItemOutcome(id=id, status=Status.FAILED, reason=Failure.of(error).reason)
        finally:
            self._ended.put(outcome)

    def _next_end(self) -> ItemOutcome | None:
        for id in self._threads:
            if self.timeout_s is not None and self.work.seconds_so_far(id) > self.timeout_s:
                self.work.stop(id, f"took longer than the timeout of {self.timeout_s:g} s")
        try:
            return self._ended.get(timeout=TICK_S)
        except queue.Empty:
            return None

    def _tell(self, todo: Sequence[PlannedItem], done: Mapping[str, ItemOutcome], elapsed_s: float) -> None:
        spent = {id: self.work.seconds_so_far(id) for id in self._threads}
        left = [item for item in todo if item.id not in done]
        cells = {id: progress for id in self._threads if (progress := self.work.cells_so_far(id))}
        left = [_by_its_cells(item, spent.get(item.id, 0.0), cells.get(item.id)) for item in left]
        self.on_event(
            Progress(
                running=spent,
                num_done=len(done),
                num_items=len(todo),
                elapsed_s=elapsed_s,
                remaining_s=expected_s(left, self.jobs, spent),
                cells=cells,
            )
        )

    def _stop_all(self) -> None:
        for id in self._threads:
            self.work.stop(id, INTERRUPTED)
        give_up = monotonic() + STOP_PATIENCE_S
        for thread in self._threads.values():
            thread.join(max(give_up - monotonic(), 0.0))
