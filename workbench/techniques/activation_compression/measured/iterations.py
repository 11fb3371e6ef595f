"""Methods timed in turn on real ranks, and the rows of tables 2 to 9: times in milliseconds, and ratios within rounds.

`speedup` = uncompressed iteration / iteration; one small batch, always the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

import torch

from workbench.cluster import Link
from workbench.launch import Ranks
from workbench.parallel.groups import RecordedTensorGroup
from workbench.parallel.pipeline import Mesh, open_mesh
from workbench.study.breakdown import OPTIMIZER, StageBreakdown, break_down_stages
from workbench.study.rows import median_row, ratio_row
from workbench.study.timing import Timed as Rounds
from workbench.study.timing import Trial, Turns, keep_to_one_core, open_ranks, time_variants
from workbench.timeline import Kind, Recorder, Timeline, chrome_trace
from workbench.training.measuring import FEWEST_ROUNDS

from ..training import compressed_pipeline, small_batch
from .variants import Timed, Variant, timed

__all__ = ["BASELINE", "PRELOAD", "Measured", "measure_iterations", "measure_on", "trials"]

PRELOAD = ("workbench.models.bert", __name__)
LEARNING_RATE = 1e-4  # of Adam, section 4.1; any, since only the time of a step is looked at
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
MS_PER_S = 1e3
Breakdowns = Mapping[str, Sequence[StageBreakdown]]  # by method, round by round


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Rows of measured iterations."""

    rows: list[dict]  # medians over rounds with intervals, by method, tp, pp
    trace: dict  # Chrome trace of the last iteration of the last mesh
    hosts: dict | None  # description of the shaped hosts; None for this machine's loopback


def trials(recorder: Recorder, methods: Sequence[Timed], seed: int, device: str = "cpu") -> dict[str, Trial]:
    """Build the model and the training step of every method on this rank; all methods are of one (TP, PP)."""
    first = methods[0].setting
    if device == "cpu" and first.num_micro_batches == 1:
        keep_to_one_core()  # with several micro-batches stages work at once, and the scheduler balances them better
    mesh = open_mesh(tensor=first.tp, pipeline=first.pp, device=device)
    mesh = replace(mesh, tensor_group=RecordedTensorGroup(mesh.tensor_group.process_group, recorder=recorder))
    return {each.name: Trial(step=_step_of(each, mesh, recorder, seed, device)) for each in methods}


def _step_of(method: Timed, mesh: Mesh, recorder: Recorder, seed: int, device: str):
    codec = method.codec(recorder, seed)
    pipeline = compressed_pipeline(method.setting, mesh, codec=codec, recorder=recorder, device=device, seed=seed)
    optimizer = torch.optim.Adam(pipeline.module.parameters(), lr=LEARNING_RATE, fused=True)  # the paper's takes 1 %
    inputs, targets = (tensor.to(device) for tensor in small_batch(method.setting))

    def step() -> None:
        pipeline.step(inputs, targets)
        with recorder.during(OPTIMIZER, Kind.OTHER):
            optimizer.step()
            optimizer.zero_grad()

    return step


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
    """Train every method, "w/o" among them, on every (TP, PP); `keys` come into every row, `sizes` into Setting."""
    turns, rows, trace = _turns(names, num_iterations, warmup=warmup, seed=seed), [], {}
    for tp, pp in meshes:
        methods = [timed(name, tp=tp, pp=pp, **sizes) for name in names]
        found = time_variants(ranks, trials, methods, seed, ranks.device, turns=turns)
        parts = _breakdowns(methods, found)
        rows += [row for method in methods for row in _rows(method, parts, keys or {})]
        trace = _trace(found)
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
    """Open ranks on hosts joined by a link (None: this machine's loopback), and measure on them; see `measure_on`."""
    _turns(names, num_iterations)
    tp, pp = meshes[0]
    with open_ranks(tp * pp, link=link, num_hosts=num_hosts, device=device, preload=PRELOAD) as ranks:
        return measure_on(ranks, names, meshes, num_iterations=num_iterations, **more)


def _turns(names: Sequence[str], num_iterations: int, **more: Any) -> Turns:
    if num_iterations < FEWEST_ROUNDS:
        raise ValueError(f"num_iterations is {num_iterations}; it must be at least {FEWEST_ROUNDS} for an interval")
    if BASELINE not in names:
        raise ValueError(f"names is {list(names)}; {BASELINE!r} must be among them, speedups are over it")
    return Turns(rounds=num_iterations, **more)


def _breakdowns(methods: Sequence[Timed], found: Rounds) -> dict[str, list[StageBreakdown]]:
    settings = {method.name: method.setting for method in methods}
    return {
        name: [
            break_down_stages(
                [turn.actions for turn in turns],
                tp=settings[name].tp,
                num_micro_batches=settings[name].num_micro_batches,
            )
            for turns in rounds
        ]
        for name, rounds in found.rounds.items()
    }


def _rows(method: Timed, parts: Breakdowns, keys: Mapping[str, int | str]) -> list[dict]:
    own, plain = parts[method.name], parts[BASELINE]
    common = {"method": method.name, "tp": method.setting.tp, "pp": method.setting.pp, **keys}
    rows = [median_row(f"{part}_ms", _in_ms(own, part), "ms", **common) for part in PARTS]
    for number in range(method.setting.pp - 1):
        times, plain_times = ([each.boundaries_s[number] for each in rounds] for rounds in (own, plain))
        rows.append(median_row("boundary_ms", [MS_PER_S * time for time in times], "ms", **common, boundary=number))
        rows.append(ratio_row("boundary_share", times, plain_times, **common, boundary=number))
    iterations, plain_iterations = ([each.iteration_s for each in rounds] for rounds in (own, plain))
    if method.setting.pp > 1:
        boundaries = [fmean(each.boundaries_s) for each in own]
        rows.append(ratio_row("boundary_of_iteration", boundaries, iterations, **common))
    rows.append(ratio_row("speedup", plain_iterations, iterations, **common))
    tensor, plain_tensor = ([each.tensor_s for each in rounds] for rounds in (own, plain))
    rows.append(ratio_row("communication_share", tensor, iterations, **common))
    if method.setting.tp > 1:
        rows.append(ratio_row("tensor_share", tensor, plain_tensor, **common))
    return rows + _fusing_rows(method, parts, common)


def _in_ms(rounds: Sequence[StageBreakdown], part: str) -> list[float]:
    return [MS_PER_S * getattr(each, f"{part}_s") for each in rounds]


def _fusing_rows(method: Timed, parts: Breakdowns, common: Mapping) -> list[dict]:
    """Compare a fused code with the same code as the paper executes it, within rounds."""
    base = method.setting.method
    if method.variant is not Variant.FUSED or base not in parts:
        return []
    papers, fused = ([each.iteration_s for each in parts[name]] for name in (base, method.name))
    row = partial(ratio_row, "speedup_of_fusing", papers, **{**common, "method": base})
    return [row(papers, execution="as in the paper"), row(fused, execution="fused")]


def _trace(found: Rounds) -> dict:
    """Draw the last iteration that was measured."""
    last = max((rounds[-1] for rounds in found.rounds.values()), key=lambda turns: turns[0].actions[-1].end_s)
    return chrome_trace(Timeline.merged([turn.actions for turn in last]), name=last[0].name)
