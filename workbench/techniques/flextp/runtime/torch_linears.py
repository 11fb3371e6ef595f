"""Linears that torch's `parallelize_module` has cut (DTensor weights), as a balancer sees a parallel linear.

Torch's hooks around the linear stay; between them the local shards are multiplied, and the group sums what is to be
summed in the place of DTensor: gradients of inputs of a column-wise linear, outputs of a row-wise one.
"""

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn import functional

from workbench.models import Cut
from workbench.parallel import ProcessTensorGroup, TensorGroup
from workbench.parallel.linear import MatrixProduct

from .products import FlexibleProduct


class TorchLinear:
    """An `nn.Linear` with a DTensor weight, with the attributes of a parallel linear that a balancer uses."""

    def __init__(self, site: str, linear: nn.Linear, group: TensorGroup):
        self.site, self.group, self._linear = site, group, linear
        self.cut = Cut.COLUMN if _sharded(linear.weight).placements[0].is_shard(0) else Cut.ROW
        self._product: MatrixProduct | FlexibleProduct = functional.linear

    @property
    def weights(self) -> list[Tensor]:
        """The shard of this rank; it shares memory with the parameter."""
        weight = _sharded(self._linear.weight)
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
            self._linear.__dict__["forward"] = self._forward

    def _forward(self, x: DTensor) -> DTensor:
        """Multiply as `nn.Linear` does with DTensors: [N, K] placed as the linear asks -> [N, O] placed as it gives."""
        linear, is_column = self._linear, self.cut is Cut.COLUMN
        local = x.to_local(grad_placements=[Replicate()] if is_column else None)
        with self.group.traffic.at(self.site):
            local = self.group.copy(local) if is_column else local
            weight, product = _sharded(linear.weight).to_local(), self._product
            if isinstance(product, FlexibleProduct):
                (y,) = product.multiply([local], [weight])
            else:  # a copy of a balanced model, which is plain
                y = product(local, weight)
            y = y if is_column else self.group.sum([y])
        if linear.bias is not None:
            y = y + _sharded(linear.bias).to_local().to(y.dtype)
        placement = Shard(y.dim() - 1) if is_column else Replicate()
        return DTensor.from_local(y, x.device_mesh, [placement], run_check=False)


def torch_linears(model: nn.Module, group: TensorGroup) -> dict[str, TorchLinear]:
    """Return the linears of a model that are cut over a group, by name; ValueError for one that cannot be balanced."""
    cut = {}
    for name, linear in model.named_modules():
        if not isinstance(linear, nn.Linear) or not isinstance(linear.weight, DTensor):
            continue
        if any(isinstance(placement, Shard) for placement in linear.weight.placements):
            _check(name, linear, group)
            cut[name] = TorchLinear(name, linear, group)
    return cut


def _sharded(parameter: Tensor) -> DTensor:
    assert isinstance(parameter, DTensor)  # `torch_linears` takes no others
    return parameter


def _check(name: str, linear: nn.Linear, group: TensorGroup) -> None:
    weight = _sharded(linear.weight)
    mesh = weight.device_mesh
    _check_one_axis(name, weight)
    if type(linear).forward is not nn.Linear.forward:
        raise ValueError(f"forward of {name} is {type(linear).__name__}'s own; it must be that of nn.Linear")
    dim, shape = (0 if weight.placements[0].is_shard(0) else 1), tuple(weight.shape)
    if shape[dim] % mesh.size():
        raise ValueError(f"weight of {name} is {shape}; its dimension {dim} must divide by {mesh.size()} ranks")
    owner = getattr(vars(linear).get("forward"), "__self__", None)
    if "forward" in vars(linear) and not (isinstance(owner, TorchLinear) and owner.matrix_product is functional.linear):
        raise ValueError(f"forward of {name} is replaced already; `Balancer.remove` gives it back")
    ranks = dist.get_process_group_ranks
    if not isinstance(group, ProcessTensorGroup) or ranks(group.process_group) != ranks(mesh.get_group()):
        raise ValueError(f"group of {name} is another one; it must be that of its mesh, `mesh.get_group()`")


def _check_one_axis(name: str, weight: DTensor) -> None:
    if weight.device_mesh.ndim != 1:
        rule = "it must be one: `balance` takes a model that is tensor-parallel alone, without fully_shard"
        raise ValueError(f"weight of {name} is cut over a mesh of {weight.device_mesh.ndim} axes; {rule}")
