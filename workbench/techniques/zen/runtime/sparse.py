"""Sparse gradients: what a dense tensor has that is not zero, and sums of such gradients with a dense sum's bits."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from numba import njit
from torch import Tensor

from ..method.hashing import require_indices

__all__ = ["INDEX_BYTES", "Sparse", "added", "set_entries"]

INDEX_BYTES = 4  # on the wire; indices are below 2^31
BITS_OF = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # integers by bytes of a number
BLOCK = 64  # entries that are looked at together; without a number that is not zero they are passed over


@dataclass(frozen=True, slots=True)
class Sparse:
    """The non-zero gradients of a tensor whose first dimension has `domain_size` entries."""

    indices: Tensor  # int64 [I], distinct
    values: Tensor  # [I, ...], the entries at the indices
    domain_size: int  # |G|

    @classmethod
    def of(cls, gradient: Tensor) -> "Sparse":
        """Take the non-zero entries of a dense tensor, or all entries of a sparse tensor; equal indices are summed.

        An entry is a number of a tensor with one dimension, else a row. NaN is not zero, and neither is -0.0: only a
        number without any bit is left out.
        """
        if gradient.layout not in (torch.sparse_coo, torch.strided) or gradient.dim() == 0 or not len(gradient):
            rule = "it must be dense or sparse_coo, with rows"
            raise ValueError(f"gradient is {gradient.layout} of shape {tuple(gradient.shape)}; {rule}")
        if gradient.layout == torch.sparse_coo:
            if gradient.sparse_dim() != 1:
                raise ValueError(f"gradient has {gradient.sparse_dim()} sparse dimensions; it must have 1")
            require_indices(gradient._indices()[0], len(gradient))
            gradient = gradient.coalesce()
            return cls(gradient.indices()[0], gradient.values(), len(gradient))
        indices = set_entries(gradient)
        return cls(indices, gradient.index_select(0, indices), len(gradient))

    def to_sparse(self) -> Tensor:
        """Return these gradients as torch stores sparse tensors."""
        shape = (self.domain_size, *self.values.shape[1:])
        indices, order = self.indices.sort()
        parts = indices[None], self.values[order], shape
        return torch.sparse_coo_tensor(*parts, is_coalesced=True, check_invariants=False)

    def to_dense(self) -> Tensor:
        """Return the whole tensor."""
        whole = self.values.new_zeros((self.domain_size, *self.values.shape[1:]))
        return whole.index_copy_(0, self.indices, self.values)

    def split(self, order: Tensor, counts: Sequence[int]) -> list["Sparse"]:
        """Reorder these gradients, then cut them into parts of the given sizes."""
        ordered = (self.indices.index_select(0, order), self.values.index_select(0, order))
        parts = zip(*(whole.split(counts) for whole in ordered), strict=True)
        return [Sparse(indices, values, self.domain_size) for indices, values in parts]

    @classmethod
    def joined(cls, parts: Sequence["Sparse"]) -> "Sparse":
        """Join parts that have no index in common."""
        indices, values = (torch.cat([getattr(part, name) for part in parts]) for name in ("indices", "values"))
        return cls(indices, values, parts[0].domain_size)


def added(parts: Sequence[Sparse]) -> Sparse:
    """Add gradients of one domain in the given order; the indices of the sum ascend.

    The bits are those of dense tensors, in which a missing entry is 0.0: a sum is -0.0 only if all parts hold -0.0.
    """
    counts = torch.zeros(parts[0].domain_size, dtype=torch.int16, device=parts[0].indices.device)
    for part in parts:
        counts.index_add_(0, part.indices, counts.new_ones(1).expand(len(part.indices)))
    union = set_entries(counts)
    place = torch.empty(len(counts), dtype=torch.int32, device=union.device)
    place[union] = torch.arange(len(union), dtype=torch.int32, device=union.device)
    values = parts[0].values
    in_all = counts.index_select(0, union).eq(len(parts)).view(-1, *(1 for _ in values.shape[1:]))
    total = torch.where(in_all, values.new_tensor(-0.0), values.new_tensor(0.0)).expand(-1, *values.shape[1:]).clone()
    for part in parts:
        total.index_add_(0, place.index_select(0, part.indices), part.values)
    return Sparse(union, total, parts[0].domain_size)


def set_entries(tensor: Tensor) -> Tensor:
    """Return the numbers of the entries that have a bit set, int64, ascending."""
    bits = tensor.contiguous().view(BITS_OF[tensor.element_size()]).view(len(tensor), prod(tensor.shape[1:]))
    if bits.device.type == "cpu":
        return torch.from_numpy(_set_places(bits[:, 0].numpy() if bits.shape[1] == 1 else _ored(bits.numpy())))
    return bits.ne(0).any(dim=1).nonzero().squeeze(1)


@njit(cache=True, nogil=True)
def _ored(rows: np.ndarray) -> np.ndarray:
    """Return all bits of each row [rows, columns], [rows]."""
    bits = np.zeros(len(rows), rows.dtype)
    for row in range(rows.shape[0]):
        row_bits = bits[row]
        for column in range(rows.shape[1]):
            row_bits |= rows[row, column]
        bits[row] = row_bits
    return bits


@njit(cache=True, nogil=True)
def _set_places(numbers: np.ndarray) -> np.ndarray:
    """Return the places of numbers that are not 0, in one pass, and within a block without a branch."""
    places, count = np.empty(len(numbers) + 1, np.int64), 0
    in_blocks = len(numbers) // BLOCK * BLOCK
    for first in range(0, in_blocks, BLOCK):
        block_bits = numbers[first]
        for place in range(1, BLOCK):
            block_bits |= numbers[first + place]
        if block_bits:
            for place in range(first, first + BLOCK):
                places[count] = place
                count += numbers[place] != 0
    for place in range(in_blocks, len(numbers)):
        places[count] = place
        count += numbers[place] != 0
    return places[:count]
