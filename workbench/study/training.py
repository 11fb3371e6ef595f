"""The common part of accuracy studies: seeds, losses against a baseline, chance, virtual ranks beside real ranks.

Scores are shares of 1 or correlations; rows hold per cent. A score is at chance within two standard errors of the score
of a constant answer.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from workbench.rows import NOT_KEYS, value_row

__all__ = ["CHANCE_ERRORS", "PER_CENT", "by_seed", "chance_of_accuracy", "chance_reason", "compare_on_ranks"]
__all__ += ["is_at_chance", "loss_rows", "over_seeds", "points_below_rows", "reached", "score_text", "sources"]
__all__ += ["standard_error", "steps_row"]

Values = Mapping[str, Any]  # a variant, or the results of a training
Rows = list[dict[str, Any]]

PER_CENT = 100.0
SIXTH = 6
CHANCE_ERRORS = 2.0  # standard errors by which a score must lie above chance


def by_seed(compared: Iterable[Values], seeds: Sequence[int], baseline: Values) -> list[dict[str, Any]]:
    """List the trainings of a comparison, seed by seed, the baseline of a seed before its variants."""
    compared = list(compared)
    return [{**variant, "seed": seed} for seed in seeds for variant in (baseline, *compared)]


def standard_error(score: float, num_tested: int) -> float:
    """Return the standard error of a share of `num_tested` examples; 1/√num_tested for correlations, about 0."""
    return math.sqrt(score * (1 - score) / num_tested) if score > 0 else 1 / math.sqrt(num_tested)


def is_at_chance(score: float, chance: float, num_tested: int) -> bool:
    """Return whether a score lies less than two standard errors above the score of a constant answer."""
    return score <= chance + CHANCE_ERRORS * standard_error(chance, num_tested)


def chance_of_accuracy(chance: float) -> float:
    """Return the accuracy of the best constant answer from the F1 of always yes, 2 share / (1 + share)."""
    share = chance / (2 - chance)  # share of the answer yes
    return max(share, 1 - share)


def score_text(score: float, chance: float, num_tested: int, measure: str = "score") -> str:
    """Write a score beside the score of a constant answer."""
    error = standard_error(chance, num_tested)
    return f"{score:.1%} ({measure}), a constant answer {chance:.1%} (standard error {error:.1%})"


def chance_reason(score: float, chance: float, num_tested: int, measure: str = "score") -> str:
    """Return a text that losses mean nothing if the baseline is at chance; empty if it is not."""
    if not is_at_chance(score, chance, num_tested):
        return ""
    return f"the baseline scores {score_text(score, chance, num_tested, measure)}: at chance, there is nothing to lose"


def loss_rows(score: float, baseline: float, **keys: Any) -> Rows:
    """Return `points_lost` (%) and `relative_score` of a score against the baseline of its seed."""
    rows = [value_row("points_lost", PER_CENT * (baseline - score), "%", **keys)]
    return [*rows, value_row("relative_score", score / baseline, **keys)] if baseline > 0 else rows


def steps_row(num_steps: int, **keys: Any) -> dict[str, Any]:
    """Return a row with the number of training steps, by which a claim can refuse too short trainings."""
    return value_row("num_steps", num_steps, **keys)


def over_seeds(rows: Iterable[Values], quantity: str) -> Iterator[tuple[dict[str, Any], dict[int, float]]]:
    """Yield the keys of each value of a quantity but its seed, and its values by seed."""
    groups: dict[tuple, dict[Any, float]] = {}
    for row in rows:
        if row["quantity"] == quantity:
            keys = tuple((name, key) for name, key in row.items() if name not in NOT_KEYS)
            groups.setdefault(keys, {})[row.get("seed")] = row["value"]
    yield from ((dict(keys), values) for keys, values in groups.items())


def points_below_rows(rows: Iterable[Values]) -> Rows:
    """Average `points_lost` over the seeds as `points_below` (%): a gain on average is no loss."""
    result = []
    for keys, values in over_seeds(rows, "points_lost"):
        below, low, high = (max(0.0, of(values.values())) for of in (fmean, min, max))
        result.append(value_row("points_below", below, "%", low=low, high=high, **keys))
    return result


def reached(curve: Sequence[tuple[float, float, float]], target: float) -> tuple[float, float] | None:
    """Return seconds and steps at which a curve of (seconds, steps, loss) reaches a target loss.

    The loss is the mean over the last sixth of the training; None if it does not reach the target.
    """
    length = max(1, len(curve) // SIXTH)
    for end in range(length, len(curve) + 1):
        if fmean(loss for *_, loss in curve[end - length : end]) <= target:
            return curve[end - 1][0], curve[end - 1][1]
    return None


def sources(trainings: Iterable[Values]) -> list[dict[str, str]]:
    """Return the data sources of all trainings, each source once."""
    distinct = {tuple(source.items()): source for training in trainings for source in training["data"]}
    return list(distinct.values())


def compare_on_ranks(
    variants: Iterable[tuple[str, Values]],
    *,
    on_real: Callable[..., Values],
    on_virtual: Callable[..., Values],
    more: Callable[[Values, Values], Iterable[tuple[str, float, str]]],
    key: str,
    score: str = "score",
) -> tuple[Rows, list[dict[str, Any]]]:
    """Train every variant on real and on virtual ranks.

    Args:
        variants: name and arguments of each training.
        on_real, on_virtual: train with these arguments, on either kind of ranks.
        more: returns further differences of two results, real less virtual: quantity, value, unit.
        key: key column that holds the names.
        score: entry of a result that holds the score, a share.

    Returns:
        Rows `<score>_difference` (points), `loss_difference` (share of the virtual loss) and those of `more`; and
        all results, each with its name and `ranks`.
    """
    rows, trainings = [], []
    for name, arguments in variants:
        real, virtual = on_real(**arguments), on_virtual(**arguments)
        trainings += [{key: name, **real, "ranks": "real"}, {key: name, **virtual, "ranks": "virtual"}]
        differences = (
            (f"{score}_difference", PER_CENT * (real[score] - virtual[score]), "%"),
            ("loss_difference", real["train_loss"] / virtual["train_loss"] - 1, "1"),
            *more(real, virtual),
        )
        rows += [value_row(quantity, value, unit, **{key: name}) for quantity, value, unit in differences]
    return rows, trainings
