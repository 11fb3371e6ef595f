"""Sparse gradients, and their messages between the ranks of a group; all sent and received bytes are counted."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from zlib import crc32

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from workbench.parallel.groups import ProcessTensorGroup
from workbench.parallel.moves import Shape, moves_of

from ..method.hashing import require_indices

__all__ = ["INDEX_BYTES", "Sparse", "Wire", "added"]

INDEX_BYTES = 4  # on the wire; indices are below 2^31


@dataclass(frozen=True, slots=True)
class Sparse:
    """The non-zero gradients of a tensor whose first dimension has `domain_size` entries."""

    indices: Tensor  # int64 [I], distinct
    values: Tensor  # [I, ...], the entries at the indices
    domain_size: int  # |G|

    @classmethod
    def of(cls, gradient: Tensor) -> "Sparse":
        """Take the non-zero entries of a dense tensor, or all entries of a sparse tensor; equal indices are summed.

        An entry is a number of a tensor with one dimension, else a row. NaN is not zero.
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
        is_nonzero = gradient != 0 if gradient.dim() == 1 else gradient.flatten(1).ne(0).any(dim=1)
        indices = _places(is_nonzero)
        return cls(indices, gradient.index_select(0, indices), len(gradient))

    def like(self, gradient: Tensor) -> Tensor:
        """Return these gradients in the layout of a tensor."""
        if gradient.layout == torch.sparse_coo:
            shape = (self.domain_size, *self.values.shape[1:])
            indices, order = self.indices.sort()
            parts = indices[None], self.values[order], shape
            return torch.sparse_coo_tensor(*parts, is_coalesced=True, check_invariants=False)
        return self.to_dense()

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
    """Add gradients of one domain in the given order; the indices of the sum ascend."""
    is_there = torch.zeros(parts[0].domain_size, dtype=torch.bool, device=parts[0].indices.device)
    for part in parts:
        is_there.index_fill_(0, part.indices, True)
    union = _places(is_there)
    place = torch.empty(len(is_there), dtype=torch.int32, device=union.device)
    place[union] = torch.arange(len(union), dtype=torch.int32, device=union.device)
    total = parts[0].values.new_zeros((len(union), *parts[0].values.shape[1:]))
    for part in parts:
        total.index_add_(0, place.index_select(0, part.indices), part.values)
    return Sparse(union, total, parts[0].domain_size)


def _places(mask: Tensor) -> Tensor:
    """Return the set places of a mask, int64, ascending; on a CPU NumPy is several times as fast as torch."""
    return torch.from_numpy(np.flatnonzero(mask.numpy())) if mask.device.type == "cpu" else mask.nonzero().squeeze(1)


class Wire:
    """Messages between this rank and the other ranks of a group; None is the default group.

    A message is a tuple of tensors with the same dtypes and trailing shapes on all ranks. Their lengths are sent first.
    """

    def __init__(self, group: dist.ProcessGroup | None = None):
        self._group = ProcessTensorGroup(group)
        self._moves = moves_of(self._group)
        self.size, (self.rank,) = self._group.size, self._group.local_ranks
        self.sent_bytes = self.received_bytes = 0  # without the lengths
        self._on_cpu = dist.get_backend(group) == "gloo"

    def agree(self, facts: Mapping[str, object], error: str = "") -> None:
        """Raise ValueError on all ranks if a rank has an error, or other facts than rank 0; all ranks call it."""
        own = torch.tensor([crc32(text.encode()) for text in (error, *map(str, facts.values()))])
        heads = self._gathered(own)
        if (heads == heads[0]).all() and not heads[0, 0]:
            return
        told: list[tuple[str, dict[str, str]]] = [("", {})] * self.size
        dist.all_gather_object(told, (error, {k: str(v) for k, v in facts.items()}), self._group.process_group)
        for rank, (text, _) in enumerate(told):
            if text:
                raise ValueError(f"rank {rank}: {text}")
        for rank, (_, theirs) in enumerate(told):
            for name, value in told[0][1].items():
                if theirs[name] != value:
                    raise ValueError(f"{name} is {theirs[name]} on rank {rank} and {value} on rank 0; it must be one")

    def _gathered(self, own: Tensor) -> Tensor:
        """Gather a small tensor from every rank, [ranks, ...]."""
        return self._moves.gather([own if self._on_cpu else own.cuda()]).wait().cpu()

    def exchange(self, outgoing: Mapping[int, tuple[Tensor, ...]]) -> dict[int, tuple[Tensor, ...]]:
        """Send messages to ranks, and return the messages received, by rank in ascending order; all ranks call it."""
        return self.begin(outgoing)()

    def begin(self, outgoing: Mapping[int, tuple[Tensor, ...]]) -> Callable[[], dict[int, tuple[Tensor, ...]]]:
        """Start an exchange; the returned function waits for it. A message to this rank itself is not sent."""
        lengths = self._lengths(outgoing)
        model = next(iter(outgoing.values()))
        expected = {source: counts[self.rank] for source, counts in enumerate(lengths) if source != self.rank}
        expected = {source: counts for source, counts in expected.items() if counts[0] >= 0}
        shapes = {source: self._shape(model, counts) for source, counts in expected.items()}
        sent = {to: self._packed(message) for to, message in outgoing.items() if to != self.rank}
        self.sent_bytes += sum(len(message) for message in sent.values())
        self.received_bytes += sum(shape.sizes[0] for shape in shapes.values())
        arrival = self._moves.exchange(  # an empty message is not sent
            [{to: message for to, message in sent.items() if len(message)}],
            [{source: shape for source, shape in shapes.items() if shape.sizes[0]}],
        )

        def wait() -> dict[int, tuple[Tensor, ...]]:
            (arrived,) = arrival.wait()
            found = {source: self._unpacked(arrived.get(source), model, counts) for source, counts in expected.items()}
            own = {to: message for to, message in outgoing.items() if to == self.rank}
            return dict(sorted((found | own).items()))

        return wait

    def _lengths(self, outgoing: Mapping[int, tuple[Tensor, ...]]) -> list[list[list[int]]]:
        """Return the lengths of all messages, [from, to, parts]; -1 if there is no message."""
        nothing = [-1] * len(next(iter(outgoing.values())))
        own = [[len(part) for part in outgoing[to]] if to in outgoing else nothing for to in range(self.size)]
        return self._gathered(torch.tensor(own)).tolist()

    def _packed(self, message: tuple[Tensor, ...]) -> Tensor:
        whole = torch.cat([part.contiguous().flatten().view(torch.uint8) for part in message])
        return whole.cpu() if self._on_cpu else whole

    def _shape(self, model: tuple[Tensor, ...], counts: Sequence[int]) -> Shape:
        num_bytes = sum(count * _entry_bytes(part) for part, count in zip(model, counts, strict=True))
        device = torch.device("cpu") if self._on_cpu else model[0].device
        return Shape(sizes=(num_bytes,), dtype=torch.uint8, device=device)

    def _unpacked(self, whole: Tensor | None, model: tuple[Tensor, ...], counts: Sequence[int]) -> tuple[Tensor, ...]:
        if whole is None:
            return tuple(part[:0] for part in model)
        sizes = [count * _entry_bytes(part) for part, count in zip(model, counts, strict=True)]
        pieces = zip(whole.to(model[0].device).split(sizes), model, counts, strict=True)
        return tuple(_typed(*one) for one in pieces)

    def all_reduce(self, whole: Tensor) -> Tensor:
        """Return the sum of a dense tensor over the ranks; a ring sends 2(n - 1)/n of its bytes."""
        total = whole.clone()
        self._group.communicate(dist.all_reduce, total)
        self._count(2 * (self.size - 1) * total.nbytes // self.size)
        return total

    def all_reduce_by_torch(self, gradient: Tensor) -> Tensor:
        """Return the sum of a sparse tensor by gloo's all-reduce, a ring that sends values and 8-byte indices."""
        total, counts = gradient.clone(), self._gathered(torch.tensor(gradient._nnz())).tolist()
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


def _typed(piece: Tensor, part: Tensor, count: int) -> Tensor:
    """Read bytes as entries like those of a tensor."""
    aligned = piece if piece.storage_offset() % part.element_size() == 0 else piece.clone()
    return aligned.view(part.dtype).view(count, *part.shape[1:])
