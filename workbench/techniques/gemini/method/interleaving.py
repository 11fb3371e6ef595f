"""Idle spans of the network, the part of a checkpoint that travels in each (algorithm 6.2), and an iteration with both.

Span k is the idle time before operation k in order of starting, 0 where operations overlap; the last span follows all
operations, so that spans of different iterations match by index (section 6.5.4). A chunk takes f(s) = α + s / B. Three
slips of the printed algorithm 6.2 are not carried over: it takes f(remain_size) from the span instead of f(size); its
counter lets m replicas through although m - 1 travel; and where a span is shorter than α, its inner loop never ends.
Times are fractions, so that chunks fill spans to the byte.

An iteration is placed in time under each of five schemes (section 6.5). The network carries one message at a time: the
gather for phase k + 2 goes when phase k has been computed, before its scatter. Chunks are planned for the idle spans
times μ, at the rate B (naive), min(B, D) (Gemini; D is the rate of copying), or both one after the other (unpipelined).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from statistics import fmean

from workbench.checks import require_counts, require_not_negative, require_positive
from workbench.timeline import Kind, Task, Timeline, simulate

__all__ = ["CheckpointTraffic", "Chunk", "InterleavedIteration", "Message", "Phase", "Scheme", "idle_spans_s"]
__all__ += ["interleave", "least_spans_s", "mean_spans_s", "partition_checkpoint", "planning_spans_s"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """One message of a checkpoint."""

    span: int  # index of the idle span that it travels in
    replica: int  # which of the remote replicas it belongs to, from 0 to num_replicas - 2
    offset_bytes: int  # where it begins in the replica
    size_bytes: int  # how long it is, at least 1


def partition_checkpoint(
    idle_spans_s: Sequence[float],  # lengths of the profiled spans; the last one takes all that is left
    checkpoint_bytes: int,  # C, of one replica
    *,
    num_replicas: int,  # m, the local one included; m - 1 travel
    reserved_bytes: int,  # R, device memory set aside
    num_buffers: int,  # p, parts of it; a chunk has at most R / p bytes
    bandwidth_bytes_per_s: float,  # B
    startup_s: float = 0.0,  # α of every message
    safety: float = 0.9,  # μ, share of a span that is planned with, in (0, 1]
) -> tuple[Chunk, ...]:
    """Divide the remote replicas of a checkpoint into chunks that fill idle spans, in the order of travelling."""
    spans_s = tuple(idle_spans_s)
    if not spans_s:
        raise ValueError("idle_spans_s is empty; it must have at least the last span")
    require_not_negative(**{f"idle_spans_s[{index}]": span_s for index, span_s in enumerate(spans_s)})
    require_counts(1, checkpoint_bytes=checkpoint_bytes, num_replicas=num_replicas, num_buffers=num_buffers)
    require_counts(num_buffers, reserved_bytes=reserved_bytes)
    require_positive(bandwidth_bytes_per_s=bandwidth_bytes_per_s, safety=safety)
    require_not_negative(startup_s=startup_s)
    if safety > 1:
        raise ValueError(f"safety is {safety!r}; it must be in (0, 1]")
    checkpoint_bytes, chunk_bytes = int(checkpoint_bytes), int(reserved_bytes) // int(num_buffers)
    bandwidth, startup = Fraction(bandwidth_bytes_per_s), Fraction(startup_s)
    chunks: list[Chunk] = []
    replica, offset = 0, 0
    for span, span_s in enumerate(spans_s):
        left_s = Fraction(safety) * Fraction(span_s)
        is_last = span == len(spans_s) - 1
        while replica < num_replicas - 1:
            size = min(chunk_bytes, checkpoint_bytes - offset)
            if not is_last:
                size = min(size, max(0, math.floor((left_s - startup) * bandwidth)))
            if size == 0:
                break
            chunks.append(Chunk(span=span, replica=replica, offset_bytes=offset, size_bytes=size))
            offset += size
            left_s -= startup + size / bandwidth  # f(s) = α + s / B
            if offset == checkpoint_bytes:
                replica, offset = replica + 1, 0
    return tuple(chunks)


Message = tuple[float, float]  # of training: start and end, seconds of any one clock


def idle_spans_s(messages: Sequence[Message], start_s: float, end_s: float) -> tuple[float, ...]:
    """Return the idle spans of an iteration: one before each message that lies in it, and one at the end."""
    if not (math.isfinite(start_s) and start_s <= end_s < math.inf):
        raise ValueError(f"start_s, end_s are {start_s!r}, {end_s!r}; they must be finite and ascend")
    spans, busy_until_s = [], start_s
    for began_s, ended_s in sorted(messages):
        if not began_s <= ended_s:
            raise ValueError(f"messages has {began_s!r} to {ended_s!r}; it must end after it has begun")
        if began_s < end_s and ended_s > start_s:
            spans.append(max(0.0, began_s - busy_until_s))
            busy_until_s = max(busy_until_s, min(ended_s, end_s))
    return (*spans, end_s - busy_until_s)


def mean_spans_s(iterations_s: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Average the idle spans of one rank over iterations, by index."""
    return tuple(map(fmean, _by_index("iterations_s", iterations_s)))


def least_spans_s(ranks_s: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return of each span the shortest of all ranks, for which every rank has room."""
    return tuple(map(min, _by_index("ranks_s", ranks_s)))


def _by_index(name: str, rows_s: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    numbers = sorted({len(spans_s) for spans_s in rows_s})
    if len(numbers) != 1:
        raise ValueError(f"{name} have {numbers} spans; there must be some, all with the same number")
    return list(zip(*rows_s, strict=True))


NETWORK, COPY_ENGINE, COMPUTE = "network", "copy engine", "compute"
_AHEAD = 2  # phases between a computation and the message that may start after it


class Scheme(StrEnum):
    """How checkpoints are sent; names as figures write them."""

    BASELINE = "Baseline"  # no checkpoint
    BLOCKING = "Blocking"  # the whole checkpoint first, training's traffic after it
    NAIVE = "Naive"  # one chunk in each idle span, as large as the span has room for
    UNPIPELINED = "Unpipelined"  # many chunks through one buffer, free again when copied to host memory
    GEMINI = "Gemini"  # the same through p sub-buffers: a copy runs while the next chunk arrives


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """One step of an iteration."""

    label: str  # one word, for pictures
    compute_s: float  # of the device
    gather_s: float = 0.0  # of the message that it waits for; 0 for none
    scatter_s: float = 0.0  # of the message that it sends when computed; 0 for none
    kind: Kind = Kind.FORWARD  # FORWARD, BACKWARD or OTHER

    def __post_init__(self) -> None:
        if len(self.label.split()) != 1:
            raise ValueError(f"label is {self.label!r}; it must be one word")
        require_not_negative(compute_s=self.compute_s, gather_s=self.gather_s, scatter_s=self.scatter_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointTraffic:
    """What one device receives in an iteration, and through what."""

    checkpoint_bytes: int  # C, its share of one replica
    num_replicas: int = 2  # m; m - 1 travel
    bandwidth_bytes_per_s: float  # B, of the network, for this device
    copy_bytes_per_s: float  # D, from the device to host memory
    reserved_bytes: int  # R, for buffers
    num_buffers: int  # p
    startup_s: float = 0.0  # α of a message
    safety: float = 0.9  # μ
    free_bytes: float = math.inf  # device memory that is free for buffers; infinite where that is no matter

    def __post_init__(self) -> None:
        self.chunks((0.0,), self.bandwidth_bytes_per_s)  # checks all but what follows
        require_positive(copy_bytes_per_s=self.copy_bytes_per_s)
        if not self.free_bytes >= 0:
            raise ValueError(f"free_bytes is {self.free_bytes!r}; it must be at least 0")

    def chunks(self, spans_s: Sequence[float], rate_bytes_per_s: float) -> tuple[Chunk, ...]:
        """Partition for a rate."""
        names = ("checkpoint_bytes", "num_replicas", "reserved_bytes", "num_buffers", "startup_s", "safety")
        options = {name: getattr(self, name) for name in names}
        return partition_checkpoint(spans_s, bandwidth_bytes_per_s=rate_bytes_per_s, **options)


@dataclass(frozen=True, kw_only=True, slots=True)
class InterleavedIteration:
    """An iteration under a scheme."""

    scheme: Scheme  # which
    timeline: Timeline  # rows network, copy engine, compute
    iteration_s: float  # until the update is done
    checkpoint_s: float  # in which chunks travel, without waiting for buffers
    idle_s: float  # of the network, in the iteration
    buffer_bytes: int  # device memory that chunks need at once
    is_out_of_memory: bool  # whether that is more than is free; the times are then those of a larger device
    chunks: tuple[Chunk, ...]  # in the order in which they travel


def interleave(
    phases: Sequence[Phase], traffic: CheckpointTraffic, scheme: Scheme | str, *, update_s: float = 0.0
) -> InterleavedIteration:
    """Place one iteration in time; the optimizer's update follows all phases and all messages."""
    if scheme not in list(Scheme):
        raise ValueError(f"scheme is {scheme!r}; it must be one of {', '.join(repr(str(known)) for known in Scheme)}")
    require_not_negative(update_s=update_s)
    scheme = Scheme(scheme)
    chunks: tuple[Chunk, ...] = ()
    network, copying = traffic.bandwidth_bytes_per_s, traffic.copy_bytes_per_s
    match scheme:
        case Scheme.BLOCKING:  # one unbounded span, before the first message
            chunks = traffic.chunks((0.0,), network)
        case Scheme.NAIVE:
            traffic = replace(traffic, reserved_bytes=traffic.checkpoint_bytes, num_buffers=1)
            chunks = traffic.chunks(planning_spans_s(phases), network)
        case Scheme.UNPIPELINED:
            traffic = replace(traffic, num_buffers=1)
            chunks = traffic.chunks(planning_spans_s(phases), 1 / (1 / network + 1 / copying))
        case Scheme.GEMINI:
            chunks = traffic.chunks(planning_spans_s(phases), min(network, copying))
    timeline = simulate(_tasks(phases, traffic, chunks, update_s))
    iteration_s = max(action.end_s for action in timeline.actions if action.resource == COMPUTE)
    buffer_bytes = max((chunk.size_bytes for chunk in chunks), default=0) * min(traffic.num_buffers, len(chunks))
    return InterleavedIteration(
        scheme=scheme,
        timeline=Timeline(actions=timeline.actions, resources=(NETWORK, COPY_ENGINE, COMPUTE)),
        iteration_s=iteration_s,
        checkpoint_s=math.fsum(action.duration_s for action in timeline.actions if action.kind is Kind.ENCODE),
        idle_s=iteration_s - timeline.total_s(resource=NETWORK) if NETWORK in timeline.resources else iteration_s,
        buffer_bytes=buffer_bytes,
        is_out_of_memory=buffer_bytes > traffic.free_bytes,
        chunks=chunks,
    )


def planning_spans_s(phases: Sequence[Phase]) -> tuple[float, ...]:
    """Return the idle spans of an iteration without checkpoints: before each message, and before the update."""
    timeline = simulate(_tasks(phases, None, (), 0.0))
    messages = timeline.of(NETWORK) if NETWORK in timeline.resources else ()
    return idle_spans_s([(action.start_s, action.end_s) for action in messages], 0.0, timeline.end_s)


def _tasks(
    phases: Sequence[Phase],
    traffic: CheckpointTraffic | None,  # None without chunks
    chunks: Sequence[Chunk],
    update_s: float,
) -> list[Task]:
    """Return all of an iteration: messages and chunks in the order of the network, copies, computations, update."""
    if not phases:
        raise ValueError("phases is empty; an iteration must have one")

    def task(name: str, resource: str, kind: Kind, label: str, duration_s: float, *after: str) -> Task:
        return Task(name=name, resources=(resource,), kind=kind, label=label, duration_s=duration_s, after=after)

    def gather(index: int, *after: str) -> Task:
        phase = phases[index]
        return task(f"gather {index}", NETWORK, Kind.COMMUNICATE, f"G{phase.label}", phase.gather_s, *after)

    messages = [gather(index) for index in range(min(_AHEAD, len(phases)))]
    for index, phase in enumerate(phases):
        computed, label = f"compute {index}", f"S{phase.label}"
        messages += [gather(index + _AHEAD, computed)] if index + _AHEAD < len(phases) else []
        messages.append(task(f"scatter {index}", NETWORK, Kind.COMMUNICATE, label, phase.scatter_s, computed))
    messages = [message for message in messages if message.duration_s > 0]
    network: list[Task] = []
    copies: list[Task] = []
    for place in range(len(messages) + 1):
        for number, chunk in enumerate(chunks[len(copies) :], len(copies)):
            if chunk.span > place:
                break
            assert traffic is not None
            before = [sent.name for sent in network[-1:]]
            before += [f"copy {number - traffic.num_buffers}"] if number >= traffic.num_buffers else []
            arrival, label = f"receive {number}", f"c{number}"
            receive_s = traffic.startup_s + chunk.size_bytes / traffic.bandwidth_bytes_per_s
            network.append(task(arrival, NETWORK, Kind.ENCODE, label, receive_s, *before))
            copy_s = chunk.size_bytes / traffic.copy_bytes_per_s
            copies.append(task(f"copy {number}", COPY_ENGINE, Kind.DECODE, label, copy_s, arrival))
        for message in messages[place : place + 1]:
            network.append(replace(message, after=(*(sent.name for sent in network[-1:]), *message.after)))
    computations: list[Task] = []
    for index, phase in enumerate(phases):
        after = [f"gather {index}"] if phase.gather_s > 0 else []
        after += [f"compute {index - 1}"] if index else []
        computations.append(task(f"compute {index}", COMPUTE, phase.kind, phase.label, phase.compute_s, *after))
    after = [tasks[-1].name for tasks in (computations, network) if tasks]
    return [*network, *copies, *computations, task("update", COMPUTE, Kind.OTHER, "U", update_s, *after)]
