"""The timeout of process groups, and the ranks that did not answer in time.

A group that is made from another group gets its timeout. torch gives a new group, and each axis of a new mesh, half an
hour (NCCL ten minutes), whatever the timeout of the job.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _get_default_group, _get_default_store, _group_or_default_group, _world

from workbench.launch.backends import backend_of, carrying_device

__all__ = [
    "RankLost",
    "await_connected",
    "break_connections",
    "group_beside",
    "init_mesh",
    "naming_lost_ranks",
    "timeout_of",
]

NOBODYS_TAG = 2**31 - 1  # of no message: gloo ends a process whose receive meets a longer message of its tag
ROLL_CALL = timedelta(seconds=5)  # limit of the wait for other ranks on which the collective failed, too
GLOO_WORDS = (
    "gloo/transport",
    "gloo/rendezvous",
    "timeout caused pair closure",
    "timed out",
)  # it raises plain RuntimeErrors

_num_groups: dict[tuple[int, ...], int] = {}  # this process's groups of any ranks when it last opened one beside these


def timeout_of(group: dist.ProcessGroup | None = None) -> timedelta:
    """Return how long a collective of a group waits for its members; None is the default group.

    A group with several backends, such as gloo and NCCL, has the shortest of their timeouts, or torch's default if no
    backend has a timeout.
    """
    group = _group_or_default_group(group)
    options = [group._get_backend(device).options for device in group._device_types]
    return min((option._timeout for option in options if option is not None), default=default_pg_timeout)


def init_mesh(device: str, shape: Sequence[int], names: Sequence[str] | None = None) -> DeviceMesh:
    """Arrange all ranks as torch's `init_device_mesh` does, in groups with the job's timeout; every rank calls it.

    Args:
        device: type of the ranks' devices, such as "cpu".
        shape: ranks along each axis; their product is the number of ranks.
        names: names of the axes.
    """
    ranks = torch.arange(dist.get_world_size()).view(*shape)
    groups = []
    for axis, size in enumerate(shape):
        members = ranks.movedim(axis, -1).reshape(-1, size).tolist()
        group = _get_default_group()
        if size < ranks.numel():
            group, _ = dist.new_subgroups_by_enumeration(members, timeout=timeout_of())
        groups.append(group)
    dim_names = tuple(names or (f"dim_{axis}" for axis in range(len(shape))))
    return DeviceMesh.from_group(groups, device, ranks, mesh_dim_names=dim_names)


def await_connected(group: dist.ProcessGroup | None = None) -> None:
    """Wait for every rank of a group to have opened the groups that they open together; None is the default group.

    If a rank closed such a group before, connecting to it would fail on the slower ranks.
    """
    dist.all_reduce(torch.zeros(1, device=carrying_device("cpu", group)), group=group)


def group_beside(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """Open another group of a group's ranks, with its backend and timeout; the job's other ranks need not call it.

    torch finds the members of such a group by the number of groups that a process has open. Members wait forever if
    their numbers differ, or if the number was used before. They agree on a new one here, and open groups up to it.
    """
    ranks = dist.get_process_group_ranks(group)
    more: dict[str, Any] = {"timeout": timeout_of(group), "backend": dist.get_backend(group)}
    if len(ranks) == dist.get_world_size():
        opened = dist.new_group(ranks, **more)
        await_connected(group)
        return opened
    numbers = [0] * len(ranks)
    dist.all_gather_object(numbers, max(len(_world.pg_names), _num_groups.get(tuple(ranks), 0) + 1), group=group)
    _num_groups[tuple(ranks)] = max(numbers)
    more["use_local_synchronization"] = True
    job = _get_default_group()
    # Of a job that is bound to a device, NCCL would split the communicator, which waits for all ranks of the job.
    bound, job.bound_device_id = job.bound_device_id, None
    try:
        num_fillers = max(numbers) - len(_world.pg_names)
        fillers = [dist.new_group([dist.get_rank()], **more) for _ in range(num_fillers)]
        opened = dist.new_group(ranks, **more)
    finally:
        job.bound_device_id = bound
    for filler in fillers:
        dist.destroy_process_group(filler)
    await_connected(group)
    return opened


class RankLost(RuntimeError):
    """A collective failed; the message names the ranks that do not answer."""


@contextmanager
def naming_lost_ranks(group: dist.ProcessGroup | None, purpose: str) -> Iterator[None]:
    """Replace a backend's error, which names an address at best, by `RankLost`; None is the default group.

    A rank whose collective has failed closes its connections, so that the collective fails on the others at once, and
    reports to the job's store. Ranks without a report have raised, ended or stopped. The group cannot be used again.
    """
    try:
        yield
    except RuntimeError as error:
        is_of_backend = isinstance(error, dist.DistError) or any(words in str(error) for words in GLOO_WORDS)
        if isinstance(error, RankLost) or not is_of_backend:
            raise
        raise RankLost(f"{purpose}: {_roll_call(group)}; {error}") from error


def break_connections(group: dist.ProcessGroup | None = None) -> None:
    """End all waits of this rank and its peers in a group with an error; the group cannot be used again."""
    group = _group_or_default_group(group)
    if backend_of("cuda", group) == "nccl":
        group._get_backend(torch.device("cuda")).abort()
    if backend_of("cpu", group) == "gloo":
        _close_gloo(group)


def _close_gloo(group: dist.ProcessGroup) -> None:
    for rank in set(range(group.size())) - {group.rank()}:  # gloo closes all connections when a message is late
        with suppress(RuntimeError):
            group.recv([torch.empty(1)], rank, NOBODYS_TAG).wait(timedelta(milliseconds=1))


def _roll_call(group: dist.ProcessGroup | None) -> str:
    """Say which ranks of a group do not answer."""
    group = _group_or_default_group(group)
    store = dist.PrefixStore(f"roll call of {group.group_name}", _get_default_store())
    others = [rank for rank in range(group.size()) if rank != group.rank()]
    if backend_of("cpu", group) == "gloo":
        _close_gloo(group)
    try:
        store.set(str(group.rank()), "here")
        with suppress(RuntimeError):  # not every store has an error of its own for a wait that was too long
            store.wait([str(rank) for rank in others], min(ROLL_CALL, timeout_of(group)))
        silent = [dist.get_global_rank(group, rank) for rank in others if not store.check([str(rank)])]
    except dist.DistError as error:
        return f"nor does the job's store answer ({error})"
    if not silent:
        return "all ranks answer"
    ranks = f"rank {silent[0]} does" if len(silent) == 1 else f"ranks {', '.join(map(str, silent))} do"
    return f"{ranks} not answer, having raised, ended or stopped; the timeout is {timeout_of(group)}"
