"""Which columns of a layer are kept, dropped, migrated: chosen by each rank (section III-B) and dealt out (IV-A)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from workbench.parallel.seeds import generator_for

from ..method import priority
from ..method.plan import RankPlan, Solution, column_ranges, receivers_of
from ..method.priority import ColumnStatistics, Selection
from ..method.resizing import num_dropped_columns
from .policy import Policy

__all__ = ["ColumnChooser", "Columns", "Division", "Migration", "Own", "divide"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Own:
    """The use of a local rank's own columns; ascending int64 indices."""

    kept: Tensor | None  # multiplied by the rank itself; None for all of them
    dropped: Tensor  # multiplied by nobody


@dataclass(frozen=True, kw_only=True, slots=True)
class Migration:
    """A sender's columns, which other ranks compute."""

    sender: int  # rank in the group
    columns: Tensor  # indices of the migrated columns, int64, in the order in which they are dealt out
    parts: Mapping[int, range]  # receiving rank -> its positions among `columns`

    def columns_of(self, receiver: int) -> Tensor:
        """Return the indices of the columns that one receiver computes."""
        part = self.parts[receiver]
        return self.columns[part.start : part.stop]


@dataclass(frozen=True, kw_only=True, slots=True)
class Division:
    """How the columns of a layer are divided, until the next plan."""

    num_columns: int  # K of every rank
    own: Mapping[int, Own]  # of the local ranks
    migrations: tuple[Migration, ...]  # one a sender, in rank order; the same on every rank

    @property
    def is_plain(self) -> bool:
        """Whether every local rank multiplies its own columns, all of them, and no others."""
        return not self.migrations and all(own.kept is None for own in self.own.values())

    def kept(self, rank: int) -> float:
        """Return the columns of its own that a local rank multiplies, as a share of them."""
        kept = self.own[rank].kept
        return 1.0 if kept is None else len(kept) / self.num_columns

    def dropped(self, rank: int) -> float:
        """Return the columns of a local rank that nobody multiplies, as a share of its own."""
        return len(self.own[rank].dropped) / self.num_columns


def divide(
    num_columns: int, *, num_ranks: int, dropped: Mapping[int, Tensor], migrated: Mapping[int, Tensor]
) -> Division:
    """Divide the columns of one layer among `num_ranks` ranks with as many columns each.

    `dropped` holds the indices by local rank, `migrated` by sender; the latter are the same on every rank.
    """
    migrations = []
    for sender, columns in sorted(migrated.items()):
        receivers = receivers_of(sender, tuple(migrated), num_ranks)
        parts = dict(zip(receivers, column_ranges(len(columns), len(receivers)), strict=True))
        _check(f"migrated columns of rank {sender}", columns, num_columns)
        migrations.append(Migration(sender=sender, columns=columns, parts=parts))
    none = torch.empty(0, dtype=torch.int64)
    own = {rank: _own(rank, num_columns, columns, migrated.get(rank, none)) for rank, columns in dropped.items()}
    return Division(num_columns=num_columns, own=own, migrations=tuple(migrations))


def _own(rank: int, num_columns: int, dropped: Tensor, migrated: Tensor) -> Own:
    removed = torch.cat([dropped, migrated.to(dropped.device)])
    _check(f"dropped and migrated columns of rank {rank}", removed, num_columns)
    if len(removed) == 0:
        return Own(kept=None, dropped=dropped)
    if len(removed) == num_columns:
        raise ValueError(f"rank {rank} drops or migrates all of its {num_columns} columns; it must keep at least one")
    stays = torch.ones(num_columns, dtype=torch.bool, device=dropped.device)
    stays[removed] = False
    return Own(kept=stays.nonzero().squeeze(-1), dropped=dropped.sort().values)


def _check(name: str, columns: Tensor, num_columns: int) -> None:
    if len(columns) and not 0 <= int(columns.min()) <= int(columns.max()) < num_columns:
        raise ValueError(f"{name} are {int(columns.min())} to {int(columns.max())}; must be in 0..{num_columns - 1}")
    if len(columns.unique()) != len(columns):
        raise ValueError(f"{name} name a column twice; they must be distinct")


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """The removed columns of a rank in one layer: int64 indices."""

    dropped: Tensor
    migrated: Tensor


class ColumnChooser:
    """Chooses columns for one rank: the head of a priority list is dropped, the next ones are migrated.

    `weights` are the rank's shards [O, K], layer by layer; `rank` names the random stream. A frozen shard has no
    candidates: it may not move, which says nothing about its columns.
    """

    def __init__(self, weights: Sequence[Tensor], policy: Policy, rank: int):
        self._policy, self._is_trained = policy, [weight.requires_grad for weight in weights]
        self._generator = generator_for(policy.seed, f"flextp.columns.{rank}")
        drops = policy.solution not in (Solution.BASELINE, Solution.MIG)
        self._selection = policy.selection if drops else Selection.RANDOM  # any columns may migrate: nothing is lost
        self._has_ratios_by_layer = self._selection.is_differentiated and policy.solution is not Solution.GIVEN
        if self._has_ratios_by_layer and not policy.micro_threshold:
            raise ValueError(
                f"micro_threshold is 0; it must be above 0 where selection is {self._selection.value} "
                "(`method.priority.micro_threshold` gives one for a learning rate)"
            )
        self._needs_statistics = self._selection is not Selection.RANDOM
        self._statistics = [
            ColumnStatistics(weight if self._needs_statistics else weight[:0], is_incremental=policy.is_incremental)
            for weight in weights
        ]
        self._was_dropped = [torch.zeros(weight.shape[1], dtype=torch.bool, device=weight.device) for weight in weights]
        self._renew_lists()

    def choose(self, plan: RankPlan) -> list[Columns]:
        """Choose columns of every layer; nothing is drawn, so that equal plans within an epoch choose the same."""
        ratios = self._ratios(plan.dropped)
        return [self._choose(layer, ratio, plan.migrated) for layer, ratio in enumerate(ratios)]

    def _choose(self, layer: int, ratio: float, migrated: float) -> Columns:
        order = self._lists[layer]
        num_migrated = num_dropped_columns(migrated, len(order))  # every rank knows this number from the plan alone
        num_dropped = min(num_dropped_columns(ratio, len(order)), len(order) - 1 - num_migrated)
        dropped = priority.first_columns(order, num_dropped)
        self._was_dropped[layer][dropped] = True
        return Columns(dropped=dropped, migrated=order[num_dropped : num_dropped + num_migrated])

    def _ratios(self, dropped: float) -> list[float]:
        if not self._has_ratios_by_layer:
            return [dropped] * len(self._lists)
        threshold = priority.change_threshold(self._policy.iterations_per_epoch, self._policy.micro_threshold)
        measured = zip(self._statistics, self._is_trained, strict=True)
        shares = [priority.candidate_share(each, threshold) if trained else 0.0 for each, trained in measured]
        is_mean = self._selection is Selection.DIFFERENTIATED_MEAN
        return (priority.mean_ratios if is_mean else priority.layer_ratios)(shares, dropped, self._policy.decay)

    def close_epoch(self, weights: Sequence[Tensor]) -> None:
        """Renew the statistics from the weights as they are now, and draw new priority lists."""
        self._is_trained = [weight.requires_grad for weight in weights]
        if self._needs_statistics:
            for statistics, weight, dropped in zip(self._statistics, weights, self._was_dropped, strict=True):
                statistics.update_(weight, dropped.nonzero().squeeze(-1))
        for dropped in self._was_dropped:
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
        for own, name in ((self._lists, "lists"), (self._was_dropped, "was_dropped")):
            own[:] = [other.to(tensor.device, copy=True) for tensor, other in zip(own, state[name], strict=True)]
        for statistics, change, then_OK in zip(self._statistics, state["change"], state["then"], strict=True):
            statistics.change = change.to(statistics.change.device, copy=True)
            statistics.then_OK.copy_(then_OK)

    def _renew_lists(self) -> None:
        self._lists = [
            priority.priority_list(statistics, selection=self._selection, generator=self._generator)
            for statistics in self._statistics
        ]
