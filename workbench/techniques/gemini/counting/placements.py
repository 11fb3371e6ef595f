"""Rows of figures 6.3 and 6.9, of theorem 6.1, and of racks: what placements lose, and how probably.

Source: thesis, section 6.4 (figure 6.3, theorem 6.1, corollary 6.1) and section 6.7.2 (figure 6.9); racks: ours.
Simplified: probabilities are exact fractions until they are written as percent.
Left out: nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import comb

from ..method.placement import Placement, components, placement
from ..method.probability import (
    best_placement,
    gap_bound,
    gap_to_upper_bound,
    group_bound,
    recovery_probability,
    recovery_probability_by_definition,
    upper_bound,
)
from ..method.racks import rack_placement, rack_recovery_probability, racks_in_order

__all__ = [
    "FIGURE_6_3",
    "count_bounds",
    "count_gaps",
    "count_placements",
    "count_probabilities",
    "count_racks",
    "count_theorem",
    "union_bound",
]

Rows = list[dict[str, object]]

FIGURE_6_3 = ((4, "group"), (4, "ring"), (5, "mixed"))
"""Machines and kind of the figure's three placements; two replicas."""


def count_placements(num_replicas: int = 2) -> Rows:
    """Return what the placements of figure 6.3 lose when two machines fail, and how they are divided.

    Args:
        num_replicas: m.

    Returns:
        fatal: sets of m machines after which storage is needed. of: all such sets. fallback_saved: by how much rarer
        groups need it than a ring. part_size: machines that share replicas.
    """
    rows: Rows = []
    fatal = {}
    for num_machines, kind in FIGURE_6_3:
        placed = placement(num_machines, num_replicas, kind)
        num_sets = comb(num_machines, num_replicas)
        fatal[kind] = num_sets * (1 - recovery_probability_by_definition(placed, num_replicas))
        keys = {"placement": kind, "num_machines": num_machines}
        rows += [_row("fatal", int(fatal[kind]), "1", **keys), _row("of", num_sets, "1", **keys)]
        rows += [_row("part_size", len(part), "1", part=at + 1, **keys) for at, part in enumerate(components(placed))]
    saved = 1 - fatal["group"] / fatal["ring"]
    return [*rows, _row("fallback_saved", _percent(saved), "%", num_machines=4)]


def count_probabilities(machine_counts: Sequence[int], failure_counts: Sequence[int], num_replicas: int = 2) -> Rows:
    """Return how probably training recovers from memory, by machines, failures and placement.

    Args:
        machine_counts: values of N, multiples of m.
        failure_counts: values of k.
        num_replicas: m.

    Returns:
        recovery_probability: exact, for "group" and "ring". bound: corollary 6.1's, and for the ring the same sum over
        its sets. fallback: the rest of the exact one to 100 %, for groups.
    """
    rows: Rows = []
    for num_machines in machine_counts:
        for k in failure_counts:
            for kind in ("group", "ring"):
                placed = placement(num_machines, num_replicas, kind)
                keys = {"placement": kind, "num_machines": num_machines, "k": k}
                exact = recovery_probability(placed, k)
                rows += [
                    _row("recovery_probability", _percent(exact), "%", way="exact", **keys),
                    _row("recovery_probability", _percent(union_bound(placed, k)), "%", way="bound", **keys),
                    _row("fallback", _percent(1 - exact), "%", **keys),
                ]
    return rows


def count_bounds(num_machines: int, num_replicas: int, failure_counts: Sequence[int]) -> Rows:
    """Return how far the ring is behind groups, in every reading of the words, and how far the corollary is off.

    Args:
        num_machines: N, a multiple of m.
        num_replicas: m.
        failure_counts: values of k.

    Returns:
        ring_lower: by reading: of exact probabilities or of bounds, relative to groups or in points. bound_error:
        exact less corollary 6.1.
    """
    rows: Rows = []
    group, ring = (placement(num_machines, num_replicas, kind) for kind in ("group", "ring"))
    for k in failure_counts:
        keys = {"num_machines": num_machines, "k": k}
        pairs = {
            "exact": (recovery_probability(group, k), recovery_probability(ring, k)),
            "bound": (union_bound(group, k), union_bound(ring, k)),
        }
        for way, (of_group, of_ring) in pairs.items():
            if of_group:
                relative = _percent((of_group - of_ring) / of_group)
                rows.append(_row("ring_lower", relative, "%", reading=f"{way}, relative", **keys))
            rows.append(_row("ring_lower", _percent(of_group - of_ring), "%", reading=f"{way}, points", **keys))
        error = pairs["exact"][0] - group_bound(num_machines, num_replicas, k)
        rows.append(_row("bound_error", _percent(error), "%", **keys))
    return rows


def union_bound(placed: Placement, k: int) -> Fraction:
    """Bound a recovery probability as corollary 6.1 does: every fatal set counted with all that may fail beside it.

    Args:
        placed: any placement.
        k: machines lost at once.

    Returns:
        max(0, 1 - n C(N-m, k-m) / C(N, k)), n the number of different sets of holders; exact where no two can fail
        together. For groups it is corollary 6.1.
    """
    num_machines, num_replicas = placed.num_machines, placed.num_replicas
    if k < num_replicas:
        return Fraction(1)
    num_sets = len({frozenset(holders) for holders in placed.holders})
    ways = num_sets * comb(num_machines - num_replicas, k - num_replicas)
    return max(Fraction(0), 1 - Fraction(ways, comb(num_machines, k)))


def count_theorem(sizes: Sequence[Sequence[int]]) -> Rows:
    """Return the best of all placements beside algorithm 6.1's.

    Args:
        sizes: triples N, m, k, small.

    Returns:
        best_probability: by among: "all" placements, those that are "balanced" (m replicas on every machine), and
        "algorithm 6.1". missed: by algorithm 6.1, of the best of all and of the balanced ones. upper_bound_missed: by
        the best of all placements (k = m).
    """
    rows: Rows = []
    for num_machines, num_replicas, k in sizes:
        keys = {"num_machines": num_machines, "num_replicas": num_replicas, "k": k}
        ours = recovery_probability(placement(num_machines, num_replicas), k)
        best = {
            "all": best_placement(num_machines, num_replicas, k).probability,
            "balanced": best_placement(num_machines, num_replicas, k, balanced=True).probability,
        }
        rows.append(_row("best_probability", _percent(ours), "%", among="algorithm 6.1", **keys))
        for among, probability in best.items():
            rows.append(_row("best_probability", _percent(probability), "%", among=among, **keys))
            rows.append(_row("missed", _percent(probability - ours), "%", among=among, **keys))
        if k == num_replicas:
            missed = upper_bound(num_machines, num_replicas) - best["all"]
            rows.append(_row("upper_bound_missed", _percent(missed), "%", **keys))
    return rows


def count_gaps(most_machines: int, replica_counts: Sequence[int]) -> Rows:
    """Return how much of the paper's bound on the gap algorithm 6.1 uses where m does not divide N.

    Args:
        most_machines: largest N.
        replica_counts: values of m.

    Returns:
        gap_share: gap to the upper bound at k = m, over (2m - 3)/C(N, m); by N and m.
    """
    rows: Rows = []
    for num_replicas in replica_counts:
        for num_machines in range(num_replicas + 1, most_machines + 1):
            if num_machines % num_replicas:
                gap = gap_to_upper_bound(placement(num_machines, num_replicas))
                share = float(gap / gap_bound(num_machines, num_replicas))
                rows.append(_row("gap_share", share, "1", num_machines=num_machines, num_replicas=num_replicas))
    return rows


def count_racks(clusters: Sequence[Sequence[int]], lost_counts: Sequence[int]) -> Rows:
    """Return how probably training recovers from memory when whole racks are lost.

    Args:
        clusters: triples N, machines per rack, m.
        lost_counts: values of r.

    Returns:
        rack_recovery: by placement: "group" and "ring" in the order of the machines, "group across racks" and "ring
        across racks" by `rack_placement`. machine_loss_change: what knowing the racks changes where m machines fail
        one by one.
    """
    rows: Rows = []
    for num_machines, per_rack, num_replicas in clusters:
        rack_of = racks_in_order(num_machines, per_rack)
        keys = {"num_machines": num_machines, "per_rack": per_rack, "num_replicas": num_replicas}
        for kind, name in (("mixed", "group"), ("ring", "ring")):
            plain = placement(num_machines, num_replicas, kind)
            aware = rack_placement(rack_of, num_replicas, kind)
            for placed, called in ((plain, name), (aware, f"{name} across racks")):
                for lost in lost_counts:
                    chance = _percent(rack_recovery_probability(placed, rack_of, lost))
                    rows.append(_row("rack_recovery", chance, "%", placement=called, lost=lost, **keys))
            change = recovery_probability(aware, num_replicas) - recovery_probability(plain, num_replicas)
            rows.append(_row("machine_loss_change", _percent(change), "%", placement=name, **keys))
    return rows


def _percent(share: Fraction) -> float:
    return float(100 * share)


def _row(quantity: str, value: float, unit: str, **keys: object) -> dict[str, object]:
    return {"quantity": quantity, **keys, "value": value, "unit": unit}
