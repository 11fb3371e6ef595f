"""What went wrong on which rank, told with the first cause first.

Simplified: a rank counts as a victim of another's end when the communication library says
so in its message; the libraries have no error class for it.
"""

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

__all__ = [
    "FailureKind",
    "RankFailed",
    "RankFailure",
    "describe_end",
    "in_order_of_cause",
    "is_complete",
    "kind_of_error",
    "kind_of_words",
    "own_frames",
    "waits_for_peer",
]

# Words of gloo and NCCL when a peer is gone, compared in lower case.
PEER_WORDS = (
    "closed by peer",
    "reset by peer",
    "broken pipe",
    "connection refused",
    "remote process exited",
    "connectfullmesh failed",
)

# Frames from here outwards are the same in every stack dump.
RANK_FILE = str(Path(__file__).with_name("rank.py"))


class FailureKind(Enum):
    """How a rank failed."""

    RAISED = "raised"
    DIED = "died"
    SILENT = "did not answer"
    PEER_LOST = "lost a peer or waits for one"


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFailure:
    """One rank's part in a failed run."""

    rank: int  # which rank
    kind: FailureKind  # how it failed
    time_s: float  # when, on the machine's monotonic clock
    message: str  # one line without the rank
    traceback: str = ""  # where, as text; empty if nothing is known

    def __str__(self) -> str:
        line = f"rank {self.rank} {self.message}"
        return f"{line}\n{self.traceback.rstrip()}" if self.traceback else line


class RankFailed(RuntimeError):
    """A run failed on at least one rank; the others were stopped.

    Args:
        failures: the failures, in any order.
        note: what the caller should know besides.

    Attributes:
        failures: the same, first cause first.
    """

    def __init__(self, failures: Iterable[RankFailure], note: str = ""):
        self.failures = in_order_of_cause(failures)
        self.note = note
        super().__init__("\n\n".join([*map(str, self.failures), *([note] if note else [])]))


def in_order_of_cause(failures: Iterable[RankFailure]) -> tuple[RankFailure, ...]:
    """Sort failures by time, with ranks that failed only because a peer did at the end."""

    def place(failure: RankFailure) -> tuple[bool, float]:
        return failure.kind is FailureKind.PEER_LOST, failure.time_s

    return tuple(sorted(failures, key=place))


def kind_of_error(error: BaseException) -> FailureKind:
    """Tell an error of the rank's own from the loss of a peer."""
    return kind_of_words(str(error)) if isinstance(error, RuntimeError) else FailureKind.RAISED


def kind_of_words(message: str) -> FailureKind:
    """Tell the same from what the communication library said."""
    lost = any(word in message.lower() for word in PEER_WORDS)
    return FailureKind.PEER_LOST if lost else FailureKind.RAISED


def describe_end(status: int) -> str:
    """Say in words how a process ended.

    Args:
        status: wait status as the operating system gives it.
    """
    if not os.WIFSIGNALED(status):
        return f"ended by itself with exit status {os.WEXITSTATUS(status)}"
    number = os.WTERMSIG(status)
    words = f"was killed by signal {number}"
    if number == signal.SIGKILL:
        return f"{words}, likely out of memory"
    return f"{words} ({signal.Signals(number).name})"


def is_complete(stack: str) -> bool:
    """Tell whether a stack dump has reached the workbench's own loop in the main thread."""
    return f'File "{RANK_FILE}"' in stack


def waits_for_peer(stack: str) -> bool:
    """Tell from a stack dump, innermost frame first, whether the main thread is in a collective."""
    main_thread = stack.split("hread 0x")[-1]  # "Thread" or "Current thread"; the main one is last
    frames = [line for line in main_thread.splitlines() if line.startswith("  File ")]
    return bool(frames) and "distributed_c10d.py" in frames[0]


def own_frames(stack: str) -> str:
    """Cut the frames of the workbench's own loop off a stack dump, innermost frame first."""
    kept = []
    for line in stack.splitlines():
        if f'File "{RANK_FILE}"' in line:
            break
        kept.append(line)
    return "\n".join(kept)
