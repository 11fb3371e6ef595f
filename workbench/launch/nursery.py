"""The nursery: one single-threaded process that imports torch once and forks the ranks.

It watches its owner, its guard and its ranks. When the owner ends, however it ends, or the
guard, the nursery kills all that lies below it and ends. When the nursery ends, the kernel
kills the ranks, and the guard whatever they had started.

Started as `python -m workbench.launch.nursery CONTROL_FD OWNER_PID`.
"""

import contextlib
import fcntl
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence

from workbench.launch.guard import go_below_guard
from workbench.launch.messages import Channel
from workbench.launch.processes import ProcessWatch, adopt_orphans, kill_descendants, reap
from workbench.launch.protocol import Broken, Died, Dump, Fork, Forked, Ready, Seat, Setup, Stop, Stopped
from workbench.launch.rank import STACK_SIGNAL, Place, live

__all__ = ["main"]


def main(control_fd: int, owner_pid: int, kind: "type[Nursery] | None" = None) -> None:
    """Run a nursery, below a guard, until its owner closes the control channel or ends.

    Args:
        control_fd: inherited descriptor of the control channel.
        owner_pid: process whose end ends the nursery.
        kind: of nursery; None for the one of ranks.
    """
    control = Channel(socket.socket(fileno=control_fd))
    owner = ProcessWatch(owner_pid)
    guard = go_below_guard(owner, let_go=control.close)
    adopt_orphans()
    setup = control.receive()
    with _dying_on_hang_up(control):
        try:
            hosts = _import_everything(setup)
        except BaseException as error:
            control.send(Broken(error=f"{type(error).__name__}: {error}", traceback=traceback.format_exc()))
            return
    control.send(Ready(hosts=hosts.description if hosts else None))
    (kind or Nursery)(control, (owner, guard), setup, hosts).serve()


@contextlib.contextmanager
def _dying_on_hang_up(control: Channel):
    """Let the kernel end this process when the owner closes its end, even inside an import."""
    fcntl.fcntl(control, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(control, fcntl.F_GETFL)
    fcntl.fcntl(control, fcntl.F_SETFL, flags | os.O_ASYNC)  # SIGIO, which kills by default
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(control, selectors.EVENT_READ)
            if selector.select(0):  # the owner never writes now, so this is its end
                os._exit(1)
        yield
    finally:
        fcntl.fcntl(control, fcntl.F_SETFL, flags)


def _import_everything(setup: Setup):
    sys.path[:] = setup.sys_path
    # A new user namespace is refused to a process with threads: before any other import.
    hosts = setup.hosts.open() if setup.hosts is not None else None
    for name in (*setup.preload, "torch", "torch.distributed"):
        importlib.import_module(name)
    return hosts


class Nursery:
    """Forks crews on request and ends them.

    Args:
        control: channel to the owner.
        watches: watch the owner and the guard, to end with either.
        setup: what the owner asked for.
        hosts: opened namespaces, or None.
    """

    def __init__(self, control: Channel, watches: Sequence[ProcessWatch], setup: Setup, hosts):
        self._control = control
        self._watches = watches
        self._setup = setup
        self._hosts = hosts
        self._seats: dict[int, list[int]] = {}
        self._ranks: dict[int, int] = {}  # process id -> rank
        self._wake, self._waker = socket.socketpair()
        self._folder = None if hasattr(os, "memfd_create") else tempfile.TemporaryDirectory()

    def serve(self) -> None:
        """Answer the owner until it or the guard ends, then leave nothing behind."""
        self._hear_of_children()
        selector = selectors.DefaultSelector()
        watched = [self._control, self._wake]
        watched += [watch.pidfd for watch in self._watches if watch.pidfd is not None]
        for item in watched:
            selector.register(item, selectors.EVENT_READ)
        poll_s = min((watch.poll_s for watch in self._watches if watch.poll_s), default=None)
        try:
            while not any(watch.gone() for watch in self._watches):
                ready = [key.fileobj for key, _ in selector.select(poll_s)]
                if self._wake in ready:
                    self._wake.recv(4096)
                    self._report_ends()
                if self._control in ready:
                    self._answer()
        except (EOFError, ConnectionError):
            pass  # the owner closed its end: the pool is over
        finally:
            signal.set_wakeup_fd(-1)
            kill_descendants()
            if self._folder is not None:
                self._folder.cleanup()

    def _hear_of_children(self) -> None:
        for end in (self._wake, self._waker):
            end.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def _report_ends(self) -> None:
        for pid, status in reap().items():
            if pid in self._ranks:
                rank = self._ranks.pop(pid)
                self._control.send(Died(rank=rank, status=status, time_s=time.monotonic()))

    def _answer(self) -> None:
        message, fds = self._control.receive_with_fds()
        match message:
            case Seat(rank=rank):
                self._seats[rank] = fds
            case Fork():
                self._control.send(Forked(pids=self._fork_crew()))
            case Dump(ranks=ranks):
                for pid, rank in self._ranks.items():
                    if rank in ranks:
                        os.kill(pid, STACK_SIGNAL)
            case Stop():
                self._ranks.clear()
                kill_descendants()
                self._control.send(Stopped())

    def _fork_crew(self) -> list[int]:
        gc.freeze()  # a collection in a rank then leaves the shared pages alone
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        meeting_fd, meeting_path = self._meeting_place()
        pids = [self._fork_rank(rank, meeting_path) for rank in range(self._setup.num_ranks)]
        self._ranks = {pid: rank for rank, pid in enumerate(pids)}
        for fd in (meeting_fd, *(fd for fds in self._seats.values() for fd in fds)):
            os.close(fd)
        self._seats.clear()
        return pids

    def _meeting_place(self) -> tuple[int, str]:
        """Return a file for the ranks' FileStore; on Linux it has no name and cannot be left."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("workbench-store")
            return fd, f"/proc/self/fd/{fd}"
        path = os.path.join(self._folder.name, str(time.monotonic_ns()))
        return os.open(path, os.O_CREAT | os.O_RDWR, 0o600), path

    def _fork_rank(self, rank: int, meeting_path: str) -> int:
        nursery_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            others = [fd for seat, fds in self._seats.items() if seat != rank for fd in fds]
            for fd in (self._control.fileno(), self._wake.fileno(), self._waker.fileno(), *others):
                os.close(fd)
            seat = self._seats[rank]
            live(Place(rank, self._setup, self._hosts, meeting_path, seat, nursery_pid))
        return pid


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
