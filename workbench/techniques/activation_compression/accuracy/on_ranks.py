"""Virtual ranks against real ones, from the first batch to the score.

Source: none; the accuracy study runs on virtual ranks, and this says that nothing depends on it.
Simplified: one short run a method. Left out: what tests say already, step by step and gradient by gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .fine_tuning import fine_tune, fine_tune_on_ranks
from .ledger import QUANTITIES
from .scores import PER_CENT

__all__ = ["compare_on_ranks"]


def compare_on_ranks(
    methods: Sequence[str], *, timeout_s: float = 600, **arguments: Any
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Fine-tune under each method on real and on virtual ranks.

    Args:
        methods: rows of table 1.
        timeout_s: seconds after which real ranks are stopped.
        arguments: further ones of `fine_tune`.

    Returns:
        Rows by method: `score_difference` (%), `loss_difference` (a share of the virtual ranks' loss) and
        `bytes_difference`, real less virtual; and all cells.
    """
    rows, cells = [], []
    for name in methods:
        there = fine_tune_on_ranks(method=name, timeout_s=timeout_s, **arguments)
        here = fine_tune(method=name, **arguments)
        cells += [there, here]
        found = (
            ("score_difference", PER_CENT * (there["score"] - here["score"]), "%"),
            ("loss_difference", there["train_loss"] / here["train_loss"] - 1, "1"),
            ("bytes_difference", sum(there[quantity] - here[quantity] for quantity in QUANTITIES), "B"),
        )
        rows += [{"quantity": what, "method": name, "value": value, "unit": unit} for what, value, unit in found]
    return rows, cells
