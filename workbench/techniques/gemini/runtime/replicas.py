"""The replicas that a machine keeps in its memory: buffers that hold complete ones while another is in progress.

A writer may be killed after any byte: the buffer in progress is never taken for a complete one, and the others are left
alone. The record that makes a replica complete is written last; it holds the sender's checksum, and one of its own.
"""

import mmap
import os
import re
import struct
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from workbench.techniques.gemini.control.service import RankContext
from workbench.techniques.gemini.method.placement import Placement
from workbench.techniques.gemini.method.recovery import Held

from .encoding import CHECKSUM_BYTES, aligned, as_bytes, checksum

__all__ = ["BufferReport", "BufferState", "KeptShards", "Replica", "Slot", "holders_of_ranks", "holdings_of"]

PEER_BUFFERS = 2  # one complete, one in progress (section 6.7.1)
OWN_BUFFERS = 3  # a rank's own is copied before all ranks have said that the one before is complete
FIELDS = struct.Struct(f"<8sqQ{CHECKSUM_BYTES}s")  # mark, iteration, bytes, checksum of the data; that of these follows
COMPLETE, PROGRESS = b"complete", b"progress"
PAGE_BYTES = 4096  # the record has a page; the data come behind it
ROOM = 1.25  # times the bytes that a file that has become too small is grown to
NAME = "shard of rank {rank}, buffer {buffer}"
NAMED = re.compile(r"shard of rank (\d+), buffer (\d+)")


class BufferState(Enum):
    """The content of one buffer of a slot."""

    EMPTY = "empty"  # never written
    INCOMPLETE = "incomplete"  # begun and not completed
    CORRUPT = "corrupt"  # completed, and changed since
    COMPLETE = "complete"  # whole, its checksum verified


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
    data: Tensor  # uint8, a view of the slot's memory; valid until its buffer is used again


class _Buffer:
    """One file in memory: record, data."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)
        self._map()

    def _map(self) -> None:
        self.num_bytes = os.fstat(self._descriptor).st_size
        self._memory = torch.frombuffer(mmap.mmap(self._descriptor, self.num_bytes), dtype=torch.uint8)
        self._unlock: Callable[[], object] | None = None

    def lock(self) -> None:
        """Lock the memory's pages, so that devices write to it directly; where that is refused nothing changes."""
        start = self._memory.data_ptr()
        if self._unlock is None and torch.cuda.cudart().cudaHostRegister(start, self.num_bytes, 0).value == 0:
            self._unlock = weakref.finalize(self, torch.cuda.cudart().cudaHostUnregister, start)

    def begin(self, iteration: int, num_bytes: int) -> Tensor:
        if PAGE_BYTES + num_bytes > self.num_bytes:
            if self._unlock is not None:
                self._unlock()
            os.ftruncate(self._descriptor, aligned(PAGE_BYTES + int(ROOM * num_bytes), PAGE_BYTES))
            self._map()
        self._write_record(PROGRESS, iteration, num_bytes, bytes(CHECKSUM_BYTES))
        return self._memory[PAGE_BYTES : PAGE_BYTES + num_bytes]

    def complete(self, iteration: int, num_bytes: int, digest: bytes) -> None:
        self._write_record(COMPLETE, iteration, num_bytes, digest)

    def empty(self) -> None:
        self._memory[:PAGE_BYTES] = 0

    def _write_record(self, *values) -> None:
        """Write the record; a writer killed within leaves one whose checksum is wrong."""
        fields = FIELDS.pack(*values)
        record = as_bytes(fields + checksum(fields))
        self._memory[: record.numel()] = record

    def examined(self) -> tuple[BufferReport, Tensor | None]:
        """Verify the content; return its data where it is complete."""
        record = self._memory[: FIELDS.size + CHECKSUM_BYTES].numpy().tobytes()
        if not any(record):
            return _report(BufferState.EMPTY, None, "nothing has been written"), None
        if checksum(record[: FIELDS.size]) != record[FIELDS.size :]:
            return _report(BufferState.CORRUPT, None, "its record's checksum is wrong"), None
        mark, iteration, num_bytes, digest = FIELDS.unpack_from(record)
        if mark != COMPLETE:
            return _report(BufferState.INCOMPLETE, iteration, "begun and not completed"), None
        data = self._memory[PAGE_BYTES : PAGE_BYTES + num_bytes]
        if checksum(data.numpy()) != digest:
            return _report(BufferState.CORRUPT, iteration, "the checksum of its data is wrong"), None
        return _report(BufferState.COMPLETE, iteration, ""), data


def _report(state: BufferState, iteration: int | None, reason: str) -> BufferReport:
    return BufferReport(state=state, iteration=iteration, reason=reason)


class Slot:
    """The buffers for one shard's replicas.

    `open_file(buffer, num_bytes)` gives the descriptor of a buffer's file, made of that size if there is none.
    """

    def __init__(self, num_buffers: int, open_file: Callable[[int, int], int], known: Sequence[int] = ()):
        self._open_file = open_file
        self._buffers: list[_Buffer | None] = [None] * num_buffers
        for number in known:  # buffers that are there already
            self._buffers[number] = _Buffer(open_file(number, 0))
        self._kept: dict[int, int] | None = None  # buffer -> iteration of the complete replica in it
        self._begun: tuple[int, int, int] | None = None  # buffer, iteration, bytes

    def begin(self, iteration: int, num_bytes: int, *, locked: bool = False) -> Tensor:
        """Start a replica in the buffer whose content is the oldest; return the place of its bytes, to be written.

        `locked` is for devices that write there, see `_Buffer.lock`.
        """
        if num_bytes < 1:
            raise ValueError(f"num_bytes is {num_bytes}; it must be at least 1")
        kept = self._find_kept()
        if kept and iteration <= max(kept.values()):
            rule = f"it must be after {max(kept.values())}, which is complete (see discard_after)"
            raise ValueError(f"iteration is {iteration}; {rule}")
        target = min(range(len(self._buffers)), key=lambda number: kept.get(number, -1))
        kept.pop(target, None)
        if self._buffers[target] is None:
            self._buffers[target] = _Buffer(self._open_file(target, PAGE_BYTES + num_bytes))
        self._begun = target, iteration, num_bytes
        place = self._buffers[target].begin(iteration, num_bytes)
        if locked:
            self._buffers[target].lock()
        return place

    def complete(self, digest: bytes) -> None:
        """Make the replica in progress, all of whose bytes are written and have this checksum, a complete one."""
        if self._begun is None:
            raise RuntimeError("no replica is in progress: call begin(iteration, num_bytes) first")
        target, iteration, num_bytes = self._begun
        self._buffers[target].complete(iteration, num_bytes, digest)
        self._kept[target], self._begun = iteration, None

    def write(self, iteration: int, data) -> None:
        """Keep a whole replica."""
        data = as_bytes(data)
        self.begin(iteration, data.numel()).copy_(data)
        self.complete(checksum(data.numpy()))

    def discard_after(self, iteration: int) -> None:
        """Empty every buffer that is unusable or newer than an iteration, to which training goes back."""
        for buffer, report in zip(self._opened(), self.reports(), strict=True):
            if report.state is not BufferState.COMPLETE or report.iteration > iteration:
                buffer.empty()
        self._kept = self._begun = None

    def latest(self) -> Replica | None:
        """Return the newest complete replica, verified; None if there is none."""
        return max(self.replicas(), key=lambda replica: replica.iteration, default=None)

    def replicas(self) -> tuple[Replica, ...]:
        """Return all complete replicas, verified."""
        examined = (buffer.examined() for buffer in self._opened())
        return tuple(Replica(iteration=report.iteration, data=data) for report, data in examined if data is not None)

    def reports(self) -> tuple[BufferReport, ...]:
        """Examine the buffers that have been used."""
        return tuple(buffer.examined()[0] for buffer in self._opened())

    @property
    def num_bytes(self) -> int:
        """Bytes of memory of all buffers."""
        return sum(buffer.num_bytes for buffer in self._opened())

    def _opened(self) -> list[_Buffer]:
        return [buffer for buffer in self._buffers if buffer is not None]

    def _find_kept(self) -> dict[int, int]:
        """Find, once after the memory was opened, which buffers hold what."""
        if self._kept is None:
            self._kept = {}
            for number, buffer in enumerate(self._buffers):
                if buffer is not None and not (report := buffer.examined()[0]).reason:
                    self._kept[number] = report.iteration
        return self._kept


def holders_of_ranks(placed: Placement, ranks_per_machine: int) -> tuple[tuple[int, ...], ...]:
    """Return for each rank's shard the ranks that keep it, itself first: its number on the holding machines."""
    return tuple(
        tuple(machine * ranks_per_machine + local for machine in kept)
        for kept in placed.holders
        for local in range(ranks_per_machine)
    )


class KeptShards:
    """The slots that one rank looks after; a file's name holds the rank, so that it is found after a restart."""

    def __init__(self, place: RankContext):
        self._place = place
        self._slots: dict[int, Slot] = {}
        self.unusable: tuple[str, ...] = ()  # replicas that were damaged or incomplete at the last look
        known: dict[int, list[int]] = {}
        for name in place.memory_names():
            if (parts := NAMED.fullmatch(name)) and int(parts[1]) % place.ranks_per_machine == place.local_rank:
                known.setdefault(int(parts[1]), []).append(int(parts[2]))
        for rank, buffers in known.items():
            self._make(rank, buffers)

    def slot(self, rank: int) -> Slot:
        """Return the slot of a rank's shard, made where there is none."""
        return self._slots.get(rank) or self._make(rank)

    def _make(self, rank: int, known: Sequence[int] = ()) -> Slot:
        def open_file(buffer: int, num_bytes: int) -> int:
            name = NAME.format(rank=rank, buffer=buffer)
            return self._place.memory(name, self._place.memory_names().get(name, num_bytes))

        num_buffers = OWN_BUFFERS if rank == self._place.rank else PEER_BUFFERS
        slot = self._slots[rank] = Slot(max([num_buffers, *(number + 1 for number in known)]), open_file, known)
        return slot

    @property
    def num_bytes(self) -> int:
        """Bytes of all slots."""
        return sum(slot.num_bytes for slot in self._slots.values())

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


EMPTY = BufferState.EMPTY


def holdings_of(examined: Sequence[Mapping[str, Sequence]], ranks_per_machine: int) -> dict[int, dict[int, list[Held]]]:
    """Turn the examined slots of all ranks, which went through JSON, into machine -> rank -> replicas."""
    holdings: dict[int, dict[int, list[Held]]] = {}
    for rank, shards in enumerate(examined):
        for shard, kept in shards.items():
            held = [Held(iteration=iteration, fault=fault) for iteration, fault in kept]
            holdings.setdefault(rank // ranks_per_machine, {})[int(shard)] = held
    return holdings
