"""Small trainings under drawn failure schedules: each must end with the bits of an undisturbed one.

One set of warm machines serves all schedules of a cell, so that remains of one training are seen after it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import psutil
import torch.distributed as dist

from workbench.launch.failures import RankFailed
from workbench.launch.machines import Machines
from workbench.study.cells import named
from workbench.study.rows import value_row
from workbench.techniques.gemini.measured.recovery import digests
from workbench.techniques.gemini.measured.schedules import FLIPPED, Flip, Schedule, draw_schedule
from workbench.techniques.gemini.measured.training import Size, train_gpt2
from workbench.techniques.gemini.method.recovery import Tier
from workbench.techniques.gemini.runtime.checkpoints import PRELOAD, InMemoryCheckpoints
from workbench.techniques.gemini.runtime.control.events import Event, EventName
from workbench.techniques.gemini.runtime.control.service import RankContext
from workbench.techniques.gemini.runtime.replicas import KeptShards
from workbench.techniques.gemini.runtime.storage import PersistentTier
from workbench.techniques.gemini.runtime.training import Timing, TrainingOutcome, run_training

__all__ = ["Undisturbed", "flip_bit", "reliability_cells", "reliability_rows", "run_cell", "run_schedule"]

ITERATIONS = 10
SMALL = {"hidden": 32, "layers": 2, "vocab": 64, "sequence": 16, "batch": 2}  # of a model that trains in under 2 s
OPTIONS = {"reserved_bytes": 16_384, "num_profiled": 2}  # so that the later iterations interleave
TIMING = Timing(heartbeat_s=0.1, lease_s=1.0)
TIMEOUT_S = 180.0  # of one training, on a machine that may be busy
FLIP_PAUSE_S = 3.0  # in which the failure behind a flipped bit comes, before training has gone on; then it is killed
SETTLE_S = 5.0  # in which what was killed must be gone
SLOWEST = (Tier.START, Tier.STORAGE, Tier.PEER, Tier.LOCAL)


class Undisturbed:
    """Digests of trainings that nothing befell, each made once.

    Args:
        machines: warm ones, none running.
        iterations: of a training.
    """

    def __init__(self, machines: Machines, iterations: int = ITERATIONS):
        self._machines, self._iterations = machines, iterations
        self._known: dict[tuple[int, bool], list[str]] = {}

    def digests(self, schedule: Schedule) -> list[str]:
        """Return those of a schedule's model on as many machines; how many replicas there are changes no bit."""
        key = schedule.num_machines, schedule.sharded
        if key not in self._known:
            outcome = _train(schedule.num_machines, _size(schedule, self._iterations), {}, self._machines)
            self._known[key] = digests(outcome)
        return self._known[key]


def flip_bit(context: RankContext, checkpoints: InMemoryCheckpoints, flip: Flip) -> None:
    """Change one bit of the newest complete replica that a machine keeps of a shard, once; every rank calls it.

    Args:
        context: of the rank.
        checkpoints: of the rank, an iteration of which has just begun to travel.
        flip: which bit and when.
    """
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
    """Train under a schedule and look at what is left.

    Args:
        schedule: of failures.
        undisturbed: digests of the same training without them.
        machines: warm ones, none running.
        iterations: of the training.

    Returns:
        seed, schedule (in words), kinds, is_finished, error, num_generations, tiers (what was used, slowest first),
        resumed (iteration of each generation), different_ranks, seconds, num_orphans, leaked_bytes, num_struck,
        flips_passed_over, and for a picture `generations` and `strikes`.
    """
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
    """Run some schedules on one warm fleet; a cell of a study.

    Args:
        seeds: of the schedules.
        iterations: of each training.

    Returns:
        `rows`, one a schedule; see `run_schedule`.
    """
    with Machines(preload=(*PRELOAD, __name__), echo=False) as machines:
        undisturbed = Undisturbed(machines, iterations)
        rows = []
        for seed in seeds:
            schedule = draw_schedule(seed, iterations=iterations)
            rows.append(run_schedule(schedule, undisturbed.digests(schedule), machines, iterations=iterations))
    return {"rows": rows}


def reliability_cells(num_schedules: int, each: int, first: int = 0) -> list[dict[str, Any]]:
    """List the arguments of `run_cell` for consecutive seeds.

    Args:
        num_schedules: how many.
        each: of one cell, which share a fleet and the undisturbed trainings.
        first: seed.

    Raises:
        ValueError: if a number is too small.
    """
    for name, value, least in (("num_schedules", num_schedules, 1), ("each", each, 1), ("first", first, 0)):
        if value < least:
            raise ValueError(f"{name} is {value}, must be at least {least}")
    seeds = range(first, first + num_schedules)
    return [{"seeds": list(seeds[begin : begin + each])} for begin in range(0, num_schedules, each)]


def reliability_rows(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the quantities of a record: of each schedule, and how many recoveries each tier served.

    Args:
        found: rows of `run_schedule`.
    """
    rows = []
    for schedule in found:
        seed = schedule["seed"]
        for name, unit in (("is_finished", "1"), ("different_ranks", "1"), ("num_orphans", "1"), ("leaked_bytes", "B")):
            rows.append(value_row(name, float(schedule[name]), unit) | {"seed": seed})
        rows.append(value_row("training_s", schedule["seconds"], "s") | {"seed": seed})
        if schedule.get("flips_passed_over") is not None:
            rows.append(value_row("damage_is_named", float(schedule["flips_passed_over"])) | {"seed": seed})
    recoveries = [bar["tier"] for each in found for bar in each.get("generations", ()) if bar["generation"] > 1]
    rows += [value_row("num_recoveries", float(recoveries.count(tier.value)), tier=tier.value) for tier in Tier]
    return rows


def _trained(schedule: Schedule, machines: Machines, iterations: int) -> TrainingOutcome:
    options: dict[str, Any] = {"num_replicas": schedule.num_replicas}
    is_stored = schedule.storage_every > 0
    with tempfile.TemporaryDirectory(prefix="gemini-storage-") if is_stored else nullcontext() as folder:
        if is_stored:
            options |= {"storage": PersistentTier(f"file://{folder}"), "storage_every": schedule.storage_every}
        hurt = {"faults": schedule.faults, "standbys": schedule.standbys}
        flip = None if schedule.flip is None else partial(flip_bit, flip=schedule.flip)
        return _train(schedule.num_machines, _size(schedule, iterations), options, machines, flip, **hurt)


def _train(
    num_machines: int, size: Size, options: Mapping[str, Any], machines: Machines, after_step: Any = None, **more: Any
) -> TrainingOutcome:
    return run_training(
        train_gpt2,
        num_machines,
        args=(size, {**OPTIONS, **options}, after_step),
        machines=machines,
        timing=TIMING,
        timeout_s=TIMEOUT_S,
        **more,
    )


def _size(schedule: Schedule, iterations: int) -> Size:
    return Size(**SMALL, iterations=iterations, sharded=schedule.sharded)


class _Left:
    """What there is beside this process: its descendants, and named and anonymous shared memory.

    Args:
        pids: of the descendants.
        shared: names of /dev/shm.
        kept_bytes: machines' memory that this process or a descendant still holds open.
    """

    def __init__(self, pids: set[int], shared: set[str], kept_bytes: int):
        self.pids, self.shared, self.kept_bytes = pids, shared, kept_bytes

    @classmethod
    def now(cls) -> _Left:
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
    found = {}
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        try:
            for name in os.listdir(folder):
                if os.readlink(f"{folder}/{name}").startswith("/memfd:workbench-"):
                    held = os.stat(f"{folder}/{name}")
                    found[held.st_ino] = held.st_size
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue  # it ended meanwhile
    return found


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
    told = [event.details for event in outcome.named("retrieve")]
    reasons = [reason for each in told for reason in (*each["passed_over"], *each["unusable"])]
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
    mine = [event for event in outcome.events if event.generation == generation and event.rank is not None]
    if not mine:
        return None
    fetched = [event for event in mine if event.name == "retrieve"]
    tiers = {event.details["tier"] for event in fetched}
    end_s = max(event.time_s + event.duration_s for event in mine)
    return {
        "generation": generation,
        "start_s": round(_start_s(mine) - begin_s, 3),
        "end_s": round(end_s - begin_s, 3),
        "tier": next((str(tier) for tier in SLOWEST if tier in tiers), ""),
        "iteration": fetched[0].details["iteration"] if fetched else None,
    }


def _start_s(events: Sequence[Event]) -> float:
    return min(event.time_s for event in events)
