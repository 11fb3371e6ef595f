"""Timing studies: real ranks on shaped hosts, methods in turn, rows with intervals.

Source: "Does compressing activations help model parallel training?", tables 2, 3, 4, 6, 7, 9, 12 and figure 1.
A small BERT on the cores of this machine; hosts whose links are slowed until forward tensor communication takes the
share of an iteration that it has in the paper. Times are in milliseconds of this machine, so they are compared with
the paper's by ratio: `speedup` = uncompressed iteration / iteration, taken within rounds.
Simplified: a median over rounds with the interval of order statistics (95 % or more; with 6 to 8 rounds it reaches from
the smallest ratio to the largest); rounds are taken to be independent.
Left out: more than one machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from workbench.cluster import Link
from workbench.launch import Ranks, ShapedHosts
from workbench.timeline import Timeline, chrome_trace
from workbench.training.measuring import median_interval

from .breakdown import Breakdown, break_down
from .rank import Recording, record_rounds
from .variants import Timed, Variant, timed

__all__ = ["BASELINE", "Measured", "measure_iterations", "measure_on", "open_ranks"]

PRELOAD = ("workbench.models.bert", "workbench.techniques.activation_compression.timing")
PARTS = (
    "iteration",
    "forward",
    "backward",
    "optimizer",
    "waiting_and_pipeline",
    "encode",
    "decode",
    "tensor",
    "tensor_waiting",
    "tensor_backward",
)
BASELINE = "w/o"
FEWEST_ROUNDS = 6  # an interval of 95 % needs as many
MS_PER_S = 1e3


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What a study found.

    Attributes:
        rows: medians over rounds with intervals, by method, tp, pp.
        trace: Chrome trace of the last iteration of the last mesh.
        hosts: description of the shaped hosts; None for this machine's loopback.
    """

    rows: list[dict]
    trace: dict
    hosts: dict | None


def open_ranks(num_ranks: int, *, link: Link | None, num_hosts: int, device: str | None = None) -> Ranks:
    """Start ranks on hosts joined by a link, or with None as this machine joins them; close them afterwards."""
    hosts = None if link is None else ShapedHosts(num_hosts, link)
    return Ranks(num_ranks, hosts=hosts, device=device, preload=PRELOAD)


def measure_on(
    ranks: Ranks,
    names: Sequence[str],
    meshes: Sequence[tuple[int, int]],
    *,
    num_iterations: int,
    seed: int = 0,
    warmup: int = 1,
    keys: Mapping[str, int | str] | None = None,
    **sizes,
) -> Measured:
    """Train every method on every (TP, PP) and break the iterations down.

    Args:
        ranks: open ranks, as many as a mesh has; models and batches are on the device they were opened for.
        names: methods, perhaps with a variant ("T1 int32"); "w/o" must be among them.
        meshes: (TP, PP) pairs with one product, the number of ranks.
        num_iterations: of each method that are kept, at least 6.
        seed: of weights, random methods and the order in which methods take turns.
        warmup: iterations of each method before.
        keys: further keys of every row, such as {"nvlink": 0}.
        sizes: further fields of Setting.

    Returns:
        Rows, a trace and what the hosts were.

    Raises:
        ValueError: for too few iterations, or names without "w/o".
    """
    _check(names, num_iterations)
    rows, trace = [], {}
    for tp, pp in meshes:
        things = [timed(name, tp=tp, pp=pp, **sizes) for name in names]
        turns = {"rounds": num_iterations, "warmup": warmup, "seed": seed}
        by_rank = ranks.run(record_rounds, things, **turns, device=ranks.device)
        found = _breakdowns(things, by_rank)
        rows += [row for thing in things for row in _rows(thing, found, keys or {})]
        trace = _trace(by_rank)
    return Measured(rows=rows, trace=trace, hosts=ranks.hosts)


def measure_iterations(
    names: Sequence[str],
    meshes: Sequence[tuple[int, int]],
    *,
    link: Link | None,
    num_hosts: int,
    num_iterations: int,
    device: str | None = None,
    **more,
) -> Measured:
    """Open ranks over a link, and measure on them.

    Args:
        names, meshes, num_iterations: as `measure_on`.
        link: between hosts; None leaves the ranks on this machine's loopback.
        num_hosts: hosts that the ranks are spread over, where there is a link.
        device: "cpu" or "cuda"; None takes WORKBENCH_DEVICE, else "cpu".
        more: further arguments of `measure_on`.
    """
    _check(names, num_iterations)
    with open_ranks(meshes[0][0] * meshes[0][1], link=link, num_hosts=num_hosts, device=device) as ranks:
        return measure_on(ranks, names, meshes, num_iterations=num_iterations, **more)


def _check(names: Sequence[str], num_iterations: int) -> None:
    if num_iterations < FEWEST_ROUNDS:
        raise ValueError(f"num_iterations={num_iterations}: an interval needs at least {FEWEST_ROUNDS}")
    if BASELINE not in names:
        raise ValueError(f"names={list(names)}: {BASELINE!r} must be among them, speedups are over it")


def _breakdowns(things: Sequence[Timed], by_rank: Sequence[Sequence[Recording]]) -> dict[str, list[Breakdown]]:
    settings = {thing.name: thing.setting for thing in things}
    found: dict[str, list[Breakdown]] = {name: [] for name in settings}
    for iteration in zip(*by_rank, strict=True):
        name = iteration[0].name
        actions = [recording.actions for recording in iteration]
        sizes = {"tp": settings[name].tp, "num_micro_batches": settings[name].num_micro_batches}
        found[name].append(break_down(actions, **sizes))
    return found


def _rows(thing: Timed, found: Mapping[str, Sequence[Breakdown]], keys: Mapping[str, int | str]) -> list[dict]:
    mine, plain = found[thing.name], found[BASELINE]
    common = {"method": thing.name, "tp": thing.setting.tp, "pp": thing.setting.pp, **keys}
    rows = [_row(f"{part}_ms", [MS_PER_S * getattr(one, f"{part}_s") for one in mine], "ms", common) for part in PARTS]
    for number in range(thing.setting.pp - 1):
        rows += _boundary_rows(mine, plain, number, common)
    iterations, plain_iterations = ([one.iteration_s for one in each] for each in (mine, plain))
    if thing.setting.pp > 1:
        mean = [fmean(one.boundaries_s) for one in mine]
        rows.append(_row("boundary_of_iteration", _ratios(mean, iterations), "1", common))
    rows.append(_row("speedup", _ratios(plain_iterations, iterations), "1", common))
    tensor = [one.tensor_s for one in mine]
    rows.append(_row("communication_share", _ratios(tensor, iterations), "1", common))
    if thing.setting.tp > 1:
        rows.append(_row("tensor_share", _ratios(tensor, [one.tensor_s for one in plain]), "1", common))
    return rows + _fusing_rows(thing, found, common)


def _fusing_rows(thing: Timed, found: Mapping[str, Sequence[Breakdown]], common: Mapping) -> list[dict]:
    """Compare a fused code with the same code as the paper executes it, within rounds."""
    base = thing.setting.method
    if thing.variant is not Variant.FUSED or base not in found:
        return []
    papers, mine = ([one.iteration_s for one in found[name]] for name in (base, thing.name))
    keys = {**common, "method": base}
    return [
        _row("speedup_of_fusing", [1.0] * len(mine), "1", {**keys, "execution": "as in the paper"}),
        _row("speedup_of_fusing", _ratios(papers, mine), "1", {**keys, "execution": "fused"}),
    ]


def _boundary_rows(mine: Sequence[Breakdown], plain: Sequence[Breakdown], number: int, common: Mapping) -> list[dict]:
    keys = {**common, "boundary": number}
    times, plain_times = ([one.boundaries_s[number] for one in each] for each in (mine, plain))
    return [
        _row("boundary_ms", [MS_PER_S * time for time in times], "ms", keys),
        _row("boundary_share", _ratios(times, plain_times), "1", keys),
    ]


def _ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Divide round by round."""
    return [a / b for a, b in zip(above, below, strict=True)]


def _row(quantity: str, values: Sequence[float], unit: str, keys: Mapping) -> dict:
    low, high = median_interval(values)
    return {"quantity": quantity, **keys, "value": median(values), "low": low, "high": high, "unit": unit}


def _trace(by_rank: Sequence[Sequence[Recording]]) -> dict:
    """Draw the last iteration of the last method."""
    last = [recordings[-1] for recordings in by_rank]
    return chrome_trace(Timeline.merged([one.actions for one in last]), name=last[0].name)
