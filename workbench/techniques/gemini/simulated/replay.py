"""Real failures replayed: BLOOM's and OPT-175B's trainings, had they checkpointed in one way or another.

A logbook's dated failures come on their day, counted ones somewhere in their range; hour and machine are drawn from a
seed. Restarts to change code count as software failures, and OPT's restarts as one lost machine each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from types import MappingProxyType
from typing import Any

from workbench.datasets import training_logbooks
from workbench.datasets.places import DataError
from workbench.datasets.source import DataSource, SourceKind
from workbench.datasets.training_logbooks import Logbook, LoggedEvent
from workbench.study.rows import value_row
from workbench.timeline.faults import DAY_S, FaultKind, FaultSpan, FaultTrace, dated_faults, poisson_faults

from ..cost import GPT2_100B, PAPER_OVERHEADS, Cause, Setting, TrainingRun, simulate_training
from ..method.placement import placement
from ..method.sizes import BYTES_PER_PARAMETER
from ..method.waste import Job
from .failures import policies, seeds_row

__all__ = ["DIARIES", "Diary", "diary_or_stand_in", "diary_trace", "replay_rows"]

Rows = list[dict[str, Any]]

# Bytes a second and machine of torch.save: 81 s for GPT-2 100B's 75 GB (section 6.7.3).
SERIALISE_BYTES_PER_S = GPT2_100B.shard_bytes / GPT2_100B.serialise_s
GPUS_PER_MACHINE = 8
WEEK_DAYS = 7


@dataclass(frozen=True, kw_only=True, slots=True)
class Diary:
    """A training as its diary tells it."""

    first_day: date  # whose failures are replayed
    last_day: date  # the last of them
    job: Job  # what was trained
    hardware_per_day: float  # failures of single machines that the diary gives as a rate
    stand_in_per_day: float  # failures of single machines where the diary is not there

    @property
    def num_days(self) -> int:
        """Days, both ends included."""
        return (self.last_day - self.first_day).days + 1


def _shard_s(state_bytes: float, num_machines: int) -> float:
    return state_bytes / num_machines / SERIALISE_BYTES_PER_S


_OPT_BYTES = 175e9 * BYTES_PER_PARAMETER
_BLOOM_BYTES = 2.3e12  # the diary's size of a checkpoint
_BLOOM_SAVE_S = 40.0  # the diary: a checkpoint is saved in 40 s, while training waits

DIARIES = MappingProxyType(
    {
        "bloom-176b": Diary(
            first_day=date(2022, 3, 11),
            last_day=date(2022, 7, 4),
            job=Job(
                name="BLOOM-176B",
                iteration_s=105.0,
                state_bytes=_BLOOM_BYTES,
                num_machines=48,
                storage_bytes_per_s=_BLOOM_BYTES / _BLOOM_SAVE_S,
                network_bytes_per_s=GPT2_100B.network_bytes_per_s,
                serialise_s=_BLOOM_SAVE_S,
            ),
            hardware_per_day=1 / WEEK_DAYS,  # the diary: about once a week a GPU dies
            stand_in_per_day=1 / WEEK_DAYS,
        ),
        "opt-175b": Diary(
            first_day=date(2021, 11, 11),
            last_day=date(2022, 1, 6),
            job=Job(
                # The diary: 300e9 tokens in batches of 2e6 would take 33 days without failures: 19 s an iteration.
                name="OPT-175B",
                iteration_s=33 * DAY_S / (300e9 / 2e6),
                state_bytes=_OPT_BYTES,
                num_machines=124,
                storage_bytes_per_s=GPT2_100B.storage_bytes_per_s,
                network_bytes_per_s=GPT2_100B.network_bytes_per_s,
                serialise_s=_shard_s(_OPT_BYTES, 124),
            ),
            hardware_per_day=0.0,
            stand_in_per_day=110 / 61,  # thesis, section 2.4: around 110 failures over two months
        ),
    }
)
"""The trainings: sizes and iteration times from the diaries, links and storage the paper's where they say nothing."""

_SOFTWARE = ("software", "software_hang")
_OPT_RESTARTS = 90  # the diary: restarts over the 12.xx lineage, of which others of its lines are a part


def diary_trace(name: str, logbook: Logbook, seed: int) -> FaultTrace:
    """Return the failures of a diary on one timeline."""
    diary = DIARIES[name]
    spans = [span for event in logbook.events for span in _spans(diary, event)]
    if name == "opt-175b":
        rest = _OPT_RESTARTS - sum(span.num_faults for span in spans)
        spans.append(FaultSpan(start_s=0, end_s=diary.num_days * DAY_S, num_faults=rest))
    dated = dated_faults(diary.job.num_machines, spans, duration_s=diary.num_days * DAY_S, seed=seed)
    return FaultTrace.merged([dated, _steady(diary, diary.hardware_per_day, seed)])


def diary_or_stand_in(name: str, seeds: Sequence[int]) -> tuple[list[FaultTrace], DataSource]:
    """Return a diary's failures for each seed; where the diary is not there, failures at its stated rate."""
    try:
        logbook = training_logbooks.load(name)
    except DataError as error:
        traces = [_steady(DIARIES[name], DIARIES[name].stand_in_per_day, seed) for seed in seeds]
        detail = f"failures at a steady rate; {error}"
        return traces, DataSource(name=name, kind=SourceKind.STAND_IN, detail=detail, sha256=traces[0].digest)
    return [diary_trace(name, logbook, seed) for seed in seeds], logbook.source


def replay_rows(name: str, traces: Sequence[FaultTrace], *, num_standbys: int) -> Rows:
    """Simulate each policy under a diary's failures."""
    keys = {"training": DIARIES[name].job.name}
    failures = [float(len(trace.faults)) for trace in traces]
    rows: Rows = [seeds_row("num_failures", failures, "1", keys)]
    for solution in policies(DIARIES[name].job, as_in_the_text=False):
        runs = [_run(name, solution, trace, num_standbys) for trace in traces]
        place = {**keys, "solution": solution}
        rows.append(seeds_row("effective_ratio", [run.effective_ratio for run in runs], "1", place))
        rows.append(seeds_row("wasted_gpu_hours", [_gpu_hours(name, run) for run in runs], "h", place))
        rows += [
            value_row("time_share", run_s / runs[0].duration_s, **place, cause=cause.value)
            for cause, run_s in runs[0].wasted_s.items()
        ]
        for tier in runs[0].num_recoveries:
            counts = [float(run.num_recoveries[tier]) for run in runs]
            rows.append(seeds_row("num_recoveries", counts, "1", {**place, "tier": tier.value}))
    return rows


def _run(name: str, solution: str, trace: FaultTrace, num_standbys: int) -> TrainingRun:
    """Simulate with the paper's overheads, two replicas of this job's shards being serialised."""
    job = DIARIES[name].job
    setting = Setting(
        job=job,
        policy=policies(job, as_in_the_text=False)[solution],
        overheads=replace(PAPER_OVERHEADS, serialise_s=2 * _shard_s(job.state_bytes, job.num_machines)),
        placement=placement(job.num_machines, 2),
        num_standbys=num_standbys,
    )
    return simulate_training(setting, trace)


def _gpu_hours(name: str, run: TrainingRun) -> float:
    wasted_s = sum(seconds for cause, seconds in run.wasted_s.items() if cause is not Cause.CHECKPOINTING)
    return wasted_s / 3600 * DIARIES[name].job.num_machines * GPUS_PER_MACHINE


def _steady(diary: Diary, per_day: float, seed: int) -> FaultTrace:
    number, duration_s = diary.job.num_machines, diary.num_days * DAY_S
    return poisson_faults(number, duration_s=duration_s, failures_per_machine_day=per_day / number, seed=seed)


def _spans(diary: Diary, event: LoggedEvent) -> list[FaultSpan]:
    """Return what a line of a diary means; nothing for plans, milestones, rates, and what stopped no training."""
    if not diary.first_day <= event.first_day <= event.last_day <= diary.last_day:
        return []
    start_s = (event.first_day - diary.first_day).days * DAY_S
    common = {"start_s": start_s, "end_s": start_s + ((event.last_day - event.first_day).days + 1) * DAY_S}
    if event.category in _SOFTWARE and event.count is None:
        return [FaultSpan(**common, kind=FaultKind.SOFTWARE)]
    if event.category == "maintenance" or (event.category == "infrastructure" and "entire cluster" in event.text):
        return [FaultSpan(**common, machines_each=None)]
    if event.category == "hardware" and "at the same time" in event.text:
        return [FaultSpan(**common, machines_each=event.count)]
    whole_lineage = event.first_day == diary.first_day and event.last_day == diary.last_day
    if event.category in ("hardware", "restarts") and not whole_lineage:
        return [FaultSpan(**common, num_faults=1 if event.count is None else event.count)]
    return []
