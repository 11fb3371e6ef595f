"""Hierarchical hashing (algorithm 3.2): even partitions without loss, and a cheaper way to the same.

The hash function h0 gives an index's partition, the same on every rank; h1 to hk try slots of a parallel area; what
finds none free goes to the partition's serial area, and beyond that to an overflow, which the paper does not have.
MurmurHash3 with seeds stands for all of them. The sets that come out depend on h0 alone: `partition` makes them by
counting.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import torch
from numba import njit
from torch import Tensor

from workbench.checks import require_counts

__all__ = [
    "EMPTY",
    "LARGEST_INDEX",
    "Slots",
    "hash_of",
    "hash_of_by_definition",
    "hierarchical_hash",
    "partition",
    "slots_by_definition",
]
__all__ += ["partition_by_definition", "partition_of", "partition_order", "require_indices", "strawman_hash"]

LARGEST_INDEX = 2**31 - 1
EMPTY = -1  # a slot; the paper marks it by 0 and counts indices from 1
WORD_BITS, WORD = 32, 0xFFFFFFFF
C1, C2, C3, M1, M2 = 0xCC9E2D51, 0x1B873593, 0xE6546B64, 0x85EBCA6B, 0xC2B2AE35  # of MurmurHash3, x86, 32 bits
KEY_BYTES = 4


def hash_of_by_definition(index: int, seed: int) -> int:
    """Return MurmurHash3 (x86, 32 bits) of an index as four bytes, the lowest first."""

    def rotated(word: int, bits: int) -> int:
        return (word << bits | word >> WORD_BITS - bits) & WORD

    word = rotated(index * C1 & WORD, 15) * C2 & WORD
    word = (rotated(seed ^ word, 13) * 5 + C3 & WORD) ^ KEY_BYTES
    word = (word ^ word >> 16) * M1 & WORD
    word = (word ^ word >> 13) * M2 & WORD
    return word ^ word >> 16


def hash_of(indices: Tensor, seed: int) -> Tensor:
    """Return the hashes of indices, int64 [I] in [0, 2^32), on their device; see `hash_of_by_definition`."""

    def rotated(word: Tensor, bits: int) -> Tensor:
        return (word << bits | word >> WORD_BITS - bits) & WORD

    word = rotated(indices * C1 & WORD, 15) * C2 & WORD
    word = (rotated(word ^ seed, 13) * 5 + C3 & WORD) ^ KEY_BYTES
    word = (word ^ word >> 16) * M1 & WORD
    word = (word ^ word >> 13) * M2 & WORD
    return word ^ word >> 16


def _seeds(seed: int, num_hashes: int) -> list[int]:
    """Return the seeds of h0 to hk."""
    return [hash_of_by_definition(number, seed & WORD) for number in range(num_hashes + 1)]


def _scaled(hashes: Tensor, sizes: Tensor | int) -> Tensor:
    """Bring hashes into [0, size) by multiplication, which costs less than a division and is as even."""
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
    """Return where the areas of the partitions begin and end, as even as whole slots allow."""
    return [number * num_slots // num_partitions for number in range(num_partitions + 1)]


@dataclass(frozen=True, slots=True)
class Slots:
    """Where algorithm 3.2 put the indices of each partition; `EMPTY` where there is none."""

    parallel: list[list[int]]
    serial: list[list[int]]
    overflow: list[list[int]]  # beyond the serial area
    tries: dict[int, int]  # by index: hash functions tried for a slot


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
    edges, serial_edges = _edges(parallel_slots, num_partitions), _edges(serial_slots, num_partitions)
    parallel = [[EMPTY] * (end - start) for start, end in pairwise(edges)]
    found = Slots(parallel, [[] for _ in parallel], [[] for _ in parallel], {})
    for index in indices:
        p = hash_of_by_definition(index, seeds[0]) * num_partitions >> WORD_BITS
        slots = found.parallel[p]
        for number, h in enumerate(seeds[1:], 1):
            found.tries[index] = number
            q = hash_of_by_definition(index, h) * len(slots) >> WORD_BITS
            if slots and slots[q] == EMPTY:
                slots[q] = index
                break
        else:
            has_room = len(found.serial[p]) < serial_edges[p + 1] - serial_edges[p]
            (found.serial if has_room else found.overflow)[p].append(index)
    return found


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
    found = slots_by_definition(indices.tolist(), num_partitions, seed, **sizes)
    areas = zip(found.parallel, found.serial, found.overflow, strict=True)
    kept = ([index for index in slots if index != EMPTY] + serial + over for slots, serial, over in areas)
    return [torch.tensor(one, dtype=torch.int64, device=indices.device) for one in kept]


def hierarchical_hash(
    indices: Tensor, num_partitions: int, *, num_hashes: int = 3, parallel_slots: int, serial_slots: int, seed: int
) -> list[Tensor]:
    """Partition indices by algorithm 3.2, all indices at once.

    Args:
        indices: int64 [I], distinct, in [0, 2^31), on any device; in any order.
        num_partitions: n.
        num_hashes: k, hash functions tried for a slot before the serial area.
        parallel_slots: r1, of all partitions together; the paper takes twice the number of indices.
        serial_slots: r2, of all partitions together; the paper takes a tenth of r1. Nothing is lost beyond it.
        seed: of the hash functions, the same on all ranks.

    Returns:
        The indices of each partition, n tensors int64. As sets they depend on indices, n and seed alone; their order is
        that of the slots.

    Raises:
        ValueError: for counts below their least value, and indices of another type or range.

    Source: section 3.3.3. On a GPU a thread claims a slot by compare-and-swap; elsewhere two indices that write one
    free slot at once are told apart by reading it again.
    """
    _require(indices, num_partitions, num_hashes, parallel_slots, serial_slots)
    seeds, device = _seeds(seed, num_hashes), indices.device
    areas = [torch.tensor(_edges(slots, num_partitions), device=device) for slots in (parallel_slots, serial_slots)]
    sizes, serial_sizes = (edges.diff() for edges in areas)
    begins = areas[0] + areas[1]  # of each partition's slots, the serial ones behind the parallel ones
    memory = torch.full((parallel_slots + serial_slots,), EMPTY, dtype=torch.int32, device=device)
    waiting = indices
    if parallel_slots >= num_partitions:
        waiting = _without_slot(indices, memory, begins[:-1], sizes, seeds)
    home = _scaled(hash_of(waiting, seeds[0]), num_partitions)
    home, order = home.sort(stable=True)
    waiting = waiting[order]
    position = torch.arange(len(home), device=device) - torch.searchsorted(home, home)  # the atomic counter's value
    has_room = position < serial_sizes[home]
    memory[(begins[:-1] + sizes)[home[has_room]] + position[has_room]] = waiting[has_room].int()
    overflow = waiting[~has_room], home[~has_room]
    return _extracted(memory, begins, overflow)


def _without_slot(indices: Tensor, memory: Tensor, begins: Tensor, sizes: Tensor, seeds: Sequence[int]) -> Tensor:
    """Put indices into free parallel slots, trying one hash function after the other; return those that found none."""
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


def _extracted(memory: Tensor, begins: Tensor, overflow: tuple[Tensor, Tensor]) -> list[Tensor]:
    """Return the indices of each partition's slots, and of the overflow."""
    occupied = (memory != EMPTY).nonzero().squeeze(1)
    counts = torch.searchsorted(occupied, begins).diff().tolist()
    found = list(memory[occupied].long().split(counts))
    waiting, home = overflow
    if len(waiting):
        found = [torch.cat([one, waiting[home == p]]) for p, one in enumerate(found)]
    return found


def strawman_hash(indices: Tensor, num_partitions: int, num_slots: int, seed: int) -> list[Tensor]:
    """Partition indices by algorithm 3.1: an index takes its slot from whoever is there, who is lost.

    Args:
        indices: int64 [I], distinct.
        num_partitions: n.
        num_slots: of all partitions together, at least n.
        seed: of the hash function.
    """
    _require(indices, num_partitions, 1, num_slots, 0)
    require_counts(num_partitions, num_slots=num_slots)
    begins = torch.tensor(_edges(num_slots, num_partitions), device=indices.device)
    memory = torch.full((num_slots,), EMPTY, dtype=torch.int32, device=indices.device)
    memory[_scaled(hash_of(indices, _seeds(seed, 0)[0]), num_slots)] = indices.int()
    nothing = indices[:0]
    return _extracted(memory, begins, (nothing, nothing))


def partition(indices: Tensor, num_partitions: int, seed: int) -> list[Tensor]:
    """Partition indices as `hierarchical_hash` does, by counting: no slots, and the order of the indices stays."""
    order, counts = partition_order(indices, num_partitions, seed)
    return list(indices[order].split(counts))


def partition_order(indices: Tensor, num_partitions: int, seed: int) -> tuple[Tensor, list[int]]:
    """Return the places of the indices partition by partition, int64 [I], and how many each partition has.

    Algorithm 3.2 needs slots since threads must not wait for each other. One core counts the indices of each partition
    and notes the place of each; a GPU sorts the partitions' numbers, in less time than the slots take (figure 3.16).
    """
    _require(indices, num_partitions, 1, 0, 0)
    if indices.device.type == "cpu":
        order, counts = _counted(indices.numpy(), _seeds(seed, 0)[0], num_partitions)
        return torch.from_numpy(order), counts.tolist()
    home, order = partition_of(indices, num_partitions, seed).int().sort(stable=True)
    return order, torch.bincount(home, minlength=num_partitions).tolist()


_murmur = njit(cache=True)(hash_of_by_definition)  # on 64 bits, of which the lowest 32 count


@njit(cache=True)
def _counted(indices: np.ndarray, seed: int, num_partitions: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of the indices partition by partition, and how many each has."""
    home, counts = np.empty(len(indices), np.int32), np.zeros(num_partitions, np.int64)
    for place in range(len(indices)):
        home[place] = _murmur(indices[place], seed) * num_partitions >> WORD_BITS
        counts[home[place]] += 1
    next_place, order = np.zeros(num_partitions, np.int64), np.empty(len(indices), np.int64)
    for number in range(1, num_partitions):
        next_place[number] = next_place[number - 1] + counts[number - 1]
    for place in range(len(indices)):
        order[next_place[home[place]]] = place
        next_place[home[place]] += 1
    return order, counts
