"""Machines as their owner sees them: started, listened to, killed one by one, and ended with their owner."""

import contextlib
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench.launch.machines.fleet_process import FleetProcess
from workbench.launch.machines.happenings import (
    Boot,
    Call,
    Kill,
    MachineSaid,
    MachineStarted,
    RankEnded,
    RankSaid,
    RankStarted,
)
from workbench.launch.messages import CannotUnpack, Channel, channel_pair
from workbench.launch.output import RankOutput
from workbench.launch.protocol import Setup

__all__ = ["Machines"]

KILL_PATIENCE_S = 10.0  # seconds a killed machine may need to be gone


@dataclass(kw_only=True, slots=True)
class _RankSeen:
    """A rank as its owner sees it."""

    started: RankStarted  # what its agent said of it
    channel: Channel  # what it tells
    outputs: tuple[RankOutput, RankOutput]  # what it writes
    pidfd: int  # to kill this very process
    stacks: int  # file it writes down where it is


class Machines:
    """A set of machines on this one.

    Args:
        hosts: ShapedHosts to put them on, or None.
        preload: modules that are imported once, before machines are forked.
        threads_per_rank: threads of each rank.
        echo: whether the output of ranks is shown, each line with its rank.

    Attributes:
        hosts: description of the shaped hosts for a record, or None.
        shaped: the ShapedHosts that were asked for, or None.

    Raises:
        ValueError: if an argument is out of range.
        RuntimeError: if they cannot start; the message says why.
    """

    def __init__(self, *, hosts: Any = None, preload: Sequence[str] = (), threads_per_rank: int = 1, echo: bool = True):
        if not sys.platform.startswith("linux"):
            raise RuntimeError(f"machines need Linux (memfd_create, pidfd), and this is {sys.platform}")
        if threads_per_rank < 1:
            raise ValueError(f"threads_per_rank is {threads_per_rank!r}; it must be at least 1")
        self.shaped = hosts
        self._echo = echo
        self._lock = threading.RLock()
        self._agents: dict[str, Channel] = {}
        self._started: dict[str, MachineStarted] = {}
        self._ranks: dict[tuple[str, int], _RankSeen] = {}
        self._untold: list[Any] = []  # happenings seen while something else was waited for
        self._selector = selectors.DefaultSelector()
        paths = [path for path in sys.path if isinstance(path, str)]
        common = {"device": "cpu", "backend": None, "threads_per_rank": threads_per_rank}
        self._fleet = FleetProcess(Setup(num_ranks=0, sys_path=paths, preload=tuple(preload), hosts=hosts, **common))
        self.hosts = self._fleet.hosts
        self._selector.register(self._fleet.channel, selectors.EVENT_READ, None)

    @property
    def names(self) -> tuple[str, ...]:
        """The machines that have been started and have not been seen to end."""
        return tuple(self._agents)

    @property
    def pids(self) -> dict[str, dict[str, Any]]:
        """By machine: `agent`, its process id, and `ranks`, theirs by number."""
        found = {name: {"agent": started.pid, "ranks": {}} for name, started in self._started.items()}
        for (name, rank), seen in self._ranks.items():
            found[name]["ranks"][rank] = seen.started.pid
        return found

    def start(
        self,
        name: str,
        function: Any,
        /,
        *args: Any,
        host: int | None = None,
        memory_limit_bytes: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Start a machine without waiting for it.

        Args:
            name: its own; no other machine that runs may have it.
            function: called in the machine's process as `function(machine, *args, **kwargs)`.
            args: its arguments behind the machine.
            host: shaped host to be on; needed if and only if there are any.
            memory_limit_bytes: what it may keep for its ranks.
            kwargs: its keyword arguments.

        Raises:
            ValueError: if the name is taken, or there is no such host.
        """
        self._check_new(name, host)
        ours, theirs = channel_pair()
        with self._lock:
            self._fleet.channel.send(Boot(name=name, host=host), [theirs.fileno()])
            theirs.close()
            self._agents[name] = ours
            self._selector.register(ours, selectors.EVENT_READ, name)
        with contextlib.suppress(ConnectionError):  # it has ended already, which is told
            ours.send(Call(function=function, args=args, kwargs=kwargs, memory_limit_bytes=memory_limit_bytes))

    def _check_new(self, name: str, host: int | None) -> None:
        if not name or not isinstance(name, str):
            raise ValueError(f"name is {name!r}; a machine must have one")
        if name in self._agents:
            raise ValueError(f"name is {name!r}; no other machine may have it")
        if (host is None) != (self.shaped is None):
            raise ValueError(f"host is {host!r}; it must be given if and only if there are shaped hosts")
        if host is not None and not 0 <= host < self.shaped.num_hosts:
            raise ValueError(f"host is {host!r}; it must lie in 0..{self.shaped.num_hosts - 1}")

    def tell(self, name: str, message: Any) -> None:
        """Tell a machine's function something; it arrives through `Machine.wait`."""
        with contextlib.suppress(ConnectionError):  # it has ended, which is told
            self._agent(name).send(message)

    def _agent(self, name: str) -> Channel:
        if name not in self._agents:
            raise ValueError(f"name is {name!r}; it must be one of {self.names!r}")
        return self._agents[name]

    def kill(self, *names: str) -> None:
        """Kill machines at once: agents, ranks and all that these started; return when nothing of them is left.

        Raises:
            ValueError: if there is no such machine.
            TimeoutError: if one is still there after 10 s.
        """
        for name in names:
            self._agent(name)
        with self._lock:
            for name in names:
                self._fleet.channel.send(Kill(name=name))
            deadline_s = time.monotonic() + KILL_PATIENCE_S
            while left := [name for name in names if name in self._agents]:
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"machines {left!r} are still there {KILL_PATIENCE_S} s after they were killed")
                self._untold += self._look(0.1)

    def kill_all(self) -> None:
        """Kill all machines, and forget what they told and was not asked for: as new, but warm."""
        with self._lock:
            self.kill(*self._agents)
            self._untold.clear()

    def kill_rank(self, name: str, rank: int) -> None:
        """Kill one rank of a machine, whose agent goes on.

        Raises:
            ValueError: if the machine has no such rank now.
        """
        seen = self._ranks.get((name, rank))
        if seen is None:
            raise ValueError(f"rank is {rank!r}; machine {name!r} must have it")
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(seen.pidfd, signal.SIGKILL)

    def wait(self, timeout_s: float) -> list[Any]:
        """Wait until something happens, and meanwhile pass on what ranks write.

        Args:
            timeout_s: most seconds to wait.

        Returns:
            `MachineStarted`, `MachineSaid`, `MachineEnded`, `RankStarted`, `RankSaid`, `RankEnded`; empty after the
            time.

        Raises:
            RuntimeError: if the fleet has ended.
        """
        with self._lock:
            told, self._untold = self._untold, []
            deadline_s = time.monotonic() + timeout_s
            while not told:
                left_s = deadline_s - time.monotonic()
                told = self._look(max(0.0, left_s))
                if left_s <= 0:
                    break
            return told

    def _look(self, timeout_s: float) -> list[Any]:
        told = []
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj not in _items(self._selector):
                continue  # forgotten in this very round
            if key.fileobj is self._fleet.channel:
                told += self._hear_fleet()
            elif isinstance(key.fileobj, RankOutput):
                if not key.fileobj.pass_on():
                    self._selector.unregister(key.fileobj)
            elif isinstance(key.data, str):
                told += self._hear_agent(key.data, key.fileobj)
            else:
                told += self._hear_rank(key.data)
        return told

    def _hear_fleet(self) -> list[Any]:
        try:
            message = self._fleet.channel.receive()
        except (EOFError, ConnectionError) as error:
            raise RuntimeError("the fleet of the machines has ended, and all machines with it") from error
        if isinstance(message, MachineStarted):
            self._started[message.machine] = message
            return [message]
        return [*self._drain(message.machine), message]

    def _drain(self, name: str) -> list[Any]:
        """Hear the last words of a machine that has ended, then forget it."""
        told: list[Any] = []
        agent = self._agents[name]
        while agent in _items(self._selector) and _readable(agent):
            told += self._hear_agent(name, agent)
        for key in [key for key in self._ranks if key[0] == name]:
            told += self._drop_rank(key)
        with contextlib.suppress(KeyError):
            self._selector.unregister(agent)
        agent.close()
        del self._agents[name]
        self._started.pop(name, None)
        return told

    def _hear_agent(self, name: str, agent: Channel) -> list[Any]:
        try:
            message, fds = agent.receive_with_fds()
        except (EOFError, ConnectionError):
            self._selector.unregister(agent)  # the fleet tells how it ended
            return []
        except CannotUnpack as error:
            return [MachineSaid(machine=name, message=error)]
        if isinstance(message, RankStarted):
            return [*self._drop_rank((name, message.rank)), *self._meet_rank(message, fds)]
        if isinstance(message, RankEnded):
            return [*self._drop_rank((name, message.rank)), message]
        return [MachineSaid(machine=name, message=message)]

    def _meet_rank(self, started: RankStarted, fds: list[int]) -> list[Any]:
        key = started.machine, started.rank
        outputs = tuple(
            RankOutput(started.rank, fd, stream, self._echo)
            for fd, stream in zip(fds[1:3], ("stdout", "stderr"), strict=True)
        )
        channel = Channel(socket.socket(fileno=fds[0]))
        self._ranks[key] = _RankSeen(started=started, channel=channel, outputs=outputs, pidfd=fds[3], stacks=fds[4])
        self._selector.register(channel, selectors.EVENT_READ, key)
        for output in outputs:
            self._selector.register(output, selectors.EVENT_READ, key)
        return [started]

    def _hear_rank(self, key: tuple[str, int]) -> list[Any]:
        seen = self._ranks.get(key)
        if seen is None or seen.channel not in _items(self._selector) or not _readable(seen.channel):
            return []  # another life of the rank began in this very round
        names = {"machine": key[0], "rank": key[1], "label": seen.started.label}
        try:
            return [RankSaid(**names, message=seen.channel.receive())]
        except (EOFError, ConnectionError):
            self._selector.unregister(seen.channel)
            return []
        except CannotUnpack as error:
            return [RankSaid(**names, message=error)]

    def _drop_rank(self, key: tuple[str, int]) -> list[Any]:
        """Hear the last words of a rank that has ended or is succeeded, then forget it."""
        if key not in self._ranks:
            return []
        told: list[Any] = []
        seen = self._ranks[key]
        while seen.channel in _items(self._selector) and _readable(seen.channel):
            told += self._hear_rank(key)
        for item in (seen.channel, *seen.outputs):
            with contextlib.suppress(KeyError):
                self._selector.unregister(item)
        for output in seen.outputs:
            output.pass_on()
            output.finish_line()
        for item in (seen.channel, *seen.outputs):
            item.close()
        os.close(seen.pidfd)
        os.close(seen.stacks)
        del self._ranks[key]
        return told

    def close(self) -> None:
        """End all machines and everything they started; calling it again does nothing."""
        with self._lock:
            self._fleet.close()
            for key in list(self._ranks):
                self._drop_rank(key)
            for agent in self._agents.values():
                agent.close()
            self._agents.clear()
            self._selector.close()

    def __enter__(self) -> "Machines":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _items(selector: selectors.BaseSelector) -> set[Any]:
    return {key.fileobj for key in selector.get_map().values()}


def _readable(item: Any) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(item, selectors.EVENT_READ)
        return bool(selector.select(0))
