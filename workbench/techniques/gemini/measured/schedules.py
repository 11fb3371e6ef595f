"""Failures drawn from a seed: what is killed, frozen or damaged when, and how the training itself behaves."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from typing import Any

from workbench.checks import require_counts

from ..control import EventName, Fault, Victim
from ..method import placement

__all__ = ["DAMAGED", "FLIPPED", "Failure", "Flip", "Loop", "Schedule", "draw_schedule"]

FLIPPED, DAMAGED = "bit flipped", "chunk damaged"  # events that a rank logs
MACHINES = (3, 4, 5)
REPLICAS = (2, 3)
MOST_FAILURES = 3  # of one training
CHECKPOINT_WINDOW_S = 0.04  # in which a checkpoint of the small model travels, section 6.5's idle spans included
RECOVERY_WINDOW_S = 0.3  # in which ranks start, join and fetch
STORE_DOWN_S = (0.1, 0.8)  # least and most: less than a lease of 1 s
LITTLE_BYTES = 40_000  # of a machine's memory: less than the replicas of the small model


class Failure(StrEnum):
    """Kinds of failure."""

    RANK = "rank"
    MACHINE = "machine"
    ROOT = "root"
    STORE = "store"
    STORE_TWICE = "store twice"  # the second time while it is down
    FROZEN_STORE = "frozen store"  # and a machine, which cannot be replaced without it
    TWO_GROUPS = "two groups"  # machines that leave a replica of everything
    WHOLE_GROUP = "whole group"  # all machines that keep one machine's shard
    IN_CHECKPOINT = "in a checkpoint"
    IN_RECOVERY = "in a recovery"
    FLIPPED_BIT = "flipped bit"  # of a replica in memory
    DAMAGED_CHUNK = "damaged chunk"  # on its way to a peer
    CHANGED_STATE = "changed state"  # at drawn moments of an iteration, and a rank is killed
    GROWING_STATE = "growing state"  # a list that outgrows its buffer, a late gradient, and a machine is killed
    RANK_AGAIN = "rank again and again"  # in one iteration of every generation: training must end
    NO_MEMORY = "no memory"  # for the replicas: training must end


KINDS = tuple(Failure)
ENDINGS = {Failure.RANK_AGAIN: "without getting beyond iteration", Failure.NO_MEMORY: "it must stay within"}
FIRST_ONLY = (Failure.IN_RECOVERY, Failure.FLIPPED_BIT, *ENDINGS)  # the one counts events; others happen once


@dataclass(frozen=True, kw_only=True, slots=True)
class Flip:
    """One bit of the newest complete replica that a machine keeps of a machine's shard changes."""

    machine: int  # in whose memory
    shard: int  # of which machine's rank
    at_iteration: int  # when this one's checkpoint is complete
    place: float  # where in the replica, from 0 to below 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Loop:
    """What a user's loop does beside training: a part of its bits, disturbed or not."""

    changes: tuple[tuple[str, str], ...] = ()  # what changes in an iteration, and when: see `training.Habits`
    grows: bool = False  # a list of losses that outgrows the buffer of its checkpoint
    late: int = 0  # iteration until which one weight has no gradient; 0 for none


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """A training and its failures."""

    seed: int  # it was drawn from
    num_machines: int  # one rank each
    num_replicas: int  # m
    sharded: bool  # `fully_shard`, or else DDP
    standbys: int  # machines that wait
    storage_every: int  # iterations between checkpoints in persistent storage; 0 for no storage
    kinds: tuple[Failure, ...]  # of its failures
    faults: tuple[Fault, ...]  # what is killed and when
    flip: Flip | None = None  # of a bit, if there is one
    damaged: tuple[int, int] | None = None  # rank and iteration of a chunk that changes on its way
    deadly: tuple[int, int] | None = None  # rank and iteration in which it is killed every time
    loop: Loop = Loop()

    @property
    def must_end(self) -> str:
        """Words of the error with which it has to end; "" where it has to be survived."""
        return next((words for kind, words in ENDINGS.items() if kind in self.kinds), "")

    @property
    def memory_limit_bytes(self) -> int | None:
        return LITTLE_BYTES if Failure.NO_MEMORY in self.kinds else None

    @property
    def words(self) -> str:
        """The training and the kinds of its failures in one line; their moments follow from the seed."""
        parts = [f"{self.num_machines} machines", f"m = {self.num_replicas}", "FSDP2" if self.sharded else "DDP"]
        parts += [f"storage every {self.storage_every}" if self.storage_every else "no storage"]
        parts += [f"{self.standbys} standby"] if self.standbys else []
        return f"seed {self.seed}: {', '.join(parts)}: {', '.join(self.kinds)}"


def draw_schedule(seed: int, *, iterations: int = 10) -> Schedule:
    require_counts(0, seed=seed)
    require_counts(2 * MOST_FAILURES, iterations=iterations)
    draw = random.Random(f"failure schedule {seed}")
    first = KINDS[seed % len(KINDS)]  # of the kinds; some come first or alone
    kinds = [first]
    if first not in ENDINGS:
        others = [kind for kind in KINDS if kind not in FIRST_ONLY]
        kinds = list(dict.fromkeys([first, *draw.choices(others, k=draw.randint(0, MOST_FAILURES - 1))]))
        if first is not Failure.IN_RECOVERY:
            draw.shuffle(kinds)
    num_machines, num_replicas = draw.choice(MACHINES), draw.choice(REPLICAS)
    if Failure.TWO_GROUPS in kinds and (num_machines, num_replicas) == (3, 2):
        num_machines = 4  # where two of three machines keep a shard, no two are of different groups
    common: dict[str, Any] = {
        "seed": seed,
        "num_machines": num_machines,
        "num_replicas": num_replicas,
        "sharded": draw.random() < 0.5,
        "standbys": int(draw.random() < 0.3),
        "storage_every": draw.choice((0, 3)),
        "kinds": tuple(kinds),
    }
    moments = sorted(draw.sample(range(2, iterations), len(kinds)))
    holders = placement(num_machines, num_replicas).holders
    faults: list[Fault] = []
    for kind, moment in zip(kinds, moments, strict=True):
        number = draw.randrange(num_machines)
        match kind:
            case Failure.FLIPPED_BIT:  # and a failure after which its replica would have been used
                shard, is_own = draw.randrange(num_machines), draw.random() < 0.5
                holder = shard if is_own else draw.choice(holders[shard][1:])
                common["flip"] = Flip(machine=holder, shard=shard, at_iteration=moment, place=draw.random())
                kills = draw.choice((Victim.RANK, Victim.MACHINE)) if is_own else Victim.MACHINE
                rest = [machine for machine in range(num_machines) if machine != shard]
                number = draw.choice(rest) if is_own else shard
                faults.append(Fault(kills=kills, numbers=(number,), after_event=FLIPPED))
            case Failure.DAMAGED_CHUNK:
                common["damaged"] = number, moment
            case Failure.RANK_AGAIN:
                common["deadly"] = number, moment
            case Failure.GROWING_STATE:
                common["loop"] = Loop(grows=True, late=draw.randint(2, 5))
                faults.append(Fault(kills=Victim.MACHINE, numbers=(number,), at_iteration=moment))
            case Failure.CHANGED_STATE:
                times = dict.fromkeys(("teacher", "buffer"), ["forward", "backward", "between"])
                times |= dict.fromkeys(("weight", "momentum", "rate"), ["between"])
                chosen = draw.sample(sorted(times), draw.randint(1, 3))
                common["loop"] = Loop(changes=tuple((what, draw.choice(times[what])) for what in chosen))
                faults.append(Fault(kills=Victim.RANK, numbers=(number,), at_iteration=moment))
            case _:
                faults += _faults(kind, holders, number, moment, draw)
    return Schedule(faults=tuple(faults), **common)


def _faults(
    kind: Failure, holders: Sequence[Sequence[int]], number: int, moment: int, draw: random.Random
) -> list[Fault]:
    def fault(kills: Victim, *numbers: int, **more: Any) -> Fault:
        return Fault(kills=kills, numbers=numbers, at_iteration=moment, **more)

    down_s = round(draw.uniform(*STORE_DOWN_S), 2)
    match kind:
        case Failure.RANK | Failure.MACHINE:
            return [fault(Victim(kind.value), number)]
        case Failure.ROOT:
            return [fault(Victim.ROOT)]
        case Failure.STORE:
            return [fault(Victim.STORE, down_s=down_s)]
        case Failure.STORE_TWICE:
            return [fault(Victim.STORE, down_s=down_s), fault(Victim.STORE, down_s=down_s, delay_s=down_s / 2)]
        case Failure.FROZEN_STORE:
            return [fault(Victim.FROZEN_STORE), fault(Victim.MACHINE, number, delay_s=down_s / 10)]
        case Failure.TWO_GROUPS:  # two machines that do not keep all replicas of any shard
            pairs = combinations(range(len(holders)), 2)
            apart = [pair for pair in pairs if not any({*kept} <= {*pair} for kept in holders)]
            return [fault(Victim.MACHINE, *draw.choice(apart))]
        case Failure.WHOLE_GROUP:
            return [fault(Victim.MACHINE, *holders[number])]
        case Failure.IN_CHECKPOINT:
            delay_s = round(draw.uniform(0, CHECKPOINT_WINDOW_S), 3)
            return [fault(draw.choice((Victim.RANK, Victim.MACHINE)), number, delay_s=delay_s)]
        case Failure.IN_RECOVERY:
            first = fault(draw.choice((Victim.RANK, Victim.MACHINE)), number)
            joined = len(holders) + draw.randint(1, len(holders))  # every rank joined once before
            events = ((EventName.FAILURE_DETECTED, 1), (EventName.GENERATION_ORDERED, 2))
            event, occurrence = draw.choice((*events, (EventName.JOINED, joined), ("retrieve", joined)))
            kills = draw.choice((Victim.RANK, Victim.MACHINE, Victim.ROOT, Victim.STORE))
            numbers = (draw.randrange(len(holders)),) if kills in (Victim.RANK, Victim.MACHINE) else ()
            delay_s = round(draw.uniform(0, RECOVERY_WINDOW_S), 3) if draw.random() < 0.5 else 0.0
            second = Fault(kills=kills, numbers=numbers, after_event=str(event), occurrence=occurrence, delay_s=delay_s)
            return [first, second]
    return []
