"""The accuracy that goes with a measured speed: trainings that drop as much as was dropped while timed.

What: `dropped_as_timed` reads from the rows of a timing study what each rank dropped under each solution, and says it as
a variant of the accuracy study, whose ranks drop as much; `rows_as_timed` turns the trainings into rows by solution.
Speed and loss are then of one plan. `undecided` says which solutions' losses tell nothing.
Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", abstract, which claims both.
Simplified: the median share of each rank, to two decimals and constant, of columns chosen by Pri, whatever the solution
chose by; what migrates loses nothing, and is left out.
Left out: training the timed model itself, whose batch is random.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..method.ratio import MOST_REMOVED
from .scores import accuracy_rows

__all__ = ["dropped_as_timed", "rows_as_timed", "undecided"]

Told = dict[str, Any]  # a variant in plain values
Rows = list[dict[str, Any]]

SHOWN = ("accuracy", "accuracy_loss", "loss_in_spreads")
BASELINE, CONTROL = "Baseline", "ZERO-Pri"  # which drops most of a straggler's columns
NOTHING_DROPPED = (
    "it dropped nothing while timed, so that its training would be the Baseline's own; whether migrating loses anything "
    "is judged in fig-10a, of MIG"
)


def dropped_as_timed(rows: Iterable[Mapping[str, Any]]) -> dict[str, Told]:
    """Return a variant for every solution that dropped something, by its name.

    Args:
        rows: of a timing study with stragglers, with key columns solution, skewness and rank, ranks in their order.
    """
    shares = _shares(rows)
    return {
        name: {"solution": "ZERO", "selection": "Pri", "dropped": dropped} for name, dropped in shares.items() if any(dropped)
    }  # fmt: skip


def _shares(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return what each rank dropped, solution by solution, where one straggled."""
    shares: dict[str, list[float]] = {}
    for row in rows:
        if row["quantity"] == "rank_drops" and row["solution"] != BASELINE and row["skewness"] > 1:
            shares.setdefault(row["solution"], []).append(min(round(row["value"], 2), MOST_REMOVED))
    return shares


def undecided(timed: Iterable[Mapping[str, Any]], trained: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Say which solutions' losses tell nothing, and why, by the solution's name.

    Who dropped nothing has nothing to lose; and a training in which ZERO-Pri, which drops most, loses less than the
    Baseline differs over seeds, could not show what the others lose.

    Args:
        timed: as for `dropped_as_timed`.
        trained: of `rows_as_timed`.
    """
    shares = _shares(timed)
    reasons = {name: NOTHING_DROPPED for name, dropped in shares.items() if not any(dropped)}
    spreads = {row["solution"]: row["value"] for row in trained if row["quantity"] == "loss_in_spreads"}
    if spreads.get(CONTROL, 1.0) < 1:
        blind = (
            f"this training does not show what dropping costs: {CONTROL}, which dropped {max(shares[CONTROL]):.0%} of a "
            f"rank's columns, lost {spreads[CONTROL]:.2f} of the Baseline's spread over seeds"
        )
        reasons |= {name: blind for name, dropped in shares.items() if any(dropped)}
    return reasons


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
        its columns that each rank drops (`trained_drops`, 1).
    """
    rows: Rows = []
    places = [(seed, name) for seed in seeds for name in ("Baseline", *variants)]
    trainings = dict(zip(places, found, strict=True))
    for name, told in variants.items():
        pairs = {"Baseline": {"solution": "Baseline"}, name: told}
        wanted = [{**each, "seed": seed} for seed in seeds for each in pairs.values()]
        mine = accuracy_rows(wanted, [trainings[seed, which] for seed in seeds for which in pairs], **same)
        rows += [
            {**row, "solution": name}
            for row in mine if row["quantity"] in SHOWN and row["solution"] != "Baseline"
        ]  # fmt: skip
        rows += [
            {"quantity": "trained_drops", "solution": name, "rank": rank, **same, "value": share, "unit": "1"}
            for rank, share in enumerate(told["dropped"])
        ]  # fmt: skip
    return rows
