"""Processes that start in a tenth of a second: forked from a warm process that has imported what takes seconds.

    python -P -m workbench.launch.forking LISTENING_FD CONTROL_FD OWNER_PID

A warm process runs below a guard and ends with its owner, and everything that it forked ends with it. Processes of the
same user that know its address send it orders; each order is what the forked process then does.
"""

import contextlib
import importlib
import os
import random
import resource
import secrets
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

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

__all__ = ["ForkedProcess", "Order", "WarmProcess", "forked"]

# Environment variables that Python, glibc, OpenMP and torch read once, as a process starts: they cannot be changed
# in a process that is forked. Not KMP_, which scikit-learn sets in whatever process imports it.
READ_AT_START = ("LD_", "GLIBC_", "MALLOC_", "OMP_", "GOMP_", "MKL_", "OPENBLAS_", "PYTHON", "PYTORCH_", "TORCH_")
NUMBER = struct.Struct("<q")  # a process id, later a wait status
REFUSED, LISTENING = 0, 1  # in place of a process id; the latter before an order is sent
TIME = struct.Struct("@ll")  # seconds and microseconds, socket(7)
CREDENTIALS = struct.Struct("3i")  # process, user and group id, unix(7)
IMPORT_PATIENCE_S = 300.0  # seconds the imports may take on a cold disk and a busy machine
ORDER_PATIENCE_S = 10.0  # seconds until the order of a process that has connected must be there
ANSWER_PATIENCE_S = 60.0  # seconds a fork may take on a busy machine
END_PATIENCE_S = 10.0  # seconds until a guard that does not answer is killed
POLL_S = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Order(ABC):
    """What a forked process does, with the surroundings that it would have inherited from its starter."""

    environment: dict[str, str]
    folder: str  # working folder
    owner_pid: int  # of the process that it ends with
    limits: dict[str, Any] = field(default_factory=lambda: _limits())  # of the process that sends it

    @abstractmethod
    def carry_out(self, fds: Sequence[int]) -> int:
        """Be the forked process, with the descriptors that came with the order; return the exit status."""

    def can_follow(self, started: Mapping[str, str]) -> bool:
        """Return whether a process that was started with an environment can do what a fresh one of the sender could."""
        return _read_at_start(self.environment) == _read_at_start(started) and self.limits == _limits()

    def take_surroundings(self) -> None:
        """Make this process's environment, folder, temporary folder and random numbers those of a fresh process."""
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        tempfile.tempdir = None  # TMPDIR is another one now
        random.seed()
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    names = [name for name in environment if name.startswith(READ_AT_START) and name != "PYTHONPATH"]
    return {name: environment[name] for name in names}


def _limits() -> dict[str, Any]:
    """Return what a process inherits and cannot leave: namespaces, control groups, limits of resources, priority."""
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    limits: dict[str, Any] = {name: resource.getrlimit(getattr(resource, name)) for name in names}
    limits |= {name: os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")}
    return limits | {"groups": Path("/proc/self/cgroup").read_text(), "nice": os.nice(0)}


class ForkedProcess:
    """A forked process, with the part of `subprocess.Popen` that its starter uses."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int, connection: socket.socket):
        self.pid = pid
        self.returncode: int | None = None
        self._connection = connection
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal, or None while it runs."""
        with self._lock:
            if self.returncode is None and is_readable(self._connection.fileno()):
                # Nothing comes where the warm process was killed, and everything below it.
                status = _number_from(self._connection)
                self.returncode = os.waitstatus_to_exitcode(signal.SIGKILL.value if status is None else status)
                self._connection.close()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; subprocess.TimeoutExpired if that takes longer than `timeout` seconds."""
        give_up_s = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if give_up_s is not None and time.monotonic() > give_up_s:
                raise subprocess.TimeoutExpired(f"the forked process {self.pid}", timeout or 0.0)
            time.sleep(POLL_S)
        return status

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


def forked(address: str, order: Order, fds: Sequence[int] = ()) -> ForkedProcess | None:
    """Let a warm process fork one that carries out an order, once all its imports are done.

    Returns None if no warm process of this user answers there, or if it differs from this process in what only a fresh
    one can inherit: variables that are read at the start, namespaces, limits. RuntimeError if it takes the
    order and does not answer.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    _wait_at_most(IMPORT_PATIENCE_S, connection)
    try:
        connection.connect(f"\0{address}")
        listens = _is_own_users(connection) and _number_from(connection) == LISTENING
    except OSError:
        listens = False
    if listens:
        _wait_at_most(ANSWER_PATIENCE_S, connection)
        Channel(connection).send(order, fds)
        pid = _number_from(connection)
        if pid is None:
            raise RuntimeError(f"the warm process {address} took an order and did not answer")
        if pid != REFUSED:
            return ForkedProcess(pid, connection)
    connection.close()
    return None


def _wait_at_most(seconds: float, connection: socket.socket) -> None:
    # Not settimeout, with which a message that arrives in two parts would be read in part.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIME.pack(int(seconds), 0))


def _number_from(connection: socket.socket) -> int | None:
    with contextlib.suppress(OSError):
        data = connection.recv(NUMBER.size, socket.MSG_WAITALL)
        if len(data) == NUMBER.size:
            return NUMBER.unpack(data)[0]
    return None


def _is_own_users(connection: socket.socket) -> bool:
    """Return whether the process at the other end is this user's."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _, user, _ = CREDENTIALS.unpack(credentials)
    return user == os.getuid()


class WarmProcess:
    """A warm process, as its owner sees it, on Linux; leaving its `with` block ends it and all that it forked.

    Args:
        imports: modules that it imports; none of them may start threads.
        environment: its environment, beyond this process's own.
    """

    def __init__(self, imports: Sequence[str], environment: Mapping[str, str]):
        self.address = f"workbench-{os.getpid()}-{secrets.token_hex(16)}"  # an abstract socket's: no file is left
        self._channel, channel_of_server = channel_pair()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            listening.bind(f"\0{self.address}")
            listening.listen()
            fds = [listening.fileno(), channel_of_server.fileno()]
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, *map(str, fds), str(os.getpid())],
                pass_fds=fds,
                env={**own_environment(), **environment},
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a terminal's Ctrl-C is for the owner alone
            )
        channel_of_server.close()
        self._channel.send(tuple(imports))

    def close(self) -> None:
        """End it and all that it forked, also while it imports; calling it again does nothing."""
        self._channel.close()
        self._process.terminate()  # its guard, which kills all that is below it
        try:
            self._process.wait(END_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # the kernel ends the warm process with its guard
            self._process.wait()

    def __enter__(self) -> "WarmProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def main(listening_fd: int, control_fd: int, owner_pid: int) -> None:
    """Import, then fork for whoever sends orders, until the owner closes the control channel or ends."""
    started = dict(os.environ)  # imports may set variables
    listening = socket.socket(fileno=listening_fd)
    control = Channel(socket.socket(fileno=control_fd))
    owner = ProcessWatch(owner_pid)

    def let_go() -> None:
        listening.close()
        control.close()

    guard = go_below_guard(owner, let_go)
    with contextlib.suppress(EOFError, ConnectionError):  # the owner let go
        for name in control.receive():
            importlib.import_module(name)
        _serve(listening, control, Listener([owner, guard]), started)
    kill_descendants()


def _serve(listening: socket.socket, control: Channel, listener: Listener, started: Mapping[str, str]) -> None:
    signals = adopt_children()
    connections: dict[int, socket.socket] = {}  # by process id

    def take_order() -> None:
        connection, _ = listening.accept()
        _wait_at_most(ORDER_PATIENCE_S, connection)
        try:
            if not _is_own_users(connection):
                raise PermissionError("an order must come from a process of the same user")
            connection.send(NUMBER.pack(LISTENING))
            order, fds = Channel(connection).receive_with_fds()
        except (OSError, ValueError, EOFError):  # whoever it was has ended, or does not speak our language
            connection.close()
            return
        pid = REFUSED
        if order.can_follow(started):
            not_its_own = [item.fileno() for item in (listening, signals, connection, *connections.values())]
            pid = fork(partial(_carry_out, order, fds, [control.fileno(), *not_its_own]))
            connections[pid] = connection
        for fd in fds:
            os.close(fd)
        with contextlib.suppress(OSError):
            connection.send(NUMBER.pack(pid))
        if pid == REFUSED:
            connection.close()

    def hear_of_ends() -> None:
        with contextlib.suppress(BlockingIOError):
            signals.recv(4096)
        for pid, status in reap().items():
            if connection := connections.pop(pid, None):
                with connection, contextlib.suppress(OSError):  # its starter may have ended
                    connection.send(NUMBER.pack(status))

    listener.add(listening, take_order)
    listener.add(signals, hear_of_ends)
    listener.add(control, control.receive)  # ends by EOFError
    while not listener.deserted():
        listener.listen()


def _carry_out(order: Order, fds: Sequence[int], not_its_own: Sequence[int]) -> int:
    for fd in not_its_own:
        os.close(fd)
    os.setsid()
    return order.carry_out(fds)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
