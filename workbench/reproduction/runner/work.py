"""What running one item means: fingerprint, execute, judge, place.

Source: the workbench's own convention.
Simplified: the fingerprint is taken as the item starts, so that a change during the run makes it out of date.
Left out: which item runs when, see `workbench.reproduction.runner.schedule`.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from workbench.reproduction.cells.notes import CellProgress, read_progress
from workbench.reproduction.declare import Reproduction
from workbench.reproduction.fingerprint import Fingerprinter
from workbench.reproduction.notebook_cells import read_notebook
from workbench.reproduction.project import Project
from workbench.reproduction.runner.events import ItemOutcome, Status
from workbench.reproduction.runner.execute import Execution, Failure
from workbench.reproduction.runner.placing import partial_folder, place_failure, place_record

__all__ = ["INTERRUPTED", "Work"]

INTERRUPTED = "the run was interrupted"


class Work:
    """Runs items of one profile, each of which can be stopped from another thread.

    Args:
        project: where everything lies.
        items: what may be run.
        profile: the profile to run it in.
        kernel: name of a Jupyter kernel; None for each notebook's own.
        keep_cells: accept cells that are out of date.
    """

    def __init__(
        self,
        project: Project,
        items: Iterable[Reproduction],
        profile: str,
        kernel: str | None,
        *,
        keep_cells: bool = False,
    ):
        self.project, self.profile, self.kernel = project, profile, kernel
        partial = partial_folder(project.results_of(profile))
        self._executions = {
            item.id: Execution(
                project=project,
                item=item,
                profile=profile,
                folder=partial / item.id,
                kernel_name=kernel or read_notebook(project.notebook(item)).kernel,
                keep_cells=keep_cells,
            )
            for item in items
        }

    def run(self, id: str) -> ItemOutcome:
        """Run one item to its end; whatever goes wrong is in the outcome."""
        execution = self._executions[id]
        fingerprint: dict[str, Any] = {}
        try:
            fingerprint = Fingerprinter(self.project)(execution.item, self.profile, self.kernel)
            failure = execution.run()
            if failure is None:
                return self._placed(execution, fingerprint)
        except Exception as error:  # of this item alone: a full disk, a claim that cannot be judged
            failure = Failure.of(error)
        if execution.kernel.stopped_because != INTERRUPTED:
            place_failure(execution, failure, fingerprint, self.project.folder(execution.item, self.profile))
        return ItemOutcome(id=id, status=Status.FAILED, seconds=execution.seconds, reason=failure.reason)

    def _placed(self, execution: Execution, fingerprint: dict[str, Any]) -> ItemOutcome:
        record = place_record(execution, fingerprint, self.project.folder(execution.item, self.profile))
        verdicts = Counter(verdict["verdict"] for verdict in record["verdicts"])
        return ItemOutcome(
            id=execution.item.id, status=Status.RECORDED, seconds=execution.seconds, verdicts=dict(verdicts)
        )

    def stop(self, id: str, because: str) -> None:
        """End the kernel of an item and everything below it."""
        self._executions[id].kernel.stop(because)

    def seconds_so_far(self, id: str) -> float:
        """Return the seconds since an item began, 0 before that."""
        return self._executions[id].seconds_so_far()

    def cells_so_far(self, id: str) -> CellProgress | None:
        """Return how far the cells of an item are; None where it has none, or none yet."""
        return read_progress(self._executions[id].folder)
