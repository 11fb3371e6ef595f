"""Virtual ranks against real ones, from the first batch to the accuracy.

Source: none; the accuracy study runs on virtual ranks, and this says that nothing depends on it.
Simplified: one short training a variant. Left out: what tests say already, product by product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.launch import Ranks

from .accuracy import check_training, train_vit, train_vit_on_ranks
from .scores import PER_CENT, name_of

__all__ = ["compare_on_ranks"]


def compare_on_ranks(
    compared: Sequence[Mapping[str, Any]], *, num_ranks: int, timeout_s: float = 600, **recipe: Any
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Train every variant on real and on virtual ranks.

    Args:
        compared: fields of `Variant`, each.
        num_ranks: how many, of either kind.
        timeout_s: seconds that one training on real ranks may take.
        recipe: further arguments of `train_vit`.

    Returns:
        Rows by solution: `accuracy_difference` (points), `loss_difference` (a share of the virtual ranks' loss),
        `dropped_difference` (points of all products) and `plans_difference` (plans that are not the same), real less
        virtual; and what each training found, with its `solution` and `ranks`.

    Raises:
        ValueError: as `train_vit`, before any rank starts.
    """
    rows, found = [], []
    for variant in compared:
        check_training(**recipe, **variant, num_ranks=num_ranks)
    with Ranks(num_ranks, timeout_s=timeout_s, preload=(train_vit.__module__,)) as ranks:
        for variant in compared:
            arguments = {**recipe, **variant, "num_ranks": num_ranks}
            there, here = train_vit_on_ranks(ranks, **arguments), train_vit(**arguments)
            name = name_of(variant)
            found += [{"solution": name, "ranks": "real", **there}, {"solution": name, "ranks": "virtual", **here}]
            rows += [{"solution": name, **row} for row in _differences(there, here)]
    return rows, found


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = (
        ("accuracy_difference", PER_CENT * (there["accuracy"] - here["accuracy"]), "%"),
        ("loss_difference", there["train_loss"] / here["train_loss"] - 1, "1"),
        ("dropped_difference", PER_CENT * (there["dropped_share"] - here["dropped_share"]), "%"),
        ("plans_difference", float(_num_different(there["plans"], here["plans"])), "1"),
    )
    return [{"quantity": quantity, "value": value, "unit": unit} for quantity, value, unit in found]


def _num_different(plans: Sequence[Mapping], others: Sequence[Mapping]) -> int:
    """Count the plans that differ, and those that only one side made."""
    unequal = sum(one != other for one, other in zip(plans, others, strict=False))
    return unequal + abs(len(plans) - len(others))
