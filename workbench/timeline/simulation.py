"""A deterministic event simulation by list scheduling (Graham, 1969): tasks, their resources and dependencies.

A task starts as soon as its predecessors have ended and its resources are free; among several, the first in the list
goes first. A started task is never interrupted.
"""

import heapq
import math
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from .actions import Action, Kind, Timeline

__all__ = ["Task", "simulate"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One piece of work, before it is placed in time."""

    name: str  # unique among the tasks of a simulation
    resources: tuple[str, ...]  # all that it occupies from start to end; may be empty
    duration_s: float  # seconds from start to end
    after: tuple[str, ...] = ()  # names of the tasks that must have ended
    kind: Kind = Kind.COMPUTE  # kind of work
    label: str = ""  # text on its bar; empty for its name

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError(f"name is {self.name!r}; a task must have one")
        if not (math.isfinite(self.duration_s) and self.duration_s >= 0):
            raise ValueError(f"duration_s of {self.name!r} is {self.duration_s!r}; it must be finite and not negative")


def simulate(tasks: Sequence[Task]) -> Timeline:
    """Place tasks in time from 0 s on; if two compete for a resource, the first in the list goes first.

    Raises:
        ValueError: if a name comes twice, a task waits for an unknown one, or tasks wait in a circle.
    """
    index = {task.name: number for number, task in enumerate(tasks)}
    _check(tasks, index)
    waiting_for = [len(set(task.after)) for task in tasks]
    followers: dict[int, list[int]] = defaultdict(list)
    for number, task in enumerate(tasks):
        for name in dict.fromkeys(task.after):
            followers[index[name]].append(number)
    ready = [number for number, count in enumerate(waiting_for) if count == 0]
    running: list[tuple[float, int]] = []  # a heap of ends and tasks
    busy: set[str] = set()
    starts_s: dict[int, float] = {}
    now_s = 0.0
    while ready or running:
        still_waiting = []
        for number in ready:
            task = tasks[number]
            if busy.isdisjoint(task.resources):
                busy.update(task.resources)
                starts_s[number] = now_s
                heapq.heappush(running, (now_s + task.duration_s, number))
            else:
                still_waiting.append(number)
        ready = still_waiting
        now_s = running[0][0]
        while running and running[0][0] <= now_s:
            _, ended = heapq.heappop(running)
            busy.difference_update(tasks[ended].resources)
            for follower in followers[ended]:
                waiting_for[follower] -= 1
                if waiting_for[follower] == 0:
                    insort(ready, follower)
    stuck = [task.name for number, task in enumerate(tasks) if number not in starts_s]
    if stuck:
        raise ValueError(f"after is circular; {stuck!r} must not wait for each other")
    actions = []
    for number, task in enumerate(tasks):
        end_s, label = starts_s[number] + task.duration_s, task.label or task.name
        for resource in task.resources:
            actions.append(
                Action(resource=resource, start_s=starts_s[number], end_s=end_s, kind=task.kind, label=label)
            )
    rows = dict.fromkeys(resource for task in tasks for resource in task.resources)
    return Timeline(actions=tuple(actions), resources=tuple(rows))


def _check(tasks: Sequence[Task], index: dict[str, int]) -> None:
    twice = [name for name, count in Counter(task.name for task in tasks).items() if count > 1]
    if twice:
        raise ValueError(f"name is {twice[0]!r} twice; each task must have its own")
    for task in tasks:
        unknown = [name for name in task.after if name not in index]
        if unknown:
            raise ValueError(f"after of {task.name!r} is {task.after!r}; {unknown[0]!r} must be a task")
