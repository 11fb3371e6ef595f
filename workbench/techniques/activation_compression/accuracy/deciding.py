"""What a run of the accuracy study can decide: nothing at chance, within noise, or that the paper itself leaves open.

A verdict is taken away only where our value cannot mean it: an agreement that a constant answer would reach, too, or
within more than half of all there is to lose, a difference smaller than the error of the score, more points than there
are to lose, a value near one of two that the paper prints for settings which are one here. What lies outside of both,
or between them, is a disagreement, whatever the reason.

Source: ours. A score is at chance within two standard errors of a constant answer's, in accuracy where the task has it.
That the paper's 512 and 128 tokens are one setting for sentences of fewer tokens is our inference.
Simplified: the error is that of a share of as many rows, for correlations 1/sqrt(rows), whatever the metric.
Left out: tests of significance between methods.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING

from workbench.models.pretrained import DEFAULT_ENCODER

from .scores import BASELINE, PER_CENT, Values

if TYPE_CHECKING:
    import pandas as pd

    from workbench.reproduction.claims import Claim

__all__ = ["chance_reasons", "methods_at_chance", "not_comparable"]

ENOUGH_STEPS: Mapping[str, int] = MappingProxyType({"stsb": 1_000})
"""Task -> steps of MiniLM before which what a method loses is mostly what it has not learned yet.

STS-B, three seeds, batches of 32: after 360 steps T4 loses 12 to 31 points and Q1 11 to 24, after 1,080 at most 3.
"""
LEARNS_AFTER: Mapping[str, int] = MappingProxyType({"sst2": 200})
"""Task -> steps of MiniLM before which a method that answers by chance may only have learned nothing yet.

SST-2, batches of 32: T1 and T2 give one constant answer after 47 steps, after 250 neither does.
"""
CHANCE_ERRORS = 2.0  # standard errors by which a score must lie above chance
MOST_TOLERATED = 0.5  # of what there is to lose, the score above a constant answer's


def not_comparable(
    cells: Iterable[Values],
    claims: Iterable[Claim],
    printed: pd.DataFrame | None = None,
    settings: Mapping[str, pd.DataFrame] = MappingProxyType({}),
    contrast: str = "",
) -> dict[str, str]:
    """Say which claims this run cannot decide.

    A claim about a task that the uncompressed encoder is at chance on, or that was trained for too few steps; about a
    method that is at chance after few steps. An order of scores of which the lowest is no loss. An order of scores that
    are all at chance. Few points lost by a method at chance or where few can be lost, or many asked for there. A share
    of the score that agrees where a constant answer would, too, or by a tolerance of most of what can be lost; that is
    nearer to the paper's than the score's error lets see; or that is near one of two values which the paper prints and
    which lie further apart than both tolerances.

    Args:
        cells: what `fine_tune` returned, with the columns that claims are along.
        claims: of the item; one about a single task says it in `where`.
        printed: the paper's relative scores (task, method, value) of the item's own table.
        settings: the same by setting, of all tables whose settings are one here, the item's own among them.
        contrast: method that is to lose many points where the claims say that others lose few; where it loses as few,
            nothing is shown of the others.

    Returns:
        Name of a claim -> reason.
    """
    cells = list(cells)
    at_chance = chance_reasons(cells)
    found = {}
    for claim in claims:
        task = claim.where.get("task")
        here = [cell for cell in cells if cell["task"] == task]
        plain = [cell for cell in here if cell["method"] == BASELINE]
        if task is None and (reason := _not_learned_yet(claim, cells)):
            found[claim.name] = reason
        if not plain:
            continue
        reason = at_chance.get(task) or _unfinished(task, plain) or _order_at_chance(claim, here)
        reason = reason or _not_learned_yet(claim, here) or _order_of_no_loss(claim, plain, here)
        ours = [cell for cell in here if cell["method"] != BASELINE and _fits(cell, claim)]
        if not reason and ours and claim.quantity == "points_below":
            beside = [cell for cell in here if cell["method"] == contrast]
            reason = _points(claim, plain, ours) or _no_contrast(claim, plain, beside)
        target = None if printed is None or claim.quantity != "relative_score" else _printed(printed, claim)
        if not reason and ours and target is not None:
            by_setting = {setting: _printed(table, claim) for setting, table in settings.items()}
            reason = _undecidable_share(claim, plain, ours, target, by_setting)
        if reason:
            found[claim.name] = reason
    return found


def chance_reasons(cells: Iterable[Values]) -> dict[str, str]:
    """Say for which tasks the uncompressed encoder is no better than a constant answer.

    Args:
        cells: what `fine_tune` returned.

    Returns:
        Task -> reason.
    """
    cells = list(cells)
    plain = {
        task: [cell for cell in cells if (cell["task"], cell["method"]) == (task, method)]
        for task, method in methods_at_chance(cells)
        if method == BASELINE
    }
    return {
        task: f"without compression this encoder scores {_told(found)}: at chance, there is nothing to lose"
        for task, found in plain.items()
    }


def methods_at_chance(cells: Iterable[Values]) -> list[tuple[str, str]]:
    """List pairs (task, method) that are no better than a constant answer, the mean over their seeds.

    Args:
        cells: what `fine_tune` returned.
    """
    groups: dict[tuple[str, str], list[Values]] = {}
    for cell in cells:
        groups.setdefault((cell["task"], cell["method"]), []).append(cell)
    return [key for key, group in groups.items() if _is_at_chance(group)]


def _is_at_chance(cells: Sequence[Values]) -> bool:
    """Say whether the mean over cells of one task is less than two standard errors above a constant answer's.

    F1 hides how little a method knows where most answers are yes; there accuracy decides.
    """
    scores, chance = _measure(cells)
    return fmean(scores) <= chance + CHANCE_ERRORS * _error(chance, cells[0]["num_validation"])


def _measure(cells: Sequence[Values]) -> tuple[list[float], float]:
    """Return scores and a constant answer's score, in accuracy where the task is scored by F1."""
    chance = cells[0]["chance"]
    if cells[0]["metric"] != "f1":
        return [cell["score"] for cell in cells], chance
    share = chance / (2 - chance)  # of yes, since the F1 of always yes is 2 share / (1 + share)
    return [cell["scores"]["accuracy"] for cell in cells], max(share, 1 - share)


def _told(cells: Sequence[Values]) -> str:
    scores, chance = _measure(cells)
    measure = "accuracy" if cells[0]["metric"] == "f1" else cells[0]["metric"]
    error = _error(chance, cells[0]["num_validation"])
    return (
        f"{fmean(scores):.1%} ({measure}) on {cells[0]['task']}, a constant answer {chance:.1%} (standard error "
        f"{error:.1%})"
    )


def _error(chance: float, rows: int) -> float:
    """Return the standard error of a score: of a share of as many rows, for correlations 1/sqrt(rows)."""
    return math.sqrt(chance * (1 - chance) / rows) if chance > 0 else 1 / math.sqrt(rows)


def _fits(cell: Values, claim: Claim) -> bool:
    return all(cell.get(name) == key for name, key in claim.where.items())


def _order_at_chance(claim: Claim, cells: Sequence[Values]) -> str:
    """Give a reason where all that an order compares is at chance."""
    along, order = getattr(claim, "along", ""), getattr(claim, "order", ())
    groups = [[cell for cell in cells if cell.get(along) == key and _fits(cell, claim)] for key in order]
    if not groups or not all(group and _is_at_chance(group) for group in groups):
        return ""
    return f"{' and '.join(_told(group) for group in groups)}: at chance, no order can be seen"


def _order_of_no_loss(claim: Claim, plain: Sequence[Values], cells: Sequence[Values]) -> str:
    """Give a reason where the least score of an order of methods is above the uncompressed one, so that none harms."""
    order = getattr(claim, "order", ()) if getattr(claim, "along", "") == "method" else ()
    lowest = [cell for cell in cells if order and cell["method"] == order[0]]
    if not lowest or BASELINE in order:
        return ""
    ours, whole = (fmean(cell["score"] for cell in group) for group in (lowest, plain))
    if ours < whole:
        return ""
    return f"{order[0]} scores {ours:.1%}, no less than {whole:.1%} without compression: there is no harm to order"


def _unfinished(task: str | None, plain: Sequence[Values]) -> str:
    """Give a reason where the training of MiniLM was too short for what a method loses to be told."""
    enough = ENOUGH_STEPS.get(task or "", 0)
    if not enough or not any(_is_of_default(cell) for cell in plain):
        return ""
    steps = min(cell["num_steps"] for cell in plain)
    return (
        ""
        if steps >= enough
        else (
            f"{steps} steps are too few for {task}: before {enough:,} what a method loses is mostly what it has not learned "
            "yet (table 5 has scores after both)"
        )
    )


def _not_learned_yet(claim: Claim, cells: Sequence[Values]) -> str:
    """Give a reason where a method that the claim is about answers by chance after few steps of MiniLM."""
    along, order = getattr(claim, "along", None), getattr(claim, "order", (None,))
    compressed = [cell for cell in cells if cell["method"] != BASELINE and _fits(cell, claim)]
    for task, enough in LEARNS_AFTER.items():
        of_task = [cell for cell in compressed if cell["task"] == task]
        for key in order:
            group = [cell for cell in of_task if along is None or cell.get(along) == key]
            few = [cell for cell in group if _is_of_default(cell) and cell["num_steps"] < enough]
            if few and _is_at_chance(group):
                told, steps = few[0]["method"], min(cell["num_steps"] for cell in few)
                return f"{told} answers {task} by chance after {steps} steps: it may only have learned nothing yet"
    return ""


def _is_of_default(cell: Values) -> bool:
    return any(source["name"] == DEFAULT_ENCODER for source in cell["data"])


def _no_contrast(claim: Claim, plain: Sequence[Values], beside: Sequence[Values]) -> str:
    """Give a reason where the method that is to lose more than the claim allows loses no more either."""
    if not beside or claim.at_most is None:
        return ""
    lost = PER_CENT * (fmean(cell["score"] for cell in plain) - fmean(cell["score"] for cell in beside))
    if lost > claim.limit:
        return ""
    return (
        f"{beside[0]['method']}, which is to lose more, loses {lost:.1f} points: none of the two harms enough to tell"
    )


def _points(claim: Claim, plain: Sequence[Values], ours: Sequence[Values]) -> str:
    """Give a reason where few points are lost by a method that has lost all there is, or where more are asked for."""
    score = fmean(cell["score"] for cell in plain)
    most = PER_CENT * (score - plain[0]["chance"])
    if claim.at_least is not None:
        return f"{_told(plain)}: {most:.1f} points are all there is to lose" if most < claim.limit else ""
    lost = PER_CENT * (score - fmean(cell["score"] for cell in ours))
    if lost > claim.limit:
        return ""
    if claim.limit > MOST_TOLERATED * most:
        return f"{most:.1f} points above a constant answer are all there is to lose: {claim.limit:.0f} are most of them"
    if not _is_at_chance(ours):
        return ""
    return f"{_told(ours)}: at chance, where {lost:.1f} points are all there is to lose"


def _printed(table: pd.DataFrame, claim: Claim) -> float | None:
    found = table[(table.task == claim.where["task"]) & (table.method == claim.where["method"])].value
    return float(found.iloc[0]) if len(found) else None


def _undecidable_share(
    claim: Claim, plain: Sequence[Values], ours: Sequence[Values], target: float, by_setting: Mapping[str, float | None]
) -> str:
    """Give a reason why our share of the score, beside the paper's, would mean nothing."""
    of_seed = {cell["seed"]: cell["score"] for cell in plain}
    share = fmean(cell["score"] / of_seed[cell["seed"]] for cell in ours if of_seed.get(cell["seed"], 0) > 0)
    score = fmean(of_seed.values())
    # A mean of shares is as uncertain as that of the seed which has least to share.
    error = _error(plain[0]["chance"], plain[0]["num_validation"]) / min(each for each in of_seed.values() if each > 0)
    off, constant = abs(share - target), plain[0]["chance"] / score
    if claim.abs < error and off <= claim.abs + CHANCE_ERRORS * error:
        return (
            f"the tolerance, {claim.abs:.2f}, is less than the score's standard error, {error:.2f} of it, and ours, "
            f"{share:.2f}, is within two of them of {target:.2f}"
        )
    if off <= claim.abs and abs(constant - target) <= claim.abs:
        return (
            f"a constant answer keeps {constant:.2f} of the score, which is within the tolerance of {target:.2f}, too"
        )
    if off <= claim.abs and claim.abs > MOST_TOLERATED * (1 - constant):
        return (
            f"a constant answer keeps {constant:.2f} of the score: the tolerance, {claim.abs:.2f}, is most of what there "
            "is to lose"
        )
    known = {setting: value for setting, value in by_setting.items() if value is not None}
    near = any(abs(share - value) <= claim.abs for value in known.values())
    if not near or max(known.values()) - min(known.values()) <= 2 * claim.abs:
        return ""
    told = " and ".join(f"{value:.2f} at {setting}" for setting, value in known.items())
    return f"the paper prints {told}, which are one setting here, and ours, {share:.2f}, is near one of them"
