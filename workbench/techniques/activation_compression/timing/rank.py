"""What one rank does while it is timed: training steps of all methods in turn, each noted on its timeline.

Source: "Does compressing activations help model parallel training?", section 4.1 (Adam, one iteration's parts).
Methods take turns; within a round their order is drawn anew, so that no method always follows the same one.
Simplified: one small batch, always the same; the loss is that of `training`.
Left out: data loading.
"""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from workbench.parallel.pipeline import Mesh, open_mesh
from workbench.parallel.recorded import RecordedTensorGroup
from workbench.timeline import Action, Kind, Recorder

from ..training import compressed_pipeline, small_batch
from .variants import Timed

__all__ = ["Recording", "record_rounds"]

LEARNING_RATE = 1e-4  # any: only the time of a step is looked at
ITERATION, OPTIMIZER = "iteration", "optimizer"


@dataclass(frozen=True, slots=True)
class Recording:
    """One iteration on one rank.

    Attributes:
        name: of the thing that was timed.
        round: which repetition, from 0.
        actions: what the rank did; the action "iteration" spans all others.
    """

    name: str
    round: int
    actions: tuple[Action, ...]


def record_rounds(
    things: Sequence[Timed], *, rounds: int, warmup: int, seed: int, device: str = "cpu"
) -> list[Recording]:
    """Train each thing for one step a round, in an order drawn for each round (A B C, C A B, ...), on every rank.

    Args:
        things: what is timed; all on one (TP, PP).
        rounds: steps of each that are kept.
        warmup: steps of each before, which open connections and fill caches.
        seed: of weights, random methods and orders; the same on every rank.
        device: of models and batches, "cpu" or "cuda"; on CUDA whatever is recorded is waited for.

    Returns:
        This rank's recordings of the kept steps, in the order in which they ran.
    """
    first = things[0].setting
    if device == "cpu" and first.num_micro_batches == 1:
        # With several, stages work at once, and the scheduler balances them better.
        _keep_to_one_core()
    mesh = open_mesh(tensor=first.tp, pipeline=first.pp, device=device)
    synchronize = {"synchronize": torch.cuda.synchronize} if device == "cuda" else {}
    recorder = Recorder(resource=f"rank {dist.get_rank()}", **synchronize)
    group = RecordedTensorGroup(mesh.tensor_group.process_group, recorder=recorder)
    steps = [_step_of(thing, replace(mesh, tensor_group=group), recorder, seed, device) for thing in things]
    turns, order, recordings = list(zip(things, steps, strict=True)), random.Random(seed), []
    gc.collect()
    gc.disable()
    try:
        for number in range(-warmup, rounds):
            for thing, step in order.sample(turns, len(turns)):
                actions = _one_iteration(step, recorder)
                if number >= 0:
                    recordings.append(Recording(thing.name, number, actions))
    finally:
        gc.enable()
    return recordings


def _keep_to_one_core() -> None:
    """Give this rank its core, neighbouring ranks sharing one, so that every rank computes equally fast.

    With four ranks on two cores each rank of a two-rank stage then has half a core, as each of four ranks that work
    at once has: doubling the tensor-parallel ranks halves what a rank multiplies, as on GPUs. Its time falls less than
    that, since what all ranks repeat (layer norms, launching) does not halve, and smaller matrices multiply slower.
    """
    if not hasattr(os, "sched_setaffinity"):  # not on macOS, where the scheduler decides
        return
    cores = sorted(os.sched_getaffinity(os.getppid()))
    core = cores[dist.get_rank() * len(cores) // dist.get_world_size()]
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {core})


def _step_of(thing: Timed, mesh: Mesh, recorder: Recorder, seed: int, device: str) -> Callable[[], None]:
    """Build one thing's model and return its training step."""
    codec = thing.codec(recorder, seed)
    pipeline = compressed_pipeline(thing.setting, mesh, codec=codec, recorder=recorder, device=device, seed=seed)
    optimizer = torch.optim.Adam(pipeline.module.parameters(), lr=LEARNING_RATE, fused=True)  # the paper's takes 1 %
    inputs, targets = (each.to(device) for each in small_batch(thing.setting))

    def step() -> None:
        pipeline.step(inputs, targets)
        with recorder.during(OPTIMIZER, Kind.OTHER):
            optimizer.step()
            optimizer.zero_grad()

    return step


def _one_iteration(step: Callable[[], None], recorder: Recorder) -> tuple[Action, ...]:
    before = len(recorder.actions)
    dist.barrier()
    with recorder.during(ITERATION, Kind.COMPUTE):
        step()
    return recorder.actions[before:]
