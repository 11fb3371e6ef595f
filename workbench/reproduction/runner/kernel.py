"""A Jupyter kernel that cannot outlive its runner, in the environment and folder of one item.

Source: jupyter_client's kernel manager; `workbench.launch.tether` ends the whole tree of processes below it when its
owner dies, whatever the kernel is doing.
Simplified: what a kernel writes past Jupyter, such as a crash's last words, goes to the item's log.
Left out: kernels on other machines.
"""

import contextlib
import os
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from workbench.launch.tether import tethered

__all__ = ["KernelProcess", "tethered_kernel_manager"]


@dataclass(slots=True)
class KernelProcess:
    """The tether of one item's kernel, which can be stopped from another thread at any moment.

    Attributes:
        stopped_because: why it was stopped; empty while it was not.
    """

    stopped_because: str = ""
    _process: subprocess.Popen | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def started(self, process: subprocess.Popen) -> None:
        """Take note of the tether's process, and end it at once if a stop came first."""
        with self._lock:
            self._process = process
            if self.stopped_because:
                _end(process)

    def stop(self, because: str) -> None:
        """End the kernel and everything below it; a later kernel ends as it starts."""
        with self._lock:
            self.stopped_because = self.stopped_because or because
            if self._process is not None:
                _end(self._process)

    @property
    def exit_code(self) -> int | None:
        """Exit status of the tether once it has ended; negative for a signal."""
        return None if self._process is None else self._process.poll()


def _end(process: subprocess.Popen) -> None:
    below: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        below = psutil.Process(process.pid).children(recursive=True)
    process.kill()  # a signal that cannot be passed on: the tether's guard sees its end and kills all that is below
    for each in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()


def tethered_kernel_manager(
    kernel: KernelProcess, environment: Mapping[str, str], working_folder: Path, connection: Path, log: Any
) -> type:
    """Return the kernel manager class of one item.

    Args:
        kernel: told when the process has started.
        environment: variables set on top of the runner's own.
        working_folder: the kernel's current folder.
        connection: where Jupyter's connection file is kept, so that nothing is left in the user's folders.
        log: open file for what the kernel writes past Jupyter.
    """
    from jupyter_client.manager import AsyncKernelManager
    from traitlets import Unicode

    class TetheredKernelManager(AsyncKernelManager):
        connection_file = Unicode(str(connection))

        def format_kernel_cmd(self, extra_arguments: list[str] | None = None) -> list[str]:
            return tethered(super().format_kernel_cmd(extra_arguments), os.getpid())

        async def _async_pre_start_kernel(self, **options: Any) -> Any:
            options |= {"env": {**os.environ, **environment}, "cwd": str(working_folder), "stdout": log, "stderr": log}
            options["transport_encryption"] = "auto"  # where the kernel can; others on this machine then cannot listen
            return await super()._async_pre_start_kernel(**options)

        async def _async_launch_kernel(self, command: list[str], **options: Any) -> None:
            await super()._async_launch_kernel(command, **options)
            kernel.started(self.provisioner.process)

    return TetheredKernelManager
