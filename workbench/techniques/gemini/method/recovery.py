"""From which iteration training resumes after a failure, and which tier serves each rank (section 6.6.2).

All ranks go back to the newest iteration that every rank can reach; the busiest peer serves as few ranks as can be.
"""

import itertools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from workbench.checks import require_counts

__all__ = ["Held", "RecoveryPlan", "Source", "Tier", "plan_recovery", "plan_recovery_by_definition"]

START = 0  # The iteration that needs no checkpoint: initial weights are made again from their seed
# Why a good replica is passed over
NOT_ALL, OLDER = "cannot be reached by every rank", "older than what every rank can reach"


class Tier(StrEnum):
    """A place that keeps checkpoints, and beginning again where none does."""

    LOCAL = "local memory"
    PEER = "peer memory"
    STORAGE = "persistent storage"
    START = "the start"


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """One replica in one machine's memory."""

    iteration: int  # whose state it is, or was to be
    fault: str = ""  # why it cannot be used, such as "incomplete"; empty if it can


# Machine -> rank whose shard it is -> replicas, at most two. A machine that is lost or new is absent or empty.
Holdings = Mapping[int, Mapping[int, Sequence[Held]]]
Copies = list[dict[int, Sequence[Held]]]  # for each rank, machine -> its replicas of the rank's shard


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """What serves one rank."""

    rank: int  # which
    tier: Tier  # where from
    machine: int | None  # whose memory; None for storage and the start
    passed_over: tuple[str, ...]  # why each faster place was not taken


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryPlan:
    """How all ranks resume."""

    iteration: int  # the same for all; 0 is the start
    sources: tuple[Source, ...]  # one a rank


def plan_recovery_by_definition(
    holdings: Holdings, num_ranks: int, stored: Collection[int] = (), machine_of: Sequence[int] | None = None
) -> RecoveryPlan:
    """Plan a recovery as its definition says: try every iteration, and every choice of peers."""
    homes, copies = _checked(holdings, num_ranks, stored, machine_of)
    mentioned = {held.iteration for shards in holdings.values() for row in shards.values() for held in row}
    reachable = [
        iteration
        for iteration in mentioned | set(stored) | {START}
        if iteration in (*stored, START) or all(_keepers(copies[rank], iteration) for rank in range(num_ranks))
    ]
    iteration = max(reachable)
    needed = _needed(copies, homes, iteration)
    choices = itertools.product(*(peers for _, peers in needed))
    best = min(choices, key=lambda peers: (max(map(peers.count, peers), default=0), peers))
    chosen = dict(zip((rank for rank, _ in needed), best, strict=True))
    return _plan(copies, homes, iteration, stored, chosen)


def plan_recovery(
    holdings: Holdings, num_ranks: int, stored: Collection[int] = (), machine_of: Sequence[int] | None = None
) -> RecoveryPlan:
    """Plan from memories, the iterations that storage has of all ranks, and each rank's machine (None: rank r on r)."""
    homes, copies = _checked(holdings, num_ranks, stored, machine_of)
    num_keeping: Counter[int] = Counter()  # by iteration, the ranks whose shard a machine holds
    for rows in copies:
        num_keeping.update({held.iteration for row in rows.values() for held in row if not held.fault})
    in_memory = [iteration for iteration, number in num_keeping.items() if number == num_ranks]
    iteration = max([*in_memory, *stored, START])
    chosen = _spread(_needed(copies, homes, iteration))
    return _plan(copies, homes, iteration, stored, chosen)


def _spread(needed: list[tuple[int, list[int]]]) -> dict[int, int]:
    """Choose a peer for each rank: the smallest largest load, then the first choice in rank order."""
    options = dict(needed)
    if not options:
        return {}
    load = -(-len(options) // len({peer for peers in options.values() for peer in peers}))
    while not _can_be_served(options, load):
        load += 1
    for rank, peers in options.items():
        options[rank] = next([peer] for peer in peers if _can_be_served({**options, rank: [peer]}, load))
    return {rank: peer for rank, (peer,) in options.items()}


def _can_be_served(options: Mapping[int, list[int]], load: int) -> bool:
    """Say whether every rank can have one of its peers, no peer serving more than `load` ranks."""
    peers = sorted({peer for row in options.values() for peer in row})
    first = {peer: number * load for number, peer in enumerate(peers)}  # of a peer's seats, one for each rank it serves
    seats = [[first[peer] + seat for peer in row for seat in range(load)] for row in options.values()]
    ends = np.cumsum([0, *map(len, seats)])
    graph = csr_array((np.ones(ends[-1]), np.concatenate(seats), ends), shape=(len(seats), len(peers) * load))
    return -1 not in maximum_bipartite_matching(graph, perm_type="column")


def _keepers(rows: Mapping[int, Sequence[Held]], iteration: int) -> list[int]:
    wanted = Held(iteration=iteration)
    return [machine for machine, row in rows.items() if wanted in row]


def _needed(copies: Copies, homes: Sequence[int], iteration: int) -> list[tuple[int, list[int]]]:
    """List the ranks that a peer must serve, each with the peers that can."""
    keepers = [_keepers(rows, iteration) for rows in copies]
    return [(rank, peers) for rank, peers in enumerate(keepers) if peers and homes[rank] not in peers]


def _plan(
    copies: Copies, homes: Sequence[int], iteration: int, stored: Collection[int], chosen: Mapping[int, int]
) -> RecoveryPlan:
    sources = []
    for rank, (home, rows) in enumerate(zip(homes, copies, strict=True)):
        keepers = _keepers(rows, iteration)
        local = f"local memory: {_reason(rows.get(home, ()), iteration)}"
        others = [f"machine {machine}: {_reason(row, iteration)}" for machine, row in rows.items() if machine != home]
        peers = f"peers: {'; '.join(others) or 'no machine holds this shard'}"
        machine = home if home in keepers else chosen.get(rank)
        if keepers:
            tier = Tier.LOCAL if machine == home else Tier.PEER
        else:
            tier = Tier.STORAGE if iteration in stored else Tier.START
        reasons = (local, peers, "persistent storage: nothing is complete there")[: list(Tier).index(tier)]
        sources.append(Source(rank=rank, tier=tier, machine=machine, passed_over=reasons))
    return RecoveryPlan(iteration=iteration, sources=tuple(sources))


def _reason(row: Sequence[Held], iteration: int) -> str:
    """Say why a machine cannot serve an iteration from the replicas that it keeps."""
    parts = [
        f"iteration {held.iteration}: {held.fault or (NOT_ALL if held.iteration > iteration else OLDER)}"
        for held in sorted(row, key=lambda held: -held.iteration)
    ]
    return ", ".join(parts) or "nothing is held"


def _checked(
    holdings: Holdings, num_ranks: int, stored: Collection[int], machine_of: Sequence[int] | None
) -> tuple[Sequence[int], Copies]:
    """Return each rank's machine, and the replicas of each rank's shard."""
    require_counts(1, num_ranks=num_ranks)
    homes = range(num_ranks) if machine_of is None else machine_of
    copies: Copies = [{} for _ in range(num_ranks)]
    for machine, shards in sorted(holdings.items()):
        for rank, row in shards.items():
            if not 0 <= rank < num_ranks:
                raise ValueError(f"holdings has rank {rank} on machine {machine}; ranks are 0 to {num_ranks - 1}")
            copies[rank][machine] = row
    return homes, copies
