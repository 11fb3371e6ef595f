"""What every rank knows, told to all, and a place where all meet, with a limit that names who did not come.

What: small JSON values gathered over a process group: a length and then the bytes, by two all-gathers. Nothing that
came over a network is unpickled.
Source: none.
Left out: large values.
"""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["RankMissing", "meet", "tell_all"]

MEETING = 1  # tag of messages that only say that a rank is here


class RankMissing(TimeoutError):
    """Some ranks did not come in time; the message names them."""


def meet(what: str, timeout_s: float, group: dist.ProcessGroup | None = None) -> None:
    """Wait until every rank of the group is here: all tell the first one, and it answers."""
    ends_s, token = time.monotonic() + timeout_s, torch.zeros(1, dtype=torch.uint8)
    others = range(1, dist.get_world_size(group))
    if dist.get_rank(group) == 0:
        arriving = [dist.irecv(token.clone(), group_src=rank, group=group, tag=MEETING) for rank in others]
        missing = [rank for rank, work in zip(others, arriving, strict=True) if not _is_done(work, ends_s)]
        if missing:
            raise RankMissing(f"rank 0: {what}: ranks {missing} did not come within {timeout_s:g} s")
        answers = [dist.isend(token, group_dst=rank, group=group, tag=MEETING) for rank in others]
        for work in answers:
            work.wait()
    else:
        told = dist.isend(token, group_dst=0, group=group, tag=MEETING)
        answer = dist.irecv(token.clone(), group_src=0, group=group, tag=MEETING)
        ends_s += timeout_s / 2  # the first rank knows more, and is heard first
        if not (_is_done(told, ends_s) and _is_done(answer, ends_s)):
            raise RankMissing(
                f"rank {dist.get_rank(group)}: {what}: rank 0 did not answer within {timeout_s * 1.5:g} s"
            )


def _is_done(work: dist.Work, ends_s: float) -> bool:
    """Wait for a message until a moment; a peer that is lost before is an error."""
    try:
        work.wait(timedelta(seconds=max(ends_s - time.monotonic(), 0.001)))
    except RuntimeError:
        if time.monotonic() < ends_s:
            raise
        return False
    return True


def tell_all(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """Gather one JSON value of every rank on every rank; every rank of the group calls it."""
    said = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    size = dist.get_world_size(group)
    lengths = torch.empty(size, dtype=torch.int64)
    dist.all_gather_single(lengths, torch.tensor([said.numel()]), group=group)
    most = int(lengths.max())
    padded = torch.zeros(most, dtype=torch.uint8)
    padded[: said.numel()] = said
    everyone = torch.empty(size, most, dtype=torch.uint8)
    dist.all_gather_single(everyone, padded.unsqueeze(0), group=group)
    return [json.loads(row[:length].numpy().tobytes()) for row, length in zip(everyone, lengths.tolist(), strict=True)]
