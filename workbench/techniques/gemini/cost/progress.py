"""How far a training gets before the next failure, and which checkpoints are complete by then.

A checkpoint counts once it is complete (figure 6.1); one that blocks does so at the end of an iteration, memory's
before storage's.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from ..method.waste import CheckpointPolicy, Level

__all__ = ["Stretch", "advanced", "advanced_by_definition", "stretch_moments"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """What came of some seconds of training."""

    position: float  # iterations done, a part of the last one included
    memory: int | None = None  # newest iteration whose checkpoint in memory was completed in these seconds, if any was
    storage: int | None = None  # the same in storage


def advanced_by_definition(policy: CheckpointPolicy, start: int, elapsed_s: float) -> Stretch:
    """Train iteration by iteration for some seconds; the checkpoint at `start` has been taken before."""
    completed: dict[bool, int] = {}  # in memory or not -> newest iteration complete
    position = float(start)
    for kind, iteration, begin_s, end_s in stretch_moments(policy, start, elapsed_s):
        if kind == "iteration":
            position = iteration - 1 + min(1.0, (elapsed_s - begin_s) / (end_s - begin_s))
        elif kind in ("memory", "storage") and end_s <= elapsed_s:
            completed[kind == "memory"] = iteration
    return Stretch(position=position, memory=completed.get(True), storage=completed.get(False))


def stretch_moments(policy: CheckpointPolicy, start: int, elapsed_s: float) -> list[tuple[str, int, float, float]]:
    """List the events that begin within the seconds: (kind, iteration, begin_s, end_s).

    A kind is "iteration", "blocking", or "memory" or "storage" for a checkpoint from snapshot to completion.
    """
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
                moments.append(("memory" if level.in_memory else "storage", iteration, now_s, done_s))
                now_s += level.blocking_s
    return moments


def advanced(policy: CheckpointPolicy, start: int, elapsed_s: float) -> Stretch:
    """Return the same without counting iterations one by one."""
    if all(level.blocking_s == 0 for level in policy.levels):
        done = int(elapsed_s / policy.iteration_s)
    else:
        candidates = range(1, int(elapsed_s / policy.iteration_s) + 1)
        done = bisect_right(candidates, elapsed_s, key=lambda number: _end_s(policy, start, number))
    after = [level.blocking_s for level in policy.levels if done and (start + done) % level.interval_iterations == 0]
    into_s = elapsed_s - _end_s(policy, start, done) - sum(after)
    position = start + done + max(0.0, into_s) / policy.iteration_s
    newest = {level.in_memory: _newest(policy, level, start, done, elapsed_s) for level in policy.levels}
    return Stretch(position=position, memory=newest.get(True), storage=newest[False])


def _end_s(policy: CheckpointPolicy, start: int, done: int) -> float:
    """Return when the last of some iterations ends, before what it blocks."""
    if not done:
        return 0.0
    seconds, last = done * policy.iteration_s, start + done - 1
    for level in policy.levels:
        if level.blocking_s:
            every = level.interval_iterations
            seconds += level.blocking_s * (last // every - start // every)
    return seconds


def _newest(policy: CheckpointPolicy, level: Level, start: int, done: int, elapsed_s: float) -> int | None:
    every = level.interval_iterations
    iteration = (start + done) // every * every
    while iteration > start:
        before_s = sum(
            each.blocking_s
            for each in policy.levels
            if each.in_memory and not level.in_memory and iteration % each.interval_iterations == 0
        )
        complete_s = _end_s(policy, start, iteration - start) + before_s + level.blocking_s + level.transfer_s
        if complete_s <= elapsed_s:
            return iteration
        iteration -= every
    return None
