"""Who drops and who migrates how much: resizing alone, migration alone, and SEMI-migration, which divides the mission.

What: pure functions from the times of all ranks to a plan, so that ranks that see the same numbers plan alike.
Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section IV-B, Eqs. 2 and 3,
and IV-C, algorithm 2.
Simplified: a rank is a straggler only if it is more than a tolerance slower than the fastest (the paper: slower at
all), or noise would make stragglers of all ranks but one.
Left out: different plans for different layers (`priority`).

The paper brings every sender down to the fastest rank's time and leaves out what that adds to the receivers' own.
With `refine` the planners here level all ranks instead (`levelling`).
"""

from __future__ import annotations

from collections.abc import Sequence

from workbench.techniques.flextp.method.costs import Costs
from workbench.techniques.flextp.method.levelling import SPEED_SHARE, levelled_plan
from workbench.techniques.flextp.method.model import own_speed
from workbench.techniques.flextp.method.plan import Plan, RankPlan, RankTimes
from workbench.techniques.flextp.method.ratio import (
    SIGNIFICANT_CHANGE,
    Reference,
    has_moved,
    pruning_ratio,
    reference_s,
)

__all__ = [
    "cost_effective",
    "num_senders",
    "plan_division",
    "plan_migration",
    "plan_resizing",
    "plan_semi",
    "settled_resizing",
    "split_of_one",
    "split_of_one_by_definition",
    "stragglers",
]

_BISECTIONS = 40  # halvings of [0, 1): to 1e-12 of the columns
_SCAN_STEPS = 10_000  # of the definition's scan: to a hundredth of a percent of the columns


def stragglers(
    times: Sequence[RankTimes], reference: Reference = Reference.MIN, *, tolerance: float = SIGNIFICANT_CHANGE
) -> tuple[int, ...]:
    """Return the ranks that are slower than the reference by more than a share of it, slowest first.

    Times are un-resized; among equals the lower rank comes first. A straggler is also slower than the fastest rank by
    as much: the current mean is low while ranks drop columns, also those that no longer need to, and against it alone
    all ranks would be stragglers once the last one has vanished.
    """
    targets_s = [reference_s(times, each) for each in (reference, Reference.MIN)]
    target_s = max(targets_s)
    own_s = {rank: each.unresized().own_s for rank, each in enumerate(times)}
    slower = [rank for rank in own_s if own_s[rank] > target_s * (1 + tolerance)]
    return tuple(sorted(slower, key=lambda rank: (-own_s[rank], rank)))


def plan_resizing(
    times: Sequence[RankTimes], reference: Reference = Reference.MEAN, *, tolerance: float = SIGNIFICANT_CHANGE
) -> Plan:
    """Plan ZERO-resizing alone: every straggler drops what Eq. 1 says.

    Args:
        times: of all ranks, in rank order, as measured under any plan.
        reference: what stragglers come down to.
        tolerance: how much slower than it, as a share of it, a rank may be without being a straggler.
    """
    removed = _removed(times, reference, tolerance)
    return Plan(ranks=tuple(RankPlan(dropped=removed.get(rank, 0.0)) for rank in range(len(times))))


def settled_resizing(times: Sequence[RankTimes], threshold: float = SIGNIFICANT_CHANGE) -> Plan:
    """Return the plan at which resizing against the current mean comes to rest while nobody's speed changes.

    A plan moves the times that the next one is made from: ranks plan, measure what they then take, and plan again as
    long as the own time of any has moved by more than the threshold since the last plan. Each plan asks for more than
    the one before, so this ends.

    Args:
        times: of all ranks, in rank order; the first plan is made from them as they are.
        threshold: share of a rank's own time; also how much slower than the mean a straggler is at least.

    Raises:
        ValueError: if the threshold is not in (0, 1).
    Source: section III-A, whose mean is that of the times as they are and is renewed when a rank's time has changed.
    """
    if not 0 < threshold < 1:
        raise ValueError(f"threshold is {threshold!r}; it must be in (0, 1)")
    planned_from, plan, is_settled = list(times), Plan.plain(len(times)), False
    while not is_settled:
        newer = plan_resizing(planned_from, Reference.CURRENT_MEAN, tolerance=threshold)
        if newer.is_near(plan):
            return plan
        plan, before = newer, planned_from
        planned_from = [each.at_work(1 - plan.ranks[rank].removed) for rank, each in enumerate(times)]
        is_settled = not has_moved(planned_from, before, threshold, reference=Reference.CURRENT_MEAN)
    return plan


def plan_migration(
    times: Sequence[RankTimes], costs: Costs, *, refine: bool = False, tolerance: float = SIGNIFICANT_CHANGE
) -> Plan:
    """Plan migration alone (MIG): every straggler hands what Eq. 1 with the least time says to the others.

    Args:
        times: of all ranks, in rank order, as measured under any plan.
        costs: of the pre-test; only the refined plan looks at them.
        refine: level all ranks, senders with receivers, instead.
        tolerance: how much slower than the fastest, as a share of its time, a rank may be without being a straggler.
    """
    slow = stragglers(times, tolerance=tolerance)
    if refine:
        return levelled_plan(times, costs, slow, speed_share=0.0)
    return plan_division(times, len(slow), tolerance=tolerance)


def plan_division(times: Sequence[RankTimes], num_senders: int, *, tolerance: float = SIGNIFICANT_CHANGE) -> Plan:
    """Let the slowest stragglers migrate and the others resize, each by Eq. 1 with the least time.

    Args:
        times: of all ranks, in rank order.
        num_senders: x, from 0 (resizing alone) to the number of stragglers (migration alone).
        tolerance: see `stragglers`.

    Raises:
        ValueError: if there are fewer stragglers.
    Source: section IV-B; figure 11 sweeps x.
    """
    slow = stragglers(times, tolerance=tolerance)
    if not 0 <= num_senders <= len(slow):
        raise ValueError(f"num_senders is {num_senders!r}; it must be in 0..{len(slow)}, the number of stragglers")
    removed, senders = _removed(times, Reference.MIN, tolerance), slow[:num_senders]
    return Plan(
        ranks=tuple(
            RankPlan(migrated=removed[rank]) if rank in senders else RankPlan(dropped=removed.get(rank, 0.0))
            for rank in range(len(times))
        )
    )


def plan_semi(
    times: Sequence[RankTimes],
    costs: Costs,
    *,
    refine: bool = False,
    speed_share: float = SPEED_SHARE,
    tolerance: float = SIGNIFICANT_CHANGE,
) -> Plan:
    """Plan SEMI-migration.

    No straggler: nothing changes. One: it removes what Eq. 1 with the least time says, and Eq. 2 splits that into
    migrated and dropped. Several: Eq. 3 says how many of the slowest migrate; the others resize.

    Args:
        times: of all ranks, in rank order, as measured under any plan.
        costs: of the pre-test.
        refine: level all ranks instead, and drop no more than speed asks for (`levelled_plan`).
        speed_share: of the refined plan, the share of the ideal's speed below which columns are dropped.
        tolerance: how much slower than the fastest, as a share of its time, a rank may be without being a straggler.

    Source: section IV-C, algorithm 2.
    """
    slow = stragglers(times, tolerance=tolerance)
    if refine:
        return levelled_plan(times, costs, slow, speed_share=speed_share)
    if len(slow) != 1:
        return plan_division(times, num_senders(times, costs, tolerance=tolerance), tolerance=tolerance)
    removed = _removed(times, Reference.MIN, tolerance)[slow[0]]
    migrated, dropped = split_of_one(removed, costs, len(times) - 1)
    mine = RankPlan(migrated=migrated, dropped=dropped)
    return Plan(ranks=tuple(mine if rank == slow[0] else RankPlan() for rank in range(len(times))))


def split_of_one(removed: float, costs: Costs, num_receivers: int) -> tuple[float, float]:
    """Split what one straggler removes so that migrating costs every other rank what dropping costs the straggler.

    The cost of migrating rises with the migrated share and that of dropping falls, so there is at most one crossing.
    Where there is none, the end that is nearer to it is taken: all is migrated if even that costs the others less,
    nothing if even the first column costs them more.

    Args:
        removed: gamma, share of its columns.
        costs: of the pre-test.
        num_receivers: N - 1.

    Returns:
        (migrated, dropped), shares that add up to `removed`; the crossing is found by bisection.

    Raises:
        ValueError: if removed is outside [0, 1), or there is no receiver.
    Source: Eq. 2: alloc + extract(r) = communicate(m) + compute(m / (N - 1)), m + r = gamma K.
    """
    _check_split(removed, num_receivers)
    if _excess_s(removed, removed, costs, num_receivers) <= 0:
        return removed, 0.0
    if _excess_s(0.0, removed, costs, num_receivers) >= 0:
        return 0.0, removed
    least, most = 0.0, removed
    for _ in range(_BISECTIONS):
        middle = (least + most) / 2
        if _excess_s(middle, removed, costs, num_receivers) <= 0:
            least = middle
        else:
            most = middle
    return least, removed - least


def split_of_one_by_definition(removed: float, costs: Costs, num_receivers: int) -> tuple[float, float]:
    """Split as `split_of_one` does, by trying every hundredth of a percent and taking the most even one."""
    _check_split(removed, num_receivers)
    shares = [removed * step / _SCAN_STEPS for step in range(_SCAN_STEPS + 1)]
    migrated = min(shares, key=lambda share: abs(_excess_s(share, removed, costs, num_receivers)))
    return migrated, removed - migrated


def cost_effective(
    times: Sequence[RankTimes], costs: Costs, *, tolerance: float = SIGNIFICANT_CHANGE
) -> tuple[bool, ...]:
    """Return for x = 1, 2, ... stragglers that migrate whether the x-th of them saves more than it costs.

    It saves T_x - T_min, or as much of that as its products can. It costs the slowest receiver communicate(V) +
    compute(V / (N - x)) at its own speed, V the volume that all x migrate (`Costs.communicate_s`, `Costs.compute_s`);
    stragglers that do not migrate are receivers, too.

    Source: Eq. 3.
    """
    slow = stragglers(times, tolerance=tolerance)
    plans = [plan_division(times, x, tolerance=tolerance) for x in range(1, len(slow) + 1)]
    return tuple(
        times[straggler].unresized().product_s * plan.ranks[straggler].removed > _largest_extra_s(times, plan, costs)
        for straggler, plan in zip(slow, plans, strict=True)
    )


def num_senders(times: Sequence[RankTimes], costs: Costs, *, tolerance: float = SIGNIFICANT_CHANGE) -> int:
    """Return x of Eq. 3: the largest number of stragglers of which the last to migrate still saves more than it costs.

    The paper tries x = 1, 2, ... and takes for granted that once migration does not pay it pays no more. It can: while
    a heavy straggler is left among the receivers it is slow at others' columns, and when it sends them itself the
    remaining receivers are fast. So all x are tried, and the largest that pays is taken, which is what Eq. 3 says.

    Returns:
        0 to the number of stragglers, which is below the number of ranks.
    Source: Eq. 3.
    """
    pays = cost_effective(times, costs, tolerance=tolerance)
    return max((x for x, does in enumerate(pays, start=1) if does), default=0)


def _removed(times: Sequence[RankTimes], reference: Reference, tolerance: float) -> dict[int, float]:
    """Return Eq. 1 for the stragglers."""
    target_s = reference_s(times, reference)
    unresized = {rank: times[rank].unresized() for rank in stragglers(times, reference, tolerance=tolerance)}
    return {rank: pruning_ratio(each.own_s, target_s, each.product_s) for rank, each in unresized.items()}


def _excess_s(migrated: float, removed: float, costs: Costs, num_receivers: int) -> float:
    """Return what the others pay above what the straggler pays."""
    others_s = costs.communicate(migrated) + costs.compute(migrated / num_receivers)
    return others_s - costs.alloc_s - costs.extract(removed - migrated)


def _largest_extra_s(times: Sequence[RankTimes], plan: Plan, costs: Costs) -> float:
    """Return the largest cost that migration puts on a receiver."""
    compute_s = costs.compute_s(plan.migrated, len(plan.senders), len(plan.receivers))
    slowest = max(own_speed(times)[rank] for rank in plan.receivers)
    return costs.communicate_s(plan.migrated, len(plan.senders)) + compute_s * slowest


def _check_split(removed: float, num_receivers: int) -> None:
    if not 0 <= removed < 1:
        raise ValueError(f"removed is {removed!r}; it must be in [0, 1)")
    if num_receivers < 1:
        raise ValueError(f"num_receivers is {num_receivers!r}; it must be at least 1")
