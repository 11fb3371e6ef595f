"""Differentiable collectives that overlap with computation; the backward pass runs the conjugate collective.

Tensors with a part for each of T ranks have the parts in their first dimension: [T, ...]. On gloo a reduce-scatter
is an all-to-all and a local sum, since gloo's own is a whole all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from workbench.launch.backends import backend_of
from workbench.parallel.groups import ProcessTensorGroup
from workbench.parallel.messages import all_to_all
from workbench.parallel.timeouts import naming_lost_ranks
from workbench.parallel.traffic import MessageKind, Phase

__all__ = ["Exchange", "Pending", "start", "start_gather", "start_scatter_sum", "take_share"]


class Exchange(Enum):
    """An exchange of a tensor between ranks; in the backward pass its gradient goes through the conjugate exchange."""

    COPY = "nothing"
    SUM = "all-reduce"
    GATHER = "all-gather"  # [...] -> [T, ...]
    OWN = "each rank keeps its part"  # [T, ...] -> [...]
    SCATTER_SUM = "reduce-scatter"  # [T, ...] -> [...]


KINDS = {Exchange.SUM: MessageKind.SUM, Exchange.GATHER: MessageKind.GATHER, Exchange.SCATTER_SUM: MessageKind.REDUCE}


@dataclass(slots=True)
class Pending:
    """A tensor that is being exchanged; it must not be read before `wait`."""

    tensor: Tensor
    work: dist.Work | None = None  # None if the tensor has arrived
    finish: Callable[[Tensor], Tensor] = lambda tensor: tensor  # differentiable, applied to the arrived tensor
    group: ProcessTensorGroup | None = None  # given where work is given

    def wait(self) -> Tensor:
        """Return the tensor once it has arrived; `RankLost` if a rank of the group is lost."""
        if self.work is not None:
            assert self.group is not None
            with naming_lost_ranks(self.group.process_group, "exchange"):
                self.work.wait()
        return self.finish(self.tensor)

    def then(self, finish: Callable[[Tensor], Tensor]) -> Pending:
        """Return a pending tensor with a further function to apply at the end."""
        before = self.finish
        return replace(self, finish=lambda tensor: finish(before(tensor)))


def begin(x: Tensor, exchange: Exchange, group: ProcessTensorGroup, phase: Phase, site: str) -> Pending:
    """Begin an exchange of a tensor outside of autograd."""
    x = x.detach()
    if group.size == 1:
        return Pending({Exchange.GATHER: x[None], Exchange.OWN: x[0], Exchange.SCATTER_SUM: x[0]}.get(exchange, x))
    if exchange is Exchange.COPY:
        return Pending(x)
    if exchange is Exchange.OWN:
        return Pending(x[group.local_ranks[0]].contiguous())
    group.traffic.record(KINDS[exchange], x, group.size, phase, site)
    if exchange is Exchange.SUM:
        total = x.clone(memory_format=torch.contiguous_format)
        return Pending(total, group.start(dist.all_reduce, total), group=group)
    if exchange is Exchange.GATHER:
        parts = x.new_empty(group.size, *x.shape)
        return Pending(parts, group.start(dist.all_gather_single, parts.view(-1), x.reshape(-1)), group=group)
    if backend_of(x.device, group.process_group) == "nccl":
        share = torch.empty_like(x[0])
        return Pending(share, group.start(dist.reduce_scatter_single, share.view(-1), x.reshape(-1)), group=group)
    parts = torch.empty_like(x, memory_format=torch.contiguous_format)
    shape = group.size, x[0].numel()
    group.communicate(all_to_all, [*parts.view(shape)], [*x.reshape(shape)])
    return Pending(parts.sum(0))


class _Started(torch.autograd.Function):
    """Forward: begins one exchange and does not wait for its result. Backward: runs the other exchange and waits."""

    @staticmethod
    def forward(ctx, x: Tensor, exchanges: tuple[Exchange, Exchange], group, site: str, box: list[Pending]) -> Tensor:
        ctx.exchange, ctx.group, ctx.site = exchanges[1], group, site
        pending = begin(x, exchanges[0], group, Phase.FORWARD, site)
        if exchanges[0] is Exchange.SCATTER_SUM:
            pending = Pending(pending.wait())
        box.append(pending)
        return pending.tensor

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        return begin(grad, ctx.exchange, ctx.group, Phase.BACKWARD, ctx.site).wait(), None, None, None, None


def start(x: Tensor, forward: Exchange, backward: Exchange, group: ProcessTensorGroup) -> Pending:
    """Begin the exchange `forward`; the gradient will go through the exchange `backward`."""
    if group.size == 1 and Exchange.GATHER not in (forward, backward):
        return Pending(x)
    box: list[Pending] = []
    tensor = _Started.apply(x, (forward, backward), group, group.traffic.site, box)
    return Pending(tensor, box[0].work, group=group)


def take_share(x: Tensor, group: ProcessTensorGroup, dim: int) -> Tensor:
    """Return this rank's share of a replicated tensor along a dimension; its gradient is gathered."""
    if group.size == 1:
        return x
    parts = torch.stack(x.chunk(group.size, dim))
    return start(parts, Exchange.OWN, Exchange.GATHER, group).wait()


def start_gather(x: Tensor, group: ProcessTensorGroup, dim: int, *, backward: Exchange = Exchange.OWN) -> Pending:
    """Begin to join the shares of all ranks along a dimension.

    `backward` is OWN where all ranks compute the same with the result, SCATTER_SUM where each rank computes a part.
    """
    if group.size == 1:
        return Pending(x)
    return start(x, Exchange.GATHER, backward, group).then(lambda parts: torch.cat(parts.unbind(), dim))


def start_scatter_sum(x: Tensor, group: ProcessTensorGroup, dim: int) -> Pending:
    """Begin to add the partial results of all ranks, each of which gets its share of the sum along a dimension."""
    if group.size == 1:
        return Pending(x)
    return start(torch.stack(x.chunk(group.size, dim)), Exchange.SCATTER_SUM, Exchange.GATHER, group)
