"""The environment every rank runs in, set in one place so that records can copy it.

The variables are set before the fork server starts, because OpenMP, OpenBLAS and glibc's allocator read them once, when
their library is loaded.
"""

import os
import sys
from pathlib import Path

__all__ = ["own_environment", "rank_environment"]

# glibc gives large freed blocks back to the kernel at once, and so touches every page of a large tensor anew each time.
# Its threshold is at most 32 MiB (mallopt(3), M_MMAP_THRESHOLD), so mapping is switched off and the heap kept up to
# 1 GiB.
HEAP_KEPT_BYTES = 1 << 30

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def rank_environment(threads_per_rank: int = 1, interface: str = LOOPBACK) -> dict[str, str]:
    """Return the environment variables of every rank, whose gloo listens on a network interface."""
    if threads_per_rank < 1:
        raise ValueError(f"threads_per_rank is {threads_per_rank}; it must be at least 1")
    return {
        "OMP_NUM_THREADS": str(threads_per_rank),
        "MKL_NUM_THREADS": str(threads_per_rank),
        "OPENBLAS_NUM_THREADS": "1",  # it starts its threads when NumPy is imported, before the ranks are forked
        "GLOO_SOCKET_IFNAME": interface,
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(HEAP_KEPT_BYTES),
        # Counting GPUs must not start CUDA in a process that is going to fork.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }


def own_environment() -> dict[str, str]:
    """Return this process's environment, in which another Python finds this package."""
    paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
