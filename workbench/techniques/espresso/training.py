"""Small real models on real ranks of shaped hosts: iterations timed in turns, and trainings, with every scheme.

Gradients, codec and links are measured on the ranks themselves, all at once, so that predictions know the load.
"""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from workbench.checks import require_counts, require_positive
from workbench.cluster import GIGABIT_BYTES_PER_S, Link
from workbench.models.gradients import measure
from workbench.models.small import SMALL_MODELS, random_inputs
from workbench.study.cells import named
from workbench.study.timing import Timed, Trial, Turns, open_ranks, time_variants
from workbench.timeline import Recorder
from workbench.training.tasks import Task

from .cost import Job
from .method.baselines import BASELINES, baseline_strategy
from .method.exchange import CODECS
from .method.search import compress_on_gpus, improve
from .planning import Plan, plan_of, profiled_times
from .runtime import BUCKET_MB, GradientExchange, compress_gradients, measure_cluster

__all__ = ["SCHEMES", "Setting", "time_schemes", "train"]

DDP, FP16, FP32, ESPRESSO, IMPROVED = "DDP", "FP16", "FP32", "Espresso", "Espresso, improved"
HOOKED = (FP32, *(baseline.name for baseline in BASELINES.values()), ESPRESSO, IMPROVED)
SCHEMES = (DDP, FP16, *HOOKED)
"""Plain DistributedDataParallel in FP32 and with its FP16 hook; gradients sent one by one; the systems; Espresso."""

# Least elements that a system compresses, as a share of the model's: those that the release names, by their models.
THRESHOLDS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "bert": {"hitopkcomm": 4.7e-6, "hipress": 0.15, "byteps-compress": 2.4e-3},
        "gpt2": {"hitopkcomm": 2.6e-4, "hipress": 0.13, "byteps-compress": 2.1e-3},
        "vgg": {"hitopkcomm": 1.2e-4, "hipress": 0.12, "byteps-compress": 1.9e-3},
        "lstm": {"hitopkcomm": 1.9e-4, "hipress": 0.2, "byteps-compress": 3e-3},
        "resnet": {"hitopkcomm": 3.7e-4, "hipress": 0.024, "byteps-compress": 3.7e-4},
    }
)
NUM_POINTS = 60  # of a recorded curve
MEASURED_STEPS = 3  # of the gradients


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What trains where."""

    model: str  # of THRESHOLDS; "minilm" is the pretrained encoder
    codec: str = "efsignsgd"
    num_machines: int = 2
    gpus_per_machine: int = 2
    gigabits_per_s: float = 0.2  # between machines
    batch: int = 4  # examples of a rank
    seed: int = 0

    def __post_init__(self) -> None:
        for field, known in (("model", (*THRESHOLDS, "minilm")), ("codec", CODECS)):
            if getattr(self, field) not in known:
                raise ValueError(f"{field} is {getattr(self, field)!r}; it must be one of {', '.join(known)}")
        require_counts(1, **{name: getattr(self, name) for name in ("num_machines", "gpus_per_machine", "batch")})
        require_positive(gigabits_per_s=self.gigabits_per_s)

    @property
    def num_ranks(self) -> int:
        return self.num_machines * self.gpus_per_machine

    @property
    def link(self) -> Link:
        """Between the machines."""
        rate = self.gigabits_per_s * GIGABIT_BYTES_PER_S
        return Link(bandwidth_bytes_per_s=rate, source="a chosen rate")


def _loss(scores: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(scores.flatten(0, -2), labels.flatten())


def time_schemes(setting: Setting, schemes: Sequence[str], turns: Turns) -> Timed:
    """Time an iteration with every scheme on real ranks of shaped hosts; a scheme's facts hold its `Plan` as JSON."""
    if unknown := [scheme for scheme in schemes if scheme not in SCHEMES]:
        raise ValueError(f"scheme is {unknown[0]!r}; it must be one of {', '.join(SCHEMES)}")
    places = {"link": setting.link, "num_hosts": setting.num_machines}
    with open_ranks(setting.num_ranks, **places, preload=(__name__,)) as ranks:
        return time_variants(ranks, _trials, setting, tuple(schemes), turns=turns)


def _trials(recorder: Recorder, setting: Setting, schemes: Sequence[str]) -> dict[str, Trial]:
    torch.manual_seed(setting.seed)
    draw = torch.Generator().manual_seed(dist.get_rank())
    inputs, labels = random_inputs(setting.model, setting.batch, draw)
    module = SMALL_MODELS[setting.model]()
    plans = _plans(setting, module, lambda: _loss(module(inputs), labels).backward())
    return {scheme: _trial(module, scheme, plans.get(scheme), inputs, labels) for scheme in schemes}


def _trial(module: nn.Module, scheme: str, plan: Plan | None, inputs: Tensor, labels: Tensor) -> Trial:
    model, exchange = _hooked(module, scheme, plan)

    def step() -> None:
        model.zero_grad()
        _loss(model(inputs), labels).backward()

    def close() -> dict[str, Any]:
        if exchange is not None:
            exchange.close()
        return {"plan": "" if plan is None else plan.to_json()}

    return Trial(step=step, settling=2, close=close)


def _hooked(
    module: nn.Module, scheme: str, plan: Plan | None, momentum: float = 0.0
) -> tuple[DistributedDataParallel, GradientExchange | None]:
    """Return the model with a scheme's hook; the gradients of each are its own."""
    module.zero_grad()
    early = {} if plan is None else {"bucket_cap_mb": BUCKET_MB}
    model = DistributedDataParallel(copy.deepcopy(module), **early)
    if scheme == FP16:
        model.register_comm_hook(None, fp16_compress_hook)
    return model, None if plan is None else compress_gradients(model, plan, momentum=momentum)


def _plans(setting: Setting, module: nn.Module, step: Callable[[], object]) -> dict[str, Plan]:
    """Measure gradients, codec and cluster on all ranks at once, and plan every hooked scheme on rank 0."""
    gradients = measure(module, step, device="cpu", iterations=MEASURED_STEPS, warmup=1)
    times = profiled_times(setting.codec, max(gradients.num_elements))
    cluster = measure_cluster(setting.num_machines, setting.gpus_per_machine)
    written: list[Any] = [None]
    if dist.get_rank() == 0:
        job, total = Job(gradients, cluster, times), sum(gradients.num_elements)
        found = compress_on_gpus(job).strategy
        strategies = {ESPRESSO: found, IMPROVED: improve(job, found).strategy}
        strategies[FP32] = (job.uncompressed,) * gradients.num_tensors
        shares = THRESHOLDS.get(setting.model, THRESHOLDS["bert"])
        for name, baseline in BASELINES.items():
            strategies[baseline.name] = baseline_strategy(job, baseline, round(shares[name] * total))
        written = [{scheme: plan_of(job, strategy, setting.codec).to_json() for scheme, strategy in strategies.items()}]
    dist.broadcast_object_list(written)
    return {scheme: Plan.from_json(text) for scheme, text in written[0].items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Learning:
    """How a model is trained with a scheme (figure 4.16)."""

    scheme: str  # of SCHEMES
    steps: int
    learning_rate: float  # falls to zero in a line
    encoder: str = "all-MiniLM-L6-v2"  # of "minilm", or "stand-in"

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise ValueError(f"scheme is {self.scheme!r}; it must be one of {', '.join(SCHEMES)}")
        require_counts(2, steps=self.steps)
        require_positive(learning_rate=self.learning_rate)


@named("espresso/train")
def train(**arguments: Any) -> dict[str, Any]:
    """Train on real ranks of shaped hosts; arguments are those of `Setting` and `Learning`.

    Returns the curve of (seconds, step, mean loss of all ranks), scores on test data, and the plan in words.
    """
    names = Learning.__dataclass_fields__
    learning = Learning(**{name: value for name, value in arguments.items() if name in names})
    setting = Setting(**{name: value for name, value in arguments.items() if name not in names})
    places = {"link": setting.link, "num_hosts": setting.num_machines}
    with open_ranks(setting.num_ranks, **places, preload=(__name__,)) as ranks:
        found, *_ = ranks.run(_train_on_a_rank, setting, learning)
    variant = f"{ESPRESSO}, {setting.codec}" if learning.scheme == ESPRESSO else learning.scheme
    return {"setting": asdict(setting) | asdict(learning) | {"variant": variant}, **found}


def _train_on_a_rank(setting: Setting, learning: Learning) -> dict[str, Any]:
    torch.manual_seed(setting.seed)
    task, rank = Task(setting.model, batch=setting.batch, seed=setting.seed, encoder=learning.encoder), dist.get_rank()
    examples = task.draw(rank, 0)
    plans = {}
    if learning.scheme in HOOKED:
        plans = _plans(setting, task.module, lambda: task.loss(task.module, examples).backward())
    plan, is_dgc = plans.get(learning.scheme), setting.codec == "dgc"
    momentum = task.momentum if plan is not None and plan.num_compressed and is_dgc else 0.0
    model, exchange = _hooked(task.module, learning.scheme, plan, momentum)
    optimizer = task.optimizer(model.parameters(), learning.learning_rate, 0.0 if momentum else task.momentum)
    curve, losses, began_s = [], [], time.monotonic()
    edges = set(np.linspace(0, learning.steps, min(NUM_POINTS, learning.steps) + 1).round().astype(int)[1:].tolist())
    for step in range(learning.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning.learning_rate * (1 - step / learning.steps)
        optimizer.zero_grad()
        loss = task.loss(model, task.draw(rank, step))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if step + 1 in edges:
            mean = torch.stack(losses).mean() / setting.num_ranks
            dist.all_reduce(mean)
            curve.append([time.monotonic() - began_s, step + 1, mean.item()])
            losses = []
    if exchange is not None:
        exchange.close()
    scores = task.scores(model.module) if rank == 0 else {}
    return {"curve": curve, "scores": scores, "plan": str(plan or learning.scheme), "data": task.sources}
