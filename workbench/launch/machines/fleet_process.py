"""The fleet as its owner sees it: started, spoken to, and ended with the owner."""

import os
import subprocess
import sys
import weakref

from workbench.launch.messages import channel_pair
from workbench.launch.nursery_process import NurseryProcess, _end, _environment
from workbench.launch.protocol import Setup

__all__ = ["FleetProcess"]

QUIET_TORCH = {"TORCH_CPP_LOG_LEVEL": "ERROR"}  # a lost store is told by us, not by a C++ stack


class FleetProcess(NurseryProcess):
    """A running fleet; as a nursery, but for the program."""

    def __init__(self, setup: Setup):
        self.channel, theirs = channel_pair()
        command = [sys.executable, "-m", "workbench.launch.machines.fleet"]
        self._process = subprocess.Popen(
            [*command, str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno()],
            env={**QUIET_TORCH, **_environment()},
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a terminal's Ctrl-C is for the owner alone
        )
        theirs.close()
        self._close = weakref.finalize(self, _end, self._process, self.channel, os.getpid())
        try:
            self.hosts = self._introduce(setup)
        except BaseException:
            self.close()
            raise
