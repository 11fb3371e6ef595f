"""The effective training time ratio: by failures a day (figure 6.15a) and by machines (figure 6.15b).

What: simulated trainings of GPT-2 100B with each policy under seeded failures; where the time goes.
Source: thesis, chapter 6 (Gemini), section 6.7.3, figure 6.15; 1.5 % of machines a day: section 6.7.2.
Simplified: failures are those of software, as the paper's (machines lost are ours); iteration, checkpoint and storage
stay those of 16 machines however many there are, since the text says nothing else.
Left out: what a larger cluster would train.
"""

from __future__ import annotations

from collections.abc import Sequence

from workbench.timeline.fault_draws import DAY_S, OPT_FAILURES_PER_MACHINE_DAY, poisson_faults
from workbench.timeline.faults import FaultTrace

from ..method.placement import placement
from ..method.waste import Job, Tier, average_wasted_s
from .setting import GPT2_100B, PAPER_OVERHEADS, Setting
from .solutions import GEMINI, HIGH_FREQUENCY, HIGH_FREQUENCY_9, Rows, policies, spread_row
from .training import Cause, TrainingRun, simulate_training

__all__ = ["MACHINES_LOST", "NO_STANDBY", "rows_by_failures", "rows_by_machines", "serialising_rows"]

MACHINES_LOST, NO_STANDBY = "Gemini, machines lost, standby", "Gemini, machines lost, no standby"
NUM_REPLICAS = 2
ENOUGH_STANDBYS_SHARE = 0.01  # of the machines, at least 2: replacements take minutes, failures come by the day


def rows_by_failures(failures_per_day: Sequence[float], *, num_days: float, seeds: Sequence[int]) -> Rows:
    """Return figure 6.15a: 16 machines, by failures a day of all of them together.

    Args:
        failures_per_day: along the axis; 0 for none.
        num_days: that are simulated.
        seeds: of the failures' moments.

    Returns:
        Rows effective_ratio (keys solution, failures_per_day) with least and most over seeds; serialising_share.
    """
    rows: Rows = []
    num_machines = GPT2_100B.num_machines
    for rate in failures_per_day:
        traces = [_software(num_machines, rate / num_machines, num_days, seed) for seed in seeds]
        for name in policies(GPT2_100B):
            runs = [_run(name, trace, num_machines, seed) for seed, trace in zip(seeds, traces, strict=True)]
            keys = {"solution": name, "failures_per_day": rate}
            rows.append(spread_row("effective_ratio", [run.effective_ratio for run in runs], "1", keys))
    return rows + serialising_rows()


def serialising_rows() -> Rows:
    """Return the time that HighFreq spends on serialising without failures, of training time and of all time."""
    rows: Rows = []
    for name in (HIGH_FREQUENCY, HIGH_FREQUENCY_9):
        level = policies(GPT2_100B)[name].storage
        training_s = level.interval_iterations * GPT2_100B.iteration_s
        shares = {
            "training time": level.blocking_s / training_s,
            "all time": level.blocking_s / (training_s + level.blocking_s),
        }
        rows += [
            {"quantity": "serialising_share", "solution": name, "of": of, "value": 100 * share, "unit": "%"}
            for of, share in shares.items()
        ]
    return rows


def rows_by_machines(nums_machines: Sequence[int], *, num_days: float, seeds: Sequence[int]) -> Rows:
    """Return figure 6.15b: by the number of machines, of which 1.5 % fail every day.

    Args:
        nums_machines: along the axis.
        num_days: that are simulated.
        seeds: of the failures' moments.

    Returns:
        Rows effective_ratio (keys solution, num_machines) with least and most over seeds; time_share (keys solution,
        num_machines, cause; the first seed's); gain of Gemini over HighFreq, keys highfreq, num_machines, and of:
        "HighFreq's ratio" (per cent of it) or "all time" (points); over_software, Gemini's ratio where
        machines are lost over that where none is; effective_ratio_added and gain_added, with losses simply added up.
    """
    rows: Rows = []
    for number in nums_machines:
        runs = _runs(number, num_days, seeds)
        for name, seeded in runs.items():
            keys = {"solution": name, "num_machines": number}
            rows.append(spread_row("effective_ratio", [run.effective_ratio for run in seeded], "1", keys))
            rows += _share_rows(seeded[0], keys)
        for highfreq in (HIGH_FREQUENCY, HIGH_FREQUENCY_9):
            rows += _gain_rows(highfreq, number, runs[GEMINI], runs[highfreq])
        for name in (MACHINES_LOST, NO_STANDBY):
            pairs = zip(runs[name], runs[GEMINI], strict=True)
            ratios = [lost.effective_ratio / software.effective_ratio for lost, software in pairs]
            rows.append(spread_row("over_software", ratios, "1", {"solution": name, "num_machines": number}))
        rows += _added_rows(number)
    return rows


def _runs(num_machines: int, num_days: float, seeds: Sequence[int]) -> dict[str, list[TrainingRun]]:
    """Simulate every policy with the same failures, of software, and Gemini's with those that lose machines."""
    duration_s, names = num_days * DAY_S, (*policies(GPT2_100B), MACHINES_LOST, NO_STANDBY)
    runs: dict[str, list[TrainingRun]] = {name: [] for name in names}
    for seed in seeds:
        software = _software(num_machines, OPT_FAILURES_PER_MACHINE_DAY, num_days, seed)
        hardware = poisson_faults(num_machines, duration_s=duration_s, seed=seed)
        for name in names:
            trace = hardware if name in (MACHINES_LOST, NO_STANDBY) else software
            runs[name].append(_run(name, trace, num_machines, seed))
    return runs


def _run(name: str, trace: FaultTrace, num_machines: int, seed: int) -> TrainingRun:
    losing = name in (MACHINES_LOST, NO_STANDBY)
    standbys = max(2, round(ENOUGH_STANDBYS_SHARE * num_machines)) if name == MACHINES_LOST else 0
    setting = Setting(
        job=GPT2_100B,
        policy=policies(GPT2_100B)[GEMINI if losing else name],
        placement=placement(num_machines, min(NUM_REPLICAS, num_machines)) if losing else None,
        num_standbys=standbys,
        seed=seed,
    )
    return simulate_training(setting, trace)


def _software(num_machines: int, rate: float, num_days: float, seed: int) -> FaultTrace:
    return poisson_faults(
        num_machines, duration_s=num_days * DAY_S, failures_per_machine_day=rate, hardware_share=0.0, seed=seed
    )


def _share_rows(run: TrainingRun, keys: dict) -> Rows:
    shares = {"progress": run.productive_s} | {cause.value: seconds for cause, seconds in run.wasted_s.items()}
    return [
        {"quantity": "time_share", **keys, "cause": cause, "value": seconds / run.duration_s, "unit": "1"}
        for cause, seconds in shares.items()
    ]


def _gain_rows(highfreq: str, number: int, ours: list[TrainingRun], theirs: list[TrainingRun]) -> Rows:
    pairs = [(mine.effective_ratio, other.effective_ratio) for mine, other in zip(ours, theirs, strict=True)]
    keys = {"highfreq": highfreq, "num_machines": number}
    points = spread_row("gain", [100 * (mine - other) for mine, other in pairs], "%", {**keys, "of": "all time"})
    if any(other == 0 for _, other in pairs):
        return [points]
    of_theirs = [100 * (mine / other - 1) for mine, other in pairs]
    return [points, spread_row("gain", of_theirs, "%", {**keys, "of": "HighFreq's ratio"})]


def _added_rows(number: int) -> Rows:
    """Add up losses as if they never met: serialising as a share of training, then each failure's mean cost."""
    failures_per_s = OPT_FAILURES_PER_MACHINE_DAY * number / DAY_S
    rows: Rows = []
    for name in policies(GPT2_100B):
        ratio = 1 - _blocked_share(name, GPT2_100B) - failures_per_s * _failure_s(name, GPT2_100B)
        keys = {"solution": name, "num_machines": number}
        rows.append({"quantity": "effective_ratio_added", **keys, "value": max(0.0, ratio), "unit": "1"})
    ratios = {row["solution"]: row["value"] for row in rows}
    for name in (HIGH_FREQUENCY, HIGH_FREQUENCY_9):
        if ratios[name]:
            gain = 100 * (ratios[GEMINI] / ratios[name] - 1)
            keys = {"highfreq": name, "num_machines": number, "of": "HighFreq's ratio"}
            rows.append({"quantity": "gain_added", **keys, "value": gain, "unit": "%"})
    return rows


def _blocked_share(name: str, job: Job) -> float:
    return sum(level.blocking_s / (level.interval_iterations * job.iteration_s) for level in policies(job)[name].levels)


def _failure_s(name: str, job: Job) -> float:
    tier = Tier.LOCAL if name == GEMINI else Tier.STORAGE
    serialise_s = PAPER_OVERHEADS.serialise_s if name == GEMINI else 0.0
    fixed_s = PAPER_OVERHEADS.detection_s + serialise_s + PAPER_OVERHEADS.warm_up_s
    return fixed_s + average_wasted_s(policies(job)[name], job, tier)


def causes() -> tuple[str, ...]:
    """Return what time goes to, progress first, in the order of figures."""
    return ("progress", *(cause.value for cause in Cause))
