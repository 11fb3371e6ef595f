"""Ties between processes: who dies with whom, and the end of a whole tree.

Source: Linux prctl(2) PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER, pidfd_open(2),
proc_pid_task(5) (children).
Simplified: without pidfd (macOS, old kernels) a process is watched by asking for it
several times a second; without prctl orphans are not adopted and a process that lost its
parent ends only when it next looks.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

import psutil

__all__ = ["ProcessWatch", "adopt_orphans", "descendants", "die_with_parent", "kill_descendants", "reap"]

PR_SET_PDEATHSIG = 1  # option number, linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36  # option number, linux/prctl.h
POLL_S = 0.1  # seconds between two looks where nothing wakes us
KILL_PATIENCE_S = 5.0  # seconds a killed process may need (uninterruptible I/O)
CHILDREN_OF_THREAD = "/proc/{pid}/task/{thread}/children"  # kernels with CONFIG_PROC_CHILDREN


def _prctl(option: int, value: int) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    return ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0


def die_with_parent(parent_pid: int) -> None:
    """Let the kernel kill this process when the thread that made it ends.

    Sound only where that thread is the parent's single one.

    Args:
        parent_pid: the parent, to notice that it died before this call.
    """
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def adopt_orphans() -> bool:
    """Become the new parent of descendants whose parent dies; return whether that works."""
    return _prctl(PR_SET_CHILD_SUBREAPER, 1)


class ProcessWatch:
    """Tells when another process has ended, dead but unreaped included.

    Args:
        pid: the process to watch.
    """

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

    @property
    def poll_s(self) -> float | None:
        """Seconds after which gone() must be asked; None where `pidfd` becomes readable."""
        return POLL_S if self.pidfd is None else None

    def gone(self) -> bool:
        """Return whether the process has ended."""
        if self._gone or self.pidfd is not None:
            return self._gone or _is_readable(self.pidfd)
        try:
            return psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True


def _is_readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def reap() -> dict[int, int]:
    """Collect the children that have ended, without waiting.

    Returns:
        Wait statuses by process id.
    """
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = status
    return ended


def kill_descendants() -> None:
    """Kill everything below this process, until it has no child left.

    A process that adopts orphans then has nothing below it: what lost its parent is its child.
    """
    give_up = time.monotonic() + KILL_PATIENCE_S
    while time.monotonic() < give_up:
        reap()
        if not _has_children():
            return
        for pid in descendants():
            # Dead ones too: threads of a program may outlive its main one.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def descendants() -> list[int]:
    """Return the ids of all processes below this one, the dead but unreaped included.

    One look: what is started or loses its parent meanwhile may be missing.
    """
    if not os.path.exists(CHILDREN_OF_THREAD.format(pid="self", thread=os.getpid())):
        return [process.pid for process in psutil.Process().children(recursive=True)]
    found = []
    parents = [os.getpid()]
    while parents:
        children = _children_of(parents.pop())
        found += children
        parents += children
    return found


def _children_of(pid: int) -> list[int]:
    """Return the children of all threads of a process; none if it has ended."""
    children = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                with open(CHILDREN_OF_THREAD.format(pid=pid, thread=thread)) as file:
                    children += map(int, file.read().split())
    return children
