"""The cost of a failure, phase by phase, read from the log of a training with a kill (figure 6.14).

`observe_recovery` trains once undisturbed and once with a kill, and compares the bits of both. All processes share one
monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from workbench.study.rows import spread_row
from workbench.techniques.gemini.measured.training import Size, train_gpt2
from workbench.techniques.gemini.method.recovery import Tier
from workbench.techniques.gemini.runtime.checkpoints import PRELOAD
from workbench.techniques.gemini.runtime.training import Fault, TrainingOutcome, Victim, run_training

__all__ = ["PHASES", "Phases", "RecoveryObserved", "observe_all", "observe_recovery", "phases_of", "recovery_rows"]

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
    lost_s: float  # seconds of them
    iteration: int  # where training resumed
    tiers: tuple[str, ...]  # what served each rank

    @property
    def total_s(self) -> float:
        """Seconds from the failure until training was as far as it had been, but for the lost iterations."""
        return sum(self.seconds.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryObserved:
    """One training with a kill, beside the same one without."""

    kind: str  # "software" or "hardware"
    outcome: TrainingOutcome  # of the training with the kill
    phases: Phases  # of the recovery
    different_ranks: int  # how many ranks ended with other bits than without the kill


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
    """Train with a kill, and without one if it is not known how that ends."""
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(KINDS)}")
    if not 1 <= at_iteration < size.iterations:
        raise ValueError(f"at_iteration is {at_iteration}; it must be in 1..{size.iterations - 1}")
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
    """Read the phases of the first recovery from a log."""
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


def observe_all(
    kinds: Sequence[str],
    repeats: int,
    *,
    size: Size,
    num_machines: int,
    at_iteration: int,
    options: Mapping[str, Any],
    **more: Any,
) -> list[RecoveryObserved]:
    """Observe each kind of failure several times, beside one undisturbed training."""
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}; it must be at least 1")
    undisturbed = digests(train(size, num_machines, options, **more))
    common = {"size": size, "num_machines": num_machines, "at_iteration": at_iteration, "options": options}
    return [observe_recovery(kind, undisturbed=undisturbed, **common, **more) for _ in range(repeats) for kind in kinds]


def recovery_rows(observed: Sequence[RecoveryObserved]) -> list[dict[str, Any]]:
    """Return by kind of failure the seconds of each phase, lost iterations, and ranks that ended with other bits."""
    rows = []
    for kind in dict.fromkeys(each.kind for each in observed):
        mine = [each for each in observed if each.kind == kind]
        for phase in PHASES:
            rows.append(
                spread_row("phase_s", [each.phases.seconds[phase] for each in mine], "s", failure=kind, phase=phase)
            )
        rows.append(spread_row("total_s", [each.phases.total_s for each in mine], "s", failure=kind))
        rows.append(spread_row("lost_iterations", [each.phases.lost_iterations for each in mine], "1", failure=kind))
        rows.append(spread_row("lost_s", [each.phases.lost_s for each in mine], "s", failure=kind))
        rows.append(spread_row("from_memory", [_from_memory(each) for each in mine], "1", failure=kind))
        rows.append(spread_row("different_ranks", [each.different_ranks for each in mine], "1", failure=kind))
    return rows


def _from_memory(observed: RecoveryObserved) -> float:
    served = [tier in (Tier.LOCAL, Tier.PEER) for tier in observed.phases.tiers]
    return sum(served) / len(served)
