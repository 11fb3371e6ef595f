"""The rows of what is measured: iterations of all schemes in turns, trainings compared seed by seed, and searches.

Searches are timed for 8 machines of 8 GPUs (tables 4.5 and 4.6). A job is made anew for every run, so that
nothing of it is prepared; a run before the first compiles.
"""

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from statistics import median
from typing import Any

from workbench.compression.costs import Processor
from workbench.rows import median_row, spread_row, value_row
from workbench.study import data_parallel
from workbench.study.measuring import without_garbage_collection
from workbench.study.timing import Timed

from .cost import WHOLE, job_of
from .method.job import Job
from .method.options import compression_options
from .method.search import Found, brute_force, compress_on_gpus, offload
from .planning import FP16_SCHEME, PLANNED, WITHOUT_WORK, Plan
from .training import DDP, ESPRESSO, FP16, IMPROVED, Setting

__all__ = ["brute_force", "compressed_rows", "iteration_rows", "offloading_rows", "searched_job", "selection_rows"]
__all__ += ["share_rows"]


def iteration_rows(timed: Timed, setting: Setting) -> list[dict[str, Any]]:
    """Return the iteration of every scheme, Espresso's gains, and what the planner predicted.

    `error` is that of the prediction in per cent, `error_without_work` if messages took nothing of the device.
    """
    keys = {"model": setting.model, "ranks": f"{setting.num_machines} x {setting.gpus_per_machine}"}
    plans = {scheme: Plan.from_json(facts[0]["plan"]) for scheme, facts in timed.facts.items() if facts[0]["plan"]}
    predicted_s = {scheme: plan.predicted_s[PLANNED] for scheme, plan in plans.items()}
    rows = data_parallel.iteration_rows(timed, setting, (ESPRESSO, IMPROVED), predicted_s)
    for scheme, plan in plans.items():
        measured_s = median(timed.iterations_s(scheme))
        for quantity, name in (("error", PLANNED), ("error_without_work", WITHOUT_WORK)):
            error = 100 * (plan.predicted_s[name] / measured_s - 1)
            rows.append(value_row(quantity, error, "%", scheme=scheme, **keys))
        rows.append(value_row("compressed_tensors", plan.num_compressed, scheme=scheme, **keys))
        rows.append(value_row("tensors", len(plan.options), scheme=scheme, **keys))
    if ESPRESSO in plans:
        rows.append(value_row("predicted_s", plans[ESPRESSO].predicted_s[FP16_SCHEME], "s", scheme=FP16, **keys))
    return rows


def compressed_rows(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return how many gradients the plans of trainings compress, medians of the seeds with the extremes as spread."""
    counts: dict[str, list[tuple[int, int]]] = {}
    for result in results:
        if match := re.search(r"(\d+) of (\d+) gradients compressed", result["plan"]):
            counts.setdefault(result["setting"]["variant"], []).append((int(match[1]), int(match[2])))
    rows = []
    for variant, pairs in counts.items():
        rows.append(spread_row("compressed_tensors", [compressed for compressed, _ in pairs], variant=variant))
        rows.append(value_row("tensors", pairs[0][1], variant=variant))
    return rows


def share_rows(timed: Timed) -> list[dict[str, Any]]:
    """Return the iteration of a training with DDP, and of ranks that exchange nothing: its computation."""
    named = {"computation_s": data_parallel.ALONE, "iteration_s": DDP}
    return [median_row(quantity, timed.iterations_s(name), "s", variant=DDP) for quantity, name in named.items()]


def searched_job(model: str, testbed: str) -> Job:
    """Return a model's job on 8 machines of a testbed, with the codec that the authors' scripts name for it."""
    return job_of(model, WHOLE, testbed=testbed)


def selection_rows(*, models: Sequence[str], testbeds: Sequence[str], num_runs: int) -> list[dict[str, Any]]:
    """Return the milliseconds of algorithm 4.1, and for brute force the logarithm of an estimate.

    The estimate takes the least that a strategy took in algorithm 4.1, for all strategies of all options.
    `changed_milliseconds` are those of a second search of the same job, which knows what each option takes.
    """
    rows = []
    for model, testbed in product(models, testbeds):
        job, keys = searched_job(model, testbed), {"model": model, "testbed": testbed}
        seconds, on_gpus = _timed(compress_on_gpus, job, num_runs)
        num_tensors, evaluated = job.gradients.num_tensors, on_gpus.num_evaluated
        rows.append(median_row("milliseconds", [1e3 * value for value in seconds], "ms", **keys))
        again, _ = _timed(compress_on_gpus, job, num_runs, is_known=True)
        rows.append(median_row("changed_milliseconds", [1e3 * value for value in again], "ms", **keys))
        rows.append(value_row("tensors", num_tensors, **keys))
        log10_s = num_tensors * math.log10(len(compression_options())) + math.log10(min(seconds) / evaluated)
        rows.append(value_row("brute_force_log10_s", log10_s, how="estimated", **keys))
    return rows


def offloading_rows(
    *, models: Sequence[str], testbeds: Sequence[str], num_runs: int, most_brute: int
) -> list[dict[str, Any]]:
    """Return the milliseconds of algorithm 4.2, the tensors that algorithm 4.1 leaves to it, and brute force.

    Brute force runs on at most `most_brute` tensors; for more its seconds are estimated from the combinations of the
    last ones, which are those that it would try most often.
    """
    chosen = product(models, testbeds)
    return [row for model, testbed in chosen for row in _offloading(model, testbed, num_runs, most_brute)]


def _offloading(model: str, testbed: str, num_runs: int, most_brute: int) -> list[dict[str, Any]]:
    job, keys = searched_job(model, testbed), {"model": model, "testbed": testbed}
    on_gpus = compress_on_gpus(job)
    seconds, offloaded = _timed(partial(offload, strategy=on_gpus.strategy), job, num_runs)
    chosen = [tensor for tensor, option in enumerate(on_gpus.strategy) if option.is_compressed]
    groups = Counter((job.gradients.num_elements[tensor], on_gpus.strategy[tensor]) for tensor in chosen)
    brute_s, least_s = brute_force(job, on_gpus.strategy, chosen[-most_brute:])
    is_whole = len(chosen) <= most_brute
    how = keys | {"how": "measured" if is_whole else "estimated"}
    rows = [
        median_row("milliseconds", [1e3 * value for value in seconds], "ms", **keys),
        value_row("to_offload", len(chosen), **keys),
        value_row("offloaded", sum(Processor.CPU in option.processors for option in offloaded.strategy), **keys),
        value_row("combinations", float(math.prod(count + 1 for count in groups.values())), **keys),
        value_row("brute_force_s", brute_s * 2.0 ** max(0, len(chosen) - most_brute), "s", **how),
    ]
    return [*rows, value_row("found_over_brute_force", offloaded.iteration_s / least_s, **how)] if is_whole else rows


def _timed(
    search: Callable[[Job], Found], job: Job, num_runs: int, *, is_known: bool = False
) -> tuple[list[float], Found]:
    """Return the seconds of each search after a first one, and what the last found.

    Each has a new job, or with `is_known` the same one, which keeps the times of all options.
    """

    def call() -> Found:
        return search(job if is_known else Job(job.gradients, job.machines, job.codec))

    last = call()
    seconds = []
    with without_garbage_collection():
        for _ in range(num_runs):
            began_s = time.perf_counter()
            last = call()
            seconds.append(time.perf_counter() - began_s)
    return seconds, last
