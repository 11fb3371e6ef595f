"""The rows of what is measured: trainings of all schemes on real ranks, compared seed by seed."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from workbench.study.rows import ratio_row, ratios, spread_row, value_row
from workbench.study.training import reached
from workbench.training.measuring import FEWEST_ROUNDS

from .cost import Scheme

__all__ = ["cells", "map_rows", "rows", "throughput_rows"]

ALL_REDUCE = Scheme.ALL_REDUCE.value
FEWEST_SEEDS = 3  # from which times to a target are compared: with one, noise decides
PLAIN, REDUCED = "plain", "reduced"  # Adams of `training.Setting`
Result = Mapping[str, Any]  # of `training.train`


def cells(
    schemes: Sequence[str], seeds: Sequence[int], adams: Sequence[str] = (REDUCED,), **setting: Any
) -> list[dict[str, Any]]:
    """List the trainings: every scheme with every seed, and with each kind of Adam.

    The usual kind is left out of a training's arguments, so that it is the same training as without a choice.
    """
    kinds = [{} if adam == REDUCED else {"adam": adam} for adam in adams]
    chosen = product(seeds, map(Scheme, schemes), kinds)
    return [{"scheme": scheme.value, "seed": seed, **setting, **kind} for seed, scheme, kind in chosen]


def rows(results: Sequence[Result], target: float, *, key: str = "scheme") -> list[dict[str, Any]]:
    """Return rows of each scheme, medians over seeds with the extremes as spread, and SDPipe's gains seed by seed.

    Args:
        results: of all schemes and seeds.
        target: training loss whose time and number of mini-batches are compared.
        key: field of the setting that tells the trainings of a seed apart, "scheme" or "adam".
    """
    by_name: dict[str, dict[int, Result]] = {}
    for result in results:
        by_name.setdefault(str(result["setting"][key]), {})[result["setting"]["seed"]] = result
    found = []
    for name, by_seed in by_name.items():
        found += _own_rows(list(by_seed.values()), target, **{key: name})
    ours = by_name.get(Scheme.SDPIPE.value, {}) if key == "scheme" else {}
    for rival, by_seed in by_name.items() if ours else ():
        if rival != Scheme.SDPIPE:
            found += _ratio_rows([(by_seed[seed], ours[seed]) for seed in ours], target, over=rival)
    base, quantity = (PLAIN, "test_loss_over_plain") if key == "adam" else (ALL_REDUCE, "test_loss_over_all_reduce")
    for name, by_seed in by_name.items() if base in by_name else ():
        if name != base:
            pairs = [(result["scores"], by_name[base][seed]["scores"]) for seed, result in by_seed.items()]
            losses = [own["test_loss"] / other["test_loss"] for own, other in pairs]
            found.append(spread_row(quantity, losses, **{key: name}))
    return found


def _own_rows(results: Sequence[Result], target: float, **keys: Any) -> list[dict[str, Any]]:
    found = []
    for name, unit in (("iteration_s", "s"), ("cpu_share", "1"), ("delay_share", "1"), ("averaged_share", "1")):
        found.append(spread_row(name, [result[name] for result in results], unit, **keys))
    found.append(spread_row("end_loss", [result["curve"][-1][2] for result in results], **keys))
    for name in results[0]["scores"]:
        unit = "%" if name == "accuracy" else "1"
        found.append(spread_row(name, [result["scores"][name] for result in results], unit, **keys))
    moments = [reached(result["curve"], target) for result in results]
    found.append(value_row("reached_seeds", sum(moment is not None for moment in moments), **keys))
    if len(moments) >= FEWEST_SEEDS and None not in moments:
        found.append(spread_row("target_s", [seconds for seconds, _ in moments], "s", **keys))
        found.append(spread_row("target_iterations", [iteration for _, iteration in moments], **keys))
    sizes = [{int(size): count for size, count in result["sizes"].items()} for result in results]
    if all(sizes):
        means = [sum(size * n for size, n in found_.items()) / sum(found_.values()) for found_ in sizes]
        found.append(spread_row("mean_size", means, "workers", **keys))
    return found


def _ratio_rows(pairs: Sequence[tuple[Result, Result]], target: float, **keys: Any) -> list[dict[str, Any]]:
    """Return SDPipe's gains over a rival: in throughput, and in the time to a target where both reach it.

    Throughput is compared block by block of equal iterations, which have equal delays; a target needs three seeds.
    """
    theirs, own = ([s for pair in pairs for s in pair[side]["blocks_s"]] for side in (0, 1))
    if len(own) >= FEWEST_ROUNDS:
        found = [ratio_row("speedup", theirs, own, **keys)]
    else:
        found = [spread_row("speedup", ratios(theirs, own), **keys)]
    moments = [(reached(rival["curve"], target), reached(ours["curve"], target)) for rival, ours in pairs]
    if len(moments) >= FEWEST_SEEDS and all(rival and ours for rival, ours in moments):
        found.append(spread_row("target_speedup", [rival[0] / ours[0] for rival, ours in moments], **keys))
        more = [rival[1] / ours[1] for rival, ours in moments]
        found.append(spread_row("target_iterations_ratio", more, **keys))
    return found


def throughput_rows(results: Sequence[Result], names: Mapping[float, str]) -> list[dict[str, Any]]:
    """Return every scheme's examples per second by model, mesh and delay, and SDPipe's speedups (figure 4, measured).

    Args:
        results: of all schemes, with one seed.
        names: of delays in iterations; the delay 0 is among them.
    """
    runs: dict[tuple[str, int, int, float], dict[str, Result]] = defaultdict(dict)
    for result in results:
        setting = result["setting"]
        place = setting["model"], setting["num_stages"], setting["num_pipelines"], setting["delay"]
        runs[place][setting["scheme"]] = result
    found = []
    for (model, num_stages, num_pipelines, delay), by_scheme in runs.items():
        keys = {"model": model, "mesh": f"{num_stages} x {num_pipelines}", "setting": names[delay]}
        ours_s = by_scheme[Scheme.SDPIPE]["blocks_s"]
        for scheme, result in by_scheme.items():
            setting = result["setting"]
            examples = num_pipelines * setting["num_micro_batches"] * setting["micro_batch"]
            rates = [examples / seconds for seconds in result["blocks_s"]]
            found.append(spread_row("examples_per_s", rates, "1/s", scheme=scheme, dose="each iteration", **keys))
            found.append(value_row("cpu_share", result["cpu_share"], scheme=scheme, **keys))
            if scheme != Scheme.SDPIPE:
                found.append(ratio_row("speedup", result["blocks_s"], ours_s, over=scheme, **keys))
        free_s = runs[model, num_stages, num_pipelines, 0.0][Scheme.SDPIPE]["blocks_s"]
        found.append(ratio_row("slowdown", ours_s, free_s, **keys))
    return found


def map_rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return what P and T did on real ranks: speed over All-Reduce, certificate of connection, sizes, loss.

    An invalid group is a run of P groups that does not connect all workers, see `Scheduler.num_unchecked`.
    """
    plain = next(result for result in results if result["setting"]["scheme"] == Scheme.ALL_REDUCE)
    found = []
    for result in results:
        setting, counted = result["setting"], result["counted"]
        if setting["scheme"] != Scheme.SDPIPE:
            continue
        keys = {"P": setting["history"], "T": setting["window"] / setting["num_pipelines"]}
        num_runs = counted["num_groups"] - setting["num_stages"] * (setting["history"] - 1)
        sizes = {int(size): count for size, count in result["sizes"].items()}
        found += [
            ratio_row("over_all_reduce", plain["blocks_s"], result["blocks_s"], **keys),
            value_row("connected_share", 1 - counted["num_unchecked"] / max(1, num_runs), **keys),
            value_row("mean_size", sum(n * m for n, m in sizes.items()) / sum(sizes.values()), "workers", **keys),
            value_row("end_loss", result["curve"][-1][2], **keys),
            value_row("test_loss", result["scores"]["test_loss"], **keys),
        ]
    return found
