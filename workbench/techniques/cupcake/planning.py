"""Fusion for a user's model with one line that measures, plans, and continues the training.

model = DistributedDataParallel(module, bucket_cap_mb=cupcake.BUCKET_MB)
cupcake.fuse(model, "dgc")                          # on every rank
"""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from workbench.compression import FP16 as HalfPrecision
from workbench.compression import Identity
from workbench.compression.gradients import gradient_codec
from workbench.parallel.hooks import (
    Scaler,
    require_all_handed_over,
    require_ddp,
    require_fp32,
    require_one_plan,
    warn_if_late,
)
from workbench.parallel.hosts import ranks_a_core, require_whole_hosts
from workbench.timeline.gradients import Gradients

from .cost import CUPCAKE, FP16, FP32_BUCKETS, FP32_BYTES, FP32_FUSED, Costs, fitted_costs, strategies
from .plan import Plan, plan_of
from .runtime import FusedExchange, Group, Places

__all__ = ["fuse", "measure_costs", "plans_on_ranks", "warn_if_slower"]

SETTLING, MEASURED = 2, 3  # backward passes before the plan; DDP rebuilds its buckets after the first pass
SMALLEST, FACTOR = 256, 8  # elements of the first measured group, and the factor to the next size
LONG_S = 0.3  # after a send this long, larger groups are not sent; the fitted line gives their time
RUNS = 5


def fuse(
    model: DistributedDataParallel,
    codec: str = "dgc",
    *,
    momentum: float = 0.0,
    warmup: Sequence[float] = (),
    scaler: Scaler | None = None,
    gpus_per_machine: int = 1,
) -> FusedExchange:
    """Compress a model's gradients in the groups with the shortest iteration; all its ranks call it.

    The first five backward passes send uncompressed gradients and measure when they are ready. Then the codec and the
    network are measured, and the exchange gets its `plan`. DGC's momentum restarts with the plan. If FP32 or FP16 is
    predicted to be faster, a warning says so.

    Args:
        model: a model without another communication hook, made with `bucket_cap_mb=cupcake.BUCKET_MB`.
        codec: a name in `compression.gradients.GRADIENT_CODECS`.
        momentum, warmup, scaler: as for `exchange`.
        gpus_per_machine: ranks of a machine, which follow one another. Above 1, gradients are summed as they are inside
            each machine, and compressed between machines (section 5.4.1).

    Returns:
        The exchange. To resume, save its `plan` and `state_dict()`, then load the state into `exchange(model, plan)`.

    Raises:
        ValueError: on all ranks, before gradients are sent, if a rank has an unknown codec, momentum or warm-up for a
            codec other than DGC, or a parameter that is not FP32, or if arguments differ between ranks.
    """

    def check() -> None:
        gradient_codec(codec, momentum=momentum, warmup=warmup)
        require_fp32(model.module)
        require_whole_hosts(dist.get_world_size(ranks), gpus_per_machine=gpus_per_machine)
        require_all_handed_over(model)

    require_ddp(model)
    ranks = model.process_group
    require_one_plan(f"{codec}, {momentum}, {warmup}, {gpus_per_machine}", check=check, group=ranks)
    warn_if_late(model, "cupcake")
    places = Places.of(ranks, gpus_per_machine)
    sizes, passes = {name: p.numel() for name, p in model.module.named_parameters()}, []
    device = str(next(model.module.parameters()).device)

    def plan_by(ready_s: Mapping[str, float]) -> Plan | None:
        passes.append(ready_s)
        if len(passes) < SETTLING + MEASURED:
            return None
        middle_s = _of_slowest({name: median(times[name] for times in passes[SETTLING:]) for name in ready_s}, ranks)
        order = sorted(middle_s, key=middle_s.__getitem__)
        gap_s = tuple(later - earlier for earlier, later in pairwise([0.0, *(middle_s[name] for name in order)]))
        gradients = Gradients(
            name=type(model.module).__name__,
            tensors=tuple(order),
            num_elements=tuple(sizes[name] for name in order),
            gap_s=gap_s,
            forward_s=0.0,
            source=f"measured in {MEASURED} backward passes, from the first gradient on",
        )
        plan = plans_on_ranks(gradients, codec, device=device, ranks=ranks, gpus_per_machine=gpus_per_machine)[CUPCAKE]
        if dist.get_rank(ranks) == 0:
            warn_if_slower(plan)
        return plan

    return FusedExchange(model, None, momentum=momentum, warmup=warmup, scaler=scaler, plan_by=plan_by, places=places)


def _of_slowest(ready_s: Mapping[str, float], ranks: dist.ProcessGroup | None) -> dict[str, float]:
    """Return when the slowest rank has each gradient."""
    by_rank: list[Any] = [None] * dist.get_world_size(ranks)
    dist.all_gather_object(by_rank, dict(ready_s), ranks)
    return {name: max(times[name] for times in by_rank) for name in ready_s}


def warn_if_slower(plan: Plan) -> None:
    """Warn if a plan predicts shorter iterations without compression."""
    own_s = plan.predicted_s[plan.scheme]
    plain = {name: plan.predicted_s[name] for name in (FP16, FP32_BUCKETS, FP32_FUSED)}
    if faster := [f"{name} {1e3 * seconds:.2f} ms" for name, seconds in plain.items() if seconds < own_s]:
        warnings.warn(f"do not compress: {plan.codec} takes {1e3 * own_s:.2f} ms, {', '.join(faster)}", stacklevel=2)


def plans_on_ranks(
    gradients: Gradients,
    codec: str,
    *,
    device: str = "cpu",
    ranks: dist.ProcessGroup | None = None,
    bucket_scale: float = 1.0,
    gpus_per_machine: int = 1,
) -> dict[str, Plan]:
    """Measure the costs, then plan with every rule on the first rank, for all ranks; all ranks call it."""
    largest = sum(gradients.num_elements)
    costs = measure_costs(codec, largest, device=device, ranks=ranks, gpus_per_machine=gpus_per_machine)
    written: list[Any] = [None]
    if dist.get_rank(ranks) == 0:
        by_rule, world = strategies(gradients, costs, bucket_scale=bucket_scale), dist.get_world_size(ranks)
        predicted_s = {name: strategy.iteration_s for name, strategy in by_rule.items()}
        written[0] = {}
        for name, strategy in by_rule.items():
            plan = plan_of(gradients, strategy, codec, world, predicted_s)
            plan = replace(plan, lines=costs.lines, misses=costs.misses, gpus_per_machine=gpus_per_machine)
            written[0][name] = plan.to_json()
    dist.broadcast_object_list(written, group=ranks, group_src=0)
    return {name: Plan.from_json(text) for name, text in written[0].items()}


def measure_costs(
    codec: str,
    largest: int,
    *,
    device: str = "cpu",
    runs: int = RUNS,
    ranks: dist.ProcessGroup | None = None,
    gpus_per_machine: int = 1,
) -> Costs:
    """Measure encoding, sending and decoding of groups up to `largest` elements; all ranks call it together.

    Costs are fitted to the median time of the slowest rank for each size. Copies into a group and back count as
    encoding and decoding, as do sums inside machines, for which the device waits. A CPU also works for messages on
    their way: so much of sending delays the backward pass, and counts as encoding. FP32 and FP16 are measured alike.
    """
    sizes, largest = [SMALLEST], max(largest, SMALLEST * FACTOR)
    while sizes[-1] < largest:
        sizes.append(min(largest, sizes[-1] * FACTOR))
    places = Places.of(ranks, gpus_per_machine)
    makes = {codec: lambda: gradient_codec(codec), FP32_BUCKETS: Identity, FP16: HalfPrecision}
    measured = {name: _measured(make, sizes, device, runs, ranks, places) for name, make in makes.items()}
    places.close()
    steps = zip(*(measured[FP32_BUCKETS][step] for step in ("encode", "send", "decode")), strict=False)
    send_plain = [(size, sum_s + send_s + share_s) for (size, sum_s), (_, send_s), (_, share_s) in steps]
    costs = {name: fitted_costs(name, times, send_plain) for name, times in measured.items()}
    return replace(costs.pop(codec), measured=costs)


def _measured(
    make: Callable, sizes: Sequence[int], device: str, runs: int, ranks: dist.ProcessGroup | None, places: Places
) -> dict[str, list[tuple[float, float]]]:
    """Return the times to encode, send and decode each size, and what the device works while it is sent."""
    times: dict[str, list[tuple[float, float]]] = {"encode": [], "send": [], "decode": [], "work": []}
    for size in sizes:
        group, size_bytes = Group(make(), [size], 0.0, device, ranks, places), FP32_BYTES * size
        is_sent = len(times["send"]) < 2 or times["send"][-1][1] < LONG_S
        for (name, samples), seconds in zip(times.items(), _medians_s(group, runs, is_sent), strict=True):
            if is_sent or name in ("encode", "decode"):
                samples.append((size_bytes, seconds))
    return times


def _medians_s(group: Group, runs: int, is_sent: bool) -> list[float]:
    draw, seconds = torch.Generator(group.flat.device).manual_seed(dist.get_rank()), []
    gradient, is_ddps = torch.empty_like(group.flat), isinstance(group.codec, Identity | HalfPrecision)
    finish = torch.cuda.synchronize if group.flat.is_cuda else lambda: None
    sharing = 0.0 if group.flat.is_cuda else ranks_a_core(group.ranks)

    def timed(work: Callable[[], object]) -> tuple[float, float]:
        finish()  # a barrier of gloo does not wait for the device
        dist.barrier(group.ranks)
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        work()
        finish()
        return time.perf_counter() - began_s, time.process_time() - began_cpu_s

    def encode() -> None:
        if not is_ddps:
            group.flat.copy_(gradient)
        group.encode()

    def decode() -> None:
        group.decode()
        if not is_ddps:
            gradient.copy_(group.flat)

    for _ in range(runs + 2):  # the first two runs open connections and allocate memory
        group.flat.normal_(generator=draw)
        gradient.copy_(group.flat)
        encode_s, _ = timed(encode)
        send_s, worked_s = timed(group.exchange if is_sent else group.keep)
        decode_s, _ = timed(decode)
        slowest = torch.tensor([encode_s, send_s, decode_s], device=group.flat.device)
        total = torch.tensor(worked_s, device=group.flat.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group.ranks)
        dist.all_reduce(total, group=group.ranks)
        seconds.append([*slowest.tolist(), sharing * total.item() / dist.get_world_size(group.ranks)])
    return [median(column) for column in zip(*seconds[2:], strict=True)]
