"""Where each part of one rank's training state lies in the flat run of bytes that a checkpoint is.

What: an image is, from its first byte: a prefix (mark, iteration, sizes), a header (JSON: the run, and the name, dtype,
shape and place of every tensor), the captured part (everything small that changes during an iteration, see `leaves`),
and the tensors' own bytes. A layout does not change during a run; the iteration is in the prefix.
Source: thesis, chapter 6 (Gemini), section 6.5.2: a checkpoint is cut into chunks of any size, so it is bytes.
Simplified: byte order is the machine's, little endian on all that this runs on; tensors start at multiples of 64 bytes.
Left out: reading an image into another number of ranks: persistent storage's files can do that, replicas cannot.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

__all__ = ["ALIGNMENT_BYTES", "Entry", "StateLayout", "StateMismatch", "as_bytes", "prefix_of"]

ALIGNMENT_BYTES = 64  # Tensors start at multiples of it: a cache line, and no dtype is wider
MARK = b"GEMINI-1"
PREFIX = struct.Struct("<8sQQQ")  # Mark, iteration, bytes of the header, bytes of the captured part in use


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
    # how a sharded tensor is placed on its mesh, such as ["Shard(dim=0)"]; empty for a plain one
    placements: tuple[str, ...]
    offset: int  # its first byte in the image
    num_bytes: int  # its bytes

    @property
    def kind(self) -> tuple:
        """What must be equal for its bytes to be read as another's."""
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
        told = {**_fields_of(self), "entries": entries, "fingerprint": self.fingerprint}
        return json.dumps(told, separators=(",", ":")).encode()

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
    def of(cls, *, captured_capacity_bytes: int, entries: list[Entry], **run) -> StateLayout:
        """Lay out tensors one after the other."""
        capacity, before = _aligned(captured_capacity_bytes), 0
        while True:
            placed, offset = [], before + capacity
            for entry in entries:
                placed.append(replace(entry, offset=offset))
                offset = _aligned(offset + entry.num_bytes)
            layout = cls(captured_offset=before, captured_capacity_bytes=capacity, entries=tuple(placed), **run)
            needed = _aligned(PREFIX.size + len(layout.header))
            if needed == before:
                return layout
            before = needed

    def refuse_unless_loadable(self, live: StateLayout, part: str = "") -> None:
        """Refuse to read this layout's image into the live state."""
        for field in ("model", "optimizer", "world_size", "rank"):
            found, wanted = getattr(self, field), getattr(live, field)
            if found != wanted:
                raise StateMismatch(f"checkpoint: {field} is {found!r}; this run's is {wanted!r}")
        found = {entry.name: entry for entry in self.entries if entry.name.startswith(part)}
        wanted = {entry.name: entry for entry in live.entries if entry.name.startswith(part)}
        for name in [*found, *wanted]:
            if name not in wanted:
                raise StateMismatch(f"checkpoint: {name!r} is in it and not in this run")
            if name not in found:
                raise StateMismatch(f"checkpoint: {name!r} is in this run and not in it")
            if found[name].kind != wanted[name].kind:
                raise StateMismatch(f"checkpoint: {name!r} is {found[name]}; this run's is {wanted[name]}")

    @classmethod
    def read(cls, image: Tensor) -> StateLayout:
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

    def blank_head(self) -> Tensor:
        """Write what is before the tensors and the same in every iteration: the header, at its place."""
        header = self.header
        head = torch.zeros(self.head_bytes, dtype=torch.uint8)
        view = memoryview(head.numpy())
        PREFIX.pack_into(view, 0, MARK, 0, len(header), 0)
        view[PREFIX.size : PREFIX.size + len(header)] = header
        return head

    def fill_head(self, blank: Tensor, iteration: int, captured: bytes) -> Tensor:
        """Complete a head with what changes: the iteration and the captured part."""
        if len(captured) > self.captured_capacity_bytes:
            raise ValueError(
                f"captured part: {len(captured)} bytes are more than the {self.captured_capacity_bytes} that were kept "
                "for it at the first capture; raise spare_bytes"
            )
        head = blank.clone()
        view = memoryview(head.numpy())
        PREFIX.pack_into(view, 0, MARK, iteration, prefix_of(blank)[1], len(captured))
        view[self.captured_offset : self.captured_offset + len(captured)] = captured
        return head

    def captured(self, image: Tensor) -> memoryview:
        """Give an image's captured part, as long as it is in use."""
        length = prefix_of(image)[2]
        return memoryview(image[self.captured_offset : self.captured_offset + length].numpy())


def _fields_of(item: Entry | StateLayout) -> dict[str, object]:
    """Name the fields; `dataclasses.asdict` would copy each of thousands of names and numbers."""
    return {field.name: getattr(item, field.name) for field in fields(item)}


def prefix_of(image: Tensor) -> tuple[int, int, int]:
    """Read an image's iteration, bytes of its header and bytes of its captured part."""
    if image.numel() < PREFIX.size:
        raise StateMismatch(f"checkpoint: {image.numel()} bytes are fewer than its prefix has, {PREFIX.size}")
    mark, *numbers = PREFIX.unpack(image[: PREFIX.size].numpy().tobytes())
    if mark != MARK:
        raise StateMismatch(f"checkpoint: it begins with {mark!r} and not with {MARK!r}")
    return tuple(numbers)


def as_bytes(buffer) -> Tensor:
    """View any buffer as a uint8 tensor; one that cannot be written to is copied, since torch has no such tensors."""
    if isinstance(buffer, Tensor):
        return buffer
    view = memoryview(buffer).cast("B")
    return torch.frombuffer(bytearray(view) if view.readonly else view, dtype=torch.uint8)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
