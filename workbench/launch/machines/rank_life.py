"""The life of one rank of a machine: forked by the agent, it runs one function and ends.

It speaks to three: its agent, which keeps memory for it; its owner, which hears what it tells and at last its result;
and, through torch.distributed, the other ranks. The agent learns from its exit status only whether it returned, raised
or lost a peer, so nothing of the user's is ever unpickled in an agent.
"""

import mmap
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from workbench.launch.environment import rank_environment
from workbench.launch.failures import FailureKind
from workbench.launch.machines.happenings import MemoryAnswer, MemoryRequest, RankExit
from workbench.launch.messages import Channel
from workbench.launch.processes import die_with_parent
from workbench.launch.protocol import Reply
from workbench.launch.rank import Place, _connect_streams, _flush, _own_random_numbers, _reply_to

__all__ = ["RankLink", "RankPlace", "live_as_rank"]

PIECE_BYTES = 1 << 20  # at once while memory is mapped


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlace:
    """Where a rank finds itself after the fork."""

    rank: int  # its number
    interface: str  # network interface gloo listens on
    threads: int  # how many it may use
    agent_pid: int  # its parent
    requests: Channel  # to its agent
    fds: tuple[int, int, int, int]  # channel to the owner, standard output, errors, stack dumps


class RankLink:
    """What a rank's function works with besides torch.distributed.

    Args:
        rank: its number.
        requests: channel to the agent.
        owner: channel to the owner.
    """

    def __init__(self, rank: int, requests: Channel, owner: Channel):
        self.rank = rank
        self._requests = requests
        self._owner = owner
        self._turn = threading.Lock()

    def tell(self, message: Any) -> None:
        """Tell the owner something; any thread may."""
        with self._turn:
            self._owner.send(message)

    def memory(self, name: str, num_bytes: int) -> int:
        """Return a descriptor of memory that the machine keeps, zeros when it is new.

        Args:
            name: the same name gives every rank of the machine the same memory, also after a restart.
            num_bytes: its size; the same whenever it is asked for.

        Returns:
            A descriptor of this process's own, to map and to close.

        Raises:
            ValueError: if the size differs from before, or the machine's limit would be passed.
        """
        answer, fds = self._ask(MemoryRequest(name=name, num_bytes=num_bytes))
        if answer.error:
            raise ValueError(answer.error)
        return fds[0]

    def mapped(self, name: str, num_bytes: int) -> mmap.mmap:
        """Return the same memory mapped, shared with all that map it."""
        fd = self.memory(name, num_bytes)
        try:
            return mmap.mmap(fd, num_bytes, mmap.MAP_SHARED)
        finally:
            os.close(fd)

    def names(self) -> dict[str, int]:
        """Return the bytes of each memory that the machine keeps by its name."""
        return self._ask(MemoryRequest())[0].names

    def _ask(self, request: MemoryRequest) -> tuple[MemoryAnswer, list[int]]:
        with self._turn:
            self._requests.send(request)
            return self._requests.receive_with_fds()


def live_as_rank(place: RankPlace, function: Callable[[RankLink], Any]) -> NoReturn:
    """Be a rank until its function returns; never returns into the agent."""
    status = RankExit.RAISED
    try:
        _settle(place)
        owner = Channel(socket.socket(fileno=place.fds[0]))
        status = _run(function, RankLink(place.rank, place.requests, owner), owner)
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(status.value)


def _settle(place: RankPlace) -> None:
    _connect_streams(Place(place.rank, None, None, "", place.fds, place.agent_pid))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    die_with_parent(place.agent_pid)
    os.environ.update(rank_environment(place.threads, place.interface))
    import torch

    torch.set_num_threads(place.threads)
    _own_random_numbers()


def _run(function: Callable[[RankLink], Any], link: RankLink, owner: Channel) -> RankExit:
    try:
        reply = Reply(value=function(link), time_s=time.monotonic())
    except BaseException as error:
        reply = _reply_to(error)
    try:
        link.tell(reply)
    except ConnectionError:
        raise
    except Exception as error:  # the result cannot be pickled
        reply = _reply_to(error)
        link.tell(reply)
    if reply.failure is None:
        return RankExit.RETURNED
    return RankExit.LOST_PEER if reply.failure is FailureKind.PEER_LOST else RankExit.RAISED
