"""The rows of what is measured: iterations of all schemes in turns, and trainings compared seed by seed."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from workbench.study.rows import median_row, ratio_row, spread_row, value_row
from workbench.study.timing import Timed
from workbench.study.training import reached

from .planning import FP16_SCHEME, PLANNED, Plan
from .training import DDP, ESPRESSO, FP16, IMPROVED, Setting

__all__ = ["iteration_rows", "learning_cells", "learning_rows"]

Result = Mapping[str, Any]  # of `training.train`


def iteration_rows(timed: Timed, setting: Setting) -> list[dict[str, Any]]:
    """Return the iteration of every scheme, Espresso's gains, and what the planner predicted."""
    keys = {"model": setting.model, "ranks": f"{setting.num_machines} x {setting.gpus_per_machine}"}
    seconds = {scheme: timed.iterations_s(scheme) for scheme in timed.rounds}
    rows = []
    for scheme, found in seconds.items():
        rows.append(median_row("iteration_s", found, "s", scheme=scheme, **keys))
        for ours in (ESPRESSO, IMPROVED):
            if ours in seconds and scheme not in (ESPRESSO, IMPROVED):
                rows.append(ratio_row("gain", found, seconds[ours], scheme=ours, over=scheme, **keys))
        if text := timed.facts[scheme][0]["plan"]:
            plan = Plan.from_json(text)
            rows.append(value_row("predicted_s", plan.predicted_s[PLANNED], "s", scheme=scheme, **keys))
            ratio = median(found) / plan.predicted_s[PLANNED]
            rows.append(value_row("measured_over_predicted", ratio, scheme=scheme, **keys))
            rows.append(value_row("compressed_tensors", plan.num_compressed, scheme=scheme, **keys))
            rows.append(value_row("tensors", len(plan.options), scheme=scheme, **keys))
            if scheme == ESPRESSO:
                rows.append(value_row("predicted_s", plan.predicted_s[FP16_SCHEME], "s", scheme=FP16, **keys))
    return rows


def learning_cells(codecs: Sequence[str], seeds: Sequence[int], **setting: Any) -> list[dict[str, Any]]:
    """List the trainings, seed by seed: FP32 and FP16 of DistributedDataParallel, and Espresso with every codec."""
    variants = [{"scheme": DDP}, {"scheme": FP16}, *({"scheme": ESPRESSO, "codec": codec} for codec in codecs)]
    return [{**variant, "seed": seed, **setting} for seed in seeds for variant in variants]


def learning_rows(results: Sequence[Result], target: float) -> list[dict[str, Any]]:
    """Return scores and times of every variant, medians over seeds with the extremes as spread.

    `points_below` and `speedup` compare with FP32 of the same seed, `speedup_over_fp16` with FP16, and
    `target_speedup` the time to a training loss.
    """
    by_name: dict[str, dict[int, Result]] = {}
    for result in results:
        by_name.setdefault(result["setting"]["variant"], {})[result["setting"]["seed"]] = result
    rows = []
    for name, by_seed in by_name.items():
        keys, seeds = {"variant": name}, [*by_seed]
        for metric in by_seed[seeds[0]]["scores"]:
            scores = {seed: result["scores"][metric] for seed, result in by_seed.items()}
            rows.append(spread_row(metric, [*scores.values()], "%", **keys))
            below = [by_name[DDP][seed]["scores"][metric] - score for seed, score in scores.items()]
            rows.append(spread_row("points_below", below, "%", metric=metric, **keys))
        rows.append(spread_row("end_loss", [result["curve"][-1][2] for result in by_seed.values()], **keys))
        rows.append(spread_row("seconds", [result["curve"][-1][0] for result in by_seed.values()], "s", **keys))
        for quantity, other in (("speedup", DDP), ("speedup_over_fp16", FP16)):
            pairs = [(by_name[other][seed]["curve"][-1][0], by_seed[seed]["curve"][-1][0]) for seed in seeds]
            rows.append(spread_row(quantity, [theirs / own for theirs, own in pairs], **keys))
        moments = [(reached(by_name[DDP][s]["curve"], target), reached(by_seed[s]["curve"], target)) for s in seeds]
        rows.append(value_row("reached_seeds", sum(own is not None for _, own in moments), **keys))
        if all(plain and own for plain, own in moments):
            rows.append(spread_row("target_speedup", [plain[0] / own[0] for plain, own in moments], **keys))
    return rows
