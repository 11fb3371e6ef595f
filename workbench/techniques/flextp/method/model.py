"""How long an iteration takes under a plan, from the times of ranks and the costs of a pre-test.

What: a rank is busy with its other time, its products on the columns it keeps, and what removing, sending and receiving
adds; the iteration takes as long as the rank that is busy longest.
Source: the terms are those of Eqs. 2 and 3 of "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload
Control"; that they add up, and on which rank, is ours: a collective keeps the sender as busy as the receivers, and a
straggler takes its operands apart for migrated columns as for dropped ones.
Simplified: ranks wait for each other once an iteration; really at every all-reduce. Times that were measured under a plan
hold already what taking columns apart and copying them took, and it is added again: by so much such a rank looks slower.
Left out: overlap of communication and products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.techniques.flextp.method.costs import Costs
from workbench.techniques.flextp.method.plan import Plan, RankPlan, RankTimes

__all__ = ["RankParts", "ideal_s", "iteration_s", "own_speed", "rank_parts", "rank_s"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankParts:
    """What one rank is busy with in an iteration.

    Attributes:
        other_s: outside of products, as without a plan; with what products take however narrow, if times have it there.
        kept_s: products on its own columns, those it keeps.
        removing_s: taking its operands apart, if it drops or migrates any.
        received_s: products on columns of others.
        transfer_s: messages of migration, which keep all ranks busy alike.
    """

    other_s: float
    kept_s: float
    removing_s: float
    received_s: float
    transfer_s: float

    @property
    def busy_s(self) -> float:
        """All of it."""
        return self.other_s + self.kept_s + self.removing_s + self.received_s + self.transfer_s


def own_speed(times: Sequence[RankTimes]) -> tuple[float, ...]:
    """Return how many times longer each rank takes for a product than the fastest one, at least 1."""
    product_s = [each.unresized().product_s for each in times]
    least_s = min(product_s)
    return tuple(each / least_s if least_s else 1.0 for each in product_s)


def rank_parts(times: Sequence[RankTimes], plan: Plan, costs: Costs) -> tuple[RankParts, ...]:
    """Return what each rank is busy with under a plan.

    Args:
        times: of all ranks, as measured under any plan.
        plan: for as many ranks.
        costs: of the pre-test.

    Raises:
        ValueError: if there are not as many times as ranks in the plan.
    """
    if len(times) != plan.num_ranks:
        raise ValueError(f"times has {len(times)} ranks; it must have as many as plan, {plan.num_ranks}")
    slowness = own_speed(times)
    num_senders = len(plan.senders)
    transfer_s = costs.communicate_s(plan.migrated, num_senders)
    compute_s = costs.compute_s(plan.migrated, num_senders, len(plan.receivers))
    return tuple(
        _one_rank(each.unresized(), plan.ranks[rank], costs, compute_s * slowness[rank], transfer_s)
        for rank, each in enumerate(times)
    )


def rank_s(times: Sequence[RankTimes], plan: Plan, costs: Costs) -> tuple[float, ...]:
    """Return for how long each rank is busy under a plan; arguments as for `rank_parts`."""
    return tuple(parts.busy_s for parts in rank_parts(times, plan, costs))


def iteration_s(times: Sequence[RankTimes], plan: Plan, costs: Costs) -> float:
    """Return the seconds of an iteration under a plan: those of the slowest rank."""
    return max(rank_s(times, plan, costs))


def ideal_s(times: Sequence[RankTimes]) -> float:
    """Return the seconds of an iteration if columns moved for nothing and none were dropped.

    Every rank then ends at the level L at which the columns that ranks below it can take are those that ranks above
    it give away; a rank whose other time alone exceeds L gives away all it has.

    Returns:
        With one straggler of skewness chi among N and equal other time o: o + N chi / ((N - 1) chi + 1).

    Raises:
        ValueError: if a rank spends no time in products, which says nothing about its speed.
    """
    unresized = [each.unresized() for each in times]
    for rank, each in enumerate(unresized):
        if each.product_s == 0:
            raise ValueError(f"product_s of rank {rank} is {each.product_s!r}; it must be above 0")
    level_s, rows, per_s = 0.0, 0.0, 0.0  # of the ranks below the level: sum of other / product, and of 1 / product
    for each in sorted(unresized, key=lambda one: one.other_s):
        if per_s and each.other_s >= level_s:
            break
        rows, per_s = rows + each.other_s / each.product_s, per_s + 1 / each.product_s
        level_s = (len(unresized) + rows) / per_s
    return max(level_s, max(each.other_s for each in unresized))


def _one_rank(unresized: RankTimes, mine: RankPlan, costs: Costs, compute_s: float, transfer_s: float) -> RankParts:
    return RankParts(
        other_s=unresized.other_s,
        kept_s=unresized.product_s * (1 - mine.removed),
        removing_s=costs.alloc_s + costs.extract(mine.removed) if mine.removed > 0 else 0.0,
        received_s=compute_s if mine.migrated == 0 else 0.0,
        transfer_s=transfer_s,
    )
