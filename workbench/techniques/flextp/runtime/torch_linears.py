"""Linears that torch's `parallelize_module` has cut (DTensor weights), as a balancer sees a parallel linear.

Torch's hooks around the linear stay; between them the local shards are multiplied, and the group sums what is to be
summed in the place of DTensor: gradients of inputs of a column-wise linear, outputs of a row-wise one.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn import functional

from workbench.parallel import ProcessTensorGroup, TensorGroup
from workbench.parallel.linear import MatrixProduct

from .products import Cut, FlexibleProduct


class TorchLinear:
    """An `nn.Linear` with a DTensor weight, with the attributes of a parallel linear that a balancer uses."""

    def __init__(self, site: str, linear: nn.Linear, group: TensorGroup):
        self.site, self.group, self._linear = site, group, linear
        (placement,) = linear.weight.placements
        self.cut = Cut.COLUMN if placement.dim == 0 else Cut.ROW
        self._product: MatrixProduct | FlexibleProduct = functional.linear

    @property
    def weights(self) -> list[Tensor]:
        """The shard of this rank; it shares memory with the parameter."""
        weight = self._linear.weight
        _check_one_axis(self.site, weight)  # fully_shard may have come after `balance`
        return [weight.to_local().detach().requires_grad_(weight.requires_grad)]

    @property
    def matrix_product(self) -> MatrixProduct | FlexibleProduct:
        """The product of the shards; assigning torch's own gives the linear its own forward pass back."""
        return self._product

    @matrix_product.setter
    def matrix_product(self, product: MatrixProduct | FlexibleProduct) -> None:
        self._product = product
        self._linear.__dict__.pop("forward", None)
        if isinstance(product, FlexibleProduct):
            self._linear.forward = self._forward

    def _forward(self, x: DTensor) -> DTensor:
        """Multiply as `nn.Linear` does with DTensors: [N, K] placed as the linear asks -> [N, O] placed as it gives."""
        linear, is_column = self._linear, self.cut is Cut.COLUMN
        local = x.to_local(grad_placements=[Replicate()] if is_column else None)
        with self.group.traffic.at(self.site):
            local = self.group.copy(local) if is_column else local
            y = self._multiplied(local, linear.weight.to_local())
            y = y if is_column else self.group.sum([y])
        if linear.bias is not None:
            y = y + linear.bias.to_local().to(y.dtype)
        placement = Shard(y.dim() - 1) if is_column else Replicate()
        return DTensor.from_local(y, x.device_mesh, [placement], run_check=False)

    def _multiplied(self, x: Tensor, weight: Tensor) -> Tensor:
        if isinstance(self._product, FlexibleProduct):
            return self._product.multiply([x], [weight])[0]
        return self._product(x, weight)  # of a copy of a balanced model, which is plain


def torch_linears(model: nn.Module, group: TensorGroup) -> dict[str, TorchLinear]:
    """Return the linears of a model that are cut over a group, by name; ValueError for one that cannot be balanced."""
    linears = {name: part for name, part in model.named_modules() if isinstance(part, nn.Linear)}
    linears = {name: part for name, part in linears.items() if isinstance(part.weight, DTensor)}
    cut = {name: part for name, part in linears.items() if any(isinstance(p, Shard) for p in part.weight.placements)}
    for name, linear in cut.items():
        _check(name, linear, group)
    return {name: TorchLinear(name, linear, group) for name, linear in cut.items()}


def _check(name: str, linear: nn.Linear, group: TensorGroup) -> None:
    weight, mesh = linear.weight, linear.weight.device_mesh
    _check_one_axis(name, weight)
    if type(linear).forward is not nn.Linear.forward:
        raise ValueError(f"forward of {name} is {type(linear).__name__}'s own; it must be that of nn.Linear")
    (placement,), shape = weight.placements, tuple(weight.shape)
    if shape[placement.dim] % mesh.size():
        raise ValueError(
            f"weight of {name} is {shape}; its dimension {placement.dim} must divide by {mesh.size()} ranks"
        )
    owner = getattr(vars(linear).get("forward"), "__self__", None)
    if "forward" in vars(linear) and not (isinstance(owner, TorchLinear) and owner.matrix_product is functional.linear):
        raise ValueError(f"forward of {name} is replaced already; `Balancer.remove` gives it back")
    if not isinstance(group, ProcessTensorGroup) or _ranks(group.process_group) != _ranks(mesh.get_group()):
        raise ValueError(f"group of {name} is another one; it must be that of its mesh, `mesh.get_group()`")


def _check_one_axis(name: str, weight: DTensor) -> None:
    if weight.device_mesh.ndim != 1:
        rule = "it must be one: `balance` takes a model that is tensor-parallel alone, without fully_shard"
        raise ValueError(f"weight of {name} is cut over a mesh of {weight.device_mesh.ndim} axes; {rule}")


def _ranks(group: dist.ProcessGroup | None) -> list[int]:
    return dist.get_process_group_ranks(group)
