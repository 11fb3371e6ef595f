"""Small trainings under failures drawn from a seed: each must end with the bits of an undisturbed one."""

import os
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Self

import psutil
import torch.distributed as dist

from workbench.launch.failures import RankFailed
from workbench.launch.machines import Machines
from workbench.study.cells import named
from workbench.study.rows import value_row
from workbench.techniques.gemini.measured.recovery import digests
from workbench.techniques.gemini.measured.training import Size, train_gpt2
from workbench.techniques.gemini.method.checks import require_counts
from workbench.techniques.gemini.method.placement import placement
from workbench.techniques.gemini.method.recovery import Tier
from workbench.techniques.gemini.runtime.checkpoints import PRELOAD, InMemoryCheckpoints
from workbench.techniques.gemini.runtime.control.events import EventName, Fault, Victim
from workbench.techniques.gemini.runtime.control.service import RankContext
from workbench.techniques.gemini.runtime.replicas import KeptShards
from workbench.techniques.gemini.runtime.storage import PersistentTier
from workbench.techniques.gemini.runtime.training import Timing, TrainingOutcome, run_training

__all__ = ["FLIPPED", "Failure", "Flip", "Schedule", "Undisturbed", "draw_schedule", "flip_bit", "reliability_cells"]
__all__ += ["reliability_rows", "run_cell", "run_schedule"]

ITERATIONS = 10
SMALL = {"hidden": 32, "layers": 2, "vocab": 64, "sequence": 16, "batch": 2}  # of a model that trains in under 2 s
OPTIONS = {"reserved_bytes": 16_384, "num_profiled": 2}  # so that the later iterations interleave
TIMING = Timing(heartbeat_s=0.1, lease_s=1.0)
TIMEOUT_S = 180.0  # of one training, on a machine that may be busy
FLIP_PAUSE_S = 3.0  # in which the failure behind a flipped bit comes, before training has gone on; then it is killed
SETTLE_S = 5.0  # in which what was killed must be gone
SLOWEST = (Tier.START, Tier.STORAGE, Tier.PEER, Tier.LOCAL)
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
    require_counts(0, seed=seed)
    require_counts(2 * MOST_FAILURES, iterations=iterations)
    draw = random.Random(f"failure schedule {seed}")
    kinds = _kinds(seed, draw)
    num_machines, num_replicas = draw.choice(MACHINES), draw.choice(REPLICAS)
    if Failure.TWO_GROUPS in kinds and (num_machines, num_replicas) == (3, 2):
        num_machines = 4  # where two of three machines keep a shard, no two are of different groups
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


class Undisturbed:
    """Digests of undisturbed trainings, of which each runs once."""

    def __init__(self, machines: Machines, iterations: int = ITERATIONS):
        self._machines, self._iterations = machines, iterations
        self._known: dict[tuple[int, bool], list[str]] = {}

    def digests(self, schedule: Schedule) -> list[str]:
        """Return the digests for a schedule's model and machines; the number of replicas changes no bit."""
        key = schedule.num_machines, schedule.sharded
        if key not in self._known:
            self._known[key] = digests(_train(schedule, self._machines, self._iterations, {}))
        return self._known[key]


def flip_bit(context: RankContext, checkpoints: InMemoryCheckpoints, flip: Flip) -> None:
    """Change one bit of the newest complete replica that a machine keeps of a shard, once; every rank calls it."""
    if checkpoints.iteration != flip.at_iteration:
        return
    checkpoints.wait()
    dist.barrier()  # all ranks' are complete: it is this iteration that a failure would go back to
    if context.rank != flip.machine or any(name == FLIPPED for name in context.memory_names()):
        return
    context.memory(FLIPPED, 1)  # so that it is known, should this iteration be done again
    data = KeptShards(context).slot(flip.shard).latest().data
    data[int(flip.place * data.numel())] ^= 1
    context.log(FLIPPED, iteration=flip.at_iteration, shard=flip.shard)
    time.sleep(FLIP_PAUSE_S)


def run_schedule(
    schedule: Schedule, undisturbed: Sequence[str], machines: Machines, *, iterations: int = ITERATIONS
) -> dict[str, Any]:
    """Train under a schedule; return its history, and the processes and bytes that remain."""
    before, began_s, outcome, error = _Left.now(), time.monotonic(), None, ""
    try:
        outcome = _trained(schedule, machines, iterations)
    except (RankFailed, RuntimeError, TimeoutError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    seconds = time.monotonic() - began_s
    orphans, leaked_bytes = _left_behind(before)
    common = {
        "seed": schedule.seed,
        "schedule": schedule.words,
        "kinds": [str(kind) for kind in schedule.kinds],
        "is_finished": outcome is not None,
        "error": error,
        "seconds": round(seconds, 3),
        "num_orphans": orphans,
        "leaked_bytes": leaked_bytes,
    }
    return common | (_history(outcome, undisturbed) if outcome else {"different_ranks": len(undisturbed)})


@named("gemini/run_cell")
def run_cell(seeds: Sequence[int], iterations: int = ITERATIONS) -> dict[str, Any]:
    """Run schedules on one set of warm machines, so that remains of a training are seen after it; a cell of a study."""
    with Machines(preload=(*PRELOAD, __name__), echo=False) as machines:
        undisturbed = Undisturbed(machines, iterations)
        rows = []
        for seed in seeds:
            schedule = draw_schedule(seed, iterations=iterations)
            rows.append(run_schedule(schedule, undisturbed.digests(schedule), machines, iterations=iterations))
    return {"rows": rows}


def reliability_cells(num_schedules: int, each: int, first: int = 0) -> list[dict[str, Any]]:
    """List the arguments of `run_cell` for consecutive seeds."""
    require_counts(1, num_schedules=num_schedules, each=each)
    require_counts(0, first=first)
    seeds = range(first, first + num_schedules)
    return [{"seeds": list(seeds[begin : begin + each])} for begin in range(0, num_schedules, each)]


def reliability_rows(trainings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the quantities of a record: of each training, and how many recoveries each tier served."""
    rows = []
    for training in trainings:
        seed = training["seed"]
        for name, unit in (("is_finished", "1"), ("different_ranks", "1"), ("num_orphans", "1"), ("leaked_bytes", "B")):
            rows.append(value_row(name, float(training[name]), unit) | {"seed": seed})
        rows.append(value_row("training_s", training["seconds"], "s") | {"seed": seed})
        if training.get("flips_passed_over") is not None:
            rows.append(value_row("damage_is_named", float(training["flips_passed_over"])) | {"seed": seed})
    recoveries = [
        bar["tier"] for training in trainings for bar in training.get("generations", ()) if bar["generation"] > 1
    ]
    rows += [value_row("num_recoveries", float(recoveries.count(tier.value)), tier=tier.value) for tier in Tier]
    return rows


def _trained(schedule: Schedule, machines: Machines, iterations: int) -> TrainingOutcome:
    options: dict[str, Any] = {"num_replicas": schedule.num_replicas}
    is_stored = schedule.storage_every > 0
    with tempfile.TemporaryDirectory(prefix="gemini-storage-") if is_stored else nullcontext() as folder:
        if is_stored:
            options |= {"storage": PersistentTier(f"file://{folder}"), "storage_every": schedule.storage_every}
        failures = {"faults": schedule.faults, "standbys": schedule.standbys}
        flip = None if schedule.flip is None else partial(flip_bit, flip=schedule.flip)
        return _train(schedule, machines, iterations, options, flip, **failures)


def _train(
    schedule: Schedule, machines: Machines, iterations: int, options: Mapping[str, Any], after_step: Any = None, **more
) -> TrainingOutcome:
    size = Size(**SMALL, iterations=iterations, sharded=schedule.sharded)
    return run_training(
        train_gpt2,
        schedule.num_machines,
        args=(size, {**OPTIONS, **options}, after_step),
        machines=machines,
        timing=TIMING,
        timeout_s=TIMEOUT_S,
        **more,
    )


class _Left:
    """Descendants of this process, and named and anonymous shared memory."""

    def __init__(self, pids: set[int], shared: set[str], kept_bytes: int):
        self.pids, self.shared, self.kept_bytes = pids, shared, kept_bytes

    @classmethod
    def now(cls) -> Self:
        """Look."""
        processes = [child for child in psutil.Process().children(recursive=True) if _is_living(child)]
        pids = {child.pid for child in processes}
        kept = _machine_memory((os.getpid(), *pids))
        return cls(pids, set(os.listdir("/dev/shm")), sum(kept.values()))


def _left_behind(before: _Left, patience_s: float = SETTLE_S) -> tuple[int, int]:
    """Count processes and bytes that are there now and were not before, after some patience."""
    deadline_s = time.monotonic() + patience_s
    while True:
        now = _Left.now()
        orphans = now.pids - before.pids
        leaked_bytes = max(0, now.kept_bytes - before.kept_bytes) + _unused_bytes(now.shared - before.shared)
        if not (orphans or leaked_bytes) or time.monotonic() > deadline_s:
            return len(orphans), leaked_bytes
        time.sleep(0.05)


def _is_living(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _machine_memory(pids: Sequence[int]) -> dict[int, int]:
    """Return the bytes of the memory files of machines that processes hold open, by inode."""
    sizes = {}
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        try:
            for name in os.listdir(folder):
                if os.readlink(f"{folder}/{name}").startswith("/memfd:workbench-"):
                    held = os.stat(f"{folder}/{name}")
                    sizes[held.st_ino] = held.st_size
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue  # it ended meanwhile
    return sizes


def _unused_bytes(names: set[str]) -> int:
    """Sum the files of /dev/shm that no other study's process maps: those are leaked."""
    mapped = set()
    for process in psutil.process_iter() if names else ():
        try:
            mapped |= {os.path.basename(entry.path) for entry in process.memory_maps() if "/dev/shm/" in entry.path}
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    total = 0
    for name in names - mapped:
        try:
            total += os.stat(f"/dev/shm/{name}").st_size
        except FileNotFoundError:
            continue  # another study's, gone meanwhile
    return total


def _history(outcome: TrainingOutcome, undisturbed: Sequence[str]) -> dict[str, Any]:
    """Read from a log what happened, in seconds from its beginning."""
    begin_s = outcome.events[0].time_s
    bars = [bar for number in range(1, outcome.num_generations + 1) if (bar := _bar(outcome, number, begin_s))]
    strikes = [
        {"at_s": round(event.time_s - begin_s, 3), "what": event.details.get("what", FLIPPED)}
        for event in (*outcome.named(EventName.KILLED), *outcome.named(FLIPPED))
    ]
    retrievals = [event.details for event in outcome.named("retrieve")]
    reasons = [reason for details in retrievals for reason in (*details["passed_over"], *details["unusable"])]
    is_flipped = bool(outcome.named(FLIPPED))
    return {
        "num_generations": outcome.num_generations,
        "generations": bars,
        "strikes": strikes,
        "different_ranks": sum(a != b for a, b in zip(digests(outcome), undisturbed, strict=True)),
        "tiers": [str(tier) for tier in SLOWEST if any(bar["tier"] == tier and bar["generation"] > 1 for bar in bars)],
        "resumed": [bar["iteration"] for bar in bars],
        "num_struck": len(strikes),
        "flips_passed_over": any("checksum" in reason for reason in reasons) if is_flipped else None,
        "reasons": sorted({reason for reason in reasons if "checksum" in reason}),
    }


def _bar(outcome: TrainingOutcome, generation: int, begin_s: float) -> dict[str, Any] | None:
    """Return when a generation ran, from which iteration, and the slowest tier that served one of its ranks."""
    events = [event for event in outcome.events if event.generation == generation and event.rank is not None]
    if not events:
        return None
    retrievals = [event for event in events if event.name == "retrieve"]
    tiers = {event.details["tier"] for event in retrievals}
    start_s = min(event.time_s for event in events)
    end_s = max(event.time_s + event.duration_s for event in events)
    return {
        "generation": generation,
        "start_s": round(start_s - begin_s, 3),
        "end_s": round(end_s - begin_s, 3),
        "tier": next((str(tier) for tier in SLOWEST if tier in tiers), ""),
        "iteration": retrievals[0].details["iteration"] if retrievals else None,
    }
