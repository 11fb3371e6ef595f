"""An epoch of Baseline, ZERO, MIG and SEMI under stragglers, from the model's times and costs.

What: the model gives each rank the times that it would measure and the costs that a pre-test would; the method's own
planners turn them into a plan, and the method's own model of an iteration into seconds.
Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section V-A for the solutions,
figures 5 to 11 for what is varied.
Resizing alone follows the current mean, renewed whenever a rank's own time has moved by a tenth, and the epoch is that
of the plan at which this comes to rest (a few iterations of several hundred); compared with the mean as it was before
anybody dropped anything, the literal reading of Eq. 1, no more than `method.ratio.speedup_bound` can be gained.
Simplified: columns migrate by broadcast-reduce; a pre-test measures one sender, and the epoch then takes what as many
senders as the plan has cost; taking columns out costs what it costs for half of them; products take time in proportion
to their columns, where a pre-test finds a part that they take however narrow.
Left out: which columns are dropped, and so PriDiff's ratios by layer; accuracy, of which the share of products that
are dropped is all that a model of time can say.

Units: seconds of an epoch; shares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..method.costs import Costs, PiecewiseLinear, iteration_s, rank_s
from ..method.plan import Plan, RankPlan, RankTimes, Scheme, Solution
from ..method.planners import (
    Reference,
    plan_division,
    plan_migration,
    plan_resizing,
    plan_semi,
    settled_resizing,
    stragglers,
)
from .iteration import extraction_s, iteration_parts
from .machine import FlexMachine
from .migration import migration_time
from .table_1 import paper_machine
from .workload import VIT_1B, Workload

__all__ = [
    "PlannedEpoch",
    "division_epochs",
    "epoch_of_plan",
    "epoch_time_s",
    "model_costs",
    "model_times",
    "planned_epoch",
]

LEAST_SHARE = 1e-9  # of columns: what travels whole travels as soon as any column migrates


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedEpoch:
    """An epoch under one plan.

    Attributes:
        plan: what each rank drops and migrates.
        time_s: seconds.
        own_s: seconds that each rank is busy, in rank order; the slowest is `time_s`, others wait for the rest.
    """

    plan: Plan
    time_s: float
    own_s: tuple[float, ...]

    @property
    def dropped_share(self) -> float:
        """Share of all ranks' products that nobody computes: the price in accuracy, as far as time can tell."""
        return math.fsum(rank.dropped for rank in self.plan.ranks) / self.plan.num_ranks

    @property
    def waiting_s(self) -> tuple[float, ...]:
        """Seconds that each rank waits for the slowest."""
        return tuple(self.time_s - own_s for own_s in self.own_s)


def epoch_time_s(
    solution: Solution | str,
    skewness: Mapping[int, float] | None = None,
    *,
    workload: Workload = VIT_1B,
    machine: FlexMachine | None = None,
    pruning_ratio: float | None = None,
    reference: Reference = Reference.CURRENT_MEAN,
    refine: bool = False,
) -> float:
    """Return the seconds of an epoch; `planned_epoch` says the plan as well and has the arguments."""
    how = {"pruning_ratio": pruning_ratio, "reference": reference, "refine": refine}
    return planned_epoch(solution, skewness, workload=workload, machine=machine, **how).time_s


def planned_epoch(
    solution: Solution | str,
    skewness: Mapping[int, float] | None = None,
    *,
    workload: Workload = VIT_1B,
    machine: FlexMachine | None = None,
    pruning_ratio: float | None = None,
    reference: Reference = Reference.CURRENT_MEAN,
    refine: bool = False,
) -> PlannedEpoch:
    """Plan and time an epoch.

    Args:
        solution: Baseline, ZERO, MIG or SEMI.
        skewness: of the stragglers by rank, each at least 1; ranks that it does not name are normal.
        workload: model and batch.
        machine: the paper's, if none is given.
        pruning_ratio: ZERO's, for the stragglers, or for every rank where there is none (figures 5 to 8); without it
            Eq. 1 says it.
        reference: what Eq. 1 compares a straggler with under ZERO: the current mean until plans come to rest, or once
            the mean or the least of what ranks take with all their columns.
        refine: MIG and SEMI level all ranks instead of following the paper (`method.levelling`).

    Raises:
        ValueError: for a rank that does not exist, a skewness below 1, a ratio outside [0, 1) or without ZERO.
    """
    machine = paper_machine() if machine is None else machine
    times = model_times(skewness or {}, workload, machine)
    costs = model_costs(workload, machine, times)
    how = {"pruning_ratio": pruning_ratio, "reference": reference, "refine": refine}
    plan = _plan(_checked_solution(solution), times, costs, **how)
    return epoch_of_plan(plan, skewness, workload=workload, machine=machine)


def epoch_of_plan(
    plan: Plan,
    skewness: Mapping[int, float] | None = None,
    *,
    workload: Workload = VIT_1B,
    machine: FlexMachine | None = None,
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
    skewness: Mapping[int, float], *, workload: Workload = VIT_1B, machine: FlexMachine | None = None
) -> tuple[PlannedEpoch, ...]:
    """Time every division of several stragglers: the slowest x migrate, the others resize, for x from 0 to all.

    Args:
        skewness, workload, machine: as for `planned_epoch`.

    Source: figure 11.
    """
    machine = paper_machine() if machine is None else machine
    times = model_times(skewness, workload, machine)
    plans = [plan_division(times, num_senders) for num_senders in range(len(stragglers(times)) + 1)]
    return tuple(epoch_of_plan(plan, skewness, workload=workload, machine=machine) for plan in plans)


def model_times(skewness: Mapping[int, float], workload: Workload, machine: FlexMachine) -> tuple[RankTimes, ...]:
    """Return what every rank would measure in a plain iteration.

    Args:
        skewness: by rank; products of linear layers, and nothing else, take that many times as long.
        workload, machine: as for `planned_epoch`.

    Raises:
        ValueError: for a rank that does not exist, or a skewness below 1.
    """
    if strange := [rank for rank in skewness if rank not in range(machine.num_ranks)]:
        raise ValueError(f"skewness has rank {strange[0]!r}; ranks are 0..{machine.num_ranks - 1}")
    for rank, value in skewness.items():
        if not 1 <= value < math.inf:
            raise ValueError(f"skewness of rank {rank} is {value!r}; it must be finite and at least 1")
    parts = iteration_parts(workload, machine)
    products_s = [parts.product_s * skewness.get(rank, 1.0) for rank in range(machine.num_ranks)]
    return tuple(RankTimes(own_s=parts.other_s + each_s, product_s=each_s) for each_s in products_s)


def model_costs(workload: Workload, machine: FlexMachine, times: Sequence[RankTimes], *, num_senders: int = 1) -> Costs:
    """Return the costs that a pre-test would measure.

    Args:
        workload, machine: as for `planned_epoch`.
        times: of all ranks; the fastest is the one whose products on received columns are measured.
        num_senders: how many there will be; they share receivers, so that each costs less than one alone.
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
    *,
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
        return settled_resizing(times) if reference is Reference.CURRENT_MEAN else plan_resizing(times, reference)
    planner = plan_migration if solution is Solution.MIG else plan_semi
    return planner(times, costs, refine=refine)


def _pruned(solution: Solution, times: Sequence[RankTimes], pruning_ratio: float) -> Plan:
    if solution is not Solution.ZERO:
        raise ValueError(f"pruning_ratio is {pruning_ratio!r}; only ZERO takes one, solution is {str(solution)!r}")
    fastest_s = min(each.own_s for each in times)
    everywhere = all(each.own_s == fastest_s for each in times)
    pruned = RankPlan(dropped=pruning_ratio)
    return Plan(ranks=tuple(pruned if everywhere or each.own_s > fastest_s else RankPlan() for each in times))


def _checked_solution(solution: Solution | str) -> Solution:
    try:
        return Solution(solution)
    except ValueError:
        known = ", ".join(repr(str(each)) for each in Solution)
        raise ValueError(f"solution is {solution!r}; it must be one of {known}") from None
