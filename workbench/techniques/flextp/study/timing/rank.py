"""What one rank does while it is timed: training steps of all variants in turn, each noted on its timeline.

What: every variant has a model, an optimizer, a balancer and stragglers of its own; they take turns, and within a round
their order is drawn anew, so that no variant always follows the same one. Stragglers are made by sleeping, from one
trace for all variants that are compared, and what was slept is noted beside what was to be slept.
Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section V-A.
Simplified: one fixed batch; the pre-test is made once for all variants, without stragglers.
Left out: evaluation, reading images.
"""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch.nn import functional

from workbench.models.vit import ViTForImageClassification
from workbench.parallel.recorded import RecordedTensorGroup
from workbench.timeline import Action, Kind, Recorder
from workbench.timeline.stragglers import Dose

from ...method.costs import Costs
from ...method.plan import Plan
from ...method.priority import Selection, micro_threshold
from ...runtime.balancer import Balancer
from ...runtime.meter import MeasuredTimes, Meter
from ...runtime.policy import Policy, needs_costs
from ..variant import Variant
from .size import Size

__all__ = ["ITERATION", "OPTIMIZER", "PRODUCT", "Recording", "Turns", "record_rounds"]

LEARNING_RATE = 1e-3  # of AdamW; any, since only the time of a step is looked at
PLANS_TO_SETTLE = 2  # before the warm-up, which has the next: a narrow product takes more than its share of the time
ITERATION, OPTIMIZER, PRODUCT = "iteration", "optimizer", "product"


@dataclass(frozen=True, kw_only=True, slots=True)
class Turns:
    """How often variants take turns.

    Attributes:
        rounds: turns of each that are kept, an epoch of the study.
        warmup: turns of each before, in which plans settle; again after a straggler has moved. A variant with patience
            takes turns for two plans before.
        length: iterations of a turn, timed as one.
        seed: of weights, batch, random choices and the order of turns.
        chooses: columns are chosen anew after the warm-up and every so often from then on, by what has been measured;
            where a straggler moves, with each move. Without it once all turns are over.
    """

    rounds: int
    warmup: int = 4
    length: int = 1
    seed: int = 0
    chooses: bool = True

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("warmup", 0), ("length", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least {least}")

    @property
    def iterations_per_epoch(self) -> int:
        """Iterations for which a straggler stays."""
        return (self.warmup + self.rounds) * self.length

    @property
    def iterations_per_choice(self) -> int:
        """Iterations after which statistics are renewed and columns chosen anew."""
        return self.warmup * self.length if self.chooses and self.warmup else self.iterations_per_epoch


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """One turn of one variant on one rank.

    Attributes:
        name: of the variant.
        actions: what the rank did; the action "iteration" spans all others.
        dose: what the rank was to sleep, and did.
        cpu_s: seconds of processor that the rank took, all its threads.
        dropped_share: of the rank's products, what nobody computed.
        plan: of all ranks; None for a model that nobody balances.
    """

    name: str
    actions: tuple[Action, ...]
    dose: Dose
    cpu_s: float
    dropped_share: float
    plan: Plan | None


def record_rounds(
    variants: Mapping[str, Variant | None], size: Size, turns: Turns, slowness: float, device: str
) -> tuple[list[Recording], Costs | None]:
    """Train each variant for one turn a round, in an order drawn for each round; every rank calls it.

    Args:
        variants: by name; None is the model as it is, without balancing. Beside it no products are recorded: recording
            them is the study's, and would be charged to balancing alone.
        size: of the model.
        turns: how many, how long, and the seed.
        slowness: how many times slower than this machine all ranks' products are, by sleeping.
        device: of models and batch, "cpu" or "cuda"; on CUDA whatever is recorded is waited for.

    Returns:
        This rank's recordings of the kept turns, in the order in which they ran; the costs of the pre-test, if a
        variant needed one.
    """
    synchronize = {"synchronize": torch.cuda.synchronize} if device == "cuda" else {}
    recorder = Recorder(resource=f"rank {dist.get_rank()}", **synchronize)
    costs = _pre_test(variants, size, RecordedTensorGroup(recorder=recorder), slowness, device)
    told = (size, turns, recorder, slowness, device, costs, None not in variants.values())
    trials = [_Trial(name, each, *told) for name, each in variants.items()]
    moving = any(each is not None and each.moves for each in variants.values())
    order, recordings = random.Random(turns.seed), []
    gc.collect()
    gc.disable()
    try:
        for trial in trials:
            trial.settle()
        for _ in range(dist.get_world_size() if moving else 1):
            for number in range(-turns.warmup, turns.rounds):
                done = [trial.take_turn() for trial in order.sample(trials, len(trials))]
                recordings += done if number >= 0 else []
    finally:
        gc.enable()
    return recordings, costs


def _pre_test(variants: Mapping, size: Size, group: RecordedTensorGroup, slowness: float, device: str) -> Costs | None:
    policies = [each.policy(group.size) for each in variants.values() if each is not None]
    needy = next((policy for policy in policies if needs_costs(policy)), None)
    if needy is None:
        return None
    model = ViTForImageClassification(size.config(seed=0), group).to(device)
    chosen = replace(needy, selection=Selection.RANDOM)  # which columns are moved is all one to what it costs
    balancer = _balancer(model, group, chosen, Meter(group.local_ranks[0], slowness=slowness, device=device))
    step = _step(model, balancer, size, seed=0, optimize=lambda: None, device=device)
    while balancer.costs is None:
        step()
    return balancer.costs


def _balancer(model, group, policy: Policy, meter: Meter, costs: Costs | None = None) -> Balancer:
    (rank,) = group.local_ranks
    return Balancer(model, group, policy, times=MeasuredTimes(meter), costs=costs, meters={rank: meter})


def _step(
    model, balancer: Balancer | None, size: Size, *, seed: int, optimize: Callable[[], None], device: str
) -> Callable:
    images, labels = (drawn.to(device) for drawn in size.images_and_labels(seed))

    def step() -> None:
        with nullcontext() if balancer is None else balancer.iteration():
            functional.cross_entropy(model(images), labels).backward()
            optimize()

    return step


class _Trial:
    """A variant under way on one rank."""

    def __init__(
        self,
        name,
        variant: Variant | None,
        size: Size,
        turns: Turns,
        recorder,
        slowness,
        device,
        costs,
        records_products,
    ):
        self.name, self.turns, self.recorder = name, turns, recorder
        group = RecordedTensorGroup(recorder=recorder)  # its own: whoever watches it sees no other variant's messages
        (self.rank,) = group.local_ranks
        model = ViTForImageClassification(size.config(turns.seed), group).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
        epoch = turns.iterations_per_epoch
        trace = None if variant is None else variant.trace(group.size, epoch)
        watch = recorder.during if records_products else nullcontext  # every product is an action of kind compute
        self.meter = Meter(self.rank, trace, slowness=slowness, device=device, watch=watch)
        self.balancer = None
        if variant is not None:
            per_choice = epoch if variant.moves else turns.iterations_per_choice
            drift = micro_threshold(LEARNING_RATE, per_choice)
            more = {"iterations_per_epoch": per_choice, "micro_threshold": drift, "seed": turns.seed}
            self.balancer = _balancer(model, group, variant.policy(group.size, **more), self.meter, costs)

        def optimize() -> None:
            with recorder.during(OPTIMIZER, Kind.OTHER):
                optimizer.step()
                optimizer.zero_grad()

        self.step = _step(model, self.balancer, size, seed=turns.seed, optimize=optimize, device=device)

    def settle(self) -> None:
        """Take the turns that plans made with patience need more than others to come to rest."""
        patience = 1 if self.balancer is None else self.balancer.policy.patience
        for _ in range(math.ceil(PLANS_TO_SETTLE * patience / self.turns.length) if patience > 1 else 0):
            self.take_turn()

    def take_turn(self) -> Recording:
        """Run the iterations of a turn, all ranks starting together."""
        before, dose = len(self.recorder.actions), self.meter.dose
        dist.barrier()
        began_cpu_s = time.process_time()
        with self.recorder.during(ITERATION, Kind.COMPUTE):
            for _ in range(self.turns.length):
                self.step()
        cpu_s, slept = time.process_time() - began_cpu_s, self.meter.dose
        balancer = self.balancer
        return Recording(
            name=self.name,
            actions=self.recorder.actions[before:],
            dose=slept - dose,
            cpu_s=cpu_s,
            dropped_share=0.0 if balancer is None else balancer.dropped_share,
            plan=None if balancer is None else balancer.plan,
        )
