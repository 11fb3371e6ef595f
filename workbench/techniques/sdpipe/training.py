"""A training of one scheme on real ranks: the same model, data order, seeds and injected delays for all four.

A pass sleeps until a nominal time is over, so that many ranks share few cores without holding each other up; delays
come before a worker's first micro-batch, in iterations drawn by seed or taken from a trace.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional

from workbench.checks import require_counts, require_not_negative, require_positive
from workbench.datasets import cifar10, gpu_performance, step_times, wikitext2
from workbench.launch import Ranks
from workbench.models.bert import BertConfig, BertEncoder
from workbench.models.resnet import resnet_stages
from workbench.parallel.pipeline import Stage
from workbench.parallel.replicas import Place
from workbench.parallel.timeouts import timeout_of
from workbench.study.cells import named
from workbench.study.progress import say_progress
from workbench.techniques.sdpipe.cost import Scheme, Workload, drawn_delays_s, traced_delays_s
from workbench.techniques.sdpipe.method.optimizer import VarianceReducedAdam
from workbench.techniques.sdpipe.method.scheduler import Settings
from workbench.techniques.sdpipe.runtime.averaging import Log, Options, SDPipe
from workbench.techniques.sdpipe.runtime.rivals import (
    AdPsgd,
    AllReduce,
    HetPipe,
    SDPipeWorker,
    Worker,
    serve_parameters,
)
from workbench.timeline import Action, Kind, Recorder, Timeline
from workbench.training.images import ImageExamples

__all__ = ["MODELS", "MakeWorker", "Setting", "delays_of", "record_timelines", "train", "train_with"]

MODELS = ("resnet", "bert")
TRACES = ("none", "drawn", "cloud", "AR", "SE")  # of delays
NUM_TESTED = 1000  # images, or sequences of words
NUM_WORDS = 2000  # that BERT knows, the most frequent ones
UNKNOWN, MASK, FIRST_WORD = 0, 1, 2  # ids
MASKED_SHARE = 0.15  # of words, Devlin et al., 2019, section 3.1
SEQUENCE = 32  # words
BERT = BertConfig(
    hidden_size=64, num_layers=4, num_heads=4, mlp_size=256, vocab_size=NUM_WORDS + FIRST_WORD, dropout=0.0
)
NUM_POINTS = 60  # of a recorded curve
NUM_BLOCKS = 8  # of consecutive iterations, in which schemes are compared
TRACED = {"AR": (4, 4), "SE": (2, 32)}  # jobs of ByteDance: their stages, and the traced ranks of each


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A training."""

    scheme: str  # of `Scheme`
    model: str = "resnet"  # of MODELS
    num_stages: int = 4  # M
    num_pipelines: int = 4  # N
    iterations: int = 100  # mini-batches of each pipeline
    num_micro_batches: int = 4
    micro_batch: int = 4  # examples
    pass_s: float = 0.02  # nominal seconds of a stage's forward pass; a backward pass takes twice as many
    trace: str = "none"  # of TRACES: where delays come from
    delay: float = 0.0  # of "drawn" delays, in iterations without delay
    delay_share: float = 0.1  # of iterations with a drawn delay
    history: int = 10  # P
    window: float = 1.0  # T, in N-ths of an iteration
    released: bool = False  # the scheduler has the settings of the authors' release, their window included
    staleness: int = -1  # s of HetPipe; -1 is M
    adam: str = "reduced"  # BERT's optimizer in SDPipe, or "plain"; the rivals' is plain
    learning_rate: float = 0.05
    seed: int = 0  # of weights, data, and delays

    def __post_init__(self) -> None:
        Scheme(self.scheme)
        for name, known in (("model", MODELS), ("trace", TRACES), ("adam", ("reduced", "plain"))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(known)}")
        require_counts(2, num_pipelines=self.num_pipelines, iterations=self.iterations)
        require_counts(1, num_stages=self.num_stages, micro_batch=self.micro_batch, history=self.history)
        require_counts(-1, staleness=self.staleness)
        require_not_negative(delay=self.delay, window=self.window)
        require_positive(learning_rate=self.learning_rate, pass_s=self.pass_s)

    @property
    def workload(self) -> Workload:
        """The nominal times of a pipeline."""
        times = {"forward_s": self.pass_s, "backward_s": 2 * self.pass_s}
        return Workload(num_stages=self.num_stages, num_micro_batches=self.num_micro_batches, **times)

    @property
    def mini_batch(self) -> int:
        """Examples of a pipeline in an iteration."""
        return self.num_micro_batches * self.micro_batch


def delays_of(setting: Setting) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Return delays in seconds [K, M, N], and where they come from."""
    shape = setting.iterations, setting.num_stages, setting.num_pipelines
    if setting.trace in ("none", "drawn"):
        delay_s = setting.delay * setting.workload.iteration_s if setting.trace == "drawn" else 0.0
        return drawn_delays_s(*shape, delay_s=delay_s, share=setting.delay_share, seed=setting.seed), []
    if setting.trace == "cloud":
        found = gpu_performance.load()
        slowness, sources = [[1 / speed for speed in row] for row in found.speeds], [found.source.as_record()]
    else:
        num_stages, num_ranks = TRACED[setting.trace]
        stages = [step_times.load(setting.trace, stage=stage, num_ranks=num_ranks) for stage in range(num_stages)]
        seconds, sources = np.array([stage.seconds for stage in stages]), [stage.source.as_record() for stage in stages]
        slow = seconds / seconds.min(axis=1, keepdims=True)  # [stage, rank, step]: beside the fastest rank of the stage
        slowness = slow.swapaxes(0, 1).reshape(num_stages * num_ranks, -1)  # a rank's stages one after the other
    busy_s = setting.num_micro_batches * 3 * setting.pass_s
    return traced_delays_s(slowness, *shape, busy_s), sources


@named("sdpipe/train")
def train(**arguments: Any) -> dict[str, Any]:
    """Train on real ranks of this machine; arguments are those of `Setting`. Return the curve and what happened."""
    return train_with(Setting(**arguments))


def train_with(setting: Setting, make_worker: "MakeWorker | None" = None) -> dict[str, Any]:
    """Train as `train` does, with workers of the setting's scheme or with workers of the caller's."""
    delays_s, sources = delays_of(setting)
    return _joined(setting, _workers(setting, delays_s, make_worker), delays_s, sources)


def record_timelines(settings: Sequence[Setting], late: int, delay_s: float) -> dict[str, Timeline]:
    """Train each setting with the last stage of one pipeline delayed in every third iteration; return who did what."""
    timelines = {}
    for setting in settings:
        delays_s = np.zeros((setting.iterations, setting.num_stages, setting.num_pipelines))
        delays_s[1::3, -1, late] = delay_s
        timelines[setting.scheme] = Timeline.merged(seen.actions for seen in _workers(setting, delays_s))
    return timelines


def _workers(setting: Setting, delays_s: np.ndarray, make_worker: "MakeWorker | None" = None) -> list["_Seen"]:
    """Train; return what each worker saw, a parameter server left out."""
    num_workers = setting.num_stages * setting.num_pipelines
    with Ranks(num_workers + (setting.scheme == Scheme.HETPIPE), preload=(__name__,)) as ranks:
        return ranks.run(_on_a_rank, setting, delays_s, make_worker or _worker)[:num_workers]


@dataclass(slots=True)
class _Seen:
    """What a worker saw."""

    ends_s: list[float] = field(default_factory=list)  # of iterations
    losses: list[float] = field(default_factory=list)  # the same; in the last stage
    log: Log = field(default_factory=Log)
    counted: dict[str, int] = field(default_factory=dict)  # by the scheduler
    cpu_s: float = 0.0
    score: dict[str, float] = field(default_factory=dict)  # of the mean model, on rank 0
    source: dict[str, Any] = field(default_factory=dict)  # of the data
    actions: tuple[Action, ...] = ()  # passes, delays, and what comes after a mini-batch


class _TimedStage(PipelineStage):
    """A stage whose passes last a nominal time, after a delay before the first."""

    pass_s = delay_s = 0.0
    recorder: Recorder

    def forward_one_chunk(self, fwd_chunk_id: int, *args, **kwargs):
        if fwd_chunk_id == 0 and self.delay_s:
            with self.recorder.during("late", Kind.OTHER):
                time.sleep(self.delay_s)
        with self.recorder.during(str(fwd_chunk_id), Kind.FORWARD):
            began_s = time.monotonic()
            found = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
            time.sleep(max(0.0, began_s + self.pass_s - time.monotonic()))
        return found

    def backward_one_chunk(self, bwd_chunk_id: int, *args, **kwargs):
        with self.recorder.during(str(bwd_chunk_id), Kind.BACKWARD):
            began_s = time.monotonic()
            found = super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
            time.sleep(max(0.0, began_s + 2 * self.pass_s - time.monotonic()))
        return found


def _on_a_rank(setting: Setting, delays_s: np.ndarray, make_worker: "MakeWorker") -> _Seen | None:
    parts, num_stages = _stages_of(setting), setting.num_stages
    flats = [nn.utils.parameters_to_vector(part.parameters()).detach() for part in parts]
    rank, workers = dist.get_rank(), range(num_stages * setting.num_pipelines)
    of_stages = [dist.new_group(list(workers)[stage::num_stages], timeout=timeout_of()) for stage in range(num_stages)]
    of_pipelines = [
        dist.new_group(list(workers)[at : at + num_stages], timeout=timeout_of()) for at in workers[::num_stages]
    ]
    staleness = num_stages if setting.staleness < 0 else setting.staleness
    if rank not in workers:
        serve_parameters(flats, setting.num_pipelines, staleness)
        return None
    pipeline, index = divmod(rank, num_stages)
    place = Place(stage=index, pipeline=pipeline, num_stages=num_stages, num_pipelines=setting.num_pipelines)
    part, group = parts[index], of_stages[index]
    optimizer = _optimizer(setting, part)
    if setting.scheme == Scheme.HETPIPE:
        largest = max(flat.numel() for flat in flats)
        worker = HetPipe(part, place, server=len(workers), staleness=staleness, largest=largest)
    else:
        worker = make_worker(setting, part, place, group, optimizer)
    data = _Data(setting)
    stage = _TimedStage(part, index, num_stages, torch.device("cpu"), group=of_pipelines[pipeline])
    seen = _run(setting, place, stage, worker, optimizer, data, delays_s[:, index, pipeline])
    flat = nn.utils.parameters_to_vector(part.parameters()).detach()
    dist.all_reduce(flat, group=group)  # the model at the end is the mean of all
    seen.score = _scores(parts, flat / setting.num_pipelines, place, of_pipelines[pipeline], data)
    seen.source = data.source
    return seen


MakeWorker = Callable[[Setting, nn.Module, Place, dist.ProcessGroup, torch.optim.Optimizer], Worker]


def _worker(setting: Setting, part: nn.Module, place: Place, group: dist.ProcessGroup, _: object) -> Worker:
    if setting.scheme == Scheme.ALL_REDUCE:
        return AllReduce(part, place, group)
    if setting.scheme == Scheme.AD_PSGD:
        return AdPsgd(part, place, group, setting.seed)
    window_s = setting.window * setting.workload.iteration_s / setting.num_pipelines
    options = Options(history=setting.history, window_s=window_s)
    if setting.released:
        options = Options(history=setting.history, settings=Settings.released())
    return SDPipeWorker(SDPipe(part, place, options=options))


def _run(
    setting: Setting,
    place: Place,
    stage: _TimedStage,
    worker: Worker,
    optimizer: torch.optim.Optimizer,
    data: "_Data",
    delays_s: np.ndarray,
) -> _Seen:
    schedule, seen = Schedule1F1B(stage, setting.num_micro_batches, data.loss), _Seen(log=worker.log)
    is_first, is_last = place.stage == 0, place.stage == place.num_stages - 1
    stage.recorder = Recorder(resource=f"stage {place.stage}, pipeline {place.pipeline}")
    for iteration in range(-1, setting.iterations):  # the first opens connections
        inputs, targets = data.batch(place.pipeline, max(iteration, 0))
        if iteration == 0:
            optimizer.zero_grad()
            dist.barrier(group=stage.group)
            began_s, began_cpu_s = time.monotonic(), time.process_time()
        stage.pass_s, stage.delay_s = setting.pass_s, float(delays_s[iteration]) if iteration >= 0 else 0.0
        losses: list[Tensor] = []
        last = {"target": targets, "losses": losses} if is_last else {}
        schedule.step(*((inputs,) if is_first else ()), **last)
        if iteration < 0:
            continue
        with stage.recorder.during("sync", Kind.COMMUNICATE):
            worker.before_update()
            optimizer.step()
            worker.after_update()
        optimizer.zero_grad()
        seen.ends_s.append(time.monotonic() - began_s)
        seen.losses += [torch.stack(losses).mean().item()] if is_last else []
        say_progress(
            iteration + 1,
            setting.iterations,
            f"iterations of {setting.scheme}",
            loss=seen.losses[-1] if seen.losses else None,
            rank=setting.num_stages - 1,
        )
    seen.cpu_s = time.process_time() - began_cpu_s
    seen.counted = worker.close()
    seen.actions = tuple(action for action in stage.recorder.actions if action.start_s >= began_s)
    return seen


def _optimizer(setting: Setting, part: nn.Module) -> torch.optim.Optimizer:
    if setting.model == "resnet":
        return torch.optim.SGD(part.parameters(), lr=setting.learning_rate, momentum=0.9, weight_decay=1e-4)
    if setting.scheme == Scheme.SDPIPE and setting.adam == "reduced":
        return VarianceReducedAdam(part.parameters(), num_workers=setting.num_pipelines, lr=setting.learning_rate)
    return torch.optim.AdamW(part.parameters(), lr=setting.learning_rate, weight_decay=0.0)


class _BertStage(nn.Module):
    """A stage of BERT; the last one scores words with a weight of its own."""

    def __init__(self, stage: Stage):
        super().__init__()
        self.encoder = BertEncoder(BERT, stage=stage)
        self.head = nn.Linear(BERT.hidden_size, BERT.vocab_size) if stage.is_last else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x))


def _stages_of(setting: Setting) -> list[nn.Module]:
    """Build all stages, equal on all ranks."""
    if setting.model == "resnet":
        return resnet_stages(setting.num_stages, seed=setting.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setting.seed)
        stages = [Stage(index=index, num_stages=setting.num_stages) for index in range(setting.num_stages)]
        return [_BertStage(stage) for stage in stages]


class _Data:
    """Batches of every pipeline, drawn by seed alike on all ranks, and a test set."""

    def __init__(self, setting: Setting):
        self._setting = setting
        train_set, test_set = (self._load(split, setting.model) for split in ("train", "test"))
        self._examples, self.source = train_set
        self._tested, _ = test_set
        self.loss = functional.cross_entropy if setting.model == "resnet" else _masked_loss

    def _load(self, split: str, model: str) -> tuple[Any, dict[str, Any]]:
        if model == "resnet":
            found = cifar10.load(split, None if split == "train" else NUM_TESTED)
            return ImageExamples.of(found), found.source.as_record()
        found = wikitext2.load(split)
        known = [word for word, _ in Counter(_words(wikitext2.load("train"))).most_common(NUM_WORDS)]
        ids_of = {word: number for number, word in enumerate(known, FIRST_WORD)}
        ids = torch.tensor([ids_of.get(word, UNKNOWN) for word in _words(found)])
        return ids[: len(ids) // SEQUENCE * SEQUENCE].view(-1, SEQUENCE), found.source.as_record()

    def batch(self, pipeline: int, iteration: int) -> tuple[Tensor, Tensor]:
        """Draw a pipeline's mini-batch."""
        setting = self._setting
        draw = torch.Generator().manual_seed((setting.seed * 1009 + pipeline) * 100_003 + iteration)
        rows = torch.randint(len(self._examples), (setting.mini_batch,), generator=draw)
        return self._of_rows(self._examples, rows, draw)

    def tested(self) -> tuple[Tensor, Tensor]:
        """Return the test set."""
        rows = torch.arange(min(len(self._tested), NUM_TESTED))
        return self._of_rows(self._tested, rows, torch.Generator().manual_seed(0))

    def _of_rows(self, examples: Any, rows: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        if self._setting.model == "resnet":
            batch = examples.batch(rows)
            return batch.inputs, batch.labels
        words_BS = examples[rows]
        is_masked_BS = torch.rand(words_BS.shape, generator=draw) < MASKED_SHARE
        is_masked_BS[:, 0] = True  # each sequence has at least one
        return words_BS.masked_fill(is_masked_BS, MASK), words_BS.masked_fill(~is_masked_BS, -100)


def _words(dataset: Any) -> list[str]:
    return [word for line in dataset.columns["text"] for word in line.split()]


def _masked_loss(logits_BSV: Tensor, words_BS: Tensor) -> Tensor:
    return functional.cross_entropy(logits_BSV.flatten(0, 1), words_BS.flatten(), ignore_index=-100)


@torch.no_grad()
def _scores(
    parts: list[nn.Module], flat: Tensor, place: Place, group: dist.ProcessGroup, data: _Data
) -> dict[str, float]:
    """Bring the stages of the first pipeline together, and test the model there; nothing elsewhere."""
    if place.pipeline > 0:
        return {}
    if place.stage > 0:
        dist.send(flat, group_dst=0, group=group)
        return {}
    for number, part in enumerate(parts):
        vector = flat if number == 0 else torch.empty(sum(weight.numel() for weight in part.parameters()))
        if number > 0:
            dist.recv(vector, group_src=number, group=group)
        nn.utils.vector_to_parameters(vector, part.parameters())
    inputs, targets = data.tested()
    found = inputs
    for part in parts:
        found = part(found)
    scores = {"test_loss": data.loss(found, targets).item()}
    if found.ndim == 2:
        scores["accuracy"] = 100 * (found.argmax(1) == targets).double().mean().item()
    return scores


def _joined(setting: Setting, workers: list[_Seen], delays_s: np.ndarray, sources: list[dict]) -> dict[str, Any]:
    """Put together what all workers saw, as plain values."""
    block_edges = np.linspace(0, setting.iterations, min(NUM_BLOCKS, setting.iterations) + 1).round().astype(int)
    at_s = np.array([[0.0, *worker.ends_s] for worker in workers])[:, block_edges]
    half, last = setting.iterations // 2, workers[setting.num_stages - 1 :: setting.num_stages]
    spans_s = [worker.ends_s[-1] - worker.ends_s[half - 1] for worker in workers]
    ends = sorted((end_s, loss) for worker in last for end_s, loss in zip(worker.ends_s, worker.losses, strict=True))
    edges = np.linspace(0, len(ends), min(NUM_POINTS, setting.iterations) + 1).round().astype(int)
    curve = [ends[start:end] for start, end in zip(edges, edges[1:], strict=False)]
    logs, seconds = [worker.log for worker in workers], max(worker.ends_s[-1] for worker in workers)
    # A group is in the logs of all its members: the first one's counts.
    groups = [
        [
            group
            for number, log in enumerate(logs)
            for group in log.groups
            if group.stage == stage == number % setting.num_stages
            and min(group.members) == number // setting.num_stages
        ]
        for stage in range(setting.num_stages)
    ]
    sizes = Counter(len(group.members) for of_stage in groups for group in of_stage)
    return {
        "setting": asdict(setting),
        "iteration_s": len(spans_s) / sum((setting.iterations - half) / span_s for span_s in spans_s),
        "blocks_s": (np.diff(at_s).mean(axis=0) / np.diff(block_edges)).tolist(),
        "seconds": seconds,
        "curve": [
            [part[-1][0], float(edge) / len(last), float(np.mean([loss for _, loss in part]))]
            for edge, part in zip(edges[1:], curve, strict=True)
        ],
        "scores": workers[0].score,
        "sizes": {str(size): count for size, count in sorted(sizes.items())},
        "counted": workers[0].counted,
        "waited_share": sum(log.waited_s for log in logs) / seconds / len(logs),
        "averaged_share": sum(log.averaged_s for log in logs) / seconds / len(logs),
        "cpu_share": sum(worker.cpu_s for worker in workers) / seconds,
        "delay_share": float(delays_s.sum()) / len(logs) / seconds,
        "nominal_s": setting.workload.iteration_s,
        "data": [workers[0].source, *sources],
    }
