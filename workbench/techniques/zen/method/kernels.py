"""The parallel slots of algorithm 3.2 in Triton: a thread for each index claims a slot by compare-and-swap."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["claim_slots"]

BLOCK = 256  # indices of a program
FREE, NEVER_FREE = tl.constexpr(-1), -2  # values of a slot


@triton.jit
def _hash(index, seed):
    """MurmurHash3 of unsigned words, as `hashing.hash_of_by_definition` writes it."""
    word = index * 0xCC9E2D51
    word = ((word << 15) | (word >> 17)) * 0x1B873593
    word = seed ^ word
    word = (((word << 13) | (word >> 19)) * 5 + 0xE6546B64) ^ 4
    word = (word ^ (word >> 16)) * 0x85EBCA6B
    word = (word ^ (word >> 13)) * 0xC2B2AE35
    return word ^ (word >> 16)


@triton.jit
def _claim(indices, memory, nowhere, begins, sizes, seeds, is_left, num_indices, n, K: tl.constexpr, B: tl.constexpr):
    lane = tl.arange(0, B)
    at = tl.program_id(0).to(tl.int64) * B + lane
    waits = at < num_indices
    index = tl.load(indices + at, mask=waits, other=0).to(tl.uint32)
    home = tl.umulhi(_hash(index, tl.load(seeds).to(tl.uint32)), tl.zeros_like(index) + n.to(tl.uint32))
    begin, size = tl.load(begins + home), tl.load(sizes + home).to(tl.uint32)
    for number in tl.static_range(1, K + 1):
        slot = begin + tl.umulhi(_hash(index, tl.load(seeds + number).to(tl.uint32)), size)
        place = tl.where(waits, memory + slot, nowhere + lane)  # compare-and-swap takes no mask
        held = tl.atomic_cas(place, tl.full([B], FREE, tl.int32), index.to(tl.int32))
        waits = waits & (held != FREE)
    tl.store(is_left + at, waits, mask=at < num_indices)


def claim_slots(indices: Tensor, memory: Tensor, begins: Tensor, sizes: Tensor, seeds: Sequence[int]) -> Tensor:
    """Put indices into free slots of their partitions.

    Args:
        indices: int64 [I] on a CUDA device, distinct.
        memory: int32 [slots], -1 where a slot is free; changed in place.
        begins, sizes: int64 [n], where each partition's slots begin, and how many it has, one at least.
        seeds: of the hash functions h0 to hk.

    Returns:
        Whether each index found no free slot, bool [I].
    """
    is_left = torch.empty(len(indices), dtype=torch.bool, device=indices.device)
    if len(indices):
        nowhere = torch.full((BLOCK,), NEVER_FREE, dtype=torch.int32, device=indices.device)
        words = torch.tensor(seeds, dtype=torch.int64, device=indices.device)
        _claim[triton.cdiv(len(indices), BLOCK),](
            indices, memory, nowhere, begins, sizes, words, is_left, len(indices), len(sizes), len(seeds) - 1, BLOCK
        )
    return is_left
