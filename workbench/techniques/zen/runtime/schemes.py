"""Zen, its rivals and the dense all-reduce sum sparse gradients over real ranks, behind one interface.

All ranks of a wire call a scheme together. It returns the sum, bit for bit the same on all ranks. Each scheme sends
the messages that its paper describes.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from workbench.parallel.wire import Message, Wire

from ..method.formats import BLOCK_ELEMENTS, hash_bitmap, nonzero_blocks
from ..method.hashing import partition_order, strawman_hash
from .sparse import INDEX_BYTES, Sparse, added, set_entries

__all__ = ["SCHEMES", "SEED", "Messages", "Scheme", "Sum", "ag_sparse", "dense", "omni_reduce", "sparcml", "sparse_ps"]
__all__ += ["strawman", "torch_sparse", "zen"]

SEED = 0  # default seed of h0
Sum = Callable[[Sparse, Wire], Sparse]
Messages = Mapping[int, Message]  # by rank
Steps = Generator[Messages, Messages, Sparse]  # yields what this rank sends, gets what arrives, returns the sum


@dataclass(frozen=True)
class Scheme:
    """A scheme, called with a gradient and a wire; its steps yield the messages to ranks and get those that arrive."""

    steps: Callable[..., Steps]  # of a gradient, a wire and options

    def __call__(self, gradient: Sparse, wire: Wire, **options: Any) -> Sparse:
        return self.together([gradient], wire, **options)[0]

    def together(self, gradients: Sequence[Sparse], wire: Wire, **options: Any) -> list[Sparse]:
        """Sum several gradients; what they send in the same step leaves as one message."""
        running = [self.steps(gradient, wire, **options) for gradient in gradients]
        arrived: list[Messages | None] = [None] * len(running)
        totals: list[Sparse] = []
        while len(totals) < len(running):
            outgoing: list[Messages] = []
            for steps, messages in zip(running, arrived, strict=True):
                try:
                    outgoing.append(next(steps) if messages is None else steps.send(messages))
                except StopIteration as end:
                    totals.append(end.value)
            if outgoing:
                ranks, num_parts = outgoing[0], len(next(iter(outgoing[0].values())))
                whole = wire.exchange({to: tuple(part for sent in outgoing for part in sent[to]) for to in ranks})
                cuts = range(0, num_parts * len(running), num_parts)
                arrived = [{of: parts[cut : cut + num_parts] for of, parts in whole.items()} for cut in cuts]
        return totals


def _message(gradient: Sparse) -> tuple[Tensor, Tensor]:
    """Return a message in COO: values and indices."""
    return gradient.values, gradient.indices.int()


def _read(message: Message, domain_size: int) -> Sparse:
    values, indices = message
    return Sparse(indices.long(), values, domain_size)


def dense(gradient: Sparse, wire: Wire) -> Sparse:
    """Sum the whole tensor around a ring (Dense)."""
    return Sparse.of(wire.all_reduce_(gradient.to_dense()))


def torch_sparse(gradient: Sparse, wire: Wire) -> Sparse:
    """Sum with torch's all-reduce of sparse tensors, which gloo has and NCCL lacks."""
    return Sparse.of(wire.all_reduce_by_torch(gradient.to_sparse()))


@Scheme
def ag_sparse(gradient: Sparse, wire: Wire) -> Steps:
    """Send all gradients to all ranks, then add them (AGsparse)."""
    arrived = yield dict.fromkeys(range(wire.size), _message(gradient))
    return added([_read(message, gradient.domain_size) for message in arrived.values()])


@Scheme
def sparcml(gradient: Sparse, wire: Wire) -> Steps:
    """Exchange sums with ranks at distance 1, 2, 4, ...; send the dense tensor if COO is longer (SparCML)."""
    if wire.size & (wire.size - 1):
        raise ValueError(f"ranks are {wire.size}; recursive doubling needs a power of two")
    distance = 1
    while distance < wire.size:
        other = wire.rank ^ distance
        values, indices = (yield {other: _shorter(gradient)})[other]
        is_whole = len(values) > len(indices)
        received = Sparse.of(values) if is_whole else _read((values, indices), gradient.domain_size)
        gradient = added([gradient, received] if wire.rank < other else [received, gradient])
        distance *= 2
    return gradient


def _shorter(gradient: Sparse) -> tuple[Tensor, Tensor]:
    """Return COO, or the whole tensor and no indices."""
    values, indices = _message(gradient)
    whole_bytes = values.element_size() * prod(values.shape[1:]) * gradient.domain_size
    return (gradient.to_dense(), indices[:0]) if values.nbytes + indices.nbytes > whole_bytes else (values, indices)


@Scheme
def sparse_ps(gradient: Sparse, wire: Wire) -> Steps:
    """Push each of n equal index ranges to a server, which adds; pull the sums (Sparse PS)."""
    home, order = (gradient.indices * wire.size // gradient.domain_size).sort(stable=True)
    counts = torch.bincount(home, minlength=wire.size).tolist()
    pushed = yield dict(enumerate(map(_message, gradient.split(order, counts))))
    summed = added([_read(message, gradient.domain_size) for message in pushed.values()])
    pulled = yield dict.fromkeys(range(wire.size), _message(summed))
    return Sparse.joined([_read(message, gradient.domain_size) for message in pulled.values()])


@Scheme
def omni_reduce(gradient: Sparse, wire: Wire) -> Steps:
    """Push nonzero blocks to the server of their range, which adds; pull the sums (OmniReduce)."""
    rows = max(1, BLOCK_ELEMENTS // max(1, prod(gradient.values.shape[1:])))
    summed = yield from sparse_ps.steps(_in_blocks(gradient, rows), wire)
    entries = (summed.indices[:, None] * rows + torch.arange(rows, device=summed.indices.device)).flatten()
    values = summed.values.flatten(0, 1)
    there = set_entries(values)
    there = there[entries[there] < gradient.domain_size]
    return Sparse(entries[there], values[there].view(len(there), *gradient.values.shape[1:]), gradient.domain_size)


def _in_blocks(gradient: Sparse, rows: int) -> Sparse:
    """Return the nonzero blocks of `rows` entries each, [blocks, rows, elements of an entry]."""
    blocks, num_blocks = nonzero_blocks(gradient.indices, rows), -(-gradient.domain_size // rows)
    place = torch.empty(num_blocks, dtype=torch.int64, device=blocks.device)
    place[blocks] = torch.arange(len(blocks), device=blocks.device)
    filled = gradient.values.new_zeros(len(blocks), rows, prod(gradient.values.shape[1:]))
    values = gradient.values.reshape(len(gradient.indices), filled.shape[2])
    filled[place[gradient.indices // rows], gradient.indices % rows] = values
    return Sparse(blocks, filled, num_blocks)


@Scheme
def zen(gradient: Sparse, wire: Wire, seed: int = SEED, *, coo: bool = False) -> Steps:
    """Push each hashed partition to a server, which adds; pull the sums as values and a hash bitmap (Zen).

    A server sends indices if the bitmap is longer, or always with `coo`.
    """
    bitmap = hash_bitmap(gradient.domain_size, wire.size, seed, str(gradient.indices.device))
    order, counts = partition_order(gradient.indices, wire.size, seed)
    pushed = yield dict(enumerate(map(_message, gradient.split(order, counts))))
    arrived = [_read(message, gradient.domain_size) for message in pushed.values()]
    places = [bitmap.places(part.indices) for part in arrived]
    size = bitmap.sizes[wire.rank]
    summed = added([Sparse(at, part.values, size) for at, part in zip(places, arrived, strict=True)])
    written = bitmap.at(summed.indices, wire.rank).int().view(torch.uint8)
    if len(written) >= bitmap.num_bytes(wire.rank) and not coo:
        written = bitmap.of_places(summed.indices, wire.rank)
    pulled = yield dict.fromkeys(range(wire.size), (summed.values, written))
    parts = []
    for server, (values, written) in pulled.items():
        is_bitmap = len(written) == bitmap.num_bytes(server) and not coo
        if is_bitmap:
            indices = bitmap.decode(written, server)
        else:
            aligned = written if written.storage_offset() % INDEX_BYTES == 0 else written.clone()
            indices = aligned.view(torch.int32).long()
        parts.append(Sparse(indices, values, gradient.domain_size))
    return Sparse.joined(parts)


def strawman(gradient: Sparse, wire: Wire, slots_per_value: float, seed: int = SEED) -> Sparse:
    """Sum the values that algorithm 3.1 keeps on each rank; values that lose a hash collision are missing."""
    width = prod(gradient.values.shape[1:])
    places = (gradient.indices[:, None] * width + torch.arange(width, device=gradient.indices.device)).flatten()
    kept = strawman_hash(places, wire.size, max(wire.size, round(slots_per_value * len(places))), seed)
    is_kept = torch.isin(places, torch.cat(kept)).view(gradient.values.shape)
    return zen(Sparse(gradient.indices, gradient.values * is_kept, gradient.domain_size), wire, seed=seed)


SCHEMES: Mapping[str, Sum] = MappingProxyType(
    {
        "Dense": dense,
        "AGsparse": ag_sparse,
        "torch, sparse": torch_sparse,
        "SparCML": sparcml,
        "Sparse PS": sparse_ps,
        "OmniReduce": omni_reduce,
        "Zen, COO": Scheme(partial(zen.steps, coo=True)),
        "Zen": zen,
    }
)
"""By the names of the paper's figures, and torch's own; figure 3.18 has Zen with COO."""
