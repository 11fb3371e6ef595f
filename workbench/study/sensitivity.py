"""Which inputs a computed number hangs on, one at a time, and what an input would have to be for the paper's number."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from workbench.checks import require_positive
from workbench.cluster.fitting import bisected
from workbench.rows import value_row

__all__ = ["elasticity", "needed", "sensitivity_rows"]

STEP = 1.05  # factor of an input, up and down
FARTHEST = 16.0  # times an input may be off in either direction
BISECTIONS = 30
SHOWN = 3  # inputs, those with the largest effect

Inputs = Mapping[str, float]


def elasticity(number: Callable[..., float], inputs: Inputs, name: str) -> float:
    """Return by how many per cent a number changes for one per cent more of an input (central difference)."""
    up, down = (number(**{**inputs, name: inputs[name] * factor}) for factor in (STEP, 1 / STEP))
    return math.log(up / down) / math.log(STEP * STEP)


def needed(number: Callable[..., float], inputs: Inputs, name: str, wanted: float) -> float | None:
    """Return the value of an input with which a number is as wanted; None within 16 times of the input's own value.

    The number must rise or fall with the input throughout; of several values one is returned.
    """
    low, high = inputs[name] / FARTHEST, inputs[name] * FARTHEST
    at = lambda value: number(**{**inputs, name: value})  # noqa: E731
    first, last = at(low), at(high)
    if not min(first, last) <= wanted <= max(first, last):
        return None
    is_rising = last > first
    return bisected(lambda value: (at(value) < wanted) == is_rising, low, high, BISECTIONS)


def sensitivity_rows(number: Callable[..., float], inputs: Inputs, wanted: float, **keys: Any) -> list[dict[str, Any]]:
    """Return our number, the wanted one, and each input's elasticity; of the three largest also the value needed.

    Args:
        number: the computation; called with all inputs by name, it returns a positive number.
        inputs: their values, all positive.
        wanted: the paper's number.
        keys: key columns of the rows; `input` is added.

    Returns:
        rows of `ours` and `wanted`, of `elasticity`, and of `needed_over_ours`, an input's value with which the number
        is as wanted over its own; no row where it would have to be more than 16 times off.
    """
    require_positive(wanted=wanted, **inputs)
    effects = {name: elasticity(number, inputs, name) for name in inputs}
    rows = [value_row("ours", number(**inputs), **keys), value_row("wanted", wanted, **keys)]
    rows += [value_row("elasticity", effect, input=name, **keys) for name, effect in effects.items()]
    for name in sorted(effects, key=lambda name: -abs(effects[name]))[:SHOWN]:
        value = needed(number, inputs, name, wanted) if effects[name] else None
        if value is not None:
            rows.append(value_row("needed_over_ours", value / inputs[name], input=name, **keys))
    return rows
