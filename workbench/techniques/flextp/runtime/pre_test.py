"""The pre-test: what dropping and migrating cost on these ranks, for this model.

What: for a few shares, the extraction of every layer's columns and the messages of every layer's migration are run
on buffers of the real sizes, timed, and fitted. All ranks take the largest of what the ranks measured, so that all of
them plan from the same numbers.
Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section IV-C, algorithm 2, line 1.
Simplified: rank 0 is the sender; messages are timed without the products that they overlap with.
Left out: renewing the costs during training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import Tensor

from workbench.parallel import TensorGroup
from workbench.parallel.linear import ShardedLinear
from workbench.parallel.moves import Shape, moves_of

from ..method.costs import Costs, PiecewiseLinear
from ..method.migration import column_ranges, receivers_of
from ..method.plan import RankTimes
from ..method.resizing import num_dropped_columns, recovered
from .division import Migration
from .products import Cut, FlexibleProduct

__all__ = ["SHARES", "measure_costs"]

SHARES = (0.125, 0.25, 0.5, 0.75)
REPEATS = 3
SENDER = 0


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
        times: of all ranks, from which the time of a normal rank's products follows.
        shares: of a rank's columns that are removed in the test.

    Returns:
        Costs, the same on every rank.
    """
    pairs = list(zip(layers, products, strict=True))
    local = [[_extraction_s(pairs, share), _messages_s(pairs, group, share)] for share in shares]
    mine = torch.tensor(local, dtype=torch.float64, device=layers[0].weights[0].device)
    everyone = moves_of(group).gather([mine for _ in group.local_ranks]).wait().amax(0).tolist()
    extraction_s, messages_s = zip(*everyone, strict=True)
    alloc_s = min(extraction_s)
    normal_s = min(each.unresized().product_s for each in times)
    return Costs(
        alloc_s=alloc_s,
        extract=PiecewiseLinear.fitted(zip(shares, (seconds - alloc_s for seconds in extraction_s), strict=True)),
        communicate=PiecewiseLinear.fitted([(0.0, 0.0), *zip(shares, messages_s, strict=True)]),
        compute=PiecewiseLinear.straight(normal_s),
    )


def _extraction_s(pairs: Sequence[tuple[ShardedLinear, FlexibleProduct]], share: float) -> float:
    """Time taking operands apart and gradients together, forward and backward, in CPU seconds of this thread."""
    clock = time.perf_counter if pairs[0][0].weights[0].is_cuda else time.thread_time
    return _median_s(lambda: [_extract(layer, product, share) for layer, product in pairs], clock)


def _extract(layer: ShardedLinear, product: FlexibleProduct, share: float) -> None:
    weight = layer.weights[0].detach()
    num_columns = weight.shape[1]
    kept = torch.arange(num_columns - num_dropped_columns(share, num_columns), device=weight.device)
    x = weight.new_zeros(product.num_rows, num_columns)
    for matrix in (x, weight):
        for _ in range(2):  # once forward, once backward
            part = matrix.index_select(1, kept)
        recovered(part, kept, num_columns)


def _messages_s(pairs: Sequence[tuple[ShardedLinear, FlexibleProduct]], group: TensorGroup, share: float) -> float:
    """Time the messages of one sender's migration in all layers, in seconds of the wall."""
    return _median_s(lambda: [_exchange(layer, product, group, share) for layer, product in pairs], time.perf_counter)


def _exchange(layer: ShardedLinear, product: FlexibleProduct, group: TensorGroup, share: float) -> None:
    weight = layer.weights[0].detach()
    num_outputs, num_columns = weight.shape
    columns = torch.arange(num_dropped_columns(share, num_columns), device=weight.device)
    receivers = receivers_of(SENDER, (SENDER,), group.size)
    parts = dict(zip(receivers, column_ranges(len(columns), len(receivers)), strict=True))
    migration = Migration(sender=SENDER, columns=columns, parts=parts)
    operands = {"x": (product.num_rows, len(columns)), "weight": (num_outputs, len(columns))}
    shapes = {name: Shape.of(weight, sizes) for name, sizes in operands.items()}
    output = Shape.of(weight, (product.num_rows, num_outputs))
    if product.cut is Cut.COLUMN:
        _column_parallel(product, migration, shapes, output)
    else:
        _row_parallel(product, migration, shapes)


def _column_parallel(product: FlexibleProduct, migration: Migration, shapes: dict[str, Shape], output: Shape) -> None:
    delivery, held = product.delivery, _held(product.delivery.local_ranks)
    delivery.hand_out_columns(held(shapes["weight"]), migration, shapes["weight"])()
    results = {rank: output.empty() for rank in delivery.local_ranks if rank in migration.parts}
    delivery.add_up(held(output), results, migration, output)
    delivery.hand_out(held(output), migration, output)()
    _bring_back(product, migration, shapes["weight"])


def _row_parallel(product: FlexibleProduct, migration: Migration, shapes: dict[str, Shape]) -> None:
    held = _held(product.delivery.local_ranks)
    for shape in shapes.values():
        product.delivery.hand_out_columns(held(shape), migration, shape)()
        _bring_back(product, migration, shape)


def _bring_back(product: FlexibleProduct, migration: Migration, shape: Shape) -> None:
    parts = {
        rank: Shape(sizes=(shape.sizes[0], len(part)), dtype=shape.dtype, device=shape.device).empty()
        for rank, part in migration.parts.items()
        if rank in product.delivery.local_ranks
    }
    product.delivery.bring_back(parts, migration, shape)


def _held(local_ranks: Sequence[int]) -> Callable[[Shape], Tensor | None]:
    return lambda shape: shape.empty() if SENDER in local_ranks else None


def _median_s(run: Callable[[], object], clock: Callable[[], float]) -> float:
    """Return the median time of a few runs, after one that fills caches."""
    run()
    seconds = []
    for _ in range(REPEATS):
        start_s = clock()
        run()
        seconds.append(clock() - start_s)
    return median(seconds)
