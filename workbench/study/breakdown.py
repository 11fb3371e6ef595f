"""The parts of an iteration's time, from the timelines of its ranks; waiting and transfer are told apart.

The ranks of one machine share a clock, so no barrier is needed. `break_down` suits ranks that work at once: a rank
in a message waits while another rank is not in a message; the time in which all ranks are in messages is transfer.
`break_down_stages` suits pipelines: forward, backward, coding, and the transfers over each boundary.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import fsum
from statistics import fmean

from workbench.timeline import Action, Kind, Timeline

__all__ = ["ITERATION", "OPTIMIZER", "PRODUCT", "Breakdown", "StageBreakdown", "break_down", "break_down_stages"]
__all__ += ["span_s", "timeline_of"]

ITERATION, OPTIMIZER, PRODUCT = "iteration", "optimizer", "product"  # labels of actions
Ranks = Sequence[Sequence[Action]]  # the actions of each rank on one clock, in rank order
Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakdown:
    """Seconds of one turn; for every rank product, waiting, transfer and other add up to its iterations."""

    iteration_s: float  # from the first rank's start to the last one's end
    product_s: tuple[float, ...]  # in matrix products, by rank, injected delays included
    waiting_s: tuple[float, ...]  # for other ranks, by rank
    transfer_s: float  # in which all ranks are in messages
    other_s: tuple[float, ...]  # the rest, by rank


@dataclass(frozen=True, kw_only=True, slots=True)
class StageBreakdown:
    """Seconds of one iteration of a pipeline; forward, backward, optimizer and waiting add up to it."""

    iteration_s: float  # from the first rank's start to the last one's end
    forward_s: float  # forward passes, coding and communication included
    backward_s: float  # backward passes, communication included
    optimizer_s: float  # optimizer step of the slowest stage
    waiting_and_pipeline_s: float  # the rest of the iteration
    encode_s: float  # for forward tensor communication
    decode_s: float  # after forward tensor communication
    tensor_s: float  # forward tensor communication, from the last rank's entry on
    tensor_waiting_s: float  # for the last rank to enter it
    tensor_backward_s: float  # backward tensor communication, from the last rank's entry on
    boundaries_s: tuple[float, ...]  # forward and backward transfers over each pipeline boundary


def span_s(ranks: Ranks) -> float:
    """Return the seconds from the first rank's start to the last rank's end."""
    whole = [_whole(actions) for actions in ranks]
    return max(action.end_s for action in whole) - min(action.start_s for action in whole)


def break_down(ranks: Ranks) -> Breakdown:
    """Break down one turn of ranks that work at once.

    Args:
        ranks: The actions of each rank on one clock, in rank order: "iteration" spans all others, "product" is a
            matrix product, and actions of kind COMMUNICATE are messages.
    """
    product_s = [_seconds(_products(actions)) for actions in ranks]
    messages_s = [_seconds(_messages(actions)) for actions in ranks]
    transfer_s = _seconds(_transfers(ranks))
    totals = zip((_whole(actions).duration_s for actions in ranks), product_s, messages_s, strict=True)
    return Breakdown(
        iteration_s=span_s(ranks),
        product_s=tuple(product_s),
        transfer_s=transfer_s,
        waiting_s=tuple(max(0.0, seconds - transfer_s) for seconds in messages_s),
        other_s=tuple(whole - product - message for whole, product, message in totals),
    )


def timeline_of(ranks: Ranks, name: str = "") -> Timeline:
    """Return one turn as a timeline without gaps: products, other work, waiting and transfer of each rank.

    Args:
        ranks: As for `break_down`.
        name: Put before the names of the ranks, so that several variants can share one trace.
    """
    transfers = _transfers(ranks)
    rows = [list(_segments(actions, transfers, f"{name} rank {rank}".strip())) for rank, actions in enumerate(ranks)]
    return Timeline.merged(rows)


def break_down_stages(ranks: Ranks, *, tp: int, num_micro_batches: int = 1) -> StageBreakdown:
    """Break one iteration of a pipeline down.

    With one micro-batch the stages work in turn and their parts add up; with several the mean stage is returned.

    Args:
        ranks: The actions of each rank on one clock, in rank order: stages of `tp` neighbouring ranks.
        tp: Tensor-parallel ranks of a stage.
        num_micro_batches: Micro-batches of the iteration.
    """
    stages = [ranks[start : start + tp] for start in range(0, len(ranks), tp)]
    together = sum if num_micro_batches == 1 else fmean
    iteration_s = span_s(ranks)
    forward_s, backward_s = (
        together([_mean_total_s(stage, kind) for stage in stages]) for kind in (Kind.FORWARD, Kind.BACKWARD)
    )
    optimizer_s = max(fmean(_total_s(_labelled(rank, OPTIMIZER)) for rank in stage) for stage in stages)
    # Of tensor parallelism: without the encodings and decodings of boundaries.
    inside = [
        [[action for action in rank if "boundary" not in action.label] for rank in _inside(stage, Kind.FORWARD)]
        for stage in stages
    ]
    forward = [_waiting_and_transfer_s(stage) for stage in inside]
    backward = [_waiting_and_transfer_s(_inside(stage, Kind.BACKWARD)) for stage in stages]
    return StageBreakdown(
        iteration_s=iteration_s,
        forward_s=forward_s,
        backward_s=backward_s,
        optimizer_s=optimizer_s,
        waiting_and_pipeline_s=iteration_s - forward_s - backward_s - optimizer_s,
        encode_s=together([_mean_total_s(stage, Kind.ENCODE) for stage in inside]),
        decode_s=together([_mean_total_s(stage, Kind.DECODE) for stage in inside]),
        tensor_s=together([transfer_s for _, transfer_s in forward]),
        tensor_waiting_s=together([waiting_s for waiting_s, _ in forward]),
        tensor_backward_s=together([transfer_s for _, transfer_s in backward]),
        boundaries_s=tuple(_boundary_s(*pair) for pair in zip(stages, stages[1:], strict=False)),
    )


def _whole(actions: Sequence[Action]) -> Action:
    return next(action for action in actions if action.label == ITERATION)


def _labelled(actions: Iterable[Action], label: str) -> list[Action]:
    return [action for action in actions if action.label == label]


def _of_kind(actions: Iterable[Action], kind: Kind) -> list[Action]:
    return sorted((action for action in actions if action.kind is kind), key=lambda action: action.start_s)


def _total_s(actions: Iterable[Action]) -> float:
    return sum(action.duration_s for action in actions)


def _mean_total_s(stage: Ranks, kind: Kind) -> float:
    return fmean(_total_s(_of_kind(rank, kind)) for rank in stage)


def _inside(stage: Ranks, kind: Kind) -> list[list[Action]]:
    """Keep the actions that lie within each rank's actions of one kind."""
    return [
        [
            action
            for action in rank
            for outer in _of_kind(rank, kind)
            if action is not outer and outer.start_s <= action.start_s and action.end_s <= outer.end_s
        ]
        for rank in stage
    ]


def _waiting_and_transfer_s(stage: Ranks) -> tuple[float, float]:
    """Return the mean rank's waiting and transfer in the stage's collectives, which begin when the last rank enters."""
    waiting_s = transfer_s = 0.0
    for collective in zip(*(_of_kind(rank, Kind.COMMUNICATE) for rank in stage), strict=True):
        last_entry_s = max(action.start_s for action in collective)
        waiting_s += fmean(last_entry_s - action.start_s for action in collective)
        transfer_s += fmean(max(0.0, action.end_s - last_entry_s) for action in collective)
    return waiting_s, transfer_s


def _boundary_s(sender: Ranks, receiver: Ranks) -> float:
    """Return the mean rank's seconds of transfer, forward to the receiver and backward to the sender."""
    pairs = list(zip(sender, receiver, strict=True))
    return fmean(_arrivals_s(a, b, Kind.FORWARD) + _arrivals_s(b, a, Kind.BACKWARD) for a, b in pairs)


def _arrivals_s(sender: Sequence[Action], receiver: Sequence[Action], kind: Kind) -> float:
    """Return the seconds of transfers; each begins when the message is ready and the receiver's last pass has ended."""
    total_s, receiver_free_s = 0.0, float("-inf")
    for sent, used in zip(_of_kind(sender, kind), _of_kind(receiver, kind), strict=True):
        total_s += max(0.0, used.start_s - max(sent.end_s, receiver_free_s))
        receiver_free_s = used.end_s
    return total_s


def _segments(actions: Sequence[Action], transfers: Sequence[Interval], resource: str) -> Iterator[Action]:
    whole, messages = _whole(actions), _messages(actions)
    pieces = [(interval, Kind.COMPUTE) for interval in _products(actions)]
    pieces += [(piece, Kind.COMMUNICATE) for message in messages for piece in _common([message], transfers)]
    pieces += [(piece, Kind.WAIT) for message in messages for piece in _without(message, transfers)]
    at_s = whole.start_s
    for (start_s, end_s), kind in sorted(pieces, key=lambda piece: piece[0]):
        if start_s > at_s:
            yield Action(resource=resource, start_s=at_s, end_s=start_s, kind=Kind.OTHER)
        yield Action(resource=resource, start_s=start_s, end_s=end_s, kind=kind)
        at_s = end_s
    if whole.end_s > at_s:
        yield Action(resource=resource, start_s=at_s, end_s=whole.end_s, kind=Kind.OTHER)


def _products(actions: Iterable[Action]) -> list[Interval]:
    return sorted((action.start_s, action.end_s) for action in _labelled(actions, PRODUCT))


def _messages(actions: Iterable[Action]) -> list[Interval]:
    return [(action.start_s, action.end_s) for action in _of_kind(actions, Kind.COMMUNICATE)]


def _transfers(ranks: Ranks) -> list[Interval]:
    """Return the intervals in which all ranks were in messages."""
    common = _messages(ranks[0])
    for actions in ranks[1:]:
        common = _common(common, _messages(actions))
    return common


def _common(some: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    """Intersect two lists of disjoint intervals, both ascending."""
    common, i, j = [], 0, 0
    while i < len(some) and j < len(others):
        start_s, end_s = max(some[i][0], others[j][0]), min(some[i][1], others[j][1])
        if start_s < end_s:
            common.append((start_s, end_s))
        i, j = (i + 1, j) if some[i][1] <= others[j][1] else (i, j + 1)
    return common


def _without(interval: Interval, holes: Sequence[Interval]) -> Iterator[Interval]:
    """Cut ascending holes out of an interval."""
    at_s, end_s = interval
    for start_s, stop_s in _common([interval], holes):
        if start_s > at_s:
            yield at_s, start_s
        at_s = stop_s
    if at_s < end_s:
        yield at_s, end_s


def _seconds(intervals: Iterable[Interval]) -> float:
    return fsum(end_s - start_s for start_s, end_s in intervals)
