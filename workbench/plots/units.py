"""Seconds and bytes in readable units, with prefixes of a thousand."""

from dataclasses import dataclass

__all__ = ["Unit", "format_bytes", "format_time", "time_unit"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """A unit and its size."""

    size: float  # in seconds or bytes
    symbol: str  # written behind a number


_TIMES = tuple(
    Unit(size=size, symbol=symbol) for size, symbol in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
)
_BYTES = tuple(
    Unit(size=size, symbol=symbol) for size, symbol in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
)


def time_unit(largest_s: float) -> Unit:
    """Return the unit in which a time of `largest_s` seconds is at least 1."""
    return _largest_below(_TIMES, largest_s)


def format_time(time_s: float) -> str:
    """Write seconds with three digits in a readable unit, such as `1.25 ms`."""
    return _format(time_s, time_unit(time_s))


def format_bytes(num_bytes: float) -> str:
    """Write bytes with three digits in a readable unit, such as `33.6 MB`."""
    return _format(num_bytes, _largest_below(_BYTES, num_bytes))


def _largest_below(units: tuple[Unit, ...], value: float) -> Unit:
    if value == 0:
        return next(unit for unit in units if unit.size == 1.0)
    return next((unit for unit in units if abs(value) >= unit.size), units[-1])


def _format(value: float, unit: Unit) -> str:
    scaled = value / unit.size
    digits = f"{scaled:.0f}" if abs(scaled) >= 100 else f"{scaled:.3g}"
    return f"{digits} {unit.symbol}"
