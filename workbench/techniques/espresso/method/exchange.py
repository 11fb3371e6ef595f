"""A gradient on its way along an option: its layout after every task, and what ranks send each other.

`exchanged_by_definition` moves the gradients of all ranks in one process; `runtime` does it with collectives.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from workbench.compression import DGC, Codec, Payload
from workbench.compression.gradients import gradient_codec
from workbench.compression.wire import packed, unpacked

from .options import Comm, Comp, Decomp, Option, Phase, Routine

__all__ = ["Encoders", "Layout", "exchanged_by_definition", "group_of", "is_second", "layouts_of", "merged", "outgoing"]
__all__ += ["CODECS", "holds", "make_codec", "padded", "sizes_of", "stream_of"]

CODECS = ("randomk", "dgc", "efsignsgd")
# A value is a tensor [E] or, compressed, messages uint8 [C, P, B]: C messages to be added up, of P pieces of B bytes.
GATHERING = (Routine.ALL_GATHER, Routine.GATHER, Routine.ALL_TO_ALL)
SPLITTING = (Routine.REDUCE_SCATTER, Routine.ALL_TO_ALL)
ROOTED = (Routine.REDUCE, Routine.GATHER)


@dataclass(frozen=True, slots=True)
class Layout:
    """What the ranks hold of a tensor before a task."""

    split: int = 1  # each holder has one of so many parts
    copies: int = 1  # messages of it that are to be added up
    pieces: int = 1  # that its part was encoded in
    rooted: frozenset[Phase] = frozenset()  # phases of whose groups only the first rank holds something


@cache
def layouts_of(option: Option, num_machines: int, gpus_per_machine: int) -> tuple[Layout, ...]:
    """Follow a tensor along an option: its layout before each task, and at the end.

    Raises:
        ValueError: if not every rank holds the whole sum in the end.
    """
    size = sizes_of(num_machines, gpus_per_machine)
    found = [Layout()]
    for number, task in enumerate(option.tasks):
        now = found[-1]
        if isinstance(task, Comp):
            now = replace(now, copies=1, pieces=_pieces(option, number, size))
        elif isinstance(task, Decomp):
            now = replace(now, copies=1, pieces=1)
        else:
            now = _sent(now, task, size[task.phase], is_second(option, number))
        found.append(now)
    if found[-1] != Layout():
        raise ValueError(f"option is {option}; at its end a GPU holds {found[-1]}")
    return tuple(found)


def sizes_of(num_machines: int, gpus_per_machine: int) -> dict[Phase, int]:
    """Return the number of ranks that communicate in each phase."""
    return {Phase.INTRA: gpus_per_machine, Phase.INTER: num_machines, Phase.FLAT: num_machines * gpus_per_machine}


@cache
def is_second(option: Option, number: int) -> bool:
    """Return whether a task is the second communication of its phase."""
    phase = option.tasks[number].phase
    return any(isinstance(task, Comm) and task.phase is phase for task in option.tasks[:number])


def _pieces(option: Option, number: int, size: dict[Phase, int]) -> int:
    """Return in how many pieces to encode, so that the shuffles before the next decompression can part them."""
    pieces = 1
    for task in option.tasks[number + 1 :]:
        if isinstance(task, Decomp):
            break
        pieces *= size[task.phase] if task.routine is Routine.ALL_TO_ALL else 1
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
    """Return the ranks that a rank communicates with in a phase, itself among them; machines are blocks of ranks."""
    machine, gpu = divmod(rank, gpus_per_machine)
    if phase is Phase.INTRA:
        return tuple(range(machine * gpus_per_machine, (machine + 1) * gpus_per_machine))
    world = range(num_machines * gpus_per_machine)
    return tuple(world) if phase is Phase.FLAT else tuple(world[gpu::gpus_per_machine])


def stream_of(option: Option, number: int, rank: int, gpus_per_machine: int) -> int:
    """Return whose random numbers a compression draws.

    After the last step between machines the ranks of one place hold the same sum, and must send the same of it.
    """
    is_inter = [isinstance(task, Comm) and task.phase is Phase.INTER for task in option.tasks]
    is_over = any(is_inter[:number]) and not any(is_inter[number:])
    return rank % gpus_per_machine if is_over else rank


def holds(layout: Layout, rank: int, num_machines: int, gpus_per_machine: int) -> bool:
    """Return whether a rank holds something: it is the first of its group of each rooted phase."""
    return all(group_of(phase, rank, num_machines, gpus_per_machine)[0] == rank for phase in layout.rooted)


def padded(tensor: Tensor, num_ranks: int) -> Tensor:
    """Return a flat copy whose number of elements all ranks can share, zeros behind."""
    flat = tensor.detach().reshape(-1)
    return torch.cat([flat, flat.new_zeros(-flat.numel() % num_ranks)])


def outgoing(value: Tensor, task: Comm, n: int) -> list[Tensor]:
    """Return what a rank has for each of the n ranks of its group."""
    if task.routine in SPLITTING:
        return list(value.chunk(n, dim=1 if task.is_compressed else 0))
    return [value] * n


def merged(received: Sequence[Tensor], task: Comm, second: bool) -> Tensor:
    """Return what a rank makes of the values of its group, in the order of ranks."""
    if task.routine is Routine.BROADCAST:
        return received[0]
    if task.is_compressed:
        return torch.cat(list(received), dim=1 if second else 0)
    if second:
        return torch.cat(list(received))
    return torch.stack(list(received)).sum(dim=0)


def make_codec(name: str, place: int = 0, *, momentum: float = 0.0, warmup: Sequence[float] = ()) -> Codec:
    """Return the codec of a tensor's first (0), second, ... compression; DGC's momentum belongs to the first."""
    if name not in CODECS:
        raise ValueError(f"codec is {name!r}; it must be one of {', '.join(CODECS)}")
    return gradient_codec(name, momentum=0.0 if place else momentum, warmup=warmup)


class Encoders:
    """The codecs of one tensor on one rank: each task that compresses, and each piece, has its own remembered error.

    Args:
        make: returns the codec of the first, second, ... compression of an option (0, 1, ...).
        name: of the tensor.
    """

    def __init__(self, make: Callable[[int], Codec], name: str):
        self._make, self._name, self._epoch, self._decoder = make, name, 0, make(0)
        self._codecs: dict[tuple[int, int], Codec] = {}
        self._templates: dict[int, Payload] = {}

    def at_epoch(self, epoch: int) -> None:
        """Let DGC keep the share of an epoch, from 0 on; to be called alike on all ranks."""
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
        """What all codecs remember of the tensor's parts; new codecs come last."""
        return tuple(remembered for codec in self._codecs.values() for remembered in codec.memory)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of what all codecs remember, by place and piece."""
        return {f"{place}, {piece}": copy.deepcopy(dict(c.state_dict())) for (place, piece), c in self._codecs.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with what `state_dict` gave: streams of random numbers, too."""
        self._codecs.clear()
        for key, saved in state.items():
            place, piece = map(int, key.split(", "))
            self._codec(place, piece, stream=0).load_state_dict(saved)

    def encode(self, part: Tensor, place: int, pieces: int, stream: int) -> Tensor:
        """Encode a part [E] in pieces, with the random numbers of `stream_of`; return messages [1, P, B]."""
        rows = [
            packed(self._codec(place, number, stream).encode(piece)) for number, piece in enumerate(part.chunk(pieces))
        ]
        return torch.stack(rows)[None]

    def decode(self, messages: Tensor, num_elements: int) -> Tensor:
        """Decode messages [C, P, B] of a part of so many elements, and add them up [E]."""
        template = self.template(num_elements // messages.shape[1], messages.device)
        sums = []
        for rows in messages.unbind(dim=1):
            sums.append(self._decoder.decode_sum([unpacked(row, template) for row in rows]))
        return torch.cat(sums)

    def template(self, num_elements: int, device: torch.device | str) -> Payload:
        """Return a payload of a piece of so many elements, for its dtypes and sizes."""
        if num_elements not in self._templates:
            codec = self._set_epoch(self._make(0)).to(device)
            self._templates[num_elements] = codec.encode(torch.zeros(num_elements, device=device))
        return self._templates[num_elements]

    def _codec(self, place: int, piece: int, stream: int) -> Codec:
        if (place, piece) not in self._codecs:
            site = f"{self._name}, compression {place}, piece {piece}"
            self._codecs[place, piece] = self._set_epoch(self._make(place)).for_site(site).for_rank(stream)
        return self._codecs[place, piece]


def exchanged_by_definition(
    option: Option, gradients: Sequence[Tensor], encoders: Sequence[Encoders], num_machines: int, gpus_per_machine: int
) -> list[Tensor]:
    """Move the gradients of all ranks along an option, one task after the other; return the sum that each ends with."""
    place, shape = (num_machines, gpus_per_machine), gradients[0].shape
    values: list[Tensor | None] = [padded(gradient, len(gradients)) for gradient in gradients]
    num_elements, compressions = values[0].numel(), 0
    for number, (task, layout) in enumerate(zip(option.tasks, layouts_of(option, *place)[:-1], strict=True)):
        after = layouts_of(option, *place)[number + 1]
        before, values = values, [None] * len(values)
        for rank, value in enumerate(before):
            if isinstance(task, Comm):
                group = group_of(task.phase, rank, *place)
                root = before[group[0]]
                if root is None or not holds(after, rank, *place):
                    continue
                senders = group if task.routine is not Routine.BROADCAST else group[:1]
                sent = [outgoing(before[sender], task, len(group))[group.index(rank)] for sender in senders]
                values[rank] = merged(sent, task, is_second(option, number))
            elif value is not None and isinstance(task, Comp):
                stream = stream_of(option, number, rank, gpus_per_machine)
                values[rank] = encoders[rank].encode(value, compressions, after.pieces, stream)
            elif value is not None:
                values[rank] = encoders[rank].decode(value, num_elements // layout.split)
        compressions += isinstance(task, Comp)
    return [value[: shape.numel()].view(shape) for value in values]
