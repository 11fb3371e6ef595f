"""A plan: the option of each gradient of a user's model on a user's machines, and the predicted gain.

plan = espresso.plan(model, cluster, step=step)     # gradients and codec are measured on this machine
espresso.compress_gradients(ddp_model, plan)        # on every rank
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workbench.cluster.machines import Link, Machines
from workbench.compression import FP16
from workbench.compression.costs import CodecTimes
from workbench.compression.profiling import profile_codec, profiled_times
from workbench.models.gradients import measure
from workbench.parallel.hooks import require_fp32, require_parameters
from workbench.timeline.gradients import Gradients

from .method.exchange import make_codec
from .method.job import INTER, INTRA, CpuMachines, Job
from .method.options import Option
from .method.search import compress_on_gpus, find_strategy, improve

__all__ = ["FP16_SCHEME", "FP32_SCHEME", "PAYS", "PLANNED", "WITHOUT_WORK", "Plan", "plan", "plan_of"]

PLANNED, FP32_SCHEME, FP16_SCHEME = "this plan", "FP32", "FP16"
WITHOUT_WORK = "if messages took nothing of the device"
PAYS = 1.05  # least speedup over no compression that is worth the effort


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The option of every gradient of a model on a cluster; prints, and is saved as JSON."""

    model: str
    codec: str  # a name in CODECS
    machines: Machines
    num_elements: Mapping[str, int]  # by parameter, in the order of ready gradients
    options: Mapping[str, Option]  # by parameter, in the same order
    orders: tuple[tuple[tuple[str, int], ...], ...]  # the tasks of the links inside and between machines, in order
    predicted_s: Mapping[str, float]  # iteration time of this plan, of FP32 and FP16, on CPUs also `WITHOUT_WORK`

    @property
    def num_compressed(self) -> int:
        """Number of compressed gradients."""
        return sum(option.is_compressed for option in self.options.values())

    @property
    def gain(self) -> float:
        """Predicted speedup over the faster of FP32 and FP16 without compression."""
        return min(self.predicted_s[FP32_SCHEME], self.predicted_s[FP16_SCHEME]) / self.predicted_s[PLANNED]

    def __str__(self) -> str:
        times = ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in self.predicted_s.items())
        counts: dict[str, int] = {}
        for option in self.options.values():
            counts[str(option)] = counts.get(str(option), 0) + 1
        lines = [f"{self.model}: {self.num_compressed} of {len(self.options)} gradients compressed by {self.codec}"]
        lines += [f"predicted iteration: {times}; {self.gain:.2f} times as fast as without compression"]
        lines += [] if self.gain >= PAYS else ["do not compress: less is not worth its trouble"]
        return "\n".join([*lines, *(f"{count:4d} x {option}" for option, count in counts.items())])

    def check(self, module: nn.Module) -> None:
        """Raise ValueError if a model's parameters differ from the plan's, or are not FP32."""
        require_parameters(module, self.num_elements, self.model)

    def to_json(self) -> str:
        """Write the plan; `from_json` reads it."""
        values = {field: getattr(self, field) for field in ("model", "codec", "orders")}
        values |= {"machines": asdict(self.machines), "num_elements": dict(self.num_elements)}
        values |= {"predicted_s": dict(self.predicted_s)}
        return json.dumps(values | {"options": {name: str(option) for name, option in self.options.items()}})

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Read a plan; ValueError if an option or a machine is invalid."""
        values = json.loads(text)
        machines = values["machines"]
        for name in machines.keys() - {"num_machines", "gpus_per_machine"}:
            machines[name] = Link(**machines[name] | {"inferred": tuple(machines[name]["inferred"])})
        values["machines"] = (CpuMachines if "intra_work" in machines else Machines)(**machines)
        values["options"] = {name: Option.parse(option) for name, option in values["options"].items()}
        values["orders"] = tuple(tuple((name, number) for name, number in order) for order in values["orders"])
        return cls(**values)


def plan(
    model: nn.Module | Gradients,
    cluster: Machines,
    *,
    step: Callable[[], object] | None = None,
    codec: str = "efsignsgd",
    times: CodecTimes | None = None,
    device: str = "",
    is_improved: bool = True,
) -> Plan:
    """Choose the option of every gradient.

    Args:
        model: a model, or its gradients from `models.gradients.measure` or `datasets.gradient_traces.load`.
        cluster: machines to train on.
        step: runs the model forward and backward once; needed to measure the gradients of a module.
        codec: a name in CODECS.
        times: times of the codec; by default they are profiled here, which takes some seconds.
        device: "cpu" or a CUDA device; by default that of the module's parameters.
        is_improved: continue after the paper's algorithms until no other option of a gradient gains.

    Returns:
        The plan, with the predicted iteration times of the plan, FP32 and FP16.

    Raises:
        ValueError: if a module comes without a step, or the codec is unknown.
    """
    make_codec(codec)
    if isinstance(model, Gradients):
        gradients = model
    elif step is None:
        raise ValueError("step is missing: it must run the model forward and backward, so that gradients are measured")
    else:
        module = model.module if isinstance(model, DistributedDataParallel) else model
        require_fp32(module)
        device = device or str(next(module.parameters()).device)
        gradients = _with_unused(module, measure(module, step, device=device))
    device = device or "cpu"
    largest = max(gradients.num_elements)
    job = Job(gradients, cluster, times or profiled_times(codec, largest, device))
    # A CPU that trains has no other processor to compress on.
    strategy = (compress_on_gpus(job) if device == "cpu" and times is None else find_strategy(job)).strategy
    if is_improved:
        strategy = improve(job, strategy).strategy
    return plan_of(job, strategy, codec, cast_s=_cast_s(gradients, device))


def _with_unused(module: nn.Module, gradients: Gradients) -> Gradients:
    """Append the parameters without a gradient to the gradients of a step."""
    sizes = {name: p.numel() for name, p in module.named_parameters() if p.requires_grad}
    unused = tuple(name for name in sizes if name not in gradients.tensors)
    return replace(
        gradients,
        tensors=gradients.tensors + unused,
        num_elements=gradients.num_elements + tuple(sizes[name] for name in unused),
        gap_s=gradients.gap_s + (0.0,) * len(unused),
    )


def plan_of(job: Job, strategy: Sequence[Option], codec: str, *, cast_s: float = 0.0) -> Plan:
    """Make a plan of any strategy; FP16 takes `cast_s` to cast a gradient before sending, and again after it."""
    gradients = job.gradients
    orders: dict[int, list[tuple[float, int, int]]] = {INTRA: [], INTER: []}
    queues = job.queues(strategy)
    for tensor, (option, spans) in enumerate(zip(strategy, queues.placed(), strict=True)):
        numbers = [number for number, step in enumerate(job.steps(option)) if step.resource in orders]
        tasks = zip(spans[1:], job.resources(option), strict=True)
        sent = [(start_s, resource) for (start_s, _), resource in tasks if resource in orders]
        for number, (start_s, resource) in zip(numbers, sent, strict=True):
            orders[resource].append((start_s, tensor, number))
    named = [tuple((gradients.tensors[t], number) for _, t, number in sorted(order)) for order in orders.values()]
    predicted_s = {
        PLANNED: gradients.forward_s + queues.duration_s,
        FP32_SCHEME: job.iteration_s([job.uncompressed] * gradients.num_tensors),
        FP16_SCHEME: job.half_precision_s(cast_s),
    }
    if isinstance(job.machines, CpuMachines):
        predicted_s[WITHOUT_WORK] = job.without_work.iteration_s(strategy)
    return Plan(
        model=gradients.name,
        codec=codec,
        machines=job.machines,
        num_elements=dict(zip(gradients.tensors, gradients.num_elements, strict=True)),
        options=dict(zip(gradients.tensors, strategy, strict=True)),
        orders=tuple(named),
        predicted_s=predicted_s,
    )


def _cast_s(gradients: Gradients, device: str) -> float:
    """Measure the cast of a gradient of mean size to FP16."""
    mean = sum(gradients.num_elements) // gradients.num_tensors
    return profile_codec(FP16, [max(1, mean)], device=device)[0].encode_s
