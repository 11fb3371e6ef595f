"""Long studies in cells: one call of a function a cell, each kept as soon as it has finished.

    results = run_cells(item, fine_tune, [{"task": "rte", "method": "A1", "seed": 2}, ...])

A finished cell is not run again; a killed run loses the cells under way and nothing else.
"""

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.reproduction.catalogue import declared_item
from workbench.reproduction.cells.cell import Cell, CellResult, Finished, check_function, make_cell
from workbench.reproduction.cells.store import (
    CellClaims,
    CellsThere,
    CellStore,
    Notes,
    num_cells,
    promote_cells,
    read_lines,
)
from workbench.reproduction.cells.study import CellsFailed, Ended, Estimate, Study, describe
from workbench.reproduction.declare import Profile
from workbench.reproduction.files import check_folder
from workbench.reproduction.project import ItemRun, Project
from workbench.reproduction.recording import KEEP_CELLS, RUN_DIR, RUN_PROFILE

__all__ = ["Cell", "CellClaims", "CellResult", "CellStore", "CellsFailed", "CellsThere", "Ended"]
__all__ += ["Estimate", "Finished", "Notes", "describe", "num_cells", "promote_cells", "read_lines"]
__all__ += ["run_cells"]


def run_cells(
    item: str,
    function: Callable[..., Mapping[str, Any]],
    cells: Sequence[Mapping[str, Any]],
    jobs: int | None = None,
    timeout_s: float | None = None,
    *,
    profile: str | None = None,
    keep_cells: bool | None = None,
) -> list[CellResult]:
    """Call a function once a cell, side by side, and keep what it returns; reuse what is there already.

    Args:
        item: id of the item that needs the cells; its technique's items share them.
        function: at the top level of a module; returns a mapping or dataclass of plain values, the source of data
            included, since a cell may come from another machine.
        cells: keyword arguments of each call, plain values.
        jobs: processes of one thread each; by default one a GPU, without GPUs one a core. On a cluster each cell is a
            job, and jobs=1 gives it a node alone, or as many cores as its argument num_ranks.
        timeout_s: seconds one cell may take; None for no limit.
        profile: whose results; by default that of the run, outside a run `laptop`.
        keep_cells: accept cells of another library, data, version, machine or commit, the committed ones included;
            by default what `workbench reproduce --keep-cells` says.

    Returns:
        One result a cell, in their order.

    Raises:
        ValueError: naming the argument and the rule; nothing is run then.
        UsageError: for an unknown item or profile, a folder that cannot be written, a cell that cannot be trusted.
        CellsFailed: once all others have finished, naming each cell that failed with its traceback.
    """
    project = Project()
    declared = declared_item(project, item)
    check_function(function)
    wanted = [make_cell(function, position, arguments) for position, arguments in enumerate(cells)]
    if jobs is not None and (not isinstance(jobs, int) or isinstance(jobs, bool) or jobs < 1):
        raise ValueError(f"jobs is {jobs!r}; it must be a whole number of at least 1, or None")
    if timeout_s is not None and not timeout_s > 0:
        raise ValueError(f"timeout_s is {timeout_s!r}; it must be above 0, or None")
    if not wanted:
        return []
    profile = profile or os.environ.get(RUN_PROFILE, Profile.LAPTOP.value)
    check_folder(project.results_of(profile))
    keep = os.environ.get(KEEP_CELLS) == "1" if keep_cells is None else keep_cells
    source = Path(inspect.getfile(sys.modules[wanted[0].module]))
    store = CellStore.of(project, declared.technique, profile, wanted[0], source, keep=keep)
    run_folder = Path(os.environ[RUN_DIR]) if os.environ.get(RUN_DIR) else None
    notes = Notes(needs=ItemRun(project, declared, profile).needed_cells, run_folder=run_folder)
    study = Study(store=store, notes=notes, cells=wanted)
    study.take_what_is_there()
    study.run_the_rest(jobs, timeout_s, times=declared.times and profile != Profile.SMOKE)
    return study.results()
