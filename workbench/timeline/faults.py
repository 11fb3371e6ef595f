"""Fault traces: which machines fail, when and how; the same for every policy that is compared.

A trace prints as a grid, a row a machine and a column a step of time: `S` a software failure of a machine's
processes, `r3` of its rank 3 alone, `H` hardware lost at once (all of a column are one fault), `R` the same for a rack,
`b` a flipped bit in a replica that the machine keeps; the rows `root` and `store` have `X`:

    machine 0 | . S . H
    machine 1 | . . . H
    store     | X . . .
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Any

from workbench.timeline.grid import IDLE, format_rows, parse_rows, whole_steps

__all__ = [
    "DAY_S",
    "OPT_FAILURES_PER_MACHINE_DAY",
    "Fault",
    "FaultKind",
    "FaultScope",
    "FaultSpan",
    "FaultTrace",
    "dated_faults",
    "poisson_faults",
    "rack_faults",
]

_MARK = "X"  # in the rows of the root and of the store


class FaultKind(StrEnum):
    """What is left after a fault."""

    SOFTWARE = "software"  # processes end, machines and what they keep in memory stay
    HARDWARE = "hardware"  # the machines hit are lost, with all they keep


class FaultScope(StrEnum):
    """How much fails."""

    RANK = "rank"  # one process of one machine
    MACHINE = "machine"  # one machine, or all processes of one
    MACHINES = "machines"  # several machines at once
    RACK = "rack"  # several machines that share a switch or a power supply
    REPLICA = "replica"  # a bit of what one machine keeps for others
    ROOT = "root"  # whichever machine coordinates the others
    STORE = "store"  # the key-value store


_NUM_MACHINES = dict.fromkeys((FaultScope.RANK, FaultScope.MACHINE, FaultScope.REPLICA), 1) | dict.fromkeys(
    (FaultScope.ROOT, FaultScope.STORE), 0
)
_ROWS = {scope.value: scope for scope in (FaultScope.ROOT, FaultScope.STORE)}
_WORDS = {
    (FaultKind.SOFTWARE, FaultScope.MACHINE): "S",
    (FaultKind.HARDWARE, FaultScope.MACHINE): "H",
    (FaultKind.HARDWARE, FaultScope.MACHINES): "H",
    (FaultKind.HARDWARE, FaultScope.RACK): "R",
    (FaultKind.SOFTWARE, FaultScope.REPLICA): "b",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One thing that fails."""

    time_s: float  # when, in seconds from the trace's start
    kind: FaultKind  # whether machines are lost
    scope: FaultScope = FaultScope.MACHINE  # how much fails
    machines: tuple[int, ...] = ()  # those hit, ascending; none for the root and the store
    rank: int | None = None  # the process of the machine, counted on it, for scope RANK only

    def __post_init__(self) -> None:
        object.__setattr__(self, "machines", tuple(sorted(self.machines)))
        if not 0 <= self.time_s < math.inf:
            raise ValueError(f"time_s is {self.time_s!r}; it must be finite and not negative")
        if len(set(self.machines)) < len(self.machines) or any(machine < 0 for machine in self.machines):
            raise ValueError(f"machines is {self.machines!r}; it must name different machines, from 0 on")
        needed = _NUM_MACHINES.get(self.scope)
        if (needed is None and not self.machines) or (needed is not None and len(self.machines) != needed):
            many = "at least 1" if needed is None else needed
            raise ValueError(f"machines is {self.machines!r}; a fault of scope {self.scope.value} must name {many}")
        if (self.rank is None) == (self.scope is FaultScope.RANK) or (self.rank or 0) < 0:
            raise ValueError(f"rank is {self.rank!r}; it must be given, from 0 on, for scope rank and no other")

    @property
    def lost(self) -> tuple[int, ...]:
        """The machines whose memory is gone: those hit by a hardware fault."""
        return self.machines if self.kind is FaultKind.HARDWARE else ()

    def as_record(self) -> dict[str, Any]:
        """Return the fault as JSON values."""
        values = {"time_s": self.time_s, "kind": self.kind.value, "scope": self.scope.value}
        return values | {"machines": list(self.machines)} | ({} if self.rank is None else {"rank": self.rank})


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultTrace:
    """Everything that fails while some machines run for some time."""

    num_machines: int  # how many machines there are
    duration_s: float  # seconds that the trace covers; it does not start again
    faults: tuple[Fault, ...] = ()  # by time

    def __post_init__(self) -> None:
        object.__setattr__(self, "faults", tuple(sorted(self.faults, key=attrgetter("time_s"))))
        if self.num_machines < 1:
            raise ValueError(f"num_machines is {self.num_machines!r}; it must be at least 1")
        if not 0 < self.duration_s < math.inf:
            raise ValueError(f"duration_s is {self.duration_s!r}; it must be finite and above 0")
        if self.faults and self.faults[-1].time_s >= self.duration_s:
            raise ValueError(f"time_s is {self.faults[-1].time_s!r}; it must be below duration_s, {self.duration_s!r}")
        for fault in self.faults:
            if fault.machines and fault.machines[-1] >= self.num_machines:
                raise ValueError(f"machines is {fault.machines!r}; it must be in 0..{self.num_machines - 1}")

    @classmethod
    def none(cls, num_machines: int, duration_s: float) -> FaultTrace:
        """Return the trace in which nothing fails."""
        return cls(num_machines=num_machines, duration_s=duration_s)

    @classmethod
    def regular(
        cls, num_machines: int, duration_s: float, *, faults_per_day: float, kind: FaultKind = FaultKind.SOFTWARE
    ) -> FaultTrace:
        """Return faults of single machines, in turn from machine 0 on, at even distances from half of one on."""
        if not 0 <= faults_per_day < math.inf:
            raise ValueError(f"faults_per_day is {faults_per_day!r}; it must be finite and not negative")
        distance_s = 86_400 / faults_per_day if faults_per_day else math.inf
        number = math.ceil(duration_s / distance_s - 0.5) if faults_per_day else 0
        faults = [
            Fault(time_s=(index + 0.5) * distance_s, kind=kind, machines=(index % num_machines,))
            for index in range(number)
        ]
        return cls(num_machines=num_machines, duration_s=duration_s, faults=tuple(faults))

    @classmethod
    def merged(cls, traces: Iterable[FaultTrace]) -> FaultTrace:
        """Return one trace with the faults of several of the same machines and seconds."""
        traces = tuple(traces)
        covers = {(trace.num_machines, trace.duration_s) for trace in traces}
        if len(covers) != 1:
            raise ValueError(f"traces cover (machines, seconds) {sorted(covers)}; it must be one and the same for all")
        ((num_machines, duration_s),) = covers
        faults = tuple(fault for trace in traces for fault in trace.faults)
        return cls(num_machines=num_machines, duration_s=duration_s, faults=faults)

    def faults_per_day(self) -> float:
        """Return how many faults there are a day, on average."""
        return len(self.faults) * 86_400 / self.duration_s

    def num_of(self, kind: FaultKind) -> int:
        """Return how many faults are of a kind."""
        return sum(fault.kind is kind for fault in self.faults)

    def as_grid(self, *, step_s: float) -> str:
        """Print the trace, a row a machine and a column a step of `step_s` seconds.

        Raises:
            ValueError: if a time is no multiple, or two faults would share a cell or be read back as one.
        """
        num_columns = whole_steps(self.duration_s, step_s)
        rows = {f"machine {machine}": [IDLE] * num_columns for machine in range(self.num_machines)}
        rows |= {name: [IDLE] * num_columns for name, scope in _ROWS.items() if self._has(scope)}
        wide: set[tuple[int, str]] = set()  # columns in which machines were lost, with the word
        for fault in self.faults:
            column, word = whole_steps(fault.time_s, step_s), _word(fault)
            names = [f"machine {machine}" for machine in fault.machines] or [fault.scope.value]
            taken = any(rows[name][column] != IDLE for name in names) or (column, word) in wide
            if taken or (fault.scope is FaultScope.RACK and len(names) < 2):
                raise ValueError(f"fault is {fault!r}; in a grid of step_s {step_s!r} it must stand apart from others")
            wide |= {(column, word)} if fault.lost else set()
            for name in names:
                rows[name][column] = word
        return format_rows(rows)

    @classmethod
    def from_grid(cls, grid: str, *, step_s: float) -> FaultTrace:
        """Read what `as_grid` printed; the grid does not say how long a step is."""
        rows = parse_rows(grid)
        machines = [name for name in rows if name not in _ROWS]
        if not machines or list(rows)[: len(machines)] != [f"machine {number}" for number in range(len(machines))]:
            raise ValueError(f"rows are {list(rows)!r}; they must be 'machine 0', 'machine 1', ..., then root or store")
        faults = [fault for name, scope in _ROWS.items() for fault in _marks(rows.get(name, []), scope, step_s)]
        columns = list(zip(*(rows[name] for name in machines), strict=True))
        for column, words in enumerate(columns):
            faults += _column(words, column * step_s)
        return cls(num_machines=len(machines), duration_s=len(columns) * step_s, faults=tuple(faults))

    @property
    def digest(self) -> str:
        """The sha256 of the trace: two runs with one digest were to suffer the same."""
        return hashlib.sha256(json.dumps(self._values(), sort_keys=True).encode()).hexdigest()

    def as_record(self) -> dict[str, Any]:
        """Return the trace as JSON values, with its digest."""
        return {**self._values(), "sha256": self.digest}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> FaultTrace:
        """Read what `as_record` wrote."""
        faults = tuple(
            Fault(
                time_s=one["time_s"],
                kind=FaultKind(one["kind"]),
                scope=FaultScope(one["scope"]),
                machines=tuple(one["machines"]),
                rank=one.get("rank"),
            )
            for one in record["faults"]
        )
        trace = cls(num_machines=record["num_machines"], duration_s=record["duration_s"], faults=faults)
        if trace.digest != record["sha256"]:
            raise ValueError(f"sha256 is {record['sha256']!r}; that of the values is {trace.digest!r}")
        return trace

    def _has(self, scope: FaultScope) -> bool:
        return any(fault.scope is scope for fault in self.faults)

    def _values(self) -> dict[str, Any]:
        faults = [fault.as_record() for fault in self.faults]
        return {"num_machines": self.num_machines, "duration_s": self.duration_s, "faults": faults}


def _word(fault: Fault) -> str:
    if fault.scope is FaultScope.RANK and fault.kind is FaultKind.SOFTWARE:
        return f"r{fault.rank}"
    if fault.scope in _ROWS.values() and fault.kind is FaultKind.HARDWARE:
        return _MARK
    if (fault.kind, fault.scope) not in _WORDS:
        raise ValueError(f"fault is {fault!r}; a grid has no word for its kind with its scope")
    return _WORDS[fault.kind, fault.scope]


def _marks(words: list[str], scope: FaultScope, step_s: float) -> list[Fault]:
    if strange := [word for word in words if word not in (IDLE, _MARK)]:
        raise ValueError(f"word is {strange[0]!r}; in the row {scope.value!r} it must be {IDLE!r} or {_MARK!r}")
    times = (column * step_s for column, word in enumerate(words) if word == _MARK)
    return [Fault(time_s=time_s, kind=FaultKind.HARDWARE, scope=scope) for time_s in times]


def _column(words: tuple[str, ...], time_s: float) -> list[Fault]:
    """Read one step: single faults word by word, machines lost at once as one fault."""
    singles = [_single(word, machine, time_s) for machine, word in enumerate(words) if word not in (IDLE, "H", "R")]
    for letter, several in (("H", FaultScope.MACHINES), ("R", FaultScope.RACK)):
        machines = tuple(machine for machine, word in enumerate(words) if word == letter)
        scope = FaultScope.MACHINE if len(machines) == 1 and letter == "H" else several
        if machines:
            singles.append(Fault(time_s=time_s, kind=FaultKind.HARDWARE, scope=scope, machines=machines))
    return singles


def _single(word: str, machine: int, time_s: float) -> Fault:
    scopes = {"S": FaultScope.MACHINE, "b": FaultScope.REPLICA}
    common = {"time_s": time_s, "kind": FaultKind.SOFTWARE, "machines": (machine,)}
    if word in scopes:
        return Fault(scope=scopes[word], **common)
    if word[:1] == "r" and word[1:].isdecimal():
        return Fault(scope=FaultScope.RANK, rank=int(word[1:]), **common)
    raise ValueError(f"word is {word!r}; it must be '.', 'S', 'r3', 'H', 'R' or 'b'")


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

    Raises:
        ValueError: if a span ends after the trace, or hits more machines than there are.
    """
    faults: list[Fault] = []
    for number, span in enumerate(spans):
        num_hit = num_machines if span.machines_each is None else span.machines_each
        if span.end_s > duration_s or num_hit > num_machines:
            raise ValueError(f"span is {span!r}; it must end by {duration_s!r} s and hit at most {num_machines}")
        generator = random.Random(f"{seed} span {number}")
        scope = FaultScope.MACHINE if num_hit == 1 else FaultScope.MACHINES
        for _ in range(span.num_faults):
            time_s = min(generator.uniform(span.start_s, span.end_s), math.nextafter(duration_s, 0))
            machines = tuple(generator.sample(range(num_machines), num_hit))
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
