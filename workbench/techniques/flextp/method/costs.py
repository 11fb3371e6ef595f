"""The costs of a pre-test, and the time of an iteration under a plan: the terms of Eqs. 2 and 3 added up by rank.

Seconds are those of a whole iteration, all layers and all three products; a share is columns divided by a rank's own.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import median
from typing import Any

from .plan import Plan, RankTimes, require

__all__ = ["Costs", "PiecewiseLinear", "RankParts", "ideal_s", "iteration_s", "own_speed", "rank_parts", "rank_s"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PiecewiseLinear:
    """A function of a share through points, continued in a straight line on both sides, never negative or falling."""

    shares: tuple[float, ...]  # ascending, at least one; a single point makes a constant
    seconds: tuple[float, ...]  # as many, never falling

    def __post_init__(self) -> None:
        object.__setattr__(self, "shares", tuple(self.shares))
        object.__setattr__(self, "seconds", tuple(self.seconds))
        if not self.shares or len(self.shares) != len(self.seconds):
            raise ValueError(f"shares is {self.shares!r}; it must have one entry or more, as many as seconds has")
        ascending = all(share < after for share, after in pairwise(self.shares))
        if not ascending or not all(0 <= share < math.inf for share in self.shares):
            raise ValueError(f"shares is {self.shares!r}; it must be finite, not negative and ascending")
        never_falls = all(value <= after for value, after in pairwise(self.seconds))
        if not never_falls or not all(0 <= value < math.inf for value in self.seconds):
            raise ValueError(f"seconds is {self.seconds!r}; it must be finite, not negative and never fall")

    @classmethod
    def straight(cls, seconds_per_share: float, *, at_zero_s: float = 0.0) -> PiecewiseLinear:
        """Return the function at_zero_s + seconds_per_share x share."""
        return cls(shares=(0.0, 1.0), seconds=(at_zero_s, at_zero_s + seconds_per_share))

    @classmethod
    def fitted(cls, samples: Iterable[tuple[float, float]]) -> PiecewiseLinear:
        """Fit a function to pairs (share, seconds) in any order; of several at one share the median counts.

        Where the medians fall, the nearest never falling ones are taken (least squares; isotonic regression).
        """
        from scipy.optimize import isotonic_regression

        by_share = groupby(sorted(samples), key=lambda sample: sample[0])
        medians = {share: median(seconds for _, seconds in group) for share, group in by_share}
        cls(shares=tuple(medians), seconds=tuple(sorted(medians.values())))  # refuses bad samples
        seconds = isotonic_regression(list(medians.values())).x
        return cls(shares=tuple(medians), seconds=tuple(float(value) for value in seconds))

    def __call__(self, share: float) -> float:
        """Return the seconds at a share; ValueError if it is negative or not finite."""
        require(0 <= share < math.inf, "share", share, "finite and not negative")
        if len(self.shares) == 1:
            return self.seconds[0]
        left = min(max(bisect_right(self.shares, share) - 1, 0), len(self.shares) - 2)
        (x0, x1), (y0, y1) = self.shares[left : left + 2], self.seconds[left : left + 2]
        return max(0.0, y0 + (y1 - y0) * (share - x0) / (x1 - x0))

    def as_record(self) -> dict[str, list[float]]:
        """Return the points as JSON values."""
        return {"shares": list(self.shares), "seconds": list(self.seconds)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """The measured costs of one iteration."""

    alloc_s: float  # on a rank that removes columns, however many: room for smaller operands
    extract: PiecewiseLinear  # on it: taking operands apart when that share is removed
    communicate: PiecewiseLinear  # on every rank: one sender's sending that share and collecting the results
    compute: PiecewiseLinear  # on a normal rank: multiplying that share of columns for one sender
    fixed_share: float = 0.0  # of the time of a rank's own products, the part that fewer columns do not shorten (ours)

    def __post_init__(self) -> None:
        require(0 <= self.fixed_share < 1, "fixed_share", self.fixed_share, "in [0, 1)")
        require(0 <= self.alloc_s < math.inf, "alloc_s", self.alloc_s, "finite and not negative")

    @classmethod
    def straight(
        cls, *, alloc_s: float = 0.0, extract_s: float = 0.0, communicate_s: float = 0.0, compute_s: float
    ) -> Costs:
        """Return costs in proportion to the share; each argument is the seconds of a share of 1."""
        return cls(
            alloc_s=alloc_s,
            extract=PiecewiseLinear.straight(extract_s),
            communicate=PiecewiseLinear.straight(communicate_s),
            compute=PiecewiseLinear.straight(compute_s),
        )

    def communicate_s(self, volume: float, num_senders: int) -> float:
        """Return the cost, on every rank, of the messages of x senders that migrate the volume V, one after the other.

        Each sender is priced by itself: whole outputs travel however few its columns are. In proportion to the share
        this is communicate(V) of Eqs. 2 and 3, whatever x. V is in shares of one rank's columns, divided evenly.
        """
        return num_senders * self.communicate(volume / num_senders) if num_senders else 0.0

    def compute_s(self, volume: float, num_senders: int, num_receivers: int) -> float:
        """Return the cost, on a normal rank, of one product for each of x senders that migrate the volume V.

        In proportion to the share this is compute(V / (N - x)) of Eq. 3.
        """
        return num_senders * self.compute(volume / (num_senders * num_receivers)) if num_senders else 0.0

    def proportional(self, times: RankTimes) -> RankTimes:
        """Return a rank's times with the fixed part of its products as other time (ours).

        Otherwise `unresized` would make a rank that drops or migrates much look slower than it is, and the next plan
        would remove more.
        """
        if not self.fixed_share:
            return times
        moving = (1 - self.fixed_share) * times.work
        product_s = times.product_s * moving / (moving + self.fixed_share)
        return RankTimes(own_s=times.own_s, product_s=product_s, work=times.work)

    def as_record(self) -> dict[str, Any]:
        """Return the costs as JSON values."""
        functions = {name: getattr(self, name).as_record() for name in ("extract", "communicate", "compute")}
        return {"alloc_s": self.alloc_s, **functions, "fixed_share": self.fixed_share}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Costs:
        """Read a record of `as_record`."""
        functions = {name: PiecewiseLinear(**record[name]) for name in ("extract", "communicate", "compute")}
        return cls(alloc_s=record["alloc_s"], fixed_share=record.get("fixed_share", 0.0), **functions)


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
        """All of it."""
        return self.other_s + self.kept_s + self.removing_s + self.received_s + self.transfer_s


def own_speed(times: Sequence[RankTimes]) -> tuple[float, ...]:
    """Return how many times longer each rank takes for a product than the fastest rank, at least 1."""
    product_s = [rank.unresized().product_s for rank in times]
    least_s = min(product_s)
    return tuple(seconds / least_s if least_s else 1.0 for seconds in product_s)


def rank_parts(times: Sequence[RankTimes], plan: Plan, costs: Costs) -> tuple[RankParts, ...]:
    """Return the parts of each rank's busy time under a plan; the times may be measured under any plan."""
    if len(times) != plan.num_ranks:
        raise ValueError(f"times has {len(times)} ranks; it must have as many as plan, {plan.num_ranks}")
    transfer_s = costs.communicate_s(plan.migrated, len(plan.senders))
    compute_s = costs.compute_s(plan.migrated, len(plan.senders), len(plan.receivers))
    parts = []
    for rank, slowness, measured in zip(plan.ranks, own_speed(times), times, strict=True):
        unresized = measured.unresized()
        parts.append(
            RankParts(
                other_s=unresized.other_s,
                kept_s=unresized.product_s * (1 - rank.removed),
                removing_s=costs.alloc_s + costs.extract(rank.removed) if rank.removed > 0 else 0.0,
                received_s=compute_s * slowness if rank.migrated == 0 else 0.0,
                transfer_s=transfer_s,
            )
        )
    return tuple(parts)


def rank_s(times: Sequence[RankTimes], plan: Plan, costs: Costs) -> tuple[float, ...]:
    """Return for how long each rank is busy under a plan; arguments as for `rank_parts`."""
    return tuple(parts.busy_s for parts in rank_parts(times, plan, costs))


def iteration_s(times: Sequence[RankTimes], plan: Plan, costs: Costs) -> float:
    """Return the seconds of an iteration under a plan: the busy time of the slowest rank."""
    return max(rank_s(times, plan, costs))


def ideal_s(times: Sequence[RankTimes]) -> float:
    """Return the seconds of an iteration if columns moved for nothing and none were dropped.

    Every rank then ends at the level L at which ranks below it take as many columns as ranks above it give away; a
    rank whose other time alone exceeds L gives away all of its columns. With one straggler of skewness chi among N and
    equal other time o this is o + N chi / ((N - 1) chi + 1). ValueError for a rank without time in products.
    """
    unresized = [rank.unresized() for rank in times]
    for rank, measured in enumerate(unresized):
        if measured.product_s == 0:
            raise ValueError(f"product_s of rank {rank} is {measured.product_s!r}; it must be above 0")
    level_s, rows, per_s = 0.0, 0.0, 0.0  # of the ranks below the level: sum of other / product, and of 1 / product
    for measured in sorted(unresized, key=lambda rank: rank.other_s):
        if per_s and measured.other_s >= level_s:
            break
        rows, per_s = rows + measured.other_s / measured.product_s, per_s + 1 / measured.product_s
        level_s = (len(unresized) + rows) / per_s
    return max(level_s, max(measured.other_s for measured in unresized))
