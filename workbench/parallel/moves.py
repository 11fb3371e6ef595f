"""Messages between some ranks of a tensor group: broadcast, reduce to one rank, exchange; none is differentiable.

All ranks of a group call the same moves in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from workbench.parallel.groups import ProcessTensorGroup, TensorGroup, VirtualTensorGroup
from workbench.parallel.messages import begin_messages
from workbench.parallel.timeouts import naming_lost_ranks
from workbench.parallel.traffic import MessageKind

__all__ = ["Arrival", "Arrived", "Moves", "Shape", "moves_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Sizes, dtype and device of a tensor, by which a rank can receive it."""

    sizes: tuple[int, ...]  # length of each dimension
    dtype: torch.dtype  # dtype of the values
    device: torch.device  # device of the received tensor

    @classmethod
    def of(cls, tensor: Tensor, sizes: Sequence[int] | None = None) -> Shape:
        """Describe a tensor, or one like it with other sizes."""
        return cls(sizes=tuple(tensor.shape if sizes is None else sizes), dtype=tensor.dtype, device=tensor.device)

    def with_width(self, width: int) -> Shape:
        """Return the shape of a matrix of as many rows and another number of columns."""
        return replace(self, sizes=(self.sizes[0], width))

    def empty(self) -> Tensor:
        """Return a buffer for it."""
        return torch.empty(self.sizes, dtype=self.dtype, device=self.device)


Content = TypeVar("Content", covariant=True)


class Arrival(Protocol[Content]):
    """The content of messages that may not have arrived yet."""

    def wait(self) -> Content:
        """Return the content once it has arrived; a rank that only sends waits until its messages are sent."""


class Moves(Protocol):
    """Messages between some ranks of a group; every argument has one entry for each local rank."""

    def broadcast(self, held: Sequence[Tensor | None], source: int, shape: Shape) -> Arrival[Tensor]:
        """Start to send a tensor of one rank to all others; `held` is None for local ranks other than the source."""

    def gather(self, messages: Sequence[Tensor]) -> Arrival[Tensor]:
        """Start to collect one small tensor of every rank on every rank: [ranks, ...], in rank order."""

    def reduce(self, partials: Sequence[Tensor], target: int) -> Arrival[Tensor | None]:
        """Start to add a tensor of every rank; the sum arrives where the target is local, None elsewhere."""

    def exchange(
        self, outgoing: Sequence[Mapping[int, Tensor]], expected: Sequence[Mapping[int, Shape]]
    ) -> Arrival[list[dict[int, Tensor]]]:
        """Start to send tensors by target rank, and to receive the expected tensors by source rank."""


def moves_of(group: TensorGroup) -> Moves:
    """Return the moves of a group."""
    if isinstance(group, ProcessTensorGroup):
        return _ProcessMoves(group)
    if isinstance(group, VirtualTensorGroup):
        return _VirtualMoves(group)
    raise ValueError(f"group: {type(group).__name__} has no moves; it must hold real or virtual ranks")


@dataclass(frozen=True, slots=True)
class Arrived:
    """What needs no waiting for."""

    content: Any

    def wait(self) -> Any:
        """Return the content."""
        return self.content


@dataclass(frozen=True, slots=True)
class _Pending:
    name: str  # name of the collective, for the group's watch
    content: object
    works: Sequence[dist.Work]
    group: ProcessTensorGroup

    def wait(self):
        with self.group.watch(self.name), naming_lost_ranks(self.group.process_group, self.name):
            for work in self.works:
                work.wait()
        return self.content


class _ProcessMoves:
    """Moves of this process's rank among real ranks."""

    def __init__(self, group: ProcessTensorGroup):
        self._group = group
        (self._rank,) = group.local_ranks

    def broadcast(self, held: Sequence[Tensor | None], source: int, shape: Shape) -> Arrival[Tensor]:
        (sent,) = held
        if self._rank == source:
            assert sent is not None
            tensor = sent.detach().contiguous()
        else:
            tensor = shape.empty()
        self._group.traffic.record(MessageKind.BROADCAST, tensor, self._group.size)
        if self._group.size == 1:
            return Arrived(tensor)
        work = dist.broadcast(tensor, group_src=source, group=self._group.process_group, async_op=True)
        return _Pending("broadcast", tensor, [work], self._group)

    def gather(self, messages: Sequence[Tensor]) -> Arrival[Tensor]:
        (message,) = messages
        message = message.detach().contiguous()
        self._group.traffic.record(MessageKind.GATHER, message, self._group.size)
        if self._group.size == 1:
            return Arrived(message.unsqueeze(0))
        gathered = message.new_empty((self._group.size, *message.shape))
        work = dist.all_gather_single(gathered, message.unsqueeze(0), group=self._group.process_group, async_op=True)
        return _Pending("gather", gathered, [work], self._group)

    def reduce(self, partials: Sequence[Tensor], target: int) -> Arrival[Tensor | None]:
        (partial,) = partials
        total = partial.detach().clone(memory_format=torch.contiguous_format)
        self._group.traffic.record(MessageKind.REDUCE, total, self._group.size)
        content = total if self._rank == target else None
        if self._group.size == 1:
            return Arrived(content)
        work = dist.reduce(total, group_dst=target, group=self._group.process_group, async_op=True)
        return _Pending("reduce", content, [work], self._group)

    def exchange(
        self, outgoing: Sequence[Mapping[int, Tensor]], expected: Sequence[Mapping[int, Shape]]
    ) -> Arrival[list[dict[int, Tensor]]]:
        ((sent,), (awaited,)) = outgoing, expected
        group, arrived = self._group.process_group, {source: shape.empty() for source, shape in awaited.items()}
        sending = {target: tensor.detach().contiguous() for target, tensor in sent.items()}
        for tensor in sending.values():
            self._group.traffic.record(MessageKind.SEND, tensor, 2)
        with naming_lost_ranks(group, "exchange"):
            works = begin_messages(arrived, sending, group=group)
        return _Pending("exchange", [arrived], works, self._group) if works else Arrived([arrived])


class _VirtualMoves:
    """Moves among virtual ranks, which are all in this process."""

    def __init__(self, group: VirtualTensorGroup):
        self._group = group

    def broadcast(self, held: Sequence[Tensor | None], source: int, shape: Shape) -> Arrival[Tensor]:
        sent = held[source]
        assert sent is not None
        tensor = sent.detach()
        self._group.traffic.record(MessageKind.BROADCAST, tensor, self._group.size)
        return Arrived(tensor)

    def gather(self, messages: Sequence[Tensor]) -> Arrival[Tensor]:
        self._group.traffic.record(MessageKind.GATHER, messages[0], self._group.size)
        return Arrived(torch.stack([message.detach() for message in messages]))

    def reduce(self, partials: Sequence[Tensor], target: int) -> Arrival[Tensor | None]:
        self._group.traffic.record(MessageKind.REDUCE, partials[target], self._group.size)
        return Arrived(reduce(torch.add, (partial.detach() for partial in partials)))

    def exchange(
        self, outgoing: Sequence[Mapping[int, Tensor]], expected: Sequence[Mapping[int, Shape]]
    ) -> Arrival[list[dict[int, Tensor]]]:
        for sent in outgoing:
            for tensor in sent.values():
                self._group.traffic.record(MessageKind.SEND, tensor, 2)
        arrived = [
            {source: outgoing[source][rank].detach() for source in awaited} for rank, awaited in enumerate(expected)
        ]
        return Arrived(arrived)
