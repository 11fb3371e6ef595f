"""The parts of a plain iteration of one rank by the roofline, what taking columns out adds, and the paper's models."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from workbench.cluster import Backend, Collective, FittedMachine, algorithm_of, collective_time_s
from workbench.models import Workload

__all__ = ["VIT_1B", "VIT_3B", "IterationParts", "extraction_s", "iteration_parts", "parts_beside_flops"]

ALL_REDUCES_PER_LAYER = 4  # after attention and perceptron, forward and backward
PASSES = 3  # of products: output, gradient of the weight, gradient of the input
CIFAR_10 = 50_000  # images of a training epoch
TOKENS = 65  # of an image, as `workbench.models.vit` infers them

VIT_1B = Workload(name="ViT-1B", hidden=2048, batch=64, num_layers=24, sequence=TOKENS, num_samples=CIFAR_10)
VIT_3B = Workload(name="ViT-3B", hidden=3072, batch=32, num_layers=24, sequence=TOKENS, num_samples=CIFAR_10)


@dataclass(frozen=True, kw_only=True, slots=True)
class IterationParts:
    """Seconds of one rank in one iteration, without waiting."""

    product_s: float = 0.0  # linear layers, all three products
    attention_s: float = 0.0  # scores and their products with values
    elementwise_s: float  # norms, dropout, residuals, GELU, softmax
    all_reduce_s: float  # hidden states forward, their gradients backward
    optimizer_s: float  # update of the rank's own parameters

    @property
    def own_s(self) -> float:
        """All of it."""
        return math.fsum(getattr(self, field.name) for field in fields(self))

    @property
    def other_s(self) -> float:
        """All but the products of linear layers."""
        return self.own_s - self.product_s


def product_flops(workload: Workload, num_ranks: int) -> float:
    """Return one rank's FLOPs in linear layers in an iteration."""
    return PASSES * workload.num_layers * workload.linear_flops / num_ranks


def attention_flops(workload: Workload, num_ranks: int) -> float:
    """Return one rank's FLOPs of the attention core in an iteration."""
    return PASSES * workload.num_layers * workload.attention_flops / num_ranks


def parts_beside_flops(workload: Workload, machine: FittedMachine) -> IterationParts:
    """Return the parts that do not depend on the rate of matrix products; the others are 0."""
    machine.require("memory_bytes_per_s")
    all_reduce = Collective.ALL_REDUCE, algorithm_of(Backend.NCCL, Collective.ALL_REDUCE)
    one_s = collective_time_s(*all_reduce, machine.num_devices, workload.activation_bytes, machine.link)
    return IterationParts(
        elementwise_s=workload.elementwise_bytes(machine.num_devices) / machine.memory_bytes_per_s,
        all_reduce_s=workload.num_layers * ALL_REDUCES_PER_LAYER * one_s,
        optimizer_s=workload.optimizer_bytes(machine.num_devices) / machine.memory_bytes_per_s,
    )


def iteration_parts(workload: Workload, machine: FittedMachine) -> IterationParts:
    """Return the parts of a rank's plain iteration, which follow one another; all devices are tensor-parallel ranks."""
    beside = parts_beside_flops(workload, machine)
    return IterationParts(
        product_s=product_flops(workload, machine.num_devices) / machine.flops_per_s,
        attention_s=attention_flops(workload, machine.num_devices) / machine.flops_per_s,
        elementwise_s=beside.elementwise_s,
        all_reduce_s=beside.all_reduce_s,
        optimizer_s=beside.optimizer_s,
    )


def extraction_s(workload: Workload, machine: FittedMachine, removed: float) -> float:
    """Return what taking columns out and putting gradients back costs a rank in an iteration; nothing without.

    Input and weight are read and written once forward and once backward for the kept columns. Each gradient is read for
    the kept columns and written whole. `removed` is the share of columns that the rank does not multiply itself.
    """
    if not 0 <= removed <= 1:
        raise ValueError(f"removed is {removed!r}; it must be in [0, 1]")
    if removed == 0:
        return 0.0
    kept = 1 - removed
    whole = math.fsum(linear.input_bytes + linear.weight_bytes for linear in workload.linears(machine.num_devices))
    return workload.num_layers * whole * (4 * kept + kept + 1) / machine.memory_bytes_per_s
