"""A guard: a small process above another one, which ends all that is left below it.

Whatever a process has started comes to its guard when it is killed, because the guard adopts
orphans. The guard never runs anybody's code, so nothing can keep it from acting.

Source: Linux prctl(2) PR_SET_CHILD_SUBREAPER.
Simplified: where the kernel knows no subreapers (macOS), orphans of a killed process are not
found.
"""

import contextlib
import os
import selectors
import signal
import socket
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn

from workbench.launch.processes import ProcessWatch, adopt_orphans, kill_descendants, reap

__all__ = ["catch_signals", "end_like", "go_below_guard", "stand_by"]

ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)  # tell a guard to end what it guards


def go_below_guard(owner: ProcessWatch, let_go: Callable[[], None]) -> ProcessWatch:
    """Fork: the parent becomes a guard and never returns, the child goes on.

    The guard kills all that is left below it when the child or the owner ends, or when a
    signal tells it to.

    Args:
        owner: watches the process whose end ends both.
        let_go: called in the guard to close what only the child may hold, so that its end is seen.

    Returns:
        A watch of the guard, for the child to end with it.
    """
    adopt_orphans()
    before = {number: signal.getsignal(number) for number in (*ENDING, signal.SIGCHLD)}
    signals = catch_signals(ENDING)
    guard = ProcessWatch(os.getpid())
    child_pid = os.fork()
    if child_pid == 0:
        os.close(signal.set_wakeup_fd(-1))
        signals.close()
        for number, action in before.items():
            signal.signal(number, action)
        return guard
    let_go()
    _guard(child_pid, owner, signals)


def _guard(child_pid: int, owner: ProcessWatch, signals: socket.socket) -> NoReturn:
    def end(pid: int, number: int) -> None:
        os.kill(pid, signal.SIGKILL)  # the child may be stopped, and then hears nothing else

    try:
        end_like(stand_by(child_pid, [owner], signals, end))
    finally:
        kill_descendants()
        os._exit(1)


def catch_signals(numbers: Collection[int]) -> socket.socket:
    """Let signals, and the ends of children, arrive as bytes, their numbers, on the returned socket."""
    reader, writer = socket.socketpair()
    for end in (reader, writer):
        end.setblocking(False)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    for number in (*numbers, signal.SIGCHLD):
        signal.signal(number, lambda number, frame: None)
    return reader


def stand_by(
    child_pid: int, watches: Sequence[ProcessWatch], signals: socket.socket, send: Callable[[int, int], None]
) -> int:
    """Wait for the end of the child or of a watched process, then kill what is left.

    Args:
        child_pid: the child.
        watches: watch the other processes.
        signals: what `catch_signals` returned.
        send: passes a signal that arrived on to the child, given its id and the number.

    Returns:
        The child's wait status; of a killed one if a watched process ended first.
    """
    _let_go_of_streams()
    selector = selectors.DefaultSelector()
    selector.register(signals, selectors.EVENT_READ)
    for watch in watches:
        if watch.pidfd is not None:
            selector.register(watch.pidfd, selectors.EVENT_READ)
    poll_s = min((watch.poll_s for watch in watches if watch.poll_s), default=None)
    status = signal.SIGKILL.value
    while not any(watch.gone() for watch in watches):
        _pass_on_signals(child_pid, signals, send)
        ended = reap()
        if child_pid in ended:
            status = ended[child_pid]
            break
        selector.select(poll_s)
    kill_descendants()
    return status


def _let_go_of_streams() -> None:
    # Whoever reads the child's output must see its end when the child closes it.
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nothing, stream)
    os.close(nothing)


def _pass_on_signals(child_pid: int, signals: socket.socket, send: Callable[[int, int], None]) -> None:
    with contextlib.suppress(BlockingIOError):
        for number in signals.recv(4096):
            if number != signal.SIGCHLD:
                with contextlib.suppress(ProcessLookupError):
                    send(child_pid, number)


def end_like(status: int) -> NoReturn:
    """End this process the way another one ended.

    Args:
        status: wait status of the other one.
    """
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        _without_core_file()
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


def _without_core_file() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
