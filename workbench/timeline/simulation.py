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
    starts_s = _Simulation(tasks).run()
    actions = []
    for task, start_s in zip(tasks, starts_s, strict=True):
        shown = {"end_s": start_s + task.duration_s, "kind": task.kind, "label": task.label or task.name}
        actions += [Action(resource=resource, start_s=start_s, **shown) for resource in task.resources]
    rows = dict.fromkeys(resource for task in tasks for resource in task.resources)
    return Timeline(actions=tuple(actions), resources=tuple(rows))


class _Simulation:
    """The state of one run: ready tasks, running tasks with their ends, and busy resources."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = tasks
        self.index = {task.name: index for index, task in enumerate(tasks)}
        _check(tasks, self.index)
        self.waiting_for = [len(set(task.after)) for task in tasks]
        self.followers: dict[int, list[int]] = defaultdict(list)
        for index, task in enumerate(tasks):
            for name in dict.fromkeys(task.after):
                self.followers[self.index[name]].append(index)
        self.ready = [index for index, count in enumerate(self.waiting_for) if count == 0]
        self.running: list[tuple[float, int]] = []
        self.busy: set[str] = set()
        self.starts_s: list[float | None] = [None] * len(tasks)

    def run(self) -> list[float]:
        now_s = 0.0
        self._start(now_s)
        while self.running:
            now_s = self.running[0][0]
            while self.running and self.running[0][0] <= now_s:
                self._end(heapq.heappop(self.running)[1])
            self._start(now_s)
        stuck = [task.name for task, start_s in zip(self.tasks, self.starts_s, strict=True) if start_s is None]
        if stuck:
            raise ValueError(f"after is circular; {stuck!r} must not wait for each other")
        return self.starts_s

    def _start(self, now_s: float) -> None:
        still_waiting = []
        for index in self.ready:
            task = self.tasks[index]
            if self.busy.isdisjoint(task.resources):
                self.busy.update(task.resources)
                self.starts_s[index] = now_s
                heapq.heappush(self.running, (now_s + task.duration_s, index))
            else:
                still_waiting.append(index)
        self.ready = still_waiting

    def _end(self, index: int) -> None:
        self.busy.difference_update(self.tasks[index].resources)
        for follower in self.followers[index]:
            self.waiting_for[follower] -= 1
            if self.waiting_for[follower] == 0:
                insort(self.ready, follower)


def _check(tasks: Sequence[Task], index: dict[str, int]) -> None:
    twice = [name for name, count in Counter(task.name for task in tasks).items() if count > 1]
    if twice:
        raise ValueError(f"name is {twice[0]!r} twice; each task must have its own")
    for task in tasks:
        unknown = [name for name in task.after if name not in index]
        if unknown:
            raise ValueError(f"after of {task.name!r} is {task.after!r}; {unknown[0]!r} must be a task")
