"""Timing studies: real ranks on shaped hosts, methods in turn, rows with intervals.

Source: "Does compressing activations help model parallel training?", tables 2, 3, 4, 6, 7, 9, 12 and figure 1.
A small BERT on the cores of this machine; hosts whose links are slowed until forward tensor communication takes the
share of an iteration that it has in the paper. Times are in milliseconds of this machine, so they are compared with
the paper's by ratio: `speedup` = uncompressed iteration / iteration, taken within rounds.
Simplified: a median over rounds with the interval of order statistics; rounds are taken to be independent.
Left out: more than one machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from workbench.cluster import Link
from workbench.launch import Ranks, ShapedHosts
from workbench.timeline import Timeline, chrome_trace
from workbench.training.measuring import median_interval

from .breakdown import Breakdown, break_down
from .rank import Recording, record_rounds
from .variants import Timed, timed

__all__ = ["BASELINE", "Measured", "measure_iterations"]

PRELOAD = ("workbench.models.bert", "workbench.techniques.activation_compression.timing")
PARTS = ("iteration", "forward", "backward", "optimizer", "waiting_and_pipeline", "encode", "decode", "tensor",
         "tensor_waiting", "tensor_backward")  # fmt: skip
BASELINE = "w/o"
FEWEST_ROUNDS = 6  # an interval of 95 % needs as many
MS_PER_S = 1e3


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What a study found.

    Attributes:
        rows: medians over rounds with intervals, by method, tp, pp.
        trace: Chrome trace of the last iteration of each mesh's first method.
        hosts: description of the shaped hosts; None for this machine's loopback.
    """

    rows: list[dict]
    trace: dict
    hosts: dict | None


def measure_iterations(
    names: Sequence[str],
    meshes: Sequence[tuple[int, int]],
    *,
    link: Link | None,
    num_hosts: int,
    num_iterations: int,
    seed: int = 0,
    warmup: int = 1,
    keys: Mapping[str, int] | None = None,
    **sizes,
) -> Measured:
    """Train every method on every (TP, PP) and break the iterations down.

    Args:
        names: methods, perhaps with a variant ("T1 int32"); "w/o" must be among them.
        meshes: (TP, PP) pairs with one product, the number of ranks.
        link: between hosts; None leaves the ranks on this machine's loopback.
        num_hosts: hosts that the ranks are spread over, where there is a link.
        num_iterations: of each method that are kept, at least 6.
        seed: of weights and random methods.
        warmup: iterations of each method before.
        keys: further keys of every row, such as {"nvlink": 0}.
        sizes: further fields of Setting.

    Returns:
        Rows, a trace and what the hosts were.

    Raises:
        ValueError: for too few iterations, or names without "w/o".
    """
    if num_iterations < FEWEST_ROUNDS:
        raise ValueError(f"num_iterations={num_iterations}: an interval needs at least {FEWEST_ROUNDS}")
    if BASELINE not in names:
        raise ValueError(f"names={list(names)}: {BASELINE!r} must be among them, speedups are over it")
    rows, trace = [], {}
    hosts = None if link is None else ShapedHosts(num_hosts, link)
    with Ranks(meshes[0][0] * meshes[0][1], hosts=hosts, preload=PRELOAD) as ranks:
        for tp, pp in meshes:
            things = [timed(name, tp=tp, pp=pp, **sizes) for name in names]
            by_rank = ranks.run(record_rounds, things, rounds=num_iterations, warmup=warmup, seed=seed)
            found = _breakdowns(things, by_rank)
            rows += [row for thing in things for row in _rows(thing, found, keys or {})]
            trace = _trace(by_rank)
        described = ranks.hosts
    return Measured(rows=rows, trace=trace, hosts=described)


def _breakdowns(things: Sequence[Timed], by_rank: Sequence[Sequence[Recording]]) -> dict[str, list[Breakdown]]:
    settings = {thing.name: thing.setting for thing in things}
    found: dict[str, list[Breakdown]] = {name: [] for name in settings}
    for iteration in zip(*by_rank, strict=True):
        name = iteration[0].name
        actions = [recording.actions for recording in iteration]
        sizes = {"tp": settings[name].tp, "num_micro_batches": settings[name].num_micro_batches}
        found[name].append(break_down(actions, **sizes))
    return found


def _rows(thing: Timed, found: Mapping[str, Sequence[Breakdown]], keys: Mapping[str, int]) -> list[dict]:
    mine, plain = found[thing.name], found[BASELINE]
    common = {"method": thing.name, "tp": thing.setting.tp, "pp": thing.setting.pp, **keys}
    rows = [
        _row(f"{part}_ms", [MS_PER_S * getattr(one, f"{part}_s") for one in mine], "ms", common) for part in PARTS
    ]
    for number in range(thing.setting.pp - 1):
        boundary = {**common, "boundary": number}
        times = [one.boundaries_s[number] for one in mine]
        rows.append(_row("boundary_ms", [MS_PER_S * time for time in times], "ms", boundary))
        shares = _ratios(times, [one.boundaries_s[number] for one in plain])
        rows.append(_row("boundary_share", shares, "1", boundary))
    iterations, plain_iterations = ([one.iteration_s for one in each] for each in (mine, plain))
    rows.append(_row("speedup", _ratios(plain_iterations, iterations), "1", common))
    tensor = [one.tensor_s for one in mine]
    rows.append(_row("communication_share", _ratios(tensor, iterations), "1", common))
    if thing.setting.tp > 1:
        rows.append(_row("tensor_share", _ratios(tensor, [one.tensor_s for one in plain]), "1", common))
    return rows


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
