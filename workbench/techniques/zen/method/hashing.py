"""Hierarchical hashing (algorithm 3.2) makes even partitions without loss; `partition` makes the same ones cheaper.

The hash function h0 gives the partition of an index, the same on every rank. h1 to hk try slots of a parallel area. An
index without a free slot goes to the partition's serial area. If that is full, it goes to an overflow, which the paper
does not have. All hash functions are MurmurHash3 with different seeds. The partitions, as sets, depend only on h0, so
`partition` finds them by counting.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from workbench.checks import require_counts

__all__ = ["EMPTY", "LARGEST_INDEX", "Slots", "hash_of", "hash_of_by_definition", "hierarchical_hash", "partition"]
__all__ += ["partition_by_definition", "partition_of", "partition_order", "require_indices", "slots_by_definition"]
__all__ += ["share_without_slot", "strawman_hash"]

LARGEST_INDEX = 2**31 - 1
EMPTY = -1  # mark of an empty slot; the paper uses 0 and counts indices from 1
WORD_BITS, WORD = 32, 0xFFFFFFFF
C1, C2, C3, M1, M2 = 0xCC9E2D51, 0x1B873593, 0xE6546B64, 0x85EBCA6B, 0xC2B2AE35  # MurmurHash3, x86, 32 bits
KEY_BYTES = 4


def hash_of_by_definition(index: Any, seed: int) -> Any:
    """Return MurmurHash3 (x86, 32 bits) of an index, as four little-endian bytes."""

    def rotated(word: Any, bits: int) -> Any:
        return (word << bits | word >> WORD_BITS - bits) & WORD

    word = rotated(index * C1 & WORD, 15) * C2 & WORD
    word = (rotated(word ^ seed, 13) * 5 + C3 & WORD) ^ KEY_BYTES
    word = (word ^ word >> 16) * M1 & WORD
    word = (word ^ word >> 13) * M2 & WORD
    return word ^ word >> 16


def hash_of(indices: Tensor, seed: int) -> Tensor:
    """Return the hashes of indices, int64 [I] in [0, 2^32), on their device: all at once by the definition."""
    return hash_of_by_definition(indices, seed)


def _seeds(seed: int, num_hashes: int) -> list[int]:
    """Return the seeds of h0 to hk."""
    return [hash_of_by_definition(number, seed & WORD) for number in range(num_hashes + 1)]


def _scaled(hashes: Tensor, sizes: Tensor | int) -> Tensor:
    """Map hashes to [0, size) by multiplication, which is cheaper than a division and as even."""
    return hashes * sizes >> WORD_BITS


def partition_of(indices: Tensor, num_partitions: int, seed: int) -> Tensor:
    """Return the partition h0 of each index, int64 [I]."""
    return _scaled(hash_of(indices, _seeds(seed, 0)[0]), num_partitions)


def require_indices(indices: Tensor, domain_size: int = LARGEST_INDEX + 1) -> None:
    """Raise ValueError unless indices are one dimension of int64, each in [0, domain_size)."""
    if indices.dtype != torch.int64 or indices.dim() != 1:
        raise ValueError(f"indices are {indices.dtype} of shape {tuple(indices.shape)}; they must be int64 [I]")
    if indices.numel():
        least, largest = (int(bound) for bound in indices.aminmax())
        if least < 0 or largest >= domain_size:
            wrong = least if least < 0 else largest
            raise ValueError(f"indices hold {wrong}; each must be in 0 .. {domain_size - 1}")


def _require(indices: Tensor, num_partitions: int, num_hashes: int, parallel_slots: int, serial_slots: int) -> None:
    require_counts(1, num_partitions=num_partitions, num_hashes=num_hashes)
    require_counts(0, parallel_slots=parallel_slots, serial_slots=serial_slots)
    require_indices(indices)


def _edges(num_slots: int, num_partitions: int) -> list[int]:
    """Return the edges between the partitions' areas, which differ by at most one slot in size."""
    return [number * num_slots // num_partitions for number in range(num_partitions + 1)]


@dataclass(frozen=True, slots=True)
class Slots:
    """The indices of each partition in the areas of algorithm 3.2."""

    parallel: list[list[int]]  # `EMPTY` marks free slots
    serial: list[list[int]]
    overflow: list[list[int]]  # indices beyond a full serial area
    tries: dict[int, int]  # number of hash functions tried for each index


def slots_by_definition(
    indices: Sequence[int],
    num_partitions: int,
    seed: int,
    *,
    num_hashes: int = 3,
    parallel_slots: int,
    serial_slots: int,
) -> Slots:
    """Fill the slots by algorithm 3.2, one index after the other; see `hierarchical_hash`."""
    seeds = _seeds(seed, num_hashes)
    serial_edges = _edges(serial_slots, num_partitions)
    parallel = [[EMPTY] * (end - start) for start, end in pairwise(_edges(parallel_slots, num_partitions))]
    slots = Slots(parallel, [[] for _ in parallel], [[] for _ in parallel], {})
    for index in indices:
        p = hash_of_by_definition(index, seeds[0]) * num_partitions >> WORD_BITS
        area = slots.parallel[p]
        for number, h in enumerate(seeds[1:], 1):
            slots.tries[index] = number
            q = hash_of_by_definition(index, h) * len(area) >> WORD_BITS
            if area and area[q] == EMPTY:
                area[q] = index
                break
        else:
            has_room = len(slots.serial[p]) < serial_edges[p + 1] - serial_edges[p]
            (slots.serial if has_room else slots.overflow)[p].append(index)
    return slots


def partition_by_definition(
    indices: Tensor,
    num_partitions: int,
    seed: int = 0,
    *,
    num_hashes: int = 3,
    parallel_slots: int = 0,
    serial_slots: int = 0,
) -> list[Tensor]:
    """Partition indices by algorithm 3.2, one index after the other; see `hierarchical_hash`."""
    _require(indices, num_partitions, num_hashes, parallel_slots, serial_slots)
    sizes = {"num_hashes": num_hashes, "parallel_slots": parallel_slots, "serial_slots": serial_slots}
    slots = slots_by_definition(indices.tolist(), num_partitions, seed, **sizes)
    partitions = []
    for parallel, serial, overflow in zip(slots.parallel, slots.serial, slots.overflow, strict=True):
        members = [index for index in parallel if index != EMPTY] + serial + overflow
        partitions.append(torch.tensor(members, dtype=torch.int64, device=indices.device))
    return partitions


def hierarchical_hash(
    indices: Tensor, num_partitions: int, *, num_hashes: int = 3, parallel_slots: int, serial_slots: int, seed: int
) -> list[Tensor]:
    """Partition indices by algorithm 3.2, all indices at once.

    Args:
        indices: int64 [I], distinct, in [0, 2^31), in any order, on any device.
        num_partitions: n.
        num_hashes: k, the number of hash functions tried for a slot before the serial area.
        parallel_slots: r1, the total of all partitions; the paper takes twice the number of indices.
        serial_slots: r2, the total of all partitions; the paper takes a tenth of r1. The overflow keeps all others.
        seed: seed of the hash functions, the same on all ranks.

    Returns:
        The indices of each partition, n tensors int64, in the order of the slots. As sets they depend only on indices,
        n and seed.

    Raises:
        ValueError: if a count is too small, or if indices have another type or range.

    Source: section 3.3.3. On a GPU a thread claims a slot by compare-and-swap. On a CPU all indices write their free
    slots, then read them again: an index that reads another index has lost the slot.
    """
    _require(indices, num_partitions, num_hashes, parallel_slots, serial_slots)
    seeds, device = _seeds(seed, num_hashes), indices.device
    areas = [torch.tensor(_edges(slots, num_partitions), device=device) for slots in (parallel_slots, serial_slots)]
    sizes, serial_sizes = (edges.diff() for edges in areas)
    begins = areas[0] + areas[1]  # first slot of each partition; its serial slots follow its parallel slots
    memory = torch.full((parallel_slots + serial_slots,), EMPTY, dtype=torch.int32, device=device)
    waiting = indices
    if parallel_slots >= num_partitions:
        waiting = _without_slot(indices, memory, begins[:-1], sizes, seeds)
    home = _scaled(hash_of(waiting, seeds[0]), num_partitions)
    home, order = home.sort(stable=True)
    waiting = waiting[order]
    position = torch.arange(len(home), device=device) - torch.searchsorted(home, home)  # value of the atomic counter
    has_room = position < serial_sizes[home]
    memory[(begins[:-1] + sizes)[home[has_room]] + position[has_room]] = waiting[has_room].int()
    return _extracted(memory, begins, waiting[~has_room], home[~has_room])


def _without_slot(indices: Tensor, memory: Tensor, begins: Tensor, sizes: Tensor, seeds: Sequence[int]) -> Tensor:
    """Put indices into free parallel slots, hash function by hash function; return the indices left over."""
    if indices.is_cuda and find_spec("triton"):
        from .kernels import claim_slots

        return indices[claim_slots(indices, memory, begins, sizes, seeds)]
    waiting, home = indices, _scaled(hash_of(indices, seeds[0]), len(sizes))
    for h in seeds[1:]:
        slot = begins[home] + _scaled(hash_of(waiting, h), sizes[home])
        is_free = memory[slot] == EMPTY
        memory[slot[is_free]] = waiting[is_free].int()
        is_left = memory[slot] != waiting
        waiting, home = waiting[is_left], home[is_left]
    return waiting


def share_without_slot(indices: Tensor, *, num_hashes: int, parallel_slots: int, seed: int) -> float:
    """Return the share of indices that find no free parallel slot; see `hierarchical_hash`."""
    _require(indices, 1, num_hashes, parallel_slots, 0)
    memory = torch.full((parallel_slots,), EMPTY, dtype=torch.int32)
    begins, sizes = torch.tensor([0]), torch.tensor([parallel_slots])
    return len(_without_slot(indices, memory, begins, sizes, _seeds(seed, num_hashes))) / len(indices)


def _extracted(memory: Tensor, begins: Tensor, overflow: Tensor, home: Tensor) -> list[Tensor]:
    """Return the indices of each partition, from its slots and from the overflow, whose partitions are `home`."""
    occupied = (memory != EMPTY).nonzero().squeeze(1)
    counts = torch.searchsorted(occupied, begins).diff().tolist()
    partitions = list(memory[occupied].long().split(counts))
    if len(overflow):
        partitions = [torch.cat([members, overflow[home == p]]) for p, members in enumerate(partitions)]
    return partitions


def strawman_hash(indices: Tensor, num_partitions: int, num_slots: int, seed: int) -> list[Tensor]:
    """Partition indices by algorithm 3.1: on a collision the later index overwrites the earlier.

    Args:
        indices: int64 [I], distinct.
        num_partitions: n.
        num_slots: total of all partitions, at least n.
        seed: seed of the hash function.
    """
    _require(indices, num_partitions, 1, num_slots, 0)
    require_counts(num_partitions, num_slots=num_slots)
    begins = torch.tensor(_edges(num_slots, num_partitions), device=indices.device)
    memory = torch.full((num_slots,), EMPTY, dtype=torch.int32, device=indices.device)
    memory[_scaled(hash_of(indices, _seeds(seed, 0)[0]), num_slots)] = indices.int()
    no_overflow = indices[:0]
    return _extracted(memory, begins, no_overflow, no_overflow)


def partition(indices: Tensor, num_partitions: int, seed: int) -> list[Tensor]:
    """Return the partitions of `hierarchical_hash` by counting, without slots; the order of the indices stays."""
    order, counts = partition_order(indices, num_partitions, seed)
    return list(indices[order].split(counts))


def partition_order(indices: Tensor, num_partitions: int, seed: int) -> tuple[Tensor, list[int]]:
    """Return the places of the indices, partition by partition, int64 [I], and the size of each partition.

    Algorithm 3.2 needs slots because its threads must not wait for each other. Here a CPU core counts the indices of
    each partition, then writes their places. A GPU sorts partition numbers, which is faster than slots (figure 3.16).
    """
    _require(indices, num_partitions, 1, 0, 0)
    if indices.device.type == "cpu":
        places, counts = _counted(indices.numpy(), _seeds(seed, 0)[0], num_partitions)
        return torch.from_numpy(places), counts.tolist()
    home, order = partition_of(indices, num_partitions, seed).int().sort(stable=True)
    return order, torch.bincount(home, minlength=num_partitions).tolist()


_murmur = njit(cache=True)(hash_of_by_definition)  # on 64 bits, of which the lowest 32 count


@njit(cache=True, nogil=True)
def _counted(indices: np.ndarray, seed: int, num_partitions: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of the indices, partition by partition, and the size of each partition."""
    home = np.empty(len(indices), np.int32)
    counts = np.zeros(num_partitions, np.int64)
    for place in range(len(indices)):
        home[place] = _murmur(indices[place], seed) * num_partitions >> WORD_BITS
        counts[home[place]] += 1
    next_place = np.zeros(num_partitions, np.int64)
    order = np.empty(len(indices), np.int64)
    for number in range(1, num_partitions):
        next_place[number] = next_place[number - 1] + counts[number - 1]
    for place in range(len(indices)):
        order[next_place[home[place]]] = place
        next_place[home[place]] += 1
    return order, counts
