"""Checkpoints in the memory of peers, taken beside training: the three lines that a user's own loop needs of Gemini.

A checkpoint's chunks travel in the idle spans of the next iteration and are complete before its update. All ranks meet
before the one before the last is overwritten: a failure loses at most two iterations of a rank.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn, optim

from workbench.techniques.gemini.method.checks import require_counts, require_positive
from workbench.techniques.gemini.method.partition import Chunk
from workbench.techniques.gemini.method.placement import placement

from .agreement import meet, tell_all
from .control.service import RankContext
from .idle import Interleaving
from .recovering import recover_, replicate_
from .replicas import MAX_CHUNKS, KeptShards, Slot, holders_of_ranks
from .state import HasState, TrainingState, require_throw_away
from .storage import PersistentTier
from .traffic import TrafficWatch, watch_traffic
from .transfer import Transfer, routes_of

__all__ = ["PRELOAD", "CheckpointTimeout", "InMemoryCheckpoints"]

# For `run_training`: what every rank imports anyway, torch._dynamo with its first optimizer.
PRELOAD = (__name__, "torch.distributed.fsdp", "torch._dynamo")

TIMEOUT_S = 300.0  # in which a checkpoint must be done once training waits for it


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

    A further optimizer in `extra` is copied at every checkpoint; the tensors of the first one are read in place. A loop
    wraps messages of its own in `with checkpoints.watch.message():`. A checkpoint of another model, optimizer or number
    of ranks is refused with StateMismatch.
    """

    def __init__(
        self,
        context: RankContext,
        model: nn.Module,  # plain data parallelism (DDP) or `fully_shard`
        optimizer: optim.Optimizer,
        *,
        num_replicas: int = 2,  # m, this machine's own included
        kind: str = "mixed",  # of placement, or "ring"
        every: int = 1,  # iterations from one checkpoint to the next
        scheduler: HasState | None = None,  # learning-rate schedule
        extra: Mapping[str, HasState] | None = None,  # further objects with a state, such as the data's position
        storage: PersistentTier | None = None,  # the last tier
        storage_every: int = 0,  # iterations from one checkpoint there to the next; 0 for none
        throw_away: Callable[[], Tensor] | None = None,  # gives the loss of any batch; for DDP, see `resume_`
        timeout_s: float = TIMEOUT_S,  # in which a checkpoint must be done once training waits for it
        **sending: Any,  # scheme, reserved_bytes, num_buffers, num_profiled: see `Interleaving`
    ):
        placed = placement(context.num_machines, num_replicas, kind)
        require_counts(1, every=every)
        require_counts(0, storage_every=storage_every)
        require_positive(timeout_s=timeout_s)
        require_throw_away(model, throw_away)
        if storage_every and storage is None:
            raise ValueError(f"storage_every is {storage_every}; it must be 0 where there is no storage")
        self._context, self._every, self._timeout_s = context, every, timeout_s
        self._storage, self._storage_every = storage, storage_every
        self.interleaving = Interleaving(num_replicas=num_replicas, **sending)  # profile, link, sizes of chunks
        self.watch = TrafficWatch()
        watch_traffic(model, self.watch)
        self._state, self._kept = TrainingState(model, optimizer, scheduler=scheduler, extra=extra), KeptShards(context)
        self._transfer: Transfer | None = None
        self._under_way: _UnderWay | None = None
        self._sizes: list[int] = []  # bytes of each rank's shard
        self._chunks: dict[int, tuple[Chunk, ...]] = {}  # rank -> those of its shard
        self._resume(holders_of_ranks(placed, context.ranks_per_machine), throw_away)
        optimizers = [item for item in (optimizer, *(extra or {}).values()) if isinstance(item, optim.Optimizer)]
        self._hooks = [item.register_step_pre_hook(lambda *_: self._before_update()) for item in optimizers]

    def _resume(self, holders: Sequence[Sequence[int]], throw_away: Callable[[], Tensor] | None) -> None:
        """Go back to the newest iteration that all ranks can reach, and open the ways on which checkpoints travel."""
        context, kept = self._context, self._kept
        self.plan = recover_(self._state, context, kept, self._storage, log=context, throw_away=throw_away)
        self.iteration = self.plan.iteration  # iterations that are in the state; the one to begin with
        if self.iteration > 0:
            with context.during("replicate", iteration=self.iteration):
                replicate_(self._state, self.iteration, holders, context, kept)
        self._routes = routes_of(context.rank, holders)
        self._group = dist.new_group(backend="gloo")  # what it carries lies in processors' memory
        self._update_began_s = time.monotonic()
        context.log("resumed", iteration=self.iteration)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the machine's memory for the replicas that this rank looks after, all their buffers."""
        return self._kept.num_bytes

    @property
    def shard_bytes(self) -> int:
        """Bytes of one checkpoint of this rank; 0 before the first one."""
        return self._sizes[self._context.rank] if self._sizes else 0

    @property
    def buffer_bytes(self) -> int:
        """Bytes of this rank's sub-buffers."""
        return 0 if self._transfer is None else self._transfer.buffer_bytes

    def step(self) -> None:
        """End an iteration, after the optimizer's step, and begin its checkpoint; every rank calls it."""
        self.wait()  # an iteration without update has not waited yet
        self.iteration += 1
        self._note_iteration()
        if self._storage_every and self.iteration % self._storage_every == 0:
            with self._context.during("store", iteration=self.iteration):
                self._state.capture(self.iteration)
                self._storage.save(self._state, self.iteration)
        if self.iteration % self._every == 0:
            self._begin()
            if not self.interleaving.is_settled:  # chunks have no spans yet
                self.wait()
                self.watch.next_iteration()  # which begins only now
        self._context.report(self.iteration)

    def wait(self) -> None:
        """Wait until the checkpoint under way is complete on all machines; every rank calls it."""
        if self._under_way is None:
            return
        self.watch.finish_iteration()
        under_way = self._under_way
        for name, end in (("sent to", under_way.sending), ("received from", under_way.receiving)):
            try:
                end.result(self._timeout_s)
            except TimeoutError:
                peers = [route.target if name == "sent to" else route.source for route in self._routes]
                late = f"iteration {under_way.iteration} was not {name} ranks {peers} within {self._timeout_s:g} s"
                raise CheckpointTimeout(f"rank {self._context.rank}: {late}") from None
        self._under_way = None
        ended = {f"{name}_s": moment - under_way.began_s for name, moment in under_way.ended_s.items()}
        self._context.log("checkpoint", iteration=under_way.iteration, began_s=under_way.began_s, **ended)

    def close(self) -> None:
        """Finish the checkpoint under way and leave the optimizer alone."""
        self.wait()
        for hook in self._hooks:
            hook.remove()
        if self._transfer is not None:
            self._transfer.close()

    def _before_update(self) -> None:
        """Let no update change the tensors that are still being sent."""
        self._update_began_s = time.monotonic()
        self.wait()

    def _note_iteration(self) -> None:
        started_s, operations = self.watch.started_s, self.watch.next_iteration()
        if not self.interleaving.wants_iterations:
            return
        self.interleaving.note(self.iteration, started_s, self._update_began_s, operations)
        if self.interleaving.settle(self._routes, self._group):
            self._chunks = {}  # to be divided anew
            self._context.log("profiled", idle_s=self.interleaving.profile.total_s)

    def _begin(self) -> None:
        iteration = self.iteration
        num_bytes = self._state.capture(iteration).num_bytes
        if not self._chunks:
            self._divide(num_bytes)
        me, senders = self._context.rank, [route.source for route in self._routes]
        slots = {rank: self._kept.slot(rank, self._sizes[rank]) for rank in (me, *senders)}

        def read(chunk: Chunk, out: Tensor) -> None:
            self._state.read_into_(chunk.offset_bytes, out)
            if chunk.replica == 0:
                slots[me].write(chunk.offset_bytes, out)  # the local replica

        def sent() -> None:
            if not self._routes:
                self._keep_alone(slots[me], num_bytes)
            slots[me].complete()
            ended_s["sent"] = time.monotonic()

        def received() -> None:
            for rank in senders:
                slots[rank].complete()
            ended_s["received"] = time.monotonic()

        ended_s: dict[str, float] = {}
        began_s = time.monotonic()
        sending, receiving = self._transfer.start(
            self._chunks[me],
            {rank: self._chunks[rank] for rank in senders},
            read=read,
            sent=sent,
            received=received,
            prepare=lambda: self._make_room(iteration, slots),
            keep=lambda rank, offset, arrived: slots[rank].write(offset, arrived),
            wait=lambda span: self.watch.wait_for_idle(span, self._timeout_s),
        )
        self._under_way = _UnderWay(
            iteration=iteration, began_s=began_s, sending=sending, receiving=receiving, ended_s=ended_s
        )

    def _make_room(self, iteration: int, slots: Mapping[int, Slot]) -> None:
        """Let go of the checkpoint before the last once the last one is complete everywhere: once all are here."""
        meet(f"checkpoint of iteration {iteration}", self._timeout_s, self._group)
        for rank, slot in slots.items():
            slot.begin(iteration, self._sizes[rank])

    def _divide(self, num_bytes: int) -> None:
        """Divide all ranks' shards into chunks; every rank calls it."""
        self._sizes = tell_all(num_bytes)
        self._chunks = {rank: self.interleaving.chunks(size) for rank, size in enumerate(self._sizes)}
        if self._transfer is not None:
            self._transfer.close()
        most = max(len(chunks) // max(1, len(self._routes)) for chunks in self._chunks.values())
        if most > MAX_CHUNKS:
            rule = f"it must be larger: a shard would travel in {most} chunks, more than {MAX_CHUNKS}"
            raise ValueError(f"reserved_bytes is {self.interleaving.reserved_bytes}; {rule}")
        largest = max((chunk.size_bytes for chunks in self._chunks.values() for chunk in chunks), default=1)
        self._transfer = Transfer(
            self._routes, group=self._group, chunk_bytes=largest, num_buffers=self.interleaving.num_buffers
        )

    def _keep_alone(self, slot: Slot, num_bytes: int) -> None:
        for offset in range(0, num_bytes, self.interleaving.chunk_bytes):
            size = min(self.interleaving.chunk_bytes, num_bytes - offset)
            self._state.read_into_(offset, slot.view(offset, size))
            slot.commit(offset, size)
