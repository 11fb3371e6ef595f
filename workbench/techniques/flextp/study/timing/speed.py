"""What is asked of the speed of balancing, measured in one run: beside the ideal, beside its criterion, and idle.

What: with one straggler of χ = 8, SEMI (refined) beside the speedup of a balance that costs and drops nothing, and ZERO
beside what Eq. 1 with the current mean allows; without stragglers, a model with `balance` beside the same one without.
Source: ours; the bounds are those of `rows`.
Left out: accuracy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .compared import keys_of, variants_of
from .size import Size
from .study import Measured, measure_variants
from ..variant import Variant

__all__ = ["ASKED", "COMPARED", "Asked", "asked_rows", "measure_machinery", "measure_speed"]

HEAVY = 8.0  # χ
ONE = {"skewness": [HEAVY]}
COMPARED = (
    {"solution": "Baseline"},
    {"solution": "Baseline", **ONE},
    {"solution": "ZERO", "selection": "Pri", **ONE},
    {"solution": "MIG", **ONE},
    {"solution": "SEMI", **ONE},
    {"solution": "SEMI", "refine": True, **ONE},
)
"""What is timed, in the plain values of `Variant`."""
KEYS = ("skewness",)
BALANCED, UNBALANCED = "with balance", "without"
MOST_IDLE = 1.02  # what balancing may cost where there is nothing to balance, over the model as it is
ROUNDS = 20  # of the machinery; its interval has to be narrow
TURN = 2  # iterations timed as one: what one leaves to do falls on the next


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What is asked of one quantity.

    Attributes:
        quantity: which rows.
        solution: whose.
        bound: that the interval must not reach over or under.
        is_least: whether the quantity must lie above the bound.
    """

    quantity: str
    solution: str
    bound: float
    is_least: bool = True

    def holds(self, row: Mapping[str, Any]) -> bool:
        """Return whether the whole interval of a row keeps to the bound."""
        return row["low"] >= self.bound if self.is_least else row["high"] <= self.bound

    @property
    def words(self) -> str:
        """Say what is asked."""
        return f"{'at least' if self.is_least else 'at most'} {self.bound:g}"


ASKED = (
    Asked(quantity="share_of_ideal", solution="SEMI refined", bound=0.75),
    Asked(quantity="share_of_bound", solution="ZERO-Pri", bound=0.9),
    Asked(quantity="over_unbalanced", solution=BALANCED, bound=MOST_IDLE, is_least=False),
    Asked(quantity="cpu_over_unbalanced", solution=BALANCED, bound=MOST_IDLE, is_least=False),
)


def measure_speed(*, size: Size, rounds: int, **more: Any) -> Measured:
    """Time the solutions at χ = 8 with one straggler, and Baseline without.

    Args:
        size, rounds: as for `measure_variants`.
        more: its further arguments.
    """
    return measure_variants(variants_of(COMPARED, KEYS), keys=keys_of(COMPARED, KEYS), size=size, rounds=rounds, **more)


def measure_machinery(*, size: Size, rounds: int = ROUNDS, turn: int = TURN, **more: Any) -> Measured:
    """Time a model with `balance` beside the same one without, as this machine is and with no straggler.

    Args:
        size, rounds, turn: as for `measure_variants`.
        more: its further arguments.
    """
    variants = {BALANCED: Variant(solution="SEMI", refine=True, patience=2), UNBALANCED: None}  # as `balance` does
    keys = {name: {"solution": name} for name in variants}
    return measure_variants(variants, keys=keys, size=size, rounds=rounds, turn=turn, slowness=1.0, warmup=2, **more)


def asked_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Put what is asked beside what was measured, for claims: key of, "asked" and "measured"."""
    found = []
    for row in rows:
        for asked in ASKED:
            if (row["quantity"], row.get("solution")) == (asked.quantity, asked.solution):
                place = {"quantity": f"{asked.quantity} beside what is asked", "solution": asked.solution, "unit": "1"}
                found.append({**place, "of": "asked", "value": asked.bound})
                found.append({**place, "of": "measured"} | {end: row[end] for end in ("value", "low", "high")})
    return found
