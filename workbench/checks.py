"""Refusals of numbers and names, with one form of message for each kind."""

import math
from collections.abc import Collection
from numbers import Integral, Real
from typing import Any

__all__ = ["require_counts", "require_not_negative", "require_one_of", "require_positive"]


def require_counts(least: int, /, **values: Any) -> None:
    """Refuse values that are not whole numbers of at least `least`."""
    for name, value in values.items():
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} is {value!r}; it must be a whole number of at least {least}")


def require_not_negative(**values: Any) -> None:
    """Refuse values that are not finite numbers of 0 or more."""
    for name, value in values.items():
        if not _is_finite(value) or value < 0:
            raise ValueError(f"{name} is {value!r}; it must be finite and not negative")


def require_one_of(known: Collection[str], /, **values: Any) -> None:
    """Refuse values that are not one of the known names."""
    for name, value in values.items():
        if value not in known:
            raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(known)}")


def require_positive(**values: Any) -> None:
    """Refuse values that are not finite numbers above 0."""
    for name, value in values.items():
        if not _is_finite(value) or value <= 0:
            raise ValueError(f"{name} is {value!r}; it must be finite and above 0")


def _is_finite(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
