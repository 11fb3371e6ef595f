"""The layers of a model that can be balanced, and what of them all ranks must have alike.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section III-A: products of
column-parallel and row-parallel linears.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.nn import functional

from workbench.parallel import ColumnParallelLinear, TensorGroup
from workbench.parallel.linear import ShardedLinear

from .products import Cut

__all__ = ["cut_of", "described", "parallel_linears"]


def cut_of(layer: ShardedLinear) -> Cut:
    """Return what of the layer is cut."""
    return Cut.COLUMN if isinstance(layer, ColumnParallelLinear) else Cut.ROW


def described(names: Sequence[str], layers: Sequence[ShardedLinear]) -> list[tuple]:
    """Tell what the messages of a division follow from: ranks that differ in it would wait for ever."""
    first = [(name, layer, layer.weights[0]) for name, layer in zip(names, layers, strict=True)]
    return [(name, cut_of(layer), tuple(each.shape), each.dtype, each.requires_grad) for name, layer, each in first]


def parallel_linears(model: nn.Module, group: TensorGroup) -> tuple[list[str], list[ShardedLinear]]:
    """Return the parallel linears of a model, with their names in it.

    Raises:
        ValueError: if there are none, one is of another group, or one's product is replaced already.
    """
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, ShardedLinear)]
    names, layers = [name for name, _ in found], [layer for _, layer in found]
    if not layers:
        raise ValueError(f"model: {type(model).__name__} has no parallel linears; there is nothing to balance")
    for layer in layers:
        if layer.group is not group:
            raise ValueError(f"group: {layer.site} belongs to another group than the one given")
        if layer.matrix_product is not functional.linear:
            raise ValueError(
                f"model: the matrix product of {layer.site} is replaced already; `Balancer.remove` gives it back"
            )
    return names, layers
