"""A slot: two buffers in one memory that keep one replica, one complete and one in progress.

    slot = Slot(memory("shard-3", Slot.memory_bytes(num_bytes)), num_bytes)      # a memfd, or any writable buffer
    slot.begin(iteration, num_bytes); slot.write(offset, chunk); ...; slot.complete()
    replica = slot.latest()                                        # verified, or None; slot.reports() says why

What: a writer may be killed after any byte: the buffer in progress is never taken for a complete one, and the other
is left alone. Every chunk has a checksum; the record that makes a replica complete is written last and has one itself.
A reader that is not the writer needs nothing but the memory.
Source: thesis, chapter 6 (Gemini), section 6.7.1 (two CPU memory buffers); checksums are this project's own.
Simplified: one writer at a time; a memory lasts until the machine dies, and nothing goes to a disk.
Left out: more than one older iteration. So that all ranks find a common one, `begin` of an iteration must wait until
every replica of the iteration before is complete on every machine; a slot cannot see that.

Layout of a buffer: record (128 bytes), chunk table (32 bytes a chunk), data. The record: mark, iteration, bytes,
chunks, checksum of the table, checksum of all that.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from workbench.techniques.gemini.runtime.checksums import CHECKSUM_BYTES, checksum
from workbench.techniques.gemini.runtime.layout import as_bytes

__all__ = ["BufferReport", "BufferState", "ChunkCorrupt", "Replica", "Slot"]

BUFFERS = 2  # One complete, one in progress (section 6.7.1)
# Chunks a replica may come in unless the slot is made for more: the paper's 9.4 GB shard has 300 of 32 MB
MAX_CHUNKS = 4096
RECORD_BYTES = 128  # Room for a record; two cache lines
# Mark, iteration, bytes, chunks, checksum of the table; the checksum of these fields follows
FIELDS = struct.Struct(f"<8sqQQ{CHECKSUM_BYTES}s")
CHUNK = struct.Struct(f"<QQ{CHECKSUM_BYTES}s")  # Offset, bytes, checksum
COMPLETE, PROGRESS = b"complete", b"progress"
PAGE_BYTES = 4096


class ChunkCorrupt(ValueError):
    """A chunk is not what its sender's checksum says; it does not count as written."""


class BufferState(Enum):
    """What is in one buffer of a slot."""

    EMPTY = "empty"  # Never written
    INCOMPLETE = "incomplete"  # Begun and not completed
    CORRUPT = "corrupt"  # Completed, and not what was written
    COMPLETE = "complete"  # Whole, every checksum verified


@dataclass(frozen=True, kw_only=True, slots=True)
class BufferReport:
    """What was found in one buffer."""

    state: BufferState  # what is in it
    iteration: int | None  # of the replica; None where the buffer is empty or does not say
    reason: str  # why it cannot be used, to be read after the iteration's number; empty where it can


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Replica:
    """A complete, verified replica."""

    iteration: int  # which iteration's state it is
    data: Tensor  # uint8, a view of the slot's memory; valid until the second `begin` from now


class Slot:
    """Two buffers that keep one replica."""

    def __init__(self, memory, capacity_bytes: int, max_chunks: int = MAX_CHUNKS):
        needed = self.memory_bytes(capacity_bytes, max_chunks)
        self._memory = _mapped(memory, needed)
        if self._memory.numel() < needed:
            raise ValueError(f"memory: {self._memory.numel()} bytes; two buffers of {capacity_bytes} take {needed}")
        self.capacity_bytes, self.max_chunks = capacity_bytes, max_chunks
        self._target: int | None = None
        self._chunks: dict[int, tuple[int, bytes]] = {}
        self._begun = (0, 0)
        self._kept: tuple[int, int] | None = None  # iteration and buffer of the newest complete replica
        self._is_searched = False

    @staticmethod
    def memory_bytes(capacity_bytes: int, max_chunks: int = MAX_CHUNKS) -> int:
        """Count the bytes a slot takes: two buffers, each with its record and table, rounded up to pages."""
        if capacity_bytes < 1:
            raise ValueError(f"capacity_bytes: {capacity_bytes} must be at least 1")
        if max_chunks < 1:
            raise ValueError(f"max_chunks: {max_chunks} must be at least 1")
        return BUFFERS * _buffer_bytes(capacity_bytes, max_chunks)

    def begin(self, iteration: int, num_bytes: int) -> None:
        """Start a replica in the buffer that does not hold the newest complete one; what was there is gone."""
        if not 1 <= num_bytes <= self.capacity_bytes:
            raise ValueError(f"num_bytes: {num_bytes} is not in 1 to capacity_bytes, {self.capacity_bytes}")
        kept = self._find_kept()
        if kept is not None and iteration <= kept[0]:
            raise ValueError(f"iteration: {iteration} is not after {kept[0]}, which is complete; discard_after first")
        self._target = 0 if kept is None else 1 - kept[1]
        self._chunks, self._begun = {}, (iteration, num_bytes)
        self._write_record(PROGRESS, 0, bytes(CHECKSUM_BYTES))

    def view(self, offset: int, size: int) -> Tensor:
        """Give the place of a chunk, to be received into; `commit` then counts it."""
        if self._target is None:
            raise RuntimeError("no replica is in progress: call begin(iteration, num_bytes) first")
        if offset < 0 or size < 1 or offset + size > self._begun[1]:
            raise ValueError(f"bytes [{offset}, {offset + size}) are not within the replica's [0, {self._begun[1]})")
        start = self._data_start(self._target) + offset
        return self._memory[start : start + size]

    def commit(self, offset: int, size: int, expected: bytes | None = None) -> None:
        """Count a chunk that lies at its place; a second one at the same offset replaces the first."""
        found = checksum(self.view(offset, size).numpy())
        if expected is not None and found != expected:
            self._chunks.pop(offset, None)
            raise ChunkCorrupt(f"bytes [{offset}, {offset + size}) of iteration {self._begun[0]} arrived changed")
        self._chunks[offset] = (size, found)

    def write(self, offset: int, data, expected: bytes | None = None) -> None:
        """Copy a chunk to its place and count it."""
        data = as_bytes(data)
        view = self.view(offset, data.numel())
        if expected is None and data.device.type == "cpu":
            self._chunks[offset] = (len(view), checksum(data.numpy()))
            view.copy_(data)
        else:
            view.copy_(data)
            self.commit(offset, len(view), expected)

    def complete(self) -> None:
        """Make the replica in progress the newest complete one."""
        if self._target is None:
            raise RuntimeError("no replica is in progress: call begin(iteration, num_bytes) first")
        table = self._covering_table()
        start = self._start(self._target) + RECORD_BYTES
        self._memory[start : start + len(table)] = as_bytes(table)
        self._write_record(COMPLETE, len(self._chunks), checksum(table))
        self._kept, self._target = (self._begun[0], self._target), None

    def discard_after(self, iteration: int) -> None:
        """Empty every buffer but those complete and not newer than an iteration: what to do when training goes back."""
        for index, report in enumerate(self.reports()):
            if report.state is not BufferState.COMPLETE or report.iteration > iteration:
                self._memory[self._start(index) : self._start(index) + RECORD_BYTES] = 0
        self._target, self._is_searched = None, False

    def latest(self) -> Replica | None:
        """Give the newest complete replica, every checksum verified; None if there is none."""
        return max(self.replicas(), key=lambda replica: replica.iteration, default=None)

    def replicas(self) -> tuple[Replica, ...]:
        """Give all complete replicas, verified: at most two, such as the newest and the one before."""
        return tuple(
            Replica(iteration=report.iteration, data=self._data(index))
            for index, report in enumerate(self.reports())
            if report.state is BufferState.COMPLETE
        )

    def reports(self) -> tuple[BufferReport, BufferReport]:
        """Examine both buffers."""
        return self._report(0), self._report(1)

    def _report(self, index: int) -> BufferReport:
        """Verify one buffer: record, table, then the data chunk by chunk."""
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
        """Say what is wrong with a completed buffer; "" if nothing is."""
        if num_bytes > self.capacity_bytes or num_chunks > self.max_chunks:
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
            found = [(report.iteration, index) for index, report in enumerate(self.reports()) if not report.reason]
            self._kept, self._is_searched = max(found, default=None), True
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
        if len(self._chunks) > self.max_chunks:
            raise ValueError(f"{len(self._chunks)} chunks are more than max_chunks, {self.max_chunks}")
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
        return index * _buffer_bytes(self.capacity_bytes, self.max_chunks)

    def _data_start(self, index: int) -> int:
        return self._start(index) + _rounded(RECORD_BYTES + self.max_chunks * CHUNK.size, RECORD_BYTES)


def _mapped(memory, num_bytes: int) -> Tensor:
    """Map a file descriptor, or view a buffer, as writable bytes."""
    if isinstance(memory, int):
        size = os.fstat(memory).st_size
        if size < num_bytes:
            raise ValueError(f"memory: {size} bytes behind descriptor {memory}; the slot takes {num_bytes}")
        return torch.frombuffer(mmap.mmap(memory, num_bytes), dtype=torch.uint8)
    if not isinstance(memory, Tensor) and memoryview(memory).readonly:
        raise ValueError("memory: it cannot be written to")
    return as_bytes(memory)


def _buffer_bytes(capacity_bytes: int, max_chunks: int) -> int:
    before = _rounded(RECORD_BYTES + max_chunks * CHUNK.size, RECORD_BYTES)
    return _rounded(before + capacity_bytes, PAGE_BYTES)


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit
