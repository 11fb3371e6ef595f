"""Real ranks from one line: a pool of processes that keep a process group open between calls.

    with Ranks(4) as ranks:
        losses = ranks.run(train, config)      # list of return values, in rank order

After a failure, a timeout or Ctrl-C the state of the group's collectives is unknown, so the
ranks are stopped. The pool itself stays usable: the next call starts new ranks (within a
fraction of a second, from the same nursery), which have lost what `put` had kept; a handle
from before says so when it is used.

Simplified: one run at a time. Left out: several machines (see engines.py).
"""

import contextlib
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from workbench.launch.calls import PerRank, pack_call
from workbench.launch.crew import Crew
from workbench.launch.nursery_process import NurseryProcess
from workbench.launch.parcels import Handle, Parcel
from workbench.launch.protocol import Setup
from workbench.launch.run import Run

__all__ = ["PerRank", "Ranks", "run_on_ranks"]

NUM_RANKS_VARIABLE = "WORKBENCH_NUM_RANKS"  # set by the Jupyter kernels of the workbench
DEVICE_VARIABLE = "WORKBENCH_DEVICE"  # the same
DEVICES = ("cpu", "cuda")
CLOSE_PATIENCE_S = 30.0  # seconds that a run in another thread may need to stop


class Ranks:
    """A pool of ranks on this machine, ready when the constructor returns.

    Args:
        num_ranks: how many; None takes WORKBENCH_NUM_RANKS from the environment.
        hosts: ShapedHosts to put them on, in contiguous blocks; None for this host.
        device: "cpu" or "cuda"; None takes WORKBENCH_DEVICE, else "cpu".
        backend: of torch.distributed; None takes gloo on the CPU, nccl where every rank has
            its own GPU, gloo where ranks share one.
        timeout_s: seconds a call may take unless it says otherwise.
        preload: modules that are imported once, before the ranks are forked.
        threads_per_rank: threads of each rank.
        echo: whether the output of the ranks is shown, each line with its rank.

    Attributes:
        num_ranks: how many ranks.
        device: "cpu" or "cuda", what they were opened for.
        hosts: description of the shaped hosts for a record, or None.

    Raises:
        ValueError: if an argument is out of range.
        RuntimeError: if the ranks cannot start; the message says why.
    """

    def __init__(
        self,
        num_ranks: int | None = None,
        *,
        hosts: Any = None,
        device: str | None = None,
        backend: str | None = None,
        timeout_s: float = 300.0,
        preload: Sequence[str] = ("workbench.models",),
        threads_per_rank: int = 1,
        echo: bool = True,
    ):
        _refuse_torchrun()
        self.num_ranks, self.device = _checked_count(num_ranks), _checked_device(device)
        if hosts is not None:
            hosts.host_of(0, self.num_ranks)  # refuses more hosts than ranks
        self._timeout_s = _checked_timeout(timeout_s)
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
        self._turn = threading.Lock()
        self._crew_numbers = itertools.count()
        self._crew: Crew | None = None
        self._nursery: NurseryProcess | None = NurseryProcess(self._setup)
        self.hosts = self._nursery.hosts
        try:
            if hosts is not None:
                hosts.warn_of(self.hosts)
            self._ready_crew()
        except BaseException:
            self.close()
            raise

    def run(
        self, function: Callable[..., Any], /, *args: Any, timeout_s: float | None = None, **kwargs: Any
    ) -> list[Any]:
        """Call a function on every rank and wait for all.

        Args:
            function: called with the process group initialised; may be defined in a cell.
            args: its arguments; PerRank gives every rank its own, a handle arrives as the
                object the ranks keep.
            timeout_s: seconds until silent ranks count as failed.
            kwargs: its keyword arguments.

        Returns:
            Return values in rank order.

        Raises:
            RankFailed: if it fails on a rank.
            RuntimeError: if the pool is closed or busy with another run.
        """
        timeout_s = self._timeout_s if timeout_s is None else _checked_timeout(timeout_s)
        with self._exclusively():
            crew = self._ready_crew()
            return crew.exchange(self._pack(function, args, kwargs), timeout_s)

    def start(self, function: Callable[..., Any], /, *args: Any, timeout_s: float | None = None, **kwargs: Any) -> Run:
        """Call a function on every rank without waiting; arguments as in `run`.

        Returns:
            The run, to be waited for with `result()` or `await`.
        """
        timeout_s = self._timeout_s if timeout_s is None else _checked_timeout(timeout_s)
        self._take_turn()
        try:
            crew = self._ready_crew()
            parcels = self._pack(function, args, kwargs)
        except BaseException:
            self._turn.release()
            raise
        return Run(lambda: self._finish(crew, parcels, timeout_s), crew.interrupt)

    def put(self, name: str, build: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Handle:
        """Build an object on every rank and keep it there under a name.

        Args:
            name: replaces what was kept under the same name.
            build: called on every rank; what it returns is kept and not sent back.
            args: its arguments, as in `run`.
            kwargs: its keyword arguments.

        Returns:
            A handle; given to `run` as an argument it arrives as the object.

        Raises:
            RankFailed: if building fails on a rank.
        """
        with self._exclusively():
            crew = self._ready_crew()
            crew.exchange(self._pack(build, args, kwargs, keep_as=name), self._timeout_s)
            return Handle(name=name, crew=crew.name)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids in rank order; empty while no ranks run."""
        return self._crew.pids if self._crew is not None and self._crew.alive else ()

    def close(self) -> None:
        """End the ranks, and a run that is still going on; calling it again does nothing."""
        crew, self._crew = self._crew, None
        nursery, self._nursery = self._nursery, None
        if crew is not None and crew.alive:
            if not self._turn.acquire(blocking=False):
                crew.interrupt()
                self._turn.acquire(timeout=CLOSE_PATIENCE_S)
            self._turn.release()
            crew.stop()
        if nursery is not None:
            nursery.close()

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _take_turn(self) -> None:
        if self._nursery is None:
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

    def _finish(self, crew: Crew, parcels: list[Parcel], timeout_s: float) -> list[Any]:
        try:
            return crew.exchange(parcels, timeout_s)
        finally:
            self._turn.release()

    def _ready_crew(self) -> Crew:
        """Return the running crew, or start one where there is none or it was stopped."""
        if self._crew is not None and not self._crew.nursery_lives:
            self._nursery.close()
            self._nursery, self._crew = NurseryProcess(self._setup), None
        if self._crew is None or not self._crew.alive:
            name = f"{self._nursery.pid}-{next(self._crew_numbers)}"
            self._crew = Crew(name, self._nursery, self.num_ranks, self._echo)
            self._crew.exchange([], self._timeout_s)
        return self._crew

    def _pack(
        self, function: Callable[..., Any], args: tuple, kwargs: dict, keep_as: str | None = None
    ) -> list[Parcel]:
        return pack_call(function, args, kwargs, num_ranks=self.num_ranks, name_of=self._name_of, keep_as=keep_as)

    def _name_of(self, handle: Handle) -> str:
        if self._crew is None or handle.crew != self._crew.name:
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
    timeout_s: float = 300.0,
    threads_per_rank: int = 1,
    preload: Sequence[str] = ("workbench.models",),
    **kwargs: Any,
) -> list[Any]:
    """Start ranks, call a function on every one once, and end them.

    Args:
        function: what to call.
        num_ranks: how many ranks; None as in `Ranks`.
        args: its arguments, as in `Ranks.run`.
        hosts: as in `Ranks`.
        device: as in `Ranks`.
        timeout_s: seconds the call may take.
        threads_per_rank: as in `Ranks`.
        preload: as in `Ranks`.
        kwargs: its keyword arguments.

    Returns:
        Return values in rank order.

    Raises:
        RankFailed: if it fails on a rank.
    """
    choices = {"hosts": hosts, "device": device, "timeout_s": timeout_s, "preload": preload}
    with Ranks(num_ranks, threads_per_rank=threads_per_rank, **choices) as ranks:
        return ranks.run(function, *args, **kwargs)


def _refuse_torchrun() -> None:
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise RuntimeError("torchrun has started the ranks already; call the function with run_here(...)")


def _checked_count(num_ranks: int | None) -> int:
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


def _checked_timeout(timeout_s: float) -> float:
    if not timeout_s > 0:
        raise ValueError(f"timeout_s is {timeout_s!r}; it must be above 0")
    return float(timeout_s)


def _checked_device(device: str | None) -> str:
    device = device or os.environ.get(DEVICE_VARIABLE, "cpu")
    if device not in DEVICES:
        raise ValueError(f"device is {device!r}; it must be one of {', '.join(DEVICES)}")
    return device
