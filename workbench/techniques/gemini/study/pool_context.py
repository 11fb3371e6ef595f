"""A rank of a plain pool as checkpoints see it: one rank a machine, memory of its own, a log that it keeps.

What: `PoolContext` is what `InMemoryCheckpoints` asks of a rank, without machines that outlive it; several of them in
one rank keep several trainings' checkpoints apart.
Source: none; timing needs ranks that run undisturbed, and no restarts.
Simplified: what is kept dies with the rank.
Left out: several ranks a machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["PoolContext"]


class PoolContext:
    """See `workbench.techniques.gemini.runtime.checkpoints.Context`.

    Args:
        rank: number of the rank, and of its machine.
        world_size: ranks.

    Attributes:
        events: name and details of what was logged, in order.
    """

    def __init__(self, rank: int, world_size: int):
        if not 0 <= rank < world_size:
            raise ValueError(f"rank is {rank}, must be in 0..{world_size - 1}")
        self.rank = self.machine = rank
        self.world_size = self.num_machines = world_size
        self.ranks_per_machine, self.local_rank = 1, 0
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._memories: dict[str, tuple[int, int]] = {}  # name -> descriptor and bytes

    def memory(self, name: str, num_bytes: int) -> int:
        """Return a descriptor of the caller's own; the same name gives the same memory.

        Args:
            name: of the memory.
            num_bytes: its size.

        Raises:
            ValueError: if the size differs from before.
        """
        if name not in self._memories:
            descriptor = os.memfd_create(name)
            os.ftruncate(descriptor, num_bytes)
            self._memories[name] = descriptor, num_bytes
        descriptor, kept_bytes = self._memories[name]
        if num_bytes != kept_bytes:
            raise ValueError(f"num_bytes is {num_bytes}, must be {kept_bytes} as before for {name!r}")
        return os.dup(descriptor)

    def memory_names(self) -> dict[str, int]:
        """Return the bytes of each memory by its name."""
        return {name: num_bytes for name, (_, num_bytes) in self._memories.items()}

    def report(self, iteration: int) -> None:
        """Tell nobody: no failure is planned, and the clock of turns is kept elsewhere."""

    def log(self, name: str, **details: Any) -> None:
        """Keep something that happened."""
        self.events.append((name, details))

    @contextmanager
    def during(self, name: str, **details: Any) -> Iterator[None]:
        """Keep the body's seconds, also when it raises."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.log(name, duration_s=time.monotonic() - began_s, **details)

    def close(self) -> None:
        """Let go of the memory; what others have mapped stays until they let go too."""
        for descriptor, _ in self._memories.values():
            os.close(descriptor)
        self._memories = {}
