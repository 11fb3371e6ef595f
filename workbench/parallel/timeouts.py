"""The timeout of process groups: a group that is made from another one waits for its members just as long.

torch gives a new group, and each axis of a new mesh, half an hour (NCCL ten minutes), whatever the job was given.
"""

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout
from torch.distributed.device_mesh import DeviceMesh

__all__ = ["init_mesh", "timeout_of"]


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
