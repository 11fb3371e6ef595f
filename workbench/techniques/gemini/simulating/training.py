"""A training under failures, simulated from failure to failure: what becomes of its time.

What: `simulate_training` replays a `FaultTrace` on a `Setting` and says how much of the time was progress that stayed,
what wasted the rest, and from which tier training recovered how often; `simulate_training_by_definition` takes every
iteration by itself.
Source: thesis, chapter 6 (Gemini), sections 6.6.2 and 6.7.3; effective training time ratio: section 6.7.3.
Simplified: a recovery is detection, serialising, replacement, retrieval, warm-up, one after the other; a failure within
one starts it anew, and machines that have arrived by then stay.
Left out: progress after the end; faults of the store, of the root's role, and of replicas nobody has to read.

Time grows as failures x log(iterations between two): about 10 microseconds each for placements of any size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from workbench.timeline.faults import Fault, FaultTrace

from ..method.waste import CheckpointPolicy, Tier
from .machines import Machines
from .progress import Stretch, advanced, advanced_by_definition
from .setting import Setting

__all__ = ["Cause", "Span", "TrainingRun", "simulate_training", "simulate_training_by_definition"]

Advance = Callable[[CheckpointPolicy, int, float], Stretch]


class Cause(StrEnum):
    """What time goes to that is no progress."""

    LOST = "lost progress"
    DETECTION = "detection"
    SERIALISING = "serialising"  # of what is in memory, after a failure
    REPLACEMENT = "replacement"
    RETRIEVAL = "retrieval"
    WARM_UP = "warm-up"
    CHECKPOINTING = "blocked by checkpoints"


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Some seconds spent on one thing.

    Attributes:
        start_s: on the trace's clock.
        end_s: on the trace's clock.
        cause: what a recovery was about; None for training, blocking by checkpoints included.
        iteration: iterations done at the start of training; that to which a recovery goes back.
        tier: that a recovery reads from.
    """

    start_s: float
    end_s: float
    cause: Cause | None
    iteration: int
    tier: Tier | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRun:
    """What became of the time.

    Attributes:
        duration_s: all of it.
        productive_s: of it, progress that stayed until the end.
        wasted_s: all the rest, by what wasted it.
        num_recoveries: how often training resumed, by the tier that served it.
        num_failures: faults that hit something.
        num_interrupted: recoveries that a further failure cut short.
        spans: one after the other, if they were asked for.
    """

    duration_s: float
    productive_s: float
    wasted_s: Mapping[Cause, float]
    num_recoveries: Mapping[Tier, int]
    num_failures: int
    num_interrupted: int
    spans: tuple[Span, ...] = ()

    @property
    def effective_ratio(self) -> float:
        """Share of the time that was progress that stayed."""
        return self.productive_s / self.duration_s


def simulate_training(setting: Setting, trace: FaultTrace, *, keep_spans: bool = False) -> TrainingRun:
    """Simulate a training under the failures of a trace, from failure to failure.

    Args:
        setting: job, policy, overheads, placement, standby machines.
        trace: what fails when; its seconds are simulated.
        keep_spans: keep what was done when, for a timeline.

    Returns:
        Where the time went; productive and wasted seconds add up to the duration.

    Raises:
        ValueError: if machines are lost and the setting has no placement for them, or one of another size, or a
            hardware fault does not say which machine it takes.
    """
    _check(setting, trace)
    return _Simulation(setting, trace, advanced, keep_spans).run()


def simulate_training_by_definition(setting: Setting, trace: FaultTrace, *, keep_spans: bool = False) -> TrainingRun:
    """Simulate the same iteration by iteration; arguments as for `simulate_training`."""
    _check(setting, trace)
    return _Simulation(setting, trace, advanced_by_definition, keep_spans).run()


@dataclass(slots=True)
class _Simulation:
    setting: Setting
    trace: FaultTrace
    advance: Advance
    keep_spans: bool
    machines: Machines = field(init=False)
    now_s: float = 0.0
    position: float = 0.0  # iterations done
    next_fault: int = 0
    num_failures: int = 0
    num_interrupted: int = 0
    spans: list[Span] = field(default_factory=list)
    recoveries: Counter = field(default_factory=Counter)
    wasted_s: dict[Cause, float] = field(default_factory=lambda: dict.fromkeys(Cause, 0.0))

    def __post_init__(self) -> None:
        self.machines = Machines(self.setting)

    def run(self) -> TrainingRun:
        self.train()
        while (fault := self.take_fault()) is not None:
            self.recover(fault)
            self.train()
        return TrainingRun(
            duration_s=self.trace.duration_s,
            productive_s=self.position * self.setting.job.iteration_s,
            wasted_s=self.wasted_s,
            num_recoveries={tier: self.recoveries[tier] for tier in Tier if tier is not Tier.START},
            num_failures=self.num_failures,
            num_interrupted=self.num_interrupted,
            spans=tuple(self.spans),
        )

    def train(self) -> None:
        """Train until the next failure, or the end."""
        end_s = self.stop_s(self.trace.duration_s)
        if end_s <= self.now_s:
            return
        start = round(self.position)  # whole: training resumes at an iteration's end
        stretch = self.advance(self.setting.policy, start, end_s - self.now_s)
        self.machines.complete(memory=stretch.memory, storage=stretch.storage)
        trained_s = (stretch.position - start) * self.setting.job.iteration_s
        self.wasted_s[Cause.CHECKPOINTING] += end_s - self.now_s - trained_s
        self.note(end_s, None, start)
        self.position, self.now_s = stretch.position, end_s

    def recover(self, fault: Fault) -> None:
        """Recover from a failure and from all that come meanwhile; then roll progress back."""
        while not self.recovered_from(fault) and (fault := self.take_fault()) is not None:
            self.num_interrupted += 1
        back_to = self.machines.recoverable
        self.wasted_s[Cause.LOST] += (self.position - back_to) * self.setting.job.iteration_s
        self.position = float(back_to)

    def recovered_from(self, fault: Fault) -> bool:
        """Go through the parts of a recovery; say whether nothing came in between."""
        machines, overheads = self.machines, self.setting.overheads
        machines.lose(fault)
        tier = machines.tier
        serialise_s = 0.0 if tier is Tier.STORAGE else overheads.serialise_s
        if not self.spend(Cause.DETECTION, overheads.detection_s, tier):
            return False
        if not self.spend(Cause.SERIALISING, serialise_s, tier):
            return False
        if not self.spend(Cause.REPLACEMENT, machines.request(self.now_s), tier):
            return False
        machines.arrive()
        if not self.spend(Cause.RETRIEVAL, self.setting.job.retrieval_s(tier), tier):
            return False
        machines.retrieve(tier)
        if not self.spend(Cause.WARM_UP, overheads.warm_up_s, tier):
            return False
        self.recoveries[tier] += 1
        return True

    def spend(self, cause: Cause, seconds: float, tier: Tier) -> bool:
        """Let some seconds pass; stop at a failure or at the end, and say whether none came."""
        end_s = self.now_s + seconds
        reached_s = max(self.now_s, self.stop_s(end_s))
        self.wasted_s[cause] += reached_s - self.now_s
        self.note(reached_s, cause, self.machines.recoverable if self.keep_spans else 0, tier)
        self.now_s = reached_s
        return end_s <= reached_s

    def stop_s(self, until_s: float) -> float:
        """Return when the next fault comes that hits something, or a later moment, or the end.

        Whether a fault hits depends on which machines are there by then, so faults after `until_s` are not looked at.
        """
        faults, until_s = self.trace.faults, min(until_s, self.trace.duration_s)
        while self.next_fault < len(faults) and faults[self.next_fault].time_s < until_s:
            if not self.machines.is_void(faults[self.next_fault]):
                return faults[self.next_fault].time_s
            self.next_fault += 1
        return until_s

    def take_fault(self) -> Fault | None:
        """Return the fault that has just come; None at the end."""
        faults = self.trace.faults
        while self.next_fault < len(faults) and faults[self.next_fault].time_s <= self.now_s:
            fault, self.next_fault = faults[self.next_fault], self.next_fault + 1
            if not self.machines.is_void(fault):
                self.num_failures += 1
                return fault
        return None

    def note(self, end_s: float, cause: Cause | None, iteration: int, tier: Tier | None = None) -> None:
        if self.keep_spans and end_s > self.now_s:
            self.spans.append(Span(start_s=self.now_s, end_s=end_s, cause=cause, iteration=iteration, tier=tier))


def _check(setting: Setting, trace: FaultTrace) -> None:
    lost = [fault for fault in trace.faults if fault.kind.value == "hardware" and fault.scope.value != "store"]
    if nameless := [fault for fault in lost if not fault.machines]:
        raise ValueError(f"fault is {nameless[0]!r}; it must say which machine is lost")
    placed = setting.placement
    if lost and setting.policy.memory is not None and placed is None:
        raise ValueError(f"placement is None; {setting.policy.name} must know who keeps what where machines are lost")
    if placed is not None and placed.num_machines != trace.num_machines:
        raise ValueError(
            f"num_machines of the placement is {placed.num_machines!r}; it must be the trace's, {trace.num_machines!r}"
        )
