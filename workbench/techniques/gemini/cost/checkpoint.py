"""Seconds of a checkpoint and of its retrieval by tier, and the memory that an agent needs.

Source: thesis, chapter 6 (Gemini), sections 6.2.3, 6.5.2, 6.6.2 and 6.7; 12 bytes a parameter (table 2.1).
Simplified: a machine sends and receives m - 1 replicas of a shard at once, as placements in groups do; all its devices
take an equal part. The network limits, or the copy to host memory, whichever is slower.
Left out: serialising, which the paper counts apart.

Units: seconds, bytes.
"""

from __future__ import annotations

import math

from ..method.interleaving import CheckpointTraffic
from .machine import GeminiMachine
from .workload import Workload

__all__ = [
    "NUM_BUFFERS",
    "RESERVED_BYTES",
    "SAFETY",
    "agent_memory_bytes",
    "checkpoint_s",
    "peer_retrieval_s",
    "retrieval_s",
    "storage_s",
    "traffic_of",
]

MEBIBYTE = 2**20
RESERVED_BYTES = 128 * MEBIBYTE  # R of a device, section 6.7.1; its MB read as MiB
NUM_BUFFERS = 4  # p, section 6.7.4: four of 32 MB
SAFETY = 0.9  # μ, which the text does not give; spans deviate by less than 10 % (section 6.5.4)
BUFFERS_PER_REPLICA = 2  # one complete, one in progress, section 6.7.1


def traffic_of(
    workload: Workload,
    machine: GeminiMachine,
    *,
    num_replicas: int = 2,
    reserved_bytes: int = RESERVED_BYTES,
    num_buffers: int = NUM_BUFFERS,
    safety: float = SAFETY,
    free_bytes: float = math.inf,
) -> CheckpointTraffic:
    """Return what one device receives in an iteration.

    Args:
        workload: whose states are checkpointed.
        machine: the device has an even share of its network and copying.
        num_replicas: m.
        reserved_bytes: R of a device.
        num_buffers: p.
        safety: μ.
        free_bytes: of a device, for buffers.

    Raises:
        ValueError: if there are more replicas than machines, or as `CheckpointTraffic`.
    """
    _require_replicas(num_replicas, machine)
    return CheckpointTraffic(
        checkpoint_bytes=math.ceil(workload.checkpoint_bytes / machine.num_devices),
        num_replicas=num_replicas,
        bandwidth_bytes_per_s=machine.network_bytes_per_s / machine.devices_per_machine,
        copy_bytes_per_s=machine.copy_bytes_per_s / machine.devices_per_machine,
        reserved_bytes=reserved_bytes,
        num_buffers=num_buffers,
        startup_s=machine.network.latency_s,
        safety=safety,
        free_bytes=free_bytes,
    )


def checkpoint_s(workload: Workload, machine: GeminiMachine, *, num_replicas: int = 2) -> float:
    """Return the seconds in which all machines' remote replicas travel, with nothing beside them.

    Args:
        workload: whose states are checkpointed.
        machine: all of them send and receive at once.
        num_replicas: m; m - 1 travel.

    Raises:
        ValueError: if there are more replicas than machines.
    """
    traffic = traffic_of(workload, machine, num_replicas=num_replicas)
    num_remote = num_replicas - 1
    num_chunks = math.ceil(traffic.checkpoint_bytes / (traffic.reserved_bytes // traffic.num_buffers))
    rate = min(traffic.bandwidth_bytes_per_s, traffic.copy_bytes_per_s)
    return num_remote * (num_chunks * traffic.startup_s + traffic.checkpoint_bytes / rate)


def storage_s(workload: Workload, machine: GeminiMachine) -> float:
    """Return the seconds to write a whole checkpoint to persistent storage, or to read it: all machines share it."""
    return workload.checkpoint_bytes / machine.storage_bytes_per_s


def peer_retrieval_s(workload: Workload, machine: GeminiMachine, *, readers_of_one: int = 1) -> float:
    """Return the seconds in which a replaced machine reads its shard from a peer.

    Args:
        workload: whose states are read.
        machine: both.
        readers_of_one: replaced machines that read from the same peer, which shares its network among them.

    Raises:
        ValueError: if there is no reader.
    """
    if readers_of_one < 1:
        raise ValueError(f"readers_of_one is {readers_of_one!r}; it must be at least 1")
    shard_bytes = workload.checkpoint_bytes / machine.num_machines
    return machine.network.latency_s + readers_of_one * shard_bytes / machine.network_bytes_per_s


def retrieval_s(workload: Workload, machine: GeminiMachine) -> dict[str, float]:
    """Return the seconds that each tier takes to give a machine's shard back, fastest first.

    Local memory moves nothing between machines: 0. What each then copies to its devices is the same for all tiers.
    """
    return {
        "local memory": 0.0,
        "peer memory": peer_retrieval_s(workload, machine),
        "persistent storage": storage_s(workload, machine),
    }


def agent_memory_bytes(workload: Workload, machine: GeminiMachine, *, num_replicas: int = 2) -> float:
    """Return the host memory for replicas on one machine: two buffers for each of the m that it keeps.

    Args:
        workload: whose states are kept.
        machine: of which one is asked.
        num_replicas: m.

    Raises:
        ValueError: if there are more replicas than machines.
    """
    _require_replicas(num_replicas, machine)
    return BUFFERS_PER_REPLICA * num_replicas * workload.checkpoint_bytes / machine.num_machines


def _require_replicas(num_replicas: int, machine: GeminiMachine) -> None:
    if not 1 <= num_replicas <= machine.num_machines:
        raise ValueError(f"num_replicas is {num_replicas!r}; it must be in 1..{machine.num_machines}, the machines")
