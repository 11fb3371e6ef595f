"""A supervisor: a process with one thread that forks others and tells its owner of their starts and ends.

The fork server is one, and so is a machine's agent.
"""

import contextlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from workbench.launch.messages import Channel, anonymous_file, channel_pair
from workbench.launch.processes import Listener, ProcessWatch, adopt_children, fork, kill_descendants, reap
from workbench.launch.protocol import MachineEnded, MachineStarted, RankEnded, RankStarted

__all__ = ["Supervisor"]


class Supervisor(ABC):
    """Forks children and hears of their ends; the watches are of processes whose end ends this one."""

    def __init__(self, owner: Channel, watches: Sequence[ProcessWatch] = ()):
        self._owner = owner  # gives the orders
        self._children: dict[int, MachineStarted | RankStarted] = {}  # by process id
        self._signals = adopt_children()
        self._listener = Listener(watches)
        self._listener.add(owner, self._hear_owner)
        self._listener.add(self._signals, self._hear_of_ends)

    @abstractmethod
    def _hear_owner(self) -> Iterable[Any] | None:
        """Take the owner's next order; return the events that follow from it."""

    def _fork(self, life: Callable[[], int]) -> int:
        """Fork a child, which closes the ends that only this process may hold before it lives."""

        def live() -> int:
            self._let_go()
            return life()

        return fork(live)

    def _let_go(self) -> None:
        self._listener.close()
        self._signals.close()
        self._owner.close()

    def _fork_rank(self, life: Callable[[Sequence[int]], int], *, private: Sequence[Channel] = (), **names: Any) -> int:
        """Fork a rank; its life gets its end of the channel and the pipes, the owner the other end."""
        channel, channel_of_rank = channel_pair()
        (out, out_of_rank), (err, err_of_rank) = os.pipe(), os.pipe()
        stacks = anonymous_file("workbench-stacks")

        def live() -> int:
            for item in (channel, *private):
                item.close()
            os.close(out)
            os.close(err)
            return life([os.dup(channel_of_rank.fileno()), out_of_rank, err_of_rank, stacks])

        pid = self._fork(live)
        pidfd = ProcessWatch(pid).pidfd
        ends = [channel.fileno(), out, err, stacks, *([] if pidfd is None else [pidfd])]
        self._children[pid] = RankStarted(**names, pid=pid, time_s=time.monotonic())
        self._owner.send(self._children[pid], ends)
        channel.close()
        channel_of_rank.close()
        for fd in (*ends[1:], out_of_rank, err_of_rank):
            os.close(fd)
        return pid

    def _hear_of_ends(self) -> list[RankEnded | MachineEnded]:
        with contextlib.suppress(BlockingIOError):
            self._signals.recv(4096)
        events = [self._end(pid, status) for pid, status in reap().items() if pid in self._children]
        if events:
            kill_descendants(spared=self._children)  # what the ended ones had started has come to this process
        for event in events:
            self._owner.send(event)
        return events

    def _end(self, pid: int, status: int) -> RankEnded | MachineEnded:
        started = self._forget(pid)
        machine, now_s = started.machine, time.monotonic()
        if isinstance(started, MachineStarted):
            return MachineEnded(machine=machine, status=status, time_s=now_s)
        label = started.label
        return RankEnded(rank=started.rank, machine=machine, label=label, status=status, time_s=now_s)

    def _forget(self, pid: int) -> MachineStarted | RankStarted:
        return self._children.pop(pid)
