"""SI units at the edge: seconds and bytes inside, readable ones on axes and in sentences.

Source: SI prefixes, powers of 1000 also for bytes.
Simplified: one unit a figure, the one of its largest value.
Left out: binary prefixes.
"""

from dataclasses import dataclass

__all__ = ["Unit", "byte_unit", "format_bytes", "format_time", "time_unit"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """A unit and its size in the SI unit without prefix."""

    size: float  #: in seconds or bytes
    symbol: str  #: what to write


_TIMES = (
    Unit(size=1.0, symbol="s"),
    Unit(size=1e-3, symbol="ms"),
    Unit(size=1e-6, symbol="µs"),
    Unit(size=1e-9, symbol="ns"),
)
_BYTES = (
    Unit(size=1e12, symbol="TB"),
    Unit(size=1e9, symbol="GB"),
    Unit(size=1e6, symbol="MB"),
    Unit(size=1e3, symbol="kB"),
    Unit(size=1.0, symbol="B"),
)


def time_unit(largest_s: float) -> Unit:
    """Return the unit in which a time of `largest_s` seconds is at least 1."""
    return _largest_below(_TIMES, largest_s)


def byte_unit(largest_bytes: float) -> Unit:
    """Return the unit in which a size of `largest_bytes` is at least 1."""
    return _largest_below(_BYTES, largest_bytes)


def format_time(time_s: float) -> str:
    """Write seconds with three digits in a readable unit, such as `1.25 ms`."""
    return _format(time_s, time_unit(time_s))


def format_bytes(num_bytes: float) -> str:
    """Write bytes with three digits in a readable unit, such as `33.6 MB`."""
    return _format(num_bytes, byte_unit(num_bytes))


def _largest_below(units: tuple[Unit, ...], value: float) -> Unit:
    if value == 0:
        return next(unit for unit in units if unit.size == 1.0)
    return next((unit for unit in units if abs(value) >= unit.size), units[-1])


def _format(value: float, unit: Unit) -> str:
    scaled = value / unit.size
    digits = f"{scaled:.0f}" if abs(scaled) >= 100 else f"{scaled:.3g}"
    return f"{digits} {unit.symbol}"
