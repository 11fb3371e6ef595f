"""Framing: the small headers that gloo adds to a payload.

What: how many bytes of header each rank sends in a collective, exactly.
Source: gloo, gloo/transport/tcp/pair.h (struct Op, its preamble of six 64-bit words) and pair.cc (send announces
itself, recv answers, then the data follow behind another preamble).
Simplified: nothing; together with collective_bytes it equals what TCP reports.
Left out: connecting, and TCP/IP's own headers.

For every message, the sender sends two preambles (announcement and data) and the receiver one (ready).
"""

from __future__ import annotations

from collections.abc import Sequence

from workbench.cluster.collectives import Collective
from workbench.cluster.shares import ring_segments
from workbench.cluster.trees import num_binomial_children

__all__ = ["PREAMBLE_BYTES", "gloo_header_bytes"]

PREAMBLE_BYTES = 48  # six 64-bit words
PREAMBLES_SENDING = 2
PREAMBLES_RECEIVING = 1
GATHER_PARTS = 2  # gloo/allgather.cc sends every contribution in two halves


def gloo_header_bytes(
    collective: Collective, num_ranks: int, message_bytes: int, *, element_bytes: int = 1
) -> tuple[int, ...]:
    """Return the header bytes that each rank sends in one collective of gloo.

    Args:
        collective, num_ranks, message_bytes, element_bytes: as for collective_bytes.

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
    """Return how many messages each rank sends and receives."""
    if collective in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER):
        sends = _ring_sends(num_ranks, message_bytes, element_bytes)
        return sends, [sends[(rank + 1) % num_ranks] for rank in range(num_ranks)]
    if collective is Collective.ALL_GATHER:
        each = [GATHER_PARTS * (num_ranks - 1) if message_bytes else 0] * num_ranks
        return each, each
    if collective is Collective.ALL_TO_ALL:
        each = [num_ranks - 1] * num_ranks
        return each, each
    if collective is Collective.BROADCAST:
        return [num_binomial_children(rank, num_ranks) for rank in range(num_ranks)], [0] + [1] * (num_ranks - 1)
    idle = [0] * (num_ranks - 2)
    return [1, 0, *idle], [0, 1, *idle]


def _ring_sends(num_ranks: int, message_bytes: int, element_bytes: int) -> list[int]:
    """Return the segments that each rank sends to the rank below it: all but its own, then all but that one's."""
    if message_bytes == 0:
        return [0] * num_ranks
    cut = ring_segments(num_ranks, message_bytes, element_bytes)
    filled = -(-message_bytes // cut.segment_bytes)
    in_chunk = [min(cut.per_rank, max(0, filled - rank * cut.per_rank)) for rank in range(num_ranks)]
    return [2 * filled - in_chunk[rank] - in_chunk[rank - 1] for rank in range(num_ranks)]
