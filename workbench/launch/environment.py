"""The environment every rank runs in, set in one place so that records can copy it.

The variables are set before the nursery starts, because OpenMP, OpenBLAS and glibc's
allocator read them once, when their library is loaded.

Simplified: one setting for all hosts. Left out: pinning ranks to cores.
"""

import sys

__all__ = ["rank_environment"]

# glibc gives freed blocks above the first threshold (bytes) back to the kernel at once, and
# so touches every page of a large tensor anew for each result. It accepts at most 32 MiB
# (mallopt(3), M_MMAP_THRESHOLD), so mapping is switched off and the heap is kept up to 1 GiB.
HEAP_KEPT_BYTES = 1 << 30

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def rank_environment(threads_per_rank: int = 1, interface: str = LOOPBACK) -> dict[str, str]:
    """Return the environment variables that are set for every rank.

    Args:
        threads_per_rank: OpenMP and MKL threads of each rank.
        interface: network interface gloo listens on.

    Returns:
        Variable names and values; OpenBLAS keeps one thread because it starts its threads
        when NumPy is imported, which happens before the ranks are forked.

    Raises:
        ValueError: if threads_per_rank is below 1.
    """
    if threads_per_rank < 1:
        raise ValueError(f"threads_per_rank is {threads_per_rank}; it must be at least 1")
    return {
        "OMP_NUM_THREADS": str(threads_per_rank),
        "MKL_NUM_THREADS": str(threads_per_rank),
        "OPENBLAS_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": interface,
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(HEAP_KEPT_BYTES),
        # Counting GPUs must not start CUDA in a process that is going to fork.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }
