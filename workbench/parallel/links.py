"""The link of a rank, fitted to messages on real ranks."""

import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

from workbench.cluster import Link
from workbench.parallel.wire import Wire

__all__ = ["measure_link"]

SMALL_BYTES, LARGE_BYTES = 64, 2**22  # of a message
ROUNDS = 7


def measure_link(group: dist.ProcessGroup | None = None, device: torch.device | str = "cpu") -> Link:
    """Fit a link's start-up and rate to a small all-reduce and to messages between neighbours; all ranks call it.

    The fastest round of the slowest rank counts.

    Raises:
        ValueError: on all ranks, if the large message takes no longer than the small message.
    """
    wire, world = Wire(group), dist.get_world_size(group)
    small, large = (torch.zeros(num, dtype=torch.uint8, device=device) for num in (SMALL_BYTES, LARGE_BYTES))
    reduced_s = _fastest_s(lambda: dist.all_reduce(small, group=group), group, device)
    next_rank = (wire.rank + 1) % world
    times = [_fastest_s(partial(wire.exchange, {next_rank: (one,)}), group, device) for one in (small, large)]
    if times[1] <= times[0]:
        raise ValueError(
            f"{LARGE_BYTES} bytes take {times[1]:.2g} s, {SMALL_BYTES} take {times[0]:.2g} s: too noisy to fit"
        )
    rate = (LARGE_BYTES - SMALL_BYTES) / (times[1] - times[0])
    latency_s = reduced_s / (2 * (world - 1))
    return Link(bandwidth_bytes_per_s=rate, latency_s=latency_s, source="messages between neighbours, measured")


def _fastest_s(work: Callable[[], object], group: dist.ProcessGroup | None, device: torch.device | str) -> float:
    """Return the fastest round of the slowest rank."""
    times, device = [], torch.device(device)
    for _ in range(ROUNDS):
        dist.barrier(group)
        began_s = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began_s)
    slowest = torch.tensor(min(times), dtype=torch.float64, device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group)
    return slowest.item()
