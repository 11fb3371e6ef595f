"""What the owner of a pool, its nursery and its ranks say to each other.

Owner to nursery: `Setup` once, then `Seat` for every rank, `Fork`, `Dump`, `Stop`.
Nursery to owner: `Ready` or `Broken` once, then `Forked`, `Died`, `Stopped`.
Owner to rank: `Request`. Rank to owner: `Reply`, the first one when the rank is ready.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from workbench.launch.failures import FailureKind

__all__ = ["Broken", "Died", "Dump", "Fork", "Forked", "Ready", "Reply", "Request", "Seat", "Setup", "Stop", "Stopped"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What a nursery needs before it imports torch."""

    num_ranks: int  # ranks of every crew
    sys_path: list[str]  # the owner's import path
    preload: tuple[str, ...]  # modules to import before forking
    hosts: Any  # ShapedHosts or None
    device: str  # "cpu" or "cuda"
    backend: str | None  # of torch.distributed; None chooses by device
    threads_per_rank: int  # threads of each rank


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """The nursery has imported everything."""

    hosts: dict | None  # description of the shaped hosts


@dataclass(frozen=True, kw_only=True, slots=True)
class Broken:
    """The nursery could not start."""

    error: str  # one line
    traceback: str  # where


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """Announces the descriptors of one rank: channel, standard output, errors, stack dumps."""

    rank: int  # whose they are


@dataclass(frozen=True, kw_only=True, slots=True)
class Fork:
    """Fork a crew into the seats announced before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Forked:
    """The crew runs."""

    pids: list[int]  # process ids in rank order


@dataclass(frozen=True, kw_only=True, slots=True)
class Died:
    """A rank's process has ended."""

    rank: int  # which
    status: int  # wait status
    time_s: float  # monotonic clock


@dataclass(frozen=True, kw_only=True, slots=True)
class Dump:
    """Let ranks write down where they are."""

    ranks: list[int]  # which


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """End the crew and everything it started."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stopped:
    """Nothing of the crew is left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One call of a function on one rank."""

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
