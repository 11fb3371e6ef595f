"""The matrix product of a parallel linear whose ranks drop columns, or compute columns for one another.

What: a `FlexibleProduct` takes the place of a layer's product. While it is under way, a `Division` says which columns
of the contracted dimension each rank keeps, drops and migrates; without one, or without gradients, it is the plain
product.
Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", sections III-A (resizing,
imputation) and IV-A (which operands a receiver still needs, which results merge into the all-reduce).
Simplified: the layer's bias and its all-reduces are untouched.
Left out: autocast (refused); receivers keep migrated weights from forward to backward instead of getting them twice.

Shapes: N = rows, K = columns of a rank, O = outputs of a rank, M = migrated columns, w = columns of one receiver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from workbench.parallel.groups import TensorGroup
from workbench.parallel.moves import Shape
from workbench.parallel.traffic import Phase

from ..method.resizing import (
    Buffers,
    Imputation,
    input_gradient_of_columns,
    product_of_columns,
    recovered,
    weight_gradient_of_columns,
)
from .delivery import Delivery
from .division import Division, Migration
from .meter import Meter

__all__ = ["Cut", "FlexibleProduct"]


class Cut(StrEnum):
    """What of the layer is cut over the ranks, which says what a receiver already holds."""

    COLUMN = "column-parallel"
    """Outputs: every rank holds the input; gradients of the input are summed."""
    ROW = "row-parallel"
    """Inputs: every rank holds the gradient of the output; outputs are summed."""


class FlexibleProduct:
    """A `JointProduct` that follows a division of its columns.

    Args:
        group: the layer's ranks.
        cut: what of the layer is cut.
        site: the layer's name, for the ledger of traffic.
        delivery: how migrated columns travel.
        imputation: what stands in the dropped columns of gradients.
        meters: local rank -> times its products; ranks without one are not timed.
    """

    def __init__(
        self,
        group: TensorGroup,
        cut: Cut,
        site: str,
        *,
        delivery: Delivery,
        imputation: Imputation = Imputation.ZERO,
        meters: Mapping[int, Meter] | None = None,
    ):
        self.group, self.cut, self.site, self.delivery = group, cut, site, delivery
        self.imputation, self.meters = imputation, dict(meters or {})
        self.division: Division | None = None
        self.num_rows = 0  # N of the last divided product
        self.buffers = Buffers()
        self.previous: dict[tuple[int, str], Tensor] = {}  # (rank, matrix) -> last gradient, for Imputation.SAME

    def multiply(self, xs: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
        """Return the products of the local ranks; see `workbench.parallel.linear.JointProduct`."""
        if self.division is None or not torch.is_grad_enabled():
            return [functional.linear(x, weight) for x, weight in zip(xs, weights, strict=True)]
        if torch.is_autocast_enabled(xs[0].device.type):
            raise ValueError(f"{self.site}: products that are divided over ranks do not run under autocast")
        call = (_ColumnCall if self.cut is Cut.COLUMN else _RowCall)(self, self.division)
        leading = xs[0].shape[:-1]
        self.num_rows = leading.numel()
        ys = _Divided.apply(call, *(x.flatten(0, -2) for x in xs), *weights)
        return [y.unflatten(0, leading) for y in ys]


class _Divided(torch.autograd.Function):
    """Products xᵣ Wᵣᵀ of the local ranks, divided over ranks.

    Forward: the outputs; each sender's migrated operands go to the receivers, and for column-parallel layers its
    output comes back.
    Backward: gradients of inputs and weights, imputed where columns were dropped; for column-parallel layers the
    gradient of the sender's output goes to the receivers; gradients of migrated columns come back, except where the
    all-reduce of the layer's input gradient collects them.
    """

    @staticmethod
    def forward(ctx, call: _Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        half = len(tensors) // 2
        ctx.call = call
        ctx.save_for_backward(*tensors)
        with call.traffic(Phase.FORWARD):
            return tuple(call.forward(tensors[:half], tensors[half:]))

    @staticmethod
    def backward(ctx, *grads: Tensor):
        tensors, half, call = ctx.saved_tensors, len(ctx.saved_tensors) // 2, ctx.call
        call.needs_inputs, call.needs_weights = (any(ctx.needs_input_grad[1:][s]) for s in _halves(half))
        with call.traffic(Phase.BACKWARD):
            found = call.backward([grad.contiguous() for grad in grads], tensors[:half], tensors[half:])
        return None, *found


def _halves(half: int) -> tuple[slice, slice]:
    return slice(half), slice(half, None)


class _Call:
    """One product under one division: what both kinds of layer share."""

    def __init__(self, product: FlexibleProduct, division: Division):
        self.product, self.division, self.delivery = product, division, product.delivery
        self.ranks = product.group.local_ranks
        self.received: list[tuple[dict[int, Tensor], ...]] = []  # operands of each migration, until backward
        self.needs_inputs = self.needs_weights = True

    def traffic(self, phase: Phase):
        """Name the call site of the messages inside the block."""
        return self.product.group.traffic.at(f"{self.product.site}.migration", phase)

    def timed(self, rank: int, multiply, *operands: Tensor, **more) -> Tensor:
        """Multiply, and charge the time to the rank."""
        meter = self.product.meters.get(rank)
        if meter is None:
            return multiply(*operands, **more)
        with meter.product():
            return multiply(*operands, **more)

    def _columns(self, rank: int) -> dict:
        """Return how a local rank multiplies some columns: only the product itself is charged."""
        return {"buffers": self.product.buffers, "multiply": partial(self.timed, rank, torch.mm)}

    def own_outputs(self, xs: Sequence[Tensor], weights: Sequence[Tensor]) -> dict[int, Tensor]:
        """Multiply each local rank's kept columns: [N, O]."""
        return {rank: self._own_output(rank, x, w) for rank, x, w in zip(self.ranks, xs, weights, strict=True)}

    def _own_output(self, rank: int, x: Tensor, weight: Tensor) -> Tensor:
        kept = self.division.own[rank].kept
        if kept is None:
            return self.timed(rank, functional.linear, x, weight)
        return product_of_columns(x, weight, kept, **self._columns(rank))

    def own_input_gradient(self, rank: int, grad: Tensor, weight: Tensor) -> Tensor | None:
        """Compute a local rank's gradient of its input, [N, K]; columns that it migrated are zero."""
        if not self.needs_inputs:
            return None
        kept = self.division.own[rank].kept
        if kept is None:
            return self.timed(rank, torch.mm, grad, weight)
        part = input_gradient_of_columns(grad, weight, kept, **self._columns(rank))
        return self._recovered(rank, "input", part, kept)

    def own_weight_gradient(self, rank: int, grad: Tensor, x: Tensor) -> Tensor | None:
        """Compute a local rank's gradient of its weight, [O, K]; columns that it migrated are zero."""
        if not self.needs_weights:
            return None
        kept = self.division.own[rank].kept
        if kept is None:
            return self.timed(rank, torch.mm, grad.t(), x)
        part = weight_gradient_of_columns(grad, x, kept, **self._columns(rank))
        return self._recovered(rank, "weight", part, kept)

    def _recovered(self, rank: int, matrix: str, part: Tensor, kept: Tensor) -> Tensor:
        previous = self.product.previous.get((rank, matrix))
        if previous is not None and len(previous) != len(part):
            previous = None  # another batch size: nothing of the iteration before fits
        full = recovered(part, kept, self.division.num_columns, self.product.imputation, previous)
        for migration in self.division.migrations:
            if migration.sender == rank:
                full[:, migration.columns] = 0
        return full

    def remember(self, inputs: Sequence[Tensor | None], weights: Sequence[Tensor | None]) -> None:
        """Keep gradients for the next iteration, where the imputation asks for them."""
        if self.product.imputation is Imputation.SAME:
            for matrix, grads in (("input", inputs), ("weight", weights)):
                kept = {(rank, matrix): grad for rank, grad in zip(self.ranks, grads, strict=True) if grad is not None}
                self.product.previous |= kept

    def of_sender(self, migration: Migration, tensors: Mapping[int, Tensor]) -> Tensor | None:
        """Return the sender's tensor where the sender is local."""
        return tensors.get(migration.sender)

    def columns_of_sender(self, migration: Migration, tensors: Mapping[int, Tensor]) -> Tensor | None:
        """Copy the migrated columns of the sender's tensor where the sender is local."""
        matrix = tensors.get(migration.sender)
        return None if matrix is None else matrix.index_select(1, migration.columns)

    def by_rank(self, tensors: Sequence[Tensor]) -> dict[int, Tensor]:
        """Name tensors by their local ranks."""
        return dict(zip(self.ranks, tensors, strict=True))

    def place(self, grads: dict[int, Tensor | None], migration: Migration, returned: Tensor | None) -> None:
        """Put columns that came back into the sender's gradient."""
        if returned is not None:
            grads[migration.sender][:, migration.columns] = returned


class _ColumnCall(_Call):
    """Every rank holds x; a receiver needs the sender's weight columns and the gradient of the sender's output."""

    def forward(self, xs: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
        by_rank, inputs, migrations = self.by_rank(weights), self.by_rank(xs), self.division.migrations
        shape = Shape.of(weights[0])
        pending = [
            self.delivery.hand_out_columns(self.columns_of_sender(m, by_rank), m, _width(shape, len(m.columns)))
            for m in migrations
        ]
        ys = self.own_outputs(xs, weights)
        for migration, receive in zip(migrations, pending, strict=True):
            columns = receive()
            parts = {
                rank: self.timed(rank, functional.linear, inputs[rank][:, migration.columns_of(rank)], weight)
                for rank, weight in columns.items()
            }
            total = self.delivery.add_up(ys.get(migration.sender), parts, migration, Shape.of(next(iter(ys.values()))))
            if total is not None:
                ys[migration.sender] = total
            self.received.append((columns,))
        return list(ys.values())

    def backward(self, grads: Sequence[Tensor], xs: Sequence[Tensor], weights: Sequence[Tensor]):
        by_rank, inputs, migrations = self.by_rank(grads), self.by_rank(xs), self.division.migrations
        shape = Shape.of(grads[0])
        pending = [self.delivery.hand_out(self.of_sender(m, by_rank), m, shape) for m in migrations]
        operands = list(zip(self.ranks, grads, xs, weights, strict=True))
        input_grads = {rank: self.own_input_gradient(rank, grad, weight) for rank, grad, _, weight in operands}
        weight_grads = {rank: self.own_weight_gradient(rank, grad, x) for rank, grad, x, _ in operands}
        for migration, receive, (columns,) in zip(migrations, pending, self.received, strict=True):
            handed = receive()
            self._input_columns(input_grads, migration, handed, columns, Shape.of(xs[0]))
            self._weight_columns(weight_grads, migration, handed, inputs, Shape.of(weights[0]))
        self.remember(list(input_grads.values()), list(weight_grads.values()))
        return *input_grads.values(), *weight_grads.values()

    def _input_columns(self, found: dict, migration: Migration, handed: dict, columns: dict, shape: Shape) -> None:
        if not self.needs_inputs:
            return
        parts = {rank: self.timed(rank, torch.mm, grad, columns[rank]) for rank, grad in handed.items()}
        if self.delivery.merges:
            for rank, part in parts.items():
                found[rank].index_add_(1, migration.columns_of(rank), part)
        else:
            returned = self.delivery.bring_back(parts, migration, _width(shape, len(migration.columns)))
            self.place(found, migration, returned)

    def _weight_columns(self, found: dict, migration: Migration, handed: dict, inputs: dict, shape: Shape) -> None:
        if not self.needs_weights:
            return
        parts = {
            rank: self.timed(rank, torch.mm, grad.t(), inputs[rank][:, migration.columns_of(rank)])
            for rank, grad in handed.items()
        }
        returned = self.delivery.bring_back(parts, migration, _width(shape, len(migration.columns)))
        self.place(found, migration, returned)


class _RowCall(_Call):
    """Every rank holds the gradient of the output; a receiver needs the sender's columns of x and of the weight."""

    def forward(self, xs: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
        inputs, by_rank, migrations = self.by_rank(xs), self.by_rank(weights), self.division.migrations
        pending = [
            [
                self.delivery.hand_out_columns(self.columns_of_sender(m, held), m, _width(shape, len(m.columns)))
                for held, shape in ((inputs, Shape.of(xs[0])), (by_rank, Shape.of(weights[0])))
            ]
            for m in migrations
        ]
        ys = self.own_outputs(xs, weights)
        for migration, (receive_x, receive_weight) in zip(migrations, pending, strict=True):
            x_columns, weight_columns = receive_x(), receive_weight()
            parts = {
                rank: self.timed(rank, functional.linear, x, weight_columns[rank]) for rank, x in x_columns.items()
            }
            self._add_outputs(ys, parts, migration)
            self.received.append((x_columns, weight_columns))
        return list(ys.values())

    def _add_outputs(self, ys: dict[int, Tensor], parts: Mapping[int, Tensor], migration: Migration) -> None:
        if self.delivery.merges:
            for rank, part in parts.items():
                ys[rank] += part
            return
        shape = Shape.of(next(iter(ys.values())))
        total = self.delivery.add_up(ys.get(migration.sender), parts, migration, shape)
        if total is not None:
            ys[migration.sender] = total

    def backward(self, grads: Sequence[Tensor], xs: Sequence[Tensor], weights: Sequence[Tensor]):
        by_rank, operands = self.by_rank(grads), list(zip(self.ranks, grads, xs, weights, strict=True))
        input_grads = {rank: self.own_input_gradient(rank, grad, weight) for rank, grad, _, weight in operands}
        weight_grads = {rank: self.own_weight_gradient(rank, grad, x) for rank, grad, x, _ in operands}
        for migration, (x_columns, weight_columns) in zip(self.division.migrations, self.received, strict=True):
            if self.needs_inputs:
                parts = {r: self.timed(r, torch.mm, by_rank[r], weight) for r, weight in weight_columns.items()}
                self._return(input_grads, migration, parts, Shape.of(xs[0]))
            if self.needs_weights:
                parts = {r: self.timed(r, torch.mm, by_rank[r].t(), x) for r, x in x_columns.items()}
                self._return(weight_grads, migration, parts, Shape.of(weights[0]))
        self.remember(list(input_grads.values()), list(weight_grads.values()))
        return *input_grads.values(), *weight_grads.values()

    def _return(self, found: dict, migration: Migration, parts: Mapping[int, Tensor], shape: Shape) -> None:
        self.place(found, migration, self.delivery.bring_back(parts, migration, _width(shape, len(migration.columns))))


def _width(shape: Shape, width: int) -> Shape:
    return Shape(sizes=(shape.sizes[0], width), dtype=shape.dtype, device=shape.device)
