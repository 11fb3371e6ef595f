"""Which backend carries a tensor: a group may have one for each kind of device, as torch makes it by default."""

import torch
import torch.distributed as dist

__all__ = ["backend_of", "carrying_device"]


def backend_of(device: torch.device | str, group: dist.ProcessGroup | None = None) -> str:
    """Return the name of the backend of a group that carries tensors of a device, "" if there is none.

    `torch.distributed.get_backend` says "undefined" where the user named none, and "cpu:gloo,cuda:nccl" where two.
    """
    pairs = dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))
    return pairs.get(torch.device(device).type, "")


def carrying_device(device: torch.device | str, group: dist.ProcessGroup | None = None) -> torch.device:
    """Return the kind of device on which what lies on `device` is best sent: NCCL carries CUDA tensors, gloo those of
    a CPU.
    """
    is_sent_from_gpu = torch.device(device).type == "cuda" and backend_of("cuda", group) == "nccl"
    return torch.device("cuda" if is_sent_from_gpu or not backend_of("cpu", group) else "cpu")
