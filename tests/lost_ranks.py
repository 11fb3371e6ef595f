"""What the other ranks of a training hear when one raises, exits or freezes: each ending in processes of its own.

A pool of `workbench.launch` would stop the others at once.
"""

import atexit
import contextlib
import functools
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, Pipe
from typing import Any

import torch.distributed as dist

from tests.conftest import warm_process
from workbench.launch.environment import own_environment, rank_environment
from workbench.launch.fork_server import WARM_VARIABLE
from workbench.launch.forking import ForkedProcess, Order, forked

TIMEOUT = timedelta(seconds=10)  # of the group that the training uses
PATIENCE_S = 120.0  # a busy machine starts processes slowly
LOST = 1  # the rank that fails, in the third step: in the second one DDP itself exchanges its buckets
ENDINGS = {
    "raises": lambda: 1 / 0,
    "exits": lambda: os._exit(3),
    "freezes": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}
ALONE = "import sys; from tests.lost_ranks import answer; answer(int(sys.argv[1]), sys.stdin.buffer.read())"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call(Order):
    """Call a function; the pipe for what it reports comes beside the order."""

    path: list[str]  # folders of Python modules
    call: bytes  # pickled

    def carry_out(self, fds: Sequence[int]) -> int:
        self.take_surroundings()
        sys.path[:] = self.path
        answer(fds[0], self.call)
        return 0


def answer(fd: int, call: bytes) -> None:
    """Call a pickled function with the way to report and its arguments."""
    function, args = pickle.loads(call)
    with Connection(fd, readable=False) as pipe:
        function(pipe.send, *args)


@contextlib.contextmanager
def processes(calls: Sequence[tuple[Callable, Any]]) -> Iterator[list[Connection]]:
    """Start a process a function and arguments, and yield the pipes of what each reports; in the end all are killed.

    The warm process of the ranks forks them; when it ends, so do they.
    """
    _warm()
    environment, pipes = {**own_environment(), **rank_environment(1)}, []
    with contextlib.ExitStack() as stack:
        for function, *args in calls:
            listening, telling = Pipe(duplex=False)
            pipes.append(stack.enter_context(listening))
            with telling:
                process = _start(pickle.dumps((function, args)), environment, telling.fileno())
            stack.callback(process.wait, PATIENCE_S)
            stack.callback(process.kill)
        yield pipes


@functools.cache
def _warm() -> None:
    atexit.register(warm_process())  # for all tests of this process, where none has started one yet


def _start(call: bytes, environment: dict[str, str], fd: int) -> ForkedProcess | subprocess.Popen:
    about = {"environment": environment, "folder": os.getcwd(), "owner_pid": os.getpid()}
    address = os.environ.get(WARM_VARIABLE)
    if address and (process := forked(address, _Call(path=sys.path, call=call, **about), [fd])):
        return process
    environment = environment | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", ALONE, str(fd)], stdin=subprocess.PIPE, env=environment, pass_fds=[fd]
    )
    with process.stdin:
        process.stdin.write(call)
    return process


@functools.cache
def errors_of_the_rest(step: Callable[[dist.ProcessGroup, dict], None], num_ranks: int = 2) -> dict[str, dict]:
    """Return, by ending, what each rank that is left heard in the third `step(group, kept)`; `kept` is a dict."""
    stores = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in ENDINGS]
    places = [(ending, rank) for ending in ENDINGS for rank in range(num_ranks)]
    ports = dict(zip(ENDINGS, (store.port for store in stores), strict=True))
    heard: dict[str, dict] = {ending: {} for ending in ENDINGS}
    with processes([(_rank, rank, num_ranks, ports[ending], step, ending) for ending, rank in places]) as pipes:
        for (ending, rank), listening in zip(places, pipes, strict=True):
            if rank != LOST and listening.poll(PATIENCE_S):
                heard[ending][rank] = listening.recv()
    return heard


def _rank(report: Callable[[str], None], rank: int, num_ranks: int, port: int, step: Callable, ending: str) -> None:
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks)
    dist.barrier()
    group, kept = dist.new_group(timeout=TIMEOUT), {}
    for _ in range(2):
        step(group, kept)
    dist.barrier()
    if rank == LOST:
        ENDINGS[ending]()
    try:
        step(group, kept)
        report("no error")
    except Exception as error:
        report(f"{type(error).__name__}: {error}")
