"""Filling a hierarchical communication matrix from the ranks there are: links of pairs, then rings of whole groups."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from workbench.cluster import Algorithm, Collective, Fit, Sample, fit

from ..method.matrix import HierarchicalCommMatrix, Layer

__all__ = ["Measured", "group_size", "measure"]

PAIR_BYTES = (1 << 16, 1 << 19)  # of two messages, whose difference tells a link's rate
RING_BYTES = (1 << 12, 1 << 16, 1 << 19, 1 << 21)  # of the all-reduces to which a layer's numbers are fitted
RUNS = 3  # of each all-reduce, after one; the fastest counts
NEAR = 0.5  # of the fastest link: what a link within a group reaches at least


@dataclass(frozen=True, slots=True)
class Measured:
    """A matrix, and how well its numbers describe the all-reduces they were fitted to."""

    matrix: HierarchicalCommMatrix
    fits: tuple[Fit, ...]  # of each layer, the outermost first
    pairs_bytes_per_s: tuple[tuple[float, ...], ...]  # between all ranks, one pair at a time


def measure(*, device: str = "cpu") -> Measured:
    """Measure the links between all ranks; every rank calls it and has the same result.

    One pair of ranks after the other exchanges messages, which tells the groups of neighbours that are near each other.
    Then a ring of all ranks, and all groups at once, run all-reduces of several sizes, to which a start-up and a rate
    are fitted.

    Args:
        device: Where the tensors are: "cpu" or "cuda".

    Raises:
        ValueError: with fewer than two ranks.
    """
    size = dist.get_world_size()
    if size < 2:
        raise ValueError(f"ranks: {size}; links are measured between at least 2")
    pairs = _pairs(size, device)
    near = group_size(pairs)
    fits = [_fit(None, size, device)]
    if 1 < near < size:
        axis = init_device_mesh(device, (size // near, near)).get_group(1)
        fits.append(_fit(axis, near, device))
    members = [near] * (len(fits) - 1) + [1]  # ranks of a member of each layer
    sizes = [size // near, near] if len(fits) > 1 else [size]
    layers = [
        Layer(
            p2p_bytes_per_s=_between(pairs, ranks, num),
            group_bytes_per_s=found.bandwidth_bytes_per_s,
            startup_s=found.latency_s,
        )
        for ranks, num, found in zip(members, sizes, fits, strict=True)
    ]
    matrix = HierarchicalCommMatrix(name=f"{size} ranks", layers=tuple(layers), source="measured")
    return Measured(matrix, tuple(fits), pairs)


def group_size(pairs: tuple[tuple[float, ...], ...]) -> int:
    """Return how many neighbours are near each other: the largest even cut of the ranks into blocks of fast links.

    All ranks, if all links are alike.
    """
    size, fastest = len(pairs), max(max(row) for row in pairs)
    for block in (block for block in range(size, 1, -1) if size % block == 0):
        together = [(i, j) for i in range(size) for j in range(i + 1, size) if i // block == j // block]
        if min(pairs[i][j] for i, j in together) >= NEAR * fastest:
            return block
    return 1


def _pairs(size: int, device: str) -> tuple[tuple[float, ...], ...]:
    """Return the rate between each two ranks, in bytes per second."""
    rates = torch.zeros(size, size, dtype=torch.float64)
    buffers = [torch.zeros(num, dtype=torch.uint8, device=device) for num in PAIR_BYTES]
    answer, rank = torch.zeros(1, dtype=torch.uint8, device=device), dist.get_rank()
    for i in range(size):
        for j in range(i + 1, size):
            if rank in (i, j):
                seconds = [_trip_s(buffer, answer, rank == i, j if rank == i else i) for buffer in (answer, *buffers)]
                rates[i, j] = (PAIR_BYTES[1] - PAIR_BYTES[0]) / max(seconds[2] - seconds[1], 1e-9) if rank == i else 0.0
            dist.barrier()
    rates = rates.to(device)
    dist.all_reduce(rates)
    rates = (rates + rates.T).tolist()
    return tuple(tuple(row) for row in rates)


def _trip_s(message: torch.Tensor, answer: torch.Tensor, sends: bool, other: int) -> float:
    began_s = time.perf_counter()
    first, second = (dist.send, dist.recv) if sends else (dist.recv, dist.send)
    first(message, other)
    second(answer, other)
    answer.cpu()  # waits for a GPU
    return time.perf_counter() - began_s


def _fit(group: dist.ProcessGroup | None, size: int, device: str) -> Fit:
    """Fit a start-up and a rate to all-reduces of the groups that ranks are in, all at once."""
    samples = []
    for num_bytes in RING_BYTES:
        message = torch.zeros(num_bytes // 4, device=device)
        reduce = partial(dist.all_reduce, message, group=group)
        seconds = [_slowest_s(reduce, device) for _ in range(RUNS + 1)]
        ring = {"collective": Collective.ALL_REDUCE, "algorithm": Algorithm.RING, "num_ranks": size}
        samples.append(Sample(message_bytes=num_bytes, time_s=min(seconds[1:]), **ring))
    return fit(samples)


def _slowest_s(work: Callable[[], object], device: str) -> float:
    """Return how long work took on the slowest of all ranks, which begin together."""
    dist.barrier()
    began_s = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    slowest = torch.tensor(time.perf_counter() - began_s, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.item()


def _between(pairs: tuple[tuple[float, ...], ...], ranks: int, num: int) -> tuple[tuple[float, ...], ...]:
    """Return the mean rate of the pairs between each two members of so many ranks, for the first `num` members."""

    def rate(i: int, j: int) -> float:
        links = [pairs[a][b] for a in range(i * ranks, (i + 1) * ranks) for b in range(j * ranks, (j + 1) * ranks)]
        return 0.0 if i == j else sum(links) / len(links)

    upper = [[rate(min(i, j), max(i, j)) for j in range(num)] for i in range(num)]
    return tuple(tuple(row) for row in upper)
