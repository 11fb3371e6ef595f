"""The pre-test: what dropping and migrating cost on these ranks, for this model.

What: for a few shares, the products of every kind of layer are run on buffers of the real sizes: whole; with all ranks
dropping that share of their columns; and with the slowest rank handing it to the others, as a plan would have it. They
take turns, seven times each. From them follow
- messages: what migrating takes on the wall beyond the products of the busiest rank; what travels while ranks multiply
  costs nothing. Whole tensors travel as soon as one column migrates, so that the line does not start at nothing.
- narrow products: what those of ranks that drop, and of receivers, take beyond their share of the columns.
- extraction: taking columns out is timed by itself, their indices being known, as they are from one plan to the next.
Of messages and extraction all ranks take the largest that any of them measured, of kept columns the least fixed part and
of received ones the median, so that all of them plan from the same numbers. Who straggles by a
trace does not in the test: behind a slow sender's own products its messages would hide, and under a plan it is slow no
more. Layers of one shape cost the same, so that one of each is run: a model of many layers is tested as quickly as one
of a few, in the time of some 35 iterations' products of one layer of every kind. A layer that multiplies several times
an iteration, as where gradients are accumulated, counts as often.
Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section IV-C, algorithm 2,
line 1.
Simplified: one sender, which is as slow as its machine is; a product's time is a straight line in its columns; shares
count as they are asked for, not as rounded to whole columns; room for smaller operands is not told from filling it, so
that the cheaper of the shares stands for the room. A cost that falls with the share, as taking out the columns that stay
does, is made level (`PiecewiseLinear.fitted`): on real ranks the right side of Eq. 2 then hardly grows with what is
dropped.
Left out: renewing the costs during training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import fsum
from statistics import median

import torch
from torch import Tensor

from workbench.parallel import TensorGroup
from workbench.parallel.linear import ShardedLinear
from workbench.parallel.moves import moves_of

from ..method.costs import Costs, PiecewiseLinear
from ..method.plan import RankTimes
from ..method.resizing import num_dropped_columns, recovered
from .division import Division, divide
from .meter import clock_of
from .products import FlexibleProduct

__all__ = ["SHARES", "measure_costs"]

SHARES = (0.25, 0.75)
REPEATS = 6
LEAST_MOVING = 1 / 16  # of a product's time that is in proportion to its columns; below, nothing is worth removing


@dataclass(frozen=True, slots=True)
class _Kind:
    """Layers of one shape: one of them, and how many products they all have in an iteration."""

    layer: ShardedLinear
    product: FlexibleProduct
    num_products: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Removed:
    """What is removed in a run.

    Attributes:
        dropped: share of its columns that every rank drops.
        migrated: sender -> the share that it migrates.
    """

    dropped: float = 0.0
    migrated: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """What an iteration's products took.

    Attributes:
        messages_s: on the wall beyond the products of the busiest rank.
        product_s: in products, in rank order.
    """

    messages_s: float
    product_s: Sequence[float]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fixed:
    """What a product takes however narrow, as a share of a rank's own products.

    Attributes:
        kept: of the columns that a rank keeps.
        received: of those of one sender.
    """

    kept: float
    received: float


def measure_costs(
    layers: Sequence[ShardedLinear],
    products: Sequence[FlexibleProduct],
    group: TensorGroup,
    times: Sequence[RankTimes],
    shares: Sequence[float] = SHARES,
) -> Costs:
    """Measure; every rank of the group calls it.

    Args:
        layers: all parallel linears.
        products: theirs; each has multiplied before, so that its number of rows is known.
        group: the ranks.
        times: of all ranks: the slowest becomes the sender, and the time of a normal rank's products follows.
        shares: of a rank's columns that are removed in the test.

    Returns:
        Costs, the same on every rank.
    """
    kinds = _kinds(layers, products)
    for meter in (meter for product in products for meter in product.meters.values()):
        meter.stop_straggling()
    unresized = [each.unresized() for each in times]
    sender = max(range(len(times)), key=lambda rank: unresized[rank].own_s)
    removed = [_Removed(), *(_Removed(dropped=share) for share in shares)]
    removed += [_Removed(migrated={sender: share}) for share in shares]
    plain, *divided = _all_run(kinds, group, removed)
    dropped, migrated = divided[: len(shares)], divided[len(shares) :]
    fixed = _fixed_shares(plain, dropped, migrated, shares, sender)
    extraction_s = [[fsum(kind.num_products * _extraction_s(kind, share) for kind in kinds)] for share in shares]
    extraction_s = [max(seconds) for seconds in _of_all_ranks(extraction_s, kinds[0], group)]
    alloc_s, product_s = min(extraction_s), min(each.product_s for each in unresized)
    messages_s = [median(run.messages_s for run in runs) for runs in migrated]
    return Costs(
        alloc_s=alloc_s,
        extract=PiecewiseLinear.fitted(zip(shares, (seconds - alloc_s for seconds in extraction_s), strict=True)),
        communicate=PiecewiseLinear.fitted(zip(shares, messages_s, strict=True)),
        compute=PiecewiseLinear.straight(product_s * (1 - fixed.kept), at_zero_s=product_s * fixed.received),
        fixed_share=fixed.kept,
    )


def _kinds(layers: Sequence[ShardedLinear], products: Sequence[FlexibleProduct]) -> list[_Kind]:
    found: dict[tuple, list] = {}
    for layer, product in zip(layers, products, strict=True):
        if not product.num_rows:
            continue  # not used by the model
        found.setdefault((product.cut, layer.weights[0].shape, product.num_rows, product.dtype), []).append(
            (layer, product)
        )
    return [_Kind(*same[0], sum(product.num_products for _, product in same)) for same in found.values()]


def _of_all_ranks(values: Sequence[Sequence[float]], kind: _Kind, group: TensorGroup) -> list[list[float]]:
    """Collect numbers of every rank: one list a number, in rank order.

    Args:
        values: by number, of the local ranks, or one for all of them.
        kind: says where its ranks keep numbers.
        group: the ranks.
    """
    by_rank = [[each[place % len(each)] for each in values] for place in range(len(group.local_ranks))]
    mine = torch.tensor(by_rank, dtype=torch.float64, device=kind.layer.weights[0].device)
    return moves_of(group).gather(mine.unbind()).wait().t().tolist()


def _all_run(kinds: Sequence[_Kind], group: TensorGroup, removed: Sequence[_Removed]) -> list[list[_Run]]:
    """Run one layer of every kind, and count each kind as often as it multiplies.

    Args:
        kinds: of layers.
        group: the ranks.
        removed: what is removed, in turns.

    Returns:
        For everything that is removed a run a repeat.
    """
    by_kind = [_runs_of_kind(kind, group, removed) for kind in kinds]
    counts = [kind.num_products for kind in kinds]
    return [[_added_up(each, counts) for each in zip(*same, strict=True)] for same in zip(*by_kind, strict=True)]


def _added_up(runs: Sequence[_Run], counts: Sequence[int]) -> _Run:
    by_rank = zip(*(run.product_s for run in runs), strict=True)
    return _Run(
        messages_s=fsum(count * run.messages_s for count, run in zip(counts, runs, strict=True)),
        product_s=[fsum(count * each_s for count, each_s in zip(counts, rank, strict=True)) for rank in by_rank],
    )


def _runs_of_kind(kind: _Kind, group: TensorGroup, removed: Sequence[_Removed]) -> list[list[_Run]]:
    """Time a divided product, forward and backward, a few times.

    What is removed takes turns, so that a machine which becomes slower meanwhile says nothing about what is removed.
    """
    operands, found = _operands(kind), []
    for _ in range(1 + REPEATS):
        found.append([_timed_run(kind, group, each, operands) for each in removed])
    return [list(runs) for runs in zip(*found[1:], strict=True)]  # the first ones fill caches


def _timed_run(kind: _Kind, group: TensorGroup, removed: _Removed, operands: tuple[list[Tensor], list[Tensor]]) -> _Run:
    meters, clock = kind.product.meters, clock_of(kind.layer.weights[0].device, time.perf_counter)
    with _divided(kind, group, removed):
        _of_all_ranks([[0.0]], kind, group)  # all ranks start together
        start_s, charged_s = clock(), {rank: meter.product_s for rank, meter in meters.items()}
        _run(kind.product, *operands)
        wall_s = clock() - start_s
        mine_s = [meters[rank].product_s - charged_s[rank] if rank in meters else 0.0 for rank in group.local_ranks]
        walls_s, busy_s, product_s = _of_all_ranks([[wall_s], [fsum(mine_s)], mine_s], kind, group)
    return _Run(messages_s=max(max(walls_s) - max(busy_s), 0.0), product_s=product_s)


def _fixed_shares(
    plain: Sequence[_Run],
    dropped: Sequence[Sequence[_Run]],
    migrated: Sequence[Sequence[_Run]],
    shares: Sequence[float],
    sender: int,
) -> _Fixed:
    """Return what products take however narrow, from straight lines through what was measured.

    Of what the ranks say of their kept columns the least counts: from too little plans come to rest after a few more
    steps, each asking for more. From too much they swing: who keeps few columns looks too fast, takes more of them back
    than it can multiply in time, and looks slow again.

    Args:
        plain: runs in which nothing is removed.
        dropped: for each share, runs in which all ranks drop it.
        migrated: for each share, runs in which the sender migrates it.
        shares: of a rank's columns.
        sender: its rank.
    """
    if not all(all(run.product_s) for run in plain):
        return _Fixed(kept=0.0, received=0.0)  # ranks without meters say nothing of their products
    saved = [[share * (1 - each) for each in _over(runs, plain)] for share, runs in zip(shares, dropped, strict=True)]
    by_rank = [fsum(each) / fsum(share**2 for share in shares) for each in zip(*saved, strict=True)]
    moving = min(max(*by_rank, LEAST_MOVING), 1.0)
    receivers = [rank for rank in range(len(by_rank)) if rank != sender]
    more = [median(_over(runs, plain)[rank] for rank in receivers) - 1 for runs in migrated]
    fixed = [each - moving * share / len(receivers) for share, each in zip(shares, more, strict=True)]
    return _Fixed(kept=1 - moving, received=max(fsum(fixed) / len(fixed), 0.0))


def _over(runs: Sequence[_Run], plain: Sequence[_Run]) -> list[float]:
    """Return each rank's products over its plain ones of the same repeat, in the median repeat."""
    by_repeat = [
        [now / before for now, before in zip(run.product_s, other.product_s, strict=True)]
        for run, other in zip(runs, plain, strict=True)
    ]
    return [median(rank) for rank in zip(*by_repeat, strict=True)]


@contextmanager
def _divided(kind: _Kind, group: TensorGroup, removed: _Removed) -> Iterator[Division]:
    """Let senders migrate shares of their columns, and all ranks drop one, for as long as the block runs."""
    weight, previous = kind.layer.weights[0], dict(kind.product.previous)
    order = torch.arange(weight.shape[1], device=weight.device)
    columns = {rank: order[: num_dropped_columns(share, len(order))] for rank, share in removed.migrated.items()}
    gone = {rank: order[: num_dropped_columns(removed.dropped, len(order))] for rank in group.local_ranks}
    kind.product.division = divide(len(order), num_ranks=group.size, dropped=gone, migrated=columns)
    try:
        yield kind.product.division
    finally:
        kind.product.division, kind.product.previous = None, previous  # gradients of the test are none to impute


def _operands(kind: _Kind) -> tuple[list[Tensor], list[Tensor]]:
    """Return inputs and weights of the local ranks' sizes, which ask for gradients."""
    weights = [weight.detach().to(kind.product.dtype, copy=True).requires_grad_() for weight in kind.layer.weights]
    return [weight.new_zeros(kind.product.num_rows, weight.shape[1]).requires_grad_() for weight in weights], weights


def _run(product: FlexibleProduct, xs: list[Tensor], weights: list[Tensor]) -> None:
    with torch.autocast(xs[0].device.type, enabled=False):  # operands are as narrow as in training
        with torch.enable_grad():
            ys = product.multiply(xs, weights)
        torch.autograd.grad(ys, [*xs, *weights], [torch.zeros_like(y) for y in ys])


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

    return _median_s(extract, clock_of(weight.device, time.thread_time))


def _median_s(run: Callable[[], object], clock: Callable[[], float]) -> float:
    """Return the median time of a few runs, after one that fills caches."""
    run()
    seconds = []
    for _ in range(REPEATS):
        start_s = clock()
        run()
        seconds.append(clock() - start_s)
    return median(seconds)
