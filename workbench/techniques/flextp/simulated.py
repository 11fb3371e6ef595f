"""Rows of the simulated items: what the paper's figures and table I would show on its own machine, by `cost`.

A plan is in force from the first iteration on, choosing columns takes no time, and layers share one ratio, so that Rd,
Pri and PriDiffR are one. The share of products that are dropped stands for accuracy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Any

from workbench.checks import require_one_of
from workbench.cluster import bisected
from workbench.models import Workload
from workbench.rows import value_row

from . import cost
from .method import planners
from .method.plan import COMPARED, Plan, Scheme, ideal_s
from .method.planners import Reference, plan_division, plan_equal_drop, speedup_bound, stragglers

__all__ = ["ONE_RATIO", "SOLUTIONS", "calibration_cells", "headline_rows", "map_rows", "product_share"]
__all__ += ["simulate_divisions", "simulate_migration", "simulate_ratios", "simulate_skewness", "simulate_text"]

Rows = list[dict[str, Any]]

ONE_RATIO = "the model has one ratio for all layers, so that PriDiffR is Pri; what layers gain is in their weights"
IDEAL = "ideal"
EMPIRICAL = "ZERO-PriDiffE"
LEAST = "ZERO-PriDiffE, 0.8 of 3/4"  # of γ = 3/4 a layer drops at least 0.8 (section III-B)
IN_PROPORTION = "SEMI, cost in proportion"  # to migrated columns, and as much as before for all of them
ALLOC = "SEMI, alloc 0.2 ms"
ALLOC_S = 0.2e-3  # a product, with `ALLOC`; where the text has none, it is 0
# The names of the figures, and how each is planned; "one shot", "refined" and what SEMI is changed by are ours.
SOLUTIONS: Mapping[str, Mapping[str, Any]] = {
    **{name: {"solution": name} for name in ("Baseline", "MIG", "SEMI")},
    **dict.fromkeys(("ZERO-Rd", "ZERO-Pri", "ZERO-PriDiffR", EMPIRICAL, LEAST), {"solution": "ZERO"}),
    "ZERO-Pri, one shot": {"solution": "ZERO", "reference": Reference.MEAN},
    **dict.fromkeys((ALLOC, IN_PROPORTION), {"solution": "SEMI"}),
    "SEMI without migration": {"solution": "ZERO", "reference": Reference.MIN},
    "MIG refined": {"solution": "MIG", "refine": True},
    "SEMI refined": {"solution": "SEMI", "refine": True},
}


def model_named(name: str) -> Workload:
    require_one_of(cost.MODELS, model=name)
    return cost.MODELS[name]


def _epoch(
    name: str, slow: cost.Skewness, model: Workload, ratio: float | None = None, machine: cost.Server | None = None
) -> cost.PlannedEpoch:
    require_one_of(SOLUTIONS, solution=name)
    alloc_s = model.num_layers * cost.PRODUCTS_PER_LAYER * ALLOC_S if name == ALLOC else 0.0
    machine = replace(machine or cost.paper_machine(), alloc_s=alloc_s, in_proportion=name == IN_PROPORTION)
    return cost.planned_epoch(skewness=slow, workload=model, machine=machine, pruning_ratio=ratio, **SOLUTIONS[name])


def simulate_ratios(model: str, ratios: Sequence[float], solutions: Sequence[str], skewness: float = 1.0) -> Rows:
    """Time epochs in which the straggler, or without one all ranks, drop a constant share (figures 5 to 8)."""
    workload, slow = model_named(model), {0: skewness} if skewness != 1 else {}
    baseline = _epoch("Baseline", slow, workload)
    rows: Rows = []
    for name, ratio in product(solutions, ratios):
        epoch = baseline if name == "Baseline" else _epoch(name, slow, workload, ratio)
        keys = {"model": model, "solution": name, "pruning_ratio": ratio}
        rows += _epoch_rows(epoch, baseline.time_s, keys)
    return [*rows, value_row("product_share", product_share(model), model=model)]


def product_share(model: str, machine: cost.Server | None = None) -> float:
    """Return the share of a plain iteration that products of linear layers take."""
    parts = cost.iteration_parts(model_named(model), machine or cost.paper_machine())
    return parts.product_s / parts.own_s


def _epoch_rows(epoch: cost.PlannedEpoch, baseline_s: float, keys: Mapping[str, Any]) -> Rows:
    return [
        value_row("epoch_s", epoch.time_s, "s", **keys),
        value_row("speedup", baseline_s / epoch.time_s, **keys),
        value_row("epoch_saved", 100 * (1 - epoch.time_s / baseline_s), "%", **keys),
        value_row("dropped_share", epoch.dropped_share, **keys),
    ]


def _migrated_row(plan: Plan, keys: Mapping[str, Any]) -> dict[str, Any]:
    return value_row("migrated_of_removed", plan.migrated / (plan.dropped + plan.migrated), **keys)


def simulate_skewness(model: str, skewnesses: Sequence[float], solutions: Sequence[str], empirical: float) -> Rows:
    """Time epochs by a straggler's skewness, ascending (figures 9, 10); `empirical` is ZERO-PriDiffE's γ."""
    workload, machine, rows = model_named(model), cost.paper_machine(), []
    parts = cost.iteration_parts(workload, machine)
    epochs_s: dict[str, list[float]] = {name: [] for name in [*solutions, IDEAL]}  # skewness by skewness
    for chi in skewnesses:
        slow = {0: chi} if chi != 1 else {}
        ratios = {EMPIRICAL: empirical, LEAST: 0.6} if slow else {}
        epochs = {name: _epoch(name, slow, workload, ratios.get(name)) for name in ["Baseline", *solutions]}
        best_s = workload.num_iterations * ideal_s(cost.model_times(slow, workload, machine))
        epochs[IDEAL] = cost.PlannedEpoch(plan=Plan.plain(machine.num_devices), time_s=best_s, own_s=())
        for name, seconds in epochs_s.items():
            epoch, keys = epochs[name], {"model": model, "solution": name, "skewness": chi}
            seconds.append(epoch.time_s)
            rows += _epoch_rows(epoch, epochs["Baseline"].time_s, keys)
            rows.append(value_row("speed_of_ideal", best_s / epoch.time_s, **keys))
            if "ZERO-Pri" in epochs:
                saved = 100 * (1 - epoch.time_s / epochs["ZERO-Pri"].time_s)
                rows.append(value_row("epoch_saved_over_pri", saved, "%", **keys))
            if name.startswith("SEMI") and not epoch.plan.is_plain:
                rows.append(_migrated_row(epoch.plan, keys))
        bound = speedup_bound(chi, machine.num_devices, other=parts.other_s / parts.product_s)
        rows.append(value_row("speedup_bound", bound, model=model, skewness=chi))
    for name, seconds in epochs_s.items():
        slope = (seconds[-1] - seconds[0]) / (skewnesses[-1] - skewnesses[0])
        line = [seconds[0] + slope * (chi - skewnesses[0]) for chi in skewnesses]
        off = max(abs(time_s / line_s - 1) for time_s, line_s in zip(seconds, line, strict=True))
        rows.append(value_row("growth", seconds[-1] / seconds[0], model=model, solution=name))
        rows.append(value_row("off_straight_line", off, model=model, solution=name))
    return [*rows, value_row("product_share", product_share(model), model=model)]


RECEIVERS = {"all that do not migrate": False, "normal tasks": True}  # section IV-B's Eq. 3, and section IV-A


def simulate_divisions(model: str, skewness: Sequence[float]) -> Rows:
    """Compare SEMI's plans with every division, and with resizing that drops as much (figure 11)."""
    workload, slow, machine = model_named(model), dict(enumerate(skewness)), cost.paper_machine()
    baseline_s = _epoch("Baseline", slow, workload).time_s
    times = cost.model_times(slow, workload, machine)
    costs = cost.model_costs(workload, machine, times)
    rows: Rows = []
    for receivers, to_normal in RECEIVERS.items():
        plans = [plan_division(times, num, to_normal=to_normal) for num in range(len(stragglers(times)) + 1)]
        divisions = [cost.epoch_of_plan(plan, slow, workload=workload) for plan in plans]
        for number, epoch in enumerate(divisions):
            keys = {"model": model, "num_senders": number, "receivers": receivers}
            rows += _epoch_rows(epoch, baseline_s, keys)
        compared = {"SEMI": divisions[planners.num_senders(times, costs, to_normal=to_normal)]}
        if not to_normal:
            compared["SEMI refined"] = _epoch("SEMI refined", slow, workload)
        for name, planned in compared.items():
            resizing = cost.epoch_of_plan(plan_equal_drop(times, planned.plan.dropped), slow, workload=workload)
            better = [epoch for epoch in divisions if epoch.time_s < planned.time_s]
            row = partial(value_row, model=model, solution=name, receivers=receivers)
            rows += [
                row("planned_senders", len(planned.plan.senders)),
                row("over_fastest_division", planned.time_s / min(epoch.time_s for epoch in divisions)),
                row("over_equal_drop", planned.time_s / resizing.time_s),
                row("better_divisions", sum(epoch.dropped_share < planned.dropped_share for epoch in better)),
            ]
    return [*rows, value_row("product_share", product_share(model), model=model)]


# --- table I

TABLE_1_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the columns of one sender


def simulate_migration(nums_senders: Sequence[int], shares: Sequence[float]) -> Rows:
    """Time epochs in which equal ranks migrate columns, and compare the published cells that do not calibrate."""
    rows: Rows = []
    for num_senders, share in product(nums_senders, shares):
        place: dict[str, Any] = {"num_senders": num_senders, "migrated_share": float(share)}
        took_s = {scheme: cost.migration_epoch_time_s(scheme, **place) for scheme in Scheme}
        rows += [value_row("epoch_s", time_s, "s", scheme=str(scheme), **place) for scheme, time_s in took_s.items()]
        if share > 0:
            lead_s = took_s[Scheme.SCATTER_GATHER] - took_s[Scheme.BROADCAST_REDUCE]
            rows.append(value_row("lead_s", lead_s, "s", **place))
    for scheme, share in product(Scheme, TABLE_1_SHARES):
        cell = cost.table_1_cell(scheme, 1, share)
        if cell not in (*cost.CALIBRATION, *cost.CHOSEN_ON):
            error = cost.migration_epoch_time_s(scheme, 1, share) / cell.value("flextp") - 1
            columns: dict[str, Any] = dict(cell.columns)
            rows.append(value_row("relative_error", error, **columns))
    return rows


def calibration_cells() -> list[dict[str, Any]]:
    """Return the cells that the model is made with, as `record` takes them; without migration all are one number."""
    cells = [cell.keys() for cell in (*cost.CALIBRATION, *cost.CHOSEN_ON)]
    return [{"quantity": "epoch_s", "migrated_share": 0.0}, *(cell for cell in cells if cell["migrated_share"] != 0)]


# --- the text

SEMI_GAIN = "4.46 times as fast (77.6 % less time), SEMI beside a straggler"
OF_3B = f"{SEMI_GAIN}, ViT-3B"  # section I names no model
NUM_STEPS = 100  # between the links that the gains need
LINKS_GB_PER_S = (7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.75, 20.0, 30.0, 60.0)  # 15.75 is the data sheet's


# The text's gain, and how it was gained: solution, stragglers, model and constant ratio. γ = 1/2 and χ = 8 are assumed.
# Beside a straggler the gain is in speed, which time saved would hide: 77.6 % less is 4.46 times as fast.
HEADLINES: Mapping[str, tuple[float, str, cost.Skewness, Workload, float | None]] = {
    "18.5 % less time, ViT-1B, every rank drops half": (0.185, "ZERO-Pri", {}, cost.VIT_1B, 0.5),
    "23.5 % less time, ViT-3B, every rank drops half": (0.235, "ZERO-Pri", {}, cost.VIT_3B, 0.5),
    "3.5 times as fast, Pri beside a straggler": (3.5 - 1, "ZERO-Pri", {0: 8.0}, cost.VIT_1B, None),
    SEMI_GAIN: (1 / (1 - 0.776) - 1, "SEMI", {0: 8.0}, cost.VIT_1B, None),
    OF_3B: (1 / (1 - 0.776) - 1, "SEMI", {0: 8.0}, cost.VIT_3B, None),
}


def _saved(
    name: str, slow: cost.Skewness, model: Workload, ratio: float | None = None, machine: cost.Server | None = None
) -> float:
    before_s = _epoch("Baseline", slow, model, machine=machine).time_s
    return 1 - _epoch(name, slow, model, ratio, machine).time_s / before_s


def headline_rows(bandwidths_gb_per_s: Sequence[float]) -> Rows:
    """Return the text's gains by the share of products that a link leaves to them, and the share each needs."""
    # Products take what the link leaves of ViT-1B's plain epoch in table I; its share names the place for both models.
    fitted, rows = cost.paper_machine(), []
    plain_s = cost.iteration_parts(cost.VIT_1B, fitted).own_s

    @cache
    def over_papers(name: str, gb_per_s: float) -> float:
        claimed, solution, slow, model, ratio = HEADLINES[name]
        saved = _saved(solution, slow, model, ratio, cost.with_link(fitted, 1e9 * gb_per_s, plain_s))
        return (1 / (1 - saved) - 1 if slow else saved) / claimed

    def share(gb_per_s: float) -> float:
        return product_share("ViT-1B", cost.with_link(fitted, 1e9 * gb_per_s, plain_s))

    needed = []
    for name in HEADLINES:
        for gb_per_s in bandwidths_gb_per_s:
            where = {"headline": name, "share": round(share(gb_per_s), 4)}
            rows.append(value_row("gain_over_papers", over_papers(name, gb_per_s), **where))
        ends = min(bandwidths_gb_per_s), max(bandwidths_gb_per_s)
        needed.append(bisected(lambda link: over_papers(name, link) < 1, *ends, cost.NUM_BISECTIONS))  # noqa: B023
        rows.append(value_row("share_needed", share(needed[-1]), headline=name))
    steps = [min(needed) + step / NUM_STEPS * (max(needed) - min(needed)) for step in range(NUM_STEPS + 1)]
    three = [name for name in HEADLINES if not name.startswith(SEMI_GAIN)]
    gains_of = {"all four": [*three, SEMI_GAIN], "all four, 77.6 % of ViT-3B": [*three, OF_3B], "without 77.6 %": three}
    for gains, names in gains_of.items():
        misses = {link: max(abs(over_papers(name, link) - 1) for name in names) for link in steps}
        best = min(misses, key=lambda link: misses[link])
        rows.append(value_row("largest_miss", misses[best], gains=gains))
        rows.append(value_row("best_share", share(best), gains=gains))
    return rows


def simulate_text(models: Sequence[str], ratios: Sequence[float], skewness: float, solutions: Sequence[str]) -> Rows:
    """Return the efficiency gained where all ranks drop a ratio, and where a straggler is helped."""
    rows: Rows = []
    for model in models:
        workload, slow = model_named(model), {0: skewness}
        cases: list[tuple[str, cost.Skewness, dict[str, Any], str, float | None]]
        cases = [("homogeneous", {}, {"pruning_ratio": ratio}, "ZERO-Pri", ratio) for ratio in ratios]
        cases += [("heterogeneous", slow, {"solution": name}, name, None) for name in solutions]
        for environment, delayed, keys, name, ratio in cases:
            saved = _saved(name, delayed, workload, ratio)
            row = partial(value_row, environment=environment, model=model, **keys)
            rows.append(row("efficiency_gain", 100 * saved, "%", meaning="time saved"))
            rows.append(row("efficiency_gain", 100 * (1 / (1 - saved) - 1), "%", meaning="throughput gained"))
        rows.append(value_row("product_share", product_share(model), model=model))
        rows.append(_migrated_row(_epoch("SEMI", slow, workload).plan, {"model": model, "solution": "SEMI"}))
    return rows + headline_rows(LINKS_GB_PER_S)


# --- the map of who wins

AXES = ("skewness", "num_stragglers", "bandwidth_gb_per_s")
# By what the winner's plan does: whether it drops columns, and whether it migrates any.
MEANS = {(False, False): "nothing", (True, False): "resizing", (True, True): "both", (False, True): "migration"}


def map_rows(
    model: str,
    skewnesses: Sequence[float],
    nums_stragglers: Sequence[int],
    bandwidths_gb_per_s: Sequence[float],
    refine: bool = False,
) -> Rows:
    """Return who wins at every combination on the paper's machine, and the share of places won along every axis.

    The first ranks are slow; all-reduces use the link, too. A solution has to reach the share `ENOUGH` of the ideal's
    speed. `leaning` is dropped less migrated columns over both, from -1 (migration) to 1 (resizing).
    """
    workload = model_named(model)
    rows: Rows = []
    for link, number, skewness in product(bandwidths_gb_per_s, nums_stragglers, skewnesses):
        machine, slow = cost.paper_machine().with_bandwidth(1e9 * link), dict.fromkeys(range(number), skewness)
        plan = partial(cost.planned_epoch, skewness=slow, workload=workload, machine=machine, refine=refine)
        epochs = {solution: plan(solution) for solution in COMPARED}
        best_s = workload.num_iterations * ideal_s(cost.model_times(slow, workload, machine))
        outcomes = {solution: (epoch.time_s, epoch.dropped_share) for solution, epoch in epochs.items()}
        name = cost.winner_of(outcomes, best_s / cost.ENOUGH)
        winner, dropped, migrated = epochs[name], epochs[name].plan.dropped, epochs[name].plan.migrated
        keys: dict[str, Any] = dict(zip(AXES, (skewness, number, link), strict=True))
        keys |= {"winner": str(name), "means": MEANS[dropped > 0, migrated > 0]}
        leaning = (dropped - migrated) / (dropped + migrated) if dropped or migrated else 0.0
        rows += [
            value_row("speed_of_ideal", best_s / winner.time_s, **keys),
            value_row("dropped_share", winner.dropped_share, **keys),
            value_row("leaning", leaning, **keys),
        ]
    places = [row for row in rows if row["quantity"] == "leaning"]
    for axis in AXES:
        for value in dict.fromkeys(place[axis] for place in places):
            here = [place["means"] for place in places if place[axis] == value]
            for means in MEANS.values():
                columns: dict[str, Any] = {axis: value, "means": means}
                rows.append(value_row(f"won_by_{axis}", here.count(means) / len(here), **columns))
    return rows
