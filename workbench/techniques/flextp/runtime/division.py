"""The division of a layer's columns among ranks, and how migrated columns travel, section IV-A.

Every message travels while ranks multiply. Every rank of the group calls the same methods of a delivery in the same
order. `held` is the sender's tensor, on its own rank; results are for local receivers; of a `shape` of columns the rows
count.

Shapes: R = rows, m = migrated columns, w = columns of one receiver.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, reduce

import torch
from torch import Tensor

from workbench.parallel.groups import TensorGroup
from workbench.parallel.moves import Shape, moves_of

from ..method.plan import Scheme, column_ranges, receivers_of
from ..method.resizing import kept_columns


@dataclass(frozen=True, kw_only=True, slots=True)
class Migration:
    """A sender's columns, which other ranks compute."""

    sender: int  # rank in the group
    columns: Tensor  # indices of the migrated columns, int64, in the order in which they are dealt out
    parts: Mapping[int, range]  # receiving rank -> its positions among `columns`, one at least

    def columns_of(self, receiver: int) -> Tensor:
        """Return the indices of the columns that one receiver computes."""
        part = self.parts[receiver]
        return self.columns[part.start : part.stop]


@dataclass(frozen=True, kw_only=True, slots=True)
class Division:
    """The columns of a layer, divided until the next plan."""

    num_columns: int  # K of every rank
    kept: Mapping[int, Tensor]  # columns that each local rank multiplies itself, ascending
    dropped: Mapping[int, Tensor]  # columns of each local rank that nobody multiplies
    migrations: tuple[Migration, ...]  # one a sender, in rank order; the same on every rank

    def kept_share(self, rank: int) -> float:
        """Return the share of its columns that a local rank multiplies itself."""
        return len(self.kept[rank]) / self.num_columns

    def dropped_share(self, rank: int) -> float:
        """Return the share of a local rank's columns that nobody multiplies."""
        return len(self.dropped[rank]) / self.num_columns


def divide(
    num_columns: int, *, num_ranks: int, dropped: Mapping[int, Tensor], migrated: Mapping[int, Tensor]
) -> Division:
    """Divide the columns of a layer among ranks; `dropped` are by local rank, `migrated` by sender, on all ranks."""
    migrations, kept = [], {}
    migrated = {sender: columns for sender, columns in sorted(migrated.items()) if len(columns)}
    for sender, columns in migrated.items():
        receivers = receivers_of(sender, tuple(migrated), num_ranks)
        parts = zip(receivers, column_ranges(len(columns), len(receivers)), strict=True)
        kept_columns(columns, num_columns, f"migrated of rank {sender}")  # refuses what are no columns
        own_parts = {receiver: part for receiver, part in parts if part}  # none of fewer columns than receivers
        migrations.append(Migration(sender=sender, columns=columns, parts=own_parts))
    for rank, columns in dropped.items():
        moved = migrated.get(rank, columns[:0]).to(columns.device)
        kept[rank] = kept_columns(torch.cat([columns, moved]), num_columns, f"dropped and migrated of rank {rank}")
    return Division(num_columns=num_columns, kept=kept, dropped=dropped, migrations=tuple(migrations))


# --- deliveries

Receive = Callable[[], dict[int, Tensor]]  # waits for the handed-out tensors, by local receiver
Collect = Callable[[], dict[int, Tensor]]  # waits for the receivers' results, by sender; empty where it is not local


class Delivery:
    """How migrated columns, and results on them, travel.

    By broadcast-reduce, the paper's choice, an operand is one broadcast and a sum one reduce. By scatter-gather the
    sender serves one receiver after the other, and collects every result.
    """

    def __init__(self, scheme: Scheme, group: TensorGroup):
        self.local_ranks, self.moves = group.local_ranks, moves_of(group)
        # Whether a result that an all-reduce follows is left on its receiver, to be summed there.
        self.merges = scheme is Scheme.BROADCAST_REDUCE

    def hand_out_columns(self, held: Tensor | None, migration: Migration, shape: Shape) -> Receive:
        """Start to send the migrated columns [R, m]; a receiver gets its own [R, w], which it keeps until backward."""
        parts = migration.parts
        if self.merges:
            receive = self.hand_out(held, migration, shape.with_width(len(migration.columns)))
            return lambda: {
                rank: x[:, parts[rank].start : parts[rank].stop].contiguous() for rank, x in receive().items()
            }
        held_by = {} if held is None else {rank: held[:, part.start : part.stop] for rank, part in parts.items()}
        return self._from_sender(
            held_by, {rank: shape.with_width(len(part)) for rank, part in parts.items()}, migration
        )

    def hand_out(self, held: Tensor | None, migration: Migration, shape: Shape) -> Receive:
        """Start to send a whole tensor of the sender to its receivers."""
        if not self.merges:
            held_by = {} if held is None else dict.fromkeys(migration.parts, held)
            return self._from_sender(held_by, dict.fromkeys(migration.parts, shape), migration)
        tensors = [held if rank == migration.sender else None for rank in self.local_ranks]
        arrival = self.moves.broadcast(tensors, migration.sender, shape)
        receivers = [rank for rank in self.local_ranks if rank in migration.parts]
        return lambda: dict.fromkeys(receivers, arrival.wait())

    def add_up(self, parts: Mapping[int, Tensor], migration: Migration, shape: Shape) -> Collect:
        """Start to add the receivers' results on the sender."""
        if not self.merges:
            return self._to_sender(parts, dict.fromkeys(migration.parts, shape), migration, partial(reduce, torch.add))
        partials = [parts[rank] if rank in parts else shape.empty().zero_() for rank in self.local_ranks]
        arrival = self.moves.reduce(partials, migration.sender)
        return lambda: {} if (total := arrival.wait()) is None else {migration.sender: total}

    def bring_back(self, parts: Mapping[int, Tensor], migration: Migration, shape: Shape) -> Collect:
        """Start to send the receivers' columns [R, w] back; the sender collects [R, m], as `migration.columns`."""
        shapes = {rank: shape.with_width(len(part)) for rank, part in migration.parts.items()}
        return self._to_sender(parts, shapes, migration, partial(torch.cat, dim=1))

    def _from_sender(self, held_by: Mapping[int, Tensor], shapes: Mapping[int, Shape], migration: Migration) -> Receive:
        sender = migration.sender
        arrive = self._exchange({sender: held_by}, {rank: {sender: shape} for rank, shape in shapes.items()})
        return lambda: {rank: messages[sender] for rank, messages in arrive().items() if messages}

    def _to_sender(
        self,
        parts: Mapping[int, Tensor],
        shapes: Mapping[int, Shape],
        migration: Migration,
        put_together: Callable[[list[Tensor]], Tensor],
    ) -> Collect:
        sender = migration.sender
        arrive = self._exchange({rank: {sender: part} for rank, part in parts.items()}, {sender: shapes})
        return lambda: {rank: put_together([*messages.values()]) for rank, messages in arrive().items() if messages}

    def _exchange(
        self, outgoing: Mapping[int, Mapping[int, Tensor]], expected: Mapping[int, Mapping[int, Shape]]
    ) -> Callable[[], dict[int, dict[int, Tensor]]]:
        """Start messages by rank and other rank; the result waits for those of the local ranks."""
        sent = [outgoing.get(rank, {}) for rank in self.local_ranks]
        arrival = self.moves.exchange(sent, [expected.get(rank, {}) for rank in self.local_ranks])
        return lambda: dict(zip(self.local_ranks, arrival.wait(), strict=True))
