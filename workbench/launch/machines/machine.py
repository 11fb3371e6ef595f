"""One machine, seen from within: the agent's process, which forks its ranks and keeps memory for them.

The agent has one thread, because it forks. When it ends, the kernel ends its ranks; when a rank ends, the agent hears
of it and what the rank had started is killed.
"""

import contextlib
import gc
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import psutil

from workbench.launch.environment import LOOPBACK
from workbench.launch.failures import FailureKind
from workbench.launch.guard import catch_signals
from workbench.launch.machines.happenings import Boot, Call, MemoryAnswer, MemoryRequest, RankEnded, RankStarted
from workbench.launch.machines.memory import MachineMemory
from workbench.launch.machines.rank_life import RankPlace, live_as_rank
from workbench.launch.messages import Channel, channel_pair
from workbench.launch.processes import adopt_orphans, die_with_parent, kill_descendants, reap
from workbench.launch.protocol import Reply, Setup

__all__ = ["Berth", "Machine", "live"]

THIS_HOST = "127.0.0.1"  # address of a machine that is on no shaped host


@dataclass(frozen=True, kw_only=True, slots=True)
class Berth:
    """Where an agent finds itself after the fork."""

    boot: Boot  # what the owner asked for
    setup: Setup  # of the fleet
    hosts: Any  # opened namespaces, or None
    fd: int  # its channel to the owner
    fleet_pid: int  # its parent


def live(berth: Berth) -> NoReturn:
    """Be a machine until its function returns or its owner ends; never returns into the fleet."""
    status = 1
    try:
        os.setpgid(0, 0)  # one stroke kills all of it
        adopt_orphans()
        if berth.hosts is not None:
            berth.hosts.enter(berth.boot.host)
        die_with_parent(berth.fleet_pid)  # last: a change of credentials would undo it
        _serve(berth, Channel(socket.socket(fileno=berth.fd)))
        status = 0
    except (EOFError, ConnectionError):
        status = 0  # the owner let go of this machine
    except BaseException:
        traceback.print_exc()
    finally:
        kill_descendants()
        os._exit(status)


def _serve(berth: Berth, owner: Channel) -> None:
    try:
        call: Call = owner.receive()
        call.function(Machine(berth, owner, call.memory_limit_bytes), *call.args, **call.kwargs)
    except (EOFError, ConnectionError):
        raise
    except BaseException as error:
        message = traceback.format_exception_only(error)[-1].strip()
        owner.send(Reply(failure=FailureKind.RAISED, message=message, traceback=traceback.format_exc()))
        raise


@dataclass(kw_only=True, slots=True)
class _Rank:
    """A rank that runs."""

    rank: int  # its number
    label: Any  # what this life of it is called
    requests: Channel  # where it asks for memory


class Machine:
    """What the function that runs in an agent works with.

    Args:
        berth: where the agent is.
        owner: channel to the process that started the machine.
        memory_limit_bytes: what it may keep for its ranks.

    Attributes:
        name: the machine's own.
        address: IPv4 address at which other machines reach it.
        interface: network interface of that address.
        memory: what it keeps for its ranks.
    """

    def __init__(self, berth: Berth, owner: Channel, memory_limit_bytes: int | None = None):
        self.name = berth.boot.name
        self.address = THIS_HOST if berth.hosts is None else berth.hosts.address(berth.boot.host)
        self.interface = LOOPBACK if berth.hosts is None else berth.hosts.interface
        self.memory = MachineMemory(memory_limit_bytes)
        self._threads_per_rank = berth.setup.threads_per_rank
        self._owner = owner
        self._ranks: dict[int, _Rank] = {}  # by process id
        self._signals = catch_signals(())
        self._selector = selectors.DefaultSelector()
        for item in (owner, self._signals):
            self._selector.register(item, selectors.EVENT_READ)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The numbers of the ranks that run."""
        return tuple(sorted(rank.rank for rank in self._ranks.values()))

    def tell(self, message: Any) -> None:
        """Tell the owner something; raises ConnectionError when it is gone."""
        self._owner.send(message)

    def start_rank(self, rank: int, function: Callable[[Any], Any], *, label: Any = None, keep: int = -1) -> int:
        """Fork a rank.

        Args:
            rank: its number.
            function: called in the rank's process with a `RankLink`; what it returns goes to the owner.
            label: what this life of the rank is called in what the owner hears of it.
            keep: descriptor that only the rank shall have from now on, such as a listening socket; -1 for none.

        Returns:
            Its process id.

        Raises:
            ValueError: if a rank of that number runs.
        """
        if rank in self.ranks:
            raise ValueError(f"rank is {rank}; it must not run already")
        requests, asking_end = channel_pair()
        to_owner, to_rank = channel_pair()
        pipes = [os.pipe() for _ in range(2)]
        stacks = os.memfd_create("workbench-stacks")
        place = RankPlace(
            rank=rank,
            interface=self.interface,
            threads=self._threads_per_rank,
            agent_pid=os.getpid(),
            requests=asking_end,
            fds=(os.dup(to_rank.fileno()), pipes[0][1], pipes[1][1], stacks),
        )
        pid = self._fork(place, function, ours=(requests, to_owner, to_rank), pipes=pipes)
        pidfd = os.pidfd_open(pid)
        self._ranks[pid] = _Rank(rank=rank, label=label, requests=requests)
        self._selector.register(requests, selectors.EVENT_READ, pid)
        started = RankStarted(machine=self.name, rank=rank, label=label, pid=pid, time_s=time.monotonic())
        self._owner.send(started, [to_owner.fileno(), pipes[0][0], pipes[1][0], pidfd, stacks])
        for item in (asking_end, to_owner, to_rank):
            item.close()
        for fd in (*pipes[0], *pipes[1], pidfd, *place.fds[:1], stacks, *([keep] if keep >= 0 else [])):
            os.close(fd)
        return pid

    def _fork(self, place: RankPlace, function: Callable[[Any], Any], ours: tuple, pipes: list) -> int:
        gc.freeze()  # a collection in a rank then leaves the shared pages alone
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        pid = os.fork()
        if pid == 0:
            os.close(signal.set_wakeup_fd(-1))
            for item in (self._signals, self._owner, *ours, *(rank.requests for rank in self._ranks.values())):
                item.close()
            for reading_end, _ in pipes:
                os.close(reading_end)
            self.memory.close()
            live_as_rank(place, function)
        return pid

    def stop_ranks(self) -> None:
        """Kill every rank and all that they started, and wait until they are gone."""
        kill_descendants()
        for pid in list(self._ranks):
            self._forget(pid)

    def _forget(self, pid: int) -> _Rank:
        rank = self._ranks.pop(pid)
        with contextlib.suppress(KeyError):  # its channel may have ended before
            self._selector.unregister(rank.requests)
        rank.requests.close()
        return rank

    def wait(self, timeout_s: float) -> list[Any]:
        """Wait until something happens, and meanwhile answer the ranks' requests for memory.

        Args:
            timeout_s: most seconds to wait.

        Returns:
            `RankEnded` for ranks that ended, other objects as the owner told them; empty after the time.

        Raises:
            EOFError: if the owner let go of this machine.
        """
        happened: list[Any] = []
        deadline_s = time.monotonic() + timeout_s
        while not happened:
            left_s = deadline_s - time.monotonic()
            for key, _ in self._selector.select(max(0.0, left_s)):
                if key.fileobj is self._owner:
                    happened.append(self._owner.receive())
                elif key.fileobj is self._signals:
                    happened += self._ends()
                elif key.data in self._ranks:  # else it ended in this very round
                    self._serve_memory(key.fileobj)
            if left_s <= 0:
                break
        return happened

    def _ends(self) -> list[RankEnded]:
        with contextlib.suppress(BlockingIOError):
            self._signals.recv(4096)
        ended = []
        for pid, status in reap().items():
            if pid in self._ranks:
                rank = self._forget(pid)
                names = {"machine": self.name, "rank": rank.rank, "label": rank.label}
                ended.append(RankEnded(**names, status=status, time_s=time.monotonic()))
        for end in ended:
            self._owner.send(end)
        if ended:
            self._kill_strays()
        return ended

    def _kill_strays(self) -> None:
        for child in psutil.Process().children():
            if child.pid not in self._ranks:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(child.pid, signal.SIGKILL)

    def _serve_memory(self, requests: Channel) -> None:
        try:
            request: MemoryRequest = requests.receive()
            if request.name is None:
                requests.send(MemoryAnswer(names=self.memory.names()))
                return
            try:
                fd = self.memory.allocate(request.name, request.num_bytes)
            except (ValueError, OSError) as error:
                requests.send(MemoryAnswer(error=str(error)))
            else:
                requests.send(MemoryAnswer(), [fd])
        except (EOFError, ConnectionError):
            self._selector.unregister(requests)  # the rank is ending
