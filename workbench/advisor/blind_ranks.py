"""What ranks of the blind test run; they import this and not the catalogue, so that they start soon."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from workbench.models.gpt2 import GPT2Block, GPT2Config
from workbench.study import data_parallel
from workbench.study.data_parallel import Hooks
from workbench.study.timing import Trial
from workbench.techniques.atp import measured as meshes
from workbench.techniques.atp.runtime.measure import measure as measure_matrix
from workbench.techniques.cupcake import training as cupcake
from workbench.techniques.cupcake.cost import CUPCAKE
from workbench.techniques.espresso import training as espresso
from workbench.techniques.espresso.planning import Plan as EspressoPlan
from workbench.techniques.zen.advice import chances_of
from workbench.techniques.zen.runtime.hook import SparseSynchroniser
from workbench.timeline import Recorder

__all__ = ["CUPCAKE", "ESPRESSO", "NUM_RANKS", "SUMS", "Given", "attach", "calibrate_meshes", "plan_gradients", "sums"]

ESPRESSO = "Espresso"
NUM_RANKS = 4
COMPUTED = 5  # iterations of a block that is timed alone
SUMS = MappingProxyType({"torch's dense sum": "Dense", "AGsparse": "AGsparse", "Zen": "Zen"})
"""Schemes of `SparseSynchroniser`, by their names here."""


def plan_gradients(setting: data_parallel.Setting) -> dict[str, Any]:
    """Plan with both techniques, of which each measures what it needs."""
    of_espresso, of_cupcake = (
        data_parallel.planned(setting, espresso.HOOKS),
        data_parallel.planned(setting, cupcake.HOOKS),
    )
    return {ESPRESSO: of_espresso[espresso.IMPROVED], CUPCAKE: of_cupcake[CUPCAKE]}


@dataclass(frozen=True, slots=True)
class Given:
    """Hands out plans that were made before."""

    plans: Mapping[str, Any]

    def __call__(self, *_: object) -> Mapping[str, Any]:
        return self.plans


def attach(model: nn.parallel.DistributedDataParallel, plan: Any, momentum: float) -> Any:
    """Attach the hook of the technique that made the plan."""
    hooks: Hooks[Any] = espresso.HOOKS if isinstance(plan, EspressoPlan) else cupcake.HOOKS
    return hooks.attach(model, plan, momentum)


def sums(_: Recorder, sizes: Mapping[str, Any]) -> dict[str, Trial]:
    """Sum a table whose rows occur like words: the first ones likeliest."""
    draw = np.random.default_rng(dist.get_rank())
    touched = np.flatnonzero(draw.random(sizes["rows"]) < chances_of(sizes["density"], sizes["rows"]))
    values = torch.from_numpy(draw.standard_normal((len(touched), sizes["width"])).astype(np.float32))
    shape = (sizes["rows"], sizes["width"])
    places = torch.from_numpy(touched)[None]
    gradient = torch.sparse_coo_tensor(places, values, shape, check_invariants=False).coalesce()
    given: dict[str, Tensor] = {
        name: gradient.to_dense() if scheme == "Dense" else gradient for name, scheme in SUMS.items()
    }
    summing = {name: SparseSynchroniser(scheme=scheme) for name, scheme in SUMS.items()}
    return {name: Trial(step=partial(summing[name].all_reduce, given[name]), settling=1) for name in SUMS}


def calibrate_meshes(setting: meshes.Setting) -> tuple[Any, float, float]:
    """Return the links, what repeated work costs, and the seconds of a rank's share of the block's products."""
    links = measure_matrix(largest_bytes=setting.workload.num_values * meshes.FP32_BYTES)
    block = GPT2Block(GPT2Config.tiny(hidden_size=setting.hidden, num_heads=setting.heads, dropout=0.0), 0)
    share = torch.randn(setting.batch // NUM_RANKS, setting.sequence, setting.hidden, requires_grad=True)
    seconds = []
    for _ in range(COMPUTED + 1):
        dist.barrier()
        began_s = time.perf_counter()
        block(share).sum().backward()
        seconds.append(time.perf_counter() - began_s)
    mean = torch.tensor(median(seconds[1:]), dtype=torch.float64)
    dist.all_reduce(mean)
    return links.matrix, meshes.repeated_s_per_value(setting), mean.item() / NUM_RANKS
