"""How migrated columns reach their receivers and results come back, section IV-A: broadcast-reduce, scatter-gather.

Every message travels while ranks multiply. Every rank of the group calls the same methods in the same order. `held` is
the sender's tensor, on its own rank; results are for local receivers; of a `shape` of columns the rows count.

Shapes: R = rows, m = migrated columns, w = columns of one receiver.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import reduce

import torch
from torch import Tensor

from workbench.parallel.groups import TensorGroup
from workbench.parallel.moves import Shape, moves_of

from ..method.plan import Scheme
from .division import Migration

__all__ = ["BroadcastReduce", "Collect", "Delivery", "Receive", "ScatterGather", "delivery_of"]

Receive = Callable[[], dict[int, Tensor]]  # waits for the handed-out tensors, by local receiver
Collect = Callable[[], Tensor | None]  # waits for the receivers' results; the tensor where the sender is local


class Delivery(ABC):
    """The common part of both schemes."""

    merges: bool  # whether a result that an all-reduce follows is left on its receiver, to be summed there

    def __init__(self, group: TensorGroup):
        self.local_ranks, self.moves = group.local_ranks, moves_of(group)

    @abstractmethod
    def hand_out_columns(self, held: Tensor | None, migration: Migration, shape: Shape) -> Receive:
        """Start to send migrated columns [R, m] of the sender; each receiver gets its own [R, w]."""

    @abstractmethod
    def hand_out(self, held: Tensor | None, migration: Migration, shape: Shape) -> Receive:
        """Start to send a tensor of the sender to each receiver, whole."""

    @abstractmethod
    def add_up(self, parts: Mapping[int, Tensor], migration: Migration, shape: Shape) -> Collect:
        """Start to add the receivers' results for the sender."""

    def bring_back(self, parts: Mapping[int, Tensor], migration: Migration, shape: Shape) -> Collect:
        """Start to send the receivers' columns [R, w] back; the sender collects [R, m], as `migration.columns`."""
        widths = {rank: len(part) for rank, part in migration.parts.items() if len(part)}
        shapes = {rank: shape.with_width(width) for rank, width in widths.items()}
        arrival = self._to_sender({rank: part for rank, part in parts.items() if rank in widths}, shapes, migration)

        def collect() -> Tensor | None:
            arrived = arrival()
            if arrived is None:
                return None
            none = shape.with_width(0)
            return torch.cat([arrived[rank] for rank in widths], dim=1) if arrived else none.empty()

        return collect

    def _to_sender(
        self, parts: Mapping[int, Tensor], shapes: Mapping[int, Shape], migration: Migration
    ) -> Callable[[], dict[int, Tensor] | None]:
        outgoing = [{migration.sender: parts[rank]} if rank in parts else {} for rank in self.local_ranks]
        expected = [shapes if rank == migration.sender else {} for rank in self.local_ranks]
        arrival = self.moves.exchange(outgoing, expected)
        return lambda: dict(zip(self.local_ranks, arrival.wait(), strict=True)).get(migration.sender)

    def _local(self, migration: Migration) -> list[int]:
        return [rank for rank in self.local_ranks if rank in migration.parts]


class BroadcastReduce(Delivery):
    """The paper's choice: one broadcast an operand; results that an all-reduce follows stay where they are."""

    merges = True

    def hand_out_columns(self, held: Tensor | None, migration: Migration, shape: Shape) -> Receive:
        """Broadcast all migrated columns; a receiver keeps its own, until backward."""
        receive = self.hand_out(held, migration, shape.with_width(len(migration.columns)))
        parts = migration.parts
        return lambda: {
            rank: whole[:, parts[rank].start : parts[rank].stop].contiguous() for rank, whole in receive().items()
        }

    def hand_out(self, held: Tensor | None, migration: Migration, shape: Shape) -> Receive:
        """Broadcast."""
        tensors = [held if rank == migration.sender else None for rank in self.local_ranks]
        arrival, local = self.moves.broadcast(tensors, migration.sender, shape), self._local(migration)

        def receive() -> dict[int, Tensor]:
            tensor = arrival.wait()
            return dict.fromkeys(local, tensor)

        return receive

    def add_up(self, parts: Mapping[int, Tensor], migration: Migration, shape: Shape) -> Collect:
        """Reduce to the sender; senders add nothing."""
        partials = [parts[rank] if rank in parts else shape.empty().zero_() for rank in self.local_ranks]
        return self.moves.reduce(partials, migration.sender).wait


class ScatterGather(Delivery):
    """The alternative: the sender serves one receiver after the other, and collects every result."""

    merges = False

    def hand_out_columns(self, held: Tensor | None, migration: Migration, shape: Shape) -> Receive:
        """Send each receiver its own columns."""
        parts = {rank: part for rank, part in migration.parts.items() if len(part)}
        held_by = {} if held is None else {rank: held[:, part.start : part.stop] for rank, part in parts.items()}
        shapes = {rank: shape.with_width(len(part)) for rank, part in parts.items()}
        receive, local = self._from_sender(held_by, shapes, migration), self._local(migration)
        none = shape.with_width(0)

        def own_columns() -> dict[int, Tensor]:
            arrived = receive()
            return {rank: arrived[rank] if rank in arrived else none.empty() for rank in local}

        return own_columns

    def hand_out(self, held: Tensor | None, migration: Migration, shape: Shape) -> Receive:
        """Send each receiver the whole tensor."""
        held_by = {} if held is None else dict.fromkeys(migration.parts, held)
        return self._from_sender(held_by, dict.fromkeys(migration.parts, shape), migration)

    def add_up(self, parts: Mapping[int, Tensor], migration: Migration, shape: Shape) -> Collect:
        """Send each result to the sender, which adds them."""
        arrival = self._to_sender(parts, dict.fromkeys(migration.parts, shape), migration)

        def collect() -> Tensor | None:
            arrived = arrival()
            return None if arrived is None else reduce(torch.add, (arrived[rank] for rank in migration.parts))

        return collect

    def _from_sender(self, held_by: Mapping[int, Tensor], shapes: Mapping[int, Shape], migration: Migration) -> Receive:
        outgoing = [held_by if rank == migration.sender else {} for rank in self.local_ranks]
        expected = [{migration.sender: shapes[rank]} if rank in shapes else {} for rank in self.local_ranks]
        arrival = self.moves.exchange(outgoing, expected)

        def receive() -> dict[int, Tensor]:
            arrived = zip(self.local_ranks, arrival.wait(), strict=True)
            return {rank: messages[migration.sender] for rank, messages in arrived if messages}

        return receive


def delivery_of(scheme: Scheme, group: TensorGroup) -> Delivery:
    """Return a scheme's delivery among the ranks of a group."""
    kinds = {Scheme.BROADCAST_REDUCE: BroadcastReduce, Scheme.SCATTER_GATHER: ScatterGather}
    return kinds[scheme](group)
