"""Going back to the newest iteration that every rank can reach, and fetching it from wherever each rank can.

What: ranks tell each other what their machines keep, plan alike (`method.recovery`), and load: from the machine's own
memory, from a peer's over the network, or from persistent storage. What was newer is forgotten.
Source: "Gemini: Fast Failure Recovery in Distributed Training with In-Memory Checkpoints", section 6.6.2.
Ours: what a lost machine kept is sent again at once, so that the next loss finds as many replicas as the first.
Simplified: a replica travels in one message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from workbench.techniques.gemini.method.recovery import RecoveryPlan, Source, Tier, plan_recovery

from .agreement import tell_all
from .checksums import checksum
from .keeping import KeptShards, Place, holdings_of
from .resume import resume_
from .state import TrainingState
from .tiers import StorageCorrupt

__all__ = ["PersistentTier", "ReplicaDamaged", "agree_on_recovery", "recover_", "replicate_"]


class ReplicaDamaged(RuntimeError):
    """A replica that was whole in a peer's memory arrived changed."""


class PersistentTier(Protocol):
    """Where checkpoints outlive all machines."""

    def iterations(self) -> Iterable[int]:
        """Return the iterations that seem complete there."""
        ...

    def read(self, state: TrainingState, iteration: int) -> Tensor:
        """Return this rank's image of one, verified; not collective."""
        ...


class Log(Protocol):
    """Is told what happens; see `RankContext`."""

    def during(self, name: str, **details: Any) -> AbstractContextManager:
        """Log the body as something that took time."""
        ...

    def log(self, name: str, **details: Any) -> None:
        """Log something that happened."""
        ...


def agree_on_recovery(
    place: Place, kept: KeptShards, storage: PersistentTier | None, damaged: Collection[int] = ()
) -> RecoveryPlan:
    """Plan the recovery; every rank calls it and gets the same plan."""
    stored = [] if storage is None or place.rank != 0 else sorted(set(storage.iterations()) - set(damaged))
    told = tell_all({"found": kept.found(), "stored": stored})
    holdings = holdings_of([each["found"] for each in told], place.ranks_per_machine)
    machine_of = [rank // place.ranks_per_machine for rank in range(place.world_size)]
    return plan_recovery(holdings, place.world_size, stored=told[0]["stored"], machine_of=machine_of)


def recover_(
    state: TrainingState,
    place: Place,
    kept: KeptShards,
    storage: PersistentTier | None,
    *,
    log: Log,
    throw_away: Callable[[], Tensor] | None = None,
) -> RecoveryPlan:
    """Go back to the newest iteration that all ranks can reach; every rank calls it."""
    damaged: list[int] = []
    while True:
        plan = agree_on_recovery(place, kept, storage, damaged)
        mine = plan.sources[place.rank]
        told = {"tier": mine.tier.value, "iteration": plan.iteration, "passed_over": list(mine.passed_over)}
        told["unusable"] = list(kept.unusable)  # also of others' shards, who may go back further for it
        with log.during("retrieve", **told):
            image, fault = _fetched(plan, state, place, kept, storage)
            faults = [each for each in tell_all(fault) if each]
            if not faults:
                kept.discard_after(plan.iteration)
                resume_(state, image, throw_away)
                return plan
        damaged.append(plan.iteration)
        log.log("storage refused", iteration=plan.iteration, reason=faults[0])


def _fetched(
    plan: RecoveryPlan, state: TrainingState, place: Place, kept: KeptShards, storage: PersistentTier | None
) -> tuple[Tensor | None, str]:
    """Return this rank's image, and what is wrong with the one in storage, if anything is."""
    tier = plan.sources[place.rank].tier
    received = _exchange(plan, place, kept)
    if tier is Tier.LOCAL:
        return kept.replica(place.rank, plan.iteration).data, ""
    if tier is Tier.STORAGE:
        try:
            return storage.read(state, plan.iteration), ""
        except StorageCorrupt as error:
            return None, f"rank {place.rank}: {error}"
    return received, ""


def replicate_(
    state: TrainingState, iteration: int, holders: Sequence[Sequence[int]], place: Place, kept: KeptShards
) -> None:
    """Give every machine the replicas of an iteration that it should keep and has not; every rank calls it."""
    state.capture(iteration)
    sizes = tell_all(state.num_bytes)
    there = {rank for rank, held in kept.found().items() if (iteration, "") in held}
    mine = [rank for rank, keepers in enumerate(holders) if place.rank in keepers and rank not in there]
    missing = tell_all(mine)
    image = torch.empty(state.num_bytes, dtype=torch.uint8)
    if any(place.rank in each for each in missing):
        state.read_into_(0, image)
    works = [
        dist.isend(image, group_dst=rank)
        for rank, each in enumerate(missing)
        if rank != place.rank and place.rank in each
    ]
    for rank in mine:
        arrived = image
        if rank != place.rank:
            arrived = torch.empty(sizes[rank], dtype=torch.uint8)
            dist.recv(arrived, group_src=rank)
        slot = kept.slot(rank, sizes[rank])
        slot.begin(iteration, sizes[rank])
        slot.write(0, arrived)
        slot.complete()
    for work in works:
        work.wait()


def _exchange(plan: RecoveryPlan, place: Place, kept: KeptShards) -> Tensor | None:
    """Send what this rank serves others, and return what a peer sends to it, if one does."""
    served = [source for source in plan.sources if source.tier is Tier.PEER and _server(source, place) == place.rank]
    images = {source.rank: kept.replica(source.rank, plan.iteration).data for source in served}
    said = {rank: [image.numel(), checksum(image.numpy()).hex()] for rank, image in images.items()}
    on_the_way = {int(rank): facts for told in tell_all(said) for rank, facts in told.items()}
    works = [dist.isend(image, group_dst=rank) for rank, image in images.items()]
    received = None
    if place.rank in on_the_way:
        num_bytes, expected = on_the_way[place.rank]
        received = torch.empty(num_bytes, dtype=torch.uint8)
        server = _server(plan.sources[place.rank], place)
        dist.recv(received, group_src=server)
        if checksum(received.numpy()).hex() != expected:
            raise ReplicaDamaged(f"the shard of rank {place.rank} arrived changed from rank {server}")
    for work in works:
        work.wait()
    return received


def _server(source: Source, place: Place) -> int:
    """Return the rank that serves another from its machine's memory: the one with the same number there."""
    return source.machine * place.ranks_per_machine + source.rank % place.ranks_per_machine
