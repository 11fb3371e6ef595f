"""Sparse gradients, and their messages between the ranks of a group; all sent and received bytes are counted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from zlib import crc32

import numpy as np
import torch
import torch.distributed as dist
from numba import njit
from torch import Tensor

from workbench.parallel.groups import ProcessTensorGroup

from ..method.hashing import require_indices

__all__ = ["INDEX_BYTES", "Message", "Sparse", "Wire", "added", "set_entries"]

INDEX_BYTES = 4  # on the wire; indices are below 2^31
Message = tuple[Tensor, ...]
BITS_OF = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # integers by bytes of a number
WORD_BYTES = 8
HEAD_BYTES = 5 * WORD_BYTES
MOST_EXCHANGES = 32  # of a sum, whose lengths are remembered
MOST_SLACK_BYTES = 8192  # of room for a message that is longer than the last ones
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
            found = f"{gradient.layout} of shape {tuple(gradient.shape)}"
            raise ValueError(f"gradient is {found}; it must be dense or sparse_coo, with rows")
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
        found = bits[row]
        for column in range(rows.shape[1]):
            found |= rows[row, column]
        bits[row] = found
    return bits


@njit(cache=True, nogil=True)
def _set_places(numbers: np.ndarray) -> np.ndarray:
    """Return the places of numbers that are not 0, in one pass, and within a block without a branch."""
    places, count = np.empty(len(numbers) + 1, np.int64), 0
    in_blocks = len(numbers) // BLOCK * BLOCK
    for first in range(0, in_blocks, BLOCK):
        found = numbers[first]
        for place in range(1, BLOCK):
            found |= numbers[first + place]
        if found:
            for place in range(first, first + BLOCK):
                places[count] = place
                count += numbers[place] != 0
    for place in range(in_blocks, len(numbers)):
        places[count] = place
        count += numbers[place] != 0
    return places[:count]


class Wire:
    """Messages between this rank and the other ranks of a group; None is the default group.

    An exchange is one all-to-all of heads, each with as much of its message as there is room for, and a second one if a
    rank has more. Both ends know the room: it follows from the last lengths between them in this exchange of a sum,
    whatever is sent. A head has the length of its message, and a checksum of what the ranks must agree on.
    """

    def __init__(self, group: dist.ProcessGroup | None = None):
        self._group = ProcessTensorGroup(group)
        self.size, (self.rank,) = self._group.size, self._group.local_ranks
        self.sent_bytes = self.received_bytes = 0  # of tensors, without heads, their lengths and room that is not used
        self._device = torch.device("cpu" if dist.get_backend(group) == "gloo" else "cuda")
        self._facts: dict[str, str] = {}
        self._error = ""
        self._number = MOST_EXCHANGES  # of the next exchange in a sum
        self._last = np.zeros((MOST_EXCHANGES + 1, 2, 2, self.size), np.int64)  # two last lengths, to and from ranks

    def expect(self, facts: Mapping[str, object], error: str = "") -> None:
        """Begin a sum: its first exchange raises ValueError as `agree` does, without messages of its own."""
        self._facts, self._error, self._number = {name: str(value) for name, value in facts.items()}, error, 0

    def agree(self, facts: Mapping[str, object], error: str = "") -> None:
        """Raise ValueError on all ranks if a rank has an error, or other facts than rank 0; all ranks call it."""
        self.expect(facts, error)
        self._swap([[]] * self.size)

    def _swap(self, pieces: Sequence[Sequence[Tensor]], note: int = 0) -> tuple[list[Tensor], list[int]]:
        """Send a message to each rank, in pieces of bytes, and a number to all; return what arrives from each rank.

        Every rank gets a head of every rank, so that all find out together if ranks disagree, or have more to send.
        """
        facts, error, number = self._facts, self._error, self._number
        self._facts, self._error, self._number = {}, "", min(number + 1, MOST_EXCHANGES)
        rooms = _rooms(self._last[number].min(axis=0))
        lengths = np.array([sum(map(len, message)) for message in pieces])
        shared = [crc32(error.encode()), crc32(repr(facts).encode()), int((lengths > rooms[0]).any()), note]
        first, rest = [], [torch.empty(0, dtype=torch.uint8)]
        for message, length, room in zip(pieces, lengths.tolist(), rooms[0].tolist(), strict=True):
            if length > room:
                whole = torch.cat([*message])
                message = [whole[:room]]
                rest.append(whole[room:])
            unused = torch.zeros(max(0, room - length), dtype=torch.uint8)
            first += [_bytes_of(torch.tensor([*shared, length])), *message, unused]
        arrived = self._all_to_all(first, HEAD_BYTES + rooms)
        heads = torch.stack([one[:HEAD_BYTES].view(torch.int64) for one in arrived]).cpu().numpy()
        if heads[:, 0].any() or (heads[:, 1] != heads[0, 1]).any():
            self._refuse(facts, error)
        sizes = np.stack([lengths, heads[:, 4]])
        found = [one[HEAD_BYTES : HEAD_BYTES + size] for one, size in zip(arrived, sizes[1].tolist(), strict=True)]
        if heads[:, 2].any():
            more = self._all_to_all(rest, np.maximum(sizes - rooms, 0))
            found = [torch.cat(both) if len(both[1]) else both[0] for both in zip(found, more, strict=True)]
        if number < MOST_EXCHANGES:
            self._last[number] = self._last[number][1], sizes
        return found, heads[:, 3].tolist()

    def _all_to_all(self, pieces: Sequence[Tensor], lengths: np.ndarray) -> tuple[Tensor, ...]:
        """Send all pieces, one after the other, in these lengths [to and from, ranks]; return those that arrive."""
        outgoing, (counts, expected) = torch.cat([piece.to(self._device) for piece in pieces]), lengths.tolist()
        arrived = outgoing.new_empty(sum(expected))
        self._group.communicate(dist.all_to_all_single, arrived, outgoing, expected, counts)
        return arrived.split(expected)

    def _refuse(self, own_facts: dict[str, str], own_error: str) -> None:
        """Raise ValueError with the first rank that has an error, or other facts than rank 0."""
        told: list[tuple[str, dict[str, str]]] = [("", {})] * self.size
        dist.all_gather_object(told, (own_error, own_facts), self._group.process_group)
        for rank, (error, _) in enumerate(told):
            if error:
                raise ValueError(f"rank {rank}: {error}")
        for rank, (_, facts) in enumerate(told):
            for name in told[0][1] | facts:
                one, other = told[0][1].get(name, "missing"), facts.get(name, "missing")
                if one != other:
                    raise ValueError(f"{name} is {other} on rank {rank} and {one} on rank 0; it must be one")

    def exchange(self, outgoing: Mapping[int, Message]) -> dict[int, Message]:
        """Send messages to ranks, and return the messages received, by rank in ascending order; all ranks call it.

        Messages have the same dtypes and trailing shapes on all ranks. A message to this rank itself is not sent.
        """
        model = next(iter(outgoing.values()))
        pieces: list[list[Tensor]] = [[] for _ in range(self.size)]
        for to in outgoing.keys() - {self.rank}:
            lengths = torch.tensor([len(part) for part in outgoing[to]], device=model[0].device)
            pieces[to] = [_bytes_of(part) for part in (lengths, *outgoing[to])]
            self.sent_bytes += sum(part.nbytes for part in outgoing[to])
        found = {}
        for source, whole in enumerate(self._swap(pieces)[0]):
            if source == self.rank and source in outgoing:
                found[source] = outgoing[source]
            elif len(whole):
                found[source] = _unpacked(whole.to(model[0].device), model)
                self.received_bytes += sum(part.nbytes for part in found[source])
        return found

    def all_reduce_(self, whole: Tensor) -> Tensor:
        """Sum a dense tensor over the ranks in place; a ring sends 2(n - 1)/n of its bytes."""
        if self._facts:
            self._swap([[]] * self.size)
        self._group.communicate(dist.all_reduce, whole)
        self._count(2 * (self.size - 1) * whole.nbytes // self.size)
        return whole

    def all_reduce_by_torch(self, gradient: Tensor) -> Tensor:
        """Return the sum of a sparse tensor by gloo's all-reduce, a ring that sends values and 8-byte indices."""
        total, (_, counts) = gradient.clone(), self._swap([[]] * self.size, gradient._nnz())
        self._group.communicate(dist.all_reduce, total)
        entry = gradient.indices().element_size() + _entry_bytes(gradient.values())
        self.sent_bytes += entry * (sum(counts) - counts[(self.rank + 1) % self.size])
        self.received_bytes += entry * (sum(counts) - counts[self.rank])
        return total.coalesce()

    def _count(self, num_bytes: int) -> None:
        self.sent_bytes += num_bytes
        self.received_bytes += num_bytes


def _entry_bytes(part: Tensor) -> int:
    """Return the bytes of one entry of a tensor's first dimension."""
    return part.element_size() * prod(part.shape[1:])


def _rooms(lengths: np.ndarray) -> np.ndarray:
    """Return an eighth more, in whole words: most messages fit that are of similar lengths."""
    return -(-(lengths + np.minimum(lengths // 8, MOST_SLACK_BYTES)) // WORD_BYTES) * WORD_BYTES


def _bytes_of(part: Tensor) -> Tensor:
    return part.contiguous().flatten().view(torch.uint8)


def _unpacked(whole: Tensor, model: Message) -> Message:
    """Read the bytes of a message whose tensors are like those of another message, but for their lengths."""
    lengths = torch.empty(0, dtype=torch.int64)
    head = len(model) * lengths.element_size()
    counts = _typed(whole[:head], lengths, len(model)).tolist()
    sizes = [count * _entry_bytes(part) for part, count in zip(model, counts, strict=True)]
    return tuple(_typed(*one) for one in zip(whole[head:].split(sizes), model, counts, strict=True))


def _typed(piece: Tensor, part: Tensor, count: int) -> Tensor:
    """Read bytes as entries like those of a tensor."""
    aligned = piece if piece.storage_offset() % part.element_size() == 0 else piece.clone()
    return aligned.view(part.dtype).view(count, *part.shape[1:])
