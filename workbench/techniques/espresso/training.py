"""Espresso's schemes in data parallelism on real ranks of shaped hosts: planned together, timed in turns, trained.

Gradients, codec and links are measured on the ranks themselves, all at once, so that predictions know the load.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workbench.compression.profiling import profiled_times
from workbench.models.gradients import measure
from workbench.parallel.hosts import ranks_a_core
from workbench.rows.cells import named
from workbench.study import data_parallel
from workbench.study.data_parallel import ALONE, DDP, FP16, Hooks, Setting
from workbench.study.tasks import Task
from workbench.study.timing import Timed, Trial, Turns, open_ranks, time_variants
from workbench.timeline import Recorder

from .calibration import measure_cluster
from .method.baselines import BASELINES, baseline_strategy
from .method.exchange import CODECS
from .method.job import Job
from .method.search import compress_on_gpus, improve
from .planning import Plan, plan_of
from .runtime import GradientExchange, compress_gradients

__all__ = [
    "DDP",
    "ESPRESSO",
    "FP16",
    "IMPROVED",
    "SCHEMES",
    "Setting",
    "predicted",
    "time_schemes",
    "time_task",
    "train",
]

FP32, ESPRESSO, IMPROVED = "FP32", "Espresso", "Espresso, improved"
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
MEASURED_STEPS = 3  # of the gradients


def time_schemes(
    setting: Setting, schemes: Sequence[str], turns: Turns, plans: Mapping[str, Plan] | None = None
) -> Timed:
    """Time an iteration with every scheme in turns; a scheme's facts hold its `Plan` as JSON.

    By default the ranks plan before the turns; `plans` are those that `predicted` has made.
    """
    hooks = HOOKS if plans is None else replace(HOOKS, plan=partial(_made_before, plans))
    return data_parallel.time_schemes(setting, schemes, hooks, turns)


def _made_before(plans: Mapping[str, Plan], *_: object) -> Mapping[str, Plan]:
    return plans


def predicted(setting: Setting, schemes: Sequence[str]) -> dict[str, Plan]:
    """Plan hooked schemes on real ranks, which measure gradients, codec and links, and run no scheme."""
    with open_ranks(setting.num_ranks, **setting.places, preload=(__name__,)) as ranks:
        plans, *_ = ranks.run(data_parallel.planned, setting, HOOKS)
    return {scheme: plans[scheme] for scheme in schemes}


def time_task(setting: Setting, encoder: str, turns: Turns) -> Timed:
    """Time an iteration of a training with DDP and, `ALONE`, on ranks that exchange nothing."""
    with open_ranks(setting.num_ranks, **setting.places, preload=(__name__,)) as ranks:
        return time_variants(ranks, _task_trials, setting, encoder, turns=turns)


def _task_trials(_: Recorder, setting: Setting, encoder: str) -> dict[str, Trial]:
    torch.manual_seed(setting.seed)
    task = Task(setting.model, batch=setting.batch, seed=setting.seed, encoder=encoder)
    examples = task.draw(dist.get_rank(), 0)

    def step(module: nn.Module) -> None:
        module.zero_grad()
        task.loss(module, examples).backward()

    modules = {ALONE: copy.deepcopy(task.module), DDP: DistributedDataParallel(task.module)}
    return {name: Trial(step=partial(step, module), settling=2) for name, module in modules.items()}


@named("espresso/train")
def train(**arguments: Any) -> dict[str, Any]:
    """Train with a scheme of `SCHEMES`; see `study.data_parallel.train`."""
    return data_parallel.train(HOOKS, **arguments)


def _plans(setting: Setting, module: nn.Module, step: Callable[[], object]) -> dict[str, Plan]:
    """Measure gradients, codec and cluster on all ranks at once, and plan every hooked scheme on rank 0."""
    gradients = measure(module, step, device="cpu", iterations=MEASURED_STEPS, warmup=1, on_all_ranks=True)
    dist.barrier()  # each measurement sees all ranks at the same work
    times = profiled_times(setting.codec, max(gradients.num_elements), ranks_a_core=ranks_a_core())
    cluster = measure_cluster(setting.num_machines, setting.gpus_per_machine)
    written: list[Any] = [None]
    if dist.get_rank() == 0:
        job, total = Job(gradients, cluster, times), sum(gradients.num_elements)
        on_gpus = compress_on_gpus(job).strategy
        strategies = {ESPRESSO: on_gpus, IMPROVED: improve(job, on_gpus).strategy}
        strategies[FP32] = (job.uncompressed,) * gradients.num_tensors
        shares = THRESHOLDS.get(setting.model, THRESHOLDS["bert"])
        for name, baseline in BASELINES.items():
            strategies[baseline.name] = baseline_strategy(job, baseline, round(shares[name] * total))
        written = [{scheme: plan_of(job, strategy, setting.codec).to_json() for scheme, strategy in strategies.items()}]
    dist.broadcast_object_list(written)
    return {scheme: Plan.from_json(text) for scheme, text in written[0].items()}


def _attach(model: DistributedDataParallel, plan: Plan, momentum: float) -> GradientExchange:
    return compress_gradients(model, plan, momentum=momentum)


HOOKS = Hooks(schemes=HOOKED, plan=_plans, attach=_attach, codecs=CODECS)
