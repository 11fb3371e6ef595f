"""Methods timed in turn on real ranks, and the rows of tables 2 to 9: times in milliseconds, and ratios within rounds.

`speedup` = uncompressed iteration / iteration; one small batch, always the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch

from workbench.cluster import Link
from workbench.launch import Ranks
from workbench.parallel.groups import RecordedTensorGroup
from workbench.parallel.pipeline import open_mesh
from workbench.study.breakdown import OPTIMIZER, StageBreakdown, break_down_stages
from workbench.study.rows import median_row, ratio_row
from workbench.study.timing import Trial, Turns, keep_to_one_core, open_ranks, time_variants
from workbench.timeline import Kind, Recorder, Timeline, chrome_trace
from workbench.training.measuring import FEWEST_ROUNDS

from ..cost import Setting, Variant, read_variant
from ..training import compressed_pipeline, setting_codec, small_batch

__all__ = ["BASELINE", "PRELOAD", "Measured", "measure_iterations", "measure_on", "trials"]

PRELOAD = ("workbench.models.bert", __name__)
LEARNING_RATE = 1e-4  # of Adam, section 4.1; any, since only the time of a step is looked at
PARTS = ("iteration", "forward", "backward", "optimizer", "waiting_and_pipeline", "encode", "decode")
PARTS += ("tensor", "tensor_waiting", "tensor_backward")
BASELINE = "w/o"
MS_PER_S = 1e3


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Rows of measured iterations."""

    rows: list[dict]  # medians over rounds with intervals, by method, tp, pp
    trace: dict  # Chrome trace of the last iteration of the last mesh
    hosts: dict | None  # description of the shaped hosts; None for this machine's loopback


def trials(
    recorder: Recorder, variants: Mapping[str, tuple[Setting, Variant]], seed: int, device: str = "cpu"
) -> dict[str, Trial]:
    """Build the model and the training step of every variant on this rank; all are of one (TP, PP)."""
    first, _ = next(iter(variants.values()))
    if device == "cpu" and first.num_micro_batches == 1:
        keep_to_one_core()  # with several micro-batches stages work at once, and the scheduler balances them better
    mesh = open_mesh(tensor=first.tp, pipeline=first.pp, device=device)
    mesh = replace(mesh, tensor_group=RecordedTensorGroup(mesh.tensor_group.process_group, recorder=recorder))

    def trial(setting: Setting, variant: Variant) -> Trial:
        codec = setting_codec(setting, variant, recorder, seed)
        pipeline = compressed_pipeline(setting, mesh, codec=codec, recorder=recorder, device=device, seed=seed)
        weights = pipeline.module.parameters()
        optimizer = torch.optim.Adam(weights, lr=LEARNING_RATE, fused=True)  # the paper's takes 1 %
        inputs, targets = (tensor.to(device) for tensor in small_batch(setting))

        def step() -> None:
            pipeline.step(inputs, targets)
            with recorder.during(OPTIMIZER, Kind.OTHER):
                optimizer.step()
                optimizer.zero_grad()

        return Trial(step=step)

    return {name: trial(*variant) for name, variant in variants.items()}


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
        variants = {name: read_variant(name, tp=tp, pp=pp, **sizes) for name in names}
        timed = time_variants(ranks, trials, variants, seed, ranks.device, turns=turns)
        parts = {}
        for name, rounds in timed.rounds.items():
            stages = {"tp": tp, "num_micro_batches": variants[name][0].num_micro_batches}
            parts[name] = [break_down_stages([turn.actions for turn in taken], **stages) for taken in rounds]
        for name in names:
            rows += _rows(name, parts, {"tp": tp, "pp": pp, **(keys or {})})
        last = max((rounds[-1] for rounds in timed.rounds.values()), key=lambda taken: taken[0].actions[-1].end_s)
        trace = chrome_trace(Timeline.merged([turn.actions for turn in last]), name=last[0].name)
    return Measured(rows=rows, trace=trace, hosts=ranks.hosts)


def measure_iterations(
    names: Sequence[str],
    meshes: Sequence[tuple[int, int]],
    *,
    link: Link | None,
    num_hosts: int,
    num_iterations: int,
    **more,
) -> Measured:
    """Open ranks on hosts joined by a link (None: this machine's loopback), and measure on them; see `measure_on`."""
    _turns(names, num_iterations)
    tp, pp = meshes[0]
    with open_ranks(tp * pp, link=link, num_hosts=num_hosts, preload=PRELOAD) as ranks:
        return measure_on(ranks, names, meshes, num_iterations=num_iterations, **more)


def _turns(names: Sequence[str], num_iterations: int, **more: Any) -> Turns:
    if num_iterations < FEWEST_ROUNDS:
        raise ValueError(f"num_iterations is {num_iterations}; it must be at least {FEWEST_ROUNDS} for an interval")
    if BASELINE not in names:
        raise ValueError(f"names is {list(names)}; {BASELINE!r} must be among them, speedups are over it")
    return Turns(rounds=num_iterations, **more)


def _rows(name: str, parts: Mapping[str, Sequence[StageBreakdown]], mesh: Mapping[str, int | str]) -> list[dict]:
    """Return the rows of one variant, from the parts of every round of all variants."""

    def seconds(variant: str, part: str) -> list[float]:
        return [getattr(taken, f"{part}_s") for taken in parts[variant]]

    keys = {"method": name, **mesh}
    iterations = seconds(name, "iteration")
    rows = [median_row(f"{part}_ms", [MS_PER_S * time for time in seconds(name, part)], "ms", **keys) for part in PARTS]
    for number in range(mesh["pp"] - 1):
        times, plain = ([taken.boundaries_s[number] for taken in parts[variant]] for variant in (name, BASELINE))
        rows.append(median_row("boundary_ms", [MS_PER_S * time for time in times], "ms", **keys, boundary=number))
        rows.append(ratio_row("boundary_share", times, plain, **keys, boundary=number))
    if mesh["pp"] > 1:
        boundaries = [fmean(taken.boundaries_s) for taken in parts[name]]
        rows.append(ratio_row("boundary_of_iteration", boundaries, iterations, **keys))
    rows.append(ratio_row("speedup", seconds(BASELINE, "iteration"), iterations, **keys))
    rows.append(ratio_row("communication_share", seconds(name, "tensor"), iterations, **keys))
    if mesh["tp"] > 1:
        rows.append(ratio_row("tensor_share", seconds(name, "tensor"), seconds(BASELINE, "tensor"), **keys))
    base, _, suffix = name.partition(" ")
    if suffix == "fused" and base in parts:  # the same code, as the paper executes it
        papers, keys = seconds(base, "iteration"), {**keys, "method": base}
        rows.append(ratio_row("speedup_of_fusing", papers, papers, **keys, execution="as in the paper"))
        rows.append(ratio_row("speedup_of_fusing", papers, iterations, **keys, execution="fused"))
    return rows
