"""From finished trainings to rows: accuracy, losses against the Baseline of the same seed, and the dropped shares.

The "% accuracy loss" of section V may be points or a share of the Baseline's accuracy; the key `reading` tells which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from workbench.study import training
from workbench.study.rows import value_row
from workbench.study.training import PER_CENT, over_seeds, sources, standard_error
from workbench.techniques.flextp.method.planners import Reference

__all__ = ["BASELINE", "POINTS", "RELATIVE", "accuracy_rows", "chance_reason", "name_of", "sources"]

Values = Mapping[str, Any]  # a variant and a seed, or the results of `train_vit`
Rows = list[dict[str, Any]]

BASELINE = "Baseline"
POINTS, RELATIVE = "points", "relative"  # readings of "% accuracy loss"


def name_of(variant: Values) -> str:
    """Return the paper's name of a variant, such as ZERO-Pri."""
    solution = variant.get("solution", BASELINE)
    if solution == "ZERO":
        one_shot = variant.get("reference") == Reference.MEAN.value
        return f"ZERO-{variant.get('selection', 'Pri')}{', one shot' if one_shot else ''}"
    if variant.get("num_senders") is not None:
        return f"{solution}(x)"
    return f"{solution} refined" if variant.get("refine") else solution


def accuracy_rows(wanted: Sequence[Values], results: Sequence[Values], keys: Sequence[str] = (), **same: Any) -> Rows:
    """Return rows of trainings, of losses against the Baseline of their seed, and of comparisons over seeds.

    `wanted` are the variants, seed by seed, the Baselines among them; `keys` are the fields that tell rows apart.
    """
    pairs = list(zip(wanted, results, strict=True))
    baselines = {variant["seed"]: result["accuracy"] for variant, result in pairs if variant["solution"] == BASELINE}
    rows: Rows = []
    for variant, result in pairs:
        of_variant = {**_keys(variant, keys), **same, "seed": variant["seed"]}
        rows += _own(result, of_variant)
        if variant["solution"] == BASELINE:
            rows.append(value_row("chance", PER_CENT * result["chance"], "%", **of_variant))
        else:
            rows += _losses(result, baselines[variant["seed"]], of_variant)
    points = list(over_seeds((row for row in rows if row.get("reading") == POINTS), "accuracy_loss"))
    return [*rows, *_in_spreads(points, list(baselines.values())), *_behind(points), *_narrowed(points)]


def _keys(variant: Values, names: Sequence[str]) -> dict[str, Any]:
    """Return the name, and the fields that are given; a single straggler's skewness is a number."""
    given = {name: variant[name] for name in names if variant.get(name) is not None}
    if "skewness" in given:
        (given["skewness"],) = given["skewness"]
    numbers = {name: int(value) if isinstance(value, bool) else value for name, value in given.items()}
    return {"solution": name_of(variant), **numbers}


def _own(result: Values, keys: Values) -> Iterator[dict[str, Any]]:
    yield _with_error("accuracy", PER_CENT * result["accuracy"], result, **keys)
    for quantity in ("dropped_share", "migrated_share"):
        yield value_row(quantity, PER_CENT * result[quantity], "%", **keys)
    yield value_row("train_loss", result["train_loss"], **keys)
    yield value_row("cell_s", result["seconds"], "s", **keys)


def _with_error(quantity: str, value: float, result: Values, over: float = 1.0, **keys: Any) -> dict[str, Any]:
    """Return a row whose interval is one standard error of a share of the test images, as a share of `over`."""
    error = PER_CENT * standard_error(result["accuracy"], result["num_test"]) / over
    return value_row(quantity, value, "%", low=value - error, high=value + error, **keys)


def _losses(result: Values, baseline: float, keys: Values) -> Iterator[dict[str, Any]]:
    points = PER_CENT * (baseline - result["accuracy"])
    yield _with_error("accuracy_loss", points, result, reading=POINTS, **keys)
    if baseline > 0:
        yield _with_error("accuracy_loss", points / baseline, result, baseline, reading=RELATIVE, **keys)


Points = Sequence[tuple[dict[str, Any], dict[int, float]]]  # keys, and points lost by seed


def _in_spreads(points: Points, baselines: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Return the mean loss in spreads of the Baseline, largest less smallest over its seeds."""
    spread = PER_CENT * (max(baselines) - min(baselines)) if len(baselines) > 1 else 0.0
    for keys, by_seed in points if spread else ():
        yield value_row("loss_in_spreads", max(0.0, fmean(by_seed.values())) / spread, **_plain(keys))


def _plain(keys: Values, *but: str) -> dict[str, Any]:
    return {name: key for name, key in keys.items() if name not in ("reading", *but)}


def _pairs(points: Points, one: str, other: str) -> Iterator[tuple[dict, dict[int, float], dict[int, float]]]:
    """Yield the points that two solutions lose where all other keys are equal, after these keys."""
    for keys, lost in points:
        for other_keys, other_lost in points if keys["solution"] == one else ():
            if other_keys == {**keys, "solution": other}:
                yield _plain(keys, "solution"), lost, other_lost


def _behind(points: Points) -> Iterator[dict[str, Any]]:
    """Return the points that PriDiffR loses beyond Pri, 0 where it loses fewer."""
    for keys, diff_r, pri in _pairs(points, "ZERO-PriDiffR", "ZERO-Pri"):
        for seed, lost in diff_r.items():
            yield value_row("points_behind", max(0.0, lost - pri[seed]), "%", seed=seed, **keys)


def _narrowed(points: Points) -> Iterator[dict[str, Any]]:
    """Return how much less Pri loses than Rd, where that is most on average over the seeds ("by up to")."""
    pairs = list(_pairs(points, "ZERO-Rd", "ZERO-Pri"))
    for reading in (POINTS, RELATIVE):
        known = [
            (keys, {seed: _narrowed_by(lost, pri[seed], reading) for seed, lost in rd.items()})
            for keys, rd, pri in pairs
            if reading == POINTS or min(rd.values()) > 0
        ]
        if known:
            keys, most = max(known, key=lambda pair: fmean(pair[1].values()))
            more = {**_plain(keys, "pruning_ratio"), "reading": reading}
            yield from (value_row("loss_narrowed", value, "%", seed=seed, **more) for seed, value in most.items())


def _narrowed_by(random: float, priority: float, reading: str) -> float:
    return random - priority if reading == POINTS else PER_CENT * (random - priority) / random


def chance_reason(wanted: Sequence[Values], results: Sequence[Values]) -> str:
    """Say why accuracies mean nothing where the Baseline is at chance; empty where it is not."""
    pairs = zip(wanted, results, strict=True)
    baselines = [result for variant, result in pairs if variant["solution"] == BASELINE]
    accuracy = fmean(result["accuracy"] for result in baselines)
    return training.chance_reason(accuracy, baselines[0]["chance"], baselines[0]["num_test"], "accuracy")
