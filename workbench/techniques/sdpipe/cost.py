"""What an iteration should take: four schemes on M x N workers with injected delays, simulated with the real scheduler.

An iteration of a pipeline is one mini-batch by 1F1B and a flush; a worker's delay comes before its first micro-batch.
SDPipe can also run 1F1B without a flush, as its algorithm 1 does: then mini-batches follow each other in the pipeline.
"""

import heapq
import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from itertools import chain, product

import numpy as np

from workbench.checks import require_counts, require_not_negative, require_positive
from workbench.timeline import Kind, one_forward_one_backward, pipeline_tasks
from workbench.timeline import simulate as simulate_tasks

from .method.scheduler import Group, Scheduler, Settings

__all__ = ["Cluster", "Run", "Scheme", "Workload", "backward_ends", "drawn_delays_s", "pairs", "simulate"]
__all__ += ["traced_delays_s"]


class Scheme(StrEnum):
    """How workers of a stage synchronise; names as figures write them."""

    ALL_REDUCE = "All-Reduce+Pipe"
    AD_PSGD = "AD-PSGD+Pipe"
    HETPIPE = "HetPipe"
    SDPIPE = "SDPipe"


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A model cut into stages, and how a pipeline works on a mini-batch; messages between stages take no time."""

    num_stages: int  # M
    num_micro_batches: int  # of a mini-batch
    forward_s: float  # of a micro-batch in a stage
    backward_s: float  # the same
    stage_bytes: float = 0.0  # weights of a stage

    def __post_init__(self) -> None:
        require_counts(1, num_stages=self.num_stages, num_micro_batches=self.num_micro_batches)
        require_positive(forward_s=self.forward_s, backward_s=self.backward_s)
        require_not_negative(stage_bytes=self.stage_bytes)

    @property
    def busy_s(self) -> float:
        """Seconds that a stage computes in a mini-batch."""
        return self.num_micro_batches * (self.forward_s + self.backward_s)

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
        scheme, workload, cluster: how workers synchronise, a pipeline's passes, and the machines.
        delays_s: [K, M, N], the delay of each worker in each of its iterations.
        history, window_s, settings: of SDPipe's scheduler. T is None for the settings' T, or else 1/N of an iteration.
        staleness: s of HetPipe, in pushes; None is the paper's, M.
        push_every: mini-batches of a pipeline of HetPipe from push to push; the release has 10.
        seed: seed of AD-PSGD's pairs.
        flush: whether a pipeline finishes a mini-batch before the next one begins; only All-Reduce and SDPipe can do
            without (algorithm 1).
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
    pipelines = (_Flushed if flush else _Endless)(workload, delays_s)
    groups: list[Group] = []
    while True:
        now_s = math.inf if (deadline_s := scheduler.next_deadline_s()) is None else deadline_s
        if pipelines.events and pipelines.events[0][0] < now_s:
            now_s, stage, pipeline = heapq.heappop(pipelines.events)
            formed = scheduler.signal(stage, pipeline, now_s)
        elif deadline_s is None:
            return Run(ends_s=pipelines.ends_s, groups=groups, num_unchecked=scheduler.num_unchecked)
        else:
            formed = scheduler.expire(now_s)
        for group in formed:
            groups.append(group)
            synced_s = now_s + cluster.average_s(workload, group.members)
            for pipeline in group.members:
                for stage in pipelines.go_on(group.stage, pipeline, synced_s):
                    formed += scheduler.leave(stage, pipeline)


class _Flushed:
    """Pipelines whose workers signal after their last backward pass; a mini-batch starts when all stages are ready."""

    def __init__(self, workload: Workload, delays_s: np.ndarray):
        num_iterations, num_stages, num_pipelines = delays_s.shape
        self._workload = workload
        self._delays_s = delays_s.transpose(0, 2, 1).tolist()
        self._ready_s = [[0.0] * num_stages for _ in range(num_pipelines)]
        self._missing = [num_stages] * num_pipelines  # stages that have not synchronised
        self._done = [0] * num_pipelines  # iterations
        self.ends_s = np.zeros((num_iterations, num_pipelines))
        self.events: list[tuple[float, int, int]] = []  # a heap of signals: times, stages and pipelines
        for pipeline in range(num_pipelines):
            self._begin(pipeline)

    def _begin(self, pipeline: int) -> None:
        delays_s = self._delays_s[self._done[pipeline]][pipeline]
        for stage, end_s in enumerate(backward_ends(self._workload, self._ready_s[pipeline], delays_s)):
            heapq.heappush(self.events, (end_s, stage, pipeline))

    def go_on(self, stage: int, pipeline: int, synced_s: float) -> Sequence[int]:
        """Let a worker go on after it has synchronised; return the stages whose worker of this pipeline has ended."""
        ready_s = self._ready_s[pipeline]
        ready_s[stage] = synced_s
        self._missing[pipeline] -= 1
        if self._missing[pipeline]:
            return ()
        self._missing[pipeline] = len(ready_s)
        self.ends_s[self._done[pipeline], pipeline] = max(ready_s)
        self._done[pipeline] += 1
        if self._done[pipeline] == len(self.ends_s):
            return range(len(ready_s))
        self._begin(pipeline)
        return ()


class _Endless:
    """1F1B without a flush: stage j of M begins with M - j forward passes, then both kinds of whole passes alternate.

    A worker synchronises after each backward pass; meanwhile it computes nothing. The interface is that of `_Flushed`.
    """

    def __init__(self, workload: Workload, delays_s: np.ndarray):
        num_iterations, num_stages, num_pipelines = delays_s.shape
        self._delays_s = delays_s
        self._orders = [
            [(cell.kind, cell.micro_batch) for cell in row if cell]  # in place of micro-batches whole mini-batches
            for row in one_forward_one_backward(num_stages, num_iterations).rows
        ]
        self._seconds = {
            Kind.FORWARD: workload.num_micro_batches * workload.forward_s,
            Kind.BACKWARD: workload.num_micro_batches * workload.backward_s,
        }
        self._place = dict.fromkeys(product(range(num_stages), range(num_pipelines)), 0)  # passes that are placed
        self._free_s = dict.fromkeys(self._place, 0.0)  # of the workers that do not wait for a synchronisation
        self._ended_s: dict[tuple[Kind, int, int, int], float] = {}  # by pass, stage, pipeline and mini-batch
        self.ends_s = np.zeros((num_iterations, num_pipelines))
        self.events: list[tuple[float, int, int]] = []
        for stage, pipeline in self._place:
            self._advance(stage, pipeline)

    def _advance(self, stage: int, pipeline: int) -> None:
        """Place a worker's next passes in time, up to a backward pass, and those of others that wait for them."""
        worker = (stage, pipeline)
        while worker in self._free_s and self._place[worker] < len(self._orders[stage]):
            kind, number = self._orders[stage][self._place[worker]]
            step = 1 if kind is Kind.FORWARD else -1
            start_s = self._free_s[worker]
            if 0 <= stage - step < len(self._orders):
                if (kind, stage - step, pipeline, number) not in self._ended_s:
                    return
                start_s = max(start_s, self._ended_s[kind, stage - step, pipeline, number])
            delay_s = self._delays_s[number, stage, pipeline] if kind is Kind.FORWARD else 0.0
            end_s = self._ended_s[kind, stage, pipeline, number] = start_s + delay_s + self._seconds[kind]
            self._place[worker] += 1
            if kind is Kind.FORWARD:
                self._free_s[worker] = end_s
            else:
                del self._free_s[worker]
                heapq.heappush(self.events, (end_s, stage, pipeline))
            self._advance(stage + step, pipeline)

    def go_on(self, stage: int, pipeline: int, synced_s: float) -> Sequence[int]:
        place = self._place[stage, pipeline]
        _, number = self._orders[stage][place - 1]
        self.ends_s[number, pipeline] = max(self.ends_s[number, pipeline], synced_s)
        self._free_s[stage, pipeline] = synced_s
        self._advance(stage, pipeline)
        return [stage] if place == len(self._orders[stage]) else ()


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
        for stage, pair in product(range(num_stages), pairs(num_pipelines, iteration, seed)):
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
    sent_s = workload.stage_bytes * workload.num_stages / cluster.server_bytes_per_s
    busy_s = 2 * (cluster.startup_s + sent_s)  # a push and a pull of a pipeline
    ends_s = np.zeros((num_iterations, num_pipelines))
    computed = [0] * num_pipelines  # mini-batches
    pushed = [0] * num_pipelines  # pushes that have arrived
    free_s = now_s = 0.0  # time when the server is free
    idle = set(range(num_pipelines))
    events: list[tuple[float, int, int]] = []  # time, 1 for the end of a push, pipeline
    steps: list[tuple[int, bool]] = []
    while True:
        slowest = min(pushed)
        for pipeline in [number for number in idle if computed[number] // push_every - slowest <= staleness]:
            idle.discard(pipeline)
            if computed[pipeline] < num_iterations:
                steps.append((pipeline, False))
                done_s = max(backward_ends(workload, [now_s] * num_stages, delays[computed[pipeline]][pipeline]))
                heapq.heappush(events, (done_s, 0, pipeline))
        if not events:
            return Run(ends_s=ends_s, steps=steps)
        now_s, is_push, pipeline = heapq.heappop(events)
        if is_push:
            steps.append((pipeline, True))
            pushed[pipeline] += 1
            ends_s[min(pushed[pipeline] * push_every, num_iterations) - 1, pipeline] = now_s
            continue
        ends_s[computed[pipeline], pipeline] = now_s
        computed[pipeline] += 1
        if computed[pipeline] % push_every == 0 or computed[pipeline] == num_iterations:
            free_s = max(free_s, now_s) + busy_s  # the server's network card serves one pipeline at a time
            heapq.heappush(events, (free_s, 1, pipeline))
        idle.add(pipeline)


def backward_ends(workload: Workload, ready_s: Sequence | np.ndarray, delay_s: Sequence | np.ndarray) -> list:
    """Return when each stage's last backward pass of a mini-batch ends.

    Args:
        workload: M stages.
        ready_s: M times when stages may begin, as numbers, or as arrays of one shape for many pipelines at once.
        delay_s: delay of each stage in its first micro-batch, in the same form. It begins when its input is there: a
            straggler computes more slowly (figure 1).
    """
    later = np.maximum if np.ndim(ready_s[0]) else max
    free_s, late_s = list(ready_s), list(delay_s)
    ended_s: list = []
    for stage, source, seconds in _passes(workload):
        start_s = free_s[stage] if source < 0 else later(free_s[stage], ended_s[source])
        free_s[stage] = start_s + late_s[stage] + seconds
        late_s[stage] = 0.0
        ended_s.append(free_s[stage])
    return free_s


@lru_cache(maxsize=64)
def _passes(workload: Workload) -> Sequence[tuple[int, int, float]]:
    """Return 1F1B's passes: the stage, the place of an earlier pass that it needs or -1, and the seconds."""
    schedule = one_forward_one_backward(workload.num_stages, workload.num_micro_batches)
    seconds = {Kind.FORWARD: workload.forward_s, Kind.BACKWARD: workload.backward_s}
    tasks = pipeline_tasks(schedule, duration_s=lambda cell: seconds[cell.kind], transfer_s=lambda _: 0.0)
    starts_s = {action.label: action.start_s for action in simulate_tasks(tasks).actions}
    cells = sorted(filter(None, chain(*schedule.rows)), key=lambda cell: starts_s[str(cell)])
    place = {cell: number for number, cell in enumerate(cells)}
    sources = [replace(cell, stage=cell.stage + (-1 if cell.kind is Kind.FORWARD else 1)) for cell in cells]
    return [
        (cell.stage, place.get(source, -1), seconds[cell.kind]) for cell, source in zip(cells, sources, strict=True)
    ]
