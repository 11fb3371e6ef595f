"""Rows of section 6.2.2, figures 6.1, 6.10, 6.14 and 6.15, and the map of the best checkpointing: costs of failures."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from statistics import fmean
from types import MappingProxyType
from typing import Any

from workbench.cluster import GIGABIT_BYTES_PER_S
from workbench.rows import ratios, value_row
from workbench.timeline import Action, Kind, Timeline

from .. import cost, method
from ..cost import DAY_S, GPT2_100B, PAPER_OVERHEADS, Cause, FaultTrace, Setting, TrainingRun, simulate_training
from ..method import CheckpointingNeeds, CheckpointPolicy, Job, Tier, expected_waste, gemini, high_frequency, placement

__all__ = ["GEMINI", "HIGH_FREQUENCY", "STRAWMAN", "best_rows", "mt_nlg_rows", "overhead_rows", "overhead_timelines"]
__all__ += ["paper_needs", "policies", "rows_by_failures", "rows_by_machines", "training_timeline"]
__all__ += ["wasted_rows", "worked_example_rows", "worked_example_timeline"]

Rows = list[dict[str, Any]]
NUM_REPLICAS = 2  # section 6.7.2

STRAWMAN, HIGH_FREQUENCY, GEMINI = "Strawman", "HighFreq", "Gemini"
EIGHT = "HighFreq, every 8 iterations"  # by its formula, at the 20 Gbit/s of section 6.7.1
NINE_ITERATIONS = 9  # between HighFreq's checkpoints, section 6.7.3
STORAGES_GBIT_PER_S = (20.0, 19.5, 19.4, 18.0)  # from every 8 to every 9 iterations
NONE, ONE, TWO_HELD, TWO_GONE = "none", "one", "two, a replica left", "two, no replica left"
# The tier that Gemini recovers from, by the number of machines that are replaced.
REPLACED = MappingProxyType({NONE: Tier.LOCAL, ONE: Tier.PEER, TWO_HELD: Tier.PEER, TWO_GONE: Tier.STORAGE})
PAPERS_FACTOR = 13  # section 6.7.2: reduced by more than 13 times compared to HighFreq
MACHINES_LOST, NO_STANDBY = "Gemini, machines lost, standby", "Gemini, machines lost, no standby"
ENOUGH_STANDBYS_SHARE = 0.01  # of the machines, at least 2: replacements take minutes, failures come by the day
P4D_MEMORY_BYTES = 1152 * 2**30  # section 6.7.1
NOTHING = cost.Overheads(detection_s=0, serialise_s=0, least_replacement_s=0, most_replacement_s=0, warm_up_s=0)
BLOOM_INTERVAL_ITERATIONS = 100  # figure 6.1, as BLOOM
FAILURE_ITERATION = 310  # figure 6.1
BLOOM_ITERATION_S = 105.0  # BLOOM's logbook; the example counts iterations, so that it only scales the figure
FOURTH_S = 3.5 * GPT2_100B.iteration_s  # figure 6.14: during iteration 4
SOFTWARE, HARDWARE, STANDBY = "software", "hardware", "hardware, standby machine"
TRAINING, MEMORY, STORAGE, RECOVERY = ROWS = ("training", "checkpoint in memory", "checkpoint in storage", "recovery")
KINDS = MappingProxyType({Cause.RETRIEVAL: Kind.DECODE, Cause.SERIALISING: Kind.ENCODE})  # all else is waiting


def policies(job: Job) -> dict[str, CheckpointPolicy]:
    """Return the policies by name."""
    return {STRAWMAN: method.strawman(job), HIGH_FREQUENCY: high_frequency(job), GEMINI: gemini(job)}


# The policies of GPT-2 100B that figures 6.10 and 6.15 compare.
SOLUTIONS = MappingProxyType(
    policies(GPT2_100B)
    | {HIGH_FREQUENCY: high_frequency(GPT2_100B, interval_iterations=NINE_ITERATIONS)}
    | {EIGHT: high_frequency(GPT2_100B)}
)


def _seeds_row(quantity: str, values: Sequence[float], unit: str, **keys: Any) -> dict[str, Any]:
    """Return one row: the mean over seeds, and the least and the most of them."""
    spread = {"low": min(values), "high": max(values)} if len(values) > 1 else {}
    return value_row(quantity, fmean(values), unit, **spread, **keys)


def _by_equation(name: str, replaced: str) -> float:
    tier = REPLACED[replaced] if name == GEMINI else Tier.STORAGE
    return method.average_wasted_s(SOLUTIONS[name], GPT2_100B, tier)


def wasted_rows(num_failures: int, seeds: Sequence[int]) -> Rows:
    """Return figure 6.10: Eq. 6.1, and what as many simulated failures waste."""
    wasted_s = {(name, replaced): _by_equation(name, replaced) for name in SOLUTIONS for replaced in REPLACED}
    rows: Rows = []
    for (name, replaced), value in wasted_s.items():
        rows.append(value_row("wasted_s", value, "s", solution=name, replaced=replaced))
    iterations = wasted_s[GEMINI, NONE] / GPT2_100B.iteration_s
    rows.append(value_row("iterations_wasted", iterations, "1", replaced=NONE))
    degraded = wasted_s[GEMINI, TWO_GONE] / wasted_s[STRAWMAN, TWO_GONE]
    rows.append(value_row("over_strawman", degraded, "1", replaced=TWO_GONE))
    for highfreq in (HIGH_FREQUENCY, EIGHT):
        for replaced in (NONE, ONE, TWO_HELD):
            keys: dict[str, Any] = {"highfreq": highfreq, "replaced": replaced}
            highfreq_s, gemini_s = wasted_s[highfreq, replaced], wasted_s[GEMINI, replaced]
            rows.append(value_row("reduction", highfreq_s / gemini_s, **keys))
            rows.append(value_row("bound_s", PAPERS_FACTOR * gemini_s, "s", **keys, of=f"{PAPERS_FACTOR} x Gemini"))
            rows.append(value_row("bound_s", highfreq_s, "s", **keys, of="HighFreq"))
    for gigabits in STORAGES_GBIT_PER_S:
        job = replace(GPT2_100B, storage_bytes_per_s=gigabits * GIGABIT_BYTES_PER_S)
        policy = high_frequency(job)
        times = method.average_wasted_s(policy, job, Tier.STORAGE) / wasted_s[GEMINI, ONE]
        place: dict[str, Any] = {"storage_gbit_per_s": gigabits}
        rows.append(value_row("interval_iterations", policy.storage.interval_iterations, **place))
        rows.append(value_row("reduction_by_storage", times, replaced=ONE, **place))
    for name in (STRAWMAN, HIGH_FREQUENCY, GEMINI):
        replaced = ONE if name == GEMINI else NONE
        over_equation = []
        for run in (_daily_run(name, replaced, num_failures, seed) for seed in seeds):
            simulated_s = run.wasted_s[Cause.LOST] + run.wasted_s[Cause.RETRIEVAL]
            over_equation.append(simulated_s / sum(run.num_recoveries.values()) / wasted_s[name, replaced])
        rows.append(_seeds_row("simulated_over_equation", over_equation, "1", solution=name, replaced=replaced))
    runs = [_daily_run(GEMINI, TWO_HELD, num_failures, seed) for seed in seeds]
    shares = [100 * run.num_recoveries[Tier.STORAGE] / sum(run.num_recoveries.values()) for run in runs]
    return [*rows, _seeds_row("storage_share", shares, "%", num_machines=GPT2_100B.num_machines, lost=2)]


def _daily_run(name: str, replaced: str, num_failures: int, seed: int) -> TrainingRun:
    """Simulate a failure a day, in its first half: each is recovered from, and storage written, before the next."""
    num_machines, num_hit = GPT2_100B.num_machines, 2 if replaced == TWO_HELD else 1
    kind = cost.FaultKind.SOFTWARE if replaced == NONE else cost.FaultKind.HARDWARE
    faults = []
    for day in range(num_failures):
        generator = random.Random(f"{seed} span {day}")
        time_s = generator.uniform((day + 0.25) * DAY_S, (day + 0.75) * DAY_S)
        machines = tuple(generator.sample(range(num_machines), num_hit))
        faults.append(cost.Fault(time_s=time_s, kind=kind, machines=machines))
    trace = FaultTrace(num_machines=num_machines, duration_s=num_failures * DAY_S, faults=tuple(faults))
    placed = placement(num_machines, NUM_REPLICAS)
    return simulate_training(Setting(job=GPT2_100B, policy=SOLUTIONS[name], placement=placed), trace)


def mt_nlg_rows() -> Rows:
    """Return the example of section 6.2.2: one checkpoint of MT-NLG, and what a failure then wastes at least."""
    checkpoint_s = cost.MT_NLG.storage_s
    wasted_s = method.wasted_time_s(checkpoint_s=checkpoint_s, interval_s=checkpoint_s, retrieval_s=checkpoint_s)
    times_s = {"checkpoint_min": checkpoint_s, "wasted_min": wasted_s}
    return [value_row(name, seconds / 60, "min", model="MT-NLG") for name, seconds in times_s.items()]


def rows_by_failures(failures_per_day: Sequence[float], *, num_days: float, seeds: Sequence[int]) -> Rows:
    """Return figure 6.15a: 16 machines, by failures a day of all of them together."""
    rows: Rows = []
    num_machines = GPT2_100B.num_machines
    for rate in failures_per_day:
        traces = {seed: _software(num_machines, rate / num_machines, num_days, seed) for seed in seeds}
        for name in SOLUTIONS:
            effective = [_run(name, trace, seed).effective_ratio for seed, trace in traces.items()]
            rows.append(_seeds_row("effective_ratio", effective, "1", solution=name, failures_per_day=rate))
        rows += _added_rows(rate, failures_per_day=rate)
    for name in (HIGH_FREQUENCY, EIGHT):  # what it spends on serialising without failures
        level = SOLUTIONS[name].storage
        training_s = level.interval_iterations * GPT2_100B.iteration_s
        for of, time_s in (("training time", training_s), ("all time", training_s + level.blocking_s)):
            rows.append(value_row("serialising_share", 100 * (level.blocking_s / time_s), "%", solution=name, of=of))
    return rows


def rows_by_machines(nums_machines: Sequence[int], *, num_days: float, seeds: Sequence[int]) -> Rows:
    """Return figure 6.15b: by the number of machines, of which 1.5 % fail every day."""
    rows: Rows = []
    for number in nums_machines:
        # Every policy has the same failures, of software; those of Gemini's further runs lose machines.
        software = {seed: _software(number, cost.OPT_FAILURES_PER_MACHINE_DAY, num_days, seed) for seed in seeds}
        hardware = {seed: cost.poisson_faults(number, duration_s=num_days * DAY_S, seed=seed) for seed in seeds}
        traces = dict.fromkeys(SOLUTIONS, software) | dict.fromkeys((MACHINES_LOST, NO_STANDBY), hardware)
        runs = {name: [_run(name, trace[seed], seed) for seed in seeds] for name, trace in traces.items()}
        effective = {name: [run.effective_ratio for run in seeded] for name, seeded in runs.items()}
        for name, (run, *_) in runs.items():
            keys: dict[str, Any] = {"solution": name, "num_machines": number}
            rows.append(_seeds_row("effective_ratio", effective[name], "1", **keys))
            for cause, spent_s in (("progress", run.productive_s), *run.wasted_s.items()):
                rows.append(value_row("time_share", spent_s / run.duration_s, **keys, cause=str(cause)))
        for highfreq in (HIGH_FREQUENCY, EIGHT):
            keys = {"highfreq": highfreq, "num_machines": number}
            gains = [100 * (a - b) for a, b in zip(effective[GEMINI], effective[highfreq], strict=True)]
            rows.append(_seeds_row("gain", gains, "%", **keys, of="all time"))
            if all(effective[highfreq]):
                gains = [100 * (times - 1) for times in ratios(effective[GEMINI], effective[highfreq])]
                rows.append(_seeds_row("gain", gains, "%", **keys, of="HighFreq's ratio"))
        for name in (MACHINES_LOST, NO_STANDBY):
            over_software = ratios(effective[name], effective[GEMINI])
            rows.append(_seeds_row("over_software", over_software, "1", solution=name, num_machines=number))
        # The same number of software failures at even distances.
        period_s, duration_s = DAY_S / (cost.OPT_FAILURES_PER_MACHINE_DAY * number), num_days * DAY_S
        times_s = [count * period_s for count in range(1, int(duration_s / period_s))]
        faults = [cost.Fault(time_s=time_s, kind=cost.FaultKind.SOFTWARE, machines=(0,)) for time_s in times_s]
        even = FaultTrace(num_machines=number, duration_s=duration_s, faults=tuple(faults))
        for name in SOLUTIONS:
            ratio = _run(name, even, seed=0).effective_ratio
            rows.append(value_row("effective_ratio_even", ratio, solution=name, num_machines=number))
        rows += _added_rows(cost.OPT_FAILURES_PER_MACHINE_DAY * number, num_machines=number)
    return rows


def _run(name: str, trace: FaultTrace, seed: int) -> TrainingRun:
    num_machines, is_lossy = trace.num_machines, name in (MACHINES_LOST, NO_STANDBY)
    setting = Setting(
        job=GPT2_100B,
        policy=SOLUTIONS[GEMINI if is_lossy else name],
        placement=placement(num_machines, min(NUM_REPLICAS, num_machines)) if is_lossy else None,
        num_standbys=max(2, round(ENOUGH_STANDBYS_SHARE * num_machines)) if name == MACHINES_LOST else 0,
        seed=seed,
    )
    return simulate_training(setting, trace)


def _software(num_machines: int, rate: float, num_days: float, seed: int) -> FaultTrace:
    rates = {"failures_per_machine_day": rate, "hardware_share": 0.0}
    return cost.poisson_faults(num_machines, duration_s=num_days * DAY_S, seed=seed, **rates)


def _added_rows(rate: float, **keys: Any) -> Rows:
    """Add up losses at so many failures a day as if they never met: serialising, then each failure's mean cost.

    A negative ratio means that they are more than all time.
    """
    left: dict[str, float] = {}
    for name, policy in SOLUTIONS.items():
        shares = [level.blocking_s / (level.interval_iterations * policy.iteration_s) for level in policy.levels]
        serialise_s = PAPER_OVERHEADS.serialise_s if name == GEMINI else 0.0
        fixed_s = PAPER_OVERHEADS.detection_s + serialise_s + PAPER_OVERHEADS.warm_up_s
        failure_s = fixed_s + _by_equation(name, NONE)
        left[name] = 1 - sum(shares) - rate / DAY_S * failure_s
    rows = [value_row("effective_ratio_added", ratio, solution=name, **keys) for name, ratio in left.items()]
    for name in (HIGH_FREQUENCY, EIGHT):
        if left[name] > 0:
            gain = 100 * (left[GEMINI] / left[name] - 1)
            rows.append(value_row("gain_added", gain, "%", highfreq=name, **keys, of="HighFreq's ratio"))
    return rows


def paper_needs(failures_per_machine_day: float, gigabits: float, **needs: float) -> CheckpointingNeeds:
    """Return the paper's job with another failure rate and link; other needs are fields of `CheckpointingNeeds`."""
    job = replace(GPT2_100B, network_bytes_per_s=gigabits * GIGABIT_BYTES_PER_S)
    usual: dict[str, Any] = {"memory_bytes": P4D_MEMORY_BYTES, "most_iterations": 500, "window_s": 0.0}
    return CheckpointingNeeds(job=job, failures_per_machine_day=failures_per_machine_day, **usual | needs)


def best_rows(
    rates: Sequence[float], links_gbps: Sequence[float], *, num_failures: int, seeds: Sequence[int], **needs: float
) -> Rows:
    """Return the best checkpointing by failure rate and link; `needs` are those of `paper_needs`."""
    rows: Rows = []
    for rate, link in product(rates, links_gbps):
        place, keys = paper_needs(rate, link, **needs), {"failures_per_machine_day": rate, "link_gbps": link}
        best, searched = method.best_checkpointing(place), method.best_checkpointing_by_definition(place)
        two = min(expected_waste(place, NUM_REPLICAS, count) for count in range(1, place.most_iterations + 1))
        over_expected = [_simulated_over_expected(place, num_failures, seed) for seed in seeds]
        rows.append(value_row("best_replicas", best.num_replicas, "1", **keys))
        rows.append(value_row("best_interval", best.interval_iterations, "iteration", **keys))
        rows.append(value_row("waste", 100 * best.waste, "%", **keys))
        rows.append(value_row("gap_to_search", best.waste - searched.waste, "1", **keys))
        rows.append(value_row("two_over_best", two / best.waste, "1", **keys))
        rows.append(_seeds_row("simulated_over_expected", over_expected, "1", **keys))
    return rows


def _simulated_over_expected(needs: CheckpointingNeeds, num_failures: int, seed: int) -> float:
    """Return the simulated loss over the expected one, with the best interval of two replicas and no window."""
    alone, number, rate = replace(needs, window_s=0.0), needs.job.num_machines, needs.failures_per_machine_day
    iterations = min(range(1, needs.most_iterations + 1), key=lambda count: expected_waste(alone, NUM_REPLICAS, count))
    policy = replace(gemini(needs.job), memory=method.memory_level(alone, NUM_REPLICAS, iterations))
    duration_s = num_failures / (rate * number) * DAY_S
    trace = cost.poisson_faults(number, duration_s=duration_s, failures_per_machine_day=rate, seed=seed)
    placed = placement(number, NUM_REPLICAS)
    run = simulate_training(Setting(job=needs.job, policy=policy, overheads=NOTHING, placement=placed), trace)
    return (1 - run.effective_ratio) / expected_waste(alone, NUM_REPLICAS, iterations)


def worked_example_rows(checkpoint_iterations: Sequence[int]) -> Rows:
    """Return figure 6.1: where training goes back to and what is lost, by how long a checkpoint takes (not given)."""
    rows: Rows = []
    for number in checkpoint_iterations:
        lost = _worked_example(number)[1].wasted_s[Cause.LOST] / BLOOM_ITERATION_S
        rows.append(value_row("back_to", FAILURE_ITERATION - lost, "iteration", checkpoint_iterations=number))
        rows.append(value_row("lost_iterations", lost, "iteration", checkpoint_iterations=number))
    return rows


def worked_example_timeline(checkpoint_iterations: int) -> Timeline:
    """Return figure 6.1 as a timeline, its iterations joined."""
    return training_timeline(*_worked_example(checkpoint_iterations), every_iteration=False)


def _worked_example(checkpoint_iterations: int) -> tuple[Setting, TrainingRun]:
    rate = 1 / (checkpoint_iterations * BLOOM_ITERATION_S)  # of one byte
    rates: dict[str, Any] = {"storage_bytes_per_s": rate, "network_bytes_per_s": 1}
    job = Job(iteration_s=BLOOM_ITERATION_S, state_bytes=1, num_machines=1, **rates)
    policy = high_frequency(job, interval_iterations=BLOOM_INTERVAL_ITERATIONS)
    setting = Setting(job=job, policy=policy, overheads=NOTHING)
    return setting, _with_one_fault(setting, FAILURE_ITERATION * BLOOM_ITERATION_S, SOFTWARE, 500 * BLOOM_ITERATION_S)


def _with_one_fault(setting: Setting, time_s: float, failure: str, duration_s: float) -> TrainingRun:
    kind = cost.FaultKind.SOFTWARE if failure == SOFTWARE else cost.FaultKind.HARDWARE
    fault = cost.Fault(time_s=time_s, kind=kind, machines=(0,))
    trace = FaultTrace(num_machines=setting.job.num_machines, duration_s=duration_s, faults=(fault,))
    return simulate_training(setting, trace)


def overhead_rows() -> Rows:
    """Return figure 6.14: minutes a failure costs besides lost progress, and where training resumes."""
    rows: Rows = []
    parts = [cause for cause in Cause if cause not in (Cause.LOST, Cause.CHECKPOINTING)]
    for failure in (SOFTWARE, HARDWARE, STANDBY):
        keys: dict[str, Any] = {"failure": failure}
        low, run, high = (_one_failure(failure, share)[1] for share in (0.0, 0.5, 1.0))
        rows += [value_row("part_s", run.wasted_s[part], "s", **keys, part=part.value) for part in parts]
        least, total, most = (sum(outcome.wasted_s[part] for part in parts) / 60 for outcome in (low, run, high))
        spread = {"low": least, "high": most} if most > least else {}
        rows.append(value_row("total_min", total, "min", **spread, **keys))
        lost = run.wasted_s[Cause.LOST] / GPT2_100B.iteration_s
        rows.append(value_row("lost_iterations", lost, "iteration", **keys))
        resumed = round(FOURTH_S / GPT2_100B.iteration_s - lost) + 1
        rows.append(value_row("resumes_with", resumed, "iteration", **keys))
    return rows


def overhead_timelines() -> dict[str, Timeline]:
    """Return figure 6.14 as timelines, by what fails."""
    return {failure: training_timeline(*_one_failure(failure)) for failure in (SOFTWARE, HARDWARE, STANDBY)}


def _one_failure(failure: str, replacement_share: float = 0.5) -> tuple[Setting, TrainingRun]:
    """Recover from one failure; a share of the way from the least to the longest replacement."""
    low_s, high_s = PAPER_OVERHEADS.least_replacement_s, PAPER_OVERHEADS.most_replacement_s
    wait_s = low_s + replacement_share * (high_s - low_s)
    setting = Setting(
        job=GPT2_100B,
        policy=gemini(GPT2_100B),
        overheads=replace(PAPER_OVERHEADS, least_replacement_s=wait_s, most_replacement_s=wait_s),
        placement=placement(GPT2_100B.num_machines, 2),
        num_standbys=int(failure == STANDBY),
    )
    return setting, _with_one_fault(setting, FOURTH_S, failure, 20 * 62.0)


def training_timeline(setting: Setting, run: TrainingRun, *, every_iteration: bool = True) -> Timeline:
    """Return a run as a timeline; iterations are joined where not every one is asked for."""
    actions: list[Action] = []
    kept_until = float("inf")  # the least iteration to which any later recovery goes back
    for span in reversed(run.spans):
        if span.cause is None:
            actions[:0] = _trained(setting, span, kept_until, every_iteration)
        else:
            kind = KINDS.get(span.cause, Kind.WAIT)
            actions.insert(0, _action(RECOVERY, span.start_s, span.end_s, kind, span.cause.value))
            kept_until = min(kept_until, span.iteration)
    rows = tuple(row for row in ROWS if row != MEMORY or setting.policy.memory is not None)
    return Timeline(actions=tuple(actions), resources=rows)


def _trained(setting: Setting, span: cost.Span, kept_until: float, every_iteration: bool) -> Iterator[Action]:
    iterations: list[Action] = []
    for what, number, begin_s, end_s in cost.stretch_moments(setting.policy, span.iteration, span.end_s - span.start_s):
        times_s = span.start_s + begin_s, min(span.start_s + end_s, span.end_s)
        if what == "iteration":
            kind = Kind.COMPUTE if number <= kept_until else Kind.OTHER
            iterations.append(_action(TRAINING, *times_s, kind, str(number)))
        elif what == "blocking":
            yield _action(TRAINING, *times_s, Kind.ENCODE, "")
        else:
            label = str(number) if span.start_s + end_s <= span.end_s else "lost"
            yield _action(MEMORY if what == "memory" else STORAGE, *times_s, Kind.COMMUNICATE, label)
    if every_iteration:
        yield from iterations
        return
    for kind in dict.fromkeys(action.kind for action in iterations):  # joined; pauses vanish under the next bar drawn
        alike = [action for action in iterations if action.kind is kind]
        label = alike[0].label if len(alike) == 1 else f"{alike[0].label} to {alike[-1].label}"
        yield _action(TRAINING, alike[0].start_s, alike[-1].end_s, kind, label)


def _action(row: str, start_s: float, end_s: float, kind: Kind, label: str) -> Action:
    return Action(resource=row, start_s=start_s, end_s=end_s, kind=kind, label=label)
