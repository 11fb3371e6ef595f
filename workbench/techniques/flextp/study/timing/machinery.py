"""What balancing costs where there is nothing to balance: a model with `balance` beside the same one without.

Source: ours.
Left out: accuracy; choosing columns anew once an epoch.
"""

from __future__ import annotations

from typing import Any

from ...runtime.balancer import PATIENCE
from ..variant import Variant
from .size import Size
from .study import Measured, measure_variants

__all__ = ["BALANCED", "MOST_IDLE", "measure_machinery"]

BALANCED, UNBALANCED = "with balance", "without"
MOST_IDLE = 1.02  # what balancing may cost where there is nothing to balance, over the model as it is
ROUNDS = 20  # the interval has to be narrow
TURN = PATIENCE  # iterations timed as one: their times travel as one message


def measure_machinery(*, size: Size, rounds: int = ROUNDS, turn: int = TURN, **more: Any) -> Measured:
    """Time both, as this machine is and with no straggler.

    Args:
        size, rounds, turn: as for `measure_variants`.
        more: its further arguments.
    """
    as_by_default = Variant(solution="SEMI", refine=True, patience=PATIENCE)
    variants = {BALANCED: as_by_default, UNBALANCED: None}
    keys = {name: {"solution": name} for name in variants}
    return measure_variants(
        variants, keys=keys, size=size, rounds=rounds, turn=turn, slowness=1.0, warmup=2, chooses=False, **more
    )
