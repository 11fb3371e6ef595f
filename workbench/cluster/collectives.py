"""Collectives: the bytes each rank sends, gloo's headers, and the seconds, for the algorithms that backends really use.

The alpha-beta model: `num_latencies * latency + bytes_in_series / bandwidth`. Every rank has its own full-duplex link;
reductions and copies cost nothing. `message_bytes` is the size of the tensor that the caller passes in on each rank:
the whole tensor for all-reduce, broadcast and send, the rank's own part for all-gather, the tensor with n equal parts
for reduce-scatter and all-to-all. Broadcasts start at rank 0; sends go from rank 0 to rank 1.

Source: R. Thakur, R. Rabenseifner, W. Gropp, IJHPCA 19 (2005), sections 3 and 4; P. Sanders, J. Speck, J. L. Traeff,
Parallel Computing 35 (2009); the sources of gloo and of PyTorch's gloo process group; NCCL's release notes 2.4.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from workbench.checks import require_counts, require_not_negative
from workbench.cluster.machines import Link

__all__ = ["Algorithm", "Backend", "Collective", "CollectiveBytes", "CollectiveCost", "algorithm_of"]
__all__ += ["collective_bytes", "collective_cost", "collective_time_s", "gloo_header_bytes"]


class Collective(Enum):
    """A collective operation, or a send."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    BROADCAST = "broadcast"
    ALL_TO_ALL = "all-to-all"
    SEND = "send"


class Algorithm(Enum):
    """The way in which a collective is carried out."""

    RING = "parts travel round a ring"
    DOUBLE_TREE = "halves of the message travel up and down two complementary trees"
    BINOMIAL = "every rank that has the message sends it on along a binomial tree"
    FULL_ALL_REDUCE = "a ring all-reduce of everything, of which each rank keeps its part"
    PAIRWISE = "every pair of ranks exchanges its parts"
    DIRECT = "one rank sends to another"


class Backend(Enum):
    """The library that carries out a collective."""

    GLOO = "gloo"
    NCCL = "nccl"


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveBytes:
    """Payload of one collective, headers apart."""

    by_rank: tuple[int, ...]  # bytes that each rank sends

    @property
    def total(self) -> int:
        """Bytes that all ranks send: what crosses the wire."""
        return sum(self.by_rank)

    @property
    def most(self) -> int:
        """Bytes that the busiest rank sends."""
        return max(self.by_rank)


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveCost:
    """The two factors of the alpha-beta model."""

    num_latencies: int  # number of latencies in series
    bytes_in_series: float  # bytes that pass the slowest way one after the other

    def time_s(self, link: Link) -> float:
        """Return num_latencies * latency + bytes_in_series / bandwidth, in seconds."""
        return self.num_latencies * link.latency_s + self.bytes_in_series / link.bandwidth_bytes_per_s


def algorithm_of(backend: Backend, collective: Collective) -> Algorithm:
    """Return the algorithm that a backend uses for a large message.

    gloo: ring all-reduce (reduce-scatter, then all-gather) and all-gather, binomial broadcast; reduce-scatter is an
    all-reduce of which the rank keeps its part. NCCL: rings; it turns to DOUBLE_TREE for small all-reduces.

    Source: gloo/allreduce.cc, allgather.cc, broadcast.cc, alltoall.cc; ProcessGroupGloo.cpp; NCCL's documentation of
    NCCL_ALGO.
    """
    return _ALGORITHMS[backend, collective]


def collective_bytes(
    collective: Collective, algorithm: Algorithm, num_ranks: int, message_bytes: int, *, element_bytes: int = 1
) -> CollectiveBytes:
    """Return the payload bytes that each rank sends; one rank sends none.

    Closed forms, n ranks, M bytes, c_r the chunk of M that belongs to rank r (M/n where it divides):

    - all-reduce, RING: 2M - c_r - c_(r-1), which is 2(n-1)M/n where n divides M; 2(n-1)M in total
    - all-reduce, DOUBLE_TREE: M/2 for each neighbour in each of two trees; 2(n-1)M in total
    - all-gather, RING: (n-1)M; n(n-1)M in total
    - reduce-scatter, RING: (n-1)M/n; (n-1)M in total
    - reduce-scatter, FULL_ALL_REDUCE: as the ring all-reduce; 2(n-1)M in total
    - broadcast, BINOMIAL: M for each child, ceil(log2 n) of them at rank 0; (n-1)M in total
    - broadcast, RING: M, but 0 at the last rank; (n-1)M in total
    - all-to-all, PAIRWISE: (n-1)M/n; (n-1)M in total
    - send, DIRECT: M at rank 0; M in total

    Raises:
        ValueError: a number is out of range, M does not divide as the collective needs, or the algorithm does not
            do that collective.
    """
    _require(num_ranks, message_bytes, element_bytes)
    by_rank, _ = _forms(collective, algorithm)
    if num_ranks == 1:
        return CollectiveBytes(by_rank=(0,))
    _require_equal_parts(collective, num_ranks, message_bytes, element_bytes)
    return CollectiveBytes(by_rank=by_rank(num_ranks, message_bytes, element_bytes))


def collective_cost(
    collective: Collective, algorithm: Algorithm, num_ranks: int, message_bytes: float
) -> CollectiveCost:
    """Return how many latencies and how many bytes in series a collective waits for; one rank waits for none.

    Closed forms, n ranks, M bytes, d = ceil(log2 n):

    - all-reduce, RING, and reduce-scatter, FULL_ALL_REDUCE: 2(n-1) latencies, 2(n-1)M/n bytes
    - all-reduce, DOUBLE_TREE: 2d latencies, 2M bytes (nM/2 for two or three ranks)
    - all-gather, RING: n-1 latencies, (n-1)M bytes
    - reduce-scatter, RING: n-1 latencies, (n-1)M/n bytes
    - broadcast, BINOMIAL: d latencies; gloo's ranks send to all their children at once, and where these share the
      link fairly, k children have the message after k*M: d(d+1)/2 * M bytes where n is a power of two, not the
      textbook's d*M
    - broadcast, RING: n-1 latencies, M bytes (pipelined)
    - all-to-all, PAIRWISE: 1 latency (all parts are under way at once), (n-1)M/n bytes; a lower bound, because the
      parts compete: a receiver may have three senders while another has none
    - send, DIRECT: 1 latency, M bytes

    Raises:
        ValueError: a number is out of range, or the algorithm does not do that collective.

    Source: as in the module. On 4 shaped hosts at 200 Mbit/s and 8 MB gloo took 1.01 (all-reduce, send), 1.06
    (all-gather), 0.87 to 1.02 (broadcast) and 1.4 to 1.5 (all-to-all) of these, and 1.04 of d(d+1)/2 * M for a
    broadcast with full packets of 1500 bytes.
    """
    _require(num_ranks, message_bytes, 1)
    _, in_series = _forms(collective, algorithm)
    if num_ranks == 1:
        return CollectiveCost(num_latencies=0, bytes_in_series=0.0)
    num_latencies, shares = in_series(num_ranks)
    return CollectiveCost(num_latencies=num_latencies, bytes_in_series=shares * message_bytes)


def collective_time_s(
    collective: Collective, algorithm: Algorithm, num_ranks: int, message_bytes: float, link: Link
) -> float:
    """Return the seconds a collective takes over a link, by collective_cost."""
    return collective_cost(collective, algorithm, num_ranks, message_bytes).time_s(link)


def _ring_all_reduce(num_ranks: int, message_bytes: int, element_bytes: int) -> tuple[int, ...]:
    chunks = ring_chunks_bytes(num_ranks, message_bytes, element_bytes)
    return tuple(2 * message_bytes - chunks[rank] - chunks[rank - 1] for rank in range(num_ranks))


def _double_tree(num_ranks: int, message_bytes: int, element_bytes: int) -> tuple[int, ...]:
    first = message_bytes // element_bytes // 2 * element_bytes
    halves = (first, message_bytes - first)
    edges = (num_double_tree_edges(rank, num_ranks) for rank in range(num_ranks))
    return tuple(sum(half * num for half, num in zip(halves, nums, strict=True)) for nums in edges)


def _all_parts_but_one(num_ranks: int, message_bytes: int, element_bytes: int) -> tuple[int, ...]:
    return (message_bytes - message_bytes // num_ranks,) * num_ranks


def _depth(num_ranks: int) -> int:
    """Return ceil(log2(num_ranks))."""
    return (num_ranks - 1).bit_length()


ByRank = Callable[[int, int, int], tuple[int, ...]]  # (num_ranks, message_bytes, element_bytes) -> bytes by rank
InSeries = Callable[[int], tuple[int, float]]  # num_ranks -> latencies, bytes in series as a multiple of M

_RING_ALL_REDUCE = (_ring_all_reduce, lambda n: (2 * (n - 1), 2 * (n - 1) / n))

_FORMS: MappingProxyType[tuple[Collective, Algorithm], tuple[ByRank, InSeries]] = MappingProxyType(
    {
        (Collective.ALL_REDUCE, Algorithm.RING): _RING_ALL_REDUCE,
        (Collective.ALL_REDUCE, Algorithm.DOUBLE_TREE): (_double_tree, lambda n: (2 * _depth(n), min(2.0, n / 2))),
        (Collective.ALL_GATHER, Algorithm.RING): (lambda n, m, _: ((n - 1) * m,) * n, lambda n: (n - 1, float(n - 1))),
        (Collective.REDUCE_SCATTER, Algorithm.RING): (_all_parts_but_one, lambda n: (n - 1, (n - 1) / n)),
        (Collective.REDUCE_SCATTER, Algorithm.FULL_ALL_REDUCE): _RING_ALL_REDUCE,
        (Collective.BROADCAST, Algorithm.BINOMIAL): (
            lambda n, m, _: tuple(num_binomial_children(rank, n) * m for rank in range(n)),
            lambda n: (_depth(n), float(binomial_series(n))),
        ),
        (Collective.BROADCAST, Algorithm.RING): (lambda n, m, _: (m,) * (n - 1) + (0,), lambda n: (n - 1, 1.0)),
        (Collective.ALL_TO_ALL, Algorithm.PAIRWISE): (_all_parts_but_one, lambda n: (1, (n - 1) / n)),
        (Collective.SEND, Algorithm.DIRECT): (lambda n, m, _: (m,) + (0,) * (n - 1), lambda n: (1, 1.0)),
    }
)

_SHARED_ALGORITHMS: MappingProxyType[Collective, Algorithm] = MappingProxyType(
    {
        Collective.ALL_REDUCE: Algorithm.RING,
        Collective.ALL_GATHER: Algorithm.RING,
        Collective.ALL_TO_ALL: Algorithm.PAIRWISE,
        Collective.SEND: Algorithm.DIRECT,
    }
)
_ALGORITHMS: MappingProxyType[tuple[Backend, Collective], Algorithm] = MappingProxyType(
    {(backend, collective): how for backend in Backend for collective, how in _SHARED_ALGORITHMS.items()}
    | {
        (Backend.GLOO, Collective.REDUCE_SCATTER): Algorithm.FULL_ALL_REDUCE,
        (Backend.GLOO, Collective.BROADCAST): Algorithm.BINOMIAL,
        (Backend.NCCL, Collective.REDUCE_SCATTER): Algorithm.RING,
        (Backend.NCCL, Collective.BROADCAST): Algorithm.RING,
    }
)


def _forms(collective: Collective, algorithm: Algorithm) -> tuple[ByRank, InSeries]:
    try:
        return _FORMS[collective, algorithm]
    except KeyError:
        known = [how.name for what, how in _FORMS if what is collective]
        raise ValueError(f"algorithm is {algorithm!r}: {collective!r} is done by one of {known}") from None


def _require(num_ranks: int, message_bytes: float, element_bytes: int) -> None:
    require_counts(1, num_ranks=num_ranks, element_bytes=element_bytes)
    require_not_negative(message_bytes=message_bytes)
    if message_bytes % element_bytes:
        raise ValueError(f"message_bytes is {message_bytes}: it must be a multiple of element_bytes = {element_bytes}")


def _require_equal_parts(collective: Collective, num_ranks: int, message_bytes: int, element_bytes: int) -> None:
    if int(message_bytes) != message_bytes:
        raise ValueError(f"message_bytes is {message_bytes!r}: bytes are counted in whole numbers")
    in_parts = collective in (Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL)
    if in_parts and message_bytes % (num_ranks * element_bytes):
        rule = f"{collective.value} needs {num_ranks} equal parts of whole elements"
        raise ValueError(f"message_bytes is {message_bytes}: {rule}")


# --- how a ring cuts a message

MAX_SEGMENT_BYTES = 1024 * 1024  # gloo/allreduce.h, kMaxSegmentSize
MIN_SEGMENTS_PER_RANK = 2  # one segment is sent while the other is reduced


@dataclass(frozen=True, kw_only=True, slots=True)
class Segments:
    """A message cut into equal segments, the last ones shorter or empty."""

    segment_bytes: int  # size of a full segment
    per_rank: int  # segments in the chunk of one rank


def ring_segments(num_ranks: int, message_bytes: int, element_bytes: int) -> Segments:
    """Return the segments into which gloo's ring all-reduce cuts a message.

    At least two segments a rank, none above 1 MiB, all of whole elements.

    Source: gloo/allreduce.cc, ring.
    """
    most_bytes = element_bytes * max(1, MAX_SEGMENT_BYTES // element_bytes)
    wanted = max(_divide_up(message_bytes, most_bytes), MIN_SEGMENTS_PER_RANK * num_ranks)
    per_rank = _divide_up(wanted, num_ranks)
    even = _divide_up(message_bytes, per_rank * num_ranks)
    return Segments(segment_bytes=_divide_up(even, element_bytes) * element_bytes, per_rank=per_rank)


def ring_chunks_bytes(num_ranks: int, message_bytes: int, element_bytes: int) -> tuple[int, ...]:
    """Return the size of each rank's chunk; they sum to the message, and the last ones may be short or empty."""
    cut = ring_segments(num_ranks, message_bytes, element_bytes)
    chunk = cut.per_rank * cut.segment_bytes
    return tuple(min(chunk, max(0, message_bytes - rank * chunk)) for rank in range(num_ranks))


def _divide_up(number: int, by: int) -> int:
    return -(-number // by)


# --- trees


def num_binomial_children(rank: int, num_ranks: int) -> int:
    """Return the number of ranks to which a rank sends a broadcast of rank 0.

    In step i each rank r below 2^i sends the message to rank r + 2^i, which doubles the ranks that have it.
    """
    first_step = rank.bit_length()
    last_step = (num_ranks - 1).bit_length()
    return sum(rank + (1 << step) < num_ranks for step in range(first_step, last_step))


def binomial_series(num_ranks: int) -> int:
    """Return the time until the last rank has a broadcast of rank 0, in units of the time of one message on a link.

    A rank starts sending to its k children when it has the message. The children share its link and all have it k
    messages later.
    """
    ready = [0] * num_ranks
    for rank in range(num_ranks):
        done = ready[rank] + num_binomial_children(rank, num_ranks)
        for step in range(rank.bit_length(), (num_ranks - 1).bit_length()):
            child = rank + (1 << step)
            if child < num_ranks:
                ready[child] = done
    return max(ready)


def num_double_tree_edges(rank: int, num_ranks: int) -> tuple[int, int]:
    """Return the number of a rank's neighbours in the first and in the second tree.

    The second tree is the first one mirrored, or, for an odd number of ranks, shifted by one: the inner nodes of
    one are then leaves of the other.
    """
    twin = num_ranks - 1 - rank if num_ranks % 2 == 0 else (rank - 1) % num_ranks
    return _num_tree_edges(rank, num_ranks), _num_tree_edges(twin, num_ranks)


def _num_tree_edges(node: int, num_nodes: int) -> int:
    children = sum(_tree_parent(other, num_nodes) == node for other in range(1, num_nodes))
    return children + (node != 0)


def _tree_parent(node: int, num_nodes: int) -> int:
    """Return the parent of a node above 0: the next multiple of twice the node's lowest set bit."""
    bit = node & -node
    parent = (node ^ bit) | (bit << 1)
    return parent if parent < num_nodes else node ^ bit


# --- headers of gloo

PREAMBLE_BYTES = 48  # six 64-bit words
PREAMBLES_SENDING = 2
PREAMBLES_RECEIVING = 1
GATHER_PARTS = 2  # gloo/allgather.cc sends every contribution in two halves


def gloo_header_bytes(
    collective: Collective, num_ranks: int, message_bytes: int, *, element_bytes: int = 1
) -> tuple[int, ...]:
    """Return the header bytes that each rank sends in one collective of gloo; arguments as for collective_bytes.

    Source: as in the module. `torch.distributed.reduce_scatter` with a list of tensors runs one all-reduce a rank,
    so it sends num_ranks times the headers of an all-reduce of message_bytes / num_ranks.
    """
    if num_ranks == 1:
        return (0,)
    sends, receives = _message_counts(collective, num_ranks, message_bytes, element_bytes)
    pairs = zip(sends, receives, strict=True)
    return tuple(PREAMBLE_BYTES * (PREAMBLES_SENDING * out + PREAMBLES_RECEIVING * into) for out, into in pairs)


def _message_counts(
    collective: Collective, num_ranks: int, message_bytes: int, element_bytes: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Return the number of messages that each rank sends and receives."""
    if collective in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER):
        sends = _ring_sends(num_ranks, message_bytes, element_bytes)
        return sends, [sends[(rank + 1) % num_ranks] for rank in range(num_ranks)]
    if collective is Collective.ALL_GATHER:
        counts = [GATHER_PARTS * (num_ranks - 1) if message_bytes else 0] * num_ranks
        return counts, counts
    if collective is Collective.ALL_TO_ALL:
        counts = [num_ranks - 1] * num_ranks
        return counts, counts
    if collective is Collective.BROADCAST:
        return [num_binomial_children(rank, num_ranks) for rank in range(num_ranks)], [0] + [1] * (num_ranks - 1)
    idle = [0] * (num_ranks - 2)
    return [1, 0, *idle], [0, 1, *idle]


def _ring_sends(num_ranks: int, message_bytes: int, element_bytes: int) -> list[int]:
    """Return the segments that each rank sends to the rank below it: all but its own, then all but that rank's."""
    if message_bytes == 0:
        return [0] * num_ranks
    cut = ring_segments(num_ranks, message_bytes, element_bytes)
    filled = _divide_up(message_bytes, cut.segment_bytes)
    in_chunk = [min(cut.per_rank, max(0, filled - rank * cut.per_rank)) for rank in range(num_ranks)]
    return [2 * filled - in_chunk[rank] - in_chunk[rank - 1] for rank in range(num_ranks)]
