"""The run of one item as a job: the job places its record, and the head waits for the job's answer."""

import logging
from dataclasses import asdict, dataclass
from time import sleep
from typing import Any

from workbench.reproduction.catalogue import declared_item
from workbench.reproduction.declare import Profile
from workbench.reproduction.jobs import Answer, Jobs, Needs
from workbench.reproduction.notebook_cells import read_notebook
from workbench.reproduction.project import ItemRun, Project
from workbench.reproduction.runner.execute import INTERRUPTED, Execution, Failure, clear, partial_folder, place_failure
from workbench.reproduction.runner.plan import Action, ItemOutcome, Status, plan
from workbench.rows.progress import HowFar

__all__ = ["JobExecution", "has_cells", "run_item"]

TICK_S = 0.5  # seconds between two looks at a job


def has_cells(run: ItemRun) -> bool:
    """Say whether an item's notebook calls `run_cells`: it then runs beside the head, and its cells are jobs."""
    return any("run_cells(" in source for source in read_notebook(run.project.notebook(run.item)).code)


@dataclass(slots=True)
class JobExecution(Execution):
    """One item run as a job, which can be stopped from another thread."""

    fresh: bool = False  # whether it runs although it is up to date
    expected_s: float = 0.0
    jobs: Jobs | None = None  # of all items of the call

    @property
    def is_job(self) -> bool:
        """Whether it runs as a job: it does."""
        return True

    @property
    def key(self) -> str:
        """The name of its job."""
        return self.place.item.id.replace("/", ".")

    def run(self) -> ItemOutcome:
        """Submit the job and wait for its answer; every error is in the outcome."""
        jobs, item, project = self.jobs, self.place.item, self.place.project
        assert jobs is not None
        cores = int(item.parameters[self.place.profile].get("num_ranks", 1))
        alone = item.times and self.place.profile != Profile.SMOKE
        needs = Needs(cores=cores, expected_s=self.expected_s, alone=alone)
        place = (str(project.root), str(project.results), item.id, self.place.profile)
        try:
            while not jobs.start(self.key, item.id, needs, run_item, *place, self.kernel_asked, self.fresh):
                self._wait()
            while (answer := jobs.answer(self.key)) is None:
                if job := jobs.get(self.key):
                    self.job, self._began = job.tag, job.began_s
                self._wait()
        except Exception as error:
            if self.kernel.stopped_because != INTERRUPTED:  # then the run cancels all at once
                jobs.cancel(self.key)
            answer = Answer(failure=f"{error}")
        if answer.value is not None:
            return ItemOutcome(**answer.value | {"status": Status(answer.value["status"])})
        self.seconds = self.seconds_so_far()
        reason = self.kernel.stopped_because or answer.failure.splitlines()[0]
        if reason != INTERRUPTED:
            place_failure(self, Failure(reason=reason, traceback=answer.failure))
        return ItemOutcome(id=item.id, status=Status.FAILED, seconds=self.seconds, reason=reason)

    def _wait(self) -> None:
        sleep(TICK_S)
        if self.kernel.stopped_because:
            raise InterruptedError(self.kernel.stopped_because)

    @property
    def has_kernel(self) -> bool:
        """Whether its end must be waited for."""
        return self.jobs is not None

    def how_far(self, expected_s: float) -> HowFar | None:
        """Return how far it is; None while it is in the queue."""
        return Execution.how_far(self, expected_s) if self._began else None


def run_item(root: str, results: str, id: str, profile: str, kernel: str | None, fresh: bool) -> dict[str, Any]:
    """Run one item in a job and place its record; return the outcome as JSON."""
    import submitit

    logging.getLogger("papermill").addHandler(logging.NullHandler())  # its message is the failure's reason
    project = Project(root, results)
    item = declared_item(project, id)
    (planned,) = plan(project, [item], profile, kernel=kernel, fresh=fresh)
    if planned.action is not Action.RUN:  # the job was killed after it had placed its record
        status = Status.UP_TO_DATE if planned.action is Action.NOTHING else Status.SKIPPED
        return asdict(ItemOutcome(id=id, status=status, reason=planned.why))
    place = submitit.JobEnvironment()
    job = f"{place.cluster}-{place.job_id}"
    folder = partial_folder(project.results_of(profile), job)
    clear(folder)  # of the job before it was requeued
    try:
        return asdict(Execution(ItemRun(project, item, profile), kernel_asked=kernel, job=job).run())
    finally:
        clear(folder)
