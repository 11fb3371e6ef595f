"""The control of the lesson on failures: who checkpoints how, how often machines fail; ratio, and where time goes.

Source: thesis, chapter 6 (Gemini), section 6.7.3; the seconds are `workbench.techniques.gemini.simulating`, GPT-2 100B
with the overheads that the paper measured.
Simplified: an iteration takes 62 s with any number of machines, as in the paper's simulation.
Left out: software failures: here every failure loses its machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from workbench import plots
from workbench.explore.controls import choice, steps
from workbench.explore.explorer import Explorer
from workbench.plots.style import GREY
from workbench.techniques.gemini.method.placement import placement
from workbench.techniques.gemini.method.waste import Tier
from workbench.techniques.gemini.simulating.setting import GPT2_100B, Setting
from workbench.techniques.gemini.simulating.solutions import GEMINI, HIGH_FREQUENCY, STRAWMAN, policies
from workbench.techniques.gemini.simulating.training import TrainingRun, simulate_training
from workbench.timeline.fault_draws import DAY_S, poisson_faults

__all__ = ["Comparison", "compare", "describe", "draw", "explore_failures"]

NUMS_MACHINES = (16, 64, 250, 1000, 4096)
FAILURES_PER_DAY = (0, 1, 2, 4, 8, 16, 32, 64)  # of all machines together
SOLUTIONS = (STRAWMAN, HIGH_FREQUENCY, GEMINI)
NUM_DAYS = 10  # simulated: enough failures to see, quick enough to move a control


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A policy beside the others."""

    num_machines: int  #: N
    failures_per_day: float  #: of all machines together, each loses its machine
    solution: str  #: the policy chosen
    num_replicas: int  #: m, of Gemini
    num_standbys: int  #: machines that wait
    run: TrainingRun  #: the chosen policy at the chosen rate
    curves: tuple[Mapping[str, object], ...]  #: rows: failures a day, ratio, solution


def compare(
    *, num_machines: int, failures_per_day: float, solution: str, num_replicas: int, num_standbys: int
) -> Comparison:
    """Simulate ten days with every policy at every rate.

    Args:
        num_machines: N, at least m.
        failures_per_day: of all machines together.
        solution: the policy to look into.
        num_replicas: m, of Gemini's placement.
        num_standbys: machines that wait to take a lost one's place.
    """
    common = {"num_machines": num_machines, "num_replicas": num_replicas, "num_standbys": num_standbys}
    curves = tuple(
        {"failures_per_day": rate, "ratio": _run(name, rate, **common).effective_ratio, "solution": name}
        for name in SOLUTIONS
        for rate in FAILURES_PER_DAY
    )
    run = _run(solution, failures_per_day, **common)
    return Comparison(**common, failures_per_day=failures_per_day, solution=solution, run=run, curves=curves)


def describe(comparison: Comparison) -> str:
    """Say in a sentence what the figure shows."""
    run = comparison.run
    text = f"{comparison.solution}: {run.effective_ratio:.1%} of {NUM_DAYS} days is progress that stays"
    if not run.num_failures:
        return f"{text}; nothing fails."
    cause = max(run.wasted_s, key=lambda each: run.wasted_s[each])
    served = ", ".join(f"{count} from {tier.value}" for tier, count in run.num_recoveries.items() if count)
    return (
        f"{text}; {run.num_failures} failures, {run.num_interrupted} of them within a recovery; "
        f"recovered {served or 0}; "
        f"most of the waste is {cause.value}, {run.wasted_s[cause] / run.duration_s:.1%} of the time."
    )


def draw(comparison: Comparison) -> Figure:
    """Draw the ratio by failures a day, and what wastes time at the chosen place."""
    drawn, (left, right) = plots.figure(1, 2, figsize=(10.5, 3.8))
    plots.lines(
        comparison.curves,
        ax=left,
        x="failures_per_day",
        y="ratio",
        by="solution",
        x_label="failures a day",
        y_label="effective training time ratio",
    )
    left.axvline(comparison.failures_per_day, color=GREY, linestyle="--", linewidth=1)
    left.set_ylim(0, 1.05)
    left.set_title(f"{comparison.num_machines:,} machines, each failure loses one")
    left.legend(title=None)
    run = comparison.run
    wasted = pd.DataFrame(
        [(cause.value, round(100 * seconds / run.duration_s, 6)) for cause, seconds in run.wasted_s.items()],
        columns=["cause", "time wasted"],
    )
    plots.bars(wasted, ax=right, x="cause", y="time wasted", unit="%", value_labels=True)
    right.tick_params(axis="x", rotation=35)
    right.set_title(f"{comparison.solution}, {comparison.failures_per_day:g} failures a day")
    return drawn


def explore_failures() -> Explorer[Comparison]:
    """Return the explorer: five controls, the ratio by failures a day, the waste by cause."""
    return Explorer(
        compare,
        draw,
        describe=describe,
        num_machines=steps(
            "machines",
            NUMS_MACHINES,
            value=16,
            text=lambda number: f"{number:,}",
            help="How many machines train. More of them make replicas' holders rarer among the lost.",
        ),
        failures_per_day=steps(
            "failures",
            FAILURES_PER_DAY,
            value=8,
            text=lambda rate: f"{rate} a day",
            help="Of all machines together; each loses its machine. OPT-175B had about 2 a day.",
        ),
        solution=choice(
            "policy",
            SOLUTIONS,
            value=GEMINI,
            help="Strawman: storage, every 3 hours. HighFreq: storage, as often as it allows. Gemini: memory.",
        ),
        num_replicas=steps(
            "replicas",
            (1, 2, 3, 4),
            value=2,
            text=lambda number: f"m = {number}",
            help="Machines that keep each shard, its own included. With 1 every loss goes to storage.",
        ),
        num_standbys=steps(
            "standby",
            (0, 1, 2, 4, 8),
            value=0,
            text=lambda number: f"{number} machines",
            help="Machines that wait: one takes a lost one's place at once, and another is requested.",
        ),
    )


def _run(name: str, rate: float, *, num_machines: int, num_replicas: int, num_standbys: int) -> TrainingRun:
    trace = poisson_faults(
        num_machines, duration_s=NUM_DAYS * DAY_S, failures_per_machine_day=rate / num_machines, seed=0
    )
    setting = Setting(
        job=GPT2_100B,
        policy=policies(GPT2_100B, as_in_the_text=False)[name],
        placement=placement(num_machines, num_replicas),
        num_standbys=num_standbys,
    )
    return simulate_training(setting, trace)


def from_storage(comparison: Comparison) -> int:
    """Return how many recoveries had to read persistent storage."""
    return comparison.run.num_recoveries[Tier.STORAGE]
