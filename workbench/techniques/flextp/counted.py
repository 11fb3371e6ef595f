"""Rows of the counted items: the worked example of figure 2, the paper's setting, and certificates of SEMI's plans."""

import random
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch

from workbench.models import Cut, ViTConfig, ViTForImageClassification, vit
from workbench.parallel import ColumnParallelLinear, VirtualTensorGroup
from workbench.parallel.traffic import Phase
from workbench.rows import value_row

from .cost import MODELS
from .method.optimum import best_plan_by_search, certify, fastest_division
from .method.plan import Costs, Imputation, RankTimes, Solution, iteration_s
from .method.planners import plan_division, plan_for, stragglers
from .method.resizing import DROPPED, GRAD_OUTPUT_NO, INPUT_NK, kept_columns, worked_example
from .runtime import FlexibleProduct, divide

__all__ = ["Case", "case_rows", "count_all_reduces", "count_setting", "count_stored", "count_worked_example"]
__all__ += ["draw_case", "search_rows", "summary_rows"]

Rows = list[dict[str, Any]]


def count_worked_example(imputations: Sequence[str]) -> Rows:
    """Count the example's multiplications, and by imputation the elements off: all, in a gradient of another shape."""
    examples = {name: worked_example(Imputation(name)) for name in imputations}
    rows: Rows = []
    for resized in next(iter(examples.values())).products:
        row = partial(value_row, product=resized.name)
        rows.append(row("plain_multiplications", resized.plain_multiplications))
        rows.append(row("multiplications", resized.multiplications))
        rows.append(row("saved_share", 1 - resized.multiplications / resized.plain_multiplications))
    for imputation, example in examples.items():
        dropped = list(example.lineage["linear", "input"])
        for resized in example.products:
            row = partial(value_row, product=resized.name, imputation=imputation)
            result, wanted = resized.result, resized.plain.clone()
            difference = sum(abs(a - b) for a, b in zip(result.shape, wanted.shape, strict=True))
            rows.append(row("shape_difference", difference))
            if resized.name == "output":
                continue
            kept = kept_columns(dropped, wanted.shape[1])
            wanted[:, dropped] = 0  # Same has nothing to repeat in a first iteration
            if Imputation(imputation) is Imputation.AVERAGE:
                wanted[:, dropped] = wanted[:, kept].mean(dim=1, keepdim=True)
            off = torch.ones_like(wanted, dtype=torch.bool) if difference else result != wanted
            rows.append(row("kept_columns_off", int(off[:, kept].sum())))
            rows.append(row("missing_columns_off", int(off[:, dropped].sum())))
    return rows


def count_stored(imputations: Sequence[str]) -> Rows:
    """Count by imputation the bytes of gradients that rank 0 keeps for its next iteration of the example's layer."""
    (num_rows, num_columns), num_outputs = (len(INPUT_NK), len(INPUT_NK[0])), len(GRAD_OUTPUT_NO[0])
    group, rows = VirtualTensorGroup(2), []
    dropped = {0: torch.tensor(DROPPED), 1: torch.empty(0, dtype=torch.int64)}
    for name in imputations:
        layer = ColumnParallelLinear(num_columns, 2 * num_outputs, group)
        product = FlexibleProduct(group, Cut.COLUMN, layer.site, imputation=Imputation(name))
        product.division = divide(num_columns, num_ranks=2, dropped=dropped, migrated={})
        layer.matrix_product = product
        sum(part.sum() for part in layer(torch.ones(num_rows, num_columns, requires_grad=True))).backward()
        num_bytes = sum(gradient.nbytes for (rank, _, _), gradient in product.previous.items() if rank == 0)
        rows.append(value_row("stored_bytes", num_bytes, "byte", imputation=name))
    return rows


# --- the setting

CONFIGS = {"ViT-1B": vit.VIT_1B, "ViT-3B": vit.VIT_3B}
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
    counts = {"forward": forward, "forward and backward": forward + backward}
    row = partial(value_row, model="ViT-1B")
    rows += [row("all_reduces_per_iteration", count, counted=name) for name, count in counts.items()]
    for name, count in (counts | {f"{PAPERS_PER_ITERATION} an iteration": PAPERS_PER_ITERATION}).items():
        rows.append(row("all_reduces_of_training", count * num_epochs * iterations_per_epoch, counted=name))
    return rows


def count_all_reduces(num_layers: int) -> tuple[int, int]:
    """Run an iteration of a narrow Vision Transformer on two virtual ranks and count: (forward, backward)."""
    config = ViTConfig(num_layers=num_layers, hidden_size=16, num_heads=2, mlp_size=32, image_size=8, patch_size=4)
    group = VirtualTensorGroup(2)
    model = ViTForImageClassification(config, group)
    model(torch.zeros(1, 3, 8, 8)).sum().backward()
    phases = Counter(message.phase for message in group.traffic)
    return phases[Phase.FORWARD], phases[Phase.BACKWARD]


# --- certificates

NUM_RANKS = 4
REFINED = {"SEMI": False, "SEMI refined": True}
RANGES = {
    "other": (0.1, 1.0),  # time outside of products
    "skewness": (1.2, 8.0),
    "extract": (0.0, 0.1),
    "whole": (0.0, 0.3),  # what travels as soon as any column migrates
    "communicate": (0.0, 0.6),  # of all columns of one rank, beside it
    "kept": (0.0, 0.15),  # of a rank's products, what they take however few columns it keeps
    "received": (0.0, 0.3),  # of a normal rank's, what those for one sender take however few it hands over
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """Times of all ranks, and what migrating costs them."""

    times: tuple[RankTimes, ...]
    costs: Costs


def draw_case(seed: int, num_stragglers: int) -> Case:
    """Draw a case of four ranks, 1 to 3 of them stragglers."""
    generator = random.Random(f"{seed} {num_stragglers}")

    def draw(name: str) -> float:
        return generator.uniform(*RANGES[name])

    other_s, whole_s = draw("other"), draw("whole")
    products_s = [draw("skewness") for _ in range(num_stragglers)] + [1.0] * (NUM_RANKS - num_stragglers)
    extract_s, communicate_s, kept = draw("extract"), draw("communicate"), draw("kept")
    whole = {"whole_s": whole_s, "narrow_s": draw("received"), "fixed_share": kept}
    costs = Costs.straight(extract_s=extract_s, communicate_s=communicate_s, compute_s=1.0 - kept, **whole)
    measured = (RankTimes(own_s=other_s + product_s, product_s=product_s) for product_s in products_s)
    return Case(times=tuple(map(costs.proportional, measured)), costs=costs)


def case_rows(seeds: Sequence[int], nums_stragglers: Sequence[int]) -> Rows:
    """Plan and certify cases, drawn anew for every number of stragglers.

    Rows: `slower_by` than the fastest division that drops no more, `drops_more_by` than the gentlest that is no slower;
    both also beside figure 11's divisions alone: x migrate, the others drop.
    """
    rows: Rows = []
    for num_stragglers, seed in product(nums_stragglers, seeds):
        case = draw_case(seed, num_stragglers)
        for name, refine in REFINED.items():
            plan = plan_for(Solution.SEMI, case.times, case.costs, refine=refine)
            certificate = certify(case.times, plan, case.costs)
            row = partial(value_row, solution=name, num_stragglers=num_stragglers, case=seed)
            rows.append(row("slower_by", certificate.slower_by))
            rows.append(row("drops_more_by", certificate.drops_more_by))
            plans = [plan, *(plan_division(case.times, x) for x in range(len(stragglers(case.times)) + 1))]
            tried = [(iteration_s(case.times, division, case.costs), division.dropped) for division in plans]
            fastest_s = min(took_s for took_s, dropped in tried if dropped <= plan.dropped)
            gentlest = min(dropped for took_s, dropped in tried if took_s <= tried[0][0])
            rows.append(row("slower_than_figure_11s", tried[0][0] / fastest_s - 1))
            rows.append(row("drops_more_than_figure_11s", plan.dropped - gentlest))
    return rows


def search_rows(seeds: Sequence[int], grids: Sequence[Sequence[int]]) -> Rows:
    """Compare the best divisions of grids (num_stragglers, num_steps) with the fastest division that drops no more."""
    rows: Rows = []
    for (num_stragglers, num_steps), seed in product(grids, seeds):
        case, gaps = draw_case(seed, num_stragglers), []
        for best in best_plan_by_search(case.times, case.costs, num_steps):
            fastest = fastest_division(case.times, case.costs, most_dropped=best.plan.dropped)
            gaps.append(best.iteration_s / fastest.iteration_s - 1)
        row = partial(value_row, num_stragglers=num_stragglers, num_steps=num_steps, case=seed)
        rows.append(row("least_search_slower_by", min(gaps)))
        rows.append(row("largest_search_slower_by", max(gaps)))
    return rows


def summary_rows(rows: Rows) -> Rows:
    """Return median and largest of each gap by solution and number of stragglers."""
    groups: dict[tuple, list[float]] = {}
    for gap_row in rows:
        key = gap_row["quantity"], gap_row["solution"], gap_row["num_stragglers"]
        groups.setdefault(key, []).append(gap_row["value"])
    summaries: Rows = []
    for (gap, solution, num_stragglers), values in groups.items():
        row = partial(value_row, solution=solution, num_stragglers=num_stragglers)
        summaries.append(row(f"median_{gap}", statistics.median(values)))
        summaries.append(row(f"largest_{gap}", max(values)))
    return summaries
