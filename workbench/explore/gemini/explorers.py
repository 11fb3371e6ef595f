"""The controls of the lesson: one iteration under a scheme of checkpoints, and a training under failures.

The iteration is one of a few layers as large as those of GPT-2 40B, on machines of the paper's second testbed. The
training is GPT-2 100B with the overheads that the paper measured; every failure loses its machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.figure import Figure

from workbench import plots
from workbench.cluster import GIGABIT_BYTES_PER_S
from workbench.explore.explorer import Explorer, choice, steps
from workbench.plots.style import GREY
from workbench.techniques.gemini.cost import (
    DAY_S,
    GPT2_100B,
    Setting,
    TrainingRun,
    calibrated,
    iteration_of,
    poisson_faults,
    simulate_training,
    workload_of,
)
from workbench.techniques.gemini.method.interleaving import InterleavedIteration, Scheme
from workbench.techniques.gemini.method.placement import placement
from workbench.techniques.gemini.method.waste import TABLE_6_2
from workbench.techniques.gemini.plots import ITERATION_KINDS, draw_timelines
from workbench.techniques.gemini.simulated.failures import GEMINI, HIGH_FREQUENCY, STRAWMAN, policies

__all__ = ["Comparison", "Interleaving", "compare_failures", "compare_schemes"]
__all__ += ["explore_failures", "explore_interleaving"]

NUM_LAYERS = 4  # as many as a picture shows
MODEL = "GPT-2 40B"
NUM_MACHINES = 16
FREE_BYTES = 256 * 2**20  # of a device, "a few hundred" MB in section 6.5.2
MEBIBYTE = 2**20

FAILURES_PER_DAY = (0, 1, 2, 4, 8, 16, 32, 64)  # of all machines together
SOLUTIONS = (STRAWMAN, HIGH_FREQUENCY, GEMINI)
NUM_DAYS = 10  # simulated: enough failures to see, quick enough to move a control


@dataclass(frozen=True, kw_only=True, slots=True)
class Interleaving:
    """An iteration without checkpoints and under a scheme."""

    plain: InterleavedIteration  # the baseline
    chosen: InterleavedIteration  # with a checkpoint
    link: int  # Gbit/s of a machine

    @property
    def overhead(self) -> float:
        """How much longer the iteration is, as a share of the baseline."""
        return self.chosen.iteration_s / self.plain.iteration_s - 1


def compare_schemes(
    *, scheme: Scheme, link: int, copy_rate: int, reserved_mib: int, num_buffers: int, safety: float, num_replicas: int
) -> Interleaving:
    """Compute one iteration with a checkpoint and without; rates are Gbit/s of a machine, sizes MiB of a device."""
    workload = workload_of(replace(TABLE_6_2[MODEL], num_layers=NUM_LAYERS), f"{NUM_LAYERS} layers of {MODEL}")
    copying = copy_rate * GIGABIT_BYTES_PER_S
    machine = replace(calibrated().p3dn.with_network(link), num_hosts=NUM_MACHINES, copy_bytes_per_s=copying)
    traffic: dict[str, Any] = {"reserved_bytes": reserved_mib * MEBIBYTE, "num_buffers": num_buffers}
    traffic |= {"num_replicas": num_replicas, "safety": safety, "free_bytes": FREE_BYTES}
    plain, chosen = (iteration_of(workload, machine, way, **traffic) for way in (Scheme.BASELINE, scheme))
    return Interleaving(plain=plain, chosen=chosen, link=link)


def _describe_schemes(result: Interleaving) -> str:
    chosen = result.chosen
    if not chosen.chunks:
        return f"No checkpoint travels: the network is idle for {chosen.idle_s:.2f} s of {chosen.iteration_s:.2f} s."
    memory = f"{chosen.buffer_bytes / MEBIBYTE:.0f} MiB of buffers"
    memory += ", which are not free: out of memory" if chosen.is_out_of_memory else ""
    return (
        f"{chosen.scheme}: the iteration is {result.overhead:.1%} longer ({chosen.iteration_s:.2f} s). "
        f"{len(chosen.chunks)} chunks take {chosen.checkpoint_s:.2f} s of the network and leave "
        f"{chosen.idle_s:.2f} s idle; {memory}."
    )


def _draw_schemes(result: Interleaving) -> Figure:
    out = ", out of memory" if result.chosen.is_out_of_memory else ""
    plain = f"Baseline: {result.plain.iteration_s:.2f} s, {result.link} Gbit/s a machine"
    chosen = f"{result.chosen.scheme}: {result.chosen.iteration_s:.2f} s ({result.overhead:+.1%}){out}"
    timelines = {plain: result.plain.timeline, chosen: result.chosen.timeline}
    return draw_timelines(timelines, ITERATION_KINDS, figsize=(9, 5))


SCHEMES = {str(scheme): scheme for scheme in Scheme}
COPYING = {"400 Gbit/s (p4d)": 400, "100 Gbit/s": 100, "50 Gbit/s": 50}
INTERLEAVING: dict[str, Any] = {
    "scheme": choice("scheme", SCHEMES, value=Scheme.GEMINI, help="How the checkpoint shares the network."),
    "link": steps(
        "link", (25, 50, 100, 200, 400), value=100, text="{} Gbit/s".format, help="Of a machine; training uses it."
    ),
    "copy_rate": choice("copying", COPYING, value=400, help="To host memory; a copied chunk's buffer is free."),
    "reserved_mib": steps(
        "R", (8, 32, 128, 512), value=128, text="{} MiB".format, help="Memory for buffers. Naive takes what it needs."
    ),
    "num_buffers": steps(
        "buffers", (1, 2, 4, 8), value=4, text="p = {}".format, help="In how many R is divided. One is unpipelined."
    ),
    "safety": steps("μ", (0.5, 0.7, 0.9, 1.0), value=0.9, text="{:.0%} of a span".format, help="That is planned with."),
    "num_replicas": steps(
        "replicas", (1, 2, 3), value=2, text="m = {}".format, help="The local one is included; it needs no network."
    ),
}


def explore_interleaving() -> Explorer[Interleaving]:
    """Return the explorer: seven controls, the timeline of one iteration."""
    return Explorer(compare_schemes, _draw_schemes, describe=_describe_schemes, **INTERLEAVING)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A policy beside the others."""

    num_machines: int  # N
    failures_per_day: float  # of all machines together, each loses its machine
    solution: str  # the policy chosen
    run: TrainingRun  # the chosen policy at the chosen rate
    curves: tuple[Mapping[str, object], ...]  # rows: failures a day, ratio, solution


def compare_failures(
    *, num_machines: int, failures_per_day: float, solution: str, num_replicas: int, num_standbys: int
) -> Comparison:
    """Simulate ten days with every policy at every rate, and look into the chosen one."""
    common = {"num_machines": num_machines, "num_replicas": num_replicas, "num_standbys": num_standbys}
    curves = tuple(
        {"failures_per_day": rate, "ratio": _run(name, rate, **common).effective_ratio, "solution": name}
        for name in SOLUTIONS
        for rate in FAILURES_PER_DAY
    )
    run = _run(solution, failures_per_day, **common)
    return Comparison(
        num_machines=num_machines, failures_per_day=failures_per_day, solution=solution, run=run, curves=curves
    )


def _describe_failures(comparison: Comparison) -> str:
    run = comparison.run
    text = f"{comparison.solution}: {run.effective_ratio:.1%} of {NUM_DAYS} days is progress that stays"
    if not run.num_failures:
        return f"{text}; nothing fails."
    cause = max(run.wasted_s, key=run.wasted_s.__getitem__)
    served = ", ".join(f"{count} from {tier.value}" for tier, count in run.num_recoveries.items() if count)
    return (
        f"{text}; {run.num_failures} failures, {run.num_interrupted} of them within a recovery; "
        f"recovered {served or 0}; "
        f"most of the waste is {cause.value}, {run.wasted_s[cause] / run.duration_s:.1%} of the time."
    )


def _draw_failures(comparison: Comparison) -> Figure:
    drawn, (left, right) = plots.figure(1, 2, figsize=(10.5, 3.8))
    labels: dict[str, Any] = {"x_label": "failures a day", "y_label": "effective training time ratio"}
    plots.lines(comparison.curves, ax=left, x="failures_per_day", y="ratio", by="solution", **labels)
    left.axvline(comparison.failures_per_day, color=GREY, linestyle="--", linewidth=1)
    left.set_ylim(0, 1.05)
    left.set_title(f"{comparison.num_machines:,} machines, each failure loses one")
    run = comparison.run
    wasted = [
        {"cause": cause.value, "time wasted": round(100 * seconds / run.duration_s, 6)}
        for cause, seconds in run.wasted_s.items()
    ]
    plots.bars(wasted, ax=right, x="cause", y="time wasted", unit="%", value_labels=True)
    causes = [row["cause"] for row in wasted]
    right.set_xticks(right.get_xticks(), causes, rotation=35, ha="right", rotation_mode="anchor")
    right.set_title(f"{comparison.solution}, {comparison.failures_per_day:g} failures a day")
    return drawn


POLICY = "Strawman: storage, every 3 hours. HighFreq: storage, as often as it allows. Gemini: memory."
FAILURES: dict[str, Any] = {
    "num_machines": steps(
        "machines", (16, 64, 250, 1000, 4096), value=16, text="{:,}".format, help="How many machines train."
    ),
    "failures_per_day": steps(
        "failures", FAILURES_PER_DAY, value=8, text="{} a day".format, help="Of all machines; OPT-175B had about 2."
    ),
    "solution": choice("policy", SOLUTIONS, value=GEMINI, help=POLICY),
    "num_replicas": steps(
        "replicas", (1, 2, 3, 4), value=2, text="m = {}".format, help="Machines that keep a shard, its own included."
    ),
    "num_standbys": steps(
        "standby", (0, 1, 2, 4, 8), value=0, text="{} machines".format, help="Machines that wait to replace others."
    ),
}


def explore_failures() -> Explorer[Comparison]:
    """Return the explorer: five controls, the ratio by failures a day, the waste by cause."""
    return Explorer(compare_failures, _draw_failures, describe=_describe_failures, **FAILURES)


def _run(name: str, rate: float, *, num_machines: int, num_replicas: int, num_standbys: int) -> TrainingRun:
    days = {"duration_s": NUM_DAYS * DAY_S, "failures_per_machine_day": rate / num_machines}
    trace = poisson_faults(num_machines, **days, seed=0)
    setting = Setting(
        job=GPT2_100B,
        policy=policies(GPT2_100B)[name],
        placement=placement(num_machines, num_replicas),
        num_standbys=num_standbys,
    )
    return simulate_training(setting, trace)
