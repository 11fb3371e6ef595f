"""Plans that bring all ranks to one level, by water-filling on the costs of Eqs. 2 and 3 (ours).

The paper brings senders down to the fastest rank's time, which makes receivers the slowest, and Eq. 2 has one heavy
straggler drop most of its share. Here all ranks end at the least level at which nothing is dropped, or, where that is
slow, at a share of the ideal's speed with as little dropped as reaches it; senders drop in proportion to their share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from scipy.optimize import brentq

from .costs import Costs, ideal_s, iteration_s, own_speed
from .plan import MOST_REMOVED, Plan, RankTimes

__all__ = ["SPEED_SHARE", "levelled_plan"]

# Share of the ideal's speed below which columns are dropped. Ours: the paper names no price of accuracy. On shared
# cores an iteration strays from the model by a tenth and more: at 0.9 noise decided whether all is dropped or nothing.
SPEED_SHARE = 0.8
# Least share that a sender migrates. A sender receives nothing, which is worth more to a light straggler than the
# columns are: as a receiver it would be slow at others' columns, too.
LEAST_MIGRATED = 1 / 32
_PRECISION = 1e-9  # of shares: a weight has far fewer columns
_NEAR = 1e-6  # of a level: as near as shares of such a precision come
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
        Of the plans that drop nothing the fastest, if it reaches that share of the ideal's speed; else of the plans
        that reach it the one that drops least, or the fastest where none does.
    """
    if not 0 <= speed_share < 1:
        raise ValueError(f"speed_share is {speed_share!r}; it must be in [0, 1)")
    if len(slowest_first) >= len(times):
        raise ValueError(f"slowest_first is {tuple(slowest_first)!r}; it must leave a rank of {len(times)} to receive")
    ranks, fastest_possible_s = _Unresized(times, costs), ideal_s(times)
    divisions = [tuple(slowest_first[:num_senders]) for num_senders in range(len(slowest_first) + 1)]
    lossless = [_lossless(ranks, senders) for senders in divisions]
    fastest = min(lossless, key=lambda plan: iteration_s(times, plan, costs))
    spared_s = max((own_s for rank, own_s in enumerate(ranks.own_s) if rank not in slowest_first), default=0.0)
    allowed_s = max(fastest_possible_s / speed_share, spared_s) if speed_share else math.inf
    if iteration_s(times, fastest, costs) <= allowed_s:
        return fastest
    plans = [*lossless, *(_at_level(ranks, senders, allowed_s) for senders in divisions)]
    seconds = [iteration_s(times, plan, costs) for plan in plans]
    reached_s = max(allowed_s, min(seconds)) * (1 + _NEAR)  # where none reaches the level, the fastest one's
    reaching = (plan for plan, plan_s in zip(plans, seconds, strict=True) if plan_s <= reached_s)
    return min(reaching, key=lambda plan: plan.dropped)


class _Unresized:
    """All ranks without a plan, in numbers that a search asks for a thousand times."""

    def __init__(self, times: Sequence[RankTimes], costs: Costs):
        unresized = [rank.unresized() for rank in times]
        self.costs, self.size = costs, len(unresized)
        self.own_s = [rank.own_s for rank in unresized]
        self.slowness = own_speed(unresized)
        self.product_s = [rank.product_s for rank in unresized]

    def needed(self, rank: int, level_s: float) -> float:
        """Return the share that a rank must give up to end at a level, its cost included; above 1 it cannot."""
        if self.own_s[rank] <= level_s:
            return 0.0
        excess_s, product_s, share = self.own_s[rank] + self.costs.alloc_s - level_s, self.product_s[rank], 0.0
        for _ in range(_FIXED_POINT_ROUNDS):
            before, share = share, (excess_s + self.costs.extract(share)) / product_s
            if abs(share - before) < _PRECISION:
                break
        return share

    def removed(self, rank: int, level_s: float) -> float:
        """Return the share that a rank gives up to end at a level, or as near to it as it can."""
        return min(self.needed(rank, level_s), MOST_REMOVED)

    def received_s(self, senders: Sequence[int], volume: float) -> dict[int, float]:
        """Return the seconds that each receiver multiplies for others, without communication."""
        compute_s = self.costs.compute_s(volume, len(senders), self.size - len(senders)) if volume > 0 else 0.0
        return {rank: compute_s * self.slowness[rank] for rank in range(self.size) if rank not in senders}

    def plan(self, migrated: Mapping[int, float], dropped: Mapping[int, float] = MappingProxyType({})) -> Plan:
        """Return the plan of these shares."""
        return Plan.of_shares(*([shares.get(rank, 0.0) for rank in range(self.size)] for shares in (dropped, migrated)))


def _lossless(ranks: _Unresized, senders: tuple[int, ...]) -> Plan:
    """Return the plan in which senders migrate until they are as fast as the slowest receiver, and nobody drops.

    Communication does not enter: all ranks pay it alike.
    """

    def wanted(volume: float) -> list[float]:
        level_s = max(ranks.own_s[rank] + more_s for rank, more_s in ranks.received_s(senders, volume).items())
        return [max(ranks.removed(rank, level_s), LEAST_MIGRATED) for rank in senders]

    volume = _largest(lambda volume: math.fsum(wanted(volume)) - volume, len(senders) * MOST_REMOVED)
    return ranks.plan(dict(zip(senders, wanted(volume), strict=True)))


def _at_level(ranks: _Unresized, senders: tuple[int, ...], level_s: float) -> Plan:
    """Return the plan in which senders migrate as much as fast receivers take below a level, and all drop the rest."""

    def levels_s(volume: float) -> list[float]:
        left_s = level_s - (ranks.costs.communicate_s(volume, len(senders)) if volume > 0 else 0.0)
        more_s = ranks.received_s(senders, volume)
        return [left_s - more_s.get(rank, 0.0) for rank in range(ranks.size)]

    def removed(volume: float) -> list[float]:
        least = LEAST_MIGRATED if volume > 0 else 0.0
        shares = [ranks.removed(rank, left_s) for rank, left_s in enumerate(levels_s(volume))]
        return [max(share, least) if rank in senders else share for rank, share in enumerate(shares)]

    keep_all = [rank for rank, share in enumerate(removed(0.0)) if share == 0 and rank not in senders]

    def room(volume: float) -> float:
        shares, levels = removed(volume), levels_s(volume)
        spare = [(levels[rank] - ranks.own_s[rank]) / ranks.product_s[rank] for rank in keep_all]
        able = [MOST_REMOVED - ranks.needed(rank, levels[rank]) for rank in senders]
        return min(math.fsum(shares[rank] for rank in senders) - volume, *spare, *able)

    volume = _largest(room, len(senders) * MOST_REMOVED) if senders else 0.0
    shares = removed(volume)
    wanted = math.fsum(shares[rank] for rank in senders)
    migrated = {rank: shares[rank] * volume / wanted for rank in senders if wanted > 0}
    return ranks.plan(migrated, {rank: max(share - migrated.get(rank, 0.0), 0.0) for rank, share in enumerate(shares)})


def _largest(room: Callable[[float], float], most: float) -> float:
    """Return the largest number in [0, most], to a precision, that leaves room: as the number rises, room falls."""
    if room(most) >= 0:
        return most
    if room(0.0) <= 0:
        return 0.0
    return max(brentq(room, 0.0, most, xtol=_PRECISION / 2) - _PRECISION / 2, 0.0)
