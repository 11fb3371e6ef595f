"""Which machines keep a replica of which machine's shard: groups, groups and one ring (algorithm 6.1), or a ring.

And the probability that training recovers from memory when k machines are lost at once. Rings are counted by the runs
between living machines, small parts of any other form than group and ring by trying all subsets; parts that share
nothing are multiplied as polynomials.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial, reduce
from itertools import combinations, product
from math import comb
from typing import Self

from workbench.checks import require_counts, require_not_negative

__all__ = ["BUFFERS_PER_REPLICA", "BestPlacement", "Placement", "TooTangled", "best_placement", "components"]
__all__ += ["gap_bound", "gap_to_upper_bound", "group_bound", "is_recoverable", "kept_bytes", "placement"]
__all__ += ["recovery_probability", "recovery_probability_by_definition", "replicas_kept", "survivors", "union_bound"]
__all__ += ["upper_bound"]

KINDS = ("group", "mixed", "ring")  # What `placement` knows; a placement of one's own is of the kind "own"
OWN = "own"
BUFFERS_PER_REPLICA = 2  # One holds the complete checkpoint, one the checkpoint in progress (section 6.7.1)
Part = tuple[tuple[int, ...], frozenset[frozenset[int]]]  # Things, ascending, and the sets that they make up


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
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(KINDS)}")
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
    num_kept = sum(machine in holders for holders in placed.holders)
    return BUFFERS_PER_REPLICA * num_kept * shard_bytes


def survivors(placed: Placement, failed: Collection[int]) -> tuple[tuple[int, ...], ...]:
    """List for each machine's shard the living machines that keep it; an empty list is a shard that is lost."""
    lost = frozenset(failed)
    for machine in lost:
        _check_machine("failed", machine, placed.num_machines)
    return tuple(tuple(holder for holder in holders if holder not in lost) for holders in placed.holders)


def is_recoverable(placed: Placement, failed: Collection[int]) -> bool:
    """Return whether training can go on from memory alone: every shard has a living replica."""
    return all(survivors(placed, failed))


def components(placed: Placement) -> tuple[tuple[int, ...], ...]:
    """Part the machines so that no replica crosses from one part to another: the groups and rings."""
    return tuple(machines for machines, _ in connected_parts(placed.holders))


def connected_parts(sets: Iterable[Iterable[int]]) -> tuple[Part, ...]:
    """Part sets into the smallest parts that share nothing, by their smallest member; equal sets count once."""
    parts: list[tuple[frozenset[int], frozenset[frozenset[int]]]] = []
    for members in {frozenset(members) for members in sets}:
        things, within = members, frozenset({members})
        apart = []
        for part in parts:
            if members.isdisjoint(part[0]):
                apart.append(part)
            else:
                things, within = things | part[0], within | part[1]
        parts = [*apart, (things, within)]
    return tuple((tuple(sorted(things)), within) for things, within in sorted(parts, key=lambda part: min(part[0])))


def _check_numbers(num_machines: int, num_replicas: int) -> None:
    require_counts(1, num_machines=num_machines, num_replicas=num_replicas)
    if num_replicas > num_machines:
        raise ValueError(f"num_replicas is {num_replicas}; it must be at most num_machines, {num_machines}")


def _check_machine(name: str, machine: int, num_machines: int) -> None:
    if isinstance(machine, bool) or not isinstance(machine, int) or not 0 <= machine < num_machines:
        raise ValueError(f"{name} names machine {machine!r}; machines are 0 to {num_machines - 1}")


LARGEST_PART = 16  # machines of a part of no known form: all of its subsets are tried, in less than a second


class TooTangled(ValueError):
    """A part of a placement has no exact way of counting that ends in reasonable time."""


def num_surviving_by_definition(sets: Iterable[Iterable[int]], num_things: int, k: int) -> int:
    """Try every subset of k things."""
    distinct = {frozenset(members) for members in sets}
    return sum(not any(members <= set(lost) for members in distinct) for lost in combinations(range(num_things), k))


def num_surviving(sets: Iterable[Iterable[int]], num_things: int, k: int) -> int:
    """Count the ways to lose k things and no set as a whole; TooTangled where sets are many and much entwined."""
    parts = connected_parts(sets)
    num_free = num_things - sum(len(things) for things, _ in parts)
    factors = [[comb(num_free, lost) for lost in range(min(num_free, k) + 1)]]
    factors += [surviving_of_part(things, within, k) for things, within in parts]
    ways = reduce(partial(_product, k=k), factors)
    return ways[k] if k < len(ways) else 0


def surviving_of_ring(num_members: int, size: int, k: int) -> int:
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


def surviving_of_part(things: Sequence[int], sets: frozenset[frozenset[int]], k: int) -> list[int]:
    """Count by the number that is lost: a group, a ring, or else all subsets; TooTangled where these are too many."""
    most = min(len(things), k)
    if len(sets) == 1:
        return [comb(len(things), lost) if lost < len(things) else 0 for lost in range(most + 1)]
    if (size := _ring_size(things, sets)) is not None:
        return [surviving_of_ring(len(things), size, lost) for lost in range(most + 1)]
    if len(things) > LARGEST_PART:
        rule = f"it can be counted exactly up to {LARGEST_PART} machines"
        raise TooTangled(f"a part of {len(things)} machines is neither group nor ring; {rule}")
    place = {thing: number for number, thing in enumerate(things)}
    masks = [sum(1 << place[thing] for thing in members) for members in sets]
    ways = [0] * (most + 1)
    for lost in range(1 << len(things)):
        if lost.bit_count() <= k and all(lost & mask != mask for mask in masks):
            ways[lost.bit_count()] += 1
    return ways


def _ring_size(things: Sequence[int], sets: frozenset[frozenset[int]]) -> int | None:
    """Return the size of the sets if they are all runs of neighbours in a ring, ascending or (pairs) in any order."""
    size, *others = {len(members) for members in sets}
    if others or len(sets) != len(things):
        return None
    if size == 2:  # a connected graph all of whose nodes have two edges is a ring
        num_edges = Counter(thing for members in sets for thing in members)
        return size if set(num_edges.values()) == {2} else None
    circle = [*things, *things]
    return size if all(frozenset(circle[at : at + size]) in sets for at in range(len(things))) else None


def _product(left: list[int], right: list[int], k: int) -> list[int]:
    """Multiply two polynomials and keep what has degree k or less."""
    result = [0] * min(len(left) + len(right) - 1, k + 1)
    for low, a in enumerate(left):
        if a:
            for high, b in enumerate(right[: k + 1 - low]):
                result[low + high] += a * b
    return result


MOST_PLACEMENTS = 300_000  # Tried in some seconds


def recovery_probability_by_definition(placed: Placement, k: int) -> Fraction:
    """Try every set of k failed machines."""
    _check_k(k, placed.num_machines)
    surviving = num_surviving_by_definition(placed.holders, placed.num_machines, k)
    return Fraction(surviving, comb(placed.num_machines, k))


def recovery_probability(placed: Placement, k: int) -> Fraction:
    """Count the exact probability of recovery when k machines are lost at once; TooTangled where it takes too long."""
    _check_k(k, placed.num_machines)
    surviving = num_surviving(placed.holders, placed.num_machines, k)
    return Fraction(surviving, comb(placed.num_machines, k))


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


def gap_to_upper_bound(placed: Placement) -> Fraction:
    """Return by how much a placement misses the upper bound at k = m."""
    bound = upper_bound(placed.num_machines, placed.num_replicas)
    return bound - recovery_probability(placed, placed.num_replicas)


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
    num_best: int  # how many placements have it
    num_tried: int  # of how many


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
    fewest, num_best, num_tried = len(losses) + 1, 0, 0
    example: list[tuple[int, ...]] = []
    for chosen in product(*choices):
        kept = Counter(holder for row, _ in chosen for holder in row)
        if balanced and set(kept.values()) != {num_replicas}:
            continue
        num_tried += 1
        fatal = 0
        for _, lost in chosen:
            fatal |= lost
        num_fatal = fatal.bit_count()
        if num_fatal < fewest:
            fewest, example, num_best = num_fatal, [row for row, _ in chosen], 0
        num_best += num_fatal == fewest
    return BestPlacement(
        probability=1 - Fraction(fewest, len(losses)),
        example=Placement.own(example),
        num_best=num_best,
        num_tried=num_tried,
    )


def _check_k(k: int, num_machines: int) -> None:
    if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k <= num_machines:
        raise ValueError(f"k is {k!r}; it must be a whole number from 0 to num_machines, {num_machines}")
