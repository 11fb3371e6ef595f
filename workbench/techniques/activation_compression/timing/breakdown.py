"""Where an iteration's time went, read from the timelines of its ranks.

Source: "Does compressing activations help model parallel training?", the columns of tables 4, 7 and 9.
Waiting apart from transferring, without a barrier: the ranks of one machine share a clock, so a collective's transfer
begins when the last of its ranks enters it, and what an earlier rank spends there before is waiting. Over a pipeline
boundary a transfer begins when the sender has its activation and the receiver has done its part before.
Simplified: with one micro-batch the stages work one after another, so their parts add up; with several they overlap,
and the mean stage is given. Forward contains encoding, decoding and tensor communication, as in the paper.
Left out: overlap inside a rank; there is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from workbench.timeline import Action, Kind

from .rank import ITERATION, OPTIMIZER

__all__ = ["Breakdown", "break_down"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakdown:
    """Seconds of one iteration.

    Attributes:
        iteration_s: from the first rank's start to the last one's end.
        forward_s: forward passes, with all that happens in them.
        backward_s: backward passes, with all that happens in them.
        optimizer_s: of the slowest stage.
        waiting_and_pipeline_s: the rest of the iteration.
        encode_s: encoding for forward tensor communication.
        decode_s: decoding after it.
        tensor_s: forward tensor communication, from the last rank's entry on.
        tensor_waiting_s: what ranks waited for the last one, forward.
        tensor_backward_s: backward tensor communication, from the last rank's entry on.
        boundaries_s: forward and backward transfers over each pipeline boundary.
    """

    iteration_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    waiting_and_pipeline_s: float
    encode_s: float
    decode_s: float
    tensor_s: float
    tensor_waiting_s: float
    tensor_backward_s: float
    boundaries_s: tuple[float, ...]


def break_down(ranks: Sequence[Sequence[Action]], *, tp: int, num_micro_batches: int = 1) -> Breakdown:
    """Break one iteration down.

    Args:
        ranks: the actions of each rank on one clock, in rank order; stages of `tp` neighbouring ranks.
        tp: tensor-parallel ranks of a stage.
        num_micro_batches: micro-batches of the iteration.

    Returns:
        The parts; forward, backward, optimizer and waiting add up to the iteration.
    """
    stages = [ranks[start : start + tp] for start in range(0, len(ranks), tp)]
    together = sum if num_micro_batches == 1 else fmean
    whole = [action for rank in ranks for action in rank if action.label == ITERATION]
    iteration_s = max(action.end_s for action in whole) - min(action.start_s for action in whole)
    forward_s, backward_s = (
        together([_mean_total(stage, kind) for stage in stages]) for kind in (Kind.FORWARD, Kind.BACKWARD)
    )
    optimizer_s = max(fmean(_total(_labelled(rank, OPTIMIZER)) for rank in stage) for stage in stages)
    inside = [_inside_forward(stage) for stage in stages]
    forward = [_waiting_and_transfer(stage) for stage in inside]
    backward = [_waiting_and_transfer(_inside(stage, Kind.BACKWARD)) for stage in stages]
    return Breakdown(
        iteration_s=iteration_s,
        forward_s=forward_s,
        backward_s=backward_s,
        optimizer_s=optimizer_s,
        waiting_and_pipeline_s=iteration_s - forward_s - backward_s - optimizer_s,
        encode_s=together([_mean_total(stage, Kind.ENCODE) for stage in inside]),
        decode_s=together([_mean_total(stage, Kind.DECODE) for stage in inside]),
        tensor_s=together([transfer for _, transfer in forward]),
        tensor_waiting_s=together([waiting for waiting, _ in forward]),
        tensor_backward_s=together([transfer for _, transfer in backward]),
        boundaries_s=tuple(_boundary_s(*pair) for pair in zip(stages, stages[1:], strict=False)),
    )


def _total(actions: Iterable[Action]) -> float:
    return sum(action.duration_s for action in actions)


def _labelled(rank: Sequence[Action], label: str) -> list[Action]:
    return [action for action in rank if action.label == label]


def _of_kind(rank: Sequence[Action], kind: Kind) -> list[Action]:
    return sorted((action for action in rank if action.kind is kind), key=lambda action: action.start_s)


def _mean_total(stage: Sequence[Sequence[Action]], kind: Kind) -> float:
    return fmean(_total(_of_kind(rank, kind)) for rank in stage)


def _inside(stage: Sequence[Sequence[Action]], kind: Kind) -> list[list[Action]]:
    """Keep what each rank did during its actions of one kind."""
    return [
        [one for one in rank for outer in _of_kind(rank, kind) if _contains(outer, one) and one is not outer]
        for rank in stage
    ]


def _inside_forward(stage: Sequence[Sequence[Action]]) -> list[list[Action]]:
    """Keep what belongs to tensor parallelism; boundaries have encodings and decodings of their own."""
    return [[action for action in rank if "boundary" not in action.label] for rank in _inside(stage, Kind.FORWARD)]


def _contains(outer: Action, inner: Action) -> bool:
    return outer.start_s <= inner.start_s and inner.end_s <= outer.end_s


def _waiting_and_transfer(stage: Sequence[Sequence[Action]]) -> tuple[float, float]:
    """Return the mean rank's seconds of waiting and of transferring in the stage's collectives."""
    waiting = transfer = 0.0
    for collective in zip(*(_of_kind(rank, Kind.COMMUNICATE) for rank in stage), strict=True):
        last_entry_s = max(action.start_s for action in collective)
        waiting += fmean(last_entry_s - action.start_s for action in collective)
        transfer += fmean(max(0.0, action.end_s - last_entry_s) for action in collective)
    return waiting, transfer


def _boundary_s(sender: Sequence[Sequence[Action]], receiver: Sequence[Sequence[Action]]) -> float:
    """Return the mean rank's seconds of transfer, forward to the receiver and backward to the sender."""
    pairs = list(zip(sender, receiver, strict=True))
    return fmean(_arrivals_s(a, b, Kind.FORWARD) + _arrivals_s(b, a, Kind.BACKWARD) for a, b in pairs)


def _arrivals_s(sender: Sequence[Action], receiver: Sequence[Action], kind: Kind) -> float:
    total, receiver_free_s = 0.0, float("-inf")
    for sent, used in zip(_of_kind(sender, kind), _of_kind(receiver, kind), strict=True):
        total += max(0.0, used.start_s - max(sent.end_s, receiver_free_s))
        receiver_free_s = used.end_s
    return total
