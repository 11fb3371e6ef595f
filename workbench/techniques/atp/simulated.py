"""The rows of what is simulated: TFLOP/s of a layer on IC1 to IC4, calibrated on five cells of table 3."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

from workbench.datasets import kernel_traces
from workbench.rows import value_row
from workbench.study.published import Cell

from .cost import BINARY_TERA, GPTS, SQUARES, Segment, layer_flops, matrix_of, overlapped_s, published_s, summa_elements
from .method.equations import Workload, communication_time_s
from .method.matrix import FIGURE_7A, HierarchicalCommMatrix
from .method.search import meshes

__all__ = ["CALIBRATION", "chunk_rows", "comparison_rows", "kernel_rows", "mesh_rows"]

CHUNKS = (1, 2, 4)
COMPUTE_CELLS = (("IC3", "M2"), ("IC3", "M4"))
LINK_CELLS = (("IC1", "M3"), ("IC2", "M3"), ("IC4", "M3"))
CALIBRATION = {
    "cells": [
        Cell.of("table-3", "tflops_per_s", interconnect=ic, model=model, scheme="Baseline").keys()
        for ic, model in (*COMPUTE_CELLS, *LINK_CELLS)
    ],
    "fitted": "a device's rate and a layer's fixed time on IC3; the share of the nominal bandwidth on IC1, IC2, IC4",
}
LINEAR_SHARES = (3 / 12, 1 / 12, 4 / 12, 4 / 12)  # of a layer's weights: query-key-value, output, the perceptron's


def best_mesh(interconnect: str, num_devices: int) -> tuple[int, int]:
    """Return the mesh that section 5.3 names as the best one."""
    return {"IC1": (2, 4), "IC4": (8, 2) if num_devices == 16 else (8, 1)}.get(interconnect, (num_devices, 1))


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What table 3 says of the GPUs and of the links."""

    flops_per_s: float  # of a device, in a layer's products
    fixed_s: float  # of a layer
    share: Mapping[str, float]  # of the bandwidth that equations 3 and 4 give, by interconnect; 1 for IC5 and IC6


@cache
def calibrated() -> Calibrated:
    """Fit the five cells of `CALIBRATION`; IC3, IC5 and IC6 have their nominal bandwidth."""
    flops, seconds = [], []
    for ic, model in COMPUTE_CELLS:
        flops.append(layer_flops(GPTS[model]) / 8)
        sent_s = sum(_terms(GPTS[model], matrix_of(ic), best_mesh(ic, 8), 1.0))
        seconds.append(published_s(ic, model) - sent_s)
    rate = (flops[1] - flops[0]) / (seconds[1] - seconds[0])
    fixed_s, share = seconds[0] - flops[0] / rate, dict.fromkeys(("IC3", "IC5", "IC6"), 1.0)
    for ic, model in LINK_CELLS:
        nominal_s = sum(_terms(GPTS[model], matrix_of(ic), best_mesh(ic, 8), 1.0))
        compute_s = fixed_s + layer_flops(GPTS[model]) / 8 / rate
        share[ic] = nominal_s / (published_s(ic, model) - compute_s)
    return Calibrated(rate, fixed_s, share)


def _terms(work: Workload, matrix: HierarchicalCommMatrix, mesh: tuple[int, int], share: float) -> tuple[float, float]:
    """Return equation 2's terms on axis 1 and axis 2 for one layer, with a share of the bandwidth."""
    bandwidths = matrix.algorithm(*mesh)
    sizes = {name: getattr(work, name) for name in ("batch", "sequence", "hidden", "value_bytes")}
    sizes |= {"num_layers": 1, "d1": mesh[0], "d2": mesh[1]}
    both = (
        communication_time_s(**sizes, b1_bytes_per_s=bandwidths.b1_bytes_per_s, b2_bytes_per_s=math.inf),
        communication_time_s(**sizes, b1_bytes_per_s=math.inf, b2_bytes_per_s=bandwidths.b2_bytes_per_s),
    )
    return both[0] / share, both[1] / share


def layer_s(
    model: str,
    interconnect: str,
    mesh: tuple[int, int],
    *,
    chunks: int = 1,
    overlap: bool = False,
    chunks_backward: int = 1,
    joined: bool = False,
    matrix: HierarchicalCommMatrix | None = None,
) -> float:
    """Return what one layer's forward and backward pass take on a mesh (d1, d2), the forward pass in chunks.

    With `overlap` a weight's gradient is computed while the input's is summed. With `joined` every linear layer waits
    for the messages of all its chunks. `matrix` stands in place of the interconnect's own.
    """
    num, work, share = math.prod(mesh), GPTS[model], calibrated().share[interconnect]
    axis1_s, axis2_s = _terms(work, matrix or matrix_of(interconnect, num), mesh, share)
    compute_s = _compute_s(model, num)
    parts = [part * compute_s / 3 for part in LINEAR_SHARES]  # of the forward pass, a third of both
    # Of equation 2's terms axis 2 has f1's 3/14 and f3's 4/14 forward and as much backward, axis 1 a quarter each time.
    messages = [axis2_s * 3 / 14, axis1_s / 4, axis2_s * 4 / 14, axis1_s / 4]
    forward, backward = [Segment(*pair) for pair in zip(parts, messages, strict=True)], []
    conjugates = [axis1_s / 4, axis2_s * 3 / 14, axis1_s / 4, axis2_s * 4 / 14]
    for part, message in reversed(list(zip(parts, conjugates, strict=True))):
        backward.append(Segment(part, message, part) if overlap else Segment(2 * part, message))
    parted = [[segment] for segment in forward] if joined else [forward]
    return sum(overlapped_s(part, chunks) for part in parted) + overlapped_s(backward, chunks_backward)


def _compute_s(model: str, num_devices: int) -> float:
    return layer_flops(GPTS[model]) / num_devices / calibrated().flops_per_s + calibrated().fixed_s


def _rate(model: str, num_devices: int, seconds: float) -> float:
    return layer_flops(GPTS[model]) / BINARY_TERA / num_devices / seconds


def atp_s(model: str, interconnect: str, num_devices: int, matrix: HierarchicalCommMatrix | None = None) -> float:
    """Return ATP's fastest layer: the mesh that the text names, the best number of chunks, gradients overlapped."""
    mesh = best_mesh(interconnect, num_devices)
    return min(layer_s(model, interconnect, mesh, chunks=chunks, overlap=True, matrix=matrix) for chunks in CHUNKS)


def summa_s(model: str, interconnect: str, num_devices: int) -> float:
    """Return 2-D (16 devices) or 2.5-D (8) tensor parallelism's layer: the same computation, messages on their links.

    Rings of rows, columns and depth are counted device by device, as `runtime.summa` places them.
    """
    q, depth = SQUARES[num_devices]
    fitted, work, matrix = calibrated(), GPTS[model], matrix_of(interconnect, num_devices)
    place = {(z, i, j): (z * q + i) * q + j for z in range(depth) for i in range(q) for j in range(q)}
    lines = {"row": lambda z, i, j: (z, i), "column": lambda z, i, j: (z, j), "depth": lambda z, i, j: (i, j)}
    sent_s = 0.0
    for name, elements in summa_elements(work, q, depth).items():
        groups: dict[tuple[int, ...], list[int]] = {}
        for at, device in place.items():
            groups.setdefault(lines[name](*at), []).append(device)
        rings = matrix.leaving(list(groups.values()))
        if rings:
            rate = min(matrix.layers[layer].group_bytes_per_s / num for layer, num in rings.items())
            sent_s += work.value_bytes * elements / rate
    return _compute_s(model, num_devices) + sent_s / fitted.share[interconnect]


def comparison_rows(*, interconnects: Sequence[str], models: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rates of figure 10, 8 devices or, on IC4, 16, and ATP's gain over each rival.

    `changed_gain` is the gain with one thing changed: figure 7a's nodes of four devices in place of IC4's one layer.
    """
    rows = []
    for ic in interconnects:
        num = 16 if ic == "IC4" else 8
        for model in models:
            keys: dict[str, Any] = {"interconnect": ic, "model": model}
            rivals = {"Megatron-LM": layer_s(model, ic, (num, 1)), "2D/2.5D": summa_s(model, ic, num)}
            own_s = atp_s(model, ic, num)
            for name, taken_s in (rivals | {"ATP": own_s}).items():
                rows.append(value_row("tflops_per_s", _rate(model, num, taken_s), "TFLOP/s", scheme=name, **keys))
            rows += [value_row("gain", taken_s / own_s, over=name, **keys) for name, taken_s in rivals.items()]
            if ic == "IC4":
                nodes = layer_s(model, ic, (num, 1), matrix=FIGURE_7A) / atp_s(model, ic, num, FIGURE_7A)
                rows.append(value_row("changed_gain", nodes, cause="figure 7a's nodes", over="Megatron-LM", **keys))
    return rows


def chunk_rows(*, interconnects: Sequence[str], models: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rates of table 3 and what chunks gain, in the forward pass alone, as section 4.2 has it.

    `gain_by_reading` has three other readings: chunks that each linear layer joins again; chunks and overlapped
    gradients in both passes; all computation hidden.
    `tflops_per_s_off_printed` takes what chunks save off table 3's Baseline of the same cell. `saved_over_ic3` is what
    chunks save in table 3 over the whole time on IC3. `median_gain` is the middle of the cells
    inside a node, ours and those of table 3.
    """
    rows: list[dict[str, Any]] = []
    inside: dict[str, list[float]] = {"model": [], "table 3": []}
    for ic in interconnects:
        mesh = best_mesh(ic, 8)
        for model in models:
            seconds = {chunks: layer_s(model, ic, mesh, chunks=chunks) for chunks in CHUNKS}
            compute_s = _compute_s(model, 8)
            for chunks, taken_s in seconds.items():
                scheme = "Baseline" if chunks == 1 else f"Chunk={chunks}"
                keys: dict[str, Any] = {"interconnect": ic, "model": model, "scheme": scheme}
                rows.append(value_row("tflops_per_s", _rate(model, 8, taken_s), "TFLOP/s", **keys))
                rows.append(value_row("gain", seconds[1] / taken_s, **keys))
                if chunks == 1:
                    continue
                both_s = layer_s(model, ic, mesh, chunks=chunks, overlap=True, chunks_backward=chunks)
                by_reading = {
                    "joined after each linear layer": layer_s(model, ic, mesh, chunks=chunks, joined=True),
                    "both passes and gradients": both_s,
                    "all computation hidden": max(compute_s, seconds[1] - compute_s),
                }
                for reading, in_s in by_reading.items():
                    rows.append(value_row("gain_by_reading", seconds[1] / in_s, reading=reading, **keys))
                left_s = published_s(ic, model) - (seconds[1] - taken_s)
                rows.append(value_row("tflops_per_s_off_printed", _rate(model, 8, left_s), "TFLOP/s", **keys))
                saved_s = published_s(ic, model) - published_s(ic, model, scheme)
                rows.append(value_row("saved_over_ic3", saved_s / published_s("IC3", model), **keys))
                if ic != "IC4":
                    inside["model"].append(seconds[1] / taken_s)
                    inside["table 3"].append(published_s(ic, model) / published_s(ic, model, scheme))
    return rows + [value_row("median_gain", median(gains), of=of) for of, gains in inside.items() if gains]


def mesh_rows(*, interconnects: Sequence[str], models: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rates of figure 11, without overlap, and each mesh's rate over ATP-1's."""
    rows = []
    for ic in interconnects:
        num = 16 if ic in ("IC4", "IC5", "IC6") else 8
        for model in models:
            seconds = {d2: layer_s(model, ic, (d1, d2)) for d1, d2 in meshes(num)[:-1]}
            for d2, taken_s in seconds.items():
                keys: dict[str, Any] = {"interconnect": ic, "model": model, "mesh": f"ATP-{d2}"}
                rows.append(value_row("tflops_per_s", _rate(model, num, taken_s), "TFLOP/s", **keys))
                rows.append(value_row("over_atp_1", seconds[1] / taken_s, **keys))
    return rows


def kernel_rows() -> list[dict[str, Any]]:
    """Return rates of the authors' kernels beside the fitted ones; the fastest kernel of each kind counts."""
    fastest, fitted = kernel_traces.fastest_s(), calibrated()
    rows = [value_row("product_flops_per_s", kernel_traces.PRODUCT_FLOPS / fastest["gemm"], "FLOP/s")]
    for name in ("all_gather", "reduce_scatter"):
        rows.append(value_row("link_bytes_per_s", kernel_traces.RING_BYTES / fastest[name], "B/s", operation=name))
    rows.append(value_row("fitted_flops_per_s", fitted.flops_per_s, "FLOP/s"))
    rows.append(value_row("fitted_over_kernel", fitted.flops_per_s / rows[0]["value"]))
    rows.append(value_row("fixed_s", fitted.fixed_s, "s"))
    return rows + [value_row("bandwidth_share", share, interconnect=ic) for ic, share in fitted.share.items()]
