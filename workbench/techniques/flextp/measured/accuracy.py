"""Train a Vision Transformer while its stragglers are helped, and score it: the cells of figures 3 and 5 to 11.

Virtual and real ranks run the same loop on the same batches and make the same plans. Plans follow the modelled times of
the paper's machine (`cost`), so that the dropped columns are those that would be dropped there.
"""

from __future__ import annotations

import inspect
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import zip_longest
from math import fsum
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from workbench.datasets import cifar10
from workbench.launch import Ranks
from workbench.models.vit import VIT_1B, VIT_3B, VIT_TINY, ViTForImageClassification
from workbench.parallel import ProcessTensorGroup, TensorGroup, VirtualTensorGroup
from workbench.parallel.pipeline import StepResult, VirtualPipeline
from workbench.study import training
from workbench.study.cells import named
from workbench.techniques.flextp import cost as modelled
from workbench.techniques.flextp.cost import iteration_parts, model_costs, model_times, paper_machine
from workbench.techniques.flextp.measured.scores import BASELINE, name_of
from workbench.techniques.flextp.measured.variant import Variant
from workbench.techniques.flextp.method.plan import require
from workbench.techniques.flextp.method.priority import micro_threshold
from workbench.techniques.flextp.runtime.balancer import Balancer, balance
from workbench.techniques.flextp.runtime.meter import ModelledTimes
from workbench.techniques.flextp.runtime.policy import check_policy
from workbench.training.images import Augmentation, ImageExamples, accuracy
from workbench.training.loop import Recipe, train

__all__ = ["SIZES", "compare_on_ranks", "compared_by_seed", "train_vit", "train_vit_on_ranks", "training_cells"]

SIZES = MappingProxyType(
    {
        "tiny": VIT_TINY,
        "small": replace(VIT_TINY, hidden_size=192, mlp_size=768),  # as much wider than tiny as ViT-3B than ViT-1B
        "1B": VIT_1B,
        "3B": VIT_3B,
    }
)
"""Models by name."""

WORKLOADS = MappingProxyType(
    {"tiny": modelled.VIT_1B, "small": modelled.VIT_3B, "1B": modelled.VIT_1B, "3B": modelled.VIT_3B}
)
"""The paper's model and batch whose times plans follow."""

MEAN_LEARNING_RATE = 0.5  # of its peak, over a short warm-up and a linear decay to zero
VARIANT = tuple(field.name for field in fields(Variant))


@named("flextp/train_vit")
def train_vit(
    *,
    solution: str = "Baseline",
    selection: str = "Pri",
    pruning_ratio: float | None = None,
    everywhere: bool = False,
    dropped: Sequence[float] = (),
    imputation: str = "Zero",
    is_incremental: bool = True,
    num_senders: int | None = None,
    refine: bool = False,
    skewness: Sequence[float] = (),
    moves: bool = False,
    seed: int = 0,
    num_ranks: int = 4,
    size: str = "tiny",
    epochs: int = 10,
    batch: int = 64,
    learning_rate: float = 1e-3,
    limit: int | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    """Train on virtual ranks in this process, and score on the test split.

    Arguments up to `moves` are those of `Variant`. `size` names a model of `SIZES`; `limit` training images are drawn
    with the seed, None takes all.
    """
    return _run(VirtualTensorGroup(num_ranks), _Setting.of(locals()))


def train_vit_on_ranks(ranks: Ranks, **arguments: Any) -> dict[str, Any]:
    """Train on real ranks of this machine, without injected delays; the plans are those of `train_vit`."""
    setting = _setting_of(arguments)
    if ranks.num_ranks != setting.num_ranks:
        raise ValueError(f"num_ranks is {setting.num_ranks}; it must be the pool's {ranks.num_ranks}")
    results = ranks.run(_on_a_rank, setting)
    return {**results[0], "dropped_share": fsum(result["dropped_share"] for result in results) / len(results)}


def compare_on_ranks(
    compared: Sequence[Mapping[str, Any]], *, num_ranks: int, timeout_s: float = 600, **recipe: Any
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Train every variant on real and on virtual ranks; return rows of the differences, and all results."""
    variants = [(name_of(variant), {**recipe, **variant, "num_ranks": num_ranks}) for variant in compared]
    for _, arguments in variants:
        _setting_of(arguments)
    with Ranks(num_ranks, timeout_s=timeout_s, preload=(__name__,)) as ranks:
        return training.compare_on_ranks(
            variants,
            on_real=partial(train_vit_on_ranks, ranks),
            on_virtual=train_vit,
            more=_differences,
            key="solution",
            score="accuracy",
        )


def compared_by_seed(compared: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """List fields of `Variant` that are compared, with the Baseline before them, seed by seed."""
    return training.by_seed(compared, seeds, {"solution": BASELINE})


def training_cells(wanted: Sequence[Mapping[str, Any]], **recipe: Any) -> list[dict[str, Any]]:
    """Return every argument of `train_vit` for each training of `compared_by_seed`; some may be equal.

    Without stragglers nobody drops or migrates: the training is the Baseline, as is any Baseline under stragglers.
    """
    defaults = {name: parameter.default for name, parameter in inspect.signature(train_vit).parameters.items()}
    return [_cell(defaults, {**recipe, **variant}) for variant in wanted]


def _cell(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    if unknown := sorted(set(given) - set(defaults)):
        raise ValueError(f"{unknown[0]} is given; it must be among {', '.join(defaults)}")
    cell = {**defaults, **given}
    constant = cell["everywhere"] or any(cell["dropped"])
    nobody_straggles = all(skewness == 1 for skewness in cell["skewness"])
    if cell["solution"] == BASELINE or (nobody_straggles and not constant):
        cell |= {name: defaults[name] for name in VARIANT if name in defaults}
    elif cell["everywhere"] or cell["dropped"]:
        cell |= {"skewness": (), "moves": False}  # a constant plan follows nobody's times
    return {**cell, "skewness": list(cell["skewness"]), "dropped": list(cell["dropped"])}


def _differences(real: Mapping[str, Any], virtual: Mapping[str, Any]) -> Iterator[tuple[str, float, str]]:
    yield "dropped_difference", training.PER_CENT * (real["dropped_share"] - virtual["dropped_share"]), "%"
    pairs = zip_longest(real["plans"], virtual["plans"])
    yield "plans_difference", float(sum(one != other for one, other in pairs)), "1"


def _setting_of(arguments: Mapping[str, Any]) -> _Setting:
    bound = inspect.signature(train_vit).bind(**arguments)
    bound.apply_defaults()
    return _Setting.of(bound.arguments)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Setting:
    """The arguments of `train_vit`, checked."""

    variant: Variant
    recipe: Recipe
    size: str
    num_ranks: int
    limit: int | None

    def __post_init__(self) -> None:
        require(self.size in SIZES, "size", self.size, f"one of {', '.join(SIZES)}")
        heads = SIZES[self.size].num_heads
        if self.num_ranks < 2 or heads % self.num_ranks:
            raise ValueError(
                f"num_ranks is {self.num_ranks}; it must be at least 2 and divide the model's {heads} attention heads"
            )
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit is {self.limit}; it must be at least 1, or None for all images")
        self.variant.trace(self.num_ranks, 1)
        check_policy(self.variant.policy(self.num_ranks), self.num_ranks)

    @classmethod
    def of(cls, given: dict[str, Any]) -> _Setting:
        recipe = Recipe(**{name: given[name] for name in ("epochs", "batch", "learning_rate", "seed", "device")})
        rest = {name: given[name] for name in ("size", "num_ranks", "limit")}
        return cls(variant=Variant.of(given), recipe=recipe, **rest)


def _on_a_rank(setting: _Setting) -> dict[str, Any]:
    return _run(ProcessTensorGroup(), setting)


def _run(group: TensorGroup, setting: _Setting) -> dict[str, Any]:
    start = time.perf_counter()
    recipe = setting.recipe
    learning = cifar10.load("train", limit=setting.limit, seed=recipe.seed)
    scored = cifar10.load("test")
    iterations = -(-len(learning) // recipe.batch)
    config = replace(SIZES[setting.size], seed=recipe.seed)
    model = ViTForImageClassification(config, group).to(recipe.device)
    balancer = balance(model, group, **_balancing(setting, iterations))
    pipeline = _Balanced(VirtualPipeline([model], loss=functional.cross_entropy), balancer)
    run = train(pipeline, ImageExamples.of(learning), recipe, augment=Augmentation(seed=recipe.seed, shift_pixels=0))
    return {
        "accuracy": accuracy(pipeline, ImageExamples.of(scored), recipe),
        "chance": Counter(map(int, scored.labels)).most_common(1)[0][1] / len(scored),
        "num_test": len(scored),
        "train_loss": fsum(run.losses_at_end) / len(run.losses_at_end),
        "dropped_share": pipeline.dropped_share,
        "migrated_share": pipeline.migrated_share,
        "plans": [{"iteration": step.iteration, **step.plan.as_record()} for step in balancer.steps],
        "num_steps": run.num_steps,
        "seconds": time.perf_counter() - start,
        "num_train": len(learning),
        "data": [learning.source.as_record(), scored.source.as_record()],
    }


def _balancing(setting: _Setting, iterations_per_epoch: int) -> dict[str, Any]:
    """Return the policy, and the times and costs of the paper's machine with as many ranks."""
    workload, machine = WORKLOADS[setting.size], replace(paper_machine(), devices_per_host=setting.num_ranks)
    parts, recipe = iteration_parts(workload, machine), setting.recipe
    drift = micro_threshold(MEAN_LEARNING_RATE * recipe.learning_rate, iterations_per_epoch)
    more = {"iterations_per_epoch": iterations_per_epoch, "micro_threshold": drift, "seed": recipe.seed}
    trace = setting.variant.trace(setting.num_ranks, iterations_per_epoch)
    return {
        "policy": setting.variant.policy(setting.num_ranks, **more),
        "modelled": ModelledTimes(trace, product_s=parts.product_s, other_s=parts.other_s),
        "costs": model_costs(workload, machine, model_times({}, workload, machine)),
    }


class _Balanced:
    """A pipeline whose steps are balanced; adds up the shares that its ranks drop and migrate."""

    def __init__(self, pipeline: VirtualPipeline, balancer: Balancer):
        self._pipeline, self._balancer = pipeline, balancer
        self._dropped: list[float] = []  # of each step, shares of all products
        self._migrated: list[float] = []
        self.module: nn.Module = pipeline.module

    @property
    def dropped_share(self) -> float:
        """Share of the local ranks' products so far that no rank computed."""
        return fsum(self._dropped) / max(1, len(self._dropped))

    @property
    def migrated_share(self) -> float:
        """Share of all ranks' products so far that another rank computed, by the plans."""
        return fsum(self._migrated) / max(1, len(self._migrated))

    def step(self, inputs: Tensor, targets: Tensor, **context: Tensor) -> StepResult:
        """Run one batch forward and backward, balanced."""
        with self._balancer.iteration():
            result = self._pipeline.step(inputs, targets, **context)
        ranks = self._balancer.plan.ranks
        self._dropped.append(self._balancer.dropped_share)
        self._migrated.append(fsum(rank.migrated for rank in ranks) / len(ranks))
        return result

    def evaluate(self, inputs: Tensor, **context: Tensor) -> Tensor | None:
        """Run one batch forward with all columns."""
        return self._pipeline.evaluate(inputs, **context)
