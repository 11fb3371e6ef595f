"""Linear layers whose weight is cut over tensor-parallel ranks: by outputs or by inputs (Megatron-LM, section 3).

The matrix product and the reduction are arguments, so that techniques replace them without touching the layers. Cuts
are even, and a full weight is drawn before it is cut, so that any number of ranks starts from the same weights.

Shapes: N = leading dimensions, I = in_features, O = out_features, T = ranks.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from workbench.parallel.exchanges import Exchange, Pending, begin, start
from workbench.parallel.groups import ProcessTensorGroup, TensorGroup, VirtualTensorGroup
from workbench.parallel.seeds import generator_for
from workbench.parallel.shards import check_divides, cut, join
from workbench.parallel.traffic import Phase

__all__ = ["ColumnParallelLinear", "JointProduct", "MatrixProduct", "MeshLinear", "Reduction", "ReductionOfProducts"]
__all__ += ["RowParallelLinear", "ShardedLinear"]

# (x [N, I'], weight shard [O', I']) -> y [N, O'], without bias, differentiable
MatrixProduct = Callable[[Tensor, Tensor], Tensor]


@runtime_checkable
class JointProduct(Protocol):
    """A matrix product of all ranks together; it gets the inputs of all local ranks at once."""

    def multiply(self, xs: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
        """Return xᵣ Wᵣᵀ of every local rank, differentiable; every rank of the group calls it."""


# (partial results of the local ranks) -> their sum over all ranks, differentiable
Reduction = Callable[[Sequence[Tensor]], Tensor]


@runtime_checkable
class ReductionOfProducts(Protocol):
    """A reduction that carries out the products itself."""

    def reduce_products(
        self, weights: Sequence[Tensor], multiply: Callable[[Sequence[Tensor]], list[Tensor]]
    ) -> Tensor:
        """Return the sum over all ranks of x Wᵀ, without forming the x Wᵀ.

        Args:
            weights: Wᵣ [O, I/T], one for every local rank.
            multiply: Multiplies each local rank's x with weights [any, I/T] given in place of the Wᵣ.

        Returns:
            [N, O], the same on every rank, without bias.
        """


BERT_INIT_STD = 0.02  # standard deviation of initial weights (Devlin et al., BERT, its released code)


class ShardedLinear(nn.Module):
    """A linear of one full weight [O, I]: outputs are cut over the ranks of one group, inputs over those of another.

    On a two-dimensional mesh the groups are its axes (`MeshLinear`); with a group of one rank it is Megatron's linear.

    Args:
        in_features: I; divisible by the ranks of `input_group`.
        out_features: O; divisible by the ranks of `output_group` (and blocks).
        output_group, input_group: The ranks; partial results are summed over the second.
        bias: Whether to add one, after the sum; it is cut like the outputs.
        matrix_product: Replaces x Wᵀ, forward and (by its autograd rule) backward; one
            for all, or a list with one for every local shard, or a `JointProduct`.
        num_blocks: Outputs are a stack of this many blocks, each of them cut (3 for a fused query, key, value).
        seed, site: Name the random stream of the weights, and the traffic's call site.
        init_std: Standard deviation of the initial weights.
        device, dtype: Of the parameters.
    """

    site = "linear"  # name in errors and in the traffic

    def __init__(
        self,
        in_features: int,
        out_features: int,
        output_group: TensorGroup,
        input_group: TensorGroup,
        bias: bool = True,
        matrix_product: MatrixProduct | Sequence[MatrixProduct] | JointProduct = functional.linear,
        *,
        num_blocks: int = 1,
        seed: int = 0,
        site: str | None = None,
        init_std: float = BERT_INIT_STD,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        check_divides("out_features", out_features, output_group.size * num_blocks)
        check_divides("in_features", in_features, input_group.size)
        self.in_features, self.out_features, self.has_bias = in_features, out_features, bias
        self.output_group, self.input_group, self.num_blocks = output_group, input_group, num_blocks
        self.site = site = type(self).site if site is None else site
        self.matrix_product = matrix_product
        num_local = len(self._places())
        if isinstance(matrix_product, Sequence | nn.ModuleList) and len(matrix_product) != num_local:
            raise ValueError(f"matrix_product: {len(matrix_product)} given; {self.site} has {num_local} local ranks")
        is_meta = device is not None and torch.device(device).type == "meta"
        full = torch.empty(out_features, in_features, device="meta" if is_meta else None)
        if not full.is_meta:
            full.normal_(std=init_std, generator=generator_for(seed, f"{site}.weight"))
        self.weights = nn.ParameterList(
            self._cut(full, *place).to(device=device, dtype=dtype) for place in self._places()
        )
        self._add_bias_()

    def _add_bias_(self) -> None:
        """Make the local parameters of a bias of zeros, or none."""
        weights = self.weights[:: len(self.input_group.local_ranks)]
        self.biases = nn.ParameterList(weight.new_zeros(len(weight)) for weight in weights if self.has_bias)

    def _places(self) -> list[tuple[int, int]]:
        """Return the ranks in both groups of each local shard, in the order of `weights`."""
        return list(product(self.output_group.local_ranks, self.input_group.local_ranks))

    def _cut(self, full: Tensor, output_rank: int, input_rank: int) -> Tensor:
        by_outputs = self._cut_outputs(full, output_rank)
        return cut(by_outputs, dim=1, rank=input_rank, size=self.input_group.size)

    def _cut_outputs(self, full: Tensor, rank: int) -> Tensor:
        return cut(full, dim=0, rank=rank, size=self.output_group.size, num_blocks=self.num_blocks)

    def _multiply(self, xs: Iterable[Tensor], weights: Iterable[Tensor]) -> list[Tensor]:
        """Multiply one input for every local shard with that shard's weight."""
        product = self.matrix_product
        if isinstance(product, JointProduct):
            return product.multiply(list(xs), list(weights))
        products: Iterable[MatrixProduct] = (
            product if isinstance(product, Sequence | nn.ModuleList) else [product] * len(self.weights)
        )
        return [multiply(x, weight) for multiply, x, weight in zip(products, xs, weights, strict=True)]

    def partials(self, xs: Sequence[Tensor]) -> list[Tensor]:
        """Multiply one input [N, I'] for each local rank of the input group: [N, O'] for each local shard.

        The gradient of an input is summed over the output group.
        """
        if self.output_group.size > 1:
            with self.output_group.traffic.at(self.site):
                xs = [self.output_group.copy(x) for x in xs]
        return self._multiply(list(xs) * len(self.output_group.local_ranks), self.weights)

    def biased(self, sums: Sequence[Tensor]) -> list[Tensor]:
        """Add the bias to the summed results, one for each local rank of the output group."""
        if not self.has_bias:
            return list(sums)
        pairs = zip(sums, self.biases, strict=True)
        return [total + bias.to(total.dtype) for total, bias in pairs]  # autocast's products are narrower

    @torch.no_grad()
    def load_full_(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Copy a full weight [O, I] and, exactly if the layer has one, a full bias [O] into the local shards."""
        _check_shape(f"{self.site}.weight", weight, (self.out_features, self.in_features))
        for shard, place in zip(self.weights, self._places(), strict=True):
            shard.copy_(self._cut(weight, *place))
        if (bias is not None) != self.has_bias:
            raise ValueError(f"{self.site}.bias: given {bias is not None}, needed {self.has_bias}")
        if bias is not None:
            _check_shape(f"{self.site}.bias", bias, (self.out_features,))
            self._load_full_bias_(bias)

    def _load_full_bias_(self, bias: Tensor) -> None:
        for shard, rank in zip(self.biases, self.output_group.local_ranks, strict=True):
            shard.copy_(self._cut_outputs(bias, rank))

    def full_weight(self, gradient: bool = False) -> Tensor:
        """Join the shards of all ranks, or their gradients, as [O, I], detached; every rank must call it."""
        shards = self._own(self.weights, gradient)
        num_inputs = len(self.input_group.local_ranks)
        with self.input_group.traffic.at(f"{self.site}.full"):
            rows = [self.input_group.gather(shards[at : at + num_inputs]) for at in range(0, len(shards), num_inputs)]
        return self._joined([join(row, dim=1) for row in rows])

    def full_bias(self, gradient: bool = False) -> Tensor:
        """Join the bias of all ranks, or its gradient, as `full_weight` does: [O]."""
        return self._joined(self._own(self.biases, gradient))

    def _own(self, shards: Iterable[nn.Parameter], gradient: bool) -> list[Tensor]:
        tensors = [shard.grad if gradient else shard for shard in shards]
        present = [tensor for tensor in tensors if tensor is not None]
        if len(present) < len(tensors):
            raise ValueError(f"gradient: {self.site} has none; call backward first")
        return present

    def _joined(self, rows: Sequence[Tensor]) -> Tensor:
        with self.output_group.traffic.at(f"{self.site}.full"):
            return join(self.output_group.gather(rows), dim=0, num_blocks=self.num_blocks)

    def extra_repr(self) -> str:
        """Say the sizes in the module's repr."""
        num_ranks = self.output_group.size * self.input_group.size
        return f"{self.in_features}, {self.out_features}, num_ranks={num_ranks}"


class ColumnParallelLinear(ShardedLinear):
    """y_r = x Wᵣᵀ + bᵣ with the rows Wᵣ of W, that is, the outputs, cut over ranks.

    Args:
        in_features, out_features, group: I, O, and the ranks; they divide O.
        options: Those of `ShardedLinear`.
    """

    site = "column"

    def __init__(self, in_features: int, out_features: int, group: TensorGroup, *args, **options):
        super().__init__(in_features, out_features, group, VirtualTensorGroup(1), *args, **options)
        self.group = group

    def forward(self, x: Tensor) -> Tensor | list[Tensor]:
        """Multiply the replicated [N, I], whose gradient is summed over ranks: [N, O/T], a list on virtual ranks."""
        shards = self.shards(x)
        return shards[0] if isinstance(self.group, ProcessTensorGroup) else shards

    def shards(self, x: Tensor) -> list[Tensor]:
        """Multiply as `forward` does: [N, O/T] for each local rank."""
        return self.biased(self.partials([x]))


class RowParallelLinear(ShardedLinear):
    """y = Σᵣ xᵣ Wᵣᵀ + b with the columns Wᵣ of W, that is, the inputs, cut over ranks.

    `reduction` may be assigned at any time; an `nn.Module` is registered, so that
    optimizers see its parameters. None means `group.sum`.

    Args:
        in_features, out_features, group: I, O, and the ranks; they divide I.
        bias: Whether to add one; it is replicated and added once, after the sum.
        matrix_product: As in `ShardedLinear`.
        reduction: Sums the partial results over the ranks.
        options: seed, site, init_std, device, dtype, as in `ShardedLinear`.
    """

    site = "row"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        group: TensorGroup,
        bias: bool = True,
        matrix_product: MatrixProduct | Sequence[MatrixProduct] | JointProduct = functional.linear,
        reduction: Reduction | None = None,
        **options,
    ):
        super().__init__(in_features, out_features, VirtualTensorGroup(1), group, bias, matrix_product, **options)
        self.group, self.reduction = group, reduction

    def _add_bias_(self) -> None:
        zeros = self.weights[0].new_zeros(self.out_features)
        self.bias = nn.Parameter(zeros) if self.has_bias else None

    def __setattr__(self, name: str, value) -> None:
        # Between None, a function and a Module the attribute changes homes: nn.Module
        # refuses to put a function where a Module was, and would hide a Module behind None.
        if name == "reduction":
            self.__dict__.pop(name, None)
            self._modules.pop(name, None)
        super().__setattr__(name, value)

    def forward(self, xs: Tensor | Sequence[Tensor]) -> Tensor:
        """Multiply each local input [N, I/T] with its shard and reduce over all ranks: [N, O] on every rank.

        `xs` is a list with one for each local rank; on a real rank it may be the tensor itself.
        """
        if isinstance(xs, Tensor):
            if len(self.weights) > 1:
                rule = f"it must be a list of {len(self.weights)}, one for each virtual rank"
                raise ValueError(f"xs of {self.site} is a tensor; {rule}")
            xs = [xs]
        with self.group.traffic.at(self.site):
            if isinstance(self.reduction, ReductionOfProducts):
                y = self.reduction.reduce_products(self.weights, partial(self._multiply, xs))
            else:
                partials = self._multiply(xs, self.weights)
                y = self.group.sum(partials) if self.reduction is None else self.reduction(partials)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def full_bias(self, gradient: bool = False) -> Tensor:
        """Give the replicated bias or its gradient: [O]."""
        assert self.bias is not None
        return self._own([self.bias], gradient)[0].detach()

    def _load_full_bias_(self, bias: Tensor) -> None:
        assert self.bias is not None
        self.bias.copy_(bias)


class _OverlappedProduct(torch.autograd.Function):
    """x Wᵀ; in the backward pass the product for W is computed while the input's gradient is summed over ranks.

    Forward: returns x Wᵀ; nothing is communicated.
    Backward: one all-reduce of the input's size.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, group: ProcessTensorGroup) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.site = group, group.traffic.site
        return functional.linear(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        x, weight = ctx.saved_tensors  # wider than the gradient under autocast
        pending = begin(grad @ weight.to(grad.dtype), Exchange.SUM, ctx.group, Phase.BACKWARD, ctx.site)
        grad_weight = grad.flatten(0, -2).mT @ x.flatten(0, -2).to(grad.dtype)
        return pending.wait().to(x.dtype), grad_weight.to(weight.dtype), None


class MeshLinear(ShardedLinear):
    """y = x Wᵀ + b on a two-dimensional mesh of real ranks: the groups are its axes, every rank has one shard.

    Column-first: outputs over axis 1, inputs over axis 2; row-first the other way round (ATP, section 3.2). On a mesh
    (N, 1) they are `ColumnParallelLinear` and `RowParallelLinear`, bit for bit.

    Args:
        overlap: Compute the weight's gradient while the input's is summed.
        sums_gradient: Whether to sum the input's gradient; False where the exchange that made the input does.
        options: Those of `ShardedLinear`.
    """

    output_group: ProcessTensorGroup
    input_group: ProcessTensorGroup

    def __init__(self, *args, overlap: bool = True, sums_gradient: bool = True, **options):
        super().__init__(*args, **options)
        if self.matrix_product is not functional.linear:
            raise ValueError(f"{self.site}: matrix_product is given; a mesh multiplies as torch does")
        if len(self.weights) != 1:
            raise ValueError(f"{self.site}: {len(self.weights)} local shards; a mesh of real ranks has one a rank")
        self.overlap, self.sums_gradient = overlap, sums_gradient

    def partial(self, x: Tensor) -> Tensor:
        """Multiply [N, I'] with this rank's shard: a part [N, O'] of the sum over the input group."""
        if self.output_group.size == 1 or not self.sums_gradient:
            return functional.linear(x, self.weights[0])
        with self.output_group.traffic.at(self.site):
            if self.overlap:
                return _OverlappedProduct.apply(x, self.weights[0], self.output_group)
            return self.partials([x])[0]

    def start(self, x: Tensor) -> Pending:
        """Begin the forward pass of [N, I']; its result [N, O'] can be waited for."""
        partial = self.partial(x)
        with self.input_group.traffic.at(self.site):
            pending = start(partial, Exchange.SUM, Exchange.COPY, self.input_group)
        return pending.then(self.with_bias)

    def with_bias(self, total: Tensor) -> Tensor:
        """Add this rank's bias to a sum."""
        return self.biased([total])[0]

    def forward(self, x: Tensor) -> Tensor:
        """Multiply and sum: [N, I'] -> [N, O']."""
        return self.start(x).wait()


def _check_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name}: shape {tuple(tensor.shape)} does not fit; it must be {shape}")
