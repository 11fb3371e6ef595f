"""Small JSON values gathered on all ranks without pickle, and a barrier whose time limit names the missing ranks."""

import json
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from workbench.launch.backends import carrying_device

__all__ = ["RankMissing", "meet", "tell_all"]

MEETING = 1  # tag of messages that say that a rank is here


class RankMissing(TimeoutError):
    """Some ranks did not come in time; the message names them."""


def meet(purpose: str, timeout_s: float, group: dist.ProcessGroup | None = None, message: bytes = b"\0") -> list[bytes]:
    """Wait for every rank of a group on processors; return the messages, all of the same length, in rank order.

    RankMissing if one is late, RuntimeError if one is lost.
    """
    size, ends_s = dist.get_world_size(group), time.monotonic() + timeout_s
    everyone = torch.zeros(size, len(message), dtype=torch.uint8)
    row = everyone[dist.get_rank(group)]
    row.copy_(torch.frombuffer(bytearray(message), dtype=torch.uint8))
    if dist.get_rank(group) == 0:
        others = range(1, size)
        arriving = [dist.irecv(everyone[rank], group_src=rank, group=group, tag=MEETING) for rank in others]
        late = [rank for rank, work in zip(others, arriving, strict=True) if not _is_done(work, ends_s)]
        if late:
            raise RankMissing(f"rank 0: {purpose}: ranks {late} did not come within {timeout_s:g} s")
        for work in [dist.isend(everyone, group_dst=rank, group=group, tag=MEETING) for rank in others]:
            assert work is not None  # all ranks are in the group
            work.wait()
    else:
        arrival = dist.isend(row, group_dst=0, group=group, tag=MEETING)
        answered = torch.empty_like(everyone)
        answer = dist.irecv(answered, group_src=0, group=group, tag=MEETING)
        ends_s += timeout_s / 2  # the first rank knows more, and is heard first
        if not (_is_done(arrival, ends_s) and _is_done(answer, ends_s)):
            missing = f"rank 0 did not answer within {timeout_s * 1.5:g} s"
            raise RankMissing(f"rank {dist.get_rank(group)}: {purpose}: {missing}")
        everyone = answered
    return [row.numpy().tobytes() for row in everyone]


def _is_done(work: dist.Work | None, ends_s: float) -> bool:
    """Wait for a message until a moment; a peer that is lost before then is an error."""
    assert work is not None  # all ranks are in the group
    try:
        work.wait(timedelta(seconds=max(ends_s - time.monotonic(), 0.001)))
    except RuntimeError:
        if time.monotonic() < ends_s:
            raise
        return False
    return True


def tell_all(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """Gather one JSON value of every rank on every rank, in rank order; every rank of the group calls it."""
    device = carrying_device("cpu", group)
    message = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    size = dist.get_world_size(group)
    lengths = torch.empty(size, dtype=torch.int64, device=device)
    dist.all_gather_single(lengths, torch.tensor([message.numel()], device=device), group=group)
    most = int(lengths.max())
    padded = torch.zeros(most, dtype=torch.uint8, device=device)
    padded[: message.numel()] = message
    messages = torch.empty(size, most, dtype=torch.uint8, device=device)
    dist.all_gather_single(messages, padded.unsqueeze(0), group=group)
    return [
        json.loads(row[:length].numpy().tobytes()) for row, length in zip(messages.cpu(), lengths.tolist(), strict=True)
    ]
