"""How far a plan is from the best division of the columns (ours): linear programmes, and brute force as definition.

The fastest rank removes nothing: its columns would save less than the same columns of any other rank. Once it is
settled which ranks migrate, drop or keep all, own times are straight lines in the shares; all settlements (3 to the
number of ranks) are tried. Costs that are 0 for small shares are refused.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Self

import numpy as np
from scipy.optimize import linprog

from .plan import MOST_REMOVED, Costs, Plan, RankPlan, RankTimes, iteration_s, own_speed, require

LEAST = 1e-6  # share that a sender migrates at least
MOST_PLANS = 200_000  # some 10 s
_SUM_TOLERANCE = 1e-9  # shares and seconds that differ by less are equal: sums of floats, nothing more
_INFEASIBLE = 2  # linprog's status


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """A plan and its two goals: `plan.dropped` is the other."""

    plan: Plan
    iteration_s: float  # seconds of an iteration under it, by `method.iteration_s`

    @classmethod
    def of(cls, times: Sequence[RankTimes], plan: Plan, costs: Costs) -> Self:
        return cls(plan=plan, iteration_s=iteration_s(times, plan, costs))


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """A plan beside the best plans, itself included; gaps of 0 are best."""

    slower_by: float  # time above that of the fastest plan that drops no more, as a share of it
    drops_more_by: float  # shares dropped above those of the gentlest plan that is no slower


def certify(times: Sequence[RankTimes], plan: Plan, costs: Costs) -> Certificate:
    """Compare a plan with the best divisions."""
    own_s = iteration_s(times, plan, costs)
    fastest = fastest_division(times, costs, most_dropped=plan.dropped)
    gentlest = gentlest_division(times, costs, most_s=own_s)
    return Certificate(
        slower_by=max(own_s / fastest.iteration_s - 1, 0.0),
        drops_more_by=max(plan.dropped - gentlest.plan.dropped, 0.0) if gentlest else 0.0,
    )


def fastest_division(times: Sequence[RankTimes], costs: Costs, *, most_dropped: float) -> Scored:
    """Return the fastest of all plans that drop no more than a sum of shares, to within the solver's 1e-7."""
    return min(_divisions(times, costs, most_dropped=most_dropped), key=lambda scored: scored.iteration_s)


def gentlest_division(times: Sequence[RankTimes], costs: Costs, *, most_s: float) -> Scored | None:
    """Return the plan that drops least of all whose iterations take no longer, to within the solver's 1e-7, if any."""
    return min(_divisions(times, costs, most_s=most_s), key=lambda scored: scored.plan.dropped, default=None)


def best_plan_by_search(times: Sequence[RankTimes], costs: Costs, num_steps: int) -> tuple[Scored, ...]:
    """Try all multiples of 1 / num_steps; return the plans that no other beats in both goals, fastest first."""
    own_s = [rank.unresized().own_s for rank in times]
    steps = [(dropped, migrated) for dropped in range(num_steps) for migrated in range(num_steps - dropped)]
    shares = [RankPlan(dropped=dropped / num_steps, migrated=migrated / num_steps) for dropped, migrated in steps]
    choices = [shares if rank_s > min(own_s) else [RankPlan()] for rank_s in own_s]
    num_plans = math.prod(map(len, choices))
    require(num_plans <= MOST_PLANS, "num_steps", num_steps, f"of {MOST_PLANS:,} plans at most, not {num_plans:,}")
    scored = [Scored.of(times, Plan(ranks=ranks), costs) for ranks in product(*choices)]
    front: list[Scored] = []
    for better in sorted(scored, key=lambda scored: (scored.iteration_s, scored.plan.dropped)):
        if not front or better.plan.dropped < front[-1].plan.dropped - _SUM_TOLERANCE:
            front.append(better)
    return tuple(front)


# Whether a rank removes columns, and whether it sends some.
_KEEPS, _DROPS, _MIGRATES = (False, False), (True, False), (True, True)


def _divisions(
    times: Sequence[RankTimes], costs: Costs, *, most_dropped: float | None = None, most_s: float = math.inf
) -> Iterator[Scored]:
    """Yield the best plan of every settlement in which the fastest rank keeps its columns and so can receive.

    It is the fastest that drops no more than `most_dropped`, or that which drops least within `most_s`.
    """
    for name in ("extract", "communicate", "compute"):
        at_zero_s = getattr(costs, name).at_zero_s
        require(at_zero_s >= 0, f"{name}.at_zero_s of costs", at_zero_s, "at least 0, or the cost bends where it is 0")
    unresized = [rank.unresized() for rank in times]
    own_s = np.array([rank.own_s for rank in unresized])
    product_s = np.array([rank.product_s for rank in unresized])
    unit_s = own_s.max() or 1.0  # of the programme's times, since the solver's tolerance is a number
    for roles in product(*((_KEEPS, _DROPS, _MIGRATES) if rank_s > own_s.min() else (_KEEPS,) for rank_s in own_s)):
        removes, sends = np.array(roles).T
        fixed_s = own_s + removes * (costs.alloc_s + costs.extract.at_zero_s)
        kept = np.diag(removes * (costs.extract.per_share_s - product_s))
        received = np.zeros_like(kept)
        if sends.any():
            slowness = np.array(own_speed(unresized)) * ~sends
            each_s = costs.communicate.at_zero_s + costs.compute.at_zero_s * slowness
            fixed_s = fixed_s + each_s * sends.sum()
            slope_s = costs.communicate.per_share_s + costs.compute.per_share_s * slowness / (~sends).sum()
            received = np.outer(slope_s, sends)
        bounds: list[tuple[float, float | None]] = [(0.0, MOST_REMOVED if does else 0.0) for does in removes]
        bounds += [(LEAST, MOST_REMOVED) if does else (0.0, 0.0) for does in sends]
        slopes = np.hstack([kept, kept + received]) / unit_s
        plan = _solved(slopes, fixed_s / unit_s, bounds, most_dropped=most_dropped, most=most_s / unit_s)
        if plan:
            yield Scored.of(times, plan, costs)


def _solved(
    slopes: np.ndarray, fixed: np.ndarray, bounds: Sequence, *, most_dropped: float | None, most: float
) -> Plan | None:
    """Solve a programme of the ranks' own times, `slopes @ shares + fixed`: dropped shares, then migrated ones.

    The last unknown is the iteration's time, no less than that of any rank. It is the goal where `most_dropped` is.
    """
    n = len(fixed)
    dropped, kept = [1.0] * n + [0.0] * n, np.hstack([np.eye(n), np.eye(n)])
    rows = np.column_stack([np.vstack([slopes, dropped, kept]), [-1.0] * n + [0.0] * (n + 1)])
    limits = [*-fixed, n if most_dropped is None else most_dropped, *[MOST_REMOVED] * n]
    objective = [*dropped, 0.0] if most_dropped is None else [0.0] * (2 * n) + [1.0]
    solution = linprog(objective, rows, limits, bounds=[*bounds, (0.0, most)])
    if solution.status == _INFEASIBLE:
        return None
    if not solution.success:
        raise RuntimeError(f"the linear programme has no solution: {solution.message}")
    return Plan.of_shares(*np.clip(solution.x[: 2 * n], 0, None).reshape(2, n).tolist())
