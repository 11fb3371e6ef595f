"""What this machine can do for the workbench, and what to do about what it cannot.

Source: the workbench's own conventions; what ranks, shaped hosts, data and kernels need is said in their modules.
Simplified: a check that raises is a check that failed, with its message; nothing is repaired.
Left out: speed (`workbench bench`).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Check", "examine"]

PYTHON_NEEDED = (3, 11)
FREE_BYTES_NEEDED = 1_000_000_000  # a laptop run of every technique writes far less; notebooks and figures are small
RANKS_TRIED = 2
RANKS_TIMEOUT_S = 60
PACKAGES = (
    "torch",
    "papermill",
    "ipykernel",
    "jupyterlab",
    "matplotlib",
    "pandas",
    "ipywidgets",
    "transformers",
    "ipyparallel",
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """The outcome of looking at one thing."""

    name: str  # what was looked at
    ok: bool  # whether it is there
    required: bool  # whether the workbench needs it
    found: str  # what was found
    advice: str = ""  # what to do where it is not there
    broken: bool = False  # whether it is there, required and wrong

    @property
    def state(self) -> str:
        """Return "ok", "broken" (there and wrong), "missing" (required) or "optional" (absent, and nothing stops)."""
        if self.broken and not self.ok:
            return "broken"
        return "ok" if self.ok else "missing" if self.required else "optional"


def examine(project: Any) -> Iterator[Check]:
    """Look at everything in turn; each outcome comes as soon as it is known.

    Args:
        project: where the folders are.

    Yields:
        One check a thing.
    """
    looks: tuple[tuple[str, bool, str, Callable[[], Iterator[Check]]], ...] = (
        ("python", True, "Install Python 3.11 or later and make the environment anew.", _python),
        ("packages", True, "Run make, or: pip install -c constraints.txt -e .", _packages),
        ("catalogue", True, "Mend the file named; see workbench list.", lambda: _catalogue(project)),
        ("results", True, "Free some space, or make the folder writable.", lambda: _results(project)),
        (
            "ranks",
            True,
            "Run it again after the packages are there; a firewall must let this machine talk to itself.",
            _ranks,
        ),
        ("kernels", True, "Run: python -m ipykernel install --sys-prefix", _kernels),
        ("GPUs", False, "Items run on the processor without one.", _gpus),
        ("shaped hosts", False, "Items that need links of a given speed are not run.", _shaped_hosts),
        ("data", False, "Mend data/manifest.csv.", _data),
        (
            "browser",
            False,
            "Only the browser test needs it: pip install playwright, and the system's chromium.",
            _browser,
        ),
    )
    for name, required, advice, look in looks:
        yield from _guarded(name, required, advice, look)


def _guarded(name: str, required: bool, advice: str, look: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    try:
        yield from look()
    except Exception as error:  # the outcome of a look, not an error of the doctor's
        yield Check(
            name=name,
            ok=False,
            required=required,
            found=f"{type(error).__name__}: {error}".split("\n", 1)[0],
            advice=advice,
        )


def _python() -> Iterator[Check]:
    yield Check(
        name="python",
        ok=sys.version_info >= PYTHON_NEEDED,
        required=True,
        found=f"{sys.version.split()[0]} at {sys.executable}",
        advice="Install Python 3.11 or later and make the environment anew.",
    )


def _packages() -> Iterator[Check]:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES[:2] if name not in missing)
    yield Check(
        name="packages",
        ok=not missing,
        required=True,
        found=f"missing {', '.join(missing)}" if missing else f"all there ({versions})",
        advice="Run make, or: pip install -c constraints.txt -e .",
    )


def _catalogue(project: Any) -> Iterator[Check]:
    from .catalogue import load_catalogue
    from .errors import CatalogueError

    try:
        items = load_catalogue(project)
    except CatalogueError as error:
        yield Check(
            name="catalogue", ok=False, required=True, broken=True, found=str(error), advice="Mend the file named."
        )
        return
    yield Check(name="catalogue", ok=True, required=True, found=f"{len(items)} items in {project.reproductions}")


def _results(project: Any) -> Iterator[Check]:
    folder = next(place for place in (project.results, project.root) if place.exists())
    free, writable = shutil.disk_usage(folder).free, os.access(folder, os.W_OK)
    found = f"{folder}: {'writable' if writable else 'not writable'}, {free / 1e9:.1f} GB free"
    yield Check(
        name="results",
        ok=writable and free >= FREE_BYTES_NEEDED,
        required=True,
        found=found,
        advice="Free some space (workbench clean), or make the folder writable.",
    )


def _ranks() -> Iterator[Check]:
    from workbench.launch import run_on_ranks

    found = run_on_ranks(_rank_and_size, RANKS_TRIED, timeout_s=RANKS_TIMEOUT_S)
    right = [tuple(pair) for pair in found] == [(rank, RANKS_TRIED) for rank in range(RANKS_TRIED)]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Check(
        name="ranks",
        ok=right,
        required=True,
        found=f"{RANKS_TRIED} started and reached each other; {cores} processor cores",
        advice="A firewall must let this machine talk to itself, and /dev/shm must have room.",
    )


def _rank_and_size() -> tuple[int, int]:
    import torch
    import torch.distributed as dist

    total = torch.ones(1)
    dist.all_reduce(total)
    return dist.get_rank(), int(total.item())


def _kernels() -> Iterator[Check]:
    from jupyter_client.kernelspec import KernelSpecManager

    names = sorted(KernelSpecManager().find_kernel_specs())
    yield Check(
        name="kernels",
        ok="python3" in names,
        required=True,
        found=", ".join(names) or "none",
        advice="Run: python -m ipykernel install --sys-prefix; for kernels with ranks: workbench kernels install",
    )


def _gpus() -> Iterator[Check]:
    import torch

    names = (
        [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        if torch.cuda.is_available()
        else []
    )
    yield Check(
        name="GPUs",
        ok=bool(names),
        required=False,
        found=", ".join(names) or "none",
        advice="Not needed: the laptop profile runs on the processor. With one, install the CUDA build of torch.",
    )


def _shaped_hosts() -> Iterator[Check]:
    from workbench.launch import ShapedHosts

    missing = ShapedHosts.missing()
    yield Check(
        name="shaped hosts",
        ok=missing is None,
        required=False,
        found=missing or "network namespaces with limited links work",
        advice="Items that need links of a given speed are not run; on Linux, allow unprivileged user namespaces.",
    )


def _data() -> Iterator[Check]:
    from workbench.datasets.manifest import FileStatus, list_data, verify
    from workbench.datasets.places import DATA_VARIABLE, DataError, workbench_data

    try:
        workbench_data()
    except DataError:
        yield Check(
            name="data",
            ok=False,
            required=False,
            found=f"{DATA_VARIABLE} is {os.environ[DATA_VARIABLE]!r}, which is not a folder",
            advice=f"Set {DATA_VARIABLE} to a folder that exists, or unset it.",
        )
        return
    absent: list[Any] = []
    for entry in list_data():
        checks = verify(entry.name)
        if any(check.status is FileStatus.MISSING for check in checks):
            absent.append(entry)
            continue
        wrong = [check.file for check in checks if check.status is FileStatus.DIFFERS]
        places = ", ".join(dict.fromkeys(check.place for check in checks))
        anew = f"Fetch it anew: workbench data fetch {entry.name}"
        yield Check(
            name=f"data {entry.name}",
            ok=not wrong,
            required=False,
            found=f"{wrong[0]} ({places}) differs from its checksum" if wrong else f"from {places}",
            advice=f"Mend it, or unset {DATA_VARIABLE}." if DATA_VARIABLE in places else anew,
        )
    if absent:
        yield Check(
            name="data",
            ok=False,
            required=False,
            found=f"not here: {', '.join(entry.name for entry in absent)}",
            advice="workbench data fetch NAME, or set WORKBENCH_DATA to a folder that has them. Until then a generated stand-in "
            "takes the place of a data set, and the report says so; items that need an absent model say so.",
        )


def _browser() -> Iterator[Check]:
    program = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    playwright = importlib.util.find_spec("playwright") is not None
    found = f"{program or 'no Chromium'}; Playwright {'is there' if playwright else 'is not installed'}"
    yield Check(
        name="browser",
        ok=bool(program) and playwright,
        required=False,
        found=found,
        advice="Only the browser test needs it: pip install 'workbench[browser]', and the system's chromium package.",
    )
