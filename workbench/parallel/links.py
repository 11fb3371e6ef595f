"""Links fitted to messages on real ranks: that of a rank to its neighbours, and those of rings that work at once."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from workbench.cluster import Algorithm, Collective, Fit, Link, Sample, fit
from workbench.parallel.wire import Wire

__all__ = ["fitted_ring", "measure_link", "times_of"]

SMALL_BYTES, LARGE_BYTES = 64, 2**22  # of a message
ROUNDS = 7
RUNS = 3  # timed runs of a collective after a first run; the median counts
LONGER = 1.01  # least time of a message, as a multiple of a smaller message's time


def measure_link(group: dist.ProcessGroup | None = None, device: torch.device | str = "cpu") -> Link:
    """Fit a link's start-up and rate to a small all-reduce and to messages between neighbours; all ranks call it.

    The fastest round of the slowest rank counts.

    Raises:
        ValueError: on all ranks, if the large message takes no longer than the small message.
    """
    wire, world = Wire(group, device), dist.get_world_size(group)
    small, large = (torch.zeros(num, dtype=torch.uint8, device=device) for num in (SMALL_BYTES, LARGE_BYTES))
    reduced_s = _fastest_s(lambda: dist.all_reduce(small, group=group), group, device)
    next_rank = (wire.rank + 1) % world
    times = [_fastest_s(partial(wire.exchange, {next_rank: (message,)}), group, device) for message in (small, large)]
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


def fitted_ring(group: dist.ProcessGroup | None, sizes_bytes: Sequence[int], device: str) -> Fit:
    """Fit the start-up of a step and the rate of a link to ring all-reduces of a group; None is all ranks.

    Every rank calls it, with a group of the same size, and all groups work at the same time.
    """
    return fit(
        Sample(
            message_bytes=num_bytes,
            time_s=seconds,
            collective=Collective.ALL_REDUCE,
            algorithm=Algorithm.RING,
            num_ranks=dist.get_world_size(group),
        )
        for num_bytes, seconds in times_of(partial(dist.all_reduce, group=group), sizes_bytes, device)
    )


def times_of(work: Callable[[Tensor], object], sizes_bytes: Sequence[int], device: str) -> list[tuple[float, float]]:
    """Return bytes and seconds of messages of several sizes, while all groups of ranks work at the same time.

    A message that is faster than a smaller message counts as slightly slower: the smaller message was disturbed.
    """
    samples: list[tuple[float, float]] = []
    least_s = 0.0
    for num_bytes in sizes_bytes:
        call = partial(work, torch.zeros(num_bytes // 4, device=device))
        taken_s = median([_slowest_s(call, device) for _ in range(RUNS + 1)][1:])
        samples.append((num_bytes, max(taken_s, least_s)))
        least_s = LONGER * samples[-1][1]
    return samples


def _slowest_s(work: Callable[[], object], device: str) -> float:
    """Return the time of the slowest rank of the job; all ranks begin together."""
    dist.barrier()
    began_s = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    slowest = torch.tensor(time.perf_counter() - began_s, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.item()
