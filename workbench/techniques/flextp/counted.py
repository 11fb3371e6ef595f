"""Rows of the counted items: the worked example of figure 2, the paper's setting, and certificates of SEMI's plans."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from workbench.models import ViTConfig, ViTForImageClassification, vit
from workbench.parallel import ColumnParallelLinear, VirtualTensorGroup
from workbench.parallel.traffic import Phase
from workbench.study.rows import value_row

from .cost import MODELS
from .method.costs import Costs, PiecewiseLinear
from .method.optimum import best_plan_by_search, certify, fastest_division
from .method.plan import RankTimes, Scheme, require
from .method.planners import plan_semi
from .method.resizing import Imputation
from .method.worked_example import DROPPED, GRAD_OUTPUT_NO, INPUT_NK, ResizedProduct, WorkedExample, worked_example
from .runtime import Cut, FlexibleProduct, delivery_of, divide

__all__ = [
    "Case",
    "case_rows",
    "count_all_reduces",
    "count_setting",
    "count_stored",
    "count_worked_example",
    "draw_case",
    "search_rows",
    "summary_rows",
]

Rows = list[dict[str, Any]]


def count_worked_example(imputations: Sequence[str]) -> Rows:
    """Count the example's multiplications, and by imputation the elements of its results that are off."""
    if not imputations:
        raise ValueError("imputations is empty; it must name at least one")
    examples = {each: worked_example(Imputation(each)) for each in imputations}
    rows: Rows = []
    for resized in next(iter(examples.values())).products:
        plain, multiplications = resized.plain_multiplications, resized.multiplications
        rows.append(value_row("plain_multiplications", plain, product=resized.name))
        rows.append(value_row("multiplications", multiplications, product=resized.name))
        rows.append(value_row("saved_share", 1 - multiplications / plain, product=resized.name))
    return rows + [row for name, example in examples.items() for row in _recovery_rows(name, example)]


def count_stored(imputations: Sequence[str]) -> Rows:
    """Count by imputation the bytes of gradients that rank 0 keeps for its next iteration of the example's layer."""
    return [value_row("stored_bytes", _stored_bytes(Imputation(each)), "byte", imputation=each) for each in imputations]


def _stored_bytes(imputation: Imputation) -> int:
    (num_rows, num_columns), num_outputs = (len(INPUT_NK), len(INPUT_NK[0])), len(GRAD_OUTPUT_NO[0])
    group = VirtualTensorGroup(2)
    layer = ColumnParallelLinear(num_columns, 2 * num_outputs, group)
    product = FlexibleProduct(
        group, Cut.COLUMN, layer.site, delivery=delivery_of(Scheme.BROADCAST_REDUCE, group), imputation=imputation
    )
    dropped = {0: torch.tensor(DROPPED), 1: torch.empty(0, dtype=torch.int64)}
    product.division = divide(num_columns, num_ranks=2, dropped=dropped, migrated={})
    layer.matrix_product = product
    sum(part.sum() for part in layer(torch.ones(num_rows, num_columns, requires_grad=True))).backward()
    return sum(kept.nbytes for (rank, _, _), kept in product.previous.items() if rank == 0)


def _recovery_rows(imputation: str, example: WorkedExample) -> Rows:
    keys = [{"product": product.name, "imputation": imputation} for product in example.products]
    rows = [
        value_row("shape_difference", _shape_difference(product), **key)
        for product, key in zip(example.products, keys, strict=True)
    ]
    dropped = example.lineage["linear", "input"]
    for gradient, key in zip(example.products[1:], keys[1:], strict=True):
        kept = torch.ones(gradient.plain.shape[1], dtype=torch.bool)
        kept[dropped] = False
        missing = _imputed(gradient.plain[:, kept], len(dropped), Imputation(imputation))
        rows.append(value_row("kept_columns_off", _off(gradient, kept, gradient.plain[:, kept]), **key))
        rows.append(value_row("missing_columns_off", _off(gradient, ~kept, missing), **key))
    return rows


def _imputed(kept: Tensor, num_missing: int, imputation: Imputation) -> Tensor:
    """Return what is to stand in the missing columns in a first iteration, which has nothing to repeat."""
    if imputation is Imputation.AVERAGE:
        return kept.mean(dim=1, keepdim=True).expand(-1, num_missing)
    return kept.new_zeros(len(kept), num_missing)


def _shape_difference(product: ResizedProduct) -> int:
    return sum(abs(one - other) for one, other in zip(product.result.shape, product.plain.shape, strict=True))


def _off(gradient: ResizedProduct, columns: Tensor, wanted: Tensor) -> int:
    """Return how many elements of some columns are not as wanted: all of them in a gradient of another shape."""
    if _shape_difference(gradient):
        return wanted.numel()
    return int((gradient.result[:, columns] != wanted).sum())


# --- the setting

CONFIGS = MappingProxyType({"ViT-1B": vit.VIT_1B, "ViT-3B": vit.VIT_3B})
BOTH = "forward and backward"
PAPERS_PER_ITERATION = 48  # section II-B


def count_setting(num_epochs: int, iterations_per_epoch: int) -> Rows:
    """Count parameters, iterations of an epoch of CIFAR-10, and all-reduces of an iteration and of a training."""
    rows: Rows = []
    for name, config in CONFIGS.items():
        model = ViTForImageClassification(config, device="meta")
        count = sum(parameter.numel() for parameter in model.parameters())
        rows.append(value_row("parameters", count, model=name))
        rows.append(value_row("iterations_per_epoch", MODELS[name].num_iterations, model=name))
    forward, backward = count_all_reduces(CONFIGS["ViT-1B"].num_layers)
    counts = {"forward": forward, BOTH: forward + backward}
    num_iterations = num_epochs * iterations_per_epoch
    totals = counts | {f"{PAPERS_PER_ITERATION} an iteration": PAPERS_PER_ITERATION}
    totals = {name: count * num_iterations for name, count in totals.items()}
    for quantity, counted in (("all_reduces_per_iteration", counts), ("all_reduces_of_training", totals)):
        rows += [value_row(quantity, value, model="ViT-1B", counted=name) for name, value in counted.items()]
    return rows


def count_all_reduces(num_layers: int) -> tuple[int, int]:
    """Run an iteration of a narrow Vision Transformer on two virtual ranks and count: (forward, backward)."""
    small = {"hidden_size": 16, "num_heads": 2, "mlp_size": 32, "image_size": 8, "patch_size": 4}
    group = VirtualTensorGroup(2)
    model = ViTForImageClassification(ViTConfig(num_layers=num_layers, **small), group)
    model(torch.zeros(1, 3, 8, 8)).sum().backward()
    phases = Counter(message.phase for message in group.traffic)
    return phases[Phase.FORWARD], phases[Phase.BACKWARD]


# --- certificates

NUM_RANKS = 4
REFINED = MappingProxyType({"SEMI": False, "SEMI refined": True})
RANGES = MappingProxyType(
    {
        "other": (0.1, 1.0),  # time outside of products
        "skewness": (1.2, 8.0),
        "extract": (0.0, 0.1),
        "whole": (0.0, 0.3),  # what travels as soon as any column migrates
        "communicate": (0.0, 0.6),  # of all columns of one rank, beside it
        "kept": (0.0, 0.15),  # of a rank's products, what they take however few columns it keeps
        "received": (0.0, 0.3),  # of a normal rank's, what those for one sender take however few it hands over
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """Times of all ranks, and what migrating costs them."""

    times: tuple[RankTimes, ...]
    costs: Costs


def draw_case(seed: int, num_stragglers: int) -> Case:
    """Draw a case of four ranks, 1 to 3 of them stragglers."""
    require(1 <= num_stragglers < NUM_RANKS, "num_stragglers", num_stragglers, f"in 1..{NUM_RANKS - 1}")
    generator = random.Random(f"{seed} {num_stragglers}")

    def draw(name: str) -> float:
        return generator.uniform(*RANGES[name])

    other_s, whole_s = draw("other"), draw("whole")
    products_s = [draw("skewness") for _ in range(num_stragglers)] + [1.0] * (NUM_RANKS - num_stragglers)
    extract, communicate = PiecewiseLinear.straight(draw("extract")), draw("communicate")
    kept = draw("kept")
    costs = Costs(
        alloc_s=0.0,
        extract=extract,
        communicate=PiecewiseLinear.straight(communicate, at_zero_s=whole_s),
        compute=PiecewiseLinear.straight(1.0 - kept, at_zero_s=draw("received")),
        fixed_share=kept,
    )
    measured = (RankTimes(own_s=other_s + each_s, product_s=each_s) for each_s in products_s)
    return Case(times=tuple(map(costs.proportional, measured)), costs=costs)


def case_rows(seeds: Sequence[int], nums_stragglers: Sequence[int]) -> Rows:
    """Plan and certify cases, drawn anew for every number of stragglers.

    Rows: slower_by, time above the fastest division that drops no more; drops_more_by, shares dropped above those of
    the gentlest division that is no slower.
    """
    rows: Rows = []
    for num_stragglers, seed in product(nums_stragglers, seeds):
        case = draw_case(seed, num_stragglers)
        for name, refine in REFINED.items():
            certificate = certify(case.times, plan_semi(case.times, case.costs, refine=refine), case.costs)
            keys = {"solution": name, "num_stragglers": num_stragglers, "case": seed}
            gaps = {"slower_by": certificate.slower_by, "drops_more_by": certificate.drops_more_by}
            rows += [value_row(gap, value, **keys) for gap, value in gaps.items()]
    return rows


def search_rows(seeds: Sequence[int], grids: Sequence[Sequence[int]]) -> Rows:
    """Compare all divisions of a grid that no other one beats with the fastest division that drops no more.

    Each grid is a pair (num_stragglers, num_steps); its shares are multiples of 1 / num_steps.
    """
    rows: Rows = []
    for (num_stragglers, num_steps), seed in product(grids, seeds):
        case = draw_case(seed, num_stragglers)
        gaps = [
            each.iteration_s / fastest_division(case.times, case.costs, most_dropped=each.dropped).iteration_s - 1
            for each in best_plan_by_search(case.times, case.costs, num_steps)
        ]
        keys = {"num_stragglers": num_stragglers, "num_steps": num_steps, "case": seed}
        rows.append(value_row("least_search_slower_by", min(gaps), **keys))
        rows.append(value_row("largest_search_slower_by", max(gaps), **keys))
    return rows


def summary_rows(rows: Rows) -> Rows:
    """Return median and largest of each gap by solution and number of stragglers."""
    groups: dict[tuple, list[float]] = {}
    for row in rows:
        groups.setdefault((row["quantity"], row["solution"], row["num_stragglers"]), []).append(row["value"])
    return [
        value_row(f"{name}_{gap}", summary(values), solution=solution, num_stragglers=num_stragglers)
        for (gap, solution, num_stragglers), values in groups.items()
        for name, summary in (("median", statistics.median), ("largest", max))
    ]
