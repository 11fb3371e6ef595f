"""How many ways there are to lose k things so that none of given sets is lost as a whole.

Groups are counted by inclusion and exclusion, rings by the runs between living machines, all else by dynamic
programming over a frontier of half-seen sets; parts that share nothing are multiplied as polynomials.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from itertools import combinations
from math import comb

from .placement import connected_parts

__all__ = ["TooTangled", "num_surviving", "num_surviving_by_definition"]

# States: about a second of work for every three or four machines that are passed at that width
LARGEST_FRONTIER = 50_000


class TooTangled(ValueError):
    """A part has no exact way that ends in reasonable time."""


def num_surviving_by_definition(sets: Iterable[Iterable[int]], num_things: int, k: int) -> int:
    """Try every subset of k things."""
    distinct = {frozenset(each) for each in sets}
    return sum(not any(each <= set(lost) for each in distinct) for lost in combinations(range(num_things), k))


def num_surviving(sets: Iterable[Iterable[int]], num_things: int, k: int) -> int:
    """Count the ways to lose k things and no set as a whole; TooTangled where sets are many and much entwined."""
    parts = connected_parts(sets)
    groups = Counter(len(things) for things, within in parts if len(within) == 1)
    num_free = num_things - sum(len(things) for things, _ in parts)
    factors = [_counted(min(num_free, k), partial(comb, num_free))]
    factors += [_of_part(things, within, k) for things, within in parts if len(within) > 1]
    (size, num_groups), *others = groups.most_common() or [(1, 0)]
    factors += [_counted(min(n * each, k), partial(surviving_of_groups, n, each)) for each, n in others]
    rest = reduce(partial(_product, k=k), factors)
    # Of the most frequent groups, often hundreds, only the coefficients that the others leave room for are needed.
    return sum(ways * surviving_of_groups(num_groups, size, k - lost) for lost, ways in enumerate(rest) if ways)


def surviving_of_groups(num_groups: int, size: int, k: int) -> int:
    """Count the ways to lose k members of g groups of s and no whole group: the coefficient in ((1+x)^s - x^s)^g."""
    num_members = num_groups * size
    return sum(
        (-1) ** whole * comb(num_groups, whole) * comb(num_members - size * whole, k - size * whole)
        for whole in range(min(num_groups, k // size) + 1)
    )


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


def surviving_of_frontier(things: Sequence[int], sets: Iterable[frozenset[int]], k: int) -> list[int]:
    """Count for any sets, thing by thing, remembering of every set that has begun whether all of it is lost so far."""
    order = _order(things, sets)
    place = {thing: number for number, thing in enumerate(order)}
    spans = [sorted(place[thing] for thing in each) for each in sets]
    states: dict[int, list[int]] = {0: [1]}
    for number in range(len(order)):
        having = _bits(index for index, span in enumerate(spans) if number in span)
        beginning = _bits(index for index, span in enumerate(spans) if number == span[0])
        ending = _bits(index for index, span in enumerate(spans) if number == span[-1])
        following: dict[int, list[int]] = {}
        for threatened, ways in states.items():
            _add(following, threatened & ~having, ways)
            lost = [0, *ways[:k]]
            if any(lost) and not (threatened | beginning) & ending:
                _add(following, threatened | beginning, lost)
        states = following
        if len(states) > LARGEST_FRONTIER:
            raise TooTangled(
                f"a part of {len(things)} is neither group nor ring, and counting it exactly needs to remember more "
                f"than {LARGEST_FRONTIER} cases at once; estimate_recovery_probability samples instead"
            )
    return states.get(0, [0])


def _of_part(things: Sequence[int], sets: frozenset[frozenset[int]], k: int) -> list[int]:
    size = _ring_size(things, sets)
    if size is None:
        return surviving_of_frontier(things, sets, k)
    return _counted(min(len(things), k), partial(surviving_of_ring, len(things), size))


def _counted(most: int, ways: Callable[[int], int]) -> list[int]:
    return [ways(lost) for lost in range(most + 1)]


def _ring_size(things: Sequence[int], sets: frozenset[frozenset[int]]) -> int | None:
    """Return the size of the sets if they are all runs of neighbours in a ring, ascending or (pairs) in any order."""
    sizes = {len(each) for each in sets}
    if len(sizes) > 1 or len(sets) != len(things):
        return None
    (size,) = sizes
    if size == 2:  # a connected graph all of whose nodes have two edges is a ring
        num_edges = Counter(thing for each in sets for thing in each)
        return size if set(num_edges.values()) == {2} else None
    circle = [*things, *things]
    return size if all(frozenset(circle[at : at + size]) in sets for at in range(len(things))) else None


def _order(things: Sequence[int], sets: Iterable[frozenset[int]]) -> list[int]:
    """Order the things so that few sets are half seen at once: next comes what opens the fewest new ones."""
    of_thing: dict[int, list[frozenset[int]]] = {thing: [] for thing in things}
    for each in sets:
        for thing in each:
            of_thing[thing].append(each)
    open_sets: set[frozenset[int]] = set()
    waiting = set(things)
    order: list[int] = []
    while waiting:
        near = {thing for each in open_sets for thing in each if thing in waiting} or waiting
        chosen = min(near, key=lambda thing: (sum(each not in open_sets for each in of_thing[thing]), thing))
        order.append(chosen)
        waiting.discard(chosen)
        open_sets.update(of_thing[chosen])
        open_sets -= {each for each in of_thing[chosen] if not each & waiting}
    return order


def _bits(numbers: Iterable[int]) -> int:
    return sum(1 << number for number in numbers)


def _add(states: dict[int, list[int]], state: int, ways: list[int]) -> None:
    before = states.get(state)
    if before is None:
        states[state] = ways
        return
    longer, shorter = (ways, before) if len(ways) > len(before) else (before, ways)
    states[state] = [a + b for a, b in zip(longer, shorter, strict=False)] + longer[len(shorter) :]


def _product(left: list[int], right: list[int], k: int) -> list[int]:
    """Multiply two polynomials and keep what has degree k or less."""
    result = [0] * min(len(left) + len(right) - 1, k + 1)
    for low, a in enumerate(left):
        if a:
            for high, b in enumerate(right[: k + 1 - low]):
                result[low + high] += a * b
    return result
