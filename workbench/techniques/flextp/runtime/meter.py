"""What a rank measures of itself: seconds of its own, and of them in matrix products.

What: a `Meter` times products and iterations. With a straggler trace it also sleeps after each product, so that the
rank's products take as many times longer as the trace says. Products on columns of others are counted apart: how long
a rank would take without a plan must not depend on what it multiplies for others; copies around them do count. With a
slowness k above 1 every rank's products take k times longer; ranks that share cores then leave each other room, and
what a product waited for a core counts as part of those k times instead of coming on top.
Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", sections III-A and V-A.
On a processor time is the thread's CPU time: wall time on shared cores would count contention, and a rank that waits
for others uses none. Taking columns out is no product: it is other time, and no straggler is slower at it.
Simplified: on CUDA every product is waited for, and own time is what passes outside of `waiting`; a message that is
still under way when a product begins is waited for there, and counts as own time.
Left out: products outside parallel linears (the attention core), which are never slowed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from workbench.parallel.groups import Watch
from workbench.timeline.stragglers import Dose, Sleeper, StragglerTrace

from ..method.plan import RankTimes

__all__ = ["Meter", "clock_of"]


class Meter:
    """Times one rank.

    Args:
        rank: its number in the trace.
        trace: slows the rank; None slows nothing.
        slowness: how many times slower than this machine the rank's products are even where it is no straggler, so
            that ranks which share cores leave each other room.
        device: of the model.
        watch: what is entered for the time of each product, sleep included, such as a recorder's action.
        sleeper: sleeps off what the trace says.

    Attributes:
        clock: seconds; the thread's CPU time, or on CUDA the wall's once queued work is done.
        is_wall_clock: whether it runs on while the rank waits, so that `waiting` has to be told.

    Raises:
        ValueError: for a slowness below 1.
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
        if not slowness >= 1:
            raise ValueError(f"slowness is {slowness}, must be at least 1")
        self._rank, self._trace, self._slowness = rank, trace, slowness
        self._sleeper, self._watch = Sleeper() if sleeper is None else sleeper, watch
        self.is_wall_clock = torch.device(device).type == "cuda"
        self.clock = clock_of(device, time.thread_time)
        self._owed, self._straggles, self._straggling_s = slowness - 1, 0.0, 0.0
        self._product_s = self._received_s = self._slept_s = self._waited_s = self._start_s = 0.0

    @property
    def dose(self) -> Dose:
        """Seconds owed and slept so far."""
        return replace(self._sleeper.dose, straggling_s=self._straggling_s)

    @property
    def product_s(self) -> float:
        """Seconds in products since the iteration began, as a straggler's, those on columns of others included."""
        return self._product_s

    def begin(self, iteration: int) -> None:
        """Start an iteration."""
        skewness = 1.0 if self._trace is None else self._trace.skewness(self._rank, iteration)
        self._owed, self._straggles = skewness * self._slowness - 1, (skewness - 1) * self._slowness
        self._product_s = self._received_s = self._slept_s = self._waited_s = 0.0
        self._start_s = self.clock()

    def stop_straggling(self) -> None:
        """Be no straggler by the trace until the next iteration begins."""
        self._owed, self._straggles = self._slowness - 1, 0.0

    def end(self, work: float) -> RankTimes:
        """End the iteration, and return its times without products on columns of others.

        Args:
            work: of its own columns the share that the rank multiplied.
        """
        slept_s = 0.0 if self.is_wall_clock else self._slept_s  # a wall clock has seen the sleep pass
        passed_s = max(self.clock() - self._start_s + slept_s - self._waited_s, self._product_s)
        product_s = max(self._product_s - self._received_s, 0.0)  # the difference of two sums, rounded
        return RankTimes(own_s=max(passed_s - self._received_s, product_s), product_s=product_s, work=work)

    def time(self, multiply: Callable[..., Tensor], *operands: Tensor, **more) -> Tensor:
        """Multiply, charge the time, and sleep for a straggler before going on.

        Args:
            multiply: the product.
            operands, more: its arguments.
        """
        with self._watch("product"):
            begun_s, start_s = time.perf_counter(), self.clock()
            result = multiply(*operands, **more)
            seconds = self.clock() - start_s
            self._product_s += seconds
            if self._owed > 0:
                self._sleep(seconds, time.perf_counter() - begun_s)
        return result

    def time_for_others(self, multiply: Callable[..., Tensor], *operands: Tensor) -> Tensor:
        """Multiply columns of another rank, as `time` does: no slower than one's own, but no time of one's own."""
        before_s = self._product_s
        result = self.time(multiply, *operands)
        self._received_s += self._product_s - before_s
        return result

    def _sleep(self, seconds: float, passed_s: float) -> None:
        """Sleep off what a product owes that took some seconds of the clock while others passed on the wall."""
        owed_s = seconds * self._owed
        self._straggling_s += seconds * self._straggles
        self._product_s += owed_s
        self._slept_s += owed_s
        for_a_core_s = min(max(passed_s - seconds, 0.0), seconds * (self._slowness - 1))
        self._sleeper.owe(owed_s, passed_s=for_a_core_s)

    @contextmanager
    def waiting(self, collective: str) -> Iterator[None]:
        """Leave a collective out of the rank's own time (a `Watch`); a thread's clock stands still there anyway."""
        start_s = self.clock()
        yield
        self._waited_s += self.clock() - start_s


def clock_of(device: torch.device | str, on_processor: Callable[[], float]) -> Callable[[], float]:
    """Return a clock of seconds: on CUDA the wall's once queued work is done, elsewhere the one given."""
    if torch.device(device).type != "cuda":
        return on_processor

    def synchronized() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return synchronized
