"""Small trainings under drawn failures: each must end with the bits of an undisturbed one, or in the error named."""

import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import nn

from workbench.checks import require_counts
from workbench.launch.failures import RankFailed
from workbench.launch.machines import Machines
from workbench.rows import value_row
from workbench.rows.cells import named

from ..control import EventName, RankContext, Timing, TrainingOutcome, run_training
from ..method import Tier
from ..runtime import PRELOAD, InMemoryCheckpoints, KeptShards, PersistentTier, pack_tree
from .recovery import num_different
from .schedules import DAMAGED, FLIPPED, Flip, Loop, Schedule, draw_schedule
from .training import Habits, Size, train_gpt2

__all__ = ["Disturbance", "reliability_cells", "reliability_rows", "run_cell", "run_schedule", "undisturbed_by"]

ITERATIONS = 10
SMALL = {"hidden": 32, "layers": 2, "vocab": 64, "sequence": 16, "batch": 2}  # of a model that trains in under 2 s
OPTIONS = {"reserved_bytes": 16_384, "num_profiled": 2}  # so that the later iterations interleave
TIMING = Timing(heartbeat_s=0.1, lease_s=1.0)
TIMEOUT_S = 180.0  # of one training, on a machine that may be busy
FLIP_PAUSE_S = 3.0  # in which the failure behind a flipped bit comes, before training has gone on; then it is killed
SETTLE_S = 5.0  # in which what was killed must be gone
SLOWEST = (Tier.START, Tier.STORAGE, Tier.PEER, Tier.LOCAL)
GROWTH = 1000  # numbers that a growing state has more after each iteration: 8 to 20 KB


@dataclass(kw_only=True, slots=True)
class Disturbance(Habits):
    """What a schedule's loop does, and the harm that it does to itself; everything but the harm is in its bits."""

    schedule: Schedule
    is_hurt: bool
    teacher: torch.Tensor = field(default_factory=lambda: torch.zeros(64))
    history: list[float] = field(default_factory=list)
    model: nn.Module = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)
    sent: torch.Tensor = field(init=False)  # the chunk that changed, which must live as long as it is being sent

    def attach(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Give the model a buffer, and change what changes in its forward pass."""
        inner: nn.Module = getattr(model, "module", model)
        inner.register_buffer("drift", torch.zeros(64))
        first = inner.get_submodule("blocks.0")
        first.register_forward_hook(lambda *_: self._change("forward") if inner.training else None)
        self.model, self.optimizer = inner, optimizer
        return {"habits": self}

    def state_dict(self) -> dict[str, Any]:
        return {"teacher": self.teacher, "history": self.history}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.teacher.copy_(state["teacher"])
        self.history = state["history"]

    def begin(self, context: RankContext, checkpoints: InMemoryCheckpoints) -> None:
        """Do the harm of this iteration."""
        if not self.is_hurt:
            return
        flip, place = self.schedule.flip, (context.rank, checkpoints.iteration)
        if flip is not None and flip.at_iteration == checkpoints.iteration:
            self._flip_bit(context, checkpoints, flip)
        if self.schedule.deadly == place:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.schedule.damaged != place or DAMAGED in context.memory_names():
            return
        context.memory(DAMAGED, 1)  # so that it happens once
        send = dist.isend

        def send_damaged(tensor: torch.Tensor, *args: Any, **more: Any) -> dist.Work | None:
            """Flip a bit of the next chunk that this rank sends, after its checksum was told."""
            if "tag" in more or not tensor.any():  # ranks meet, or the link is measured
                return send(tensor, *args, **more)
            dist.isend = send
            self.sent = tensor.clone()
            self.sent[self.sent.numel() // 2] ^= 1
            context.log(DAMAGED)
            return send(self.sent, *args, **more)

        dist.isend = send_damaged

    @staticmethod
    def _flip_bit(context: RankContext, checkpoints: InMemoryCheckpoints, flip: Flip) -> None:
        """Change one bit of the newest complete replica that a machine keeps of a shard, once."""
        checkpoints.wait()
        dist.barrier()  # all ranks' are complete: it is this iteration that a failure would go back to
        if context.rank != flip.machine or FLIPPED in context.memory_names():
            return
        context.memory(FLIPPED, 1)  # so that it is known, should this iteration be done again
        newest = KeptShards(context).slot(flip.shard).latest()
        assert newest is not None
        newest.data[int(flip.place * newest.data.numel())] ^= 1
        context.log(FLIPPED, iteration=flip.at_iteration, shard=flip.shard)
        time.sleep(FLIP_PAUSE_S)

    def before_update(self, iteration: int) -> None:
        """Change what changes after the backward pass; hold back the late gradient."""
        self._change("backward")
        if iteration < self.schedule.loop.late:
            next(self.model.parameters()).grad = None

    def end(self, loss: float) -> None:
        self._change("between")
        if self.schedule.loop.grows:
            self.history = self.history + [loss + number for number in range(GROWTH)]

    @torch.no_grad()
    def _change(self, moment: str) -> None:
        for what in (what for what, when in self.schedule.loop.changes if when == moment):
            match what:
                case "teacher":
                    self.teacher.mul_(0.9).add_(torch.rand(64))
                case "buffer":
                    self.model.get_buffer("drift").mul_(0.9).add_(torch.rand(64))
                case "weight":
                    for weight in self.model.parameters():  # as clipping does it, which tells nobody
                        getattr(weight, "_local_tensor", weight).data.clamp_(-0.1, 0.1)
                case "momentum":
                    for kept in self.optimizer.state.values():
                        getattr(kept["exp_avg"], "_local_tensor", kept["exp_avg"]).mul_(0.99)
                case "rate":
                    for group in self.optimizer.param_groups:
                        group["lr"] *= 0.99

    def state(self) -> bytes:
        rates = [group["lr"] for group in self.optimizer.param_groups]
        return pack_tree([self.state_dict(), self.model.get_buffer("drift"), rates])


def undisturbed_by(machines: Machines, iterations: int = ITERATIONS) -> Callable[[Schedule], Sequence[str]]:
    """Return a function that gives the digests of a schedule's training without failures, which runs once."""
    known: dict[tuple[int, bool, Loop], Sequence[str]] = {}

    def digests(schedule: Schedule) -> Sequence[str]:
        key = schedule.num_machines, schedule.sharded, schedule.loop  # the number of replicas changes no bit
        if key not in known:
            known[key] = _train(schedule, machines, iterations, is_hurt=False, options={}).results
        return known[key]

    return digests


def run_schedule(
    schedule: Schedule, undisturbed: Sequence[str], machines: Machines, *, iterations: int = ITERATIONS
) -> dict[str, Any]:
    """Train under a schedule; return its history, and the processes and bytes that remain."""
    before, began_s, outcome, error = _processes_and_memory(), time.monotonic(), None, ""
    options: dict[str, Any] = {"num_replicas": schedule.num_replicas}
    failures = {name: getattr(schedule, name) for name in ("faults", "standbys", "memory_limit_bytes")}
    try:
        with tempfile.TemporaryDirectory(prefix="gemini-storage-") as folder:
            if schedule.storage_every:
                options |= {"storage": PersistentTier(f"file://{folder}"), "storage_every": schedule.storage_every}
            outcome = _train(schedule, machines, iterations, is_hurt=True, options=options, **failures)
    except (RankFailed, RuntimeError, TimeoutError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    seconds = time.monotonic() - began_s
    orphans, leaked_bytes = _left_behind(before)
    must_end, has_ended = schedule.must_end, bool(schedule.must_end) and schedule.must_end in error
    common = {
        "seed": schedule.seed,
        "schedule": schedule.words,
        "ends_rightly": has_ended if must_end else outcome is not None,
        "error": error.strip().rpartition("\n")[2] if has_ended else error,
        "seconds": round(seconds, 3),
        "num_orphans": orphans,
        "leaked_bytes": leaked_bytes,
        "different_ranks": 0 if must_end else len(undisturbed),
    }
    return common | (_history(outcome, undisturbed) if outcome else {})


@named("gemini/run_cell")
def run_cell(seeds: Sequence[int], iterations: int = ITERATIONS) -> dict[str, Any]:
    """Run schedules on one set of warm machines, so that remains of a training are seen after it; a cell of a study."""
    with Machines(preload=(*PRELOAD, __name__), echo=False) as machines:
        undisturbed = undisturbed_by(machines, iterations)
        drawn = [draw_schedule(seed, iterations=iterations) for seed in seeds]
        rows = [run_schedule(schedule, undisturbed(schedule), machines, iterations=iterations) for schedule in drawn]
    return {"rows": rows}


def reliability_cells(num_schedules: int, per_cell: int, first: int = 0) -> list[dict[str, Any]]:
    """List the arguments of `run_cell` for consecutive seeds."""
    require_counts(1, num_schedules=num_schedules, per_cell=per_cell)
    require_counts(0, first=first)
    seeds = range(first, first + num_schedules)
    return [{"seeds": list(seeds[begin : begin + per_cell])} for begin in range(0, num_schedules, per_cell)]


def reliability_rows(trainings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the quantities of each training for a record."""
    rows, units = [], {"ends_rightly": "1", "different_ranks": "1", "num_orphans": "1", "leaked_bytes": "B"}
    for training in trainings:
        seed = {"seed": training["seed"]}
        rows += [value_row(name, float(training[name]), unit) | seed for name, unit in units.items()]
        if training.get("flips_passed_over") is not None:
            rows.append(value_row("damage_is_named", float(training["flips_passed_over"])) | seed)
    return rows


def _train(
    schedule: Schedule, machines: Machines, iterations: int, *, is_hurt: bool, options: Mapping[str, Any], **more: Any
) -> TrainingOutcome:
    size = Size(**SMALL, iterations=iterations, sharded=schedule.sharded)
    args = size, {**OPTIONS, **options}, Disturbance(schedule=schedule, is_hurt=is_hurt)
    where: dict[str, Any] = {"machines": machines, "timing": TIMING, "timeout_s": TIMEOUT_S, "echo": False}
    return run_training(train_gpt2, schedule.num_machines, args=args, **where, **more)


def _processes_and_memory() -> tuple[set[int], set[str], int]:
    """Return the living descendants of this process, named shared memory, and the bytes of machines' memory."""
    pids = set()
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            pids |= {child.pid} if child.status() != psutil.STATUS_ZOMBIE else set()
    sizes = {}  # of the memory files of machines that processes hold open, by inode
    for pid in (os.getpid(), *pids):
        with suppress(FileNotFoundError, PermissionError, ProcessLookupError):  # it ended meanwhile
            for file in os.scandir(f"/proc/{pid}/fd"):
                if os.readlink(file).startswith("/memfd:workbench-"):
                    sizes[file.stat().st_ino] = file.stat().st_size
    return pids, set(os.listdir("/dev/shm")), sum(sizes.values())


def _left_behind(before: tuple[set[int], set[str], int], patience_s: float = SETTLE_S) -> tuple[int, int]:
    """Count processes and bytes that are there now and were not before, after some patience."""
    deadline_s = time.monotonic() + patience_s
    while True:
        pids, shared, kept_bytes = _processes_and_memory()
        mapped = set()  # files of other studies, which their processes map; those that nobody maps are leaked
        for process in psutil.process_iter() if shared - before[1] else ():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                mapped |= {os.path.basename(entry.path) for entry in process.memory_maps()}
        leaked_bytes = max(0, kept_bytes - before[2])
        for name in shared - before[1] - mapped:
            with suppress(FileNotFoundError):  # another study's, gone meanwhile
                leaked_bytes += os.stat(f"/dev/shm/{name}").st_size
        orphans = pids - before[0]
        if not (orphans or leaked_bytes) or time.monotonic() > deadline_s:
            return len(orphans), leaked_bytes
        time.sleep(0.05)


def _history(outcome: TrainingOutcome, undisturbed: Sequence[str]) -> dict[str, Any]:
    """Read from a log what happened, in seconds from its beginning."""
    begin_s = outcome.events[0].time_s
    bars: list[dict[str, Any]] = []
    for generation in range(1, outcome.num_generations + 1):
        events = [event for event in outcome.events if event.generation == generation and event.rank is not None]
        if events:  # when it ran, from which iteration, and the slowest tier that served one of its ranks
            retrievals = [event.details for event in events if event.name == "retrieve"]
            tiers = {details["tier"] for details in retrievals}
            bar = {
                "generation": generation,
                "start_s": round(min(event.time_s for event in events) - begin_s, 3),
                "end_s": round(max(event.time_s + event.duration_s for event in events) - begin_s, 3),
                "tier": next((str(tier) for tier in SLOWEST if tier in tiers), ""),
                "iteration": retrievals[0]["iteration"] if retrievals else None,
            }
            bars.append(bar)
    retrieved = [event.details for event in outcome.named("retrieve")]
    reasons = {reason for details in retrieved for reason in (*details["passed_over"], *details["unusable"])}
    damaged = {reason for reason in reasons if "checksum" in reason}
    flips = outcome.named(FLIPPED)
    return {
        "num_generations": outcome.num_generations,
        "generations": bars,
        "strikes": [
            {"at_s": round(event.time_s - begin_s, 3), "what": event.details.get("what", event.name)}
            for event in (*outcome.named(EventName.KILLED), *flips, *outcome.named(DAMAGED))
        ],
        "different_ranks": num_different(outcome, undisturbed),
        "tiers": [str(tier) for tier in SLOWEST if any(bar["tier"] == tier and bar["generation"] > 1 for bar in bars)],
        "resumed": [bar["iteration"] for bar in bars],
        "flips_passed_over": bool(damaged) if flips else None,
        "reasons": sorted(damaged),
    }
