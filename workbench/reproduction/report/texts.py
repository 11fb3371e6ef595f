"""Numbers, times and keys as texts: four significant digits, and an SI prefix that fits the unit."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from numbers import Real
from types import SimpleNamespace
from typing import Any

from workbench.reproduction.comparing import MANIFOLD

__all__ = ["MARKS", "View", "about_text", "exact_text", "key_text", "number_text", "pairs_text"]
__all__ += ["relative_text", "seconds_text", "slug", "took_text", "value_text", "when_text"]

View = SimpleNamespace  # the fields of a template, by name
MARKS = {"AGREES": "✓", "DISAGREES": "✕", "IN_PART": "◐", "NOT_COMPARABLE": "?", "NOT_RUN": "○"}

SIGNIFICANT_DIGITS = 4  # more than any of the papers prints
EXACT_INTEGERS_BELOW = 100_000  # a count of this many digits is still read at a glance
ROUNDING = 1e-12  # relative rounding error of float64 between two equal values
PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
SMALL_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
SCALED_UNITS = {"byte": "B", "bytes": "B", "bytes/s": "B/s", "flop": "FLOP", "flops": "FLOP"}  # spelling to symbol
SCALED_UNITS |= {unit: unit for unit in ("B", "B/s", "bit/s", "FLOP", "FLOP/s")}
SILENT_UNITS = {"", "1", "-", "count", "ratio", "share", "none", "dimensionless"}


def number_text(value: float) -> str:
    """Write a number with at most four significant digits, thousands apart."""
    if isinstance(value, Real) and not math.isfinite(value):
        return str(value)
    if float(value).is_integer() and abs(value) < EXACT_INTEGERS_BELOW:
        return f"{int(value):,}"
    if 1e-4 <= abs(value) < 10.0**SIGNIFICANT_DIGITS:
        return f"{value:.{SIGNIFICANT_DIGITS}g}"
    if abs(value) < 1e9 and abs(value) >= 1:
        return f"{value:,.0f}"
    return f"{value:.{SIGNIFICANT_DIGITS}g}"


def value_text(value: Any, unit: str | None = None) -> str:
    """Write a value with its unit, at a scale that reads well."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(value_text(part, unit) for part in value)
    if isinstance(value, Mapping):
        return key_text(value)
    if not isinstance(value, Real):
        return str(value)
    return _with_unit(float(value), (unit or "").strip())


def _with_unit(value: float, unit: str) -> str:
    if unit in SILENT_UNITS or not math.isfinite(value):
        return number_text(value)
    if unit in ("s", "seconds") and value != 0:
        return seconds_text(value)
    if unit in SCALED_UNITS:
        scale, prefix = next(((s, p) for s, p in PREFIXES if abs(value) >= s), (1.0, ""))
        return f"{number_text(value / scale)} {prefix}{SCALED_UNITS[unit]}"
    return f"{number_text(value)} {unit}"


def took_text(record: Mapping[str, Any]) -> str:
    """Return how long a record took: "3 h 20 min of machine time in 120 cells, 6.8 s on the notebook's clock"."""
    notebook = seconds_text(round(float(record.get("seconds") or 0), 1))
    origins = record.get("cells") or ()
    if not origins:
        return notebook
    number, cells_s = (sum(float(origin[name]) for origin in origins) for name in ("num_cells", "seconds"))
    return f"{seconds_text(round(cells_s))} of machine time in {number:.0f} cells, {notebook} on the notebook's clock"


def seconds_text(value_s: float) -> str:
    """Write a time: "1 h 05 min", "2 min 03 s", "4.2 s", "0.31 ms"."""
    magnitude = abs(value_s)
    if magnitude >= 3600:
        minutes = round(magnitude / 60)
        return f"{'-' if value_s < 0 else ''}{minutes // 60} h {minutes % 60:02d} min"
    if magnitude >= 120:
        whole = round(magnitude)
        return f"{'-' if value_s < 0 else ''}{whole // 60} min {whole % 60:02d} s"
    scale, name = next(((s, n) for s, n in SMALL_SECONDS if magnitude >= s), SMALL_SECONDS[-1])
    return f"{number_text(value_s / scale)} {name}" if magnitude else "0 s"


def about_text(value_s: float) -> str:
    """Write an expected time, rounded to a second: "7 s", "0.4 s"."""
    return seconds_text(float(round(value_s)) if value_s >= 1 else float(f"{value_s:.1g}"))


def relative_text(ours: Any, published: Any) -> str:
    """Write the difference of ours from the published value, in per cent of the published value."""
    numbers = [v for v in (ours, published) if isinstance(v, Real) and not isinstance(v, bool) and math.isfinite(v)]
    if len(numbers) < 2:
        return "—"
    if math.isclose(ours, published, rel_tol=ROUNDING):
        return "exact"
    if published == 0:
        return f"{ours - published:+.3g}"
    if abs(ours / published) >= MANIFOLD:
        return f"{ours / published:,.0f} times"
    return f"{100 * (ours - published) / abs(published):+.3g} %"


def key_text(where: Mapping[str, Any] | None) -> str:
    """Write the key columns of one row: "method A1, num ranks 2"."""
    return ", ".join(f"{name.replace('_', ' ')} {value_text(value)}" for name, value in (where or {}).items())


def pairs_text(held: Mapping[str, Any]) -> str:
    """Write settings with their names in code: "OMP_NUM_THREADS=1, hidden=1024"."""
    return ", ".join(f"{name}={value}" for name, value in held.items())


def exact_text(value: Any, unit: str | None) -> str:
    """Write a value as recorded, with its unit; "" for None."""
    return "" if value is None else f"{value} {unit or ''}".strip()


def slug(text: str) -> str:
    """Turn a name into a part of an address."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def when_text(stamp: Any) -> str:
    """Write an ISO time stamp as a date and minute of this machine."""
    try:
        moment = datetime.fromisoformat(str(stamp))
    except ValueError:
        return str(stamp or "")
    return (moment.astimezone() if moment.tzinfo else moment).strftime("%Y-%m-%d %H:%M")
