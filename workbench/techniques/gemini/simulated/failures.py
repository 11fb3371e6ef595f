"""Rows of figures 6.10 and 6.15, of section 6.2.2, and of the map of the best checkpointing: what failures cost."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from types import MappingProxyType
from typing import Any

from workbench.cluster import GIGABIT_BYTES_PER_S
from workbench.study.rows import value_row
from workbench.timeline.faults import (
    DAY_S,
    OPT_FAILURES_PER_MACHINE_DAY,
    FaultKind,
    FaultSpan,
    FaultTrace,
    dated_faults,
    poisson_faults,
)

from ..cost import GPT2_100B, MT_NLG, PAPER_OVERHEADS, Cause, Overheads, Setting, TrainingRun, simulate_training
from ..method.best import (
    BestCheckpointing,
    CheckpointingNeeds,
    best_checkpointing,
    best_checkpointing_by_definition,
    expected_waste,
    memory_level,
)
from ..method.placement import placement
from ..method.waste import (
    CheckpointPolicy,
    Job,
    Tier,
    average_wasted_s,
    gemini,
    high_frequency,
    strawman,
    wasted_time_s,
)

__all__ = ["GEMINI", "HIGH_FREQUENCY", "STRAWMAN", "best_rows", "mt_nlg_rows", "paper_needs", "policies"]
__all__ += ["rows_by_failures", "rows_by_machines", "seeds_row", "serialising_rows", "wasted_rows"]

Rows = list[dict[str, Any]]
NUM_REPLICAS = 2  # section 6.7.2

STRAWMAN, HIGH_FREQUENCY, HIGH_FREQUENCY_9, GEMINI = "Strawman", "HighFreq", "HighFreq, every 9", "Gemini"
ITERATIONS_IN_THE_TEXT = 9  # section 6.7.3; ceil(480 / 62) is 8
NONE, ONE, TWO_HELD, TWO_GONE = "none", "one", "two, a replica left", "two, no replica left"
# The tier that Gemini recovers from, by the number of machines that are replaced.
REPLACED = MappingProxyType({NONE: Tier.LOCAL, ONE: Tier.PEER, TWO_HELD: Tier.PEER, TWO_GONE: Tier.STORAGE})
PAPERS_FACTOR = 13  # section 6.7.2: reduced by more than 13 times compared to HighFreq
MACHINES_LOST, NO_STANDBY = "Gemini, machines lost, standby", "Gemini, machines lost, no standby"
ENOUGH_STANDBYS_SHARE = 0.01  # of the machines, at least 2: replacements take minutes, failures come by the day
P4D_MEMORY_BYTES = 1152 * 2**30  # section 6.7.1
NOTHING = Overheads(detection_s=0, serialise_s=0, least_replacement_s=0, most_replacement_s=0, warm_up_s=0)


def policies(job: Job, *, as_in_the_text: bool = True) -> dict[str, CheckpointPolicy]:
    """Return the policies by name."""
    nine = {HIGH_FREQUENCY_9: high_frequency(job, interval_iterations=ITERATIONS_IN_THE_TEXT)} if as_in_the_text else {}
    return {STRAWMAN: strawman(job), HIGH_FREQUENCY: high_frequency(job), **nine, GEMINI: gemini(job)}


def seeds_row(quantity: str, values: Sequence[float], unit: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return one row: the mean over seeds, and the least and the most of them."""
    spread = {"low": min(values), "high": max(values)} if len(values) > 1 else {}
    return value_row(quantity, fmean(values), unit, **spread, **keys)


def wasted_rows(num_failures: int, seeds: Sequence[int]) -> Rows:
    """Return figure 6.10: Eq. 6.1, and what as many simulated failures waste."""
    wasted_s = {(name, replaced): _by_equation(name, replaced) for name in policies(GPT2_100B) for replaced in REPLACED}
    rows: Rows = [
        value_row("wasted_s", value, "s", solution=name, replaced=replaced)
        for (name, replaced), value in wasted_s.items()
    ]
    iterations = wasted_s[GEMINI, NONE] / GPT2_100B.iteration_s
    rows.append(value_row("iterations_wasted", iterations, "1", replaced=NONE))
    degraded = wasted_s[GEMINI, TWO_GONE] / wasted_s[STRAWMAN, TWO_GONE]
    rows.append(value_row("over_strawman", degraded, "1", replaced=TWO_GONE))
    for highfreq in (HIGH_FREQUENCY, HIGH_FREQUENCY_9):
        for replaced in (NONE, ONE, TWO_HELD):
            keys = {"highfreq": highfreq, "replaced": replaced}
            theirs_s, ours_s = wasted_s[highfreq, replaced], wasted_s[GEMINI, replaced]
            rows.append(value_row("reduction", theirs_s / ours_s, **keys))
            for of, value in ((f"{PAPERS_FACTOR} x Gemini", PAPERS_FACTOR * ours_s), ("HighFreq", theirs_s)):
                rows.append(value_row("bound_s", value, "s", **keys, of=of))
    return rows + _simulated_waste(num_failures, seeds)


def mt_nlg_rows() -> Rows:
    """Return the example of section 6.2.2: one checkpoint of MT-NLG, and what a failure then wastes at least."""
    checkpoint_s = MT_NLG.storage_s
    wasted_s = wasted_time_s(checkpoint_s=checkpoint_s, interval_s=checkpoint_s, retrieval_s=checkpoint_s)
    values = {"checkpoint_min": checkpoint_s / 60, "wasted_min": wasted_s / 60}
    return [value_row(name, value, "min", model="MT-NLG") for name, value in values.items()]


def _by_equation(name: str, replaced: str) -> float:
    tier = REPLACED[replaced] if name == GEMINI else Tier.STORAGE
    return average_wasted_s(policies(GPT2_100B)[name], GPT2_100B, tier)


def _simulated_waste(num_failures: int, seeds: Sequence[int]) -> Rows:
    rows: Rows = []
    for name in (STRAWMAN, HIGH_FREQUENCY, GEMINI):
        replaced = ONE if name == GEMINI else NONE
        runs = [_daily_run(name, _daily(replaced, num_failures, seed)) for seed in seeds]
        wasted_s = [
            (run.wasted_s[Cause.LOST] + run.wasted_s[Cause.RETRIEVAL]) / sum(run.num_recoveries.values())
            for run in runs
        ]
        ratios = [value / _by_equation(name, replaced) for value in wasted_s]
        keys = {"solution": name, "replaced": replaced}
        rows.append(seeds_row("simulated_over_equation", ratios, "1", keys))
    runs = [_daily_run(GEMINI, _daily(TWO_HELD, num_failures, seed)) for seed in seeds]
    shares = [100 * run.num_recoveries[Tier.STORAGE] / sum(run.num_recoveries.values()) for run in runs]
    rows.append(seeds_row("storage_share", shares, "%", {"num_machines": GPT2_100B.num_machines, "lost": 2}))
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


def _daily_run(name: str, trace: FaultTrace) -> TrainingRun:
    placed = placement(GPT2_100B.num_machines, NUM_REPLICAS)
    return simulate_training(Setting(job=GPT2_100B, policy=policies(GPT2_100B)[name], placement=placed), trace)


def rows_by_failures(failures_per_day: Sequence[float], *, num_days: float, seeds: Sequence[int]) -> Rows:
    """Return figure 6.15a: 16 machines, by failures a day of all of them together."""
    rows: Rows = []
    num_machines = GPT2_100B.num_machines
    for rate in failures_per_day:
        traces = [_software(num_machines, rate / num_machines, num_days, seed) for seed in seeds]
        for name in policies(GPT2_100B):
            runs = [_run(name, trace, num_machines, seed) for seed, trace in zip(seeds, traces, strict=True)]
            keys = {"solution": name, "failures_per_day": rate}
            rows.append(seeds_row("effective_ratio", [run.effective_ratio for run in runs], "1", keys))
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
        rows += [value_row("serialising_share", 100 * share, "%", solution=name, of=of) for of, share in shares.items()]
    return rows


def rows_by_machines(nums_machines: Sequence[int], *, num_days: float, seeds: Sequence[int]) -> Rows:
    """Return figure 6.15b: by the number of machines, of which 1.5 % fail every day."""
    rows: Rows = []
    for number in nums_machines:
        runs = _runs(number, num_days, seeds)
        for name, seeded in runs.items():
            keys = {"solution": name, "num_machines": number}
            rows.append(seeds_row("effective_ratio", [run.effective_ratio for run in seeded], "1", keys))
            rows += _share_rows(seeded[0], keys)
        for highfreq in (HIGH_FREQUENCY, HIGH_FREQUENCY_9):
            rows += _gain_rows(highfreq, number, runs[GEMINI], runs[highfreq])
        for name in (MACHINES_LOST, NO_STANDBY):
            pairs = zip(runs[name], runs[GEMINI], strict=True)
            ratios = [lost.effective_ratio / software.effective_ratio for lost, software in pairs]
            rows.append(seeds_row("over_software", ratios, "1", {"solution": name, "num_machines": number}))
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
    return [value_row("time_share", seconds / run.duration_s, **keys, cause=cause) for cause, seconds in shares.items()]


def _gain_rows(highfreq: str, number: int, gemini_runs: list[TrainingRun], runs: list[TrainingRun]) -> Rows:
    pairs = [(a.effective_ratio, b.effective_ratio) for a, b in zip(gemini_runs, runs, strict=True)]
    keys = {"highfreq": highfreq, "num_machines": number}
    rows = [seeds_row("gain", [100 * (a - b) for a, b in pairs], "%", {**keys, "of": "all time"})]
    if all(b for _, b in pairs):
        gains = [100 * (a / b - 1) for a, b in pairs]
        rows.append(seeds_row("gain", gains, "%", {**keys, "of": "HighFreq's ratio"}))
    return rows


def _added_rows(number: int) -> Rows:
    """Add up losses as if they never met: serialising as a share of training, then each failure's mean cost."""
    failures_per_s = OPT_FAILURES_PER_MACHINE_DAY * number / DAY_S
    ratios: dict[str, float] = {}
    for name, policy in policies(GPT2_100B).items():
        shares = [level.blocking_s / (level.interval_iterations * GPT2_100B.iteration_s) for level in policy.levels]
        serialise_s = PAPER_OVERHEADS.serialise_s if name == GEMINI else 0.0
        fixed_s = PAPER_OVERHEADS.detection_s + serialise_s + PAPER_OVERHEADS.warm_up_s
        failure_s = fixed_s + _by_equation(name, NONE)
        ratios[name] = max(0.0, 1 - sum(shares) - failures_per_s * failure_s)
    keys = {"num_machines": number}
    rows = [value_row("effective_ratio_added", ratio, solution=name, **keys) for name, ratio in ratios.items()]
    for name in (HIGH_FREQUENCY, HIGH_FREQUENCY_9):
        if ratios[name]:
            gain = 100 * (ratios[GEMINI] / ratios[name] - 1)
            rows.append(value_row("gain_added", gain, "%", highfreq=name, **keys, of="HighFreq's ratio"))
    return rows


def paper_needs(
    failures_per_machine_day: float,
    gigabits: float,
    *,
    idle_s: float,
    blocking_s: float = 0.0,
    window_s: float = 0.0,
    most_iterations: int = 500,
) -> CheckpointingNeeds:
    """Return the paper's job with another failure rate and link."""
    return CheckpointingNeeds(
        job=replace(GPT2_100B, network_bytes_per_s=gigabits * GIGABIT_BYTES_PER_S),
        idle_s=idle_s,
        memory_bytes=P4D_MEMORY_BYTES,
        failures_per_machine_day=failures_per_machine_day,
        window_s=window_s,
        blocking_s=blocking_s,
        most_iterations=most_iterations,
    )


def best_rows(
    rates: Sequence[float],
    links_gbps: Sequence[float],
    *,
    idle_s: float,
    blocking_s: float,
    window_s: float,
    num_failures: int,
    seeds: Sequence[int],
) -> Rows:
    """Return the map."""
    rows: Rows = []
    for rate in rates:
        for link in links_gbps:
            needs = paper_needs(rate, link, idle_s=idle_s, blocking_s=blocking_s, window_s=window_s)
            keys = {"failures_per_machine_day": rate, "link_gbps": link}
            rows += [{**row, **keys} for row in _chosen(needs, best_checkpointing(needs))]
            ratios = [_simulated(needs, num_failures, seed) for seed in seeds]
            rows.append(seeds_row("simulated_over_expected", ratios, "1", keys))
    return rows


def _chosen(needs: CheckpointingNeeds, best: BestCheckpointing) -> Rows:
    searched = best_checkpointing_by_definition(needs)
    two = min(expected_waste(needs, NUM_REPLICAS, interval) for interval in range(1, needs.most_iterations + 1))
    values = {
        "best_replicas": (best.num_replicas, "1"),
        "best_interval": (best.interval_iterations, "iteration"),
        "waste": (100 * best.waste, "%"),
        "gap_to_search": (best.waste - searched.waste, "1"),
        "two_over_best": (two / best.waste, "1"),
        "young_interval": (best.young_s / needs.job.iteration_s, "iteration"),
    }
    return [value_row(name, value, unit) for name, (value, unit) in values.items()]


def _simulated(needs: CheckpointingNeeds, num_failures: int, seed: int) -> float:
    """Return the simulated loss over the expected one, with the best interval of two replicas and no window."""
    alone, number = replace(needs, window_s=0.0), needs.job.num_machines
    iterations = min(range(1, needs.most_iterations + 1), key=lambda count: expected_waste(alone, NUM_REPLICAS, count))
    level = memory_level(alone, NUM_REPLICAS, iterations)
    policy = gemini(needs.job, interval_iterations=iterations, blocking_s=level.blocking_s, transfer_s=level.transfer_s)
    placed = placement(number, NUM_REPLICAS)
    rate = needs.failures_per_machine_day
    trace = poisson_faults(
        number, duration_s=num_failures / (rate * number) * DAY_S, failures_per_machine_day=rate, seed=seed
    )
    run = simulate_training(Setting(job=needs.job, policy=policy, overheads=NOTHING, placement=placed), trace)
    return (1 - run.effective_ratio) / expected_waste(alone, NUM_REPLICAS, iterations)
