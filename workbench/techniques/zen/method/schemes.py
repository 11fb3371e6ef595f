"""The space of schemes that synchronise sparse gradients (section 3.2.3), and the traffic of each scheme.

A scheme is a point in four dimensions: communication, aggregation, partition and balance. `stages` counts the gradients
that every rank sends and receives for given index sets. Theorem 3.1 follows by enumeration.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
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
    if is_parallel:
        summed = _gathered(scheme.communication, num_ranks, lambda ranks: counts.total[ranks].sum())
        return _reduced(scheme.communication, num_ranks, counts) + summed
    ring_adds = counts.added and scheme.communication is Communication.RING
    return _gathered(scheme.communication, num_ranks, lambda ranks: counts.of(ranks)[0], ring_adds=ring_adds)


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


def _passed(sent: Sequence[int], to: np.ndarray) -> Stage:
    """Return the stage in which each rank sends to one other rank."""
    received = np.zeros(len(sent), np.int64)
    received[to] = sent
    return Stage(np.array(sent), received)


def _block(rank: int, size: int) -> list[int]:
    """Return the aligned block of `size` ranks with a given rank."""
    return list(range(rank // size * size, rank // size * size + size))


def _gathered(
    how: Communication, num: int, size: Callable[[list[int]], int], *, ring_adds: bool = False
) -> list[Stage]:
    """Return the stages until every rank has what each rank holds, of which `size` counts that of some ranks.

    Around a ring each tensor goes on alone, or in the sum of all ranks before. A hierarchy doubles its blocks of ranks.
    """
    ranks, schedule, distance = range(num), [], 1
    if how is Communication.POINT_TO_POINT:
        held = np.array([size([rank]) for rank in ranks])
        return [Stage(held * (num - 1), held.sum() - held)]
    if how is Communication.RING:
        for stage in range(1, num):
            backs = range(stage) if ring_adds else [stage - 1]
            sent = [size([(rank - back) % num for back in backs]) for rank in ranks]
            schedule.append(_passed(sent, np.roll(ranks, -1)))
        return schedule
    while distance < num:
        schedule.append(_passed([size(_block(rank, distance)) for rank in ranks], np.arange(num) ^ distance))
        distance *= 2
    return schedule


def _reduced(how: Communication, num: int, counts: _Counts) -> list[Stage]:
    """Return the stages until rank p has partition p of all ranks: around the ring it starts at rank p + 1."""
    ranks, schedule, distance = range(num), [], num // 2
    if how is Communication.POINT_TO_POINT:
        off = counts.by_rank * (1 - np.eye(num, dtype=np.int64))
        return [Stage(off.sum(axis=1), off.sum(axis=0))]
    if how is Communication.RING:
        for stage in range(1, num):
            sent = [counts.of([(rank - back) % num for back in range(stage)])[(rank - stage) % num] for rank in ranks]
            schedule.append(_passed(sent, np.roll(ranks, -1)))
        return schedule
    while distance:  # a rank holds its block's partitions of all ranks with the same remainder
        held = [counts.of(range(rank % (2 * distance), num, 2 * distance)) for rank in ranks]
        sent = [held[rank][_block(rank ^ distance, distance)].sum() for rank in ranks]
        schedule.append(_passed(sent, np.arange(num) ^ distance))
        distance //= 2
    return schedule
