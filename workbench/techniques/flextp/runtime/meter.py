"""The times that plans are made from: a rank's own seconds, and of them in products, measured or modelled.

A thread's CPU time counts, since wall time on shared cores would count contention; on CUDA the wall, with every product
waited for. Only products of parallel linears are timed and slowed; taking columns out is other time.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from workbench.parallel.groups import Watch
from workbench.timeline.stragglers import Dose, Sleeper, StragglerTrace

from ..method.plan import RankTimes, require


class Meter:
    """Times one rank, and slows its products by sleeping after each of them, as a straggler's by `trace`.

    `slowness` is how many times slower than this machine the rank's products always are, at least 1: ranks that share
    cores leave each other room, and waiting for a core counts as part of it. `watch` lasts for each product and sleep.
    """

    def __init__(
        self,
        rank: int,
        trace: StragglerTrace | None = None,
        *,
        slowness: float = 1.0,
        device: torch.device | str = "cpu",
        watch: Watch = nullcontext,
        sleeper: Sleeper | None = None,
    ):
        require(slowness >= 1, "slowness", slowness, "at least 1")
        self._rank, self._trace, self._slowness = rank, trace, slowness
        self._sleeper, self._watch = Sleeper() if sleeper is None else sleeper, watch
        self.is_wall_clock = torch.device(device).type == "cuda"  # it runs on while the rank waits in `waiting`
        self.clock = clock_of(device, time.thread_time)
        self._owed, self._straggles, self._straggling_s = slowness - 1, 0.0, 0.0
        self.product_s = 0.0  # in products, also on columns of others, since the iteration began, as a straggler's
        self._received_s = self._slept_s = self._waited_s = self._start_s = 0.0

    @property
    def dose(self) -> Dose:
        """Seconds owed and slept so far."""
        return replace(self._sleeper.dose, straggling_s=self._straggling_s)

    def begin(self, iteration: int) -> None:
        skewness = 1.0 if self._trace is None else self._trace.skewness(self._rank, iteration)
        self._owed, self._straggles = skewness * self._slowness - 1, (skewness - 1) * self._slowness
        self.product_s = self._received_s = self._slept_s = self._waited_s = 0.0
        self._start_s = self.clock()

    def stop_straggling(self) -> None:
        """Inject no delay by the trace until the next iteration begins."""
        self._owed, self._straggles = self._slowness - 1, 0.0

    def end(self, work: float) -> RankTimes:
        """End the iteration and return its times; `work` is the share of its own columns that the rank multiplied."""
        slept_s = 0.0 if self.is_wall_clock else self._slept_s  # a wall clock has seen the sleep pass
        passed_s = max(self.clock() - self._start_s + slept_s - self._waited_s, self.product_s)
        product_s = max(self.product_s - self._received_s, 0.0)  # the difference of two sums, rounded
        return RankTimes(own_s=max(passed_s - self._received_s, product_s), product_s=product_s, work=work)

    def time(self, multiply: Callable[..., Tensor], *operands: Tensor, for_others: bool = False) -> Tensor:
        """Multiply, charge the time, and sleep for a straggler before going on; `for_others` it is not its own time."""
        with self._watch("product"):
            start_s, begun_s = self.clock(), time.perf_counter()  # in this order: the clock waits for a GPU
            result = multiply(*operands)
            seconds = self.clock() - start_s
            owed_s = seconds * self._owed
            self.product_s += seconds + owed_s
            self._received_s += (seconds + owed_s) * for_others
            if owed_s > 0:  # sleep, less what the product waited for a core, as far as that is slowness
                self._straggling_s += seconds * self._straggles
                self._slept_s += owed_s
                waited_s = max(time.perf_counter() - begun_s - seconds, 0.0)
                self._sleeper.owe(owed_s, passed_s=min(waited_s, seconds * (self._slowness - 1)))
        return result

    @contextmanager
    def waiting(self, collective: str) -> Iterator[None]:
        """Leave a collective out of the rank's own time (a `Watch`); a thread's clock stands still there anyway."""
        start_s = self.clock()
        yield
        self._waited_s += self.clock() - start_s


def clock_of(device: torch.device | str, on_processor: Callable[[], float]) -> Callable[[], float]:
    """Return a clock of seconds: on CUDA the wall's once queued work is done, elsewhere the given one.

    Only work of the current stream is waited for: messages go on beside it.
    """
    if torch.device(device).type != "cuda":
        return on_processor

    def synchronized() -> float:
        torch.cuda.current_stream(device).synchronize()
        return time.perf_counter()

    return synchronized


@dataclass(frozen=True, slots=True)
class ModelledTimes:
    """Times by a trace and two constants, so that virtual ranks, which share a process, follow the same plans."""

    trace: StragglerTrace  # skewness of every rank
    product_s: float = 1.0  # seconds of a normal rank's products in an iteration, nothing dropped or received
    other_s: float = 0.0  # seconds of everything else that a rank does itself
    is_proportional: ClassVar[bool] = True  # product time is in proportion to the columns, without a fixed part

    def of(self, rank: int, iteration: int, work: float) -> RankTimes:
        """Return a rank's times of an iteration; `work` is the share of its own columns that it multiplied."""
        product_s = self.trace.skewness(rank, iteration) * self.product_s * work
        return RankTimes(own_s=self.other_s + product_s, product_s=product_s, work=work)
