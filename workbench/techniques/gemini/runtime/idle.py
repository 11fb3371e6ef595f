"""When to send what: the profiled idle spans of a training loop, and chunks that fill them (sections 6.5.3, 6.5.4)."""

import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from workbench.checks import require_counts
from workbench.launch.agreement import tell_all
from workbench.techniques.gemini.method.interleaving import Scheme
from workbench.techniques.gemini.method.partition import Chunk, partition_checkpoint
from workbench.techniques.gemini.method.profiling import (
    IdleProfile,
    Operation,
    ProfiledIteration,
    least_spans,
    profile_idle_spans,
)

from .transfer import Route

__all__ = ["Interleaving", "LinkSpeed", "measure_link"]

RESERVED_BYTES = 128 * 2**20  # R, section 6.7.1
NUM_BUFFERS = 4  # p, the same
NUM_PROFILED = 20  # iterations, section 6.5.4
TRIALS = 5  # messages of either size; their median is taken
SMALL_BYTES = 1024
LARGE_BYTES = 2**20  # at least: well above the burst of an idle link, and long beside waking a process
SAFETY = 0.9  # μ: the text gives none, and says that spans vary by less than 10 %
PATIENCE = 3  # times the iterations that are to be profiled, after which it is given up
SKIPPED = 1  # iterations before the profile: the first one opens connections and makes the optimizer's state


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkSpeed:
    """f(s) = α + s / B."""

    startup_s: float  # α, seconds
    bandwidth_bytes_per_s: float  # B


def measure_link(routes: Sequence[Route], group: dist.ProcessGroup, num_bytes: int) -> LinkSpeed:
    """Time messages to the first peer, all ranks at once, and take the slowest rank's; every rank calls it."""
    large = max(num_bytes, LARGE_BYTES)
    small_s, large_s = (max(tell_all(_median_s(routes[0], group, size))) for size in (SMALL_BYTES, large))
    seconds_per_byte = max(large_s - small_s, 1e-9) / (large - SMALL_BYTES)
    startup_s = max(small_s - SMALL_BYTES * seconds_per_byte, 0.0)
    return LinkSpeed(startup_s=startup_s, bandwidth_bytes_per_s=1 / seconds_per_byte)


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
    """Decides which chunks travel when."""

    def __init__(
        self,
        scheme: Scheme | str = Scheme.GEMINI,  # how checkpoint traffic goes with training's
        *,
        num_replicas: int,  # m
        reserved_bytes: int = RESERVED_BYTES,  # R, of the sub-buffers of one direction
        num_buffers: int = NUM_BUFFERS,  # p
        num_profiled: int = NUM_PROFILED,  # iterations to profile
        safety: float = SAFETY,  # μ
    ):
        scheme = Scheme(scheme)
        if scheme is Scheme.BASELINE:
            raise ValueError(f"scheme is {scheme.value!r}; it must be one that checkpoints")
        require_counts(1, num_profiled=num_profiled, num_buffers=num_buffers)
        require_counts(num_buffers, reserved_bytes=reserved_bytes)
        self.scheme, self.num_replicas, self.safety = scheme, num_replicas, safety
        self.num_buffers = 1 if scheme in (Scheme.NAIVE, Scheme.UNPIPELINED) else num_buffers
        self.reserved_bytes = reserved_bytes
        self._num_profiled, self._num_noted, self._gave_up = num_profiled, 0, False
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
        return self.scheme is not Scheme.BLOCKING and not self.is_settled and not self._gave_up

    def note(self, iteration: int, started_s: float, ended_s: float, operations: Sequence[tuple[float, float]]) -> None:
        """Note the messages of one iteration up to its update; an iteration without update is skipped."""
        self._num_noted += 1
        if self._num_noted <= SKIPPED or ended_s < started_s:
            return
        inside = [
            Operation(start_s=max(start, started_s), end_s=min(end, ended_s))
            for start, end in operations
            if start < ended_s
        ]
        self._iterations.append(
            ProfiledIteration(name=f"iteration {iteration}", start_s=started_s, end_s=ended_s, operations=tuple(inside))
        )

    def settle(self, routes: Sequence[Route], group: dist.ProcessGroup) -> bool:
        """Agree with all ranks on spans after enough iterations; return whether there are any. Every rank calls it."""
        if self._num_noted < SKIPPED + self._num_profiled:
            return False
        own = self._profile_of_those_alike()
        of_ranks = tell_all(None if own is None else {"spans_s": own.spans_s, "deviations": own.deviations})
        if None in of_ranks or len({len(profile["spans_s"]) for profile in of_ranks}) > 1:
            # Where iterations communicate too differently, checkpoints block.
            self._gave_up = self._num_noted >= SKIPPED + PATIENCE * self._num_profiled
            return False
        profiles = [IdleProfile(**{name: tuple(value) for name, value in profile.items()}) for profile in of_ranks]
        self.profile = least_spans(profiles)
        self.link = measure_link(routes, group, self.chunk_bytes)
        return True

    def _profile_of_those_alike(self) -> IdleProfile | None:
        """Profile the iterations with the commonest number of messages; None while there are too few of them."""
        counts = Counter(len(iteration.operations) for iteration in self._iterations)
        commonest, number = counts.most_common(1)[0] if counts else (0, 0)
        if number < self._num_profiled:
            return None
        return profile_idle_spans(
            [iteration for iteration in self._iterations if len(iteration.operations) == commonest]
        )

    def chunks(self, num_bytes: int) -> tuple[Chunk, ...]:
        """Divide the remote replicas of a shard into chunks; their spans are all 0 until spans are known."""
        if self.num_replicas == 1:
            return ()
        spans = (1.0,) if self.profile is None else self.profile.spans_s  # the last one takes all that is left
        link = self.link or LinkSpeed(startup_s=0.0, bandwidth_bytes_per_s=1.0)
        chunk_bytes = self.chunk_bytes
        if self.scheme is Scheme.NAIVE and self.profile is not None:
            chunk_bytes = num_bytes  # as large as a span has room for
        return partition_checkpoint(
            spans,
            num_bytes,
            num_replicas=self.num_replicas,
            reserved_bytes=chunk_bytes * self.num_buffers,
            num_buffers=self.num_buffers,
            bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
            startup_s=link.startup_s,
            safety=self.safety,
        )
