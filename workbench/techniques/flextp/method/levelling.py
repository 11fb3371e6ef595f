"""Plans that bring senders and receivers to one level: what SEMI-migration leaves on the table.

What: the paper brings senders down to the fastest rank's time and so makes its receivers, who now work for them, the
slowest; and Eq. 2, which keeps that excess small, has one heavy straggler drop most of what it removes. Here all
ranks end at one level instead: the least at which nothing is dropped, or, where moving columns is so dear that this
would be slow, a given share of the speed of the ideal (`model.ideal_s`), with as little dropped as reaches it.
Source: ours; the costs are those of Eqs. 2 and 3 of "Accelerating Heterogeneous Tensor Parallelism via Flexible
Workload Control". Filling to a common level is the textbook's water-filling.
Simplified: senders drop in proportion to what they migrate; the costs are taken to grow slower than the work saved.
Left out: receivers that drop columns of their own to make room for others'.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from workbench.techniques.flextp.method.costs import Costs
from workbench.techniques.flextp.method.model import ideal_s, iteration_s, own_speed
from workbench.techniques.flextp.method.plan import Plan, RankPlan, RankTimes
from workbench.techniques.flextp.method.ratio import MOST_REMOVED

__all__ = ["SPEED_SHARE", "levelled_plan"]

# Share of the ideal's speed below which columns are dropped. Ours: the paper names no price of accuracy.
SPEED_SHARE = 0.9
# Least share that a sender migrates. Who sends anything receives nothing, which is worth more to a light straggler
# than the columns are: as a receiver it would be slow at others' columns, too.
LEAST_MIGRATED = 1 / 32
_BISECTIONS = 30  # halvings: to 1e-9 of the range
_FIXED_POINT_ROUNDS = 6  # extraction is a few percent of the products, so each round gains a digit or more


def levelled_plan(
    times: Sequence[RankTimes], costs: Costs, slowest_first: Sequence[int], *, speed_share: float = SPEED_SHARE
) -> Plan:
    """Plan so that all ranks end together and no more is dropped than speed asks for.

    Args:
        times: of all ranks, in rank order, as measured under any plan.
        costs: of the pre-test.
        slowest_first: the stragglers; the first of them, as many as turns out best, become senders. No other rank
            gives up columns.
        speed_share: in [0, 1); with 0 nothing is ever dropped.

    Returns:
        Of the plans that drop nothing the fastest, if it reaches that share of the ideal's speed; else of those that
        reach it the one that drops least.

    Raises:
        ValueError: if speed_share is outside [0, 1), all ranks are stragglers, or one spends no time in products.
    """
    if not 0 <= speed_share < 1:
        raise ValueError(f"speed_share is {speed_share!r}; it must be in [0, 1)")
    if len(slowest_first) >= len(times):
        raise ValueError(f"slowest_first is {tuple(slowest_first)!r}; it must leave a rank of {len(times)} to receive")
    unresized, fastest_possible_s = [each.unresized() for each in times], ideal_s(times)
    divisions = [tuple(slowest_first[:num_senders]) for num_senders in range(len(slowest_first) + 1)]
    lossless = [_lossless(unresized, senders, costs) for senders in divisions]
    fastest = min(lossless, key=lambda plan: iteration_s(times, plan, costs))
    spared_s = max((each.own_s for rank, each in enumerate(unresized) if rank not in slowest_first), default=0.0)
    allowed_s = max(fastest_possible_s / speed_share, spared_s) if speed_share else math.inf
    if iteration_s(times, fastest, costs) <= allowed_s:
        return fastest
    return min((_at_level(unresized, senders, costs, allowed_s) for senders in divisions), key=_dropped)


def _lossless(unresized: Sequence[RankTimes], senders: tuple[int, ...], costs: Costs) -> Plan:
    """Return the plan in which these migrate until they are as fast as the slowest receiver, and nobody drops.

    Communication does not enter: all ranks pay it alike.
    """

    def wanted(volume: float) -> list[float]:
        level_s = max(_receiving_s(unresized, senders, costs, volume).values())
        return [max(_removed(unresized[rank], level_s, costs), LEAST_MIGRATED) for rank in senders]

    volume = _largest(lambda each: math.fsum(wanted(each)) > each, len(senders) * MOST_REMOVED)
    return _plan(len(unresized), dict(zip(senders, wanted(volume), strict=True)))


def _at_level(unresized: Sequence[RankTimes], senders: tuple[int, ...], costs: Costs, level_s: float) -> Plan:
    """Return the plan in which these migrate what fast receivers can take below a level, and all drop the rest."""

    def removed(volume: float) -> dict[int, float]:
        left_s = level_s - (costs.communicate(volume) if volume > 0 else 0.0)
        received_s = _receiving_s(unresized, senders, costs, volume)
        more_s = {rank: received_s[rank] - unresized[rank].own_s for rank in received_s}
        shares = (_removed(each, left_s - more_s.get(rank, 0.0), costs) for rank, each in enumerate(unresized))
        least = LEAST_MIGRATED if volume > 0 else 0.0
        return {rank: max(share, least) if rank in senders else share for rank, share in enumerate(shares)}

    may_remove = {*senders, *(rank for rank, share in removed(0.0).items() if share > 0)}

    def can_take(volume: float) -> bool:
        shares = removed(volume)
        is_wanted = volume <= math.fsum(shares[rank] for rank in senders)
        return is_wanted and all(rank in may_remove for rank, share in shares.items() if share > 0)

    volume = _largest(can_take, len(senders) * MOST_REMOVED)
    shares = removed(volume)
    wanted = math.fsum(shares[rank] for rank in senders)
    migrated = {rank: shares[rank] * volume / wanted for rank in senders if wanted > 0}
    dropped = {rank: max(share - migrated.get(rank, 0.0), 0.0) for rank, share in shares.items()}
    return _plan(len(unresized), migrated, dropped)


def _receiving_s(
    unresized: Sequence[RankTimes], senders: tuple[int, ...], costs: Costs, volume: float
) -> dict[int, float]:
    """Return each receiver's own seconds with its part of a migrated volume, without communication."""
    slowness = own_speed(unresized)
    compute_s = costs.compute(volume / (len(unresized) - len(senders))) if volume > 0 else 0.0
    receivers = (rank for rank in range(len(unresized)) if rank not in senders)
    return {rank: unresized[rank].own_s + compute_s * slowness[rank] for rank in receivers}


def _plan(num_ranks: int, migrated: Mapping[int, float], dropped: Mapping[int, float] = MappingProxyType({})) -> Plan:
    ranks = (RankPlan(migrated=migrated.get(rank, 0.0), dropped=dropped.get(rank, 0.0)) for rank in range(num_ranks))
    return Plan(ranks=tuple(ranks))


def _removed(unresized: RankTimes, level_s: float, costs: Costs) -> float:
    """Return the share that a rank must give up to end at a level, what giving up costs included."""
    if unresized.own_s <= level_s:
        return 0.0
    share = 0.0
    for _ in range(_FIXED_POINT_ROUNDS):
        seconds = unresized.own_s + costs.alloc_s + costs.extract(share) - level_s
        share = min(seconds / unresized.product_s, MOST_REMOVED)
    return share


def _largest(holds: Callable[[float], bool], most: float) -> float:
    """Return the largest number in [0, most] for which something holds that holds for all below it."""
    if holds(most):
        return most
    least = 0.0
    for _ in range(_BISECTIONS):
        middle = (least + most) / 2
        least, most = (middle, most) if holds(middle) else (least, middle)
    return least


def _dropped(plan: Plan) -> float:
    return math.fsum(rank.dropped for rank in plan.ranks)
