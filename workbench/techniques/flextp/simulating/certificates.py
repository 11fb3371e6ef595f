"""How far SEMI's plans are from the certified best division, over small cases drawn at random.

What: a case is the times of a few ranks, some of them stragglers, and what migration costs them; SEMI plans it as the
paper does and refined, `method.optimum` finds the best divisions, and `method.search` tries all of a grid against them.
Source: ours; the objectives are `method.search`'s.
Simplified: ranks differ in products alone; costs are straight lines.
Left out: the paper's machine; a case's numbers are drawn over what machines have.

Units: a normal rank's products of an iteration are the unit of time.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType

from ..method.costs import Costs, PiecewiseLinear
from ..method.optimum import best_plan_by_search, certify, fastest_division
from ..method.plan import RankTimes
from ..method.planners import plan_semi
from .epochs import Rows

__all__ = ["Case", "case_rows", "draw_case", "search_rows", "summary_rows"]

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
    """Draw a case of four ranks.

    Args:
        seed: of this case.
        num_stragglers: 1 to 3 of the four.

    Raises:
        ValueError: for another number.
    """
    if not 1 <= num_stragglers < NUM_RANKS:
        raise ValueError(f"num_stragglers is {num_stragglers!r}; it must be in 1..{NUM_RANKS - 1}")
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
    """Plan and certify cases.

    Args:
        seeds: of the cases, drawn anew for every number of stragglers.
        nums_stragglers: of the four ranks.

    Returns:
        Rows of each case: slower_by, time above the fastest division that drops no more, as a share; drops_more_by,
        columns dropped above the gentlest division that is no slower, in shares of one rank's; keys solution,
        num_stragglers, case.
    """
    rows: Rows = []
    for num_stragglers, seed in product(nums_stragglers, seeds):
        case = draw_case(seed, num_stragglers)
        for name, refine in REFINED.items():
            certificate = certify(case.times, plan_semi(case.times, case.costs, refine=refine), case.costs)
            keys = {"solution": name, "num_stragglers": num_stragglers, "case": seed}
            gaps = {"slower_by": certificate.slower_by, "drops_more_by": certificate.drops_more_by}
            rows += [{"quantity": gap, **keys, "value": value, "unit": "1"} for gap, value in gaps.items()]
    return rows


def search_rows(seeds: Sequence[int], grids: Sequence[Sequence[int]]) -> Rows:
    """Try all divisions of a grid, by brute force, against the best ones.

    Args:
        seeds: of the cases.
        grids: pairs (num_stragglers, num_steps); shares of the search are multiples of 1 / num_steps.

    Returns:
        Rows over all divisions that no other of the grid beats: least_search_slower_by and largest_search_slower_by,
        time above the fastest division that drops no more, as a share; keys num_stragglers, num_steps, case.
    """
    rows: Rows = []
    for (num_stragglers, num_steps), seed in product(grids, seeds):
        case = draw_case(seed, num_stragglers)
        gaps = [
            each.iteration_s / fastest_division(case.times, case.costs, most_dropped=each.dropped).iteration_s - 1
            for each in best_plan_by_search(case.times, case.costs, num_steps)
        ]
        keys = {"num_stragglers": num_stragglers, "num_steps": num_steps, "case": seed, "unit": "1"}
        rows += [
            {"quantity": f"{name}_search_slower_by", **keys, "value": summary(gaps)}
            for name, summary in (("least", min), ("largest", max))
        ]
    return rows


def summary_rows(rows: Rows) -> Rows:
    """Return median and largest of each gap: rows median_<gap>, largest_<gap>, keys solution, num_stragglers."""
    groups: dict[tuple, list[float]] = {}
    for row in rows:
        groups.setdefault((row["quantity"], row["solution"], row["num_stragglers"]), []).append(row["value"])
    return [
        {
            "quantity": f"{name}_{gap}",
            "solution": solution,
            "num_stragglers": num_stragglers,
            "value": summary(values),
            "unit": "1",
        }
        for (gap, solution, num_stragglers), values in groups.items()
        for name, summary in (("median", statistics.median), ("largest", max))
    ]
