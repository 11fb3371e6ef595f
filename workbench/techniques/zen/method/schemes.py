"""The space of schemes that synchronise sparse gradients (section 3.2.3), and the traffic of each scheme.

A scheme is a point in four dimensions: communication, aggregation, partition and balance. `stages` counts the gradients
that every rank sends and receives for given index sets. Theorem 3.1 follows by enumeration.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from types import MappingProxyType

import numpy as np

__all__ = ["RIVALS", "SCHEMES", "Aggregation", "Balance", "Communication", "Partition", "Scheme", "Stage", "stages"]
__all__ += ["traffic"]


class Communication(StrEnum):
    """The pairs of ranks that communicate."""

    RING = "Ring"  # each rank sends to the next
    HIERARCHY = "Hierarchy"  # log2(n) stages, each with twice the distance between ranks
    POINT_TO_POINT = "Point-to-point"  # each rank sends to all others


class Aggregation(StrEnum):
    """When gradients with the same index are added."""

    INCREMENTAL = "Incremental"  # at every stage
    ONE_SHOT = "One-shot"  # after the last stage


class Partition(StrEnum):
    """Whether the gradient is cut."""

    CENTRALIZATION = "Centralization"  # every rank receives all gradients
    PARALLELISM = "Parallelism"  # a rank adds one partition, then sends it to all


class Balance(StrEnum):
    """How the gradient is cut."""

    NONE = "N/A"  # not cut
    BALANCED = "Balanced"  # partitions with equal numbers of non-zero gradients
    IMBALANCED = "Imbalanced"  # equal ranges of indices


@dataclass(frozen=True, slots=True)
class Scheme:
    """A point of the space; `str` prints it, `parse` reads it."""

    communication: Communication
    aggregation: Aggregation
    partition: Partition
    balance: Balance

    def __post_init__(self) -> None:
        if (self.balance is Balance.NONE) != (self.partition is Partition.CENTRALIZATION):
            raise ValueError(f"balance is {self.balance} with {self.partition}; only partitions have one, and always")

    def __str__(self) -> str:
        return ", ".join((self.communication, self.aggregation, self.partition, self.balance))

    @classmethod
    def parse(cls, text: str) -> "Scheme":
        """Parse the text of `str`."""
        words = text.split(", ")
        if len(words) != 4:
            raise ValueError(f"scheme is {text!r}; it must name one choice in each of 4 dimensions")
        communication, aggregation, partition, balance = words
        return cls(Communication(communication), Aggregation(aggregation), Partition(partition), Balance(balance))


def _space() -> Iterator[Scheme]:
    """List the schemes; point-to-point has one stage, so that both aggregations are equal and count as one-shot."""
    for communication, aggregation, balance in product(Communication, Aggregation, Balance):
        partition = Partition.CENTRALIZATION if balance is Balance.NONE else Partition.PARALLELISM
        if communication is not Communication.POINT_TO_POINT or aggregation is Aggregation.ONE_SHOT:
            yield Scheme(communication, aggregation, partition, balance)


SCHEMES = tuple(_space())
RIVALS: Mapping[str, Scheme] = MappingProxyType(
    {
        "AGsparse": Scheme.parse("Ring, One-shot, Centralization, N/A"),
        "SparCML": Scheme.parse("Hierarchy, Incremental, Centralization, N/A"),
        "Sparse PS": Scheme.parse("Point-to-point, One-shot, Parallelism, Imbalanced"),
        "OmniReduce": Scheme.parse("Point-to-point, One-shot, Parallelism, Imbalanced"),
        "Balanced Parallelism": Scheme.parse("Point-to-point, One-shot, Parallelism, Balanced"),
    }
)
"""Table 3.2. AGsparse runs over any of the three communications; OmniReduce differs from Sparse PS in its format."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The numbers of non-zero gradients that each rank sends and receives in a stage, int64 [ranks]."""

    sent: np.ndarray
    received: np.ndarray

    @property
    def largest(self) -> int:
        """The number for the busiest rank in its busier direction; links are full duplex."""
        return int(max(self.sent.max(), self.received.max()))


def traffic(scheme: Scheme, sets: Sequence[np.ndarray], home: np.ndarray) -> int:
    """Return the non-zero gradients on the busiest link, over all stages; see `stages`."""
    return sum(stage.largest for stage in stages(scheme, sets, home))


def stages(scheme: Scheme, sets: Sequence[np.ndarray], home: np.ndarray) -> list[Stage]:
    """Return the traffic of each stage until every rank has the sum of all gradients.

    Args:
        scheme: a point of the space. A hierarchy needs a power of two ranks.
        sets: for each of n ranks, its distinct indices, each below |G|.
        home: the partition of each index, int [|G|] in [0, n); centralised schemes ignore it.
    """
    num_ranks = len(sets)
    if scheme.communication is Communication.HIERARCHY and num_ranks & (num_ranks - 1):
        raise ValueError(f"sets are of {num_ranks} ranks; a hierarchy needs a power of two")
    is_parallel = scheme.partition is Partition.PARALLELISM
    home = home if is_parallel else np.zeros(len(home), np.int64)
    counts = _Counts(sets, home, num_ranks if is_parallel else 1, scheme.aggregation is Aggregation.INCREMENTAL)
    return (_parallel if is_parallel else _centralised)[scheme.communication](counts, num_ranks)


class _Counts:
    """The number of gradients in a message, given the ranks and partitions that it combines."""

    def __init__(self, sets: Sequence[np.ndarray], home: np.ndarray, num_partitions: int, added: bool):
        union = np.unique(np.concatenate(list(sets)))
        self._masks = np.zeros((len(sets), len(union)), bool)
        for mask, indices in zip(self._masks, sets, strict=True):
            mask[np.searchsorted(union, indices)] = True
        self._home = home[union]
        self._num_partitions = num_partitions
        self.added = added
        self.by_rank = np.stack([self._by_partition(mask) for mask in self._masks])  # [ranks, partitions]
        self.total = self._by_partition(np.logical_or.reduce(self._masks))  # [partitions] of the sum

    def _by_partition(self, mask: np.ndarray) -> np.ndarray:
        return np.bincount(self._home[mask], minlength=self._num_partitions)

    def of(self, ranks: Sequence[int]) -> np.ndarray:
        """Return the counts [partitions] for some ranks, whose gradients are added if the scheme is incremental."""
        if self.added and len(ranks) > 1:
            return self._by_partition(np.logical_or.reduce(self._masks[list(ranks)]))
        return self.by_rank[list(ranks)].sum(axis=0)


def _all_to_all(counts: np.ndarray) -> Stage:
    """Return the stage in which rank i sends counts[i, j] to rank j."""
    off = counts * (1 - np.eye(len(counts), dtype=np.int64))
    return Stage(off.sum(axis=1), off.sum(axis=0))


def _central_point_to_point(counts: _Counts, num: int) -> list[Stage]:
    return [_all_to_all(np.repeat(counts.by_rank, num, axis=1))]


def _central_ring(counts: _Counts, num: int) -> list[Stage]:
    """One-shot: each tensor goes around the ring. Incremental: each rank sends its sum of the previous ranks."""
    schedule = []
    for stage in range(1, num):
        if counts.added:
            sent = [counts.of([(rank - back) % num for back in range(stage)])[0] for rank in range(num)]
        else:
            sent = [counts.by_rank[(rank + 1 - stage) % num, 0] for rank in range(num)]
        schedule.append(Stage(np.array(sent), np.roll(sent, 1)))
    return schedule


def _central_hierarchy(counts: _Counts, num: int) -> list[Stage]:
    """Recursive doubling: exchange all gradients with ranks at distance 1, 2, 4, and so on."""
    schedule, distance = [], 1
    while distance < num:
        sent = [counts.of(_block(rank, distance))[0] for rank in range(num)]
        schedule.append(Stage(np.array(sent), np.array([sent[rank ^ distance] for rank in range(num)])))
        distance *= 2
    return schedule


def _block(rank: int, size: int) -> list[int]:
    """Return the aligned block of `size` ranks with a given rank."""
    return list(range(rank // size * size, rank // size * size + size))


def _push_pull(counts: _Counts, num: int) -> list[Stage]:
    return [_all_to_all(counts.by_rank), _all_to_all(np.repeat(counts.total[:, None], num, axis=1))]


def _parallel_ring(counts: _Counts, num: int) -> list[Stage]:
    """Reduce-scatter, then all-gather, both around the ring."""
    schedule = []
    for stage in range(1, num):
        sent = []
        for rank in range(num):  # partition p starts at rank p + 1 and ends at rank p
            p = (rank - stage) % num
            sent.append(counts.of([(p + 1 + step) % num for step in range(stage)])[p])
        schedule.append(Stage(np.array(sent), np.roll(sent, 1)))
    for stage in range(num - 1):
        totals = counts.total[(np.arange(num) - stage) % num]
        schedule.append(Stage(totals, np.roll(totals, 1)))
    return schedule


def _parallel_hierarchy(counts: _Counts, num: int) -> list[Stage]:
    """Recursive halving, then recursive doubling."""
    schedule, distance = [], num // 2
    while distance:
        sent = []
        for rank in range(num):  # holds its block's partitions of all ranks with the same remainder
            held = counts.of([other for other in range(num) if other % (2 * distance) == rank % (2 * distance)])
            sent.append(held[_block(rank ^ distance, distance)].sum())
        schedule.append(Stage(np.array(sent), np.array([sent[rank ^ distance] for rank in range(num)])))
        distance //= 2
    distance = 1
    while distance < num:
        sent = [counts.total[_block(rank, distance)].sum() for rank in range(num)]
        schedule.append(Stage(np.array(sent), np.array([sent[rank ^ distance] for rank in range(num)])))
        distance *= 2
    return schedule


_centralised = {
    Communication.POINT_TO_POINT: _central_point_to_point,
    Communication.RING: _central_ring,
    Communication.HIERARCHY: _central_hierarchy,
}
_parallel = {
    Communication.POINT_TO_POINT: _push_pull,
    Communication.RING: _parallel_ring,
    Communication.HIERARCHY: _parallel_hierarchy,
}
