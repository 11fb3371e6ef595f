"""The tether: a command that ends with its owner, together with everything it started.

    python -m workbench.launch.tether --owner PID -- COMMAND...

Two small processes hold the command, which may be stuck in C code: the tether and a guard, the command's parent. Both
adopt orphans and watch the owner and each other, and kill all that is left below them when one of these or the command
ends. Signals are passed on to the command, and its status is returned.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

from workbench.launch.processes import (
    ProcessWatch,
    adopt_children,
    die_with_parent,
    end_like,
    fork,
    kill_descendants,
    open_standard_streams,
    stand_by,
)

__all__ = ["hold", "main", "tether_command", "tethered"]

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


def tether_command(*options: str) -> list[str]:
    """Return the beginning of a tethered command, up to the command itself."""
    return [sys.executable, "-m", "workbench.launch.tether", *options, "--"]


def tethered(command: Sequence[str], owner_pid: int) -> list[str]:
    """Return the command that runs another one until the process `owner_pid` ends."""
    return [*tether_command("--owner", str(owner_pid)), *command]


def main(arguments: Sequence[str]) -> NoReturn:
    """Run a command until it, its owner (the parent unless named) or its guard ends."""
    owner_pid, command = _parse(arguments)
    hold(partial(_become, command), owner_pid)


def hold(life: Callable[[], int], owner_pid: int) -> NoReturn:
    """Be the tether of a process that calls `life`, and end with its status."""
    open_standard_streams()
    owner = ProcessWatch(owner_pid)
    if owner.gone():  # before a short life has begun, and ended
        end_like(signal.SIGKILL)
    tether_pid = os.getpid()
    signals = adopt_children(PASSED_ON)
    guard_pid = fork(lambda: _guard(life, [owner, ProcessWatch(tether_pid)], tether_pid))
    end_like(stand_by(guard_pid, [owner], signals, os.kill))


def _parse(arguments: Sequence[str]) -> tuple[int, list[str]]:
    place = arguments.index("--") if "--" in arguments else len(arguments)
    options, command = list(arguments[:place]), list(arguments[place + 1 :])
    named = len(options) == 2 and options[0] == "--owner" and options[1].isdecimal()
    if not command or (options and not named):
        sys.stderr.write(USAGE + "\n")
        sys.exit(WRONG_USE)
    return int(options[1]) if named else os.getppid(), command


def _guard(life: Callable[[], int], watches: Sequence[ProcessWatch], tether_pid: int) -> int:
    try:
        os.setsid()  # what is sent to the tether's group arrives once, through the tether
        signals = adopt_children(PASSED_ON)
        guard_pid = os.getpid()
        held_pid = fork(lambda: _held(life, guard_pid))
        with contextlib.suppress(OSError):  # both sides do it: the first signal finds the group
            os.setpgid(held_pid, held_pid)
        if os.getppid() == tether_pid:
            end_like(stand_by(held_pid, watches, signals, os.killpg))
        return 1
    finally:
        kill_descendants()


def _held(life: Callable[[], int], guard_pid: int) -> int:
    for number in (*PASSED_ON, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    os.setpgid(0, 0)
    die_with_parent(guard_pid)
    return life()


def _become(command: list[str]) -> int:
    try:
        if "JPY_PARENT_PID" in os.environ:  # Jupyter kernels look whether this changes
            os.environ["JPY_PARENT_PID"] = str(os.getppid())
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"tether: cannot start {command[0]}: {error.strerror}\n".encode())
        return CANNOT_START


if __name__ == "__main__":
    main(sys.argv[1:])
