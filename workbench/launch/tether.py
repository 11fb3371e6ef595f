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
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from workbench.launch.guard import catch_signals, end_like, stand_by
from workbench.launch.processes import ProcessWatch, adopt_orphans, die_with_parent, kill_descendants

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
    signals = catch_signals(PASSED_ON)
    tether_pid = os.getpid()
    guard_pid = os.fork()
    if guard_pid == 0:
        _guard(command, [owner, ProcessWatch(tether_pid)], tether_pid)
    status = stand_by(guard_pid, [owner], signals, os.kill)
    end_like(status)


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


def _guard(command: Sequence[str], watches: list[ProcessWatch], tether_pid: int) -> NoReturn:
    try:
        os.setsid()  # what is sent to the tether's group arrives once, through the tether
        adopt_orphans()
        signals = catch_signals(PASSED_ON)
        guard_pid = os.getpid()
        command_pid = os.fork()
        if command_pid == 0:
            _become(command, guard_pid)
        with contextlib.suppress(OSError):  # both sides do it: the first signal finds the group
            os.setpgid(command_pid, command_pid)
        if os.getppid() == tether_pid:
            end_like(stand_by(command_pid, watches, signals, os.killpg))
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


if __name__ == "__main__":
    main(sys.argv[1:])
