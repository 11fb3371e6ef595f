"""Jupyter kernels for a number of ranks or GPUs, for `jupyter lab` and `papermill --kernel`.

A kernel `workbench-4-ranks` sets WORKBENCH_NUM_RANKS, which `Ranks()` and `%%ranks` take when they are given no number;
a number in a notebook counts more. `workbench-2-gpus` also shows the process its first two GPUs and makes them the
device. The kernel starts under the tether, so it ends with the server that started it.
"""

import json
import os
import shutil
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from workbench.checks import require_one_of
from workbench.launch.tether import tether_command

__all__ = ["KernelPlace", "RanksKernel", "install", "installed", "remove"]

PREFIX = "workbench-"
UNITS = {"cpu": "ranks", "cuda": "gpus"}  # what the number in a kernel's name counts


class KernelPlace(Enum):
    """Where kernels are installed."""

    USER = "user"  # the user's Jupyter folder, seen by every Jupyter of the user
    ENVIRONMENT = "environment"  # this Python's own folder, removed with it


@dataclass(frozen=True, kw_only=True, slots=True)
class RanksKernel:
    """A Jupyter kernel for a number of ranks."""

    num_ranks: int  # what Ranks() starts in it; one a GPU where it has GPUs
    device: str = "cpu"  # "cpu" or "cuda"

    def __post_init__(self) -> None:
        if self.num_ranks < 1:
            raise ValueError(f"num_ranks is {self.num_ranks}; it must be at least 1")
        require_one_of(UNITS, device=self.device)

    @property
    def name(self) -> str:
        """The name that papermill's --kernel takes."""
        return f"{PREFIX}{self.num_ranks}-{UNITS[self.device]}"

    def specification(self) -> dict:
        """Return the content of its kernel.json."""
        variables = {"WORKBENCH_NUM_RANKS": str(self.num_ranks), "WORKBENCH_DEVICE": self.device}
        if self.device == "cuda":
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(self.num_ranks)))
        kernel = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return {
            "argv": [*tether_command(), *kernel],
            "display_name": f"Workbench ({self.num_ranks} {UNITS[self.device]})",
            "language": "python",
            "env": variables,
            "metadata": {"debugger": True},
        }

    @classmethod
    def named(cls, name: str) -> "RanksKernel":
        """Return the kernel of a name such as workbench-4-ranks or workbench-2-gpus."""
        number, _, unit = name.removeprefix(PREFIX).partition("-")
        devices = [device for device in UNITS if UNITS[device] == unit]
        if not name.startswith(PREFIX) or not number.isdecimal() or not devices:
            raise ValueError(f"kernel is {name!r}; it must be like workbench-4-ranks or workbench-2-gpus")
        return cls(num_ranks=int(number), device=devices[0])


def install(num_ranks: int, *, device: str = "cpu", place: KernelPlace = KernelPlace.ENVIRONMENT) -> Path:
    """Install a Jupyter kernel for a number of ranks, replacing one of the same name; return its folder."""
    kernel = RanksKernel(num_ranks=num_ranks, device=device)
    folder = _folder_of_kernels(place) / kernel.name
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".partial-{os.getpid()}"
    partial.write_text(json.dumps(kernel.specification(), indent=1) + "\n")
    os.replace(partial, folder / "kernel.json")
    return folder


def installed() -> dict[str, Path]:
    """Return the workbench's installed kernels, folders by name; the user's come first."""
    folders: dict[str, Path] = {}
    for place in KernelPlace:
        for path in sorted(_folder_of_kernels(place).glob(f"{PREFIX}*/kernel.json")):
            folders.setdefault(path.parent.name, path.parent)
    return folders


def remove(name: str) -> Path:
    """Remove an installed kernel of the workbench; return the folder that is gone."""
    folders = installed()
    if name not in folders:
        known = ", ".join(folders) or "none"
        raise ValueError(f"kernel is {name!r}; it must be one that the workbench installed: {known}")
    shutil.rmtree(folders[name])
    return folders[name]


def _folder_of_kernels(place: KernelPlace) -> Path:
    from jupyter_core.paths import jupyter_data_dir

    if place is KernelPlace.USER:
        return Path(jupyter_data_dir()) / "kernels"
    return Path(sys.prefix) / "share" / "jupyter" / "kernels"
