"""Where an iteration's time went, read from the timelines of its ranks: waiting apart from transferring.

What: a rank is in a product, in a message, or does something else. While it is in a message and another rank is not, it
waits for that one; while all are in messages, nobody computes and what holds them up is the transfer.
Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", figure 1 draws the waiting.
The ranks of one machine share a clock, so no barrier is needed. Messages on their way while a rank computes cost it
nothing here, whatever they take from its core.
Left out: which message a rank waits in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import fsum

from workbench.timeline import Action, Kind, Timeline

from .rank import ITERATION, PRODUCT

__all__ = ["Breakdown", "break_down", "told_apart"]

Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakdown:
    """Seconds of one iteration; for every rank product, waiting, transfer and other add up to its iteration.

    Attributes:
        iteration_s: from the first rank's start to the last one's end.
        product_s: in matrix products, by rank, straggling included.
        waiting_s: for other ranks, by rank.
        transfer_s: in which nobody computes, for messages hold all ranks up.
        other_s: the rest, by rank.
    """

    iteration_s: float
    product_s: tuple[float, ...]
    waiting_s: tuple[float, ...]
    transfer_s: float
    other_s: tuple[float, ...]


def break_down(ranks: Sequence[Sequence[Action]]) -> Breakdown:
    """Break one iteration (or one turn of several) down.

    Args:
        ranks: the actions of each rank on one clock, in rank order.
    """
    whole = [_whole(actions) for actions in ranks]
    iteration_s = max(one.end_s for one in whole) - min(one.start_s for one in whole)
    product_s = [_total(_products(actions)) for actions in ranks]
    messages_s = [_total(_messages(actions)) for actions in ranks]
    transfer_s = _total(_together(ranks))
    own_s = zip(whole, product_s, messages_s, strict=True)
    return Breakdown(
        iteration_s=iteration_s,
        product_s=tuple(product_s),
        transfer_s=transfer_s,
        waiting_s=tuple(max(0.0, each - transfer_s) for each in messages_s),
        other_s=tuple(one.duration_s - product - message for one, product, message in own_s),
    )


def told_apart(ranks: Sequence[Sequence[Action]], name: str = "") -> Timeline:
    """Draw one iteration: products, other work, waiting and transfer of each rank, without gaps.

    Args:
        ranks: as in `break_down`.
        name: put before the names of the ranks, so that timelines of several variants can share one trace.
    """
    transfers = _together(ranks)
    rows = [list(_segments(actions, transfers, f"{name} rank {rank}".strip())) for rank, actions in enumerate(ranks)]
    return Timeline.merged(rows)


def _segments(actions: Sequence[Action], transfers: Sequence[Interval], resource: str) -> Iterator[Action]:
    whole, products = _whole(actions), [(interval, Kind.COMPUTE) for interval in _products(actions)]
    pieces = [(piece, Kind.COMMUNICATE) for one in _messages(actions) for piece in _common([one], transfers)]
    pieces += [(piece, Kind.WAIT) for one in _messages(actions) for piece in _without(one, transfers)]
    at_s = whole.start_s
    for (start_s, end_s), kind in sorted([*products, *pieces], key=lambda piece: piece[0]):
        if start_s > at_s:
            yield Action(resource=resource, start_s=at_s, end_s=start_s, kind=Kind.OTHER)
        yield Action(resource=resource, start_s=start_s, end_s=end_s, kind=kind)
        at_s = end_s
    if whole.end_s > at_s:
        yield Action(resource=resource, start_s=at_s, end_s=whole.end_s, kind=Kind.OTHER)


def _whole(actions: Sequence[Action]) -> Action:
    return next(action for action in actions if action.label == ITERATION)


def _products(actions: Sequence[Action]) -> list[Interval]:
    return sorted((action.start_s, action.end_s) for action in actions if action.label == PRODUCT)


def _messages(actions: Sequence[Action]) -> list[Interval]:
    return sorted((action.start_s, action.end_s) for action in actions if action.kind is Kind.COMMUNICATE)


def _together(ranks: Sequence[Sequence[Action]]) -> list[Interval]:
    """Return when all ranks were in messages at once."""
    common = _messages(ranks[0])
    for actions in ranks[1:]:
        common = _common(common, _messages(actions))
    return common


def _common(some: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    """Intersect two lists of disjoint intervals, both ascending."""
    found, i, j = [], 0, 0
    while i < len(some) and j < len(others):
        start_s, end_s = max(some[i][0], others[j][0]), min(some[i][1], others[j][1])
        if start_s < end_s:
            found.append((start_s, end_s))
        i, j = (i + 1, j) if some[i][1] <= others[j][1] else (i, j + 1)
    return found


def _without(one: Interval, holes: Sequence[Interval]) -> Iterator[Interval]:
    """Cut ascending intervals out of one."""
    at_s, end_s = one
    for start_s, stop_s in _common([one], holes):
        if start_s > at_s:
            yield at_s, start_s
        at_s = stop_s
    if at_s < end_s:
        yield at_s, end_s


def _total(intervals: Sequence[Interval]) -> float:
    return fsum(end_s - start_s for start_s, end_s in intervals)
