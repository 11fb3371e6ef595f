"""A training under failures, simulated from failure to failure: what becomes of its time.

A failure within a recovery starts it anew, and machines that have arrived stay. A replaced machine gets its own shard
back when training recovers, and its peers' with the next complete checkpoint.
"""

import heapq
import math
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum

from workbench.checks import require_counts, require_not_negative, require_positive
from workbench.cluster import GIGABIT_BYTES_PER_S

from ..method.placement import Placement
from ..method.recovery import Tier
from ..method.waste import DAY_S, TABLE_6_2, CheckpointPolicy, Job, checkpoint_bytes, num_parameters

__all__ = ["DAY_S", "GPT2_100B", "MT_NLG", "OPT_FAILURES_PER_MACHINE_DAY", "PAPER_OVERHEADS", "Cause", "Fault"]
__all__ += ["FaultKind", "FaultTrace", "Overheads", "Setting", "Span", "TrainingRun", "advanced"]
__all__ += ["advanced_by_definition", "poisson_faults", "simulate_training", "simulate_training_by_definition"]
__all__ += ["stretch_moments"]

OPT_FAILURES_PER_MACHINE_DAY = 0.015  # section 6.7.2: 1.5 % of OPT-175B's instances fail every day


class FaultKind(StrEnum):
    """What is left after a fault."""

    SOFTWARE = "software"  # processes end, machines and what they keep in memory stay
    HARDWARE = "hardware"  # the machines hit are lost, with all they keep


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One failure."""

    time_s: float  # when, in seconds from the trace's start
    kind: FaultKind  # whether machines are lost
    machines: tuple[int, ...]  # those hit, ascending

    def __post_init__(self) -> None:
        object.__setattr__(self, "machines", tuple(sorted(self.machines)))
        require_not_negative(time_s=self.time_s)
        if not self.machines or len(set(self.machines)) < len(self.machines) or self.machines[0] < 0:
            raise ValueError(f"machines is {self.machines!r}; it must name at least 1, different ones, from 0 on")


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultTrace:
    """Everything that fails while some machines run for some time; the same for every policy that is compared."""

    num_machines: int  # how many machines there are
    duration_s: float  # seconds that the trace covers; it does not start again
    faults: tuple[Fault, ...] = ()  # by time

    def __post_init__(self) -> None:
        object.__setattr__(self, "faults", tuple(sorted(self.faults, key=lambda fault: fault.time_s)))
        require_counts(1, num_machines=self.num_machines)
        require_positive(duration_s=self.duration_s)
        if self.faults and self.faults[-1].time_s >= self.duration_s:
            raise ValueError(f"time_s is {self.faults[-1].time_s!r}; it must be below duration_s, {self.duration_s!r}")
        for fault in self.faults:
            if fault.machines[-1] >= self.num_machines:
                raise ValueError(f"machines is {fault.machines!r}; it must be in 0..{self.num_machines - 1}")


def poisson_faults(
    num_machines: int,
    *,
    duration_s: float,  # that the trace covers
    failures_per_machine_day: float = OPT_FAILURES_PER_MACHINE_DAY,  # mean number of faults of one machine a day
    hardware_share: float = 1.0,  # probability that a fault loses its machine; otherwise it is a software failure
    seed: int,
) -> FaultTrace:
    """Draw faults of single machines at random times; a trace of half of the machines has the same faults on these."""
    require_not_negative(failures_per_machine_day=failures_per_machine_day)
    if not 0 <= hardware_share <= 1:
        raise ValueError(f"hardware_share is {hardware_share!r}; it must be in [0, 1]")
    FaultTrace(num_machines=num_machines, duration_s=duration_s)  # refuses both before any work
    rate_per_s, faults = failures_per_machine_day / DAY_S, []
    for machine in range(num_machines if rate_per_s else 0):
        generator, times_s = random.Random(f"{seed} machine {machine}"), []
        time_s = generator.expovariate(rate_per_s)
        while time_s < duration_s:
            times_s.append(time_s)
            time_s += generator.expovariate(rate_per_s)
        for time_s in times_s:
            kind = FaultKind.HARDWARE if generator.random() < hardware_share else FaultKind.SOFTWARE
            faults.append(Fault(time_s=time_s, kind=kind, machines=(machine,)))
    return FaultTrace(num_machines=num_machines, duration_s=duration_s, faults=tuple(faults))


GPT2_100B = Job(
    name="GPT-2 100B on 16 p4d",
    iteration_s=62.0,  # section 6.7.2
    state_bytes=checkpoint_bytes(num_parameters(TABLE_6_2["GPT-2 100B"])),  # 1,203.4 GB, 9.4 GB a GPU
    num_machines=16,
    storage_bytes_per_s=20 * GIGABIT_BYTES_PER_S,  # section 6.7.1: FSx
    network_bytes_per_s=400 * GIGABIT_BYTES_PER_S,  # section 6.7.1: EFA
    serialise_s=81.0,  # section 6.7.3, one checkpoint
)
MT_NLG = Job(
    name="MT-NLG",
    iteration_s=1.0,  # not given, and without influence on Eq. 6.1 where checkpoints take minutes
    state_bytes=checkpoint_bytes(530e9),
    num_machines=560,  # table 2.1: 4,480 A100, 8 a machine
    storage_bytes_per_s=20 * GIGABIT_BYTES_PER_S,  # section 6.2.2
    network_bytes_per_s=400 * GIGABIT_BYTES_PER_S,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Overheads:
    """What a failure costs besides lost progress and retrieval, in seconds one after the other."""

    detection_s: float  # until the failure is known
    serialise_s: float  # to write what is in memory to files; not where storage is read
    least_replacement_s: float  # to get a machine in place of a lost one, at least
    most_replacement_s: float  # at most; drawn uniformly in between
    warm_up_s: float  # from retrieved states to the first iteration

    def __post_init__(self) -> None:
        require_not_negative(**{field.name: getattr(self, field.name) for field in fields(self)})
        if self.most_replacement_s < self.least_replacement_s:
            rule = f"it must be at least {self.least_replacement_s!r}, least_replacement_s"
            raise ValueError(f"most_replacement_s is {self.most_replacement_s!r}; {rule}")


PAPER_OVERHEADS = Overheads(
    detection_s=15.0,  # section 6.7.3
    serialise_s=162.0,  # section 6.7.3: two replicas
    least_replacement_s=4 * 60.0,  # section 6.7.3: 4 to 7 minutes
    most_replacement_s=7 * 60.0,
    warm_up_s=4 * 60.0,  # section 6.7.3: more than four minutes
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A training to simulate."""

    job: Job  # what is trained
    policy: CheckpointPolicy  # when it checkpoints
    overheads: Overheads = PAPER_OVERHEADS  # what a failure costs besides
    # Who keeps whose replicas; needed where machines are lost and the policy keeps some in memory.
    placement: Placement | None = None
    num_standbys: int = 0  # machines that wait to take a lost one's place at once; one that went is requested again
    seed: int = 0  # of the draws of replacement times

    def __post_init__(self) -> None:
        if self.policy.iteration_s != self.job.iteration_s:
            rule = f"it must be that of the job, {self.job.iteration_s!r}"
            raise ValueError(f"iteration_s of the policy is {self.policy.iteration_s!r}; {rule}")
        require_counts(0, num_standbys=self.num_standbys)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """What came of some seconds of training."""

    position: float  # iterations done, a part of the last one included
    memory: int | None = None  # newest iteration whose checkpoint in memory was completed in these seconds, if any was
    storage: int | None = None  # the same in storage


def advanced_by_definition(policy: CheckpointPolicy, start: int, elapsed_s: float) -> Stretch:
    """Train iteration by iteration for some seconds; the checkpoint at `start` has been taken before."""
    completed: dict[str, int] = {}  # newest iteration complete in memory, and in storage
    position = float(start)
    for kind, iteration, begin_s, end_s in stretch_moments(policy, start, elapsed_s):
        if kind == "iteration":
            position = iteration - 1 + min(1.0, (elapsed_s - begin_s) / (end_s - begin_s))
        elif kind in ("memory", "storage") and end_s <= elapsed_s:
            completed[kind] = iteration
    return Stretch(position=position, **completed)


def stretch_moments(policy: CheckpointPolicy, start: int, elapsed_s: float) -> list[tuple[str, int, float, float]]:
    """List the events of the seconds as (kind, iteration, begin_s, end_s); checkpoints are "memory" or "storage"."""
    moments: list[tuple[str, int, float, float]] = []
    now_s, iteration = 0.0, start
    while now_s < elapsed_s:
        iteration += 1
        moments.append(("iteration", iteration, now_s, now_s + policy.iteration_s))
        now_s += policy.iteration_s
        for level in policy.levels:
            if iteration % level.interval_iterations == 0 and now_s < elapsed_s:
                if level.blocking_s:
                    moments.append(("blocking", iteration, now_s, now_s + level.blocking_s))
                done_s = now_s + level.blocking_s + level.transfer_s
                moments.append(("memory" if level is policy.memory else "storage", iteration, now_s, done_s))
                now_s += level.blocking_s
    return moments


def advanced(policy: CheckpointPolicy, start: int, elapsed_s: float) -> Stretch:
    """Return the same without counting iterations one by one."""

    def end_s(done: int) -> float:  # of the last of so many iterations, before what it blocks
        last = start + done - 1
        counts = [last // level.interval_iterations - start // level.interval_iterations for level in policy.levels]
        blocked_s = sum(level.blocking_s * count for level, count in zip(policy.levels, counts, strict=True))
        return done * policy.iteration_s + blocked_s if done else 0.0

    done = bisect_right(range(1, int(elapsed_s / policy.iteration_s) + 1), elapsed_s, key=end_s)
    after = [level.blocking_s for level in policy.levels if done and (start + done) % level.interval_iterations == 0]
    into_s = elapsed_s - end_s(done) - sum(after)
    newest: dict[str, int] = {}
    for place, level in enumerate(policy.levels):
        every = level.interval_iterations
        for iteration in range((start + done) // every * every, start, -every):
            first = [prior.blocking_s for prior in policy.levels[:place] if iteration % prior.interval_iterations == 0]
            if end_s(iteration - start) + sum(first) + level.blocking_s + level.transfer_s <= elapsed_s:
                newest["memory" if level is policy.memory else "storage"] = iteration
                break
    position = start + done + max(0.0, into_s) / policy.iteration_s
    return Stretch(position=position, **newest)


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
    """Some seconds spent on one thing."""

    start_s: float  # on the trace's clock
    end_s: float  # on the trace's clock
    cause: Cause | None  # what a recovery was about; None for training, blocking by checkpoints included
    iteration: int  # iterations done at the start of training; that to which a recovery goes back


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRun:
    """What became of the time."""

    duration_s: float  # all of it
    productive_s: float  # of it, progress that stayed until the end
    wasted_s: Mapping[Cause, float]  # all the rest, by what wasted it
    num_recoveries: Mapping[Tier, int]  # how often training resumed, by the tier that served it
    num_failures: int  # faults that hit something
    num_interrupted: int  # recoveries that a further failure cut short
    spans: tuple[Span, ...]  # one after the other

    @property
    def effective_ratio(self) -> float:
        """Share of the time that was progress that stayed."""
        return self.productive_s / self.duration_s


def simulate_training(setting: Setting, trace: FaultTrace) -> TrainingRun:
    """Simulate a training under failures: productive and wasted seconds add up to the duration of the trace."""
    return _Simulation(setting, trace, advanced).run()


def simulate_training_by_definition(setting: Setting, trace: FaultTrace) -> TrainingRun:
    """Simulate the same iteration by iteration."""
    return _Simulation(setting, trace, advanced_by_definition).run()


class _Simulation:
    """A training on its trace's clock, and what the memories of its machines hold."""

    def __init__(self, setting: Setting, trace: FaultTrace, advance: Callable[..., Stretch]):
        placed, is_lossy = setting.placement, any(fault.kind is FaultKind.HARDWARE for fault in trace.faults)
        if is_lossy and setting.policy.memory is not None and placed is None:
            rule = f"{setting.policy.name} must know who keeps what where machines are lost"
            raise ValueError(f"placement is None; {rule}")
        if placed is not None and placed.num_machines != trace.num_machines:
            rule = f"it must be the trace's, {trace.num_machines!r}"
            raise ValueError(f"num_machines of the placement is {placed.num_machines!r}; {rule}")
        self.setting, self.trace, self.advance = setting, trace, advance
        self.now_s, self.position = 0.0, 0.0  # iterations done
        self.next_fault = self.num_failures = self.num_interrupted = 0
        self.spans: list[Span] = []
        self.recoveries: Counter[Tier] = Counter()
        self.wasted_s = dict.fromkeys(Cause, 0.0)
        self.draws = random.Random(f"{setting.seed} replacements")
        self.absent: dict[int, float] = {}  # machine -> when the one in its place arrives; inf: not requested
        self.empty: set[int] = set()  # lost or replaced, and nothing read back yet
        self.own_only: set[int] = set()  # hold their own shard, and no replicas of others
        self.standbys = [0.0] * setting.num_standbys  # when each is ready
        self.memory: int | None = None  # iteration of the newest complete checkpoint in memory
        self.storage = 0  # and in storage, where the initial states are

    def run(self) -> TrainingRun:
        self.train()
        while (fault := self.take_fault()) is not None:
            while not self.is_recovered_from(fault) and (fault := self.take_fault()) is not None:
                self.num_interrupted += 1
            back_to = self.recoverable
            self.wasted_s[Cause.LOST] += (self.position - back_to) * self.setting.job.iteration_s
            self.position = float(back_to)
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
        self.storage = self.storage if stretch.storage is None else stretch.storage
        if stretch.memory is not None:
            self.memory = stretch.memory
            self.own_only.clear()
        trained_s = (stretch.position - start) * self.setting.job.iteration_s
        self.wasted_s[Cause.CHECKPOINTING] += end_s - self.now_s - trained_s
        self.spans.append(Span(start_s=self.now_s, end_s=end_s, cause=None, iteration=start))
        self.position, self.now_s = stretch.position, end_s

    def is_recovered_from(self, fault: Fault) -> bool:
        """Go through the parts of a recovery; say whether no failure came in between."""
        for machine in fault.machines if fault.kind is FaultKind.HARDWARE else ():
            if fault.time_s >= self.absent.get(machine, 0.0):
                self.absent[machine] = math.inf
                self.empty.add(machine)
        return all(self.is_over(cause, seconds) for cause, seconds in self.recovery(self.tier))

    def recovery(self, tier: Tier) -> Iterator[tuple[Cause, float]]:
        """List what a recovery takes; what a part brings is there when the next one is asked for."""
        overheads = self.setting.overheads
        yield Cause.DETECTION, overheads.detection_s
        yield Cause.SERIALISING, 0.0 if tier is Tier.STORAGE else overheads.serialise_s
        for machine in sorted(machine for machine, at_s in self.absent.items() if at_s == math.inf):
            draw_s = self.draws.uniform(overheads.least_replacement_s, overheads.most_replacement_s)
            arrives_s = self.now_s + draw_s
            if self.standbys and self.standbys[0] <= self.now_s:
                # The standby takes the place at once; the one that was requested becomes the next standby.
                heapq.heapreplace(self.standbys, arrives_s)
                arrives_s = self.now_s
            self.absent[machine] = arrives_s
        yield Cause.REPLACEMENT, max(0.0, max(self.absent.values(), default=self.now_s) - self.now_s)
        self.absent.clear()
        yield Cause.RETRIEVAL, self.setting.job.retrieval_s(tier)
        if tier is Tier.STORAGE:
            keeps_memory = self.setting.policy.memory is not None
            self.memory = self.storage if keeps_memory else None
            self.own_only = set(range(self.trace.num_machines))
        self.own_only |= self.empty
        self.empty.clear()
        yield Cause.WARM_UP, overheads.warm_up_s
        self.recoveries[tier] += 1

    @property
    def tier(self) -> Tier:
        """The fastest tier from which every machine can get its shard of one iteration."""
        if self.memory is None:
            return Tier.STORAGE
        if not self.empty:
            return Tier.LOCAL
        lacking = self.empty | self.own_only
        assert self.setting.placement is not None  # asked for where machines are lost
        holders = [self.setting.placement.holders[machine] for machine in self.empty]
        return Tier.PEER if all(not lacking.issuperset(kept) for kept in holders) else Tier.STORAGE

    @property
    def recoverable(self) -> int:
        """The iteration to which training can go back."""
        return self.storage if self.tier is Tier.STORAGE or self.memory is None else self.memory

    def is_over(self, cause: Cause, seconds: float) -> bool:
        """Let some seconds pass; stop at a failure or at the end, and say whether none came."""
        end_s = self.now_s + seconds
        reached_s = max(self.now_s, self.stop_s(end_s))
        self.wasted_s[cause] += reached_s - self.now_s
        if reached_s > self.now_s:
            self.spans.append(Span(start_s=self.now_s, end_s=reached_s, cause=cause, iteration=self.recoverable))
        self.now_s = reached_s
        return end_s <= reached_s

    def stop_s(self, until_s: float) -> float:
        """Return when the next fault that hits something comes, or `until_s`; skip those of machines that are away."""
        faults, until_s = self.trace.faults, min(until_s, self.trace.duration_s)
        while self.next_fault < len(faults) and (fault := faults[self.next_fault]).time_s < until_s:
            if any(fault.time_s >= self.absent.get(machine, 0.0) for machine in fault.machines):
                return fault.time_s
            self.next_fault += 1
        return until_s

    def take_fault(self) -> Fault | None:
        """Return the fault that time has stopped at; None at the end."""
        if self.next_fault == len(self.trace.faults):
            return None
        self.next_fault, self.num_failures = self.next_fault + 1, self.num_failures + 1
        return self.trace.faults[self.next_fault - 1]
