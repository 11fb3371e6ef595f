"""What an iteration should take: four schemes on M x N workers with injected delays, simulated with the real scheduler.

An iteration of a pipeline is one mini-batch by 1F1B and a flush; a worker's delay comes before its first micro-batch.
SDPipe can also run 1F1B without a flush, as its algorithm 1 does: then mini-batches follow each other in the pipeline.
"""

import heapq
import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from workbench.checks import require_counts, require_not_negative, require_positive
from workbench.timeline.actions import Kind
from workbench.timeline.schedule import Cell, one_forward_one_backward

from .method.scheduler import Group, Scheduler, Settings

__all__ = ["Cluster", "Run", "Scheme", "Workload", "backward_ends", "drawn_delays_s", "endless_1f1b", "pairs"]
__all__ += ["simulate", "traced_delays_s"]


class Scheme(StrEnum):
    """How workers of a stage synchronise; names as figures write them."""

    ALL_REDUCE = "All-Reduce+Pipe"
    AD_PSGD = "AD-PSGD+Pipe"
    HETPIPE = "HetPipe"
    SDPIPE = "SDPipe"


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A model cut into stages, and how a pipeline works on a mini-batch."""

    num_stages: int  # M
    num_micro_batches: int  # of a mini-batch
    forward_s: float  # of a micro-batch in a stage
    backward_s: float  # the same
    transfer_s: float = 0.0  # of an activation or its gradient to the next stage; messages do not wait for each other
    stage_bytes: float = 0.0  # weights of a stage

    def __post_init__(self) -> None:
        require_counts(1, num_stages=self.num_stages, num_micro_batches=self.num_micro_batches)
        require_positive(forward_s=self.forward_s, backward_s=self.backward_s)
        require_not_negative(transfer_s=self.transfer_s, stage_bytes=self.stage_bytes)

    @property
    def iteration_s(self) -> float:
        """Seconds from a mini-batch's start to its last backward pass, without delays and synchronisation."""
        return max(backward_ends(self, [0.0] * self.num_stages, [0.0] * self.num_stages))


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Machines with one network card each, which pipelines fill in their order; none is split if it fits on one."""

    gpus_per_machine: int = 8  # section 5.1
    card_bytes_per_s: float = 1.25e9  # of a machine, 10 Gbit/s; all stages share it
    server_bytes_per_s: float = 1.25e9  # of all parameter servers together
    startup_s: float = 1e-3  # of a synchronisation: the query, and the communicator

    def __post_init__(self) -> None:
        require_counts(1, gpus_per_machine=self.gpus_per_machine)
        require_positive(card_bytes_per_s=self.card_bytes_per_s, server_bytes_per_s=self.server_bytes_per_s)
        require_not_negative(startup_s=self.startup_s)

    def average_s(self, workload: Workload, members: Collection[int]) -> float:
        """Return the seconds of a ring all-reduce of one stage among pipelines, all stages at once."""
        if len(members) == 1:
            return 0.0
        pipelines = max(1, self.gpus_per_machine // workload.num_stages)  # of a machine
        machines = len({pipeline // pipelines for pipeline in members})
        sent = 2 * (machines - 1) / machines * workload.stage_bytes * workload.num_stages
        return self.startup_s + sent / self.card_bytes_per_s


def drawn_delays_s(
    num_iterations: int, num_stages: int, num_pipelines: int, *, delay_s: float, share: float = 0.1, seed: int = 0
) -> np.ndarray:
    """Draw the paper's heterogeneity [K, M, N]: each worker loses `delay_s` in a share of its iterations."""
    if not 0 <= share <= 1:
        raise ValueError(f"share is {share!r}; it must be in [0, 1]")
    drawn = np.random.default_rng(seed).random((num_iterations, num_stages, num_pipelines))
    return np.where(drawn < share, delay_s, 0.0)


def traced_delays_s(
    slowness: Sequence[Sequence[float]], num_iterations: int, num_stages: int, num_pipelines: int, busy_s: float
) -> np.ndarray:
    """Turn a trace of slowdowns into delays [K, M, N] of workers that compute for `busy_s`.

    Worker (j, i) replays row i M + j of the trace; the trace is spread over all iterations. If the trace has too few
    rows, they repeat from the first, and each use of a row begins at another moment of the trace.
    """
    rows = np.asarray(slowness)
    num_rows, num_moments = rows.shape
    moments = np.linspace(0, num_moments - 1, num_iterations).round().astype(int)[:, None, None]
    workers = np.arange(num_stages * num_pipelines).reshape(num_pipelines, num_stages).T
    num_uses = math.ceil(workers.size / num_rows)
    begins = workers // num_rows * num_moments // num_uses
    return (rows[workers % num_rows, (moments + begins) % num_moments] - 1.0) * busy_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A simulated run."""

    ends_s: np.ndarray  # [K, N]: time when the last stage of a pipeline has synchronised its k-th mini-batch
    groups: list[Group] = field(default_factory=list)  # in the order of formation; empty for HetPipe
    steps: list[tuple[int, bool]] = field(default_factory=list)  # of HetPipe in order: pipelines, and if a push arrives
    num_unchecked: int = 0  # see `Scheduler`

    @property
    def iteration_s(self) -> float:
        """Mean time of an iteration, over all pipelines in the second half of the run."""
        half = len(self.ends_s) // 2
        spans = self.ends_s[-1] - self.ends_s[half - 1] if half else self.ends_s[-1]
        return float(len(spans) / (1 / (spans / (len(self.ends_s) - half))).sum())


def simulate(
    scheme: Scheme | str,
    workload: Workload,
    cluster: Cluster,
    delays_s: np.ndarray,
    *,
    history: int = 10,
    window_s: float | None = None,
    settings: Settings | None = None,
    staleness: int | None = None,
    push_every: int = 1,
    seed: int = 0,
    flush: bool = True,
) -> Run:
    """Simulate a scheme.

    Args:
        scheme: one of four.
        workload: the pipeline's passes.
        cluster: the machines.
        delays_s: [K, M, N], the delay of each worker in each of its iterations.
        history: P of SDPipe's scheduler.
        window_s: T of SDPipe's scheduler; None takes the settings' T, or else the paper's, 1/N of an iteration.
        settings: settings of SDPipe's scheduler.
        staleness: s of HetPipe, in pushes; None is the paper's, M.
        push_every: mini-batches of a pipeline of HetPipe from push to push; the release has 10.
        seed: seed of AD-PSGD's pairs.
        flush: whether a pipeline finishes a mini-batch before the next one begins; only All-Reduce and SDPipe can do
            without.
    """
    scheme = Scheme(scheme)
    if not flush and scheme not in (Scheme.ALL_REDUCE, Scheme.SDPIPE):
        raise ValueError(f"flush is False for {scheme}; only All-Reduce and SDPipe run without")
    _, num_stages, num_pipelines = delays_s.shape
    if num_stages != workload.num_stages:
        raise ValueError(f"delays_s is of {num_stages} stages; it must be of num_stages, {workload.num_stages}")
    if scheme is Scheme.HETPIPE:
        staleness = num_stages if staleness is None else staleness
        return _parameter_server(workload, cluster, delays_s, staleness, push_every)
    if scheme is Scheme.AD_PSGD:
        return _in_pairs(workload, cluster, delays_s, seed)
    if scheme is Scheme.ALL_REDUCE:
        window_s, settings = math.inf, None
    elif window_s is None:
        window_s = (settings and settings.start_s) or workload.iteration_s / num_pipelines
    scheduler = Scheduler(num_stages, num_pipelines, history, window_s, settings=settings)
    return (_scheduled if flush else _without_flush)(workload, cluster, delays_s, scheduler)


def _scheduled(workload: Workload, cluster: Cluster, delays_s: np.ndarray, scheduler: Scheduler) -> Run:
    """Simulate workers that signal after their backward pass; a mini-batch starts when all its stages are ready."""
    num_iterations, num_stages, num_pipelines = delays_s.shape
    delays = delays_s.transpose(0, 2, 1).tolist()
    ends = _Ends(workload)
    ready = [[0.0] * num_stages for _ in range(num_pipelines)]
    missing = [num_stages] * num_pipelines  # stages that have not synchronised
    done = [0] * num_pipelines  # iterations
    ends_s = np.zeros((num_iterations, num_pipelines))
    groups = []
    signals: list[tuple[float, int, int]] = []  # a heap of times, stages and pipelines
    for pipeline in range(num_pipelines):
        for stage, end_s in enumerate(ends(ready[pipeline], delays[0][pipeline])):
            heapq.heappush(signals, (end_s, stage, pipeline))
    deadline_s = math.inf
    while signals or deadline_s < math.inf:
        if signals and signals[0][0] < deadline_s:
            now_s, stage, pipeline = heapq.heappop(signals)
            formed = scheduler.signal(stage, pipeline, now_s)
        else:
            now_s = deadline_s
            formed = scheduler.expire(now_s)
        next_s = scheduler.next_deadline_s()
        deadline_s = math.inf if next_s is None else next_s
        for group in formed:
            groups.append(group)
            synced_s = now_s + cluster.average_s(workload, group.members)
            for pipeline in group.members:
                ready[pipeline][group.stage] = synced_s
                missing[pipeline] -= 1
                if missing[pipeline]:
                    continue
                missing[pipeline] = num_stages
                ends_s[done[pipeline], pipeline] = max(ready[pipeline])
                done[pipeline] += 1
                if done[pipeline] == num_iterations:
                    for stage in range(num_stages):
                        formed += scheduler.leave(stage, pipeline)
                    continue
                for stage, end_s in enumerate(ends(ready[pipeline], delays[done[pipeline]][pipeline])):
                    heapq.heappush(signals, (end_s, stage, pipeline))
    return Run(ends_s=ends_s, groups=groups, num_unchecked=scheduler.num_unchecked)


def _without_flush(workload: Workload, cluster: Cluster, delays_s: np.ndarray, scheduler: Scheduler) -> Run:
    """Simulate 1F1B without a flush on whole mini-batches: a worker synchronises after each backward pass.

    Source: algorithm 1.
    """
    workers = _Endless(workload, cluster, delays_s, scheduler)
    for worker in workers.place:
        workers.begin(worker)
    while True:
        deadline_s = scheduler.next_deadline_s()
        if workers.events and (deadline_s is None or workers.events[0][0] < deadline_s):
            workers.end(*heapq.heappop(workers.events))
        elif deadline_s is not None:
            workers.synchronise(scheduler.expire(deadline_s), deadline_s)
        else:
            return Run(ends_s=workers.ends_s, groups=workers.groups, num_unchecked=scheduler.num_unchecked)


class _Endless:
    """Workers of 1F1B without a flush: stage j of M begins with M - j forward passes, then both kinds alternate.

    While a worker synchronises it computes nothing.
    """

    def __init__(self, workload: Workload, cluster: Cluster, delays_s: np.ndarray, scheduler: Scheduler):
        num_iterations, num_stages, num_pipelines = delays_s.shape
        self._workload, self._cluster, self._delays_s, self._scheduler = workload, cluster, delays_s, scheduler
        self._orders = [endless_1f1b(num_stages - stage, num_iterations) for stage in range(num_stages)]
        self._seconds = {
            Kind.FORWARD: workload.num_micro_batches * workload.forward_s,
            Kind.BACKWARD: workload.num_micro_batches * workload.backward_s,
        }
        workers = [(stage, pipeline) for stage in range(num_stages) for pipeline in range(num_pipelines)]
        self.place = dict.fromkeys(workers, 0)  # passes that have ended
        self._free_s = dict.fromkeys(workers, 0.0)
        self._busy = dict.fromkeys(workers, False)  # computes, or waits for a group
        self._ended_s: dict[tuple[Kind, int, int, int], float] = {}  # by pass, stage, pipeline and mini-batch
        self.events: list[tuple[float, int, int]] = []  # a heap of times, stages and pipelines: ends of passes
        self.ends_s = np.zeros((num_iterations, num_pipelines))
        self.groups: list[Group] = []

    def begin(self, worker: tuple[int, int]) -> None:
        """Begin a worker's next pass if it is free and has what the pass needs."""
        stage, pipeline = worker
        order = self._orders[stage]
        if self._busy[worker] or self.place[worker] == len(order):
            return
        kind, number = order[self.place[worker]]
        start_s = self._free_s[worker]
        source = stage - 1 if kind is Kind.FORWARD else stage + 1
        if 0 <= source < len(self._orders):
            if (kind, source, pipeline, number) not in self._ended_s:
                return
            start_s = max(start_s, self._ended_s[kind, source, pipeline, number] + self._workload.transfer_s)
        delay_s = self._delays_s[number, stage, pipeline] if kind is Kind.FORWARD else 0.0
        self._busy[worker] = True
        heapq.heappush(self.events, (start_s + delay_s + self._seconds[kind], stage, pipeline))

    def end(self, now_s: float, stage: int, pipeline: int) -> None:
        """End a worker's pass: after a backward pass it signals, after a forward pass it goes on."""
        worker = (stage, pipeline)
        kind, number = self._orders[stage][self.place[worker]]
        self._ended_s[kind, stage, pipeline, number] = now_s
        self.place[worker] += 1
        if kind is Kind.BACKWARD:
            self.synchronise(self._scheduler.signal(stage, pipeline, now_s), now_s)
        else:
            self._busy[worker], self._free_s[worker] = False, now_s
            self.begin(worker)
        neighbour = (stage + (1 if kind is Kind.FORWARD else -1), pipeline)
        if neighbour in self.place:
            self.begin(neighbour)

    def synchronise(self, formed: list[Group], now_s: float) -> None:
        """Let groups average, and their members go on."""
        for group in formed:
            self.groups.append(group)
            synced_s = now_s + self._cluster.average_s(self._workload, group.members)
            for pipeline in group.members:
                worker = (group.stage, pipeline)
                order = self._orders[group.stage]
                self._busy[worker], self._free_s[worker] = False, synced_s
                _, number = order[self.place[worker] - 1]
                self.ends_s[number, pipeline] = max(self.ends_s[number, pipeline], synced_s)
                if self.place[worker] == len(order):
                    formed += self._scheduler.leave(group.stage, pipeline)
                self.begin(worker)


def endless_1f1b(num_ahead: int, num_iterations: int) -> list[tuple[Kind, int]]:
    """Return a stage's passes: some forward passes ahead, then backward and forward passes in turns."""
    ahead = min(num_ahead, num_iterations)
    order = [(Kind.FORWARD, number) for number in range(ahead)]
    for number in range(num_iterations):
        order.append((Kind.BACKWARD, number))
        order += [(Kind.FORWARD, number + ahead)] if number + ahead < num_iterations else []
    return order


def pairs(num_workers: int, iteration: int, seed: int = 0) -> list[tuple[int, ...]]:
    """Return AD-PSGD's pairs of workers: neighbours of a seeded shuffle, the same in all stages, as in the release.

    A pair waits for both workers. All workers pair in the order of iterations, so that no workers wait in a circle. Of
    an odd number one worker stays alone.
    """
    order = random.Random(f"{seed} {iteration}").sample(range(num_workers), num_workers)
    return [tuple(order[start : start + 2]) for start in range(0, num_workers, 2)]


def _in_pairs(workload: Workload, cluster: Cluster, delays_s: np.ndarray, seed: int) -> Run:
    num_iterations, num_stages, num_pipelines = delays_s.shape
    ready_s = np.zeros((num_stages, num_pipelines))
    ends_s = np.zeros((num_iterations, num_pipelines))
    groups = []
    for iteration in range(num_iterations):
        done_s = np.array(backward_ends(workload, ready_s, delays_s[iteration]))
        for stage in range(num_stages):
            for pair in pairs(num_pipelines, iteration, seed):
                members = list(pair)
                ready_s[stage, members] = done_s[stage, members].max() + cluster.average_s(workload, pair)
                groups.append(Group(stage, frozenset(pair)))
        ends_s[iteration] = ready_s.max(axis=0)
    return Run(ends_s=ends_s, groups=groups)


def _parameter_server(
    workload: Workload, cluster: Cluster, delays_s: np.ndarray, staleness: int, push_every: int
) -> Run:
    """Simulate pushes and pulls beside the training; no pipeline is more than s pushes ahead of the slowest."""
    require_counts(0, staleness=staleness)
    require_counts(1, push_every=push_every)
    num_iterations, num_stages, num_pipelines = delays_s.shape
    delays = delays_s.transpose(0, 2, 1).tolist()
    ends = _Ends(workload)
    sent_s = workload.stage_bytes * workload.num_stages / cluster.server_bytes_per_s
    busy_s = 2 * (cluster.startup_s + sent_s)  # a push and a pull of a pipeline
    ends_s = np.zeros((num_iterations, num_pipelines))
    computed, pushed = [0] * num_pipelines, [0] * num_pipelines  # mini-batches, and pushes that have arrived
    free_s = 0.0  # time when the server is free
    idle = set(range(num_pipelines))
    events: list[tuple[float, int, int]] = []  # time, 1 for the end of a push, pipeline
    steps: list[tuple[int, bool]] = []

    def begin(now_s: float) -> None:
        slowest = min(pushed)
        for pipeline in [number for number in idle if computed[number] // push_every - slowest <= staleness]:
            idle.discard(pipeline)
            if computed[pipeline] < num_iterations:
                steps.append((pipeline, False))
                done_s = max(ends([now_s] * num_stages, delays[computed[pipeline]][pipeline]))
                heapq.heappush(events, (done_s, 0, pipeline))

    begin(0.0)
    while events:
        now_s, is_push, pipeline = heapq.heappop(events)
        if is_push:
            steps.append((pipeline, True))
            pushed[pipeline] += 1
            ends_s[min(pushed[pipeline] * push_every, num_iterations) - 1, pipeline] = now_s
        else:
            ends_s[computed[pipeline], pipeline] = now_s
            computed[pipeline] += 1
            if computed[pipeline] % push_every == 0 or computed[pipeline] == num_iterations:
                free_s = max(free_s, now_s) + busy_s  # the server's network card serves one pipeline at a time
                heapq.heappush(events, (free_s, 1, pipeline))
            idle.add(pipeline)
        begin(now_s)
    return Run(ends_s=ends_s, steps=steps)


def backward_ends(workload: Workload, ready_s: Sequence | np.ndarray, delay_s: Sequence | np.ndarray) -> list:
    """Return when each stage's last backward pass of a mini-batch ends.

    Args:
        workload: M stages.
        ready_s: M times when stages may begin, as numbers, or as arrays of one shape for many pipelines at once.
        delay_s: delay of each stage before its first micro-batch, in the same form.
    """
    return _Ends(workload)(list(ready_s), list(delay_s), np.maximum if np.ndim(ready_s[0]) else max)


class _Ends:
    """The passes of 1F1B, sorted so that each pass follows the passes that it needs."""

    def __init__(self, workload: Workload):
        self._num_stages = workload.num_stages
        schedule = one_forward_one_backward(workload.num_stages, workload.num_micro_batches)
        rows = [[cell for cell in row if cell is not None] for row in schedule.rows]
        place: dict[Cell | None, int] = {None: -1}
        passes: list[tuple[int, int, float]] = []  # stage, place of the pass it needs or -1, seconds
        while any(rows):
            for row in rows:
                while row and (needed := self._needed(row[0])) in place:
                    cell = row.pop(0)
                    place[cell] = len(passes)
                    seconds = workload.forward_s if cell.kind is Kind.FORWARD else workload.backward_s
                    passes.append((cell.stage, place[needed], seconds))
        self._passes = passes
        self._transfer_s = workload.transfer_s

    def _needed(self, cell: Cell) -> Cell | None:
        """Return the pass of the neighbouring stage that a pass needs, None if there is none."""
        stage = cell.stage - 1 if cell.kind is Kind.FORWARD else cell.stage + 1
        if not 0 <= stage < self._num_stages:
            return None
        return Cell(stage=stage, kind=cell.kind, micro_batch=cell.micro_batch)

    def __call__(self, ready_s: Sequence, delay_s: Sequence, later=max) -> list:
        free = [ready + delay for ready, delay in zip(ready_s, delay_s, strict=True)]
        arrived: list[Any] = []
        for stage, source, seconds in self._passes:
            start = free[stage]
            if source >= 0:
                start = later(start, arrived[source])
            end = free[stage] = start + seconds
            arrived.append(end + self._transfer_s)
        return free
