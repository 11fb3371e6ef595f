"""Messages of any length between the ranks of a group, and what the ranks must agree on, in the heads of the messages.

All sent and received bytes are counted.
"""

from collections.abc import Mapping, Sequence
from math import prod
from zlib import crc32

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from workbench.launch.backends import carrying_device
from workbench.parallel.groups import ProcessTensorGroup
from workbench.parallel.messages import all_to_all

__all__ = ["Message", "Wire"]

Message = tuple[Tensor, ...]
WORD_BYTES = 8
HEAD_BYTES = 5 * WORD_BYTES
MOST_EXCHANGES = 32  # of a sum, whose lengths are remembered
MOST_SLACK_BYTES = 8192  # of room for a message that is longer than the last ones


class Wire:
    """Messages between this rank and the other ranks of a group; None is the default group.

    An exchange is one all-to-all of heads, each with as much of its message as there is room for, and a second one if a
    rank has more. Both ends know the room: it follows from the last lengths between them in this exchange of a sum,
    whatever is sent. A head has the length of its message, and a checksum of what the ranks must agree on. What is
    large travels beside the all-to-all, in both directions at once.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, device: torch.device | str = "cpu"):
        self._group = ProcessTensorGroup(group)
        self.size, (self.rank,) = self._group.size, self._group.local_ranks
        self.sent_bytes = self.received_bytes = 0  # of tensors, without heads, their lengths and room that is not used
        self.follow(device)
        self._facts: dict[str, str] = {}
        self._error = ""
        self._number = MOST_EXCHANGES  # of the next exchange in a sum
        self._last = np.zeros((MOST_EXCHANGES + 1, 2, 2, self.size), np.int64)  # two last lengths, to and from ranks

    def follow(self, device: torch.device | str) -> None:
        """From now on send what lies on a device by the group's backend for it; the ranks do so together."""
        self._device = carrying_device(device, self._group.process_group)

    def expect(self, facts: Mapping[str, object], error: str = "") -> None:
        """Begin a sum: its first exchange raises ValueError as `agree` does, without messages of its own."""
        self._facts, self._error, self._number = {name: str(value) for name, value in facts.items()}, error, 0

    def agree(self, facts: Mapping[str, object], error: str = "") -> None:
        """Raise ValueError on all ranks if a rank has an error, or other facts than rank 0; all ranks call it."""
        self.expect(facts, error)
        self._swap([[]] * self.size)

    def _swap(self, pieces: Sequence[Sequence[Tensor]], note: int = 0) -> tuple[list[Tensor], list[int]]:
        """Send a message to each rank, in pieces of bytes, and a number to all; return what arrives from each rank.

        Every rank gets a head of every rank, so that all find out together if ranks disagree, or have more to send.
        """
        facts, error, number = self._facts, self._error, self._number
        self._facts, self._error, self._number = {}, "", min(number + 1, MOST_EXCHANGES)
        rooms = _rooms(self._last[number].min(axis=0))
        lengths = np.array([sum(map(len, message)) for message in pieces])
        shared = [crc32(error.encode()), crc32(repr(facts).encode()), int((lengths > rooms[0]).any()), note]
        first, rest = [], []
        for message, length, room in zip(pieces, lengths.tolist(), rooms[0].tolist(), strict=True):
            unused = torch.zeros(max(0, room - length), dtype=torch.uint8)
            parts = _bytes_of(torch.tensor([*shared, length])), *message, unused
            whole = torch.cat([part.to(self._device) for part in parts])
            first.append(whole[: HEAD_BYTES + room])
            rest.append(whole[HEAD_BYTES + room :])
        arrived = self._all_to_all(first, HEAD_BYTES + rooms[1])
        heads = torch.stack([block[:HEAD_BYTES].view(torch.int64) for block in arrived]).cpu().numpy()
        if heads[:, 0].any() or (heads[:, 1] != heads[0, 1]).any():
            self._refuse(facts, error)
        expected = heads[:, 4]
        messages = [
            block[HEAD_BYTES : HEAD_BYTES + size] for block, size in zip(arrived, expected.tolist(), strict=True)
        ]
        if heads[:, 2].any():
            more = self._all_to_all(rest, np.maximum(expected - rooms[1], 0))
            messages = [torch.cat(both) if len(both[1]) else both[0] for both in zip(messages, more, strict=True)]
        if number < MOST_EXCHANGES:
            self._last[number] = self._last[number][1], np.stack([lengths, expected])
        return messages, heads[:, 3].tolist()

    def _all_to_all(self, sent: Sequence[Tensor], lengths: np.ndarray) -> list[Tensor]:
        """Send a tensor to each rank; return those that arrive from each rank, of known lengths."""
        arrived = [sent[0].new_empty(length) for length in lengths.tolist()]
        self._group.communicate(all_to_all, arrived, sent)
        return arrived

    def _refuse(self, own_facts: dict[str, str], own_error: str) -> None:
        """Raise ValueError with the first rank that has an error, or other facts than rank 0."""
        answers: list[tuple[str, dict[str, str]]] = [("", {})] * self.size
        dist.all_gather_object(answers, (own_error, own_facts), self._group.process_group)
        for rank, (error, _) in enumerate(answers):
            if error:
                raise ValueError(f"rank {rank}: {error}")
        for rank, (_, facts) in enumerate(answers):
            for name in answers[0][1] | facts:
                on_rank_0, on_rank = answers[0][1].get(name, "missing"), facts.get(name, "missing")
                if on_rank_0 != on_rank:
                    raise ValueError(f"{name} is {on_rank} on rank {rank} and {on_rank_0} on rank 0; it must be one")

    def exchange(self, outgoing: Mapping[int, Message]) -> dict[int, Message]:
        """Send messages to ranks, and return the messages received, by rank in ascending order; all ranks call it.

        Messages have the same dtypes and trailing shapes on all ranks. A message to this rank itself is not sent.
        """
        model = next(iter(outgoing.values()))
        pieces: list[list[Tensor]] = [[] for _ in range(self.size)]
        for to in outgoing.keys() - {self.rank}:
            lengths = torch.tensor([len(part) for part in outgoing[to]], device=model[0].device)
            pieces[to] = [_bytes_of(part) for part in (lengths, *outgoing[to])]
            self.sent_bytes += sum(part.nbytes for part in outgoing[to])
        received = {}
        for source, whole in enumerate(self._swap(pieces)[0]):
            if source == self.rank and source in outgoing:
                received[source] = outgoing[source]
            elif len(whole):
                received[source] = _unpacked(whole.to(model[0].device), model)
                self.received_bytes += sum(part.nbytes for part in received[source])
        return received

    def all_reduce_(self, whole: Tensor) -> Tensor:
        """Sum a dense tensor over the ranks in place; a ring sends 2(n - 1)/n of its bytes."""
        if self._facts:
            self._swap([[]] * self.size)
        self._group.communicate(dist.all_reduce, whole)
        self._count(2 * (self.size - 1) * whole.nbytes // self.size)
        return whole

    def all_reduce_by_torch(self, gradient: Tensor) -> Tensor:
        """Return the sum of a sparse tensor by gloo's all-reduce, a ring that sends values and 8-byte indices."""
        total, (_, counts) = gradient.clone(), self._swap([[]] * self.size, gradient._nnz())
        self._group.communicate(dist.all_reduce, total)
        entry = gradient.indices().element_size() + _entry_bytes(gradient.values())
        self.sent_bytes += entry * (sum(counts) - counts[(self.rank + 1) % self.size])
        self.received_bytes += entry * (sum(counts) - counts[self.rank])
        return total.coalesce()

    def _count(self, num_bytes: int) -> None:
        self.sent_bytes += num_bytes
        self.received_bytes += num_bytes


def _entry_bytes(part: Tensor) -> int:
    """Return the bytes of one entry of a tensor's first dimension."""
    return part.element_size() * prod(part.shape[1:])


def _rooms(lengths: np.ndarray) -> np.ndarray:
    """Return an eighth more, in whole words: most messages fit that are of similar lengths."""
    return -(-(lengths + np.minimum(lengths // 8, MOST_SLACK_BYTES)) // WORD_BYTES) * WORD_BYTES


def _bytes_of(part: Tensor) -> Tensor:
    return part.contiguous().flatten().view(torch.uint8)


def _unpacked(whole: Tensor, model: Message) -> Message:
    """Read the bytes of a message whose tensors are like those of another message, but for their lengths."""
    lengths = torch.empty(0, dtype=torch.int64)
    head = len(model) * lengths.element_size()
    counts = _typed(whole[:head], lengths, len(model)).tolist()
    sizes = [count * _entry_bytes(part) for part, count in zip(model, counts, strict=True)]
    return tuple(_typed(*arguments) for arguments in zip(whole[head:].split(sizes), model, counts, strict=True))


def _typed(piece: Tensor, part: Tensor, count: int) -> Tensor:
    """Read bytes as entries like those of a tensor."""
    aligned = piece if piece.storage_offset() % part.element_size() == 0 else piece.clone()
    return aligned.view(part.dtype).view(count, *part.shape[1:])
