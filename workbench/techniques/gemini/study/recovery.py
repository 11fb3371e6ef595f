"""What a failure costs, phase by phase, read from the log of a real training in which something was killed.

What: `observe_recovery` trains twice, once undisturbed and once with a kill, says whether both end with the same bits,
and reads from the log how long the failure went undetected, how long machines and ranks took to come back, to join, to
fetch their state, and which iterations had to be done again.
Source: "Gemini: Fast Failure Recovery in Distributed Training with In-Memory Checkpoints", section 6.7.3 and figure
6.14. Nothing is serialised here when a failure comes: replicas are kept as bytes with their checksums.
Simplified: one failure a training; all processes share one monotonic clock.
Left out: the time a cloud needs to find another machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ..runtime.checkpoints import PRELOAD
from ..runtime.training import Fault, TrainingOutcome, Victim, run_training
from .gpt2_training import Size, train_gpt2

__all__ = ["PHASES", "Phases", "RecoveryObserved", "observe_recovery", "phases_of"]

TIMEOUT_S = 300.0
KINDS = {"software": Victim.RANK, "hardware": Victim.MACHINE}
PHASES = ("detect", "replace", "restart", "build", "retrieve", "warm up")


@dataclass(frozen=True, kw_only=True, slots=True)
class Phases:
    """Seconds of one recovery, in their order.

    Attributes:
        seconds: by name: detect (until the root knows), replace (until it orders a new generation), restart (until all
            ranks have joined their process group), build (until the slowest rank has its model and asks for its state),
            retrieve (until all have it), warm up (the first iteration, less an iteration as usual).
        lost_iterations: that had been done and were done again.
        lost_s: seconds of them.
        iteration: where training resumed.
        tiers: what served each rank.
    """

    seconds: Mapping[str, float]
    lost_iterations: int
    lost_s: float
    iteration: int
    tiers: tuple[str, ...]

    @property
    def total_s(self) -> float:
        """Seconds from the failure until training was as far as it had been, but for the lost iterations."""
        return sum(self.seconds.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryObserved:
    """One training with a kill, beside the same one without.

    Attributes:
        kind: "software" or "hardware".
        outcome: of the training with the kill.
        phases: of the recovery.
        different_ranks: how many ranks ended with other bits than without the kill.
    """

    kind: str
    outcome: TrainingOutcome
    phases: Phases
    different_ranks: int


def observe_recovery(
    kind: str,
    *,
    size: Size,
    num_machines: int,
    at_iteration: int,
    options: Mapping[str, Any],
    undisturbed: Sequence[str] | None = None,
    **more: Any,
) -> RecoveryObserved:
    """Train with a kill, and without one if it is not known how that ends.

    Args:
        kind: "software" kills a rank, "hardware" a machine with all it keeps; the one with number 1.
        size: of model and training.
        num_machines: one rank each.
        at_iteration: after which iteration the kill comes.
        options: of `InMemoryCheckpoints`.
        undisturbed: digests of all ranks without a kill.
        more: of `run_training`.
    """
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}, must be one of {', '.join(KINDS)}")
    if not 1 <= at_iteration < size.iterations:
        raise ValueError(f"at_iteration is {at_iteration}, must be in 1..{size.iterations - 1}")
    fault = Fault(kills=KINDS[kind], numbers=(1,), at_iteration=at_iteration)
    outcome = train(size, num_machines, options, faults=[fault], **more)
    if undisturbed is None:
        undisturbed = digests(train(size, num_machines, options, **more))
    different = sum(a != b for a, b in zip(digests(outcome), undisturbed, strict=True))
    return RecoveryObserved(kind=kind, outcome=outcome, phases=phases_of(outcome), different_ranks=different)


def train(size: Size, num_machines: int, options: Mapping[str, Any], **more: Any) -> TrainingOutcome:
    """Run the training on machines."""
    more = {"timeout_s": TIMEOUT_S, "preload": (*PRELOAD, train_gpt2.__module__), "echo": False} | more
    return run_training(train_gpt2, num_machines, args=(size, dict(options)), **more)


def digests(outcome: TrainingOutcome) -> list[str]:
    """Return the digests of all ranks."""
    return [result["digest"] for result in outcome.results]


def phases_of(outcome: TrainingOutcome) -> Phases:
    """Read the phases of the first recovery from a log.

    Raises:
        LookupError: if nothing was killed, or training did not go on.
    """
    failed_s = _first(outcome, "killed", 0.0)
    detected_s = _first(outcome, "failure detected", failed_s)
    ordered_s = _first(outcome, "generation ordered", detected_s)
    joined_s = _last(outcome, "joined", ordered_s)
    newest = max(event.generation for event in outcome.named("joined") if event.time_s >= ordered_s)
    fetches = [event for event in outcome.named("retrieve") if event.generation == newest]
    asked_s = max(event.time_s for event in fetches)
    fetched_s = max(event.time_s + event.duration_s for event in fetches)
    usual_s = median(iteration_seconds(outcome))
    first_s = _first(outcome, "iteration", fetched_s)
    resumed = fetches[0].details["iteration"]
    before = [event for event in outcome.named("iteration") if event.time_s <= detected_s]
    reached = max(event.details["iteration"] for event in before)
    marks = (failed_s, detected_s, ordered_s, joined_s, asked_s, fetched_s)
    seconds = [after - before for before, after in zip(marks, marks[1:], strict=False)]
    seconds.append(max(0.0, first_s - fetched_s - usual_s))
    return Phases(
        seconds=dict(zip(PHASES, seconds, strict=True)),
        lost_iterations=reached - resumed,
        lost_s=(reached - resumed) * usual_s,
        iteration=resumed,
        tiers=tuple(event.details["tier"] for event in sorted(fetches, key=lambda event: event.rank)),
    )


def iteration_seconds(outcome: TrainingOutcome) -> list[float]:
    """Return the seconds of all iterations of rank 0 but the first ones of each generation."""
    ends: dict[int, list[float]] = {}
    for event in outcome.named("iteration"):
        if event.rank == 0:
            ends.setdefault(event.generation, []).append(event.time_s)
    return [after - before for row in ends.values() for before, after in zip(row, row[1:], strict=False)]


def _first(outcome: TrainingOutcome, name: str, after_s: float) -> float:
    found = [event.time_s for event in outcome.named(name) if event.time_s >= after_s]
    if not found:
        raise LookupError(f"the log has no {name!r} after {after_s:g} s")
    return found[0]


def _last(outcome: TrainingOutcome, name: str, after_s: float) -> float:
    _first(outcome, name, after_s)
    return max(event.time_s for event in outcome.named(name) if event.time_s >= after_s)
