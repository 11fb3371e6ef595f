"""Parting sets of things so that no two parts share a thing.

Source: ours; disjoint-set forests.
Simplified: nothing.
Left out: things that are in no set.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Part", "connected_parts"]

Part = tuple[tuple[int, ...], frozenset[frozenset[int]]]  # Things, ascending, and the sets that they make up


def connected_parts(sets: Iterable[Iterable[int]]) -> tuple[Part, ...]:
    """Part sets into the smallest parts that share nothing, by their smallest member; equal sets count once."""
    distinct = {frozenset(each) for each in sets}
    root = {thing: thing for each in distinct for thing in each}

    def find(thing: int) -> int:
        while root[thing] != thing:
            root[thing] = root[root[thing]]
            thing = root[thing]
        return thing

    for each in distinct:
        first, *others = each
        for other in others:
            root[find(other)] = find(first)
    things: dict[int, list[int]] = {}
    within: dict[int, set[frozenset[int]]] = {}
    for thing in sorted(root):
        things.setdefault(find(thing), []).append(thing)
    for each in distinct:
        within.setdefault(find(next(iter(each))), set()).add(each)
    return tuple((tuple(members), frozenset(within[top])) for top, members in things.items())
