"""Racks that fail as a whole: a shard is lost if all of its holders stand in lost racks."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from math import comb

from .checks import require_counts
from .placement import Placement, is_recoverable, placement
from .surviving import num_surviving

__all__ = ["rack_placement", "rack_recovery_probability", "racks_in_order"]


def racks_in_order(num_machines: int, machines_per_rack: int) -> tuple[int, ...]:
    """Fill one rack after the other; return the rack of every machine, racks counting from 0."""
    require_counts(1, num_machines=num_machines, machines_per_rack=machines_per_rack)
    return tuple(machine // machines_per_rack for machine in range(num_machines))


def num_racks(rack_of: Sequence[int]) -> int:
    """Count the racks, of which none may be empty."""
    racks = set(rack_of)
    if not racks or racks != set(range(len(racks))):
        raise ValueError(f"rack_of names the racks {sorted(racks)}; they must be 0, 1, ... with none left out")
    return len(racks)


def rack_recovery_probability_by_definition(placed: Placement, rack_of: Sequence[int], num_lost: int) -> Fraction:
    """Try every set of lost racks."""
    racks = _checked_racks(placed.num_machines, rack_of, num_lost)
    recovered = sum(
        is_recoverable(placed, [machine for machine, rack in enumerate(rack_of) if rack in lost])
        for lost in combinations(range(racks), num_lost)
    )
    return Fraction(recovered, comb(racks, num_lost))


def rack_recovery_probability(placed: Placement, rack_of: Sequence[int], num_lost: int) -> Fraction:
    """Count the exact probability of recovery when r racks are lost at once; TooTangled where that takes too long."""
    racks = _checked_racks(placed.num_machines, rack_of, num_lost)
    racks_of_holders = {frozenset(rack_of[holder] for holder in holders) for holders in placed.holders}
    return Fraction(num_surviving(racks_of_holders, racks, num_lost), comb(racks, num_lost))


def rack_placement(rack_of: Sequence[int], num_replicas: int, kind: str = "mixed") -> Placement:
    """Place the replicas as `placement` does, with machines numbered so that a shard's holders stand in m racks.

    A group takes its machines from the racks that have the most left; the ring goes through the racks in turn. Where a
    rack has more than its share of the machines, some holders share a rack.
    """
    num_racks(rack_of)
    plain = placement(len(rack_of), num_replicas, kind)
    sizes = {"group": plain.num_machines, "ring": 0}
    num_grouped = sizes.get(plain.kind, num_replicas * (plain.num_machines // num_replicas - 1))
    waiting = {rack: [machine for machine, its in enumerate(rack_of) if its == rack] for rack in sorted(set(rack_of))}
    order: list[int] = []
    for _ in range(num_grouped // num_replicas):
        order += _taken(waiting, num_replicas)
    while any(waiting.values()):
        order += _taken(waiting, sum(map(bool, waiting.values())))
    number = dict(enumerate(order))
    holders = {number[place]: tuple(number[each] for each in row) for place, row in enumerate(plain.holders)}
    return Placement(
        num_machines=plain.num_machines,
        num_replicas=num_replicas,
        kind=plain.kind,
        holders=tuple(holders[machine] for machine in range(plain.num_machines)),
    )


def _taken(waiting: dict[int, list[int]], count: int) -> list[int]:
    """Take machines from the fullest racks, from each at most once before any gives a second; changes `waiting`."""
    taken: list[int] = []
    given = dict.fromkeys(waiting, 0)
    while len(taken) < count:
        filled = [rack for rack in waiting if waiting[rack]]
        rack = min(filled, key=lambda rack: (given[rack], -len(waiting[rack]), rack))
        given[rack] += 1
        taken.append(waiting[rack].pop(0))
    return taken


def _checked_racks(num_machines: int, rack_of: Sequence[int], num_lost: int) -> int:
    if len(rack_of) != num_machines:
        raise ValueError(f"rack_of has {len(rack_of)} entries; it must have one a machine, {num_machines}")
    racks = num_racks(rack_of)
    if isinstance(num_lost, bool) or not isinstance(num_lost, int) or not 0 <= num_lost <= racks:
        raise ValueError(f"num_lost is {num_lost!r}; it must be a whole number from 0 to the number of racks, {racks}")
    return racks
