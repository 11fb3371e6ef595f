"""A training on virtual ranks: one process does the updates of all workers in the order of a simulated timeline.

The simulation of `cost` says when workers compute and with whom they average, so that the clock is the paper's cluster
and its delays. Losses are measured: gradients, optimizers and averages are those of the real ranks.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from workbench.checks import require_counts, require_positive
from workbench.datasets import gpu_performance, step_times
from workbench.rows.cells import named
from workbench.rows.progress import say_progress

from .cost import Run, Scheme, simulate, traced_delays_s
from .method.scheduler import Group
from .simulated import ITERATION, PAPER, delays_s, workload_of
from .training import ADAMS, FLUSHES, MODELS, Data, curve_of, optimizer_of, scores_of, stages_of

__all__ = ["CLOCKS", "DELAYS", "VirtualServer", "VirtualSetting", "VirtualWorkers", "data_of", "num_ahead", "traced_s"]
__all__ += ["train"]

CLOCKS = {"resnet": "ResNet-50", "bert": "BERT-base", "gpt2": "BERT-base"}  # the model whose times a small one has
TRACES = ("cloud", "AR", "SE")  # figure 7a, and two jobs of ByteDance
DELAYS = ("homogeneous", "A", "B", *TRACES)  # section 5.1
TRACED = {"AR": (4, 4), "SE": (2, 32)}  # jobs of ByteDance: their stages, and the traced ranks of each
WARM_UP = 0.05  # share of the mini-batches in which the learning rate rises; from there it falls to 0
NUM_TESTS = 30  # of the mean model, equally many mini-batches apart
MOST_AHEAD = 3  # budgets for which each pipeline is simulated: a fast one takes more than its share of the one budget

Ended = tuple[int, int, float]  # pipeline, number and loss of a mini-batch
Model = list[list[Tensor]]  # weights by stage


@dataclass(frozen=True, kw_only=True, slots=True)
class VirtualSetting:
    """A training on virtual ranks."""

    scheme: str  # of `Scheme`
    model: str = "resnet"  # of MODELS
    num_stages: int = 4  # M
    num_pipelines: int = 4  # N
    iterations: int = 100  # mini-batches of a mean pipeline; all pipelines share one budget
    examples: int = 16  # of a mini-batch
    delays: str = "B"  # of DELAYS
    history: int = 10  # P
    flush: str = "rivals"  # of FLUSHES
    staleness: int | None = None  # s of HetPipe; None is the paper's, M
    adam: str = "reduced"  # BERT's optimizer in SDPipe, of ADAMS; the rivals' is plain
    learning_rate: float = 0.05  # the largest
    width: int = 16  # see `stages_of`
    seed: int = 0  # of weights, data, and delays

    def __post_init__(self) -> None:
        Scheme(self.scheme)
        for name, known in (("model", MODELS), ("delays", DELAYS), ("adam", ADAMS), ("flush", FLUSHES)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(known)}")
        require_counts(2, num_pipelines=self.num_pipelines)
        require_counts(1, num_stages=self.num_stages, iterations=self.iterations, examples=self.examples)
        require_counts(1, history=self.history)
        require_positive(learning_rate=self.learning_rate)

    @property
    def has_flush(self) -> bool:
        """Whether pipelines flush after each mini-batch: SDPipe's do not (algorithm 1), its rivals' do (5.1)."""
        return self.flush == "all" or self.scheme != Scheme.SDPIPE

    def rate_at(self, progress: float) -> float:
        """Return the learning rate at a share of the budget: it rises in a warm-up, then falls to 0."""
        return self.learning_rate * min(progress / WARM_UP, (1 - progress) / (1 - WARM_UP))


@named("sdpipe/virtual")
def train(**arguments: Any) -> dict[str, Any]:
    """Train on virtual ranks; arguments are those of `VirtualSetting`. Return curves against simulated seconds."""
    setting = VirtualSetting(**arguments)
    num_pipelines, budget = setting.num_pipelines, setting.iterations * setting.num_pipelines
    is_reduced = setting.scheme == Scheme.SDPIPE and setting.adam == "reduced"
    parts = stages_of(setting.model, setting.num_stages, setting.seed, setting.width)
    data = data_of(setting)
    is_server = setting.scheme == Scheme.HETPIPE
    workers = (partial(VirtualServer, staleness=setting.staleness) if is_server else VirtualWorkers)(
        parts,
        num_pipelines,
        lambda part: optimizer_of(setting.model, part, 1.0, num_pipelines if is_reduced else 1),
        data.batch,
        data.loss,
        has_flush=setting.has_flush,
        averages_gradients=setting.scheme == Scheme.ALL_REDUCE,
    )
    workload = workload_of(CLOCKS[setting.model], setting.num_stages)
    sources: list[dict[str, Any]] = []
    if setting.delays in TRACES:
        late_s, sources = traced_s(setting, workload.busy_s)
        late_s = np.tile(late_s, (MOST_AHEAD, 1, 1))
    else:
        shape = MOST_AHEAD * setting.iterations, setting.num_stages, num_pipelines
        late_s = delays_s(CLOCKS[setting.model], setting.delays, shape, ITERATION, setting.seed)
    how: dict[str, Any] = {"history": setting.history, "seed": setting.seed, "flush": setting.has_flush}
    run = simulate(setting.scheme, workload, PAPER, late_s, **how, staleness=setting.staleness)
    ended: list[tuple[float, float]] = []  # second and loss of each mini-batch
    tests: list[list[Any]] = []  # second, mini-batches of a mean pipeline, and scores of the mean model
    now_s = 0.0
    workers.set_rates_(setting.rate_at(1 / budget))
    for pipeline, number, loss in workers.follow(run):
        now_s = max(now_s, float(run.ends_s[number, pipeline]))
        ended.append((float(run.ends_s[number, pipeline]), loss))
        if len(ended) * NUM_TESTS // budget > len(tests):
            tests.append([now_s, len(ended) / num_pipelines, scores_of(workers.mean(), data)])
        say_progress(len(ended), budget, f"mini-batches of {setting.scheme}, seed {setting.seed}", loss=loss)
        if len(ended) == budget:
            break
        workers.set_rates_(setting.rate_at((len(ended) + 1) / budget))
    sizes = Counter(str(len(group.members)) for group in run.groups[: workers.num_groups])
    iteration_s = now_s / setting.iterations
    return {
        "setting": asdict(setting),
        "iteration_s": iteration_s,
        "blocks_s": [iteration_s],
        "seconds": now_s,
        "curve": curve_of(ended, num_pipelines),
        "tests": tests,
        "scores": tests[-1][2],
        "sizes": dict(sorted(sizes.items())),
        "delay_share": float(late_s.mean() / iteration_s),
        "data": [data.source, *sources],
    }


def data_of(setting: VirtualSetting) -> Data:
    """Return the batches and the test set of a training."""
    return Data(setting.model, setting.seed, setting.examples, is_varied=True)


def num_ahead(stage: int, num_stages: int, has_flush: bool) -> int:
    """Return how many forward passes a stage does before its first backward pass: one with a flush, else M - j."""
    return 1 if has_flush else num_stages - stage


class VirtualWorkers:
    """M x N workers in one process, which update and average in the order of groups.

    A mini-batch k of a pipeline uses in stage j the weights after k + 1 - a synchronisations, where a is `num_ahead`,
    in the forward and in the backward pass (PipeDream's stashed weights). So a mini-batch is computed at once in all
    stages when the first of them synchronises it. Each stage updates when it synchronises.

    `averages_gradients` says that groups average gradients before the update (All-Reduce), not models after it. A
    mini-batch is cut into `num_micro_batches`, whose mean gradient counts.
    """

    def __init__(
        self,
        parts: Sequence[nn.Module],
        num_pipelines: int,
        make_optimizer: Callable[[nn.Module], torch.optim.Optimizer],
        batch: Callable[[int, int], tuple[Tensor, Tensor]],
        loss: Callable[[Tensor, Tensor], Tensor],
        *,
        has_flush: bool,
        averages_gradients: bool = False,
        num_micro_batches: int = 1,
    ):
        self._batch, self._loss, self._num_micro_batches = batch, loss, num_micro_batches
        self._averages_gradients = averages_gradients
        self._ahead = [num_ahead(stage, len(parts), has_flush) for stage in range(len(parts))]
        self.pipelines = [[_Worker(deepcopy(part), make_optimizer) for part in parts] for _ in range(num_pipelines)]
        self._num_computed = [0] * num_pipelines  # mini-batches
        self._gradients: dict[tuple[int, int], dict[int, list[Tensor]]] = {}  # of pipeline and mini-batch, by stage
        self._losses: dict[tuple[int, int], float] = {}
        self.num_groups = 0

    def follow(self, run: Run) -> Iterator[Ended]:
        """Do what a simulated run did; yield pipeline, number and loss of each mini-batch that has ended everywhere."""
        for group in run.groups:
            yield from self.average_(group)

    def average_(self, group: Group) -> list[Ended]:
        """Let a group's members update their stage with their next mini-batch, and average; return what has ended."""
        self.num_groups += 1
        pipelines = sorted(group.members)
        workers = [self.pipelines[pipeline][group.stage] for pipeline in pipelines]
        gradients = []
        for pipeline, worker in zip(pipelines, workers, strict=True):
            if worker.num_synced == self._num_computed[pipeline]:
                self._compute(pipeline)
            gradients.append(self._gradients[pipeline, worker.num_synced].pop(group.stage))
        if self._averages_gradients:
            gradients = [_mean(gradients)] * len(workers)
        for worker, own in zip(workers, gradients, strict=True):
            worker.update_(own)
        if not self._averages_gradients and len(workers) > 1:
            mean = _mean([worker.weights for worker in workers])
            for worker in workers:
                worker.put_(mean)
        return [ended for pipeline in pipelines for ended in self._end(pipeline, group.stage)]

    def mean(self) -> list[nn.Module]:
        """Return stages whose weights are the mean of all pipelines."""
        stages = [deepcopy(worker.part) for worker in self.pipelines[0]]
        for stage, part in enumerate(stages):
            mean = _mean([pipeline[stage].weights for pipeline in self.pipelines])
            torch._foreach_copy_([weight.detach() for weight in part.parameters()], mean)
        return stages

    def set_rates_(self, learning_rate: float) -> None:
        """Set the learning rate of all workers."""
        for worker in (worker for pipeline in self.pipelines for worker in pipeline):
            for group in worker.optimizer.param_groups:
                group["lr"] = learning_rate

    def _compute(self, pipeline: int) -> None:
        """Do a pipeline's next mini-batch in all stages."""
        number, workers = self._num_computed[pipeline], self.pipelines[pipeline]
        self._num_computed[pipeline] += 1
        versions = [
            worker.versions[max(0, number + 1 - ahead)] for worker, ahead in zip(workers, self._ahead, strict=True)
        ]
        flat = [weight for version in versions for weight in version.values()]
        total: Sequence[Tensor] = [torch.zeros(())] * len(flat)
        losses = []
        inputs, targets = (part.chunk(self._num_micro_batches) for part in self._batch(pipeline, number))
        for x, wanted in zip(inputs, targets, strict=True):
            for worker, version in zip(workers, versions, strict=True):
                x = functional_call(worker.part, version, (x,))
            loss = self._loss(x, wanted)
            losses.append(loss.item())
            total = torch._foreach_add(torch.autograd.grad(loss, flat), list(total))
        mean = iter(torch._foreach_div(list(total), self._num_micro_batches))
        self._gradients[pipeline, number] = {
            stage: [next(mean) for _ in version] for stage, version in enumerate(versions)
        }
        self._losses[pipeline, number] = fmean(losses)

    def _end(self, pipeline: int, stage: int) -> list[Ended]:
        """End a worker's mini-batch, and drop the weights that no later one needs; return it if all stages have."""
        worker = self.pipelines[pipeline][stage]
        number = worker.num_synced
        worker.num_synced += 1
        worker.keep_()
        oldest = max(0, self._num_computed[pipeline] + 1 - self._ahead[stage])
        worker.versions = {version: weights for version, weights in worker.versions.items() if version >= oldest}
        if self._gradients[pipeline, number]:
            return []
        del self._gradients[pipeline, number]
        return [(pipeline, number, self._losses.pop((pipeline, number)))]


class VirtualServer(VirtualWorkers):
    """HetPipe: pipelines push their updates to one server, and go on at most s pushes ahead of the slowest one.

    The server answers a push with its model once the push is within the bound, as on real ranks. A pipeline adds its
    newer updates to the model that it takes in. `staleness` is s, the paper's M by default.
    """

    def __init__(
        self, parts: Sequence[nn.Module], num_pipelines: int, *arguments: Any, staleness: int | None = None, **more: Any
    ):
        super().__init__(parts, num_pipelines, *arguments, **more)
        staleness = len(parts) if staleness is None else staleness
        self._bound = max(0, staleness - 1)  # one push more is under way at a worker
        self._model: Model = [worker.clone() for worker in self.pipelines[0]]  # the server's
        self._num_pushed = [0] * num_pipelines
        self._updates: list[dict[int, Model]] = [{} for _ in range(num_pipelines)]  # that no answer holds
        self._unanswered: list[tuple[int, int]] = []  # pipeline and mini-batch of each push
        self._answers: dict[int, tuple[int, Model]] = {}  # of pipelines: the pushes that it holds, and the model

    def follow(self, run: Run) -> Iterator[Ended]:
        """Do what a simulated run did; yield pipeline, number and loss of each mini-batch whose push has arrived."""
        for pipeline, is_push in run.steps:
            if not is_push:
                self.train_(pipeline)
            else:
                number = self._num_pushed[pipeline]
                self.push_(pipeline)
                yield pipeline, number, self._losses.pop((pipeline, number))

    def train_(self, pipeline: int) -> None:
        """Take in the newest answer, then do a mini-batch and its update."""
        workers, updates = self.pipelines[pipeline], self._updates[pipeline]
        if pipeline in self._answers:
            num_held, model = self._answers.pop(pipeline)
            for number in [number for number in updates if number < num_held]:
                del updates[number]
            for stage, worker in enumerate(workers):
                worker.put_(model[stage])
                for update in updates.values():
                    torch._foreach_add_(worker.weights, update[stage])
                worker.keep_()
        number = self._num_computed[pipeline]
        self._compute(pipeline)
        updates[number] = []
        loss = self._losses[pipeline, number]
        for stage, worker in enumerate(workers):
            before = worker.clone()
            worker.update_(self._gradients[pipeline, number].pop(stage))
            share = torch._foreach_div(torch._foreach_sub(worker.weights, before), len(self.pipelines))
            worker.put_(torch._foreach_add(before, list(share)))
            updates[number].append(list(share))
            self._end(pipeline, stage)
        self._losses[pipeline, number] = loss

    def push_(self, pipeline: int) -> None:
        """Add a pipeline's next update to the server's model, and answer what is within the bound."""
        number = self._num_pushed[pipeline]
        self._num_pushed[pipeline] += 1
        for model, update in zip(self._model, self._updates[pipeline][number], strict=True):
            torch._foreach_add_(model, update)
        self._unanswered.append((pipeline, number))
        for other, pushed in list(self._unanswered):
            if pushed + 1 - min(self._num_pushed) <= self._bound:
                self._unanswered.remove((other, pushed))
                answer = [[weight.clone() for weight in stage] for stage in self._model]
                self._answers[other] = self._num_pushed[other], answer


class _Worker:
    """A stage of a pipeline, with the weights of those synchronisations that a forward pass still needs."""

    def __init__(self, part: nn.Module, make_optimizer: Callable[[nn.Module], torch.optim.Optimizer]):
        self.part, self.optimizer = part, make_optimizer(part)
        self._parameters = dict(part.named_parameters())
        self.weights = [weight.detach() for weight in self._parameters.values()]
        self.num_synced = 0
        self.versions: dict[int, dict[str, Tensor]] = {}
        self.keep_()

    def clone(self) -> list[Tensor]:
        """Copy the weights."""
        return [weight.clone() for weight in self.weights]

    def put_(self, weights: Sequence[Tensor]) -> None:
        """Take over weights."""
        torch._foreach_copy_(self.weights, list(weights))

    def update_(self, gradients: Sequence[Tensor]) -> None:
        """Do the optimizer's step."""
        for weight, gradient in zip(self._parameters.values(), gradients, strict=True):
            weight.grad = gradient
        self.optimizer.step()

    def keep_(self) -> None:
        """Keep the weights as those after the synchronisations so far."""
        copies = [copy.requires_grad_() for copy in self.clone()]
        self.versions[self.num_synced] = dict(zip(self._parameters, copies, strict=True))


def _mean(tensors: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Return the mean of several lists of tensors, added in their order."""
    total = list(tensors[0])
    for more in tensors[1:]:
        total = list(torch._foreach_add(total, list(more)))
    return list(torch._foreach_div(total, len(tensors)))


def traced_s(setting: VirtualSetting, busy_s: float) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Return the delays in seconds [K, M, N] that a trace gives workers who compute for `busy_s`, and its sources."""
    if setting.delays == "cloud":
        found = gpu_performance.load()
        slowness, sources = [[1 / speed for speed in row] for row in found.speeds], [found.source.as_record()]
    else:
        num_stages, num_ranks = TRACED[setting.delays]
        stages = [step_times.load(setting.delays, stage=stage, num_ranks=num_ranks) for stage in range(num_stages)]
        seconds, sources = np.array([stage.seconds for stage in stages]), [stage.source.as_record() for stage in stages]
        slow = seconds / seconds.min(axis=1, keepdims=True)  # [stage, rank, step]: beside the fastest rank of the stage
        slowness = slow.swapaxes(0, 1).reshape(num_stages * num_ranks, -1)  # a rank's stages one after the other
    return traced_delays_s(slowness, setting.iterations, setting.num_stages, setting.num_pipelines, busy_s), sources
