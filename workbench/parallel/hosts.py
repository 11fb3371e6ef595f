"""Sums in two steps: inside a host each rank sums one shard, and the ranks with the same shard meet between hosts."""

import os
import platform
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from workbench.checks import require_counts

from .timeouts import await_connected, naming_lost_ranks, timeout_of

__all__ = ["all_shards", "host_groups", "own_shard_of_sum", "ranks_a_core", "require_whole_hosts"]


def require_whole_hosts(num_ranks: int, **ranks_per_host: int) -> None:
    """Raise ValueError, by the argument's name, if that many ranks a host do not divide a group of all ranks."""
    require_counts(1, **ranks_per_host)
    ((name, per_host),) = ranks_per_host.items()
    if per_host > 1 and num_ranks < dist.get_world_size():  # torch's names for such groups are not unique
        rule = f"the group has {num_ranks} of {dist.get_world_size()} ranks, and hosts are made of all"
        raise ValueError(f"{name} is {per_host}; it must be 1 here: {rule}")
    if num_ranks % per_host:
        raise ValueError(f"{name} is {per_host}; it must divide the {num_ranks} ranks")


def host_groups(group: dist.ProcessGroup | None, per_host: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """Return this rank's group on its host, and its group of the ranks on all hosts with the same shard.

    Ranks of a host follow one another. All ranks call it together.
    """
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    inside = [ranks[first : first + per_host] for first in range(0, len(ranks), per_host)]
    across = [ranks[local::per_host] for local in range(per_host)]
    timeout = timeout_of(group)
    within, between = (dist.new_subgroups_by_enumeration(every, timeout=timeout)[0] for every in (inside, across))
    await_connected(group)
    return within, between


def own_shard_of_sum(whole: Tensor, host: dist.ProcessGroup) -> Tensor:
    """Return this rank's shard of the sum of a host's tensors [rows, ...], padded with zeros to equal shards.

    gloo's reduce_scatter would send twice the bytes.
    """
    size, rank = dist.get_world_size(host), dist.get_rank(host)
    rows = -(-len(whole) // size)
    padded = torch.cat([whole, whole.new_zeros(rows * size - len(whole), *whole.shape[1:])])
    arrived = torch.empty_like(padded)
    with naming_lost_ranks(host, "all_to_all on a host"):
        dist.all_to_all_single(arrived, padded, group=host)
    return arrived.view(size, rows, *whole.shape[1:]).sum(dim=0) if size > 1 else padded[rank * rows :]


def all_shards(shard: Tensor, host: dist.ProcessGroup) -> Tensor:
    """Return the shards of a host's ranks one after the other."""
    shards = [torch.empty_like(shard) for _ in range(dist.get_world_size(host))]
    with naming_lost_ranks(host, "all_gather on a host"):
        dist.all_gather(shards, shard.contiguous(), group=host)
    return torch.cat(shards)


def ranks_a_core(group: dist.ProcessGroup | None = None) -> float:
    """Return how many ranks of a group share a core of this rank's machine, at least one; all its ranks call it."""
    machines: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(machines, platform.node(), group)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1.0, machines.count(platform.node()) / cores)
