"""Where compression begins to pay, for a machine with your own numbers; beyond the paper.

    explore_break_even()                                      # the paper's machine without NVLink
    explore_break_even(FittedMachine(name="mine", source="measured today", flops_per_s=3e10, link=link, ...))

Shown are four tensor-parallel ranks of one host, BERT-large, the last 12 of 24 layers compressed by a learned code.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from matplotlib.figure import Figure

from workbench.explore.explorer import Control, Explorer, choice, steps
from workbench.plots import beside, figure, lines
from workbench.plots.style import BLACK
from workbench.techniques.activation_compression.cost import (
    BreakEven,
    FittedMachine,
    Setting,
    break_even_map,
    paper_machine,
    speedup_at,
)
from workbench.techniques.activation_compression.method import Family

from .layer import CODE_SIZES

__all__ = ["CODE_SIZES", "BreakEvenMap", "compare_at", "describe_map", "draw_map", "explore_break_even"]

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)  # B, sequences
RATES = (1e10, 3e10, 1e11, 1e12, 1e13, 3e13, 5e13, 1e14, 3e14, 1e15)  # FLOP/s, from one CPU core to an H100
BANDWIDTHS = (1e7, 1.25e8, 1.25e9, 3.125e9, 1e10, 2.5e10, 5e10, 1e11, 3e11)  # bytes/s
LAUNCHES = (0.0, 2e-4, 5e-4, 1e-3, 2e-3)  # s, one layer forward
CODEC_FACTORS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)  # times the machine's own encoding and decoding
TENSOR_RANKS = 4
SCALED = (
    "encode_s_per_element",
    "encode_s_per_sent",
    "decode_s_per_element",
    "decode_s_per_sent",
    "launch_s",
    "backward_launch_s",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class BreakEvenMap:
    """The curves, and the chosen point among them."""

    points: tuple[BreakEven, ...]  # every batch and code size
    micro_batch: int  # chosen
    code_size: int  # chosen
    bandwidth_bytes_per_s: float  # chosen
    speedup: float  # at the chosen point

    @property
    def chosen(self) -> BreakEven:
        """The point of the chosen batch and code size."""
        wanted = (self.micro_batch, self.code_size)
        return next(point for point in self.points if (point.micro_batch, point.code_size) == wanted)


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
    sizes = {"sequence": sequence, "micro_batch": micro_batch, "code_size": code_size}
    setting = Setting(method="A2", tp=TENSOR_RANKS, pp=1, fused=fused, **sizes)
    return BreakEvenMap(
        points=break_even_map(changed, setting, micro_batches=BATCHES, code_sizes=CODE_SIZES),
        micro_batch=micro_batch,
        code_size=code_size,
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        speedup=speedup_at(changed, setting, bandwidth_bytes_per_s),
    )


def describe_map(result: BreakEvenMap) -> str:
    """Say in a sentence whether the chosen point pays, and where it would begin to."""
    where = f"batch {result.micro_batch}, code of {result.code_size}, {_gigabytes(result.bandwidth_bytes_per_s)}"
    pays = "pays" if result.speedup > 1 else "does not pay"
    limit = result.chosen.bandwidth_bytes_per_s
    return f"Compression {pays} at {where}: {result.speedup:.3g} times as fast. It pays below {_gigabytes(limit)}."


def draw_map(result: BreakEvenMap) -> Figure:
    """Draw the break-even bandwidth against the batch, a curve a code size, and the chosen point."""
    drawn, ax = figure(figsize=(8, 4.2))
    rows = [
        {"batch": point.micro_batch, "bandwidth": point.bandwidth_bytes_per_s / 1e9, "code": point.code_size}
        for point in result.points
        if 0 < point.bandwidth_bytes_per_s < float("inf")
    ]
    if rows:
        labels = {"x_label": "batch (sequences)", "y_label": "bandwidth (GB/s)"}
        lines(rows, ax=ax, x="batch", y="bandwidth", by="code", log_x=True, log_y=True, **labels)
    star = {"marker": "*", "markersize": 14, "color": BLACK, "linestyle": "none"}
    ax.plot(result.micro_batch, result.bandwidth_bytes_per_s / 1e9, label="chosen", **star)
    ax.set_title(f"compression pays below the curve of its code size; chosen point: {result.speedup:.4g} times as fast")
    beside(ax, title="code size")
    return drawn


def explore_break_even(machine: FittedMachine | None = None) -> Explorer[BreakEvenMap]:
    """Return the explorer that starts at a machine's numbers, by default the paper's: four V100 on a PCIe bridge."""
    machine = paper_machine(nvlink=False) if machine is None else machine
    controls = _work_controls() | _machine_controls(machine)
    return Explorer(partial(compare_at, machine), draw_map, describe=describe_map, **controls)


def _work_controls() -> dict[str, Control]:
    return {
        "micro_batch": steps("batch", BATCHES, value=32, help="Sequences a micro-batch: more hide the fixed costs."),
        "sequence": steps("sequence", (32, 64, 128, 256, 512, 1024), value=512, help="Tokens a sequence."),
        "code_size": steps("code size", CODE_SIZES, value=100, help="Columns of the code, of 1024."),
        "fused": choice(
            "code of",
            {"the partial sum (paper)": False, "the weight (fused)": True},
            value=False,
            help="What the encoder multiplies: a fused code saves the layer's full-size product.",
        ),
    }


def _machine_controls(machine: FittedMachine) -> dict[str, Control]:
    return {
        "bandwidth_bytes_per_s": _own(
            "bandwidth",
            BANDWIDTHS,
            machine.link.bandwidth_bytes_per_s,
            _gigabytes,
            "Of one connection between ranks. Where compression pays, it is below the curve.",
        ),
        "flops_per_s": _own(
            "device",
            RATES,
            machine.flops_per_s,
            lambda rate: f"{rate / 1e12:.3g} TFLOP/s",
            "What matrix products reach on one device: it changes how much is gained, hardly where gains begin.",
        ),
        "layer_launch_s": _own(
            "launching",
            LAUNCHES,
            machine.layer_launch_s,
            lambda time: f"{time * 1e3:.3g} ms a layer",
            "Time of the CPU to launch a layer's kernels; it hides small messages.",
        ),
        "codec_factor": _own(
            "encoding",
            CODEC_FACTORS,
            1.0,
            lambda factor: f"{factor:g} times",
            "Encoding and decoding, times the machine's own.",
        ),
    }


def _own(label: str, values: Sequence[float], own: float, text: Callable[[float], str], help: str) -> Control:
    """Return steps among which is the machine's own value."""
    return steps(label, sorted({*values, own}), value=own, text=text, help=help)


def _gigabytes(bandwidth_bytes_per_s: float) -> str:
    return f"{bandwidth_bytes_per_s / 1e9:.3g} GB/s"
