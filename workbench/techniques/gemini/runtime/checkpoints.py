"""Checkpoints in the memory of peers, taken beside training: the three lines that a user's own loop needs of Gemini.

At the end of an iteration its state is copied into this machine's memory, so that nothing that changes later can reach
the checkpoint. The copy travels to peers in the idle spans of the next iteration. All ranks meet before the checkpoint
before the last is overwritten: a failure loses at most two iterations of a rank.
"""

import struct
import time
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from functools import lru_cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.distributed.checkpoint.stateful import Stateful

from workbench.launch.agreement import meet, tell_all
from workbench.parallel.timeouts import timeout_of

from ..control.service import RankContext
from ..method import Scheme, placement
from .encoding import CHECKSUM_BYTES, checksum
from .replicas import KeptShards, Slot, recover_, replicate_
from .state import TrainingState, refuse_unseen_scaler
from .storage import PersistentTier
from .transfer import CheckpointOptions, Interleaving, Shard, TrafficWatch, Transfer, routes_of, watch_traffic

__all__ = ["PRELOAD", "CheckpointOptions", "CheckpointTimeout", "InMemoryCheckpoints"]

# For `run_training`: what every rank imports anyway, torch._dynamo with its first optimizer.
PRELOAD = (__name__, "torch.distributed.fsdp", "torch._dynamo")

FACTS = struct.Struct(f"<Q{CHECKSUM_BYTES}s")  # of a rank's checkpoint, for the others: bytes and checksum
NUM_LOOKED_AT = 3  # checkpoints that are compared with the state at the next forward pass; updates that are looked at


class CheckpointTimeout(TimeoutError):
    """A checkpoint was not done in time; the message names the waiting rank and its peers."""


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
        placed = placement(context.num_machines, options.num_replicas)
        if options.storage_every and storage is None:
            raise ValueError(f"storage_every is {options.storage_every}; it must be 0 where there is no storage")
        self._context, self._options, self._storage = context, options, storage
        self.interleaving = Interleaving(options)  # profile, link, sizes of chunks
        self.watch = TrafficWatch()
        self._state, self._kept = TrainingState(model, optimizer, scheduler=scheduler, extra=extra), KeptShards(context)
        watch_traffic(model, self.watch)
        # Sub-buffers of figure 6.5d, through which a CUDA model's state comes to the host. Gemini's scheme uses them
        # only where the slot's own memory cannot be locked, which takes 55 GB/s on an H200, sub-buffers 6 to 40.
        num_pinned = self.interleaving.num_buffers if any(item.is_cuda for item in model.parameters()) else 0
        sizes = [self.interleaving.chunk_bytes] * num_pinned
        self._pinned = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for size in sizes]
        self._began_s = 0.0  # when the newest checkpoint began
        self._ends: tuple[Future[float], ...] = ()  # of sending and receiving it, while it is under way
        self._copied: tuple[int, Tensor] | None = None  # iteration and image of the newest checkpoint of this rank
        self._chunks_of = lru_cache(context.world_size)(self.interleaving.chunks)  # by bytes of a shard
        self._group = dist.new_group(backend="gloo", timeout=timeout_of())  # what it carries lies in processors' memory
        # For each rank's shard the ranks that keep it, itself first: its number on the holding machines.
        size, locals_ = context.ranks_per_machine, range(context.ranks_per_machine)
        holders = [[machine * size + local for machine in kept] for kept in placed.holders for local in locals_]
        self._routes = routes_of(context.rank, holders)
        self._transfer = Transfer(self._routes, group=self._group, num_buffers=self.interleaving.num_buffers)
        self.plan = recover_(self._state, context, self._kept, storage, self._group)
        self.iteration = self.plan.iteration  # iterations that are in the state; the one to begin with
        if self.iteration > 0:
            with context.during("replicate", iteration=self.iteration):
                replicate_(self._state, self.iteration, holders, context, self._kept, self._group)
        context.log("resumed", iteration=self.iteration)
        self._update_began_s, self._num_looked_at, self._is_warned = time.monotonic(), 0, False
        self._num_updates = 0
        optimizers = [item for item in (optimizer, *(extra or {}).values()) if isinstance(item, optim.Optimizer)]
        self._hooks = [item.register_step_pre_hook(self._note_update) for item in optimizers]
        self._hooks.append(model.register_forward_pre_hook(lambda *_: self._look_for_changes()))

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
        began_s = self.watch.started_s, self._update_began_s
        if self.interleaving.note(began_s, self.watch.next_iteration(), self._routes, self._group):
            self._chunks_of.cache_clear()  # they are to be divided anew
            self._context.log("profiled", idle_s=sum(self.interleaving.profile or ()))
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
        if self._copied is None or not self._ends:
            return
        self.watch.finish_iteration()
        iteration, timeout_s, took_s = self._copied[0], self._options.timeout_s, []
        for name, end in zip(("sent to", "received from"), self._ends, strict=True):
            try:
                took_s.append(end.result(timeout_s) - self._began_s)
            except TimeoutError:
                peers = [route.target if name == "sent to" else route.source for route in self._routes]
                late = f"iteration {iteration} was not {name} ranks {peers} within {timeout_s:g} s"
                raise CheckpointTimeout(f"rank {self._context.rank}: {late}") from None
        self._ends = ()
        times = {"began_s": self._began_s, "sent_s": took_s[0], "received_s": took_s[1]}
        self._context.log("checkpoint", iteration=iteration, **times)

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

    def _begin(self) -> None:
        """Copy the state into this machine's memory, and let threads send it and receive the others'."""
        iteration, timeout_s = self.iteration, self._options.timeout_s
        own_slot, self._began_s = self._kept.slot(self._context.rank), time.monotonic()
        place = partial(own_slot.begin, iteration, locked=bool(self._pinned) and self._options.scheme == Scheme.GEMINI)
        data = self._state.copied(iteration, place, self._pinned)
        self._copied = iteration, data
        arriving: dict[int, Slot] = {route.source: self._kept.slot(route.source) for route in self._routes}
        shards: dict[int, Shard] = {}

        def prepare() -> dict[int, Shard]:
            # This rank's own replica is complete. All ranks meet: an older one is overwritten when all have the last.
            digest = checksum(data.numpy())
            own_slot.complete(digest)
            own_facts = FACTS.pack(data.numel(), digest)
            rows = meet(f"checkpoint of iteration {iteration}", timeout_s, self._group, own_facts)
            for rank in (self._context.rank, *arriving):
                num_bytes, digest = FACTS.unpack(rows[rank])
                place = arriving[rank].begin(iteration, num_bytes) if rank in arriving else data
                shards[rank] = Shard(data=place, chunks=self._chunks_of(num_bytes), digest=digest)
            return shards

        def received() -> None:
            for rank, slot in arriving.items():
                slot.complete(shards[rank].digest)

        self._ends = self._transfer.start(
            prepare, wait=lambda span: self.watch.wait_for_idle(span, timeout_s), received=received
        )

    def _look_for_changes(self) -> None:
        """Say once what changed after an iteration's end and is in no checkpoint of it."""
        iteration, data = self._copied or (-1, torch.empty(0))
        if self._is_warned or self._num_looked_at >= NUM_LOOKED_AT or iteration != self.iteration:
            return
        self._num_looked_at += 1
        if changed := self._state.changed_since(data):
            self._is_warned = True
            rest = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            words = f"{', '.join(changed[:3])}{rest} changed between the end of iteration {iteration} and the next"
            rule = "unless each begins so, a run that resumes ends with other bits: use checkpoints.iterations()"
            self._context.log("changed late", iteration=iteration, names=changed)
            warnings.warn(f"rank {self._context.rank}: {words} forward pass; {rule}", stacklevel=2)
