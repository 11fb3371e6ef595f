"""Listing and measuring the gradients of a module: the order in which its backward pass makes them ready."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import chain, pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from workbench.checks import require_counts
from workbench.timeline.gradients import FORWARD_SHARE, Gradients

if TYPE_CHECKING:
    from torch import nn

    from workbench.models.inventory import Workload

__all__ = ["measure", "of_module", "of_workload"]


def of_workload(workload: Workload, *, backward_s: float, forward_s: float) -> Gradients:
    """List the gradients of a transformer's matrices, the last layer's first, and of all else at the end.

    As in `of_module`, each gradient gets a part of backward_s in proportion to its elements.
    """
    sizes: dict[str, int] = {}
    for layer in reversed(range(workload.num_layers)):
        parts = reversed(workload.linears(layer=layer))
        sizes |= {part.site: int(part.num_inputs * part.num_outputs) for part in parts}
    sizes |= {"other": workload.other_parameters} if workload.other_parameters else {}
    return Gradients(
        name=workload.name,
        tensors=tuple(sizes),
        num_elements=tuple(sizes.values()),
        gap_s=tuple(backward_s * size / sum(sizes.values()) for size in sizes.values()),
        forward_s=forward_s,
        source="sizes of a transformer, seconds by elements",
    )


def of_module(module: nn.Module, *, backward_s: float, forward_s: float | None = None, name: str = "") -> Gradients:
    """List the gradients of a module, also on the meta device, in the reversed order of its parameters.

    A simplification: each gradient gets a part of backward_s in proportion to its elements, whereas convolutions near
    the input have few elements and long times. `measure` gives the real order and seconds. Shared parameters count
    once; without forward_s, `FORWARD_SHARE` of backward_s is assumed. ValueError if no parameter requires a gradient.
    """
    sizes = {key: p.numel() for key, p in reversed([*module.named_parameters()]) if p.requires_grad}
    gap_s = tuple(backward_s * size / sum(sizes.values()) for size in sizes.values())
    source = f"reversed parameters, seconds by elements{', forward assumed' if forward_s is None else ''}"
    return Gradients(
        name=name or type(module).__name__,
        tensors=tuple(sizes),
        num_elements=tuple(sizes.values()),
        gap_s=gap_s,
        forward_s=FORWARD_SHARE * backward_s if forward_s is None else forward_s,
        source=source,
    )


def measure(
    module: nn.Module, step: Callable, *, device: str, iterations: int = 10, warmup: int = 3, on_all_ranks: bool = False
) -> Gradients:
    """Measure when gradients become ready while `step()` runs the module forward and one backward pass.

    Medians over iterations, by the CPU's clock or by CUDA events. Forward seconds end where the module returns, so a
    loss outside of it counts into gap_s[0]. Parameters without a gradient are left out; `step` may go on to update.
    `on_all_ranks`: all ranks call it and begin each step together; a gradient is ready once the slowest rank has it.
    ValueError if `step` does not call the module, makes a gradient ready twice, or not the same ones every time.
    """
    require_counts(1, iterations=iterations)
    require_counts(0, warmup=warmup)
    if not str(device).startswith(("cpu", "cuda")):
        raise ValueError(f"device is {device}; it must be a cpu or cuda device")
    import torch.distributed as dist

    mark, seconds = _clock(device)
    marks = []  # (name, time) in one step, with "" for its start and for returns of the module
    steps = []  # seconds by name of each step
    parameters = {key: p for key, p in module.named_parameters() if p.requires_grad}
    without = [p for p in parameters.values() if p.grad is None]  # restored for a training that follows
    with ExitStack() as hooks:
        hooks.enter_context(module.register_forward_hook(lambda *_: marks.append(("", mark()))))
        for key, p in parameters.items():
            hooks.enter_context(p.register_post_accumulate_grad_hook(lambda _, key=key: marks.append((key, mark()))))
        for _ in range(warmup + iterations):
            if on_all_ranks:
                dist.barrier()
            marks[:] = [("", mark())]
            step()
            steps.append(_times(marks, seconds))
    for p in without:
        p.grad = None
    by_rank = [steps]
    if on_all_ranks:
        by_rank = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(by_rank, steps)
    if any(times.keys() != steps[0].keys() for times in chain.from_iterable(by_rank)):
        where = ", on all ranks" if on_all_ranks else ""
        raise ValueError(f"step must make the same gradients ready every time{where}")
    slowest = [{key: max(times[key] for times in at) for key in steps[0]} for at in zip(*by_rank, strict=True)]
    at_s = {key: median(times[key] for times in slowest[warmup:]) for key in steps[0]}
    forward_s = at_s.pop("")
    ready_s = {key: seconds - forward_s for key, seconds in at_s.items()}
    tensors = tuple(sorted(ready_s, key=ready_s.__getitem__))
    gap_s = tuple(later - earlier for earlier, later in pairwise([0.0, *sorted(ready_s.values())]))
    return Gradients(
        name=type(module).__name__,
        tensors=tensors,
        num_elements=tuple(parameters[key].numel() for key in tensors),
        gap_s=gap_s,
        forward_s=forward_s,
        source=f"measured on {device}, medians of {iterations} steps",
    )


def _times(marks: list[tuple[str, Any]], seconds: Callable[[Any, Any], float]) -> dict[str, float]:
    """Seconds from the start to each gradient, and to the module's return before the backward pass as ""."""
    ready = [(key, at) for key, at in marks if key]
    first = marks.index(ready[0]) if ready else 0
    if first < 2 or len(dict(ready)) < len(ready):
        raise ValueError("step must call the module, then make each of its gradients ready once")
    return {key: seconds(marks[0][1], at) for key, at in (("", marks[first - 1][1]), *ready)}


def _clock(device: str) -> tuple[Callable[[], Any], Callable[[Any, Any], float]]:
    """Give a function that marks the present on a device, and another for the seconds between two marks."""
    import torch

    if torch.device(device).type == "cpu":
        return time.perf_counter, lambda start, end: end - start
    return (
        lambda: torch.cuda.current_stream(device).record_event(torch.cuda.Event(enable_timing=True)),
        lambda start, end: end.synchronize() or start.elapsed_time(end) / 1e3,  # synchronize returns None
    )
