"""An iteration of ZeRO-3 and its checkpoint on the paper's machines; three of the paper's own numbers are fitted.

A ring over all devices passes a message of M bytes in (n - 1) α + (n - 1) / n · M / B. Activations are recomputed.
"""

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from workbench.checks import require_positive
from workbench.cluster import GIGABIT_BYTES_PER_S, Algorithm, Collective, FittedMachine, bisected, collective_time_s
from workbench.models import Workload
from workbench.study.published import Cell
from workbench.timeline import Kind

from ..method.interleaving import CheckpointTraffic, InterleavedIteration, Phase, Scheme, interleave
from ..method.placement import BUFFERS_PER_REPLICA
from ..method.waste import TABLE_6_2, Job, ModelSizes, checkpoint_bytes

__all__ = ["CALIBRATION", "COPY_BYTES_PER_S", "Calibrated", "agent_memory_bytes", "baseline_s"]
__all__ += ["calibrated", "checkpoint_s", "iterating_in", "iteration_of", "job_of", "network_share_of"]
__all__ += ["paper_machine", "phases_of", "storage_s", "traffic_of", "workload_named", "workload_of"]

MICRO_BATCH, SEQUENCE = 8, 512  # of a device, section 6.7.1
BACKWARD_OVER_FORWARD = 3  # of a layer's operations: two gradients, and the forward pass again
HEAD_PASSES = 3  # the head is computed forward and backward, and not again
# Of a machine's 8 devices together: section 6.5.2, note, measured on p4d, as fast as its network. p3dn's is not given:
# it copies at its own network's nominal 100 Gbit/s, "comparable" as that section says.
COPY_BYTES_PER_S = 400 * GIGABIT_BYTES_PER_S
RESERVED_BYTES = 128 * 2**20  # R of a device, section 6.7.1; its MB read as MiB
NUM_BUFFERS = 4  # p, section 6.7.4: four of 32 MB
SAFETY = 0.9  # μ, which the text does not give; spans deviate by less than 10 % (section 6.5.4)
P4D, P3DN = "gemini/16x-p4d", "gemini/16x-p3dn"  # the catalogue's names
NUM_BISECTIONS = 40  # of the logarithm of a share: exact to a millionth of a millionth
LEAST_SHARE = 1e-3  # of a device's peak, where the search begins

CALIBRATION: tuple[Cell, ...] = (
    Cell.of("fig-6-11", "reduction", network_gbit_per_s=100, num_machines=16),
    Cell.of("fig-6-7", "iteration_s", model="GPT-2 100B", scheme="Baseline"),
    Cell.of("fig-6-16", "overhead", scheme="Blocking"),
)
"""The published cells that are fitted; they never count as reproduced."""


def workload_of(sizes: ModelSizes, name: str = "", **batch: int) -> Workload:
    """Return a model of table 6.2's kind with the micro-batch of one device; `batch` and `sequence` may be given."""
    return sizes.workload(name, **{"batch": MICRO_BATCH, "sequence": SEQUENCE} | batch)


def workload_named(name: str) -> Workload:
    """Return a model of table 6.2, such as "GPT-2 100B"."""
    if name not in TABLE_6_2:
        raise ValueError(f"model is {name!r}; it must be one of {', '.join(map(repr, TABLE_6_2))}")
    return workload_of(TABLE_6_2[name], name)


def paper_machine(name: str) -> FittedMachine:
    """Return a machine of the catalogue with copying to host memory."""
    machine = FittedMachine.named(name, copy_bytes_per_s=COPY_BYTES_PER_S)
    machine.require("network", "storage_bytes_per_s", "host_memory_bytes")
    return machine


def phases_of(workload: Workload, machine: FittedMachine) -> tuple[Phase, ...]:
    """Return the phases of one iteration of a device's batch: forward layers, the head, backward layers."""
    ring = Collective.REDUCE_SCATTER, Algorithm.RING  # of an all-gather whose parts make up the message, too
    layer_s, head_s = (
        collective_time_s(*ring, machine.num_devices, workload.element_bytes * number, machine.reached_network)
        for number in (workload.layer_parameters, workload.other_parameters)
    )
    forward_s, layers = workload.layer_flops / machine.flops_per_s, range(workload.num_layers)
    forward = [Phase(label=f"F{layer}", gather_s=layer_s, compute_s=forward_s) for layer in layers]
    head_compute_s = HEAD_PASSES * workload.head_flops / machine.flops_per_s
    head = Phase(label="H", gather_s=head_s, scatter_s=head_s, compute_s=head_compute_s)
    backward_s = BACKWARD_OVER_FORWARD * workload.layer_flops / machine.flops_per_s
    both_ways: dict[str, Any] = {"gather_s": layer_s, "scatter_s": layer_s, "kind": Kind.BACKWARD}
    backward = [Phase(label=f"B{layer}", compute_s=backward_s, **both_ways) for layer in reversed(layers)]
    return (*forward, head, *backward)


def baseline_s(workload: Workload, machine: FittedMachine) -> float:
    """Return the seconds of an iteration without checkpoints."""
    return iteration_of(workload, machine, Scheme.BASELINE).iteration_s


def iteration_of(
    workload: Workload, machine: FittedMachine, scheme: Scheme | str, **options: Any
) -> InterleavedIteration:
    """Return an iteration under a scheme; `options` are those of `traffic_of`."""
    update_s = workload.optimizer_bytes(machine.num_devices) / machine.memory_bytes_per_s
    traffic = traffic_of(workload, machine, **options)
    return interleave(phases_of(workload, machine), traffic, scheme, update_s=update_s)


def traffic_of(
    workload: Workload, machine: FittedMachine, *, num_replicas: int = 2, **options: Any
) -> CheckpointTraffic:
    """Return the traffic of one device, which has an even share of its machine's network and copying.

    `options` are fields of `CheckpointTraffic`, in place of the paper's buffers and safety factor.
    """
    _require_replicas(num_replicas, machine)
    assert machine.copy_bytes_per_s is not None  # `paper_machine` has it
    return CheckpointTraffic(
        checkpoint_bytes=math.ceil(checkpoint_bytes(workload.num_parameters) / machine.num_devices),
        num_replicas=num_replicas,
        bandwidth_bytes_per_s=machine.network_bytes_per_s / machine.devices_per_host,
        copy_bytes_per_s=machine.copy_bytes_per_s / machine.devices_per_host,
        startup_s=machine.full_network.latency_s,
        **{"reserved_bytes": RESERVED_BYTES, "num_buffers": NUM_BUFFERS, "safety": SAFETY} | options,
    )


def checkpoint_s(workload: Workload, machine: FittedMachine, *, num_replicas: int = 2) -> float:
    """Return the seconds in which all machines' remote replicas travel at once, with nothing beside them."""
    traffic = traffic_of(workload, machine, num_replicas=num_replicas)
    num_chunks = math.ceil(traffic.checkpoint_bytes / (traffic.reserved_bytes // traffic.num_buffers))
    rate = min(traffic.bandwidth_bytes_per_s, traffic.copy_bytes_per_s)
    return (num_replicas - 1) * (num_chunks * traffic.startup_s + traffic.checkpoint_bytes / rate)


def storage_s(workload: Workload, machine: FittedMachine) -> float:
    """Return the seconds to write a whole checkpoint to persistent storage, or to read it: all machines share it."""
    assert machine.storage_bytes_per_s is not None  # `paper_machine` has it
    return checkpoint_bytes(workload.num_parameters) / machine.storage_bytes_per_s


def job_of(workload: Workload, machine: FittedMachine) -> Job:
    """Return the training as `method.waste` knows it, which says what each tier takes to give a shard back."""
    assert machine.storage_bytes_per_s is not None  # `paper_machine` has it
    return Job(
        name=workload.name,
        iteration_s=baseline_s(workload, machine),
        state_bytes=checkpoint_bytes(workload.num_parameters),
        num_machines=machine.num_hosts,
        storage_bytes_per_s=machine.storage_bytes_per_s,
        network_bytes_per_s=machine.network_bytes_per_s,
        latency_s=machine.full_network.latency_s,
    )


def agent_memory_bytes(workload: Workload, machine: FittedMachine, *, num_replicas: int = 2) -> float:
    """Return the host memory for replicas on one machine: two buffers for each of the m that it keeps."""
    _require_replicas(num_replicas, machine)
    return BUFFERS_PER_REPLICA * num_replicas * checkpoint_bytes(workload.num_parameters) / machine.num_hosts


def _require_replicas(num_replicas: int, machine: FittedMachine) -> None:
    if not 1 <= num_replicas <= machine.num_hosts:
        raise ValueError(f"num_replicas is {num_replicas!r}; it must be in 1..{machine.num_hosts}, the machines")


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibrated:
    """The paper's two testbeds, 16 machines each; one share of peak for all models of a machine.

    On both networks messages reach one share: a checkpoint of GPT-2 100B at 100 Gbit/s takes 1 / 65 of storage's time.
    """

    p4d: FittedMachine  # with A100, 400 Gbit/s; GPT-2 100B iterates in 62 s
    p3dn: FittedMachine  # with V100, 100 Gbit/s; blocking makes GPT-2 40B 10.1 % slower
    transferred: FittedMachine  # p3dn with the A100's share of its peak, a prediction without blocking's cell


@cache
def calibrated() -> Calibrated:
    """Return both testbeds, fitted to `CALIBRATION`."""
    reduction, iteration_s, overhead_percent = (cell.value("gemini") for cell in CALIBRATION)
    gpt_2_100b, gpt_2_40b = workload_named("GPT-2 100B"), workload_named("GPT-2 40B")
    p4d, p3dn = (paper_machine(name) for name in (P4D, P3DN))
    network_share = network_share_of(gpt_2_100b, p4d.with_network(100), reduction)
    p4d, p3dn = (replace(machine, network_share=network_share) for machine in (p4d, p3dn))
    p3dn = replace(p3dn, copy_bytes_per_s=p3dn.full_network.bandwidth_bytes_per_s)
    p4d = iterating_in(iteration_s, gpt_2_100b, p4d)
    blocking_s = iteration_of(gpt_2_40b, p3dn, Scheme.BLOCKING).iteration_s - baseline_s(gpt_2_40b, p3dn)
    blocked_s = blocking_s * 100 / overhead_percent
    assert p4d.peak_flops_per_s is not None  # the catalogue has it
    return Calibrated(
        p4d=p4d,
        p3dn=iterating_in(blocked_s, gpt_2_40b, p3dn),
        transferred=p3dn.with_peak_share(p4d.flops_per_s / p4d.peak_flops_per_s),
    )


def network_share_of(workload: Workload, machine: FittedMachine, reduction: float) -> float:
    """Return the share of the nominal bandwidth at which storage takes `reduction` times as long as two replicas."""
    require_positive(reduction=reduction)
    traffic = traffic_of(workload, machine)
    num_chunks = math.ceil(traffic.checkpoint_bytes / (RESERVED_BYTES // NUM_BUFFERS))
    seconds = storage_s(workload, machine) / reduction - num_chunks * traffic.startup_s
    host_bytes = traffic.checkpoint_bytes * machine.devices_per_host
    nominal_s = host_bytes / machine.full_network.bandwidth_bytes_per_s
    if not nominal_s <= seconds:
        rule = f"the whole bandwidth gives {nominal_s:.3g} s, not {seconds:.3g} s"
        raise ValueError(f"reduction is {reduction!r}; {rule}")
    return nominal_s / seconds


def iterating_in(iteration_s: float, workload: Workload, machine: FittedMachine) -> FittedMachine:
    """Return the machine with the share of its peak with which an iteration takes so long, by bisection."""

    def excess_s(share: float) -> float:
        return baseline_s(workload, machine.with_peak_share(share)) - iteration_s

    if not excess_s(LEAST_SHARE) >= 0 >= excess_s(1.0):
        rule = f"no share of peak in {LEAST_SHARE}..1 gives it; at all of it {excess_s(1.0):+.3g} s"
        raise ValueError(f"iteration_s is {iteration_s!r}: {rule}")
    return machine.with_peak_share(bisected(lambda share: excess_s(share) >= 0, LEAST_SHARE, 1.0, NUM_BISECTIONS))
