"""How far a plan is from the best division of the mission, by linear programming.

What: once it is settled which ranks migrate, which only drop and which keep all columns, the own times of all ranks
are straight lines in the shares, so that the fastest division that drops no more, and the gentlest one that is no
slower, are solutions of linear programmes; all settlements are tried. These two certify a plan. `search` finds the
same, step by step of a grid.
Source: ours; times are those of `model`.
Simplified: as in `search`, the fastest rank removes nothing. A rank that migrates does so with a millionth of its
columns at least, and every rank keeps a hundredth, as all planners have it (`ratio.MOST_REMOVED`).
Left out: costs that bend, which take a mixed-integer programme; many ranks, since settlements are 3 to their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import product

import numpy as np
from scipy.optimize import linprog

from workbench.techniques.flextp.method.costs import Costs, PiecewiseLinear
from workbench.techniques.flextp.method.model import own_speed
from workbench.techniques.flextp.method.plan import Plan, RankPlan, RankTimes
from workbench.techniques.flextp.method.ratio import MOST_REMOVED
from workbench.techniques.flextp.method.search import Scored

__all__ = ["Certificate", "certify", "fastest_division", "gentlest_division"]

LEAST = 1e-6  # share that a sender migrates at least
_STRAIGHT = 1e-9  # share of a cost by which it may leave its straight line: rounding, nothing more
_INFEASIBLE = 2  # linprog's status


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """What the best plans have over one plan.

    Attributes:
        mine: the plan.
        fastest: of the plans that drop no more, the fastest.
        gentlest: of the plans that are no slower, the one that drops least.
    """

    mine: Scored
    fastest: Scored
    gentlest: Scored

    @property
    def slower_by(self) -> float:
        """Time above that of the fastest plan that drops no more, as a share of it; 0 is best."""
        return self.mine.iteration_s / self.fastest.iteration_s - 1

    @property
    def drops_more_by(self) -> float:
        """Shares dropped above those of the gentlest plan that is no slower; 0 is best."""
        return self.mine.dropped - self.gentlest.dropped


def certify(times: Sequence[RankTimes], plan: Plan, costs: Costs) -> Certificate:
    """Compare a plan with the best divisions; a plan that is one of them is its own.

    Args:
        times: of all ranks, as measured under any plan.
        plan: to be certified.
        costs: of the pre-test.

    Raises:
        ValueError: if a cost bends.
    """
    mine = Scored.of(times, plan, costs)
    fastest = fastest_division(times, costs, most_dropped=mine.dropped)
    gentlest = gentlest_division(times, costs, most_s=mine.iteration_s)
    return Certificate(
        mine=mine,
        fastest=min(mine, fastest, key=lambda each: each.iteration_s),
        gentlest=min(mine, gentlest or mine, key=lambda each: each.dropped),
    )


def fastest_division(times: Sequence[RankTimes], costs: Costs, *, most_dropped: float) -> Scored:
    """Return the fastest of all plans that drop no more than that.

    Args:
        times: of all ranks, as measured under any plan.
        costs: of the pre-test.
        most_dropped: shares dropped on all ranks, added up; kept to within the solver's 1e-7.

    Raises:
        ValueError: if a cost bends, or most_dropped is negative.
    """
    if not most_dropped >= 0:
        raise ValueError(f"most_dropped is {most_dropped!r}; it must be at least 0")
    found = (each.fastest(most_dropped) for each in _programmes(times, costs))
    plans = [Scored.of(times, plan, costs) for plan in found if plan]
    return min(plans, key=lambda each: each.iteration_s)


def gentlest_division(times: Sequence[RankTimes], costs: Costs, *, most_s: float) -> Scored | None:
    """Return of all plans whose iterations take no longer than that the one that drops least, None if all take longer.

    Args:
        times: of all ranks, as measured under any plan.
        costs: of the pre-test.
        most_s: seconds of an iteration; kept to within the solver's 1e-7 of the slowest rank's.

    Raises:
        ValueError: if a cost bends.
    """
    found = (each.gentlest(most_s) for each in _programmes(times, costs))
    plans = [Scored.of(times, plan, costs) for plan in found if plan]
    return min(plans, key=lambda each: each.dropped, default=None)


class _Role(Enum):
    """What a rank does with its columns."""

    KEEP = auto()
    DROP = auto()
    MIGRATE = auto()  # and drop


@dataclass(frozen=True, kw_only=True, slots=True)
class _Programme:
    """Own times of all ranks, `slopes @ shares + fixed`, and what shares may be, for one settlement of roles.

    Shares are those dropped, in rank order, then those migrated. Times are in units of the slowest rank's without a
    plan, since the solver's tolerance is a number.

    Attributes:
        slopes: [ranks, 2 ranks].
        fixed: [ranks].
        bounds: least and most of each share.
        unit_s: seconds of a unit.
    """

    slopes: np.ndarray
    fixed: np.ndarray
    bounds: tuple[tuple[float, float], ...]
    unit_s: float

    def fastest(self, most_dropped: float) -> Plan | None:
        """Return the fastest plan that drops no more, None if every plan of these roles drops more."""
        num_ranks = len(self.fixed)
        dropped = [1.0] * num_ranks + [0.0] * num_ranks
        # The last unknown is the iteration's time: least, and no less than that of any rank.
        return self._solved(
            objective=[*[0.0] * (2 * num_ranks), 1.0],
            rows=np.block([[self.slopes, -np.ones((num_ranks, 1))], [np.array([dropped]), np.zeros((1, 1))]]),
            limits=[*-self.fixed, most_dropped],
            more=[(0.0, None)],
        )

    def gentlest(self, most_s: float) -> Plan | None:
        """Return the plan that is no slower and drops least, None if every plan of these roles is slower."""
        num_ranks = len(self.fixed)
        dropped = [1.0] * num_ranks + [0.0] * num_ranks
        return self._solved(objective=dropped, rows=self.slopes, limits=most_s / self.unit_s - self.fixed)

    def _solved(self, *, objective, rows, limits, more=()) -> Plan | None:
        num_ranks = len(self.fixed)
        kept = np.hstack([np.eye(num_ranks), np.eye(num_ranks), np.zeros((num_ranks, len(more)))])  # sums of a rank's
        found = linprog(
            objective, np.vstack([rows, kept]), [*limits, *[MOST_REMOVED] * num_ranks], bounds=[*self.bounds, *more]
        )
        if found.status == _INFEASIBLE:
            return None
        if not found.success:
            raise RuntimeError(f"the linear programme has no solution: {found.message}")
        dropped, migrated = np.clip(found.x[: 2 * num_ranks], 0, None).reshape(2, num_ranks).tolist()
        pairs = zip(dropped, migrated, strict=True)
        return Plan(ranks=tuple(RankPlan(dropped=one, migrated=other) for one, other in pairs))


def _programmes(times: Sequence[RankTimes], costs: Costs) -> Iterator[_Programme]:
    """Make the programme of every settlement in which the fastest rank keeps its columns and so can receive."""
    unresized = [each.unresized() for each in times]
    least_s = min(each.own_s for each in unresized)
    choices = [tuple(_Role) if each.own_s > least_s else (_Role.KEEP,) for each in unresized]
    for roles in product(*choices):
        yield _programme(unresized, costs, roles)


def _programme(unresized: Sequence[RankTimes], costs: Costs, roles: Sequence[_Role]) -> _Programme:
    senders = np.array([role is _Role.MIGRATE for role in roles])
    removes = np.array([role is not _Role.KEEP for role in roles])
    extract_s, extract_slope = _line("extract", costs.extract)
    fixed_s = np.array([each.own_s for each in unresized]) + removes * (costs.alloc_s + extract_s)
    kept = np.diag(removes * (extract_slope - np.array([each.product_s for each in unresized])))
    received = np.zeros_like(kept)
    if senders.any():
        communicate_s, communicate_slope = _line("communicate", costs.communicate)
        compute_s, compute_slope = _line("compute", costs.compute)
        slowness = np.array(own_speed(unresized)) * ~senders
        fixed_s = fixed_s + communicate_s * senders.sum() + compute_s * slowness * senders.sum()
        received = np.outer(communicate_slope + compute_slope * slowness / (~senders).sum(), senders)
    bounds = [(0.0, MOST_REMOVED if each else 0.0) for each in removes]
    bounds += [(LEAST, MOST_REMOVED) if each else (0.0, 0.0) for each in senders]
    unit_s = max(each.own_s for each in unresized) or 1.0
    slopes = np.hstack([kept, kept + received]) / unit_s
    return _Programme(slopes=slopes, fixed=fixed_s / unit_s, bounds=tuple(bounds), unit_s=unit_s)


def _line(name: str, cost: PiecewiseLinear) -> tuple[float, float]:
    """Return the seconds at a share of 0 and the slope of a cost.

    Raises:
        ValueError: if the cost bends.
    """
    at_zero_s, slope = cost(0.0), cost(1.0) - cost(0.0)
    for share in cost.shares:
        if abs(cost(share) - at_zero_s - slope * share) > _STRAIGHT * cost(max(cost.shares)):
            raise ValueError(f"{name} of costs bends at {share!r}; it must be a straight line")
    return at_zero_s, slope
