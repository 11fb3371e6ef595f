"""The pre-test, algorithm 2, line 1: the costs of dropping and migrating on these ranks, for this model.

Products of one layer of every shape run in turns: whole, with all ranks dropping a share of their columns, and with the
slowest rank migrating it. The wall beyond the busiest rank's products is the cost of messages.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from workbench.parallel import TensorGroup
from workbench.parallel.moves import moves_of

from ..method.plan import Costs, Line, Plan, RankTimes
from ..method.resizing import gradient_of_columns, kept_columns, num_dropped_columns, recovered
from .division import divide
from .meter import clock_of
from .products import FlexibleProduct

if TYPE_CHECKING:
    from .products import Linear

SHARES = (0.25, 0.75)
REPEATS = 6
LEAST_MOVING = 1 / 16  # of a product's time that is in proportion to its columns; below, nothing is worth removing


@dataclass(frozen=True, slots=True)
class _Kind:
    """Layers of one shape."""

    layer: "Linear"  # the one that is run
    product: FlexibleProduct  # its product
    num_products: int  # of all of them in an iteration


def measure_costs(
    layers: Sequence["Linear"], products: Sequence[FlexibleProduct], group: TensorGroup, times: Sequence[RankTimes]
) -> Costs:
    """Measure the costs, the same on every rank; all call it once `products` have multiplied."""
    by_shape: dict[tuple, list[tuple[Linear, FlexibleProduct]]] = {}
    for layer, product in zip(layers, products, strict=True):
        for meter in product.meters.values():
            meter.stop_straggling()
        if product.num_rows:  # 0: not used by the model
            key = product.cut, layer.weights[0].shape, product.num_rows, product.dtype
            by_shape.setdefault(key, []).append((layer, product))
    kinds = [_Kind(*same[0], sum(product.num_products for _, product in same)) for same in by_shape.values()]
    unresized = [rank.unresized() for rank in times]
    sender = max(range(len(times)), key=lambda rank: unresized[rank].own_s)
    plans = [Plan.plain(group.size), *(Plan.of_shares([share] * group.size) for share in SHARES)]
    plans += [Plan.of_shares(migrated=[share * (rank == sender) for rank in range(group.size)]) for share in SHARES]
    # Every kind counts as often as it multiplies.
    messages_s, product_s = np.sum([kind.num_products * _timed_runs(kind, group, plans) for kind in kinds], axis=0)
    kept_fixed, received_fixed = _fixed_shares(product_s, np.array(SHARES), sender)
    local_s = [[fsum(kind.num_products * _extraction_s(kind, share) for kind in kinds)] for share in SHARES]
    extraction_s = [max(seconds) for seconds in _of_all_ranks(local_s, kinds[0], group)]
    alloc_s, least_s = min(extraction_s), min(rank.product_s for rank in unresized)
    return Costs(
        alloc_s=alloc_s,
        extract=Line.fitted(SHARES, [seconds - alloc_s for seconds in extraction_s]),
        communicate=Line.fitted(SHARES, np.median(messages_s[-len(SHARES) :, :, 0], axis=1).tolist()),
        compute=Line(at_zero_s=least_s * received_fixed, per_share_s=least_s * (1 - kept_fixed)),
        fixed_share=kept_fixed,
    )


def _of_all_ranks(values: Sequence[Sequence[float]], kind: _Kind, group: TensorGroup) -> list[list[float]]:
    """Collect numbers of every rank, one list a number; `values` are those of the local ranks, or one for all."""
    by_rank = [[numbers[place % len(numbers)] for numbers in values] for place in range(len(group.local_ranks))]
    messages = torch.tensor(by_rank, dtype=torch.float64, device=kind.layer.weights[0].device)
    return moves_of(group).gather(messages.unbind()).wait().t().tolist()


def _timed_runs(kind: _Kind, group: TensorGroup, plans: Sequence[Plan]) -> np.ndarray:
    """Time a divided product, forward and backward, a few times; plans take turns, so that drift is shared.

    Returns seconds [2, plans, repeats, ranks]: of messages, which is the wall beyond the busiest rank's products, and
    in products.
    """
    product, device = kind.product, kind.layer.weights[0].device
    weights = [weight.detach().to(product.dtype, copy=True).requires_grad_() for weight in kind.layer.weights]
    xs = [weight.new_zeros(product.num_rows, weight.shape[1]).requires_grad_() for weight in weights]
    order = torch.arange(xs[0].shape[1], device=device)
    meters, clock = product.meters, clock_of(device, time.perf_counter)

    def first(share: float) -> Tensor:
        return order[: num_dropped_columns(share, len(order))]

    def run(plan: Plan) -> tuple[list[float], list[float]]:
        migrated = {rank: first(plan.ranks[rank].migrated) for rank in plan.senders}
        dropped = {rank: first(plan.ranks[rank].dropped) for rank in group.local_ranks}
        product.division = divide(len(order), num_ranks=group.size, dropped=dropped, migrated=migrated)
        with torch.autocast(device.type, enabled=False):  # operands have the type of training already
            _of_all_ranks([[0.0]], kind, group)  # all ranks start together
            start_s, charged_s = clock(), {rank: meter.product_s for rank, meter in meters.items()}
            with torch.enable_grad():
                ys = product.multiply(xs, weights)
            torch.autograd.grad(ys, [*xs, *weights], [torch.zeros_like(y) for y in ys])
            wall_s = clock() - start_s
            own_s = [meters[rank].product_s - charged_s[rank] if rank in meters else 0.0 for rank in group.local_ranks]
            walls_s, busy_s, product_s = _of_all_ranks([[wall_s], [fsum(own_s)], own_s], kind, group)
        return [max(max(walls_s) - max(busy_s), 0.0)] * group.size, product_s

    previous = dict(product.previous)
    try:
        rounds = [[run(plan) for plan in plans] for _ in range(1 + REPEATS)]
    finally:
        product.division, product.previous = None, previous  # gradients of the test are none to impute
    return np.array(rounds[1:]).transpose(2, 1, 0, 3)  # the first ones fill caches


def _fixed_shares(product_s: np.ndarray, shares: np.ndarray, sender: int) -> tuple[float, float]:
    """Return the time of products that fewer columns do not shorten, as shares of a rank's own: (kept, received).

    `product_s` are seconds [1 + 2 shares, repeats, ranks]: plain, with each share dropped, and with each migrated. Of
    kept columns the least of the ranks' fixed parts counts, since with too much of it plans swing; of received columns
    the median.
    """
    if not product_s[0].all():
        return 0.0, 0.0  # ranks without meters have no times of products
    # Products over the plain ones of the same repeat, in the median repeat: [shares, ranks].
    dropped, migrated = np.split(np.median(product_s[1:] / product_s[0], axis=1), 2)
    saved = (shares[:, None] * (1 - dropped)).sum(axis=0) / (shares**2).sum()
    moving = float(min(max(saved.max(), LEAST_MOVING), 1.0))
    received = np.median(np.delete(migrated, sender, axis=1), axis=1) - 1 - moving * shares / (dropped.shape[1] - 1)
    return 1 - moving, float(max(received.mean(), 0.0))


def _extraction_s(kind: _Kind, share: float) -> float:
    """Return the median seconds of taking out both operands' columns and putting gradients back, as `clock_of` says."""
    weight = kind.layer.weights[0].detach().to(kind.product.dtype)
    num_columns = weight.shape[1]
    order = torch.randperm(num_columns, generator=torch.Generator().manual_seed(num_columns))
    kept = kept_columns(order[: num_dropped_columns(share, num_columns)], num_columns).to(weight.device)
    x, buffers = weight.new_zeros(kind.product.num_rows, num_columns), kind.product.buffers
    clock, seconds = clock_of(weight.device, time.thread_time), []
    for repeat in range(1 + REPEATS):
        start_s = clock() if repeat else 0.0  # the first one fills caches
        for matrix in (x, weight):
            for _ in range(2):  # once forward, once backward
                part = gradient_of_columns(matrix, matrix, kept, buffers, multiply=lambda _, columns: columns)
            recovered(part, kept, num_columns)
        if repeat:
            seconds.append(clock() - start_s)
    return median(seconds)
