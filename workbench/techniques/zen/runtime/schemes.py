"""Zen, its rivals and the dense all-reduce sum sparse gradients over real ranks, behind one interface.

All ranks of a wire call a scheme together. It returns the sum, bit for bit the same on all ranks. Each scheme sends
the messages that its paper describes.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from types import MappingProxyType

import torch
from torch import Tensor

from ..method.formats import BLOCK_ELEMENTS, hash_bitmap, nonzero_blocks
from ..method.hashing import partition_order, strawman_hash
from .exchange import Sparse, Wire, added

__all__ = [
    "SCHEMES",
    "SEED",
    "Scheme",
    "ag_sparse",
    "dense",
    "omni_reduce",
    "sparcml",
    "sparse_ps",
    "strawman",
    "torch_sparse",
    "zen",
]

SEED = 0  # default seed of h0
Scheme = Callable[[Sparse, Wire], Sparse]


def _message(gradient: Sparse) -> tuple[Tensor, Tensor]:
    """Return a message in COO: values and indices."""
    return gradient.values, gradient.indices.int()


def _read(message: tuple[Tensor, ...], domain_size: int) -> Sparse:
    values, indices = message
    return Sparse(indices.long(), values, domain_size)


def dense(gradient: Sparse, wire: Wire) -> Sparse:
    """Sum the whole tensor around a ring (Dense)."""
    return Sparse.of(wire.all_reduce(gradient.to_dense()))


def torch_sparse(gradient: Sparse, wire: Wire) -> Sparse:
    """Sum with torch's all-reduce of sparse tensors, which gloo has and NCCL lacks."""
    shape = (gradient.domain_size, *gradient.values.shape[1:])
    whole = torch.sparse_coo_tensor(gradient.indices[None], gradient.values, shape, check_invariants=False)
    return Sparse.of(wire.all_reduce_by_torch(whole.coalesce()))


def ag_sparse(gradient: Sparse, wire: Wire) -> Sparse:
    """Send all gradients to all ranks, then add them (AGsparse)."""
    arrived = wire.exchange(dict.fromkeys(range(wire.size), _message(gradient)))
    return added([_read(message, gradient.domain_size) for message in arrived.values()])


def sparcml(gradient: Sparse, wire: Wire) -> Sparse:
    """Exchange sums with ranks at distance 1, 2, 4, ...; send the dense tensor if COO is longer (SparCML)."""
    if wire.size & (wire.size - 1):
        raise ValueError(f"ranks are {wire.size}; recursive doubling needs a power of two")
    distance = 1
    while distance < wire.size:
        other = wire.rank ^ distance
        arrived = wire.exchange({other: _shorter(gradient)})[other]
        values, indices = arrived
        is_whole = len(values) > len(indices)
        theirs = Sparse.of(values) if is_whole else _read(arrived, gradient.domain_size)
        gradient = added([gradient, theirs] if wire.rank < other else [theirs, gradient])
        distance *= 2
    return gradient


def _shorter(gradient: Sparse) -> tuple[Tensor, Tensor]:
    """Return COO, or the whole tensor and no indices."""
    values, indices = _message(gradient)
    whole_bytes = values.element_size() * prod(values.shape[1:]) * gradient.domain_size
    return (gradient.to_dense(), indices[:0]) if values.nbytes + indices.nbytes > whole_bytes else (values, indices)


def sparse_ps(gradient: Sparse, wire: Wire) -> Sparse:
    """Push each of n equal index ranges to a server, which adds; pull the sums (Sparse PS)."""
    (pull,) = _pushed([gradient], wire)
    return pull()


def omni_reduce(gradient: Sparse, wire: Wire, num_streams: int = 4) -> Sparse:
    """Push nonzero blocks to the server of their range, stream by stream, and pull the sums (OmniReduce)."""
    rows = max(1, BLOCK_ELEMENTS // prod(gradient.values.shape[1:]))
    blocks = _in_blocks(gradient, rows)
    order, counts = _by_home(blocks.indices % num_streams, num_streams)  # each stream has blocks for every server
    pulls = _pushed(blocks.split(order, counts), wire)
    summed = Sparse.joined([pull() for pull in pulls])
    entries = summed.indices[:, None] * rows + torch.arange(rows, device=summed.indices.device)
    values = summed.values.flatten(0, 1)
    is_there = (entries.flatten() < gradient.domain_size) & values.flatten(1).ne(0).any(dim=1)
    shape = (-1, *gradient.values.shape[1:])
    return Sparse(entries.flatten()[is_there], values[is_there].view(shape), gradient.domain_size)


def _in_blocks(gradient: Sparse, rows: int) -> Sparse:
    """Return the nonzero blocks of `rows` entries each, [blocks, rows, elements of an entry]."""
    blocks, num_blocks = nonzero_blocks(gradient.indices, rows), -(-gradient.domain_size // rows)
    place = torch.empty(num_blocks, dtype=torch.int64, device=blocks.device)
    place[blocks] = torch.arange(len(blocks), device=blocks.device)
    filled = gradient.values.new_zeros(len(blocks), rows, prod(gradient.values.shape[1:]))
    values = gradient.values.view(-1, filled.shape[2])
    filled[place[gradient.indices // rows], gradient.indices % rows] = values
    return Sparse(blocks, filled, num_blocks)


def _by_home(home: Tensor, num_homes: int) -> tuple[Tensor, list[int]]:
    """Return the places of entries, sorted by home, and the number of entries of each home."""
    home, order = home.sort(stable=True)
    return order, torch.bincount(home, minlength=num_homes).tolist()


def _pushed(parts: Sequence[Sparse], wire: Wire) -> list[Callable[[], Sparse]]:
    """Push parts of a gradient to the servers of their ranges and start the pulls; each result waits for its sum."""
    pushes = []
    for part in parts:
        order, counts = _by_home(part.indices * wire.size // part.domain_size, wire.size)
        pushes.append(wire.begin(dict(enumerate(map(_message, part.split(order, counts))))))
    pulls = []
    for part, push in zip(parts, pushes, strict=True):
        own = added([_read(message, part.domain_size) for message in push().values()])
        pulls.append(wire.begin(dict.fromkeys(range(wire.size), _message(own))))
    return [partial(_joined, pull, part.domain_size) for part, pull in zip(parts, pulls, strict=True)]


def _joined(pull: Callable[[], dict[int, tuple[Tensor, ...]]], domain_size: int) -> Sparse:
    return Sparse.joined([_read(message, domain_size) for message in pull().values()])


def zen(gradient: Sparse, wire: Wire, seed: int = SEED, *, coo: bool = False) -> Sparse:
    """Push each hashed partition to a server, which adds; pull the sums as values and a hash bitmap (Zen).

    A server sends indices if the bitmap is longer, or always with `coo`.
    """
    bitmap = hash_bitmap(gradient.domain_size, wire.size, seed, str(gradient.indices.device))
    order, counts = partition_order(gradient.indices, wire.size, seed)
    pushed = wire.exchange(dict(enumerate(map(_message, gradient.split(order, counts)))))
    arrived = [_read(message, gradient.domain_size) for message in pushed.values()]
    places = [bitmap.places(one.indices) for one in arrived]
    size = bitmap.sizes[wire.rank]
    own = added([Sparse(at, one.values, size) for at, one in zip(places, arrived, strict=True)])
    written = bitmap.at(own.indices, wire.rank).int().view(torch.uint8)
    if len(written) >= bitmap.num_bytes(wire.rank) and not coo:
        written = bitmap.of_places(own.indices, wire.rank)
    pulled = wire.exchange(dict.fromkeys(range(wire.size), (own.values, written)))
    parts = []
    for server, (values, written) in pulled.items():
        is_bitmap = len(written) == bitmap.num_bytes(server) and not coo
        indices = bitmap.decode(written, server) if is_bitmap else _integers(written)
        parts.append(Sparse(indices, values, gradient.domain_size))
    return Sparse.joined(parts)


def _integers(written: Tensor) -> Tensor:
    """Read indices of four bytes."""
    return (written if written.storage_offset() % 4 == 0 else written.clone()).view(torch.int32).long()


def strawman(gradient: Sparse, wire: Wire, slots_per_value: float, seed: int = SEED) -> Sparse:
    """Sum the values that algorithm 3.1 keeps on each rank; values that lose a hash collision are missing."""
    width = prod(gradient.values.shape[1:])
    places = (gradient.indices[:, None] * width + torch.arange(width, device=gradient.indices.device)).flatten()
    kept = strawman_hash(places, wire.size, max(wire.size, round(slots_per_value * len(places))), seed)
    is_kept = torch.isin(places, torch.cat(kept)).view(gradient.values.shape)
    return zen(Sparse(gradient.indices, gradient.values * is_kept, gradient.domain_size), wire, seed)


SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        "Dense": dense,
        "AGsparse": ag_sparse,
        "torch, sparse": torch_sparse,
        "SparCML": sparcml,
        "Sparse PS": sparse_ps,
        "OmniReduce": omni_reduce,
        "Zen, COO": partial(zen, coo=True),
        "Zen": zen,
    }
)
"""By the names of the paper's figures, and torch's own; figure 3.18 has Zen with COO."""
