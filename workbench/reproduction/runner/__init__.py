"""Run items with papermill: resumable, interruptible anywhere, one runner at a time.

Source: the workbench's own rules; see the modules of this folder, one a rule.
Simplified: one machine; a kernel may start ranks on others by itself.
Left out: progress bars and tables, which the command line draws from the events.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

from workbench.reproduction.declare import Profile, Reproduction
from workbench.reproduction.errors import UsageError
from workbench.reproduction.machine import num_cores
from workbench.reproduction.project import Project
from workbench.reproduction.runner.events import (
    Action,
    Event,
    ItemFinished,
    ItemOutcome,
    ItemStarted,
    OnEvent,
    Outcome,
    Planned,
    PlannedItem,
    Progress,
    RunFinished,
    Status,
)
from workbench.reproduction.runner.lock import hold_lock
from workbench.reproduction.runner.placing import clear, partial_folder, sweep
from workbench.reproduction.runner.plan import plan, plan_checked
from workbench.reproduction.runner.preflight import MIN_FREE_BYTES, check_before, check_folder, check_targets
from workbench.reproduction.runner.schedule import Schedule, expected_s
from workbench.reproduction.runner.work import Work

__all__ = [
    "Action",
    "Event",
    "ItemFinished",
    "ItemOutcome",
    "ItemStarted",
    "OnEvent",
    "Outcome",
    "Planned",
    "PlannedItem",
    "Progress",
    "RunFinished",
    "Status",
    "plan",
    "run",
]

MOST_JOBS = 4  # kernels side by side by default: each holds about 0.5 GB once it has imported torch


def run(
    project: Project,
    items: Sequence[Reproduction],
    profile: str = Profile.LAPTOP.value,
    kernel: str | None = None,
    jobs: int | None = None,
    timeout_s: float | None = None,
    fresh: bool = False,
    on_event: OnEvent | None = None,
    *,
    keep_cells: bool = False,
    min_free_bytes: int = MIN_FREE_BYTES,
) -> Outcome:
    """Run what is missing or out of date among the items, and record it.

    Args:
        project, items, profile: what to run, and in which profile.
        kernel: name of a Jupyter kernel; by default each notebook's own.
        jobs: items side by side where none is timed; by default one a core, at most 4.
        timeout_s: seconds one item may take; None for no limit.
        fresh: run also what is up to date; finished cells that are up to date are reused all the same.
        on_event: told of every event, in this thread.
        keep_cells: accept cells that are out of date or committed; the record says where they came from.
        min_free_bytes: free space without which nothing is begun.

    Returns:
        What came of each item; its `exit_code` is 1 if one failed.

    Raises:
        UsageError: for wrong use, in one line that names the thing; nothing has been run then.
        KeyboardInterrupt: after all kernels have been ended and partial results removed.
    """
    tell = on_event or (lambda event: None)
    jobs = _checked_jobs(jobs, timeout_s)
    check_before(project, items, profile, kernel)
    check_targets(project, items, profile)
    check_folder(project.results_of(profile), min_free_bytes)
    outcome = _Run(project, items, profile, kernel, jobs, timeout_s, keep_cells, tell).do_locked(fresh)
    tell(RunFinished(outcome=outcome))
    return outcome


@dataclass(frozen=True, slots=True)
class _Run:
    """One run whose arguments have been checked; see `run`."""

    project: Project
    items: Sequence[Reproduction]
    profile: str
    kernel: str | None
    jobs: int
    timeout_s: float | None
    keep_cells: bool
    tell: OnEvent

    def do_locked(self, fresh: bool) -> Outcome:
        """Plan and run while no other runner can."""
        folder = self.project.results_of(self.profile)
        with hold_lock(folder):
            sweep(folder)
            planned = plan_checked(
                self.project, self.items, self.profile, kernel=self.kernel, fresh=fresh, keep_cells=self.keep_cells
            )
            return self._do(planned)

    def _do(self, planned: Sequence[PlannedItem]) -> Outcome:
        began = monotonic()
        todo = {item.id for item in planned if item.action is Action.RUN}
        self.tell(Planned(items=planned, expected_s=expected_s([i for i in planned if i.id in todo], self.jobs)))
        try:
            done = self._execute(planned, [item for item in self.items if item.id in todo]) if todo else {}
        finally:
            clear(partial_folder(self.project.results_of(self.profile)))
        outcomes = [done.get(item.id) or _idle(item) for item in planned]
        return Outcome(profile=self.profile, items=outcomes, seconds=monotonic() - began)

    def _execute(self, planned: Sequence[PlannedItem], items: Sequence[Reproduction]) -> dict[str, ItemOutcome]:
        import papermill  # here, once, rather than in the first item's time

        papermill_log = logging.getLogger(papermill.__name__)
        if not papermill_log.handlers:  # what it would print is in the failure's reason
            papermill_log.addHandler(logging.NullHandler())
        work = Work(self.project, items, self.profile, self.kernel, keep_cells=self.keep_cells)
        return Schedule(work=work, jobs=self.jobs, timeout_s=self.timeout_s, on_event=self.tell).run(planned)


def _idle(item: PlannedItem) -> ItemOutcome:
    status = Status.NOT_DECLARED if item.action is Action.SKIP else Status.UP_TO_DATE
    return ItemOutcome(id=item.id, status=status, reason=item.why if item.action is Action.SKIP else "")


def _checked_jobs(jobs: int | None, timeout_s: float | None) -> int:
    if jobs is not None and jobs < 1:
        raise UsageError(f"jobs is {jobs}; it must be at least 1")
    if timeout_s is not None and not timeout_s > 0:
        raise UsageError(f"timeout is {timeout_s} s; it must be more than 0")
    return jobs or min(num_cores(), MOST_JOBS)
