"""What migrating columns costs: bytes and seconds of broadcast-reduce and of scatter-gather, for x senders.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section IV-A.

What travels, of each linear layer and each sender (N ranks, x senders, R = N - x receivers, share s of the columns):
- out, cut by columns, s of it: the weight; of a row-parallel layer also the input, which others do not have;
- out and back, whole whatever s is: of a column-parallel layer, whose output belongs to its rank alone, the gradient
  of the output and the sum of the receivers' parts of the output (columns are cut along the contracted dimension, so
  that each receiver has a part of every element);
- back, cut by columns, s of it: the weight's gradient; of a row-parallel layer also the input's;
- merged into the all-reduce that follows anyway: the output of a row-parallel layer, and the gradient of the input of
  a column-parallel one. That is broadcast-reduce; scatter-gather sends the latter back as well.

Broadcast-reduce. A pipelined broadcast passes a message through every receiver's link once, and so does a reduce
backwards: the time of one copy. x senders broadcast at once, but a receiver's link takes one copy after the other:
x copies. What comes back by columns is disjoint: each sender's link takes s of a shard, however many receivers share
it, and each receiver's link sends x / R of it. Collectives are waited for.

Scatter-gather. A sender serves the receivers in rank order, one message after the other, each with all migrated columns:
of two readings of "the same data volume" the one that table I's links can carry. (`runtime.delivery` sends each receiver
its own columns alone, which is all that it needs; here that would explain table I over links at 15 % of their rate, and
the lead would grow with x.) With x senders a receiver listens to one at a time; while it does, the next sender waits,
and then follows the first from receiver to receiver: R + x - 1 = N - 1 messages in a row, whatever x is (a
proportionate flow shop). Results come back one by one. Messages need no rank but their two, so the others go on: what
goes out hides behind a third of the product time (the forward product), what comes back behind another third (the
input's gradient comes back while the weight's is computed). Whole tensors go by broadcast and reduce here, too: N - 1
copies out and back would take 248 s an epoch, and at s = 1/4 table I has only 105 s more than without migration.

So with more senders both schemes lose as much in receivers' products and in whole tensors, and only the broadcasts
grow beyond: broadcast-reduce stays ahead and its lead narrows, which is what the paper says of table I. (Its reason is
that scatter-gather has fewer targets; here fewer targets and more senders on each of them balance.)
Left out: unequal shares of several senders, taking columns out (small, and on a sender that has less to do anyway).

Units: seconds and bytes of one iteration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real

from workbench.cluster import Backend, Collective, Link, algorithm_of, collective_time_s

from ..method.plan import Scheme
from .iteration import iteration_parts
from .machine import FlexMachine
from .workload import NUM_PRODUCTS, Cut, ShardedLinear, Workload

__all__ = ["MigrationTime", "migration_time", "turns"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MigrationTime:
    """What migration adds to an iteration of the slowest rank, a receiver.

    Attributes:
        whole_s: tensors that travel whole.
        out_s: operands cut by columns, as far as products do not hide them.
        back_s: results cut by columns, likewise.
        product_s: products on received columns, on a receiver of normal speed.
    """

    whole_s: float = 0.0
    out_s: float = 0.0
    back_s: float = 0.0
    product_s: float = 0.0

    @property
    def transfer_s(self) -> float:
        """All but products."""
        return self.whole_s + self.out_s + self.back_s

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.transfer_s + self.product_s


def migration_time(
    scheme: Scheme | str, workload: Workload, machine: FlexMachine, *, num_senders: int, migrated_share: float
) -> MigrationTime:
    """Return what migrating adds to an iteration in which all ranks are equally fast.

    Args:
        scheme: how columns travel.
        workload: model and batch.
        machine: devices and link.
        num_senders: x, 1 to N - 1.
        migrated_share: s, share of its columns that each sender migrates, in [0, 1].

    Returns:
        Nothing for s = 0; else at least what travels whole.

    Raises:
        ValueError: naming the argument that is out of range.
    """
    scheme = _checked_scheme(scheme)
    _check_senders(num_senders, machine.num_ranks)
    _check_share(migrated_share)
    if migrated_share == 0:
        return MigrationTime()
    product_s = iteration_parts(workload, machine).product_s
    hidden_s = product_s / NUM_PRODUCTS if scheme is Scheme.SCATTER_GATHER else 0.0
    linears = workload.linears(machine.num_ranks)
    out, back = _COLUMN_TIMES[scheme]
    shares = {"machine": machine, "num_senders": num_senders, "share": migrated_share}
    return MigrationTime(
        whole_s=workload.num_layers * sum(_whole_s(each, machine, num_senders) for each in linears),
        out_s=max(0.0, workload.num_layers * sum(out(each, **shares) for each in linears) - hidden_s),
        back_s=max(0.0, workload.num_layers * sum(back(each, **shares) for each in linears) - hidden_s),
        product_s=product_s * migrated_share * num_senders / (machine.num_ranks - num_senders),
    )


def turns(num_senders: int, num_receivers: int) -> int:
    """Return how many messages follow one another when each sender serves all receivers in the same order.

    A sender serves one receiver at a time and a receiver listens to one sender at a time; messages are alike.
    """
    return num_receivers + num_senders - 1


def _operands_bytes(linear: ShardedLinear) -> float:
    """Return what the receivers lack of the operands that are cut by columns."""
    return linear.weight_bytes + (linear.input_bytes if linear.cut is Cut.ROW else 0.0)


def _whole_s(linear: ShardedLinear, machine: FlexMachine, num_senders: int) -> float:
    """Return the broadcast of the output's gradient and the reduce of the output."""
    if linear.cut is Cut.ROW:
        return 0.0
    return 2 * _broadcast_s(num_senders * linear.output_bytes, machine, num_senders)


def _broadcast_s(message_bytes: float, machine: FlexMachine, num_senders: int) -> float:
    """Return a broadcast to all receivers, or a reduce from them, which is the same backwards."""
    algorithm = algorithm_of(Backend.NCCL, Collective.BROADCAST)
    num_ranks = machine.num_ranks - num_senders + 1
    whole_bytes = math.ceil(message_bytes)  # a share of the columns need not be a whole number of bytes
    return collective_time_s(Collective.BROADCAST, algorithm, num_ranks, whole_bytes, machine.link)


def _gather_s(shard_bytes: float, link: Link, *, num_messages: int, num_senders: int, num_receivers: int) -> float:
    """Return how long disjoint results take to the senders over the busiest link."""
    busiest = max(1.0, num_senders / num_receivers)
    return num_messages * link.latency_s + busiest * shard_bytes / link.bandwidth_bytes_per_s


def _broadcast_out_s(linear: ShardedLinear, *, machine: FlexMachine, num_senders: int, share: float) -> float:
    return _broadcast_s(num_senders * share * _operands_bytes(linear), machine, num_senders)


def _reduced_back_s(linear: ShardedLinear, *, machine: FlexMachine, num_senders: int, share: float) -> float:
    num_receivers = machine.num_ranks - num_senders
    ends = {"num_messages": 1, "num_senders": num_senders, "num_receivers": num_receivers}
    return _gather_s(share * _operands_bytes(linear), machine.link, **ends)  # gradients of what was sent out


def _scattered_out_s(linear: ShardedLinear, *, machine: FlexMachine, num_senders: int, share: float) -> float:
    one_s = machine.message_link.time_s(share * _operands_bytes(linear))
    return turns(num_senders, machine.num_ranks - num_senders) * one_s


def _gathered_back_s(linear: ShardedLinear, *, machine: FlexMachine, num_senders: int, share: float) -> float:
    num_receivers = machine.num_ranks - num_senders
    ends = {"num_messages": 2 * num_receivers, "num_senders": num_senders, "num_receivers": num_receivers}
    return _gather_s(share * (linear.weight_bytes + linear.input_bytes), machine.message_link, **ends)


_COLUMN_TIMES = {
    Scheme.BROADCAST_REDUCE: (_broadcast_out_s, _reduced_back_s),
    Scheme.SCATTER_GATHER: (_scattered_out_s, _gathered_back_s),
}


def _checked_scheme(scheme: Scheme | str) -> Scheme:
    try:
        return Scheme(scheme)
    except ValueError:
        known = ", ".join(repr(str(each)) for each in Scheme)
        raise ValueError(f"scheme is {scheme!r}; it must be one of {known}") from None


def _check_senders(num_senders: int, num_ranks: int) -> None:
    whole = isinstance(num_senders, Integral) and not isinstance(num_senders, bool)
    if not whole or not 1 <= num_senders <= num_ranks - 1:
        raise ValueError(f"num_senders is {num_senders!r}; it must be an integer in 1..{num_ranks - 1}")


def _check_share(migrated_share: float) -> None:
    number = isinstance(migrated_share, Real) and not isinstance(migrated_share, bool)
    if not number or not 0 <= migrated_share <= 1:
        raise ValueError(f"migrated_share is {migrated_share!r}; it must be in [0, 1]")
