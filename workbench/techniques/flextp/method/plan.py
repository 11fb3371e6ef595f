"""Times of the ranks, plans made from them, and section IV-B's virtual renumbering of the receivers.

Seconds are those of one iteration. Shares and `work` are columns divided by the rank's own columns K.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any

__all__ = [
    "COMPARED",
    "MOST_REMOVED",
    "NEAR",
    "Option",
    "Plan",
    "RankPlan",
    "RankTimes",
    "Scheme",
    "Solution",
    "column_ranges",
    "receivers_of",
    "require",
    "virtual_number",
]

NEAR = 1 / 400  # of a rank's columns: 2 % of a normal rank's products where the skewness is 8
# Largest share of its columns that a rank gives up. Ours: Eq. 1 leaves the end of [0, 1) open, and a rank must go on
# multiplying something, or nobody could measure that it has become fast again.
MOST_REMOVED = 0.99


def require(holds: bool, field: str, value: object, rule: str) -> None:
    """Refuse the value of a field that breaks its rule."""
    if not holds:
        raise ValueError(f"{field} is {value!r}; it must be {rule}")


class Option(Enum):
    """A choice by name; the error for an unknown name lists the known ones."""

    @classmethod
    def _missing_(cls, value: object) -> None:
        known = ", ".join(repr(option.value) for option in cls)
        raise ValueError(f"{cls.__name__.lower()} is {value!r}; it must be one of {known}")


class Solution(Option, StrEnum):
    """How stragglers are helped, by the names of sections V-A and V-C."""

    BASELINE = "Baseline"  # not at all
    ZERO = "ZERO"  # they drop columns
    MIG = "MIG"  # they migrate columns
    SEMI = "SEMI"  # both, divided by cost
    GIVEN = "given"  # by a given plan, whatever the times


COMPARED = (Solution.BASELINE, Solution.ZERO, Solution.MIG, Solution.SEMI)  # the solutions that plan by themselves


class Scheme(Option, StrEnum):
    """How migrated columns travel; the names of table I."""

    BROADCAST_REDUCE = "broadcast-reduce"
    SCATTER_GATHER = "scatter-gather"


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTimes:
    """The measured times of one rank in one iteration."""

    own_s: float  # seconds without waiting for others, and without products on columns of others
    product_s: float  # of them in products; after a pre-test without their fixed part (`Costs.proportional`)
    work: float = 1.0  # share of its own columns that the rank multiplied, 1 - dropped - migrated

    def __post_init__(self) -> None:
        require(0 <= self.own_s < math.inf, "own_s", self.own_s, "finite and not negative")
        in_own_s = 0 <= self.product_s <= self.own_s
        require(in_own_s, "product_s", self.product_s, f"in [0, own_s], own_s is {self.own_s!r}")
        require(0 <= self.work <= 1, "work", self.work, "in [0, 1]")

    @property
    def other_s(self) -> float:
        """Seconds outside matrix products."""
        return self.own_s - self.product_s

    def unresized(self) -> RankTimes:
        """Return the times with all own columns and no others; product time is proportional to the columns.

        Without this Eq. 1 swings between two plans. Source: section III-A.
        """
        if self.product_s == 0:
            return RankTimes(own_s=self.own_s, product_s=0.0)
        require(self.work != 0, "work", self.work, f"above 0 where product_s is, {self.product_s!r}")
        product_s = self.product_s / self.work
        return RankTimes(own_s=self.other_s + product_s, product_s=product_s)

    def at_work(self, work: float) -> RankTimes:
        """Return the times if the rank multiplied `work` times its own columns."""
        unresized = self.unresized()
        product_s = unresized.product_s * work
        return RankTimes(own_s=unresized.other_s + product_s, product_s=product_s, work=work)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlan:
    """The task of one rank until the next plan."""

    dropped: float = 0.0  # share of its columns that nobody multiplies
    migrated: float = 0.0  # share of its columns that other ranks multiply

    def __post_init__(self) -> None:
        for field in ("dropped", "migrated"):
            require(0 <= getattr(self, field) < 1, field, getattr(self, field), "in [0, 1)")
        require(self.removed < 1, "dropped + migrated", self.removed, "below 1")

    @property
    def removed(self) -> float:
        """Share of its columns that the rank does not multiply itself."""
        return self.dropped + self.migrated


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The tasks of all ranks until the next plan.

    A rank that migrates columns is a sender. All others are receivers, also ranks that drop columns of their own.
    Each sender's migrated columns are divided evenly over the receivers.
    """

    ranks: tuple[RankPlan, ...]  # in rank order

    def __post_init__(self) -> None:
        object.__setattr__(self, "ranks", tuple(self.ranks))
        if not self.ranks:
            raise ValueError("ranks is (); it must hold a plan for at least one rank")
        if not self.receivers:
            raise ValueError(f"senders is {self.senders!r}; it must have at most num_ranks - 1 = {self.num_ranks - 1}")

    @classmethod
    def plain(cls, num_ranks: int) -> Plan:
        """Return the plan under which every rank multiplies its own columns."""
        return cls(ranks=(RankPlan(),) * num_ranks)

    @classmethod
    def of_shares(cls, dropped: Sequence[float], migrated: Sequence[float]) -> Plan:
        """Return the plan of two shares a rank, in rank order."""
        pairs = zip(dropped, migrated, strict=True)
        return cls(ranks=tuple(RankPlan(dropped=drops, migrated=migrates) for drops, migrates in pairs))

    @property
    def num_ranks(self) -> int:
        """How many ranks there are."""
        return len(self.ranks)

    @property
    def is_plain(self) -> bool:
        """Whether no rank drops or migrates anything."""
        return all(rank.removed == 0 for rank in self.ranks)

    @property
    def senders(self) -> tuple[int, ...]:
        """The ranks that migrate columns, ascending."""
        return tuple(rank for rank, share in enumerate(self.ranks) if share.migrated > 0)

    @property
    def receivers(self) -> tuple[int, ...]:
        """The ranks that migrate nothing, ascending."""
        return tuple(rank for rank, share in enumerate(self.ranks) if share.migrated == 0)

    @property
    def dropped(self) -> float:
        """Dropped shares of all ranks, added up."""
        return math.fsum(rank.dropped for rank in self.ranks)

    @property
    def migrated(self) -> float:
        """The migrated volume V of Eq. 3: shares of all senders, added up."""
        return math.fsum(rank.migrated for rank in self.ranks)

    def received_share(self, rank: int) -> float:
        """Return the columns that a rank multiplies for others, as a share of its own."""
        return self.migrated / len(self.receivers) if self.ranks[rank].migrated == 0 else 0.0

    def is_near(self, other: Plan, tolerance: float = NEAR) -> bool:
        """Return whether no share differs by `tolerance` or more; something is never near to nothing."""
        pairs = [
            (getattr(rank, field), getattr(other_rank, field))
            for rank, other_rank in zip(self.ranks, other.ranks, strict=True)
            for field in ("dropped", "migrated")
        ]
        return all((a > 0) == (b > 0) and abs(a - b) < tolerance for a, b in pairs)

    def describe(self) -> str:
        """Return the plan in words, one sentence and one line a rank."""
        return "\n".join(self._sentence(rank) for rank in range(self.num_ranks))

    def _sentence(self, rank: int) -> str:
        task, received = self.ranks[rank], self.received_share(rank)
        clauses = []
        if task.dropped > 0:
            clauses.append(f"drops {task.dropped:.1%} of its columns")
        if task.migrated > 0:
            share = task.migrated / len(self.receivers)
            clauses.append(
                f"migrates {task.migrated:.1%} of its columns ({share:.1%} to each of {_ranks(self.receivers)})"
            )
        if not clauses:
            clauses.append("multiplies all its columns")
        if received > 0:
            clauses.append(f"receives {received:.1%} as many from {_ranks(self.senders)}")
        return f"rank {rank} {_listed(clauses)}."

    def as_record(self) -> dict[str, list[float]]:
        """Return the plan as JSON values."""
        return {"dropped": [rank.dropped for rank in self.ranks], "migrated": [rank.migrated for rank in self.ranks]}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Plan:
        """Read a record of `as_record`."""
        return cls.of_shares(record["dropped"], record["migrated"])


def virtual_number(rank: int, sender: int, num_ranks: int) -> int:
    """Return a rank's number r' counted from the sender, whose own is 0. Source: section IV-B."""
    return (rank + num_ranks - sender) % num_ranks


def receivers_of(sender: int, senders: Sequence[int], num_ranks: int) -> tuple[int, ...]:
    """List the ranks that compute a sender's columns, in the order of their virtual numbers.

    Other senders are left out of the count (ours; the paper has one sender).
    """
    if outside := [rank for rank in (sender, *senders) if not 0 <= rank < num_ranks]:
        raise ValueError(f"senders has rank {outside[0]}; it must be in 0..{num_ranks - 1}")
    require(sender in senders, "sender", sender, f"among the senders {tuple(senders)}")
    if len(set(senders)) >= num_ranks:
        raise ValueError(f"senders has {len(set(senders))} of {num_ranks} ranks; it must leave one to receive")
    order = sorted(range(num_ranks), key=lambda rank: virtual_number(rank, sender, num_ranks))
    return tuple(rank for rank in order if rank not in senders)


def column_ranges(num_columns: int, num_receivers: int) -> tuple[range, ...]:
    """Divide m migrated columns among the receivers, in the order of their virtual numbers.

    Receiver r' has positions (r' - 1) m / (N - 1) to r' m / (N - 1), both rounded down. Source: section IV-B.
    """
    require(num_columns >= 0, "num_columns", num_columns, "0 or more")
    require(num_receivers >= 1, "num_receivers", num_receivers, "at least 1")
    ends = [number * num_columns // num_receivers for number in range(num_receivers + 1)]
    return tuple(range(first, last) for first, last in zip(ends[:-1], ends[1:], strict=True))


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {_listed([str(rank) for rank in ranks])}"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
