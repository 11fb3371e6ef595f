"""One machine, seen from within: the agent's process, which forks its ranks and keeps memory for them.

When the agent ends, the kernel ends its ranks. The memory that it keeps is anonymous files whose descriptors it hands
to its ranks: it outlives every rank, and the kernel frees it when the last process of the machine is gone.
"""

import os
import socket
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from workbench.launch.environment import LOOPBACK
from workbench.launch.failures import FailureKind
from workbench.launch.main_of_rank import MainOfRank
from workbench.launch.messages import CannotUnpack, Channel, NotAMessage, channel_pair
from workbench.launch.processes import die_with_parent, kill_descendants
from workbench.launch.protocol import MemoryAnswer, MemoryRequest, RankStarted, Reply, Request, Setup, StartMachine
from workbench.launch.rank import MachinePlace, RankLink, run_function
from workbench.launch.supervisor import Supervisor

__all__ = ["Machine", "MachineMemory", "be_machine"]

THIS_HOST = "127.0.0.1"  # address of a machine that is on no shaped host


def be_machine(order: StartMachine, setup: Setup, hosts: Any, parent_pid: int, fd: int) -> int:
    """Be a machine until its function returns or its owner ends; return the exit status."""
    owner = Channel(socket.socket(fileno=fd))
    MainOfRank.enter(setup.main)  # also of the ranks that it forks
    try:
        os.setpgid(0, 0)  # one signal kills all of it
        if hosts is not None:
            hosts.enter(order.host)
        die_with_parent(parent_pid)  # last: a change of credentials would undo it
        request: Request = owner.receive()
        request.function(Machine(order, setup, hosts, owner), *request.args, **request.kwargs)
    except (EOFError, ConnectionError):
        pass  # the owner let go of this machine
    except BaseException as error:
        message = traceback.format_exception_only(error)[-1].strip()
        owner.send(Reply(failure=FailureKind.RAISED, message=message, traceback=traceback.format_exc()))
        raise
    finally:
        kill_descendants()
    return 0


class Machine(Supervisor):
    """What the function that runs in an agent works with."""

    def __init__(self, order: StartMachine, setup: Setup, hosts: Any, owner: Channel):
        super().__init__(owner)
        self.name = order.name  # the machine's own
        self.address = THIS_HOST if hosts is None else hosts.address(order.host)  # IPv4
        self.interface = LOOPBACK if hosts is None else hosts.interface
        self.memory = MachineMemory(order.memory_limit_bytes)
        self._num_threads = setup.threads_per_rank
        self._requests: dict[int, Channel] = {}  # where ranks ask for memory, by process id

    @property
    def ranks(self) -> tuple[int, ...]:
        """The numbers of the ranks that run."""
        return tuple(sorted(child.rank for child in self._children.values() if isinstance(child, RankStarted)))

    def tell(self, message: Any) -> None:
        """Send the owner a message; raises ConnectionError when it is gone."""
        self._owner.send(message)

    def start_rank(self, rank: int, function: Callable[[RankLink], Any], *, label: Any = None, keep: int = -1) -> int:
        """Fork a rank, whose function is called with a `RankLink` and returns to the owner; return its process id.

        The label names this life of the rank in the owner's events. Only the rank keeps the descriptor `keep`, such as
        a listening socket; -1 is none.
        """
        if rank in self.ranks:
            raise ValueError(f"rank is {rank}; it must not run already")
        requests, requests_of_rank = channel_pair()
        place = MachinePlace(
            rank=rank,
            interface=self.interface,
            num_threads=self._num_threads,
            agent_pid=os.getpid(),
            requests=requests_of_rank,
        )
        names = {"machine": self.name, "rank": rank, "label": label}
        pid = self._fork_rank(partial(run_function, function, place), private=[requests], **names)
        self._requests[pid] = requests
        self._listener.add(requests, self._serve_memory, requests)
        requests_of_rank.close()
        if keep >= 0:
            os.close(keep)
        return pid

    def stop_ranks(self) -> None:
        """Kill every rank and all that they started, and wait until they are gone."""
        kill_descendants()
        for pid in list(self._children):
            self._forget(pid)

    def wait(self, timeout_s: float) -> list[Any]:
        """Wait until something happens, for `timeout_s` seconds at most, and meanwhile give ranks their memory.

        Returns `RankEnded` for ranks that ended, other objects as the owner sent them. EOFError if the owner let go.
        """
        return self._listener.wait(timeout_s)

    def _hear_owner(self) -> list[Any]:
        return [self._owner.receive()]

    def _let_go(self) -> None:
        super()._let_go()
        self.memory.close()
        for requests in self._requests.values():
            requests.close()

    def _forget(self, pid: int) -> Any:
        requests = self._requests.pop(pid)
        self._listener.remove(requests)
        requests.close()
        return super()._forget(pid)

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
        except (EOFError, ConnectionError, CannotUnpack, NotAMessage):
            self._listener.remove(requests)  # the rank is ending, or has written something else there
            requests.close()


class MachineMemory:
    """Named files in memory, of `limit_bytes` together at most; a file's bytes count when it is allocated."""

    def __init__(self, limit_bytes: int | None = None):
        if limit_bytes is not None and not limit_bytes >= 0:
            raise ValueError(f"limit_bytes is {limit_bytes!r}; it must be None or at least 0")
        self.limit_bytes = limit_bytes
        self._files: dict[str, tuple[int, int]] = {}  # name -> descriptor, bytes

    def names(self) -> dict[str, int]:
        """Return the bytes of each file by its name."""
        return {name: num_bytes for name, (_, num_bytes) in self._files.items()}

    def allocate(self, name: str, num_bytes: int) -> int:
        """Return the descriptor of a file, the same for the same name, filled with zeros when it is new."""
        if name in self._files:
            fd, kept_bytes = self._files[name]
            if num_bytes != kept_bytes:
                raise ValueError(f"num_bytes of {name!r} is {num_bytes!r}; it must be {kept_bytes} as before")
            return fd
        self._check_new(name, num_bytes)
        fd = os.memfd_create(f"workbench-{name}")
        os.truncate(fd, num_bytes)
        self._files[name] = fd, num_bytes
        return fd

    def _check_new(self, name: str, num_bytes: int) -> None:
        if not name:
            raise ValueError(f"name is {name!r}; it must not be empty")
        if isinstance(num_bytes, bool) or not isinstance(num_bytes, int) or num_bytes < 1:
            raise ValueError(f"num_bytes of {name!r} is {num_bytes!r}; it must be an integer of at least 1")
        kept_bytes = sum(self.names().values())
        if self.limit_bytes is not None and kept_bytes + num_bytes > self.limit_bytes:
            rule = f"with the {kept_bytes} kept already it must stay within {self.limit_bytes}"
            raise ValueError(f"num_bytes of {name!r} is {num_bytes}; {rule}")

    def close(self) -> None:
        """Close this process's descriptors; memory that others hold lives on."""
        for fd, _ in self._files.values():
            os.close(fd)
        self._files.clear()
