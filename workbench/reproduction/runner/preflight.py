"""Everything that can be known to be wrong before a run, asked before anything is started or written.

Source: the workbench's own rule: wrong use costs one clear line and nothing else.
Simplified: free space is a floor, not an estimate of what the run will write.
Left out: data that a notebook can replace by a stand-in.
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from workbench.reproduction.declare import Reproduction
from workbench.reproduction.errors import UsageError
from workbench.reproduction.fingerprint import Fingerprinter
from workbench.reproduction.notebook_cells import read_notebook
from workbench.reproduction.parameters import check_parameters
from workbench.reproduction.project import Project

__all__ = ["MIN_FREE_BYTES", "check_before", "check_folder", "check_targets"]

MIN_FREE_BYTES = 200_000_000  # a laptop run of all items leaves well under 100 MB of notebooks, figures and traces
DATA_VARIABLE = "WORKBENCH_DATA"


def check_before(project: Project, items: Sequence[Reproduction], profile: str, kernel: str | None) -> None:
    """Check profile, kernels, parameters and data of the items to run.

    Raises:
        UsageError: in one line, naming the thing.
    """
    project.results_of(profile)
    if items and not any(profile in item.parameters for item in items):
        raise UsageError(f"{items[0].id} is not declared for profile {profile}; it has {', '.join(items[0].profiles)}")
    for item in items:
        check_parameters(item, read_notebook(project.notebook(item)))
    _check_kernels({kernel} if kernel else {read_notebook(project.notebook(item)).kernel for item in items})
    _check_data_folder(project, [item for item in items if profile in item.parameters])
    for item in items:
        for need in item.requires:
            _check_data(item, need.removeprefix("data:"))


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
    if user := next((item for item in items if item.requires or fingerprinter.uses_data(item)), None):
        raise UsageError(
            f"{DATA_VARIABLE} is {folder!r}, which is not a folder, and {user.id} uses data; correct or unset it"
        )


def _check_data(item: Reproduction, name: str) -> None:
    from workbench.datasets import manifest

    try:
        checks = manifest.verify(name)
    except ValueError as error:
        raise UsageError(f"{item.id} requires the data {name!r}: {error}") from None
    if missing := [check.file for check in checks if check.status is manifest.FileStatus.MISSING]:
        raise UsageError(
            f"{item.id} requires the data {name!r}, and {missing[0]} is not here: "
            f"set {DATA_VARIABLE} or run `workbench data fetch {name}`"
        )


def check_targets(project: Project, items: Sequence[Reproduction], profile: str) -> None:
    """Check that each item's folder can be moved into place: folders all the way, on the disk of the results.

    Raises:
        UsageError: naming the item and what stands in the way.
    """
    results = project.results_of(profile)
    for item in items:
        if profile in item.parameters:
            _check_target(results, project.folder(item, profile), item.id)


def _check_target(results: Path, target: Path, id: str) -> None:
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


def check_folder(folder: Path, min_free_bytes: int = MIN_FREE_BYTES) -> None:
    """Make the folder of results if need be and check that it can be written and that the disk has room.

    Raises:
        UsageError: naming the folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder, prefix=".probe-"):
            pass
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}") from None
    free = shutil.disk_usage(folder).free
    if free < min_free_bytes:
        raise UsageError(f"{folder} has {free / 1e6:.0f} MB free; a run needs at least {min_free_bytes / 1e6:.0f} MB")
