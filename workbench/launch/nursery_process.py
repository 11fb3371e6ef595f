"""The nursery as its owner sees it: started, spoken to, and ended with the owner.

What the owner starts is the guard, which forks the nursery and ends when it ends.
"""

import contextlib
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from workbench.launch.environment import rank_environment
from workbench.launch.messages import Channel, channel_pair
from workbench.launch.protocol import Broken, Ready, Setup

__all__ = ["NurseryProcess"]

END_PATIENCE_S = 10.0  # seconds until a nursery that was told to end is killed
KILL_PATIENCE_S = 10.0  # seconds a guard may need to kill all that is below it


class NurseryProcess:
    """A running nursery.

    Args:
        setup: what it imports and how it places ranks.

    Attributes:
        channel: speaks to it.
        hosts: description of the shaped hosts, or None.

    Raises:
        RuntimeError: if it could not start, for example because a module to preload fails.
    """

    _program = "workbench.launch.nursery"
    _defaults: Mapping[str, str] = MappingProxyType({})  # of its environment, where the owner's says nothing

    def __init__(self, setup: Setup):
        self.channel, theirs = channel_pair()
        command = [sys.executable, "-m", self._program]
        self._process = subprocess.Popen(
            [*command, str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno()],
            env={**self._defaults, **_environment()},
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a terminal's Ctrl-C is for the owner alone
        )
        theirs.close()
        # Also runs when the interpreter ends without close().
        self._close = weakref.finalize(self, _end, self._process, self.channel, os.getpid())
        try:
            self.hosts = self._introduce(setup)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process id of its guard."""
        return self._process.pid

    def _introduce(self, setup: Setup) -> dict | None:
        try:
            self.channel.send(setup)
            answer: Ready | Broken = self.channel.receive()
        except (EOFError, ConnectionError) as error:
            status = self._process.wait(END_PATIENCE_S)
            raise RuntimeError(f"the nursery of the ranks ended with status {status}") from error
        if isinstance(answer, Broken):
            raise RuntimeError(f"the ranks cannot start: {answer.error}\n\n{answer.traceback}")
        return answer.hosts

    def kill(self) -> None:
        """End it, whether it answers or not, with everything below it; also wait for its end."""
        _kill(self._process)

    def close(self) -> None:
        """End it with everything below it; calling it again does nothing."""
        self._close()


def _environment() -> dict[str, str]:
    package_root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
    # One thread here, whatever the ranks get: a process that used OpenMP must not fork.
    return {**os.environ, **rank_environment(1), "PYTHONPATH": path}


def _end(process: subprocess.Popen, channel: Channel, owner_pid: int) -> None:
    if os.getpid() != owner_pid:
        return  # a forked copy of the owner: the nursery is not its own
    channel.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_PATIENCE_S)
        return
    _kill(process)


def _kill(process: subprocess.Popen) -> None:
    process.terminate()  # the guard then kills everything
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILL_PATIENCE_S)
        return
    os.killpg(process.pid, signal.SIGKILL)  # guard and nursery; the ranks end with it
    process.wait()
