"""The user's decisions about balancing, and the planner that follows from them, which rank 0 calls for all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ..method import planners
from ..method.costs import Costs
from ..method.plan import Plan, RankPlan, RankTimes, Scheme, Solution, require
from ..method.planners import SIGNIFICANT_CHANGE, SPEED_SHARE, Reference
from ..method.priority import DECAY, Selection
from ..method.resizing import Imputation

__all__ = ["Planner", "Policy", "check_policy", "needs_costs", "planner_of"]

Planner = Callable[[Sequence[RankTimes]], Plan]  # times of all ranks -> their plan; the same for the same times


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """How to balance; section V-A names the solutions."""

    solution: Solution = Solution.SEMI  # how stragglers are helped
    selection: Selection = Selection.PRIORITY  # which columns are dropped; whether layers have ratios of their own
    pruning_ratio: float | None = None  # a constant γ in [0, 1) for ZERO; None follows Eq. 1
    plan: Plan | None = None  # the plan of GIVEN, None otherwise (the paper's figures 5 and 6, and its table I)
    # SEMI and MIG level all ranks instead of bringing senders down to the fastest one's time (ours). Ratios by layer
    # are then refused: they drop another share than is planned.
    refine: bool = False
    # With `refine`, SEMI drops no more than it must to reach this share of a free, lossless balance's speed.
    speed_share: float = SPEED_SHARE
    # With SEMI, how many of the slowest migrate while the others resize (figure 11); None lets Eqs. 2 and 3 say.
    num_senders: int | None = None
    reference: Reference = Reference.CURRENT_MEAN  # of ZERO; SEMI and MIG compare with the least time
    imputation: Imputation = Imputation.ZERO  # in dropped columns of gradients
    scheme: Scheme = Scheme.BROADCAST_REDUCE  # how migrated columns travel
    # Share by which a rank's own time must move before all plan anew. Ours: also the share by which it must exceed the
    # reference before the rank counts as a straggler, with a constant γ twice that share, since times are never quite
    # equal and a rank that drops looks slower than it is.
    threshold: float = SIGNIFICANT_CHANGE
    # Iterations whose times are handed out together, and of which a rank's median counts, so that a straggler is helped
    # after half to one and a half times as many. In the paper 1: a single disturbed iteration makes a straggler.
    patience: int = 1
    decay: float = DECAY  # a, share of γ that every layer drops at least, where layers have ratios of their own
    # θ_micro, weight change an iteration below which a column may be dropped beyond that; needed for ratios by layer
    # (`method.priority.micro_threshold` gives one for a learning rate).
    micro_threshold: float = 0.0
    iterations_per_epoch: int = 100  # after as many, statistics are renewed and columns chosen anew
    is_incremental: bool = True  # dropped columns keep their statistics; False shows the endless loop
    seed: int = 0  # of random choices

    def __post_init__(self) -> None:
        kinds = {"solution": Solution, "scheme": Scheme, "selection": Selection, "reference": Reference}
        for field, kind in (*kinds.items(), ("imputation", Imputation)):
            object.__setattr__(self, field, kind(getattr(self, field)))
        self._check_types()
        self._check_ranges()
        if self.pruning_ratio is not None and self.solution is not Solution.ZERO:
            raise ValueError(f"pruning_ratio is {self.pruning_ratio}; it must be None with {self.solution}")
        if (self.plan is not None) != (self.solution is Solution.GIVEN):
            raise ValueError(f"plan is {self.plan}; it must be given with {Solution.GIVEN}, and only there")
        if self.selection is Selection.DIFFERENTIATED_EMPIRICAL and self.pruning_ratio is None:
            raise ValueError("pruning_ratio is None; it must be in [0, 1) where selection is PriDiffE")
        if self.num_senders is not None and (self.solution is not Solution.SEMI or self.num_senders < 0):
            raise ValueError(f"num_senders is {self.num_senders}; it must be None, or 0 or more where solution is SEMI")
        if self.refine and self.solution not in (Solution.MIG, Solution.SEMI):
            raise ValueError(f"refine is True; it must be False where solution is {self.solution}")
        if self.refine and self.selection.is_differentiated:
            raise ValueError(f"selection is {self.selection.value}; it must be Rd or Pri where refine is True")
        if self.refine and self.num_senders is not None:
            raise ValueError(f"num_senders is {self.num_senders}; it must be None where refine is True")

    def _check_types(self) -> None:
        for field in ("num_senders", "patience", "iterations_per_epoch", "seed"):
            value = getattr(self, field)
            is_whole = isinstance(value, int) or (field, value) == ("num_senders", None)
            require(is_whole, field, value, "a whole number")
        for field in ("pruning_ratio", "speed_share", "threshold", "decay", "micro_threshold"):
            value = getattr(self, field)
            is_number = isinstance(value, int | float) or (field, value) == ("pruning_ratio", None)
            require(is_number, field, value, "a number")
        require(isinstance(self.plan, Plan | None), "plan", self.plan, "a Plan or None")

    def _check_ranges(self) -> None:
        rules = (
            ("pruning_ratio", self.pruning_ratio is None or 0 <= self.pruning_ratio < 1, "in [0, 1)"),
            ("threshold", 0 < self.threshold < math.inf, "finite and above 0"),
            ("patience", self.patience >= 1, "at least 1"),
            ("micro_threshold", 0 <= self.micro_threshold < math.inf, "finite and 0 or more"),
            ("speed_share", 0 <= self.speed_share < 1, "in [0, 1)"),
            ("decay", 0 <= self.decay <= 1, "in [0, 1]"),
            ("iterations_per_epoch", self.iterations_per_epoch >= 1, "at least 1"),
        )
        for field, holds, rule in rules:
            require(holds, field, getattr(self, field), rule)


def needs_costs(policy: Policy) -> bool:
    """Return whether plans depend on a pre-test: on migration's cost, or on the fixed part of products.

    Plans of ZERO and of the paper's MIG do not. Plans of SEMI do also where the number of senders is given.
    """
    return policy.solution is Solution.SEMI or policy.refine


def check_policy(policy: Policy, num_ranks: int) -> None:
    """Refuse a policy that asks for more senders than num_ranks - 1, or has a plan for other ranks."""
    if policy.plan is not None and policy.plan.num_ranks != num_ranks:
        raise ValueError(f"plan is of {policy.plan.num_ranks} ranks; it must be of the group's {num_ranks}")
    if policy.num_senders is not None and policy.num_senders > num_ranks - 1:
        raise ValueError(f"num_senders is {policy.num_senders}; it must be at most {num_ranks - 1}")


def planner_of(policy: Policy, num_ranks: int, costs: Costs | None = None) -> Planner:
    """Return the planner of a policy: algorithms 1 and 2; ValueError where it needs costs and there are none."""
    check_policy(policy, num_ranks)
    if num_ranks == 1 or policy.solution in (Solution.BASELINE, Solution.GIVEN):
        return lambda times: policy.plan or Plan.plain(num_ranks)
    if needs_costs(policy) and policy.num_senders is None and costs is None:
        raise ValueError(f"costs is None; it must be given where solution is {policy.solution}")
    if policy.solution is Solution.ZERO and policy.pruning_ratio is not None:
        return partial(_constant, policy)
    if policy.num_senders is not None:
        return partial(_divided, policy)
    tolerance = policy.threshold
    if policy.solution is Solution.ZERO:
        return partial(planners.plan_resizing, reference=policy.reference, tolerance=tolerance)
    if policy.solution is Solution.MIG:
        return partial(planners.plan_migration, costs=costs, refine=policy.refine, tolerance=tolerance)
    options = {"refine": policy.refine, "speed_share": policy.speed_share, "tolerance": tolerance}
    return partial(planners.plan_semi, costs=costs, **options)


def _divided(policy: Policy, times: Sequence[RankTimes]) -> Plan:
    """Let a given number of stragglers migrate, as far as there are so many at the moment."""
    num_senders = min(policy.num_senders, len(planners.stragglers(times, tolerance=policy.threshold)))
    return planners.plan_division(times, num_senders, tolerance=policy.threshold)


def _constant(policy: Policy, times: Sequence[RankTimes]) -> Plan:
    """Drop a constant share on every rank that is a straggler by twice the threshold.

    A product of half its columns takes more than half its time: un-resized, a rank that drops would look like a
    straggler for ever.
    """
    slow = planners.stragglers(times, tolerance=2 * policy.threshold)
    dropped = RankPlan(dropped=policy.pruning_ratio)
    return Plan(ranks=tuple(dropped if rank in slow else RankPlan() for rank in range(len(times))))
