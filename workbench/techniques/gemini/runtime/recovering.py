"""Going back to the newest iteration that every rank can reach, and fetching it from memory, a peer or storage."""

from collections.abc import Collection, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from workbench.launch.agreement import tell_all
from workbench.techniques.gemini.control.service import RankContext
from workbench.techniques.gemini.method.recovery import RecoveryPlan, Source, Tier, plan_recovery

from .encoding import checksum
from .replicas import KeptShards, holdings_of
from .state import TrainingState
from .storage import PersistentTier, StorageCorrupt
from .transfer import ReplicaDamaged

__all__ = ["agree_on_recovery", "recover_", "replicate_"]


def agree_on_recovery(
    place: RankContext,
    kept: KeptShards,
    storage: PersistentTier | None,
    damaged: Collection[int] = (),
    group: dist.ProcessGroup | None = None,
) -> RecoveryPlan:
    """Plan the recovery, passing over iterations that are damaged in storage; every rank calls it and gets one plan."""
    stored = [] if storage is None or place.rank != 0 else sorted(set(storage.iterations()) - set(damaged))
    reports = tell_all({"kept": kept.examined(), "stored": stored}, group)
    holdings = holdings_of([report["kept"] for report in reports], place.ranks_per_machine)
    machine_of = [rank // place.ranks_per_machine for rank in range(place.world_size)]
    return plan_recovery(holdings, place.world_size, stored=reports[0]["stored"], machine_of=machine_of)


def recover_(
    state: TrainingState,  # loaded in place
    place: RankContext,
    kept: KeptShards,  # replicas that are newer are forgotten
    storage: PersistentTier | None,  # an iteration that is damaged there is passed over, and the log says so
    *,
    log: RankContext,  # for the tier that served this rank
    group: dist.ProcessGroup | None = None,  # on which replicas travel; None for the default one
) -> RecoveryPlan:
    """Go back to the newest iteration that all ranks can reach; every rank calls it. StateMismatch, ReplicaDamaged."""
    damaged: list[int] = []
    while True:
        plan = agree_on_recovery(place, kept, storage, damaged, group)
        source = plan.sources[place.rank]
        details = {"tier": source.tier.value, "iteration": plan.iteration, "passed_over": list(source.passed_over)}
        details["unusable"] = list(kept.unusable)  # also other ranks' shards, which may go back further for it
        with log.during("retrieve", **details):
            image, fault = _fetched(plan, state, place, kept, storage, group)
            faults = [fault for fault in tell_all(fault, group) if fault]
            if not faults:
                kept.discard_after(plan.iteration)
                if image is not None:
                    state.load_(image)
                return plan
        damaged.append(plan.iteration)
        log.log("storage refused", iteration=plan.iteration, reason=faults[0])


def _fetched(
    plan: RecoveryPlan,
    state: TrainingState,
    place: RankContext,
    kept: KeptShards,
    storage: PersistentTier | None,
    group: dist.ProcessGroup | None,
) -> tuple[Tensor | None, str]:
    """Return this rank's image, and the fault of the one in storage; "" for none."""
    tier = plan.sources[place.rank].tier
    received = _exchange(plan, place, kept, group)
    if tier is Tier.LOCAL:
        return kept.replica(place.rank, plan.iteration).data, ""
    if tier is Tier.STORAGE:
        try:
            return storage.read(state, plan.iteration), ""
        except StorageCorrupt as error:
            return None, f"rank {place.rank}: {error}"
    return received, ""


def replicate_(
    state: TrainingState,
    iteration: int,
    holders: Sequence[Sequence[int]],
    place: RankContext,
    kept: KeptShards,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Give every machine the replicas of a loaded iteration that it lacks, before another loss; every rank calls it."""
    present = {rank for rank, replicas in kept.examined().items() if (iteration, "") in replicas}
    missing = [rank for rank, keepers in enumerate(holders) if place.rank in keepers and rank not in present]
    receivers = [rank for rank, wanted in enumerate(tell_all(missing, group)) if place.rank in wanted]
    image = state.image(iteration) if receivers else torch.empty(0, dtype=torch.uint8)
    sizes = tell_all(image.numel(), group)
    works = [dist.isend(image, group_dst=rank, group=group) for rank in receivers if rank != place.rank]
    for rank in missing:
        arrived = image
        if rank != place.rank:
            arrived = torch.empty(sizes[rank], dtype=torch.uint8)
            dist.recv(arrived, group_src=rank, group=group)
        kept.slot(rank).write(iteration, arrived)
    for work in works:
        work.wait()


def _exchange(
    plan: RecoveryPlan, place: RankContext, kept: KeptShards, group: dist.ProcessGroup | None
) -> Tensor | None:
    served = [source for source in plan.sources if source.tier is Tier.PEER and _server(source, place) == place.rank]
    images = {source.rank: kept.replica(source.rank, plan.iteration).data for source in served}
    sent = {rank: [image.numel(), checksum(image.numpy()).hex()] for rank, image in images.items()}
    on_the_way = {int(rank): facts for of_rank in tell_all(sent, group) for rank, facts in of_rank.items()}
    works = [dist.isend(image, group_dst=rank, group=group) for rank, image in images.items()]
    received = None
    if place.rank in on_the_way:
        num_bytes, expected = on_the_way[place.rank]
        received = torch.empty(num_bytes, dtype=torch.uint8)
        server = _server(plan.sources[place.rank], place)
        dist.recv(received, group_src=server, group=group)
        if checksum(received.numpy()).hex() != expected:
            raise ReplicaDamaged(f"the shard of rank {place.rank} arrived changed from rank {server}")
    for work in works:
        work.wait()
    return received


def _server(source: Source, place: RankContext) -> int:
    """Return the rank that serves a rank from its machine's memory: the one with the same local number."""
    return source.machine * place.ranks_per_machine + source.rank % place.ranks_per_machine
