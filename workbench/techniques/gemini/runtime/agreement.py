"""What every rank knows, told to all: small JSON values gathered over a process group.

Source: none; a length and then the bytes, by two all-gathers. Nothing that came over a network is unpickled.
Left out: large values.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["tell_all"]


def tell_all(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """Gather one JSON value of every rank on every rank; every rank of the group calls it.

    Args:
        value: plain values; keys of mappings become texts.
        group: None is the default group, of ranks on processors.

    Returns:
        The values, in rank order.
    """
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
