"""Pipeline schedules as data: which stage runs which micro-batch, in which order (1F1B).

    rank 0 | 0F0 0F1 .   0B0 .   0B1
    rank 1 | .   1F0 1B0 1F1 1B1 .

A cell `1F0` is stage 1's forward of micro-batch 0, in the format of torch.distributed.pipelining.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType

from .actions import Kind
from .grid import IDLE, format_rows
from .simulation import Task

__all__ = ["Cell", "Schedule", "one_forward_one_backward", "pipeline_tasks"]

_LETTERS = MappingProxyType({"F": Kind.FORWARD, "B": Kind.BACKWARD})


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One micro-batch's pass through one stage."""

    stage: int  # from 0, in the order of the forward pass
    kind: Kind  # FORWARD or BACKWARD
    micro_batch: int  # from 0

    def __post_init__(self) -> None:
        if self.kind not in _LETTERS.values():
            raise ValueError(f"kind is {self.kind!r}; it must be FORWARD or BACKWARD")

    def __str__(self) -> str:
        letter = next(letter for letter, kind in _LETTERS.items() if kind is self.kind)
        return f"{self.stage}{letter}{self.micro_batch}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """What each rank does, in order; None is a step in which it waits."""

    rows: tuple[tuple[Cell | None, ...], ...]  # one row a rank

    def __str__(self) -> str:
        words = ([IDLE if cell is None else str(cell) for cell in row] for row in self.rows)
        return format_rows({f"rank {rank}": row for rank, row in enumerate(words)})


def one_forward_one_backward(num_stages: int, num_micro_batches: int) -> Schedule:
    """Return the order of 1F1B: a stage keeps no more micro-batches in flight than there are stages left.

    Source: Narayanan et al. (2019), PipeDream, the schedule without weight stashing.
    """
    for field, value in (("num_stages", num_stages), ("num_micro_batches", num_micro_batches)):
        if value < 1:
            raise ValueError(f"{field} is {value!r}; it must be at least 1")
    return Schedule(rows=tuple(_row(stage, num_micro_batches, num_stages - stage) for stage in range(num_stages)))


def pipeline_tasks(
    schedule: Schedule, *, duration_s: Callable[[Cell], float], transfer_s: Callable[[Cell], float]
) -> tuple[Task, ...]:
    """Turn a schedule into tasks that `simulate` can place in time.

    Args:
        schedule: the order on each rank; its waits are dropped, since the simulation finds them.
        duration_s: seconds a pass takes.
        transfer_s: seconds its result takes to the next stage (a backward pass: to the previous one).

    Returns:
        A task a pass, on `rank r`, and a task a transfer, on `link r-q`, one for each direction.
    """
    num_stages = 1 + max((cell.stage for row in schedule.rows for cell in row if cell), default=0)
    tasks = []
    for rank, row in enumerate(schedule.rows):
        previous: tuple[str, ...] = ()
        for cell in filter(None, row):
            step = 1 if cell.kind is Kind.FORWARD else -1
            source, target = cell.stage - step, cell.stage + step
            after = previous + ((f"send-{replace(cell, stage=source)}",) if 0 <= source < num_stages else ())
            previous = (str(cell),)
            resources = (f"rank {rank}",)
            tasks.append(
                Task(name=str(cell), resources=resources, duration_s=duration_s(cell), kind=cell.kind, after=after)
            )
            if 0 <= target < num_stages:
                resources = (f"link {rank}-{target}",)
                seconds, kind = transfer_s(cell), Kind.COMMUNICATE
                tasks.append(
                    Task(name=f"send-{cell}", resources=resources, duration_s=seconds, kind=kind, after=previous)
                )
    return tuple(tasks)


def _row(stage: int, num_micro_batches: int, in_flight: int) -> tuple[Cell, ...]:
    forward = [Cell(stage=stage, kind=Kind.FORWARD, micro_batch=m) for m in range(num_micro_batches)]
    backward = [Cell(stage=stage, kind=Kind.BACKWARD, micro_batch=m) for m in range(num_micro_batches)]
    row = forward[:in_flight]
    for done in range(num_micro_batches):
        row += backward[done : done + 1] + forward[done + in_flight : done + in_flight + 1]
    return tuple(row)
