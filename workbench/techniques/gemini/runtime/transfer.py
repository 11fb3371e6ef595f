"""Checkpoints beside training: its own messages, the idle spans between them, and chunks in these (section 6.5)."""

import statistics
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.nn.parallel import DistributedDataParallel

from workbench.checks import require_counts, require_positive
from workbench.cluster import Link
from workbench.launch.agreement import tell_all

from ..method import Chunk, Message, Scheme, idle_spans_s, least_spans_s, mean_spans_s, partition_checkpoint

__all__ = ["CheckpointOptions", "Interleaving", "ReplicaDamaged", "Route", "Shard", "TrafficWatch", "Transfer"]
__all__ += ["measure_link", "routes_of", "watch_traffic"]

# No postponed annotations: DDP reads the annotations of a hook.


class TrafficWatch:
    """Notes the messages of an iteration, and lets others wait for an idle network."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._changed = clock, threading.Condition()
        self._operations: list[Message] = []
        self._num_under_way, self._is_over = 0, False
        self.started_s = clock()  # of the iteration

    @property
    def operations(self) -> tuple[Message, ...]:
        """Start and end of the messages that have ended in this iteration, in the order of their ends."""
        with self._changed:
            return tuple(self._operations)

    def begin(self) -> float:
        """Note that a message begins; return the time, for `end`."""
        with self._changed:
            self._num_under_way += 1
        return self._clock()

    def end(self, started_s: float) -> None:
        """Note that the message that began at that time has ended."""
        with self._changed:
            self._operations.append((started_s, self._clock()))
            self._num_under_way -= 1
            self._changed.notify_all()

    @contextmanager
    def message(self) -> Iterator[None]:
        """Note one message for as long as the body runs."""
        started_s = self.begin()
        try:
            yield
        finally:
            self.end(started_s)

    def next_iteration(self) -> tuple[Message, ...]:
        """Forget this iteration's messages and return them; the next iteration begins now."""
        with self._changed:
            ended, self._operations = self._operations, []
            self._is_over, self.started_s = False, self._clock()
            return tuple(ended)

    def finish_iteration(self) -> None:
        """Note that this iteration sends nothing more: waits for a further idle span end at once."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def wait_for_idle(self, num_ended: int, timeout_s: float) -> bool:
        """Wait until `num_ended` messages have ended and none is under way, or the iteration is over; False if late."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._is_over or (self._num_under_way == 0 and len(self._operations) >= num_ended), timeout_s
            )


def watch_traffic(model: nn.Module, watch: TrafficWatch) -> None:
    """Make a model report its collectives, before its first iteration; one on a single rank has none."""
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if isinstance(model, DistributedDataParallel):
        try:
            model.register_comm_hook((watch, model.process_group), _averaged)
        except RuntimeError as error:
            if "once" not in str(error):
                raise
            words = "its messages are not seen, and checkpoints may travel beside them"
            warnings.warn(f"model has a communication hook of its own: {words}", stacklevel=2)
    elif sharded:
        for module in sharded:
            module.set_custom_all_gather(_Watched(watch, dist.all_gather_single))
            module.set_custom_reduce_scatter(_Watched(watch, dist.reduce_scatter_single))
    elif dist.is_initialized() and dist.get_world_size() > 1:
        rule = "where there are several ranks it must be wrapped in DDP or given to fully_shard"
        raise ValueError(f"model is {type(model).__name__}; {rule}")


def _averaged(state: tuple[TrafficWatch, dist.ProcessGroup], bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket over the model's group as DDP does without a hook: multiply by 1 / N, then add."""
    watch, group = state
    started_s, gradients = watch.begin(), bucket.buffer()
    gradients.mul_(1.0 / dist.get_world_size(group))
    added = dist.all_reduce(gradients, group=group, async_op=True).get_future()

    def ended(future: torch.futures.Future) -> Tensor:
        watch.end(started_s)
        return future.value()[0]

    return added.then(ended)


class _Watched(AllGather, ReduceScatter):
    """FSDP2's gathering of parameters or scattering of gradients, reported, also where it is asynchronous."""

    def __init__(self, watch: TrafficWatch, collective: Callable[..., dist.Work | None]) -> None:
        self._watch, self._collective = watch, collective

    def allocate(self, size, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(  # type: ignore[override]  # as above
        self, output_tensor: Tensor, input_tensor: Tensor, group, async_op: bool = False, **op: Any
    ) -> dist.Work | None:
        call = partial(self._collective, output_tensor, input_tensor, group=group, **op)
        if not async_op:
            with self._watch.message():
                return call()
        started_s, work = self._watch.begin(), begun(call(async_op=True))
        work.get_future().add_done_callback(lambda _: self._watch.end(started_s))
        return work


def begun(work: dist.Work | None) -> dist.Work:
    """Return the work of a collective or message: only a rank outside of the group has none."""
    assert work is not None
    return work


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """The peers of one rank for the remote replicas with one number."""

    target: int  # rank that keeps this rank's replica
    source: int  # rank whose replica this rank keeps


TIMEOUT_S = 1800.0  # in which a checkpoint must be done once training waits for it, as long as torch waits for peers
TRIALS = 5  # messages of either size; their median is taken
SMALL_BYTES = 1024
LARGE_BYTES = 2**20  # at least: well above the burst of an idle link, and long beside waking a process
PATIENCE = 3  # times the iterations that are to be profiled, after which it is given up
SKIPPED = 1  # iterations before the profile: the first one opens connections and makes the optimizer's state


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointOptions:
    """How often and how checkpoints are taken."""

    num_replicas: int = 2  # m, this machine's own included
    every: int = 1  # iterations from one checkpoint to the next
    storage_every: int = 0  # iterations from one checkpoint in storage to the next; 0 for none
    timeout_s: float = TIMEOUT_S
    scheme: Scheme | str = Scheme.GEMINI  # how checkpoint traffic goes with training's
    reserved_bytes: int = 128 * 2**20  # R, of the sub-buffers of one direction (section 6.7.1)
    num_buffers: int = 4  # p, the same
    num_profiled: int = 20  # iterations to profile (section 6.5.4)
    safety: float = 0.9  # μ: the text gives none, and says that spans vary by less than 10 %

    def __post_init__(self) -> None:
        require_counts(0, storage_every=self.storage_every)
        require_counts(1, every=self.every, num_profiled=self.num_profiled, num_buffers=self.num_buffers)
        require_counts(self.num_buffers, reserved_bytes=self.reserved_bytes)
        require_positive(timeout_s=self.timeout_s)


def measure_link(routes: Sequence[Route], group: dist.ProcessGroup, num_bytes: int) -> Link:
    """Fit f(s) = α + s / B to messages to the first peer, all ranks at once; the slowest counts; all ranks call it."""
    medians_s, large = [], max(num_bytes, LARGE_BYTES)
    for size in (SMALL_BYTES, large):
        out, into = torch.zeros(size, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8)
        seconds = []
        for _ in range(TRIALS):
            dist.barrier(group=group)
            began_s = time.perf_counter()
            arriving = dist.irecv(into, group_src=routes[0].source, group=group)
            for work in (dist.isend(out, group_dst=routes[0].target, group=group), arriving):
                begun(work).wait()
            seconds.append(time.perf_counter() - began_s)
        medians_s.append(max(tell_all(statistics.median(seconds))))
    small_s, large_s = medians_s
    seconds_per_byte = max(large_s - small_s, 1e-9) / (large - SMALL_BYTES)
    latency_s = max(small_s - SMALL_BYTES * seconds_per_byte, 0.0)
    return Link(bandwidth_bytes_per_s=1 / seconds_per_byte, latency_s=latency_s, source="messages to a peer")


class Interleaving:
    """Decides which chunks travel when."""

    def __init__(self, options: CheckpointOptions):
        scheme = Scheme(options.scheme)
        if scheme is Scheme.BASELINE:
            raise ValueError(f"scheme is {scheme.value!r}; it must be one that checkpoints")
        self.scheme, self.num_replicas, self._options = scheme, options.num_replicas, options
        self.num_buffers = 1 if scheme in (Scheme.NAIVE, Scheme.UNPIPELINED) else options.num_buffers
        self._num_noted, self._gave_up = 0, False
        self._spans_s: list[tuple[float, ...]] = []  # idle spans of the noted iterations
        self.profile: tuple[float, ...] | None = None  # idle spans to plan with
        self.link: Link | None = None

    @property
    def chunk_bytes(self) -> int:
        """Size of a sub-buffer, R / p."""
        return self._options.reserved_bytes // self.num_buffers

    @property
    def is_settled(self) -> bool:
        """Whether checkpoints go beside training; else it waits for them. Without peers nothing has to be sent."""
        return self.profile is not None or self.num_replicas == 1

    def note(
        self, iteration_s: Message, messages: Sequence[Message], routes: Sequence[Route], group: dist.ProcessGroup
    ) -> bool:
        """Note an iteration while there is no profile; say whether all ranks, which call it, now agree on one.

        An iteration is from its start to its update; one without update is skipped.
        """
        started_s, ended_s = iteration_s
        if self.scheme is Scheme.BLOCKING or self.is_settled or self._gave_up:
            return False
        self._num_noted += 1
        if self._num_noted > SKIPPED and ended_s >= started_s:
            self._spans_s.append(idle_spans_s(messages, started_s, ended_s))
        if self._num_noted < SKIPPED + self._options.num_profiled:
            return False
        # Of this rank: the iterations with the commonest number of messages, if there are enough of these.
        [(commonest, number)] = Counter(map(len, self._spans_s)).most_common(1) or [(0, 0)]
        profile = None
        if number >= self._options.num_profiled:
            profile = mean_spans_s([spans_s for spans_s in self._spans_s if len(spans_s) == commonest])
        profiles = tell_all(profile)
        if None in profiles or len(set(map(len, profiles))) > 1:
            # Where iterations communicate too differently, checkpoints block.
            self._gave_up = self._num_noted >= SKIPPED + PATIENCE * self._options.num_profiled
            return False
        self.profile = least_spans_s(profiles)
        self.link = measure_link(routes, group, self.chunk_bytes)
        return True

    def chunks(self, num_bytes: int) -> tuple[Chunk, ...]:
        """Divide the remote replicas of a shard into chunks; their spans are all 0 until spans are known."""
        if self.num_replicas == 1:
            return ()
        is_naive = self.scheme is Scheme.NAIVE and self.profile is not None
        chunk_bytes = num_bytes if is_naive else self.chunk_bytes  # naive chunks are as large as a span has room for
        link = self.link or Link(bandwidth_bytes_per_s=1.0)
        return partition_checkpoint(
            self.profile or (1.0,),  # the last one takes all that is left
            num_bytes,
            num_replicas=self.num_replicas,
            reserved_bytes=chunk_bytes * self.num_buffers,
            num_buffers=self.num_buffers,
            bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
            startup_s=link.latency_s,
            safety=self._options.safety,
        )


class ReplicaDamaged(RuntimeError):
    """A replica arrived changed."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Shard:
    """A rank's shard."""

    data: Tensor  # uint8: the place to be written, or what is sent, which must stay the same until then
    chunks: Sequence[Chunk]  # of all its remote replicas, in the order of travelling
    digest: bytes  # checksum of the data that are sent


def routes_of(rank: int, holders: Sequence[Sequence[int]]) -> tuple[Route, ...]:
    """Return the peers to which a rank sends its replicas and from which it receives others', replica by replica."""
    routes = []
    for replica in range(1, len(holders[rank])):
        sources = [other for other, kept in enumerate(holders) if kept[replica] == rank]
        if len(sources) != 1:
            rule = "it must come from one rank"
            raise ValueError(f"holders: replica {replica} comes to rank {rank} from ranks {sources}; {rule}")
        routes.append(Route(target=holders[rank][replica], source=sources[0]))
    return tuple(routes)


class Transfer:
    """Moves replicas between the ranks of one group, in threads of its own; every rank of the group makes one."""

    def __init__(
        self,
        routes: Sequence[Route],  # of this rank, in the order of replicas
        *,
        group: dist.ProcessGroup,  # for checkpoints alone
        num_buffers: int,  # p, chunks under way; one means that nothing arrives while a chunk is being kept
    ) -> None:
        self._routes, self._group, self._num_buffers = tuple(routes), group, num_buffers
        self._threads = ThreadPoolExecutor(max_workers=3, thread_name_prefix="checkpoint")

    def start(
        self,
        prepare: Callable[[], Mapping[int, Shard]],  # by rank, this one's and those to come; before anything travels
        *,
        wait: Callable[[int], object],  # for a chunk's span; after a timeout it is sent late rather than never
        received: Callable[[], object] = lambda: None,  # once all has arrived unchanged
    ) -> tuple[Future[float], Future[float]]:
        """Start one checkpoint after the one before is done; return when sending and receiving end, or their errors."""
        prepared = self._threads.submit(prepare)
        sending = self._threads.submit(self._send, prepared, wait)
        return sending, self._threads.submit(self._receive, prepared, received)

    def close(self) -> None:
        """Stop the threads; a transfer under way ends with the process group."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _send(self, prepared: Future, wait: Callable[[int], object]) -> float:
        leaving: Shard = prepared.result()[dist.get_rank()]
        under_way: deque[dist.Work] = deque()
        for chunk in leaving.chunks:
            if len(under_way) == self._num_buffers:
                under_way.popleft().wait()
            wait(chunk.span)
            part = leaving.data[chunk.offset_bytes : chunk.offset_bytes + chunk.size_bytes]
            work = dist.isend(part, group_dst=self._routes[chunk.replica].target, group=self._group)
            under_way.append(begun(work))
        for work in under_way:
            work.wait()
        return time.monotonic()

    def _receive(self, prepared: Future, received: Callable[[], object]) -> float:
        shards: Mapping[int, Shard] = prepared.result()
        sums = {route.source: xxhash.xxh3_128() for route in self._routes}
        under_way: deque[tuple[dist.Work, int, Tensor]] = deque()

        def take_oldest() -> None:
            work, source, part = under_way.popleft()
            work.wait()
            sums[source].update(part.numpy().data)  # the chunks of a shard come in the order of their offsets

        # Messages match by their order in a plan that both sides have.
        for number, route in enumerate(self._routes):
            place = shards[route.source]
            for chunk in (chunk for chunk in place.chunks if chunk.replica == number):
                if len(under_way) == self._num_buffers:
                    take_oldest()
                part = place.data[chunk.offset_bytes : chunk.offset_bytes + chunk.size_bytes]
                work = dist.irecv(part, group_src=route.source, group=self._group)
                under_way.append((begun(work), route.source, part))
        while under_way:
            take_oldest()
        for source, computed in sums.items():
            if computed.digest() != shards[source].digest:
                raise ReplicaDamaged(f"the shard of rank {source} arrived at rank {dist.get_rank()} changed")
        received()
        return time.monotonic()
