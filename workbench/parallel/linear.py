"""Linear layers whose weight is cut over tensor-parallel ranks: by outputs or by inputs (Megatron-LM, section 3).

The matrix product and the reduction are arguments, so that techniques replace them without touching the layers. Cuts
are even, and a full weight is drawn before it is cut, so that any number of ranks starts from the same weights.

Shapes: N = leading dimensions, I = in_features, O = out_features, T = ranks.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from workbench.parallel.groups import TensorGroup
from workbench.parallel.seeds import generator_for
from workbench.parallel.shards import check_divides, cut, join

__all__ = [
    "ColumnParallelLinear",
    "JointProduct",
    "MatrixProduct",
    "Reduction",
    "ReductionOfProducts",
    "RowParallelLinear",
    "ShardedLinear",
]

# (x [N, I'], weight shard [O', I']) -> y [N, O'], without bias, differentiable
MatrixProduct = Callable[[Tensor, Tensor], Tensor]


@runtime_checkable
class JointProduct(Protocol):
    """A matrix product for which ranks work together: it is given all local ranks at once."""

    def multiply(self, xs: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
        """Return xᵣ Wᵣᵀ of every local rank, differentiable; every rank of the group calls it."""


# (partial results of the local ranks) -> their sum over all ranks, differentiable
Reduction = Callable[[Sequence[Tensor]], Tensor]


@runtime_checkable
class ReductionOfProducts(Protocol):
    """A reduction that has its say before anything is multiplied."""

    def reduce_products(
        self, weights: Sequence[Tensor], multiply: Callable[[Sequence[Tensor]], list[Tensor]]
    ) -> Tensor:
        """Return the sum over all ranks of x Wᵀ, without forming the x Wᵀ.

        Args:
            weights: Wᵣ [O, I/T], one for every local rank.
            multiply: Multiplies each local rank's x with weights [any, I/T] given in
                place of the Wᵣ.

        Returns:
            [N, O], the same on every rank, without bias.
        """


BERT_INIT_STD = 0.02  # standard deviation of initial weights (Devlin et al., BERT, its released code)


class ShardedLinear(nn.Module):
    """What the two linears share: shards of one full weight, one for every local rank."""

    weight_dim: int  # dimension of the weight [O, I] that is cut

    site: str  # name in errors and in the traffic; the class has a default

    def __init__(
        self,
        in_features: int,
        out_features: int,
        group: TensorGroup,
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
        cut_size, name = ((out_features, "out_features"), (in_features, "in_features"))[self.weight_dim]
        check_divides(name, cut_size, group.size * num_blocks)
        self.in_features, self.out_features, self.has_bias = in_features, out_features, bias
        self.group, self.num_blocks = group, num_blocks
        self.site = site = type(self).site if site is None else site
        self.matrix_product = matrix_product
        self._products()  # refuses a wrong number of them
        full = torch.empty(out_features, in_features, device="meta" if _is_meta(device) else None)
        if not full.is_meta:
            full.normal_(std=init_std, generator=generator_for(seed, f"{site}.weight"))
        self.weights = nn.ParameterList(
            self._cut(full, self.weight_dim, rank).to(device=device, dtype=dtype) for rank in group.local_ranks
        )
        self._add_bias_()

    @abstractmethod
    def _add_bias_(self) -> None:
        """Make the local parameters of a bias of zeros, or note that there is none."""

    def _cut(self, full: Tensor, dim: int, rank: int) -> Tensor:
        return cut(full, dim=dim, rank=rank, size=self.group.size, num_blocks=self.num_blocks)

    def _products(self) -> Sequence[MatrixProduct]:
        """Give the matrix product of each local rank."""
        num_local, given = len(self.group.local_ranks), self.matrix_product
        if not isinstance(given, list | tuple | nn.ModuleList):
            return (given,) * num_local
        if len(given) != num_local:
            raise ValueError(f"matrix_product: {len(given)} given; {self.site} has {num_local} local ranks")
        return given

    def _multiply(self, xs: Iterable[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
        """Multiply one input for every local rank with that rank's weight."""
        if isinstance(self.matrix_product, JointProduct):
            return self.matrix_product.multiply(list(xs), list(weights))
        calls = zip(self._products(), xs, weights, strict=True)
        return [product(x, weight) for product, x, weight in calls]

    @torch.no_grad()
    def load_full_(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Copy a full weight [O, I] and, exactly if the layer has one, a full bias [O] into the local shards."""
        _check_shape(f"{self.site}.weight", weight, (self.out_features, self.in_features))
        for shard, rank in zip(self.weights, self.group.local_ranks, strict=True):
            shard.copy_(self._cut(weight, self.weight_dim, rank))
        if (bias is not None) != self.has_bias:
            raise ValueError(f"{self.site}.bias: given {bias is not None}, needed {self.has_bias}")
        if bias is not None:
            _check_shape(f"{self.site}.bias", bias, (self.out_features,))
            self._load_full_bias_(bias)

    def full_weight(self, gradient: bool = False) -> Tensor:
        """Join the shards of all ranks, or their gradients, as [O, I], detached; every rank must call it."""
        return self._full(self.weights, self.weight_dim, gradient)

    def _full(self, shards: Sequence[nn.Parameter], dim: int, gradient: bool) -> Tensor:
        if gradient and any(shard.grad is None for shard in shards):
            raise ValueError(f"gradient: {self.site} has none; call backward first")
        with self.group.traffic.at(f"{self.site}.full"):
            everyone = self.group.gather([shard.grad if gradient else shard for shard in shards])
        return join(everyone, dim=dim, num_blocks=self.num_blocks)

    def extra_repr(self) -> str:
        """Say the sizes in the module's repr."""
        return f"{self.in_features}, {self.out_features}, num_ranks={self.group.size}"


class ColumnParallelLinear(ShardedLinear):
    """y_r = x Wᵣᵀ + bᵣ with the rows Wᵣ of W, that is, the outputs, cut over ranks.

    Args:
        in_features: I.
        out_features: O; divisible by the number of ranks (and blocks).
        group: The ranks.
        bias: Whether to add one; it is cut like the outputs.
        matrix_product: Replaces x Wᵣᵀ, forward and (by its autograd rule) backward; one
            for all, or a list with one for every local rank, or a `JointProduct`.
        num_blocks: Outputs are a stack of this many blocks, each of them cut (3 for a
            fused query, key, value).
        seed, site: Name the random stream of the weights, and the traffic's call site.
        init_std: Standard deviation of the initial weights.
        device, dtype: Of the parameters.
    """

    weight_dim, site = 0, "column"

    def _add_bias_(self) -> None:
        self.biases = nn.ParameterList(weight.new_zeros(len(weight)) for weight in self.weights if self.has_bias)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Multiply the replicated [N, I], whose gradient is summed over ranks, with each local shard: [N, O/T] each."""
        with self.group.traffic.at(self.site):
            x = self.group.copy(x)
        products = self._multiply((x for _ in self.weights), self.weights)
        if not self.has_bias:
            return products
        biased = zip(products, self.biases, strict=True)
        return [product + bias.to(product.dtype) for product, bias in biased]  # autocast's products are narrower

    def full_bias(self, gradient: bool = False) -> Tensor:
        """Join the bias of all ranks, as `full_weight` does: [O]."""
        return self._full(self.biases, 0, gradient)

    def _load_full_bias_(self, bias: Tensor) -> None:
        for shard, rank in zip(self.biases, self.group.local_ranks, strict=True):
            shard.copy_(self._cut(bias, 0, rank))


class RowParallelLinear(ShardedLinear):
    """y = Σᵣ xᵣ Wᵣᵀ + b with the columns Wᵣ of W, that is, the inputs, cut over ranks.

    `reduction` may be assigned at any time; an `nn.Module` is registered, so that
    optimizers see its parameters. None means `group.sum`.

    Args:
        in_features: I; divisible by the number of ranks.
        out_features: O.
        group: The ranks.
        bias: Whether to add one; it is replicated and added once, after the sum.
        matrix_product: Replaces xᵣ Wᵣᵀ, as in `ColumnParallelLinear`.
        reduction: Sums the partial results over the ranks.
        options: seed, site, init_std, device, dtype, as in `ColumnParallelLinear`.
    """

    weight_dim, site = 1, "row"

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
        super().__init__(in_features, out_features, group, bias, matrix_product, **options)
        self.reduction = reduction

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

    def forward(self, xs: Sequence[Tensor]) -> Tensor:
        """Multiply each local input [N, I/T] with its shard and reduce over all ranks: [N, O] on every rank."""
        with self.group.traffic.at(self.site):
            y = self._sum_of_products(xs)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def _sum_of_products(self, xs: Sequence[Tensor]) -> Tensor:
        if isinstance(self.reduction, ReductionOfProducts):
            return self.reduction.reduce_products(self.weights, partial(self._multiply, xs))
        partials = self._multiply(xs, self.weights)
        return self.group.sum(partials) if self.reduction is None else self.reduction(partials)

    def full_bias(self, gradient: bool = False) -> Tensor:
        """Give the replicated bias or its gradient: [O]."""
        return (self.bias.grad if gradient else self.bias).detach()

    def _load_full_bias_(self, bias: Tensor) -> None:
        self.bias.copy_(bias)


def _is_meta(device: torch.device | str | None) -> bool:
    return device is not None and torch.device(device).type == "meta"


def _check_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name}: shape {tuple(tensor.shape)} does not fit; it must be {shape}")
