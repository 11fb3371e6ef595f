"""The rows and timelines of what is counted: figures 1 to 3, and the learning rates that theorem 1 admits."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from types import MappingProxyType
from typing import Any

from workbench.rows import value_row
from workbench.timeline import Action, Kind, Task, Timeline, simulate
from workbench.timeline.schedule import Cell, one_forward_one_backward

from .method import Scheduler, Settings, largest_learning_rate

__all__ = ["FIGURE_3", "deadlock_rows", "figure_1", "figure_2", "learning_rate_rows"]

FORWARD, BACKWARD = 1.0, 2.0  # slots of a pass
FIGURE_3 = ((1, 1), (1, 0), (0, 0), (0, 1), (1, 1))  # (stage, pipeline) of signals; B is pipeline 1, stages from 0


def figure_1() -> tuple[list[dict[str, Any]], dict[str, Timeline]]:
    """Draw four mini-batches with a flush after each two; return idle slots and the timelines with and without delays.

    The second stage of the last of three pipelines is 4 times slower in the forward pass of the third mini-batch, that
    of the second pipeline 2 times slower in the backward pass of the fourth.
    """
    pair = [[cell for cell in row if cell] for row in one_forward_one_backward(2, 2).rows]
    orders = [[*order, *(replace(cell, micro_batch=cell.micro_batch + 2) for cell in order)] for order in pair]
    slow = {
        (2, Cell(stage=1, kind=Kind.FORWARD, micro_batch=2)): 4.0,
        (1, Cell(stage=1, kind=Kind.BACKWARD, micro_batch=3)): 2.0,
    }
    rows, timelines = [], {}
    for name, factors in (("no straggler", {}), ("two stragglers", slow)):
        timeline = timelines[name] = _simulated(orders, "worker {0}, {1}", 3, factors, flush_after=1)
        for pipeline, stage in product(range(3), range(2)):
            idle = timeline.duration_s - timeline.total_s(resource=f"worker {stage}, {pipeline}")
            rows.append(value_row("idle_slots", idle, run=name, stage=stage, pipeline=pipeline))
        rows.append(value_row("length_slots", timeline.duration_s, run=name))
    return rows, timelines


def figure_2(num_stages: int = 4, num_mini_batches: int = 8) -> tuple[list[dict[str, Any]], dict[str, Timeline]]:
    """Draw 1F1B without a flush; return how far the backward pass of a stage is from the one that the text says.

    In the forward pass of mini-batch k the gradient of mini-batch k - M + j comes to stage j of 1 to M. "off_by" is the
    number of the next backward pass less this one, once the pipeline is filled.
    """
    orders = [[cell for cell in row if cell] for row in one_forward_one_backward(num_stages, num_mini_batches).rows]
    rows = []
    for stage, order in enumerate(orders, start=1):
        for cell, following in pairwise(order):
            k = cell.micro_batch
            if cell.kind is Kind.FORWARD and k >= num_stages:
                rows.append(value_row("off_by", following.micro_batch - (k - num_stages + stage), stage=stage, k=k))
    return rows, {"1F1B without a flush": _simulated(orders, "stage {2}")}


def _simulated(
    orders: Sequence[Sequence[Cell]],
    worker: str,
    num_pipelines: int = 1,
    slow: Mapping[tuple[int, Cell], float] = MappingProxyType({}),
    flush_after: int | None = None,
) -> Timeline:
    """Simulate pipelines whose stages do passes of mini-batches in these orders; slots of a pass are times `slow`.

    After the flush a stage goes on when all its workers have done the backward pass of this mini-batch.
    """
    tasks = []
    for pipeline, (stage, order) in product(range(num_pipelines), enumerate(orders)):
        before: list[str] = []
        for cell in order:
            slots = (FORWARD if cell.kind is Kind.FORWARD else BACKWARD) * slow.get((pipeline, cell), 1.0)
            source = stage - 1 if cell.kind is Kind.FORWARD else stage + 1
            after = [f"{pipeline} {replace(cell, stage=source)}"] if 0 <= source < len(orders) else []
            if flush_after is not None and cell.micro_batch > flush_after:
                last = replace(cell, kind=Kind.BACKWARD, micro_batch=flush_after)
                after += [f"{other} {last}" for other in range(num_pipelines)]
            name, resource = f"{pipeline} {cell}", worker.format(stage, pipeline, stage + 1)
            place: dict[str, Any] = {"resources": (resource,), "kind": cell.kind, "label": str(cell.micro_batch)}
            tasks.append(Task(name=name, duration_s=slots, after=(*before, *after), **place))
            before = [name]
    return simulate(tasks)


def deadlock_rows() -> tuple[list[dict[str, Any]], dict[str, Timeline]]:
    """Run figure 3's signals, one a slot of time, with and without the rule that one stage enforces at a time.

    A worker that waits already, or whose pipeline does not let it go on, does not signal: the slot passes.
    """
    names = {(stage, worker): f"({stage + 1}, {'AB'[worker]})" for worker in range(2) for stage in range(2)}
    rows, timelines = [], {}
    for rule, exclusive in (("without the rule", False), ("with the rule", True)):
        scheduler = Scheduler(2, 2, history=2, window_s=0.0, settings=Settings(exclusive=exclusive))
        since: dict[tuple[int, int], int] = {}  # slots of the signals of waiting workers
        actions: list[Action] = []
        for slot, (stage, worker) in enumerate(FIGURE_3):
            # A later stage has no next mini-batch while an earlier one of its pipeline waits.
            if any((earlier, worker) in since for earlier in range(stage + 1)):
                continue
            since[stage, worker] = slot
            for group in scheduler.signal(stage, worker, float(slot)):
                label = "{" + ", ".join("AB"[member] for member in sorted(group.members)) + "}"
                for member in group.members:
                    begun = since.pop((group.stage, member))
                    make = partial(Action, resource=names[group.stage, member])
                    if slot > begun:
                        actions.append(make(start_s=begun, end_s=slot, kind=Kind.WAIT, label="waits"))
                    actions.append(make(start_s=slot, end_s=slot + 0.8, kind=Kind.COMMUNICATE, label=label))
        for place, slot in since.items():
            times = {"start_s": slot, "end_s": len(FIGURE_3)}
            actions.append(Action(resource=names[place], **times, kind=Kind.WAIT, label="waits for ever"))
        timelines[rule] = Timeline(actions=tuple(actions), resources=tuple(names.values()))
        # Whose pipeline has a waiting stage cannot go on in any other stage.
        rows.append(value_row("blocked_workers", 2 * len({worker for _, worker in since}), rule=rule))
        rows.append(value_row("unchecked_groups", scheduler.num_unchecked, rule=rule))
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
    for n, least in [(n, least) for n in num_pipelines for least in smallest_groups if least <= n]:
        by_order, by_name = largest(num_pipelines=n, n1=least, n2=n), largest(num_pipelines=n, n1=n, n2=least)
        rows.append(value_row("learning_rate", by_order, n1=least, num_pipelines=n))
        rows.append(value_row("learning_rate_by_name", by_name, n2=least, num_pipelines=n))
    mixed = {n: largest(num_pipelines=n, n1=n, n2=n, mixes=True) for n in num_pipelines}
    return rows + [value_row("learning_rate_mixed", rate, n1=n, num_pipelines=n) for n, rate in mixed.items()]
