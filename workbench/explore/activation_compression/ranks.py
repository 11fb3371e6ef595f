"""One reduction on real ranks, step by step, so that a lesson can show where its time goes."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from workbench.compression import Aggregation, Codec, Payload
from workbench.parallel import ProcessTensorGroup
from workbench.timeline import Action, Kind, Recorder

__all__ = ["RecordedReduction", "partial_of", "record_reduction"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedReduction:
    """What one rank did in one reduction."""

    total: Tensor  # the sum as this rank knows it, [tokens, hidden]
    message_bytes: int  # handed to the collective
    actions: tuple[Action, ...]  # encode, the collective, decode


def partial_of(rank: int, shape: tuple[int, ...]) -> Tensor:
    """Return a rank's partial sum, [tokens, hidden]: standard normal fp32 numbers, seeded by the rank."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(rank))


def record_reduction(codec: Codec, shape: tuple[int, ...]) -> RecordedReduction:
    """Reduce the partials of all ranks through a codec; call it on every rank.

    The codec's aggregation decides between an all-reduce of codes and an all-gather of messages. A first reduction is
    not recorded: it makes the connections.
    """
    group = ProcessTensorGroup()
    (rank,) = group.local_ranks
    partial = partial_of(rank, shape)
    with torch.no_grad():
        _reduce(codec, partial, group, Recorder(resource="first"))
        group.traffic.clear()
        group.sum([torch.zeros(1)])  # the ranks start together
        group.traffic.clear()
        recorder = Recorder(resource=f"rank {rank}")
        total = _reduce(codec, partial, group, recorder)
    return RecordedReduction(total=total, message_bytes=group.traffic.num_bytes(), actions=recorder.actions)


def _reduce(codec: Codec, partial: Tensor, group: ProcessTensorGroup, recorder: Recorder) -> Tensor:
    with recorder.during("encode", Kind.ENCODE):
        payload = codec.encode(partial)
    if codec.aggregation is Aggregation.SUM:
        with recorder.during("all-reduce", Kind.COMMUNICATE):
            sums = tuple(group.sum([code]) for code in payload.tensors)
        with recorder.during("decode", Kind.DECODE):
            return codec.decode(replace(payload, tensors=sums))
    with recorder.during("all-gather", Kind.COMMUNICATE):
        gathered = _gather(payload, group)
    with recorder.during("decode", Kind.DECODE):
        return codec.decode_sum(gathered)


def _gather(payload: Payload, group: ProcessTensorGroup) -> list[Payload]:
    by_tensor = [group.gather([message]) for message in payload.tensors]
    return [replace(payload, tensors=tensors) for tensors in zip(*by_tensor, strict=True)]
