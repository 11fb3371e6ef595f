"""Run items with papermill: resumable, interruptible anywhere, one runner at a time."""

import contextlib
import logging
import os
import platform
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from workbench.launch.kernel_server import KernelServer
from workbench.reproduction.declare import Profile, Reproduction
from workbench.reproduction.errors import UsageError
from workbench.reproduction.files import MIN_FREE_BYTES, check_folder, hold_lock
from workbench.reproduction.fingerprint import named_modules
from workbench.reproduction.jobs import JOBS_FOLDER, Engine, Jobs, cancel, noted, tidy
from workbench.reproduction.machine import num_cores
from workbench.reproduction.project import ItemRun, Project
from workbench.reproduction.runner.execute import (
    Execution,
    Failure,
    clear,
    partial_folder,
    place_failure,
    place_record,
    sweep,
)
from workbench.reproduction.runner.plan import (
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
    Status,
    Stopping,
    check_use,
    lacking,
    plan,
)
from workbench.reproduction.runner.remote import JobExecution, has_cells
from workbench.reproduction.runner.schedule import Schedule, expected_s, in_order

__all__ = ["Action", "Event", "Execution", "Failure", "ItemFinished", "ItemOutcome", "ItemStarted", "OnEvent"]
__all__ += ["Outcome", "Planned", "PlannedItem", "Progress", "Schedule", "Status", "Stopping", "expected_s"]
__all__ += ["in_order", "lacking", "partial_folder", "place_failure", "place_record", "plan", "run", "sweep"]

FORKED_FROM = 4  # items in a run from which on a server's imports, of about 3 s, pay for themselves
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
    engine: Engine | None = None,
    min_free_bytes: int = MIN_FREE_BYTES,
) -> Outcome:
    """Run the items that are missing or out of date, and record them.

    Args:
        kernel: name of a Jupyter kernel; by default each notebook's own.
        jobs: items side by side where none is timed; by default one a core, at most 4.
        timeout_s: seconds one item may take; None for no limit.
        fresh: run also items that are up to date; finished cells that are up to date are reused all the same.
        keep_cells: accept cells that are out of date or committed; the record names their origin.
        engine: where items and cells are jobs; items whose notebooks run cells stay here, and wait for them.
        min_free_bytes: free space below which nothing is begun.
    """
    tell = on_event or (lambda event: None)
    if jobs is not None and jobs < 1:
        raise UsageError(f"jobs is {jobs}; it must be at least 1")
    if timeout_s is not None and not timeout_s > 0:
        raise UsageError(f"timeout is {timeout_s} s; it must be more than 0")
    jobs = jobs or min(num_cores() + (profile == Profile.SMOKE), MOST_JOBS)  # its items mostly wait for ranks
    check_use(project, items, profile, kernel)
    folder, began = project.results_of(profile), monotonic()
    check_folder(folder, min_free_bytes)
    with hold_lock(folder, share=engine is not None) as open_up:
        under_way = tidy(folder / JOBS_FOLDER) if open_up else []
        if under_way and engine is None:
            ids = ", ".join(job.id for job in under_way)
            raise UsageError(f"jobs {ids} of an earlier run are under way: say --on, wait, or workbench jobs --cancel")
        if open_up:
            sweep(folder, [job.tag for job in under_way])
        if open_up and engine is not None:
            open_up()
        of_node = engine.gpus_per_node if engine is not None and engine.cluster == "slurm" else None
        how: dict[str, Any] = {"kernel": kernel, "fresh": fresh, "keep_cells": keep_cells}
        planned = plan(project, items, profile, checked=True, gpus=of_node, **how)
        todo = {item.id: item for item in planned if item.action is Action.RUN}
        tell(Planned(items=planned, expected_s=expected_s([*todo.values()], jobs)))
        with contextlib.ExitStack() as stack:
            stack.callback(clear, partial_folder(folder))
            forks = len(todo) >= FORKED_FROM and sys.platform.startswith("linux")
            server = stack.enter_context(_kernel_server(project, items, todo)) if forks else None
            if engine is not None:
                run_name = f"{platform.node()}-{os.getpid()}"
                engine = replace(engine, folder=str(folder / JOBS_FOLDER), run=run_name)
                stack.push(partial(_cancel_after, engine))
                shared = Jobs(engine)
            common: dict[str, Any] = {"kernel_asked": kernel, "engine": engine}
            runs: dict[str, Execution] = {}
            beside = max(1, min(jobs, sum(not item.times for item in items if item.id in todo)))
            for item in (item for item in items if item.id in todo):
                place = ItemRun(project, item, profile)
                if engine is None or has_cells(place):
                    threads = 0 if item.times else max(1, num_cores() // beside)
                    runs[item.id] = Execution(place, keep_cells=keep_cells, server=server, threads=threads, **common)
                else:
                    runs[item.id] = JobExecution(
                        place, jobs=shared, fresh=fresh, expected_s=todo[item.id].expected_s, **common
                    )
            done = _execute(Schedule(runs, jobs, timeout_s, tell, engine), planned) if todo else {}
    outcomes = [done.get(item.id) or _idle(item) for item in planned]
    return Outcome(profile=profile, items=outcomes, seconds=monotonic() - began)


def _kernel_server(project: Project, items: Sequence[Reproduction], todo: Collection[str]) -> KernelServer:
    """Start what forks kernels that have imported the modules of the notebooks that will run."""
    return KernelServer(named_modules(project.notebook(item) for item in items if item.id in todo))


def _cancel_after(engine: Engine, kind: Any, *error: object) -> None:
    """Cancel the jobs of a run that ends by an error or an interrupt."""
    if kind is not None:
        cancel(job for job in noted(Path(engine.folder)) if job.is_of(engine.run))


def _execute(schedule: Schedule, planned: Sequence[PlannedItem]) -> dict[str, ItemOutcome]:
    import papermill  # here, once, rather than in the first item's time

    papermill_log = logging.getLogger(papermill.__name__)
    if not papermill_log.handlers:  # its message is the failure's reason
        papermill_log.addHandler(logging.NullHandler())
    return schedule.run(planned)


def _idle(item: PlannedItem) -> ItemOutcome:
    if item.action is not Action.SKIP:
        return ItemOutcome(id=item.id, status=Status.UP_TO_DATE)
    status = Status.SKIPPED if item.is_declared else Status.NOT_DECLARED
    return ItemOutcome(id=item.id, status=status, reason=item.why)
