"""Which machines keep a replica of which machine's shard: groups, groups and one ring (algorithm 6.1), or a ring."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from workbench.checks import require_counts, require_not_negative

__all__ = ["BUFFERS_PER_REPLICA", "KINDS", "Placement", "components", "connected_parts", "is_recoverable", "kept_bytes"]
__all__ += ["placement", "replicas_kept", "sent_bytes", "survivors"]

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
            _check_holders(machine, holders, self)

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
    holders = [
        _next_in(range(first, first + num_replicas), place, num_replicas)
        for first in range(0, num_grouped, num_replicas)
        for place in range(num_replicas)
    ]
    ring = range(num_grouped, num_machines)
    holders += [_next_in(ring, place, num_replicas) for place in range(len(ring))]
    return Placement(num_machines=num_machines, num_replicas=num_replicas, kind=kind, holders=tuple(holders))


def replicas_kept(placed: Placement) -> tuple[tuple[int, ...], ...]:
    """List for each machine the machines whose shards it keeps, its own first."""
    kept: list[list[int]] = [[machine] for machine in range(placed.num_machines)]
    for machine, holders in enumerate(placed.holders):
        for holder in holders[1:]:
            kept[holder].append(machine)
    return tuple(map(tuple, kept))


def kept_bytes(placed: Placement, machine: int, shard_bytes: int) -> int:
    """Return the bytes of memory that a machine gives to replicas, two buffers each: 2·m·shard."""
    _check_machine("machine", machine, placed.num_machines)
    require_not_negative(shard_bytes=shard_bytes)
    num_kept = sum(machine in holders for holders in placed.holders)
    return BUFFERS_PER_REPLICA * num_kept * shard_bytes


def sent_bytes(placed: Placement, machine: int, shard_bytes: int) -> int:
    """Return the bytes that a machine sends to others for one checkpoint: (m - 1)·shard."""
    _check_machine("machine", machine, placed.num_machines)
    require_not_negative(shard_bytes=shard_bytes)
    return (len(placed.holders[machine]) - 1) * shard_bytes


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


def _next_in(circle: Sequence[int], place: int, count: int) -> tuple[int, ...]:
    """Return `count` machines of a circle, from a place on."""
    return tuple(circle[(place + step) % len(circle)] for step in range(count))


def _check_numbers(num_machines: int, num_replicas: int) -> None:
    require_counts(1, num_machines=num_machines, num_replicas=num_replicas)
    if num_replicas > num_machines:
        raise ValueError(f"num_replicas is {num_replicas}; it must be at most num_machines, {num_machines}")


def _check_holders(machine: int, holders: tuple[int, ...], placed: Placement) -> None:
    where = f"holders[{machine}] is {holders!r}"
    if len(holders) != placed.num_replicas or len(set(holders)) != len(holders):
        raise ValueError(f"{where}; it must name num_replicas, {placed.num_replicas}, different machines")
    if holders[0] != machine:
        raise ValueError(f"{where}; it must begin with machine {machine} itself")
    for holder in holders:
        _check_machine(f"holders[{machine}]", holder, placed.num_machines)


def _check_machine(name: str, machine: int, num_machines: int) -> None:
    if isinstance(machine, bool) or not isinstance(machine, int) or not 0 <= machine < num_machines:
        raise ValueError(f"{name} names machine {machine!r}; machines are 0 to {num_machines - 1}")
