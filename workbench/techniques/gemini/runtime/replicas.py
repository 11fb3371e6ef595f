"""The replicas that a machine keeps in its memory, each in a slot of two buffers: one complete, one in progress.

A writer may be killed after any byte: the buffer in progress is never taken for a complete one, and the other is left
alone. Every chunk has a checksum; the record that makes a replica complete is written last and has one itself.
Layout of a buffer: record (128 bytes), chunk table (32 bytes a chunk), data.
"""

import mmap
import os
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from workbench.techniques.gemini.method.checks import require_counts
from workbench.techniques.gemini.method.placement import Placement
from workbench.techniques.gemini.method.recovery import Held

from .control.service import RankContext
from .encoding import CHECKSUM_BYTES, aligned, as_bytes, checksum

__all__ = ["BufferReport", "BufferState", "KeptShards", "Replica", "Slot", "holders_of_ranks", "holdings_of"]

BUFFERS = 2  # one complete, one in progress (section 6.7.1)
MAX_CHUNKS = 4096  # that a replica may come in: the paper's 9.4 GB shard has 300 of 32 MB
RECORD_BYTES = 128  # room for a record; two cache lines
# Of a record: mark, iteration, bytes, chunks, checksum of the table; the checksum of these fields follows.
FIELDS = struct.Struct(f"<8sqQQ{CHECKSUM_BYTES}s")
CHUNK = struct.Struct(f"<QQ{CHECKSUM_BYTES}s")  # offset, bytes, checksum
COMPLETE, PROGRESS = b"complete", b"progress"
PAGE_BYTES = 4096
DATA_START = aligned(RECORD_BYTES + MAX_CHUNKS * CHUNK.size, RECORD_BYTES)  # in a buffer
NAME = "shard of rank {rank}, {capacity_bytes} bytes"
NAMED = re.compile(r"shard of rank (\d+), (\d+) bytes")


class BufferState(Enum):
    """The content of one buffer of a slot."""

    EMPTY = "empty"  # never written
    INCOMPLETE = "incomplete"  # begun and not completed
    CORRUPT = "corrupt"  # completed, and changed since
    COMPLETE = "complete"  # whole, every checksum verified


EMPTY = BufferState.EMPTY


@dataclass(frozen=True, kw_only=True, slots=True)
class BufferReport:
    """The state of one buffer."""

    state: BufferState  # of its content
    iteration: int | None  # of the replica; None where the buffer is empty or does not say
    reason: str  # why it cannot be used, to be read after the iteration's number; empty where it can


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Replica:
    """A complete, verified replica."""

    iteration: int  # whose state it is
    data: Tensor  # uint8, a view of the slot's memory; valid until the second `begin` from now


class Slot:
    """Two buffers for one replica of at most `capacity_bytes`, in a file descriptor or a writable buffer."""

    def __init__(self, memory: Any, capacity_bytes: int):
        needed = self.memory_bytes(capacity_bytes)
        self._memory = _mapped(memory, needed)
        if self._memory.numel() < needed:
            raise ValueError(f"memory is {self._memory.numel()} bytes; it must be {needed} for two buffers")
        self.capacity_bytes, self._buffer_bytes = capacity_bytes, needed // BUFFERS
        self._target: int | None = None
        self._chunks: dict[int, tuple[int, bytes]] = {}
        self._begun = (0, 0)
        self._kept: tuple[int, int] | None = None  # iteration and buffer of the newest complete replica
        self._is_searched = False

    @staticmethod
    def memory_bytes(capacity_bytes: int) -> int:
        """Return the bytes of a slot: two buffers, each with its record and table, rounded up to pages."""
        require_counts(1, capacity_bytes=capacity_bytes)
        return BUFFERS * aligned(DATA_START + capacity_bytes, PAGE_BYTES)

    def begin(self, iteration: int, num_bytes: int) -> None:
        """Start a replica in the buffer that does not hold the newest complete one, whose old content is gone."""
        if not 1 <= num_bytes <= self.capacity_bytes:
            raise ValueError(f"num_bytes is {num_bytes}; it must be 1 to capacity_bytes, {self.capacity_bytes}")
        kept = self._find_kept()
        if kept is not None and iteration <= kept[0]:
            rule = f"it must be after {kept[0]}, which is complete (see discard_after)"
            raise ValueError(f"iteration is {iteration}; {rule}")
        self._target = 0 if kept is None else 1 - kept[1]
        self._chunks, self._begun = {}, (iteration, num_bytes)
        self._write_record(PROGRESS, 0, bytes(CHECKSUM_BYTES))

    def view(self, offset: int, size: int) -> Tensor:
        """View the place of a chunk, to be written; `commit` then counts it."""
        if self._target is None:
            raise RuntimeError("no replica is in progress: call begin(iteration, num_bytes) first")
        if offset < 0 or size < 1 or offset + size > self._begun[1]:
            rule = f"they must be within the replica's [0, {self._begun[1]})"
            raise ValueError(f"bytes are [{offset}, {offset + size}); {rule}")
        start = self._data_start(self._target) + offset
        return self._memory[start : start + size]

    def commit(self, offset: int, size: int) -> None:
        """Count a chunk that lies at its place; a second one at the same offset replaces the first."""
        self._chunks[offset] = (size, checksum(self.view(offset, size).numpy()))

    def write(self, offset: int, data) -> None:
        """Copy a buffer or uint8 tensor to its place and count it."""
        data = as_bytes(data)
        view = self.view(offset, data.numel())
        if data.device.type == "cpu":  # the checksum of the source also covers the copy
            self._chunks[offset] = (len(view), checksum(data.numpy()))
            view.copy_(data)
        else:
            view.copy_(data)
            self.commit(offset, len(view))

    def complete(self) -> None:
        """Make the replica in progress the newest complete one, unless chunks are missing or overlap."""
        if self._target is None:
            raise RuntimeError("no replica is in progress: call begin(iteration, num_bytes) first")
        table = self._covering_table()
        start = self._start(self._target) + RECORD_BYTES
        self._memory[start : start + len(table)] = as_bytes(table)
        self._write_record(COMPLETE, len(self._chunks), checksum(table))
        self._kept, self._target = (self._begun[0], self._target), None

    def discard_after(self, iteration: int) -> None:
        """Empty every buffer that is incomplete or newer than an iteration, to which training goes back."""
        for index, report in enumerate(self.reports()):
            if report.state is not BufferState.COMPLETE or report.iteration > iteration:
                self._memory[self._start(index) : self._start(index) + RECORD_BYTES] = 0
        self._target, self._is_searched = None, False

    def latest(self) -> Replica | None:
        """Return the newest complete replica, every checksum verified; None if there is none."""
        return max(self.replicas(), key=lambda replica: replica.iteration, default=None)

    def replicas(self) -> tuple[Replica, ...]:
        """Return all complete replicas, verified: at most two."""
        return tuple(
            Replica(iteration=report.iteration, data=self._data(index))
            for index, report in enumerate(self.reports())
            if report.state is BufferState.COMPLETE
        )

    def reports(self) -> tuple[BufferReport, BufferReport]:
        """Examine both buffers."""
        return self._report(0), self._report(1)

    def _report(self, index: int) -> BufferReport:
        start = self._start(index)
        record = self._memory[start : start + FIELDS.size + CHECKSUM_BYTES].numpy().tobytes()
        if not any(record):
            return BufferReport(state=BufferState.EMPTY, iteration=None, reason="nothing has been written")
        if checksum(record[: FIELDS.size]) != record[FIELDS.size :]:
            return BufferReport(state=BufferState.CORRUPT, iteration=None, reason="its record's checksum is wrong")
        mark, iteration, num_bytes, num_chunks, table_checksum = FIELDS.unpack_from(record)
        if mark != COMPLETE:
            return BufferReport(state=BufferState.INCOMPLETE, iteration=iteration, reason="begun and not completed")
        reason = self._fault(index, num_bytes, num_chunks, table_checksum)
        state = BufferState.CORRUPT if reason else BufferState.COMPLETE
        return BufferReport(state=state, iteration=iteration, reason=reason)

    def _fault(self, index: int, num_bytes: int, num_chunks: int, table_checksum: bytes) -> str:
        """Return the fault of a completed buffer; "" for none."""
        if num_bytes > self.capacity_bytes or num_chunks > MAX_CHUNKS:
            return "it is larger than the slot"
        start = self._start(index) + RECORD_BYTES
        table = self._memory[start : start + num_chunks * CHUNK.size].numpy().tobytes()
        if checksum(table) != table_checksum:
            return "its chunk table's checksum is wrong"
        data = self._memory[self._data_start(index) :].numpy()
        for offset, size, expected in CHUNK.iter_unpack(table):
            if checksum(data[offset : offset + size]) != expected:
                return f"the checksum of bytes [{offset}, {offset + size}) is wrong"
        return ""

    def _find_kept(self) -> tuple[int, int] | None:
        """Find, once after the memory was opened, which buffer must not be overwritten."""
        if not self._is_searched:
            complete = [(report.iteration, index) for index, report in enumerate(self.reports()) if not report.reason]
            self._kept, self._is_searched = max(complete, default=None), True
        return self._kept

    def _covering_table(self) -> bytes:
        """Write the chunk table, chunks in order and each byte in exactly one."""
        end = 0
        for offset, (size, _) in sorted(self._chunks.items()):
            if offset != end:
                fault = "missing" if offset > end else "there twice"
                raise ValueError(f"bytes [{min(end, offset)}, {max(end, offset)}) are {fault}")
            end += size
        if end != self._begun[1]:
            raise ValueError(f"bytes [{end}, {self._begun[1]}) are missing")
        if len(self._chunks) > MAX_CHUNKS:
            raise ValueError(f"chunks are {len(self._chunks)}; they must be at most {MAX_CHUNKS}")
        return b"".join(CHUNK.pack(offset, *chunk) for offset, chunk in sorted(self._chunks.items()))

    def _write_record(self, mark: bytes, num_chunks: int, table_checksum: bytes) -> None:
        """Write a buffer's record; killed within, its checksum is wrong and the buffer counts as unusable."""
        iteration, num_bytes = self._begun
        fields = FIELDS.pack(mark, iteration, num_bytes, num_chunks, table_checksum)
        start = self._start(self._target)
        self._memory[start : start + FIELDS.size + CHECKSUM_BYTES] = as_bytes(fields + checksum(fields))

    def _data(self, index: int) -> Tensor:
        start = self._start(index)
        num_bytes = FIELDS.unpack_from(self._memory[start : start + FIELDS.size].numpy().tobytes())[2]
        return self._memory[self._data_start(index) :][:num_bytes]

    def _start(self, index: int) -> int:
        return index * self._buffer_bytes

    def _data_start(self, index: int) -> int:
        return self._start(index) + DATA_START


def holders_of_ranks(placed: Placement, ranks_per_machine: int) -> tuple[tuple[int, ...], ...]:
    """Return for each rank's shard the ranks that keep it, itself first: its number on the holding machines."""
    return tuple(
        tuple(machine * ranks_per_machine + local for machine in kept)
        for kept in placed.holders
        for local in range(ranks_per_machine)
    )


class KeptShards:
    """The slots that one rank looks after; a slot's name holds rank and size, so that it is found after a restart."""

    def __init__(self, place: RankContext):
        self._place = place
        self._slots: dict[int, Slot] = {}
        self.unusable: tuple[str, ...] = ()  # replicas that were damaged or incomplete at the last look
        for name in place.memory_names():
            if (parts := NAMED.fullmatch(name)) and int(parts[1]) % place.ranks_per_machine == place.local_rank:
                self.slot(int(parts[1]), int(parts[2]))

    def slot(self, rank: int, capacity_bytes: int | None = None) -> Slot:
        """Return the slot of a rank's shard, made where there is none; an existing slot needs no capacity."""
        held = self._slots.get(rank)
        if held is None:
            name = NAME.format(rank=rank, capacity_bytes=capacity_bytes)
            descriptor = self._place.memory(name, Slot.memory_bytes(capacity_bytes))
            try:
                held = self._slots[rank] = Slot(descriptor, capacity_bytes)
            finally:
                os.close(descriptor)  # the slot has mapped it
        elif capacity_bytes not in (None, held.capacity_bytes):
            rule = f"it must be {held.capacity_bytes}, that of the slot of rank {rank}"
            raise ValueError(f"capacity_bytes is {capacity_bytes}; {rule}")
        return held

    @property
    def num_bytes(self) -> int:
        """Bytes of all slots, both buffers and their tables."""
        return sum(Slot.memory_bytes(slot.capacity_bytes) for slot in self._slots.values())

    def examined(self) -> dict[int, list[tuple[int, str]]]:
        """Examine every slot: rank -> iteration and fault ("" for none) of each replica of its shard."""
        replicas = {
            rank: [(buffer.iteration or 0, buffer.reason) for buffer in slot.reports() if buffer.state is not EMPTY]
            for rank, slot in sorted(self._slots.items())
        }
        self.unusable = tuple(
            f"shard of rank {rank}, iteration {iteration}: {fault}"
            for rank, kept in replicas.items()
            for iteration, fault in kept
            if fault
        )
        return replicas

    def replica(self, rank: int, iteration: int) -> Replica:
        """Return a complete replica, verified again."""
        for replica in self._slots[rank].replicas() if rank in self._slots else ():
            if replica.iteration == iteration:
                return replica
        raise LookupError(f"iteration {iteration} of rank {rank}'s shard is not kept on machine {self._place.machine}")

    def discard_after(self, iteration: int) -> None:
        """Forget what is newer than an iteration, or incomplete: training goes back there."""
        for slot in self._slots.values():
            slot.discard_after(iteration)


def holdings_of(examined: Sequence[Mapping[str, Sequence]], ranks_per_machine: int) -> dict[int, dict[int, list[Held]]]:
    """Turn the examined slots of all ranks, which went through JSON, into machine -> rank -> replicas."""
    holdings: dict[int, dict[int, list[Held]]] = {}
    for rank, shards in enumerate(examined):
        for shard, kept in shards.items():
            held = [Held(iteration=iteration, fault=fault) for iteration, fault in kept]
            holdings.setdefault(rank // ranks_per_machine, {})[int(shard)] = held
    return holdings


def _mapped(memory, num_bytes: int) -> Tensor:
    if isinstance(memory, int):
        size = os.fstat(memory).st_size
        if size < num_bytes:
            raise ValueError(f"memory is {size} bytes behind descriptor {memory}; it must be at least {num_bytes}")
        return torch.frombuffer(mmap.mmap(memory, num_bytes), dtype=torch.uint8)
    if not isinstance(memory, Tensor) and memoryview(memory).readonly:
        raise ValueError("memory is read-only; it must be writable")
    return as_bytes(memory)
