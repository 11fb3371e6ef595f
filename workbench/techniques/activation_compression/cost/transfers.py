"""Where the messages of an iteration travel, and how long one takes.

Source: "Does compressing activations help model parallel training?", sections 3.2, 3.3 and 4.1; times by
`workbench.cluster.collective_time_s`. Across hosts: NCCL's double tree for all-reduces (Sanders, Speck, Traeff 2009),
and Megatron-LM's boundary, each of whose ranks sends its own share of the message (Narayanan et al. 2021).
Simplified: ranks of a stage stand side by side, hosts are filled one after the other; a boundary inside a host uses
one connection.
Left out: stages that disturb each other on a shared link.

Units: seconds, bytes.
"""

from __future__ import annotations

import math
from dataclasses import replace

from workbench.cluster import Algorithm, Collective, Link, collective_time_s

from ..method import method
from .machine import FittedMachine
from .messages import SUMMABLE, Setting

__all__ = ["all_reduce_s", "encoded_tensor_s", "send_s"]


def all_reduce_s(setting: Setting, machine: FittedMachine, stage: int, message_bytes: float) -> float:
    """Return the seconds of summing a message over a stage's tensor-parallel ranks; 0 for one rank.

    Inside a host a ring; across hosts a ring in each, and between them two trees.
    """
    hosts = len(setting.hosts_of(stage))
    link = _group_link(setting, machine, stage)
    local = _ring_s(Collective.ALL_REDUCE, _local_ranks(setting, stage), message_bytes, link)
    if hosts == 1:
        return local
    network = _network(machine)
    reached = replace(network, bandwidth_bytes_per_s=network.bandwidth_bytes_per_s * machine.network_share)
    return local + collective_time_s(Collective.ALL_REDUCE, Algorithm.DOUBLE_TREE, hosts, message_bytes, reached)


def encoded_tensor_s(setting: Setting, machine: FittedMachine, stage: int) -> float:
    """Return the seconds in which a stage's ranks exchange their encoded activations; 0 for one rank.

    Codes are summed; the messages of other methods are gathered.
    """
    message_bytes = setting.encoded_bytes()
    if method(setting.method).family in SUMMABLE:
        return all_reduce_s(setting, machine, stage, message_bytes)
    if setting.tp == 1:
        return 0.0
    across = len(setting.hosts_of(stage)) > 1
    link = _network(machine) if across else _group_link(setting, machine, stage)
    return machine.gather_s + _ring_s(Collective.ALL_GATHER, setting.tp, message_bytes, link)


def send_s(setting: Setting, machine: FittedMachine, boundary: int, message_bytes: float) -> float:
    """Return the seconds of one message from stage `boundary` to the next, or back."""
    hosts = setting.hosts_of(boundary)
    if hosts == setting.hosts_of(boundary + 1):
        return machine.handover_s + machine.link.time_s(message_bytes)
    return machine.handover_s + _network(machine).time_s(message_bytes / len(hosts))


def _ring_s(collective: Collective, num_ranks: int, message_bytes: float, link: Link) -> float:
    return collective_time_s(collective, Algorithm.RING, num_ranks, message_bytes, link)


def _local_ranks(setting: Setting, stage: int) -> int:
    """Ranks that one stage has on one host, on the fullest where they differ."""
    return math.ceil(setting.tp / len(setting.hosts_of(stage)))


def _group_link(setting: Setting, machine: FittedMachine, stage: int) -> Link:
    """Return what joins the ranks that one stage has on one host."""
    num_ranks = _local_ranks(setting, stage)
    connections = machine.connections_of(num_ranks)
    group = stage * setting.tp % setting.ranks_per_node // num_ranks
    rate = machine.link.bandwidth_bytes_per_s * connections[group % len(connections)]
    return replace(machine.link, bandwidth_bytes_per_s=rate)


def _network(machine: FittedMachine) -> Link:
    if machine.network is None:
        raise ValueError(f"network=None: machine {machine.name!r} has no connection to other hosts")
    return machine.network
