"""Jupyter kernels for a number of ranks or GPUs, for `jupyter lab` and `papermill --kernel`.

A kernel `workbench-4-ranks` sets WORKBENCH_NUM_RANKS, which `Ranks()` takes when it is given
no number; `workbench-2-gpus` also shows the process its first two GPUs and makes them the
device. The kernel starts under the tether, so it ends with the server that started it.

Simplified: a kernel belongs to the Python that installed it. torch is never imported here.
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

__all__ = [
    "STANDARD_KERNELS",
    "KernelPlace",
    "RanksKernel",
    "install_kernels",
    "list_kernels",
    "remove_kernels",
]

PREFIX = "workbench-"


class KernelPlace(Enum):
    """Where kernels are installed."""

    USER = "user"  # the user's Jupyter folder, seen by every Jupyter of the user
    ENVIRONMENT = "environment"  # this Python's own folder, removed with it


class Accelerator(Enum):
    """What the ranks of a kernel run on."""

    CPU = "ranks"
    GPU = "gpus"


@dataclass(frozen=True, kw_only=True, slots=True)
class RanksKernel:
    """A Jupyter kernel for a number of ranks."""

    count: int  # ranks, one a GPU where it has GPUs
    accelerator: Accelerator = Accelerator.CPU  # what they run on
    folder: Path | None = None  # where it is installed, None if it is not

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count is {self.count}; it must be at least 1")

    @property
    def name(self) -> str:
        """The name that papermill's --kernel takes."""
        return f"{PREFIX}{self.count}-{self.accelerator.value}"

    def specification(self) -> dict:
        """Return the content of its kernel.json."""
        tether = [sys.executable, "-m", "workbench.launch.tether", "--"]
        kernel = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return {
            "argv": [*tether, *kernel],
            "display_name": f"Workbench ({self.count} {self.accelerator.value})",
            "language": "python",
            "env": self._variables(),
            "metadata": {"debugger": True},
        }

    def _variables(self) -> dict[str, str]:
        variables = {"WORKBENCH_NUM_RANKS": str(self.count)}
        if self.accelerator is Accelerator.GPU:
            variables["WORKBENCH_DEVICE"] = "cuda"
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(self.count)))
        return variables

    @classmethod
    def named(cls, name: str) -> "RanksKernel":
        """Return the kernel of a name such as workbench-4-ranks or workbench-2-gpus.

        Raises:
            ValueError: if it is no such name.
        """
        count, _, kind = name.removeprefix(PREFIX).partition("-")
        kinds = [accelerator.value for accelerator in Accelerator]
        if not name.startswith(PREFIX) or not count.isdecimal() or kind not in kinds:
            raise ValueError(f"kernel is {name!r}; it must be like workbench-4-ranks or workbench-2-gpus")
        return cls(count=int(count), accelerator=Accelerator(kind))


STANDARD_KERNELS = ("workbench-2-ranks", "workbench-4-ranks", "workbench-2-gpus")


def install_kernels(
    names: Iterable[str] = STANDARD_KERNELS, place: KernelPlace = KernelPlace.USER
) -> list[RanksKernel]:
    """Install Jupyter kernels, replacing those of the same name.

    Args:
        names: such as workbench-4-ranks.
        place: where to.

    Returns:
        The installed kernels.

    Raises:
        ValueError: if a name is none of ours; nothing is installed then.
        OSError: if the folder cannot be written.
    """
    kernels = [RanksKernel.named(name) for name in names]
    return [_install(kernel, _folder_of_kernels(place)) for kernel in kernels]


def _install(kernel: RanksKernel, kernels_folder: Path) -> RanksKernel:
    kernels_folder.mkdir(parents=True, exist_ok=True)
    folder = kernels_folder / kernel.name
    with tempfile.TemporaryDirectory(dir=kernels_folder, prefix=".partial-") as partial:
        new = Path(partial) / kernel.name
        new.mkdir()
        text = json.dumps(kernel.specification(), indent=1) + "\n"
        (new / "kernel.json").write_text(text)
        if folder.exists():
            os.replace(new / "kernel.json", folder / "kernel.json")
        else:
            os.replace(new, folder)
    return RanksKernel(count=kernel.count, accelerator=kernel.accelerator, folder=folder)


def list_kernels() -> list[RanksKernel]:
    """Return the installed kernels of the workbench, in the order Jupyter looks for them."""
    found: dict[str, RanksKernel] = {}
    for place in KernelPlace:
        for path in sorted(_folder_of_kernels(place).glob(f"{PREFIX}*/kernel.json")):
            kernel = RanksKernel.named(path.parent.name)
            found.setdefault(
                kernel.name,
                RanksKernel(count=kernel.count, accelerator=kernel.accelerator, folder=path.parent),
            )
    return list(found.values())


def remove_kernels(names: Iterable[str] | None = None) -> list[RanksKernel]:
    """Remove installed kernels of the workbench.

    Args:
        names: which; None removes all.

    Returns:
        The removed kernels.

    Raises:
        ValueError: if one is not installed; nothing is removed then.
    """
    installed = {kernel.name: kernel for kernel in list_kernels()}
    wanted = list(installed if names is None else names)
    for name in wanted:
        if name not in installed:
            known = ", ".join(installed) or "none"
            raise ValueError(f"kernel is {name!r}; it must be an installed one: {known}")
    for name in wanted:
        shutil.rmtree(installed[name].folder)
    return [installed[name] for name in wanted]


def _folder_of_kernels(place: KernelPlace) -> Path:
    from jupyter_core.paths import jupyter_data_dir

    if place is KernelPlace.USER:
        return Path(jupyter_data_dir()) / "kernels"
    return Path(sys.prefix) / "share" / "jupyter" / "kernels"
