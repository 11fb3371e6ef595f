"""The timeline of a simulated training: iterations, checkpoints, failures, recoveries, lost progress.

What: `training_timeline` turns the spans of a run into actions, for a Gantt chart or a Chrome trace.
Source: thesis, chapter 6 (Gemini), figures 6.1 and 6.14.
Simplified: a checkpoint is drawn from its snapshot until it is complete, or until the failure that it is lost in.
Left out: which machine does what; all act alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

from workbench.timeline import Action, Kind, Timeline

from .progress import stretch_moments
from .setting import Setting
from .training import Cause, Span, TrainingRun

__all__ = ["KINDS", "ROWS", "training_timeline"]

TRAINING, MEMORY, STORAGE, RECOVERY = ROWS = ("training", "checkpoint in memory", "checkpoint in storage", "recovery")
KEPT, LOST, CHECKPOINT = "progress that stays", "progress that is lost", "checkpoint"

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
"""What each thing is drawn as."""


def training_timeline(setting: Setting, run: TrainingRun, *, every_iteration: bool = True) -> Timeline:
    """Return the timeline of a run.

    Args:
        setting: what was simulated.
        run: its result, with spans.
        every_iteration: an action an iteration; otherwise one for all that stay, and one for those that are lost.

    Returns:
        Rows: training, checkpoints in memory if the policy has any, checkpoints in storage, recovery. Training is
        labelled by the iteration's number, from 1.

    Raises:
        ValueError: if the run kept no spans.
    """
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
            is_whole = span.start_s + end_s <= span.end_s
            yield _action(
                MEMORY if what == "memory" else STORAGE,
                start_s,
                stop_s,
                CHECKPOINT,
                str(number) if is_whole else "lost",
            )
    yield from iterations if every_iteration else _joined(iterations)


def _joined(iterations: list[Action]) -> Iterator[Action]:
    """Join neighbouring iterations of a kind; pauses between them vanish under the next bar drawn."""
    for kind in dict.fromkeys(action.kind for action in iterations):
        alike = [action for action in iterations if action.kind is kind]
        label = alike[0].label if len(alike) == 1 else f"{alike[0].label} to {alike[-1].label}"
        yield Action(resource=TRAINING, start_s=alike[0].start_s, end_s=alike[-1].end_s, kind=kind, label=label)


def _action(row: str, start_s: float, end_s: float, what: str, label: str) -> Action:
    return Action(resource=row, start_s=start_s, end_s=end_s, kind=KINDS[what], label=label)
