"""From time-stamped communication to the idle spans that checkpoints may fill (section 6.5.4), on any one clock.

Span k is the idle time before operation k in order of starting, 0 where operations overlap; the last span follows all
operations. So spans of different iterations match by index.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

__all__ = ["IdleProfile", "Operation", "ProfiledIteration", "idle_spans_s", "least_spans", "profile_idle_spans"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One communication."""

    start_s: float  # when it began
    end_s: float  # when it ended

    def __post_init__(self) -> None:
        _require_order("Operation", self.start_s, self.end_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfiledIteration:
    """One iteration of one rank."""

    name: str  # what errors call it, such as "iteration 3"
    start_s: float  # when it began
    end_s: float  # until when idle time counts: where the update begins, which the checkpoint must not outlast
    operations: tuple[Operation, ...]  # in any order, inside the iteration

    def __post_init__(self) -> None:
        _require_order(self.name, self.start_s, self.end_s)
        object.__setattr__(self, "operations", tuple(self.operations))
        for operation in self.operations:
            if operation.start_s < self.start_s or operation.end_s > self.end_s:
                rule = f"it must lie between {self.start_s!r} and {self.end_s!r}"
                raise ValueError(f"operations of {self.name!r} has {operation!r}; {rule}")


@dataclass(frozen=True, kw_only=True, slots=True)
class IdleProfile:
    """Idle spans to plan with."""

    spans_s: tuple[float, ...]  # lengths, by index
    deviations: tuple[float, ...]  # normalised standard deviation of each over the iterations, 0 where the span is 0

    @property
    def total_s(self) -> float:
        """Idle time of an iteration."""
        return math.fsum(self.spans_s)


def idle_spans_s(iteration: ProfiledIteration) -> tuple[float, ...]:
    """Return the idle spans of one iteration, one before each operation and one at the end."""
    spans, busy_until_s = [], iteration.start_s
    for operation in sorted(iteration.operations, key=lambda each: (each.start_s, each.end_s)):
        spans.append(max(0.0, operation.start_s - busy_until_s))
        busy_until_s = max(busy_until_s, operation.end_s)
    return (*spans, iteration.end_s - busy_until_s)


def profile_idle_spans(iterations: Sequence[ProfiledIteration]) -> IdleProfile:
    """Average the idle spans of one rank over iterations."""
    if not iterations:
        raise ValueError("iterations is empty; at least one must be profiled")
    expected = len(iterations[0].operations)
    for iteration in iterations:
        if len(iteration.operations) != expected:
            rule = f"it must have {expected}, as {iterations[0].name!r} has"
            raise ValueError(f"operations of {iteration.name!r} are {len(iteration.operations)}; {rule}")
    by_span = list(zip(*map(idle_spans_s, iterations), strict=True))
    means = tuple(fmean(lengths) for lengths in by_span)
    deviations = tuple(
        pstdev(lengths) / mean if mean > 0 else 0.0 for lengths, mean in zip(by_span, means, strict=True)
    )
    return IdleProfile(spans_s=means, deviations=deviations)


def least_spans(profiles: Sequence[IdleProfile]) -> IdleProfile:
    """Return the profile that every rank has room for: of each span the shortest, and its largest deviation."""
    if not profiles:
        raise ValueError("profiles is empty; at least one rank must have one")
    expected = len(profiles[0].spans_s)
    for rank, profile in enumerate(profiles):
        if len(profile.spans_s) != expected:
            raise ValueError(f"spans of rank {rank} are {len(profile.spans_s)}; they must be {expected}, as on rank 0")
    return IdleProfile(
        spans_s=tuple(map(min, zip(*(each.spans_s for each in profiles), strict=True))),
        deviations=tuple(map(max, zip(*(each.deviations for each in profiles), strict=True))),
    )


def _require_order(name: str, start_s: float, end_s: float) -> None:
    if not (math.isfinite(start_s) and math.isfinite(end_s)):
        raise ValueError(f"start_s, end_s of {name!r} are {start_s!r}, {end_s!r}; they must be finite")
    if end_s < start_s:
        raise ValueError(f"end_s of {name!r} is {end_s!r}; it must not be before start_s, {start_s!r}")
