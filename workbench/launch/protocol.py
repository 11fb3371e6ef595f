"""Messages between the owner of ranks or machines, its fork server, the machines' agents, and the ranks.

Owner to fork server: `Setup` once, then `GroupOrder`, or `StartMachine` and `KillMachine`.
Fork server to owner: `Ready` once, then `RankStarted` and `RankEnded`, or `MachineStarted` and `MachineEnded`.
Owner to agent: `Request` once, then the caller's messages. Agent to owner: `RankStarted`, `RankEnded`, and its own.
Owner to a pool's rank: `Request`. Rank to owner: `Reply`, in a pool the first one when the rank is ready; a machine's
rank sends messages of its own before it.
Rank to agent: `MemoryRequest`, answered by `MemoryAnswer`.
"""

import enum
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from workbench.launch.failures import FailureKind
from workbench.launch.main_of_rank import MainModule

__all__ = [
    "GroupOrder",
    "KillMachine",
    "MachineEnded",
    "MachineSaid",
    "MachineStarted",
    "MemoryAnswer",
    "MemoryRequest",
    "RankEnded",
    "RankExit",
    "RankSaid",
    "RankStarted",
    "Ready",
    "Reply",
    "Request",
    "Setup",
    "StartMachine",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What a fork server needs before it imports torch."""

    sys_path: list[str]  # the owner's import path
    preload: tuple[str, ...]  # modules to import before forking
    hosts: Any  # ShapedHosts or None
    threads_per_rank: int  # threads of each rank
    num_ranks: int = 0  # ranks of a worker group
    device: str = "cpu"  # "cpu" or "cuda"
    backend: str | None = None  # backend of torch.distributed; None chooses by device
    main: MainModule = field(default_factory=MainModule.of_this_process)  # the owner's `__main__`


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """The fork server has imported everything, or has failed to."""

    hosts: dict | None = None  # description of the shaped hosts
    error: str = ""  # the failure, with a traceback; empty if there is none


class GroupOrder(enum.Enum):
    """An order about the worker group."""

    START = "fork it"
    STOP = "end it and everything it started"  # sent back when all its processes have ended


@dataclass(frozen=True, kw_only=True, slots=True)
class StartMachine:
    """Fork a machine; the descriptor sent with the order is the agent's end of its channel."""

    name: str  # of the machine
    host: int | None  # shaped host to be on
    memory_limit_bytes: int | None  # limit of the memory that it keeps for its ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class KillMachine:
    """End a machine at once: agent, ranks, and all processes that these have started."""

    name: str  # of the machine


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A call of a function on a rank, or in an agent with the machine as first argument."""

    function: Callable[..., Any]  # function to call
    args: tuple  # positional arguments
    kwargs: dict[str, Any]  # keyword arguments
    keep_as: str | None = None  # keep the result under this name and return nothing
    sources: dict[str, list[str]] = field(default_factory=dict)  # lines of notebook cells


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """A rank's answer."""

    value: Any = None  # the result
    failure: FailureKind | None = None  # set if the function raised
    message: str = ""  # the exception in one line
    traceback: str = ""  # where it was raised
    time_s: float = 0.0  # monotonic clock


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineStarted:
    """The agent of a machine has started."""

    machine: str  # its name
    pid: int  # process id of the agent
    time_s: float  # monotonic clock


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineEnded:
    """A machine has ended: no agent, no rank and no memory is left."""

    machine: str  # its name
    status: int  # wait status of the agent
    time_s: float  # monotonic clock


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineSaid:
    """The function of an agent has sent its owner a message."""

    machine: str  # its name
    message: Any  # an exception where the message cannot be unpickled


@dataclass(frozen=True, kw_only=True, slots=True)
class _RankEvent:
    rank: int  # its number
    machine: str = ""  # name of the rank's machine; empty in a pool
    label: Any = None  # the agent's name for this run of the rank


@dataclass(frozen=True, kw_only=True, slots=True)
class RankStarted(_RankEvent):
    """A rank was forked; descriptors of its channel, outputs, stack dumps and, on Linux, pidfd are sent with this."""

    pid: int  # its process id
    time_s: float  # monotonic clock


class RankExit(enum.Enum):
    """How a machine's rank ended, as its agent sees it; the value is the exit status of the first three."""

    RETURNED = 0
    RAISED = 1
    LOST_PEER = 3  # raised because another rank was gone
    KILLED = -1  # by a signal

    @classmethod
    def of(cls, status: int) -> "RankExit":
        """Return the meaning of a wait status; an unknown exit status counts as RAISED."""
        if os.WIFSIGNALED(status):
            return cls.KILLED
        code = os.WEXITSTATUS(status)
        return cls(code) if code in (cls.RETURNED.value, cls.LOST_PEER.value) else cls.RAISED


@dataclass(frozen=True, kw_only=True, slots=True)
class RankEnded(_RankEvent):
    """A rank's process has ended without being stopped by its supervisor."""

    status: int  # wait status
    time_s: float  # monotonic clock

    @property
    def exit(self) -> RankExit:
        """The kind of its end."""
        return RankExit.of(self.status)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSaid(_RankEvent):
    """A rank has sent its owner a message; the last message is a `Reply` with the result or the error."""

    message: Any  # an exception where the message cannot be unpickled


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryRequest:
    """A rank asks for memory of its machine or, without a name, for the names of all memory."""

    name: str | None = None  # name of the memory
    num_bytes: int = 0  # size of the memory


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryAnswer:
    """The agent's answer; the descriptor of the memory is sent with it."""

    error: str = ""  # the reason for a refusal; empty if there is none
    names: dict[str, int] | None = None  # bytes by name, where the names were asked for
