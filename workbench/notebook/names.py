"""A rank between cells: the names that cells leave there, and how a cell runs, fails and is stopped.

A stopped cell raises KeyboardInterrupt where its rank stands. A rank that waits in a collective hears nothing, so a
thread cuts its connections, which ends the wait; the process group is then made anew, and the names stay.
"""

import ast
import contextlib
import datetime
import faulthandler
import io
import linecache
import os
import signal
import socket
import stat
import sys
import threading
import time
import traceback
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from workbench.launch.failures import GRACE_S, FailureKind, kind_of_error
from workbench.launch.messages import pack

__all__ = ["PLACE_SIGNAL", "Cell", "Names", "Outcome", "Pulled", "place", "tcp_connections"]

PLACE_SIGNAL = signal.SIGUSR2  # makes a rank print where it stands, also when it holds the interpreter lock
SETTLE = b"\0"  # no signal has this number
CUT_AFTER_S = 0.5  # seconds a stopped cell may need to raise before the connections of its rank are cut
GROUP_PATIENCE = datetime.timedelta(days=30)  # the notebook watches the clock; the group's limit must only be later


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """The Python of one cell."""

    name: str  # in place of a file name, such as "<cell 3>"
    source: str  # its text; line 1 is the magic's, left empty

    def remember(self) -> None:
        """Let tracebacks show its lines."""
        linecache.cache[self.name] = (len(self.source), None, self.source.splitlines(keepends=True), self.name)

    def parts(self) -> tuple[types.CodeType, types.CodeType | None]:
        """Compile all but the last expression, and that one where its value is shown; SyntaxError if it is wrong."""
        tree, last = ast.parse(self.source, self.name), None
        end = tree.body[-1] if tree.body else None
        if isinstance(end, ast.Expr) and not self.source.rstrip().endswith(";"):
            del tree.body[-1]
            last = compile(ast.Expression(end.value), self.name, "eval", dont_inherit=True)
        return compile(tree, self.name, "exec", dont_inherit=True), last


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a cell ended on one rank."""

    shown: str = ""  # its last expression's repr; empty for None
    error: str = ""  # what it raised, in one line; empty if nothing
    kind: FailureKind | None = None  # how it failed
    traceback: str = ""  # where it was raised, as text
    place: str = ""  # the innermost line of a cell, as `place` writes it
    time_s: float = 0.0  # when it ended, on the machine's monotonic clock
    stopped: bool = False  # whether it was told to stop
    cut: bool = False  # whether its connections were cut


@dataclass(frozen=True, kw_only=True, slots=True)
class Pulled:
    """A value that was asked for by its name."""

    value: Any = None  # the value
    trouble: str = ""  # why there is none


def place(name: str, line: int) -> str:
    """Write a line of a cell: "cell 3, line 2: loss.backward()"."""
    return f"{name.strip('<>')}, line {line}: {linecache.getline(name, line).strip()}"


class Names:
    """The names of one rank, which are the module `__main__` of its cells."""

    def __init__(self, spared: frozenset[int] = frozenset()) -> None:
        """Begin with `rank` and `num_ranks`; the connections of these inodes are never cut."""
        self._spared = spared
        self._rank, self._num_ranks = dist.get_rank(), dist.get_world_size()
        self._backends = dist.get_backend_config()  # such as "cpu:gloo,cuda:nccl"
        self._module = sys.modules["__main__"]
        vars(self._module).update(rank=self._rank, num_ranks=self._num_ranks)
        self._running = self._stopped = self._cut = False
        signal.signal(signal.SIGINT, self.stop)
        with contextlib.suppress(io.UnsupportedOperation):  # the stream of an engine may have no file
            faulthandler.register(PLACE_SIGNAL, file=sys.stderr, all_threads=False)
        reader, self._bell = socket.socketpair()
        self._bell.setblocking(False)
        signal.set_wakeup_fd(self._bell.fileno(), warn_on_full_buffer=False)  # rung at once, also in a collective
        self._settled = threading.Event()
        threading.Thread(target=self._cut_after_stop, args=[reader], daemon=True).start()

    def run(self, cell: Cell, takes_part: bool, pids: Sequence[int]) -> Outcome | None:
        """Run a cell if this rank takes part; after an error stop the other ranks, whose processes are named."""
        if not takes_part:
            return None
        cell.remember()
        self._settle()
        self._stopped = self._cut = False
        try:
            try:
                self._running = True
                shown = self._execute(cell)
            finally:
                self._running = False
        except BaseException as error:
            outcome = self._failed(error)
        else:
            return Outcome(shown=shown, time_s=time.monotonic(), stopped=self._stopped, cut=self._cut)
        if not outcome.stopped:
            time.sleep(GRACE_S)  # in which the others may fail or end by themselves
            for pid in set(pids) - {os.getpid()}:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGINT)
        return outcome

    def _execute(self, cell: Cell) -> str:
        body, last = cell.parts()
        exec(body, vars(self._module))
        value = None if last is None else eval(last, vars(self._module))
        return "" if value is None else repr(value)

    def _failed(self, error: BaseException) -> Outcome:
        lines = [line for line in traceback.format_exception(error) if f'File "{__file__}"' not in line]
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith("<cell ")]
        stood = place(frames[-1].filename, frames[-1].lineno or 0) if frames else "no line of a cell"
        sys.stderr.write(f"stopped in {stood}\n" if self._stopped else "".join(lines))
        return Outcome(
            error=f"{type(error).__name__}: {error}".rstrip(": "),
            kind=FailureKind.PEER_LOST if self._stopped else kind_of_error(error),
            traceback="".join(lines),
            place=stood,
            time_s=time.monotonic(),
            stopped=self._stopped,
            cut=self._cut,
        )

    def stop(self, number: int, frame: object) -> None:
        """Stop the cell that runs; a signal's handler."""
        if self._running:
            self._stopped = True
            raise KeyboardInterrupt

    def _settle(self) -> None:
        """Wait until what rang for the cell before is dealt with, so that it does not stop this one."""
        self._settled.clear()
        self._bell.send(SETTLE)
        self._settled.wait()

    def _cut_after_stop(self, bells: socket.socket) -> None:
        while numbers := bells.recv(4096):
            ends_s = time.monotonic() + CUT_AFTER_S
            while signal.SIGINT in numbers and self._running and time.monotonic() < ends_s:
                time.sleep(CUT_AFTER_S / 50)
            if signal.SIGINT in numbers and self._running:
                self._stopped = self._cut = True
                _cut_connections(self._spared)
            if SETTLE in numbers:
                self._settled.set()

    def join_anew(self, meeting_path: str) -> None:
        """Replace the process group by a new one whose ranks meet in a file; RuntimeError where that is not safe."""
        if any(not pair.endswith(":gloo") for pair in self._backends.split(",")):
            raise RuntimeError(f"the backends are {self._backends}; only a group of gloo is replaced")
        if dist.is_initialized():
            dist.destroy_process_group()
        store = dist.FileStore(meeting_path, self._num_ranks)
        dist.init_process_group(
            "gloo", store=store, timeout=GROUP_PATIENCE, rank=self._rank, world_size=self._num_ranks
        )

    def pull(self, name: str) -> Pulled:
        """Return the value of a name."""
        try:
            value = vars(self._module)[name]
            pack(value)  # an error here costs the value, one after the return costs the ranks
        except KeyError:
            return Pulled(trouble=f"rank {self._rank} has no name {name!r}")
        except Exception as error:
            return Pulled(trouble=f"{name!r} of rank {self._rank} cannot be sent: {type(error).__name__}: {error}")
        return Pulled(value=value)

    def push(self, name: str, value: Any) -> None:
        """Give a name a value."""
        vars(self._module)[name] = value


def tcp_connections() -> dict[int, int]:
    """Return the descriptors of this process's TCP connections, by inode."""
    descriptors = {}
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself is closed by now
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                with socket.socket(fileno=os.dup(int(name))) as end:
                    if end.family in (socket.AF_INET, socket.AF_INET6) and end.getpeername():  # not one that listens
                        descriptors[status.st_ino] = int(name)
    return descriptors


def _cut_connections(spared: frozenset[int]) -> None:
    """Shut down every other TCP connection of this process: gloo then fails on both sides of each."""
    for inode, descriptor in tcp_connections().items():
        with contextlib.suppress(OSError):
            if inode not in spared:
                with socket.socket(fileno=os.dup(descriptor)) as end:
                    end.shutdown(socket.SHUT_RDWR)
