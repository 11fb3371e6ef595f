"""Where the times come from that a plan is made from: measured on each rank, or modelled from a trace.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section III-A (times are recorded
by each rank) and V-A (stragglers). Modelled times let virtual ranks, which share one process, follow the same plans.
Left out: noise in modelled times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from workbench.timeline.stragglers import StragglerTrace

from ..method.plan import RankTimes
from .meter import Meter

__all__ = ["MeasuredTimes", "ModelledTimes", "Times"]


class Times(Protocol):
    """Says how long a rank took.

    Attributes:
        is_proportional: whether products take no time but in proportion to their columns.
    """

    is_proportional: bool

    def begin(self, rank: int, iteration: int) -> None:
        """Start an iteration of a local rank."""
        ...

    def end(self, rank: int, work: float) -> RankTimes:
        """End it; `work` is the share of its own columns that the rank multiplied."""
        ...


class MeasuredTimes:
    """Times of this process's rank, by its meter."""

    is_proportional = False

    def __init__(self, meter: Meter):
        self._meter = meter

    def begin(self, rank: int, iteration: int) -> None:
        """Start an iteration."""
        self._meter.begin(iteration)

    def end(self, rank: int, work: float) -> RankTimes:
        """End it."""
        return self._meter.end(work)


@dataclass(slots=True)
class ModelledTimes:
    """Times as a trace and two constants give them.

    Attributes:
        trace: skewness of every rank.
        product_s: seconds of a normal rank's products in an iteration, nothing dropped or received.
        other_s: seconds of everything else that a rank does itself.
    """

    trace: StragglerTrace
    product_s: float = 1.0
    other_s: float = 0.0
    is_proportional: ClassVar[bool] = True
    _iteration: int = 0

    def begin(self, rank: int, iteration: int) -> None:
        """Note the iteration."""
        self._iteration = iteration

    def end(self, rank: int, work: float) -> RankTimes:
        """Return what the rank would have taken."""
        product_s = self.trace.skewness(rank, self._iteration) * self.product_s * work
        return RankTimes(own_s=self.other_s + product_s, product_s=product_s, work=work)
