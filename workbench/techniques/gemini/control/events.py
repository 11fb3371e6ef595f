"""The log of a training, and the faults that the operator causes on schedule."""

from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any

from workbench.checks import require_counts, require_not_negative

__all__ = ["Event", "EventName", "Fault", "Victim"]


class EventName(StrEnum):
    """The events that the control plane logs; ranks may log others."""

    MACHINE_STARTED = "machine started"
    MACHINE_ENDED = "machine ended"
    KILLED = "killed"  # by a fault of the schedule, or on request
    HEARTBEAT_LOST = "heartbeat lost"
    STORE_LOST = "store lost"  # as an agent noticed
    STORE_FOUND = "store found"  # the same agent again
    STORE_REPLACED = "store replaced"  # by the operator, because the old one did not answer
    STORE_STARTED = "store started"
    MESSAGE_DROPPED = "message dropped"  # an agent found in the store what this training had not written, or old news
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
    """An event of a training, and its place."""

    name: str  # an EventName, or what a rank logged
    time_s: float  # when it happened or began, monotonic clock
    duration_s: float = 0.0  # how long it took
    machine: str = ""  # name of the machine it concerns
    number: int | None = None  # number of that machine, if it had one
    rank: int | None = None  # the rank it concerns
    generation: int | None = None  # in which generation
    details: dict[str, Any] = field(default_factory=dict)  # more of it


class Victim(Enum):
    """The kind of thing that a fault kills."""

    MACHINE = "machine"  # agents, ranks and memory of the machines with the given numbers
    RANK = "rank"  # the processes of the given ranks
    ROOT = "root"  # the machine whose agent is root
    STORE = "store"  # the embedded store, which comes back empty
    FROZEN_STORE = "frozen store"  # the embedded store stops to answer, and is not ended


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One failure, at one moment of a training; a victim that is gone already is left alone."""

    kills: Victim  # the kind
    numbers: tuple[int, ...] = ()  # of the machines or ranks, which die at once; empty for all else
    at_iteration: int | None = None  # when a rank first reports this iteration or a later one
    after_event: str | None = None  # or when this event is logged
    occurrence: int = 1  # of that event
    delay_s: float = 0.0  # seconds after that
    down_s: float = 0.5  # seconds until a killed store comes back

    def __post_init__(self) -> None:
        if not isinstance(self.kills, Victim):
            raise ValueError(f"Fault.kills is {self.kills!r}; it must be a Victim")
        if (self.at_iteration is None) == (self.after_event is None):
            times = f"{self.at_iteration!r} and {self.after_event!r}"
            raise ValueError(f"Fault.at_iteration and after_event are {times}; one of them must be given")
        needs_numbers = self.kills in (Victim.MACHINE, Victim.RANK)
        if needs_numbers != bool(self.numbers) or len(set(self.numbers)) != len(self.numbers):
            rule = "different numbers" if needs_numbers else "empty"
            raise ValueError(f"Fault.numbers is {self.numbers!r}; for a {self.kills.value} it must be {rule}")
        require_counts(1, **{"Fault.occurrence": self.occurrence})
        require_not_negative(**{"Fault.delay_s": self.delay_s, "Fault.down_s": self.down_s})

    def check_fits(self, num_machines: int, num_ranks: int, has_store: bool) -> None:
        """Refuse a fault that the training cannot have."""
        limit = num_machines if self.kills is Victim.MACHINE else num_ranks
        wrong = [number for number in self.numbers if not 0 <= number < limit]
        if wrong:
            raise ValueError(f"Fault.numbers is {self.numbers!r}; each must lie in 0..{limit - 1}")
        if self.kills in (Victim.STORE, Victim.FROZEN_STORE) and not has_store:
            raise ValueError(f"Fault.kills is {self.kills!r}; only the embedded store can be killed or stopped")
