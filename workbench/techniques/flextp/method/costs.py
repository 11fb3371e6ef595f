"""What removing columns costs, as functions of their share, from a pre-test.

What: `PiecewiseLinear` is a function through measured points; `Costs` holds the four quantities of Eqs. 2 and 3, and what a
product takes however narrow.
Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", sections IV-B and IV-C
(several sampling points simulate the curve's trend).
Simplified: a cost never falls when the share grows; where samples do, the nearest function that does not is taken. The
time of a product is a straight line in its columns that does not begin at nothing (`fixed_share`): a narrow product
writes as large an output as a wide one.
Left out: the pre-test itself, which needs ranks.

Units: seconds of a whole iteration, all layers and all three products; a share is columns divided by a rank's own.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Any

from workbench.techniques.flextp.method.plan import RankTimes

__all__ = ["Costs", "PiecewiseLinear"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PiecewiseLinear:
    """A function of a share through points, continued in a straight line on both sides, never negative or falling.

    Attributes:
        shares: ascending, at least one; a single point makes a constant.
        seconds: as many, never falling.
    """

    shares: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shares", tuple(self.shares))
        object.__setattr__(self, "seconds", tuple(self.seconds))
        if not self.shares or len(self.shares) != len(self.seconds):
            raise ValueError(f"shares is {self.shares!r}; it must have one entry or more, as many as seconds has")
        if not all(0 <= share < math.inf for share in self.shares) or not _rises(self.shares, strictly=True):
            raise ValueError(f"shares is {self.shares!r}; they must be finite, not negative and ascending")
        if not all(0 <= value < math.inf for value in self.seconds) or not _rises(self.seconds, strictly=False):
            raise ValueError(f"seconds is {self.seconds!r}; they must be finite, not negative and never fall")

    @classmethod
    def straight(cls, seconds_per_share: float, *, at_zero_s: float = 0.0) -> PiecewiseLinear:
        """Return the function at_zero_s + seconds_per_share x share."""
        return cls(shares=(0.0, 1.0), seconds=(at_zero_s, at_zero_s + seconds_per_share))

    @classmethod
    def fitted(cls, samples: Iterable[tuple[float, float]]) -> PiecewiseLinear:
        """Fit a function to measured points.

        Args:
            samples: pairs (share, seconds), in any order; of several at one share the median counts.

        Returns:
            The function through the medians, or, where they fall, through the nearest never falling ones (least
            squares; isotonic regression).

        Raises:
            ValueError: if there is no sample, or a share or a time is negative or not finite.
        """
        from scipy.optimize import isotonic_regression

        by_share = groupby(sorted(samples), key=lambda sample: sample[0])
        medians = {share: median(seconds for _, seconds in group) for share, group in by_share}
        cls(shares=tuple(medians), seconds=tuple(sorted(medians.values())))
        seconds = isotonic_regression(list(medians.values())).x
        return cls(shares=tuple(medians), seconds=tuple(float(value) for value in seconds))

    def __call__(self, share: float) -> float:
        """Return the seconds at a share.

        Raises:
            ValueError: if the share is negative or not finite.
        """
        if not 0 <= share < math.inf:
            raise ValueError(f"share is {share!r}; it must be finite and not negative")
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
    """The measured costs of one iteration.

    Attributes:
        alloc_s: on a rank that removes columns, however many: room for smaller operands.
        extract: on it, taking operands apart when that share is removed.
        communicate: on every rank, one sender's sending that share of its columns and collecting the results.
        compute: on a normal rank, multiplying that share of columns for one sender.
        fixed_share: of the time of a rank's own products, what they take however few columns it keeps (ours).
    """

    alloc_s: float
    extract: PiecewiseLinear
    communicate: PiecewiseLinear
    compute: PiecewiseLinear
    fixed_share: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.fixed_share < 1:
            raise ValueError(f"fixed_share is {self.fixed_share!r}; it must be in [0, 1)")
        if not 0 <= self.alloc_s < math.inf:
            raise ValueError(f"alloc_s is {self.alloc_s!r}; it must be finite and not negative")

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
        """Return what every rank pays for the messages of several senders, one after the other.

        Eqs. 2 and 3 write communicate(V) of a volume V. What travels with every sender however few its columns, such as
        whole outputs, is in the cost of one sender at a share of nothing, so that each sender has to be priced by itself;
        a cost in proportion to the share is communicate(V) however many they are.

        Args:
            volume: V, what all senders migrate, in shares of one rank's columns.
            num_senders: x; volumes are priced as if divided evenly, which is exact on a straight line.
        """
        return num_senders * self.communicate(volume / num_senders) if num_senders else 0.0

    def compute_s(self, volume: float, num_senders: int, num_receivers: int) -> float:
        """Return what a normal rank multiplies for several senders, one product each.

        Args:
            volume: V, what all senders migrate, in shares of one rank's columns.
            num_senders: x; with a cost in proportion to the share this is compute(V / (N - x)), as Eq. 3 has it.
            num_receivers: N - x, which each get as much of every sender's.
        """
        return num_senders * self.compute(volume / (num_senders * num_receivers)) if num_senders else 0.0

    def proportional(self, times: RankTimes) -> RankTimes:
        """Return a rank's times with what its products take however narrow as other time.

        Divided by its share of the columns, as section III-A's un-resized times are, all of a narrow product's time
        would make a rank that drops or migrates much look slower than it is, and the next plan would do more of the
        same.

        Source: ours.
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
        """Read what `as_record` wrote."""
        functions = {name: PiecewiseLinear(**record[name]) for name in ("extract", "communicate", "compute")}
        return cls(alloc_s=record["alloc_s"], fixed_share=record.get("fixed_share", 0.0), **functions)


def _rises(values: tuple[float, ...], *, strictly: bool) -> bool:
    pairs = list(zip(values[:-1], values[1:], strict=True))
    return all(one < other for one, other in pairs) if strictly else all(one <= other for one, other in pairs)
