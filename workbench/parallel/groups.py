"""Tensor-parallel groups: real ranks (one shard a process) and virtual ranks (all shards in one process).

A layer keeps one shard for every *local* rank and never asks which group it has. `copy` and `sum` are Megatron-LM's
operators f and g (Shoeybi et al., section 3); collectives block.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import reduce
from typing import Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from workbench.parallel.timeouts import naming_lost_ranks
from workbench.parallel.traffic import MessageKind, Phase, Traffic
from workbench.timeline import Kind, Recorder

__all__ = ["ProcessTensorGroup", "RecordedTensorGroup", "TensorGroup", "VirtualTensorGroup", "Watch", "both"]

# (name of a collective) -> a context that lasts while the collective runs, such as a recorder's action
Watch = Callable[[str], AbstractContextManager]


def both(outer: Watch, inner: Watch) -> Watch:
    """Return a watch that enters one inside the other."""

    @contextmanager
    def entered(collective: str) -> Iterator[None]:
        with outer(collective), inner(collective):
            yield

    return entered


@runtime_checkable
class TensorGroup(Protocol):
    """The ranks that hold the shards of one layer."""

    size: int  # number of tensor-parallel ranks
    local_ranks: tuple[int, ...]  # ranks whose shards live in this process, in order
    traffic: Traffic  # every message this group has carried

    def copy(self, x: Tensor) -> Tensor:
        """Hand a replicated tensor to all ranks; its gradient is summed over them."""

    def sum(self, partials: Sequence[Tensor]) -> Tensor:
        """Add the partial results of all ranks."""

    def gather(self, messages: Sequence[Tensor]) -> list[Tensor]:
        """Collect one message from every rank."""


class _Copy(torch.autograd.Function):
    """Identity forward, sum over ranks backward.

    Forward: returns x; nothing is communicated.
    Backward: returns the sum over ranks of the gradient; one all-reduce of the
    gradient's size (none if the gradient is summed already, as on virtual ranks).
    """

    @staticmethod
    def forward(ctx, x: Tensor, traffic: Traffic, num_ranks: int, all_reduce) -> Tensor:
        ctx.traffic, ctx.num_ranks, ctx.all_reduce = traffic, num_ranks, all_reduce
        ctx.site = traffic.site
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        ctx.traffic.record(MessageKind.COPY_BACKWARD, grad, ctx.num_ranks, phase=Phase.BACKWARD, site=ctx.site)
        return ctx.all_reduce(grad), None, None, None


class _Sum(torch.autograd.Function):
    """Sum over ranks forward, identity backward.

    Forward: returns the sum over ranks; one all-reduce of the partial's size.
    Backward: hands the gradient to the partial; nothing is communicated, since
    every rank already holds the same gradient.
    """

    @staticmethod
    def forward(ctx, partial: Tensor, all_reduce: Callable[[Tensor], Tensor]) -> Tensor:
        return all_reduce(partial)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        return grad, None


class ProcessTensorGroup:
    """Real ranks: this process holds one shard; None is the default process group."""

    def __init__(self, process_group: dist.ProcessGroup | None = None):
        if not dist.is_initialized():
            raise ValueError("process_group: torch.distributed is not initialised in this process")
        rank = dist.get_rank(process_group)
        if rank < 0:
            raise ValueError(f"process_group: rank {dist.get_rank()} is not a member")
        self.process_group = process_group
        self.size = dist.get_world_size(process_group)
        self.local_ranks: tuple[int, ...] = (rank,)
        self.traffic = Traffic()
        self.watch: Watch = nullcontext
        # (name of a collective that begins) -> a function to call at its end, or None
        self.watch_begun: Callable[[str], Callable[[], None] | None] = lambda collective: None

    def __deepcopy__(self, memo) -> "ProcessTensorGroup":
        # A process group is a handle on running processes: copies of a model share it.
        return self

    def copy(self, x: Tensor) -> Tensor:
        """Return x; in the backward pass its gradient is all-reduced.

        Applied to a replicated *weight* that each rank uses on its own partial
        result, the same operator gives every rank the weight's whole gradient.
        """
        return _Copy.apply(x, self.traffic, self.size, self._all_reduce)

    def sum(self, partials: Sequence[Tensor]) -> Tensor:
        """Add this rank's partial result to those of all others, by all-reduce; every rank has the sum."""
        (partial,) = _checked(partials, self.local_ranks)
        self.traffic.record(MessageKind.SUM, partial, self.size)
        return _Sum.apply(partial, self._all_reduce)

    def gather(self, messages: Sequence[Tensor]) -> list[Tensor]:
        """Collect every rank's message, of one shape and dtype, in rank order, by all-gather; not differentiable."""
        (message,) = _checked(messages, self.local_ranks)
        message = message.detach().contiguous()
        self.traffic.record(MessageKind.GATHER, message, self.size)
        if self.size == 1:
            return [message]
        received = [torch.empty_like(message) for _ in range(self.size)]
        self.communicate(dist.all_gather, received, message)
        return received

    def _all_reduce(self, x: Tensor) -> Tensor:
        total = x.detach().clone(memory_format=torch.contiguous_format)
        if self.size > 1:
            self.communicate(dist.all_reduce, total)
        return total

    def communicate(self, collective: Callable[..., object], *tensors, **where) -> None:
        """Call a blocking collective of torch.distributed, with further arguments, on this group inside `watch`."""
        with self.watch(collective.__name__), naming_lost_ranks(self.process_group, collective.__name__):
            collective(*tensors, group=self.process_group, **where)

    def start(self, collective: Callable[..., dist.Work], *tensors, **where) -> dist.Work:
        """Begin a collective of torch.distributed on this group and return at once; see `watch_begun`."""
        ended = self.watch_begun(collective.__name__)
        with naming_lost_ranks(self.process_group, collective.__name__):
            work = collective(*tensors, group=self.process_group, async_op=True, **where)
        if ended is not None:
            work.get_future().add_done_callback(lambda _: ended())
        return work


class VirtualTensorGroup:
    """Virtual ranks: this process holds every shard."""

    def __init__(self, size: int):
        if size < 1:
            raise ValueError(f"size: {size} is not a number of ranks; it must be at least 1")
        self.size = size
        self.local_ranks: tuple[int, ...] = tuple(range(size))
        self.traffic = Traffic()

    def __deepcopy__(self, memo) -> "VirtualTensorGroup":
        # As with real ranks, copies of a model share the group and its traffic.
        return self

    def copy(self, x: Tensor) -> Tensor:
        """Return x; autograd itself adds the gradients of the local shards."""
        return _Copy.apply(x, self.traffic, self.size, lambda grad: grad)

    def sum(self, partials: Sequence[Tensor]) -> Tensor:
        """Add the partial results, in rank order."""
        partials = _checked(partials, self.local_ranks)
        self.traffic.record(MessageKind.SUM, partials[0], self.size)
        return reduce(torch.add, partials)

    def gather(self, messages: Sequence[Tensor]) -> list[Tensor]:
        """Return the messages as a list; not differentiable."""
        messages = [message.detach() for message in _checked(messages, self.local_ranks)]
        self.traffic.record(MessageKind.GATHER, messages[0], self.size)
        return messages


def _checked(tensors: Sequence[Tensor], local_ranks: tuple[int, ...]) -> Sequence[Tensor]:
    """Return the tensors if there is one for every local rank."""
    if len(tensors) != len(local_ranks):
        raise ValueError(
            f"tensors: {len(tensors)} given, but this process holds the shards of "
            f"{len(local_ranks)} ranks {local_ranks}; give one for each"
        )
    return tensors


class RecordedTensorGroup(ProcessTensorGroup):
    """Real ranks whose collectives are recorded as actions of kind COMMUNICATE, labelled with their names."""

    def __init__(self, process_group: dist.ProcessGroup | None = None, *, recorder: Recorder):
        super().__init__(process_group)
        self.watch = lambda collective: recorder.during(collective, Kind.COMMUNICATE)
        self.watch_begun = lambda collective: recorder.begun(collective, Kind.COMMUNICATE)
