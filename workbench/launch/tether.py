"""The tether: a command that ends with its owner, together with everything it started.

    python -m workbench.launch.tether --owner PID -- COMMAND...

Two small processes hold the command, which may be stuck in C code with the interpreter lock:
this one and a guard, the command's parent. Both adopt orphans and watch the owner, and each
watches the other. Whichever sees the end of its counterpart, of the owner or of the command
kills all that is left below it, so a kill -9 of any one process leaves nothing behind.
Signals are passed on to the command and its status is returned.

Simplified: the command gets a process group of its own and no terminal. Where the kernel
knows neither subreapers nor pidfd (macOS), orphans of a killed guard are not found.
"""

import contextlib
import os
import selectors
import signal
import socket
import sys
from collections.abc import Sequence
from typing import NoReturn

from workbench.launch.processes import (
    ProcessWatch,
    adopt_orphans,
    die_with_parent,
    kill_descendants,
    reap,
)

__all__ = ["main", "tethered"]

PASSED_ON = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
)
CANNOT_START = 127  # exit status a shell gives for a command that is not there
USAGE = "usage: python -m workbench.launch.tether [--owner PID] -- COMMAND..."
WRONG_USE = 2  # exit status


def tethered(command: Sequence[str], owner_pid: int) -> list[str]:
    """Return the command that runs another one tied to an owner.

    Args:
        command: program and arguments.
        owner_pid: process whose end ends the command.
    """
    tether = [sys.executable, "-m", "workbench.launch.tether"]
    return [*tether, "--owner", str(owner_pid), "--", *command]


def main(arguments: Sequence[str]) -> NoReturn:
    """Run a command until it, its owner or its guard ends.

    Args:
        arguments: `[--owner PID] -- COMMAND...`; the owner is the parent unless named.
    """
    owner_pid, command = _parse(arguments)
    owner = ProcessWatch(owner_pid)
    adopt_orphans()
    signals = _catch_signals()
    tether_pid = os.getpid()
    guard_pid = os.fork()
    if guard_pid == 0:
        _guard(command, [owner, ProcessWatch(tether_pid)], tether_pid)
    status = _stand_by(guard_pid, [owner], signals, os.kill)
    _end_like(status)


def _parse(arguments: Sequence[str]) -> tuple[int, list[str]]:
    options, dashes, command = _split(arguments)
    owner_pid = os.getppid()
    if len(options) == 2 and options[0] == "--owner" and options[1].isdecimal():
        owner_pid = int(options[1])
    elif options:
        command = []
    if not dashes or not command:
        sys.stderr.write(USAGE + "\n")
        sys.exit(WRONG_USE)
    return owner_pid, command


def _split(arguments: Sequence[str]) -> tuple[list[str], bool, list[str]]:
    if "--" not in arguments:
        return list(arguments), False, []
    place = arguments.index("--")
    return list(arguments[:place]), True, list(arguments[place + 1 :])


def _catch_signals() -> socket.socket:
    """Let signals arrive as bytes, their numbers, on the returned socket."""
    reader, writer = socket.socketpair()
    for end in (reader, writer):
        end.setblocking(False)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    for number in (*PASSED_ON, signal.SIGCHLD):
        signal.signal(number, lambda number, frame: None)
    return reader


def _guard(command: Sequence[str], watches: list[ProcessWatch], tether_pid: int) -> NoReturn:
    try:
        os.setsid()  # what is sent to the tether's group arrives once, through the tether
        adopt_orphans()
        signals = _catch_signals()
        guard_pid = os.getpid()
        command_pid = os.fork()
        if command_pid == 0:
            _become(command, guard_pid)
        with contextlib.suppress(OSError):  # both sides do it: the first signal finds the group
            os.setpgid(command_pid, command_pid)
        if os.getppid() == tether_pid:
            _end_like(_stand_by(command_pid, watches, signals, os.killpg))
    finally:
        kill_descendants()
        os._exit(1)


def _become(command: Sequence[str], guard_pid: int) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        for number in (*PASSED_ON, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.setpgid(0, 0)
        die_with_parent(guard_pid)
        if "JPY_PARENT_PID" in os.environ:  # Jupyter kernels look whether this changes
            os.environ["JPY_PARENT_PID"] = str(guard_pid)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"tether: cannot start {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(CANNOT_START)


def _stand_by(child_pid: int, watches: list[ProcessWatch], signals: socket.socket, send) -> int:
    """Wait for the end of the child or of a watched process, then kill what is left.

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
    # Whoever reads the command's output must see its end when the command closes it.
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nothing, stream)
    os.close(nothing)


def _pass_on_signals(child_pid: int, signals: socket.socket, send) -> None:
    with contextlib.suppress(BlockingIOError):
        for number in signals.recv(4096):
            if number in PASSED_ON:
                with contextlib.suppress(ProcessLookupError):
                    send(child_pid, number)


def _end_like(status: int) -> NoReturn:
    """End this process the way another one ended."""
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


if __name__ == "__main__":
    main(sys.argv[1:])
