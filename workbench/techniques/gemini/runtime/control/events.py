"""The log of a training: what happened when, and the same as a timeline.

Source: thesis, figure 6.14 (the overhead of one failure).
Simplified: all processes share one monotonic clock, because all are on one machine.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from workbench.timeline import Action, Kind, Timeline

__all__ = ["Event", "EventName", "recovery_timeline"]


class EventName(StrEnum):
    """The events that the control plane logs; ranks may log others."""

    MACHINE_STARTED = "machine started"
    MACHINE_ENDED = "machine ended"
    KILLED = "killed"  # by a fault of the schedule, or on request
    HEARTBEAT_LOST = "heartbeat lost"
    STORE_LOST = "store lost"  # as an agent noticed
    STORE_STARTED = "store started"
    ROOT_ELECTED = "root elected"
    FAILURE_DETECTED = "failure detected"  # by the root
    REPLACEMENT_ASKED = "replacement asked"  # of the operator, by the root
    REPLACED = "replaced"
    GENERATION_ORDERED = "generation ordered"
    RANKS_STARTED = "ranks started"  # of one machine
    JOINED = "joined"  # a rank has joined its process group
    RANK_FAILED = "rank failed"  # raised or died
    RETURNED = "returned"  # a rank's function
    FINISHED = "finished"  # all ranks have returned


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that happened."""

    name: str  # an EventName, or what a rank logged
    time_s: float  # when it happened or began, monotonic clock
    duration_s: float = 0.0  # how long it took
    machine: str = ""  # name of the machine it concerns
    number: int | None = None  # number of that machine, if it had one
    rank: int | None = None  # the rank it concerns
    generation: int | None = None  # in which generation
    details: dict[str, Any] = field(default_factory=dict)  # more of it


# From an event to the next one of the second kind, what the time between them was spent on.
SPANS = (
    ("detect", (EventName.KILLED, EventName.RANK_FAILED), EventName.FAILURE_DETECTED),
    ("replace", (EventName.FAILURE_DETECTED,), EventName.GENERATION_ORDERED),
    ("restart", (EventName.GENERATION_ORDERED,), EventName.JOINED),
)


def recovery_timeline(events: Sequence[Event]) -> Timeline:
    """Draw the log as a timeline: one row for the control plane, one a machine number."""
    rows = sorted({event.number for event in events if event.number is not None})
    names = ("control", *(f"machine {number}" for number in rows))
    actions = [*_recovery_spans(events), *_logged_spans(events)]
    begin_s = min((event.time_s for event in events), default=0.0)
    return Timeline(actions=tuple(action.shifted(-begin_s) for action in actions), resources=names)


def _recovery_spans(events: Iterable[Event]) -> list[Action]:
    began_s: dict[str, float] = {}
    actions = []
    for event in sorted(events, key=lambda event: event.time_s):
        for label, _, end in SPANS:
            if event.name == end and label in began_s:
                span = {"start_s": began_s.pop(label), "end_s": event.time_s}
                actions.append(Action(resource="control", kind=Kind.OTHER, label=label, **span))
        for label, starts, _ in SPANS:
            if event.name in starts:
                began_s.setdefault(label, event.time_s)
    return actions


def _logged_spans(events: Iterable[Event]) -> list[Action]:
    return [
        Action(
            resource=f"machine {event.number}",
            start_s=event.time_s,
            end_s=event.time_s + event.duration_s,
            kind=Kind.COMPUTE,
            label=event.name,
        )
        for event in events
        if event.duration_s > 0 and event.number is not None
    ]
