"""Checkpoints in the memory of peers, taken beside training: the three lines that a user's own loop needs of Gemini.

At the end of an iteration its state is copied into this machine's memory, so that nothing that changes later can reach
the checkpoint. The copy travels to peers in the idle spans of the next iteration. All ranks meet before the checkpoint
before the last is overwritten: a failure loses at most two iterations of a rank.
"""

import struct
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.distributed.checkpoint.stateful import Stateful

from workbench.launch.agreement import meet, tell_all
from workbench.parallel.timeouts import timeout_of
from workbench.techniques.gemini.control.service import RankContext
from workbench.techniques.gemini.method.interleaving import Scheme
from workbench.techniques.gemini.method.placement import placement

from .encoding import CHECKSUM_BYTES, checksum
from .replicas import KeptShards, Slot, holders_of_ranks, recover_, replicate_
from .state import TrainingState, refuse_unseen_scaler
from .storage import PersistentTier
from .transfer import (
    Arriving,
    CheckpointOptions,
    Interleaving,
    Leaving,
    TrafficWatch,
    Transfer,
    routes_of,
    watch_traffic,
)

__all__ = ["PRELOAD", "CheckpointOptions", "CheckpointTimeout", "InMemoryCheckpoints"]

# For `run_training`: what every rank imports anyway, torch._dynamo with its first optimizer.
PRELOAD = (__name__, "torch.distributed.fsdp", "torch._dynamo")

FACTS = struct.Struct(f"<Q{CHECKSUM_BYTES}s")  # of a rank's checkpoint, for the others: bytes and checksum
NUM_LOOKED_AT = 3  # checkpoints that are compared with the state at the next forward pass; updates that are looked at


class CheckpointTimeout(TimeoutError):
    """A checkpoint was not done in time; the message names the waiting rank and its peers."""


@dataclass(slots=True)
class _UnderWay:
    """A checkpoint that is being sent and received."""

    iteration: int
    began_s: float
    sending: Future[None]
    receiving: Future[None]
    ended_s: dict[str, float]  # of sending, and of receiving


class InMemoryCheckpoints:
    """Keeps a training's state in the memory of its own and of other machines; bad arguments change nothing.

    When it is made, it goes back to the newest checkpoint; StateMismatch if that is of another model, optimizer or
    number of ranks. A loop wraps messages of its own in `with checkpoints.watch.message():`.
    """

    def __init__(
        self,
        context: RankContext,
        model: nn.Module,  # plain data parallelism (DDP), `fully_shard`, or any model on a single rank
        optimizer: optim.Optimizer,
        *,
        scheduler: Stateful | None = None,  # learning-rate schedule
        extra: Mapping[str, Stateful] | None = None,  # further objects with a state: data loader, loss scaler, teacher
        storage: PersistentTier | None = None,  # the last tier
        options: CheckpointOptions | None = None,  # None for the defaults; fewer machines than replicas keep fewer
    ):
        options = options or CheckpointOptions(num_replicas=min(2, context.num_machines))
        placed = placement(context.num_machines, options.num_replicas, options.kind)
        if options.storage_every and storage is None:
            raise ValueError(f"storage_every is {options.storage_every}; it must be 0 where there is no storage")
        self._context, self._options, self._storage = context, options, storage
        self.interleaving = Interleaving(options)  # profile, link, sizes of chunks
        self.watch = TrafficWatch()
        self._state, self._kept = TrainingState(model, optimizer, scheduler=scheduler, extra=extra), KeptShards(context)
        watch_traffic(model, self.watch)
        self._pinned = _pinned_buffers(model, self.interleaving)
        self._under_way: _UnderWay | None = None
        self._copied: tuple[int, Tensor] | None = None  # iteration and image of the newest checkpoint of this rank
        self._chunks_of = lru_cache(context.world_size)(self.interleaving.chunks)  # by bytes of a shard
        self._group = dist.new_group(backend="gloo", timeout=timeout_of())  # what it carries lies in processors' memory
        holders = holders_of_ranks(placed, context.ranks_per_machine)
        self._routes = routes_of(context.rank, holders)
        self._transfer = Transfer(self._routes, group=self._group, num_buffers=self.interleaving.num_buffers)
        self._resume(holders)
        self._update_began_s, self._num_looked_at, self._is_warned = time.monotonic(), 0, False
        self._num_updates = 0
        optimizers = [item for item in (optimizer, *(extra or {}).values()) if isinstance(item, optim.Optimizer)]
        self._hooks = [item.register_step_pre_hook(self._note_update) for item in optimizers]
        self._hooks.append(model.register_forward_pre_hook(lambda *_: self._look_for_changes()))

    def _resume(self, holders: Sequence[Sequence[int]]) -> None:
        """Go back to the newest iteration that all ranks can reach."""
        context, kept, group = self._context, self._kept, self._group
        self.plan = recover_(self._state, context, kept, self._storage, group)
        self.iteration = self.plan.iteration  # iterations that are in the state; the one to begin with
        if self.iteration > 0:
            with context.during("replicate", iteration=self.iteration):
                replicate_(self._state, self.iteration, holders, context, kept, group)
        context.log("resumed", iteration=self.iteration)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the machine's memory for the replicas that this rank looks after, all their buffers."""
        return self._kept.num_bytes

    @property
    def shard_bytes(self) -> int:
        """Bytes of the newest checkpoint of this rank; 0 before the first one."""
        return self._copied[1].numel() if self._copied else 0

    @property
    def buffer_bytes(self) -> int:
        """Most bytes of chunks that may be under way, both directions together."""
        largest = max((chunk.size_bytes for chunk in self._chunks_of(max(1, self.shard_bytes))), default=0)
        return 2 * self.interleaving.num_buffers * largest

    def iterations(self, total: int) -> Iterator[int]:
        """Count the iterations that are left until `total`, and checkpoint each when its body is done.

        Raises:
            ValueError: on all ranks, if they do not count to the same number.
        """
        totals = tell_all(total, self._group)
        if len(set(totals)) > 1:
            rule = "all ranks must end with the same iteration: a checkpoint is one of all of them"
            raise ValueError(f"total is {totals} on the ranks; {rule}")
        self._num_looked_at = NUM_LOOKED_AT  # what changes now belongs to the iteration that begins
        while self.iteration < total:
            yield self.iteration
            self.step()
        self.close()

    def step(self) -> None:
        """End an iteration, after all that changes the state: copy it and begin to send it; every rank calls it."""
        self.wait()
        self.iteration += 1
        self._note_iteration()
        options = self._options
        is_due = self.iteration % options.every == 0
        if is_due:
            self._begin()
        if self._storage is not None and options.storage_every and self.iteration % options.storage_every == 0:
            with self._context.during("store", iteration=self.iteration):
                image = self._copied[1] if is_due and self._copied else self._state.image(self.iteration)
                self._storage.save(image, self.iteration)
        if not self.interleaving.is_settled:  # chunks have no spans yet
            self.wait()
            self.watch.next_iteration()  # which begins only now
        self._context.report(self.iteration)

    def wait(self) -> None:
        """Wait until the checkpoint under way is complete on all machines; every rank calls it."""
        if self._under_way is None:
            return
        self.watch.finish_iteration()
        under_way, timeout_s = self._under_way, self._options.timeout_s
        for name, end in (("sent to", under_way.sending), ("received from", under_way.receiving)):
            try:
                end.result(timeout_s)
            except TimeoutError:
                peers = [route.target if name == "sent to" else route.source for route in self._routes]
                late = f"iteration {under_way.iteration} was not {name} ranks {peers} within {timeout_s:g} s"
                raise CheckpointTimeout(f"rank {self._context.rank}: {late}") from None
        self._under_way = None
        ended = {f"{name}_s": moment - under_way.began_s for name, moment in under_way.ended_s.items()}
        self._context.log("checkpoint", iteration=under_way.iteration, began_s=under_way.began_s, **ended)

    def close(self) -> None:
        """Finish the checkpoint under way and leave model and optimizer alone; calling it again does nothing."""
        self.wait()
        for hook in self._hooks:
            hook.remove()
        self._transfer.close()

    def _note_update(self, *_: Any) -> None:
        if self._num_updates < NUM_LOOKED_AT:
            self._num_updates += 1
            refuse_unseen_scaler(self._state.given)
        self._update_began_s = time.monotonic()

    def _note_iteration(self) -> None:
        started_s, messages = self.watch.started_s, self.watch.next_iteration()
        if not self.interleaving.wants_iterations:
            return
        self.interleaving.note(started_s, self._update_began_s, messages)
        if profile := self.interleaving.settle(self._routes, self._group):
            self._chunks_of.cache_clear()  # they are to be divided anew
            self._context.log("profiled", idle_s=sum(profile))

    def _begin(self) -> None:
        """Copy the state into this machine's memory, and let threads send it and receive the others'."""
        iteration, timeout_s = self.iteration, self._options.timeout_s
        own, began_s, ended_s = self._kept.slot(self._context.rank), time.monotonic(), {}
        image = self._state.capture(iteration)
        # A device writes to locked memory at the full rate of its bus, sub-buffers or not; see `_pinned_buffers`.
        is_locked = bool(self._pinned) and self._options.scheme == Scheme.GEMINI
        data = own.begin(iteration, image.num_bytes, locked=is_locked)
        image.write_(data, self._pinned)
        self._copied = iteration, data
        arriving: dict[int, Slot] = {route.source: self._kept.slot(route.source) for route in self._routes}
        facts: list[tuple[int, bytes]] = []  # bytes and checksum of each rank's shard

        def prepare() -> tuple[Leaving, dict[int, Arriving]]:
            # This rank's own replica is complete. All ranks meet: an older one is overwritten when all have the last.
            digest = checksum(data.numpy())
            own.complete(digest)
            own_facts = FACTS.pack(data.numel(), digest)
            rows = meet(f"checkpoint of iteration {iteration}", timeout_s, self._group, own_facts)
            facts.extend(FACTS.unpack(row) for row in rows)
            places = {}
            for rank, slot in arriving.items():
                num_bytes, digest = facts[rank]
                place = slot.begin(iteration, num_bytes)
                places[rank] = Arriving(data=place, chunks=self._chunks_of(num_bytes), digest=digest)
            return Leaving(data=data, chunks=self._chunks_of(data.numel())), places

        def received() -> None:
            for rank, slot in arriving.items():
                slot.complete(facts[rank][1])
            ended_s["received"] = time.monotonic()

        sending, receiving = self._transfer.start(
            prepare,
            wait=lambda span: self.watch.wait_for_idle(span, timeout_s),
            sent=lambda: ended_s.update(sent=time.monotonic()),
            received=received,
        )
        self._under_way = _UnderWay(
            iteration=iteration, began_s=began_s, sending=sending, receiving=receiving, ended_s=ended_s
        )

    def _look_for_changes(self) -> None:
        """Say once what changed after an iteration's end and is in no checkpoint of it."""
        if self._is_warned or self._num_looked_at >= NUM_LOOKED_AT or not self._copied:
            return
        iteration, data = self._copied
        if iteration != self.iteration:
            return
        self._num_looked_at += 1
        changed = self._state.changed_since(data)
        if changed:
            self._is_warned = True
            rest = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            words = f"{', '.join(changed[:3])}{rest} changed between the end of iteration {iteration} and the next"
            rule = "unless each begins so, a run that resumes ends with other bits: use checkpoints.iterations()"
            self._context.log("changed late", iteration=iteration, names=changed)
            warnings.warn(f"rank {self._context.rank}: {words} forward pass; {rule}", stacklevel=2)


def _pinned_buffers(model: nn.Module, interleaving: Interleaving) -> list[Tensor]:
    """Make the sub-buffers through which a CUDA model's state comes to the host; none on a processor.

    They are the thesis's (figure 6.5d). Gemini's scheme uses them only where the slot's own memory cannot be locked:
    locked it takes 55 GB/s on an H200, sub-buffers 40 with many threads and 6 with one.
    """
    if not any(parameter.is_cuda for parameter in model.parameters()):
        return []
    size = interleaving.chunk_bytes
    return [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(interleaving.num_buffers)]
