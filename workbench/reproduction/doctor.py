"""What this machine can do for the workbench, and what to do about what it cannot."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from workbench.reproduction.machine import num_cores

__all__ = ["Check", "examine"]

PYTHON_NEEDED = (3, 11)
FREE_BYTES_NEEDED = 1_000_000_000  # a laptop run of every technique writes far less; notebooks and figures are small
RANKS_TRIED, RANKS_TIMEOUT_S = 2, 60
RUN_PACKAGES = ("torch", "papermill", "ipykernel", "matplotlib", "pandas", "transformers")
LAB_PACKAGES = ("jupyterlab", "ipywidgets", "ipyparallel")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONAL = {"GPUs", "shaped hosts", "browser"}
Found = tuple[bool, str]  # whether the thing is there, and a line on it


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """The outcome of looking at one thing."""

    name: str  # of the thing
    ok: bool  # whether it is there
    required: bool  # whether the workbench needs it
    detail: str  # a line on it
    advice: str = ""  # what to do where it is not there
    broken: bool = False  # whether it is there, required and wrong

    @property
    def state(self) -> str:
        """Return "ok", "broken" (there and wrong), "missing" (required) or "optional" (absent, and nothing stops)."""
        if self.broken and not self.ok:
            return "broken"
        return "ok" if self.ok else "missing" if self.required else "optional"


def examine(project: Any) -> Iterator[Check]:
    """Look at everything in turn; each outcome comes as soon as it is known."""
    looks: dict[str, tuple[Callable[[], Found], str]] = {
        "python": (_python, "Install Python 3.11 or later and make the environment anew."),
        "packages": (_packages, "In a checkout: make install. Elsewhere: pip install and the names of these packages."),
        "catalogue": (lambda: _catalogue(project), "Mend the file named."),
        "results": (lambda: _results(project), "Free space (workbench clean), or make the folder writable."),
        "ranks": (_ranks, "A firewall must let this machine talk to itself, and /dev/shm must have room."),
        "kernels": (_kernels, "Run: python -m ipykernel install --sys-prefix; for ranks: workbench kernels install"),
        "GPUs": (_gpus, "Not needed: the laptop profile runs on the processor. Else install the CUDA build of torch."),
        "shaped hosts": (_shaped_hosts, "Shaped links are not run; on Linux, allow unprivileged user namespaces."),
        "browser": (_browser, "Only its test needs it: pip install playwright, and the system's chromium package."),
    }
    for name, (look, advice) in looks.items():
        try:
            ok, detail = look()
        except Exception as error:  # the outcome of a look, not an error of the doctor's
            ok, detail = False, _in_a_line(error)
        required, broken = name not in OPTIONAL, name == "catalogue" and not ok
        yield Check(name=name, ok=ok, required=required, detail=detail, advice=advice, broken=broken)
    try:
        yield from _data()
    except Exception as error:
        advice = "Mend data/manifest.csv."
        yield Check(name="data", ok=False, required=False, detail=_in_a_line(error), advice=advice)


def _in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".split("\n", 1)[0]


def _python() -> Found:
    return sys.version_info >= PYTHON_NEEDED, f"{sys.version.split()[0]} at {sys.executable}"


def _packages() -> Found:
    missing = [name for name in RUN_PACKAGES + LAB_PACKAGES if importlib.util.find_spec(name) is None]
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in RUN_PACKAGES[:2] if name not in missing
    )
    return not missing, f"missing {', '.join(missing)}" if missing else f"all there ({versions})"


def _catalogue(project: Any) -> Found:
    from workbench.reproduction import CatalogueError, load_catalogue

    try:
        return True, f"{len(load_catalogue(project))} items in {project.reproductions}"
    except CatalogueError as error:
        return False, str(error)


def _results(project: Any) -> Found:
    folder = next(place for place in (project.results, project.results.parent) if place.exists())
    free, writable = shutil.disk_usage(folder).free, os.access(folder, os.W_OK)
    detail = f"{folder}: {'writable' if writable else 'not writable'}, {free / 1e9:.1f} GB free"
    return writable and free >= FREE_BYTES_NEEDED, detail


def _ranks() -> Found:
    from workbench.launch import run_on_ranks

    pairs = run_on_ranks(_rank_and_size, RANKS_TRIED, timeout_s=RANKS_TIMEOUT_S)
    ok = [tuple(pair) for pair in pairs] == [(rank, RANKS_TRIED) for rank in range(RANKS_TRIED)]
    return ok, f"{RANKS_TRIED} started and reached each other; {num_cores()} processor cores"


def _rank_and_size() -> tuple[int, int]:
    import torch
    import torch.distributed as dist

    total = torch.ones(1)
    dist.all_reduce(total)
    return dist.get_rank(), int(total.item())


def _kernels() -> Found:
    from jupyter_client.kernelspec import KernelSpecManager

    names = sorted(KernelSpecManager().find_kernel_specs())
    return "python3" in names, ", ".join(names) or "none"


def _gpus() -> Found:
    import torch

    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return num_gpus > 0, ", ".join(torch.cuda.get_device_name(index) for index in range(num_gpus)) or "none"


def _shaped_hosts() -> Found:
    from workbench.launch import ShapedHosts

    missing = ShapedHosts.missing()
    return missing is None, missing or "network namespaces with limited links work"


def _browser() -> Found:
    program = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    playwright = importlib.util.find_spec("playwright") is not None
    detail = f"{program or 'no Chromium'}; Playwright {'is there' if playwright else 'is not installed'}"
    return bool(program) and playwright, detail


def _data() -> Iterator[Check]:
    from workbench.datasets.manifest import FileStatus, list_data, verify
    from workbench.datasets.places import DATA_VARIABLE, DataError, workbench_data

    try:
        workbench_data()
    except DataError:
        detail = f"{DATA_VARIABLE} is {os.environ[DATA_VARIABLE]!r}, which is not a folder"
        advice = f"Set {DATA_VARIABLE} to a folder that exists, or unset it."
        yield Check(name="data", ok=False, required=False, detail=detail, advice=advice)
        return
    absent = []
    for name in [entry.name for entry in list_data()]:
        checks = verify(name)
        if any(check.status is FileStatus.MISSING for check in checks):
            absent.append(name)
            continue
        wrong = [check.file for check in checks if check.status is FileStatus.DIFFERS]
        places = ", ".join(dict.fromkeys(check.place for check in checks))
        detail = f"{wrong[0]} ({places}) differs from its checksum" if wrong else f"from {places}"
        advice = f"Fetch it anew: workbench data fetch {name}"
        if DATA_VARIABLE in places:
            advice = f"Mend it, or unset {DATA_VARIABLE}."
        yield Check(name=f"data {name}", ok=not wrong, required=False, detail=detail, advice=advice)
    if absent:
        advice = (
            "workbench data fetch NAME, or set WORKBENCH_DATA to a folder that has them. Until then a generated "
            "stand-in takes the place of a data set, and the report says so; items that need an absent model say so."
        )
        yield Check(name="data", ok=False, required=False, detail=f"not here: {', '.join(absent)}", advice=advice)
