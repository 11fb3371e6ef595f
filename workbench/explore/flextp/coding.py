"""The exercises of the lesson in which a reader writes a function: which columns are dropped, and who computes them."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from workbench.explore.code_exercises import Unfinished, check_on_cases, check_on_ranks
from workbench.explore.exercises import Feedback, Standing, plain
from workbench.techniques.flextp import method

__all__ = ["check_columns_to_drop", "check_own_columns"]

NUM_CASES = 40  # on which a reader's choice of columns is checked


def _by_priority(then: Tensor, now: Tensor, change: Tensor, dropped: list[int], count: int) -> Tensor:
    """Return the library's choice."""
    statistics = method.ColumnStatistics(then)
    statistics.change = change
    statistics.update_(now, dropped)
    order = method.priority_list(statistics, selection=method.Selection.PRIORITY, generator=torch.Generator())
    return order[:count].sort().values


def _columns_to_drop(then: Tensor, now: Tensor, change: Tensor, dropped: list[int], count: int, *, mistake: str):
    """Choose columns with a usual mistake."""
    moved = (now - then if mistake == "sign" else (now - then).abs()).mean(0)
    if mistake != "frozen":
        moved[dropped] = change[dropped]
    order = moved.argsort(descending=mistake == "most")
    return (order[count:] if mistake == "kept" else order[:count]).sort().values


COLUMN_HINTS = {
    "frozen": "A dropped column has no gradient, so it did not move. It keeps the change that it had before.",
    "sign": "A step up and a step down do not cancel: take absolute values.",
    "most": "Those columns changed most. The quiet ones are dropped.",
    "kept": "Those are the columns to keep.",
}


def check_columns_to_drop(columns_to_drop: Callable | None) -> Feedback:
    """Check a reader's `columns_to_drop(then, now, change, dropped, count)` against Pri on random weights."""
    draw, cases = torch.Generator().manual_seed(0), []
    for _ in range(NUM_CASES):
        order, steps = torch.randperm(6, generator=draw), 0.1 * (1 + torch.randperm(6, generator=draw))
        change, dropped = 0.05 + 0.1 * (1 + torch.randperm(6, generator=draw)), order[:2].tolist()
        steps[dropped] = 0.0
        then = torch.randint(-4, 5, (2, 6), generator=draw).float()
        signs = 2.0 * torch.randint(2, (2, 6), generator=draw) - 1
        cases.append((then, then + signs * steps, change, dropped, 2 + int(order[5]) % 2))
    return check_on_cases(
        columns_to_drop,
        cases,
        [_by_priority(*case) for case in cases],
        mistakes={hint: partial(_columns_to_drop, mistake=name) for name, hint in COLUMN_HINTS.items()},
        reason=f"The columns are those of `priority_list` in {NUM_CASES} random cases.",
    )


MIGRATIONS = ((1, 8), (3, 7), (0, 2))  # of four ranks: the sender, and how many columns it migrates


def _own_columns(rank: int, sender: int, num_ranks: int, num_columns: int, *, mistake: str = "") -> Sequence[int]:
    """Return the columns that the library gives a rank, or make a usual mistake."""
    receivers = method.receivers_of(sender, [sender], num_ranks)
    if mistake == "rank 0":
        receivers = sorted(receivers)
    elif mistake == "sender":
        receivers = [sender, *receivers]
    parts = method.column_ranges(num_columns, len(receivers))
    if mistake == "rest":
        parts = method.column_ranges(num_columns - num_columns % len(receivers), len(receivers))
    return dict(zip(receivers, parts, strict=True)).get(rank, ())


OWN_COLUMNS_HINTS = {
    "rank 0": "Receivers are counted from the sender on, round the corner, not from rank 0.",
    "sender": "The sender migrates its columns and computes none of them: the others divide them.",
    "rest": "Nobody computes the last columns. Multiply before you divide and round down.",
}


def _migrate_on_rank(own_columns: Callable) -> list | None:
    """Return this rank's columns, and what all ranks' products add up to, for each migration."""
    migrated, is_answered = [], True
    for sender, num_columns in MIGRATIONS:
        try:
            columns = plain(list(own_columns(dist.get_rank(), sender, dist.get_world_size(), num_columns)))
        except Unfinished as end:  # other ranks must not wait for one that returns None
            if end.feedback.standing is not Standing.NOT_ANSWERED:
                raise
            columns, is_answered = [], False
        a, b = torch.arange(1.0, 1 + 2 * num_columns).view(2, num_columns)
        total = a[columns] @ b[columns]
        dist.all_reduce(total)
        migrated.append((sender, num_columns, columns, total))
    return migrated if is_answered else None


def check_own_columns(own_columns: Callable | None) -> Feedback:
    """Check a reader's `own_columns(rank, sender, num_ranks, num_columns)` on four ranks, which add up products."""
    return check_on_ranks(
        own_columns,
        _own_columns,
        _migrate_on_rank,
        num_ranks=4,
        mistakes={hint: partial(_own_columns, mistake=name) for name, hint in OWN_COLUMNS_HINTS.items()},
        of="(sender, num_columns, own columns, sum of all products)",
        reason="Four ranks computed their columns, and the all-reduce gave the whole product.",
    )
