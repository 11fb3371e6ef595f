"""Benchmarks of resized products beside full ones: one thread, extraction included.

x [4096, 1024], weight [4096, 1024], random columns, as a priority list gives them. Backward is both products, each
placed into a full-size gradient of zeros. Ratios are taken in pairs, of the times this one thread has worked; a figure
holds only where the results equal the definition's on the benchmark's own input, whose whole numbers sum exactly.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.study.measuring import Benchmark, BenchmarkRow, paired_ratio
from workbench.techniques.flextp.method import resizing
from workbench.techniques.flextp.method.resizing import ColumnStatistics, column_change_by_definition

# All work is done in one thread, so its own clock shuts out other processes.
CLOCK = time.thread_time

ROWS, COLUMNS, OUTPUTS = 4096, 1024, 4096
ASKED = 0.6  # of the full product's time, at a ratio of 1/2


def whole_numbers(rows: int, columns: int, *, seed: int = 0) -> Tensor:
    """Draw whole numbers whose sums of some thousand products are exact in fp32."""
    return torch.randint(-8, 9, (rows, columns), generator=torch.Generator().manual_seed(seed)).float()


def touched(*shape: int) -> Tensor:
    """Allocate an output buffer that is mapped."""
    return torch.ones(shape)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Calls:
    """The products of one linear layer."""

    forward: Callable[[], Tensor]  # gives the output
    backward: Callable[[], tuple[Tensor, Tensor]]  # gives both gradients


def full_calls(x: Tensor, weight: Tensor, grad: Tensor) -> Calls:
    return Calls(
        forward=lambda: torch.mm(x, weight.t()), backward=lambda: (torch.mm(grad.t(), x), torch.mm(grad, weight))
    )


def resized_calls(x: Tensor, weight: Tensor, grad: Tensor, kept: Tensor) -> Calls:
    buffers = resizing.Buffers()

    def backward() -> tuple[Tensor, Tensor]:
        part_weight = resizing.gradient_of_columns(grad.t(), x, kept, buffers)
        part_input = resizing.gradient_of_columns(grad, weight, kept, buffers)
        return resizing.recovered(part_weight, kept, COLUMNS), resizing.recovered(part_input, kept, COLUMNS)

    return Calls(forward=lambda: resizing.product_of_columns(x, weight, kept, buffers), backward=backward)


def resized(pruning_ratio: float, *, rounds: int, asked: float | None = None) -> list[BenchmarkRow]:
    """Measure one ratio's products, forward and backward."""
    x, weight = whole_numbers(ROWS, COLUMNS, seed=0), whole_numbers(OUTPUTS, COLUMNS, seed=1)
    grad = whole_numbers(ROWS, OUTPUTS, seed=2)
    num_dropped = resizing.num_dropped_columns(pruning_ratio, COLUMNS)
    dropped = torch.randperm(COLUMNS, generator=torch.Generator().manual_seed(0))[:num_dropped]
    ours = resized_calls(x, weight, grad, resizing.kept_columns(dropped, COLUMNS))
    full = full_calls(x, weight, grad)
    equal = _equals_definition(ours, x, weight, grad, dropped.tolist())
    rows = []
    for way in ("forward", "backward"):
        ratio = paired_ratio(getattr(ours, way), getattr(full, way), rounds=rounds, warmup=1, clock=CLOCK)
        name = f"resized over full, {way}, γ = {pruning_ratio}, [4096, 1024] x [1024, 4096] fp32"
        rows.append(BenchmarkRow.of(name, ratio, most=asked, equal=equal, whole=True))
    return rows


def _equals_definition(ours: Calls, x: Tensor, weight: Tensor, grad: Tensor, dropped: list[int]) -> bool:
    defined = (
        resizing.resized_product_by_definition(x, weight, dropped),
        resizing.resized_gradient_by_definition(grad.T, x, dropped),
        resizing.resized_gradient_by_definition(grad, weight, dropped),
    )
    return all(torch.equal(*pair) for pair in zip((ours.forward(), *ours.backward()), defined, strict=True))


def statistics() -> list[BenchmarkRow]:
    """Measure one update of the column statistics beside the definition, which needs a temporary and a copy."""
    now, then = whole_numbers(OUTPUTS, COLUMNS), touched(OUTPUTS, COLUMNS)
    ours = ColumnStatistics(then)
    ours.update_(now, [])
    equal = torch.equal(ours.change, column_change_by_definition(now, then))
    ratio = paired_ratio(
        lambda: ours.update_(now, []), lambda: (column_change_by_definition(now, then), then.copy_(now)), clock=CLOCK
    )
    name = "column statistics over their definition, [4096, 1024] fp32"
    return [BenchmarkRow.of(name, ratio, most=1, equal=equal, whole=True)]


BENCHMARKS = [
    Benchmark(
        name="flextp-resizing",
        asks="Half of the columns against all of them, forward and backward.",
        run=lambda: resized(0.5, rounds=11, asked=ASKED),
    ),
    Benchmark(
        name="flextp-resizing-ratios",
        asks="A quarter and three quarters dropped.",
        run=lambda: [row for ratio in (0.25, 0.75) for row in resized(ratio, rounds=6)],
    ),
    Benchmark(name="flextp-statistics", asks="An epoch's statistics against their definition.", run=statistics),
]
