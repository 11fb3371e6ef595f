"""Actions and timelines: a resource (rank, link, copy engine) does something from one moment to another.

Simulations, recordings of real ranks, Gantt charts and Chrome traces share them; a collective is one action on each of
its ranks.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

__all__ = ["Action", "Kind", "Timeline", "chrome_trace"]


class Kind(Enum):
    """The kind of an action, which decides its colour."""

    COMPUTE = "compute"
    FORWARD = "forward"
    BACKWARD = "backward"
    ENCODE = "encode"
    COMMUNICATE = "communicate"
    DECODE = "decode"
    WAIT = "wait"
    OTHER = "other"


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """An uninterrupted action of one resource."""

    resource: str  # the acting resource, such as "rank 0" or "link"
    start_s: float  # seconds on the timeline's clock
    end_s: float  # seconds on the timeline's clock, not before start_s
    kind: Kind = Kind.COMPUTE  # kind of action
    label: str = ""  # text on its bar

    def __post_init__(self) -> None:
        if not self.resource:
            raise ValueError(f"resource is {self.resource!r}; it must name who acts")
        if not isinstance(self.kind, Kind):
            raise ValueError(f"kind is {self.kind!r}; it must be a Kind")
        for field in ("start_s", "end_s"):
            if not math.isfinite(getattr(self, field)):
                raise ValueError(f"{field} is {getattr(self, field)!r}; it must be finite")
        if self.end_s < self.start_s:
            raise ValueError(f"end_s is {self.end_s!r}; it must not be before start_s, {self.start_s!r}")

    @property
    def duration_s(self) -> float:
        """Seconds from start to end."""
        return self.end_s - self.start_s

    def shifted(self, by_s: float) -> "Action":
        """Return the same action `by_s` seconds later."""
        return replace(self, start_s=self.start_s + by_s, end_s=self.end_s + by_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """Actions on a common clock; rows keep the order in which resources are named."""

    actions: tuple[Action, ...]  # in any order
    resources: tuple[str, ...] = ()  # rows from top to bottom; default: order of first appearance

    def __post_init__(self) -> None:
        object.__setattr__(self, "actions", tuple(self.actions))
        seen = dict.fromkeys(action.resource for action in self.actions)
        if not self.resources:
            object.__setattr__(self, "resources", tuple(seen))
        missing = [name for name in seen if name not in self.resources]
        if missing:
            raise ValueError(f"resources is {self.resources!r}; it must hold every action's, but lacks {missing!r}")

    @classmethod
    def merged(cls, recordings: Iterable[Iterable[Action]], *, from_zero: bool = True) -> "Timeline":
        """Put recordings on one clock on one timeline; `from_zero` lets the first action start at 0 s."""
        actions = [action for recording in recordings for action in recording]
        shift_s = -min((action.start_s for action in actions), default=0.0) if from_zero else 0.0
        return cls(actions=tuple(action.shifted(shift_s) for action in actions))

    @property
    def start_s(self) -> float:
        """When the first action starts; 0 if there is none."""
        return min((action.start_s for action in self.actions), default=0.0)

    @property
    def end_s(self) -> float:
        """When the last action ends; 0 if there is none."""
        return max((action.end_s for action in self.actions), default=0.0)

    @property
    def duration_s(self) -> float:
        """Seconds from the first start to the last end."""
        return self.end_s - self.start_s

    def of(self, resource: str) -> tuple[Action, ...]:
        """Return the actions of one resource, earliest first."""
        if resource not in self.resources:
            raise ValueError(f"resource is {resource!r}; it must be one of {self.resources!r}")
        actions = (action for action in self.actions if action.resource == resource)
        return tuple(sorted(actions, key=lambda action: (action.start_s, action.end_s)))

    def total_s(self, *, resource: str | None = None, kind: Kind | None = None) -> float:
        """Add up the seconds of the actions of a resource, of a kind, or of both; None counts all."""
        chosen = self.actions if resource is None else self.of(resource)
        return math.fsum(action.duration_s for action in chosen if kind in (None, action.kind))


_MICROSECONDS_PER_S = 1e6  # the format counts in microseconds


def chrome_trace(timeline: Timeline, *, name: str = "workbench") -> dict:
    """Return a timeline as the object of a Chrome trace file: resources are threads of a process called `name`."""
    rows = {resource: row for row, resource in enumerate(timeline.resources)}
    events = [_metadata("process_name", 0, {"name": name})]
    for resource, row in rows.items():
        events.append(_metadata("thread_name", row, {"name": resource}))
        events.append(_metadata("thread_sort_index", row, {"sort_index": row}))
    for action in sorted(timeline.actions, key=lambda action: (action.start_s, rows[action.resource])):
        events.append(
            {
                "name": action.label or action.kind.value,
                "cat": action.kind.value,
                "ph": "X",
                "pid": 0,
                "tid": rows[action.resource],
                "ts": action.start_s * _MICROSECONDS_PER_S,
                "dur": action.duration_s * _MICROSECONDS_PER_S,
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _metadata(what: str, row: int, args: dict) -> dict:
    return {"name": what, "ph": "M", "pid": 0, "tid": row, "args": args}
