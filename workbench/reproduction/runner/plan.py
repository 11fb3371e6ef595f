"""A run before it starts and as it goes: wrong use, the items that would run and why, and the events it sends."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

from workbench.reproduction.cells.store import CellsThere, cells_there
from workbench.reproduction.declare import Evidence, Profile, Reproduction
from workbench.reproduction.errors import RecordError, UsageError
from workbench.reproduction.files import misfits, stamp
from workbench.reproduction.fingerprint import Fingerprinter, changes
from workbench.reproduction.notebook_cells import check_parameters, read_notebook
from workbench.reproduction.project import ItemRun, Project
from workbench.reproduction.records import record_of
from workbench.rows.progress import HowFar

__all__ = ["Action", "Event", "ItemFinished", "ItemOutcome", "ItemStarted", "OnEvent", "Outcome", "Planned"]
__all__ += ["PlannedItem", "Progress", "Status", "Stopping", "check_use", "lacking", "num_gpus", "plan"]

DATA_VARIABLE = "WORKBENCH_DATA"
REAL = "real ranks"  # tag of items whose ranks are processes, each with a GPU of its own where there are GPUs
SHAPED = "shaped links"  # tag of items whose ranks are on hosts with limited links
UNKNOWN_S = 30.0  # seconds assumed for an item that nobody has timed or estimated
NOTEBOOK_S = 15.0  # seconds assumed for a notebook beside its cells: a kernel, imports, a figure


class Action(StrEnum):
    """The part of an item in a run."""

    RUN = "run"
    NOTHING = "nothing"  # it is up to date
    SKIP = "skip"  # it is not declared for the profile, or needs what is not here


class Status(StrEnum):
    """The state of an item after a run."""

    RECORDED = "recorded"  # ran, and its record was written
    UP_TO_DATE = "up to date"  # nothing had to be done
    FAILED = "failed"  # its old record, if any, was kept
    NOT_DECLARED = "not declared"  # it has no parameters for the profile
    SKIPPED = "skipped"  # it needs what is not here


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedItem:
    """The plan for one item."""

    id: str  # of the item
    action: Action
    why: str  # the reason, such as which part of its fingerprint changed
    expected_s: float  # seconds it is expected to take if it runs
    is_declared: bool = True  # for the profile
    times: bool  # whether it runs alone; in smoke nothing does, since its times are not judged
    cells: CellsThere | None = None  # how many of its cells are there, where that is known


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """The run has been checked and planned; sent once, first."""

    items: Sequence[PlannedItem]  # in the order of the catalogue
    expected_s: float  # seconds expected for those that run, with the jobs given


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemStarted:
    """An item's kernel is being started."""

    id: str  # of the item
    number: int  # 1 for the first item started
    num_items: int  # items that run in all
    expected_s: float  # seconds it is expected to take


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Sent about once a second while items run."""

    running: Mapping[str, float]  # id to seconds so far
    num_done: int  # items that have ended
    num_items: int  # items that run in all
    elapsed_s: float  # seconds since the run began
    remaining_s: float  # estimate of the seconds to go
    parts: Mapping[str, HowFar] = field(default_factory=dict)  # id to how far it is, with the seconds it has to go


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemOutcome:
    """The outcome of one item."""

    id: str  # of the item
    status: Status
    seconds: float = 0.0  # it took in this run
    reason: str = ""  # of a failure, in one line
    verdicts: Mapping[str, int] = field(default_factory=dict)  # verdict to the number of claims
    not_comparable: Mapping[str, str] = field(default_factory=dict)  # claim to the reason


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemFinished:
    """An item has ended and its folder is in place."""

    outcome: ItemOutcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The outcome of a run."""

    profile: str  # it ran in
    items: Sequence[ItemOutcome]  # in the order of the catalogue
    seconds: float  # it took

    @property
    def failed(self) -> tuple[ItemOutcome, ...]:
        """The items that failed."""
        return tuple(item for item in self.items if item.status is Status.FAILED)

    @property
    def did_nothing(self) -> bool:
        """Whether no item had to run."""
        return not any(item.status in (Status.RECORDED, Status.FAILED) for item in self.items)

    @property
    def exit_code(self) -> int:
        """1 if an item failed, else 0, whatever the verdicts."""
        return 1 if self.failed else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Stopping:
    """The run was interrupted: the kernels of its items have been killed, and their ends are waited for."""

    ids: Sequence[str]  # of the items
    at_most_s: float  # seconds


Event = Planned | ItemStarted | Progress | ItemFinished | Stopping
OnEvent = Callable[[Event], None]


def plan(
    project: Project,
    items: Sequence[Reproduction],
    profile: str,
    *,
    kernel: str | None = None,
    fresh: bool = False,
    keep_cells: bool = False,
    checked: bool = False,
    gpus: int | None = None,
) -> tuple[PlannedItem, ...]:
    """Say for each item whether it would run, and why.

    The options are those of `run`; `checked` skips its checks, and `gpus` are those of a node of the cluster.
    """
    if not checked:
        check_use(project, items, profile, kernel)
    fingerprinter = Fingerprinter(project)
    planned = []
    for item in items:
        run = ItemRun(project, item, profile)
        if profile not in item.parameters:
            is_late = profile == Profile.PAPER and item.evidence is Evidence.MEASURED
            why = "does not run on GPUs yet" if is_late else f"not declared for {profile}"
            why += f"; it has {', '.join(item.profiles)}"
            planned.append(_skipped(item, why, is_declared=False))
        elif why := lacking(item, profile, gpus):
            planned.append(_skipped(item, why))
        else:
            why, seconds = _why(run, fingerprinter(item, profile, kernel), fresh)
            cells = cells_there(run, fingerprinter, keep=keep_cells)
            expected_s = seconds or item.expected_s.get(profile, UNKNOWN_S)
            if cells is not None and cells.remaining_s is not None:  # the last run may have found fewer, or more
                expected_s = cells.remaining_s + NOTEBOOK_S
            planned.append(
                PlannedItem(
                    id=item.id,
                    action=Action.RUN if why else Action.NOTHING,
                    why=why or "up to date",
                    expected_s=expected_s,
                    times=item.times and profile != Profile.SMOKE,
                    cells=cells,
                )
            )
    return tuple(planned)


def _skipped(item: Reproduction, why: str, is_declared: bool = True) -> PlannedItem:
    return PlannedItem(
        id=item.id, action=Action.SKIP, why=why, expected_s=0.0, times=item.times, is_declared=is_declared
    )


def num_gpus(item: Reproduction, profile: str) -> int:
    """Return the GPUs that an item needs in a profile: one for each real rank, or one, or none."""
    parameters = item.parameters[profile]
    return 0 if parameters.get("device") != "cuda" else int(parameters["num_ranks"]) if REAL in item.tags else 1


def lacking(item: Reproduction, profile: str, gpus: int | None = None) -> str:
    """Return what an item needs in a profile and this machine lacks, with the command that brings it; or "".

    It needs the GPUs and models that its parameters name, the data that its declaration names, and for shaped links
    network namespaces. `gpus` are those of a node of the cluster; None asks this machine.
    """
    if asked := num_gpus(item, profile):
        here = _gpus_here() if gpus is None else gpus
        if here < asked:
            return f"needs {f'{asked} GPUs with NCCL' if asked > 1 else '1 GPU'}; here are {here}"
    from workbench.datasets import manifest

    named = [need.removeprefix("data:") for need in item.needs]
    if manifest.manifest_path().exists():
        models = _models(manifest.manifest_path(), stamp(manifest.manifest_path()))
        named += [value for value in item.parameters[profile].values() if value in models]
    for name in named:
        try:
            missing = manifest.missing(name)
        except ValueError as error:
            raise UsageError(f"{item.id} needs the data {name!r}: {error}") from None
        if missing:
            bring = f"workbench data fetch {name}, or set {DATA_VARIABLE}"
            return f"needs the data {name!r}, of which {missing[0]} is not here: {bring}"
    if SHAPED in item.tags and (why := _no_shaped_hosts()):
        return f"needs shaped links: {why}"
    return ""


@lru_cache
def _models(path: Path, _: tuple[int, int, int]) -> list[str]:
    from workbench.datasets import manifest

    return [entry.name for entry in manifest.list_data() if entry.is_model]


@lru_cache
def _gpus_here() -> int:
    import torch

    return torch.cuda.device_count()


@lru_cache
def _no_shaped_hosts() -> str | None:
    from workbench.launch import ShapedHosts

    return ShapedHosts.missing()


def _why(run: ItemRun, fingerprint: Mapping[str, Any], fresh: bool) -> tuple[str, float]:
    """Return the reason to run an item, empty for none, and the seconds of its last run."""
    try:
        record = record_of(run)
    except RecordError as error:
        return f"its record is refused: {error}", 0.0
    if record is None:
        return ("its last run failed" if run.failure.exists() else "it has no record"), 0.0
    seconds = float(record["seconds"])
    if fresh:
        return "a fresh run is asked for", seconds
    if run.failure.exists():
        return "its last run failed", seconds
    if wrong := misfits(run.folder, record):
        return next(iter(wrong.values())), seconds
    return changes(record["fingerprint"], fingerprint), seconds


def check_use(project: Project, items: Sequence[Reproduction], profile: str, kernel: str | None) -> None:
    """Check profile, kernels, parameters, data and folders of the items to run; nothing is started or written."""
    results = project.results_of(profile)
    if items and not any(profile in item.parameters for item in items):
        raise UsageError(f"{items[0].id} is not declared for profile {profile}; it has {', '.join(items[0].profiles)}")
    for item in items:
        check_parameters(item, read_notebook(project.notebook(item)))
    _check_kernels({kernel} if kernel else {read_notebook(project.notebook(item)).kernel for item in items})
    declared = [item for item in items if profile in item.parameters]
    _check_data_folder(project, declared)
    for item in declared:
        _check_target(results, ItemRun(project, item, profile).folder, item.id)


def _check_kernels(names: set[str]) -> None:
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    manager = KernelSpecManager()
    for name in sorted(names):
        try:
            manager.get_kernel_spec(name)
        except (NoSuchKernel, OSError, ValueError):
            known = ", ".join(sorted(manager.find_kernel_specs())) or "none"
            raise UsageError(f"there is no kernel {name!r}; installed are {known} (see `workbench kernels`)") from None


def _check_data_folder(project: Project, items: Sequence[Reproduction]) -> None:
    folder = os.environ.get(DATA_VARIABLE)
    if not folder or Path(folder).expanduser().is_dir():
        return
    fingerprinter = Fingerprinter(project)
    if user := next((item for item in items if item.needs or fingerprinter.uses_data(item)), None):
        raise UsageError(
            f"{DATA_VARIABLE} is {folder!r}, which is not a folder, and {user.id} uses data; correct or unset it"
        )


def _check_target(results: Path, target: Path, id: str) -> None:
    """Check that a finished folder can be moved into place: folders all the way, on the disk of the results."""
    between = [target, *target.parents][: len(target.relative_to(results).parts)]
    there = [path for path in reversed(between) if os.path.lexists(path)]
    for path in there:
        if not path.is_dir():
            raise UsageError(f"{path} is not a folder, and the record of {id} belongs there")
    for path in there:
        if path != target and path.stat().st_dev != results.stat().st_dev:
            raise UsageError(
                f"{path} lies on another disk than {results}, and the record of {id} is moved there in one step: "
                f"move all of {results} instead, and leave a link in its place"
            )
