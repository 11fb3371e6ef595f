"""The recovery timeline: iterations, checkpoints, the failure, what each rank was served by, and the lost progress.

Source: "Gemini: Fast Failure Recovery in Distributed Training with In-Memory Checkpoints", figures 6.1 and 6.14; ours
is drawn from the log of a real training.
Simplified: a checkpoint is drawn from its beginning until all of it was sent and received.
Left out: the chunks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from types import MappingProxyType

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from workbench import plots
from workbench.plots import format_time
from workbench.plots.style import PALETTE
from workbench.timeline import Action, Kind, Timeline

from ..method.recovery import Tier
from ..runtime.control.events import Event
from .recovery import RecoveryObserved

__all__ = ["draw_recovery", "recovery_actions"]

ITERATION, CHECKPOINT, LOST = "#9db7d5", "#3d6ea5", "#d9534f"
TIER_COLOR = MappingProxyType(dict(zip(Tier, (PALETTE[2], PALETTE[1], PALETTE[4], "#888888"), strict=True)))
SHADES = ("#555555", "#aaaaaa")  # of phases, in turn
NAMES_APART = 0.1  # least distance of two phases' names, as a share of all phases
UPPER, LOWER = (-0.38, 0.46), (0.12, 0.26)  # of a row: where a bar begins, and how high it is


def recovery_actions(observed: RecoveryObserved) -> Timeline:
    """Return the log as a timeline for a Chrome trace: phases, and rows of iterations and of checkpoints by machine.

    Args:
        observed: one training with a kill.
    """
    actions, begin_s = [], _begin_s(observed)
    for start_s, end_s, phase in _phases(observed):
        actions.append(Action(resource="recovery", start_s=start_s, end_s=end_s, kind=Kind.OTHER, label=phase))
    for machine, start_s, end_s, number, is_lost in _iterations(observed):
        label = f"iteration {number}" + (" (lost)" if is_lost else "")
        span = {"start_s": start_s, "end_s": end_s, "kind": Kind.COMPUTE}
        actions.append(Action(resource=f"machine {machine}", label=label, **span))
    for event in observed.outcome.named("checkpoint"):
        start_s, end_s = _checkpoint(event)
        actions.append(
            Action(
                resource=f"machine {event.number}, checkpoints",
                start_s=start_s,
                end_s=end_s,
                kind=Kind.COMMUNICATE,
                label=f"checkpoint {event.details['iteration']}",
            )
        )
    for event in observed.outcome.named("retrieve"):
        actions.append(
            Action(
                resource=f"machine {event.number}",
                start_s=event.time_s,
                end_s=event.time_s + event.duration_s,
                kind=Kind.DECODE,
                label=event.details["tier"],
            )
        )
    shifted = sorted((action.shifted(-begin_s) for action in actions), key=lambda action: action.resource)
    return Timeline(actions=tuple(shifted))


@plots.style.styled()
def draw_recovery(observed: RecoveryObserved, *, ax: Axes) -> Axes:
    """Draw the recovery timeline.

    Args:
        observed: one training with a kill.
        ax: where to draw.
    """
    begin_s, machines = _begin_s(observed), sorted({row[0] for row in _iterations(observed)})
    row_of = {machine: row + 1 for row, machine in enumerate(machines)}
    _draw_phases(ax, [(start_s - begin_s, end_s - begin_s, phase) for start_s, end_s, phase in _phases(observed)])
    for machine, start_s, end_s, _number, is_lost in _iterations(observed):
        color = LOST if is_lost else ITERATION
        _bar(ax, row_of[machine], start_s - begin_s, end_s - start_s, UPPER, color)
    for event in observed.outcome.named("checkpoint"):
        start_s, end_s = _checkpoint(event)
        _bar(ax, row_of[event.number], start_s - begin_s, end_s - start_s, LOWER, CHECKPOINT)
    for event in observed.outcome.named("retrieve"):
        if event.time_s >= begin_s:
            color = TIER_COLOR[event.details["tier"]]
            _bar(ax, row_of[event.number], event.time_s - begin_s, event.duration_s, UPPER, color)
    failed_s = observed.outcome.named("killed")[0].time_s - begin_s
    ax.axvline(failed_s, color=LOST, linewidth=1.5)
    ax.annotate(
        f"{observed.kind} failure",
        (failed_s, 0),
        xytext=(-4, 0),
        textcoords="offset points",
        color=LOST,
        weight="bold",
        ha="right",
        va="center",
    )
    ax.set_yticks([0, *row_of.values()], ["recovery", *(f"machine {machine}" for machine in row_of)])
    ax.set(xlabel="time (s)", ylim=(len(machines) + 0.6, -1.3))
    ax.grid(visible=False, axis="y")
    _legend(ax, observed)
    return ax


def _draw_phases(ax: Axes, phases: Sequence[tuple[float, float, str]]) -> None:
    """Draw phases as one row of bars; names of short ones are moved apart, each tied to its bar."""
    apart_s, free_s = NAMES_APART * (phases[-1][1] - phases[0][0]), -math.inf
    for number, (start_s, end_s, phase) in enumerate(phases):
        ax.barh(0, end_s - start_s, left=start_s, height=0.4, color=SHADES[number % 2])
        middle_s = (start_s + end_s) / 2
        name_s = max(middle_s, free_s)
        free_s = name_s + apart_s
        ax.annotate(
            f"{phase} {format_time(end_s - start_s)}",
            (middle_s, -0.2),
            xytext=(name_s, -0.45),
            rotation=40,
            fontsize=8,
            va="bottom",
            arrowprops={"arrowstyle": "-", "color": "#888888", "linewidth": 0.6},
        )


def _bar(ax: Axes, row: int, start_s: float, duration_s: float, place: tuple[float, float], color: str) -> None:
    below, height = place
    place = {"left": start_s, "height": height}
    ax.barh(row + below + height / 2, duration_s, **place, color=color, edgecolor="white", linewidth=0.4)


def _begin_s(observed: RecoveryObserved) -> float:
    return observed.outcome.named("resumed")[0].time_s


def _checkpoint(event: Event) -> tuple[float, float]:
    began_s = event.details["began_s"]
    return began_s, began_s + max(event.details["sent_s"], event.details["received_s"])


def _phases(observed: RecoveryObserved) -> Iterator[tuple[float, float, str]]:
    at_s = observed.outcome.named("killed")[0].time_s
    for phase, seconds in observed.phases.seconds.items():
        yield at_s, at_s + seconds, phase
        at_s += seconds


def _iterations(observed: RecoveryObserved) -> list[tuple[int, float, float, int, bool]]:
    """Return machine, start, end, number and whether it was done again, of every iteration of every first rank."""
    found, resumed_s = [], {}
    for event in observed.outcome.named("resumed"):
        resumed_s[event.number, event.generation] = event.time_s
    for event in observed.outcome.named("iteration"):
        place = event.number, event.generation
        is_lost = event.generation == 1 and event.details["iteration"] > observed.phases.iteration
        found.append((event.number, resumed_s[place], event.time_s, event.details["iteration"], is_lost))
        resumed_s[place] = event.time_s
    return found


def _legend(ax: Axes, observed: RecoveryObserved) -> None:
    patches = [Patch(color=ITERATION, label="iteration"), Patch(color=CHECKPOINT, label="checkpoint travelling")]
    if any(is_lost for *_, is_lost in _iterations(observed)):
        patches.append(Patch(color=LOST, label="lost: done again"))
    tiers = dict.fromkeys(event.details["tier"] for event in observed.outcome.named("retrieve"))
    patches += [Patch(color=TIER_COLOR[tier], label=f"from {tier}") for tier in tiers if tier != Tier.START.value]
    ax.legend(handles=patches, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=5, fontsize=8)
