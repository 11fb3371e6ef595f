"""The best of all placements, found by trying every one: a check of theorem 6.1.

What: every machine keeps its own shard and picks m - 1 others for it; all choices of all machines are tried.
Source: thesis, chapter 6 (Gemini), problem 6.1 and theorem 6.1.
Simplified: placements that differ by renumbering machines are tried one by one and counted apart.
Left out: placements without an own replica, which the proof of theorem 6.1 rules out for their traffic.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product
from math import comb

from .placement import Placement

__all__ = ["BestPlacement", "best_placement"]

MOST_PLACEMENTS = 300_000  # Tried in some seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class BestPlacement:
    """The best probability, and one placement that has it."""

    probability: Fraction  # that training recovers from memory when k machines are lost
    example: Placement  # the first best placement that was met
    num_best: int  # how many placements have it
    num_tried: int  # of how many


def best_placement(num_machines: int, num_replicas: int, k: int, *, balanced: bool = False) -> BestPlacement:
    """Try every placement.

    Args:
        num_machines: N, small.
        num_replicas: m.
        k: machines lost at once.
        balanced: try only those in which every machine keeps m replicas, as in a group or a ring.
    """
    _check(num_machines, num_replicas, k)
    losses = [frozenset(lost) for lost in combinations(range(num_machines), k)]
    choices = [_choices(machine, num_machines, num_replicas, losses) for machine in range(num_machines)]
    fewest, example, num_best, num_tried = len(losses) + 1, None, 0, 0
    for rows in product(*choices):
        if balanced and not _is_balanced([row for row, _ in rows], num_replicas):
            continue
        num_tried += 1
        fatal = 0
        for _, lost in rows:
            fatal |= lost
        num_fatal = fatal.bit_count()
        if num_fatal < fewest:
            fewest, example, num_best = num_fatal, rows, 0
        num_best += num_fatal == fewest
    return BestPlacement(
        probability=1 - Fraction(fewest, len(losses)),
        example=Placement.own([row for row, _ in example]),
        num_best=num_best,
        num_tried=num_tried,
    )


def _choices(
    machine: int, num_machines: int, num_replicas: int, losses: list[frozenset[int]]
) -> list[tuple[tuple[int, ...], int]]:
    """List a machine's possible holders, each with the losses (as bits) that take all of them."""
    others = [other for other in range(num_machines) if other != machine]
    rows = [(machine, *chosen) for chosen in combinations(others, num_replicas - 1)]
    return [(row, sum(1 << bit for bit, lost in enumerate(losses) if lost.issuperset(row))) for row in rows]


def _is_balanced(rows: list[tuple[int, ...]], num_replicas: int) -> bool:
    return set(Counter(holder for row in rows for holder in row).values()) == {num_replicas}


def _check(num_machines: int, num_replicas: int, k: int) -> None:
    if not 1 <= num_replicas <= num_machines:
        raise ValueError(f"num_replicas is {num_replicas}; it must be 1 to num_machines, {num_machines}")
    if not 0 <= k <= num_machines:
        raise ValueError(f"k is {k}; it must be 0 to num_machines, {num_machines}")
    num_placements = comb(num_machines - 1, num_replicas - 1) ** num_machines
    if num_placements > MOST_PLACEMENTS:
        raise ValueError(
            f"num_machines is {num_machines} and num_replicas {num_replicas}, which makes {num_placements:,} "
            f"placements; it must be at most {MOST_PLACEMENTS:,}"
        )
