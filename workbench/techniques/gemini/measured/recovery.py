"""The cost of a failure, phase by phase, read from the log of a training with a kill (figure 6.14)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from workbench.checks import require_counts
from workbench.rows import spread_row
from workbench.timeline import Action, Kind, Timeline

from ..control import Event, Fault, TrainingOutcome, Victim, run_training
from ..method import Tier
from ..runtime import PRELOAD
from .training import Size, train_gpt2

__all__ = ["PHASES", "Phases", "RecoveryObserved", "num_different", "observe", "phases_of", "recovery_rows"]

TIMEOUT_S = 300.0
KINDS = {"software": Victim.RANK, "hardware": Victim.MACHINE}
PHASES = ("detect", "replace", "restart", "build", "retrieve", "warm up")


@dataclass(frozen=True, kw_only=True, slots=True)
class Phases:
    """Seconds of one recovery, in their order."""

    # by name: detect (until the root knows), replace (until it orders a new generation), restart (until all ranks have
    # joined their process group), build (until the slowest rank has its model and asks for its state), retrieve (until
    # all have it), warm up (the first iteration, less an iteration as usual)
    seconds: Mapping[str, float]
    lost_iterations: int  # that had been done and were done again
    usual_s: float  # seconds of an iteration
    iteration: int  # where training resumed
    tiers: tuple[str, ...]  # what served each rank

    @property
    def total_s(self) -> float:
        """Seconds from the failure until training was as far as it had been, but for the lost iterations."""
        return sum(self.seconds.values())

    @property
    def lost_s(self) -> float:
        """Seconds of the lost iterations."""
        return self.lost_iterations * self.usual_s

    @property
    def from_memory(self) -> float:
        """Share of the ranks that memory served."""
        return sum(tier in (Tier.LOCAL, Tier.PEER) for tier in self.tiers) / len(self.tiers)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryObserved:
    """One training with a kill, beside the same one without."""

    kind: str  # "software" or "hardware"
    outcome: TrainingOutcome  # of the training with the kill
    phases: Phases  # of the recovery
    different_ranks: int  # how many ranks ended with other bits than without the kill

    @property
    def timeline(self) -> Timeline:
        """The log from the first iteration on: phases, and by machine iterations, retrievals and checkpoints."""
        outcome, spans = self.outcome, []
        at_s = outcome.named("killed")[0].time_s
        for phase, seconds in self.phases.seconds.items():
            spans.append(("recovery", at_s, at_s + seconds, Kind.WAIT, phase))
            at_s += seconds
        began_s = {(event.number, event.generation): event.time_s for event in outcome.named("resumed")}
        begin_s = min(began_s.values())
        for event in outcome.named("iteration"):
            place, number = (event.number, event.generation), event.details["iteration"]
            is_lost = event.generation == 1 and number > self.phases.iteration
            kind = Kind.OTHER if is_lost else Kind.COMPUTE
            spans.append((f"machine {event.number}", began_s[place], event.time_s, kind, str(number)))
            began_s[place] = event.time_s
        for event in outcome.named("checkpoint"):
            start_s, number = event.details["began_s"], event.details["iteration"]
            end_s = start_s + max(event.details["sent_s"], event.details["received_s"])
            spans.append((f"machine {event.number}, checkpoints", start_s, end_s, Kind.COMMUNICATE, str(number)))
        for event in outcome.named("retrieve"):
            end_s = event.time_s + event.duration_s
            spans.append((f"machine {event.number}", event.time_s, end_s, Kind.DECODE, event.details["tier"]))
        actions = [
            Action(resource=resource, start_s=start_s - begin_s, end_s=end_s - begin_s, kind=kind, label=label)
            for resource, start_s, end_s, kind, label in spans
            if start_s >= begin_s
        ]
        machines = sorted({action.resource for action in actions} - {"recovery"})
        return Timeline(actions=tuple(actions), resources=("recovery", *machines))


def observe(
    kinds: Sequence[str], repeats: int = 1, *, size: Size, at_iteration: int, **setting: Any
) -> list[RecoveryObserved]:
    """Train several times with a kill of rank 1 ("software") or machine 1 ("hardware"), and once undisturbed."""
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise ValueError(f"kinds has {unknown}; each must be one of {', '.join(KINDS)}")
    if not 1 <= at_iteration < size.iterations:
        raise ValueError(f"at_iteration is {at_iteration}; it must be in 1..{size.iterations - 1}")
    require_counts(1, repeats=repeats)
    undisturbed, observed = train(size, **setting).results, []
    for kind in [*kinds] * repeats:
        fault = Fault(kills=KINDS[kind], numbers=(1,), at_iteration=at_iteration)
        outcome = train(size, faults=[fault], **setting)
        different = num_different(outcome, undisturbed)
        observed.append(
            RecoveryObserved(kind=kind, outcome=outcome, phases=phases_of(outcome), different_ranks=different)
        )
    return observed


def train(size: Size, num_machines: int, options: Mapping[str, Any], **more: Any) -> TrainingOutcome:
    usual: dict[str, Any] = {"timeout_s": TIMEOUT_S, "preload": (*PRELOAD, train_gpt2.__module__), "echo": False}
    return run_training(train_gpt2, num_machines, args=(size, dict(options)), **usual | more)


def num_different(outcome: TrainingOutcome, undisturbed: Sequence[str]) -> int:
    """Count the ranks that ended with other bits than without failures."""
    return sum(a != b for a, b in zip(outcome.results, undisturbed, strict=True))


def phases_of(outcome: TrainingOutcome) -> Phases:
    """Read the phases of the first recovery from a log."""
    failed_s = _after(outcome, "killed", 0.0)[0].time_s
    detected_s = _after(outcome, "failure detected", failed_s)[0].time_s
    ordered_s = _after(outcome, "generation ordered", detected_s)[0].time_s
    joined = _after(outcome, "joined", ordered_s)
    newest = max(event.generation or 0 for event in joined)
    fetches = [event for event in outcome.named("retrieve") if event.generation == newest]
    asked_s = max(event.time_s for event in fetches)
    fetched_s = max(event.time_s + event.duration_s for event in fetches)
    ends_s: dict[int | None, list[float]] = {}  # of rank 0's iterations, by generation
    for event in outcome.named("iteration"):
        if event.rank == 0:
            ends_s.setdefault(event.generation, []).append(event.time_s)
    usual_s = median(after - before for row in ends_s.values() for before, after in pairwise(row))
    first_s = _after(outcome, "iteration", fetched_s)[0].time_s
    resumed = fetches[0].details["iteration"]
    done = [event.details["iteration"] for event in outcome.named("iteration") if event.time_s <= detected_s]
    lost = max(done) - resumed
    marks = (failed_s, detected_s, ordered_s, joined[-1].time_s, asked_s, fetched_s)
    seconds = [after - before for before, after in pairwise(marks)]
    return Phases(
        seconds=dict(zip(PHASES, [*seconds, max(0.0, first_s - fetched_s - usual_s)], strict=True)),
        lost_iterations=lost,
        usual_s=usual_s,
        iteration=resumed,
        tiers=tuple(event.details["tier"] for event in sorted(fetches, key=lambda event: event.rank or 0)),
    )


def _after(outcome: TrainingOutcome, name: str, after_s: float) -> list[Event]:
    """Return the events of a name from a moment on, earliest first."""
    events = [event for event in outcome.named(name) if event.time_s >= after_s]
    if not events:
        raise LookupError(f"the log has no {name!r} after {after_s:g} s")
    return events


def recovery_rows(observed: Sequence[RecoveryObserved]) -> list[dict[str, Any]]:
    """Return by kind of failure the seconds of each phase, lost iterations, and ranks that ended with other bits."""
    rows = []
    for kind in dict.fromkeys(trial.kind for trial in observed):
        trials = [trial for trial in observed if trial.kind == kind]
        for phase in PHASES:
            seconds = [trial.phases.seconds[phase] for trial in trials]
            rows.append(spread_row("phase_s", seconds, "s", failure=kind, phase=phase))
        for name, unit in (("total_s", "s"), ("lost_iterations", "1"), ("lost_s", "s"), ("from_memory", "1")):
            rows.append(spread_row(name, [getattr(trial.phases, name) for trial in trials], unit, failure=kind))
        rows.append(spread_row("different_ranks", [trial.different_ranks for trial in trials], "1", failure=kind))
    return rows
