"""The accuracy that goes with a measured speed: trainings that drop as much as was dropped while timed.

What: `variants_as_timed` reads from the rows of a timing study what each rank dropped under each solution, and says it
as a variant of the accuracy study, whose ranks drop as much; `rows_as_timed` turns the trainings into rows by solution.
Speed and loss are then of one plan. A control, in which every rank drops what Pri's straggler did, says whether such a
training can show a loss at all: `blind_reason`.
Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", abstract, which claims both.
Simplified: the median share of each rank, to two decimals and constant, of columns chosen by Pri, whatever the solution
chose by; who dropped nothing is trained as MIG, by modelled times; what else migrates loses nothing, and is left out.
Left out: training the timed model itself, whose batch is random.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..method.plan import MOST_REMOVED
from .scores import accuracy_rows

__all__ = ["CONTROL", "blind_reason", "rows_as_timed", "variants_as_timed"]

Told = dict[str, Any]  # a variant in plain values
Rows = list[dict[str, Any]]

SHOWN = {name: name for name in ("accuracy", "accuracy_loss", "loss_in_spreads")} | {
    share: f"trained_{share}"
    for share in ("dropped_share", "migrated_share")  # beside those that were timed
}
BASELINE, MOST_DROPPING = "Baseline", "ZERO-Pri"
CONTROL = "ZERO-Pri everywhere"  # on every rank


def variants_as_timed(rows: Iterable[Mapping[str, Any]]) -> dict[str, Told]:
    """Return a variant for every solution by its name, and the control.

    Args:
        rows: of a timing study with stragglers, with key columns solution, skewness and rank, ranks in their order.
    """
    shares: dict[str, list[float]] = {}
    skewness = 1.0
    for row in rows:
        if row["quantity"] == "rank_drops" and row["solution"] != BASELINE and row["skewness"] > 1:
            shares.setdefault(row["solution"], []).append(min(round(row["value"], 2), MOST_REMOVED))
            skewness = max(skewness, row["skewness"])
    dropping, migrating = {"solution": "ZERO", "selection": "Pri"}, {"solution": "MIG", "skewness": [skewness]}
    variants = {name: {**dropping, "dropped": each} if any(each) else migrating for name, each in shares.items()}
    most = max(shares.get(MOST_DROPPING, [0.0]))
    return variants | ({CONTROL: {**dropping, "pruning_ratio": most, "everywhere": True}} if most else {})


def blind_reason(trained: Iterable[Mapping[str, Any]]) -> str:
    """Say why losses tell nothing, where the control loses less than the Baseline differs over seeds; empty if it does not.

    Args:
        trained: of `rows_as_timed`.
    """
    spreads = {row["solution"]: row["value"] for row in trained if row["quantity"] == "loss_in_spreads"}
    if not spreads or spreads.get(CONTROL, 0.0) >= 1:
        return ""  # one seed alone has no spread, and no claim to judge
    return (
        f"this training does not show what dropping costs: {CONTROL}, where every rank drops what the straggler did, lost "
        f"{spreads.get(CONTROL, 0.0):.2f} of the Baseline's spread over seeds"
    )


def rows_as_timed(
    variants: Mapping[str, Told], seeds: Sequence[int], found: Sequence[Mapping[str, Any]], **same: Any
) -> Rows:
    """Turn trainings into rows by solution.

    Args:
        variants: of `variants_as_timed`.
        seeds: of the trainings.
        found: what `train_vit` returned for each of `cells.compared_by_seed(variants.values(), seeds)`.
        same: further keys of all rows.

    Returns:
        `accuracy`, `accuracy_loss`, and of all products `trained_dropped_share` and `trained_migrated_share` (%) by seed;
        `loss_in_spreads` (of the Baseline over its seeds).
    """
    rows: Rows = []
    places = [(seed, name) for seed in seeds for name in ("Baseline", *variants)]
    trainings = dict(zip(places, found, strict=True))
    for name, told in variants.items():
        pairs = {"Baseline": {"solution": "Baseline"}, name: told}
        wanted = [{**each, "seed": seed} for seed in seeds for each in pairs.values()]
        mine = accuracy_rows(wanted, [trainings[seed, which] for seed in seeds for which in pairs], **same)
        rows += [
            {**row, "quantity": SHOWN[row["quantity"]], "solution": name}
            for row in mine
            if row["quantity"] in SHOWN and row["solution"] != "Baseline"
        ]
    return rows
