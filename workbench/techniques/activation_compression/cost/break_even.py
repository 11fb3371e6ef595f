"""Where compression begins to pay: bandwidth, batch, code size.

Source: beyond the paper; its takeaways 1 and 8 say that compression pays over slow links and with large batches.
Simplified: as `iteration`; only the bandwidth between tensor-parallel ranks is varied.
Left out: what compression does to accuracy.

Units: bytes/s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .iteration import iteration_time
from .machine import FittedMachine
from .messages import Setting

__all__ = ["BreakEven", "break_even", "break_even_map", "speedup_at"]

SLOWEST_BYTES_PER_S, FASTEST_BYTES_PER_S = 1e3, 1e15  # the search; no link of today lies outside
BISECTIONS = 80  # of the logarithm: the place is exact to rounding


@dataclass(frozen=True, kw_only=True, slots=True)
class BreakEven:
    """One point of the map.

    Attributes:
        micro_batch: B.
        code_size: c at a hidden size of 1024.
        bandwidth_bytes_per_s: below it compression pays; 0 where it never does, infinity where it always does.
    """

    micro_batch: int
    code_size: int
    bandwidth_bytes_per_s: float


def speedup_at(machine: FittedMachine, setting: Setting, bandwidth_bytes_per_s: float) -> float:
    """Return the time without compression over the time with it, over a link of this bandwidth.

    Args:
        machine: whose link is replaced by one as late but of this bandwidth.
        setting: with the method that compresses.
        bandwidth_bytes_per_s: of one connection between tensor-parallel ranks.
    """
    link = replace(machine.link, bandwidth_bytes_per_s=bandwidth_bytes_per_s)
    linked = replace(machine, link=link)
    return iteration_time(replace(setting, method="w/o"), linked).total_s / iteration_time(setting, linked).total_s


def break_even(machine: FittedMachine, setting: Setting) -> BreakEven:
    """Find the bandwidth below which a method pays.

    Args:
        machine: rates, launching, links and codecs, the paper's or your own.
        setting: model, mesh, batch and method, with `code_size` or the method's own.

    Returns:
        The point; its bandwidth is 0 where even the slowest link gains nothing (a message that is larger than what it
        replaces), infinity where even the fastest does.
    """

    def pays(bandwidth: float) -> bool:
        return speedup_at(machine, setting, bandwidth) > 1

    point = {"micro_batch": setting.micro_batch, "code_size": setting.chosen.paper_code_size}
    if not pays(SLOWEST_BYTES_PER_S):
        return BreakEven(bandwidth_bytes_per_s=0.0, **point)
    if pays(FASTEST_BYTES_PER_S):
        return BreakEven(bandwidth_bytes_per_s=math.inf, **point)
    low, high = SLOWEST_BYTES_PER_S, FASTEST_BYTES_PER_S
    for _ in range(BISECTIONS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if pays(middle) else (low, middle)
    return BreakEven(bandwidth_bytes_per_s=math.sqrt(low * high), **point)


def break_even_map(
    machine: FittedMachine, setting: Setting, *, micro_batches: Sequence[int], code_sizes: Sequence[int]
) -> tuple[BreakEven, ...]:
    """Find the break-even bandwidth for every batch and code size.

    Args:
        machine: as break_even.
        setting: as break_even; its batch and code size are replaced.
        micro_batches: B.
        code_sizes: c at a hidden size of 1024.
    """
    return tuple(
        break_even(machine, replace(setting, micro_batch=batch, code_size=size))
        for size in code_sizes
        for batch in micro_batches
    )
