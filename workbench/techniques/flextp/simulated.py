"""Rows of the simulated items: what the paper's figures and table I would show on its own machine, by `cost`.

A plan is in force from the first iteration on, choosing columns takes no time, and layers share one ratio, so that Rd,
Pri and PriDiffR are one. The share of products that are dropped stands for accuracy.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import Any

from workbench.models import Workload
from workbench.study.rows import value_row

from . import cost
from .method.plan import Scheme, Solution, ideal_s, require
from .method.planners import Reference, speedup_bound

__all__ = ["ONE_RATIO", "SOLUTIONS", "calibration_cells", "efficiency_rows", "map_rows", "ratio_needed"]
__all__ += ["simulate_divisions", "simulate_map", "simulate_migration", "simulate_ratios", "simulate_skewness"]
__all__ += ["simulate_text"]

Rows = list[dict[str, Any]]

ONE_RATIO = "the model has one ratio for all layers, so that PriDiffR is Pri; what layers gain is in their weights"
IDEAL = "ideal"
EMPIRICAL = "ZERO-PriDiffE"
ZERO = MappingProxyType({"solution": "ZERO"})
SOLUTIONS = MappingProxyType(
    {
        "Baseline": {"solution": "Baseline"},
        **dict.fromkeys(("ZERO-Rd", "ZERO-Pri", "ZERO-PriDiffR", EMPIRICAL), ZERO),
        "ZERO-Pri, one shot": {"solution": "ZERO", "reference": Reference.MEAN},
        "MIG": {"solution": "MIG"},
        "SEMI": {"solution": "SEMI"},
        "MIG refined": {"solution": "MIG", "refine": True},
        "SEMI refined": {"solution": "SEMI", "refine": True},
    }
)
"""The names of the figures, and how each is planned; "one shot" and "refined" are ours."""


def model_named(name: str) -> Workload:
    """Return a model by the paper's name, such as "ViT-1B"."""
    require(name in cost.MODELS, "model", name, f"one of {', '.join(map(repr, cost.MODELS))}")
    return cost.MODELS[name]


def _epoch(name: str, slow: Mapping[int, float], model: Workload, ratio: float | None = None) -> cost.PlannedEpoch:
    if name not in SOLUTIONS:
        raise ValueError(f"solutions has {name!r}; it must be of {', '.join(map(repr, SOLUTIONS))}")
    return cost.planned_epoch(skewness=slow, workload=model, pruning_ratio=ratio, **SOLUTIONS[name])


def simulate_ratios(model: str, ratios: Sequence[float], solutions: Sequence[str], skewness: float = 1.0) -> Rows:
    """Time epochs in which a constant share of the columns is dropped: by the straggler, or by all ranks without one.

    Source: figures 5 to 8.
    """
    workload, slow = model_named(model), {0: skewness} if skewness != 1 else {}
    baseline = _epoch("Baseline", slow, workload)
    rows: Rows = []
    for name, ratio in product(solutions, ratios):
        epoch = baseline if name == "Baseline" else _epoch(name, slow, workload, ratio)
        keys = {"model": model, "solution": name, "pruning_ratio": ratio}
        rows += _epoch_rows(epoch.time_s, epoch.dropped_share, baseline.time_s, keys)
    return rows


def _epoch_rows(time_s: float, dropped_share: float, baseline_s: float, keys: Mapping[str, Any]) -> Rows:
    return [
        value_row("epoch_s", time_s, "s", **keys),
        value_row("speedup", baseline_s / time_s, **keys),
        value_row("epoch_saved", 100 * (1 - time_s / baseline_s), "%", **keys),
        value_row("dropped_share", dropped_share, **keys),
    ]


def simulate_skewness(model: str, skewnesses: Sequence[float], solutions: Sequence[str], empirical: float) -> Rows:
    """Time epochs with one straggler, two or more skewnesses ascending; `empirical` is the constant γ of ZERO-PriDiffE.

    "ideal" is a free balance that drops nothing. Growth and the distance from a straight line are those of a solution's
    epochs over the skewness. Source: figures 9 and 10.
    """
    workload, machine, rows = model_named(model), cost.paper_machine(), []
    parts = cost.iteration_parts(workload, machine)
    epochs_s: dict[str, list[float]] = {name: [] for name in [*solutions, IDEAL]}  # skewness by skewness
    for chi in skewnesses:
        slow = {0: chi} if chi != 1 else {}
        planned = {}  # seconds and dropped share
        for name in dict.fromkeys(["Baseline", *solutions]):
            epoch = _epoch(name, slow, workload, empirical if name == EMPIRICAL and slow else None)
            planned[name] = epoch.time_s, epoch.dropped_share
        planned[IDEAL] = workload.num_iterations * ideal_s(cost.model_times(slow, workload, machine)), 0.0
        for name, seconds in epochs_s.items():
            keys, time_s = {"model": model, "solution": name, "skewness": chi}, planned[name][0]
            seconds.append(time_s)
            rows += _epoch_rows(*planned[name], planned["Baseline"][0], keys)
            rows.append(value_row("speed_of_ideal", planned[IDEAL][0] / time_s, **keys))
            if "ZERO-Pri" in planned:
                saved = 100 * (1 - time_s / planned["ZERO-Pri"][0])
                rows.append(value_row("epoch_saved_over_pri", saved, "%", **keys))
        bound = speedup_bound(chi, machine.num_devices, other=parts.other_s / parts.product_s)
        rows.append(value_row("speedup_bound", bound, model=model, skewness=chi))
    for name, seconds in epochs_s.items():
        slope = (seconds[-1] - seconds[0]) / (skewnesses[-1] - skewnesses[0])
        line = [seconds[0] + slope * (chi - skewnesses[0]) for chi in skewnesses]
        off = max(abs(time_s / line_s - 1) for time_s, line_s in zip(seconds, line, strict=True))
        rows.append(value_row("growth", seconds[-1] / seconds[0], model=model, solution=name))
        rows.append(value_row("off_straight_line", off, model=model, solution=name))
    return rows


def simulate_divisions(model: str, skewness: Sequence[float]) -> Rows:
    """Time every division of several stragglers, the slowest x migrating, beside the plans of SEMI and of SEMI refined.

    Source: figure 11.
    """
    workload, slow = model_named(model), dict(enumerate(skewness))
    baseline_s = _epoch("Baseline", slow, workload).time_s
    divisions = cost.division_epochs(slow, workload=workload)
    rows: Rows = []
    for num_senders, epoch in enumerate(divisions):
        keys = {"model": model, "num_senders": num_senders}
        rows += _epoch_rows(epoch.time_s, epoch.dropped_share, baseline_s, keys)
    fastest_s = min(epoch.time_s for epoch in divisions)
    for name in ("SEMI", "SEMI refined"):
        planned, keys = _epoch(name, slow, workload), {"model": model, "solution": name}
        faster = [epoch for epoch in divisions if epoch.time_s < planned.time_s]
        num_better = sum(epoch.dropped_share < planned.dropped_share for epoch in faster)
        rows.append(value_row("planned_senders", len(planned.plan.senders), **keys))
        rows.append(value_row("planned_epoch_s", planned.time_s, "s", **keys))
        rows.append(value_row("planned_over_fastest", planned.time_s / fastest_s, **keys))
        rows.append(value_row("planned_dropped_share", planned.dropped_share, **keys))
        rows.append(value_row("better_divisions", num_better, **keys))
    return rows


# --- table I

TABLE_1_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the columns of one sender


def simulate_migration(nums_senders: Sequence[int], shares: Sequence[float]) -> Rows:
    """Time epochs in which equal ranks migrate columns, and compare the published cells that do not calibrate."""
    rows: Rows = []
    for num_senders, share in product(nums_senders, shares):
        place = {"num_senders": num_senders, "migrated_share": float(share)}
        took_s = {scheme: cost.migration_epoch_time_s(scheme, **place) for scheme in Scheme}
        rows += [value_row("epoch_s", time_s, "s", scheme=str(scheme), **place) for scheme, time_s in took_s.items()]
        if share > 0:
            lead_s = took_s[Scheme.SCATTER_GATHER] - took_s[Scheme.BROADCAST_REDUCE]
            rows.append(value_row("lead_s", lead_s, "s", **place))
    made_with, errors = (*cost.CALIBRATION, *cost.CHOSEN_ON), []
    for scheme, share in product(Scheme, TABLE_1_SHARES):
        cell = cost.table_1_cell(scheme, 1, share)
        if cell not in made_with:
            errors.append(cost.migration_epoch_time_s(scheme, 1, share) / cost.published_epochs_s((cell,))[cell] - 1)
            rows.append(value_row("relative_error", errors[-1], **dict(cell.columns)))
    sizes = [abs(error) for error in errors]
    return [*rows, value_row("median_error", statistics.median(sizes)), value_row("largest_error", max(sizes))]


def calibration_cells() -> list[dict[str, Any]]:
    """Return the cells that the model is made with, as `record` takes them; without migration all are one number."""
    cells = [cell.keys() for cell in (*cost.CALIBRATION, *cost.CHOSEN_ON)]
    return [{"quantity": "epoch_s", "migrated_share": 0.0}, *(cell for cell in cells if cell["migrated_share"] > 0)]


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
        cases = [("homogeneous", {}, {"pruning_ratio": ratio}, "ZERO-Pri", ratio) for ratio in ratios]
        cases += [("heterogeneous", slow, {"solution": name}, name, None) for name in solutions]
        for environment, stragglers, keys, name, ratio in cases:
            before_s = _epoch("Baseline", stragglers, workload).time_s
            after_s = _epoch(name, stragglers, workload, ratio).time_s
            for meaning, gain in zip(MEANINGS, (1 - after_s / before_s, before_s / after_s - 1), strict=True):
                where = {"environment": environment, "model": model, **keys, "meaning": meaning}
                rows.append(value_row("efficiency_gain", 100 * gain, "%", **where))
    return rows


def ratio_needed(model: str, percent: float, meaning: str) -> float:
    """Return the ratio that all ranks must drop for an efficiency in %; 1 where no ratio gives it."""
    require(meaning in MEANINGS, "meaning", meaning, f"one of {MEANINGS!r}")
    workload = model_named(model)
    plain_s = _epoch("Baseline", {}, workload).time_s
    allowed_s = plain_s * (1 - percent / 100) if meaning == MEANINGS[0] else plain_s / (1 + percent / 100)
    least, most = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (least + most) / 2
        is_enough = _epoch("ZERO-Pri", {}, workload, middle).time_s <= allowed_s
        least, most = (least, middle) if is_enough else (middle, most)
    return 1.0 if math.isclose(most, 1.0) else most


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
    places = [(point.skewness, point.num_stragglers, point.bandwidth_bytes_per_s / 1e9) for point in points]
    for place, point in zip(places, points, strict=True):
        keys = dict(zip(AXES, place, strict=True)) | {"winner": str(point.winner), "means": point.means}
        winner = point.epochs[point.winner]
        dropped, migrated = winner.plan.dropped, winner.plan.migrated
        leaning = (dropped - migrated) / (dropped + migrated) if dropped or migrated else 0.0
        over_resizing = point.epochs[Solution.MIG].time_s / point.epochs[Solution.ZERO].time_s
        rows.append(value_row("speed_of_ideal", point.ideal_s / winner.time_s, **keys))
        rows.append(value_row("dropped_share", winner.dropped_share, **keys))
        rows.append(value_row("leaning", leaning, **keys))
        rows.append(value_row("migration_over_resizing", over_resizing, **keys))
    for number, axis in enumerate(AXES):
        for value in dict.fromkeys(place[number] for place in places):
            here = [point.means for place, point in zip(places, points, strict=True) if place[number] == value]
            for means in MEANS:
                share = here.count(means) / len(here)
                rows.append(value_row(f"won_by_{axis}", share, **{axis: value}, means=means))
    return rows
