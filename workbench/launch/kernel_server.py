"""Kernels that start in a tenth of a second: a warm process forks them.

Each kernel is below a tether of its own: when the kernel ends, however that happens, all that it started ends with it.
"""

import atexit
import hashlib
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from workbench.launch.environment import rank_environment
from workbench.launch.fork_server import WARM_VARIABLE
from workbench.launch.forking import ForkedProcess, Order, WarmProcess, forked
from workbench.launch.kernel_imports import IMPORTS_VARIABLE
from workbench.launch.tether import hold

__all__ = ["LIBRARY_VARIABLE", "OF_RANKS", "THREADS_VARIABLE", "KernelServer", "library_stamp"]

# What the library imports of others: together seven seconds of processor time.
OF_TORCH = ("torch.distributed.pipelining", "torch.distributed.fsdp")
OF_RANKS = (*OF_TORCH, "scipy.optimize", "scipy.stats", "numba", "pandas", "sklearn.metrics")
OF_MODELS = tuple(f"transformers.models.{name}.modeling_{name}" for name in ("bert", "gpt2", "resnet"))
OF_KERNELS = (*OF_RANKS, *OF_MODELS, "matplotlib.pyplot", "IPython.display", "ipykernel.kernelapp")
OF_LIBRARY = "workbench.launch.kernel_imports"
LIBRARY_VARIABLE = "WORKBENCH_LIBRARY"  # of the warm process: the stamp of the library that it has imported
THREADS_VARIABLE = "WORKBENCH_THREADS"  # of a kernel: threads of torch; more than cores that are free wait in turns
INLINE = "module://matplotlib_inline.backend_inline"  # what ipykernel would choose before matplotlib is imported


@dataclass(frozen=True, kw_only=True, slots=True)
class _StartKernel(Order):
    """Be the tether of a kernel; the descriptor beside the order takes its output."""

    arguments: tuple[str, ...]  # of ipykernel, such as -f and the connection file

    def can_follow(self, started: Mapping[str, str]) -> bool:
        """Return True: they differ in OpenBLAS's threads alone."""
        return True

    def carry_out(self, fds: Sequence[int]) -> int:
        [output] = fds
        for stream in (1, 2):
            os.dup2(output, stream)
        os.close(output)
        hold(partial(_be_kernel, self), self.owner_pid)


class KernelServer:
    """Forks kernels; these let another warm process fork their ranks' fork servers.

    Leaving its `with` block ends all of them.

    Args:
        modules: modules of this library that the kernels will import; one that starts after a change of any of the
            library's files imports them anew.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        # The stamp is taken before anything is imported: a change meanwhile counts.
        environment = {LIBRARY_VARIABLE: library_stamp(), IMPORTS_VARIABLE: " ".join(modules)}
        # OpenBLAS would start threads: one that forks must have none.
        environment |= {"MPLBACKEND": INLINE, "OPENBLAS_NUM_THREADS": "1"}
        self._kernels = WarmProcess((*OF_KERNELS, OF_LIBRARY), environment)
        self._ranks = WarmProcess(OF_RANKS, rank_environment(1))

    def start(
        self, arguments: Sequence[str], *, environment: Mapping[str, str], folder: str, output: int
    ) -> ForkedProcess:
        """Fork a kernel that writes what bypasses Jupyter to the descriptor `output`.

        RuntimeError if the server has ended. The first kernel waits until everything is imported.
        """
        environment = {**environment, WARM_VARIABLE: self._ranks.address}
        order = _StartKernel(arguments=tuple(arguments), environment=environment, folder=folder, owner_pid=os.getpid())
        kernel = forked(self._kernels.address, order, [output])
        if kernel is None:
            raise RuntimeError("the kernel server has ended")
        return kernel

    def close(self) -> None:
        """End all kernels, and their ranks; calling it again does nothing."""
        self._kernels.close()
        self._ranks.close()

    def __enter__(self) -> "KernelServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _be_kernel(order: _StartKernel) -> int:
    """Be a kernel as a fresh process would be: with its own environment, folder and random numbers."""
    _forget_changed_library()
    order.take_surroundings()
    os.environ["JPY_PARENT_PID"] = str(os.getppid())
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if "torch" in sys.modules and (threads := os.environ.get(THREADS_VARIABLE)):
        sys.modules["torch"].set_num_threads(int(threads))
    from ipykernel.kernelapp import IPKernelApp

    try:
        IPKernelApp.launch_instance(argv=list(order.arguments))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for the threads, as a Python that ends does
        atexit._run_exitfuncs()
    return 0


def library_stamp() -> str:
    """Return a text that changes with any file of this library."""
    digest, waiting = hashlib.sha256(), [str(Path(__file__).parents[1])]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.is_dir():
                    waiting += [] if entry.name == "__pycache__" else [entry.path]
                else:
                    state = entry.stat()
                    digest.update(f"{entry.path} {state.st_mtime_ns} {state.st_size}\n".encode())
    return digest.hexdigest()


def _forget_changed_library() -> None:
    """Let the library be imported as it is now, if a file of it has changed since the warm process began."""
    if os.environ[LIBRARY_VARIABLE] != library_stamp():
        for name in [name for name in sys.modules if name.split(".")[0] == "workbench"]:
            del sys.modules[name]
