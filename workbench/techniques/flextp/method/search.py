"""The best divisions of the mission on small cases, by brute force: the definition that `optimum` is tried against.

What: every rank that is slower than the fastest may migrate and drop any multiple of a step; all combinations are
tried. Time and dropping are two goals, so there is no single best plan but a front: the plans that no other beats in
both.
Source: the paper's own search (figure 11 of "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload
Control") varies only how many stragglers migrate; the shares are ours.
Simplified: the fastest rank removes nothing: what it dropped would save less than the same columns of any other.
Left out: more than a few ranks; the number of plans grows with the power of the number of slower ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from workbench.techniques.flextp.method.costs import Costs
from workbench.techniques.flextp.method.model import iteration_s
from workbench.techniques.flextp.method.plan import Plan, RankPlan, RankTimes

__all__ = ["Scored", "best_plan_by_search"]

MOST_PLANS = 200_000  # some 10 s
_SUM_TOLERANCE = 1e-9  # shares and seconds that differ by less are equal: sums of floats, nothing more


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """A plan and its two goals.

    Attributes:
        plan: the plan.
        iteration_s: seconds of an iteration under it, by the model.
        dropped: shares dropped on all ranks, added up.
    """

    plan: Plan
    iteration_s: float
    dropped: float

    @classmethod
    def of(cls, times: Sequence[RankTimes], plan: Plan, costs: Costs) -> Scored:
        """Score a plan.

        Args:
            times: of all ranks, as measured under any plan.
            plan: for as many ranks.
            costs: of the pre-test.
        """
        dropped = math.fsum(rank.dropped for rank in plan.ranks)
        return cls(plan=plan, iteration_s=iteration_s(times, plan, costs), dropped=dropped)


def best_plan_by_search(times: Sequence[RankTimes], costs: Costs, num_steps: int) -> tuple[Scored, ...]:
    """Try all divisions and return the front.

    Args:
        times: of all ranks, as measured under any plan.
        costs: of the pre-test.
        num_steps: shares are multiples of 1 / num_steps.

    Returns:
        The plans that no other beats in both goals, fastest first; of equals the one found first.

    Raises:
        ValueError: if num_steps is below 1, or there would be too many plans.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps is {num_steps!r}; it must be at least 1")
    own_s = [each.unresized().own_s for each in times]
    choices = [_choices(num_steps) if own_s[rank] > min(own_s) else [RankPlan()] for rank in range(len(times))]
    num_plans = math.prod(map(len, choices))
    if num_plans > MOST_PLANS:
        raise ValueError(f"num_steps is {num_steps!r}, {num_plans:,} plans; it must make {MOST_PLANS:,} at most")
    scored = [Scored.of(times, Plan(ranks=ranks), costs) for ranks in product(*choices)]
    return _front(scored)


def _choices(num_steps: int) -> list[RankPlan]:
    """List what one rank may do, doing nothing first."""
    pairs = ((dropped, migrated) for dropped in range(num_steps) for migrated in range(num_steps - dropped))
    return [RankPlan(dropped=dropped / num_steps, migrated=migrated / num_steps) for dropped, migrated in pairs]


def _front(scored: Sequence[Scored]) -> tuple[Scored, ...]:
    front: list[Scored] = []
    for each in sorted(scored, key=lambda one: (one.iteration_s, one.dropped)):
        if not front or each.dropped < front[-1].dropped - _SUM_TOLERANCE:
            front.append(each)
    return tuple(front)
