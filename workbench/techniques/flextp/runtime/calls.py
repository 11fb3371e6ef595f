"""One product under one division: what each rank multiplies, for itself and for senders, and in which order.

What: `ColumnCall` and `RowCall` carry out a `FlexibleProduct` once, forward and backward.
Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", sections III-A (resizing,
imputation) and IV-A (which operands a receiver still needs, which results merge into the all-reduce).
Ours is the order: what a sender waits for is computed first, and what a receiver has to wait for last, so that messages
travel while ranks multiply their own columns.
Ours, too: receivers keep migrated weights from forward to backward instead of getting them twice.
Simplified: with imputation Same and broadcast-reduce, a column-parallel input's gradient counts as zero for a column
that has just come back from a receiver, which had it, and not the sender.

Shapes: N = rows, K = columns of a rank, O = outputs of a rank, M = migrated columns, w = columns of one receiver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from workbench.parallel.moves import Shape
from workbench.parallel.traffic import Phase

from ..method.resizing import (
    Imputation,
    input_gradient_of_columns,
    product_of_columns,
    recovered,
    weight_gradient_of_columns,
)
from .delivery import Collect
from .division import Division, Migration

if TYPE_CHECKING:
    from .products import FlexibleProduct

__all__ = ["Call", "ColumnCall", "RowCall"]

SIZES_KEPT = 4  # numbers of rows whose last gradient `Imputation.SAME` looks back at: a last batch may be smaller


class Call:
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
        return multiply(*operands, **more) if meter is None else meter.time(multiply, *operands, **more)

    def timed_for_others(self, rank: int, multiply, *operands: Tensor) -> Tensor:
        """Multiply a sender's columns, and charge the time to the rank, but not as its own."""
        meter = self.product.meters.get(rank)
        return multiply(*operands) if meter is None else meter.time_for_others(multiply, *operands)

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
        previous = self.product.previous.get((rank, matrix, len(part)))  # of a batch of as many rows
        full = recovered(part, kept, self.division.num_columns, self.product.imputation, previous)
        for migration in self.division.migrations:
            if migration.sender == rank:
                full[:, migration.columns] = 0
        return full

    def remember(self, matrix: str, grads: Mapping[int, Tensor | None]) -> None:
        """Keep a rank's own gradients for the next iteration, where the imputation asks for them.

        What a receiver adds for a sender is none of its own: imputed, it would be added again.
        """
        if self.product.imputation is Imputation.SAME:
            previous = self.product.previous
            for rank, grad in grads.items():
                if grad is not None:
                    previous.pop((rank, matrix, len(grad)), None)  # the newest ones are at the end
                    previous[rank, matrix, len(grad)] = grad.clone()
                    for oldest in [key for key in previous if key[:2] == (rank, matrix)][:-SIZES_KEPT]:
                        del previous[oldest]

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

    def own_gradients(self, grads: Sequence[Tensor], xs: Sequence[Tensor], weights: Sequence[Tensor]):
        """Compute the local ranks' gradients of inputs and weights; columns that they migrated are zero."""
        operands = list(zip(self.ranks, grads, xs, weights, strict=True))
        inputs = {rank: self.own_input_gradient(rank, grad, weight) for rank, grad, _, weight in operands}
        return inputs, {rank: self.own_weight_gradient(rank, grad, x) for rank, grad, x, _ in operands}


class ColumnCall(Call):
    """A column-parallel layer's: every rank holds x; a receiver needs weight columns and the gradient of the output."""

    def forward(self, xs: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
        """Return the outputs of the local ranks, [N, O]."""
        by_rank, inputs, migrations = self.by_rank(weights), self.by_rank(xs), self.division.migrations
        shape = Shape.of(weights[0])
        pending = [
            self.delivery.hand_out_columns(self.columns_of_sender(m, by_rank), m, shape.with_width(len(m.columns)))
            for m in migrations
        ]
        output = Shape.of(xs[0], (len(xs[0]), len(weights[0])))
        totals = [self._outputs(m, receive(), inputs, output) for m, receive in zip(migrations, pending, strict=True)]
        ys = self.own_outputs(xs, weights)
        for migration, collect in zip(migrations, totals, strict=True):
            total = collect()
            if total is not None:
                ys[migration.sender] += total
        return list(ys.values())

    def _outputs(self, migration: Migration, columns: dict, inputs: dict, shape: Shape) -> Collect:
        """Multiply a sender's columns, and send it the result."""
        self.received.append((columns,))
        parts = {
            rank: self.timed_for_others(rank, functional.linear, inputs[rank][:, migration.columns_of(rank)], weight)
            for rank, weight in columns.items()
        }
        return self.delivery.add_up(parts, migration, shape)

    def backward(self, grads: Sequence[Tensor], xs: Sequence[Tensor], weights: Sequence[Tensor]):
        """Return the gradients of the local ranks' inputs, then of their weights; None where they are not needed."""
        by_rank, inputs, migrations = self.by_rank(grads), self.by_rank(xs), self.division.migrations
        shape = Shape.of(grads[0])
        pending = [self.delivery.hand_out(self.of_sender(m, by_rank), m, shape) for m in migrations]
        input_grads, weight_grads = self.own_gradients(grads, xs, weights)
        self.remember("input", input_grads)
        returns = []
        for migration, receive, (columns,) in zip(migrations, pending, self.received, strict=True):
            handed = receive()
            collect = self._weight_columns(migration, handed, inputs, Shape.of(weights[0]))
            returns.append((weight_grads, migration, collect))
            collect = self._input_columns(input_grads, migration, handed, columns, Shape.of(xs[0]))
            returns.append((input_grads, migration, collect))
        for found, migration, collect in returns:
            self.place(found, migration, collect())
        self.remember("weight", weight_grads)
        return *input_grads.values(), *weight_grads.values()

    def _input_columns(self, found: dict, migration: Migration, handed: dict, columns: dict, shape: Shape) -> Collect:
        if not self.needs_inputs:
            return _nothing
        parts = {rank: self.timed_for_others(rank, torch.mm, grad, columns[rank]) for rank, grad in handed.items()}
        if not self.delivery.merges:
            return self.delivery.bring_back(parts, migration, shape.with_width(len(migration.columns)))
        for rank, part in parts.items():
            found[rank].index_add_(1, migration.columns_of(rank), part)
        return _nothing

    def _weight_columns(self, migration: Migration, handed: dict, inputs: dict, shape: Shape) -> Collect:
        if not self.needs_weights:
            return _nothing
        parts = {
            rank: self.timed_for_others(rank, torch.mm, grad.t(), inputs[rank][:, migration.columns_of(rank)])
            for rank, grad in handed.items()
        }
        return self.delivery.bring_back(parts, migration, shape.with_width(len(migration.columns)))


class RowCall(Call):
    """A row-parallel layer's: every rank holds the gradient of the output; a receiver needs columns of x and weight.

    Both have as many columns and travel as one message, x above the weight; so do both gradients on their way back.
    """

    def forward(self, xs: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
        """Return the outputs of the local ranks, [N, O]."""
        inputs, by_rank, migrations = self.by_rank(xs), self.by_rank(weights), self.division.migrations
        num_rows, shape = len(xs[0]), _above(xs[0], weights[0])
        pending = [
            self.delivery.hand_out_columns(
                self._columns_of_both(m, inputs, by_rank), m, shape.with_width(len(m.columns))
            )
            for m in migrations
        ]
        ys = self.own_outputs(xs, weights)
        for migration, receive in zip(migrations, pending, strict=True):
            both = {rank: (columns[:num_rows], columns[num_rows:]) for rank, columns in receive().items()}
            self.received.append((both,))
            parts = {rank: self.timed_for_others(rank, functional.linear, *columns) for rank, columns in both.items()}
            self._add_outputs(ys, parts, migration)
        return list(ys.values())

    def _columns_of_both(self, migration: Migration, inputs: dict, weights: dict) -> Tensor | None:
        columns = [self.columns_of_sender(migration, held) for held in (inputs, weights)]
        return None if columns[0] is None else torch.cat(columns)

    def _add_outputs(self, ys: dict[int, Tensor], parts: Mapping[int, Tensor], migration: Migration) -> None:
        if self.delivery.merges:
            for rank, part in parts.items():
                ys[rank] += part
            return
        total = self.delivery.add_up(parts, migration, Shape.of(next(iter(ys.values()))))()
        if total is not None:
            ys[migration.sender] += total

    def backward(self, grads: Sequence[Tensor], xs: Sequence[Tensor], weights: Sequence[Tensor]):
        """Return the gradients of the local ranks' inputs, then of their weights; None where they are not needed."""
        by_rank, migrations = self.by_rank(grads), self.division.migrations
        shape = _above(*((xs[0],) if self.needs_inputs else ()), *((weights[0],) if self.needs_weights else ()))
        returns = [
            self.delivery.bring_back(self._gradients(both, by_rank), m, shape.with_width(len(m.columns)))
            for m, (both,) in zip(migrations, self.received, strict=True)
        ]
        input_grads, weight_grads = self.own_gradients(grads, xs, weights)
        num_rows = len(xs[0]) if self.needs_inputs else 0
        for migration, collect in zip(migrations, returns, strict=True):
            columns = collect()
            if columns is not None and self.needs_inputs:
                self.place(input_grads, migration, columns[:num_rows])
            if columns is not None and self.needs_weights:
                self.place(weight_grads, migration, columns[num_rows:])
        self.remember("input", input_grads)
        self.remember("weight", weight_grads)
        return *input_grads.values(), *weight_grads.values()

    def _gradients(self, both: Mapping[int, tuple[Tensor, Tensor]], grads: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Compute a sender's columns of the gradients that are needed, one above the other."""
        found = {}
        for rank, (x, weight) in both.items():
            parts = [self.timed_for_others(rank, torch.mm, grads[rank], weight)] if self.needs_inputs else []
            parts += [self.timed_for_others(rank, torch.mm, grads[rank].t(), x)] if self.needs_weights else []
            found[rank] = torch.cat(parts)
        return found


def _nothing() -> None:
    """Collect nothing."""


def _above(*matrices: Tensor) -> Shape:
    """Describe matrices of one width, one above the other."""
    return Shape.of(matrices[0], (sum(map(len, matrices)), matrices[0].shape[1]))
