"""How the columns of one layer are divided at the moment: kept, dropped, migrated.

What: a `Division` holds what every rank must know of a layer (which columns each sender migrates, and to whom), and
what only a local rank knows (which of its columns it drops).
Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", sections III-A and IV-A.
Simplified: a receiver computes whole columns; every sender's columns go to all receivers alike.
Left out: nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..method.migration import column_ranges, receivers_of

__all__ = ["Division", "Migration", "Own", "divide"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Own:
    """What a local rank does with its own columns; ascending int64 indices.

    Attributes:
        kept: multiplied by the rank itself; None for all of them.
        dropped: multiplied by nobody.
    """

    kept: Tensor | None
    dropped: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Migration:
    """A sender's columns, which other ranks compute.

    Attributes:
        sender: rank in the group.
        columns: indices of the migrated columns, int64, in the order in which they are dealt out.
        parts: receiving rank -> its positions among `columns`.
    """

    sender: int
    columns: Tensor
    parts: Mapping[int, range]

    def columns_of(self, receiver: int) -> Tensor:
        """Return the indices of the columns that one receiver computes."""
        part = self.parts[receiver]
        return self.columns[part.start : part.stop]


@dataclass(frozen=True, kw_only=True, slots=True)
class Division:
    """How the columns of a layer are divided, until the next plan.

    Attributes:
        num_columns: K of every rank.
        own: local rank -> what it does with its own columns.
        migrations: one a sender, in rank order; the same on every rank.
    """

    num_columns: int
    own: Mapping[int, Own]
    migrations: tuple[Migration, ...]

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
    """Divide the columns of one layer.

    Args:
        num_columns: K of every rank.
        num_ranks: N.
        dropped: local rank -> indices of the columns that it drops.
        migrated: sender -> indices of the columns that it migrates; the same on every rank.

    Raises:
        ValueError: for a column that does not exist, that is named twice, and where a rank keeps none.
    """
    migrations = tuple(_migration(sender, tuple(migrated), migrated[sender], num_ranks) for sender in sorted(migrated))
    none = torch.empty(0, dtype=torch.int64)
    for sender, columns in migrated.items():
        _check(f"migrated columns of rank {sender}", columns, num_columns)
    own = {rank: _own(rank, num_columns, columns, migrated.get(rank, none)) for rank, columns in dropped.items()}
    return Division(num_columns=num_columns, own=own, migrations=migrations)


def _migration(sender: int, senders: tuple[int, ...], columns: Tensor, num_ranks: int) -> Migration:
    receivers = receivers_of(sender, senders, num_ranks)
    ranges = column_ranges(len(columns), len(receivers))
    return Migration(sender=sender, columns=columns, parts=dict(zip(receivers, ranges, strict=True)))


def _own(rank: int, num_columns: int, dropped: Tensor, migrated: Tensor) -> Own:
    removed = torch.cat([dropped, migrated.to(dropped.device)])
    _check(f"dropped and migrated columns of rank {rank}", removed, num_columns)
    if len(removed) == 0:
        return Own(kept=None, dropped=dropped)
    if len(removed) == num_columns:
        raise ValueError(f"rank {rank} drops or migrates all of its {num_columns} columns, must keep at least one")
    stays = torch.ones(num_columns, dtype=torch.bool, device=dropped.device)
    stays[removed] = False
    return Own(kept=stays.nonzero().squeeze(-1), dropped=dropped.sort().values)


def _check(name: str, columns: Tensor, num_columns: int) -> None:
    if len(columns) and not 0 <= int(columns.min()) <= int(columns.max()) < num_columns:
        raise ValueError(f"{name} are {int(columns.min())} to {int(columns.max())}, must be in 0..{num_columns - 1}")
    if len(columns.unique()) != len(columns):
        raise ValueError(f"{name} name a column twice, must name each once")
