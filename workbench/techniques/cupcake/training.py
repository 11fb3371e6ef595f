"""Cupcake's schemes in data parallelism on real ranks of shaped hosts: planned together, timed in turns, trained.

Gradients, codec and network are measured on the ranks themselves, all at once, so that predictions know the load.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workbench.models.gradients import measure
from workbench.rows.cells import named
from workbench.study import data_parallel
from workbench.study.data_parallel import DDP, FP16, Hooks, Setting
from workbench.study.timing import Timed, Turns

from .cost import CUPCAKE, DDP_BUCKETS, FP32, FP32_FUSED, GRACE, HIPRESS
from .plan import Plan
from .planning import plans_on_ranks
from .runtime import FusedExchange, exchange

__all__ = ["DDP", "FP16", "SCHEMES", "Setting", "time_schemes", "train"]

HOOKED = (FP32, FP32_FUSED, GRACE, HIPRESS, DDP_BUCKETS, "Bucket fusion", "Evenly split", "Single split", CUPCAKE)
SCHEMES = (DDP, FP16, *HOOKED)
"""Plain DistributedDataParallel in FP32 and with its FP16 hook; then the strategies of `cost.strategies`."""

MEASURED_STEPS = 3  # of the gradients
RESNET50_BYTES = 102e6  # in FP32: small models get bucket fusion's sizes as the same shares of their bytes


def time_schemes(setting: Setting, schemes: Sequence[str], turns: Turns) -> Timed:
    """Time an iteration with every scheme in turns; a scheme's facts hold its `Plan` as JSON."""
    return data_parallel.time_schemes(setting, schemes, HOOKS, turns)


@named("cupcake/train")
def train(**arguments: Any) -> dict[str, Any]:
    """Train with a scheme of `SCHEMES`; see `study.data_parallel.train`."""
    return data_parallel.train(HOOKS, **arguments)


def _plans(setting: Setting, module: nn.Module, step: Callable[[], object]) -> Mapping[str, Plan]:
    gradients = measure(module, step, device="cpu", iterations=MEASURED_STEPS, warmup=1, on_all_ranks=True)
    scale, per_machine = gradients.total_bytes / RESNET50_BYTES, setting.gpus_per_machine
    return plans_on_ranks(gradients, setting.codec, bucket_scale=scale, gpus_per_machine=per_machine)


def _attach(model: DistributedDataParallel, plan: Plan, momentum: float) -> FusedExchange:
    return exchange(model, plan, momentum=momentum)


HOOKS = Hooks(schemes=HOOKED, plan=_plans, attach=_attach)
