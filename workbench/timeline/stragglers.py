"""Stragglers by a trace of skewness, the factor by which a rank is slowed down, and the injected delays.

A `Sleeper` sleeps (skewness - 1) x the CPU seconds of the rank's products and counts the dose. A rank of skewness 1
(the paper's 0) is no straggler. A trace prints as a grid, a row a rank and a column an epoch:

    rank 0 | 8 . . rank 1 | . 8 .
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from .grid import IDLE, format_rows

__all__ = ["Dose", "Sleeper", "StragglerTrace"]

# A sleep takes about 60 microseconds longer than asked (Linux's timer slack of 50, and waking up). A debt below a few
# times that waits until it has grown.
LEAST_SLEEP_S = 200e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class StragglerTrace:
    """The skewness of every rank in every epoch."""

    rows: tuple[tuple[float, ...], ...]  # skewness by rank and epoch, at least 1; the epochs repeat
    iterations_per_epoch: int = 1  # iterations of an epoch

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(tuple(float(value) for value in row) for row in self.rows))
        if not self.rows or not self.rows[0]:
            raise ValueError(f"rows is {self.rows!r}; it must hold at least one rank and one epoch")
        if len({len(row) for row in self.rows}) > 1:
            raise ValueError(f"rows has {[len(row) for row in self.rows]} epochs; all ranks must have the same number")
        for rank, row in enumerate(self.rows):
            for value in row:
                if not 1 <= value < math.inf:
                    raise ValueError(f"skewness of rank {rank} is {value!r}; it must be finite and at least 1")
        if self.iterations_per_epoch < 1:
            raise ValueError(f"iterations_per_epoch is {self.iterations_per_epoch!r}; it must be at least 1")

    @classmethod
    def none(cls, num_ranks: int) -> StragglerTrace:
        """Return a trace without stragglers."""
        return cls.fixed(num_ranks, {})

    @classmethod
    def fixed(cls, num_ranks: int, skewness: Mapping[int, float]) -> StragglerTrace:
        """Return a trace that never changes; ranks without a given skewness are no stragglers."""
        unknown = [rank for rank in skewness if not 0 <= rank < num_ranks]
        if unknown:
            raise ValueError(f"skewness names rank {unknown[0]!r}; it must be in 0..{num_ranks - 1}")
        return cls(rows=tuple((skewness.get(rank, 1.0),) for rank in range(num_ranks)))

    @classmethod
    def round_robin(cls, num_ranks: int, skewness: float, *, iterations_per_epoch: int) -> StragglerTrace:
        """Return a trace with one straggler, rank 0 first, that moves to the next rank every epoch."""
        rows = ((skewness if rank == epoch else 1.0 for epoch in range(num_ranks)) for rank in range(num_ranks))
        return cls(rows=tuple(map(tuple, rows)), iterations_per_epoch=iterations_per_epoch)

    @classmethod
    def measured(cls, seconds: Sequence[Sequence[float]], *, iterations_per_epoch: int = 1) -> StragglerTrace:
        """Return the trace of real ranks with equal work: the time of each rank over the time of the fastest rank.

        Args:
            seconds: compute seconds by rank and step; a step becomes an epoch.
            iterations_per_epoch: iterations of an epoch of the trace.
        """
        for rank, row in enumerate(seconds):
            if any(not 0 < value < math.inf for value in row):
                raise ValueError(f"seconds of rank {rank} is {list(row)!r}; each must be finite and above 0")
        fastest_s = [min(step) for step in zip(*seconds, strict=True)]
        rows = (tuple(value / least for value, least in zip(row, fastest_s, strict=True)) for row in seconds)
        return cls(rows=tuple(rows), iterations_per_epoch=iterations_per_epoch)

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.rows)

    @property
    def num_epochs(self) -> int:
        """Number of epochs before the trace repeats."""
        return len(self.rows[0])

    def skewness(self, rank: int, iteration: int) -> float:
        """Return the factor, at least 1, by which a rank is slowed down at an iteration."""
        if not 0 <= rank < self.num_ranks:
            raise ValueError(f"rank is {rank!r}; it must be in 0..{self.num_ranks - 1}")
        if iteration < 0:
            raise ValueError(f"iteration is {iteration!r}; it must not be negative")
        return self.rows[rank][iteration // self.iterations_per_epoch % self.num_epochs]

    def stragglers(self, iteration: int) -> tuple[int, ...]:
        """Return the stragglers at an iteration, ascending."""
        return tuple(rank for rank in range(self.num_ranks) if self.skewness(rank, iteration) > 1)

    def as_grid(self) -> str:
        """Write the trace as a grid, a row a rank and a column an epoch."""
        words = ([IDLE if value == 1 else repr(value).removesuffix(".0") for value in row] for row in self.rows)
        return format_rows({f"rank {rank}": row for rank, row in enumerate(words)})

    @property
    def digest(self) -> str:
        """The sha256 of the trace: runs with equal digests were meant to get the same dose."""
        return hashlib.sha256(json.dumps(self._values(), sort_keys=True).encode()).hexdigest()

    def as_record(self) -> dict[str, Any]:
        """Return the trace as JSON values, with its digest."""
        return {**self._values(), "sha256": self.digest}

    def _values(self) -> dict[str, Any]:
        return {"iterations_per_epoch": self.iterations_per_epoch, "skewness": [list(row) for row in self.rows]}


@dataclass(frozen=True, kw_only=True, slots=True)
class Dose:
    """The intended and the delivered delay of one rank."""

    intended_s: float = 0.0  # delay that the rank was to have
    straggling_s: float = 0.0  # part of intended_s that makes the rank a straggler; the rest slows all ranks alike
    delivered_s: float = 0.0  # measured sleep, plus passed_s
    passed_s: float = 0.0  # delay that occurred without a sleep, such as while the rank waited for a core

    def __sub__(self, before: Dose) -> Dose:
        """Return the difference to an earlier dose of the same rank."""
        return Dose(**{part.name: getattr(self, part.name) - getattr(before, part.name) for part in fields(self)})

    @property
    def error(self) -> float:
        """The relative error of the delivered delay; 0 where no delay was intended."""
        return self.delivered_s / self.intended_s - 1 if self.intended_s else 0.0

    def as_record(self) -> dict[str, float]:
        """Return the dose as JSON values."""
        return asdict(self)


class Sleeper:
    """Sleeps so that a rank's total sleep follows its total intended delay.

    A sleep lasts longer than asked. The excess is measured and deducted from the next sleep. A debt that is too short
    for an accurate sleep waits until it has grown.
    """

    def __init__(
        self,
        *,
        least_s: float = LEAST_SLEEP_S,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Start without a debt."""
        self._least_s = least_s
        self._clock = clock
        self._sleep = sleep
        self._intended_s = 0.0
        self._delivered_s = 0.0
        self._passed_s = 0.0

    @property
    def debt_s(self) -> float:
        """Intended less delivered seconds; negative after a sleep that was too long."""
        return self._intended_s - self._delivered_s

    @property
    def dose(self) -> Dose:
        """The dose so far."""
        return Dose(intended_s=self._intended_s, delivered_s=self._delivered_s, passed_s=self._passed_s)

    def owe(self, seconds: float, *, passed_s: float = 0.0) -> float:
        """Add to the debt, and sleep it off unless it is too short; return the seconds slept now.

        Args:
            seconds: (skewness - 1) x the thread CPU seconds of the products just computed.
            passed_s: the part of them that has passed already, such as while the rank waited for a core.
        """
        if not 0 <= seconds < math.inf:
            raise ValueError(f"seconds is {seconds!r}; it must be finite and not negative")
        self._intended_s += seconds
        self._delivered_s += passed_s
        self._passed_s += passed_s
        return self._pay() if 0 < self.debt_s >= self._least_s else 0.0

    def flush(self) -> float:
        """Sleep off the remaining debt; return the seconds slept."""
        return self._pay() if self.debt_s > 0 else 0.0

    def _pay(self) -> float:
        start_s = self._clock()
        self._sleep(self.debt_s)
        slept_s = self._clock() - start_s
        self._delivered_s += slept_s
        return slept_s
