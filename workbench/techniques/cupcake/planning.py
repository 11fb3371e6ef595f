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

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

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
from workbench.timeline.gradients import Gradients

from .cost import CUPCAKE, FP16, FP32_BUCKETS, FP32_BYTES, FP32_FUSED, Costs, fitted, largest_miss, strategies
from .plan import Plan, plan_of
from .runtime import FusedExchange, Group

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
) -> FusedExchange:
    """Compress a model's gradients in the groups with the shortest iteration; all its ranks call it.

    The first five backward passes send uncompressed gradients and measure when they are ready. Then the codec and the
    network are measured, and the exchange gets its `plan`. DGC's momentum restarts with the plan. If FP32 or FP16 is
    predicted to be faster, a warning says so.

    Args:
        model: a model without another communication hook, made with `bucket_cap_mb=cupcake.BUCKET_MB`.
        codec: a name in `compression.gradients.GRADIENT_CODECS`.
        momentum: momentum for DGC's correction; the optimizer then has none.
        warmup: shares that DGC keeps in its first epochs; see `FusedExchange.at_epoch`.
        scaler: scaler of the loss, such as a GradScaler; see `exchange`.

    Returns:
        The exchange. To resume, save its `plan` and `state_dict()`, then load the state into `exchange(model, plan)`.

    Raises:
        ValueError: on all ranks, before gradients are sent, if a rank has an unknown codec, momentum or warm-up for a
            codec other than DGC, or a parameter that is not FP32, or if arguments differ between ranks.
    """

    def check() -> None:
        gradient_codec(codec, momentum=momentum, warmup=warmup)
        require_fp32(model.module)
        require_all_handed_over(model)

    require_ddp(model)
    ranks = model.process_group
    require_one_plan(f"{codec}, {momentum}, {warmup}", check=check, group=ranks)
    warn_if_late(model, "cupcake")
    sizes, passes = {name: p.numel() for name, p in model.module.named_parameters()}, []
    device = str(next(model.module.parameters()).device)

    def plan_by(ready_s: Mapping[str, float]) -> Plan | None:
        passes.append(ready_s)
        if len(passes) < SETTLING + MEASURED:
            return None
        middle_s = {name: median(times[name] for times in passes[SETTLING:]) for name in ready_s}
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
        plan = plans_on_ranks(gradients, codec, device=device, ranks=ranks)[CUPCAKE]
        if dist.get_rank(ranks) == 0:
            warn_if_slower(plan)
        return plan

    return FusedExchange(model, None, momentum=momentum, warmup=warmup, scaler=scaler, plan_by=plan_by)


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
) -> dict[str, Plan]:
    """Measure the costs, then plan with every rule on the first rank, for all ranks; all ranks call it."""
    costs = measure_costs(codec, sum(gradients.num_elements), device=device, ranks=ranks)
    written: list[object] = [None]
    if dist.get_rank(ranks) == 0:
        found, world = strategies(gradients, costs, bucket_scale=bucket_scale), dist.get_world_size(ranks)
        predicted_s = {name: strategy.iteration_s for name, strategy in found.items()}
        plans = {name: plan_of(gradients, strategy, codec, world, predicted_s) for name, strategy in found.items()}
        measured = {"lines": costs.lines, "misses": costs.misses}
        written[0] = {name: replace(plan, **measured).to_json() for name, plan in plans.items()}
    dist.broadcast_object_list(written, group=ranks, group_src=0)
    return {name: Plan.from_json(text) for name, text in written[0].items()}


def measure_costs(
    codec: str, largest: int, *, device: str = "cpu", runs: int = RUNS, ranks: dist.ProcessGroup | None = None
) -> Costs:
    """Measure encoding, sending and decoding of groups up to `largest` elements; all ranks call it together.

    Costs are fitted to the median time of the slowest rank for each size.
    """
    sizes, largest = [SMALLEST], max(largest, SMALLEST * FACTOR)
    while sizes[-1] < largest:
        sizes.append(min(largest, sizes[-1] * FACTOR))
    encode, send, decode = _measured(lambda: gradient_codec(codec), sizes, device, runs, ranks)
    send_plain = _measured(Identity, sizes, device, runs, ranks)[1]
    samples = {"compress": encode, "communicate": send, "decode": decode, "send_plain": send_plain}
    flat = ("compress", "decode")
    costs = {name: fitted(pairs)[1 if name in flat else 0] for name, pairs in samples.items()}
    misses = {name: largest_miss(costs[name], pairs) for name, pairs in samples.items()}
    return Costs(codec=codec, misses=misses, **costs)


Samples = list[tuple[float, float]]  # bytes in fp32, and seconds


def _measured(
    make: Callable, sizes: Sequence[int], device: str, runs: int, ranks: dist.ProcessGroup | None
) -> tuple[Samples, Samples, Samples]:
    """Return the times of encoding, sending and decoding for each size."""
    encode, send, decode = [], [], []
    for size in sizes:
        group, size_bytes = Group(make(), [size], 0.0, device, ranks), FP32_BYTES * size
        is_sent = len(send) < 2 or send[-1][1] < LONG_S
        encode_s, send_s, decode_s = _medians_s(group, runs, is_sent)
        encode.append((size_bytes, encode_s))
        decode.append((size_bytes, decode_s))
        if is_sent:
            send.append((size_bytes, send_s))
    return encode, send, decode


def _medians_s(group: Group, runs: int, is_sent: bool) -> list[float]:
    draw, seconds = torch.Generator(group.flat.device).manual_seed(dist.get_rank()), []

    def timed_s(work: Callable[[], object]) -> float:
        dist.barrier(group.ranks)
        began_s = time.perf_counter()
        work()
        if group.flat.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - began_s

    for _ in range(runs + 2):  # the first two runs open connections and allocate memory
        group.flat.normal_(generator=draw)
        encode_s = timed_s(group.encode)
        send_s = timed_s(group.exchange) if is_sent else timed_s(group.keep)
        found = torch.tensor([encode_s, send_s, timed_s(group.decode)], device=group.flat.device)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=group.ranks)
        seconds.append(found.tolist())
    return [median(column) for column in zip(*seconds[2:], strict=True)]
