"""A rank of a generation, seen from within: its numbers, its machine's memory, and the log.

Source: thesis, section 6.6.2: replacements keep the rank numbers, and every machine starts its ranks anew.
Simplified: gloo on the CPU; a fresh store on a fresh port for every generation, so nothing of an old one is met.
"""

import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import cloudpickle

from workbench.launch.machines import RankLink

from .service import Logged, Seat

__all__ = ["Progress", "RankContext", "run_program"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """A rank has done an iteration."""

    iteration: int  # which, counted from 0 over all generations
    time_s: float  # monotonic clock


class RankContext:
    """What a training function works with besides torch.distributed, which is initialised."""

    def __init__(self, link: RankLink, seat: Seat):
        self._link = link
        self.rank = seat.rank
        self.world_size = seat.world_size
        self.ranks_per_machine = seat.world_size // seat.num_machines
        self.local_rank = seat.rank % self.ranks_per_machine
        self.machine = seat.machine
        self.num_machines = seat.num_machines
        self.machine_name = seat.machine_name
        self.generation = seat.generation

    def memory(self, name: str, num_bytes: int) -> int:
        """Return a descriptor of memory that the machine keeps: it outlives this rank and dies with the machine."""
        return self._link.memory(name, num_bytes)

    def mapped(self, name: str, num_bytes: int) -> mmap.mmap:
        """Return the same memory mapped for reading and writing."""
        return self._link.mapped(name, num_bytes)

    def memory_names(self) -> dict[str, int]:
        """Return the bytes of each memory that the machine keeps by its name."""
        return self._link.names()

    def report(self, iteration: int) -> None:
        """Tell that an iteration is done; schedules of faults and the watch for progress count these."""
        self._link.tell(Progress(iteration=iteration, time_s=time.monotonic()))

    def log(self, name: str, **details: Any) -> None:
        """Write something that happened now into the log of events."""
        self._link.tell(Logged(name=name, time_s=time.monotonic(), details=details))

    @contextmanager
    def during(self, name: str, **details: Any) -> Iterator[None]:
        """Write the body into the log as something that took time, also when it raises."""
        start_s = time.monotonic()
        try:
            yield
        finally:
            end_s = time.monotonic()
            told = Logged(name=name, time_s=start_s, details={"duration_s": end_s - start_s, **details})
            self._link.tell(told)


def run_program(link: RankLink, *, program: bytes, seat: Seat) -> Any:
    """Join the generation's process group and call the user's function."""
    function, args, kwargs = cloudpickle.loads(program)
    context = RankContext(link, seat)
    _join(seat)
    context.log("joined")
    return function(context, *args, **kwargs)


def _join(seat: Seat) -> None:
    import torch.distributed as dist

    from workbench.launch.rank import GROUP_PATIENCE  # the owner watches the clock; the group's limit is only later

    for name, value in (("RANK", seat.rank), ("WORLD_SIZE", seat.world_size)):
        os.environ[name] = str(value)
    os.environ["LOCAL_RANK"] = str(seat.rank % (seat.world_size // seat.num_machines))
    choices = {} if seat.meeting_fd < 0 else {"master_listen_fd": seat.meeting_fd}
    store = dist.TCPStore(
        *seat.meeting, seat.world_size, seat.meeting_fd >= 0, GROUP_PATIENCE, wait_for_workers=False, **choices
    )
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore(f"generation-{seat.generation}", store),
        rank=seat.rank,
        world_size=seat.world_size,
        timeout=GROUP_PATIENCE,
    )
    dist.barrier()  # rank 0 serves the store, and must not end before all have read it
