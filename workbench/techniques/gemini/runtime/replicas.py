"""The replicas that a machine keeps in its memory: buffers that hold complete ones while another is in progress.

A writer may be killed after any byte: the buffer in progress is never taken for complete, and the others stay as they
are. The record that makes a replica complete is written last; it holds the sender's checksum, and one of its own.
Recovery goes back to the newest iteration that every rank can reach, and fetches it from memory, a peer or storage.
"""

import mmap
import os
import re
import struct
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from workbench.checks import require_counts
from workbench.launch.agreement import tell_all

from ..control.service import RankContext
from ..method import Held, RecoveryPlan, Tier, plan_recovery
from .encoding import CHECKSUM_BYTES, aligned, as_bytes, checksum
from .state import TrainingState
from .storage import PersistentTier, StorageCorrupt
from .transfer import ReplicaDamaged, begun

__all__ = ["KeptShards", "Replica", "Slot", "recover_", "replicate_"]

PEER_BUFFERS = 2  # one complete, one in progress (section 6.7.1)
OWN_BUFFERS = 3  # a rank's own is copied before all ranks have said that the one before is complete
FIELDS = struct.Struct(f"<8sqQ{CHECKSUM_BYTES}s")  # mark, iteration, bytes, checksum of the data; that of these follows
COMPLETE, PROGRESS = b"complete", b"progress"
PAGE_BYTES = 4096  # the record has a page; the data come behind it
ROOM = 1.25  # times the bytes that a file that has become too small is grown to
NAME = "shard of rank {rank}, buffer {buffer}"
NAMED = re.compile(r"shard of rank (\d+), buffer (\d+)")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Replica:
    """The content of a buffer, verified."""

    iteration: int  # whose state it is; 0 where the buffer does not say
    data: Tensor = field(default_factory=partial(torch.empty, 0))  # uint8, a view of memory; until its buffer is reused
    fault: str = ""  # why it cannot be used, to be read after the iteration's number; empty where it can


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
        self.write_record(PROGRESS, iteration, num_bytes, bytes(CHECKSUM_BYTES))
        return self._memory[PAGE_BYTES : PAGE_BYTES + num_bytes]

    def empty(self) -> None:
        self._memory[:PAGE_BYTES] = 0

    def write_record(self, *values) -> None:
        """Write the record; a writer killed within leaves one whose checksum is wrong."""
        fields = FIELDS.pack(*values)
        record = as_bytes(fields + checksum(fields))
        self._memory[: record.numel()] = record

    def examined(self) -> Replica | None:
        """Verify the content; None where nothing has been written."""
        record = self._memory[: FIELDS.size + CHECKSUM_BYTES].numpy().tobytes()
        if not any(record):
            return None
        if checksum(record[: FIELDS.size]) != record[FIELDS.size :]:
            return Replica(iteration=0, fault="its record's checksum is wrong")
        mark, iteration, num_bytes, digest = FIELDS.unpack_from(record)
        if mark != COMPLETE:
            return Replica(iteration=iteration, fault="begun and not completed")
        data = self._memory[PAGE_BYTES : PAGE_BYTES + num_bytes]
        if checksum(data.numpy()) != digest:
            return Replica(iteration=iteration, fault="the checksum of its data is wrong")
        return Replica(iteration=iteration, data=data)


class Slot:
    """The buffers for one shard's replicas.

    `open_file(buffer, num_bytes)` gives the descriptor of a buffer's file, made of that size if there is none.
    """

    def __init__(self, num_buffers: int, open_file: Callable[[int, int], int], known: Sequence[int] = ()):
        self._num_buffers, self._open_file = num_buffers, open_file
        self._buffers = {number: _Buffer(open_file(number, 0)) for number in sorted(known)}  # that are there already
        self._kept: dict[int, int] | None = None  # buffer -> iteration of the complete replica in it
        self._begun: tuple[_Buffer, int, int, int] | None = None  # with its number, iteration and bytes

    def begin(self, iteration: int, num_bytes: int, *, locked: bool = False) -> Tensor:
        """Start a replica in the buffer whose content is the oldest; return the place of its bytes, to be written.

        `locked` is for devices that write there, see `_Buffer.lock`.
        """
        require_counts(1, num_bytes=num_bytes)
        if self._kept is None:  # once after the memory was opened
            contents = {number: buffer.examined() for number, buffer in self._buffers.items()}
            usable = {number: replica for number, replica in contents.items() if replica and not replica.fault}
            self._kept = {number: replica.iteration for number, replica in usable.items()}
        kept = self._kept
        if kept and iteration <= (newest := max(kept.values())):
            rule = f"it must be after {newest}, which is complete (see discard_after)"
            raise ValueError(f"iteration is {iteration}; {rule}")
        target = min(range(self._num_buffers), key=lambda number: kept.get(number, -1))
        kept.pop(target, None)
        if target not in self._buffers:
            self._buffers[target] = _Buffer(self._open_file(target, PAGE_BYTES + num_bytes))
        buffer = self._buffers[target]
        self._begun = buffer, target, iteration, num_bytes
        place = buffer.begin(iteration, num_bytes)
        if locked:
            buffer.lock()
        return place

    def complete(self, digest: bytes) -> None:
        """Make the replica in progress, all of whose bytes are written and have this checksum, a complete one."""
        if self._begun is None or self._kept is None:
            raise RuntimeError("no replica is in progress: call begin(iteration, num_bytes) first")
        buffer, target, iteration, num_bytes = self._begun
        buffer.write_record(COMPLETE, iteration, num_bytes, digest)
        self._kept[target], self._begun = iteration, None

    def write(self, iteration: int, data) -> None:
        """Keep a whole replica."""
        data = as_bytes(data)
        self.begin(iteration, data.numel()).copy_(data)
        self.complete(checksum(data.numpy()))

    def discard_after(self, iteration: int) -> None:
        """Empty every buffer that is unusable or newer than an iteration, to which training goes back."""
        for buffer in self._buffers.values():
            replica = buffer.examined()
            if replica is not None and (replica.fault or replica.iteration > iteration):
                buffer.empty()
        self._kept = self._begun = None

    def examined(self) -> tuple[Replica, ...]:
        """Return the content of all buffers in which something has been written, verified."""
        return tuple(replica for buffer in self._buffers.values() if (replica := buffer.examined()) is not None)

    def replicas(self) -> tuple[Replica, ...]:
        """Return all complete replicas, verified."""
        return tuple(replica for replica in self.examined() if not replica.fault)

    def latest(self) -> Replica | None:
        """Return the newest complete replica, verified; None if there is none."""
        return max(self.replicas(), key=lambda replica: replica.iteration, default=None)


class KeptShards:
    """The slots that one rank looks after; a file's name holds the rank, so that it is found after a restart."""

    def __init__(self, context: RankContext):
        self._context = context
        self._slots: dict[int, Slot] = {}
        self.unusable: tuple[str, ...] = ()  # replicas that were damaged or incomplete at the last look
        for name in context.memory_names():
            if (parts := NAMED.fullmatch(name)) and int(parts[1]) % context.ranks_per_machine == context.local_rank:
                self.slot(int(parts[1]))

    def slot(self, rank: int) -> Slot:
        """Return the slot of a rank's shard, made where there is none."""
        if rank not in self._slots:
            named = [NAMED.fullmatch(name) for name in self._context.memory_names()]
            known = [int(parts[2]) for parts in named if parts and int(parts[1]) == rank]
            num_buffers = OWN_BUFFERS if rank == self._context.rank else PEER_BUFFERS
            num_buffers = max([num_buffers, *(number + 1 for number in known)])
            self._slots[rank] = Slot(num_buffers, partial(self._open, rank), known)
        return self._slots[rank]

    def _open(self, rank: int, buffer: int, num_bytes: int) -> int:
        name = NAME.format(rank=rank, buffer=buffer)
        return self._context.memory(name, self._context.memory_names().get(name, num_bytes))

    def examined(self) -> dict[int, list[tuple[int, str]]]:
        """Examine every slot: rank -> iteration and fault ("" for none) of each replica of its shard."""
        replicas = {rank: slot.examined() for rank, slot in sorted(self._slots.items())}
        self.unusable = tuple(
            f"shard of rank {rank}, iteration {replica.iteration}: {replica.fault}"
            for rank, kept in replicas.items()
            for replica in kept
            if replica.fault
        )
        return {rank: [(replica.iteration, replica.fault) for replica in kept] for rank, kept in replicas.items()}

    def replica(self, rank: int, iteration: int) -> Replica:
        """Return a complete replica, verified again."""
        for replica in self._slots[rank].replicas() if rank in self._slots else ():
            if replica.iteration == iteration:
                return replica
        what = f"iteration {iteration} of rank {rank}'s shard"
        raise LookupError(f"{what} is not kept on machine {self._context.machine}")

    def discard_after(self, iteration: int) -> None:
        """Forget what is newer than an iteration, or incomplete: training goes back there."""
        for slot in self._slots.values():
            slot.discard_after(iteration)


def recover_(
    state: TrainingState,  # loaded in place
    context: RankContext,  # its log says which tier served this rank
    kept: KeptShards,  # replicas that are newer are forgotten
    storage: PersistentTier | None,  # an iteration that is damaged there is passed over, and the log says so
    group: dist.ProcessGroup | None = None,  # on which replicas travel; None for the default one
) -> RecoveryPlan:
    """Go back to the newest iteration that all ranks can reach; every rank calls it. StateMismatch, ReplicaDamaged."""
    damaged: list[int] = []
    machine_of = [rank // context.ranks_per_machine for rank in range(context.world_size)]
    while True:
        stored = [] if storage is None or context.rank != 0 else sorted(set(storage.iterations()) - set(damaged))
        reports = tell_all({"kept": kept.examined(), "stored": stored}, group)
        holdings: dict[int, dict[int, list[Held]]] = {machine: {} for machine in machine_of}
        for machine, report in zip(machine_of, reports, strict=True):
            for shard, replicas in report["kept"].items():  # ranks are text after JSON
                holdings[machine][int(shard)] = [Held(iteration=number, fault=fault) for number, fault in replicas]
        plan = plan_recovery(holdings, context.world_size, stored=reports[0]["stored"], machine_of=machine_of)
        source = plan.sources[context.rank]
        details = {"tier": source.tier.value, "iteration": plan.iteration, "passed_over": list(source.passed_over)}
        details["unusable"] = list(kept.unusable)  # also other ranks' shards, which may go back further for it
        with context.during("retrieve", **details):
            served = {  # from a machine's memory, by the rank there with the same local number
                other.rank: kept.replica(other.rank, plan.iteration).data
                for other in plan.sources
                if other.tier is Tier.PEER and other.machine == context.machine
                if other.rank % context.ranks_per_machine == context.local_rank
            }
            arrived, fault = _exchange(served, context.rank, group), ""
            image = next(iter(arrived.values()), None)
            if source.tier is Tier.LOCAL:
                image = kept.replica(context.rank, plan.iteration).data
            elif source.tier is Tier.STORAGE:
                if storage is None:  # this rank would train on with its first weights
                    raise ValueError(f"storage is None on rank {context.rank}; it must be given on every rank")
                try:
                    image = storage.read(state, plan.iteration)
                except StorageCorrupt as error:
                    fault = f"rank {context.rank}: {error}"
            faults = [fault for fault in tell_all(fault, group) if fault]
            if not faults:
                kept.discard_after(plan.iteration)
                if image is not None:
                    state.load_(image)
                return plan
        damaged.append(plan.iteration)
        context.log("storage refused", iteration=plan.iteration, reason=faults[0])


def replicate_(
    state: TrainingState,
    iteration: int,
    holders: Sequence[Sequence[int]],
    context: RankContext,
    kept: KeptShards,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Give every machine the replicas of a loaded iteration that it lacks, before another loss; every rank calls it."""
    present = {rank for rank, replicas in kept.examined().items() if (iteration, "") in replicas}
    missing = [rank for rank, keepers in enumerate(holders) if context.rank in keepers and rank not in present]
    receivers = [rank for rank, wanted in enumerate(tell_all(missing, group)) if context.rank in wanted]
    image = state.image(iteration) if receivers else torch.empty(0, dtype=torch.uint8)
    arrived = _exchange(dict.fromkeys(receivers, image), context.rank, group)
    for rank in missing:
        kept.slot(rank).write(iteration, arrived[rank])


def _exchange(images: Mapping[int, Tensor], rank: int, group: dist.ProcessGroup | None) -> dict[int, Tensor]:
    """Send images to ranks by number; return by sender those that come to this one; every rank calls it."""
    headers = tell_all({to: [image.numel(), checksum(image.numpy()).hex()] for to, image in images.items()}, group)
    works = [begun(dist.isend(image, group_dst=to, group=group)) for to, image in images.items() if to != rank]
    arrived = {rank: images[rank]} if rank in images else {}
    for sender, facts in enumerate(headers):
        if sender != rank and str(rank) in facts:  # numbers are text after JSON
            num_bytes, expected = facts[str(rank)]
            arrived[sender] = torch.empty(num_bytes, dtype=torch.uint8)
            dist.recv(arrived[sender], group_src=sender, group=group)
            if checksum(arrived[sender].numpy()).hex() != expected:
                raise ReplicaDamaged(f"a shard arrived changed at rank {rank} from rank {sender}")
    for work in works:
        work.wait()
    return arrived
