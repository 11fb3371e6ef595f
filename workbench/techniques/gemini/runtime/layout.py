"""Where each part of one rank's training state lies in the flat run of bytes that a checkpoint is: its image.

An image is: a prefix (mark, iteration, sizes), a header (JSON: the run, and the name, dtype, shape and place of every
tensor), the captured part (everything small that changes during an iteration), and the tensors' own bytes.
"""

import bisect
import hashlib
import json
import struct
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from .encoding import aligned, raw_bytes

__all__ = ["Entry", "Pieces", "StateLayout", "StateMismatch"]

ALIGNMENT_BYTES = 64  # tensors start at multiples of it: a cache line, and no dtype is wider
MARK = b"GEMINI-1"
PREFIX = struct.Struct("<8sQQQ")  # mark, iteration, bytes of the header, bytes of the captured part in use
WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")  # of torch.compile and activation checkpointing


class StateMismatch(ValueError):
    """A checkpoint is of another model, optimizer, dtype, rank or world size; nothing has been overwritten."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One tensor of the state."""

    name: str  # such as "model/blocks.0.output.weight" or "optimizer/blocks.0.output.weight/exp_avg"
    dtype: str  # torch's name, such as "float32"
    shape: tuple[int, ...]  # of what this rank holds
    stride: tuple[int, ...]  # of the same, in elements
    whole_shape: tuple[int, ...]  # of the tensor over all ranks; equal to `shape` where it is not sharded
    placements: tuple[str, ...]  # of a sharded tensor on its mesh, such as ["Shard(dim=0)"]; empty for a plain one
    offset: int  # its first byte in the image
    num_bytes: int  # its size

    @property
    def kind(self) -> tuple:
        """The fields that must be equal for its bytes to be read as another tensor's."""
        return self.dtype, self.shape, self.stride, self.whole_shape, self.placements

    def __str__(self) -> str:
        whole = f" of {list(self.whole_shape)} {', '.join(self.placements)}" if self.placements else ""
        return f"{self.dtype} {list(self.shape)}{whole}"


@dataclass(frozen=True, kw_only=True, slots=True)
class StateLayout:
    """The layout of one rank's image."""

    model: str  # class of the model
    optimizer: str  # class of the optimizer
    rank: int  # whose state it is
    world_size: int  # number of ranks
    captured_offset: int  # first byte of the captured part
    captured_capacity_bytes: int  # room for it
    entries: tuple[Entry, ...]  # the tensors, in the order of their offsets

    @property
    def header(self) -> bytes:
        """The header's bytes, without the prefix."""
        entries = [_fields_of(entry) for entry in self.entries]
        header = {**_fields_of(self), "entries": entries, "fingerprint": self.fingerprint}
        return json.dumps(header, separators=(",", ":")).encode()

    @property
    def fingerprint(self) -> str:
        """Names what is trained: the same on all ranks and in all iterations, another for another model or dtype."""
        tensors = [(entry.name, entry.dtype, entry.whole_shape, entry.placements) for entry in self.entries]
        return hashlib.sha256(json.dumps([self.model, self.optimizer, tensors]).encode()).hexdigest()

    @property
    def head_bytes(self) -> int:
        """Bytes before the tensors."""
        return self.captured_offset + self.captured_capacity_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole image."""
        return self.entries[-1].offset + self.entries[-1].num_bytes if self.entries else self.head_bytes

    @classmethod
    def of(cls, *, captured_capacity_bytes: int, entries: list[Entry], **run) -> Self:
        """Lay out tensors one after the other; the header holds their offsets, so its length is iterated."""
        capacity, before = aligned(captured_capacity_bytes, ALIGNMENT_BYTES), 0
        while True:
            placed, offset = [], before + capacity
            for entry in entries:
                placed.append(replace(entry, offset=offset))
                offset = aligned(offset + entry.num_bytes, ALIGNMENT_BYTES)
            layout = cls(captured_offset=before, captured_capacity_bytes=capacity, entries=tuple(placed), **run)
            needed = aligned(PREFIX.size + len(layout.header), ALIGNMENT_BYTES)
            if needed == before:
                return layout
            before = needed

    def refuse_unless_loadable(self, live: Self, part: str = "") -> None:
        """Refuse to read this layout's image into the live state; compare the tensors whose name starts with `part`."""
        for field in ("model", "optimizer", "world_size", "rank"):
            if getattr(self, field) != getattr(live, field):
                rule = f"this run's is {getattr(live, field)!r}"
                raise StateMismatch(f"checkpoint: {field} is {getattr(self, field)!r}; {rule}")
        stored = {entry.name: entry for entry in self.entries if entry.name.startswith(part)}
        own = {entry.name: entry for entry in live.entries if entry.name.startswith(part)}
        for name in [*stored, *own]:
            if name not in own:
                raise StateMismatch(f"checkpoint: {name!r} is in it and not in this run")
            if name not in stored:
                raise StateMismatch(f"checkpoint: {name!r} is in this run and not in it")
            if stored[name].kind != own[name].kind:
                raise StateMismatch(f"checkpoint: {name!r} is {stored[name]}; this run's is {own[name]}")

    @classmethod
    def read(cls, image: Tensor) -> Self:
        """Read the layout at the start of an image."""
        _, header_bytes, _ = prefix_of(image)
        if PREFIX.size + header_bytes > image.numel():
            raise StateMismatch(f"checkpoint: its header has {header_bytes} bytes, more than the image")
        header = json.loads(image[PREFIX.size : PREFIX.size + header_bytes].numpy().tobytes())
        fingerprint = header.pop("fingerprint")
        rows = header.pop("entries")
        entries = tuple(Entry(**{key: tuple(v) if type(v) is list else v for key, v in row.items()}) for row in rows)
        layout = cls(**header, entries=entries)
        if layout.fingerprint != fingerprint:
            raise StateMismatch(f"checkpoint: its header's fingerprint is {fingerprint}, not that of its entries")
        return layout

    def head_of(self, header: bytes, iteration: int, captured: bytes) -> Tensor:
        """Return the bytes before the tensors; the header is the same in every iteration, and given to save time."""
        if len(captured) > self.captured_capacity_bytes:
            room = f"{self.captured_capacity_bytes}, its room since the first capture: raise spare_bytes"
            raise ValueError(f"captured part is {len(captured)} bytes; it must be at most {room}")
        head = torch.zeros(self.head_bytes, dtype=torch.uint8)
        view = memoryview(head.numpy())
        PREFIX.pack_into(view, 0, MARK, iteration, len(header), len(captured))
        view[PREFIX.size : PREFIX.size + len(header)] = header
        view[self.captured_offset : self.captured_offset + len(captured)] = captured
        return head

    def captured(self, image: Tensor) -> memoryview:
        """Return an image's captured part, as long as it is in use."""
        length = prefix_of(image)[2]
        return memoryview(image[self.captured_offset : self.captured_offset + length].numpy())


def prefix_of(image: Tensor) -> tuple[int, int, int]:
    """Return an image's iteration, the bytes of its header, and the bytes of its captured part."""
    if image.numel() < PREFIX.size:
        raise StateMismatch(f"checkpoint: {image.numel()} bytes are fewer than its prefix has, {PREFIX.size}")
    mark, *numbers = PREFIX.unpack(image[: PREFIX.size].numpy().tobytes())
    if mark != MARK:
        raise StateMismatch(f"checkpoint: it begins with {mark!r} and not with {MARK!r}")
    return tuple(numbers)


def plain_name(name: str) -> str:
    """Return a parameter's name without the wrappers' parts."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def local_of(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor, or the tensor where it is not sharded. Gradients must be off."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def entry_of(name: str, tensor: Tensor) -> Entry:
    """Describe a tensor; its offset is decided later."""
    local = local_of(tensor)
    try:
        raw_bytes(local)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return Entry(
        name=name,
        dtype=str(local.dtype).removeprefix("torch."),
        shape=tuple(local.shape),
        stride=tuple(local.stride()),
        whole_shape=tuple(tensor.shape),
        placements=tuple(map(repr, tensor.placements)) if isinstance(tensor, DTensor) else (),
        offset=0,
        num_bytes=local.numel() * local.itemsize,
    )


class Pieces:
    """Views of a head and of live tensors, laid out one after the other."""

    def __init__(self, layout: StateLayout, live: dict[str, Tensor]):
        self._header = layout.header
        self.head = layout.head_of(self._header, 0, b"")
        self._layout = layout
        self._num_bytes = layout.num_bytes
        self._entries = layout.entries
        self._starts = [entry.offset for entry in layout.entries]
        self._live = [live[entry.name] for entry in layout.entries]
        locals_ = [local_of(tensor) for tensor in self._live]
        self._places = [local.data_ptr() for local in locals_]
        self._raw = [raw_bytes(local) for local in locals_]
        self._gap = torch.zeros(ALIGNMENT_BYTES, dtype=torch.uint8)

    def are_of(self, live: dict[str, Tensor]) -> bool:
        """Say whether these tensors, and no others, are still where they were."""
        return len(live) == len(self._live) and all(
            live.get(entry.name) is tensor and local_of(tensor).data_ptr() == place
            for entry, tensor, place in zip(self._entries, self._live, self._places, strict=True)
        )

    def fill_head_(self, iteration: int, captured: bytes) -> None:
        """Replace the head by that of an iteration."""
        self.head = self._layout.head_of(self._header, iteration, captured)

    def views(self, offset: int, size: int) -> list[Tensor]:
        """Return views that together are a range of bytes; no byte is copied."""
        if offset < 0 or size < 0 or offset + size > self._num_bytes:
            raise ValueError(f"bytes are [{offset}, {offset + size}); they must be within [0, {self._num_bytes})")
        views, end = [], offset + size
        if offset < self.head.numel():
            views.append(self.head[offset:end])
            offset += views[0].numel()
        index = max(bisect.bisect_right(self._starts, offset) - 1, 0)
        while offset < end:
            view = self._view(index, offset, end)
            if view.numel():
                views.append(view)
            offset += view.numel()
            if index + 1 < len(self._starts) and offset >= self._starts[index + 1]:
                index += 1
        return views

    def read_into_(self, offset: int, out: Tensor) -> None:
        """Copy a range of bytes into a buffer that is as long."""
        views, done = self.views(offset, out.numel()), 0
        if all(view.device == out.device for view in views):
            torch.cat(views, out=out)  # one call for all of them
            return
        for view in views:
            out[done : done + view.numel()].copy_(view)
            done += view.numel()

    def _view(self, index: int, offset: int, end: int) -> Tensor:
        """View the part of a range that lies in one tensor, or in the gap behind it."""
        entry = self._entries[index]
        if offset < entry.offset + entry.num_bytes:
            return self._raw[index][offset - entry.offset : end - entry.offset]
        return self._gap[: min(end, self._starts[index + 1]) - offset]


def _fields_of(item: Entry | StateLayout) -> dict[str, object]:
    """Name the fields; `dataclasses.asdict` would copy each of thousands of names and numbers."""
    return {field.name: getattr(item, field.name) for field in fields(item)}
