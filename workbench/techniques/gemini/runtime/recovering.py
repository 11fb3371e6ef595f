"""Going back to the newest iteration that every rank can reach, and fetching it from wherever each rank can.

What: ranks tell each other what their machines keep, plan alike (`method.recovery`), and load: from the machine's own
memory, from a peer's over the network, or from persistent storage. What was newer is forgotten.
Source: "Gemini: Fast Failure Recovery in Distributed Training with In-Memory Checkpoints", section 6.6.2.
Simplified: a replica travels in one message; a machine's own replica is not sent to its peers again before the next
checkpoint does so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from workbench.techniques.gemini.method.recovery import RecoveryPlan, Source, Tier, plan_recovery

from .agreement import tell_all
from .checksums import checksum
from .keeping import KeptShards, Place, holdings_of
from .resume import THROW_AWAY_PASSES, resume_, throw_away_passes
from .state import TrainingState

__all__ = ["PersistentTier", "ReplicaDamaged", "agree_on_recovery", "recover_"]



class ReplicaDamaged(RuntimeError):
    """A replica that was whole in a peer's memory arrived changed."""


class PersistentTier(Protocol):
    """Where checkpoints outlive all machines."""

    def iterations(self) -> Iterable[int]:
        """Return the iterations that are complete there."""
        ...

    def load_(self, state: TrainingState, iteration: int) -> object:
        """Load one into this rank's state; every rank calls it."""
        ...


def agree_on_recovery(place: Place, kept: KeptShards, storage: PersistentTier | None) -> RecoveryPlan:
    """Plan the recovery; every rank calls it and gets the same plan.

    Args:
        place: of this rank.
        kept: what its machine keeps, as far as this rank looks after it.
        storage: the last tier; None for none.
    """
    stored = [] if storage is None or place.rank != 0 else sorted(storage.iterations())
    told = tell_all({"found": kept.found(), "stored": stored})
    holdings = holdings_of([each["found"] for each in told], place.ranks_per_machine)
    machine_of = [rank // place.ranks_per_machine for rank in range(place.world_size)]
    return plan_recovery(holdings, place.world_size, stored=told[0]["stored"], machine_of=machine_of)


def recover_(
    plan: RecoveryPlan,
    state: TrainingState,
    place: Place,
    kept: KeptShards,
    storage: PersistentTier | None,
    *,
    during: Callable[..., AbstractContextManager],
    throw_away: Callable[[], Tensor] | None = None,
) -> None:
    """Carry a plan out on this rank; every rank calls it.

    Args:
        plan: the same on all ranks.
        state: loaded in place.
        place: of this rank.
        kept: what its machine keeps.
        storage: the last tier.
        during: enters the body into a log, under a name and with details.
        throw_away: gives a loss of any batch; see `resume_`.

    Raises:
        StateMismatch: for a checkpoint of another model, optimizer or number of ranks.
        ReplicaDamaged: naming the peer.
    """
    kept.discard_after(plan.iteration)
    mine = plan.sources[place.rank]
    told = {"tier": mine.tier.value, "iteration": plan.iteration, "passed_over": list(mine.passed_over)}
    with during("retrieve", **told):
        fetched = _exchange(plan, place, kept)
        if mine.tier is Tier.LOCAL:
            fetched = kept.replica(place.rank, plan.iteration).data
        if mine.tier is Tier.STORAGE:
            if isinstance(state.model, DistributedDataParallel):
                throw_away_passes(state, throw_away, THROW_AWAY_PASSES)
            storage.load_(state, plan.iteration)
        else:
            resume_(state, fetched, throw_away)


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
