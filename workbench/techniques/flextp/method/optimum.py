"""How far a plan is from the best division of the columns (ours): linear programmes, and brute force as definition.

The fastest rank removes nothing: its columns would save less than the same columns of any other rank. Once it is
settled which ranks migrate, drop or keep all, own times are straight lines in the shares; all settlements (3 to the
number of ranks) are tried. Costs that bend are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import product

import numpy as np
from scipy.optimize import linprog

from .costs import Costs, PiecewiseLinear, iteration_s, own_speed
from .plan import MOST_REMOVED, Plan, RankPlan, RankTimes, require

__all__ = ["Certificate", "Scored", "best_plan_by_search", "certify", "fastest_division", "gentlest_division"]

LEAST = 1e-6  # share that a sender migrates at least
MOST_PLANS = 200_000  # some 10 s
_SUM_TOLERANCE = 1e-9  # shares and seconds that differ by less are equal: sums of floats, nothing more
_STRAIGHT = 1e-9  # share of a cost by which it may leave its straight line: rounding, nothing more
_INFEASIBLE = 2  # linprog's status


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """A plan and its two goals."""

    plan: Plan
    iteration_s: float  # seconds of an iteration under it, by the model of `costs`
    dropped: float  # shares dropped on all ranks, added up

    @classmethod
    def of(cls, times: Sequence[RankTimes], plan: Plan, costs: Costs) -> Scored:
        """Score a plan; the times may be measured under any plan."""
        return cls(plan=plan, iteration_s=iteration_s(times, plan, costs), dropped=plan.dropped)


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """A plan beside the best plans."""

    certified: Scored
    fastest: Scored  # of the plans that drop no more, the fastest
    gentlest: Scored  # of the plans that are no slower, the one that drops least

    @property
    def slower_by(self) -> float:
        """Time above that of the fastest plan that drops no more, as a share of it; 0 is best."""
        return self.certified.iteration_s / self.fastest.iteration_s - 1

    @property
    def drops_more_by(self) -> float:
        """Shares dropped above those of the gentlest plan that is no slower; 0 is best."""
        return self.certified.dropped - self.gentlest.dropped


def certify(times: Sequence[RankTimes], plan: Plan, costs: Costs) -> Certificate:
    """Compare a plan with the best divisions, itself included; ValueError for a cost that bends."""
    certified = Scored.of(times, plan, costs)
    fastest = fastest_division(times, costs, most_dropped=certified.dropped)
    gentlest = gentlest_division(times, costs, most_s=certified.iteration_s)
    return Certificate(
        certified=certified,
        fastest=min(certified, fastest, key=lambda scored: scored.iteration_s),
        gentlest=min(certified, gentlest or certified, key=lambda scored: scored.dropped),
    )


def fastest_division(times: Sequence[RankTimes], costs: Costs, *, most_dropped: float) -> Scored:
    """Return the fastest of all plans that drop no more than a sum of shares, to within the solver's 1e-7."""
    require(most_dropped >= 0, "most_dropped", most_dropped, "at least 0")
    solved = (programme.fastest(most_dropped) for programme in _programmes(times, costs))
    return min((Scored.of(times, plan, costs) for plan in solved if plan), key=lambda scored: scored.iteration_s)


def gentlest_division(times: Sequence[RankTimes], costs: Costs, *, most_s: float) -> Scored | None:
    """Return the plan that drops least of all plans whose iterations take no longer, None if all take longer.

    `most_s` is kept to within the solver's 1e-7 of the slowest rank's seconds.
    """
    solved = (programme.gentlest(most_s) for programme in _programmes(times, costs))
    scored = [Scored.of(times, plan, costs) for plan in solved if plan]
    return min(scored, key=lambda each: each.dropped, default=None)


def best_plan_by_search(times: Sequence[RankTimes], costs: Costs, num_steps: int) -> tuple[Scored, ...]:
    """Try all divisions of a grid: every rank slower than the fastest may migrate and drop multiples of 1 / num_steps.

    Of equal plans the first is kept. The front is returned, fastest first: the plans that no other beats in both goals.
    """
    require(num_steps >= 1, "num_steps", num_steps, "at least 1")
    own_s = [rank.unresized().own_s for rank in times]
    steps = [(dropped, migrated) for dropped in range(num_steps) for migrated in range(num_steps - dropped)]
    shares = [RankPlan(dropped=dropped / num_steps, migrated=migrated / num_steps) for dropped, migrated in steps]
    choices = [shares if rank_s > min(own_s) else [RankPlan()] for rank_s in own_s]
    num_plans = math.prod(map(len, choices))
    if num_plans > MOST_PLANS:
        raise ValueError(f"num_steps is {num_steps!r}, {num_plans:,} plans; it must make {MOST_PLANS:,} at most")
    scored = [Scored.of(times, Plan(ranks=ranks), costs) for ranks in product(*choices)]
    front: list[Scored] = []
    for plan in sorted(scored, key=lambda scored: (scored.iteration_s, scored.dropped)):
        if not front or plan.dropped < front[-1].dropped - _SUM_TOLERANCE:
            front.append(plan)
    return tuple(front)


class _Role(Enum):
    """The use of a rank's columns."""

    KEEP = auto()
    DROP = auto()
    MIGRATE = auto()  # and drop


@dataclass(frozen=True, kw_only=True, slots=True)
class _Programme:
    """Own times of all ranks, `slopes @ shares + fixed`, for one settlement of roles.

    Shares are the dropped ones in rank order, then the migrated ones. Times are in units of the slowest rank's without
    a plan, since the solver's tolerance is a number.
    """

    slopes: np.ndarray  # [ranks, 2 ranks]
    fixed: np.ndarray  # [ranks]
    bounds: tuple[tuple[float, float], ...]  # least and most of each share
    unit_s: float  # seconds of a unit

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
        solution = linprog(
            objective, np.vstack([rows, kept]), [*limits, *[MOST_REMOVED] * num_ranks], bounds=[*self.bounds, *more]
        )
        if solution.status == _INFEASIBLE:
            return None
        if not solution.success:
            raise RuntimeError(f"the linear programme has no solution: {solution.message}")
        return Plan.of_shares(*np.clip(solution.x[: 2 * num_ranks], 0, None).reshape(2, num_ranks).tolist())


def _programmes(times: Sequence[RankTimes], costs: Costs) -> Iterator[_Programme]:
    """Make the programme of every settlement in which the fastest rank keeps its columns and so can receive."""
    unresized = [rank.unresized() for rank in times]
    least_s = min(rank.own_s for rank in unresized)
    choices = [tuple(_Role) if rank.own_s > least_s else (_Role.KEEP,) for rank in unresized]
    for roles in product(*choices):
        yield _programme(unresized, costs, roles)


def _programme(unresized: Sequence[RankTimes], costs: Costs, roles: Sequence[_Role]) -> _Programme:
    senders = np.array([role is _Role.MIGRATE for role in roles])
    removes = np.array([role is not _Role.KEEP for role in roles])
    extract_s, extract_slope = _line("extract", costs.extract)
    fixed_s = np.array([rank.own_s for rank in unresized]) + removes * (costs.alloc_s + extract_s)
    kept = np.diag(removes * (extract_slope - np.array([rank.product_s for rank in unresized])))
    received = np.zeros_like(kept)
    if senders.any():
        communicate_s, communicate_slope = _line("communicate", costs.communicate)
        compute_s, compute_slope = _line("compute", costs.compute)
        slowness = np.array(own_speed(unresized)) * ~senders
        fixed_s = fixed_s + communicate_s * senders.sum() + compute_s * slowness * senders.sum()
        received = np.outer(communicate_slope + compute_slope * slowness / (~senders).sum(), senders)
    bounds = [(0.0, MOST_REMOVED if does else 0.0) for does in removes]
    bounds += [(LEAST, MOST_REMOVED) if does else (0.0, 0.0) for does in senders]
    unit_s = max(rank.own_s for rank in unresized) or 1.0
    slopes = np.hstack([kept, kept + received]) / unit_s
    return _Programme(slopes=slopes, fixed=fixed_s / unit_s, bounds=tuple(bounds), unit_s=unit_s)


def _line(name: str, cost: PiecewiseLinear) -> tuple[float, float]:
    """Return the seconds at a share of 0 and the slope of a cost; ValueError if it bends."""
    at_zero_s, slope = cost(0.0), cost(1.0) - cost(0.0)
    for share in cost.shares:
        if abs(cost(share) - at_zero_s - slope * share) > _STRAIGHT * cost(max(cost.shares)):
            raise ValueError(f"{name} of costs bends at {share!r}; it must be a straight line")
    return at_zero_s, slope
