"""An iteration of ZeRO-3 as phases: a layer's parameters are gathered, it computes, its gradients are scattered.

Source: thesis, chapter 6 (Gemini), sections 6.5.1 and 6.7.1; ring collectives over all devices, of which the ring
passes each machine's network once: a message of M bytes in all takes (n - 1) α + (n - 1) / n · M / B.
Simplified: every layer is gathered twice and scattered once, as one message each; messages reach the same share of the
network's bandwidth as checkpoints; messages and computing do not slow each other down. The update is Adam's bytes over
the device's memory bandwidth.
Left out: what DeepSpeed does about buckets, reuse of parameters gathered last, and the time of its own bookkeeping. So
idle spans here are many and alike, a layer's each; the paper's largest, 1.6 s, is longer than any of ours.

Units: seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from workbench.cluster import Algorithm, Collective, collective_time_s
from workbench.timeline import Kind

from ..method.interleaving import CheckpointTraffic, Phase, Scheme, interleave
from .machine import GeminiMachine
from .workload import UPDATE_BYTES_PER_PARAMETER, Workload

__all__ = ["UpdatedPhases", "baseline_s", "phases_of"]

# Any traffic: the baseline sends none of it.
NO_TRAFFIC = CheckpointTraffic(
    checkpoint_bytes=1, bandwidth_bytes_per_s=1.0, copy_bytes_per_s=1.0, reserved_bytes=1, num_buffers=1
)


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdatedPhases:
    """An iteration: phases, then the update.

    phases: forward layers, the head, backward layers.
    update_s: of the optimizer.
    """

    phases: tuple[Phase, ...]
    update_s: float


def phases_of(workload: Workload, machine: GeminiMachine) -> UpdatedPhases:
    """Return the phases of one iteration.

    Args:
        workload: model and batch of a device.
        machine: devices and network.
    """
    num_layers = workload.sizes.num_layers
    message_s = _collective_s(workload.layer_bytes, machine)
    forward_s = workload.layer_forward_flops / machine.flops_per_s
    backward_s = workload.layer_backward_flops / machine.flops_per_s
    forward = [Phase(label=f"F{layer}", gather_s=message_s, compute_s=forward_s) for layer in range(num_layers)]
    backward = [
        Phase(label=f"B{layer}", gather_s=message_s, compute_s=backward_s, scatter_s=message_s, kind=Kind.BACKWARD)
        for layer in reversed(range(num_layers))
    ]
    head_s = _collective_s(workload.head_bytes, machine)
    head = Phase(label="H", gather_s=head_s, scatter_s=head_s, compute_s=workload.head_flops / machine.flops_per_s)
    parameters = workload.num_parameters / machine.num_devices
    update_s = UPDATE_BYTES_PER_PARAMETER * parameters / machine.memory_bytes_per_s
    return UpdatedPhases(phases=(*forward, head, *backward), update_s=update_s)


def baseline_s(workload: Workload, machine: GeminiMachine) -> float:
    """Return the seconds of an iteration without checkpoints.

    Args:
        workload: model and batch of a device.
        machine: devices and network.
    """
    found = phases_of(workload, machine)
    return interleave(found.phases, NO_TRAFFIC, Scheme.BASELINE, update_s=found.update_s).iteration_s


def _collective_s(message_bytes: float, machine: GeminiMachine) -> float:
    """Return the seconds in which all devices gather, or scatter, a message of so many bytes in all."""
    link = replace(machine.network, bandwidth_bytes_per_s=machine.network_bytes_per_s)
    return collective_time_s(
        Collective.REDUCE_SCATTER, Algorithm.RING, machine.num_devices, message_bytes, link
    )  # the bytes of an all-gather whose parts make up the message are the same
