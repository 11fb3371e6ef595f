"""Fault traces drawn from a seed: machine by machine, rack by rack, or within the days that a diary names.

Every machine (rack, span) has its own generator: its faults do not depend on the number of machines, and a longer trace
begins with the faults of a shorter one. Rates are constant.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

from .faults import Fault, FaultKind, FaultScope, FaultTrace

__all__ = ["DAY_S", "OPT_FAILURES_PER_MACHINE_DAY", "FaultSpan", "dated_faults", "poisson_faults", "rack_faults"]

DAY_S = 86_400
OPT_FAILURES_PER_MACHINE_DAY = 0.015  # thesis, section 6.7.2: 1.5 % of OPT-175B's instances fail every day


def poisson_faults(
    num_machines: int,
    *,
    duration_s: float,
    failures_per_machine_day: float = OPT_FAILURES_PER_MACHINE_DAY,
    hardware_share: float = 1.0,
    seed: int,
) -> FaultTrace:
    """Draw faults of single machines, each machine's at random moments independent of one another.

    Args:
        num_machines: how many machines there are.
        duration_s: seconds that the trace covers.
        failures_per_machine_day: mean number of faults of one machine a day.
        hardware_share: probability that a fault loses its machine; otherwise it is a software failure.
        seed: of the draw.

    Returns:
        The trace; with half of the machines it has the same faults on these.

    Raises:
        ValueError: if a number, rate or share is out of range.
    """
    _check_rate("failures_per_machine_day", failures_per_machine_day)
    if not 0 <= hardware_share <= 1:
        raise ValueError(f"hardware_share is {hardware_share!r}; it must be in [0, 1]")
    nothing = FaultTrace.none(num_machines, duration_s)
    faults = []
    for machine in range(num_machines):
        generator = random.Random(f"{seed} machine {machine}")
        for time_s in _moments(generator, failures_per_machine_day / DAY_S, nothing.duration_s):
            is_hardware = generator.random() < hardware_share
            kind = FaultKind.HARDWARE if is_hardware else FaultKind.SOFTWARE
            faults.append(Fault(time_s=time_s, kind=kind, machines=(machine,)))
    return FaultTrace(num_machines=num_machines, duration_s=duration_s, faults=tuple(faults))


def rack_faults(
    num_machines: int, *, machines_per_rack: int, duration_s: float, failures_per_rack_day: float, seed: int
) -> FaultTrace:
    """Draw faults that take all machines of a rack at once; racks are runs of neighbouring numbers.

    Args:
        num_machines: how many machines there are; the last rack may be smaller.
        machines_per_rack: machines that share a rack.
        duration_s: seconds that the trace covers.
        failures_per_rack_day: mean number of faults of one rack a day.
        seed: of the draw.

    Returns:
        The trace; to merge with that of single machines.

    Raises:
        ValueError: if a number or rate is out of range.
    """
    _check_rate("failures_per_rack_day", failures_per_rack_day)
    if not 1 <= machines_per_rack <= num_machines:
        raise ValueError(f"machines_per_rack is {machines_per_rack!r}; it must be in 1..{num_machines}")
    nothing = FaultTrace.none(num_machines, duration_s)
    faults = []
    for rack, first in enumerate(range(0, num_machines, machines_per_rack)):
        machines = tuple(range(first, min(first + machines_per_rack, num_machines)))
        moments = _moments(random.Random(f"{seed} rack {rack}"), failures_per_rack_day / DAY_S, nothing.duration_s)
        common = {"kind": FaultKind.HARDWARE, "scope": FaultScope.RACK, "machines": machines}
        faults += [Fault(time_s=time_s, **common) for time_s in moments]
    return FaultTrace(num_machines=num_machines, duration_s=duration_s, faults=tuple(faults))


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultSpan:
    """A known number of faults somewhere in a span of time."""

    start_s: float  # where the span begins, in seconds from the trace's start
    end_s: float  # where it ends, above start_s
    num_faults: int = 1  # how many there are in it
    kind: FaultKind = FaultKind.HARDWARE  # whether machines are lost
    machines_each: int | None = 1  # how many machines each of them hits; None means all

    def __post_init__(self) -> None:
        if not 0 <= self.start_s < self.end_s < math.inf:
            raise ValueError(f"start_s, end_s are {self.start_s!r}, {self.end_s!r}; they must be finite and ascend")
        if self.num_faults < 0:
            raise ValueError(f"num_faults is {self.num_faults!r}; it must not be negative")
        if self.machines_each is not None and self.machines_each < 1:
            raise ValueError(f"machines_each is {self.machines_each!r}; it must be at least 1, or None for all")


def dated_faults(num_machines: int, spans: Iterable[FaultSpan], *, duration_s: float, seed: int) -> FaultTrace:
    """Place faults whose number is known at moments, and on machines, that are not: both uniform.

    Args:
        num_machines: how many machines there are.
        spans: what is known.
        duration_s: seconds that the trace covers; every span must end by then.
        seed: of the draw.

    Raises:
        ValueError: if a span ends after the trace, or hits more machines than there are.
    """
    faults: list[Fault] = []
    for number, span in enumerate(spans):
        each = num_machines if span.machines_each is None else span.machines_each
        if span.end_s > duration_s or each > num_machines:
            raise ValueError(f"span is {span!r}; it must end by {duration_s!r} s and hit at most {num_machines}")
        generator = random.Random(f"{seed} span {number}")
        scope = FaultScope.MACHINE if each == 1 else FaultScope.MACHINES
        for _ in range(span.num_faults):
            time_s = min(generator.uniform(span.start_s, span.end_s), math.nextafter(duration_s, 0))
            machines = tuple(generator.sample(range(num_machines), each))
            faults.append(Fault(time_s=time_s, kind=span.kind, scope=scope, machines=machines))
    return FaultTrace(num_machines=num_machines, duration_s=duration_s, faults=tuple(faults))


def _check_rate(name: str, rate: float) -> None:
    if not 0 <= rate < math.inf:
        raise ValueError(f"{name} is {rate!r}; it must be finite and not negative")


def _moments(generator: random.Random, rate_per_s: float, duration_s: float) -> list[float]:
    """Draw the moments of one Poisson process."""
    moments: list[float] = []
    time_s = generator.expovariate(rate_per_s) if rate_per_s else math.inf
    while time_s < duration_s:
        moments.append(time_s)
        time_s += generator.expovariate(rate_per_s)
    return moments
