"""From a policy to a planner: a pure function of the times of all ranks, which rank 0 calls for all.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", algorithms 1 and 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ..method.costs import Costs
from ..method.plan import Plan, RankPlan, RankTimes
from ..method.semi import plan_division, plan_migration, plan_resizing, plan_semi, stragglers
from ..method.solution import Solution
from .policy import Policy

__all__ = ["Planner", "check_policy", "needs_costs", "planner_of"]

Planner = Callable[[Sequence[RankTimes]], Plan]
"""Times of all ranks, in rank order -> what each is to do; the same for the same times."""


def needs_costs(policy: Policy) -> bool:
    """Return whether plans depend on what a pre-test finds: on what migration costs, or on what products take however narrow.

    Those of ZERO and of the paper's MIG do not. SEMI's do also where the number of senders is given.
    """
    return policy.solution is Solution.SEMI or policy.refine


def check_policy(policy: Policy, num_ranks: int) -> None:
    """Refuse a policy that asks for more senders than num_ranks - 1, or has a plan for other ranks."""
    if policy.plan is not None and policy.plan.num_ranks != num_ranks:
        raise ValueError(f"plan is of {policy.plan.num_ranks} ranks, must be of the group's {num_ranks}")
    if policy.num_senders is not None and policy.num_senders > num_ranks - 1:
        raise ValueError(f"num_senders is {policy.num_senders}, must be at most {num_ranks - 1} of {num_ranks} ranks")


def planner_of(policy: Policy, num_ranks: int, costs: Costs | None = None) -> Planner:
    """Return the planner of a policy.

    Args:
        policy: how to balance.
        num_ranks: N.
        costs: of a pre-test.

    Raises:
        ValueError: if the policy needs costs and there are none, or asks for more senders than N - 1.
    """
    check_policy(policy, num_ranks)
    if num_ranks == 1:
        return lambda times: policy.plan or Plan.plain(1)  # nobody to wait for
    if needs_costs(policy) and policy.num_senders is None and costs is None:
        raise ValueError(f"costs is None, must be given where solution is {policy.solution}")
    tolerance = policy.threshold
    if policy.solution in (Solution.BASELINE, Solution.GIVEN):
        return lambda times: policy.plan or Plan.plain(len(times))
    if policy.solution is Solution.ZERO and policy.pruning_ratio is not None:
        return partial(_constant, policy)
    if policy.solution is Solution.ZERO:
        return partial(plan_resizing, reference=policy.reference, tolerance=tolerance)
    if policy.num_senders is not None:
        return partial(_divided, policy)
    if policy.solution is Solution.MIG:
        return partial(plan_migration, costs=costs, refine=policy.refine, tolerance=tolerance)
    more = {"refine": policy.refine, "speed_share": policy.speed_share, "tolerance": tolerance}
    return partial(plan_semi, costs=costs, **more)


def _divided(policy: Policy, times: Sequence[RankTimes]) -> Plan:
    """Let a given number of stragglers migrate, as far as there are so many at the moment."""
    num_senders = min(policy.num_senders, len(stragglers(times, tolerance=policy.threshold)))
    return plan_division(times, num_senders, tolerance=policy.threshold)


def _constant(policy: Policy, times: Sequence[RankTimes]) -> Plan:
    """Drop a constant share on every rank that is a straggler by twice the threshold.

    A product of half its columns takes more than half its time: un-resized, a rank that drops would look like a
    straggler for ever.
    """
    slow, dropped = stragglers(times, tolerance=2 * policy.threshold), RankPlan(dropped=policy.pruning_ratio)
    return Plan(ranks=tuple(dropped if rank in slow else RankPlan() for rank in range(len(times))))
