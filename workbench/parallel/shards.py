"""Cutting a full tensor into even shards of tensor-parallel ranks, and joining them."""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["check_divides", "cut", "join"]


def check_divides(name: str, total: int, num_ranks: int) -> int:
    """Return one rank's share of a size; refuse, by its name, a size that the ranks do not divide."""
    if total % num_ranks:
        raise ValueError(f"{name}: {total} is not divisible by {num_ranks} tensor-parallel ranks")
    return total // num_ranks


def cut(full: Tensor, *, dim: int, rank: int, size: int, num_blocks: int = 1) -> Tensor:
    """Take one rank's shard as a contiguous copy; every rank gets its share of each of `num_blocks` stacked blocks."""
    check_divides(f"dim {dim} of {tuple(full.shape)}", full.shape[dim], num_blocks * size)
    blocks = full.chunk(num_blocks, dim)
    shard = torch.cat([block.chunk(size, dim)[rank] for block in blocks], dim)
    return shard.clone(memory_format=torch.contiguous_format)


def join(shards: Sequence[Tensor], *, dim: int, num_blocks: int = 1) -> Tensor:
    """Put the shards of all ranks, in rank order, together; the inverse of `cut`."""
    parts = [shard.chunk(num_blocks, dim) for shard in shards]
    return torch.cat([part[block] for block in range(num_blocks) for part in parts], dim)
