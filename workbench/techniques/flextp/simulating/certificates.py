"""How far SEMI's plans are from the certified best division, over small cases drawn at random.

What: a case is the times of a few ranks, some of them stragglers, and what migration costs them; SEMI plans it as the
paper does and refined, and `method.search.certify` tries all divisions on a grid.
Source: ours; the objective is `method.search`'s.
Simplified: ranks differ in products alone; costs are straight lines.
Left out: the paper's machine; a case's numbers are drawn over what machines have.

Units: a normal rank's products of an iteration are the unit of time.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ..method.costs import Costs, PiecewiseLinear
from ..method.plan import RankTimes
from ..method.search import best_plan_by_search, certify, fastest_dropping
from ..method.semi import plan_semi
from .epochs import Rows

__all__ = ["Case", "case_rows", "draw_case", "summary_rows"]

NUM_RANKS = 4
REFINED = MappingProxyType({"SEMI": False, "SEMI refined": True})
RANGES = MappingProxyType(
    {
        "other": (0.1, 1.0),  # time outside of products
        "skewness": (1.2, 8.0),
        "extract": (0.0, 0.1),
        "whole": (0.0, 0.3),  # what travels as soon as any column migrates
        "communicate": (0.0, 0.6),  # of all columns of one rank, beside it
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
    costs = Costs(
        alloc_s=0.0,
        extract=PiecewiseLinear.straight(draw("extract")),
        communicate=PiecewiseLinear.straight(draw("communicate"), at_zero_s=whole_s),
        compute=PiecewiseLinear.straight(1.0),
    )
    return Case(times=tuple(RankTimes(own_s=other_s + each_s, product_s=each_s) for each_s in products_s), costs=costs)


def case_rows(seeds: Sequence[int], grids: Sequence[Sequence[int]]) -> Rows:
    """Plan and certify cases.

    Args:
        seeds: of the cases, drawn anew for every grid.
        grids: pairs (num_stragglers, num_steps); shares of the search are multiples of 1 / num_steps.

    Returns:
        Rows of each case: slower_by, time above the fastest division that drops no more, as a share; drops_more_by,
        columns dropped above the gentlest division that is no slower, in shares of one rank's; grid_slower_by, the
        plan's lead over the fastest division of the grid alone that drops no more, which is how coarse the grid is
        (below 0 where the grid has a faster one); keys solution, num_stragglers, case.
    """
    rows: Rows = []
    for num_stragglers, num_steps in grids:
        for seed in seeds:
            case = draw_case(seed, num_stragglers)
            grid = best_plan_by_search(case.times, case.costs, num_steps)
            for name, refine in REFINED.items():
                plan = plan_semi(case.times, case.costs, refine=refine)
                certificate = certify(case.times, plan, case.costs, num_steps)
                mine = certificate.mine
                keys = {"solution": name, "num_stragglers": num_stragglers, "case": seed}
                gaps = {
                    "slower_by": certificate.slower_by,
                    "drops_more_by": certificate.drops_more_by,
                    "grid_slower_by": fastest_dropping(mine.dropped, grid).iteration_s / mine.iteration_s - 1,
                }
                rows += [{"quantity": gap, **keys, "value": value, "unit": "1"} for gap, value in gaps.items()]
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
