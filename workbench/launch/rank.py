"""A rank, seen from within: a pool's rank answers requests, a machine's rank runs one function.

Ranks of one worker group share one file to meet (a FileStore), so no port is chosen and none can be taken by another
program. NCCL refuses two ranks on one GPU; there gloo carries the CUDA tensors.
"""

import datetime
import faulthandler
import io
import linecache
import mmap
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from workbench.launch.environment import LOOPBACK, rank_environment
from workbench.launch.failures import FailureKind, kind_of_error
from workbench.launch.main_of_rank import MainOfRank
from workbench.launch.messages import CannotUnpack, Channel, Message, pack
from workbench.launch.processes import POLL_S, die_with_parent, flush_streams
from workbench.launch.protocol import MemoryAnswer, MemoryRequest, RankExit, Reply, Request, Setup

__all__ = ["GROUP_PATIENCE", "STACK_SIGNAL", "MachinePlace", "RankLink", "run_function", "serve_requests"]

STACK_SIGNAL = signal.SIGUSR1  # makes a rank write down where it is
# The owner watches the clock of every run; the group's own limit must only be later.
GROUP_PATIENCE = datetime.timedelta(days=30)


def serve_requests(rank: int, setup: Setup, hosts: Any, meeting_path: str, parent_pid: int, fds: Sequence[int]) -> int:
    """Be a pool's rank: join the group, then answer requests until the owner closes the channel."""
    channel = _take_streams(fds)
    MainOfRank.enter(setup.main)
    os.setpgid(0, 0)  # Ctrl-C is the owner's business
    if hosts is not None:
        hosts.enter(setup.hosts.host_of(rank, setup.num_ranks))
    die_with_parent(parent_pid)  # last: a change of credentials would undo it
    if not sys.platform.startswith("linux"):
        threading.Thread(target=_end_with, args=[parent_pid], daemon=True).start()
    interface = LOOPBACK if hosts is None else hosts.interface
    _answer(channel.send_message, partial(_join, rank, setup, interface, meeting_path))
    kept: dict[str, Any] = {}
    while True:
        try:
            request: Request = channel.receive(kept.__getitem__)
        except EOFError:
            return 0
        except CannotUnpack as error:  # for example a module that the ranks cannot import
            channel.send(_failed(error.__cause__ or error))
        else:
            _answer(channel.send_message, partial(_carry_out, request, kept))


def _take_streams(fds: Sequence[int]) -> Channel:
    """Make the pipes this process's output and return its channel; errors of what follows are then seen."""
    channel, out, err, stacks = fds
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
        os.close(source)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)  # the owner had none
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(line_buffering=True)
    faulthandler.enable(file=stacks)
    faulthandler.register(STACK_SIGNAL, file=stacks)
    return Channel(socket.socket(fileno=channel))


def _end_with(parent_pid: int) -> NoReturn:
    while os.getppid() == parent_pid:
        time.sleep(POLL_S)
    os._exit(1)


def _carry_out(request: Request, kept: dict[str, Any]) -> Any:
    for name, lines in request.sources.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    value = request.function(*request.args, **request.kwargs)
    if request.keep_as is None:
        return value
    kept[request.keep_as] = value
    return None


def _answer(send: Callable[[Message], None], action: Callable[[], Any]) -> FailureKind | None:
    """Send what an action returns or raises, and return how it failed."""
    try:
        reply = Reply(value=action(), time_s=time.monotonic())
        message = pack(reply)
    except BaseException as error:  # also what pickling the result raises
        reply = _failed(error)
        message = pack(reply)
    flush_streams()
    send(message)
    return reply.failure


def _failed(error: BaseException) -> Reply:
    lines = [line for line in traceback.format_exception(error) if f'File "{__file__}"' not in line]
    return Reply(
        failure=kind_of_error(error),
        message=f"raised {traceback.format_exception_only(error)[-1].strip()}",
        traceback="".join(lines),
        time_s=time.monotonic(),
    )


def _join(rank: int, setup: Setup, interface: str, meeting_path: str) -> None:
    import torch.distributed as dist

    for name, value in (("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", setup.num_ranks)):
        os.environ[name] = str(value)
    _prepare_torch(setup.threads_per_rank, interface)
    store = dist.FileStore(meeting_path, setup.num_ranks)
    backend = _take_device(rank, setup)
    dist.init_process_group(backend, store=store, rank=rank, world_size=setup.num_ranks, timeout=GROUP_PATIENCE)


def _prepare_torch(num_threads: int, interface: str) -> None:
    import torch

    os.environ.update(rank_environment(num_threads, interface))
    torch.set_num_threads(num_threads)
    # A fresh process draws NumPy's seed from the operating system; forked ones would share the fork server's.
    # (`random` does this itself; torch starts every process alike.)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _take_device(rank: int, setup: Setup) -> str:
    if setup.device == "cpu":
        return setup.backend or "gloo"
    import torch

    num_gpus = torch.cuda.device_count()
    if num_gpus == 0:
        raise RuntimeError('device is "cuda", but this machine has no usable GPU')
    torch.cuda.set_device(rank % num_gpus)
    return setup.backend or ("nccl" if num_gpus >= setup.num_ranks else "gloo")


class RankLink:
    """What the function of a machine's rank works with besides torch.distributed."""

    def __init__(self, rank: int, requests: Channel, owner: Channel):
        self.rank = rank
        self._requests = requests  # to the agent, which keeps memory for the rank
        self._owner = owner
        self._turn = threading.Lock()

    def tell(self, message: Any) -> None:
        """Send the owner a message; any thread may."""
        self.send(pack(message))

    def send(self, message: Message) -> None:
        """Send the owner what was pickled before."""
        with self._turn:
            self._owner.send_message(message)

    def memory(self, name: str, num_bytes: int) -> int:
        """Return a descriptor of memory that the machine keeps, zeros when it is new; the caller closes it.

        The same name gives every rank of the machine the same memory, also after a restart, and takes the same size.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class MachinePlace:
    """The place of a rank on a machine."""

    rank: int  # its number
    interface: str  # network interface gloo listens on
    num_threads: int  # how many it may use
    agent_pid: int  # its parent
    requests: Channel  # to its agent


def run_function(function: Callable[[RankLink], Any], place: MachinePlace, fds: Sequence[int]) -> int:
    """Be a machine's rank: run one function and send its result to the owner; return the exit status.

    The agent learns from the status only whether the rank returned, raised or lost a peer, so it never unpickles
    anything of the user's.
    """
    owner = _take_streams(fds)
    die_with_parent(place.agent_pid)
    _prepare_torch(place.num_threads, place.interface)
    link = RankLink(place.rank, place.requests, owner)
    failure = _answer(link.send, partial(function, link))
    if failure is None:
        return RankExit.RETURNED.value
    return (RankExit.LOST_PEER if failure is FailureKind.PEER_LOST else RankExit.RAISED).value
