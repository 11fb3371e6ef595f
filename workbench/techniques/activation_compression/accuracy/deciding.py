"""What a run of the accuracy study can decide: nothing at chance, within noise, or that the paper itself leaves open.

Source: ours. A score is at chance within two standard errors of a constant answer's.
Simplified: the error is that of a share of as many rows, for correlations 1/sqrt(rows), whatever the metric.
Left out: tests of significance between methods.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from .scores import BASELINE, Values

if TYPE_CHECKING:
    import pandas as pd

    from workbench.reproduction.claims import Claim

__all__ = ["chance_reasons", "not_comparable"]

CHANCE_ERRORS = 2.0  # standard errors by which an uncompressed score must lie above chance


def not_comparable(
    cells: Iterable[Values], claims: Iterable[Claim], printed: Sequence[pd.DataFrame] = ()
) -> dict[str, str]:
    """Say which claims this run cannot decide, whatever the methods do.

    A claim about a task that the uncompressed encoder is at chance on. An order of scores that are all at chance. A
    share of the score to be kept whose tolerance is less than a standard error of the score; that a constant answer
    would keep, too; or that the paper prints twice, the two further apart than any one value can be near to both.

    Args:
        cells: what `fine_tune` returned.
        claims: of the item; one about a single task says it in `where`.
        printed: the paper's relative scores (task, method, value): first the item's own table, then those in which the
            same setting is printed again.

    Returns:
        Name of a claim -> reason.
    """
    cells = list(cells)
    at_chance, plain = chance_reasons(cells), _by_task(cell for cell in cells if cell["method"] == BASELINE)
    found = {}
    for claim in claims:
        task = claim.where.get("task")
        if task not in plain:
            continue
        reason = at_chance.get(task) or _order_at_chance(claim, _by_task(cells)[task])
        if not reason and claim.quantity == "relative_score":
            reason = _undecidable_share(claim, plain[task], [_printed(table, claim) for table in printed])
        if reason:
            found[claim.name] = reason
    return found


def chance_reasons(cells: Iterable[Values]) -> dict[str, str]:
    """Say for which tasks the uncompressed encoder is no better than a constant answer.

    Args:
        cells: what `fine_tune` returned.

    Returns:
        Task -> reason, for tasks whose mean uncompressed score lies less than two standard errors above chance. The
        error is that of a share of as many rows, for correlations 1/sqrt(rows).
    """
    found = {}
    for task, plain in _by_task(cell for cell in cells if cell["method"] == BASELINE).items():
        if _is_at_chance(plain):
            found[task] = (
                f"without compression this encoder scores {_mean(plain):.1%} on {task}, a constant answer "
                f"{plain[0]['chance']:.1%} (standard error {_error(plain[0]):.1%}): at chance, there is nothing to lose"
            )
    return found


def _by_task(cells: Iterable[Values]) -> dict[str, list[Values]]:
    found: dict[str, list[Values]] = {}
    for cell in cells:
        found.setdefault(cell["task"], []).append(cell)
    return found


def _mean(cells: Sequence[Values]) -> float:
    return fmean(cell["score"] for cell in cells)


def _error(cell: Values) -> float:
    """Return the standard error of a score: of a share of as many rows, for correlations 1/sqrt(rows)."""
    chance, rows = cell["chance"], cell["num_validation"]
    return math.sqrt(chance * (1 - chance) / rows) if chance > 0 else 1 / math.sqrt(rows)


def _is_at_chance(cells: Sequence[Values]) -> bool:
    return _mean(cells) <= cells[0]["chance"] + CHANCE_ERRORS * _error(cells[0])


def _order_at_chance(claim: Claim, cells: Sequence[Values]) -> str:
    """Give a reason where all that an order compares is at chance."""
    along, order = getattr(claim, "along", ""), getattr(claim, "order", ())
    groups = [[cell for cell in cells if cell.get(along) == key and _fits(cell, claim)] for key in order]
    if not groups or not all(group and _is_at_chance(group) for group in groups):
        return ""
    scores = " and ".join(f"{_mean(group):.1%}" for group in groups)
    return f"{scores} are at chance, where a constant answer scores {cells[0]['chance']:.1%}: no order can be seen"


def _fits(cell: Values, claim: Claim) -> bool:
    return all(cell.get(name) == key for name, key in claim.where.items())


def _printed(table: pd.DataFrame, claim: Claim) -> float | None:
    found = table[(table.task == claim.where["task"]) & (table.method == claim.where["method"])].value
    return float(found.iloc[0]) if len(found) else None


def _undecidable_share(claim: Claim, plain: Sequence[Values], printed: Sequence[float | None]) -> str:
    """Give a reason why a share of the score within a tolerance of the paper's would mean nothing."""
    score, error = _mean(plain), _error(plain[0])
    if claim.abs < error / score:
        return (
            f"the tolerance, {claim.abs:.2f} of the score, is less than the score's standard error, {error:.1%} of "
            f"{score:.1%}: {error / score:.2f}"
        )
    constant = plain[0]["chance"] / score
    target = printed[0] if printed else None
    if target is not None and abs(constant - target) <= claim.abs:
        return f"a constant answer keeps {constant:.2f} of the score, which is within the tolerance of {target:.2f}"
    known = [value for value in printed if value is not None]
    if known and max(known) - min(known) > 2 * claim.abs:
        return (
            f"the paper prints this twice, as {min(known):.2f} and {max(known):.2f}: no value is within the tolerance "
            f"of both"
        )
    return ""
