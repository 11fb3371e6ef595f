"""Kernels that start in a tenth of a second: forked from one process that has imported what notebooks import.

    python -P -m workbench.launch.kernel_server CONTROL_FD OWNER_PID

The server runs below a guard and ends with its owner. Each kernel is below a tether of its own: when the kernel ends,
however that happens, all that it started ends with it.
"""

import atexit
import contextlib
import importlib
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from workbench.launch.environment import own_environment
from workbench.launch.messages import Channel, channel_pair
from workbench.launch.processes import (
    Listener,
    ProcessWatch,
    adopt_children,
    fork,
    go_below_guard,
    is_readable,
    kill_descendants,
    reap,
)
from workbench.launch.tether import hold

__all__ = ["ForkedKernel", "KernelServer"]

PRELOADED = ("torch", "torch.distributed", "pandas", "matplotlib.pyplot", "IPython.display", "ipykernel.kernelapp")
INLINE = "module://matplotlib_inline.backend_inline"  # what ipykernel would choose before matplotlib is imported
NUMBER = struct.Struct("<q")  # a process id, later a wait status
START_PATIENCE_S = 60.0  # seconds the imports may take on a cold disk
END_PATIENCE_S = 10.0  # seconds until a server whose owner let go is killed
POLL_S = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class _Start:
    """An order to fork a kernel; the descriptors beside it are its output's and that of the pipe for its numbers."""

    arguments: tuple[str, ...]  # of ipykernel, such as -f and the connection file
    environment: dict[str, str]
    folder: str  # its working folder


class ForkedKernel:
    """A forked kernel, with the part of `subprocess.Popen` that Jupyter uses; its process is the kernel's tether."""

    stdin = stdout = stderr = None

    def __init__(self, numbers: int):
        self._numbers = os.fdopen(numbers, "rb", buffering=0)
        self._lock = threading.Lock()
        self.returncode: int | None = None
        told = self._numbers.read(NUMBER.size) or b""
        if len(told) < NUMBER.size:
            raise RuntimeError("the kernel server ended before it started a kernel")
        (self.pid,) = NUMBER.unpack(told)

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal, or None while it runs."""
        with self._lock:
            if self.returncode is None and is_readable(self._numbers.fileno()):
                told = self._numbers.read(NUMBER.size) or b""  # nothing where the server was killed, and all below it
                status = NUMBER.unpack(told)[0] if len(told) == NUMBER.size else signal.SIGKILL.value
                self.returncode = os.waitstatus_to_exitcode(status)
                self._numbers.close()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; subprocess.TimeoutExpired if that takes longer than `timeout` seconds."""
        give_up_s = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if give_up_s is not None and time.monotonic() > give_up_s:
                raise subprocess.TimeoutExpired("ipykernel", timeout)
            time.sleep(POLL_S)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, which the tether passes on."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and all that it started."""
        self.send_signal(signal.SIGKILL)


class KernelServer:
    """A running server, as its owner sees it; leaving its `with` block ends it and all kernels."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel, channel_of_server = channel_pair()
        command = [sys.executable, "-P", "-m", __name__, str(channel_of_server.fileno()), str(os.getpid())]
        environment = {"MPLBACKEND": INLINE, **own_environment(), "OPENBLAS_NUM_THREADS": "1"}  # one thread: it forks
        self._process = subprocess.Popen(
            command,
            pass_fds=[channel_of_server.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a terminal's Ctrl-C is for the owner alone
        )
        channel_of_server.close()

    def start(
        self, arguments: Sequence[str], *, environment: Mapping[str, str], folder: str, output: int
    ) -> ForkedKernel:
        """Fork a kernel that writes what bypasses Jupyter to the descriptor `output`.

        RuntimeError if the server has ended. The first kernel waits until everything is imported.
        """
        order = _Start(arguments=tuple(arguments), environment=dict(environment), folder=folder)
        numbers, numbers_of_server = os.pipe()
        try:
            with self._lock:
                self._channel.send(order, [output, numbers_of_server])
        except OSError as error:
            os.close(numbers)
            raise RuntimeError("the kernel server has ended") from error
        finally:
            os.close(numbers_of_server)
        return ForkedKernel(numbers)

    def close(self) -> None:
        """End the server and all kernels; calling it again does nothing."""
        self._channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_PATIENCE_S)
            return
        self._process.kill()  # its guard; the kernel ends the server with it
        self._process.wait()

    def __enter__(self) -> "KernelServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def main(control_fd: int, owner_pid: int) -> None:
    """Import, then fork kernels until the owner closes the control channel or ends."""
    control = Channel(socket.socket(fileno=control_fd))
    owner = ProcessWatch(owner_pid)
    guard = go_below_guard(owner, let_go=control.close)
    for name in PRELOADED:
        importlib.import_module(name)
    ends, signals = {}, adopt_children()  # pipes by process id

    def start() -> None:
        order, (output, numbers) = control.receive_with_fds()
        not_its_own = [control.fileno(), signals.fileno(), numbers, *ends.values()]
        pid = fork(partial(_hold, order, output, owner_pid, not_its_own))
        os.write(numbers, NUMBER.pack(pid))
        os.close(output)
        ends[pid] = numbers

    def hear_of_ends() -> None:
        with contextlib.suppress(BlockingIOError):
            signals.recv(4096)
        for pid, status in reap().items():
            if pid in ends:
                os.write(ends[pid], NUMBER.pack(status))
                os.close(ends.pop(pid))

    listener = Listener([owner, guard])
    listener.add(control, start)
    listener.add(signals, hear_of_ends)
    try:
        while not listener.deserted():
            listener.listen()
    except (EOFError, ConnectionError):
        pass  # the owner let go
    finally:
        kill_descendants()


def _hold(order: _Start, output: int, owner_pid: int, not_its_own: Sequence[int]) -> NoReturn:
    """Be the tether of a kernel: in a session of its own, with the kernel's output."""
    for fd in not_its_own:
        os.close(fd)
    os.setsid()
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    hold(partial(_be_kernel, order), owner_pid)


def _be_kernel(order: _Start) -> int:
    """Be a kernel as a fresh process would be: with its own environment, folder and random numbers."""
    os.environ.clear()
    os.environ.update(order.environment)
    os.environ["JPY_PARENT_PID"] = str(os.getppid())
    os.chdir(order.folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    tempfile.tempdir = None  # TMPDIR is another one now
    random.seed()
    sys.modules["numpy"].random.seed()
    for name in [name for name in sys.modules if name.split(".")[0] == "workbench"]:
        del sys.modules[name]  # the library as it is now
    from ipykernel.kernelapp import IPKernelApp

    try:
        IPKernelApp.launch_instance(argv=list(order.arguments))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
    return 0


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
