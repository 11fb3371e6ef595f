"""The pre-test: what dropping and migrating cost on these ranks, for this model.

What: for a few shares, the products of every kind of layer are run divided, on buffers of the real sizes, as a plan
would have them: the slowest rank hands that share of its columns to the others. What this takes on the wall beyond the
products of the busiest rank is what its messages cost; what travels while ranks multiply costs nothing. Who straggles
by a trace does not in the test: behind a slow sender's own products its messages would hide, and under a plan it is slow
no more. Taking columns out is timed by itself, their indices being known, as they are from one plan to the next. All
ranks take the largest of what the ranks measured, so that all of them plan from the same numbers. Whole tensors travel
as soon as one column migrates, so that the line through the costs of messages does not start at nothing. Layers of one
shape cost the same, so that one of each is run: a model of many layers is tested as quickly as one of a few. A layer
that multiplies several times an iteration, as where gradients are accumulated, counts as often.
Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section IV-C, algorithm 2,
line 1.
Simplified: one sender, which is as slow as its machine is; room for smaller operands is not told from filling it, so
that the cheaper of the shares stands for the room. A cost that falls with the share, as taking out the columns that
stay does, is made level (`PiecewiseLinear.fitted`): on real ranks the right side of Eq. 2 then hardly grows with what is dropped.
Left out: renewing the costs during training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from workbench.parallel import TensorGroup
from workbench.parallel.linear import ShardedLinear
from workbench.parallel.moves import Moves, moves_of

from ..method.costs import Costs, PiecewiseLinear
from ..method.plan import RankTimes
from ..method.resizing import num_dropped_columns, recovered
from .division import Division, divide
from .meter import clock_of
from .products import FlexibleProduct

__all__ = ["SHARES", "measure_costs"]

SHARES = (0.25, 0.75)
REPEATS = 3


@dataclass(frozen=True, slots=True)
class _Kind:
    """Layers of one shape: one of them, and how many products they all have in an iteration."""

    layer: ShardedLinear
    product: FlexibleProduct
    num_products: int


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
    kinds, moves = _kinds(layers, products), moves_of(group)
    for meter in (meter for product in products for meter in product.meters.values()):
        meter.stop_straggling()
    unresized = [each.unresized() for each in times]
    sender = max(range(len(times)), key=lambda rank: unresized[rank].own_s)
    messages_s, extraction_s = [], []
    for share in shares:
        messages_s.append(sum(kind.num_products * _messages_s(kind, group, moves, sender, share) for kind in kinds))
        extraction_s.append(sum(kind.num_products * _extraction_s(kind, share) for kind in kinds))
    (extraction_s,) = _largest([extraction_s], kinds[0], group, moves)
    alloc_s = min(extraction_s)
    return Costs(
        alloc_s=alloc_s,
        extract=PiecewiseLinear.fitted(zip(shares, (seconds - alloc_s for seconds in extraction_s), strict=True)),
        communicate=PiecewiseLinear.fitted(zip(shares, messages_s, strict=True)),
        compute=PiecewiseLinear.straight(min(each.product_s for each in unresized)),
    )


def _kinds(layers: Sequence[ShardedLinear], products: Sequence[FlexibleProduct]) -> list[_Kind]:
    found: dict[tuple, list] = {}
    for layer, product in zip(layers, products, strict=True):
        if not product.num_rows:
            continue  # not used by the model
        found.setdefault((product.cut, layer.weights[0].shape, product.num_rows, product.dtype), []).append((layer, product))
    return [_Kind(*same[0], sum(product.num_products for _, product in same)) for same in found.values()]


def _largest(
    values: Sequence[Sequence[float]], kind: _Kind, group: TensorGroup, moves: Moves
) -> list[list[float]]:
    """Return the largest of what the ranks measured, number by number."""
    mine = torch.tensor(values, dtype=torch.float64, device=kind.layer.weights[0].device)
    return moves.gather([mine for _ in group.local_ranks]).wait().amax(0).tolist()


def _messages_s(kind: _Kind, group: TensorGroup, moves: Moves, sender: int, share: float) -> float:
    """Time a divided product, forward and backward: seconds on the wall beyond the products of the busiest rank."""
    operands, seconds = _operands(kind), []
    clock = clock_of(kind.layer.weights[0].device, time.perf_counter)
    with _divided(kind, group, sender, share):
        for repeat in range(1 + REPEATS):
            _largest([[0.0]], kind, group, moves)  # all ranks start together
            start_s, meters = clock(), kind.product.meters.values()
            charged_s = sum(meter.product_s for meter in meters)
            _run(kind.product, *operands)
            wall_s = clock() - start_s
            busy_s = sum(meter.product_s for meter in meters) - charged_s
            ((wall_s, busy_s),) = _largest([[wall_s, busy_s]], kind, group, moves)
            if repeat > 0:  # the first one fills caches
                seconds.append(max(wall_s - busy_s, 0.0))
    return median(seconds)


@contextmanager
def _divided(kind: _Kind, group: TensorGroup, sender: int, share: float) -> Iterator[Division]:
    """Let the sender migrate a share of its columns, for as long as the block runs."""
    weight, previous = kind.layer.weights[0], dict(kind.product.previous)
    columns = torch.arange(num_dropped_columns(share, weight.shape[1]), device=weight.device)
    dropped = {rank: columns[:0] for rank in group.local_ranks}
    kind.product.division = divide(weight.shape[1], num_ranks=group.size, dropped=dropped, migrated={sender: columns})
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
