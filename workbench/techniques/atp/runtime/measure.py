"""Measure a hierarchical communication matrix on the running ranks: links of pairs, then rings of groups."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from workbench.cluster import Fit, fit
from workbench.parallel.exchanges import Exchange, begin
from workbench.parallel.groups import ProcessTensorGroup
from workbench.parallel.links import fitted_ring, times_of
from workbench.parallel.timeouts import init_mesh
from workbench.parallel.traffic import Phase

from ..method.matrix import AxisTimes, HierarchicalCommMatrix, Layer
from ..method.search import meshes

__all__ = ["Measured", "group_size", "measure"]

PAIR_BYTES = 1 << 19  # size of a message between two ranks
SMALL_BYTES, LARGE_BYTES = 1 << 12, 1 << 19  # sizes of the collectives that start-ups and rates are fitted to
TRIPS = 3  # round trips between two ranks; the fastest counts
EXCHANGES = {"all_reduce": Exchange.SUM, "all_gather": Exchange.GATHER, "reduce_scatter": Exchange.SCATTER_SUM}
FASTER = 2.0  # least rate of a link within a group, as a multiple of the fastest link between groups


@dataclass(frozen=True, slots=True)
class Measured:
    """A matrix, and the fits of its numbers to measured collectives."""

    matrix: HierarchicalCommMatrix
    fits: tuple[Fit, ...]  # a fit for each layer, the outermost first
    axis_fits: Mapping[tuple[int, int, int, str], Fit]  # by d1, d2, axis and collective
    pairs_bytes_per_s: tuple[tuple[float, ...], ...]  # between all ranks, one pair at a time


def measure(*, largest_bytes: int = LARGE_BYTES, device: str = "cpu") -> Measured:
    """Measure the links between all ranks; every rank calls it and has the same result.

    First the pairs of ranks exchange messages in turn, which shows the groups of neighbours with fast links. Then a
    ring of all ranks, all groups at once, and the axes of every mesh run collectives of several sizes. Start-ups and
    rates are fitted to their times.

    Args:
        largest_bytes: Largest message of the collectives, at best the size of a training's messages.
        device: Device of the tensors, "cpu" or "cuda".

    Raises:
        ValueError: with fewer than two ranks.
    """
    size, sizes_bytes = dist.get_world_size(), _sizes_bytes(largest_bytes)
    if size < 2:
        raise ValueError(f"ranks: {size}; links are measured between at least 2")
    pairs = _pairs(size, device)
    near = group_size(pairs)
    fits = [fitted_ring(None, sizes_bytes, device)]
    if near < size:
        axis = init_mesh(device, (size // near, near)).get_group(1)
        fits.append(fitted_ring(axis, sizes_bytes, device))
    members, sizes = ([near, 1], [size // near, near]) if near < size else ([1], [size])
    layers = [
        Layer(
            p2p_bytes_per_s=_between(pairs, ranks, num),
            group_bytes_per_s=ring.bandwidth_bytes_per_s,
            startup_s=ring.latency_s,
        )
        for ranks, num, ring in zip(members, sizes, fits, strict=True)
    ]
    axis_fits = _axis_fits(size, sizes_bytes, device)
    matrix = HierarchicalCommMatrix(
        name=f"{size} ranks", layers=tuple(layers), source="measured", measured=_by_mesh(axis_fits)
    )
    return Measured(matrix, tuple(fits), axis_fits, pairs)


def _sizes_bytes(largest: int) -> tuple[int, ...]:
    """Return three message sizes, each a whole number of values for every rank."""
    unit = 4 * dist.get_world_size()
    return tuple(
        max(unit, num // unit * unit)
        for num in (SMALL_BYTES, max(4 * SMALL_BYTES, largest // 4), max(16 * SMALL_BYTES, largest))
    )


def _axis_fits(size: int, sizes_bytes: Sequence[int], device: str) -> dict[tuple[int, int, int, str], Fit]:
    """Fit whole collectives along both axes of every mesh."""
    fits = {}
    for d1, d2 in meshes(size):
        groups = init_mesh(device, (d1, d2))
        for axis in (axis for axis, num in ((1, d1), (2, d2)) if num > 1):
            for name, exchange in EXCHANGES.items():
                group = ProcessTensorGroup(groups.get_group(axis - 1))
                fits[d1, d2, axis, name] = fit(times_of(partial(_exchange, exchange, group), sizes_bytes, device))
        for opened in {groups.get_group(axis) for axis in (0, 1)} - {dist.group.WORLD}:
            dist.destroy_process_group(opened)
    return fits


def _exchange(exchange: Exchange, group: ProcessTensorGroup, message: Tensor) -> None:
    """Run an exchange of a whole tensor; for a gather each rank holds one part."""
    parts = message.view(group.size, -1)
    whole = {Exchange.SUM: message, Exchange.GATHER: parts[0], Exchange.SCATTER_SUM: parts}[exchange]
    begin(whole, exchange, group, Phase.FORWARD, "measure").wait()


def _by_mesh(fits: Mapping[tuple[int, int, int, str], Fit]) -> dict[tuple[int, int], dict[int, AxisTimes]]:
    by_mesh: dict[tuple[int, int], dict[int, AxisTimes]] = {}
    for d1, d2, axis in dict.fromkeys(key[:3] for key in fits):
        links = {name: fits[d1, d2, axis, name].link("measured") for name in EXCHANGES}
        by_mesh.setdefault((d1, d2), {})[axis] = AxisTimes(**links)
    return by_mesh


def group_size(pairs: tuple[tuple[float, ...], ...]) -> int:
    """Return the size of the smallest equal blocks of neighbouring ranks with fast links.

    Fast links are at least `FASTER` times as fast as all links between blocks. Without such blocks, return all ranks.
    """
    size = len(pairs)
    for block in (block for block in range(2, size) if size % block == 0):
        inside = [pairs[i][j] for i in range(size) for j in range(i + 1, size) if i // block == j // block]
        between = [pairs[i][j] for i in range(size) for j in range(i + 1, size) if i // block != j // block]
        if min(inside) >= FASTER * max(between):
            return block
    return size


def _pairs(size: int, device: str) -> tuple[tuple[float, ...], ...]:
    """Return the rate between each two ranks, in bytes per second."""
    rates = torch.zeros(size, size, dtype=torch.float64)
    message, answer = (torch.zeros(num, dtype=torch.uint8, device=device) for num in (PAIR_BYTES, 1))
    rank = dist.get_rank()
    for i in range(size):
        for j in range(i + 1, size):
            if rank in (i, j):
                seconds = [_trip_s(message, answer, rank == i, j if rank == i else i) for _ in range(TRIPS)]
                rates[i, j] = PAIR_BYTES / min(seconds) if rank == i else 0.0
            dist.barrier()
    rates = rates.to(device)
    dist.all_reduce(rates)
    return tuple(tuple(row) for row in (rates + rates.T).tolist())


def _trip_s(message: Tensor, answer: Tensor, sends: bool, other: int) -> float:
    began_s = time.perf_counter()
    first, second = (dist.send, dist.recv) if sends else (dist.recv, dist.send)
    first(message, other)
    second(answer, other)
    answer.cpu()  # waits for a GPU
    return time.perf_counter() - began_s


def _between(pairs: tuple[tuple[float, ...], ...], ranks: int, num: int) -> tuple[tuple[float, ...], ...]:
    """Return the mean rate of pairs between each two members, for the first `num` members of `ranks` ranks each."""

    def rate(i: int, j: int) -> float:
        links = [pairs[a][b] for a in range(i * ranks, (i + 1) * ranks) for b in range(j * ranks, (j + 1) * ranks)]
        return 0.0 if i == j else sum(links) / len(links)

    upper = [[rate(min(i, j), max(i, j)) for j in range(num)] for i in range(num)]
    return tuple(tuple(row) for row in upper)
