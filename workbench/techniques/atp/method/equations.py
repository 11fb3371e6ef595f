"""Equation 2 as printed, and every message of a layer on a mesh with its bytes and its time.

L = layers, b = batch, s = sequence, h = hidden size, a = heads, v = bytes of a value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from workbench.checks import require_counts, require_not_negative, require_positive

from .matrix import HierarchicalCommMatrix

__all__ = ["Kind", "Message", "Workload", "communication_time_s", "equation2_terms", "exact_time_s", "messages"]


STATISTICS_BYTES = 8  # of a position in a norm: a mean and a variance, in FP32


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A transformer in training."""

    batch: int  # b
    sequence: int  # s
    hidden: int  # h
    heads: int  # a
    num_layers: int = 1  # L
    value_bytes: int = 2  # v
    repeated_s_per_value: float = 0.0  # work that all ranks of axis 1 repeat: norms and residuals, both passes

    def __post_init__(self) -> None:
        names = ("batch", "sequence", "hidden", "heads", "num_layers", "value_bytes")
        require_counts(1, **{name: getattr(self, name) for name in names})
        require_not_negative(repeated_s_per_value=self.repeated_s_per_value)
        if self.hidden % self.heads:
            raise ValueError(f"heads is {self.heads}; it must divide hidden, {self.hidden}")

    def divides(self, d1: int, d2: int) -> bool:
        """Say whether a mesh divides heads and hidden size."""
        return self.heads % (d1 * d2) == 0 and self.hidden % (d1 * d2) == 0

    @property
    def num_values(self) -> int:
        """b s h, the values of one activation."""
        return self.batch * self.sequence * self.hidden


def communication_time_s(
    *,
    num_layers: int,
    batch: int,
    sequence: int,
    hidden: int,
    value_bytes: int,
    d1: int,
    d2: int,
    b1_bytes_per_s: float,
    b2_bytes_per_s: float,
) -> float:
    """Return what all layers communicate in a training step, by equation 2 as printed.

    Args:
        num_layers, batch, sequence, hidden: L, b, s, h.
        value_bytes: Bytes of a value.
        d1, d2: Sizes of the mesh's axes; an axis of size 1 communicates nothing.
        b1_bytes_per_s, b2_bytes_per_s: B1 and B2, what an all-reduce along each axis gets (equation 4).

    Raises:
        ValueError: for counts below 1 and bandwidths of 0 or less.

    Source: section 3.3, equation 2.
    """
    first, second = equation2_terms(num_layers * batch * sequence * value_bytes, hidden, d1, d2)
    require_counts(1, num_layers=num_layers, batch=batch, sequence=sequence, value_bytes=value_bytes)
    if b1_bytes_per_s != math.inf:
        require_positive(b1_bytes_per_s=b1_bytes_per_s)
    if b2_bytes_per_s != math.inf:
        require_positive(b2_bytes_per_s=b2_bytes_per_s)
    return first / b2_bytes_per_s + second / b1_bytes_per_s


def equation2_terms(token_bytes: float, hidden: int, d1: int, d2: int) -> tuple[float, float]:
    """Return the bytes over B2 and over B1 in equation 2; `token_bytes` is L b s v."""
    require_counts(1, hidden=hidden, d1=d1, d2=d2)
    first = 2 * token_bytes * 7 * hidden / d1 if d2 > 1 else 0.0
    second = 2 * token_bytes * 2 * hidden / d2 if d1 > 1 else 0.0
    return first, second


class Kind(Enum):
    """A collective on a ring."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"

    @property
    def rounds(self) -> int:
        """Rounds of d - 1 steps, each of which sends 1 / d of the message."""
        return 2 if self is Kind.ALL_REDUCE else 1


@dataclass(frozen=True, slots=True)
class Message:
    """One collective of one layer: the bytes are those of the whole tensor on a rank."""

    axis: int  # 1 or 2
    kind: Kind
    num_bytes: float
    what: str  # which function of figure 6, and which pass

    def sent_bytes(self, num_ranks: int) -> float:
        """Return the bytes each of the ranks sends, with the ring algorithm."""
        return self.kind.rounds * (num_ranks - 1) / num_ranks * self.num_bytes


def messages(work: Workload, d1: int, d2: int, *, sequence_parallel: bool = False) -> list[Message]:
    """Return all messages of one layer's forward and backward pass on a mesh, as `runtime.block` sends them."""
    value = work.num_values * work.value_bytes
    sent = []
    if d2 > 1:
        reduced = (("f1, forward", 3), ("f2, backward", 1), ("f3, forward", 4), ("f4, backward", 4))
        sent += [Message(2, Kind.ALL_REDUCE, times * value / d1, what) for what, times in reduced]
        gathered = (("core's gather, forward", 1), ("core's scatter, backward", 3))
        sent += [Message(2, Kind.ALL_GATHER, times * value / d1, what) for what, times in gathered]
        tokens = work.batch * work.sequence / (d1 if sequence_parallel else 1)
        for what, kind in (("norm, forward", Kind.ALL_GATHER), ("norm, backward", Kind.REDUCE_SCATTER)):
            sent += 2 * [Message(2, kind, tokens * STATISTICS_BYTES * d2, what)]
    if d1 > 1:
        for what in ("f2, forward", "f4, forward", "f1, backward", "f3, backward"):
            kinds = (Kind.REDUCE_SCATTER, Kind.ALL_GATHER) if sequence_parallel else (Kind.ALL_REDUCE,)
            sent += [Message(1, kind, value / d2, what) for kind in kinds]
        if sequence_parallel:  # gradients of two norms' weights and biases, and of two linears' biases
            sent += 6 * [Message(1, Kind.ALL_REDUCE, work.hidden * work.value_bytes / d2, "parameters, backward")]
    return sent


def exact_time_s(
    work: Workload, matrix: HierarchicalCommMatrix, d1: int, d2: int, *, sequence_parallel: bool = False
) -> tuple[float, float, float]:
    """Return what all layers take for bytes on axis 1, for bytes on axis 2, and for start-ups.

    Where the matrix has the mesh's collectives as measured, or its bandwidths calibrated, these count. Else rings are
    counted device by device (`HierarchicalCommMatrix.rings`), and a step waits for its slowest link.
    """
    seconds, startup_s = {1: 0.0, 2: 0.0}, 0.0
    everything = messages(work, d1, d2, sequence_parallel=sequence_parallel)
    for axis, size, rings in zip((1, 2), (d1, d2), matrix.rings(d1, d2), strict=True):
        on_axis = [message for message in everything if message.axis == axis]
        if not on_axis:
            continue
        if (d1, d2) in matrix.calibrated:
            bandwidths = matrix.calibrated[d1, d2]
            rate = bandwidths.b1_bytes_per_s if axis == 1 else bandwidths.b2_bytes_per_s
            seconds[axis] = sum(message.kind.rounds / 2 * message.num_bytes for message in on_axis) / rate
            continue
        if axis in (times := matrix.measured.get((d1, d2), {})):
            links = [getattr(times[axis], message.kind.name.lower()) for message in on_axis]
            pairs = zip(on_axis, links, strict=True)
            seconds[axis] = sum(message.num_bytes / link.bandwidth_bytes_per_s for message, link in pairs)
            startup_s += sum(link.latency_s for link in links)
            continue
        rate = min(matrix.layers[layer].reached_bytes_per_s(size) / num for layer, num in rings.items())
        seconds[axis] = sum(message.sent_bytes(size) for message in on_axis) / rate
        per_step = max(matrix.layers[layer].startup_s for layer in rings)
        startup_s += per_step * (size - 1) * sum(message.kind.rounds for message in on_axis)
    return work.num_layers * seconds[1], work.num_layers * seconds[2], work.num_layers * startup_s
