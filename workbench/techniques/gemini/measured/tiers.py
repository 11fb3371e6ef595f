"""The time of a checkpoint to peers, to storage, and back from each tier, on shaped hosts (figure 6.11)."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from workbench.checks import require_counts, require_positive
from workbench.cluster import Link
from workbench.launch.agreement import tell_all
from workbench.rows import spread_row
from workbench.study.timing import open_ranks

from .. import runtime
from ..method import Scheme, Tier
from ..runtime import PRELOAD, CheckpointOptions, InMemoryCheckpoints, KeptShards, PersistentTier, TrainingState
from .training import LEARNING_RATE, PoolContext, Size, Tokens

__all__ = ["TierTimes", "hidden_from", "measure_tiers", "paced", "record_tiers", "tier_rows"]

TIMEOUT_S = 600.0
RESERVED_BYTES = 1_048_576  # of sub-buffers: four chunks of 256 KiB under way
NUM_UNCOUNTED = 2  # checkpoints: the first opens connections and makes the slots, the second touches their other buffer


@dataclass(frozen=True, kw_only=True, slots=True)
class TierTimes:
    """Seconds of the slowest rank, repetition by repetition."""

    num_machines: int  # one rank each
    bandwidth_bytes_per_s: float  # of a machine's link
    total_bytes: int  # of all ranks' shards
    checkpoint_s: tuple[float, ...]  # until all was in peers' memory
    stored_s: tuple[float, ...]  # until all was in storage
    retrieved_s: dict[Tier, tuple[float, ...]]  # by tier


@contextmanager
def paced(num_bytes: int, bytes_per_s: float) -> Iterator[None]:
    """Let the body last at least as long as bytes take at a rate: storage is files of this machine."""
    require_positive(bytes_per_s=bytes_per_s)
    ends_s = time.monotonic() + num_bytes / bytes_per_s
    yield
    time.sleep(max(0.0, ends_s - time.monotonic()))


def hidden_from(tier: Tier, rank: int, num_machines: int) -> tuple[int, ...]:
    """Say whose shards a machine has to pass over, so that one tier serves every rank."""
    if num_machines % 2:
        raise ValueError(f"num_machines is {num_machines}; it must be even: each has one peer")
    return {Tier.LOCAL: (), Tier.PEER: (rank,)}.get(tier, (rank, rank ^ 1))


class _Hiding(KeptShards):
    """Shards of which some are not found, as after a loss."""

    def __init__(self, place: PoolContext, hidden: Sequence[int]):
        super().__init__(place)
        self._hidden = hidden

    def examined(self) -> dict[int, list[tuple[int, str]]]:
        return {rank: held for rank, held in super().examined().items() if rank not in self._hidden}


def measure_tiers(
    nums_machines: Sequence[int],
    bandwidths_bytes_per_s: Sequence[float],
    *,
    storage_bytes_per_s: float,
    size: Size,
    repeats: int,
    storage_repeats: int,
) -> list[TierTimes]:
    """Measure with every number of machines and every rate of links."""
    require_counts(1, repeats=repeats, storage_repeats=storage_repeats)
    for number in nums_machines:
        hidden_from(Tier.PEER, 0, number)
    choices, times, preload = (size, storage_bytes_per_s, repeats, storage_repeats), [], (*PRELOAD, __name__)
    for number, rate in product(nums_machines, bandwidths_bytes_per_s):
        ranks = open_ranks(number, link=Link(bandwidth_bytes_per_s=rate), preload=preload, timeout_s=TIMEOUT_S)
        with tempfile.TemporaryDirectory() as folder, ranks:
            times.append(ranks.run(record_tiers, folder, rate, *choices)[0])
    return times


def record_tiers(
    folder: str, rate: float, size: Size, storage_bytes_per_s: float, repeats: int, storage_repeats: int
) -> TierTimes:
    """Measure on these ranks; every rank calls it and gets the slowest rank's seconds."""
    context = PoolContext(dist.get_rank(), dist.get_world_size())
    model, tokens = size.model(), Tokens(size, context.rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    options = CheckpointOptions(scheme=Scheme.BLOCKING, reserved_bytes=RESERVED_BYTES)
    checkpoints = InMemoryCheckpoints(context, model, optimizer, options=options)
    for _ in range(repeats + NUM_UNCOUNTED):
        tokens.loss(model).backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        checkpoints.step()
    sent_s = [max(seen["sent_s"], seen["received_s"]) for name, seen in context.events if name == "checkpoint"]
    total_bytes, iteration = sum(tell_all(checkpoints.shard_bytes)), checkpoints.iteration
    checkpoints.close()
    state = TrainingState(model, optimizer)
    storage = PersistentTier(f"file://{folder}", keep_last=1)

    def slowest_s(work: Callable[[], object], num_bytes: int) -> float:
        dist.barrier()  # all start together
        began_s = time.monotonic()
        with paced(num_bytes, storage_bytes_per_s):
            work()
        return max(tell_all(time.monotonic() - began_s))

    def save() -> None:
        storage.save(state.image(iteration), iteration)

    def load(tier: Tier, kept: _Hiding) -> None:
        plan = runtime.recover_(state, context, kept, storage if tier is Tier.STORAGE else None)
        if (served := plan.sources[context.rank].tier) is not tier:
            raise RuntimeError(f"rank {context.rank} was served by {served.value}, not by {tier.value}")

    stored_s = tuple(slowest_s(save, total_bytes) for _ in range(storage_repeats))
    retrieved_s = {}
    for tier, times in ((Tier.LOCAL, repeats), (Tier.PEER, repeats), (Tier.STORAGE, storage_repeats)):
        num_bytes = total_bytes if tier is Tier.STORAGE else 0
        work = partial(load, tier, _Hiding(context, hidden_from(tier, context.rank, context.world_size)))
        retrieved_s[tier] = tuple(slowest_s(work, num_bytes) for _ in range(times))
    context.close()
    return TierTimes(
        num_machines=context.world_size,
        bandwidth_bytes_per_s=rate,
        total_bytes=total_bytes,
        checkpoint_s=tuple(map(max, zip(*tell_all(sent_s[NUM_UNCOUNTED:]), strict=True))),
        stored_s=stored_s,
        retrieved_s=retrieved_s,
    )


def tier_rows(measured: Sequence[TierTimes], storage_bytes_per_s: float) -> list[dict[str, Any]]:
    """Return medians with the least and the largest, by machines and rate of links."""
    rows = []
    for times in measured:
        place = {"num_machines": times.num_machines, "link_mbit_per_s": 8e-6 * times.bandwidth_bytes_per_s}
        of_rates = times.num_machines * times.bandwidth_bytes_per_s / storage_bytes_per_s
        reductions = [median(times.stored_s) / seconds for seconds in times.checkpoint_s]
        slowest_peer = max(times.retrieved_s[Tier.PEER]) / min(times.retrieved_s[Tier.STORAGE])
        rows.append(spread_row("checkpoint_s", times.checkpoint_s, "s", tier=Tier.PEER.value, **place))
        rows.append(spread_row("checkpoint_s", times.stored_s, "s", tier=Tier.STORAGE.value, **place))
        for tier, seconds in times.retrieved_s.items():
            rows.append(spread_row("retrieval_s", seconds, "s", tier=tier.value, **place))
        rows.append(spread_row("reduction", reductions, "1", **place))
        rows.append(spread_row("reduction_of_rates", [of_rates], "1", **place))
        rows.append(spread_row("share_of_rates", [value / of_rates for value in reductions], "1", **place))
        rows.append(spread_row("peer_over_storage", [slowest_peer], "1", **place))
    return rows
