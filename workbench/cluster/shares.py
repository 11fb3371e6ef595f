"""Shares: how a ring cuts a message into chunks, one a rank, and chunks into segments.

What: the sizes that gloo's ring all-reduce really uses, also where nothing divides.
Source: gloo, gloo/allreduce.cc (ring) and allreduce.h (kMaxSegmentSize).
Simplified: NCCL cuts otherwise, by some elements; totals are the same.
Left out: nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Segments", "ring_chunks_bytes", "ring_segments"]

MAX_SEGMENT_BYTES = 1024 * 1024  # gloo/allreduce.h, kMaxSegmentSize
MIN_SEGMENTS_PER_RANK = 2  # one is on its way while the other is reduced


@dataclass(frozen=True, kw_only=True, slots=True)
class Segments:
    """A message cut into equal segments, the last ones shorter or empty.

    segment_bytes: size of a full segment.
    per_rank: segments in the chunk of one rank.
    """

    segment_bytes: int
    per_rank: int


def ring_segments(num_ranks: int, message_bytes: int, element_bytes: int) -> Segments:
    """Return how gloo's ring all-reduce cuts a message.

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
