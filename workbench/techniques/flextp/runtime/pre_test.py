"""The pre-test, algorithm 2, line 1: the costs of dropping and migrating on these ranks, for this model.

Products of one layer of every shape run in turns: whole, with all ranks dropping a share of their columns, and with the
slowest rank migrating it. The wall beyond the busiest rank's products is the cost of messages.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import fsum
from statistics import median

import torch
from torch import Tensor

from workbench.parallel import TensorGroup
from workbench.parallel.linear import ShardedLinear
from workbench.parallel.moves import moves_of

from ..method.costs import Costs, PiecewiseLinear
from ..method.plan import Plan, RankTimes
from ..method.resizing import num_dropped_columns, recovered
from .division import divide
from .meter import clock_of
from .products import FlexibleProduct

__all__ = ["SHARES", "measure_costs"]

SHARES = (0.25, 0.75)
REPEATS = 6
LEAST_MOVING = 1 / 16  # of a product's time that is in proportion to its columns; below, nothing is worth removing


@dataclass(frozen=True, slots=True)
class _Kind:
    """Layers of one shape."""

    layer: ShardedLinear  # the one that is run
    product: FlexibleProduct  # its product
    num_products: int  # of all of them in an iteration


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """The times of an iteration's products."""

    messages_s: float  # on the wall beyond the products of the busiest rank
    product_s: Sequence[float]  # in products, in rank order


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fixed:
    """The time of a product that fewer columns do not shorten, as a share of a rank's own products."""

    kept: float  # of the columns that a rank keeps
    received: float  # of the columns of one sender


def measure_costs(
    layers: Sequence[ShardedLinear],
    products: Sequence[FlexibleProduct],
    group: TensorGroup,
    times: Sequence[RankTimes],
    shares: Sequence[float] = SHARES,
) -> Costs:
    """Measure the costs, the same on every rank; every rank of the group calls it.

    Each of `products` has multiplied before, so that its number of rows is known. By `times` the slowest rank becomes
    the sender. `shares` of a rank's columns are removed in the test.
    """
    kinds = _kinds(layers, products)
    for meter in (meter for product in products for meter in product.meters.values()):
        meter.stop_straggling()
    unresized = [rank.unresized() for rank in times]
    sender = max(range(len(times)), key=lambda rank: unresized[rank].own_s)
    nothing = [0.0] * group.size
    plans = [Plan.plain(group.size), *(Plan.of_shares([share] * group.size, nothing) for share in shares)]
    plans += [Plan.of_shares(nothing, [share * (rank == sender) for rank in range(group.size)]) for share in shares]
    plain, *divided = _all_run(kinds, group, plans)
    dropped, migrated = divided[: len(shares)], divided[len(shares) :]
    fixed = _fixed_shares(plain, dropped, migrated, shares, sender)
    extraction_s = [[fsum(kind.num_products * _extraction_s(kind, share) for kind in kinds)] for share in shares]
    extraction_s = [max(seconds) for seconds in _of_all_ranks(extraction_s, kinds[0], group)]
    alloc_s, product_s = min(extraction_s), min(rank.product_s for rank in unresized)
    messages_s = [median(run.messages_s for run in runs) for runs in migrated]
    return Costs(
        alloc_s=alloc_s,
        extract=PiecewiseLinear.fitted(zip(shares, (seconds - alloc_s for seconds in extraction_s), strict=True)),
        communicate=PiecewiseLinear.fitted(zip(shares, messages_s, strict=True)),
        compute=PiecewiseLinear.straight(product_s * (1 - fixed.kept), at_zero_s=product_s * fixed.received),
        fixed_share=fixed.kept,
    )


def _kinds(layers: Sequence[ShardedLinear], products: Sequence[FlexibleProduct]) -> list[_Kind]:
    by_shape: dict[tuple, list] = {}
    for layer, product in zip(layers, products, strict=True):
        if product.num_rows:  # 0: not used by the model
            key = product.cut, layer.weights[0].shape, product.num_rows, product.dtype
            by_shape.setdefault(key, []).append((layer, product))
    return [_Kind(*same[0], sum(product.num_products for _, product in same)) for same in by_shape.values()]


def _of_all_ranks(values: Sequence[Sequence[float]], kind: _Kind, group: TensorGroup) -> list[list[float]]:
    """Collect numbers of every rank: one list a number, in rank order.

    `values` are, by number, those of the local ranks, or one for all of them.
    """
    by_rank = [[each[place % len(each)] for each in values] for place in range(len(group.local_ranks))]
    messages = torch.tensor(by_rank, dtype=torch.float64, device=kind.layer.weights[0].device)
    return moves_of(group).gather(messages.unbind()).wait().t().tolist()


def _all_run(kinds: Sequence[_Kind], group: TensorGroup, plans: Sequence[Plan]) -> list[list[_Run]]:
    """Run one layer of every kind, and count each kind as often as it multiplies: a run a repeat for each plan."""
    by_kind = [_runs_of_kind(kind, group, plans) for kind in kinds]
    counts = [kind.num_products for kind in kinds]
    return [[_added_up(runs, counts) for runs in zip(*same, strict=True)] for same in zip(*by_kind, strict=True)]


def _added_up(runs: Sequence[_Run], counts: Sequence[int]) -> _Run:
    by_rank = zip(*(run.product_s for run in runs), strict=True)
    return _Run(
        messages_s=fsum(count * run.messages_s for count, run in zip(counts, runs, strict=True)),
        product_s=[fsum(count * run_s for count, run_s in zip(counts, rank, strict=True)) for rank in by_rank],
    )


def _runs_of_kind(kind: _Kind, group: TensorGroup, plans: Sequence[Plan]) -> list[list[_Run]]:
    """Time a divided product, forward and backward, a few times; plans take turns, so that drift is shared."""
    weights = [weight.detach().to(kind.product.dtype, copy=True).requires_grad_() for weight in kind.layer.weights]
    xs = [weight.new_zeros(kind.product.num_rows, weight.shape[1]).requires_grad_() for weight in weights]
    rounds = [[_timed_run(kind, group, plan, xs, weights) for plan in plans] for _ in range(1 + REPEATS)]
    return [list(runs) for runs in zip(*rounds[1:], strict=True)]  # the first ones fill caches


def _timed_run(kind: _Kind, group: TensorGroup, plan: Plan, xs: list[Tensor], weights: list[Tensor]) -> _Run:
    meters, clock = kind.product.meters, clock_of(kind.layer.weights[0].device, time.perf_counter)
    # Operands have the type of training already.
    with _divided(kind, group, plan), torch.autocast(xs[0].device.type, enabled=False):
        _of_all_ranks([[0.0]], kind, group)  # all ranks start together
        start_s, charged_s = clock(), {rank: meter.product_s for rank, meter in meters.items()}
        with torch.enable_grad():
            ys = kind.product.multiply(xs, weights)
        torch.autograd.grad(ys, [*xs, *weights], [torch.zeros_like(y) for y in ys])
        wall_s = clock() - start_s
        local_s = [meters[rank].product_s - charged_s[rank] if rank in meters else 0.0 for rank in group.local_ranks]
        walls_s, busy_s, product_s = _of_all_ranks([[wall_s], [fsum(local_s)], local_s], kind, group)
    return _Run(messages_s=max(max(walls_s) - max(busy_s), 0.0), product_s=product_s)


@contextmanager
def _divided(kind: _Kind, group: TensorGroup, plan: Plan) -> Iterator[None]:
    """Divide the product's columns by a plan for as long as the block runs."""
    weight, previous = kind.layer.weights[0], dict(kind.product.previous)
    order = torch.arange(weight.shape[1], device=weight.device)

    def first(share: float) -> Tensor:
        return order[: num_dropped_columns(share, len(order))]

    migrated = {rank: first(plan.ranks[rank].migrated) for rank in plan.senders}
    dropped = {rank: first(plan.ranks[rank].dropped) for rank in group.local_ranks}
    kind.product.division = divide(len(order), num_ranks=group.size, dropped=dropped, migrated=migrated)
    try:
        yield
    finally:
        kind.product.division, kind.product.previous = None, previous  # gradients of the test are none to impute


def _fixed_shares(
    plain: Sequence[_Run],
    dropped: Sequence[Sequence[_Run]],
    migrated: Sequence[Sequence[_Run]],
    shares: Sequence[float],
    sender: int,
) -> _Fixed:
    """Return the fixed part of products, from straight lines through the runs that drop and migrate each of the shares.

    Of the ranks' fixed parts of kept columns the least counts. Too little, and plans come to rest after a few more
    steps. Too much, and they swing: a rank that keeps few columns looks too fast, takes back more of them than it can
    multiply in time, and looks slow again. Of received columns the median counts.
    """
    if not all(all(run.product_s) for run in plain):
        return _Fixed(kept=0.0, received=0.0)  # ranks without meters have no times of products
    saved = [[share * (1 - ratio) for ratio in _over(runs, plain)] for share, runs in zip(shares, dropped, strict=True)]
    by_rank = [fsum(rank) / fsum(share**2 for share in shares) for rank in zip(*saved, strict=True)]
    moving = min(max(*by_rank, LEAST_MOVING), 1.0)
    receivers = [rank for rank in range(len(by_rank)) if rank != sender]
    more = [median(_over(runs, plain)[rank] for rank in receivers) - 1 for runs in migrated]
    fixed = [ratio - moving * share / len(receivers) for share, ratio in zip(shares, more, strict=True)]
    return _Fixed(kept=1 - moving, received=max(fsum(fixed) / len(fixed), 0.0))


def _over(runs: Sequence[_Run], plain: Sequence[_Run]) -> list[float]:
    """Return each rank's products over its plain ones of the same repeat, in the median repeat."""
    by_repeat = [
        [now / before for now, before in zip(run.product_s, plain_run.product_s, strict=True)]
        for run, plain_run in zip(runs, plain, strict=True)
    ]
    return [median(rank) for rank in zip(*by_repeat, strict=True)]


def _extraction_s(kind: _Kind, share: float) -> float:
    """Time taking operands apart and gradients together, forward and backward, in CPU seconds of this thread."""
    weight = kind.layer.weights[0].detach().to(kind.product.dtype)
    num_columns = weight.shape[1]
    num_kept = num_columns - num_dropped_columns(share, num_columns)
    order = torch.randperm(num_columns, generator=torch.Generator().manual_seed(num_columns))
    kept = order[:num_kept].sort().values.to(weight.device)
    x, buffers = weight.new_zeros(kind.product.num_rows, num_columns), kind.product.buffers

    def extract() -> None:
        for name, matrix in (("x", x), ("weight", weight)):
            part = buffers.take(name, (len(matrix), num_kept), like=matrix)
            for _ in range(2):  # once forward, once backward
                torch.index_select(matrix, 1, kept, out=part)
            recovered(part, kept, num_columns)

    extract()  # fills caches
    clock, seconds = clock_of(weight.device, time.thread_time), []
    for _ in range(REPEATS):
        start_s = clock()
        extract()
        seconds.append(clock() - start_s)
    return median(seconds)
