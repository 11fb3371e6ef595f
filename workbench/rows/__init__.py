"""One value with its unit and its key columns, ours or the paper's.

A flat row is a dictionary with `quantity`, `value`, `unit`, optionally `low`, `high`, `seed` and `source`, and any key
columns (method, tp, ...). Keys are compared as numbers where both read as numbers ("4" equals 4.0), else as text.
"""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import median
from typing import Any

__all__ = ["NOT_KEYS", "Key", "Row", "canonical", "grouped", "matches", "median_row", "merge_seeds", "number", "plain"]
__all__ += ["ratio_row", "ratios", "read_row", "read_rows", "spread_row"]
__all__ += ["FEWEST_ROUNDS", "median_interval", "value_row"]

Key = str | int | float

MISS = 0.05  # probability that the interval of a median misses it, both sides together
FEWEST_ROUNDS = 6  # fewer values have no interval at that probability: 2 · 0.5**5 > 0.05
ROUNDING = 1e-6  # share of a value by which the mean of single-precision numbers may lie outside their extremes
PLAIN = frozenset((str, float, int, bool, type(None)))
NOT_KEYS = frozenset({"quantity", "value", "unit", "low", "high", "seed", "source"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A value with its unit, quantity and keys."""

    quantity: str  # name of the counted, measured or simulated quantity
    value: float  # in `unit`; may be NaN or infinite, which no claim accepts
    unit: str  # unit of value, low and high
    keys: Mapping[str, Key] = field(default_factory=dict)  # further keys: method, tp, pp, ...
    low: float | None = None  # lower end of the spread, in `unit`
    high: float | None = None  # upper end of the spread, in `unit`
    seed: int | None = None  # seed it was obtained with
    source: str = ""  # place in the paper; empty for our values
    calibrated: bool = False  # whether a cost model was calibrated on this cell, which then proves nothing

    def __post_init__(self) -> None:
        if not self.quantity:
            raise ValueError(f"quantity is {self.quantity!r}; it must be a non-empty text")
        if not isinstance(self.unit, str):
            raise ValueError(f"unit is {self.unit!r}; it must be a text ('' for a pure number)")
        if (self.low is None) != (self.high is None):
            raise ValueError(f"low is {self.low} and high is {self.high}; give both or none")
        if self.low is not None and self.high is not None:
            for name, bound in (("low", self.low), ("high", self.high)):
                if not math.isfinite(bound):
                    raise ValueError(f"{name} is {bound}; it must be finite")
            if self.low > self.high:
                raise ValueError(f"low is {self.low}, above high {self.high}")
            slack = ROUNDING * max(abs(self.low), abs(self.high))
            if not self.low - slack <= self.value <= self.high + slack:
                raise ValueError(f"value is {self.value}, outside its spread, low {self.low} to high {self.high}")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int)):
            raise ValueError(f"seed is {self.seed!r}; it must be a whole number")

    @property
    def interval(self) -> tuple[float, float]:
        """The spread, or the value twice where none is known."""
        return (self.value, self.value) if self.low is None or self.high is None else (self.low, self.high)

    @property
    def spread_known(self) -> bool:
        """Whether the row carries a spread."""
        return self.low is not None

    def to_json(self) -> dict[str, Any]:
        """Return the row as a flat dictionary, keys beside the value."""
        flat = {"quantity": self.quantity, **self.keys, "value": self.value, "unit": self.unit}
        optional = {"low": self.low, "high": self.high, "seed": self.seed, "source": self.source or None}
        return flat | {name: value for name, value in optional.items() if value is not None}


def value_row(
    quantity: str, value: float, unit: str = "1", /, *, low: Any = None, high: Any = None, **keys: Any
) -> dict[str, Any]:
    """Return a flat row of one value, with its spread (two numbers) where there is one."""
    return Row(quantity=quantity, value=value, unit=unit, keys=keys, low=low, high=high).to_json()


def median_row(quantity: str, values: Sequence[float], unit: str = "1", /, **keys: Any) -> dict[str, Any]:
    """Return a flat row of the median of six values or more, with its 95 % interval."""
    low, high = median_interval(values)
    return value_row(quantity, median(values), unit, low=low, high=high, **keys)


def ratio_row(quantity: str, above: Sequence[float], below: Sequence[float], /, **keys: Any) -> dict[str, Any]:
    """Return a flat row of the median of the ratios of paired values (of one round each), with its 95 % interval."""
    return median_row(quantity, ratios(above, below), **keys)


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Divide pair by pair."""
    return [a / b for a, b in zip(above, below, strict=True)]


def spread_row(quantity: str, values: Sequence[float], unit: str = "1", /, **keys: Any) -> dict[str, Any]:
    """Return a flat row of the median of a few values, the least and the largest as its spread."""
    return value_row(quantity, median(values), unit, low=min(values), high=max(values), **keys)


def plain(value: Any) -> Any:
    """Return a NumPy scalar, a tensor of one element or a plain value as a plain Python value."""
    if type(value) in PLAIN:
        return value
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        value = value.item()
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise ValueError(f"{value!r} is a {type(value).__name__}; a text, a number or a truth value is needed")


def number(value: Any, what: str) -> float:
    """Return a number (or the text of one) as a float; truth values are no numbers."""
    value = plain(value)
    if isinstance(value, bool) or value is None:
        raise ValueError(f"{what} is {value!r}; it must be a number")
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"{what} is {value!r}; it must be a number") from None


def canonical(key: Any) -> Key | None:
    """Return a key in the form for comparisons: a number if it reads as a finite number, else text, or None."""
    if type(key) is int:
        return key
    return _canonical(key if type(key) is str else plain(key))


@lru_cache(maxsize=100_000, typed=True)
def _canonical(key: Any) -> Key | None:
    if key is None or (isinstance(key, float) and math.isnan(key)):
        return None
    if isinstance(key, bool):
        return str(key).lower()
    try:
        as_number = float(key)
    except ValueError:
        text = key.strip()
        return (text.lower() if text in ("True", "False") else text) or None
    if not math.isfinite(as_number):
        return str(key)
    return int(as_number) if as_number.is_integer() else as_number


def read_row(raw: Mapping[str, Any]) -> Row:
    """Read a row from a flat mapping such as a line of a CSV file or an entry of `values`."""
    missing = [name for name in ("quantity", "value", "unit") if name not in raw or raw[name] is None]
    if missing:
        raise ValueError(f"{missing[0]} is missing in {dict(raw)!r}; every row has quantity, value and unit")
    keys = {str(name): canonical(key) for name, key in raw.items() if name not in NOT_KEYS}
    return Row(
        quantity=str(raw["quantity"]).strip(),
        value=number(raw["value"], f"value of {raw['quantity']!r}"),
        unit=raw["unit"].strip() if isinstance(raw["unit"], str) else raw["unit"],
        keys={name: key for name, key in keys.items() if key is not None},
        low=_optional_number(raw.get("low"), "low"),
        high=_optional_number(raw.get("high"), "high"),
        seed=_seed(raw.get("seed")),
        source=str(raw.get("source") or ""),
    )


def _optional_number(value: Any, what: str) -> float | None:
    if type(value) is float or value is None:
        return value
    value = plain(value)
    return None if value is None or value == "" else number(value, what)


def _seed(value: Any) -> int | None:
    seed = _optional_number(value, "seed")
    if seed is not None and not seed.is_integer():
        raise ValueError(f"seed is {seed}; it must be a whole number")
    return None if seed is None else int(seed)


def read_rows(raw_rows: Iterable[Mapping[str, Any]], what: str) -> tuple[Row, ...]:
    """Read rows and refuse two of the same thing; errors name the table, `what`, and the position of the row."""
    rows: list[Row] = []
    seen: dict[tuple, int] = {}
    for position, raw in enumerate(raw_rows, start=1):
        try:
            row = read_row(raw)
        except (ValueError, AttributeError, TypeError) as error:
            raise ValueError(f"{what}, row {position}: {error}") from None
        identity = (row.quantity, _identity(row.keys), row.seed)
        if identity in seen:
            raise ValueError(
                f"{what}, row {position}: says the same as row {seen[identity]} ({row.quantity!r}, {dict(row.keys)})"
            )
        seen[identity] = position
        rows.append(row)
    return tuple(rows)


def matches(row: Row, where: Mapping[str, Any], columns: Container[str] | None = None) -> bool:
    """Say whether a row has the keys of `where`, each a value or a list of choices; `columns` limits the keys."""
    for name, wanted in where.items():
        if columns is not None and name not in columns:
            continue
        if name not in row.keys:
            return False
        if isinstance(wanted, (list, tuple)):
            if row.keys[name] not in map(canonical, wanted):
                return False
        elif row.keys[name] != canonical(wanted):
            return False
    return True


def merge_seeds(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Merge rows that differ by seed alone into their mean, with smallest and largest as the spread."""
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault((row.quantity, _identity(row.keys)), []).append(row)
    return tuple(_mean(group) for group in groups.values())


def _identity(keys: Mapping[str, Key]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, str(key)) for name, key in keys.items()))


def _mean(group: Sequence[Row]) -> Row:
    if len(group) == 1:
        return group[0]
    if len({row.unit for row in group}) > 1:
        raise ValueError(f"{group[0].quantity!r} has several units, {sorted({row.unit for row in group})}; use one")
    values = [row.value for row in group]
    if not all(math.isfinite(value) for value in values):
        return replace(group[0], value=math.nan, seed=None, low=None, high=None)
    lows, highs = zip(*(row.interval for row in group), strict=True)
    return replace(group[0], value=sum(values) / len(values), seed=None, low=min(lows), high=max(highs))


def grouped(rows: Sequence[Row], names: Iterable[str]) -> list[tuple[dict[str, Key], list[Row]]]:
    """Group rows by all key columns but `names`, in the order they come."""
    left_out = set(names)
    groups: dict[tuple, tuple[dict[str, Key], list[Row]]] = {}
    for row in rows:
        rest = {name: key for name, key in row.keys.items() if name not in left_out}
        groups.setdefault(_identity(rest), (rest, []))[1].append(row)
    return list(groups.values())


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return an interval that holds the median with probability 95 % or more, the sign test's.

    Args:
        values: At least 6 independent values of any one distribution.

    Returns:
        The j-th smallest and the j-th largest value, j as large as a binomial distribution with probability 1/2 allows.

    Raises:
        ValueError: If there are too few values.

    Source: H. A. David and H. N. Nagaraja, Order Statistics, section 7.1.
    """
    if len(values) < FEWEST_ROUNDS:
        raise ValueError(f"values has {len(values)} entries; it must have at least {FEWEST_ROUNDS} for an interval")
    outside, tail = 0, 2.0 ** -len(values)
    while 2 * (tail + math.comb(len(values), outside + 1) * 2.0 ** -len(values)) <= MISS:
        outside += 1
        tail += math.comb(len(values), outside) * 2.0 ** -len(values)
    ordered = sorted(values)
    return ordered[outside], ordered[-1 - outside]
