"""Balancing models that torch's `parallelize_module` has cut, and groups of torch in the place of the workbench's."""

import re

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from workbench.parallel import ColumnParallelLinear, ProcessTensorGroup, RowParallelLinear, VirtualTensorGroup
from workbench.techniques.flextp.runtime import ModelledTimes, Policy, balance
from workbench.timeline import StragglerTrace

PLANS = {
    "plain": {"0": ColwiseParallel(), "2": RowwiseParallel()},
    "DTensors between": {"0": ColwiseParallel(use_local_output=False), "2": RowwiseParallel()},
    "sequence-parallel": {"0": ColwiseParallel(input_layouts=Shard(0)), "2": RowwiseParallel(output_layouts=Shard(0))},
}


def pair(sizes=(8, 16, 8)):
    torch.manual_seed(0)
    first, second = (nn.Linear(*ends, dtype=torch.float64) for ends in zip(sizes, sizes[1:], strict=False))
    return nn.Sequential(first, nn.GELU(), second)


def trained(model, group=None, num_iterations=4):
    """Train; return losses and gradients, those of cut weights whole, and the last plan."""
    if group is not None:
        times = ModelledTimes(StragglerTrace.fixed(dist.get_world_size(), {1: 4.0}))
        balancer = balance(model, group, policy=Policy(solution="MIG"), modelled=times)
    x = torch.randn(4, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    losses = []
    for _ in range(num_iterations):
        model.zero_grad()
        with balancer.iteration() if group is not None else torch.enable_grad():
            loss = model(x).square().mean()
            loss.backward()
        losses.append(loss.detach())
    plan = None if group is None else balancer.plan
    if group is not None:
        balancer.remove()
        losses.append(model(x).square().mean().detach())
    grads = [parameter.grad for parameter in model.parameters()]
    return [*losses, x.grad, *(grad.full_tensor() if hasattr(grad, "full_tensor") else grad for grad in grads)], plan


def balanced_and_not(layouts):
    mesh = init_device_mesh("cpu", (2,))
    plain, _ = trained(parallelize_module(pair(), mesh, PLANS[layouts]))
    balanced, plan = trained(parallelize_module(pair(), mesh, PLANS[layouts]), dist.group.WORLD)
    return [*plain[:4], plain[3], *plain[4:]], balanced, plan


@pytest.mark.parametrize("layouts", [name for name in PLANS if name != "plain"])  # that one is in tests/contracts
def test_a_model_cut_by_torch_trains_as_before_while_a_straggler_migrates(layouts, pools):
    for plain, balanced, plan in pools(2).run(balanced_and_not, layouts):
        assert plan.senders == (1,) and plan.ranks[1].migrated > 0.3
        for ours, other in zip(balanced, plain, strict=True):
            torch.testing.assert_close(ours, other, rtol=1e-10, atol=1e-12)


def groups_of_torch():
    """Return plans of a model of the workbench's own linears, on a real rank called as torch's, by kind of group."""
    plans = []
    for group in (dist.group.WORLD, dist.new_group([0, 1]), init_device_mesh("cpu", (2,))):
        own = ProcessTensorGroup()
        layers = (
            ColumnParallelLinear(8, 16, own, dtype=torch.float64),
            RowParallelLinear(16, 8, own, dtype=torch.float64),
        )
        plans.append(trained(nn.Sequential(layers[0], nn.GELU(), layers[1]), group)[1])
    return plans


def test_groups_and_meshes_of_torch_are_taken_for_the_models_own_and_parallel_linears_give_tensors(pools):
    for plans in pools(2).run(groups_of_torch):
        assert len(set(plans)) == 1 and plans[0].senders == (1,)


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class WithBias(ColumnParallelLinear):
    def forward(self, x):
        return super().forward(x), self.biases[0]  # as Megatron-LM's


def returns_more_than_a_tensor():
    layer = WithBias(8, 16, ProcessTensorGroup())
    slow = ModelledTimes(StragglerTrace.fixed(2, {1: 4.0}))
    balancer = balance(layer, dist.group.WORLD, policy=Policy(solution="MIG"), modelled=slow)
    for _ in range(3):
        with balancer.iteration():
            y, bias = layer(torch.ones(2, 8))
            (y + bias).sum().backward()
    return tuple(y.shape), balancer.plan.senders


def test_parallel_linears_may_return_more_than_a_tensor(pools):
    assert pools(2).run(returns_more_than_a_tensor) == [((2, 8), (1,))] * 2


def refuses_models_that_cannot_be_balanced():
    mesh, pairs = init_device_mesh("cpu", (2,)), PLANS["plain"]
    grid = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
    cut = parallelize_module(pair(), mesh, pairs)
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    sharded = parallelize_module(pair(), grid["tensor"], pairs)
    torch.distributed.fsdp.fully_shard(sharded, mesh=grid["data"])
    scaled = parallelize_module(nn.Sequential(Scaled(8, 16)), mesh, {"0": ColwiseParallel()})
    uneven = parallelize_module(pair((8, 15, 8)), mesh, pairs)
    for case, message in (
        ((scaled, mesh), "forward of 0 is Scaled's own; it must be that of nn.Linear"),
        ((pair(), mesh), "model is a Sequential without parallel linears; it must have linears that are cut"),
        ((cut, alone), "group of 0 is another one; it must be that of its mesh"),
        ((cut, VirtualTensorGroup(2)), "modelled is None"),
        ((cut, None), "group is None; it must be"),
        ((sharded, mesh), "weight of 0 is cut over a mesh of 2 axes; it must be one"),
        ((uneven, mesh), "weight of 0 is (15, 8); its dimension 0 must divide by 2 ranks"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            balance(*case)
    return True


def test_models_cut_by_torch_that_cannot_be_balanced_are_refused_by_name(pools):
    assert pools(2).run(refuses_models_that_cannot_be_balanced) == [True, True]
