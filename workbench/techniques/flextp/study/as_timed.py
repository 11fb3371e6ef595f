"""The accuracy that goes with a measured speed: trainings that drop as much as was dropped while timed.

What: `dropped_as_timed` reads from the rows of a timing study what each solution dropped on its one straggler, and says
it as a variant of the accuracy study, which drops that share there; `rows_as_timed` turns the trainings into rows by
solution. Speed and loss are then of one plan.
Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", abstract, which claims both.
Simplified: a constant share to two decimals, of columns chosen by Pri, whatever the solution chose by; what migrates
loses nothing, and is left out.
Left out: training the timed model itself, whose batch is random.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..method.ratio import MOST_REMOVED
from .scores import accuracy_rows

__all__ = ["dropped_as_timed", "rows_as_timed"]

Told = dict[str, Any]  # a variant in plain values
Rows = list[dict[str, Any]]

SHOWN = ("accuracy", "accuracy_loss", "loss_in_spreads")
LOSSLESS = ("Baseline", "MIG")


def dropped_as_timed(rows: Iterable[Mapping[str, Any]], num_ranks: int) -> dict[str, Told]:
    """Return a variant for every solution that may drop, by its name.

    Args:
        rows: of a timing study with one straggler, with key columns solution and skewness.
        num_ranks: N, of which the straggler is one.
    """
    found = {}
    for row in rows:
        if row["quantity"] == "dropped_share" and row["solution"] not in LOSSLESS and row["skewness"] > 1:
            ratio = min(round(num_ranks * row["value"], 2), MOST_REMOVED)
            found[row["solution"]] = {
                "solution": "ZERO", "selection": "Pri", "pruning_ratio": ratio, "skewness": [row["skewness"]],
            }  # fmt: skip
    return found


def rows_as_timed(
    variants: Mapping[str, Told], seeds: Sequence[int], found: Sequence[Mapping[str, Any]], **same: Any
) -> Rows:
    """Turn trainings into rows by solution.

    Args:
        variants: of `dropped_as_timed`.
        seeds: of the trainings.
        found: what `train_vit` returned for each of `cells.compared_by_seed(variants.values(), seeds)`.
        same: further keys of all rows.

    Returns:
        `accuracy` and `accuracy_loss` (%) by seed, `loss_in_spreads` (of the Baseline over its seeds), and the share of
        its columns that the straggler drops (`straggler_drops`, 1).
    """
    rows: Rows = []
    places = [(seed, name) for seed in seeds for name in ("Baseline", *variants)]
    trainings = dict(zip(places, found, strict=True))
    for name, told in variants.items():
        pairs = {"Baseline": {"solution": "Baseline"}, name: told}
        wanted = [{**each, "seed": seed} for seed in seeds for each in pairs.values()]
        mine = accuracy_rows(wanted, [trainings[seed, which] for seed in seeds for which in pairs], **same)
        rows += [
            {**row, "solution": name, "skewness": told["skewness"][0]}
            for row in mine if row["quantity"] in SHOWN and row["solution"] != "Baseline"
        ]  # fmt: skip
        drops = {"quantity": "straggler_drops", "solution": name, "skewness": told["skewness"][0], **same}
        rows.append({**drops, "value": told["pruning_ratio"], "unit": "1"})
    return rows
