"""Ties between processes: who dies with whom, and the end of a whole tree.

Source: Linux prctl(2) PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER, pidfd_open(2).
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
from collections.abc import Collection

import psutil

__all__ = ["ProcessWatch", "adopt_orphans", "die_with_parent", "kill_descendants", "reap"]

PR_SET_PDEATHSIG = 1  # option number, linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36  # option number, linux/prctl.h
POLL_S = 0.1  # seconds between two looks where nothing wakes us
KILL_PATIENCE_S = 5.0  # seconds a killed process may need (uninterruptible I/O)


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


def kill_descendants(spare: Collection[int] = ()) -> None:
    """Kill everything below this process, until nothing is left alive.

    Args:
        spare: ids of processes to leave alone.
    """
    give_up = time.monotonic() + KILL_PATIENCE_S
    while time.monotonic() < give_up:
        reap()
        living = [process for process in _living_descendants() if process.pid not in spare]
        if not living:
            return
        for process in living:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.002)


def _living_descendants() -> list[psutil.Process]:
    living = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
    return living
