"""What a run would do and why, found without starting anything.

Source: the workbench's own rule, see `workbench.reproduction.fingerprint`.
Simplified: an item whose last run failed is always run again.
Left out: importing torch or papermill.
"""

from collections.abc import Sequence
from pathlib import Path

from workbench.reproduction.artifacts import misfits
from workbench.reproduction.cells.there import cells_there
from workbench.reproduction.declare import Reproduction
from workbench.reproduction.errors import RecordError
from workbench.reproduction.fingerprint import Fingerprinter, changes
from workbench.reproduction.project import Project
from workbench.reproduction.records import read_record
from workbench.reproduction.runner.events import Action, PlannedItem
from workbench.reproduction.runner.preflight import check_before, check_targets

__all__ = ["FAILURE_FILE", "RECORD_FILE", "plan", "plan_checked"]

RECORD_FILE = "record.json"
FAILURE_FILE = "failure.json"
UNKNOWN_S = 30.0  # seconds assumed for an item that nobody has timed or estimated
NOTEBOOK_S = 15.0  # seconds assumed for a notebook beside its cells: a kernel, imports, a figure


def plan(
    project: Project,
    items: Sequence[Reproduction],
    profile: str,
    *,
    kernel: str | None = None,
    fresh: bool = False,
    keep_cells: bool = False,
) -> tuple[PlannedItem, ...]:
    """Say for each item whether it would run, and why.

    Args:
        project: where everything lies.
        items: the items asked for.
        profile: the profile to run them in.
        kernel: name of a Jupyter kernel; by default each notebook's own.
        fresh: run also what is up to date.
        keep_cells: accept cells that are out of date.

    Raises:
        UsageError: for wrong use, in one line that names the thing.
    """
    check_before(project, items, profile, kernel)
    check_targets(project, items, profile)
    return plan_checked(project, items, profile, kernel=kernel, fresh=fresh, keep_cells=keep_cells)


def plan_checked(
    project: Project, items: Sequence[Reproduction], profile: str, *, kernel: str | None, fresh: bool, keep_cells: bool
) -> tuple[PlannedItem, ...]:
    """Plan what has been checked already; see `plan`."""
    fingerprint = Fingerprinter(project)
    planned = []
    for item in items:
        if profile in item.parameters:
            planned.append(_plan_one(project, item, profile, kernel, fresh, keep_cells, fingerprint))
        else:
            why = f"not declared for {profile}; it has {', '.join(item.profiles)}"
            planned.append(PlannedItem(id=item.id, action=Action.SKIP, why=why, expected_s=0.0, times=item.times))
    return tuple(planned)


def _plan_one(
    project: Project,
    item: Reproduction,
    profile: str,
    kernel: str | None,
    fresh: bool,
    keep_cells: bool,
    fingerprint: Fingerprinter,
) -> PlannedItem:
    folder = project.folder(item, profile)
    why, seconds = _why(folder, item.id, profile, fingerprint(item, profile, kernel), fresh)
    expected = seconds or item.expected_s.get(profile, UNKNOWN_S)
    cells = cells_there(project, item, profile, fingerprint, keep=keep_cells)
    if cells is not None and cells.remaining_s is not None:  # the last run may have found fewer of them, or more
        expected = cells.remaining_s + NOTEBOOK_S
    action = Action.RUN if why else Action.NOTHING
    return PlannedItem(
        id=item.id, action=action, why=why or "up to date", expected_s=expected, times=item.times, cells=cells
    )


def _why(folder: Path, id: str, profile: str, fingerprint: dict, fresh: bool) -> tuple[str, float]:
    try:
        record = read_record(folder / RECORD_FILE, id=id, profile=profile)
    except FileNotFoundError:
        failed = (folder / FAILURE_FILE).exists()
        return ("its last run failed" if failed else "it has no record"), 0.0
    except RecordError as error:
        return f"its record is refused: {error}", 0.0
    seconds = float(record["seconds"])
    if fresh:
        return "a fresh run is asked for", seconds
    if (folder / FAILURE_FILE).exists():
        return "its last run failed", seconds
    if wrong := misfits(folder, record):
        return next(iter(wrong.values())), seconds
    return changes(record["fingerprint"], fingerprint), seconds
