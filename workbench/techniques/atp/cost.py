"""Operations, memory and overlap of a layer on a mesh; the paper's models and interconnects; bytes of 2-D and 2.5-D."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workbench.checks import require_counts
from workbench.study.published import published_value

from .method.equations import Workload
from .method.matrix import PRESETS, HierarchicalCommMatrix, flat
from .method.summa import forward_backward_elements

__all__ = ["BINARY_TERA", "GPTS", "SQUARES", "Segment", "activation_elements", "layer_flops", "matrix_of"]
__all__ += ["overlapped_s", "published_s", "summa_elements", "weight_elements"]


def layer_flops(work: Workload) -> float:
    """Return the floating-point operations of one layer, both passes, without recomputation (table 2's formula)."""
    b, s, h = work.batch, work.sequence, work.hidden
    return 72 * b * s * h**2 * (1 + s / (6 * h))


def weight_elements(hidden: int, d1: int = 1, d2: int = 1) -> float:
    """Return the weights of one layer on a device: 12 h^2 over all devices."""
    return 12 * hidden**2 / (d1 * d2)


def activation_elements(work: Workload, d1: int, d2: int, *, sequence_parallel: bool = False) -> float:
    """Return what one layer keeps on a device for its backward pass.

    The attention scores are left out, and what norms keep to exchange statistics where d2 > 1.
    """
    norms = 2 / d2 / (d1 if sequence_parallel else 1) + 2 / d2  # their inputs; their outputs, whole for the linears
    core = 4 / (d1 * d2) + (1 / d1 if d2 > 1 else 0)  # query, key, value, context; the gathered context
    inner = 8 / d1  # before and after the activation function
    return work.num_values * (norms + core + inner)


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a layer's pass over the whole batch."""

    compute_s: float
    message_s: float = 0.0  # of the message that follows and is waited for before the next segment
    meanwhile_s: float = 0.0  # computation that does not wait for it


def overlapped_s(segments: Sequence[Segment], chunks: int) -> float:
    """Return how long chunks of the batch take side by side on one device and one link, segment by segment."""
    require_counts(1, chunks=chunks)
    device = link = 0.0
    ready = [0.0] * chunks
    for segment in segments:
        for number in range(chunks):
            device = max(device, ready[number]) + segment.compute_s / chunks
            ready[number] = device
            if segment.message_s:
                link = max(link, device) + segment.message_s / chunks
                ready[number] = link
            device += segment.meanwhile_s / chunks
    return max(device, link)


BINARY_TERA = 2**40  # table 2's TFLOPs; see table-2/counted
GPTS: Mapping[str, Workload] = {
    name: Workload(batch=4, sequence=2048, hidden=hidden, heads=heads)
    for name, hidden, heads in (("M1", 2048, 16), ("M2", 4096, 32), ("M3", 8192, 64), ("M4", 12288, 96))
}


def published_s(interconnect: str, model: str, scheme: str = "Baseline") -> float:
    """Return the seconds of a layer on 8 devices behind a cell of table 3."""
    rate = published_value("atp", "table-3", "tflops_per_s", interconnect=interconnect, model=model, scheme=scheme)
    return layer_flops(GPTS[model]) / BINARY_TERA / 8 / rate


SQUARES = {4: (2, 1), 8: (2, 2), 16: (4, 1)}  # by devices: q and depth of 2-D or 2.5-D


def matrix_of(interconnect: str, num_devices: int = 8) -> HierarchicalCommMatrix:
    """Return an interconnect's matrix; IC4's and IC5's with as many devices as are used."""
    preset = PRESETS[interconnect]
    if interconnect not in ("IC4", "IC5"):
        return preset
    return flat(interconnect, num_devices, preset.layers[0].group_bytes_per_s, preset.source)


def summa_elements(work: Workload, q: int, depth: int) -> dict[str, float]:
    """Return what a device sends for a layer in 2-D or 2.5-D tensor parallelism, in values, by the group it goes to.

    A broadcast or a reduction on q devices counts (q - 1) / q of its message, the mean over its devices.
    """
    counted = forward_backward_elements(work.batch, work.sequence, work.hidden, q, depth)
    sent = dict.fromkeys(("row", "column", "depth"), 0.0)
    for moved in (counted.forward, counted.backward):
        sent["row"] += (q - 1) / q * (moved.row_broadcast + moved.row_reduce + 2 * moved.row_all_reduce)
        sent["column"] += (q - 1) / q * (moved.column_broadcast + moved.column_reduce + 2 * moved.column_all_reduce)
        sent["depth"] += 2 * (depth - 1) / depth * moved.depth_all_reduce
    return sent
