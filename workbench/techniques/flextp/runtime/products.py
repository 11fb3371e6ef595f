"""The matrix product of a parallel linear whose ranks drop columns, or compute columns for one another (III-A, IV-A).

The order is ours: results for others are computed first, and results from others are awaited last, so that messages
travel while ranks multiply their own columns. Receivers keep migrated weights from forward to backward.

Shapes: N = rows, K = columns of a rank, O = outputs of a rank, M = migrated columns, w = columns of one receiver.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from workbench.models import Cut
from workbench.parallel.groups import TensorGroup
from workbench.parallel.linear import ColumnParallelLinear, MatrixProduct, ShardedLinear
from workbench.parallel.moves import Shape
from workbench.parallel.traffic import Phase

from ..method.plan import Imputation, Scheme
from ..method.resizing import Buffers, gradient_of_columns, product_of_columns, recovered
from .division import Delivery, Division, Receive
from .meter import Meter

if TYPE_CHECKING:
    from .torch_linears import TorchLinear

    Linear: TypeAlias = ShardedLinear | TorchLinear  # a parallel linear of the workbench, or of torch

SIZES_KEPT = 4  # numbers of rows whose last gradient `Imputation.SAME` looks back at: a last batch may be smaller


class FlexibleProduct:
    """A `JointProduct` that follows a division of its columns; plain without a division, or without gradients.

    Under autocast columns travel as narrow as products are. `site` names the layer in the ledger of traffic.
    """

    def __init__(
        self,
        group: TensorGroup,
        cut: Cut,
        site: str,
        *,
        scheme: Scheme = Scheme.BROADCAST_REDUCE,
        imputation: Imputation = Imputation.ZERO,
        meters: Mapping[int, Meter] | None = None,
        buffers: Buffers | None = None,
    ):
        self.group, self.cut, self.site, self.delivery = group, cut, site, Delivery(scheme, group)
        self.imputation, self.meters = imputation, dict(meters or {})
        self.division: Division | None = None
        self.num_rows = 0  # N of the last product under a division
        self.has_multiplied = False  # in this iteration
        self.num_products = 0  # of the last iteration that had any; more than 1 where gradients are accumulated
        self.dtype = torch.float32  # of its operands
        self.buffers = Buffers() if buffers is None else buffers
        self.previous: dict[tuple, Tensor] = {}  # (rank, matrix, rows) -> last gradient, for Imputation.SAME
        reason = "FlexTP times and divides a product anew in each iteration; leave it out of the compiled graph"
        self.multiply = torch.compiler.disable(self._multiply, reason=reason)

    def _multiply(self, xs: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
        """Return the products of the local ranks; see `workbench.parallel.linear.JointProduct`."""
        if self.division is None or not torch.is_grad_enabled():
            return [functional.linear(x, weight) for x, weight in zip(xs, weights, strict=True)]
        if torch._C._current_graph_task_id() != -1 and not self.has_multiplied:  # first in a backward pass
            rule = "FlexTP takes checkpoint(..., use_reentrant=False) alone"
            raise RuntimeError(f"{self.site} is recomputed in the backward pass and was not balanced forward; {rule}")
        device = xs[0].device.type
        if torch.is_autocast_enabled(device):  # which rounds the operands of a product, but not float64
            narrow = torch.get_autocast_dtype(device)
            xs, weights = (
                [tensor if tensor.dtype is torch.float64 else tensor.to(narrow) for tensor in tensors]
                for tensors in (xs, weights)
            )
        leading = xs[0].shape[:-1]
        self.num_products = 1 + (self.num_products if self.has_multiplied else 0)
        self.num_rows, self.dtype, self.has_multiplied = leading.numel(), xs[0].dtype, True
        call = (_ColumnCall if self.cut is Cut.COLUMN else _RowCall)(self, self.division)
        ys = _Divided.apply(call, *(x.reshape(leading.numel(), x.shape[-1]) for x in xs), *weights)
        return [y.view(*leading, y.shape[-1]) for y in ys]

    def state_dict(self) -> dict[str, Any]:
        """Return what the next iteration and a pre-test to come ask of the iterations before."""
        counts = {"num_rows": self.num_rows, "num_products": self.num_products}
        return {**counts, "dtype": str(self.dtype), "previous": [[*key, grad] for key, grad in self.previous.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; its tensors are copied."""
        self.num_rows, self.num_products = state["num_rows"], state["num_products"]
        self.dtype = getattr(torch, state["dtype"].removeprefix("torch."))
        self.previous = {(rank, matrix, rows): grad.clone() for rank, matrix, rows, grad in state["previous"]}

    def __deepcopy__(self, memo) -> MatrixProduct:
        return functional.linear  # a copy of a balanced model is plain, to be balanced by itself


class _Divided(torch.autograd.Function):
    """Products xᵣ Wᵣᵀ of the local ranks, divided over ranks.

    Forward: the outputs; each sender's migrated operands go out, and a column-parallel layer's output comes back.
    Backward: gradients of inputs and weights, imputed where columns were dropped; a column-parallel layer's gradient of
    the output goes out; gradients of migrated columns come back, except where an all-reduce collects them anyway.
    """

    @staticmethod
    def forward(ctx, call: "_ColumnCall | _RowCall", *tensors: Tensor) -> tuple[Tensor, ...]:
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
        needs = ctx.needs_input_grad[1:]
        call.needs_inputs, call.needs_weights = any(needs[:half]), any(needs[half:])
        with call.traffic(Phase.BACKWARD):
            by_rank = call.backward([grad.contiguous() for grad in grads], tensors[:half], tensors[half:])
        return None, *(gradients.get(rank) for gradients in by_rank for rank in call.ranks)


class _Call:
    """One product under one division; `backward` returns the needed gradients of inputs and of weights by rank."""

    def __init__(self, product: FlexibleProduct, division: Division):
        self.product, self.division, self.delivery = product, division, product.delivery
        self.ranks, self.migrations = product.group.local_ranks, division.migrations
        self.received: list = []  # operands of each migration by local receiver, until backward
        self.needs_inputs = self.needs_weights = True

    def traffic(self, phase: Phase):
        """Name the call site of the messages inside the block."""
        return self.product.group.traffic.at(f"{self.product.site}.migration", phase)

    def by_rank(self, tensors: Sequence[Tensor]) -> dict[int, Tensor]:
        return dict(zip(self.ranks, tensors, strict=True))

    def timed(self, rank: int, multiply, *operands: Tensor, for_others: bool = True) -> Tensor:
        """Multiply, and charge the time to the rank's meter, if it has one."""
        if rank in self.product.meters:
            multiply = partial(self.product.meters[rank].time, multiply, for_others=for_others)
        return multiply(*operands)

    def hand_out(self, *operands: Sequence[Tensor]) -> list[Receive]:
        """Start to send the migrated columns of every sender's operands, one above the other."""
        shape, by_rank = _above(*(tensors[0] for tensors in operands)), list(map(self.by_rank, operands))
        receives = []
        for migration in self.migrations:
            held = None
            if migration.sender in self.ranks:
                held = torch.cat([matrix[migration.sender].index_select(1, migration.columns) for matrix in by_rank])
            receives.append(self.delivery.hand_out_columns(held, migration, shape))
        return receives

    def of_kept(self, rank: int, of_columns, *operands: Tensor) -> Tensor:
        """Multiply a local rank's kept columns; only the product itself is charged."""
        multiply = partial(self.timed, rank, torch.mm, for_others=False)
        return of_columns(*operands, self.division.kept[rank], buffers=self.product.buffers, multiply=multiply)

    def own_outputs(self, xs: Sequence[Tensor], weights: Sequence[Tensor]) -> dict[int, Tensor]:
        """Multiply each local rank's kept columns: [N, O]."""
        operands = zip(self.ranks, xs, weights, strict=True)
        return {rank: self.of_kept(rank, product_of_columns, x, weight) for rank, x, weight in operands}

    def own_gradients(
        self, needed: bool, matrix: str, lefts: Sequence[Tensor], rights: Sequence[Tensor]
    ) -> dict[int, Tensor]:
        """Compute the gradients of all inputs or weights, if needed; columns that a rank migrated are zero."""
        gradients = {}
        for rank, left, right in zip(self.ranks, lefts, rights, strict=True) if needed else ():
            part = self.of_kept(rank, gradient_of_columns, left, right)
            previous = self.product.previous.get((rank, matrix, len(left)))  # of a batch of as many rows
            num_columns, imputation = self.division.num_columns, self.product.imputation
            gradients[rank] = recovered(part, self.division.kept[rank], num_columns, imputation, previous)
            for migration in self.migrations:
                if migration.sender == rank:
                    gradients[rank][:, migration.columns] = 0
        return gradients

    def remember(self, matrix: str, grads: Mapping[int, Tensor]) -> None:
        """Keep a rank's own gradients, without additions for a sender, where the imputation asks for them."""
        if self.product.imputation is not Imputation.SAME:
            return
        previous = self.product.previous
        for rank, grad in grads.items():
            if grad.isfinite().all():  # or columns would stay infinite, whatever a scaler does
                previous.pop((rank, matrix, len(grad)), None)  # the newest ones are at the end
                previous[rank, matrix, len(grad)] = grad.clone()
                for oldest in [key for key in previous if key[:2] == (rank, matrix)][:-SIZES_KEPT]:
                    del previous[oldest]


class _ColumnCall(_Call):
    """A column-parallel layer's: all hold x; a receiver needs weight columns and the gradient of the output."""

    def forward(self, xs: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
        inputs, output = self.by_rank(xs), Shape.of(xs[0], (len(xs[0]), len(weights[0])))
        totals = []
        for migration, receive in zip(self.migrations, self.hand_out(weights), strict=True):
            self.received.append(receive())
            parts = {}
            for rank, weight in self.received[-1].items():
                x = inputs[rank][:, migration.columns_of(rank)]
                parts[rank] = self.timed(rank, functional.linear, x, weight)
            totals.append(self.delivery.add_up(parts, migration, output))
        ys = self.own_outputs(xs, weights)
        for collect in totals:
            for sender, total in collect().items():
                ys[sender] += total
        return list(ys.values())

    def backward(self, grads: Sequence[Tensor], xs: Sequence[Tensor], weights: Sequence[Tensor]):
        by_rank, inputs = self.by_rank(grads), self.by_rank(xs)
        pending = [self.delivery.hand_out(by_rank.get(m.sender), m, Shape.of(grads[0])) for m in self.migrations]
        input_grads = self.own_gradients(self.needs_inputs, "input", grads, weights)
        weight_grads = self.own_gradients(self.needs_weights, "weight", [grad.t() for grad in grads], xs)
        self.remember("input", input_grads)  # with a merging delivery zero where others compute
        returns = []
        for migration, receive, columns in zip(self.migrations, pending, self.received, strict=True):
            handed = receive()
            if self.needs_weights:
                parts = {
                    rank: self.timed(rank, torch.mm, grad.t(), inputs[rank][:, migration.columns_of(rank)])
                    for rank, grad in handed.items()
                }
                collect = self.delivery.bring_back(parts, migration, Shape.of(weights[0]))
                returns.append((weight_grads, migration, collect))
            if self.needs_inputs:
                parts = {rank: self.timed(rank, torch.mm, g, columns[rank]) for rank, g in handed.items()}
                if self.delivery.merges:
                    for rank, part in parts.items():
                        input_grads[rank].index_add_(1, migration.columns_of(rank), part)
                else:
                    collect = self.delivery.bring_back(parts, migration, Shape.of(xs[0]))
                    returns.append((input_grads, migration, collect))
        for gradients, migration, collect in returns:
            for sender, columns in collect().items():
                gradients[sender][:, migration.columns] = columns
        self.remember("weight", weight_grads)
        return input_grads, weight_grads


class _RowCall(_Call):
    """A row-parallel layer's: every rank holds the gradient of the output; a receiver needs columns of x and weight.

    Both have as many columns and travel as one message, x above the weight; so do both gradients on their way back.
    """

    def forward(self, xs: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
        num_rows, pending = len(xs[0]), self.hand_out(xs, weights)
        ys = self.own_outputs(xs, weights)
        for migration, receive in zip(self.migrations, pending, strict=True):
            both = {rank: (columns[:num_rows], columns[num_rows:]) for rank, columns in receive().items()}
            self.received.append(both)
            parts = {rank: self.timed(rank, functional.linear, *columns) for rank, columns in both.items()}
            if self.delivery.merges:
                for rank, part in parts.items():
                    ys[rank] += part
            else:
                for sender, total in self.delivery.add_up(parts, migration, Shape.of(ys[self.ranks[0]]))().items():
                    ys[sender] += total
        return list(ys.values())

    def backward(self, grads: Sequence[Tensor], xs: Sequence[Tensor], weights: Sequence[Tensor]):
        by_rank, returns = self.by_rank(grads), []
        shape = _above(*((xs[0],) if self.needs_inputs else ()), *((weights[0],) if self.needs_weights else ()))
        for migration, both in zip(self.migrations, self.received, strict=True):
            gradients = {}
            for rank, (x, weight) in both.items():
                parts = []
                if self.needs_inputs:
                    parts.append(self.timed(rank, torch.mm, by_rank[rank], weight))
                if self.needs_weights:
                    parts.append(self.timed(rank, torch.mm, by_rank[rank].t(), x))
                gradients[rank] = torch.cat(parts)
            returns.append(self.delivery.bring_back(gradients, migration, shape))
        input_grads = self.own_gradients(self.needs_inputs, "input", grads, weights)
        weight_grads = self.own_gradients(self.needs_weights, "weight", [grad.t() for grad in grads], xs)
        num_rows = len(xs[0]) if self.needs_inputs else 0
        for migration, collect in zip(self.migrations, returns, strict=True):
            for sender, columns in collect().items():
                if self.needs_inputs:
                    input_grads[sender][:, migration.columns] = columns[:num_rows]
                if self.needs_weights:
                    weight_grads[sender][:, migration.columns] = columns[num_rows:]
        self.remember("input", input_grads)
        self.remember("weight", weight_grads)
        return input_grads, weight_grads


def _above(*matrices: Tensor) -> Shape:
    """Describe matrices of one width, one above the other."""
    return Shape.of(matrices[0], (sum(map(len, matrices)), matrices[0].shape[1]))


# --- the layers of a model whose products are replaced


def cut_of(layer: "Linear") -> Cut:
    if not isinstance(layer, ShardedLinear):
        return layer.cut
    return Cut.COLUMN if isinstance(layer, ColumnParallelLinear) else Cut.ROW


def check_whole(layers: Mapping[str, "Linear"]) -> None:
    """Refuse shards that fully_shard has cut once more: a rank then holds no whole columns."""
    for name, layer in layers.items():
        if any(hasattr(weight, "placements") for weight in layer.weights):
            rule = "FlexTP takes a model that is tensor-parallel alone, without fully_shard"
            raise ValueError(f"weight of {name} is sharded twice; {rule}")


def parallel_linears(model: nn.Module, group: TensorGroup) -> dict[str, "Linear"]:
    """Return the parallel linears of a model by their names; ValueError if `balance` cannot take them."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, ShardedLinear)}
    check_whole(layers)
    cut_by_torch = {}
    if any(hasattr(weight, "placements") for weight in model.parameters()):  # DTensors, slow to import
        from .torch_linears import torch_linears

        cut_by_torch = torch_linears(model, group)
    if not layers and not cut_by_torch:
        rule = "it must have linears that are cut over ranks, of `workbench.parallel` or by `parallelize_module`"
        raise ValueError(f"model is a {type(model).__name__} without parallel linears; {rule}")
    for layer in layers.values():
        if layer.group is not group:
            raise ValueError(f"group of {layer.site} is another one; it must be the given group")
        if layer.matrix_product is not functional.linear:
            raise ValueError(f"matrix_product of {layer.site} is replaced already; `Balancer.remove` gives it back")
    return layers | cut_by_torch
