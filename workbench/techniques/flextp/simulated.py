"""Rows of the simulated items: what the paper's figures and table I would show on its own machine, by `cost`.

A plan is in force from the first iteration on, choosing columns takes no time, and layers share one ratio, so that Rd,
Pri and PriDiffR are one. The share of products that are dropped stands for accuracy.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any

from workbench.models import Workload
from workbench.study.rows import value_row

from . import cost
from .method.costs import ideal_s
from .method.plan import Solution, require
from .method.planners import Reference, speedup_bound

__all__ = [
    "ONE_RATIO",
    "SOLUTIONS",
    "calibration_cells",
    "efficiency_rows",
    "map_rows",
    "ratio_needed",
    "simulate_divisions",
    "simulate_map",
    "simulate_migration",
    "simulate_ratios",
    "simulate_skewness",
    "simulate_text",
]

Rows = list[dict[str, Any]]

ONE_RATIO = "the model has one ratio for all layers, so that PriDiffR is Pri; what layers gain is in their weights"
IDEAL = "ideal"
EMPIRICAL = "ZERO-PriDiffE"


@dataclass(frozen=True, kw_only=True, slots=True)
class _How:
    """How a name of a figure is planned."""

    solution: Solution
    reference: Reference = Reference.CURRENT_MEAN
    refine: bool = False

    def epoch(self, slow: Mapping[int, float], model: Workload, ratio: float | None = None) -> cost.PlannedEpoch:
        only = {"reference": self.reference, "refine": self.refine, "pruning_ratio": ratio}
        return cost.planned_epoch(self.solution, slow, workload=model, **only)


_RESIZING = _How(solution=Solution.ZERO)
SOLUTIONS = MappingProxyType(
    {
        "Baseline": _How(solution=Solution.BASELINE),
        "ZERO-Rd": _RESIZING,
        "ZERO-Pri": _RESIZING,
        "ZERO-PriDiffR": _RESIZING,
        EMPIRICAL: _RESIZING,
        "ZERO-Pri, one shot": _How(solution=Solution.ZERO, reference=Reference.MEAN),
        "MIG": _How(solution=Solution.MIG),
        "SEMI": _How(solution=Solution.SEMI),
        "MIG refined": _How(solution=Solution.MIG, refine=True),
        "SEMI refined": _How(solution=Solution.SEMI, refine=True),
    }
)
"""The names of the figures; "one shot" and "refined" are ours."""


def model_named(name: str) -> Workload:
    """Return a model by the paper's name, such as "ViT-1B"."""
    if name not in cost.MODELS:
        raise ValueError(f"model is {name!r}; it must be one of {', '.join(map(repr, cost.MODELS))}")
    return cost.MODELS[name]


def simulate_ratios(model: str, ratios: Sequence[float], solutions: Sequence[str], skewness: float = 1.0) -> Rows:
    """Time epochs in which a constant share of the columns is dropped: by the straggler, or by all ranks without one.

    Source: figures 5 to 8.
    """
    workload, slow = model_named(model), _one(skewness)
    baseline = SOLUTIONS["Baseline"].epoch(slow, workload)
    rows: Rows = []
    for name in solutions:
        for ratio in ratios:
            epoch = baseline if name == "Baseline" else _how(name).epoch(slow, workload, ratio)
            keys = {"model": model, "solution": name, "pruning_ratio": ratio}
            rows += _epoch_rows(epoch.time_s, epoch.dropped_share, baseline.time_s, keys)
    return rows


def simulate_skewness(model: str, skewnesses: Sequence[float], solutions: Sequence[str], empirical: float) -> Rows:
    """Time epochs with one straggler, two or more skewnesses ascending; `empirical` is the constant γ of ZERO-PriDiffE.

    "ideal" is a free balance that drops nothing. Source: figures 9 and 10.
    """
    workload, names = model_named(model), [*solutions, IDEAL]
    epochs = {chi: _epochs(chi, workload, solutions, empirical) for chi in skewnesses}
    machine = cost.paper_machine()
    parts = cost.iteration_parts(workload, machine)
    rows: Rows = []
    for chi, planned in epochs.items():
        for name in names:
            keys = {"model": model, "solution": name, "skewness": chi}
            rows += _epoch_rows(*planned[name], planned["Baseline"][0], keys)
            rows.append(value_row("speed_of_ideal", planned[IDEAL][0] / planned[name][0], **keys))
            if "ZERO-Pri" in planned:
                saved = 100 * (1 - planned[name][0] / planned["ZERO-Pri"][0])
                rows.append(value_row("epoch_saved_over_pri", saved, "%", **keys))
        bound = speedup_bound(chi, machine.num_devices, other=parts.other_s / parts.product_s)
        rows.append(value_row("speedup_bound", bound, model=model, skewness=chi))
    for name in names:
        rows += _shape_rows({"model": model, "solution": name}, {chi: epochs[chi][name][0] for chi in skewnesses})
    return rows


def simulate_divisions(model: str, skewness: Sequence[float]) -> Rows:
    """Time every division of several stragglers, the slowest x migrating, beside the plans of SEMI and of SEMI refined.

    Source: figure 11.
    """
    workload, slow = model_named(model), dict(enumerate(skewness))
    baseline_s = SOLUTIONS["Baseline"].epoch(slow, workload).time_s
    divisions = cost.division_epochs(slow, workload=workload)
    rows: Rows = []
    for num_senders, epoch in enumerate(divisions):
        keys = {"model": model, "num_senders": num_senders}
        rows += _epoch_rows(epoch.time_s, epoch.dropped_share, baseline_s, keys)
    for name in ("SEMI", "SEMI refined"):
        epoch = SOLUTIONS[name].epoch(slow, workload)
        rows += _planned_rows(epoch, divisions, {"model": model, "solution": name})
    return rows


def _one(skewness: float) -> dict[int, float]:
    return {0: skewness} if skewness != 1 else {}


def _how(name: str) -> _How:
    if name not in SOLUTIONS:
        raise ValueError(f"solutions has {name!r}; it must be of {', '.join(map(repr, SOLUTIONS))}")
    return SOLUTIONS[name]


def _epochs(
    skewness: float, workload: Workload, solutions: Sequence[str], empirical: float
) -> dict[str, tuple[float, float]]:
    """Return seconds and dropped share of each solution and of the ideal."""
    slow = _one(skewness)
    planned = {}
    for name in dict.fromkeys(["Baseline", *solutions]):
        epoch = _how(name).epoch(slow, workload, empirical if name == EMPIRICAL and slow else None)
        planned[name] = (epoch.time_s, epoch.dropped_share)
    times = cost.model_times(slow, workload, cost.paper_machine())
    return planned | {IDEAL: (workload.num_iterations * ideal_s(times), 0.0)}


def _epoch_rows(time_s: float, dropped_share: float, baseline_s: float, keys: Mapping[str, Any]) -> Rows:
    values = {
        "epoch_s": (time_s, "s"),
        "speedup": (baseline_s / time_s, "1"),
        "epoch_saved": (100 * (1 - time_s / baseline_s), "%"),
        "dropped_share": (dropped_share, "1"),
    }
    return [value_row(name, value, unit, **keys) for name, (value, unit) in values.items()]


def _shape_rows(keys: Mapping[str, Any], epochs_s: Mapping[float, float]) -> Rows:
    """Return how much epochs grow with skewness, and how far from a straight line."""
    (first, first_s), (last, last_s) = next(iter(epochs_s.items())), list(epochs_s.items())[-1]
    slope = (last_s - first_s) / (last - first)
    off = max(abs(each_s / (first_s + slope * (chi - first)) - 1) for chi, each_s in epochs_s.items())
    values = {"growth": last_s / first_s, "off_straight_line": off}
    return [value_row(name, value, **keys) for name, value in values.items()]


def _planned_rows(epoch: cost.PlannedEpoch, divisions: Sequence[cost.PlannedEpoch], keys: Mapping[str, Any]) -> Rows:
    better = [each for each in divisions if each.time_s < epoch.time_s and each.dropped_share < epoch.dropped_share]
    fastest_s = min(each.time_s for each in divisions)
    values = {
        "planned_senders": (len(epoch.plan.senders), "1"),
        "planned_epoch_s": (epoch.time_s, "s"),
        "planned_over_fastest": (epoch.time_s / fastest_s, "1"),
        "planned_dropped_share": (epoch.dropped_share, "1"),
        "better_divisions": (len(better), "1"),
    }
    return [value_row(name, value, unit, **keys) for name, (value, unit) in values.items()]


# --- table I

TABLE_1_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the columns of one sender


def simulate_migration(nums_senders: Sequence[int], shares: Sequence[float]) -> Rows:
    """Time epochs in which equal ranks migrate columns, and compare the published cells that do not calibrate."""
    schemes = (cost.Scheme.BROADCAST_REDUCE, cost.Scheme.SCATTER_GATHER)
    rows: Rows = []
    for num_senders in nums_senders:
        for share in shares:
            place = {"num_senders": num_senders, "migrated_share": float(share)}
            took_s = {scheme: cost.migration_epoch_time_s(scheme, **place) for scheme in schemes}
            rows += [
                value_row("epoch_s", each_s, "s", scheme=str(scheme), **place) for scheme, each_s in took_s.items()
            ]
            if share > 0:
                lead_s = took_s[cost.Scheme.SCATTER_GATHER] - took_s[cost.Scheme.BROADCAST_REDUCE]
                rows.append(value_row("lead_s", lead_s, "s", **place))
    return rows + _migration_errors()


def calibration_cells() -> list[dict[str, Any]]:
    """Return the cells that the model is made with, as `record` takes them; without migration all are one number."""
    cells = [cell.keys() for cell in (*cost.CALIBRATION, *cost.CHOSEN_ON)]
    return [{"quantity": "epoch_s", "migrated_share": 0.0}, *(cell for cell in cells if cell["migrated_share"] > 0)]


def _migration_errors() -> Rows:
    """Return how far each published cell that does not calibrate is missed, in the order printed."""
    made_with = (*cost.CALIBRATION, *cost.CHOSEN_ON)
    places = [(scheme, 1, share) for scheme in cost.Scheme for share in TABLE_1_SHARES]
    cells = {cost.table_1_cell(*place): place for place in places if cost.table_1_cell(*place) not in made_with}
    published_s = cost.published_epochs_s(tuple(cells))
    errors = {cell: cost.migration_epoch_time_s(*place) / published_s[cell] - 1 for cell, place in cells.items()}
    rows = [value_row("relative_error", error, **dict(cell.columns)) for cell, error in errors.items()]
    sizes = [abs(error) for error in errors.values()]
    return [*rows, value_row("median_error", statistics.median(sizes)), value_row("largest_error", max(sizes))]


# --- the text

MEANINGS = ("time saved", "throughput gained")
BISECTIONS = 40  # of [0, 1): to 1e-12
CLAIMED = (18.5, 23.5)  # %, of epochs without stragglers


def simulate_text(models: Sequence[str], ratios: Sequence[float], skewness: float, solutions: Sequence[str]) -> Rows:
    """Return the efficiency gained, and the ratios that the text's gains ask for."""
    rows = efficiency_rows(models, ratios, skewness, solutions)
    for claimed, model, meaning in product(CLAIMED, models, MEANINGS):
        needed = ratio_needed(model, claimed, meaning)
        rows.append(value_row("ratio_needed", needed, claimed=claimed, model=model, meaning=meaning))
    return rows


def efficiency_rows(models: Sequence[str], ratios: Sequence[float], skewness: float, solutions: Sequence[str]) -> Rows:
    """Return the gain over Baseline: all ranks drop each of `ratios`, and each of `solutions` helps one straggler."""
    rows: Rows = []
    for model in models:
        workload, slow = model_named(model), {0: skewness}
        plain_s, slowed_s = (SOLUTIONS["Baseline"].epoch(each, workload).time_s for each in ({}, slow))
        for ratio in ratios:
            keys = {"environment": "homogeneous", "model": model, "pruning_ratio": ratio}
            rows += _gain_rows(plain_s, SOLUTIONS["ZERO-Pri"].epoch({}, workload, ratio).time_s, keys)
        for name in solutions:
            keys = {"environment": "heterogeneous", "model": model, "solution": name}
            rows += _gain_rows(slowed_s, SOLUTIONS[name].epoch(slow, workload).time_s, keys)
    return rows


def ratio_needed(model: str, percent: float, meaning: str) -> float:
    """Return the ratio that all ranks must drop for an efficiency in %; 1 where no ratio gives it."""
    require(meaning in MEANINGS, "meaning", meaning, f"one of {MEANINGS!r}")
    workload = model_named(model)
    plain_s = SOLUTIONS["Baseline"].epoch({}, workload).time_s
    allowed_s = plain_s * (1 - percent / 100) if meaning == MEANINGS[0] else plain_s / (1 + percent / 100)
    least, most = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (least + most) / 2
        is_enough = SOLUTIONS["ZERO-Pri"].epoch({}, workload, middle).time_s <= allowed_s
        least, most = (least, middle) if is_enough else (middle, most)
    return 1.0 if math.isclose(most, 1.0) else most


def _gain_rows(before_s: float, after_s: float, keys: dict[str, object]) -> Rows:
    gains = dict(zip(MEANINGS, (100 * (1 - after_s / before_s), 100 * (before_s / after_s - 1)), strict=True))
    return [value_row("efficiency_gain", gain, "%", **keys, meaning=meaning) for meaning, gain in gains.items()]


# --- the map of who wins

MEANS = ("nothing", "resizing", "both", "migration")
AXES = ("skewness", "num_stragglers", "bandwidth_gb_per_s")


def simulate_map(model: str, *, bandwidths_gb_per_s: Sequence[float], **more: Any) -> tuple[cost.MapPoint, ...]:
    """Return the map on the paper's machine with other links; arguments as for `cost.winner_map`, GB/s for bytes/s."""
    bandwidths = [1e9 * bandwidth for bandwidth in bandwidths_gb_per_s]
    return cost.winner_map(bandwidths_bytes_per_s=bandwidths, workload=model_named(model), **more)


def map_rows(points: Sequence[cost.MapPoint]) -> Rows:
    """Return the winner of each place and its properties, and the share of places won along every axis.

    `leaning` is dropped minus migrated columns, as a share of both: 1 is resizing, -1 migration, 0 also neither.
    """
    rows: Rows = []
    for point in points:
        place = _place(point) | {"winner": str(point.winner), "means": point.means}
        winner = point.epochs[point.winner]
        dropped, migrated = winner.plan.dropped, winner.plan.migrated
        values = {
            "speed_of_ideal": point.ideal_s / winner.time_s,
            "dropped_share": winner.dropped_share,
            "leaning": (dropped - migrated) / (dropped + migrated) if dropped or migrated else 0.0,
            "migration_over_resizing": point.epochs[Solution.MIG].time_s / point.epochs[Solution.ZERO].time_s,
        }
        rows += [value_row(name, value, **place) for name, value in values.items()]
    return rows + [row for axis in AXES for row in _share_rows(points, axis)]


def _place(point: cost.MapPoint) -> dict[str, float]:
    bandwidth = point.bandwidth_bytes_per_s / 1e9
    return dict(zip(AXES, (point.skewness, point.num_stragglers, bandwidth), strict=True))


def _share_rows(points: Sequence[cost.MapPoint], axis: str) -> Rows:
    rows: Rows = []
    for value in dict.fromkeys(_place(point)[axis] for point in points):
        there = [point.means for point in points if _place(point)[axis] == value]
        shares = {means: there.count(means) / len(there) for means in MEANS}
        rows += [value_row(f"won_by_{axis}", share, **{axis: value}, means=means) for means, share in shares.items()]
    return rows
