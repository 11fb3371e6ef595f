"""Single failures, as rows and as timelines: the worked example of figure 6.1 and the overheads of figure 6.14."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from workbench.study.rows import value_row
from workbench.timeline import Action, Kind, Timeline
from workbench.timeline.faults import Fault, FaultKind, FaultTrace

from ..cost import GPT2_100B, PAPER_OVERHEADS, Cause, Setting, Span, TrainingRun, simulate_training, stretch_moments
from ..method.placement import placement
from ..method.waste import CheckpointPolicy, Job, Level, gemini
from .failures import NOTHING

__all__ = ["overhead_rows", "overhead_timelines", "training_timeline", "worked_example_rows", "worked_example_timeline"]

Rows = list[dict[str, Any]]

BLOOM_INTERVAL_ITERATIONS = 100  # figure 6.1, as BLOOM
FAILURE_ITERATION = 310  # figure 6.1
BLOOM_ITERATION_S = 105.0  # BLOOM's logbook; the example counts iterations, so that it only scales the figure
FOURTH = 3.5 * GPT2_100B.iteration_s  # figure 6.14: during iteration 4
SOFTWARE, HARDWARE, STANDBY = "software", "hardware", "hardware, standby machine"
TRAINING, MEMORY, STORAGE, RECOVERY = ROWS = ("training", "checkpoint in memory", "checkpoint in storage", "recovery")
KEPT, LOST, CHECKPOINT = "progress that stays", "progress that is lost", "checkpoint"
# The kind of action of every label.
KINDS = MappingProxyType(
    {
        KEPT: Kind.COMPUTE,
        LOST: Kind.OTHER,
        CHECKPOINT: Kind.COMMUNICATE,
        Cause.CHECKPOINTING.value: Kind.ENCODE,
        Cause.DETECTION.value: Kind.WAIT,
        Cause.SERIALISING.value: Kind.ENCODE,
        Cause.REPLACEMENT.value: Kind.WAIT,
        Cause.RETRIEVAL.value: Kind.DECODE,
        Cause.WARM_UP.value: Kind.WAIT,
    }
)


def worked_example_rows(checkpoint_iterations: Sequence[int]) -> Rows:
    """Return figure 6.1: where training goes back to and what is lost, by how long a checkpoint takes (not given)."""
    rows: Rows = []
    for iterations in checkpoint_iterations:
        run = _worked_example(iterations)[1]
        lost = run.wasted_s[Cause.LOST] / BLOOM_ITERATION_S
        keys = {"checkpoint_iterations": iterations}
        rows.append(value_row("back_to", FAILURE_ITERATION - lost, "iteration", **keys))
        rows.append(value_row("lost_iterations", lost, "iteration", **keys))
    return rows


def worked_example_timeline(checkpoint_iterations: int) -> Timeline:
    """Return figure 6.1 as a timeline, its iterations joined."""
    return training_timeline(*_worked_example(checkpoint_iterations), every_iteration=False)


def overhead_rows() -> Rows:
    """Return figure 6.14: minutes a failure costs besides lost progress, and where training resumes."""
    rows: Rows = []
    for failure in (SOFTWARE, HARDWARE, STANDBY):
        run = _one_failure(failure)[1]
        keys = {"failure": failure}
        parts = {cause: run.wasted_s[cause] for cause in Cause if cause not in (Cause.LOST, Cause.CHECKPOINTING)}
        rows += [value_row("part_s", seconds, "s", **keys, part=part.value) for part, seconds in parts.items()]
        low, high = (_total_s(failure, share) / 60 for share in (0.0, 1.0))
        spread = {"low": low, "high": high} if high > low else {}
        rows.append(value_row("total_min", sum(parts.values()) / 60, "min", **spread, **keys))
        lost = run.wasted_s[Cause.LOST] / GPT2_100B.iteration_s
        rows.append(value_row("lost_iterations", lost, "iteration", **keys))
        resumed = round(FOURTH / GPT2_100B.iteration_s - lost) + 1
        rows.append(value_row("resumes_with", resumed, "iteration", **keys))
    return rows


def overhead_timelines() -> dict[str, Timeline]:
    """Return figure 6.14 as timelines, by what fails."""
    return {failure: training_timeline(*_one_failure(failure)) for failure in (SOFTWARE, HARDWARE, STANDBY)}


def _worked_example(checkpoint_iterations: int) -> tuple[Setting, TrainingRun]:
    transfer_s = checkpoint_iterations * BLOOM_ITERATION_S
    rates = {"storage_bytes_per_s": 1 / transfer_s, "network_bytes_per_s": 1}
    job = Job(iteration_s=BLOOM_ITERATION_S, state_bytes=1, num_machines=1, **rates)
    level = Level(in_memory=False, interval_iterations=BLOOM_INTERVAL_ITERATIONS, transfer_s=transfer_s)
    policy = CheckpointPolicy(name="BLOOM", iteration_s=BLOOM_ITERATION_S, storage=level)
    setting = Setting(job=job, policy=policy, overheads=NOTHING)
    failure = Fault(time_s=FAILURE_ITERATION * BLOOM_ITERATION_S, kind=FaultKind.SOFTWARE, machines=(0,))
    trace = FaultTrace(num_machines=1, duration_s=500 * BLOOM_ITERATION_S, faults=(failure,))
    return setting, simulate_training(setting, trace, keep_spans=True)


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
    kind = FaultKind.SOFTWARE if failure == SOFTWARE else FaultKind.HARDWARE
    fault = Fault(time_s=FOURTH, kind=kind, machines=(0,))
    trace = FaultTrace(num_machines=GPT2_100B.num_machines, duration_s=20 * 62.0, faults=(fault,))
    return setting, simulate_training(setting, trace, keep_spans=True)


def _total_s(failure: str, replacement_share: float) -> float:
    wasted_s = _one_failure(failure, replacement_share)[1].wasted_s
    return sum(seconds for cause, seconds in wasted_s.items() if cause not in (Cause.LOST, Cause.CHECKPOINTING))


def training_timeline(setting: Setting, run: TrainingRun, *, every_iteration: bool = True) -> Timeline:
    """Return the timeline of a run."""
    if not run.spans:
        raise ValueError("spans is empty; simulate with keep_spans=True")
    actions: list[Action] = []
    for span, kept in zip(run.spans, _kept_until(run.spans), strict=True):
        if span.cause is None:
            actions += _trained(setting, span, kept, every_iteration)
        else:
            actions.append(_action(RECOVERY, span.start_s, span.end_s, span.cause.value, span.cause.value))
    rows = tuple(row for row in ROWS if row != MEMORY or setting.policy.memory is not None)
    return Timeline(actions=tuple(actions), resources=rows)


def _kept_until(spans: tuple[Span, ...]) -> list[float]:
    """Return for each span the least iteration to which any later recovery goes back; infinity if none does."""
    back_to, limits = float("inf"), []
    for span in reversed(spans):
        limits.append(back_to)
        back_to = back_to if span.cause is None else min(back_to, span.iteration)
    return limits[::-1]


def _trained(setting: Setting, span: Span, kept: float, every_iteration: bool) -> Iterator[Action]:
    iterations: list[Action] = []
    for what, number, begin_s, end_s in stretch_moments(setting.policy, span.iteration, span.end_s - span.start_s):
        start_s, stop_s = span.start_s + begin_s, min(span.start_s + end_s, span.end_s)
        if what == "iteration":
            iterations.append(_action(TRAINING, start_s, stop_s, KEPT if number <= kept else LOST, str(number)))
        elif what == "blocking":
            yield _action(TRAINING, start_s, stop_s, Cause.CHECKPOINTING.value, "")
        else:
            row, is_whole = MEMORY if what == "memory" else STORAGE, span.start_s + end_s <= span.end_s
            yield _action(row, start_s, stop_s, CHECKPOINT, str(number) if is_whole else "lost")
    yield from iterations if every_iteration else _joined(iterations)


def _joined(iterations: list[Action]) -> Iterator[Action]:
    """Join neighbouring iterations of a kind; pauses between them vanish under the next bar drawn."""
    for kind in dict.fromkeys(action.kind for action in iterations):
        alike = [action for action in iterations if action.kind is kind]
        label = alike[0].label if len(alike) == 1 else f"{alike[0].label} to {alike[-1].label}"
        yield Action(resource=TRAINING, start_s=alike[0].start_s, end_s=alike[-1].end_s, kind=kind, label=label)


def _action(row: str, start_s: float, end_s: float, what: str, label: str) -> Action:
    return Action(resource=row, start_s=start_s, end_s=end_s, kind=KINDS[what], label=label)
