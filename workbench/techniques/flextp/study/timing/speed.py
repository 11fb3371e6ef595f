"""What is asked of the speed of balancing, measured in one run: beside the ideal, beside its criterion, and idle.

What: with one straggler of χ = 8, SEMI and SEMI refined beside the speedup of a balance that costs and drops nothing,
and ZERO beside what Eq. 1 allows, with the current mean and in its one-shot form; without stragglers, a model with
`balance` beside the same one without.
Source: ours; the bounds are those of `rows`.
Left out: accuracy; of what balancing costs idle ranks, choosing columns anew once an epoch.
"""

from __future__ import annotations

from typing import Any

from ...runtime.balance import PATIENCE
from .compared import keys_of, variants_of
from .size import Size
from .study import Measured, measure_variants
from ..variant import Variant

__all__ = ["COMPARED", "measure_machinery", "measure_speed"]

HEAVY = 8.0  # χ
ONE = {"skewness": [HEAVY]}
PATIENT = {"patience": PATIENCE}  # else a rank that is disturbed once becomes a second straggler, and Eq. 3 plans
COMPARED = (
    {"solution": "Baseline"},
    {"solution": "Baseline", **ONE},
    {"solution": "ZERO", "selection": "Pri", **ONE},
    {"solution": "ZERO", "selection": "Pri", "reference": "mean", **ONE},
    {"solution": "MIG", **PATIENT, **ONE},
    {"solution": "SEMI", "selection": "PriDiffR", **PATIENT, **ONE},
    {"solution": "SEMI", "selection": "Pri", "refine": True, **PATIENT, **ONE},
)
"""What is timed, in the plain values of `Variant`."""
KEYS = ("skewness",)
BALANCED, UNBALANCED = "with balance", "without"
MOST_IDLE = 1.02  # what balancing may cost where there is nothing to balance, over the model as it is
ROUNDS = 20  # of the machinery; its interval has to be narrow
TURN = PATIENCE  # iterations timed as one: their times travel as one message


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
    variants = {BALANCED: Variant(solution="SEMI", refine=True, patience=PATIENCE), UNBALANCED: None}  # as `balance` does
    keys = {name: {"solution": name} for name in variants}
    return measure_variants(
        variants, keys=keys, size=size, rounds=rounds, turn=turn, slowness=1.0, warmup=2, chooses=False, **more
    )
