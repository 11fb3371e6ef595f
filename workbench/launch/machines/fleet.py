"""The fleet: one single-threaded process that imports torch once and forks the machines.

It is a nursery (see workbench.launch.nursery) whose children may end one by one: it watches its owner and its guard,
and kills all that lies below it when either ends.

Started as `python -m workbench.launch.machines.fleet CONTROL_FD OWNER_PID`.
"""

import contextlib
import gc
import os
import signal
import sys
import time

import psutil

from workbench.launch.machines.happenings import Boot, Kill, MachineEnded, MachineStarted
from workbench.launch.machines.machine import Berth, live
from workbench.launch.nursery import Nursery, main
from workbench.launch.processes import KILL_PATIENCE_S, reap

__all__ = ["Fleet"]


class Fleet(Nursery):
    """Forks machines on request, and tells when one has ended with all that was below it."""

    def __init__(self, *args):
        super().__init__(*args)
        self._machines: dict[int, str] = {}  # process id of the agent -> name

    def _answer(self) -> None:
        message, fds = self._control.receive_with_fds()
        match message:
            case Boot():
                self._boot(message, fds[0])
            case Kill(name=name):
                for pid, machine in self._machines.items():
                    if machine == name:
                        os.killpg(pid, signal.SIGKILL)  # the agent and its ranks at one stroke

    def _boot(self, boot: Boot, fd: int) -> None:
        gc.freeze()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        fleet_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for inherited in (self._control, self._wake, self._waker):
                inherited.close()
            live(Berth(boot=boot, setup=self._setup, hosts=self._hosts, fd=fd, fleet_pid=fleet_pid))
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)  # the agent does so too; whoever comes first
        os.close(fd)
        self._machines[pid] = boot.name
        self._control.send(MachineStarted(machine=boot.name, pid=pid, time_s=time.monotonic()))

    def _report_ends(self) -> None:
        ended = {pid: status for pid, status in reap().items() if pid in self._machines}
        names = {pid: self._machines.pop(pid) for pid in ended}
        self._kill_strays()
        for pid, status in ended.items():
            self._control.send(MachineEnded(machine=names[pid], status=status, time_s=time.monotonic()))

    def _kill_strays(self) -> None:
        """Kill what has come to this process because its machine ended, until nothing of it is left."""
        give_up_s = time.monotonic() + KILL_PATIENCE_S
        while time.monotonic() < give_up_s:
            strays = [child.pid for child in psutil.Process().children() if child.pid not in self._machines]
            if not strays:
                return
            for pid in strays:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(0.001)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Fleet)
