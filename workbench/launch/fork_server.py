"""The fork server: one process with one thread that imports torch once and forks ranks or machines.

It runs below a guard. When its owner or the guard ends, however that happens, it kills all that lies below it and ends;
when it ends, the kernel kills the ranks and the machines' agents, and the guard kills the rest.

Started as `python -m workbench.launch.fork_server CONTROL_FD OWNER_PID`; or, where WORKBENCH_WARM has the address of a
warm process, forked from that, which has imported torch.
"""

import contextlib
import fcntl
import importlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from workbench.launch.environment import own_environment, rank_environment
from workbench.launch.forking import ForkedProcess, Order, forked
from workbench.launch.machine import be_machine
from workbench.launch.messages import Channel, channel_pair
from workbench.launch.processes import ProcessWatch, go_below_guard, kill_descendants, open_standard_streams
from workbench.launch.protocol import GroupOrder, KillMachine, MachineStarted, Ready, Setup, StartMachine
from workbench.launch.rank import serve_requests
from workbench.launch.supervisor import Supervisor

__all__ = ["WARM_VARIABLE", "ForkServer", "main"]

WARM_VARIABLE = "WORKBENCH_WARM"  # environment variable: address of a warm process that forks fork servers
END_PATIENCE_S = 10.0  # seconds until a fork server whose owner let go is killed
KILL_PATIENCE_S = 10.0  # seconds a guard may need to kill all that is below it


class ForkServer:
    """A running fork server, as its owner sees it."""

    def __init__(self, setup: Setup, defaults: Mapping[str, str] | None = None):
        _check_not_importing_main()
        self.alive = True  # False once it was found dead or was killed
        open_standard_streams()
        self.channel, channel_of_server = channel_pair()
        folder = _deleted_folder()
        # One thread here, whatever the ranks get: a process that used OpenMP must not fork.
        environment = {**(defaults or {}), **own_environment(), **rank_environment(1)}
        self._process = _start(channel_of_server, environment, "/" if folder is not None else os.getcwd())
        channel_of_server.close()
        # Also runs when the interpreter ends without close().
        self._close = weakref.finalize(self, _end, self._process, self.channel, os.getpid())
        try:
            self.hosts = self._introduce(setup, folder)  # description of the shaped hosts, or None
        except BaseException:
            self.close()
            raise
        finally:
            if folder is not None:
                os.close(folder)

    @property
    def pid(self) -> int:
        """The process id of its guard."""
        return self._process.pid

    def _introduce(self, setup: Setup, folder: int | None) -> dict | None:
        try:
            self.channel.send(setup, [] if folder is None else [folder])
            answer: Ready = self.channel.receive()
        except (EOFError, ConnectionError) as error:
            status = self._process.wait(END_PATIENCE_S)
            raise RuntimeError(f"the fork server of the ranks ended with status {status}") from error
        if answer.error:
            raise RuntimeError(f"the ranks cannot start: {answer.error}")
        return answer.hosts

    def send(self, message: Any, fds: Sequence[int] = ()) -> None:
        """Send a message; nothing happens if it has ended, which is noticed where its messages are received."""
        with contextlib.suppress(ConnectionError):
            self.channel.send(message, fds)

    def receive(self) -> tuple[Any, list[int]]:
        """Return its next message with the descriptors beside it, or None if it has ended."""
        try:
            return self.channel.receive_with_fds()
        except (EOFError, ConnectionError):
            self.alive = False
            return None, []

    def kill(self) -> None:
        """End it, whether it answers or not, with everything below it; also wait for its end."""
        self.alive = False
        _kill(self._process)

    def close(self) -> None:
        """End it with everything below it; calling it again does nothing."""
        self._close()


@dataclass(frozen=True, kw_only=True, slots=True)
class _StartForkServer(Order):
    """Be a fork server; beside the order come its output, its errors' output and its end of the control channel."""

    cores: set[int] | None  # that its owner may use

    def carry_out(self, fds: Sequence[int]) -> int:
        out, err, control = fds
        for source, target in ((out, 1), (err, 2)):
            os.dup2(source, target)
            os.close(source)
        if self.cores is not None:
            os.sched_setaffinity(0, self.cores)
        self.take_surroundings()
        main(control, self.owner_pid)
        return 0


def _start(control: Channel, environment: dict[str, str], folder: str) -> subprocess.Popen | ForkedProcess:
    if address := os.environ.get(WARM_VARIABLE):
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        order = _StartForkServer(environment=environment, folder=folder, owner_pid=os.getpid(), cores=cores)
        if process := forked(address, order, [1, 2, control.fileno()]):
            return process
    return subprocess.Popen(
        # -P: before the owner's path is known, nothing is imported from the working folder.
        [sys.executable, "-P", "-m", __name__, str(control.fileno()), str(os.getpid())],
        pass_fds=[control.fileno()],
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # a terminal's Ctrl-C is for the owner alone
        cwd=folder,
    )


def _check_not_importing_main() -> None:
    """Refuse what would start processes without end: a spawned process imports the script that starts ranks."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and getattr(process.current_process(), "_inheriting", False):
        rule = 'what starts ranks must be called below `if __name__ == "__main__":`'
        raise RuntimeError(f"a process that was spawned imports this script, and {rule}")


def _deleted_folder() -> int | None:
    """Return a descriptor of the working folder if it was deleted, where torch cannot be imported; else None."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    return None


def _end(process: subprocess.Popen | ForkedProcess, channel: Channel, owner_pid: int) -> None:
    if os.getpid() != owner_pid:
        return  # a forked copy of the owner: the fork server is not its own
    channel.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_PATIENCE_S)
        return
    _kill(process)


def _kill(process: subprocess.Popen | ForkedProcess) -> None:
    process.terminate()  # the guard then kills everything
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILL_PATIENCE_S)
        return
    os.killpg(process.pid, signal.SIGKILL)  # guard and fork server; the ranks end with it
    process.wait()


def main(control_fd: int, owner_pid: int) -> None:
    """Be a fork server, below a guard, until the owner closes the control channel or ends."""
    open_standard_streams()
    control = Channel(socket.socket(fileno=control_fd))
    owner = ProcessWatch(owner_pid)
    guard = go_below_guard(owner, let_go=control.close)
    setup, folder = control.receive_with_fds()
    with _dying_on_hang_up(control):
        try:
            hosts = _import_everything(setup, folder)
        except BaseException as error:
            control.send(Ready(error=f"{type(error).__name__}: {error}\n\n{traceback.format_exc()}"))
            return
    control.send(Ready(hosts=hosts.description if hosts else None))
    _Server(control, (owner, guard), setup, hosts).serve()


@contextlib.contextmanager
def _dying_on_hang_up(control: Channel):
    """Let the kernel end this process when the owner closes its end, even inside an import."""
    fcntl.fcntl(control, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(control, fcntl.F_GETFL)
    fcntl.fcntl(control, fcntl.F_SETFL, flags | os.O_ASYNC)  # SIGIO, which kills by default
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(control, selectors.EVENT_READ)
            if selector.select(0):  # the owner never writes now, so this is its end
                os._exit(1)
        yield
    finally:
        fcntl.fcntl(control, fcntl.F_SETFL, flags)


def _import_everything(setup: Setup, deleted_folder: Sequence[int]) -> Any:
    sys.path[:] = [path for path in setup.sys_path if path or not deleted_folder]
    # A new user namespace is refused to a process with threads: before any other import.
    hosts = setup.hosts.open() if setup.hosts is not None else None
    for name in (*setup.preload, "torch", "torch.distributed"):
        importlib.import_module(name)
    for fd in deleted_folder:
        os.fchdir(fd)  # the owner's; what is relative fails there as it does for the owner
        os.close(fd)
    return hosts


class _Server(Supervisor):
    """Follows its owner's orders until the owner or the guard ends, then leaves nothing behind."""

    def __init__(self, control: Channel, watches: Sequence[ProcessWatch], setup: Setup, hosts: Any):
        super().__init__(control, watches)
        self._setup = setup
        self._hosts = hosts  # opened namespaces, or None
        self._folder = None if hasattr(os, "memfd_create") else tempfile.TemporaryDirectory()

    def serve(self) -> None:
        try:
            while not self._listener.deserted():
                self._listener.listen()
        except (EOFError, ConnectionError):
            pass  # the owner closed its end
        finally:
            kill_descendants()
            if self._folder is not None:
                self._folder.cleanup()

    def _hear_owner(self) -> None:
        message, fds = self._owner.receive_with_fds()
        match message:
            case GroupOrder.START:
                self._start_ranks()
            case GroupOrder.STOP:
                self._children.clear()
                kill_descendants()
                self._owner.send(GroupOrder.STOP)
            case StartMachine():
                self._start_machine(message, fds[0])
            case KillMachine(name=name):
                for pid, started in self._children.items():
                    if started.machine == name:
                        os.killpg(pid, signal.SIGKILL)  # the agent and its ranks at one stroke

    def _start_ranks(self) -> None:
        meeting_fd, meeting_path = self._meeting_place()
        for rank in range(self._setup.num_ranks):
            life = partial(serve_requests, rank, self._setup, self._hosts, meeting_path, os.getpid())
            self._fork_rank(life, rank=rank)
        os.close(meeting_fd)

    def _meeting_place(self) -> tuple[int, str]:
        """Return a file for the ranks' FileStore; on Linux it has no name and cannot be left."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("workbench-store")
            return fd, f"/proc/self/fd/{fd}"
        assert self._folder is not None
        path = os.path.join(self._folder.name, str(time.monotonic_ns()))
        return os.open(path, os.O_CREAT | os.O_RDWR, 0o600), path

    def _start_machine(self, order: StartMachine, fd: int) -> None:
        pid = self._fork(partial(be_machine, order, self._setup, self._hosts, os.getpid(), fd))
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)  # the agent does so too; the first to come counts
        os.close(fd)
        self._children[pid] = MachineStarted(machine=order.name, pid=pid, time_s=time.monotonic())
        self._owner.send(self._children[pid])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
