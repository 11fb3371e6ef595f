"""Times of the ranks, plans, the costs of a pre-test, and the time of an iteration under a plan (Eqs. 2 and 3).

Seconds are those of one iteration, all layers and all three products. Shares and `work` are columns divided by the
rank's own columns K. `virtual_number` is section IV-B's renumbering of the receivers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum, StrEnum
from itertools import pairwise
from statistics import fmean, linear_regression
from typing import Any, Self

from scipy.optimize import brentq

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


class Imputation(Option):
    """The values in columns of a gradient that were not computed."""

    ZERO = "Zero"  # nothing: the paper's choice
    AVERAGE = "Average"  # the mean of the kept columns, row by row
    SAME = "Same"  # the value of the previous iteration; zero before there is one


class Selection(Option):
    """How the columns of a layer, and their number, are chosen."""

    RANDOM = "Rd"
    PRIORITY = "Pri"
    # Layers have ratios of their own. Section III-B: these must still bring the straggler down, so their mean is γ, a
    # constant (PriDiffE) or Eq. 1's (PriDiffR).
    DIFFERENTIATED_MEAN = "PriDiffM"
    # The other reading of the lost ratio: a layer drops its candidates, at least 0.8 γ, and so less than γ here.
    DIFFERENTIATED_EMPIRICAL = "PriDiffE"  # γ is a constant
    DIFFERENTIATED = "PriDiffR"  # γ follows from Eq. 1

    @property
    def is_differentiated(self) -> bool:
        return self not in (Selection.RANDOM, Selection.PRIORITY)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTimes:
    """The measured times of one rank in one iteration."""

    own_s: float  # seconds without waiting for others, and without products on columns of others
    product_s: float  # seconds in products; after a pre-test without their fixed part (`Costs.proportional`)
    work: float = 1.0  # share of its own columns that the rank multiplied, 1 - dropped - migrated

    def __post_init__(self) -> None:
        require(0 <= self.own_s < math.inf, "own_s", self.own_s, "finite and not negative")
        is_part = 0 <= self.product_s <= self.own_s
        require(is_part, "product_s", self.product_s, f"in [0, own_s], own_s is {self.own_s!r}")
        require(0 <= self.work <= 1, "work", self.work, "in [0, 1]")

    @property
    def other_s(self) -> float:
        return self.own_s - self.product_s

    def unresized(self) -> Self:
        """Return the times with all own columns and no others; without this Eq. 1 swings between two plans."""
        return self.at_work(1.0)

    def at_work(self, work: float) -> Self:
        """Return the times if the rank multiplied `work` times its own columns; products take time in proportion."""
        require(self.work > 0 or self.product_s == 0, "work", self.work, f"above 0, product_s is {self.product_s!r}")
        product_s = self.product_s and self.product_s / self.work * work
        return replace(self, own_s=self.other_s + product_s, product_s=product_s, work=work)


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
    """The tasks of all ranks until the next plan; columns of senders, which migrate some, go to all others alike."""

    ranks: tuple[RankPlan, ...]  # in rank order
    to_normal: bool = False  # receivers are ranks that keep all of their columns, as in section IV-A; for models alone

    def __post_init__(self) -> None:
        require(bool(self.ranks), "ranks", self.ranks, "a plan for at least one rank")
        require(bool(self.receivers), "senders", self.senders, f"at most num_ranks - 1 = {self.num_ranks - 1}")

    @classmethod
    def plain(cls, num_ranks: int) -> Self:
        """Return the plan under which every rank multiplies its own columns."""
        return cls.of_shares([0.0] * num_ranks)

    @classmethod
    def of_shares(cls, dropped: Sequence[float] = (), migrated: Sequence[float] = ()) -> Self:
        """Return the plan of shares in rank order; an empty sequence is zeros."""
        num_ranks = max(len(dropped), len(migrated))
        pairs = zip(dropped or [0.0] * num_ranks, migrated or [0.0] * num_ranks, strict=True)
        return cls(ranks=tuple(RankPlan(dropped=drops, migrated=migrates) for drops, migrates in pairs))

    @property
    def num_ranks(self) -> int:
        return len(self.ranks)

    @property
    def is_plain(self) -> bool:
        return all(rank.removed == 0 for rank in self.ranks)

    @property
    def senders(self) -> tuple[int, ...]:
        """The ranks that migrate columns, ascending."""
        return tuple(rank for rank, share in enumerate(self.ranks) if share.migrated > 0)

    @property
    def receivers(self) -> tuple[int, ...]:
        """The ranks that migrate nothing, ascending; with `to_normal`, of these the ranks that drop nothing."""
        shares = enumerate(self.ranks)
        return tuple(rank for rank, share in shares if (share.removed if self.to_normal else share.migrated) == 0)

    @property
    def dropped(self) -> float:
        return math.fsum(rank.dropped for rank in self.ranks)

    @property
    def migrated(self) -> float:
        """The migrated volume V of Eq. 3: shares of all senders, added up."""
        return math.fsum(rank.migrated for rank in self.ranks)

    def is_near(self, other: Self) -> bool:
        """Return whether no share differs by `NEAR` or more; something is never near to nothing."""
        shares, others = ((p for rank in plan.ranks for p in (rank.dropped, rank.migrated)) for plan in (self, other))
        return all((a > 0) == (b > 0) and abs(a - b) < NEAR for a, b in zip(shares, others, strict=True))

    def describe(self) -> str:
        """Return the plan in words, one sentence and one line a rank."""

        def named(ranks: Sequence[int]) -> str:
            *first, last = map(str, ranks)
            return f"ranks {', '.join(first)} and {last}" if first else f"rank {last}"

        lines, received = [], self.migrated / len(self.receivers)
        for rank, task in enumerate(self.ranks):
            clauses = [f"drops {task.dropped:.1%} of its columns"] if task.dropped > 0 else []
            if task.migrated > 0:
                part = f"{task.migrated / len(self.receivers):.1%} to each of {named(self.receivers)}"
                clauses.append(f"migrates {task.migrated:.1%} of its columns ({part})")
            clauses = clauses or ["multiplies all its columns"]
            if received > 0 and task.migrated == 0:
                clauses.append(f"receives {received:.1%} as many from {named(self.senders)}")
            lines.append(f"rank {rank} {' and '.join(clauses)}.")
        return "\n".join(lines)

    def as_record(self) -> dict[str, list[float]]:
        return {"dropped": [rank.dropped for rank in self.ranks], "migrated": [rank.migrated for rank in self.ranks]}


def virtual_number(rank: int, sender: int, num_ranks: int) -> int:
    """Return a rank's number r' counted from the sender, whose own is 0. Source: section IV-B."""
    return (rank + num_ranks - sender) % num_ranks


def receivers_of(sender: int, senders: Sequence[int], num_ranks: int) -> tuple[int, ...]:
    """List the ranks that compute a sender's columns, by virtual number; other senders are left out (ours)."""
    if outside := [rank for rank in (sender, *senders) if not 0 <= rank < num_ranks]:
        raise ValueError(f"senders has rank {outside[0]}; it must be in 0..{num_ranks - 1}")
    require(sender in senders, "sender", sender, f"among the senders {tuple(senders)}")
    require(len(set(senders)) < num_ranks, "senders", tuple(senders), f"at most num_ranks - 1 = {num_ranks - 1}")
    by_number = ((sender + number) % num_ranks for number in range(num_ranks))
    return tuple(rank for rank in by_number if rank not in senders)


def column_ranges(num_columns: int, num_receivers: int) -> tuple[range, ...]:
    """Divide m columns among receivers: r' has (r' - 1) m / (N - 1) to r' m / (N - 1), rounded down (IV-B)."""
    ends = [number * num_columns // num_receivers for number in range(num_receivers + 1)]
    return tuple(range(first, last) for first, last in pairwise(ends))


# --- costs


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A cost in seconds, a straight line in the share, never below 0 and never falling."""

    at_zero_s: float = 0.0  # seconds of a share of 0; may be negative in a fitted line
    per_share_s: float = 0.0  # further seconds of a share of 1

    def __post_init__(self) -> None:
        require(math.isfinite(self.at_zero_s), "at_zero_s", self.at_zero_s, "finite")
        require(0 <= self.per_share_s < math.inf, "per_share_s", self.per_share_s, "finite and never fall")

    @classmethod
    def fitted(cls, shares: Sequence[float], seconds: Sequence[float]) -> Self:
        """Fit a line by least squares; where it would fall it is level."""
        slope, at_zero_s = linear_regression(shares, seconds) if len(shares) > 1 else (0.0, seconds[0])
        return cls(at_zero_s=at_zero_s, per_share_s=slope) if slope > 0 else cls(at_zero_s=fmean(seconds))

    def __call__(self, share: float) -> float:
        """Return the seconds at a share; ValueError if it is negative or not finite."""
        require(0 <= share < math.inf, "share", share, "finite and not negative")
        return max(0.0, self.at_zero_s + self.per_share_s * share)


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """The measured costs of one iteration."""

    alloc_s: float = 0.0  # on a rank that removes columns, however many: room for smaller operands
    extract: Line = Line()  # on that rank: taking operands apart when that share is removed
    communicate: Line = Line()  # on every rank: sending one sender's share and collecting the results
    compute: Line  # on a normal rank: multiplying that share of columns for one sender
    fixed_share: float = 0.0  # the part of a rank's own product time that fewer columns do not shorten (ours)

    def __post_init__(self) -> None:
        require(0 <= self.fixed_share < 1, "fixed_share", self.fixed_share, "in [0, 1)")
        require(0 <= self.alloc_s < math.inf, "alloc_s", self.alloc_s, "finite and not negative")

    @classmethod
    def straight(
        cls,
        *,
        extract_s: float = 0.0,
        communicate_s: float = 0.0,
        whole_s: float = 0.0,
        compute_s: float,
        narrow_s: float = 0.0,
        **more: float,
    ) -> Self:
        """Return costs of so many seconds a share of 1, and of `whole_s` for messages, `narrow_s` for products of any.

        `more` are other fields.
        """
        communicate = Line(at_zero_s=whole_s, per_share_s=communicate_s)
        compute = Line(at_zero_s=narrow_s, per_share_s=compute_s)
        return cls(extract=Line(per_share_s=extract_s), communicate=communicate, compute=compute, **more)

    def communicate_s(self, volume: float, num_senders: int) -> float:
        """Return the seconds, on every rank, of the messages of x senders of V shares, each priced by itself."""
        return num_senders * self.communicate(volume / num_senders) if num_senders else 0.0

    def compute_s(self, volume: float, num_senders: int, num_receivers: int) -> float:
        """Return the cost, on a normal rank, of a product a sender; in proportion compute(V / (N - x)) of Eq. 3."""
        return num_senders * self.compute(volume / (num_senders * num_receivers)) if num_senders else 0.0

    def proportional(self, times: RankTimes) -> RankTimes:
        """Return a rank's times with the fixed part of its products as other time, or few columns would look slow."""
        if not self.fixed_share:
            return times
        moving = (1 - self.fixed_share) * times.work
        product_s = times.product_s * moving / (moving + self.fixed_share)
        return RankTimes(own_s=times.own_s, product_s=product_s, work=times.work)

    def as_record(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        lines = {name: Line(**record[name]) for name in ("extract", "communicate", "compute")}
        return cls(alloc_s=record["alloc_s"], fixed_share=record["fixed_share"], **lines)


# --- the time of an iteration


@dataclass(frozen=True, kw_only=True, slots=True)
class RankParts:
    """The parts of one rank's busy time in an iteration."""

    other_s: float  # outside of products, as without a plan
    kept_s: float  # products on its own columns that it keeps
    removing_s: float  # taking its operands apart, if it drops or migrates any
    received_s: float  # products on columns of others
    transfer_s: float  # messages of migration, which keep all ranks busy alike

    @property
    def busy_s(self) -> float:
        return self.other_s + self.kept_s + self.removing_s + self.received_s + self.transfer_s


def own_speed(times: Sequence[RankTimes]) -> tuple[float, ...]:
    """Return how many times longer each rank takes for a product than the fastest rank, at least 1."""
    product_s = [rank.unresized().product_s for rank in times]
    return tuple(seconds / min(product_s) if min(product_s) else 1.0 for seconds in product_s)


def rank_parts(times: Sequence[RankTimes], plan: Plan, costs: Costs) -> tuple[RankParts, ...]:
    """Return the parts of each rank's busy time under a plan; the times may be measured under any plan."""
    require(len(times) == plan.num_ranks, "number of times", len(times), f"that of the plan's ranks, {plan.num_ranks}")
    transfer_s = costs.communicate_s(plan.migrated, len(plan.senders))
    compute_s = costs.compute_s(plan.migrated, len(plan.senders), len(plan.receivers))
    unresized = [rank.unresized() for rank in times]
    return tuple(
        RankParts(
            other_s=rank_times.other_s,
            kept_s=rank_times.product_s * (1 - rank.removed),
            removing_s=costs.alloc_s + costs.extract(rank.removed) if rank.removed > 0 else 0.0,
            received_s=compute_s * slowness if number in plan.receivers else 0.0,
            transfer_s=transfer_s,
        )
        for number, (rank, slowness, rank_times) in enumerate(zip(plan.ranks, own_speed(times), unresized, strict=True))
    )


def rank_s(times: Sequence[RankTimes], plan: Plan, costs: Costs) -> tuple[float, ...]:
    """Return for how long each rank is busy under a plan; arguments as for `rank_parts`."""
    return tuple(parts.busy_s for parts in rank_parts(times, plan, costs))


def iteration_s(times: Sequence[RankTimes], plan: Plan, costs: Costs) -> float:
    """Return the seconds of an iteration under a plan: the busy time of the slowest rank."""
    return max(rank_s(times, plan, costs))


def ideal_s(times: Sequence[RankTimes]) -> float:
    """Return the seconds of an iteration if columns moved for nothing and none were dropped.

    Ranks below the level take as many columns as ranks above it give away; a rank whose other time alone exceeds it
    gives away all. With one straggler among N and equal other time o it is o + N chi / ((N - 1) chi + 1).
    """
    unresized = [rank.unresized() for rank in times]
    for rank, measured in enumerate(unresized):
        require(measured.product_s != 0, f"product_s of rank {rank}", measured.product_s, "above 0")

    def too_many(level_s: float) -> float:
        """Return the columns that all ranks multiply until the level, less those that there are, in ranks' shares."""
        return math.fsum(max(level_s - rank.other_s, 0.0) / rank.product_s - 1 for rank in unresized)

    level_s = brentq(too_many, 0.0, 2 * max(rank.own_s for rank in unresized))
    return max(level_s, *(rank.other_s for rank in unresized))
