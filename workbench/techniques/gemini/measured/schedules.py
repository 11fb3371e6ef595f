"""Failure schedules drawn from a seed: which process or machine fails, when, and in which training.

    draw_schedule(12).words       # "seed 12: 4 machines, m = 2, sharded, storage: machine 1 at iteration 5; ..."

Each training has one to three failures of nine kinds; nine seeds in a row have all kinds first.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from workbench.techniques.gemini.method.placement import placement
from workbench.techniques.gemini.runtime.control.events import EventName, Fault, Victim

__all__ = ["FLIPPED", "Failure", "Flip", "Schedule", "draw_schedule"]

FLIPPED = "bit flipped"  # event that a rank logs
MACHINES = (3, 4, 5)
REPLICAS = (2, 3)
MOST_FAILURES = 3  # of one training
CHECKPOINT_WINDOW_S = 0.04  # in which a checkpoint of the small model travels, section 6.5's idle spans included
RECOVERY_WINDOW_S = 0.3  # in which ranks start, join and fetch
STORE_DOWN_S = (0.1, 0.8)  # least and most: less than a lease of 1 s


class Failure(StrEnum):
    """Kinds of failure."""

    RANK = "rank"
    MACHINE = "machine"
    ROOT = "root"
    STORE = "store"
    TWO_GROUPS = "two groups"  # machines that leave a replica of everything
    WHOLE_GROUP = "whole group"  # all machines that keep one machine's shard
    IN_CHECKPOINT = "in a checkpoint"
    IN_RECOVERY = "in a recovery"
    FLIPPED_BIT = "flipped bit"


KINDS = tuple(Failure)


@dataclass(frozen=True, kw_only=True, slots=True)
class Flip:
    """One bit of the newest complete replica that a machine keeps of a machine's shard changes."""

    machine: int  # in whose memory
    shard: int  # of which machine's rank
    at_iteration: int  # when this one's checkpoint is complete
    place: float  # where in the replica, from 0 to below 1

    @property
    def words(self) -> str:
        """In a few words."""
        return f"a bit of shard {self.shard} on machine {self.machine} at iteration {self.at_iteration}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """A training, and what befalls it."""

    seed: int  # it was drawn from
    num_machines: int  # one rank each
    num_replicas: int  # m
    sharded: bool  # `fully_shard`, or else DDP
    standbys: int  # machines that wait
    storage_every: int  # iterations between checkpoints in persistent storage; 0 for no storage
    kinds: tuple[Failure, ...]  # of its failures
    faults: tuple[Fault, ...]  # what is killed and when
    flip: Flip | None = None  # of a bit, if there is one

    @property
    def words(self) -> str:
        """All of it in one line."""
        of_model = "FSDP2" if self.sharded else "DDP"
        of_storage = f"storage every {self.storage_every}" if self.storage_every else "no storage"
        parts = [f"{self.num_machines} machines", f"m = {self.num_replicas}", of_model, of_storage]
        parts += [f"{self.standbys} standby"] if self.standbys else []
        happens = [self.flip.words] if self.flip else []
        happens += [fault_words(fault) for fault in self.faults]
        return f"seed {self.seed}: {', '.join(parts)}: {'; '.join(happens)}"


def fault_words(fault: Fault) -> str:
    """Say a fault in a few words."""
    what = " ".join([fault.kills.value, *(str(number) for number in fault.numbers)])
    when = f"at iteration {fault.at_iteration}"
    if fault.after_event is not None:
        when = f"after {fault.after_event!r}" + (f" number {fault.occurrence}" if fault.occurrence > 1 else "")
    return f"{what} {when}" + (f" + {1000 * fault.delay_s:.0f} ms" if fault.delay_s else "")


def draw_schedule(seed: int, *, iterations: int = 10) -> Schedule:
    """Draw a schedule."""
    if seed < 0:
        raise ValueError(f"seed is {seed}; it must be at least 0")
    if iterations < 2 * MOST_FAILURES:
        raise ValueError(f"iterations is {iterations}; it must be at least {2 * MOST_FAILURES}")
    draw = random.Random(f"failure schedule {seed}")
    kinds = _kinds(seed, draw)
    num_machines, num_replicas = _shape(kinds, draw)
    sharded, standbys, storage_every = draw.random() < 0.5, int(draw.random() < 0.3), draw.choice((0, 3))
    moments = sorted(draw.sample(range(2, iterations), len(kinds)))
    holders = placement(num_machines, num_replicas).holders
    faults: list[Fault] = []
    flip = None
    for kind, moment in zip(kinds, moments, strict=True):
        if kind is Failure.FLIPPED_BIT:
            flip, fault = _flipped(holders, moment, draw)
            faults.append(fault)
        else:
            faults += _faults(kind, holders, moment, draw)
    return Schedule(
        seed=seed,
        num_machines=num_machines,
        num_replicas=num_replicas,
        sharded=sharded,
        standbys=standbys,
        storage_every=storage_every,
        kinds=kinds,
        faults=tuple(faults),
        flip=flip,
    )


def _kinds(seed: int, draw: random.Random) -> tuple[Failure, ...]:
    """Draw kinds; one in a recovery comes first, so that its events can be counted, and a bit flips once."""
    others = [kind for kind in KINDS if kind not in (Failure.IN_RECOVERY, Failure.FLIPPED_BIT)]
    kinds = [KINDS[seed % len(KINDS)], *draw.choices(others, k=draw.randint(0, MOST_FAILURES - 1))]
    if kinds[0] is not Failure.IN_RECOVERY:
        draw.shuffle(kinds)
    return tuple(kinds)


def _shape(kinds: Sequence[Failure], draw: random.Random) -> tuple[int, int]:
    """Draw machines and replicas; where two of three machines keep a shard, no two are of different groups."""
    num_machines, num_replicas = draw.choice(MACHINES), draw.choice(REPLICAS)
    if Failure.TWO_GROUPS in kinds and (num_machines, num_replicas) == (3, 2):
        num_machines = 4
    return num_machines, num_replicas


def _faults(kind: Failure, holders: Sequence[Sequence[int]], moment: int, draw: random.Random) -> list[Fault]:
    number = draw.randrange(len(holders))
    match kind:
        case Failure.RANK:
            return [Fault(kills=Victim.RANK, numbers=(number,), at_iteration=moment)]
        case Failure.MACHINE:
            return [Fault(kills=Victim.MACHINE, numbers=(number,), at_iteration=moment)]
        case Failure.ROOT:
            return [Fault(kills=Victim.ROOT, at_iteration=moment)]
        case Failure.STORE:
            down_s = round(draw.uniform(*STORE_DOWN_S), 2)
            return [Fault(kills=Victim.STORE, at_iteration=moment, down_s=down_s)]
        case Failure.TWO_GROUPS:
            return [Fault(kills=Victim.MACHINE, numbers=_two_groups(holders, draw), at_iteration=moment)]
        case Failure.WHOLE_GROUP:
            return [Fault(kills=Victim.MACHINE, numbers=tuple(holders[number]), at_iteration=moment)]
        case Failure.IN_CHECKPOINT:
            kills, delay_s = draw.choice((Victim.RANK, Victim.MACHINE)), draw.uniform(0, CHECKPOINT_WINDOW_S)
            return [Fault(kills=kills, numbers=(number,), at_iteration=moment, delay_s=round(delay_s, 3))]
        case _:
            return _in_recovery(len(holders), moment, draw)


def _in_recovery(num_machines: int, moment: int, draw: random.Random) -> list[Fault]:
    """Draw a failure, and another one while training recovers from it; every rank joined once before."""
    first = Fault(
        kills=draw.choice((Victim.RANK, Victim.MACHINE)), numbers=(draw.randrange(num_machines),), at_iteration=moment
    )
    joined = num_machines + draw.randint(1, num_machines)
    event, occurrence = draw.choice(
        (
            (EventName.FAILURE_DETECTED, 1),
            (EventName.GENERATION_ORDERED, 2),
            (EventName.JOINED, joined),
            ("retrieve", joined),
        )
    )
    kills = draw.choice((Victim.RANK, Victim.MACHINE, Victim.ROOT, Victim.STORE))
    numbers = (draw.randrange(num_machines),) if kills in (Victim.RANK, Victim.MACHINE) else ()
    delay_s = round(draw.uniform(0, RECOVERY_WINDOW_S), 3) if draw.random() < 0.5 else 0.0
    second = Fault(kills=kills, numbers=numbers, after_event=str(event), occurrence=occurrence, delay_s=delay_s)
    return [first, second]


def _two_groups(holders: Sequence[Sequence[int]], draw: random.Random) -> tuple[int, int]:
    """Draw two machines that do not keep all replicas of any shard."""
    numbers = range(len(holders))
    pairs = [(a, b) for a in numbers for b in numbers if a < b and not any(set(kept) <= {a, b} for kept in holders)]
    return draw.choice(pairs)


def _flipped(holders: Sequence[Sequence[int]], moment: int, draw: random.Random) -> tuple[Flip, Fault]:
    """Draw a bit, and the failure after which its replica would have been used."""
    shard = draw.randrange(len(holders))
    is_own = draw.random() < 0.5
    machine = shard if is_own else draw.choice(holders[shard][1:])
    flip = Flip(machine=machine, shard=shard, at_iteration=moment, place=draw.random())
    kills = draw.choice((Victim.RANK, Victim.MACHINE)) if is_own else Victim.MACHINE
    number = draw.choice([other for other in range(len(holders)) if other != shard]) if is_own else shard
    return flip, Fault(kills=kills, numbers=(number,), after_event=FLIPPED)
