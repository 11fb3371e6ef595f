"""A training on virtual ranks: one process does the updates of all workers in the order of a simulated timeline.

The simulation of `cost` says when workers compute and with whom they average, so that the clock is the paper's cluster
and its delays. Losses are measured: gradients, optimizers and averages are those of the real ranks.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from workbench.checks import require_counts
from workbench.datasets import gpu_performance, step_times
from workbench.rows.cells import named
from workbench.rows.progress import say_progress
from workbench.timeline import StragglerTrace

from .cost import Run, Scheme, simulate, traced_delays_s
from .method.scheduler import Group
from .simulated import ITERATION, PAPER, delays_s, workload_of
from .training import Data, Training, curve_of, scores_of, stages_of

__all__ = ["CLOCKS", "VirtualServer", "VirtualSetting", "VirtualWorkers", "traced_s", "train"]

CLOCKS = {"resnet": "ResNet-50", "bert": "BERT-base", "gpt2": "BERT-base"}  # the model whose times a small one has
TRACED = {"AR": (4, 4), "SE": (2, 32)}  # jobs of ByteDance: their stages, and the traced ranks of each
TRACES = ("cloud", *TRACED)  # figure 7a, and these jobs
WARM_UP = 0.05  # share of the mini-batches in which the learning rate rises; from there it falls to 0
NUM_TESTS = 30  # of the mean model, equally many mini-batches apart
MOST_AHEAD = 3  # budgets for which each pipeline is simulated: a fast one takes more than its share of the one budget

Ended = tuple[int, int, float]  # pipeline, number and loss of a mini-batch


@dataclass(frozen=True, kw_only=True, slots=True)
class VirtualSetting(Training):
    """A training on virtual ranks; `iterations` are of a mean pipeline, as all pipelines share one budget."""

    CHOICES = MappingProxyType({**Training.CHOICES, "delays": ("homogeneous", "A", "B", *TRACES)})

    flush: str = "rivals"
    examples: int = 16  # of a mini-batch
    delays: str = "B"  # of section 5.1, or of TRACES
    staleness: int | None = None  # s of HetPipe; None is the paper's, M
    width: int = 16  # see `stages_of`

    def __post_init__(self) -> None:
        Training.__post_init__(self)
        require_counts(1, examples=self.examples)

    def rate_at(self, progress: float) -> float:
        """Return the learning rate at a share of the budget: it rises in a warm-up, then falls to 0."""
        return self.learning_rate * min(progress / WARM_UP, (1 - progress) / (1 - WARM_UP))

    def data(self) -> Data:
        """Load the batches and the test set."""
        return Data(self.model, self.seed, self.examples, is_varied=True)


@named("sdpipe/virtual")
def train(**arguments: Any) -> dict[str, Any]:
    """Train on virtual ranks; arguments are those of `VirtualSetting`. Return curves against simulated seconds."""
    setting = VirtualSetting(**arguments)
    num_pipelines, budget = setting.num_pipelines, setting.iterations * setting.num_pipelines
    parts, data = stages_of(setting.model, setting.num_stages, setting.seed, setting.width), setting.data()
    is_server = setting.scheme == Scheme.HETPIPE
    workers = (partial(VirtualServer, staleness=setting.staleness) if is_server else VirtualWorkers)(
        parts,
        num_pipelines,
        setting.optimizer,
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


class VirtualWorkers:
    """M x N workers in one process, which update and average in the order of groups.

    A mini-batch k of a pipeline uses in stage j the weights after k + 1 - a synchronisations, where a is the number of
    forward passes before the stage's first backward pass, in the forward and in the backward pass (PipeDream's stashed
    weights). So a mini-batch is computed at once in all stages when the first of them synchronises it. Each stage
    updates when it synchronises.

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
        ahead = [1 if has_flush else len(parts) - stage for stage in range(len(parts))]
        self.pipelines = [
            [_Worker(deepcopy(part), make_optimizer, a) for part, a in zip(parts, ahead, strict=True)]
            for _ in range(num_pipelines)
        ]
        self._losses: list[deque[float]] = [deque() for _ in range(num_pipelines)]  # of mini-batches under way
        self._num_computed = [0] * num_pipelines  # mini-batches
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
        for pipeline, worker in zip(pipelines, workers, strict=True):
            if not worker.gradients:
                self._compute(pipeline)
        gradients = [worker.gradients.popleft() for worker in workers]
        if self._averages_gradients:
            gradients = [_mean(gradients)] * len(workers)
        for worker, worker_gradients in zip(workers, gradients, strict=True):
            worker.update_(worker_gradients)
        if not self._averages_gradients and len(workers) > 1:
            mean = _mean([worker.weights for worker in workers])
            for worker in workers:
                torch._foreach_copy_(worker.weights, mean)
        ended = []
        for pipeline, worker in zip(pipelines, workers, strict=True):
            number = worker.num_synced
            worker.end_(self._num_computed[pipeline])
            if min(other.num_synced for other in self.pipelines[pipeline]) > number:
                ended.append((pipeline, number, self._losses[pipeline].popleft()))
        return ended

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
        versions = [worker.versions[worker.version_of(number)] for worker in workers]
        flat = [weight for version in versions for weight in version.values()]
        losses, gradients = [], []
        inputs, targets = (part.chunk(self._num_micro_batches) for part in self._batch(pipeline, number))
        for x, wanted in zip(inputs, targets, strict=True):
            for worker, version in zip(workers, versions, strict=True):
                x = functional_call(worker.part, version, (x,))
            loss = self._loss(x, wanted)
            losses.append(loss.item())
            gradients.append(torch.autograd.grad(loss, flat))
        mean = iter(_mean(gradients))
        for worker, version in zip(workers, versions, strict=True):
            worker.gradients.append([next(mean) for _ in version])
        self._losses[pipeline].append(fmean(losses))


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
        self._model = [weight.clone() for worker in self.pipelines[0] for weight in worker.weights]  # the server's
        self._num_pushed = [0] * num_pipelines
        self._updates: list[dict[int, list[Tensor]]] = [{} for _ in range(num_pipelines)]  # that no answer holds
        self._unanswered: list[tuple[int, int]] = []  # pipeline and mini-batch of each push
        self._answers: dict[int, tuple[int, list[Tensor]]] = {}  # by pipeline: pushes in the model, and the model

    def follow(self, run: Run) -> Iterator[Ended]:
        """Do what a simulated run did; yield pipeline, number and loss of each mini-batch whose push has arrived."""
        for pipeline, is_push in run.steps:
            if not is_push:
                self.train_(pipeline)
            else:
                self.push_(pipeline)
                yield pipeline, self._num_pushed[pipeline] - 1, self._losses[pipeline].popleft()

    def train_(self, pipeline: int) -> None:
        """Take in the newest answer, then do a mini-batch and its update."""
        number, workers, updates = self._num_computed[pipeline], self.pipelines[pipeline], self._updates[pipeline]
        weights = [weight for worker in workers for weight in worker.weights]
        if pipeline in self._answers:
            num_held, model = self._answers.pop(pipeline)
            for held in [update for update in updates if update < num_held]:
                del updates[held]
            torch._foreach_copy_(weights, model)
            for update in updates.values():
                torch._foreach_add_(weights, update)
            for worker in workers:
                worker.keep_()
        self._compute(pipeline)
        before = [weight.clone() for weight in weights]
        for worker in workers:
            worker.update_(worker.gradients.popleft())
        updates[number] = list(torch._foreach_div(torch._foreach_sub(weights, before), len(self.pipelines)))
        torch._foreach_copy_(weights, torch._foreach_add(before, updates[number]))
        for worker in workers:
            worker.end_(number + 1)

    def push_(self, pipeline: int) -> None:
        """Add a pipeline's next update to the server's model, and answer what is within the bound."""
        number = self._num_pushed[pipeline]
        self._num_pushed[pipeline] += 1
        torch._foreach_add_(self._model, self._updates[pipeline][number])
        self._unanswered.append((pipeline, number))
        for other, pushed in list(self._unanswered):
            if pushed + 1 - min(self._num_pushed) <= self._bound:
                self._unanswered.remove((other, pushed))
                self._answers[other] = self._num_pushed[other], [weight.clone() for weight in self._model]


class _Worker:
    """A stage of a pipeline, with the weights of those synchronisations that a forward pass still needs."""

    def __init__(self, part: nn.Module, make_optimizer: Callable[[nn.Module], torch.optim.Optimizer], ahead: int):
        self.part, self.optimizer, self._ahead = part, make_optimizer(part), ahead
        self._parameters = dict(part.named_parameters())
        self.weights = [weight.detach() for weight in self._parameters.values()]
        self.gradients: deque[list[Tensor]] = deque()  # of mini-batches that it has not synchronised
        self.num_synced = 0
        self.versions: dict[int, dict[str, Tensor]] = {}  # weights by the number of synchronisations before
        self.keep_()

    def version_of(self, number: int) -> int:
        """Return the number of the weights that a mini-batch uses."""
        return max(0, number + 1 - self._ahead)

    def update_(self, gradients: Sequence[Tensor]) -> None:
        """Do the optimizer's step."""
        for weight, gradient in zip(self._parameters.values(), gradients, strict=True):
            weight.grad = gradient
        self.optimizer.step()

    def keep_(self) -> None:
        """Keep the weights as those after the synchronisations so far."""
        copies = [weight.clone().requires_grad_() for weight in self.weights]
        self.versions[self.num_synced] = dict(zip(self._parameters, copies, strict=True))

    def end_(self, number: int) -> None:
        """End a mini-batch, and drop the weights that neither the next one to be computed, nor later ones, use."""
        self.num_synced += 1
        self.keep_()
        oldest = self.version_of(number)
        self.versions = {version: weights for version, weights in self.versions.items() if version >= oldest}


def _mean(tensors: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Return the mean of several lists of tensors, added in their order."""
    total = list(tensors[0])
    for more in tensors[1:]:
        total = list(torch._foreach_add(total, list(more)))
    return list(torch._foreach_div(total, len(tensors)))


def traced_s(setting: VirtualSetting, busy_s: float) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Return the delays in seconds [K, M, N] that a trace gives workers who compute for `busy_s`, and its sources."""
    if setting.delays == "cloud":
        cloud = gpu_performance.load()
        slowness, sources = [[1 / speed for speed in row] for row in cloud.speeds], [cloud.source.as_record()]
    else:
        num_stages, num_ranks = TRACED[setting.delays]
        stages = [step_times.load(setting.delays, stage=stage, num_ranks=num_ranks) for stage in range(num_stages)]
        of_stages = [StragglerTrace.measured(stage.seconds).rows for stage in stages]
        slowness = [row for ranks in zip(*of_stages, strict=True) for row in ranks]  # a rank's stages side by side
        sources = [stage.source.as_record() for stage in stages]
    return traced_delays_s(slowness, setting.iterations, setting.num_stages, setting.num_pipelines, busy_s), sources
