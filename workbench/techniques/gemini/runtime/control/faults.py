"""Failures on schedule: what the owner kills, and when.

Source: thesis, section 6.6.1: software failures (a rank dies, its machine lives) and hardware failures (a machine is
lost with all it kept); ours besides: the store, the root wherever it is, several at once.
"""

from dataclasses import dataclass
from enum import Enum

__all__ = ["Fault", "Victim"]


class Victim(Enum):
    """What a fault kills."""

    MACHINE = "machine"  # agents, ranks and memory of the machines with the given numbers
    RANK = "rank"  # the processes of the given ranks
    ROOT = "root"  # the machine whose agent is root
    STORE = "store"  # the embedded store, which comes back empty


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One failure, at one moment of a training; what is gone already at that moment is left alone."""

    kills: Victim  # what
    numbers: tuple[int, ...] = ()  # of the machines or ranks, which die at once; empty for root and store
    at_iteration: int | None = None  # when a rank first reports this iteration or a later one
    after_event: str | None = None  # or when this event is logged
    occurrence: int = 1  # for the how manieth time
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
        if not self.occurrence >= 1:
            raise ValueError(f"Fault.occurrence is {self.occurrence!r}; it must be at least 1")
        for name in ("delay_s", "down_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"Fault.{name} is {getattr(self, name)!r}; it must not be negative")

    def check_fits(self, num_machines: int, num_ranks: int, has_store: bool) -> None:
        """Refuse a fault that the training cannot have."""
        limit = num_machines if self.kills is Victim.MACHINE else num_ranks
        wrong = [number for number in self.numbers if not 0 <= number < limit]
        if wrong:
            raise ValueError(f"Fault.numbers is {self.numbers!r}; each must lie in 0..{limit - 1}")
        if self.kills is Victim.STORE and not has_store:
            raise ValueError(f"Fault.kills is {self.kills!r}; only the embedded store can be killed")
