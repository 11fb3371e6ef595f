"""Planners, pure functions of the times of all ranks: Eq. 1 (resizing), migration, Eqs. 2 and 3 (SEMI-migration)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from scipy.optimize import brentq

from .plan import (
    MOST_REMOVED,
    Costs,
    Option,
    Plan,
    RankTimes,
    Solution,
    ideal_s,
    iteration_s,
    own_speed,
    rank_parts,
    require,
)

SIGNIFICANT_CHANGE = 0.10  # share of a rank's own time, section III-A
STILL_SLOW = 0.25  # of that share, by which a straggler that drops columns may stay behind; ours
_SCAN_STEPS = 10_000  # of the definition's scan: to a hundredth of a percent of the columns
# Share of the ideal's speed below which columns are dropped. Ours: the paper names no price of accuracy. On shared
# cores an iteration strays from the model by a tenth and more: at 0.9 noise decided whether all is dropped or nothing.
SPEED_SHARE = 0.8
# Least share that a sender migrates. A sender receives nothing, which is worth more to a light straggler than the
# columns are: as a receiver it would be slow at others' columns, too.
LEAST_MIGRATED = 1 / 32
_PRECISION = 1e-9  # of shares: a weight has far fewer columns
_NEAR = 1e-6  # of a level: as near as shares of such a precision come
_FIXED_POINT_ROUNDS = 6  # extraction is a few percent of the products, so each round gains a digit or more


class Reference(Option):
    """The time that stragglers are to come down to."""

    MEAN = "mean"  # of the un-resized own times; Eq. 1
    CURRENT_MEAN = "current mean"  # of the own times as they are now, under the current plan
    MIN = "min"  # the least un-resized own time; inside SEMI


def reference_s(times: Sequence[RankTimes], reference: Reference) -> float:
    """Return the time that stragglers are to come down to, in seconds."""
    if reference is Reference.CURRENT_MEAN:
        return math.fsum(rank.own_s for rank in times) / len(times)
    own_s = [rank.unresized().own_s for rank in times]
    return min(own_s) if reference is Reference.MIN else math.fsum(own_s) / len(own_s)


def pruning_ratio(own_s: float, reference_s: float, product_s: float) -> float:
    """Return the share of its columns that brings a rank down to the reference, (T_i - T_ref) / M_i (Eq. 1).

    Times are un-resized, in seconds; 0 for a rank that is no slower, or has no time in products.
    """
    RankTimes(own_s=own_s, product_s=product_s)
    require(0 <= reference_s < math.inf, "reference_s", reference_s, "finite and not negative")
    if own_s <= reference_s or product_s == 0:
        return 0.0
    return min((own_s - reference_s) / product_s, MOST_REMOVED)


def pruning_ratios(times: Sequence[RankTimes], reference: Reference) -> list[float]:
    """Return Eq. 1 for every rank, from times as measured; with CURRENT_MEAN every further plan asks for more."""
    target_s = reference_s(times, reference)
    return [pruning_ratio(rank.own_s, target_s, rank.product_s) for rank in (rank.unresized() for rank in times)]


def speedup_bound(skewness: float, num_ranks: int, *, other: float = 0.0) -> float:
    """Return Eq. 1's largest speedup, (o + χ) / (o + (χ + N - 1) / N); o is `other` time over products."""
    require(1 <= skewness < math.inf, "skewness", skewness, "finite and at least 1")
    return (other + skewness) / (other + (skewness + num_ranks - 1) / num_ranks)


def have_moved(
    now: Sequence[RankTimes], planned_from: Sequence[RankTimes], *, reference: Reference = Reference.MIN
) -> bool:
    """Return whether a new plan is due: whether any rank's un-resized own time has changed by more than a tenth.

    The plan itself moves the current mean. Against it times are compared as they are, and a rank that drops columns
    has moved also while it is a quarter of a tenth slower than the mean: dropping may save less than it should.
    """
    pairs = [*zip(now, planned_from, strict=True)]
    if reference is Reference.CURRENT_MEAN:
        slow_s = reference_s(now, reference) * (1 + STILL_SLOW * SIGNIFICANT_CHANGE)
        if any(rank.work < 1 and rank.own_s > slow_s for rank in now):
            return True
    else:
        pairs = [(new.unresized(), old.unresized()) for new, old in pairs]
    return any(abs(new.own_s - old.own_s) > SIGNIFICANT_CHANGE * old.own_s for new, old in pairs)


def stragglers(
    times: Sequence[RankTimes], reference: Reference = Reference.MIN, *, tolerance: float = SIGNIFICANT_CHANGE
) -> tuple[int, ...]:
    """Return the ranks whose un-resized time exceeds the reference by more than a share of it, slowest first.

    It also exceeds the fastest rank's by as much: the current mean is low while ranks still drop columns, and against
    it alone all ranks would be stragglers once the last straggler has vanished. Ours: the share is section III-A's.
    """
    target_s = max(reference_s(times, target) for target in (reference, Reference.MIN))
    own_s = {rank: measured.unresized().own_s for rank, measured in enumerate(times)}
    slower = [rank for rank in own_s if own_s[rank] > target_s * (1 + tolerance)]
    return tuple(sorted(slower, key=lambda rank: (-own_s[rank], rank)))


def plan_for(
    solution: Solution,
    times: Sequence[RankTimes],
    costs: Costs | None = None,
    *,
    reference: Reference = Reference.CURRENT_MEAN,
    pruning_ratio: float | None = None,
    num_senders: int | None = None,
    refine: bool = False,
    is_settled: bool = False,
) -> Plan:
    """Plan as a solution does: algorithms 1 and 2. ValueError where it needs costs and there are none.

    Args:
        solution: any of `COMPARED`: stragglers drop (ZERO) or migrate (MIG) their shares by Eq. 1, or both (SEMI).
        times: of all ranks, as measured.
        costs: of migration, for SEMI without `num_senders` and for refined plans.
        reference: the time with which ZERO compares a straggler; MIG and SEMI take the least.
        pruning_ratio: a constant γ of ZERO's stragglers.
        num_senders: SEMI lets at most so many of the slowest migrate, and the others resize.
        refine: MIG and SEMI level all ranks (`levelled_plan`).
        is_settled: plan as the solution comes to rest while nobody's speed changes (`settled_resizing`).
    """
    if solution is Solution.BASELINE:
        return Plan.plain(len(times))
    if pruning_ratio is not None:
        # A product of half its columns takes more than half its time: un-resized, a rank that drops would look like a
        # straggler for ever. So stragglers are slower by twice the share here.
        slow = stragglers(times, tolerance=2 * SIGNIFICANT_CHANGE)
        return Plan.of_shares([pruning_ratio if rank in slow else 0.0 for rank in range(len(times))])
    if solution is Solution.ZERO:
        settles = is_settled and reference is Reference.CURRENT_MEAN
        return settled_resizing(times) if settles else plan_division(times, 0, reference=reference)
    slow = stragglers(times)
    if num_senders is not None:
        return plan_division(times, min(num_senders, len(slow)))
    if solution is Solution.MIG and not refine:
        return plan_division(times, len(slow))
    if costs is None:
        raise ValueError(f"costs is None; it must be given where solution is {solution}")
    if refine:
        return levelled_plan(times, costs, slow, speed_share=0.0 if solution is Solution.MIG else SPEED_SHARE)
    return plan_semi(times, costs)


def settled_resizing(times: Sequence[RankTimes]) -> Plan:
    """Return the plan at which resizing against the current mean comes to rest (section III-A)."""
    planned_from, plan = list(times), Plan.plain(len(times))
    while True:  # each plan asks for more than the one before
        newer = plan_division(planned_from, 0, reference=Reference.CURRENT_MEAN)
        if newer.is_near(plan):
            return plan
        plan, before = newer, planned_from
        planned_from = [measured.at_work(1 - task.removed) for measured, task in zip(times, plan.ranks, strict=True)]
        if not have_moved(planned_from, before, reference=Reference.CURRENT_MEAN):
            return plan


def plan_division(
    times: Sequence[RankTimes], num_senders: int, *, reference: Reference = Reference.MIN, to_normal: bool = False
) -> Plan:
    """Let the slowest `num_senders` stragglers migrate their shares by Eq. 1, the others drop theirs (IV-B)."""
    slow = stragglers(times, reference)
    require(0 <= num_senders <= len(slow), "num_senders", num_senders, f"in 0..{len(slow)}, the number of stragglers")
    ratios = [ratio if rank in slow else 0.0 for rank, ratio in enumerate(pruning_ratios(times, reference))]
    migrated = [ratio if rank in slow[:num_senders] else 0.0 for rank, ratio in enumerate(ratios)]
    dropped = [ratio - share for ratio, share in zip(ratios, migrated, strict=True)]
    return replace(Plan.of_shares(dropped, migrated), to_normal=to_normal)


def plan_equal_drop(times: Sequence[RankTimes], dropped: float) -> Plan:
    """Let resizing alone drop as much as another plan, in shares of one rank's columns: all stragglers end together."""
    unresized = [rank.unresized() for rank in times]

    def shares(level_s: float) -> list[float]:
        return [pruning_ratio(rank.own_s, level_s, rank.product_s) for rank in unresized]

    slowest_s = max(rank.own_s for rank in unresized)
    require(0 <= dropped <= math.fsum(shares(0.0)), "dropped", dropped, "in [0, all that ranks can drop]")
    return Plan.of_shares(shares(brentq(lambda level_s: math.fsum(shares(level_s)) - dropped, 0.0, slowest_s)))


def plan_semi(times: Sequence[RankTimes], costs: Costs) -> Plan:
    """Plan SEMI-migration: algorithm 2 of section IV-C.

    Eq. 2 splits the share of a single straggler. Of several, as many of the slowest as Eq. 3 says migrate.
    """
    slow = stragglers(times)
    if len(slow) != 1:
        return plan_division(times, num_senders(times, costs))
    removed = pruning_ratios(times, Reference.MIN)[slow[0]]
    migrated, dropped = split_of_one(removed, costs, len(times) - 1)
    return Plan.of_shares(*([share * (rank == slow[0]) for rank in range(len(times))] for share in (dropped, migrated)))


def split_of_one(removed: float, costs: Costs, num_receivers: int) -> tuple[float, float]:
    """Split a straggler's removed share, γ in [0, 1), into (migrated, dropped) so that both cost the same.

    Eq. 2: alloc + extract(r) = communicate(m) + compute(m / (N - 1)), m + r = γ K, N - 1 receivers. There is at most
    one crossing; without one all is migrated if even that costs the others less, else nothing.
    """
    excess_s = _excess_s(removed, costs, num_receivers)
    if excess_s(removed) <= 0:
        return removed, 0.0
    if excess_s(0.0) >= 0:
        return 0.0, removed
    migrated = brentq(excess_s, 0.0, removed, xtol=_PRECISION / 1000)
    return migrated, removed - migrated


def split_of_one_by_definition(removed: float, costs: Costs, num_receivers: int) -> tuple[float, float]:
    """Split as `split_of_one` does, by trying every hundredth of a percent and taking the most even split."""
    excess_s = _excess_s(removed, costs, num_receivers)
    shares = [removed * step / _SCAN_STEPS for step in range(_SCAN_STEPS + 1)]
    migrated = min(shares, key=lambda share: abs(excess_s(share)))
    return migrated, removed - migrated


def _excess_s(removed: float, costs: Costs, num_receivers: int) -> Callable[[float], float]:
    """Return the others' cost of migrating minus the straggler's cost of dropping, a function of the migrated share."""
    require(0 <= removed < 1, "removed", removed, "in [0, 1)")

    def excess_s(migrated: float) -> float:
        others_s = costs.communicate(migrated) + costs.compute(migrated / num_receivers)
        return others_s - costs.alloc_s - costs.extract(max(removed - migrated, 0.0))

    return excess_s


def num_senders(times: Sequence[RankTimes], costs: Costs, *, to_normal: bool = False) -> int:
    """Return x of Eq. 3: the largest number of senders of which the last still saves more than it costs.

    It saves T_x - T_min, as far as its products can. It costs the slowest receiver communicate(V) + compute(V / (N -
    x)) at its own speed, V the volume that all x migrate; other stragglers are receivers, too, but with `to_normal`.
    The paper stops at the first x that does not pay; a larger x can pay again, once a slow receiver sends.
    """
    largest = 0
    for x, straggler in enumerate(stragglers(times), start=1):
        plan = plan_division(times, x, to_normal=to_normal)
        costs_s = max(parts.received_s + parts.transfer_s for parts in rank_parts(times, plan, costs))
        if times[straggler].unresized().product_s * plan.ranks[straggler].removed > costs_s:
            largest = x
    return largest


# --- levelling: all ranks end together, by water-filling on the costs of Eqs. 2 and 3 (ours)
#
# The paper brings senders down to the fastest rank's time, which makes receivers the slowest, and Eq. 2 has one heavy
# straggler drop most of its share.


def levelled_plan(
    times: Sequence[RankTimes], costs: Costs, slowest_first: Sequence[int], *, speed_share: float = SPEED_SHARE
) -> Plan:
    """Plan so that all ranks end together and no more is dropped than `speed_share`, in [0, 1), of the ideal's speed.

    As many of `slowest_first` as turns out best become senders. The fastest plan that drops nothing is returned, if it
    is so fast; else, of the plans that are, the one that drops least, or the fastest where none is.
    """
    require(0 <= speed_share < 1, "speed_share", speed_share, "in [0, 1)")
    fastest_possible_s, search = ideal_s(times), _LevelSearch(times, costs)
    divisions = [tuple(slowest_first[:num_senders]) for num_senders in range(len(slowest_first) + 1)]
    lossless = [search.lossless(senders) for senders in divisions]
    fastest = min(lossless, key=lambda plan: iteration_s(times, plan, costs))
    if speed_share == 0:
        return fastest
    spared_s = max(rank.own_s for number, rank in enumerate(search.times) if number not in slowest_first)
    allowed_s = max(fastest_possible_s / speed_share, spared_s)
    if iteration_s(times, fastest, costs) <= allowed_s:
        return fastest
    plans = [*lossless, *(search.at_level(senders, allowed_s) for senders in divisions)]
    seconds = {plan: iteration_s(times, plan, costs) for plan in plans}
    reached_s = max(allowed_s, min(seconds.values())) * (1 + _NEAR)  # where no plan reaches it, the fastest one's
    return min((plan for plan in plans if seconds[plan] <= reached_s), key=lambda plan: plan.dropped)


class _LevelSearch:
    """Plans of given senders that bring all ranks to one level."""

    def __init__(self, times: Sequence[RankTimes], costs: Costs):
        self.times, self.costs, self.slowness = [rank.unresized() for rank in times], costs, own_speed(times)

    def lossless(self, senders: tuple[int, ...]) -> Plan:
        """Return the plan in which senders migrate until they are as fast as the slowest receiver, and nobody drops."""

        def wanted(volume: float) -> list[float]:
            received_s = self._received_s(senders, volume)
            level_s = max(self.times[rank].own_s + more_s for rank, more_s in received_s.items())
            return [max(min(self._needed(rank, level_s), MOST_REMOVED), LEAST_MIGRATED) for rank in senders]

        volume = _largest(lambda volume: math.fsum(wanted(volume)) - volume, len(senders) * MOST_REMOVED)
        migrated = dict(zip(senders, wanted(volume), strict=True))
        return Plan.of_shares(migrated=[migrated.get(rank, 0.0) for rank in range(len(self.times))])

    def at_level(self, senders: tuple[int, ...], level_s: float) -> Plan:
        """Return the plan in which senders migrate as much as receivers take below a level, and all drop the rest."""

        def levels_and_shares(volume: float) -> tuple[list[float], list[float]]:
            """Return each rank's level for its own columns, and the share that it gives up to reach it."""
            least = LEAST_MIGRATED if volume > 0 else 0.0
            left_s = level_s - (self.costs.communicate_s(volume, len(senders)) if volume > 0 else 0.0)
            received_s = self._received_s(senders, volume)
            levels_s = [left_s - received_s.get(rank, 0.0) for rank in range(len(self.times))]
            shares = [min(self._needed(rank, own_level_s), MOST_REMOVED) for rank, own_level_s in enumerate(levels_s)]
            return levels_s, [max(share, least) if rank in senders else share for rank, share in enumerate(shares)]

        keep_all = [rank for rank, share in enumerate(levels_and_shares(0.0)[1]) if share == 0 and rank not in senders]

        def room(volume: float) -> float:
            levels_s, shares = levels_and_shares(volume)
            spare = [(levels_s[rank] - self.times[rank].own_s) / self.times[rank].product_s for rank in keep_all]
            able = [MOST_REMOVED - self._needed(rank, levels_s[rank]) for rank in senders]
            return min(math.fsum(shares[rank] for rank in senders) - volume, *spare, *able)

        volume = _largest(room, len(senders) * MOST_REMOVED) if senders else 0.0
        _, shares = levels_and_shares(volume)
        wanted = math.fsum(shares[rank] for rank in senders)
        migrated = [share * volume / wanted if rank in senders and wanted else 0.0 for rank, share in enumerate(shares)]
        return Plan.of_shares([max(share - m, 0.0) for share, m in zip(shares, migrated, strict=True)], migrated)

    def _needed(self, rank: int, level_s: float) -> float:
        """Return the share that a rank must give up to end at a level, its cost included; above 1 it cannot."""
        if self.times[rank].own_s <= level_s:
            return 0.0
        excess_s, share = self.times[rank].own_s + self.costs.alloc_s - level_s, 0.0
        for _ in range(_FIXED_POINT_ROUNDS):
            before, share = share, (excess_s + self.costs.extract(share)) / self.times[rank].product_s
            if abs(share - before) < _PRECISION:
                break
        return share

    def _received_s(self, senders: Sequence[int], volume: float) -> dict[int, float]:
        """Return the seconds that each receiver multiplies for others, without communication."""
        compute_s = self.costs.compute_s(volume, len(senders), len(self.times) - len(senders)) if volume > 0 else 0.0
        return {rank: compute_s * self.slowness[rank] for rank in range(len(self.times)) if rank not in senders}


def _largest(room: Callable[[float], float], most: float) -> float:
    """Return the largest number in [0, most], to a precision, that leaves room: as the number rises, room falls."""
    if room(most) >= 0:
        return most
    if room(0.0) <= 0:
        return 0.0
    return max(brentq(room, 0.0, most, xtol=_PRECISION / 2) - _PRECISION / 2, 0.0)
