"""Single failures, drawn: the worked example of figure 6.1 and the overheads of figure 6.14.

What: `worked_example` rolls a training back from iteration 310 to 200; `overheads_of` recovers GPT-2 100B from one
software or one hardware failure in its fourth iteration.
Source: thesis, chapter 6 (Gemini), figures 6.1 and 6.14, sections 6.2.1 and 6.7.3.
Simplified: figure 6.1 does not say how long a checkpoint takes; more than 10 and at most 100 iterations make it so.
Left out: what else may fail meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from workbench.timeline import Timeline
from workbench.timeline.faults import Fault, FaultKind, FaultTrace

from ..method.placement import placement
from ..method.waste import CheckpointPolicy, Job, Level, gemini
from .setting import GPT2_100B, PAPER_OVERHEADS, Overheads, Setting
from .solutions import Rows
from .timeline import training_timeline
from .training import Cause, TrainingRun, simulate_training

__all__ = ["overhead_rows", "overhead_timelines", "worked_example_rows", "worked_example_timeline"]

BLOOM_INTERVAL_ITERATIONS = 100  # figure 6.1, as BLOOM
FAILURE_ITERATION = 310  # figure 6.1
BLOOM_ITERATION_S = 105.0  # BLOOM's logbook; the example counts iterations, so that it only scales the figure
FOURTH = 3.5 * GPT2_100B.iteration_s  # figure 6.14: during iteration 4
SOFTWARE, HARDWARE, STANDBY = "software", "hardware", "hardware, standby machine"


def worked_example_rows(checkpoint_iterations: Sequence[int]) -> Rows:
    """Return figure 6.1: where training goes back to and what is lost, by how long a checkpoint takes."""
    rows: Rows = []
    for iterations in checkpoint_iterations:
        run = _worked_example(iterations)[1]
        lost = run.wasted_s[Cause.LOST] / BLOOM_ITERATION_S
        keys = {"checkpoint_iterations": iterations}
        rows.append({"quantity": "back_to", **keys, "value": FAILURE_ITERATION - lost, "unit": "iteration"})
        rows.append({"quantity": "lost_iterations", **keys, "value": lost, "unit": "iteration"})
    return rows


def worked_example_timeline(checkpoint_iterations: int) -> Timeline:
    """Return figure 6.1 as a timeline, its iterations joined."""
    return training_timeline(*_worked_example(checkpoint_iterations), every_iteration=False)


def overhead_rows() -> Rows:
    """Return figure 6.14: minutes a failure costs besides lost progress, and where training resumes.

    Returns:
        Rows part_s (keys failure, part), total_min (key failure; low and high by the least and the longest
        replacement), resumes_with and lost_iterations.
    """
    rows: Rows = []
    for failure in (SOFTWARE, HARDWARE, STANDBY):
        run = _one_failure(failure)[1]
        keys = {"failure": failure}
        parts = {cause: run.wasted_s[cause] for cause in Cause if cause not in (Cause.LOST, Cause.CHECKPOINTING)}
        rows += [
            {"quantity": "part_s", **keys, "part": part.value, "value": seconds, "unit": "s"}
            for part, seconds in parts.items()
        ]
        low, high = (_total_s(failure, share) / 60 for share in (0.0, 1.0))
        spread = {"low": low, "high": high} if high > low else {}
        rows.append({"quantity": "total_min", **keys, "value": sum(parts.values()) / 60, "unit": "min", **spread})
        lost = run.wasted_s[Cause.LOST] / GPT2_100B.iteration_s
        rows.append({"quantity": "lost_iterations", **keys, "value": lost, "unit": "iteration"})
        resumed = round(FOURTH / GPT2_100B.iteration_s - lost) + 1
        rows.append({"quantity": "resumes_with", **keys, "value": resumed, "unit": "iteration"})
    return rows


def overhead_timelines() -> dict[str, Timeline]:
    """Return figure 6.14 as timelines, by what fails."""
    return {failure: training_timeline(*_one_failure(failure)) for failure in (SOFTWARE, HARDWARE, STANDBY)}


def _worked_example(checkpoint_iterations: int) -> tuple[Setting, TrainingRun]:
    job = Job(
        iteration_s=BLOOM_ITERATION_S, state_bytes=1, num_machines=1, storage_bytes_per_s=1, network_bytes_per_s=1
    )
    transfer_s = checkpoint_iterations * BLOOM_ITERATION_S
    job = replace(job, storage_bytes_per_s=job.state_bytes / transfer_s)
    level = Level(in_memory=False, interval_iterations=BLOOM_INTERVAL_ITERATIONS, transfer_s=transfer_s)
    policy = CheckpointPolicy(name="BLOOM", iteration_s=BLOOM_ITERATION_S, storage=level)
    nothing = Overheads(detection_s=0, serialise_s=0, least_replacement_s=0, most_replacement_s=0, warm_up_s=0)
    setting = Setting(job=job, policy=policy, overheads=nothing)
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
