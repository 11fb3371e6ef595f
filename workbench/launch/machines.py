"""Machines: worker-agent processes with their ranks, each of which can be killed while the others go on.

A pool (`Ranks`) ends as a whole when one rank fails; here one machine, or one rank of it, can be lost and started
again. A machine is its agent, a process with one thread, and the ranks that the agent forks. Memory that an agent keeps
for its ranks outlives a rank and dies with the machine.

    with Machines() as machines:
        machines.start("a", agent)              # agent(machine) runs in a process of its own
        for event in machines.wait(1.0):        # messages of machines and ranks, starts and ends
            ...
        machines.kill("a")                      # as if its power had failed
"""

import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from workbench.launch.fork_server import ForkServer
from workbench.launch.machine import Machine
from workbench.launch.messages import CannotUnpack, Channel, NotAMessage, channel_pair
from workbench.launch.processes import Listener, is_readable
from workbench.launch.protocol import (
    KillMachine,
    MachineEnded,
    MachineSaid,
    MachineStarted,
    RankEnded,
    RankExit,
    RankSaid,
    RankStarted,
    Request,
    Setup,
    StartMachine,
)
from workbench.launch.rank import RankLink
from workbench.launch.rank_process import RankProcess

__all__ = ["Machine", "MachineEnded", "MachineSaid", "MachineStarted", "Machines", "RankEnded", "RankExit"]
__all__ += ["RankLink", "RankSaid", "RankStarted"]

KILL_PATIENCE_S = 10.0  # seconds a killed machine may need to be gone
# The events report a lost store; torch's C++ stack beside them says no more.
ENVIRONMENT = MappingProxyType({"TORCH_CPP_LOG_LEVEL": "ERROR"})


class Machines:
    """A set of machines on this one.

    `hosts`, `preload`, `threads_per_rank` and `echo` are those of `Ranks`. RuntimeError says why they cannot start.
    """

    def __init__(self, *, hosts: Any = None, preload: Sequence[str] = (), threads_per_rank: int = 1, echo: bool = True):
        if not sys.platform.startswith("linux"):
            raise RuntimeError(f"machines need Linux (memfd_create, pidfd), and this is {sys.platform}")
        if threads_per_rank < 1:
            raise ValueError(f"threads_per_rank is {threads_per_rank!r}; it must be at least 1")
        self.shaped = hosts  # the ShapedHosts that were asked for, or None
        self._echo = echo
        self._lock = threading.RLock()
        self._agents: dict[str, Channel] = {}
        self._started: dict[str, MachineStarted] = {}
        self._ranks: dict[tuple[str, int], RankProcess] = {}
        self._unread: list[Any] = []  # events seen while something else was waited for
        paths = [path for path in sys.path if isinstance(path, str)]
        setup = Setup(sys_path=paths, preload=tuple(preload), hosts=hosts, threads_per_rank=threads_per_rank)
        self._server = ForkServer(setup, ENVIRONMENT)
        self.hosts = self._server.hosts  # description of the shaped hosts for a record, or None
        self._listener = Listener()
        self._listener.add(self._server.channel, self._hear_server)

    @property
    def names(self) -> tuple[str, ...]:
        """The machines that have been started and have not been seen to end."""
        return tuple(self._agents)

    @property
    def pids(self) -> dict[str, dict[str, Any]]:
        """By machine: `agent`, its process id, and `ranks`, theirs by number."""
        pids: dict[str, dict[str, Any]] = {
            name: {"agent": started.pid, "ranks": {}} for name, started in self._started.items()
        }
        for (name, rank), process in self._ranks.items():
            pids[name]["ranks"][rank] = process.started.pid
        return pids

    def start(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        host: int | None = None,
        memory_limit_bytes: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Start a machine, whose process calls `function(machine, *args, **kwargs)`, without waiting for it.

        `host` is the shaped host to be on; `memory_limit_bytes` the most the machine may keep for its ranks.
        """
        self._check_new(name, host)
        channel, channel_of_agent = channel_pair()
        with self._lock:
            order = StartMachine(name=name, host=host, memory_limit_bytes=memory_limit_bytes)
            self._server.channel.send(order, [channel_of_agent.fileno()])
            channel_of_agent.close()
            self._agents[name] = channel
            self._listener.add(channel, self._hear_agent, name, channel)
        self.tell(name, Request(function=function, args=args, kwargs=kwargs))

    def _check_new(self, name: str, host: int | None) -> None:
        if not name or not isinstance(name, str):
            raise ValueError(f"name is {name!r}; it must be a text")
        if name in self._agents:
            raise ValueError(f"name is {name!r}; no other machine may have it")
        if (host is None) != (self.shaped is None):
            raise ValueError(f"host is {host!r}; it must be given if and only if there are shaped hosts")
        if host is not None and not 0 <= host < self.shaped.num_hosts:
            raise ValueError(f"host is {host!r}; it must lie in 0..{self.shaped.num_hosts - 1}")

    def tell(self, name: str, message: Any) -> None:
        """Send a machine's function a message, which arrives through `Machine.wait`; ValueError if it has no such."""
        self._check_known(name)
        try:
            self._agents[name].send(message)
        except ConnectionError:
            return  # it has ended, which is an event

    def _check_known(self, name: str) -> None:
        if name not in self._agents:
            raise ValueError(f"name is {name!r}; it must be one of {self.names!r}")

    def kill(self, *names: str) -> None:
        """Kill machines at once: agents, ranks and all that these started; return when nothing of them is left."""
        for name in names:
            self._check_known(name)
        with self._lock:
            for name in names:
                self._server.channel.send(KillMachine(name=name))
            deadline_s = time.monotonic() + KILL_PATIENCE_S
            while left := [name for name in names if name in self._agents]:
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"machines {left!r} are still there {KILL_PATIENCE_S} s after they were killed")
                self._unread += self._listener.listen(0.1)

    def kill_all(self) -> None:
        """Kill all machines, and forget the events that nobody has waited for: as new, but warm."""
        with self._lock:
            self.kill(*self._agents)
            self._unread.clear()

    def kill_rank(self, name: str, rank: int) -> None:
        """Kill one rank of a machine, whose agent goes on; ValueError if the machine has no such rank now."""
        process = self._ranks.get((name, rank))
        if process is None:
            raise ValueError(f"rank is {rank!r}; machine {name!r} must have it")
        process.send_signal(signal.SIGKILL)

    def wait(self, timeout_s: float) -> list[Any]:
        """Wait until something happens, for `timeout_s` seconds at most, and meanwhile pass on what ranks write.

        Returns the `Machine...` and `Rank...` events; none after the time. RuntimeError if the fork server has ended.
        """
        with self._lock:
            events, self._unread = self._unread, []
            return events or self._listener.wait(timeout_s)

    def _hear_server(self) -> list[Any]:
        match self._server.receive()[0]:
            case MachineStarted(machine=name) as started:
                self._started[name] = started
                return [started]
            case MachineEnded(machine=name) as ended:
                return [*self._drop_machine(name), ended]
            case _:
                raise RuntimeError("the fork server of the machines has ended, and all machines with it")

    def _drop_machine(self, name: str) -> list[Any]:
        """Hear the last messages of a machine that has ended, then forget it."""
        events: list[Any] = []
        agent = self._agents[name]
        while agent in self._listener and is_readable(agent.fileno()):
            events += self._hear_agent(name, agent)
        for key in [key for key in self._ranks if key[0] == name]:
            events += self._drop_rank(key)
        self._listener.remove(agent)
        agent.close()
        del self._agents[name]
        self._started.pop(name, None)
        return events

    def _hear_agent(self, name: str, agent: Channel) -> list[Any]:
        try:
            message, fds = agent.receive_with_fds()
        except (EOFError, ConnectionError):
            self._listener.remove(agent)  # the fork server says how it ended
            return []
        except CannotUnpack as error:
            return [MachineSaid(machine=name, message=error)]
        except NotAMessage as error:
            self._listener.remove(agent)  # nor is what follows
            return [MachineSaid(machine=name, message=error)]
        if not isinstance(message, RankStarted | RankEnded):
            return [MachineSaid(machine=name, message=message)]
        key = name, message.rank
        events = [*self._drop_rank(key), message]
        if isinstance(message, RankStarted):
            self._ranks[key] = RankProcess(message, fds, self._listener, self._echo)
        return events

    def _drop_rank(self, key: tuple[str, int]) -> list[Any]:
        """Hear the last messages of a rank that has ended or has a successor, then forget it."""
        if key not in self._ranks:
            return []
        process = self._ranks.pop(key)
        events = process.hear_rest()
        process.show_rest()
        process.close()
        return events

    def close(self) -> None:
        """End all machines and everything they started; calling it again does nothing."""
        with self._lock:
            self._server.close()
            for key in list(self._ranks):
                self._drop_rank(key)
            for agent in self._agents.values():
                agent.close()
            self._agents.clear()
            self._listener.close()

    def __enter__(self) -> "Machines":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
