"""Where compression begins to pay, for a machine with your own numbers; beyond the paper.

    explore_break_even()                                      # the paper's machine without NVLink
    explore_break_even(FittedMachine(name="mine", source="measured today", flops_per_s=3e10, link=link, ...))

Shown are four tensor-parallel ranks of one host, BERT-large, the last 12 of 24 layers compressed by a learned code.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from matplotlib.figure import Figure

from workbench.explore.explorer import Explorer, choice, steps
from workbench.plots import beside, figure, lines
from workbench.plots.style import BLACK
from workbench.techniques.activation_compression.cost import (
    FittedMachine,
    Setting,
    break_even_map,
    paper_machine,
    speedup_at,
)
from workbench.techniques.activation_compression.method import Family

from .layer import CODE_SIZES, gigabytes

__all__ = ["CODE_SIZES", "BreakEvenMap", "compare_at", "describe_map", "draw_map", "explore_break_even"]

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)  # B, sequences
RATES = (1e10, 3e10, 1e11, 1e12, 1e13, 3e13, 5e13, 1e14, 3e14, 1e15)  # FLOP/s, from one CPU core to an H100
BANDWIDTHS = (1e7, 1.25e8, 1.25e9, 3.125e9, 1e10, 2.5e10, 5e10, 1e11, 3e11)  # bytes/s
LAUNCHES = (0.0, 2e-4, 5e-4, 1e-3, 2e-3)  # s, one layer forward
CODEC_FACTORS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)  # times the machine's own encoding and decoding
TENSOR_RANKS = 4
SCALED: tuple[str, ...] = ("encode_s_per_element", "encode_s_per_sent", "decode_s_per_element", "decode_s_per_sent")
SCALED += ("launch_s", "backward_launch_s")


@dataclass(frozen=True, kw_only=True, slots=True)
class BreakEvenMap:
    """The curves, and the chosen point among them."""

    limits: Mapping[tuple[int, int], float]  # bytes/s by batch and code size; below, compression pays
    micro_batch: int  # chosen
    code_size: int  # chosen
    bandwidth_bytes_per_s: float  # chosen
    speedup: float  # at the chosen point

    @property
    def limit_bytes_per_s(self) -> float:
        """The limit of the chosen batch and code size."""
        return self.limits[self.micro_batch, self.code_size]


def compare_at(
    machine: FittedMachine,
    *,
    sequence: int,
    micro_batch: int,
    code_size: int,
    bandwidth_bytes_per_s: float,
    flops_per_s: float,
    layer_launch_s: float,
    codec_factor: float,
    fused: bool,
) -> BreakEvenMap:
    """Compute the map of a machine of which some numbers are replaced; codec_factor scales encoding and decoding."""
    codec = machine.codec(Family.AUTOENCODER)
    scaled = replace(codec, **{name: codec_factor * getattr(codec, name) for name in SCALED})
    codecs = MappingProxyType({**machine.codecs, Family.AUTOENCODER: scaled})
    changed = replace(machine, flops_per_s=flops_per_s, layer_launch_s=layer_launch_s, codecs=codecs)
    setting = Setting(
        method="A2", tp=TENSOR_RANKS, pp=1, sequence=sequence, micro_batch=micro_batch, code_size=code_size, fused=fused
    )
    return BreakEvenMap(
        limits=break_even_map(changed, setting, micro_batches=BATCHES, code_sizes=CODE_SIZES),
        micro_batch=micro_batch,
        code_size=code_size,
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        speedup=speedup_at(changed, setting, bandwidth_bytes_per_s),
    )


def describe_map(result: BreakEvenMap) -> str:
    """Say in a sentence whether the chosen point pays, and where it would begin to."""
    where = f"batch {result.micro_batch}, code of {result.code_size}, {gigabytes(result.bandwidth_bytes_per_s)}"
    pays = "pays" if result.speedup > 1 else "does not pay"
    limit = gigabytes(result.limit_bytes_per_s)
    return f"Compression {pays} at {where}: {result.speedup:.3g} times as fast. It pays below {limit}."


def draw_map(result: BreakEvenMap) -> Figure:
    """Draw the break-even bandwidth against the batch, a curve a code size, and the chosen point."""
    drawn, ax = figure(figsize=(8, 4.2))
    rows = [
        {"batch": batch, "bandwidth": limit / 1e9, "code": size}
        for (batch, size), limit in result.limits.items()
        if 0 < limit < float("inf")
    ]
    if rows:
        lines(rows, ax=ax, x="batch", y="bandwidth", by="code", log_x=True, log_y=True)
        ax.set(xlabel="batch (sequences)", ylabel="bandwidth (GB/s)")
    place = result.micro_batch, result.bandwidth_bytes_per_s / 1e9
    ax.plot(*place, label="chosen", marker="*", markersize=14, color=BLACK, linestyle="none")
    ax.set_title(f"compression pays below the curve of its code size; chosen point: {result.speedup:.4g} times as fast")
    beside(ax, title="code size")
    return drawn


def explore_break_even(machine: FittedMachine | None = None) -> Explorer[BreakEvenMap]:
    """Return the explorer that starts at a machine's numbers, by default the paper's: four V100 on a PCIe bridge."""
    machine = paper_machine(nvlink=False) if machine is None else machine
    bandwidth = machine.link.bandwidth_bytes_per_s
    codes = {"the partial sum (paper)": False, "the weight (fused)": True}
    machine_values = {  # steps among which is the machine's own value
        "bandwidth_bytes_per_s": ("bandwidth", BANDWIDTHS, bandwidth, gigabytes, "Compression pays below the curve."),
        "flops_per_s": ("device", RATES, machine.flops_per_s, _tflops, "What matrix products reach on one device."),
        "layer_launch_s": ("launching", LAUNCHES, machine.layer_launch_s, _ms, "The CPU launches a layer's kernels."),
        "codec_factor": ("encoding", CODEC_FACTORS, 1.0, "{:g} times".format, "Encoding and decoding: times its own."),
    }
    own_steps: dict[str, Any] = {
        name: steps(label, sorted({*values, value}), value=value, text=text, help=help)
        for name, (label, values, value, text, help) in machine_values.items()
    }
    return Explorer(
        partial(compare_at, machine),
        draw_map,
        describe=describe_map,
        micro_batch=steps("batch", BATCHES, value=32, help="Sequences a micro-batch: more hide the fixed costs."),
        sequence=steps("sequence", (32, 64, 128, 256, 512, 1024), value=512, help="Tokens a sequence."),
        code_size=steps("code size", CODE_SIZES, value=100, help="Columns of the code, of 1024."),
        fused=choice("code of", codes, value=False, help="A fused code saves the layer's full-size product."),
        **own_steps,
    )


def _tflops(rate: float) -> str:
    return f"{rate / 1e12:.3g} TFLOP/s"


def _ms(time_s: float) -> str:
    return f"{time_s * 1e3:.3g} ms a layer"
