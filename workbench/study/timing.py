"""Variants timed in turns on real ranks: every round runs each variant once, in an order drawn anew.

Ratios taken within a round cancel what slows the whole round; the builders of `workbench.rows` make rows of them.

    def build(recorder, widths):  # on every rank
        return {f"width {width}": Trial(step=Training(width).step) for width in widths}

    with open_ranks(2) as ranks:
        timed = time_variants(ranks, build, [64, 128], turns=Turns(rounds=6))
    rows = [median_row("iteration_s", timed.iterations_s(name), "s", variant=name) for name in timed.rounds]
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from workbench.cluster import Link
from workbench.launch import Ranks, ShapedHosts
from workbench.rows import FEWEST_ROUNDS, value_row
from workbench.rows.progress import say_progress
from workbench.study.measuring import without_garbage_collection
from workbench.timeline import Action, Dose, Kind, Recorder

from .breakdown import ITERATION, span_s

__all__ = ["FASTEST_BYTES_PER_S", "Timed", "Trial", "Turn", "Turns", "device_named", "dose_rows", "keep_to_one_core"]
__all__ += ["open_ranks", "take_turns", "time_calls", "time_variants"]

FASTEST_BYTES_PER_S = 2e9  # of a link that is chosen: what shaped hosts can follow

Name = TypeVar("Name")  # of a timed call: a text or a number


@dataclass(frozen=True, kw_only=True, slots=True)
class Turns:
    """How often variants take turns, and how long a turn is."""

    rounds: int  # turns of each variant that are kept
    warmup: int = 0  # rounds before, not kept: they open connections, fill caches, let plans settle
    length: int = 1  # iterations of a turn, timed as one
    repeats: int = 1  # repetitions of warm-up and rounds, such as one for each place of a moving straggler
    seed: int = 0  # seed of the order of turns, the same on every rank

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("warmup", 0), ("length", 1), ("repeats", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}")

    @property
    def iterations_per_repeat(self) -> int:
        """Iterations of each variant in all rounds of a repeat, warm-up included."""
        return (self.warmup + self.rounds) * self.length

    def check_interval(self) -> None:
        """Refuse fewer kept turns than the interval of a median needs."""
        if self.rounds * self.repeats < FEWEST_ROUNDS:
            least = -(-FEWEST_ROUNDS // self.repeats)
            raise ValueError(f"rounds is {self.rounds}; it must be at least {least} for an interval")


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One variant on one rank: its iteration, and functions that run outside of the measured time."""

    step: Callable[[], object]  # one iteration
    settling: int = 0  # iterations before the first turn, in one go
    begin: Callable[[], object] = lambda: None  # runs before the clock of a turn starts
    end: Callable[[], Any] = lambda: None  # runs after it has stopped; returns the turn's notes
    close: Callable[[], Any] = lambda: None  # runs after the last turn; returns facts about the variant


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One turn of one variant on one rank."""

    name: str  # name of the variant
    length: int  # iterations
    actions: tuple[Action, ...]  # the rank's actions; the action "iteration" spans the turn
    cpu_s: float  # processor seconds of an iteration, all threads of the rank
    notes: Any = None  # result of `Trial.end`

    @property
    def iteration_s(self) -> float:
        """Seconds of an iteration on this rank."""
        return span_s([self.actions]) / self.length


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """All turns of all variants."""

    rounds: Mapping[str, Sequence[tuple[Turn, ...]]]  # by variant: for each round the turn of each rank
    facts: Mapping[str, tuple[Any, ...]]  # by variant: what each rank's `Trial.close` returned
    hosts: dict | None = None  # description of the shaped hosts; None for this machine's loopback

    @classmethod
    def of(cls, by_rank: Sequence[tuple[Sequence[Turn], Mapping[str, Any]]], hosts: dict | None = None) -> Timed:
        """Put together what `take_turns` returned on each rank."""
        rounds: dict[str, list[tuple[Turn, ...]]] = {name: [] for name in by_rank[0][1]}
        for turns in zip(*(turns for turns, _ in by_rank), strict=True):
            (name,) = {turn.name for turn in turns}
            rounds[name].append(turns)
        return cls(
            rounds=rounds, facts={name: tuple(facts[name] for _, facts in by_rank) for name in rounds}, hosts=hosts
        )

    def iterations_s(self, name: str) -> list[float]:
        """Return a variant's seconds of an iteration by round: from the first rank's start to the last one's end."""
        return [span_s([turn.actions for turn in turns]) / turns[0].length for turns in self.rounds[name]]

    def cpu_s(self, name: str) -> list[float]:
        """Return a variant's processor seconds of an iteration by round, all ranks together."""
        return [fsum(turn.cpu_s for turn in turns) for turns in self.rounds[name]]

    def median_turn(self, name: str) -> list[tuple[Action, ...]]:
        """Return the actions of each rank in a variant's turn of median length."""
        seconds = self.iterations_s(name)
        middle = sorted(range(len(seconds)), key=seconds.__getitem__)[len(seconds) // 2]
        return [turn.actions for turn in self.rounds[name][middle]]


def open_ranks(num_ranks: int, *, link: Link | None = None, num_hosts: int | None = None, **more: Any) -> Ranks:
    """Start ranks on hosts joined by a link, one a host unless `num_hosts` says otherwise; `more` goes to `Ranks`.

    Without a link they are on this machine's loopback.
    """
    return Ranks(num_ranks, hosts=None if link is None else ShapedHosts(num_hosts or num_ranks, link), **more)


def time_variants(ranks: Ranks, build: Callable[..., Mapping[str, Trial]], /, *args: Any, turns: Turns) -> Timed:
    """Time variants in turns on open ranks.

    Args:
        ranks: Open ranks; on CUDA all recorded work is waited for.
        build: Called on every rank as build(recorder, *args); returns the trials by name, in one order on all ranks.
            What it records with the recorder becomes the turn's actions.
        args: Further arguments of `build`.
        turns: Number and length of turns.
    """
    turns.check_interval()
    return Timed.of(ranks.run(take_turns, build, args, turns, ranks.device), ranks.hosts)


def take_turns(
    build: Callable[..., Mapping[str, Trial]], args: Sequence[Any], turns: Turns, device: str = "cpu"
) -> tuple[list[Turn], dict[str, Any]]:
    """Run all turns on this rank; every rank calls it. Return the kept turns in their order, and facts by variant."""
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    recorder = Recorder(resource=f"rank {dist.get_rank()}", synchronize=synchronize)
    trials = build(recorder, *args)
    order = random.Random(turns.seed)
    kept: list[Turn] = []
    for name, trial in trials.items():
        if trial.settling:
            _take_turn(name, trial, recorder, trial.settling)
    for _ in range(turns.repeats):
        for number in range(-turns.warmup, turns.rounds):
            names = order.sample(list(trials), len(trials))
            with without_garbage_collection():
                taken = [_take_turn(name, trials[name], recorder, turns.length) for name in names]
            kept += taken if number >= 0 else []
            say_progress(len(kept), turns.repeats * turns.rounds * len(trials), "turns")
    return kept, {name: trial.close() for name, trial in trials.items()}


def _take_turn(name: str, trial: Trial, recorder: Recorder, length: int) -> Turn:
    dist.barrier()
    trial.begin()
    before, began_cpu_s = len(recorder.actions), time.process_time()
    with recorder.during(ITERATION, Kind.COMPUTE):
        for _ in range(length):
            trial.step()
    cpu_s, actions = time.process_time() - began_cpu_s, recorder.actions[before:]
    return Turn(name=name, length=length, actions=actions, cpu_s=cpu_s / length, notes=trial.end())


def device_named(name: str) -> torch.device:
    """Return the device of this name; "auto" prefers a GPU. ValueError for "cuda" without a GPU."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda'; this machine has no GPU")
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def time_calls(calls: Mapping[Name, Callable[[], object]], runs: int, device: torch.device) -> dict[Name, list[float]]:
    """Time calls of this process in turns, after a first round; on a GPU until its work is done."""
    times_s: dict[Name, list[float]] = {name: [] for name in calls}
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    for number in range(runs + 1):
        for name, call in calls.items():
            wait()
            began_s = time.perf_counter()
            call()
            wait()
            if number:
                times_s[name].append(time.perf_counter() - began_s)
    return times_s


def keep_to_one_core() -> None:
    """Bind this rank to a core, shared with neighbouring ranks, so that all ranks compute equally fast.

    With four ranks on two cores, each rank of a two-rank stage then has half a core, like each of four ranks that work
    at once: doubling the tensor-parallel ranks halves the products of a rank, as on GPUs.
    """
    if not hasattr(os, "sched_setaffinity"):  # not on macOS, where the scheduler decides
        return
    cores = sorted(os.sched_getaffinity(os.getppid()))
    core = cores[dist.get_rank() * len(cores) // dist.get_world_size()]
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {core})


def dose_rows(doses: Sequence[Sequence[Dose]], **keys: Any) -> list[dict[str, Any]]:
    """Return each rank's injected delay in a mean turn, and the relative error of the delivered delay.

    Args:
        doses: Doses of each round and rank.
        keys: Key columns of the variant; `rank` is added.
    """
    rows = []
    for rank, by_round in enumerate(zip(*doses, strict=True)):
        records = [dose.as_record() for dose in by_round]
        total = Dose(**{name: fsum(record[name] for record in records) for name in records[0]})
        for name, seconds in total.as_record().items():
            rows.append(value_row(f"dose_{name}", seconds / len(records), "s", **keys, rank=rank))
        rows.append(value_row("dose_error", total.error, **keys, rank=rank))
    return rows
