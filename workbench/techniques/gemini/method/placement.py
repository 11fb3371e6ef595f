"""Which machines keep a replica of which machine's shard: groups, groups and one ring (algorithm 6.1), or a ring.

And the probability that training recovers from memory when k machines are lost at once: parts that share nothing are
counted one by one, and multiplied as polynomials.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import chain, combinations, product
from math import comb
from operator import or_
from typing import Self

import numpy as np

from workbench.checks import require_counts, require_not_negative, require_one_of

__all__ = ["BUFFERS_PER_REPLICA", "BestPlacement", "Placement", "best_placement", "components", "gap_bound"]
__all__ += ["group_bound", "kept_bytes", "placement", "recovery_probability"]
__all__ += ["recovery_probability_by_definition", "replicas_kept", "survivors", "union_bound", "upper_bound"]

KINDS = ("group", "mixed", "ring")  # What `placement` knows; a placement of one's own is of the kind "own"
OWN = "own"
BUFFERS_PER_REPLICA = 2  # One holds the complete checkpoint, one the checkpoint in progress (section 6.7.1)
LARGEST_PART = 16  # Machines of a part that is neither group nor ring: all its subsets are tried, in some seconds
MOST_PLACEMENTS = 300_000  # Tried in some seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Who keeps what."""

    num_machines: int  # N
    num_replicas: int  # m, the machine's own included
    kind: str  # "group", "mixed" or "ring"; "own" for one that a user made
    # holders[i] are the machines that keep machine i's shard: i itself, then the others in the order of sending.
    holders: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        _check_numbers(self.num_machines, self.num_replicas)
        if self.kind not in (*KINDS, OWN):
            raise ValueError(f"kind is {self.kind!r}; it must be one of {', '.join((*KINDS, OWN))}")
        if len(self.holders) != self.num_machines:
            raise ValueError(f"holders has {len(self.holders)} entries; it must have num_machines, {self.num_machines}")
        for machine, holders in enumerate(self.holders):
            words = f"holders[{machine}] is {holders!r}"
            if len(holders) != self.num_replicas or len(set(holders)) != len(holders):
                raise ValueError(f"{words}; it must name num_replicas, {self.num_replicas}, different machines")
            if holders[0] != machine:
                raise ValueError(f"{words}; it must begin with machine {machine} itself")
            for holder in holders:
                _check_machine(f"holders[{machine}]", holder, self.num_machines)

    @classmethod
    def own(cls, holders: Sequence[Sequence[int]]) -> Self:
        """Make a placement of one's own: for each machine itself, then the others that keep its shard."""
        rows = tuple(tuple(row) for row in holders)
        return cls(num_machines=len(rows), num_replicas=len(rows[0]) if rows else 0, kind=OWN, holders=rows)


def placement(num_machines: int, num_replicas: int, kind: str = "mixed") -> Placement:
    """Place m replicas of the shard of each of N machines, its own included.

    A "group" placement has N/m groups whose members keep each other's shards; in a "ring" each machine sends to the
    next m - 1. "mixed" is algorithm 6.1: groups, and where m does not divide N, one ring over the last machines.
    """
    require_one_of(KINDS, kind=kind)
    _check_numbers(num_machines, num_replicas)
    divides = num_machines % num_replicas == 0
    if kind == "group" and not divides:
        rule = f"it must be a multiple of num_replicas, {num_replicas} (or kind 'mixed')"
        raise ValueError(f"kind is 'group' and num_machines is {num_machines}; {rule}")
    kind = "group" if kind == "mixed" and divides else kind
    num_grouped = {"group": num_machines, "ring": 0}.get(kind, num_replicas * (num_machines // num_replicas - 1))
    circles = [range(first, first + num_replicas) for first in range(0, num_grouped, num_replicas)]
    circles.append(range(num_grouped, num_machines))
    holders = [
        tuple(circle[(place + step) % len(circle)] for step in range(num_replicas))
        for circle in circles
        for place in range(len(circle))
    ]
    return Placement(num_machines=num_machines, num_replicas=num_replicas, kind=kind, holders=tuple(holders))


def replicas_kept(placed: Placement) -> tuple[tuple[int, ...], ...]:
    """List for each machine the machines whose shards it keeps, its own first."""
    kept: list[list[int]] = [[machine] for machine in range(placed.num_machines)]
    for machine, holders in enumerate(placed.holders):
        for holder in holders[1:]:
            kept[holder].append(machine)
    return tuple(map(tuple, kept))


def kept_bytes(placed: Placement, machine: int, shard_bytes: float) -> float:
    """Return the bytes of memory that a machine gives to replicas, two buffers each: 2·m·shard."""
    _check_machine("machine", machine, placed.num_machines)
    require_not_negative(shard_bytes=shard_bytes)
    return BUFFERS_PER_REPLICA * len(replicas_kept(placed)[machine]) * shard_bytes


def survivors(placed: Placement, failed: Collection[int]) -> tuple[tuple[int, ...], ...]:
    """List for each machine's shard the living machines that keep it; an empty list is a shard that is lost."""
    lost = frozenset(failed)
    for machine in lost:
        _check_machine("failed", machine, placed.num_machines)
    return tuple(tuple(holder for holder in holders if holder not in lost) for holders in placed.holders)


def components(placed: Placement) -> tuple[tuple[int, ...], ...]:
    """Part the machines so that no replica crosses from one part to another: the groups and rings."""
    part_of = {machine: {machine} for machine in range(placed.num_machines)}
    for holders in placed.holders:
        joined: set[int] = set().union(*(part_of[holder] for holder in holders))
        part_of |= dict.fromkeys(joined, joined)
    parts = {id(part): part for part in part_of.values()}
    return tuple(sorted(tuple(sorted(part)) for part in parts.values()))


def _check_numbers(num_machines: int, num_replicas: int) -> None:
    require_counts(1, num_machines=num_machines, num_replicas=num_replicas)
    if num_replicas > num_machines:
        raise ValueError(f"num_replicas is {num_replicas}; it must be at most num_machines, {num_machines}")


def _check_machine(name: str, machine: int, num_machines: int) -> None:
    if isinstance(machine, bool) or not isinstance(machine, int) or not 0 <= machine < num_machines:
        raise ValueError(f"{name} names machine {machine!r}; machines are 0 to {num_machines - 1}")


def num_surviving_by_definition(sets: Iterable[Iterable[int]], things: Iterable[int], k: int) -> int:
    """Count the ways to lose k things and no set as a whole: try them all."""
    distinct = {frozenset(members) for members in sets}
    return sum(not any(members <= set(lost) for members in distinct) for lost in combinations(things, k))


def num_surviving_of_ring(num_members: int, size: int, k: int) -> int:
    """Count the ways to lose k of the n members of a ring and no s neighbours in a row.

    Cut the ring behind each of its a = n - k living members: a runs of lost ones, each shorter than s, which together
    are k. There are c = sum over j of (-1)^j C(a, j) C(n - 1 - s·j, a - 1) such rows of runs, and each of n rotations
    of a ring is met a times: n·c/a.
    """
    alive = num_members - k
    if alive <= 0:
        return 0
    rows = sum(
        (-1) ** too_long * comb(alive, too_long) * comb(num_members - 1 - size * too_long, alive - 1)
        for too_long in range(min(alive, k // size) + 1)
    )
    return num_members * rows // alive


def recovery_probability_by_definition(placed: Placement, k: int) -> Fraction:
    """Try every set of k failed machines."""
    _check_k(k, placed.num_machines)
    surviving = num_surviving_by_definition(placed.holders, range(placed.num_machines), k)
    return Fraction(surviving, comb(placed.num_machines, k))


def recovery_probability(placed: Placement, k: int) -> Fraction:
    """Count the exact probability of recovery when k machines are lost at once.

    Raises:
        ValueError: where a part of a placement of one's own has too many machines to try all their subsets.
    """
    _check_k(k, placed.num_machines)
    factors = []  # of each part: the ways in which it survives, by the number of its machines that are lost
    for part in components(placed):
        size, sets = len(part), {frozenset(placed.holders[machine]) for machine in part}
        most, neighbours = range(min(size, k) + 1), part * 2
        runs = {frozenset(neighbours[at : at + placed.num_replicas]) for at in range(size)}
        # Connected pairs of which every machine is in two are a ring, whatever the order of its machines.
        is_pairs = placed.num_replicas == 2 and {*Counter(chain(*sets)).values()} == {2}
        if len(sets) == 1:
            ways = [comb(size, lost) if lost < size else 0 for lost in most]
        elif sets == runs or is_pairs:
            ways = [num_surviving_of_ring(size, placed.num_replicas, lost) for lost in most]
        elif size <= LARGEST_PART:
            ways = [num_surviving_by_definition(sets, part, lost) for lost in most]
        else:
            rule = f"it can be counted exactly up to {LARGEST_PART} machines"
            raise ValueError(f"a part of {size} machines is neither group nor ring; {rule}")
        factors.append(np.array(ways, dtype=object))  # whole numbers of any length
    surviving = reduce(lambda left, right: np.convolve(left, right)[: k + 1], factors)
    return Fraction(int(surviving[k]), comb(placed.num_machines, k))


def union_bound(placed: Placement, k: int) -> Fraction:
    """Bound a recovery probability from below: every fatal set counts with all machines that may fail beside it."""
    num_machines, num_replicas = placed.num_machines, placed.num_replicas
    _check_k(k, num_machines)
    if k < num_replicas:
        return Fraction(1)
    num_sets = len({frozenset(holders) for holders in placed.holders})
    num_fatal = num_sets * comb(num_machines - num_replicas, k - num_replicas)
    return max(Fraction(0), 1 - Fraction(num_fatal, comb(num_machines, k)))


def group_bound(num_machines: int, num_replicas: int, k: int) -> Fraction:
    """Bound the probability of the group placement from below (corollary 6.1, Eq. 6.4): exact where k < 2m."""
    return union_bound(placement(num_machines, num_replicas, "group"), k)


def upper_bound(num_machines: int, num_replicas: int) -> Fraction:
    """Bound the probability of every placement at k = m from above: 1 - ceil(N/m) / C(N, m) (proof of theorem 6.1)."""
    _check_numbers(num_machines, num_replicas)
    return 1 - Fraction(-(-num_machines // num_replicas), comb(num_machines, num_replicas))


def gap_bound(num_machines: int, num_replicas: int) -> Fraction:
    """Return the paper's bound of the mixed placement's gap, (2m - 3) / C(N, m) (Eq. 6.3); N mod m = m - 1 meets it."""
    _check_numbers(num_machines, num_replicas)
    if num_machines % num_replicas == 0:
        raise ValueError(f"num_machines is {num_machines}, a multiple of num_replicas, {num_replicas}: there is no gap")
    return Fraction(2 * num_replicas - 3, comb(num_machines, num_replicas))


@dataclass(frozen=True, kw_only=True, slots=True)
class BestPlacement:
    """The best probability, and one placement that has it."""

    probability: Fraction  # that training recovers from memory when k machines are lost
    example: Placement  # the first best placement that was met


def best_placement(num_machines: int, num_replicas: int, k: int, *, balanced: bool = False) -> BestPlacement:
    """Try every placement, or only those in which every machine keeps m replicas, as in a group or a ring."""
    _check_numbers(num_machines, num_replicas)
    _check_k(k, num_machines)
    num_placements = comb(num_machines - 1, num_replicas - 1) ** num_machines
    if num_placements > MOST_PLACEMENTS:
        sizes = f"num_machines is {num_machines} and num_replicas {num_replicas}"
        raise ValueError(f"{sizes}, which makes {num_placements:,} placements; it must be at most {MOST_PLACEMENTS:,}")
    losses = [frozenset(lost) for lost in combinations(range(num_machines), k)]
    choices = []  # of each machine: its possible holders, with the losses (as bits) that take all of them
    for machine in range(num_machines):
        others = [other for other in range(num_machines) if other != machine]
        rows = [(machine, *peers) for peers in combinations(others, num_replicas - 1)]
        choices.append([(row, sum(1 << bit for bit, loss in enumerate(losses) if loss >= {*row})) for row in rows])
    fewest = len(losses) + 1
    example: list[tuple[int, ...]] = []
    for chosen in product(*choices):
        kept = Counter(holder for row, _ in chosen for holder in row)
        if balanced and set(kept.values()) != {num_replicas}:
            continue
        fatal = reduce(or_, (lost for _, lost in chosen)).bit_count()
        if fatal < fewest:
            fewest, example = fatal, [row for row, _ in chosen]
    return BestPlacement(probability=1 - Fraction(fewest, len(losses)), example=Placement.own(example))


def _check_k(k: int, num_machines: int) -> None:
    if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k <= num_machines:
        raise ValueError(f"k is {k!r}; it must be a whole number from 0 to num_machines, {num_machines}")
