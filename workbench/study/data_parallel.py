"""Small real models in data parallelism on shaped hosts: iterations timed in turns, and trainings, with every scheme.

A technique says how it plans a scheme and attaches it to a model (`Hooks`); plain DistributedDataParallel, in FP32 and
with its FP16 hook, are schemes of every study.
"""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from workbench.checks import require_counts, require_one_of, require_positive
from workbench.cluster import GIGABIT_BYTES_PER_S, Link
from workbench.compression.gradients import GRADIENT_CODECS
from workbench.models.small import SMALL_MODELS, random_inputs
from workbench.parallel.hooks import BUCKET_MB
from workbench.rows import FEWEST_ROUNDS, median_row, ratio_row, spread_row, value_row
from workbench.rows.progress import say_progress
from workbench.study.tasks import Task
from workbench.timeline import Recorder

from .timing import FASTEST_BYTES_PER_S, Timed, Trial, Turns, open_ranks, time_variants
from .training import reached

__all__ = ["ALONE", "DDP", "FP16", "Hooks", "Learning", "Setting", "iteration_rows", "learning_cells"]
__all__ += ["at_share", "learning_rows", "planned", "time_schemes", "train"]

DDP, FP16 = "DDP", "FP16"
ALONE = "computation alone"  # timed beside the schemes: nothing is exchanged
NUM_POINTS = 60  # points of a recorded curve
CHOOSING = Turns(rounds=FEWEST_ROUNDS, warmup=1)  # turns by which the rate of links is chosen


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """The model and the machines of a training."""

    model: str  # a name of SMALL_MODELS, or "minilm", the pretrained encoder
    codec: str = "efsignsgd"  # a name of GRADIENT_CODECS
    num_machines: int = 2
    gpus_per_machine: int = 2
    gigabits_per_s: float = 0.2  # between machines
    batch: int = 4  # examples of a rank and step
    seed: int = 0

    def __post_init__(self) -> None:
        for field, known in (("model", (*SMALL_MODELS, "minilm")), ("codec", GRADIENT_CODECS)):
            if getattr(self, field) not in known:
                raise ValueError(f"{field} is {getattr(self, field)!r}; it must be one of {', '.join(known)}")
        require_counts(1, **{name: getattr(self, name) for name in ("num_machines", "gpus_per_machine", "batch")})
        require_positive(gigabits_per_s=self.gigabits_per_s)

    @property
    def num_ranks(self) -> int:
        return self.num_machines * self.gpus_per_machine

    @property
    def places(self) -> dict[str, Any]:
        """Arguments of `open_ranks`."""
        rate = self.gigabits_per_s * GIGABIT_BYTES_PER_S
        return {"link": Link(bandwidth_bytes_per_s=rate, source="a chosen rate"), "num_hosts": self.num_machines}


class Plan(Protocol):
    """How a scheme exchanges gradients."""

    @property
    def num_compressed(self) -> int: ...

    def to_json(self) -> str: ...


class Exchange(Protocol):
    """A hook at work."""

    def close(self) -> None: ...


PlanOf = TypeVar("PlanOf", bound=Plan)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hooks(Generic[PlanOf]):
    """The schemes of a technique."""

    schemes: Sequence[str]
    plan: Callable[[Setting, nn.Module, Callable[[], object]], Mapping[str, PlanOf]]  # all ranks call it together
    attach: Callable[[DistributedDataParallel, PlanOf, float], Exchange]  # with DGC's momentum
    codecs: Sequence[str] = GRADIENT_CODECS

    def check(self, schemes: Sequence[str], codec: str) -> None:
        """Raise ValueError if a scheme or codec is not known."""
        require_one_of(self.codecs, codec=codec)
        known = (DDP, FP16, *self.schemes)
        if unknown := [scheme for scheme in schemes if scheme not in known]:
            raise ValueError(f"scheme is {unknown[0]!r}; it must be one of {', '.join(known)}")


def _loss(scores: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(scores.flatten(0, -2), labels.flatten())


def time_schemes(setting: Setting, schemes: Sequence[str], hooks: Hooks, turns: Turns) -> Timed:
    """Time an iteration with every scheme on real ranks of shaped hosts; a scheme's facts hold its plan as JSON."""
    hooks.check(schemes, setting.codec)
    with open_ranks(setting.num_ranks, **setting.places, preload=(hooks.plan.__module__,)) as ranks:
        return time_variants(ranks, _trials, setting, tuple(schemes), hooks, turns=turns)


def at_share(setting: Setting, share: float) -> tuple[Setting, list[dict[str, Any]]]:
    """Return the setting with links on which communication takes a share of DDP's iteration, and rows of the choice.

    The rule: DDP and ranks that exchange nothing are timed with the setting's links. From these follows the rate that
    would be right if nothing overlapped. DDP is timed with it; what its iteration then takes beyond the links' time
    corrects the rate once; where no link is fast enough for the share, the first rate stays.

    ValueError unless 0 < share < 1.
    """
    if not 0 < share < 1:
        raise ValueError(f"share is {share}; it must be in 0 < share < 1")
    n = setting.num_ranks
    gradient_bytes = 4 * sum(p.numel() for p in SMALL_MODELS[setting.model]().parameters())
    link_bytes = 2 * (n - 1) / n * gradient_bytes  # of a ring all-reduce, on the link of each host
    keys: dict[str, Any] = {"model": setting.model, "ranks": f"{setting.num_machines} x {setting.gpus_per_machine}"}

    def timed_s(placed: Setting) -> dict[str, float]:
        with open_ranks(n, **placed.places, preload=(__name__,)) as ranks:
            timed = time_variants(ranks, _plain_trials, placed, turns=CHOOSING)
        return {name: median(timed.iterations_s(name)) for name in timed.rounds}

    alone_s = timed_s(setting)[ALONE]
    least_s = link_bytes / FASTEST_BYTES_PER_S
    first = link_bytes / max(alone_s / (1 - share) - alone_s, least_s)
    slow_s = timed_s(replace(setting, gigabits_per_s=first / GIGABIT_BYTES_PER_S))
    left_s = slow_s[ALONE] / (1 - share) - (slow_s[DDP] - link_bytes / first)
    rate = link_bytes / left_s if left_s >= least_s else first
    rows = [
        value_row("asked_share", share, **keys),
        value_row("link_bytes", link_bytes, "B", **keys),
        value_row("rate_bytes_per_s", first, "B/s", choice="first", **keys),
        value_row("first_iteration_s", slow_s[DDP], "s", **keys),
        value_row("rate_bytes_per_s", rate, "B/s", choice="corrected", **keys),
    ]
    return replace(setting, gigabits_per_s=rate / GIGABIT_BYTES_PER_S), rows


def _plain_trials(_: Recorder, setting: Setting) -> dict[str, Trial]:
    torch.manual_seed(setting.seed)
    examples = random_inputs(setting.model, setting.batch, torch.Generator().manual_seed(dist.get_rank()))
    module = SMALL_MODELS[setting.model]()
    models = {ALONE: copy.deepcopy(module), DDP: DistributedDataParallel(module)}
    return {name: Trial(step=_step_of(model, *examples), settling=2) for name, model in models.items()}


def iteration_rows(
    timed: Timed, setting: Setting, ours: Sequence[str], predicted_s: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Return rows of every scheme's iteration, the gains of our schemes over the others, and the predictions.

    `computation_s` is the iteration of ranks that exchange nothing, `communication_share` what it lacks to DDP's.
    """
    keys = {"model": setting.model, "ranks": f"{setting.num_machines} x {setting.gpus_per_machine}"}
    seconds = {scheme: timed.iterations_s(scheme) for scheme in timed.rounds}
    alone_s = seconds.pop(ALONE)
    rows = [median_row("computation_s", alone_s, "s", **keys)]
    if DDP in seconds:
        rows.append(value_row("communication_share", 1 - median(alone_s) / median(seconds[DDP]), **keys))
    for scheme, times in seconds.items():
        rows.append(median_row("iteration_s", times, "s", scheme=scheme, **keys))
        if scheme not in ours:
            measured = [name for name in ours if name in seconds]
            rows += [ratio_row("gain", times, seconds[name], scheme=name, over=scheme, **keys) for name in measured]
        if scheme in predicted_s:
            rows.append(value_row("predicted_s", predicted_s[scheme], "s", scheme=scheme, **keys))
            ratio = median(times) / predicted_s[scheme]
            rows.append(value_row("measured_over_predicted", ratio, scheme=scheme, **keys))
    return rows


def planned(setting: Setting, hooks: Hooks[PlanOf]) -> Mapping[str, PlanOf]:
    """Plan a technique's schemes; all ranks of the setting call it together, and no scheme runs."""
    return _planned(setting, hooks)[0]


def _planned(setting: Setting, hooks: Hooks[PlanOf]) -> tuple[Mapping[str, PlanOf], nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(setting.seed)
    draw = torch.Generator().manual_seed(dist.get_rank())
    inputs, labels = random_inputs(setting.model, setting.batch, draw)
    module = SMALL_MODELS[setting.model]()
    model = _unsent(module)
    plans = hooks.plan(setting, model.module, _step_of(model, inputs, labels))
    return plans, module, (inputs, labels)


def _unsent(module: nn.Module) -> DistributedDataParallel:
    """Return a copy that sends no gradients: they are measured where they will be exchanged."""
    model = DistributedDataParallel(copy.deepcopy(module), bucket_cap_mb=BUCKET_MB)
    model.register_comm_hook(None, _send_nothing)
    return model


def _send_nothing(_: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def _trials(recorder: Recorder, setting: Setting, schemes: Sequence[str], hooks: Hooks) -> dict[str, Trial]:
    plans, module, (inputs, labels) = _planned(setting, hooks)
    plan_of = {scheme: plans[scheme] if scheme in hooks.schemes else None for scheme in schemes}
    trials = {scheme: _trial(module, scheme, plan, hooks, inputs, labels) for scheme, plan in plan_of.items()}
    alone = _step_of(copy.deepcopy(module), inputs, labels)
    return trials | {ALONE: Trial(step=alone, settling=2, close=lambda: {"plan": ""})}


def _trial(module: nn.Module, scheme: str, plan: Plan | None, hooks: Hooks, inputs: Tensor, labels: Tensor) -> Trial:
    model, exchange = _hooked(module, scheme, plan, hooks)

    def close() -> dict[str, Any]:
        if exchange is not None:
            exchange.close()
        return {"plan": "" if plan is None else plan.to_json()}

    return Trial(step=_step_of(model, inputs, labels), settling=2, close=close)


def _step_of(model: nn.Module, inputs: Tensor, labels: Tensor) -> Callable[[], None]:
    def step() -> None:
        model.zero_grad()
        _loss(model(inputs), labels).backward()

    return step


def _hooked(
    module: nn.Module, scheme: str, plan: Plan | None, hooks: Hooks, momentum: float = 0.0
) -> tuple[DistributedDataParallel, Exchange | None]:
    """Return a copy of the model with a scheme's hook; each copy has its own gradients."""
    module.zero_grad()
    model = DistributedDataParallel(copy.deepcopy(module), bucket_cap_mb=None if plan is None else BUCKET_MB)
    if scheme == FP16:
        model.register_comm_hook(None, fp16_compress_hook)
    return model, None if plan is None else hooks.attach(model, plan, momentum)


@dataclass(frozen=True, kw_only=True, slots=True)
class Learning:
    """How a model is trained with a scheme."""

    scheme: str
    steps: int
    learning_rate: float  # initial rate, which falls linearly to zero
    encoder: str = "all-MiniLM-L6-v2"  # encoder for "minilm"; "stand-in" has random weights

    def __post_init__(self) -> None:
        require_counts(2, steps=self.steps)
        require_positive(learning_rate=self.learning_rate)


def train(hooks: Hooks, **arguments: Any) -> dict[str, Any]:
    """Train on real ranks of shaped hosts; arguments are those of `Setting` and `Learning`.

    Returns the curve of (seconds, step, mean loss of all ranks), scores on test data, and the plan in words. A result's
    `variant` names the scheme, and the codec if it compresses.
    """
    names = Learning.__dataclass_fields__
    learning = Learning(**{name: value for name, value in arguments.items() if name in names})
    setting = Setting(**{name: value for name, value in arguments.items() if name not in names})
    hooks.check([learning.scheme], setting.codec)
    with open_ranks(setting.num_ranks, **setting.places, preload=(hooks.plan.__module__,)) as ranks:
        result, *_ = ranks.run(_train_on_a_rank, setting, learning, hooks)
    is_plain = learning.scheme in (DDP, FP16)
    variant = learning.scheme if is_plain else f"{learning.scheme}, {setting.codec}"
    return {"setting": asdict(setting) | asdict(learning) | {"variant": variant}, **result}


def _train_on_a_rank(setting: Setting, learning: Learning, hooks: Hooks) -> dict[str, Any]:
    torch.manual_seed(setting.seed)
    task = Task(setting.model, batch=setting.batch, seed=setting.seed, encoder=learning.encoder)
    rank = dist.get_rank()
    examples = task.draw(rank, 0)
    plan = None
    if learning.scheme in hooks.schemes:
        measured = _unsent(task.module)
        plans = hooks.plan(setting, measured.module, lambda: task.loss(measured, examples).backward())
        plan = plans[learning.scheme]
    momentum = task.momentum if plan is not None and plan.num_compressed and setting.codec == "dgc" else 0.0
    model, exchange = _hooked(task.module, learning.scheme, plan, hooks, momentum)
    optimizer = task.optimizer(model.parameters(), learning.learning_rate, 0.0 if momentum else task.momentum)
    curve = []
    losses = []
    began_s = time.monotonic()
    edges = set(np.linspace(0, learning.steps, min(NUM_POINTS, learning.steps) + 1).round().astype(int)[1:].tolist())
    for step in range(learning.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning.learning_rate * (1 - step / learning.steps)
        optimizer.zero_grad()
        loss = task.loss(model, task.draw(rank, step))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        say_progress(step + 1, learning.steps, "steps", loss=loss.detach())
        if step + 1 in edges:
            mean = torch.stack(losses).mean() / setting.num_ranks
            dist.all_reduce(mean)
            curve.append([time.monotonic() - began_s, step + 1, mean.item()])
            losses = []
    if exchange is not None:
        exchange.close()
    scores = task.scores(model.module) if rank == 0 else {}
    return {"curve": curve, "scores": scores, "plan": str(plan or learning.scheme), "data": task.sources}


def learning_cells(schemes: Sequence[str], codecs: Sequence[str], seeds: Sequence[int], **setting: Any) -> list[dict]:
    """List the trainings, seed by seed: plain FP32 and FP16, and each scheme with every codec."""
    variants = [{"scheme": DDP}, {"scheme": FP16}]
    variants += [{"scheme": scheme, "codec": codec} for scheme in schemes for codec in codecs]
    return [{**variant, "seed": seed, **setting} for seed in seeds for variant in variants]


def learning_rows(
    results: Sequence[Mapping[str, Any]], target: float, over: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Return scores and times of every variant, medians over seeds with the extremes as spread.

    `points_below` and `speedup` compare with FP32 of the same seed, `speedup_over_fp16` with FP16, quantities of `over`
    with the variant or, with a variant's codec appended, the scheme that it names, and `target_speedup` the time to a
    training loss.
    """
    by_name: dict[str, dict[int, Mapping[str, Any]]] = {}
    for result in results:
        by_name.setdefault(result["setting"]["variant"], {})[result["setting"]["seed"]] = result
    others = {"speedup": DDP, "speedup_over_fp16": FP16, **(over or {})}
    return [row for name in by_name for row in _variant_rows(name, by_name, target, others)]


def _variant_rows(name: str, by_name: Mapping[str, Any], target: float, others: Mapping[str, str]) -> list[dict]:
    by_seed = by_name[name]
    keys = {"variant": name}
    rows = []
    for metric in next(iter(by_seed.values()))["scores"]:
        scores = {seed: result["scores"][metric] for seed, result in by_seed.items()}
        rows.append(spread_row(metric, [*scores.values()], "%", **keys))
        below = [by_name[DDP][seed]["scores"][metric] - score for seed, score in scores.items()]
        rows.append(spread_row("points_below", below, "%", metric=metric, **keys))
    rows.append(spread_row("end_loss", [result["curve"][-1][2] for result in by_seed.values()], **keys))
    rows.append(spread_row("seconds", [result["curve"][-1][0] for result in by_seed.values()], "s", **keys))
    codec = name.partition(", ")[2]
    for quantity, other in others.items():
        compared = by_name.get(other) or by_name.get(f"{other}, {codec}")
        if compared:
            pairs = [(compared[seed]["curve"][-1][0], by_seed[seed]["curve"][-1][0]) for seed in by_seed]
            rows.append(spread_row(quantity, [other_s / seconds for other_s, seconds in pairs], **keys))
    moments = [(reached(by_name[DDP][s]["curve"], target), reached(by_seed[s]["curve"], target)) for s in by_seed]
    rows.append(value_row("reached_seeds", sum(moment is not None for _, moment in moments), **keys))
    speedups = [plain[0] / moment[0] for plain, moment in moments if plain and moment]
    if len(speedups) == len(moments):
        rows.append(spread_row("target_speedup", speedups, **keys))
    return rows
