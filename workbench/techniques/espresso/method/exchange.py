"""The transfer of a gradient along an option: its layout after each task, and the messages between ranks.

`exchanged_by_definition` transfers the gradients of all ranks in one process; `runtime` uses collectives.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from workbench.checks import require_one_of
from workbench.compression import DGC, Codec, Payload
from workbench.compression.gradients import gradient_codec
from workbench.compression.wire import packed, unpacked

from .options import Comm, Comp, Decomp, Option, Phase, Routine

__all__ = ["Encoders", "Layout", "exchanged_by_definition", "group_of", "is_second", "layouts_of", "merged", "outgoing"]
__all__ += ["CODECS", "holds", "make_codec", "padded", "sizes_of", "stream_of"]

CODECS = ("randomk", "dgc", "efsignsgd")
# A value is a tensor [E] or, compressed, messages uint8 [C, P, B]: a sum of C messages with P pieces of B bytes each.
GATHERING = (Routine.ALL_GATHER, Routine.GATHER, Routine.ALL_TO_ALL)
SPLITTING = (Routine.REDUCE_SCATTER, Routine.ALL_TO_ALL)
ROOTED = (Routine.REDUCE, Routine.GATHER)


@dataclass(frozen=True, slots=True)
class Layout:
    """The distribution of a tensor over the ranks before a task."""

    split: int = 1  # number of parts; each holder has one part
    copies: int = 1  # number of messages that add up to the part
    pieces: int = 1  # number of pieces that encode the part
    rooted: frozenset[Phase] = frozenset()  # phases in whose groups only the first rank holds a value


@cache
def layouts_of(option: Option, num_machines: int, gpus_per_machine: int) -> tuple[Layout, ...]:
    """Return the layout of a tensor before each task of an option, and at the end.

    Raises:
        ValueError: if a rank lacks the whole sum at the end.
    """
    size = sizes_of(num_machines, gpus_per_machine)
    layouts = [Layout()]
    for number, task in enumerate(option.tasks):
        now = layouts[-1]
        if isinstance(task, Comp):
            now = replace(now, copies=1, pieces=_pieces(option, number, size))
        elif isinstance(task, Decomp):
            now = replace(now, copies=1, pieces=1)
        else:
            now = _sent(now, task, size[task.phase], is_second(option, number))
        layouts.append(now)
    if layouts[-1] != Layout():
        raise ValueError(f"option is {option}; at its end a GPU holds {layouts[-1]}")
    return tuple(layouts)


def sizes_of(num_machines: int, gpus_per_machine: int) -> dict[Phase, int]:
    """Return the number of ranks that communicate in each phase."""
    return {Phase.INTRA: gpus_per_machine, Phase.INTER: num_machines, Phase.FLAT: num_machines * gpus_per_machine}


@cache
def is_second(option: Option, number: int) -> bool:
    """Return whether a task is the second communication of its phase."""
    task = option.tasks[number]
    assert isinstance(task, Comm)
    return any(isinstance(other, Comm) and other.phase is task.phase for other in option.tasks[:number])


def _pieces(option: Option, number: int, size: dict[Phase, int]) -> int:
    """Return the number of pieces to encode, so that shuffles before the next decompression can distribute them."""
    pieces = 1
    for task in option.tasks[number + 1 :]:
        if isinstance(task, Decomp):
            break
        if isinstance(task, Comm) and task.routine is Routine.ALL_TO_ALL:
            pieces *= size[task.phase]
    return pieces


def _sent(now: Layout, task: Comm, n: int, second: bool) -> Layout:
    copies = now.copies * n if task.is_compressed and task.routine in GATHERING and not second else now.copies
    split, pieces, rooted = now.split, now.pieces, now.rooted
    if task.routine in SPLITTING:
        split, pieces = split * n, pieces // n if task.is_compressed else pieces
    elif task.routine is Routine.ALL_GATHER and second:
        split, pieces = split // n, pieces * n if task.is_compressed else pieces
    elif task.routine in ROOTED:
        rooted |= {task.phase}
    elif task.routine is Routine.BROADCAST:
        rooted -= {task.phase}
    return Layout(split, copies, pieces, rooted)


def group_of(phase: Phase, rank: int, num_machines: int, gpus_per_machine: int) -> tuple[int, ...]:
    """Return the ranks, in ascending order, of a rank's group in a phase; machines are blocks of ranks."""
    machine, gpu = divmod(rank, gpus_per_machine)
    if phase is Phase.INTRA:
        return tuple(range(machine * gpus_per_machine, (machine + 1) * gpus_per_machine))
    world = range(num_machines * gpus_per_machine)
    return tuple(world) if phase is Phase.FLAT else tuple(world[gpu::gpus_per_machine])


def stream_of(option: Option, number: int, rank: int, gpus_per_machine: int) -> int:
    """Return the rank whose random stream a compression uses.

    After the last step between machines, ranks at the same place hold the same sum and must send equal messages.
    """
    is_inter = [isinstance(task, Comm) and task.phase is Phase.INTER for task in option.tasks]
    is_over = any(is_inter[:number]) and not any(is_inter[number:])
    return rank % gpus_per_machine if is_over else rank


def holds(layout: Layout, rank: int, num_machines: int, gpus_per_machine: int) -> bool:
    """Return whether a rank holds a value: it is the first of its group in each rooted phase."""
    return all(group_of(phase, rank, num_machines, gpus_per_machine)[0] == rank for phase in layout.rooted)


def padded(tensor: Tensor, num_ranks: int) -> Tensor:
    """Return a flat copy, padded with zeros to a multiple of the number of ranks."""
    flat = tensor.detach().reshape(-1)
    return torch.cat([flat, flat.new_zeros(-flat.numel() % num_ranks)])


def outgoing(value: Tensor, task: Comm, n: int) -> list[Tensor]:
    """Return a rank's values for each of the n ranks of its group."""
    if task.routine in SPLITTING:
        return list(value.chunk(n, dim=1 if task.is_compressed else 0))
    return [value] * n


def merged(received: Sequence[Tensor], task: Comm, second: bool) -> Tensor:
    """Merge the values received from a group, in the order of ranks."""
    if task.routine is Routine.BROADCAST:
        return received[0]
    if task.is_compressed:
        return torch.cat(list(received), dim=1 if second else 0)
    if second:
        return torch.cat(list(received))
    return torch.stack(list(received)).sum(dim=0)


def make_codec(name: str, place: int = 0, *, momentum: float = 0.0, warmup: Sequence[float] = ()) -> Codec:
    """Return the codec of a tensor's compression number `place`, from 0; only the first has DGC's momentum."""
    require_one_of(CODECS, codec=name)
    return gradient_codec(name, momentum=0.0 if place else momentum, warmup=warmup)


class Encoders:
    """The codecs of one tensor on one rank: one codec, with its error, for each compression and piece.

    Args:
        make: returns the codec of a compression of an option by its number, from 0.
        name: name of the tensor.
    """

    def __init__(self, make: Callable[[int], Codec], name: str):
        self._make = make
        self._name = name
        self._epoch = 0
        self._decoder = make(0)
        self._codecs: dict[tuple[int, int], Codec] = {}
        self._templates: dict[int, Payload] = {}

    def at_epoch(self, epoch: int) -> None:
        """Set DGC's share to that of an epoch, from 0; all ranks call it."""
        self._epoch = epoch
        self._templates.clear()
        for codec in self._codecs.values():
            self._set_epoch(codec)

    def _set_epoch(self, codec: Codec) -> Codec:
        if isinstance(codec, DGC):
            codec.at_epoch(self._epoch)
        return codec

    @property
    def memory(self) -> tuple[Tensor, ...]:
        """State of all codecs; new codecs come last."""
        return tuple(state for codec in self._codecs.values() for state in codec.memory)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state of all codecs, by compression and piece."""
        return {f"{place}, {piece}": copy.deepcopy(dict(c.state_dict())) for (place, piece), c in self._codecs.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state of `state_dict`, including the random streams."""
        self._codecs.clear()
        for key, saved in state.items():
            place, piece = map(int, key.split(", "))
            self._codec(place, piece, stream=0).load_state_dict(saved)

    def encode(self, part: Tensor, place: int, pieces: int, stream: int) -> Tensor:
        """Encode a part [E] in pieces, with the random stream of `stream_of`; return messages [1, P, B]."""
        rows = [
            packed(self._codec(place, number, stream).encode(piece)) for number, piece in enumerate(part.chunk(pieces))
        ]
        return torch.stack(rows)[None]

    def decode(self, messages: Tensor, num_elements: int) -> Tensor:
        """Decode messages [C, P, B] of a part with `num_elements` elements, and add them [E]."""
        template = self.template(num_elements // messages.shape[1], messages.device)
        sums = []
        for rows in messages.unbind(dim=1):
            sums.append(self._decoder.decode_sum([unpacked(row, template) for row in rows]))
        return torch.cat(sums)

    def template(self, num_elements: int, device: torch.device | str) -> Payload:
        """Return a payload with the dtypes and sizes of a piece with `num_elements` elements."""
        if num_elements not in self._templates:
            codec = self._set_epoch(self._make(0)).to(device)
            zeros = torch.zeros(num_elements, dtype=torch.float32, device=device)
            self._templates[num_elements] = codec.encode(zeros)
        return self._templates[num_elements]

    def _codec(self, place: int, piece: int, stream: int) -> Codec:
        if (place, piece) not in self._codecs:
            site = f"{self._name}, compression {place}, piece {piece}"
            self._codecs[place, piece] = self._set_epoch(self._make(place)).for_site(site).for_rank(stream)
        return self._codecs[place, piece]


def exchanged_by_definition(
    option: Option, gradients: Sequence[Tensor], encoders: Sequence[Encoders], num_machines: int, gpus_per_machine: int
) -> list[Tensor]:
    """Transfer the gradients of all ranks along an option, task by task; return the sum on each rank."""
    place = num_machines, gpus_per_machine
    shape = gradients[0].shape
    values = {rank: padded(gradient, len(gradients)) for rank, gradient in enumerate(gradients)}  # of ranks with one
    num_elements = values[0].numel()
    compressions = 0
    for number, (task, layout) in enumerate(zip(option.tasks, layouts_of(option, *place)[:-1], strict=True)):
        after = layouts_of(option, *place)[number + 1]
        before, values = values, {}
        for rank in range(len(gradients)):
            if isinstance(task, Comm):
                group = group_of(task.phase, rank, *place)
                if group[0] not in before or not holds(after, rank, *place):
                    continue
                senders = group if task.routine is not Routine.BROADCAST else group[:1]
                sent = [outgoing(before[sender], task, len(group))[group.index(rank)] for sender in senders]
                values[rank] = merged(sent, task, is_second(option, number))
            elif rank in before and isinstance(task, Comp):
                stream = stream_of(option, number, rank, gpus_per_machine)
                values[rank] = encoders[rank].encode(before[rank], compressions, after.pieces, stream)
            elif rank in before:
                values[rank] = encoders[rank].decode(before[rank], num_elements // layout.split)
        compressions += isinstance(task, Comp)
    return [values[rank][: shape.numel()].view(shape) for rank in range(len(gradients))]
