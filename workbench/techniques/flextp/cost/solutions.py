"""An epoch of Baseline, ZERO, MIG and SEMI under stragglers, from the model's times and costs, and a map of who wins.

The model stands in for measured times and for a pre-test; planners and the time of an iteration are the method's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from workbench.cluster import FittedMachine
from workbench.models import Workload

from ..method import planners
from ..method.costs import Costs, PiecewiseLinear, ideal_s, iteration_s, rank_s
from ..method.plan import COMPARED, Plan, RankPlan, RankTimes, Scheme, Solution, require
from ..method.planners import Reference
from .iteration import VIT_1B, extraction_s, iteration_parts, migration_time, paper_machine

__all__ = [
    "ENOUGH",
    "MARGIN",
    "MapPoint",
    "PlannedEpoch",
    "division_epochs",
    "epoch_of_plan",
    "epoch_time_s",
    "model_costs",
    "model_times",
    "planned_epoch",
    "winner_map",
    "winner_of",
]

LEAST_SHARE = 1e-9  # of columns: what travels whole travels as soon as any column migrates


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedEpoch:
    """An epoch under one plan."""

    plan: Plan  # what each rank drops and migrates
    time_s: float  # seconds
    own_s: tuple[float, ...]  # seconds that each rank is busy, in rank order; the others wait for the slowest

    @property
    def dropped_share(self) -> float:
        """Share of all ranks' products that nobody computes: the price in accuracy, as far as time can tell."""
        return math.fsum(rank.dropped for rank in self.plan.ranks) / self.plan.num_ranks

    @property
    def waiting_s(self) -> tuple[float, ...]:
        """Seconds that each rank waits for the slowest."""
        return tuple(self.time_s - own_s for own_s in self.own_s)


def epoch_time_s(solution: Solution | str, skewness: Mapping[int, float] | None = None, **more: Any) -> float:
    """Return the seconds of an epoch; arguments as for `planned_epoch`."""
    return planned_epoch(solution, skewness, **more).time_s


def planned_epoch(
    solution: Solution | str,
    skewness: Mapping[int, float] | None = None,
    *,
    workload: Workload = VIT_1B,
    machine: FittedMachine | None = None,
    pruning_ratio: float | None = None,
    reference: Reference = Reference.CURRENT_MEAN,
    refine: bool = False,
) -> PlannedEpoch:
    """Plan and time an epoch.

    Args:
        solution: Baseline, ZERO, MIG or SEMI.
        skewness: of the stragglers by rank, each at least 1; other ranks are normal.
        workload: model and batch.
        machine: the paper's, if none is given.
        pruning_ratio: a constant γ of ZERO for the stragglers, or for every rank where there is none (figures 5 to 8).
        reference: the time with which Eq. 1 compares a straggler under ZERO.
        refine: MIG and SEMI level all ranks instead of following the paper (`levelled_plan`).
    """
    machine = paper_machine() if machine is None else machine
    times = model_times(skewness or {}, workload, machine)
    costs = model_costs(workload, machine, times)
    plan = _plan(Solution(solution), times, costs, pruning_ratio, reference, refine)
    return epoch_of_plan(plan, skewness, workload=workload, machine=machine)


def epoch_of_plan(
    plan: Plan,
    skewness: Mapping[int, float] | None = None,
    *,
    workload: Workload = VIT_1B,
    machine: FittedMachine | None = None,
) -> PlannedEpoch:
    """Time an epoch under a given plan; arguments as for `planned_epoch`."""
    machine = paper_machine() if machine is None else machine
    times = model_times(skewness or {}, workload, machine)
    costs = model_costs(workload, machine, times, num_senders=max(1, len(plan.senders)))
    return PlannedEpoch(
        plan=plan,
        time_s=workload.num_iterations * iteration_s(times, plan, costs),
        own_s=tuple(workload.num_iterations * own_s for own_s in rank_s(times, plan, costs)),
    )


def division_epochs(
    skewness: Mapping[int, float], *, workload: Workload = VIT_1B, machine: FittedMachine | None = None
) -> tuple[PlannedEpoch, ...]:
    """Time every division of several stragglers: the slowest x migrate, the others resize (figure 11)."""
    machine = paper_machine() if machine is None else machine
    times = model_times(skewness, workload, machine)
    plans = [planners.plan_division(times, num_senders) for num_senders in range(len(planners.stragglers(times)) + 1)]
    return tuple(epoch_of_plan(plan, skewness, workload=workload, machine=machine) for plan in plans)


def model_times(skewness: Mapping[int, float], workload: Workload, machine: FittedMachine) -> tuple[RankTimes, ...]:
    """Return each rank's times of a plain iteration; a skewness multiplies the products of linear layers alone."""
    if strange := [rank for rank in skewness if rank not in range(machine.num_devices)]:
        raise ValueError(f"skewness has rank {strange[0]!r}; ranks are 0..{machine.num_devices - 1}")
    for rank, value in skewness.items():
        if not 1 <= value < math.inf:
            raise ValueError(f"skewness of rank {rank} is {value!r}; it must be finite and at least 1")
    parts = iteration_parts(workload, machine)
    products_s = [parts.product_s * skewness.get(rank, 1.0) for rank in range(machine.num_devices)]
    return tuple(RankTimes(own_s=parts.other_s + each_s, product_s=each_s) for each_s in products_s)


def model_costs(
    workload: Workload, machine: FittedMachine, times: Sequence[RankTimes], *, num_senders: int = 1
) -> Costs:
    """Return the costs that a pre-test would measure; received columns are multiplied as fast as on the fastest rank.

    `num_senders` share the receivers, so that each costs less than one alone.
    """

    def transfer_s(share: float) -> float:
        place = {"num_senders": num_senders, "migrated_share": share}
        return migration_time(Scheme.BROADCAST_REDUCE, workload, machine, **place).transfer_s / num_senders

    ends = (0.0, 1.0)  # of one sender's columns: broadcast-reduce is a straight line between nothing and everything
    return Costs(
        alloc_s=0.0,
        extract=PiecewiseLinear(shares=(0.5,), seconds=(extraction_s(workload, machine, 0.5),)),
        communicate=PiecewiseLinear(shares=ends, seconds=(transfer_s(LEAST_SHARE), transfer_s(1.0))),
        compute=PiecewiseLinear.straight(min(each.product_s for each in times)),
    )


def _plan(
    solution: Solution,
    times: Sequence[RankTimes],
    costs: Costs,
    pruning_ratio: float | None,
    reference: Reference,
    refine: bool,
) -> Plan:
    if solution is Solution.GIVEN:
        raise ValueError(f"solution is {str(solution)!r}, must not be; time a given plan with epoch_of_plan")
    if pruning_ratio is not None:
        return _pruned(solution, times, pruning_ratio)
    if solution is Solution.BASELINE:
        return Plan.plain(len(times))
    if solution is Solution.ZERO:
        is_settled = reference is Reference.CURRENT_MEAN
        return planners.settled_resizing(times) if is_settled else planners.plan_resizing(times, reference)
    planner = planners.plan_migration if solution is Solution.MIG else planners.plan_semi
    return planner(times, costs, refine=refine)


def _pruned(solution: Solution, times: Sequence[RankTimes], pruning_ratio: float) -> Plan:
    if solution is not Solution.ZERO:
        raise ValueError(f"pruning_ratio is {pruning_ratio!r}; only ZERO takes one, solution is {str(solution)!r}")
    fastest_s = min(each.own_s for each in times)
    everywhere = all(each.own_s == fastest_s for each in times)
    pruned = RankPlan(dropped=pruning_ratio)
    return Plan(ranks=tuple(pruned if everywhere or each.own_s > fastest_s else RankPlan() for each in times))


# --- who wins

ENOUGH = 0.75  # of the ideal's speed; ours: below what SEMI's levelled plans aim at
MARGIN = 0.02  # of the fastest epoch's time: what the model tells apart no better, as table I shows

_MEANS = MappingProxyType(
    {(False, False): "nothing", (True, False): "resizing", (False, True): "migration", (True, True): "both"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class MapPoint:
    """One place of the map of who wins."""

    skewness: float  # of every straggler
    num_stragglers: int  # ranks that are slow
    bandwidth_bytes_per_s: float  # of the link between any two ranks
    epochs: MappingProxyType[Solution, PlannedEpoch]  # of every solution
    ideal_s: float  # seconds of an epoch if columns moved for nothing and none were dropped
    winner: Solution  # by `winner_of`

    @property
    def means(self) -> str:
        """What the winner's plan does: "nothing", "resizing", "migration" or "both"."""
        ranks = self.epochs[self.winner].plan.ranks
        return _MEANS[any(each.dropped > 0 for each in ranks), any(each.migrated > 0 for each in ranks)]


def winner_map(
    *,
    skewnesses: Sequence[float],
    nums_stragglers: Sequence[int],
    bandwidths_bytes_per_s: Sequence[float],
    workload: Workload = VIT_1B,
    machine: FittedMachine | None = None,
    refine: bool = False,
    speed_share: float = ENOUGH,
) -> tuple[MapPoint, ...]:
    """Return the winner at every combination; ranks from 0 on are slow, and all-reduces use the given bandwidth, too.

    `speed_share` in [0, 1] is the share of the ideal's speed that a solution has to reach; the other arguments are
    those of `planned_epoch`.
    """
    machine = paper_machine() if machine is None else machine
    if strange := [number for number in nums_stragglers if not 0 <= number < machine.num_devices]:
        raise ValueError(f"nums_stragglers has {strange[0]!r}; each must be in 0..{machine.num_devices - 1}")
    require(0 <= speed_share <= 1, "speed_share", speed_share, "in [0, 1]")
    return tuple(
        _point(machine.with_bandwidth(bandwidth), skewness, number, workload, refine, speed_share)
        for bandwidth in bandwidths_bytes_per_s
        for number in nums_stragglers
        for skewness in skewnesses
    )


def winner_of(epochs: Mapping[Solution, PlannedEpoch], allowed_s: float, margin: float = MARGIN) -> Solution:
    """Return the solution that drops least among the fast enough ones; of equals the first, so simpler ones come first.

    Where no epoch takes at most `allowed_s`, `margin` is the share by which it may exceed the fastest.
    """
    allowed_s = max(allowed_s, min(epoch.time_s for epoch in epochs.values()) * (1 + margin))
    enough = [solution for solution, epoch in epochs.items() if epoch.time_s <= allowed_s]
    return min(enough, key=lambda solution: epochs[solution].dropped_share)


def _point(
    machine: FittedMachine, skewness: float, num_stragglers: int, workload: Workload, refine: bool, speed_share: float
) -> MapPoint:
    slow = dict.fromkeys(range(num_stragglers), skewness)
    how = {"workload": workload, "machine": machine, "refine": refine}
    epochs = {solution: planned_epoch(solution, slow, **how) for solution in COMPARED}
    best_s = workload.num_iterations * ideal_s(model_times(slow, workload, machine))
    return MapPoint(
        skewness=skewness,
        num_stragglers=num_stragglers,
        bandwidth_bytes_per_s=machine.link.bandwidth_bytes_per_s,
        epochs=MappingProxyType(epochs),
        ideal_s=best_s,
        winner=winner_of(epochs, best_s / speed_share if speed_share else math.inf),
    )
