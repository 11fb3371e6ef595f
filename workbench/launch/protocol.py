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

__all__ = ["GroupOrder", "KillMachine", "MachineEnded", "MachineSaid", "MachineStarted", "MemoryAnswer"]
__all__ += ["MemoryRequest", "RankEnded", "RankExit", "RankSaid", "RankStarted", "Ready", "Reply", "Request", "Setup"]
__all__ += ["StartMachine"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What a fork server needs before it imports torch."""

    sys_path: list[str]  # the owner's import path
    preload: tuple[str, ...]  # modules to import before forking
    hosts: Any  # ShapedHosts or None
    threads_per_rank: int  # threads of each rank
    num_ranks: int = 0  # ranks of a worker group
    device: str = "cpu"  # "cpu" or "cuda"
    backend: str | None = None  # of torch.distributed; None chooses by device
    main: MainModule = field(default_factory=MainModule.of_this_process)  # of the owner


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """The fork server has imported everything, or could not."""

    hosts: dict | None = None  # description of the shaped hosts
    error: str = ""  # why it could not, with a traceback


class GroupOrder(enum.Enum):
    """An order about the worker group."""

    START = "fork it"
    STOP = "end it and everything it started"  # sent back when nothing of it is left


@dataclass(frozen=True, kw_only=True, slots=True)
class StartMachine:
    """Fork a machine; the descriptor beside it is the agent's end of its channel."""

    name: str  # of the machine
    host: int | None  # shaped host to be on
    memory_limit_bytes: int | None  # what it may keep for its ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class KillMachine:
    """End a machine at once: agent, ranks, and all that these have started."""

    name: str  # of the machine


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A call of a function on a rank, or in an agent with the machine as first argument."""

    function: Callable[..., Any]  # what to call
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
    """The function that runs in an agent sent its owner a message."""

    machine: str  # its name
    message: Any  # an exception where the message cannot be unpickled


@dataclass(frozen=True, kw_only=True, slots=True)
class _RankEvent:
    rank: int  # its number
    machine: str = ""  # of the rank; empty in a pool
    label: Any = None  # the agent's name for this life of the rank


@dataclass(frozen=True, kw_only=True, slots=True)
class RankStarted(_RankEvent):
    """A rank was forked; beside it travel its channel, output, errors, stack dumps and, on Linux, its pidfd."""

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
        """Return what a wait status means; an exit status that is none of ours counts as RAISED."""
        if os.WIFSIGNALED(status):
            return cls.KILLED
        code = os.WEXITSTATUS(status)
        return cls(code) if code in (cls.RETURNED.value, cls.LOST_PEER.value) else cls.RAISED


@dataclass(frozen=True, kw_only=True, slots=True)
class RankEnded(_RankEvent):
    """A rank's process has ended, and its supervisor did not stop it."""

    status: int  # wait status
    time_s: float  # monotonic clock

    @property
    def exit(self) -> RankExit:
        """How it ended."""
        return RankExit.of(self.status)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSaid(_RankEvent):
    """A rank sent its owner a message, the last one a `Reply` with its result or its error."""

    message: Any  # an exception where the message cannot be unpickled


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryRequest:
    """A rank asks for memory of its machine; without a name, for the names of all there is."""

    name: str | None = None  # of the memory
    num_bytes: int = 0  # how much


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryAnswer:
    """The agent's answer; the descriptor travels beside it."""

    error: str = ""  # why there is none
    names: dict[str, int] = field(default_factory=dict)  # bytes by name, where the names were asked for
