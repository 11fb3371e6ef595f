"""Which columns a local rank drops and migrates in every layer, for one plan.

What: one `ColumnChooser` a local rank keeps the statistics of its weight shards and a priority list for each, renewed
once an epoch; the head of a list is dropped, what follows is migrated.
Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section III-B.
Simplified: the paper does not say which columns migrate; any would do, since nothing of them is lost.
Left out: statistics of the inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.parallel.seeds import generator_for

from ..method.plan import RankPlan
from ..method.priority import (
    ColumnStatistics,
    Selection,
    candidate_share,
    change_threshold,
    first_columns,
    layer_ratios,
    priority_list,
)
from ..method.resizing import num_dropped_columns
from ..method.solution import Solution
from .policy import Policy

__all__ = ["ColumnChooser", "Columns"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """What a rank does with the columns of one layer: int64 indices."""

    dropped: Tensor
    migrated: Tensor


class ColumnChooser:
    """Chooses for one rank.

    Args:
        weights: the rank's shard [O, K] of every layer. One that is frozen has not moved because it may not, which says
            nothing about its columns: none is a candidate.
        policy: how to choose.
        rank: names the random stream.

    Raises:
        ValueError: if layers have ratios of their own and the micro-threshold is 0: all would drop too little.
    """

    def __init__(self, weights: Sequence[Tensor], policy: Policy, rank: int):
        self._policy, self._is_trained = policy, [weight.requires_grad for weight in weights]
        self._generator = generator_for(policy.seed, f"flextp.columns.{rank}")
        drops = policy.solution not in (Solution.BASELINE, Solution.MIG)
        self._selection = policy.selection if drops else Selection.RANDOM  # it is all one which columns migrate
        self._has_ratios_by_layer = self._selection.is_differentiated and policy.solution is not Solution.GIVEN
        if self._has_ratios_by_layer and not policy.micro_threshold:
            raise ValueError(
                f"micro_threshold is 0, must be above 0 where selection is {self._selection.value}, or no layer drops more "
                f"than {policy.decay:g} of the ratio; `method.priority.micro_threshold` gives one for a learning rate"
            )
        self._needs_statistics = self._selection is not Selection.RANDOM
        self._statistics = [
            ColumnStatistics(weight if self._needs_statistics else weight[:0], is_incremental=policy.is_incremental)
            for weight in weights
        ]
        self._was_dropped = [torch.zeros(weight.shape[1], dtype=torch.bool, device=weight.device) for weight in weights]
        self._renew_lists()

    def choose(self, plan: RankPlan) -> list[Columns]:
        """Choose columns of every layer; nothing is drawn, so that equal plans within an epoch choose the same.

        Args:
            plan: of this rank.
        """
        ratios = self._ratios(plan.dropped)
        return [self._choose(layer, ratio, plan.migrated) for layer, ratio in enumerate(ratios)]

    def _choose(self, layer: int, ratio: float, migrated: float) -> Columns:
        order = self._lists[layer]
        num_migrated = num_dropped_columns(migrated, len(order))  # every rank knows this number from the plan alone
        num_dropped = min(num_dropped_columns(ratio, len(order)), len(order) - 1 - num_migrated)
        dropped = first_columns(order, num_dropped)
        self._was_dropped[layer][dropped] = True
        return Columns(dropped=dropped, migrated=order[num_dropped : num_dropped + num_migrated])

    def _ratios(self, dropped: float) -> list[float]:
        if not self._has_ratios_by_layer:
            return [dropped] * len(self._lists)
        threshold = change_threshold(self._policy.iterations_per_epoch, self._policy.micro_threshold)
        measured = zip(self._statistics, self._is_trained, strict=True)
        shares = [candidate_share(statistics, threshold) if trained else 0.0 for statistics, trained in measured]
        return layer_ratios(shares, dropped, self._policy.decay)

    def close_epoch(self, weights: Sequence[Tensor]) -> None:
        """Renew the statistics and draw new priority lists.

        Args:
            weights: as they are now, layer by layer.
        """
        self._is_trained = [weight.requires_grad for weight in weights]
        if self._needs_statistics:
            for statistics, weight, dropped in zip(self._statistics, weights, self._was_dropped, strict=True):
                statistics.update_(weight, dropped.nonzero().squeeze(-1))
        for dropped in self._was_dropped:
            dropped.zero_()
        self._renew_lists()

    def _renew_lists(self) -> None:
        self._lists = [
            priority_list(statistics, selection=self._selection, generator=self._generator)
            for statistics in self._statistics
        ]
