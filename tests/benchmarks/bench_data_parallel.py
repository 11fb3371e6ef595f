"""Benchmarks of codecs beside the communication hooks of DistributedDataParallel.

One rank, so that the all-reduce costs next to nothing and what is left of a
hook is what it does to the bucket. The hook is called with a real bucket,
inside a backward pass. Nothing is asked of these figures.

PowerSGD and the auto-encoder are compared at equal messages: for a gradient
[rows, columns] of rank r, PowerSGD sends r · (rows + columns) elements, an
auto-encoder of code size c rows · c.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from workbench.compression import FP16, AutoEncoder, Codec, Quantize, TopK
from workbench.training.measuring import Benchmark, BenchmarkRow, Ratio, paired_ratio

# The gradient is one bucket of 16 MiB.
ROWS, COLUMNS = 4096, 1024
RANK = 8

Hook = Callable[[object, dist.GradBucket], torch.futures.Future[torch.Tensor]]


def ratio_with_bucket(hook: Hook, state: object, codec: Codec) -> Ratio:
    """Time a codec's round trip over a hook's call, both on one bucket."""
    ratios: list[Ratio] = []

    def measure(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        gradient = bucket.buffer().view(ROWS, COLUMNS)
        out = torch.zeros_like(gradient)
        ratio = paired_ratio(lambda: codec.decode(codec.encode(gradient), out=out), lambda: hook(state, bucket).wait())
        ratios.append(ratio)
        return hook(state, bucket)

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(nn.Linear(COLUMNS, ROWS, bias=False))
        model.register_comm_hook(state, measure)
        x = torch.randn(64, COLUMNS, generator=torch.Generator().manual_seed(0))
        model(x).square().mean().backward()
    finally:
        dist.destroy_process_group()
    return ratios[-1]


def fp16() -> list[BenchmarkRow]:
    """Compare FP16 with the fp16 hook."""
    ratio = ratio_with_bucket(default_hooks.fp16_compress_hook, None, FP16())
    return [BenchmarkRow.of("FP16 over DDP's fp16 hook, 16 MiB of gradients", ratio)]


def power_sgd() -> list[BenchmarkRow]:
    """Compare codecs of equal message size with PowerSGD."""
    message = RANK * (ROWS + COLUMNS)
    code_size = message // ROWS
    codecs = {
        f"AutoEncoder({code_size})": AutoEncoder(COLUMNS, code_size).requires_grad_(False),
        f"TopK({message // 3})": TopK(message // 3),
        "Quantize(2)": Quantize(2),
    }
    rows = []
    for name, codec in codecs.items():
        ratio = ratio_with_bucket(powerSGD_hook.powerSGD_hook, _warm_state(), codec)
        share = codec.payload_bytes((ROWS, COLUMNS), torch.float32) / (message * 4)
        rows.append(BenchmarkRow.of(f"{name} over DDP's PowerSGD({RANK}) hook, {share:.2g} of its bytes", ratio))
    return rows


def _warm_state() -> powerSGD_hook.PowerSGDState:
    """Make a PowerSGD state past the iterations in which it does not compress."""
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=RANK, start_powerSGD_iter=2)
    state.iter = state.start_powerSGD_iter
    return state


BENCHMARKS = [
    Benchmark(name="data-parallel-fp16", asks="FP16 beside the hook that casts gradients.", run=fp16),
    Benchmark(name="data-parallel-powersgd", asks="Codecs beside the PowerSGD hook.", run=power_sgd),
]
