"""The rows and timelines of what is counted: figures 1 to 3, and the learning rates that theorem 1 admits."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from workbench.rows import value_row
from workbench.timeline import Action, Kind, Task, Timeline, simulate
from workbench.timeline.schedule import Cell, one_forward_one_backward, pipeline_tasks

from .cost import endless_1f1b
from .method import Scheduler, Settings, largest_learning_rate

__all__ = ["FIGURE_3", "deadlock_rows", "figure_1", "figure_2", "learning_rate_rows", "play"]

FORWARD, BACKWARD = 1.0, 2.0  # slots of a pass
FIGURE_3 = ((1, 1), (1, 0), (0, 0), (0, 1), (1, 1))  # (stage, pipeline) of signals; B is pipeline 1, stages from 0


def figure_1(num_pipelines: int = 3) -> tuple[list[dict[str, Any]], dict[str, Timeline]]:
    """Draw four mini-batches with a flush after each two; return idle slots and the timelines with and without delays.

    The second stage of the last pipeline is 4 times slower in the forward pass of the third mini-batch, that of the
    second pipeline 2 times slower in the backward pass of the fourth.
    """
    slow = {(num_pipelines - 1, Cell(stage=1, kind=Kind.FORWARD, micro_batch=2)): 4.0}
    slow[1, Cell(stage=1, kind=Kind.BACKWARD, micro_batch=3)] = 2.0
    timelines = {"no straggler": _flushed(num_pipelines, {}), "two stragglers": _flushed(num_pipelines, slow)}
    rows = []
    for name, timeline in timelines.items():
        for worker in timeline.resources:
            idle = timeline.duration_s - timeline.total_s(resource=worker)
            stage, pipeline = worker.removeprefix("worker ").split(", ")
            rows.append(value_row("idle_slots", idle, run=name, stage=int(stage), pipeline=int(pipeline)))
        rows.append(value_row("length_slots", timeline.duration_s, run=name))
    return rows, timelines


def _flushed(num_pipelines: int, slow: dict[tuple[int, Cell], float]) -> Timeline:
    """Simulate two pairs of mini-batches; the second pair of a stage begins when all its workers are done."""
    tasks: list[Task] = []
    ends: dict[int, set[str]] = {}
    for pair in range(2):
        started = {stage: tuple(names) for stage, names in ends.items()}
        for pipeline in range(num_pipelines):
            for task in _mini_batches(pair, pipeline, slow):
                stage = int(task.resources[0].split()[1].strip(",")) if task.resources else -1
                after = (*task.after, *started.get(stage, ()))
                tasks.append(replace(task, after=after))
                if task.resources:
                    ends.setdefault(stage, set()).add(task.name)
    timeline = simulate(tasks)
    names = [f"worker {stage}, {pipeline}" for pipeline in range(num_pipelines) for stage in range(2)]
    return Timeline(actions=timeline.actions, resources=tuple(names))


def _mini_batches(pair: int, pipeline: int, slow: dict[tuple[int, Cell], float]) -> list[Task]:
    def duration_s(cell: Cell) -> float:
        slots = FORWARD if cell.kind is Kind.FORWARD else BACKWARD
        return slots * slow.get((pipeline, replace(cell, micro_batch=cell.micro_batch + 2 * pair)), 1.0)

    own = f"{pair} {pipeline} "
    tasks = pipeline_tasks(one_forward_one_backward(2, 2), duration_s=duration_s, transfer_s=lambda cell: 0.0)
    return [
        replace(
            task,
            name=own + task.name,
            after=tuple(own + name for name in task.after),
            resources=tuple(f"worker {name[-1]}, {pipeline}" for name in task.resources if name.startswith("rank")),
            label=task.name[:-1] + str(int(task.name[-1]) + 2 * pair),
        )
        for task in tasks
    ]


def figure_2(num_stages: int = 4, num_mini_batches: int = 8) -> tuple[list[dict[str, Any]], dict[str, Timeline]]:
    """Draw 1F1B without a flush; return how far the backward pass of a stage is from the one that the text says.

    In the forward pass of mini-batch k the gradient of mini-batch k - M + j comes to stage j of 1 to M. "off_by" is the
    number of the next backward pass less this one, once the pipeline is filled.
    """
    tasks, rows = [], []
    for stage in range(num_stages):
        order = endless_1f1b(num_stages - stage, num_mini_batches)
        before: tuple[str, ...] = ()
        for kind, number in order:
            source = stage - 1 if kind is Kind.FORWARD else stage + 1
            needed = (f"{source} {kind.name} {number}",) if 0 <= source < num_stages else ()
            seconds, name = FORWARD if kind is Kind.FORWARD else BACKWARD, f"{stage} {kind.name} {number}"
            place: dict[str, Any] = {"resources": (f"stage {stage + 1}",), "kind": kind, "label": str(number)}
            tasks.append(Task(name=name, duration_s=seconds, after=(*before, *needed), **place))
            before = (name,)
        followed = [(k, b) for (kind, k), (_, b) in pairwise(order) if kind is Kind.FORWARD and k >= num_stages]
        rows += [value_row("off_by", b - (k - num_stages + stage + 1), stage=stage + 1, k=k) for k, b in followed]
    return rows, {"1F1B without a flush": simulate(tasks)}


def play(signals: Sequence[tuple[int, int]], scheduler: Scheduler) -> tuple[Timeline, dict[tuple[int, int], int]]:
    """Send one signal a slot of time; return who waited when, and who waits at the end, with the slot of its signal.

    A worker that waits already, or whose pipeline does not let it go on, does not signal: the slot passes.
    """
    since: dict[tuple[int, int], int] = {}
    actions, num_stages = [], 1 + max(stage for stage, _ in signals)
    end = len(signals)
    for slot, (stage, worker) in enumerate(signals):
        # A later stage has no next mini-batch while an earlier one of its pipeline waits.
        if (stage, worker) in since or any((earlier, worker) in since for earlier in range(stage)):
            continue
        since[stage, worker] = slot
        for group in scheduler.signal(stage, worker, float(slot)):
            label = "{" + ", ".join("AB"[member] for member in sorted(group.members)) + "}"
            for member in group.members:
                begun = since.pop((group.stage, member))
                make = partial(Action, resource=_name(group.stage, member))
                actions += [make(start_s=begun, end_s=slot, kind=Kind.WAIT, label="waits")] if slot > begun else []
                actions.append(make(start_s=slot, end_s=slot + 0.8, kind=Kind.COMMUNICATE, label=label))
    for (stage, worker), slot in since.items():
        actions.append(
            Action(resource=_name(stage, worker), start_s=slot, end_s=end, kind=Kind.WAIT, label="waits for ever")
        )
    names = [_name(stage, worker) for worker in range(2) for stage in range(num_stages)]
    return Timeline(actions=tuple(actions), resources=tuple(names)), since


def _name(stage: int, worker: int) -> str:
    return f"({stage + 1}, {'AB'[worker]})"


def deadlock_rows() -> tuple[list[dict[str, Any]], dict[str, Timeline]]:
    """Run figure 3's signals with and without the rule that one stage enforces at a time."""
    rows, timelines = [], {}
    for name, exclusive in (("without the rule", False), ("with the rule", True)):
        scheduler = Scheduler(2, 2, history=2, window_s=0.0, settings=Settings(exclusive=exclusive))
        timelines[name], waiting = play(FIGURE_3, scheduler)
        # Whose pipeline has a waiting stage cannot go on in any other stage.
        blocked = 2 * len({worker for _, worker in waiting})
        rows.append(value_row("blocked_workers", blocked, rule=name))
        rows.append(value_row("unchecked_groups", scheduler.num_unchecked, rule=name))
    return rows, timelines


def learning_rate_rows(
    *, num_pipelines: Sequence[int], num_stages: int, history: int, smallest_groups: Sequence[int], smoothness: float
) -> list[dict[str, Any]]:
    """Return the largest learning rates that Eq. 3 admits, by the smallest group; the largest is all workers.

    The text orders n1 <= |S| <= n2 and calls n1 the largest size: "learning_rate" takes n1 for the smallest one, and
    "learning_rate_by_name" for the largest one. "learning_rate_mixed" is of groups of all workers, after each of which
    all models are equal, in place of the theorem's bound on how far they are apart.
    """
    largest = partial(largest_learning_rate, num_stages=num_stages, history=history, smoothness=smoothness)
    rows = []
    for n, least in ((n, least) for n in num_pipelines for least in smallest_groups if least <= n):
        rate = largest(num_pipelines=n, n1=least, n2=n)
        rows.append(value_row("learning_rate", rate, n1=least, num_pipelines=n))
        rate = largest(num_pipelines=n, n1=n, n2=least)
        rows.append(value_row("learning_rate_by_name", rate, n2=least, num_pipelines=n))
    for n in num_pipelines:
        rate = largest(num_pipelines=n, n1=n, n2=n, mixes=True)
        rows.append(value_row("learning_rate_mixed", rate, n1=n, num_pipelines=n))
    return rows
