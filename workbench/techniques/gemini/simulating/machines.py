"""Which machines are there, and what their memories hold, while failures come.

What: `Machines` takes losses, replacements and completed checkpoints, and says from which tier training can recover.
Source: thesis, chapter 6 (Gemini), section 6.6.2: local memory, else a peer's, else storage; standby machines.
Simplified: a replaced machine gets its own shard back when training recovers, and its peers' with the next checkpoint
that completes; a machine in place of a lost one is requested once the failure is detected.
Left out: checksums, two buffers: a checkpoint in progress is lost at any failure.
"""

from __future__ import annotations

import heapq
import math
import random

from workbench.timeline.faults import Fault

from ..method.waste import Tier
from .setting import Setting

__all__ = ["Machines"]


class Machines:
    """The machines of one simulated training."""

    def __init__(self, setting: Setting) -> None:
        """All machines are there, and hold no checkpoint."""
        self._setting = setting
        self._draws = random.Random(f"{setting.seed} replacements")
        self._absent: dict[int, float] = {}  # machine -> when the one in its place arrives; inf: not requested
        self._empty: set[int] = set()  # lost or replaced, and nothing read back yet
        self._own_only: set[int] = set()  # hold their own shard, and no replicas of others
        self._all_own_only = False  # the same for all
        self._standbys = [0.0] * setting.num_standbys  # when each is ready
        self.memory: int | None = None  # iteration of the newest complete checkpoint in memory
        self.storage = 0  # and in storage, where the initial states are

    def is_void(self, fault: Fault) -> bool:
        """Say whether a fault hits nothing: no training process, or only machines that are away."""
        if not fault.lost and fault.scope.value in ("store", "replica", "root"):
            return True
        return not fault.machines or all(self._is_away(machine, fault.time_s) for machine in fault.machines)

    def lose(self, fault: Fault) -> None:
        """Take away what a fault takes."""
        for machine in fault.lost:
            if not self._is_away(machine, fault.time_s):
                self._absent[machine] = math.inf
                self._empty.add(machine)
                self._own_only.discard(machine)

    @property
    def tier(self) -> Tier:
        """The fastest tier from which every machine can get its shard of one iteration."""
        if self.memory is None:
            return Tier.STORAGE
        if not self._empty:
            return Tier.LOCAL
        return Tier.PEER if all(map(self._is_held_elsewhere, self._empty)) else Tier.STORAGE

    @property
    def recoverable(self) -> int:
        """The iteration to which training can go back."""
        return self.storage if self.tier is Tier.STORAGE or self.memory is None else self.memory

    def request(self, now_s: float) -> float:
        """Ask for machines in place of lost ones; return the seconds until all are there."""
        low_s, high_s = self._setting.overheads.least_replacement_s, self._setting.overheads.most_replacement_s
        for machine in sorted(machine for machine, at_s in self._absent.items() if at_s == math.inf):
            arrives_s = now_s + self._draws.uniform(low_s, high_s)
            if self._standbys and self._standbys[0] <= now_s:
                # The standby takes the place at once; the one that was requested becomes the next standby.
                heapq.heapreplace(self._standbys, arrives_s)
                arrives_s = now_s
            self._absent[machine] = arrives_s
        return max(0.0, max(self._absent.values(), default=now_s) - now_s)

    def arrive(self) -> None:
        """Put all machines that were waited for in their places."""
        self._absent.clear()

    def retrieve(self, tier: Tier) -> None:
        """Give every machine its shard back, from a tier."""
        if tier is Tier.STORAGE:
            has_memory = self._setting.policy.memory is not None
            self.memory = self.storage if has_memory else None
            self._all_own_only = has_memory
        self._own_only |= self._empty
        self._empty.clear()

    def complete(self, *, memory: int | None, storage: int | None) -> None:
        """Note the newest checkpoints that training completed."""
        if storage is not None:
            self.storage = storage
        if memory is not None:
            self.memory, self._all_own_only = memory, False
            self._own_only.clear()

    def _is_away(self, machine: int, at_s: float) -> bool:
        return at_s < self._absent.get(machine, 0.0)

    def _is_held_elsewhere(self, machine: int) -> bool:
        if self._all_own_only:
            return False
        gone = (self._empty, self._own_only)
        return any(not any(holder in each for each in gone) for holder in self._setting.placement.holders[machine])
