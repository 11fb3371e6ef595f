"""The life of one rank: forked by the nursery, it joins its group and answers requests.

Simplified: ranks of one crew share one file to meet (a FileStore), so no port is chosen and
none can be taken by somebody else. NCCL refuses two ranks on one GPU; there gloo carries the
CUDA tensors.
"""

import contextlib
import ctypes
import datetime
import faulthandler
import linecache
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from workbench.launch.environment import LOOPBACK, rank_environment
from workbench.launch.failures import kind_of_error
from workbench.launch.messages import CannotUnpack, Channel
from workbench.launch.parcels import pack
from workbench.launch.processes import POLL_S, die_with_parent
from workbench.launch.protocol import Reply, Request, Setup

__all__ = ["STACK_SIGNAL", "Place", "live"]

STACK_SIGNAL = signal.SIGUSR1  # makes a rank write down where it is
# The owner watches the clock of every run; the group's own limit must only be later.
GROUP_PATIENCE = datetime.timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank finds itself after the fork."""

    rank: int  # its number
    setup: Setup  # what the owner asked for
    hosts: Any  # opened namespaces, or None
    meeting_path: str  # file of the store
    fds: Sequence[int]  # channel, standard output, standard error, stack dumps
    nursery_pid: int  # its parent


def live(place: Place) -> NoReturn:
    """Be a rank until the owner closes the channel; never returns into the nursery."""
    status = 1
    try:
        _settle(place)
        _Rank(place, Channel(socket.socket(fileno=place.fds[0]))).serve()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(status)


def _settle(place: Place) -> None:
    _connect_streams(place)  # first: errors of the rest are told through them
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgid(0, 0)  # Ctrl-C is the owner's business
    if place.hosts is not None:
        place.hosts.enter(place.setup.hosts.host_of(place.rank, place.setup.num_ranks))
    die_with_parent(place.nursery_pid)  # last: a change of credentials would undo it
    if not sys.platform.startswith("linux"):
        threading.Thread(target=_end_with, args=[place.nursery_pid], daemon=True).start()


def _end_with(parent_pid: int) -> NoReturn:
    while os.getppid() == parent_pid:
        time.sleep(POLL_S)
    os._exit(1)


def _connect_streams(place: Place) -> None:
    _, out, err, stacks = place.fds
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
        os.close(source)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)
    faulthandler.enable(file=stacks)
    faulthandler.register(STACK_SIGNAL, file=stacks)


def _flush() -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)


class _Rank:
    """Joins the group, then answers one request after the other."""

    def __init__(self, place: Place, channel: Channel):
        self._place = place
        self._channel = channel
        self._kept: dict[str, Any] = {}

    def serve(self) -> None:
        self._answer(lambda: _join(self._place))
        while True:
            try:
                request = self._receive()
            except EOFError:
                return
            if request is not None:
                self._answer(lambda: self._carry_out(request))

    def _receive(self) -> Request | None:
        try:
            return self._channel.receive(self._kept.__getitem__)
        except CannotUnpack as error:  # for example a module that the ranks cannot import
            self._channel.send(_reply_to(error.__cause__))
            return None

    def _carry_out(self, request: Request) -> Any:
        for name, lines in request.sources.items():
            linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
        value = request.function(*request.args, **request.kwargs)
        if request.keep_as is None:
            return value
        self._kept[request.keep_as] = value
        return None

    def _answer(self, action: Any) -> None:
        try:
            parcel = pack(Reply(value=action()))
        except BaseException as error:  # also what pickling the result raises
            parcel = pack(_reply_to(error))
        _flush()
        self._channel.send_parcel(parcel)


def _reply_to(error: BaseException) -> Reply:
    lines = traceback.format_exception(error)
    return Reply(
        failure=kind_of_error(error),
        message=f"raised {traceback.format_exception_only(error)[-1].strip()}",
        traceback="".join(_without_own_frames(lines)),
        time_s=time.monotonic(),
    )


def _without_own_frames(lines: list[str]) -> list[str]:
    return [line for line in lines if f'File "{__file__}"' not in line]


def _join(place: Place) -> None:
    import torch
    import torch.distributed as dist

    setup = place.setup
    interface = place.hosts.interface if place.hosts is not None else LOOPBACK
    os.environ.update(rank_environment(setup.threads_per_rank, interface))
    for name, value in (("RANK", place.rank), ("LOCAL_RANK", place.rank), ("WORLD_SIZE", setup.num_ranks)):
        os.environ[name] = str(value)
    torch.set_num_threads(setup.threads_per_rank)
    _own_random_numbers()
    store = dist.FileStore(place.meeting_path, setup.num_ranks)
    backend = _take_device(place.rank, setup)
    dist.init_process_group(backend, store=store, rank=place.rank, world_size=setup.num_ranks, timeout=GROUP_PATIENCE)


def _own_random_numbers() -> None:
    # A fresh process draws NumPy's seed from the operating system; forked ones would share
    # the nursery's. (`random` does this itself; torch starts every process alike.)
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
