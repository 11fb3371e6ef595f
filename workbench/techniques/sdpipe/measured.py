"""The rows of what is measured: trainings of all schemes on real or virtual ranks, compared seed by seed."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from statistics import fmean, median
from types import MappingProxyType
from typing import Any

from workbench.rows import FEWEST_ROUNDS, median_row, ratio_row, ratios, spread_row, value_row
from workbench.study.training import reached

from .cost import Scheme

__all__ = ["cells", "has_diverged", "map_rows", "rows", "throughput_rows"]

ALL_REDUCE = Scheme.ALL_REDUCE.value
RARE = "HetPipe, a push in ten"  # as in the release, and named as in `simulated`
FEWEST_SEEDS = 2  # from which times to a target are compared: with one, noise decides
USUAL = {"adam": "reduced", "flush": "rivals"}  # choices of `VirtualSetting`
BASES = {  # with whom the rows compare the test losses of what a key tells apart
    "scheme": (ALL_REDUCE, "test_loss_over_all_reduce"),
    "adam": ("plain", "test_loss_over_plain"),
    "flush": ("rivals", "test_loss_over_no_flush"),
    "learning_rate": ("0.1", "test_loss_over_common_rate"),
}
Result = Mapping[str, Any]  # of `training.train` or `virtual.train`
Targets = Mapping[str, Callable[[Result], tuple[float, float] | None]]  # seconds and mini-batches to what a name says


def cells(
    schemes: Sequence[str],
    seeds: Sequence[int],
    adams: Sequence[str] = (USUAL["adam"],),
    flushes: Sequence[str] = (USUAL["flush"],),
    by_scheme: Mapping[str, Mapping[str, Sequence[Any]]] = MappingProxyType({}),
    **setting: Any,
) -> list[dict[str, Any]]:
    """List the trainings: every scheme with every seed; SDPipe with each kind of Adam, and with and without a flush.

    A scheme in `by_scheme` has these settings in place of the common ones, such as {"HetPipe": {"staleness": [0]}}.

    A usual choice is left out of a training's arguments, so that it is the same training as without a choice.
    """
    choices = [{"adam": adam, "flush": flush} for adam, flush in product(adams, flushes)]
    kinds = [{name: kind for name, kind in choice.items() if kind != USUAL[name]} for choice in choices]
    owned = {
        name: [dict(zip(values, choice, strict=True)) for choice in product(*values.values())]
        for name, values in by_scheme.items()
    }
    return [
        {"scheme": scheme.value, "seed": seed, **setting, **kind, **of_scheme}
        for seed, scheme in product(seeds, map(Scheme, schemes))
        for kind in (kinds if scheme is Scheme.SDPIPE else [{}])
        for of_scheme in owned.get(scheme.value, [{}])
    ]


def has_diverged(result: Result) -> bool:
    """Whether the loss of a training is not a number, which cells hold as a text."""
    return not math.isfinite(float(result["scores"]["test_loss"]))


def rows(
    results: Sequence[Result], target: float, *, accuracies: Sequence[float] = (), key: str = "scheme"
) -> list[dict[str, Any]]:
    """Return rows of each scheme, medians over seeds with the extremes as spread, and SDPipe's gains seed by seed.

    Times and numbers of mini-batches are compared to a `target`, a training loss, and to `accuracies` of the mean model
    on the test set in per cent; column `to` names them. `key` of `BASES` tells the trainings of a seed apart.
    """
    by_name: dict[str, dict[int, Result]] = defaultdict(dict)
    diverged: Counter[str] = Counter()
    for result in results:
        name = str(result["setting"].get(key, USUAL.get(key)))  # a training may be older than a choice
        if has_diverged(result):
            diverged[name] += 1
        else:
            by_name[name][result["setting"]["seed"]] = result
    targets: Targets = {
        f"loss {target:g}": lambda result: reached(result["curve"], target),
        **{f"{accuracy:g} %": partial(_accuracy_reached, accuracy) for accuracy in accuracies},
    }
    rows = [value_row("diverged_seeds", number, **{key: name}) for name, number in diverged.items()]
    if "pass_s" in results[0]["setting"]:
        rows.append(value_row("iteration_over_passes", _iteration_over_passes(results[0])))
    for name, by_seed in by_name.items():
        rows += _own_rows(list(by_seed.values()), targets, **{key: name})
    ours = by_name.get(Scheme.SDPIPE.value, {}) if key == "scheme" else {}
    for rival, by_seed in by_name.items() if ours else ():
        if rival != Scheme.SDPIPE:
            rows += _ratio_rows([(by_seed[seed], ours[seed]) for seed in ours if seed in by_seed], targets, over=rival)
    base, quantity = BASES[key]
    for name, by_seed in by_name.items() if base in by_name else ():
        if name != base:
            pairs = [(result["scores"], by_name[base][seed]["scores"]) for seed, result in by_seed.items()]
            losses = [scores["test_loss"] / base_scores["test_loss"] for scores, base_scores in pairs]
            rows.append(spread_row(quantity, losses, **{key: name}))
    return rows


def _accuracy_reached(accuracy: float, result: Result) -> tuple[float, float] | None:
    """Return seconds and mini-batches at which the mean model's accuracy, a mean over a sixth, reaches a value."""
    return reached([(at_s, number, -scores["accuracy"]) for at_s, number, scores in result["tests"]], -accuracy)


def _iteration_over_passes(result: Result) -> float:
    """Return the length of an iteration without delays over a stage's own passes: what the flush costs."""
    setting = result["setting"]
    if setting.get("flush", "all") != "all" and setting["scheme"] == Scheme.SDPIPE:
        return 1.0
    return float(result["nominal_s"] / (3 * setting["pass_s"] * setting["num_micro_batches"]))


def _own_rows(results: Sequence[Result], targets: Targets, **keys: Any) -> list[dict[str, Any]]:
    rows = []
    for name in ("iteration_s", "seconds", "cpu_share", "delay_share", "averaged_share", "waited_share"):
        if name in results[0]:
            unit = "1" if name.endswith("share") else "s"
            rows.append(spread_row(name, [result[name] for result in results], unit, **keys))
    rows.append(spread_row("end_loss", [result["curve"][-1][2] for result in results], **keys))
    for name in results[0]["scores"]:
        unit = "%" if name == "accuracy" else "1"
        rows.append(spread_row(name, [result["scores"][name] for result in results], unit, **keys))
    for to, reach in targets.items():
        moments = [moment for result in results if (moment := reach(result)) is not None]
        rows.append(value_row("reached_seeds", len(moments), to=to, **keys))
        if len(results) >= FEWEST_SEEDS and len(moments) == len(results):
            seconds, iterations = zip(*moments, strict=True)
            rows.append(spread_row("target_s", seconds, "s", to=to, **keys))
            rows.append(spread_row("target_iterations", iterations, to=to, **keys))
    if all(result["sizes"] for result in results):
        rows.append(spread_row("mean_size", [_mean_size(result) for result in results], "workers", **keys))
    return rows


def _mean_size(result: Result) -> float:
    return fmean(map(int, result["sizes"]), weights=result["sizes"].values())


def _ratio_rows(pairs: Sequence[tuple[Result, Result]], targets: Targets, **keys: Any) -> list[dict[str, Any]]:
    """Return SDPipe's gains over a rival: in throughput, and in the time to a target where both reach it.

    Throughput is compared block by block of equally many mini-batches; a target needs two seeds. `whole_speedup`
    compares the times until the last pipeline is done, its tail without the others included.
    """
    gains = [gain for rival, ours in pairs for gain in ratios(rival["blocks_s"], ours["blocks_s"])]
    rows = [(median_row if len(gains) >= FEWEST_ROUNDS else spread_row)("speedup", gains, **keys)]
    rows.append(spread_row("whole_speedup", [rival["seconds"] / ours["seconds"] for rival, ours in pairs], **keys))
    for to, reach in targets.items():
        moments = [(rival_at, at) for rival, ours in pairs if (rival_at := reach(rival)) and (at := reach(ours))]
        if len(pairs) >= FEWEST_SEEDS and len(moments) == len(pairs):
            for quantity, place in (("target_speedup", 0), ("target_iterations_ratio", 1)):
                gains = [rival_at[place] / at[place] for rival_at, at in moments]
                rows.append(spread_row(quantity, gains, to=to, **keys))
    return rows


def throughput_rows(results: Sequence[Result], names: Mapping[float, str]) -> list[dict[str, Any]]:
    """Return every scheme's examples per second by model, mesh and delay, and SDPipe's speedups (figure 4, measured).

    A delay is a number of iterations without averaging; "delay_over_own_iteration" is of SDPipe's with it. `names` are
    those of the delays, among which is 0.
    """
    runs: dict[tuple[str, int, int, float], dict[str, Result]] = defaultdict(dict)
    for result in results:
        setting = result["setting"]
        place = setting["model"], setting["num_stages"], setting["num_pipelines"], setting["delay"]
        runs[place][RARE if setting.get("push_every", 1) > 1 else setting["scheme"]] = result
    rows = []
    for (model, num_stages, num_pipelines, delay), by_scheme in runs.items():
        keys: dict[str, Any] = {"model": model, "mesh": f"{num_stages} x {num_pipelines}", "setting": names[delay]}
        ours_s = by_scheme[Scheme.SDPIPE]["blocks_s"]
        ratio = _iteration_over_passes(by_scheme[Scheme.SDPIPE])
        rows += [value_row("iteration_over_passes", ratio, **keys), value_row("delay_over_iteration", delay, **keys)]
        for scheme, result in by_scheme.items():
            setting = result["setting"]
            examples = num_pipelines * setting["num_micro_batches"] * setting["micro_batch"]
            rates = [examples / seconds for seconds in result["blocks_s"]]
            rows.append(spread_row("examples_per_s", rates, "1/s", scheme=scheme, dose="each iteration", **keys))
            rows.append(value_row("cpu_share", result["cpu_share"], scheme=scheme, **keys))
            if scheme != Scheme.SDPIPE:
                rows.append(ratio_row("speedup", result["blocks_s"], ours_s, over=scheme, **keys))
        free = runs[model, num_stages, num_pipelines, 0.0][Scheme.SDPIPE]
        rows.append(ratio_row("slowdown", ours_s, free["blocks_s"], **keys))
        if share := free["setting"].get("communication"):
            delay_s = delay * free["nominal_s"]
            rows.append(value_row("communication_over_iteration", share, **keys))
            rows.append(value_row("delay_over_own_iteration", delay_s / median(free["blocks_s"]), **keys))
    return rows


def map_rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return what P and T did on real ranks: speed over All-Reduce, certificate of connection, sizes, loss.

    An invalid group is a run of P groups that does not connect all workers, see `Scheduler.num_unchecked`.
    """
    plain = next(result for result in results if result["setting"]["scheme"] == Scheme.ALL_REDUCE)
    rows = []
    for result in results:
        setting, counted = result["setting"], result["counted"]
        if setting["scheme"] != Scheme.SDPIPE:
            continue
        keys = {"P": setting["history"], "T": setting["window"] / setting["num_pipelines"]}
        num_runs = counted["num_groups"] - setting["num_stages"] * (setting["history"] - 1)
        rows += [
            ratio_row("over_all_reduce", plain["blocks_s"], result["blocks_s"], **keys),
            value_row("connected_share", 1 - counted["num_unchecked"] / max(1, num_runs), **keys),
            value_row("mean_size", _mean_size(result), "workers", **keys),
            value_row("end_loss", result["curve"][-1][2], **keys),
            value_row("test_loss", result["scores"]["test_loss"], **keys),
        ]
    return rows
