"""How ranks fail, reported with the first cause first."""

import itertools
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

__all__ = ["GRACE_S", "FailureKind", "RankFailed", "RankFailure", "describe_end", "is_complete", "kind_of_error"]
__all__ += ["kind_of_words", "own_frames", "waits_for_peer"]

GRACE_S = 0.5  # seconds after the first failure in which other ranks may report theirs

# Words of gloo and NCCL when a peer is gone, in lower case; the libraries have no error class for it.
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
    """A run failed on at least one rank; `failures` has the first cause first, and `note` what to do next."""

    def __init__(self, failures: Iterable[RankFailure], note: str = ""):
        # By time, with ranks that failed only because a peer did at the end.
        self.failures = tuple(
            sorted(failures, key=lambda failure: (failure.kind is FailureKind.PEER_LOST, failure.time_s))
        )
        self.note = note
        super().__init__("\n\n".join([*map(str, self.failures), *([note] if note else [])]))


def kind_of_error(error: BaseException) -> FailureKind:
    """Return whether a rank raised an error of its own or lost a peer."""
    return kind_of_words(str(error)) if isinstance(error, RuntimeError) else FailureKind.RAISED


def kind_of_words(message: str) -> FailureKind:
    """Return the same for the message of an error."""
    lost = any(word in message.lower() for word in PEER_WORDS)
    return FailureKind.PEER_LOST if lost else FailureKind.RAISED


def describe_end(status: int) -> str:
    """Say in words how a process with this wait status ended."""
    if not os.WIFSIGNALED(status):
        return f"ended by itself with exit status {os.WEXITSTATUS(status)}"
    number = os.WTERMSIG(status)
    words = f"was killed by signal {number}"
    if number == signal.SIGKILL:
        return f"{words}, likely out of memory"
    return f"{words} ({signal.Signals(number).name})"


def is_complete(stack: str) -> bool:
    """Return whether a stack dump has reached the workbench's own loop in the main thread."""
    return f'File "{RANK_FILE}"' in stack


def waits_for_peer(stack: str) -> bool:
    """Return whether the main thread of a stack dump, innermost frame first, is in a collective."""
    main_thread = stack.split("hread 0x")[-1]  # "Thread" or "Current thread"; the main one is last
    frames = [line for line in main_thread.splitlines() if line.startswith("  File ")]
    return bool(frames) and "distributed_c10d.py" in frames[0]


def own_frames(stack: str) -> str:
    """Cut the frames of the workbench's own loop off a stack dump, innermost frame first."""
    return "\n".join(itertools.takewhile(lambda line: f'File "{RANK_FILE}"' not in line, stack.splitlines()))
