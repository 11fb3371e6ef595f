"""The records in the store, each a line of JSON: heartbeats with their state, the root's name, and orders."""

import json
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Self

__all__ = ["ORDER_KEY", "ROOT_KEY", "AgentStatus", "Order", "Phase", "RootRecord", "status_key"]

ROOT_KEY = "root"  # of the RootRecord
ORDER_KEY = "order"  # of the newest Order


def status_key(name: str) -> str:
    """Return the key of a machine's heartbeat."""
    return f"agents/{name}"


class Phase(StrEnum):
    """The state of a machine's ranks in the generation that its agent has accepted."""

    IDLE = "idle"  # it has none: a standby, or a machine that was replaced
    RUNNING = "running"
    LOST_PEER = "lost peer"  # a rank ended because one of another machine was gone
    FAILED = "failed"  # a rank ended for a reason of its own
    RETURNED = "returned"  # all ranks ended well


class _Record:
    """Turns itself into bytes and back."""

    __slots__ = ()

    def to_bytes(self) -> bytes:
        """Return the record as one line of JSON."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the record of one line of JSON; unknown fields are an error."""
        values = json.loads(data)
        for field in fields(cls):
            if isinstance(values[field.name], list):
                values[field.name] = tuple(values[field.name])
        return cls(**values)


@dataclass(frozen=True, kw_only=True, slots=True)
class RootRecord(_Record):
    """The root; a new one takes a higher term."""

    term: int  # grows with every election
    name: str  # machine on which the root agent runs


@dataclass(frozen=True, kw_only=True, slots=True)
class Order(_Record):
    """An order of the root: these machines train together now, whatever ran before."""

    generation: int  # grows with every restart of training
    term: int  # of the root that ordered it
    root: str  # its name
    members: tuple[str, ...]  # machines by machine number
    meeting: str  # host:port at which the ranks meet

    @property
    def identity(self) -> tuple[int, int, str]:
        """The three numbers and names that no other order has."""
        return self.generation, self.term, self.root


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentStatus(_Record):
    """A heartbeat."""

    name: str  # of the machine
    count: int  # grows with every heartbeat
    phase: str  # a Phase
    generation: int  # of the newest order it has accepted; 0 before the first
    term: int  # of that order
    root: str  # of that order
    seen_term: int  # highest term it has seen
    served: bool  # whether it was ever a member of an order
    meeting: str  # host:port at which ranks could meet in the next generation

    @property
    def identity(self) -> tuple[int, int, str]:
        """The order it has accepted."""
        return self.generation, self.term, self.root
