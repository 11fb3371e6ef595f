"""Ties between processes: who ends with whom, how an end is noticed, and the end of a whole tree.

On Linux by prctl(2) and pidfd_open(2). Elsewhere processes are watched by polling, and orphans are not adopted.
"""

import contextlib
import ctypes
import gc
import inspect
import os
import select
import selectors
import signal
import socket
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import psutil

__all__ = ["Listener", "ProcessWatch", "adopt_children", "die_with_parent", "end_like", "flush_streams", "fork"]
__all__ += ["go_below_guard", "is_readable", "kill_descendants", "open_standard_streams", "reap", "stand_by"]

PR_SET_PDEATHSIG = 1  # option number, linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36  # option number, linux/prctl.h
POLL_S = 0.1  # seconds between two looks at a process that has no pidfd
KILL_PATIENCE_S = 5.0  # seconds a killed process may need (uninterruptible I/O)
CHILDREN_OF_THREAD = "/proc/{pid}/task/{thread}/children"  # kernels with CONFIG_PROC_CHILDREN
ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)  # a guard that gets one ends its child


class ProcessWatch:
    """Says when another process has ended; a zombie has."""

    def __init__(self, pid: int):
        self.pid = pid
        self.pidfd: int | None = None
        self._gone = False
        try:
            self.pidfd = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
        except ProcessLookupError:
            self._gone = True
        except OSError:  # a kernel or a sandbox without pidfd: gone() asks instead
            self.pidfd = None

    def gone(self) -> bool:
        """Return whether the process has ended."""
        if self._gone:
            return True
        if self.pidfd is not None:
            return is_readable(self.pidfd)
        try:
            return psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True


class Listener:
    """Waits for several sources, calls the handler of each that can be read, and notices when a process ends.

    A source has a descriptor or is one; what its handler returns is what `listen` returns.
    """

    def __init__(self, watches: Sequence[ProcessWatch] = ()):
        self._selector = selectors.DefaultSelector()
        self._watches = watches
        self._poll_s = None if all(watch.pidfd is not None for watch in watches) else POLL_S
        for watch in watches:
            if watch.pidfd is not None:
                self.add(watch.pidfd, tuple)

    def add(self, source: Any, handler: Callable[..., Iterable[Any] | None], *args: Any) -> None:
        """Listen to a source; a handler that is a method does not keep its object alive."""
        handler_ref = weakref.WeakMethod(handler) if inspect.ismethod(handler) else lambda: handler
        self._selector.register(source, selectors.EVENT_READ, (handler_ref, args))

    def remove(self, source: Any) -> None:
        """Stop listening to a source; nothing if it was removed before."""
        if source in self:
            self._selector.unregister(source)

    def __contains__(self, source: Any) -> bool:
        return any(key.fileobj is source for key in self._selector.get_map().values())  # it may be closed by now

    def deserted(self) -> bool:
        """Return whether a watched process has ended."""
        return any(watch.gone() for watch in self._watches)

    def listen(self, timeout_s: float | None = None) -> list[Any]:
        """Wait for a source or the end of a watched process, once, and return the events that handlers returned."""
        events: list[Any] = []
        for key, _ in self._selector.select(self._poll_s if timeout_s is None else timeout_s):
            if key.fileobj in self:  # else another handler has just removed it
                handler_ref, args = key.data
                events += handler_ref()(*args) or ()
        return events

    def wait(self, timeout_s: float) -> list[Any]:
        """Listen until there is an event, for `timeout_s` seconds at most."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            left_s = deadline_s - time.monotonic()
            events = self.listen(max(0.0, left_s))
            if events or left_s <= 0:
                return events

    def close(self) -> None:
        """Forget all sources."""
        self._selector.close()


def is_readable(fd: int) -> bool:
    """Return whether a descriptor can be read without waiting."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _prctl(option: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def die_with_parent(parent_pid: int) -> None:
    """Let the kernel kill this process when the thread that forked it ends, which must be its parent's only one."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before this call
        os._exit(1)


def open_standard_streams() -> None:
    """Open the closed ones of the descriptors 0 to 2, or new sockets would get these numbers."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def flush_streams() -> None:
    """Write what Python and C hold back of standard output and error."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    ctypes.CDLL(None).fflush(None)


def fork(life: Callable[[], int]) -> int:
    """Fork a child that calls `life`, ends with the status that it returns, and never returns into the caller.

    The parent must have one thread. The child hears of no signals that the parent catches.
    """
    gc.freeze()  # a collection in the child then leaves the shared pages alone
    flush_streams()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        _let_go_of_signals()
        status = life()
    except BaseException:
        traceback.print_exc()
    finally:
        flush_streams()
        os._exit(status)


def _let_go_of_signals() -> None:
    fd = signal.set_wakeup_fd(-1)
    if fd >= 0:
        os.close(fd)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def adopt_children(signals: Collection[int] = ()) -> socket.socket:
    """Become the parent of descendants whose parent dies, and return a socket for signals and the ends of children.

    Each arrives as a byte, its number.
    """
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    reader, writer = socket.socketpair()
    for end in (reader, writer):
        end.setblocking(False)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    for number in (*signals, signal.SIGCHLD):
        signal.signal(number, lambda number, frame: None)
    return reader


def reap() -> dict[int, int]:
    """Collect the children that have ended, without waiting; return their wait statuses by process id."""
    statuses = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            statuses[pid] = status
    return statuses


def kill_descendants(spared: Collection[int] = ()) -> None:
    """Kill everything below this process until it is gone, but not the spared children and what is below them.

    A process that adopts orphans has nothing else below it: what lost its parent is its child.
    """
    give_up_s = time.monotonic() + KILL_PATIENCE_S
    while time.monotonic() < give_up_s:
        doomed = [pid for pid in _children_of(os.getpid()) if pid not in spared]
        if not doomed:
            return
        for pid in (*doomed, *_below(doomed)):
            # Dead ones too: threads of a program may outlive its main one.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in doomed:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.002)


def _below(pids: Iterable[int]) -> list[int]:
    """Return all processes below others, zombies included, as one look finds them."""
    below: list[int] = []
    parents = list(pids)
    while parents:
        children = _children_of(parents.pop())
        below += children
        parents += children
    return below


def _children_of(pid: int) -> list[int]:
    """Return the children of all threads of a process; none if it has ended."""
    if not os.path.exists(CHILDREN_OF_THREAD.format(pid="self", thread=os.getpid())):
        with contextlib.suppress(psutil.NoSuchProcess):
            return [child.pid for child in psutil.Process(pid).children()]
        return []
    children: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                children += map(int, Path(CHILDREN_OF_THREAD.format(pid=pid, thread=thread)).read_text().split())
    return children


def go_below_guard(owner: ProcessWatch, let_go: Callable[[], None]) -> ProcessWatch:
    """Fork; the parent becomes a guard and never returns, the child goes on and gets a watch of the guard.

    The guard adopts whatever the child starts, and never runs anybody's code, so nothing can keep it from acting: it
    kills all that is left below it when the child or the owner ends, or when a signal asks for it. It calls `let_go` to
    close what only the child may hold.
    """
    before = {number: signal.getsignal(number) for number in (*ENDING, signal.SIGCHLD)}
    signals = adopt_children(ENDING)
    guard = ProcessWatch(os.getpid())
    child_pid = os.fork()
    if child_pid == 0:
        _let_go_of_signals()
        signals.close()
        for number, action in before.items():
            signal.signal(number, action)
        return guard
    let_go()

    def end(pid: int, number: int) -> None:
        os.kill(pid, signal.SIGKILL)  # the child may be stopped, and then hears nothing else

    try:
        end_like(stand_by(child_pid, [owner], signals, end))
    finally:
        kill_descendants()
        os._exit(1)


def stand_by(
    child_pid: int, watches: Sequence[ProcessWatch], signals: socket.socket, send: Callable[[int, int], None]
) -> int:
    """Wait for the end of the child or of a watched process, then kill what is left.

    Signals that arrive are passed to the child by `send(pid, number)`. Returns the child's wait status, that of a
    killed one if a watched process ended first.
    """

    def pass_on_signals() -> None:
        with contextlib.suppress(BlockingIOError):
            for number in signals.recv(4096):
                if number != signal.SIGCHLD:
                    with contextlib.suppress(ProcessLookupError):
                        send(child_pid, number)

    _let_go_of_output()
    listener = Listener(watches)
    listener.add(signals, pass_on_signals)
    status = None
    while status is None and not listener.deserted():
        listener.listen()
        status = reap().get(child_pid)
    kill_descendants()
    return signal.SIGKILL.value if status is None else status


def _let_go_of_output() -> None:
    # The reader of the child's output must see its end when the child closes it.
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nothing, stream)
    os.close(nothing)


def end_like(status: int) -> NoReturn:
    """End this process as another one ended, by its wait status."""
    if os.WIFSIGNALED(status):
        import resource

        number = os.WTERMSIG(status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the other one has left its core file
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))
