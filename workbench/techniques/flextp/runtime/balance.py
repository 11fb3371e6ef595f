"""Balance a model in one line.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control".
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from workbench.parallel import ProcessTensorGroup, TensorGroup, VirtualTensorGroup
from workbench.timeline.stragglers import StragglerTrace

from ..method.costs import Costs
from .balancer import Balancer
from .layers import parallel_linears
from .meter import Meter
from .planning import check_policy, needs_costs
from .policy import Policy
from .timing import MeasuredTimes, ModelledTimes

__all__ = ["PATIENCE", "balance", "check_model"]

PATIENCE = 8  # iterations; on shared cores times stray by a tenth for two in a row every few dozen


def balance(
    model: nn.Module,
    group: TensorGroup,
    *,
    policy: Policy | None = None,
    costs: Costs | None = None,
    trace: StragglerTrace | None = None,
    slowness: float = 1.0,
    modelled: ModelledTimes | None = None,
) -> Balancer:
    """Let the ranks of a tensor-parallel model help their stragglers.

    Wrap each training step in `with balancer.iteration():`; evaluation needs nothing. Balance a model once it is on its
    device and loaded. As with any tensor-parallel model, `group.traffic` notes every message until it is cleared.

    Args:
        model: any model with the workbench's parallel linears; their matrix products are replaced.
        group: its ranks, real or virtual.
        policy: how to balance; by default SEMI-migration that levels all ranks, with a patience of eight iterations for
            machines that are shared; `Policy()` is the paper's.
        costs: what migration costs; by default measured in a pre-test once the first times are known, for which training
            halts for as long as some 35 iterations of one layer of every kind.
        trace: makes stragglers of ranks, by sleeping after their products.
        slowness: how many times slower than this machine all ranks' products are, by sleeping (see `Meter`).
        modelled: times to plan from in place of measured ones; virtual ranks, which share a process, need them.

    Raises:
        ValueError: for a model without parallel linears, of another group or balanced already, a trace of another
            number of ranks, more senders than ranks minus one, ranks that were given different policies, a trace
            beside modelled times, which have one, and virtual ranks without modelled times or costs, or with a slowness,
            which only real ones can sleep off.
    """
    policy = Policy(refine=True, patience=PATIENCE) if policy is None else policy
    check_policy(policy, group.size)
    for given in (trace, None if modelled is None else modelled.trace):
        if given is not None and given.num_ranks != group.size:
            raise ValueError(f"trace is of {given.num_ranks} ranks, must be of the group's {group.size}")
    if trace is not None and modelled is not None:
        raise ValueError("trace is given, must be None where `modelled` is, which has one of its own")
    if not isinstance(group, ProcessTensorGroup):
        _check_virtual(policy, costs, slowness, modelled)
        return Balancer(model, group, policy, times=modelled, costs=costs)
    (rank,) = group.local_ranks
    meter = Meter(rank, trace, slowness=slowness, device=next(model.parameters()).device)
    times = MeasuredTimes(meter) if modelled is None else modelled
    return Balancer(model, group, policy, times=times, costs=costs, meters={rank: meter})


def check_model(build: Callable[[TensorGroup], nn.Module], num_ranks: int) -> None:
    """Refuse a model before any rank starts that `balance` would refuse on all of them.

    Args:
        build: makes the model of a group's ranks; called once, with virtual ranks of this process, so that this takes
            the memory of the whole model for a moment.
        num_ranks: N.

    Raises:
        ValueError: if the model has no parallel linears, or some that belong to another group.
    """
    group = VirtualTensorGroup(num_ranks)
    parallel_linears(build(group), group)


def _check_virtual(policy: Policy, costs: Costs | None, slowness: float, modelled: ModelledTimes | None) -> None:
    if modelled is None:
        raise ValueError("modelled is None, must be given for virtual ranks, which have no times of their own")
    if costs is None and needs_costs(policy):
        raise ValueError("costs is None, must be given for virtual ranks, which have no messages to test")
    if slowness != 1:
        raise ValueError(f"slowness is {slowness}, must be 1 for virtual ranks, which cannot sleep for one another")
