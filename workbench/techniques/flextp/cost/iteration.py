"""The parts of a plain iteration of one rank, and what taking columns out adds.

What: product time (the linear layers, which a straggler takes skewness times as long for), attention core,
element-wise work, all-reduces (two forward and two backward a layer), optimizer.
Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", sections II and V-A; the
roofline for everything else: FLOPs over a rate, bytes over the memory's bandwidth.
Simplified: parts follow one another; one rate for all products.
Left out: launching kernels, reading images, evaluation.

Units: seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from workbench.cluster import Backend, Collective, algorithm_of, collective_time_s

from .machine import FlexMachine
from .workload import Workload

__all__ = ["ALL_REDUCES_PER_LAYER", "IterationParts", "extraction_s", "iteration_parts", "parts_beside_flops"]

ALL_REDUCES_PER_LAYER = 4  # after attention and perceptron, forward and backward


@dataclass(frozen=True, kw_only=True, slots=True)
class IterationParts:
    """Seconds of one rank in one iteration, without waiting.

    Attributes:
        product_s: linear layers, all three products.
        attention_s: scores and their products with values.
        elementwise_s: norms, dropout, residuals, GELU, softmax.
        all_reduce_s: hidden states forward, their gradients backward.
        optimizer_s: update of the rank's own parameters.
    """

    product_s: float = 0.0
    attention_s: float = 0.0
    elementwise_s: float
    all_reduce_s: float
    optimizer_s: float

    @property
    def own_s(self) -> float:
        """All of it."""
        return math.fsum(getattr(self, field.name) for field in fields(self))

    @property
    def other_s(self) -> float:
        """All but the products of linear layers."""
        return self.own_s - self.product_s


def parts_beside_flops(workload: Workload, machine: FlexMachine) -> IterationParts:
    """Return the parts that do not depend on the rate of matrix products; the others are 0."""
    memory_bytes_per_s = machine.device.memory_bytes_per_s
    all_reduce = Collective.ALL_REDUCE, algorithm_of(Backend.NCCL, Collective.ALL_REDUCE)
    one_s = collective_time_s(*all_reduce, machine.num_ranks, workload.message_bytes, machine.link)
    return IterationParts(
        elementwise_s=workload.elementwise_bytes(machine.num_ranks) / memory_bytes_per_s,
        all_reduce_s=workload.num_layers * ALL_REDUCES_PER_LAYER * one_s,
        optimizer_s=workload.optimizer_bytes(machine.num_ranks) / memory_bytes_per_s,
    )


def iteration_parts(workload: Workload, machine: FlexMachine) -> IterationParts:
    """Return the parts of one rank's plain iteration.

    Args:
        workload: model and batch.
        machine: devices, link, rate of products.
    """
    beside = parts_beside_flops(workload, machine)
    return IterationParts(
        product_s=workload.product_flops(machine.num_ranks) / machine.product_flops_per_s,
        attention_s=workload.attention_flops(machine.num_ranks) / machine.product_flops_per_s,
        elementwise_s=beside.elementwise_s,
        all_reduce_s=beside.all_reduce_s,
        optimizer_s=beside.optimizer_s,
    )


def extraction_s(workload: Workload, machine: FlexMachine, removed: float) -> float:
    """Return what taking columns out and putting gradients back costs a rank in an iteration; nothing without.

    Args:
        workload: model and batch.
        machine: its memory bandwidth counts.
        removed: share of its columns that the rank does not multiply itself, in [0, 1].
    """
    if not 0 <= removed <= 1:
        raise ValueError(f"removed is {removed!r}; it must be in [0, 1]")
    if removed == 0:
        return 0.0
    return workload.extraction_bytes(machine.num_ranks, 1 - removed) / machine.device.memory_bytes_per_s
