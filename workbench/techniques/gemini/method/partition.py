"""Which part of a checkpoint travels in which idle span of the network: algorithm 6.2. A chunk takes f(s) = α + s / B.

Three slips of the printed algorithm are not carried over: it takes f(remain_size) from the span instead of f(size); its
counter lets m replicas through although m - 1 travel; and where a span is shorter than α, its inner loop never ends.
Times are compared as fractions, so that the slow and the fast form agree to the byte.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from workbench.checks import require_counts, require_not_negative, require_positive

__all__ = ["Chunk", "partition_checkpoint", "partition_checkpoint_by_definition"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """One message of a checkpoint."""

    span: int  # index of the idle span that it travels in
    replica: int  # which of the remote replicas it belongs to, from 0 to num_replicas - 2
    offset_bytes: int  # where it begins in the replica
    size_bytes: int  # how long it is, at least 1


@dataclass(frozen=True, kw_only=True, slots=True)
class _Setting:
    """Checked arguments, as fractions: spans already times μ, the last one None for unbounded."""

    spans_s: tuple[Fraction | None, ...]
    checkpoint_bytes: int
    num_remote: int
    chunk_bytes: int
    bandwidth: Fraction
    startup_s: Fraction

    def time_s(self, size_bytes: int) -> Fraction:
        """f(s) = α + s / B."""
        return self.startup_s + size_bytes / self.bandwidth

    def room_bytes(self, left_s: Fraction | None) -> int:
        """Bytes that one message can carry in the time left, however large the buffer."""
        if left_s is None:
            return self.num_remote * self.checkpoint_bytes
        return max(0, math.floor((left_s - self.startup_s) * self.bandwidth))


def partition_checkpoint(
    idle_spans_s: Sequence[float],  # lengths of the profiled spans; the last one takes all that is left
    checkpoint_bytes: int,  # C, of one replica
    *,
    num_replicas: int,  # m, the local one included; m - 1 travel
    reserved_bytes: int,  # R, device memory set aside
    num_buffers: int,  # p, parts of it; a chunk has at most R / p bytes
    bandwidth_bytes_per_s: float,  # B
    startup_s: float = 0.0,  # α of every message
    safety: float = 0.9,  # μ, share of a span that is planned with, in (0, 1]
    divide: Callable[[_Setting], Iterable[Chunk]] | None = None,  # the algorithm; None for the fast one
) -> tuple[Chunk, ...]:
    """Divide the remote replicas of a checkpoint into chunks that fill idle spans, in the order of travelling."""
    spans_s = tuple(idle_spans_s)
    if not spans_s:
        raise ValueError("idle_spans_s is empty; it must have at least the last span")
    require_not_negative(**{f"idle_spans_s[{index}]": span_s for index, span_s in enumerate(spans_s)})
    require_counts(1, checkpoint_bytes=checkpoint_bytes, num_replicas=num_replicas, num_buffers=num_buffers)
    require_counts(num_buffers, reserved_bytes=reserved_bytes)
    require_positive(bandwidth_bytes_per_s=bandwidth_bytes_per_s, safety=safety)
    require_not_negative(startup_s=startup_s)
    if safety > 1:
        raise ValueError(f"safety is {safety!r}; it must be in (0, 1]")
    setting = _Setting(
        spans_s=(*(Fraction(safety) * Fraction(span_s) for span_s in spans_s[:-1]), None),
        checkpoint_bytes=int(checkpoint_bytes),
        num_remote=int(num_replicas) - 1,
        chunk_bytes=int(reserved_bytes) // int(num_buffers),
        bandwidth=Fraction(bandwidth_bytes_per_s),
        startup_s=Fraction(startup_s),
    )
    return tuple((divide or _chunks_by_division)(setting))


def partition_checkpoint_by_definition(
    idle_spans_s: Sequence[float], checkpoint_bytes: int, **choices: float
) -> tuple[Chunk, ...]:
    """Do the same one chunk after the other, as algorithm 6.2 means to; the choices are its keyword arguments."""
    return partition_checkpoint(idle_spans_s, checkpoint_bytes, divide=_chunks_one_by_one, **choices)


def _chunks_by_division(setting: _Setting) -> Iterator[Chunk]:
    replica, offset = 0, 0
    for span, left_s in enumerate(setting.spans_s):
        while replica < setting.num_remote:
            sizes, left_s = _fill(setting, setting.checkpoint_bytes - offset, left_s)
            for size in sizes:
                yield Chunk(span=span, replica=replica, offset_bytes=offset, size_bytes=size)
                offset += size
            if offset < setting.checkpoint_bytes:
                break
            replica, offset = replica + 1, 0


def _chunks_one_by_one(setting: _Setting) -> Iterator[Chunk]:
    replica, remaining = 0, setting.checkpoint_bytes
    for span, remaining_s in enumerate(setting.spans_s):
        while replica < setting.num_remote:
            if remaining_s is None or remaining_s >= setting.time_s(setting.chunk_bytes):
                size = setting.chunk_bytes
            else:
                size = setting.room_bytes(remaining_s)
            size = min(remaining, size)
            if size == 0:
                break
            offset = setting.checkpoint_bytes - remaining
            yield Chunk(span=span, replica=replica, offset_bytes=offset, size_bytes=size)
            remaining -= size
            if remaining_s is not None:
                remaining_s -= setting.time_s(size)
            if remaining == 0:
                replica, remaining = replica + 1, setting.checkpoint_bytes


def _fill(setting: _Setting, wanted: int, left_s: Fraction | None) -> tuple[list[int], Fraction | None]:
    """Return the sizes of chunks of one replica that fit, full ones and a rest, and the time that is left."""
    most, full_s = wanted // setting.chunk_bytes, setting.time_s(setting.chunk_bytes)
    num_full = most if left_s is None else min(most, max(0, math.floor(left_s / full_s)))
    left_s = None if left_s is None else left_s - num_full * full_s
    rest = min(wanted - num_full * setting.chunk_bytes, setting.chunk_bytes, setting.room_bytes(left_s))
    sizes = [setting.chunk_bytes] * num_full + [rest] * (rest > 0)
    if rest and left_s is not None:
        left_s -= setting.time_s(rest)
    return sizes, left_s
