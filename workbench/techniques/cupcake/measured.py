"""The rows of what is measured: encoding by size, iterations of all schemes in turns, and how long searches take."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from workbench.compression.gradients import gradient_codec
from workbench.compression.profiling import CodecTime, profile_codec
from workbench.models import h100
from workbench.rows import median_row, value_row
from workbench.study import data_parallel
from workbench.study.measuring import without_garbage_collection
from workbench.study.timing import Timed

from .cost import CUPCAKE, FP32_BUCKETS, FP32_BYTES, Costs, costs_of, fitted, gradients_of, largest_miss
from .method import FusionProblem, Pruning, iteration_time, optimal_fusion
from .method.problem import Cost
from .method.rivals import even_split
from .method.search import search
from .plan import Plan
from .training import DDP, FP16, Setting

__all__ = ["PRUNINGS", "growth_rows", "iteration_rows", "latency_rows", "search_rows"]

PRUNINGS: Mapping[str, Pruning] = {
    "Algorithm 5.1": Pruning.BOTH,
    "Only Pruning 1": Pruning.OUTCOME,
    "Only Pruning 2": Pruning.OVERLAP,
    "No Pruning": Pruning.NONE,
}
OPTIMAL, COUNTED = "Dynamic programming", "Algorithm 5.1, last gradient counted"
LINE, FLAT, TWO_LINKS = "α + β·x", "flat, then linear", "flat, then linear, two links"


def latency_rows(*, codecs: Sequence[str], log2_sizes: Sequence[int], runs: int) -> list[dict[str, Any]]:
    """Return encoding and decoding by size, on this machine and as recorded on an H100, and what both models miss.

    `largest_miss` is the largest relative error of a fitted model, `flat_bytes` where its flat part ends.
    """
    sizes, rows = [2**power for power in log2_sizes], []
    for codec in codecs:
        here = profile_codec(partial(gradient_codec, codec), sizes, device="cpu", runs=runs)
        for device, codec_times in {"CPU": here, "H100": h100.codec_times()[codec, "cuda"]}.items():
            for operation in ("encode", "decode"):
                rows += _latencies(codec_times, codec=codec, device=device, operation=operation)
    return rows


def _latencies(codec_times: Sequence[CodecTime], **keys: str) -> list[dict[str, Any]]:
    samples = [(FP32_BYTES * timed.num_elements, getattr(timed, f"{keys['operation']}_s")) for timed in codec_times]
    rows = [value_row("latency_s", seconds, "s", bytes=size, **keys) for size, seconds in samples]
    line, flat = fitted(samples)
    models: dict[str, Cost] = {LINE: line, FLAT: flat}
    for name, model in models.items():
        rows.append(value_row("fitted_startup_s", float(model(0.0)), "s", model=name, **keys))
        rows.append(value_row("fitted_s_per_byte", model.s_per_byte, "s/B", model=name, **keys))
        rows.append(value_row("largest_miss", largest_miss(model, samples), model=name, **keys))
    rows.append(value_row("flat_bytes", flat.flat_bytes, "B", **keys))
    return [*rows, value_row("smallest_s", min(seconds for _, seconds in samples), "s", **keys)]


def iteration_rows(timed: Timed, setting: Setting) -> list[dict[str, Any]]:
    """Return the iteration of every scheme, Cupcake's gains, what was predicted, the groups, and what was fitted.

    `fitted_miss` is the largest relative error of a fit.
    """
    keys = {"model": setting.model, "ranks": f"{setting.num_machines} x {setting.gpus_per_machine}"}
    plans = {scheme: Plan.from_json(facts[0]["plan"]) for scheme, facts in timed.facts.items() if facts[0]["plan"]}
    predicted_s = {scheme: plan.predicted_s[plan.scheme] for scheme, plan in plans.items()}
    if plans:
        plan = next(iter(plans.values()))
        predicted_s |= {DDP: plan.predicted_s[FP32_BUCKETS], FP16: plan.predicted_s[FP16]}
    rows = data_parallel.iteration_rows(timed, setting, (CUPCAKE,), predicted_s)
    rows += [value_row("groups", len(plan.groups), scheme=scheme, **keys) for scheme, plan in plans.items()]
    for operation, numbers in plan.lines.items() if plans else ():
        for quantity, value in zip(("startup_s", "flat_bytes", "s_per_byte"), numbers, strict=True):
            unit = {"startup_s": "s", "flat_bytes": "B", "s_per_byte": "s/B"}[quantity]
            rows.append(value_row(f"fitted_{quantity}", value, unit, operation=operation, **keys))
        rows.append(value_row("fitted_miss", plan.misses[operation], operation=operation, **keys))
    return rows


def _costs(codec: str) -> dict[str, Costs]:
    """Return the costs of the server as the paper models them and as the release has them, and those of the cluster."""
    server = costs_of(codec, "server")
    return {LINE: server.as_in_the_paper, FLAT: server, TWO_LINKS: costs_of(codec, "cluster")}


def search_rows(*, models: Sequence[str], codec: str, num_runs: int, limit_s: float) -> list[dict[str, Any]]:
    """Return how long the search for a model's fusion takes, in each way; two even groups come first.

    Algorithm 5.1 knows only α + β·x. If it has not ended after `limit_s` seconds it is stopped: `how` says so.
    `changed_search_s` is algorithm 5.1's if pruning 1 counts the sending of the last gradient.
    """
    rows = []
    for model in models:
        for name, costs in _costs(codec).items():
            seconds = _optimal_s(costs.problem(gradients_of(model)), num_runs)
            rows.append(median_row("search_s", seconds, "s", way=OPTIMAL, how="ended", costs=name, model=model))
        problem, keys = _costs(codec)[LINE].problem(gradients_of(model)), {"costs": LINE, "model": model}
        best_s = iteration_time(problem, optimal_fusion(problem))
        rows.append(value_row("tensors", problem.num_tensors, model=model))
        search(problem, limit_s=0.0)  # compiles
        ways: dict[str, dict[str, Any]] = {way: {"prune": pruning} for way, pruning in PRUNINGS.items()}
        for way, options in (ways | {COUNTED: {"counts_last": True}}).items():
            began_s = time.perf_counter()
            searched = search(problem, limit_s=limit_s, first=even_split(problem, 2), **options)
            how = "ended" if searched.is_complete else "stopped"
            quantity = "changed_search_s" if way == COUNTED else "search_s"
            rows.append(value_row(quantity, time.perf_counter() - began_s, "s", way=way, how=how, **keys))
            rows.append(value_row("groups_looked_at", searched.num_groups, way=way, **keys))
            excess = iteration_time(problem, searched.fusion) / best_s - 1
            rows.append(value_row("above_optimum", excess, way=way, how=how, **keys))
    return rows


def growth_rows(*, num_tensors: Sequence[int], codec: str, num_runs: int) -> list[dict[str, Any]]:
    """Return how long the optimum of larger models takes, ResNet101's tensors again and again, by kind of costs.

    `growth` is the power of the number of tensors with which the time grows, fitted to all sizes.
    """
    rows = []
    for name, costs in _costs(codec).items():
        problem, medians = costs.problem(gradients_of("resnet101")), []
        for count in num_tensors:
            repeats = -(-count // problem.num_tensors)
            order = {field: (getattr(problem, field) * repeats)[:count] for field in ("backward_s", "size_bytes")}
            milliseconds = [1e3 * seconds for seconds in _optimal_s(replace(problem, **order), num_runs)]
            rows.append(median_row("milliseconds", milliseconds, "ms", tensors=count, costs=name))
            medians.append(rows[-1]["value"])
        rows.append(value_row("growth", float(np.polyfit(np.log(num_tensors), np.log(medians), 1)[0]), costs=name))
    return rows


def _optimal_s(problem: FusionProblem, num_runs: int) -> list[float]:
    optimal_fusion(problem)  # compiles
    seconds = []
    with without_garbage_collection():
        for _ in range(num_runs):
            began_s = time.perf_counter()
            optimal_fusion(problem)
            seconds.append(time.perf_counter() - began_s)
    return seconds
