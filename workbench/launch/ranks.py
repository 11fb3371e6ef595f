"""Real ranks from one line: a pool of processes that keep a process group open between calls.

    with Ranks(4) as ranks:
        losses = ranks.run(train, config)      # list of return values, in rank order

After a failure, a timeout or Ctrl-C the state of the group's collectives is unknown, so the ranks are stopped. The next
call starts new ones within a fraction of a second, which have lost what `put` had kept.
"""

import asyncio
import concurrent.futures
import contextlib
import itertools
import math
import os
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from workbench.checks import require_one_of
from workbench.launch.calls import PerRank, pack_call
from workbench.launch.engines import call_as_one, join_job, run_on_all, size_of_job
from workbench.launch.fork_server import ForkServer
from workbench.launch.messages import Handle, Message
from workbench.launch.protocol import Setup
from workbench.launch.worker_group import WorkerGroup

__all__ = ["PerRank", "Ranks", "Run", "run_on_ranks"]

NUM_RANKS_VARIABLE = "WORKBENCH_NUM_RANKS"  # set by the Jupyter kernels of the workbench
DEVICE_VARIABLE = "WORKBENCH_DEVICE"  # the same
DEVICES = ("cpu", "cuda")
START_TIMEOUT_S = 300.0  # in which a pool must be ready
CLOSE_PATIENCE_S = 30.0  # seconds that a run in another thread may need to stop
# A Jupyter kernel acts on an interrupt of an awaiting cell only when its event loop wakes.
INTERRUPT_LATENCY_S = 0.2


class Ranks:
    """A pool of ranks on this machine, ready when the constructor returns; one run at a time.

    In a process that torchrun or srun has started as one of as many ranks, a run calls the function there.

    Args:
        num_ranks: how many; None takes WORKBENCH_NUM_RANKS from the environment.
        hosts: ShapedHosts to put them on, in contiguous blocks; None for this host.
        device: "cpu" or "cuda"; None takes WORKBENCH_DEVICE, else "cpu".
        backend: of torch.distributed; None takes gloo on the CPU, nccl where every rank has its own GPU, gloo where
            ranks share one.
        timeout_s: seconds a call may take unless it says otherwise; None for no limit.
        preload: modules that are imported once, before the ranks are forked.
        threads_per_rank: threads of each rank.
        echo: whether the output of the ranks is shown, each line with its rank.
    """

    def __init__(
        self,
        num_ranks: int | None = None,
        *,
        hosts: Any = None,
        device: str | None = None,
        backend: str | None = None,
        timeout_s: float | None = None,
        preload: Sequence[str] = ("workbench.models",),
        threads_per_rank: int = 1,
        echo: bool = True,
    ):
        size = size_of_job()
        self.num_ranks, self.device = _checked_count(num_ranks, size or None), _checked_device(device)
        self._timeout_s = _checked_timeout(timeout_s)
        self._kept: dict[str, Any] | None = {} if size else None  # what `put` keeps in a rank that is this process
        self._is_closed = False
        self._turn = threading.Lock()
        self.hosts: Any = None  # description of the shaped hosts for a record, or None
        if self._kept is not None:
            if size != self.num_ranks or hosts is not None:
                asked = f"{self.num_ranks} ranks" if hosts is None else "shaped hosts"
                raise RuntimeError(f"torchrun or srun has started {size} ranks, and {asked} are asked for")
            join_job(self.device, threads_per_rank)
            return
        if hosts is not None:
            hosts.host_of(0, self.num_ranks)  # refuses more hosts than ranks
        self._echo = echo
        self._setup = Setup(
            num_ranks=self.num_ranks,
            sys_path=[path for path in sys.path if isinstance(path, str)],
            preload=tuple(preload),
            hosts=hosts,
            device=self.device,
            backend=backend,
            threads_per_rank=_checked_natural("threads_per_rank", threads_per_rank),
        )
        self._group_numbers = itertools.count()
        self._group: WorkerGroup | None = None
        self._server = ForkServer(self._setup)
        self.hosts = self._server.hosts
        try:
            if hosts is not None:
                hosts.warn_of(self.hosts)
            self._ready_group()
        except BaseException:
            self.close()
            raise

    def run(
        self, function: Callable[..., Any], /, *args: Any, timeout_s: float | None = None, **kwargs: Any
    ) -> list[Any]:
        """Call a function on every rank and wait for all.

        Args:
            function: called with the process group initialised; may be defined in a cell.
            args: its arguments; PerRank gives every rank its own, a handle arrives as the object the ranks keep.
            timeout_s: seconds until silent ranks count as failed; None takes the pool's.
            kwargs: its keyword arguments.

        Returns:
            Values in rank order; RankFailed if it fails on a rank.
        """
        timeout_s = self._timeout_s if timeout_s is None else _checked_timeout(timeout_s)
        with self._exclusively():
            if self._kept is not None:
                return run_on_all(function, args, kwargs, self._kept)
            group = self._ready_group()
            return group.exchange(self._pack(function, args, kwargs), timeout_s)

    def start(
        self, function: Callable[..., Any], /, *args: Any, timeout_s: float | None = None, **kwargs: Any
    ) -> "Run":
        """Call a function on every rank without waiting; arguments as in `run`."""
        timeout_s = self._timeout_s if timeout_s is None else _checked_timeout(timeout_s)
        self._take_turn()
        if self._kept is not None:
            kept = self._kept
            return Run(lambda: self._released(run_on_all, function, args, kwargs, kept), lambda: None)
        try:
            group = self._ready_group()
            messages = self._pack(function, args, kwargs)
        except BaseException:
            self._turn.release()
            raise
        return Run(lambda: self._released(group.exchange, messages, timeout_s), group.interrupt)

    def put(self, name: str, build: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Handle:
        """Build an object on every rank, with arguments as in `run`, and keep it there under a name.

        The returned handle arrives as the object where it is an argument of `run`.
        """
        with self._exclusively():
            if self._kept is not None:
                self._kept[name] = call_as_one(build, args, kwargs, self._kept)
                return Handle(name=name, group="")
            group = self._ready_group()
            group.exchange(self._pack(build, args, kwargs, keep_as=name), self._timeout_s)
            return Handle(name=name, group=group.name)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids in rank order; empty while no ranks run, and where torchrun or srun has started them."""
        if self._kept is not None:
            return ()
        return self._group.pids if self._group is not None and self._group.alive else ()

    def close(self) -> None:
        """End the ranks, and a run that is still going on; calling it again does nothing."""
        self._is_closed = True
        if self._kept is not None:
            return
        group, self._group = self._group, None
        if group is not None and group.alive:
            if not self._turn.acquire(blocking=False):
                group.interrupt()
                self._turn.acquire(timeout=CLOSE_PATIENCE_S)
            self._turn.release()
            group.stop()
        self._server.close()

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _take_turn(self) -> None:
        if self._is_closed:
            raise RuntimeError("the ranks are closed; make new ones with Ranks(...)")
        if not self._turn.acquire(blocking=False):
            raise RuntimeError("the ranks are busy with another run; wait for its result() first")

    @contextlib.contextmanager
    def _exclusively(self) -> Iterator[None]:
        self._take_turn()
        try:
            yield
        finally:
            self._turn.release()

    def _released(self, exchange: Callable[..., list[Any]], *args: Any) -> list[Any]:
        try:
            return exchange(*args)
        finally:
            self._turn.release()

    def _ready_group(self) -> WorkerGroup:
        """Return the running group, or start one where there is none or it was stopped."""
        if not self._server.alive:
            self._server.close()
            self._server, self._group = ForkServer(self._setup), None
        if self._group is None or not self._group.alive:
            name = f"{self._server.pid}-{next(self._group_numbers)}"
            self._group = WorkerGroup(name, self._server, self.num_ranks, self._echo)
            self._group.exchange([], START_TIMEOUT_S)
        return self._group

    def _pack(
        self, function: Callable[..., Any], args: tuple, kwargs: dict, keep_as: str | None = None
    ) -> list[Message]:
        return pack_call(function, args, kwargs, num_ranks=self.num_ranks, name_of=self._name_of, keep_as=keep_as)

    def _name_of(self, handle: Handle) -> str:
        if self._group is None or handle.group != self._group.name:
            raise ValueError(
                f"handle {handle.name!r} belongs to ranks that were stopped or to another pool; put() it again"
            )
        return handle.name


def run_on_ranks(
    function: Callable[..., Any],
    num_ranks: int | None,
    /,
    *args: Any,
    hosts: Any = None,
    device: str | None = None,
    timeout_s: float | None = None,
    threads_per_rank: int = 1,
    preload: Sequence[str] = ("workbench.models",),
    **kwargs: Any,
) -> list[Any]:
    """Start ranks, call a function on every one once, and end them; arguments as in `Ranks` and `Ranks.run`."""
    choices = {"hosts": hosts, "device": device, "timeout_s": timeout_s, "preload": preload}
    with Ranks(num_ranks, threads_per_rank=threads_per_rank, **choices) as ranks:
        return ranks.run(function, *args, **kwargs)


class Run:
    """A call on every rank that was started and not waited for.

    `result()` waits; `await run` does so in a notebook cell. The output of the ranks goes to the cell that started it.
    """

    def __init__(self, exchange: Callable[[], list[Any]], interrupt: Callable[[], None]):
        self._interrupt = interrupt
        self._future: concurrent.futures.Future[list[Any]] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._perform, args=[exchange], daemon=True)
        self._thread.start()

    def _perform(self, exchange: Callable[[], list[Any]]) -> None:
        self._future.set_running_or_notify_cancel()
        try:
            self._future.set_result(exchange())
        except BaseException as error:
            self._future.set_exception(error)

    def done(self) -> bool:
        """Return whether every rank has answered or the run has failed."""
        return self._future.done()

    def result(self) -> list[Any]:
        """Wait for the values in rank order; RankFailed if the run failed; Ctrl-C stops the ranks."""
        try:
            return self._future.result()
        except KeyboardInterrupt:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the ranks and wait until they have ended; nothing if the run is over."""
        if not self.done():
            self._interrupt()
        self._thread.join()

    def __await__(self) -> Generator[Any, None, list[Any]]:
        return self._wait().__await__()

    async def _wait(self) -> list[Any]:
        future = asyncio.wrap_future(self._future)
        # Look at the error of a run that ends when nobody awaits it any more, or asyncio complains.
        future.add_done_callback(lambda future: future.cancelled() or future.exception())
        try:
            while not future.done():
                await asyncio.wait([future], timeout=INTERRUPT_LATENCY_S)
            return future.result()
        except asyncio.CancelledError:
            self.stop()
            raise


def _checked_count(num_ranks: int | None, default: int | None = None) -> int:
    if num_ranks is None:
        num_ranks = default
    if num_ranks is None:
        text = os.environ.get(NUM_RANKS_VARIABLE)
        if text is None:
            raise ValueError(f"num_ranks is missing; give a number or set {NUM_RANKS_VARIABLE}")
        if not text.isdecimal():
            raise ValueError(f"{NUM_RANKS_VARIABLE} is {text!r}; it must be a number")
        num_ranks = int(text)
    return _checked_natural("num_ranks", num_ranks)


def _checked_natural(name: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} is {value!r}; it must be an integer of at least 1")
    return value


def _checked_timeout(timeout_s: float | None) -> float:
    if timeout_s is None:
        return math.inf
    if not timeout_s > 0:
        raise ValueError(f"timeout_s is {timeout_s!r}; it must be above 0")
    return float(timeout_s)


def _checked_device(device: str | None) -> str:
    device = device or os.environ.get(DEVICE_VARIABLE, "cpu")
    require_one_of(DEVICES, device=device)
    return device
