"""How much fusion is left to gain on a model over DistributedDataParallel's buckets: one call, one picture.

headroom = cupcake.headroom(model, machines, step=step)
print(headroom); cupcake.draw_headroom(headroom)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any

from torch import nn

from workbench.cluster import Machines
from workbench.compression.costs import CodecTimes
from workbench.compression.profiling import profiled_times
from workbench.models import h100
from workbench.models.gradients import measure
from workbench.rows import value_row
from workbench.timeline.gradients import Gradients

from .cost import costs_on
from .method import iteration_time, optimal_fusion
from .method.rivals import ddp_buckets

__all__ = ["MEASURED_ON", "Headroom", "Left", "headroom", "headroom_rows"]


MEASURED_ON = MappingProxyType({"gradients and codec times": "measured on one H100", "links": "nominal rates"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Left:
    """An iteration with one way to send gradients."""

    buckets_s: float  # in DistributedDataParallel's buckets: 1 MiB first, then 25
    best_s: float  # fused best
    fusion: tuple[int, ...]  # the best one

    @property
    def gain(self) -> float:
        """How many times as fast the best fusion is."""
        return self.buckets_s / self.best_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Headroom:
    """What fusion has left to gain, by what is sent: "FP32", "FP16", and codecs."""

    model: str
    alone_s: float  # an iteration without communication
    left: Mapping[str, Left]

    def __str__(self) -> str:
        lines = [f"{self.model}: {1e3 * self.alone_s:.1f} ms an iteration without communication"]
        for name, left in self.left.items():
            times = f"{1e3 * left.buckets_s:.1f} ms in DDP's buckets, {1e3 * left.best_s:.1f} ms fused best"
            lines.append(f"{name:10s} {times} in {len(left.fusion)} groups: {left.gain:.2f} times as fast")
        return "\n".join(lines)


def headroom(
    model: nn.Module | Gradients,
    machines: Machines,
    *,
    step: Callable[[], object] | None = None,
    codecs: Sequence[str] = ("efsignsgd", "dgc"),
    times: Mapping[str, CodecTimes] | None = None,
) -> Headroom:
    """Compare DistributedDataParallel's buckets with the best fusion, without compression and with each codec.

    Args:
        model: to train, or its gradients.
        machines: to train on; their GPUs are like this machine's device.
        step: for a model: runs it forward and one backward pass.
        codecs: of `compression.gradients.GRADIENT_CODECS`.
        times: what codecs take, by name; of a model it is measured on its device where it is missing.

    Raises:
        ValueError: if a model comes without a step, gradients without a codec's times, or a codec is not known.
    """
    if not codecs:
        raise ValueError("codecs is empty; name one at least")
    taken = dict(times or {})
    if isinstance(model, nn.Module):
        if step is None:
            raise ValueError("step is None; a model needs one, which runs it forward and backward")
        device = str(next(model.parameters()).device)
        model = measure(model, step, device=device)
        missing = [codec for codec in codecs if codec not in taken]
        taken |= {codec: profiled_times(codec, sum(model.num_elements), device) for codec in missing}
    if missing := [codec for codec in codecs if codec not in taken]:
        raise ValueError(f"times has no {missing[0]!r}; gradients without their model need the times of each codec")
    costs = {codec: costs_on(taken[codec], machines) for codec in codecs}
    plain = costs[codecs[0]]
    left = {}
    for name, way in {"FP32": plain.plain, "FP16": plain.half, **costs}.items():
        problem = way.problem(model)
        best = optimal_fusion(problem)
        buckets_s = iteration_time(problem, ddp_buckets(problem))
        left[name] = Left(buckets_s=buckets_s, best_s=iteration_time(problem, best), fusion=best)
    return Headroom(model=model.name, alone_s=model.forward_s + model.backward_s, left=left)


def headroom_rows(
    *, models: Sequence[str], codecs: Sequence[str], num_machines: int, gigabits_per_s: Sequence[float]
) -> list[dict[str, Any]]:
    """Return what fusion has left to gain on machines of 8 H100, by the rate of the network between them."""
    rows, times = [], {codec: h100.codec(codec) for codec in codecs}
    for model, rate in product(models, gigabits_per_s):
        model_headroom = headroom(h100.load(model), h100.machines(num_machines, rate), codecs=codecs, times=times)
        for name, left in model_headroom.left.items():
            keys = {"model": model, "sent": name, "gigabits_per_s": rate}
            rows.append(value_row("gain", left.gain, **keys))
            rows.append(value_row("groups", len(left.fusion), **keys))
            rows.append(value_row("iteration_s", left.buckets_s, "s", fusion="DDP's buckets", **keys))
            rows.append(value_row("iteration_s", left.best_s, "s", fusion="fused best", **keys))
    for name in model_headroom.left:
        gains = [row["value"] for row in rows if row["quantity"] == "gain" and row["sent"] == name]
        rows.append(value_row("largest_gain", max(gains), sent=name))
    return rows
