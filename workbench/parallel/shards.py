"""Cutting a full tensor into even shards of tensor-parallel ranks, and joining them."""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["check_divides", "cut", "join"]


def check_divides(name: str, total: int, num_ranks: int) -> int:
    """Divide a size evenly over ranks.

    Args:
        name: What is divided, for the error.
        total: The size.
        num_ranks: Number of ranks.

    Returns:
        The share of one rank.

    Raises:
        ValueError: If the ranks do not divide the size.
    """
    if total % num_ranks:
        raise ValueError(f"{name}: {total} is not divisible by {num_ranks} tensor-parallel ranks")
    return total // num_ranks


def cut(full: Tensor, *, dim: int, rank: int, size: int, num_blocks: int = 1) -> Tensor:
    """Take one rank's shard.

    Args:
        full: The full tensor.
        dim: Dimension that is cut.
        rank: Whose shard, in 0..size-1.
        size: Number of ranks.
        num_blocks: The dimension is a stack of this many blocks (3 for query, key,
            value), of which every rank gets its share of each.

    Returns:
        A copy, contiguous.

    Raises:
        ValueError: If the blocks or the ranks do not divide the dimension.
    """
    check_divides(f"dim {dim} of {tuple(full.shape)}", full.shape[dim], num_blocks * size)
    blocks = full.chunk(num_blocks, dim)
    shard = torch.cat([block.chunk(size, dim)[rank] for block in blocks], dim)
    return shard.clone(memory_format=torch.contiguous_format)


def join(shards: Sequence[Tensor], *, dim: int, num_blocks: int = 1) -> Tensor:
    """Put the shards of all ranks together; the inverse of `cut`.

    Args:
        shards: One for every rank, in rank order.
        dim: Dimension that was cut.
        num_blocks: As in `cut`.

    Returns:
        The full tensor.
    """
    parts = [shard.chunk(num_blocks, dim) for shard in shards]
    return torch.cat([part[block] for block in range(num_blocks) for part in parts], dim)
