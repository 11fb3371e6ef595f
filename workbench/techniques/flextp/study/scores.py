"""From finished trainings to rows: accuracy, what of the Baseline's is lost, and how much was dropped for it.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section V-B and V-C. Its "%
accuracy loss" may be points or a share of the Baseline's accuracy; rows hold both, told apart by `reading`.
Simplified: a run is compared with the Baseline of its seed, which saw the same images in the same order. Its interval
is one standard error of a share of the test images, either way; rows of several seeds are later merged into the mean,
with the lowest and the highest end, so that neither the spread of the seeds nor chance among the images is a finding.
Left out: tests of significance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..method.planners import Reference

__all__ = ["POINTS", "RELATIVE", "accuracy_rows", "chance_reason", "name_of", "sources"]

Told = Mapping[str, Any]  # a variant and a seed
Values = Mapping[str, Any]  # what `train_vit` returned
Rows = list[dict[str, Any]]

BASELINE = "Baseline"
PER_CENT = 100.0
POINTS, RELATIVE = "points", "relative"  # readings of "% accuracy loss"
NO_KEYS = ("quantity", "value", "low", "high", "unit", "seed", "reading")
CHANCE_ERRORS = 2.0  # standard errors by which the Baseline must lie above chance


def name_of(told: Told) -> str:
    """Return the paper's name of a variant, such as ZERO-Pri."""
    solution = told["solution"]
    if solution == "ZERO":
        one_shot = told.get("reference") == Reference.MEAN.value
        return f"ZERO-{told.get('selection', 'Pri')}{', one shot' if one_shot else ''}"
    if told.get("num_senders") is not None:
        return f"{solution}(x)"
    return f"{solution} refined" if told.get("refine") else solution


def accuracy_rows(wanted: Sequence[Told], found: Sequence[Values], keys: Sequence[str] = (), **same: Any) -> Rows:
    """Turn trainings into rows for a record.

    Args:
        wanted: what was compared, seed by seed, the Baselines among it.
        found: what `train_vit` returned for each.
        keys: fields of a variant that tell rows apart, beside the solution's name.
        same: further keys of all rows.

    Returns:
        For each training `accuracy` (%, with its standard error), `train_loss`, `dropped_share` and `migrated_share` (%
        of all products); against the Baseline of its seed `accuracy_loss` (%, by reading, with the same error); over
        seeds `loss_in_spreads`; for Pri and Rd `loss_narrowed` (%), for PriDiffR and Pri `points_behind` (%).
    """
    plain = {told["seed"]: each["accuracy"] for told, each in zip(wanted, found, strict=True) if _is_baseline(told)}
    rows: Rows = []
    for told, each in zip(wanted, found, strict=True):
        said = {**_keys(told, keys), **same, "seed": told["seed"]}
        rows += [{**said, **row} for row in _own(each)]
        if _is_baseline(told):
            rows.append({**said, "quantity": "chance", "value": PER_CENT * each["chance"], "unit": "%"})
        else:
            rows += [{**said, **row} for row in _against(each, plain[told["seed"]])]
    return [*rows, *_in_spreads(rows, list(plain.values())), *_behind(rows), *_narrowed(rows)]


def _is_baseline(told: Told) -> bool:
    return told["solution"] == BASELINE


def _keys(told: Told, names: Sequence[str]) -> dict[str, Any]:
    """Return the name, and the fields that are given; a single straggler's skewness is a number."""
    given = {name: told[name] for name in names if told.get(name) is not None}
    if "skewness" in given:
        (given["skewness"],) = given["skewness"]
    plain = {name: int(value) if isinstance(value, bool) else value for name, value in given.items()}
    return {"solution": name_of(told), **plain}


def _own(found: Values) -> Iterator[dict[str, Any]]:
    yield {"quantity": "accuracy", **_give_or_take(PER_CENT * found["accuracy"], _error(found)), "unit": "%"}
    for quantity in ("dropped_share", "migrated_share"):
        yield {"quantity": quantity, "value": PER_CENT * found[quantity], "unit": "%"}
    yield {"quantity": "train_loss", "value": found["train_loss"], "unit": "1"}
    yield {"quantity": "cell_s", "value": found["seconds"], "unit": "s"}


def _error(found: Values) -> float:
    """Return the standard error of an accuracy, in per cent."""
    return PER_CENT * math.sqrt(found["accuracy"] * (1 - found["accuracy"]) / found["num_test"])


def _give_or_take(value: float, error: float) -> dict[str, float]:
    return {"value": value, "low": value - error, "high": value + error}


def _against(found: Values, plain: float) -> Iterator[dict[str, Any]]:
    points, error = PER_CENT * (plain - found["accuracy"]), _error(found)
    yield {"quantity": "accuracy_loss", "reading": POINTS, **_give_or_take(points, error), "unit": "%"}
    if plain > 0:
        relative = _give_or_take(points / plain, error / plain)
        yield {"quantity": "accuracy_loss", "reading": RELATIVE, **relative, "unit": "%"}


def _points(rows: Rows) -> dict[tuple, dict[int, float]]:
    """Return points lost by keys, and in these by seed."""
    found: dict[tuple, dict[int, float]] = {}
    for row in rows:
        if row["quantity"] == "accuracy_loss" and row["reading"] == POINTS:
            found.setdefault(_told_apart_by(row), {})[row["seed"]] = row["value"]
    return found


def _told_apart_by(row: Mapping[str, Any]) -> tuple:
    return tuple((name, key) for name, key in row.items() if name not in NO_KEYS)


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return math.fsum(values) / len(values)


def _in_spreads(rows: Rows, plain: Sequence[float]) -> Rows:
    """Say how many spreads of the Baseline over its seeds are lost on average."""
    spread = PER_CENT * (max(plain) - min(plain)) if len(plain) > 1 else 0.0
    if not spread:
        return []
    return [
        {"quantity": "loss_in_spreads", **dict(keys), "value": max(0.0, _mean(by_seed.values())) / spread, "unit": "1"}
        for keys, by_seed in _points(rows).items()
    ]


def _pairs(rows: Rows, one: str, other: str) -> Iterator[tuple[dict, dict[int, float], dict[int, float]]]:
    """Give the points that two solutions lose where all else is equal: what is equal, and points by seed of each."""
    points = _points(rows)
    for keys, mine in points.items():
        if dict(keys)["solution"] == one:
            theirs = points.get(tuple((name, other if name == "solution" else key) for name, key in keys))
            if theirs is not None:
                yield {name: key for name, key in keys if name != "solution"}, mine, theirs


def _behind(rows: Rows) -> Rows:
    """Say how many points PriDiffR loses beyond what Pri loses, 0 where it loses fewer."""
    return [
        {"quantity": "points_behind", **same, "seed": seed, "value": max(0.0, mine[seed] - theirs[seed]), "unit": "%"}
        for same, mine, theirs in _pairs(rows, "ZERO-PriDiffR", "ZERO-Pri")
        for seed in mine
    ]


def _narrowed(rows: Rows) -> Rows:
    """Say how much less Pri loses than Rd, where that is most on average over the seeds ("by up to")."""
    pairs = list(_pairs(rows, "ZERO-Rd", "ZERO-Pri"))
    found = []
    for reading, narrowed in ((POINTS, _narrowed_points), (RELATIVE, _narrowed_share)):
        by_seed = [(same, {seed: narrowed(rd[seed], pri[seed]) for seed in rd}) for same, rd, pri in pairs]
        known = [(same, values) for same, values in by_seed if None not in values.values()]
        if known:
            same, most = max(known, key=lambda each: _mean(each[1].values()))
            told = {"quantity": "loss_narrowed", **_but_ratio(same), "reading": reading, "unit": "%"}
            found += [{**told, "seed": seed, "value": value} for seed, value in most.items()]
    return found


def _narrowed_points(random: float, priority: float) -> float:
    return random - priority


def _narrowed_share(random: float, priority: float) -> float | None:
    return PER_CENT * (random - priority) / random if random > 0 else None


def _but_ratio(same: Mapping[str, Any]) -> dict[str, Any]:
    return {name: key for name, key in same.items() if name != "pruning_ratio"}


def chance_reason(wanted: Sequence[Told], found: Sequence[Values]) -> str:
    """Say why accuracies tell nothing, where the Baseline is no better than a constant answer; empty if it is better.

    Args:
        wanted, found: as in `accuracy_rows`.
    """
    plain = [each for told, each in zip(wanted, found, strict=True) if _is_baseline(told)]
    accuracy, chance = _mean(each["accuracy"] for each in plain), plain[0]["chance"]
    error = math.sqrt(chance * (1 - chance) / plain[0]["num_test"])
    if accuracy > chance + CHANCE_ERRORS * error:
        return ""
    return (
        f"the Baseline scores {accuracy:.1%}, a constant answer {chance:.1%} (standard error {error:.1%}): at chance, "
        "there is nothing to lose"
    )


def sources(found: Iterable[Values]) -> list[dict[str, str]]:
    """Return where the images of all trainings came from, each source once."""
    distinct = {tuple(source.items()): source for each in found for source in each["data"]}
    return list(distinct.values())
