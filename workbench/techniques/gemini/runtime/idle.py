"""When to send what: the idle spans of a training loop, profiled, and chunks that fill them.

What: an `Interleaving` collects the messages of some iterations, agrees with all ranks on the shortest spans, measures
the link once, and divides every rank's shard into chunks. Before that, and where checkpoints are to block, everything
goes into one unbounded span.
Source: "Gemini: Fast Failure Recovery in Distributed Training with In-Memory Checkpoints", sections 6.5.3, 6.5.4, 6.7.4.
Simplified: profiled once a generation.
Left out: profiling anew when the loop changes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from workbench.techniques.gemini.method.interleaving import Scheme
from workbench.techniques.gemini.method.partition import Chunk, partition_checkpoint
from workbench.techniques.gemini.method.profiling import (
    IdleProfile,
    Operation,
    ProfiledIteration,
    least_spans,
    profile_idle_spans,
)

from .agreement import tell_all
from .transfer import Route

__all__ = ["Interleaving", "LinkSpeed", "measure_link"]

TRIALS = 5  # messages of either size; their median is taken
SMALL_BYTES = 1024
SAFETY = 0.9  # μ: the text gives none, and says that spans vary by less than 10 %
SKIPPED = 1  # iterations before the profile: the first one opens connections and makes the optimizer's state


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkSpeed:
    """f(s) = α + s / B.

    Attributes:
        startup_s: α, seconds.
        bandwidth_bytes_per_s: B.
    """

    startup_s: float
    bandwidth_bytes_per_s: float


def measure_link(routes: Sequence[Route], group: dist.ProcessGroup, num_bytes: int) -> LinkSpeed:
    """Time messages to the first peer, all ranks at once, and take the slowest rank's; every rank calls it.

    Args:
        routes: of this rank.
        group: of the transfers.
        num_bytes: of a large message, such as a chunk.
    """
    times = {size: _median_s(routes[0], group, size) for size in (SMALL_BYTES, max(num_bytes, 2 * SMALL_BYTES))}
    (small, small_s), (large, large_s) = ((size, max(tell_all(took))) for size, took in times.items())
    seconds_per_byte = max(large_s - small_s, 1e-9) / (large - small)
    return LinkSpeed(startup_s=max(small_s - small * seconds_per_byte, 0.0), bandwidth_bytes_per_s=1 / seconds_per_byte)


def _median_s(route: Route, group: dist.ProcessGroup, num_bytes: int) -> float:
    out, into = torch.zeros(num_bytes, dtype=torch.uint8), torch.empty(num_bytes, dtype=torch.uint8)
    seconds = []
    for _ in range(TRIALS):
        dist.barrier(group=group)
        began_s = time.perf_counter()
        arriving = dist.irecv(into, group_src=route.source, group=group)
        for work in (dist.isend(out, group_dst=route.target, group=group), arriving):
            work.wait()
        seconds.append(time.perf_counter() - began_s)
    return statistics.median(seconds)


class Interleaving:
    """Decides which chunks travel when.

    Args:
        scheme: how.
        num_replicas: m.
        reserved_bytes: R, of the sub-buffers of one direction.
        num_buffers: p.
        num_profiled: iterations to profile.
        safety: μ.
    """

    def __init__(
        self, scheme: Scheme, *, num_replicas: int, reserved_bytes: int, num_buffers: int, num_profiled: int,
        safety: float = SAFETY,
    ):  # fmt: skip
        if scheme is Scheme.BASELINE:
            raise ValueError(f"scheme is {scheme.value!r}, must be one that checkpoints")
        if num_profiled < 1:
            raise ValueError(f"num_profiled is {num_profiled}, must be at least 1")
        self.scheme, self.num_replicas, self.safety = scheme, num_replicas, safety
        self.num_buffers = 1 if scheme is Scheme.UNPIPELINED else num_buffers
        self.reserved_bytes = reserved_bytes
        self._num_profiled, self._skipped = num_profiled, 0
        self._iterations: list[ProfiledIteration] = []
        self.profile: IdleProfile | None = None
        self.link: LinkSpeed | None = None

    @property
    def chunk_bytes(self) -> int:
        """Size of a sub-buffer, R / p."""
        return max(1, self.reserved_bytes // self.num_buffers)

    @property
    def is_settled(self) -> bool:
        """Whether checkpoints go beside training; else it waits for them. Without peers nothing has to be sent."""
        return self.profile is not None or self.num_replicas == 1

    @property
    def wants_iterations(self) -> bool:
        """Whether further iterations are to be profiled."""
        return self.scheme is not Scheme.BLOCKING and not self.is_settled

    def note(self, iteration: int, started_s: float, ended_s: float, operations: Sequence[tuple[float, float]]) -> None:
        """Take in one iteration, up to its update, in which no checkpoint was under way.

        Args:
            iteration: its number, for errors.
            started_s, ended_s: monotonic clock.
            operations: start and end of its messages.
        """
        if self._skipped < SKIPPED:
            self._skipped += 1
            return
        inside = [Operation(start_s=max(start, started_s), end_s=min(end, ended_s)) for start, end in operations]
        self._iterations.append(
            ProfiledIteration(name=f"iteration {iteration}", start_s=started_s, end_s=ended_s, operations=tuple(inside))
        )

    def settle(self, routes: Sequence[Route], group: dist.ProcessGroup) -> bool:
        """Agree with all ranks on spans once enough iterations were profiled; every rank calls it at the same one.

        Returns:
            Whether there are spans now.
        """
        if len(self._iterations) < self._num_profiled:
            return False
        mine = profile_idle_spans(self._iterations)
        told = tell_all({"spans_s": mine.spans_s, "deviations": mine.deviations})
        profiles = [IdleProfile(**{name: tuple(value) for name, value in each.items()}) for each in told]
        self.profile = least_spans(profiles)
        self.link = measure_link(routes, group, self.chunk_bytes)
        return True

    def chunks(self, num_bytes: int) -> tuple[Chunk, ...]:
        """Divide the remote replicas of a shard of so many bytes.

        Returns:
            Chunks with the index of their idle span; all 0 until spans are known.
        """
        if self.num_replicas == 1:
            return ()
        spans = (1.0,) if self.profile is None else self.profile.spans_s  # the last one takes all that is left
        link = self.link or LinkSpeed(startup_s=0.0, bandwidth_bytes_per_s=1.0)
        num_buffers, chunk_bytes = self.num_buffers, self.chunk_bytes
        if self.scheme is Scheme.NAIVE and self.profile is not None:
            num_buffers, chunk_bytes = 1, num_bytes
        return partition_checkpoint(
            spans, num_bytes, num_replicas=self.num_replicas,
            reserved_bytes=chunk_bytes * num_buffers, num_buffers=num_buffers,
            bandwidth_bytes_per_s=link.bandwidth_bytes_per_s, startup_s=link.startup_s, safety=self.safety,
        )  # fmt: skip
