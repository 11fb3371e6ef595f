"""Iterations of a small Vision Transformer, timed on real ranks under stragglers: one fixed batch of random numbers."""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

from workbench.models.vit import ViTConfig, ViTForImageClassification
from workbench.parallel.groups import RecordedTensorGroup
from workbench.study.breakdown import OPTIMIZER, timeline_of
from workbench.study.timing import Trial, Turns, open_ranks, time_variants
from workbench.timeline import Kind, Recorder, Timeline, chrome_trace

from ..cost import CIFAR_10
from ..method.plan import Costs, Selection, require
from ..method.resizing import micro_threshold
from ..runtime import PATIENCE, Balancer, Meter, check_policy, needs_costs
from .rows import Notes, Variant, Variants, rows_of

NUM_LABELS = 10  # of CIFAR-10
MLP_WIDTH = 4  # of a perceptron, in hidden sizes
LEARNING_RATE = 1e-3  # of AdamW; any, since only the time of a step is looked at
PLANS_TO_SETTLE = 2  # before the warm-up, which has the next: a narrow product takes more than its share of the time
BALANCED, UNBALANCED = "with balance", "without"
TIMEOUT_S = 1800.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """A Vision Transformer for images of 32 x 32 pixels, and a batch."""

    hidden: int = 256  # units of a hidden state; a multiple of `heads`
    layers: int = 2  # transformer layers
    heads: int = 8  # attention heads; a multiple of the ranks
    patch: int = 4  # pixels of a patch's side; 4 makes 65 tokens
    batch: int = 32  # images of an iteration

    @property
    def num_iterations(self) -> int:
        """Iterations of an epoch of CIFAR-10's training images."""
        return math.ceil(CIFAR_10 / self.batch)

    def config(self, seed: int) -> ViTConfig:
        sizes = {"hidden_size": self.hidden, "num_layers": self.layers, "num_heads": self.heads}
        return ViTConfig(**sizes, mlp_size=MLP_WIDTH * self.hidden, image_size=32, patch_size=self.patch, seed=seed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What all variants of a study have in common."""

    size: Size  # of the model and its batch
    turns: Turns  # a repeat is the straggler's time at one rank; its seed is also of weights, batch and random choices
    slowness: float = 1.0  # how many times slower than this machine all ranks' products are, by sleeping (see `Meter`)
    chooses: bool = True  # columns anew after the warm-up and as often again, or with each move; False: once for all
    device: str = "cpu"  # "cuda" for one GPU a rank, which holds the models of all variants


class Training:
    """The training of one variant on this rank."""

    def __init__(
        self,
        variant: Variant | None,
        setting: Setting,
        recorder: Recorder,
        *,
        costs: Costs | None = None,
        records_products: bool = True,
    ):
        turns, device, size = setting.turns, setting.device, setting.size
        group = RecordedTensorGroup(recorder=recorder)  # its own: other variants' messages are not watched
        self.model = ViTForImageClassification(size.config(turns.seed), group).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, fused=True)
        generator = torch.Generator().manual_seed(turns.seed)
        self.images = torch.randn(size.batch, 3, 32, 32, generator=generator).to(device)
        self.labels = torch.randint(NUM_LABELS, (size.batch,), generator=generator).to(device)
        self.recorder, self.balancer, self.num_settling = recorder, None, 0
        (rank,) = group.local_ranks
        trace = None if variant is None else variant.trace(group.size, turns.iterations_per_repeat)
        watch = recorder.during if records_products else nullcontext
        self.meter = Meter(rank, trace, slowness=setting.slowness, device=device, watch=watch)
        if variant is not None:
            warmup = turns.warmup * turns.length if setting.chooses and not variant.moves else 0
            per_choice = warmup or turns.iterations_per_repeat
            drift = micro_threshold(LEARNING_RATE, per_choice)
            more = {"iterations_per_epoch": per_choice, "micro_threshold": drift, "seed": turns.seed}
            policy, meters = variant.policy(group.size, **more), {rank: self.meter}
            self.balancer = Balancer(self.model, group, policy, costs=costs, meters=meters)
            if variant.patience > 1:  # plans made with patience settle in whole turns
                self.num_settling = math.ceil(PLANS_TO_SETTLE * variant.patience / turns.length) * turns.length
        self.dose = self.meter.dose

    def step(self) -> None:
        with nullcontext() if self.balancer is None else self.balancer.iteration():
            functional.cross_entropy(self.model(self.images), self.labels).backward()
            with self.recorder.during(OPTIMIZER, Kind.OTHER):
                self.optimizer.step()
                self.optimizer.zero_grad()

    def end(self) -> Notes:
        """Return the notes of the turn that ends here."""
        before, self.dose = self.dose, self.meter.dose
        if self.balancer is None:
            return Notes(dose=self.dose - before)
        return Notes(dose=self.dose - before, dropped_share=self.balancer.dropped_share, plan=self.balancer.plan)


def trials(recorder: Recorder, variants: Variants, setting: Setting) -> dict[str, Trial]:
    """Build the training of every variant on this rank; one pre-test, without stragglers, serves all of them."""
    costs, trainings = None, {}
    records_products = None not in variants.values()  # or recording would be charged to balancing alone
    num_ranks = torch.distributed.get_world_size()
    balanced = [variant for variant in variants.values() if variant is not None]
    if needing := [variant for variant in balanced if needs_costs(variant.policy(num_ranks))]:
        # The choice of columns does not change their costs.
        tested = replace(needing[0], skewness=(), moves=False, selection=Selection.RANDOM.value)
        training = Training(tested, setting, recorder)
        assert training.balancer is not None  # a variant has one
        while training.balancer.costs is None:
            training.step()
        costs = training.balancer.costs
    for name, variant in variants.items():
        training = Training(variant, setting, recorder, costs=costs, records_products=records_products)
        settling = training.num_settling
        trainings[name] = Trial(step=training.step, settling=settling, end=training.end, close=lambda: costs)
    return trainings


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """The results of a study."""

    rows: list[dict]  # medians over rounds with intervals, by variant
    rounds: dict[str, list[float]]  # seconds of each variant's iterations, round by round
    timelines: dict[str, Timeline]  # one turn of each variant, that of median length, waiting apart from transfer
    costs: Costs | None  # of the pre-test; None if no variant needed one
    hosts: dict | None  # description of the shaped hosts; None for this machine's loopback

    @property
    def trace(self) -> dict:
        """The timelines one under the other, as a Chrome trace."""
        return chrome_trace(Timeline.merged([timeline.actions for timeline in self.timelines.values()]), name="flextp")


def measure_variants(
    variants: Variants,
    *,
    size: Size,
    num_ranks: int = 4,
    rounds: int,
    warmup: int = 4,
    turn: int = 1,
    slowness: float = 4.0,
    seed: int = 0,
    chooses: bool = True,
    keys: Mapping[str, Mapping] | None = None,
    device: str = "cpu",
    **hosts: Any,
) -> Measured:
    """Train all variants in turns on real ranks; a straggler that moves has so many `rounds` after each move.

    `hosts` are a link and a number of hosts, as for `open_ranks`.
    """
    moves = any(variant is not None and variant.moves for variant in variants.values())
    turns = Turns(rounds=rounds, warmup=warmup, length=turn, repeats=num_ranks if moves else 1, seed=seed)
    turns.check_interval()
    require(size.heads % num_ranks == 0, "num_ranks", num_ranks, f"a divisor of the model's {size.heads} heads")
    for name, variant in variants.items():
        require(variant is not None or slowness == 1, "slowness", slowness, f"1 where {name!r} is not balanced")
        if variant is not None:
            variant.trace(num_ranks, turns.iterations_per_repeat)
            check_policy(variant.policy(num_ranks), num_ranks)
    setting = Setting(size=size, turns=turns, slowness=slowness, chooses=chooses, device=device)
    with open_ranks(num_ranks, device=device, preload=(__name__,), timeout_s=TIMEOUT_S, **hosts) as ranks:
        timed = time_variants(ranks, trials, dict(variants), setting, turns=turns)
    keys = {name: {"variant": name} for name in variants} if keys is None else keys
    return Measured(
        rows=rows_of(variants, timed, keys=keys, iterations_per_epoch=size.num_iterations),
        rounds={name: timed.iterations_s(name) for name in variants},
        timelines={name: timeline_of(timed.median_turn(name), name) for name in variants},
        costs=next(iter(timed.facts.values()))[0],
        hosts=timed.hosts,
    )


def measure_machinery(*, turn: int = PATIENCE, **more: Any) -> Measured:
    """Time a model with and without `balance`, no stragglers, nothing slowed; see `measure_variants`."""
    variants = {BALANCED: Variant(solution="SEMI", refine=True, patience=PATIENCE), UNBALANCED: None}
    keys = {name: {"solution": name} for name in variants}
    return measure_variants(variants, keys=keys, turn=turn, slowness=1.0, warmup=2, chooses=False, **more)
