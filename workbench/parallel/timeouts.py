"""The timeout of process groups, and the ranks that did not keep it.

A group that is made from another one waits for its members just as long. torch gives a new group, and each axis of a
new mesh, half an hour (NCCL ten minutes), whatever the job was given.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _get_default_store

__all__ = ["RankLost", "init_mesh", "naming_lost_ranks", "timeout_of"]

ROLL_CALL = timedelta(seconds=5)  # at most, in which ranks say that a collective failed on them, too


def timeout_of(group: dist.ProcessGroup | None = None) -> timedelta:
    """Return how long a collective of a group waits for its members; None is the default group.

    Of a group with several backends, such as gloo and NCCL, it is the shortest; torch's default for a backend that
    knows none.
    """
    group = dist.group.WORLD if group is None else group
    options = [group._get_backend(device).options for device in group._device_types]
    return min((each._timeout for each in options if each is not None), default=default_pg_timeout)


def init_mesh(device: str, shape: Sequence[int], names: Sequence[str] | None = None) -> DeviceMesh:
    """Arrange all ranks as torch's `init_device_mesh` does, in groups with the job's timeout; every rank calls it.

    Args:
        device: type of the ranks' devices, such as "cpu".
        shape: ranks along each axis; their product is the number of ranks.
        names: of the axes.
    """
    ranks = torch.arange(dist.get_world_size()).view(*shape)
    groups = []
    for axis, size in enumerate(shape):
        members = ranks.movedim(axis, -1).reshape(-1, size).tolist()
        own = dist.group.WORLD
        if size < ranks.numel():
            own, _ = dist.new_subgroups_by_enumeration(members, timeout=timeout_of())
        groups.append(own)
    names = tuple(names or (f"dim_{axis}" for axis in range(len(shape))))
    return DeviceMesh.from_group(groups, device, ranks, mesh_dim_names=names)


class RankLost(RuntimeError):
    """A collective failed; the message names the ranks that do not answer."""


@contextmanager
def naming_lost_ranks(group: dist.ProcessGroup | None, purpose: str) -> Iterator[None]:
    """Raise `RankLost` in the place of a backend's error, which names an address at best; None is the default group.

    Each rank whose collective has failed closes its connections, so that the others' fail at once, too, and says in the
    job's store that it is here. The ranks that say nothing have raised, ended or stopped. The group is of no more use.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, RankLost) or not _is_of_backend(error):
            raise
        raise RankLost(f"{purpose}: {_roll_call(group)}; {error}") from error


def _is_of_backend(error: RuntimeError) -> bool:
    words = ("gloo", "timed out")  # the latter where a wait has a limit of its own
    return isinstance(error, dist.DistError) or any(word in str(error) for word in words)


def _roll_call(group: dist.ProcessGroup | None) -> str:
    """Say which ranks of a group do not answer."""
    group = dist.group.WORLD if group is None else group
    store = dist.PrefixStore(f"roll call of {group.group_name}", _get_default_store())
    others = [rank for rank in range(group.size()) if rank != group.rank()]
    if dist.get_backend(group) == "gloo":
        for rank in others:  # gloo closes all connections of a group when a message is late
            with suppress(RuntimeError):
                dist.irecv(torch.empty(1), group=group, group_src=rank).wait(timedelta(milliseconds=1))
    try:
        store.set(str(group.rank()), "here")
        with suppress(RuntimeError):  # a store in a file raises no error of its own kind
            store.wait([str(rank) for rank in others], min(ROLL_CALL, timeout_of(group)))
        silent = [dist.get_global_rank(group, rank) for rank in others if not store.check([str(rank)])]
    except dist.DistError as error:
        return f"nor does the job's store answer ({error})"
    if not silent:
        return "all ranks answer"
    ranks = f"rank {silent[0]} does" if len(silent) == 1 else f"ranks {', '.join(map(str, silent))} do"
    return f"{ranks} not answer, having raised, ended or stopped; the timeout is {timeout_of(group)}"
