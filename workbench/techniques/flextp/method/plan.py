"""What was measured of each rank, and what each rank is to do about it.

What: `RankTimes` are the seconds of one rank in one iteration; a `Plan` says which share of its columns each rank
drops (resizing) and which share it hands to others (migration). The planners (`ratio`, `semi`) turn the first into
the second; the runtime carries a plan out.
Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", sections III-A and IV.
Simplified: one pair of shares a rank, for all its layers alike; every rank owns equally many columns, so that a share
of a sender's columns is the same amount of work on a receiver.
Left out: which columns (`priority`), and how shares are rounded to whole columns (the runtime's matter).

Units: seconds; shares and `RankTimes.work` are columns divided by the rank's own columns K.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["NEAR", "Plan", "RankPlan", "RankTimes"]

NEAR = 1 / 400  # of a rank's columns: 2 % of a normal rank's products where the skewness is 8


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTimes:
    """What one rank measured in one iteration.

    Attributes:
        own_s: seconds without waiting for others, and without products on columns of others.
        product_s: seconds of them in matrix products; only those in proportion to the columns, once a pre-test has found
            what products take however narrow (`costs.Costs.proportional`).
        work: of its own columns the share that the rank multiplied, 1 - dropped - migrated.
    """

    own_s: float
    product_s: float
    work: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.own_s < math.inf:
            raise ValueError(f"own_s is {self.own_s!r}; it must be finite and not negative")
        if not 0 <= self.product_s <= self.own_s:
            raise ValueError(f"product_s is {self.product_s!r}; it must be in [0, own_s], own_s is {self.own_s!r}")
        if not 0 <= self.work <= 1:
            raise ValueError(f"work is {self.work!r}; it must be in [0, 1]")

    def unresized(self) -> RankTimes:
        """Return the times that the rank would have had with all its own columns and no others.

        Product time is taken to be proportional to the columns multiplied.

        Raises:
            ValueError: if no column was multiplied and yet products took time.
        Source: section III-A; without this Eq. 1 swings between two plans (`ratio.printed_ratio`).
        """
        if self.product_s == 0:
            return RankTimes(own_s=self.own_s, product_s=0.0)
        if self.work == 0:
            raise ValueError(f"work is {self.work!r}; it must be above 0 where product_s is, {self.product_s!r}")
        product_s = self.product_s / self.work
        return RankTimes(own_s=self.other_s + product_s, product_s=product_s)

    def at_work(self, work: float) -> RankTimes:
        """Return what the rank would measure if it multiplied `work` times its own columns."""
        unresized = self.unresized()
        product_s = unresized.product_s * work
        return RankTimes(own_s=unresized.other_s + product_s, product_s=product_s, work=work)

    @property
    def other_s(self) -> float:
        """Seconds outside matrix products."""
        return self.own_s - self.product_s


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlan:
    """What one rank does until the next plan.

    Attributes:
        dropped: share of its columns that nobody multiplies.
        migrated: share of its columns that other ranks multiply.
    """

    dropped: float = 0.0
    migrated: float = 0.0

    def __post_init__(self) -> None:
        for field in ("dropped", "migrated"):
            if not 0 <= getattr(self, field) < 1:
                raise ValueError(f"{field} is {getattr(self, field)!r}; it must be in [0, 1)")
        if not self.removed < 1:
            raise ValueError(f"dropped + migrated is {self.removed!r}; it must be below 1")

    @property
    def removed(self) -> float:
        """Share of its columns that the rank does not multiply itself."""
        return self.dropped + self.migrated


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What every rank does until the next plan.

    A rank that migrates columns is a sender; all others are receivers, also those that drop columns of their own.
    Each sender's migrated columns are divided evenly over the receivers.

    Attributes:
        ranks: in rank order.
    """

    ranks: tuple[RankPlan, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "ranks", tuple(self.ranks))
        if not self.ranks:
            raise ValueError("ranks is (); it must hold a plan for at least one rank")
        if not self.receivers:
            raise ValueError(f"senders is {self.senders!r}; at most num_ranks - 1 = {self.num_ranks - 1} can migrate")

    @classmethod
    def plain(cls, num_ranks: int) -> Plan:
        """Return the plan under which every rank multiplies its own columns."""
        return cls(ranks=(RankPlan(),) * num_ranks)

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
        return tuple(rank for rank, each in enumerate(self.ranks) if each.migrated > 0)

    @property
    def receivers(self) -> tuple[int, ...]:
        """The ranks that migrate nothing, ascending."""
        return tuple(rank for rank, each in enumerate(self.ranks) if each.migrated == 0)

    @property
    def migrated(self) -> float:
        """The migrated volume V of Eq. 3: shares of all senders added up."""
        return math.fsum(rank.migrated for rank in self.ranks)

    def received_share(self, rank: int) -> float:
        """Return the columns that a rank multiplies for others, as a share of its own."""
        return self.migrated / len(self.receivers) if self.ranks[rank].migrated == 0 else 0.0

    def is_near(self, other: Plan, tolerance: float = NEAR) -> bool:
        """Return whether two plans differ by less than some columns, so that choosing columns anew is not worth it.

        Args:
            other: of as many ranks.
            tolerance: share of a rank's columns. Dropping or migrating something is never near to nothing.
        """
        pairs = [
            (getattr(mine, field), getattr(others, field))
            for mine, others in zip(self.ranks, other.ranks, strict=True)
            for field in ("dropped", "migrated")
        ]
        return all((a > 0) == (b > 0) and abs(a - b) < tolerance for a, b in pairs)

    def describe(self) -> str:
        """Say the plan in words, one sentence and one line a rank."""
        return "\n".join(self._sentence(rank) for rank in range(self.num_ranks))

    def as_record(self) -> dict[str, list[float]]:
        """Return the plan as JSON values."""
        return {"dropped": [rank.dropped for rank in self.ranks], "migrated": [rank.migrated for rank in self.ranks]}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Plan:
        """Read what `as_record` wrote."""
        pairs = zip(record["dropped"], record["migrated"], strict=True)
        return cls(ranks=tuple(RankPlan(dropped=dropped, migrated=migrated) for dropped, migrated in pairs))

    def _sentence(self, rank: int) -> str:
        mine, received = self.ranks[rank], self.received_share(rank)
        clauses = []
        if mine.dropped > 0:
            clauses.append(f"drops {mine.dropped:.1%} of its columns")
        if mine.migrated > 0:
            share = mine.migrated / len(self.receivers)
            each = f"{share:.1%} to each of {_ranks(self.receivers)}"
            clauses.append(f"migrates {mine.migrated:.1%} of its columns ({each})")
        if not clauses:
            clauses.append("multiplies all its columns")
        if received > 0:
            clauses.append(f"receives {received:.1%} as many from {_ranks(self.senders)}")
        return f"rank {rank} {_listed(clauses)}."


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {_listed([str(rank) for rank in ranks])}"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
