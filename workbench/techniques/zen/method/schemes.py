"""The space of schemes that synchronise sparse gradients (section 3.2.3): four dimensions, and what each scheme sends.

A scheme is a point: how ranks are joined, when they add, whether the gradient is cut into partitions, and how evenly.
`stages` counts what every rank sends and receives with real index sets; theorem 3.1 follows by enumeration.
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
    """Who sends to whom."""

    RING = "Ring"  # each rank to the next
    HIERARCHY = "Hierarchy"  # in log2(n) stages, to ever more distant ranks
    POINT_TO_POINT = "Point-to-point"  # each rank to all others


class Aggregation(StrEnum):
    """When gradients of one index are added."""

    INCREMENTAL = "Incremental"  # at every stage
    ONE_SHOT = "One-shot"  # behind the last stage


class Partition(StrEnum):
    """Whether the gradient is cut."""

    CENTRALIZATION = "Centralization"  # every rank receives all gradients
    PARALLELISM = "Parallelism"  # a rank adds one partition, then hands it to all


class Balance(StrEnum):
    """How the gradient is cut."""

    NONE = "N/A"  # not at all
    BALANCED = "Balanced"  # partitions of equally many non-zero gradients
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
        """Read what `str` printed."""
        kinds, words = (Communication, Aggregation, Partition, Balance), text.split(", ")
        if len(words) != len(kinds):
            raise ValueError(f"scheme is {text!r}; it must name one choice in each of {len(kinds)} dimensions")
        return cls(*(kind(word) for kind, word in zip(kinds, words, strict=True)))


def _space() -> Iterator[Scheme]:
    """List the schemes; with one stage, point-to-point, both aggregations are the same and count as one-shot."""
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
    """What each rank sends and receives at once, in non-zero gradients: int64 [ranks]."""

    sent: np.ndarray
    received: np.ndarray

    @property
    def largest(self) -> int:
        """Of the busiest rank, in its busier direction: links are full duplex."""
        return int(max(self.sent.max(), self.received.max()))


def traffic(scheme: Scheme, sets: Sequence[np.ndarray], home: np.ndarray) -> int:
    """Return the non-zero gradients on the busiest link, over all stages; see `stages`."""
    return sum(stage.largest for stage in stages(scheme, sets, home))


def stages(scheme: Scheme, sets: Sequence[np.ndarray], home: np.ndarray) -> list[Stage]:
    """Return what is sent stage by stage until every rank has the sum of all gradients.

    Args:
        scheme: a point of the space. Hierarchy needs a power of two ranks.
        sets: of each of n ranks, its distinct indices, each below |G|.
        home: the partition of each index, int [|G|] in [0, n); of centralised schemes it does not matter.
    """
    num_ranks = len(sets)
    if scheme.communication is Communication.HIERARCHY and num_ranks & (num_ranks - 1):
        raise ValueError(f"sets are of {num_ranks} ranks; a hierarchy needs a power of two")
    is_parallel = scheme.partition is Partition.PARALLELISM
    home = home if is_parallel else np.zeros(len(home), np.int64)
    counts = _Counts(sets, home, num_ranks if is_parallel else 1, scheme.aggregation is Aggregation.INCREMENTAL)
    return (_parallel if is_parallel else _centralised)[scheme.communication](counts, num_ranks)


class _Counts:
    """How many gradients a message holds that some ranks' gradients of some partitions make up."""

    def __init__(self, sets: Sequence[np.ndarray], home: np.ndarray, num_partitions: int, added: bool):
        there = np.unique(np.concatenate(list(sets)))
        self._masks = np.zeros((len(sets), len(there)), bool)
        for mask, indices in zip(self._masks, sets, strict=True):
            mask[np.searchsorted(there, indices)] = True
        self._home, self._num, self.added = home[there], num_partitions, added
        self.each = np.stack([self._by_partition(mask) for mask in self._masks])  # [ranks, partitions]
        self.total = self._by_partition(self._masks.any(axis=0))  # [partitions], of the sum

    def _by_partition(self, mask: np.ndarray) -> np.ndarray:
        return np.bincount(self._home[mask], minlength=self._num)

    def of(self, ranks: Sequence[int]) -> np.ndarray:
        """Return the counts [partitions] of the gradients of some ranks, added if the scheme adds at every stage."""
        if self.added and len(ranks) > 1:
            return self._by_partition(self._masks[list(ranks)].any(axis=0))
        return self.each[list(ranks)].sum(axis=0)


def _all_to_all(counts: np.ndarray) -> Stage:
    """Return the stage in which rank i sends counts[i, j] to rank j."""
    off = counts * (1 - np.eye(len(counts), dtype=np.int64))
    return Stage(off.sum(axis=1), off.sum(axis=0))


def _central_point_to_point(counts: _Counts, num: int) -> list[Stage]:
    return [_all_to_all(np.repeat(counts.each, num, axis=1))]


def _central_ring(counts: _Counts, num: int) -> list[Stage]:
    """One-shot, each tensor goes once around; incrementally, each rank's sum of the ranks before it travels on."""
    found = []
    for stage in range(1, num):
        if counts.added:
            sent = [counts.of([(rank - back) % num for back in range(stage)])[0] for rank in range(num)]
        else:
            sent = [counts.each[(rank + 1 - stage) % num, 0] for rank in range(num)]
        found.append(Stage(np.array(sent), np.roll(sent, 1)))
    return found


def _central_hierarchy(counts: _Counts, num: int) -> list[Stage]:
    """Recursive doubling: with the rank at distance 1, 2, 4, and so on, swap all that was received."""
    found, distance = [], 1
    while distance < num:
        sent = [counts.of(_block(rank, distance))[0] for rank in range(num)]
        found.append(Stage(np.array(sent), np.array([sent[rank ^ distance] for rank in range(num)])))
        distance *= 2
    return found


def _block(rank: int, size: int) -> list[int]:
    """Return the aligned block of so many ranks that a rank is in."""
    return list(range(rank // size * size, rank // size * size + size))


def _push_pull(counts: _Counts, num: int) -> list[Stage]:
    return [_all_to_all(counts.each), _all_to_all(np.repeat(counts.total[:, None], num, axis=1))]


def _parallel_ring(counts: _Counts, num: int) -> list[Stage]:
    """Reduce-scatter, then all-gather, both around the ring."""
    found = []
    for stage in range(1, num):
        sent = []
        for rank in range(num):  # partition p starts at rank p + 1 and ends at rank p
            p = (rank - stage) % num
            sent.append(counts.of([(p + 1 + step) % num for step in range(stage)])[p])
        found.append(Stage(np.array(sent), np.roll(sent, 1)))
    for stage in range(num - 1):
        sent = counts.total[(np.arange(num) - stage) % num]
        found.append(Stage(sent, np.roll(sent, 1)))
    return found


def _parallel_hierarchy(counts: _Counts, num: int) -> list[Stage]:
    """Recursive halving, then recursive doubling."""
    found, distance = [], num // 2
    while distance:
        sent = []
        for rank in range(num):  # holds what ranks of its remainder sent, of its block's partitions
            of = counts.of([other for other in range(num) if other % (2 * distance) == rank % (2 * distance)])
            sent.append(of[_block(rank ^ distance, distance)].sum())
        found.append(Stage(np.array(sent), np.array([sent[rank ^ distance] for rank in range(num)])))
        distance //= 2
    distance = 1
    while distance < num:
        sent = [counts.total[_block(rank, distance)].sum() for rank in range(num)]
        found.append(Stage(np.array(sent), np.array([sent[rank ^ distance] for rank in range(num)])))
        distance *= 2
    return found


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
