"""Messages that use both directions of a link at once, with gloo as with NCCL.

gloo sends a message once its receiver has announced that it waits. The announcement travels on the connection on which
the receiver itself sends, behind what is under way there. So two ranks that send to each other before they receive may
take turns, also in gloo's all-to-all, and then need twice the time. Here receives begin before sends.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from workbench.launch.backends import backend_of

__all__ = ["LARGE_BYTES", "all_to_all", "begin_messages"]

LARGE_BYTES = 2**18  # at 1 Gbit/s shorter messages gain less than their own calls cost


def begin_messages(
    arriving: Mapping[int, Tensor], sending: Mapping[int, Tensor], *, group: dist.ProcessGroup | None
) -> list[dist.Work]:
    """Begin to fill a tensor from some other ranks of a group, and to send one to some; return what to wait for.

    Tensors are contiguous. Ranks are counted within the group.
    """
    messages = [dist.P2POp(dist.irecv, tensor, group=group, group_peer=of) for of, tensor in arriving.items()]
    messages += [dist.P2POp(dist.isend, tensor, group=group, group_peer=to) for to, tensor in sending.items()]
    return dist.batch_isend_irecv(messages) if messages else []


def all_to_all(arrived: Sequence[Tensor], sent: Sequence[Tensor], *, group: dist.ProcessGroup | None) -> None:
    """Send a tensor to each rank of a group, and fill one from each; all its ranks call it, of one dtype and device.

    Both ends know the length of what they send each other. With gloo a large tensor of the CPU is a message of its own.
    """
    rank = dist.get_rank(group)
    is_gloo = sent[0].is_cpu and backend_of("cpu", group) == "gloo"  # gloo sends no message from a GPU

    def large(tensors: Sequence[Tensor]) -> dict[int, Tensor]:
        at = {of: tensor for of, tensor in enumerate(tensors) if is_gloo and tensor.nbytes >= LARGE_BYTES}
        return {of: tensor for of, tensor in at.items() if of != rank}

    arriving, sending = large(arrived), large(sent)
    works = begin_messages(arriving, sending, group=group)
    small = [tensor[:0] if of in sending else tensor for of, tensor in enumerate(sent)]
    places = [tensor[:0] if of in arriving else tensor for of, tensor in enumerate(arrived)]
    lengths, counts = [len(tensor) for tensor in places], [len(tensor) for tensor in small]
    whole = sent[0].new_empty(sum(lengths))
    dist.all_to_all_single(whole, torch.cat(small), lengths, counts, group=group)
    for place, tensor in zip(places, whole.split(lengths), strict=True):
        place.copy_(tensor)
    for work in works:
        work.wait()
