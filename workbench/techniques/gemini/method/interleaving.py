"""Five ways to send checkpoints beside training's own traffic, placed on the timeline of one iteration (section 6.5).

The network carries one message at a time: the gather for phase k + 2 goes when phase k has been computed, before its
scatter. Chunks are planned for the idle spans times μ, at the rate B (naive), min(B, D) (Gemini; D is the rate of
copying), or both one after the other (unpipelined).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from workbench.checks import require_not_negative, require_positive
from workbench.timeline import Kind, Task, Timeline, simulate

from .partition import Chunk, partition_checkpoint
from .profiling import Operation, ProfiledIteration, idle_spans_s

__all__ = ["CheckpointTraffic", "InterleavedIteration", "Phase", "Scheme", "interleave", "planning_spans_s"]

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

    def chunks(
        self,
        spans_s: Sequence[float],
        rate_bytes_per_s: float,
        *,
        buffer_bytes: int | None = None,
        num_buffers: int | None = None,
    ) -> tuple[Chunk, ...]:
        """Partition for a rate; buffers are those of this traffic unless given."""
        return partition_checkpoint(
            spans_s,
            self.checkpoint_bytes,
            num_replicas=self.num_replicas,
            reserved_bytes=self.reserved_bytes if buffer_bytes is None else buffer_bytes,
            num_buffers=self.num_buffers if num_buffers is None else num_buffers,
            bandwidth_bytes_per_s=rate_bytes_per_s,
            startup_s=self.startup_s,
            safety=self.safety,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class InterleavedIteration:
    """An iteration under a scheme."""

    scheme: Scheme  # which
    timeline: Timeline  # rows network, copy engine, compute
    iteration_s: float  # until the update is done
    checkpoint_s: float  # in which chunks travel, without waiting for buffers
    completed_s: float  # when the last chunk is in host memory; 0 without a checkpoint
    idle_s: float  # of the network, in the iteration
    buffer_bytes: int  # device memory that chunks need at once
    is_out_of_memory: bool  # whether that is more than is free; the times are then those of a larger device
    chunks: tuple[Chunk, ...]  # in the order in which they travel


def interleave(
    phases: Sequence[Phase], traffic: CheckpointTraffic, scheme: Scheme | str, *, update_s: float = 0.0
) -> InterleavedIteration:
    """Place one iteration in time; the optimizer's update follows all phases and all messages."""
    if scheme not in list(Scheme):
        raise ValueError(f"scheme is {scheme!r}; it must be one of {', '.join(repr(str(each)) for each in Scheme)}")
    scheme = Scheme(scheme)
    require_not_negative(update_s=update_s)
    chunks, num_buffers = _planned(phases, traffic, scheme)
    tasks = _tasks(phases, traffic, chunks, num_buffers, update_s)
    timeline = simulate(tasks)
    received = [action for action in timeline.actions if action.kind is Kind.ENCODE]
    copied = [action for action in timeline.actions if action.resource == COPY_ENGINE]
    iteration_s = max(action.end_s for action in timeline.actions if action.resource == COMPUTE)
    largest = max((chunk.size_bytes for chunk in chunks), default=0)
    buffer_bytes = largest * min(num_buffers, len(chunks))
    return InterleavedIteration(
        scheme=scheme,
        timeline=Timeline(actions=timeline.actions, resources=(NETWORK, COPY_ENGINE, COMPUTE)),
        iteration_s=iteration_s,
        checkpoint_s=math.fsum(action.duration_s for action in received),
        completed_s=max((action.end_s for action in copied), default=0.0),
        idle_s=iteration_s - timeline.total_s(resource=NETWORK) if NETWORK in timeline.resources else iteration_s,
        buffer_bytes=buffer_bytes,
        is_out_of_memory=buffer_bytes > traffic.free_bytes,
        chunks=chunks,
    )


def planning_spans_s(phases: Sequence[Phase]) -> tuple[float, ...]:
    """Return the idle spans of an iteration without checkpoints: before each message, and before the update."""
    timeline = simulate(_tasks(phases, None, (), 1, 0.0))
    messages = timeline.of(NETWORK) if NETWORK in timeline.resources else ()
    operations = tuple(Operation(start_s=action.start_s, end_s=action.end_s) for action in messages)
    whole = ProfiledIteration(name="iteration", start_s=0.0, end_s=timeline.end_s, operations=operations)
    return idle_spans_s(whole)


def _planned(phases: Sequence[Phase], traffic: CheckpointTraffic, scheme: Scheme) -> tuple[tuple[Chunk, ...], int]:
    """Return the chunks, each with the message of training before which it travels, and the number of buffers."""
    if scheme is Scheme.BASELINE:
        return (), traffic.num_buffers
    network, copying = traffic.bandwidth_bytes_per_s, traffic.copy_bytes_per_s
    if scheme is Scheme.BLOCKING:  # one unbounded span, before the first message
        return traffic.chunks((0.0,), network), traffic.num_buffers
    spans_s = planning_spans_s(phases)
    if scheme is Scheme.NAIVE:
        return traffic.chunks(spans_s, network, buffer_bytes=traffic.checkpoint_bytes, num_buffers=1), 1
    if scheme is Scheme.UNPIPELINED:
        return traffic.chunks(spans_s, 1 / (1 / network + 1 / copying), num_buffers=1), 1
    return traffic.chunks(spans_s, min(network, copying)), traffic.num_buffers


def _messages(phases: Sequence[Phase]) -> list[Task]:
    """Return training's messages in the order of the network, each after the computation that it needs."""

    def message(kind: str, index: int, seconds: float, after: tuple[str, ...]) -> Task:
        name, label = f"{kind} {index}", f"{kind[0].upper()}{phases[index].label}"
        return Task(
            name=name, resources=(NETWORK,), duration_s=seconds, after=after, kind=Kind.COMMUNICATE, label=label
        )

    messages = [message("gather", index, phase.gather_s, ()) for index, phase in enumerate(phases[:_AHEAD])]
    for index, phase in enumerate(phases):
        after = (f"compute {index}",)
        if index + _AHEAD < len(phases):
            messages.append(message("gather", index + _AHEAD, phases[index + _AHEAD].gather_s, after))
        messages.append(message("scatter", index, phase.scatter_s, after))
    return [task for task in messages if task.duration_s > 0]


def _tasks(
    phases: Sequence[Phase],
    traffic: CheckpointTraffic | None,
    chunks: Sequence[Chunk],
    num_buffers: int,
    update_s: float,
) -> list[Task]:
    if not phases:
        raise ValueError("phases is empty; an iteration must have one")
    messages = _messages(phases)
    network: list[Task] = []
    copies: list[Task] = []
    waiting = iter(enumerate(chunks))
    number, chunk = next(waiting, (0, None))
    for place in range(len(messages) + 1):
        while chunk is not None and chunk.span <= place:
            _add_chunk(network, copies, traffic, chunk, number, num_buffers)
            number, chunk = next(waiting, (0, None))
        if place < len(messages):
            before = tuple(task.name for task in network[-1:])
            network.append(replace(messages[place], after=before + messages[place].after))
    after = (f"compute {len(phases) - 1}", *(task.name for task in network[-1:]))
    update = Task(name="update", resources=(COMPUTE,), duration_s=update_s, after=after, kind=Kind.OTHER, label="U")
    return [*network, *copies, *_computations(phases, messages), update]


def _add_chunk(
    network: list[Task], copies: list[Task], traffic: CheckpointTraffic, chunk: Chunk, number: int, num_buffers: int
) -> None:
    free = (f"copy {number - num_buffers}",) if number >= num_buffers else ()
    before = tuple(task.name for task in network[-1:])
    arrival, copied, label = f"receive {number}", f"copy {number}", f"c{number}"
    receive_s = traffic.startup_s + chunk.size_bytes / traffic.bandwidth_bytes_per_s
    copy_s = chunk.size_bytes / traffic.copy_bytes_per_s
    on_network = {"resources": (NETWORK,), "kind": Kind.ENCODE, "duration_s": receive_s}
    on_engine = {"resources": (COPY_ENGINE,), "kind": Kind.DECODE, "duration_s": copy_s}
    network.append(Task(name=arrival, after=before + free, label=label, **on_network))
    copies.append(Task(name=copied, after=(arrival,), label=label, **on_engine))


def _computations(phases: Sequence[Phase], messages: Sequence[Task]) -> list[Task]:
    sent = {message.name for message in messages}
    tasks = []
    for index, phase in enumerate(phases):
        gathered = (f"gather {index}",) if f"gather {index}" in sent else ()
        before = (f"compute {index - 1}",) if index else ()
        tasks.append(
            Task(
                name=f"compute {index}",
                resources=(COMPUTE,),
                duration_s=phase.compute_s,
                after=gathered + before,
                kind=phase.kind,
                label=phase.label,
            )
        )
    return tasks
