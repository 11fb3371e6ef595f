"""The average time that a failure wastes, by what is lost: figure 6.10 and the example of section 6.2.2.

What: Eq. 6.1 for each policy and tier; the same averaged over simulated failures; how often no replica is left.
Source: thesis, chapter 6 (Gemini), section 6.7.2, figure 6.10; section 6.2.2 (MT-NLG).
Simplified: as in the equation, seconds for which checkpoints stop training are not counted.
Left out: detection, replacement and warm-up (section 6.2.1, footnote).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from workbench.timeline.fault_draws import DAY_S, FaultSpan, dated_faults
from workbench.timeline.faults import FaultKind, FaultTrace

from ..method.placement import placement
from ..method.waste import Tier, average_wasted_s, wasted_time_s
from .setting import GPT2_100B, MT_NLG, Setting
from .solutions import GEMINI, HIGH_FREQUENCY, HIGH_FREQUENCY_9, STRAWMAN, Rows, policies, spread_row
from .training import Cause, TrainingRun, simulate_training

__all__ = ["REPLACED", "mt_nlg_rows", "wasted_rows"]

NONE, ONE, TWO_HELD, TWO_GONE = "none", "one", "two, a replica left", "two, no replica left"
REPLACED = MappingProxyType({NONE: Tier.LOCAL, ONE: Tier.PEER, TWO_HELD: Tier.PEER, TWO_GONE: Tier.STORAGE})
"""How many machines are replaced, and the tier that Gemini recovers from."""

PAPERS_FACTOR = 13  # section 6.7.2: reduced by more than 13 times compared to HighFreq
NUM_REPLICAS = 2  # section 6.7.2


def wasted_rows(num_failures: int, seeds: Sequence[int]) -> Rows:
    """Return figure 6.10: Eq. 6.1, and what as many simulated failures waste.

    Args:
        num_failures: of each kind and seed.
        seeds: of the draws of moments and machines.

    Returns:
        Rows wasted_s (keys solution, replaced), iterations_wasted, reduction (of HighFreq's over Gemini's, keys
        highfreq, replaced), bound_s (13 times Gemini's beside HighFreq's), over_strawman, simulated_over_equation,
        storage_share (of failures that replace two machines, per cent).
    """
    wasted_s = {(name, replaced): _by_equation(name, replaced) for name in policies(GPT2_100B) for replaced in REPLACED}
    rows: Rows = [
        {"quantity": "wasted_s", "solution": name, "replaced": replaced, "value": value, "unit": "s"}
        for (name, replaced), value in wasted_s.items()
    ]
    iterations = wasted_s[GEMINI, NONE] / GPT2_100B.iteration_s
    rows.append({"quantity": "iterations_wasted", "replaced": NONE, "value": iterations, "unit": "1"})
    degraded = wasted_s[GEMINI, TWO_GONE] / wasted_s[STRAWMAN, TWO_GONE]
    rows.append({"quantity": "over_strawman", "replaced": TWO_GONE, "value": degraded, "unit": "1"})
    for highfreq in (HIGH_FREQUENCY, HIGH_FREQUENCY_9):
        for replaced in (NONE, ONE, TWO_HELD):
            rows += _compared(highfreq, replaced, wasted_s[highfreq, replaced], wasted_s[GEMINI, replaced])
    return rows + _simulated(num_failures, seeds)


def mt_nlg_rows() -> Rows:
    """Return the example of section 6.2.2: one checkpoint of MT-NLG, and what a failure then wastes at least."""
    checkpoint_s = MT_NLG.storage_s
    wasted_s = wasted_time_s(checkpoint_s=checkpoint_s, interval_s=checkpoint_s, retrieval_s=checkpoint_s)
    values = {"checkpoint_min": checkpoint_s / 60, "wasted_min": wasted_s / 60}
    return [{"quantity": name, "model": "MT-NLG", "value": value, "unit": "min"} for name, value in values.items()]


def _by_equation(name: str, replaced: str) -> float:
    tier = REPLACED[replaced] if name == GEMINI else Tier.STORAGE
    return average_wasted_s(policies(GPT2_100B)[name], GPT2_100B, tier)


def _compared(highfreq: str, replaced: str, theirs_s: float, ours_s: float) -> Rows:
    keys = {"highfreq": highfreq, "replaced": replaced}
    bounds = {f"{PAPERS_FACTOR} x Gemini": PAPERS_FACTOR * ours_s, "HighFreq": theirs_s}
    rows: Rows = [{"quantity": "reduction", **keys, "value": theirs_s / ours_s, "unit": "1"}]
    keys["quantity"] = "bound_s"
    return rows + [{**keys, "of": of, "value": value, "unit": "s"} for of, value in bounds.items()]


def _simulated(num_failures: int, seeds: Sequence[int]) -> Rows:
    rows: Rows = []
    for name in (STRAWMAN, HIGH_FREQUENCY, GEMINI):
        replaced = ONE if name == GEMINI else NONE
        runs = [_run(name, _daily(replaced, num_failures, seed)) for seed in seeds]
        ratios = [_mean_wasted_s(run) / _by_equation(name, replaced) for run in runs]
        keys = {"solution": name, "replaced": replaced}
        rows.append(spread_row("simulated_over_equation", ratios, "1", keys))
    runs = [_run(GEMINI, _daily(TWO_HELD, num_failures, seed)) for seed in seeds]
    shares = [100 * run.num_recoveries[Tier.STORAGE] / sum(run.num_recoveries.values()) for run in runs]
    rows.append(spread_row("storage_share", shares, "%", {"num_machines": GPT2_100B.num_machines, "lost": 2}))
    return rows


def _daily(replaced: str, num_failures: int, seed: int) -> FaultTrace:
    """Draw a failure a day, in its first half: each is recovered from, and storage written, before the next."""
    hit = 2 if replaced == TWO_HELD else 1
    kind = FaultKind.SOFTWARE if replaced == NONE else FaultKind.HARDWARE
    spans = [
        FaultSpan(start_s=(day + 0.25) * DAY_S, end_s=(day + 0.75) * DAY_S, kind=kind, machines_each=hit)
        for day in range(num_failures)
    ]
    return dated_faults(GPT2_100B.num_machines, spans, duration_s=num_failures * DAY_S, seed=seed)


def _run(name: str, trace: FaultTrace) -> TrainingRun:
    placed = placement(GPT2_100B.num_machines, NUM_REPLICAS)
    return simulate_training(Setting(job=GPT2_100B, policy=policies(GPT2_100B)[name], placement=placed), trace)


def _mean_wasted_s(run: TrainingRun) -> float:
    return (run.wasted_s[Cause.LOST] + run.wasted_s[Cause.RETRIEVAL]) / sum(run.num_recoveries.values())
