"""The shards that a machine keeps for its own ranks and for its peers', each in a slot of the machine's memory.

What: a rank looks after the shards of ranks with its own number on their machines: its own, and those that its machine
keeps for others. Slots are found again by name after a restart.
Source: "Gemini: Fast Failure Recovery in Distributed Training with In-Memory Checkpoints", sections 6.3.1 and 6.7.1.
Simplified: a slot's name holds its size.
Left out: moving a shard to another machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from workbench.techniques.gemini.method.placement import Placement
from workbench.techniques.gemini.method.recovery import Held

from .replicas import BufferState, Replica, Slot

__all__ = ["KeptShards", "Place", "holders_of_ranks", "holdings_of"]

NAME = "shard of rank {rank}, {capacity_bytes} bytes"
NAMED = re.compile(r"shard of rank (\d+), (\d+) bytes")


class Place(Protocol):
    """Where a rank runs, and the memory that its machine keeps; see `RankContext`."""

    rank: int
    world_size: int
    machine: int
    num_machines: int
    ranks_per_machine: int
    local_rank: int

    def memory(self, name: str, num_bytes: int) -> int:
        """Return a descriptor of memory of the machine."""
        ...

    def memory_names(self) -> dict[str, int]:
        """Return the bytes of each memory by its name."""
        ...


def holders_of_ranks(placed: Placement, ranks_per_machine: int) -> tuple[tuple[int, ...], ...]:
    """Return of each rank's shard the ranks that keep it, itself first: those with its number on the holding machines."""
    return tuple(
        tuple(machine * ranks_per_machine + local for machine in kept)
        for kept in placed.holders
        for local in range(ranks_per_machine)
    )


class KeptShards:
    """The slots that one rank looks after."""

    def __init__(self, place: Place):
        self._place = place
        self._slots: dict[int, Slot] = {}
        self.unusable: tuple[str, ...] = ()
        for name in place.memory_names():
            if (found := NAMED.fullmatch(name)) and int(found[1]) % place.ranks_per_machine == place.local_rank:
                self.slot(int(found[1]), int(found[2]))

    def slot(self, rank: int, capacity_bytes: int | None = None) -> Slot:
        """Return the slot that keeps a rank's shard, made where there is none."""
        held = self._slots.get(rank)
        if held is None:
            name = NAME.format(rank=rank, capacity_bytes=capacity_bytes)
            descriptor = self._place.memory(name, Slot.memory_bytes(capacity_bytes))
            try:
                held = self._slots[rank] = Slot(descriptor, capacity_bytes)
            finally:
                os.close(descriptor)  # the slot has mapped it
        elif capacity_bytes not in (None, held.capacity_bytes):
            rule = f"must be {held.capacity_bytes}, that of the slot of rank {rank}"
            raise ValueError(f"capacity_bytes is {capacity_bytes}, {rule}")
        return held

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks whose shards have a slot here."""
        return tuple(sorted(self._slots))

    @property
    def num_bytes(self) -> int:
        """Bytes of all slots, both buffers and their tables."""
        return sum(Slot.memory_bytes(slot.capacity_bytes) for slot in self._slots.values())

    def found(self) -> dict[int, list[tuple[int, str]]]:
        """Examine every slot: rank -> iteration and fault ("" for none) of what is kept of its shard."""
        found = {rank: _held(slot) for rank, slot in sorted(self._slots.items())}
        self.unusable = tuple(
            f"shard of rank {rank}, iteration {iteration}: {fault}"
            for rank, kept in found.items()
            for iteration, fault in kept
            if fault
        )
        return found

    def replica(self, rank: int, iteration: int) -> Replica:
        """Return a complete replica, verified again."""
        for each in self._slots[rank].replicas() if rank in self._slots else ():
            if each.iteration == iteration:
                return each
        raise LookupError(f"iteration {iteration} of rank {rank}'s shard is not kept on machine {self._place.machine}")

    def discard_after(self, iteration: int) -> None:
        """Forget what is newer than an iteration, or incomplete: training goes back there."""
        for slot in self._slots.values():
            slot.discard_after(iteration)


def _held(slot: Slot) -> list[tuple[int, str]]:
    return [
        (
            report.iteration if report.iteration is not None else 0,
            "" if report.state is BufferState.COMPLETE else report.reason,
        )
        for report in slot.reports()
        if report.state is not BufferState.EMPTY
    ]


def holdings_of(found: Sequence[Mapping[str, Sequence]], ranks_per_machine: int) -> dict[int, dict[int, list[Held]]]:
    """Turn what all ranks found, as JSON tells it, into machine -> rank -> replicas."""
    holdings: dict[int, dict[int, list[Held]]] = {}
    for rank, mine in enumerate(found):
        for shard, kept in mine.items():
            held = [Held(iteration=iteration, fault=fault) for iteration, fault in kept]
            holdings.setdefault(rank // ranks_per_machine, {})[int(shard)] = held
    return holdings
