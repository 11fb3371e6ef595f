"""What the owner of machines, their fleet, their agents and their ranks say to each other.

Owner to fleet: `Boot`, `Kill`. Fleet to owner: `MachineStarted`, `MachineEnded`.
Owner to agent: `Call` once, then whatever the caller tells. Agent to owner: `RankStarted`, `RankEnded`, and what its
function tells.
Rank to agent: `MemoryRequest`, answered by `MemoryAnswer`. Rank to owner: what it tells, and a `Reply` last.
"""

import enum
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = [
    "Boot",
    "Call",
    "Kill",
    "MachineEnded",
    "MachineSaid",
    "MachineStarted",
    "MemoryAnswer",
    "MemoryRequest",
    "RankEnded",
    "RankExit",
    "RankSaid",
    "RankStarted",
]


class RankExit(enum.Enum):
    """How a rank ended, as its agent sees it; the value is the exit status of the first three."""

    RETURNED = 0
    RAISED = 1
    LOST_PEER = 3  # raised because another rank was gone
    KILLED = -1  # by a signal

    @classmethod
    def of(cls, status: int) -> "RankExit":
        """Return what a wait status means; an exit status of somebody else's counts as RAISED."""
        if os.WIFSIGNALED(status):
            return cls.KILLED
        code = os.WEXITSTATUS(status)
        return cls(code) if code in (cls.RETURNED.value, cls.LOST_PEER.value) else cls.RAISED


@dataclass(frozen=True, kw_only=True, slots=True)
class Boot:
    """Start a machine; the descriptor beside it is the agent's end of its channel."""

    name: str  # of the machine
    host: int | None  # shaped host to be on


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    """End a machine at once: agent, ranks, and all that these have started."""

    name: str  # of the machine


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """The first message to an agent: what to run with the machine as first argument."""

    function: Callable[..., Any]  # what to call
    args: tuple  # positional arguments behind the machine
    kwargs: dict[str, Any]  # keyword arguments
    memory_limit_bytes: int | None  # what the machine may keep for its ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineStarted:
    """A machine's agent runs."""

    machine: str  # its name
    pid: int  # process id of the agent
    time_s: float  # monotonic clock


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineEnded:
    """Nothing of a machine is left: no agent, no rank, no memory."""

    machine: str  # its name
    status: int  # wait status of the agent
    time_s: float  # monotonic clock


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineSaid:
    """The function that runs in an agent told its owner something."""

    machine: str  # its name
    message: Any  # what


@dataclass(frozen=True, kw_only=True, slots=True)
class RankStarted:
    """An agent has forked a rank."""

    machine: str  # whose rank
    rank: int  # its number
    label: Any  # what the agent calls this life of the rank
    pid: int  # its process id
    time_s: float  # monotonic clock


@dataclass(frozen=True, kw_only=True, slots=True)
class RankEnded:
    """A rank's process has ended, and was not stopped by its agent."""

    machine: str  # whose rank
    rank: int  # its number
    label: Any  # what the agent called this life of the rank
    status: int  # wait status
    time_s: float  # monotonic clock

    @property
    def exit(self) -> RankExit:
        """How it ended."""
        return RankExit.of(self.status)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSaid:
    """A rank told its owner something; the last thing is a `Reply` with its result or its error."""

    machine: str  # whose rank
    rank: int  # its number
    label: Any  # what the agent calls this life of the rank
    message: Any  # what


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryRequest:
    """A rank asks for memory of its machine; without a name, for the names of all there is."""

    name: str | None = None  # of the memory
    num_bytes: int = 0  # how much


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryAnswer:
    """The agent's answer; the descriptor travels beside it."""

    error: str = ""  # why there is none
    names: dict[str, int] | None = None  # bytes by name, where the names were asked for
