"""The matrix product of a parallel linear whose ranks drop columns, or compute columns for one another.

What: a `FlexibleProduct` takes the place of a layer's product. While it is under way, a `Division` says which columns
of the contracted dimension each rank keeps, drops and migrates, and `calls` carries that out; without one, or without
gradients, it is the plain product.
Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", sections III-A (resizing,
imputation) and IV-A (which operands a receiver still needs, which results merge into the all-reduce).
Simplified: the layer's bias and its all-reduces are untouched. Under autocast operands are rounded before they are
divided, so that columns travel as narrow as they are multiplied.
Left out: nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from workbench.parallel.groups import TensorGroup
from workbench.parallel.linear import MatrixProduct
from workbench.parallel.traffic import Phase

from ..method.resizing import Buffers, Imputation
from .calls import Call, ColumnCall, RowCall
from .delivery import Delivery
from .division import Division
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
        buffers: memory for extracted columns, which all layers of a model can share.
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
        buffers: Buffers | None = None,
    ):
        self.group, self.cut, self.site, self.delivery = group, cut, site, delivery
        self.imputation, self.meters = imputation, dict(meters or {})
        self.division: Division | None = None
        self.num_rows = 0  # N of the last product under a division
        self.has_multiplied = False  # in this iteration
        self.num_products = 0  # of the last iteration that had any; more than one where gradients are accumulated
        self.dtype = torch.float32  # of its operands
        self.buffers = Buffers() if buffers is None else buffers
        self.previous: dict[tuple, Tensor] = {}  # (rank, matrix, rows) -> last gradient, for Imputation.SAME

    def multiply(self, xs: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
        """Return the products of the local ranks; see `workbench.parallel.linear.JointProduct`."""
        if self.division is None or not torch.is_grad_enabled():
            return [functional.linear(x, weight) for x, weight in zip(xs, weights, strict=True)]
        xs, weights = _as_autocast(xs), _as_autocast(weights)
        self.num_products = 1 + (self.num_products if self.has_multiplied else 0)
        self.num_rows, self.dtype, self.has_multiplied = xs[0].shape[:-1].numel(), xs[0].dtype, True
        if self.division.is_plain and self.imputation is not Imputation.SAME:  # which needs gradients to look back at
            return [self._plain(rank, x, w) for rank, x, w in zip(self.group.local_ranks, xs, weights, strict=True)]
        call = (ColumnCall if self.cut is Cut.COLUMN else RowCall)(self, self.division)
        leading = xs[0].shape[:-1]
        ys = _Divided.apply(call, *(x.flatten(0, -2) for x in xs), *weights)
        return [y.unflatten(0, leading) for y in ys]

    def __deepcopy__(self, memo) -> MatrixProduct:
        return functional.linear  # a copy of a balanced model is plain, to be balanced by itself

    def _plain(self, rank: int, x: Tensor, weight: Tensor) -> Tensor:
        meter = self.meters.get(rank)
        return functional.linear(x, weight) if meter is None else _Timed.apply(meter, x, weight)


def _as_autocast(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Round operands as autocast does those of a product: outside of it and in float64 they stay as they are."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    narrow = torch.get_autocast_dtype(device)
    return [tensor if tensor.dtype is torch.float64 else tensor.to(narrow) for tensor in tensors]


class _Timed(torch.autograd.Function):
    """A product x Wᵀ whose seconds are charged to its rank.

    Forward: the product.
    Backward: gradients of x and W. Nothing is communicated.
    """

    @staticmethod
    def forward(ctx, meter: Meter, x: Tensor, weight: Tensor) -> Tensor:
        ctx.meter = meter
        ctx.save_for_backward(x, weight)
        return meter.time(functional.linear, x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        return None, *ctx.meter.time(_gradients, grad, *ctx.saved_tensors, needed=ctx.needs_input_grad[1:])


def _gradients(grad: Tensor, x: Tensor, weight: Tensor, needed: Sequence[bool]) -> tuple[Tensor | None, Tensor | None]:
    grad_x = torch.matmul(grad, weight) if needed[0] else None
    grad_weight = torch.mm(grad.flatten(0, -2).t(), x.flatten(0, -2)) if needed[1] else None
    return grad_x, grad_weight


class _Divided(torch.autograd.Function):
    """Products xᵣ Wᵣᵀ of the local ranks, divided over ranks.

    Forward: the outputs; each sender's migrated operands go to the receivers, and for column-parallel layers its
    output comes back.
    Backward: gradients of inputs and weights, imputed where columns were dropped; for column-parallel layers the
    gradient of the sender's output goes to the receivers; gradients of migrated columns come back, except where the
    all-reduce of the layer's input gradient collects them.
    """

    @staticmethod
    def forward(ctx, call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        half = len(tensors) // 2
        ctx.call = call
        ctx.save_for_backward(*tensors)
        with call.traffic(Phase.FORWARD):
            return tuple(call.forward(tensors[:half], tensors[half:]))

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Tensor):
        tensors, call = ctx.saved_tensors, ctx.call  # read once: checkpointing gives them away
        half = len(tensors) // 2
        call.needs_inputs, call.needs_weights = (any(ctx.needs_input_grad[1:][s]) for s in _halves(half))
        with call.traffic(Phase.BACKWARD):
            found = call.backward([grad.contiguous() for grad in grads], tensors[:half], tensors[half:])
        return None, *found


def _halves(half: int) -> tuple[slice, slice]:
    return slice(half), slice(half, None)
