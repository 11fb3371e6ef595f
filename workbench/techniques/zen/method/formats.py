"""Formats for the indices of a sparse gradient, and their bytes: hash bitmap (algorithm 3.3), bitmap, COO, blocks."""

from functools import cached_property, lru_cache

import numpy as np
import torch
from numba import njit
from torch import Tensor

from workbench.checks import require_counts

from .hashing import LARGEST_INDEX, partition, partition_of, require_indices

__all__ = ["BLOCK_ELEMENTS", "FORMATS", "HashBitmap", "hash_bitmap", "index_bytes", "nonzero_blocks"]

BITS = 8  # bits of a byte
INDEX_BYTES = 4
BLOCK_ELEMENTS = 256  # OmniReduce
FORMATS = ("hash bitmap", "bitmap", "COO", "tensor blocks")
KEPT = 64  # hash bitmaps, one for each size of a model's tables; each has 8 bytes an index


class HashBitmap:
    """A bitmap for each partition, with one bit for each of its indices: 1 if the gradient there is not zero.

    Args:
        domain_size: |G|, the number of indices.
        num_partitions: n.
        seed: seed of h0.

    Source: algorithm 3.3. The indices of each partition are computed and sorted once.
    """

    def __init__(self, domain_size: int, num_partitions: int, seed: int, device: torch.device | str = "cpu"):
        require_counts(1, domain_size=domain_size, num_partitions=num_partitions)
        if domain_size > LARGEST_INDEX + 1:
            raise ValueError(f"domain_size is {domain_size}; it must be at most {LARGEST_INDEX + 1}")
        self.domain_size, self.num_partitions, self.seed, self.device = domain_size, num_partitions, seed, device
        partitions = partition(torch.arange(domain_size, device=device), num_partitions, seed)
        self._members = tuple(members.int() for members in partitions)
        self.sizes = tuple(map(len, partitions))  # |I_p| of each partition

    @cached_property
    def _place(self) -> Tensor:
        """Place of each index in its partition, int32 [|G|]."""
        place = torch.empty(self.domain_size, dtype=torch.int32, device=self.device)
        for members in self._members:
            place[members.long()] = torch.arange(len(members), dtype=torch.int32, device=self.device)
        return place

    def num_bytes(self, partition: int | None = None) -> int:
        """Return the bytes of a partition's bitmap, or of all bitmaps: |G| / 8, with their last bytes padded."""
        if partition is None:
            return sum(map(self.num_bytes, range(self.num_partitions)))
        return -(-self.sizes[self._known(partition)] // BITS)

    def encode(self, indices: Tensor, partition: int) -> Tensor:
        """Return a partition's bitmap, uint8 [num_bytes(partition)], the first index in the lowest bit.

        Args:
            indices: int64 [I], in any order, all in the partition by h0; equal indices set one bit.
            partition: number of the partition.

        Raises:
            ValueError: if an index is out of range or in another partition.
        """
        require_indices(indices, self.domain_size)
        homes = partition_of(indices, self.num_partitions, self.seed)
        if len(strangers := indices[homes != self._known(partition)]):
            raise ValueError(f"indices hold {int(strangers[0])}, which is not of partition {partition}")
        return self.of_places(self.places(indices), partition)

    def places(self, indices: Tensor) -> Tensor:
        """Return the place of each index in its partition, int64 [I]."""
        return self._place.index_select(0, indices).long()

    def of_places(self, places: Tensor, partition: int) -> Tensor:
        """Return the bitmap of a partition for places instead of indices; see `encode`."""
        num_bytes = self.num_bytes(partition)
        if places.device.type == "cpu":
            return torch.from_numpy(_bitmap_of(places.numpy(), num_bytes))
        is_set = torch.zeros(num_bytes * BITS, dtype=torch.uint8, device=self.device).index_fill_(0, places, 1)
        shifts = torch.arange(BITS, dtype=torch.uint8, device=self.device)
        return (is_set.view(-1, BITS) << shifts).sum(dim=1, dtype=torch.uint8)

    def at(self, places: Tensor, partition: int) -> Tensor:
        """Return the indices at places of a partition, int64 [I]."""
        return self._members[partition].index_select(0, places).long()

    def decode(self, bitmap: Tensor, partition: int) -> Tensor:
        """Return the indices of a bitmap, int64 [I], ascending."""
        if bitmap.dtype != torch.uint8 or bitmap.shape != (self.num_bytes(partition),):
            kind = f"{bitmap.dtype} {tuple(bitmap.shape)}"
            raise ValueError(f"bitmap is {kind}; of partition {partition} it is uint8 ({self.num_bytes(partition)},)")
        if bitmap.device.type == "cpu":
            return torch.from_numpy(_members_of(bitmap.numpy(), self._members[partition].numpy()))
        shifts = torch.arange(BITS, dtype=torch.uint8, device=bitmap.device)
        return self.at((bitmap[:, None] >> shifts & 1).flatten().nonzero().squeeze(1), partition)

    def _known(self, partition: int) -> int:
        if not 0 <= partition < self.num_partitions:
            raise ValueError(f"partition is {partition}; it must be in 0 .. {self.num_partitions - 1}")
        return partition


@lru_cache(KEPT)
def hash_bitmap(domain_size: int, num_partitions: int, seed: int, device: str = "cpu") -> HashBitmap:
    """Return a `HashBitmap`; equal arguments share one object, of the last `KEPT`."""
    return HashBitmap(domain_size, num_partitions, seed, device)


@njit(cache=True, nogil=True)
def _bitmap_of(places: np.ndarray, num_bytes: int) -> np.ndarray:
    bitmap = np.zeros(num_bytes, np.uint8)
    for place in places:
        bitmap[place // BITS] |= np.uint8(1 << place % BITS)
    return bitmap


@njit(cache=True, nogil=True)
def _members_of(bitmap: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Return the members whose bits are set, int64; each is written, and kept if its bit is set, without a branch."""
    kept, count = np.empty(len(members) + 1, np.int64), 0
    num_whole = len(members) // BITS  # bytes
    for number in range(num_whole):
        byte = bitmap[number]
        if byte:
            for bit in range(BITS):
                kept[count] = members[number * BITS + bit]
                count += byte >> bit & 1
    for place in range(num_whole * BITS, len(members)):
        kept[count] = members[place]
        count += bitmap[num_whole] >> (place - num_whole * BITS) & 1
    return kept[:count]


def nonzero_blocks(indices: Tensor, block_elements: int = BLOCK_ELEMENTS) -> Tensor:
    """Return the numbers of the blocks that contain an index, int64, ascending."""
    return torch.unique(indices // block_elements)


def index_bytes(written: str, num_nonzero: int, domain_size: int, num_partitions: int) -> float:
    """Return the bytes of all partitions' indices, as one rank receives them in Pull.

    Args:
        written: a format of `FORMATS` except tensor blocks, whose bytes depend on the indices themselves.
        num_nonzero: number of indices of all partitions.
        domain_size: |G|.
        num_partitions: n. A plain bitmap of a hashed partition has a bit for every index of the gradient.

    Source: section 3.3.4 and theorem 3.3.
    """
    if written == "COO":
        return INDEX_BYTES * num_nonzero
    if written in ("bitmap", "hash bitmap"):
        return domain_size / BITS * (num_partitions if written == "bitmap" else 1)
    raise ValueError(f"written is {written!r}; it must be one of {', '.join(FORMATS[:-1])}")
