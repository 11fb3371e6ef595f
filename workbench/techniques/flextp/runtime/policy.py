"""The user's decisions about balancing, the planner that follows from them, and each rank's choice of columns."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor

from workbench.parallel.seeds import generator_for

from ..method import planners, resizing
from ..method.plan import Costs, Imputation, Option, Plan, RankPlan, RankTimes, Scheme, Selection, Solution, require
from ..method.planners import Reference
from ..method.resizing import ColumnStatistics, num_dropped_columns

Planner = Callable[[Sequence[RankTimes]], Plan]  # times of all ranks -> their plan; the same for the same times


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """How to balance; section V-A names the solutions."""

    solution: Solution = Solution.SEMI  # how stragglers are helped
    selection: Selection = Selection.PRIORITY  # which columns are dropped; whether layers have ratios of their own
    pruning_ratio: int | float | None = None  # a constant γ in [0, 1) for ZERO; None follows Eq. 1
    plan: Plan | None = None  # the plan of GIVEN, None otherwise (the paper's figures 5 and 6, and its table I)
    refine: bool = False  # SEMI and MIG level all ranks (`levelled_plan`)
    num_senders: int | None = None  # of the slowest, with SEMI (figure 11); None lets Eqs. 2 and 3 say
    reference: Reference = Reference.CURRENT_MEAN  # of ZERO; SEMI and MIG compare with the least time
    imputation: Imputation = Imputation.ZERO  # in dropped columns of gradients
    scheme: Scheme = Scheme.BROADCAST_REDUCE  # how migrated columns travel
    # Iterations whose times are handed out together, and of which a rank's median counts. In the paper 1: a single
    # disturbed iteration makes a straggler.
    patience: int = 1
    micro_threshold: int | float = 0.0  # θ_micro, for ratios by layer (`method.resizing.micro_threshold`)
    iterations_per_epoch: int = 100  # after as many, statistics are renewed and columns chosen anew
    is_incremental: bool = True  # dropped columns keep their statistics; False shows the endless loop
    seed: int = 0  # of random choices

    def __post_init__(self) -> None:
        for declared in fields(self):
            kind: Any = declared.type
            value = getattr(self, declared.name)
            if isinstance(kind, type) and issubclass(kind, Option):
                object.__setattr__(self, declared.name, kind(value))
            else:
                require(isinstance(value, kind), declared.name, value, f"of type {getattr(kind, '__name__', kind)}")
        solution, ratio, senders, refine = self.solution, self.pruning_ratio, self.num_senders, self.refine
        is_empirical = self.selection is Selection.DIFFERENTIATED_EMPIRICAL
        is_whole = refine or solution is Solution.GIVEN  # ratios by layer drop another share than planned
        are_possible = senders is None or (solution is Solution.SEMI and senders >= 0 and not refine)
        for field, holds, rule in (
            ("pruning_ratio", ratio is None or 0 <= ratio < 1, "in [0, 1)"),
            ("patience", self.patience >= 1, "at least 1"),
            ("micro_threshold", 0 <= self.micro_threshold < math.inf, "finite and 0 or more"),
            ("iterations_per_epoch", self.iterations_per_epoch >= 1, "at least 1"),
            ("pruning_ratio", ratio is None or solution is Solution.ZERO, f"None with {solution}"),
            ("plan", (self.plan is not None) == (solution is Solution.GIVEN), "given with given, and only there"),
            ("pruning_ratio", ratio is not None or not is_empirical, "in [0, 1) where selection is PriDiffE"),
            ("num_senders", are_possible, "None, or 0 or more where solution is SEMI and refine is False"),
            ("refine", not refine or solution in (Solution.MIG, Solution.SEMI), f"False where solution is {solution}"),
            ("selection", not (is_whole and self.selection.is_differentiated), "Rd or Pri with refine or a plan"),
        ):
            require(holds, field, self.selection.value if field == "selection" else getattr(self, field), rule)


def needs_costs(policy: Policy) -> bool:
    """Return whether plans depend on a pre-test: on migration's cost, or on the fixed part of products."""
    return policy.solution is Solution.SEMI or policy.refine


def check_policy(policy: Policy, num_ranks: int) -> None:
    """Refuse a policy that asks for more senders than num_ranks - 1, or has a plan for other ranks."""
    if policy.plan is not None:
        require(not policy.plan.to_normal, "to_normal of plan", True, "False on ranks")
        require(policy.plan.num_ranks == num_ranks, "plan", policy.plan, f"of the group's {num_ranks} ranks")
    senders = policy.num_senders
    require(senders is None or senders < num_ranks, "num_senders", senders, f"at most {num_ranks - 1}")


def planner_of(policy: Policy, num_ranks: int, costs: Costs | None = None, **more: Any) -> Planner:
    """Return the planner of a policy; `more` goes to `plan_for`."""
    if num_ranks == 1 or policy.solution is Solution.GIVEN:
        return lambda times: policy.plan or Plan.plain(num_ranks)
    more |= {name: getattr(policy, name) for name in ("reference", "pruning_ratio", "num_senders", "refine")}
    return lambda times: planners.plan_for(policy.solution, times, costs, **more)


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """The removed columns of a rank in one layer: int64 indices."""

    dropped: Tensor
    migrated: Tensor


class ColumnChooser:
    """Chooses columns of one rank, by shard [O, K]: the head of a priority list drops, the next ones migrate."""

    def __init__(self, weights: Sequence[Tensor], policy: Policy, rank: int):
        self._policy, self._is_trained = policy, [weight.requires_grad for weight in weights]
        self._generator = generator_for(policy.seed, f"flextp.columns.{rank}")
        drops = policy.solution not in (Solution.BASELINE, Solution.MIG)
        self._selection = policy.selection if drops else Selection.RANDOM  # any columns may migrate: nothing is lost
        if self._selection.is_differentiated and not policy.micro_threshold:
            rule = f"above 0 where selection is {self._selection.value}, as `method.resizing.micro_threshold` gives one"
            raise ValueError(f"micro_threshold is 0; it must be {rule}")
        self._needs_statistics = self._selection is not Selection.RANDOM
        watched = weights if self._needs_statistics else [weight[:0] for weight in weights]
        self._statistics = [ColumnStatistics(weight, is_incremental=policy.is_incremental) for weight in watched]
        self._was_dropped = [torch.zeros(weight.shape[1], dtype=torch.bool, device=weight.device) for weight in weights]
        self._renew_lists()

    def _renew_lists(self) -> None:
        order = partial(resizing.priority_list, selection=self._selection, generator=self._generator)
        self._lists = list(map(order, self._statistics))

    def choose(self, plan: RankPlan) -> list[Columns]:
        """Choose columns of every layer; nothing is drawn, so that equal plans within an epoch choose the same."""
        ratios, policy = [plan.dropped] * len(self._lists), self._policy
        if self._selection.is_differentiated:
            threshold = policy.iterations_per_epoch * policy.micro_threshold  # θ of section III-B
            # A frozen weight has no candidates: it may not move.
            pairs = zip(self._statistics, self._is_trained, strict=True)
            shares = [resizing.candidate_share(stats, threshold) if trained else 0.0 for stats, trained in pairs]
            is_mean = self._selection is Selection.DIFFERENTIATED_MEAN
            ratios = (resizing.mean_ratios if is_mean else resizing.layer_ratios)(shares, plan.dropped)
        chosen = []
        for order, ratio, was_dropped in zip(self._lists, ratios, self._was_dropped, strict=True):
            # Every rank knows the number of migrated columns from the plan alone.
            num_migrated = num_dropped_columns(plan.migrated, len(order))
            num_dropped = min(num_dropped_columns(ratio, len(order)), len(order) - 1 - num_migrated)
            dropped = order[:num_dropped].sort().values
            was_dropped[dropped] = True
            chosen.append(Columns(dropped=dropped, migrated=order[num_dropped : num_dropped + num_migrated]))
        return chosen

    def close_epoch(self, weights: Sequence[Tensor]) -> None:
        """Renew the statistics from the weights as they are now, and draw new priority lists."""
        self._is_trained = [weight.requires_grad for weight in weights]
        for statistics, weight, dropped in zip(self._statistics, weights, self._was_dropped, strict=True):
            if self._needs_statistics:
                statistics.update_(weight, dropped.nonzero().squeeze(-1))
            dropped.zero_()
        self._renew_lists()

    def state_dict(self) -> dict[str, Any]:
        """Return statistics, lists, and where the random stream is; tensors are the chooser's own, as torch's are."""
        return {
            "generator": self._generator.get_state(),
            "is_trained": list(self._is_trained),
            "lists": list(self._lists),
            "was_dropped": list(self._was_dropped),
            "change": [statistics.change for statistics in self._statistics],
            "then": [statistics.then_OK for statistics in self._statistics],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; its tensors are copied."""
        self._generator.set_state(state["generator"].cpu())
        self._is_trained = list(state["is_trained"])
        for tensors, name in ((self._lists, "lists"), (self._was_dropped, "was_dropped")):
            tensors[:] = [new.to(current.device, copy=True) for current, new in zip(tensors, state[name], strict=True)]
        for statistics, change, then_OK in zip(self._statistics, state["change"], state["then"], strict=True):
            statistics.change = change.to(statistics.change.device, copy=True)
            statistics.then_OK.copy_(then_OK)
