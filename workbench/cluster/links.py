"""Links: how long a message takes between two devices or two hosts.

What: the two numbers of the alpha-beta model, a fixed latency and a bandwidth, with where they come from.
Source: R. W. Hockney, "The communication challenge for MPP", Parallel Computing 20 (1994), section 2.
Simplified: one bandwidth for every message size, the same in both directions at once (full duplex).
Left out: routing, congestion inside a switch, jitter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

__all__ = ["Link"]

# Bytes per second that one gigabit per second carries (SI prefixes, 8 bits a byte).
GIGABIT_BYTES_PER_S = 1e9 / 8
# Seconds one way between two processes over TCP on data-centre Ethernet: an order of magnitude, not a measurement.
TCP_LATENCY_S = 50e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A full-duplex connection.

    bandwidth_bytes_per_s: bytes that pass in one second, in each direction.
    latency_s: seconds before the first byte of a message arrives.
    source: where the numbers come from.
    inferred: names of the fields that the source does not state.
    """

    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    source: str = "stated by the caller"
    inferred: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_number(self, "bandwidth_bytes_per_s", above_zero=True)
        require_number(self, "latency_s", above_zero=False)
        require_source(self)

    @classmethod
    def gigabit(cls) -> Link:
        """Return a 1 Gbit/s Ethernet link."""
        return cls._ethernet(1)

    @classmethod
    def ten_gigabit(cls) -> Link:
        """Return a 10 Gbit/s Ethernet link."""
        return cls._ethernet(10)

    @classmethod
    def _ethernet(cls, num_gigabits: int) -> Link:
        return cls(
            bandwidth_bytes_per_s=num_gigabits * GIGABIT_BYTES_PER_S,
            latency_s=TCP_LATENCY_S,
            source=f"nominal rate of {num_gigabits} Gbit/s Ethernet (IEEE 802.3)",
            inferred=("latency_s",),
        )

    def time_s(self, message_bytes: float) -> float:
        """Return the seconds a message of `message_bytes` bytes takes: latency + bytes / bandwidth.

        Raises:
            ValueError: message_bytes is negative.
        """
        if not message_bytes >= 0:
            raise ValueError(f"message_bytes is {message_bytes!r}: it must not be negative")
        return self.latency_s + message_bytes / self.bandwidth_bytes_per_s


def require_number(thing: object, field: str, *, above_zero: bool) -> None:
    """Check that a field holds a finite number of the right sign.

    Args:
        thing: a dataclass.
        field: which of its fields.
        above_zero: refuse 0 as well as negative numbers.

    Raises:
        ValueError: it does not.
    """
    value = getattr(thing, field)
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < 0 or (above_zero and value == 0):
        rule = "a finite number above 0" if above_zero else "a finite number, 0 or more"
        raise ValueError(f"{type(thing).__name__}.{field} is {value!r}: it must be {rule}")


def require_source(thing: object) -> None:
    """Check that a catalogued thing says where its numbers come from and that `inferred` names its own fields.

    Args:
        thing: a dataclass with `source` and `inferred`.

    Raises:
        ValueError: source is empty, or inferred names something that is not a field.
    """
    kind = type(thing).__name__
    if not isinstance(thing.source, str) or not thing.source.strip():
        raise ValueError(f"{kind}.source is {thing.source!r}: it must say where the numbers come from")
    known = {field.name for field in fields(thing)}
    for name in thing.inferred:
        if name not in known:
            raise ValueError(f"{kind}.inferred names {name!r}: it must be a field of {kind}")
