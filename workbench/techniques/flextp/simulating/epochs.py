"""Epochs by pruning ratio, by skewness and by division: parts (b) of figures 5 to 11.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", sections V-B and V-C.
Simplified: a plan is in force from the first iteration on, though a straggler that moves is noticed one iteration
later; choosing columns takes no time, and layers share one ratio, so that Rd, Pri and PriDiffR are one.
Left out: accuracy; the share of products that are dropped stands for it.

Every function returns rows (dicts of quantity, value, unit and keys) as `workbench.reproduction.record` takes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ..cost import (
    VIT_1B,
    VIT_3B,
    PlannedEpoch,
    Workload,
    division_epochs,
    iteration_parts,
    model_times,
    paper_machine,
    planned_epoch,
)
from ..method.costs import ideal_s
from ..method.plan import Solution
from ..method.planners import Reference, speedup_bound

__all__ = [
    "ONE_RATIO",
    "SOLUTIONS",
    "Rows",
    "model_named",
    "simulate_divisions",
    "simulate_ratios",
    "simulate_skewness",
]

Rows = list[dict[str, Any]]

MODELS = MappingProxyType({model.name: model for model in (VIT_1B, VIT_3B)})
ONE_RATIO = "the model has one ratio for all layers, so that PriDiffR is Pri; what layers gain is in their weights"
IDEAL = "ideal"
EMPIRICAL = "ZERO-PriDiffE"


@dataclass(frozen=True, kw_only=True, slots=True)
class _How:
    """How a name of a figure is planned."""

    solution: Solution
    reference: Reference = Reference.CURRENT_MEAN
    refine: bool = False

    def epoch(self, slow: Mapping[int, float], model: Workload, ratio: float | None = None) -> PlannedEpoch:
        only = {"reference": self.reference, "refine": self.refine, "pruning_ratio": ratio}
        return planned_epoch(self.solution, slow, workload=model, **only)


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
    if name not in MODELS:
        raise ValueError(f"model is {name!r}; it must be one of {', '.join(map(repr, MODELS))}")
    return MODELS[name]


def simulate_ratios(model: str, ratios: Sequence[float], solutions: Sequence[str], skewness: float = 1.0) -> Rows:
    """Time epochs in which a constant share of the columns is dropped.

    Args:
        model: "ViT-1B" or "ViT-3B".
        ratios: γ, each in [0, 1).
        solutions: "Baseline", which drops nothing, and of ZERO "ZERO-Rd" and "ZERO-Pri".
        skewness: of the one straggler, which then alone drops; 1 has none, and all ranks drop.

    Returns:
        Rows: epoch_s, speedup, epoch_saved (of Baseline's), dropped_share; keys model, solution, pruning_ratio.
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
    """Time epochs with one straggler.

    Args:
        model: "ViT-1B" or "ViT-3B".
        skewnesses: χ, two or more, ascending; 1 is no straggler.
        solutions: names of `SOLUTIONS`.
        empirical: γ of ZERO-PriDiffE, once there is a straggler.

    Returns:
        Rows of each solution, and of "ideal", a free balance that drops nothing: epoch_s, speedup, epoch_saved (of
        Baseline's), dropped_share, speed_of_ideal, keys model, solution, skewness; epoch_saved_over_pri likewise, where
        ZERO-Pri is there; speedup_bound of a one-shot plan by the mean, key skewness; of each solution growth, last
        epoch over first, and off_straight_line, how far epochs are from the line between both, as a share.
    Source: figures 9 and 10.
    """
    workload, names = model_named(model), [*solutions, IDEAL]
    epochs = {chi: _epochs(chi, workload, solutions, empirical) for chi in skewnesses}
    rows: Rows = []
    for chi, found in epochs.items():
        for name in names:
            keys = {"model": model, "solution": name, "skewness": chi}
            rows += _epoch_rows(*found[name], found["Baseline"][0], keys)
            rows.append({"quantity": "speed_of_ideal", **keys, "value": found[IDEAL][0] / found[name][0], "unit": "1"})
            if "ZERO-Pri" in found:
                saved = 100 * (1 - found[name][0] / found["ZERO-Pri"][0])
                rows.append({"quantity": "epoch_saved_over_pri", **keys, "value": saved, "unit": "%"})
        rows.append(_bound_row(model, chi))
    for name in names:
        rows += _shape_rows({"model": model, "solution": name}, {chi: epochs[chi][name][0] for chi in skewnesses})
    return rows


def simulate_divisions(model: str, skewness: Sequence[float]) -> Rows:
    """Time every division of several stragglers, the slowest x migrating, and say which one Eq. 3 takes.

    Args:
        model: "ViT-1B" or "ViT-3B".
        skewness: of the stragglers, the first ranks.

    Returns:
        Rows: epoch_s, speedup, epoch_saved, dropped_share, keys model, num_senders; and of SEMI as it plans itself, and
        refined: planned_senders, planned_epoch_s, planned_over_fastest (division), planned_dropped_share and
        better_divisions, how many are faster and drop less; key solution.
    Source: figure 11.
    """
    workload, slow = model_named(model), dict(enumerate(skewness))
    baseline_s = SOLUTIONS["Baseline"].epoch(slow, workload).time_s
    divisions = division_epochs(slow, workload=workload)
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
    found = {}
    for name in dict.fromkeys(["Baseline", *solutions]):
        epoch = _how(name).epoch(slow, workload, empirical if name == EMPIRICAL and slow else None)
        found[name] = (epoch.time_s, epoch.dropped_share)
    times = model_times(slow, workload, paper_machine())
    return found | {IDEAL: (workload.num_iterations * ideal_s(times), 0.0)}


def _epoch_rows(time_s: float, dropped_share: float, baseline_s: float, keys: Mapping[str, Any]) -> Rows:
    values = {
        "epoch_s": (time_s, "s"),
        "speedup": (baseline_s / time_s, "1"),
        "epoch_saved": (100 * (1 - time_s / baseline_s), "%"),
        "dropped_share": (dropped_share, "1"),
    }
    return [{"quantity": name, **keys, "value": value, "unit": unit} for name, (value, unit) in values.items()]


def _bound_row(model: str, skewness: float) -> dict[str, Any]:
    machine = paper_machine()
    parts = iteration_parts(model_named(model), machine)
    bound = speedup_bound(skewness, machine.num_ranks, other=parts.other_s / parts.product_s)
    return {"quantity": "speedup_bound", "model": model, "skewness": skewness, "value": bound, "unit": "1"}


def _shape_rows(keys: Mapping[str, Any], epochs_s: Mapping[float, float]) -> Rows:
    """Return how much epochs grow with skewness, and how far from a straight line."""
    (first, first_s), (last, last_s) = next(iter(epochs_s.items())), list(epochs_s.items())[-1]
    slope = (last_s - first_s) / (last - first)
    off = max(abs(each_s / (first_s + slope * (chi - first)) - 1) for chi, each_s in epochs_s.items())
    values = {"growth": last_s / first_s, "off_straight_line": off}
    return [{"quantity": name, **keys, "value": value, "unit": "1"} for name, value in values.items()]


def _planned_rows(epoch: PlannedEpoch, divisions: Sequence[PlannedEpoch], keys: Mapping[str, Any]) -> Rows:
    better = [each for each in divisions if each.time_s < epoch.time_s and each.dropped_share < epoch.dropped_share]
    fastest_s = min(each.time_s for each in divisions)
    values = {
        "planned_senders": (len(epoch.plan.senders), "1"),
        "planned_epoch_s": (epoch.time_s, "s"),
        "planned_over_fastest": (epoch.time_s / fastest_s, "1"),
        "planned_dropped_share": (epoch.dropped_share, "1"),
        "better_divisions": (len(better), "1"),
    }
    return [{"quantity": name, **keys, "value": value, "unit": unit} for name, (value, unit) in values.items()]
