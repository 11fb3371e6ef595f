"""A training of one scheme on real ranks: the same model, data order, seeds and injected delays for all four.

A pass sleeps until a nominal time is over, so that many ranks share few cores without holding each other up; delays
come before a worker's first micro-batch, in iterations drawn by seed. Models and data are those of virtual ranks, too.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import fmean
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from workbench.checks import require_counts, require_not_negative, require_positive
from workbench.cluster import Link
from workbench.launch import Ranks, ShapedHosts
from workbench.launch.namespaces import address_of
from workbench.parallel.endless import Endless1F1B
from workbench.parallel.replicas import Place
from workbench.parallel.timeouts import timeout_of
from workbench.rows.cells import named
from workbench.rows.progress import say_progress
from workbench.study.staged_tasks import MODELS, Data, naive_rows, scores_of, stages_of
from workbench.techniques.sdpipe.cost import Run, Scheme, Workload, drawn_delays_s
from workbench.techniques.sdpipe.method.optimizer import VarianceReducedAdam
from workbench.techniques.sdpipe.runtime.averaging import Log, SDPipe
from workbench.techniques.sdpipe.runtime.rivals import AdPsgd, AllReduce, HetPipe, Worker, serve_parameters
from workbench.techniques.sdpipe.runtime.service import Options
from workbench.timeline import Action, Kind, Recorder, Timeline

__all__ = ["MODELS", "Data", "MakeWorker", "Seen", "Setting", "Training", "curve_of", "delays_of", "naive_rows"]
__all__ += ["record_timelines", "run_workers", "scores_of", "stages_of", "train"]

MACHINES = 2  # of pipelines, on shaped links; HetPipe's server has a machine of its own
NUM_POINTS = 60  # of a recorded curve
NUM_BLOCKS = 8  # of consecutive iterations, in which schemes are compared


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """A training of a scheme, on real or on virtual ranks."""

    CHOICES = MappingProxyType({"model": MODELS, "flush": ("rivals", "all"), "adam": ("reduced", "plain")})

    scheme: str  # of `Scheme`
    model: str = "resnet"  # of MODELS
    num_stages: int = 4  # M
    num_pipelines: int = 4  # N
    iterations: int = 100  # mini-batches of a pipeline
    history: int = 10  # P
    flush: str = "all"  # whose pipelines flush after each mini-batch; SDPipe's do not by algorithm 1
    adam: str = "reduced"  # SDPipe's with BERT or GPT-2, see `VarianceReducedAdam`; the rivals' is plain
    learning_rate: float = 0.05
    seed: int = 0  # of weights, data, and delays

    def __post_init__(self) -> None:
        Scheme(self.scheme)
        for name, known in self.CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(known)}")
        require_counts(2, num_pipelines=self.num_pipelines)
        require_counts(1, num_stages=self.num_stages, iterations=self.iterations, history=self.history)
        require_positive(learning_rate=self.learning_rate)

    @property
    def has_flush(self) -> bool:
        """Whether pipelines flush after each mini-batch: the rivals' do (section 5.1), SDPipe's need not."""
        return self.flush == "all" or self.scheme != Scheme.SDPIPE

    def optimizer(self, part: nn.Module) -> torch.optim.Optimizer:
        """Make a stage's optimizer."""
        if self.model == "resnet":
            return torch.optim.SGD(part.parameters(), lr=self.learning_rate, momentum=0.9, weight_decay=1e-4)
        if self.scheme == Scheme.SDPIPE and self.adam == "reduced":
            return VarianceReducedAdam(part.parameters(), num_workers=self.num_pipelines, lr=self.learning_rate)
        return torch.optim.AdamW(part.parameters(), lr=self.learning_rate, weight_decay=0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting(Training):
    """A training on real ranks."""

    CHOICES = MappingProxyType({**Training.CHOICES, "trace": ("none", "drawn")})

    num_micro_batches: int = 4
    micro_batch: int = 4  # examples
    pass_s: float = 0.02  # nominal seconds of a stage's forward pass; a backward pass takes twice as many
    trace: str = "none"  # where delays come from
    delay: float = 0.0  # of "drawn" delays, in iterations without delay
    delay_share: float = 0.1  # of iterations with a drawn delay
    window: float = 1.0  # T, in N-ths of an iteration
    push_every: int = 1  # mini-batches of HetPipe from push to push
    communication: float = 0.0  # seconds of averaging all pipelines over an iteration's, on shaped links; 0 for none

    def __post_init__(self) -> None:
        Training.__post_init__(self)
        require_counts(2, iterations=self.iterations)
        require_counts(1, micro_batch=self.micro_batch, push_every=self.push_every)
        require_not_negative(delay=self.delay, window=self.window, communication=self.communication)
        if self.communication and self.num_pipelines % MACHINES:
            raise ValueError(f"num_pipelines is {self.num_pipelines}; the {MACHINES} machines must divide it")
        require_positive(pass_s=self.pass_s)

    @property
    def workload(self) -> Workload:
        """The nominal times of a pipeline."""
        times = {"forward_s": self.pass_s, "backward_s": 2 * self.pass_s}
        return Workload(num_stages=self.num_stages, num_micro_batches=self.num_micro_batches, **times)

    def data(self) -> Data:
        """Load the batches and the test set."""
        return Data(self.model, self.seed, self.num_micro_batches * self.micro_batch)


def delays_of(setting: Setting) -> np.ndarray:
    """Return delays in seconds [K, M, N]."""
    shape = setting.iterations, setting.num_stages, setting.num_pipelines
    delay_s = setting.delay * setting.workload.iteration_s if setting.trace == "drawn" else 0.0
    return drawn_delays_s(*shape, delay_s=delay_s, share=setting.delay_share, seed=setting.seed)


@named("sdpipe/train")
def train(make_worker: "MakeWorker | None" = None, /, **arguments: Any) -> dict[str, Any]:
    """Train on real ranks of this machine; arguments are those of `Setting`. Return the curve and what happened.

    Workers are of the setting's scheme, or `make_worker` makes them.
    """
    setting = Setting(**arguments)
    delays_s = delays_of(setting)
    workers = run_workers(setting, delays_s, make_worker)
    parts, data = stages_of(setting.model, setting.num_stages, setting.seed), setting.data()
    for part, worker in zip(parts, workers, strict=False):
        nn.utils.vector_to_parameters(worker.flat, part.parameters())
    ends_s = np.array([worker.ends_s for worker in workers]).T
    block_edges = np.linspace(0, setting.iterations, min(NUM_BLOCKS, setting.iterations) + 1).round().astype(int)
    blocks_s = np.diff(np.insert(ends_s, 0, 0.0, axis=0)[block_edges], axis=0).mean(axis=1)
    last = workers[setting.num_stages - 1 :: setting.num_stages]
    ended = [pair for worker in last for pair in zip(worker.ends_s, worker.losses, strict=True)]
    logs, seconds = [worker.log for worker in workers], float(ends_s.max())
    sizes = Counter(len(group.members) for log in logs for group in log.groups)
    return {
        "setting": asdict(setting),
        "iteration_s": Run(ends_s=ends_s).iteration_s,
        "blocks_s": (blocks_s / np.diff(block_edges)).tolist(),
        "seconds": seconds,
        "curve": curve_of(ended, setting.num_pipelines),
        "scores": scores_of(parts, data),
        "sizes": {str(size): count // size for size, count in sorted(sizes.items())},  # it is in each member's log
        "counted": workers[0].counted,
        "waited_share": sum(log.waited_s for log in logs) / seconds / len(logs),
        "averaged_share": sum(log.averaged_s for log in logs) / seconds / len(logs),
        "cpu_share": sum(worker.cpu_s for worker in workers) / seconds,
        "delay_share": float(delays_s.sum()) / len(logs) / seconds,
        "nominal_s": setting.workload.iteration_s,
        "data": [data.source],
    }


def record_timelines(settings: Sequence[Setting], late: int, delay_s: float) -> dict[str, Timeline]:
    """Train each setting with the last stage of one pipeline delayed in every third iteration; return who did what."""
    timelines = {}
    for setting in settings:
        delays_s = np.zeros((setting.iterations, setting.num_stages, setting.num_pipelines))
        delays_s[1::3, -1, late] = delay_s
        timelines[setting.scheme] = Timeline.merged(seen.actions for seen in run_workers(setting, delays_s))
    return timelines


def run_workers(setting: Setting, delays_s: np.ndarray, make_worker: "MakeWorker | None" = None) -> list["Seen"]:
    """Train; return what each worker saw, a parameter server left out."""
    num_workers = setting.num_stages * setting.num_pipelines
    num_ranks, hosts = num_workers + (setting.scheme == Scheme.HETPIPE), None
    if setting.communication:
        num_hosts = MACHINES + num_ranks - num_workers
        num_ranks = num_hosts * num_workers // MACHINES  # equally many a host; the server's others are idle
        # Averaging takes its share of an iteration on this link; see `Cluster.average_s`.
        weights = [weight for part in stages_of(setting.model, setting.num_stages, 0) for weight in part.parameters()]
        sent_bytes = 2 * (MACHINES - 1) / MACHINES * sum(weight.nbytes for weight in weights)
        rate = sent_bytes / (setting.communication * setting.workload.iteration_s)
        hosts = ShapedHosts(num_hosts, Link(bandwidth_bytes_per_s=rate, source="a share of communication"))
    with Ranks(num_ranks, hosts=hosts, preload=(__name__,)) as ranks:
        return ranks.run(_on_a_rank, setting, delays_s, make_worker or _worker)[:num_workers]


@dataclass(slots=True)
class Seen:
    """What a worker saw."""

    ends_s: list[float] = field(default_factory=list)  # of iterations
    losses: list[float] = field(default_factory=list)  # the same; in the last stage
    log: Log = field(default_factory=Log)
    counted: dict[str, int] = field(default_factory=dict)  # by the scheduler
    cpu_s: float = 0.0
    flat: Tensor = field(default_factory=lambda: torch.zeros(0))  # parameters of the stage's mean model
    actions: tuple[Action, ...] = ()  # passes, delays, and what comes after a mini-batch


class _Pace:
    """Lets passes last a nominal time, after a delay before a mini-batch's first."""

    def __init__(self, recorder: Recorder, num_passes: int):
        self._recorder, self._num_passes = recorder, num_passes  # micro-batches of a pass
        self.pass_s = self.delay_s = 0.0

    @contextmanager
    def during(self, label: str, kind: Kind) -> Iterator[None]:
        """Sleep for the rest of a pass."""
        if kind is Kind.FORWARD and self.delay_s:
            with self._recorder.during("late", Kind.OTHER):
                time.sleep(self.delay_s)
            self.delay_s = 0.0
        with self._recorder.during(label, kind):
            end_s = time.monotonic() + self._num_passes * self.pass_s * (1 if kind is Kind.FORWARD else 2)
            yield
            time.sleep(max(0.0, end_s - time.monotonic()))


class _TimedStage(PipelineStage):
    """A stage whose passes keep a pace."""

    pace: _Pace

    def forward_one_chunk(self, fwd_chunk_id: int, *args, **kwargs):
        with self.pace.during(str(fwd_chunk_id), Kind.FORWARD):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args, **kwargs):
        with self.pace.during(str(bwd_chunk_id), Kind.BACKWARD):
            return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)


def _run_flushed(
    stage: _TimedStage, schedule: Schedule1F1B, batches: Iterable[tuple[Tensor, Tensor]]
) -> Iterator[Tensor | None]:
    """Train by 1F1B with a flush after each mini-batch, as `Endless1F1B.run` does without."""
    for inputs, targets in batches:
        losses: list[Tensor] = []
        target, kept = (targets, losses) if stage.is_last else (None, None)
        schedule.step(*((inputs,) if stage.is_first else ()), target=target, losses=kept)
        yield torch.stack(losses).mean() if losses else None


def _on_a_rank(setting: Setting, delays_s: np.ndarray, make_worker: "MakeWorker") -> Seen | None:
    num_stages, num_workers = setting.num_stages, setting.num_stages * setting.num_pipelines
    parts, rank = stages_of(setting.model, num_stages, setting.seed), dist.get_rank()
    workers = np.arange(num_workers).reshape(-1, num_stages)  # a row a pipeline
    of_stage, of_pipeline = (
        dist.new_subgroups_by_enumeration(ranks.tolist(), timeout=timeout_of())[0] for ranks in (workers.T, workers)
    )
    if rank >= num_workers:
        if rank == num_workers:
            flats = [nn.utils.parameters_to_vector(part.parameters()).detach() for part in parts]
            serve_parameters(flats, setting.num_pipelines, num_stages)
        return None
    pipeline, index = divmod(rank, num_stages)
    place = Place(stage=index, pipeline=pipeline, num_stages=num_stages, num_pipelines=setting.num_pipelines)
    part, data = parts[index], setting.data()
    optimizer = setting.optimizer(part)
    worker = make_worker(setting, part, place, of_stage, optimizer)
    recorder = Recorder(resource=f"stage {index}, pipeline {pipeline}")
    pace = _Pace(recorder, 1 if setting.has_flush else setting.num_micro_batches)
    run: Callable[..., Iterator[Tensor | None]]
    if setting.has_flush:
        stage = _TimedStage(part, index, num_stages, torch.device("cpu"), group=of_pipeline)
        stage.pace = pace
        run = partial(_run_flushed, stage, Schedule1F1B(stage, setting.num_micro_batches, data.loss))
    else:
        run = Endless1F1B(part, data.loss, group=of_pipeline, during=pace.during).run
    for _ in run([data.batch(pipeline, 0)]):  # opens connections
        optimizer.zero_grad()
    dist.barrier(group=of_pipeline)
    began_s, began_cpu_s = time.monotonic(), time.process_time()

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for iteration, delay_s in enumerate(delays_s[:, index, pipeline]):
            pace.delay_s = float(delay_s)
            yield data.batch(pipeline, iteration)

    seen, pace.pass_s = Seen(log=worker.log), setting.pass_s
    for loss in run(batches()):
        with recorder.during("sync", Kind.COMMUNICATE):
            worker.before_update()
            optimizer.step()
            worker.after_update()
        optimizer.zero_grad()
        seen.ends_s.append(time.monotonic() - began_s)
        seen.losses += [] if loss is None else [loss.item()]
        what, last = f"iterations of {setting.scheme}", seen.losses[-1] if seen.losses else None
        say_progress(len(seen.ends_s), setting.iterations, what, loss=last, rank=num_stages - 1)
    seen.cpu_s = time.process_time() - began_cpu_s
    seen.counted = worker.close()
    seen.actions = tuple(action for action in recorder.actions if action.start_s >= began_s)
    flat = nn.utils.parameters_to_vector(part.parameters()).detach()
    dist.all_reduce(flat, group=of_stage)  # the model at the end is the mean of all
    seen.flat = flat / setting.num_pipelines
    return seen


MakeWorker = Callable[[Setting, nn.Module, Place, dist.ProcessGroup, torch.optim.Optimizer], Worker]


def _worker(setting: Setting, part: nn.Module, place: Place, group: dist.ProcessGroup, _: object) -> Worker:
    if setting.scheme == Scheme.HETPIPE:
        server = setting.num_stages * setting.num_pipelines
        return HetPipe(part, place, server=server, staleness=setting.num_stages, push_every=setting.push_every)
    if setting.scheme == Scheme.ALL_REDUCE:
        return AllReduce(part, place, group)
    if setting.scheme == Scheme.AD_PSGD:
        return AdPsgd(part, place, group, setting.seed)
    window_s = setting.window * setting.workload.iteration_s / setting.num_pipelines
    more: dict[str, Any] = {"host": address_of(0)} if setting.communication else {}
    return SDPipe(part, place, options=Options(history=setting.history, window_s=window_s, **more))


def curve_of(ended: Sequence[tuple[float, float]], num_pipelines: int) -> list[list[float]]:
    """Return a curve of seconds, mini-batches of a mean pipeline, and mean losses, from seconds and losses of each."""
    ends = sorted(ended)
    edges = np.linspace(0, len(ends), min(NUM_POINTS, len(ends) // num_pipelines) + 1).round().astype(int)
    parts = [(end, ends[start:end]) for start, end in zip(edges, edges[1:], strict=False)]
    return [[part[-1][0], float(end) / num_pipelines, fmean(loss for _, loss in part)] for end, part in parts]
