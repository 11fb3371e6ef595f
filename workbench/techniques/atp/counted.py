"""The rows of what is counted: sharding, sizes, bytes, memory, figure 12, and the winning mesh by text and formula."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import Partial, Placement, Replicate, Shard, distribute_tensor

from workbench.parallel.timeouts import init_mesh
from workbench.parallel.traffic import MessageKind
from workbench.rows import value_row

from .cost import (
    BINARY_TERA,
    GPTS,
    SQUARES,
    activation_elements,
    layer_flops,
    matrix_of,
    published_s,
    summa_elements,
    weight_elements,
)
from .method.equations import Kind, Workload, messages
from .method.matrix import FIGURE_7A, PRESETS, Bandwidths, flat
from .method.search import meshes, search
from .runtime.block import BlockConfig, MeshBlock, open_mesh

__all__ = ["byte_rows", "memory_rows", "rival_rows", "saving_rows", "scaling_rows", "sent_on_ranks", "sharding_rows"]
__all__ += ["size_rows", "winner_rows"]

BINARY_MEGA, THOUSAND = 2**20, 1000  # table 2's billion of parameters is a thousand times 2^20
SIDE = 8  # of the matrices of table 1

SPECS: Mapping[str, tuple[tuple[int, ...], list[Placement], list[Placement]]] = {
    "DP": ((4,), [Shard(0)], [Replicate()]),
    "Column TP": ((4,), [Replicate()], [Shard(1)]),
    "Row TP": ((4,), [Shard(1)], [Shard(0)]),
    "Column-first": ((2, 2), [Replicate(), Shard(1)], [Shard(1), Shard(0)]),
    "Row-first": ((2, 2), [Shard(1), Replicate()], [Shard(0), Shard(1)]),
}
"""By parallelism: the mesh, and the placements of the input [b, in] and of the weight [in, out] (table 1, figure 5)."""

NAMES = {
    MessageKind.SUM: Kind.ALL_REDUCE,
    MessageKind.COPY_BACKWARD: Kind.ALL_REDUCE,
    MessageKind.GATHER: Kind.ALL_GATHER,
    MessageKind.REDUCE: Kind.REDUCE_SCATTER,
}


def sharding_rows() -> list[dict[str, Any]]:
    """Return the share of input, weight and output on a rank, and on how many axes the output is partial.

    Every one of four ranks calls it: torch's DTensor finds the output's placement.
    """
    rows = []
    for name, (shape, x_places, weight_places) in SPECS.items():
        mesh = init_mesh("cpu", shape)
        x = distribute_tensor(torch.randn(SIDE, SIDE), mesh, x_places)
        weight = distribute_tensor(torch.randn(SIDE, SIDE), mesh, weight_places)
        y: Any = x @ weight  # a DTensor
        for tensor, sharded in (("input", x), ("weight", weight), ("output", y)):
            share = sharded.to_local().numel() / sharded.numel()
            rows.append(value_row("share", share, parallelism=name, tensor=tensor))
        num_partial = sum(isinstance(place, Partial) for place in y.placements)
        rows.append(value_row("is_partial", num_partial, parallelism=name, tensor="output"))
    return rows


def size_rows() -> list[dict[str, Any]]:
    """Return table 2 by its formulas, in the units that its numbers have and in powers of ten."""
    rows = []
    for model, work in GPTS.items():
        weights, flops = weight_elements(work.hidden), layer_flops(work)
        sizes = {
            "hidden": work.hidden,
            "heads": work.heads,
            "billion_parameters": weights / BINARY_MEGA / THOUSAND,
            "tflop": flops / BINARY_TERA,
            "billion_parameters_decimal": weights / 1e9,
            "tflop_decimal": flops / 1e12,
        }
        rows += [value_row(name, value, model=model) for name, value in sizes.items()]
    return rows


def sent_on_ranks(work: Workload, shape: tuple[int, int]) -> dict[int, float]:
    """Return by axis the bytes of the messages of a block's forward and backward pass; every rank calls it.

    An all-reduce counts once, the others half, and each with its whole tensor.
    """
    mesh = open_mesh(*shape)
    block = MeshBlock(BlockConfig(hidden_size=work.hidden, num_heads=work.heads, mlp_size=4 * work.hidden), mesh)
    x = torch.randn(work.batch, work.sequence, work.hidden // shape[1], requires_grad=True)
    block(x).sum().backward()
    sent_bytes = {}
    for axis, group in ((1, mesh.axis1), (2, mesh.axis2)):
        sent_bytes[axis] = 0.0
        for message in group.traffic:
            kind = NAMES[message.what]
            whole = group.size if kind is Kind.ALL_GATHER else 1  # the ledger has a rank's part
            sent_bytes[axis] += kind.rounds / 2 * whole * message.message_bytes
    return sent_bytes


def byte_rows(*, work: Workload, on_ranks: Mapping[tuple[int, int], Mapping[int, float]]) -> list[dict[str, Any]]:
    """Return a layer's bytes over those of equation 2, by mesh and axis: exact ones, and of its all-reduces alone.

    `on_ranks` has `sent_on_ranks` of each mesh. `norms_over_equation_2` is what the norms add, which the paper leaves
    out.
    """
    rows, value = [], work.num_values * work.value_bytes
    for (d1, d2), sent in on_ranks.items():
        for axis, size, equation2 in ((1, d1, 4 * value / d2), (2, d2, 14 * value / d1)):
            if size == 1:
                continue
            keys: dict[str, Any] = {"mesh": f"({d1}, {d2})", "axis": axis}
            on_axis = [message for message in messages(work, d1, d2) if message.axis == axis]
            exact = sum(message.kind.rounds / 2 * message.num_bytes for message in on_axis)
            norms = sum(
                message.kind.rounds / 2 * message.num_bytes for message in on_axis if message.what.startswith("norm")
            )
            reduced = sum(message.num_bytes for message in on_axis if message.kind is Kind.ALL_REDUCE)
            rows.append(value_row("exact_over_equation_2", (exact - norms) / equation2, **keys))
            rows.append(value_row("all_reduces_over_equation_2", reduced / equation2, **keys))
            rows.append(value_row("norms_over_equation_2", norms / equation2, **keys))
            rows.append(value_row("ranks_over_exact", sent[axis] / exact, **keys))
    return rows


def saving_rows() -> list[dict[str, Any]]:
    """Return what equation 2 saves on IC1 with ATP-4 over ATP-1, and how its seconds fit those of table 3.

    By each reading of the calibrated bandwidths, `equation_2_over_table_3` is equation 2's time and a layer's time on
    IC3, together, over the time in table 3. `gain` is Megatron-LM's time over that of table 3, if the rest is the same.
    """
    mesh_s = {strategy.name: strategy.total_s for strategy in search(PRESETS["IC1"], 8, GPTS["M2"])}
    rows = [value_row("saving", 1 - mesh_s["ATP-4"] / mesh_s["ATP-1"])]
    for model, work in list(GPTS.items())[1:]:  # table 3 has no M1
        mesh_s = {strategy.name: strategy.total_s for strategy in search(PRESETS["IC1"], 8, work)}
        layer_s, computation_s = published_s("IC1", model), published_s("IC3", model)
        scale = (layer_s - computation_s) / mesh_s["ATP-4"]
        rows.append(value_row("equation_2_s", mesh_s["ATP-4"], "s", model=model))
        rows.append(value_row("table_3_s", layer_s, "s", model=model))
        rows.append(value_row("table_3_on_ic3_s", computation_s, "s", model=model))
        for reading, times in (("as printed", 1.0), ("four bytes a value", 2.0), ("scaled to table 3", scale)):
            keys = {"model": model, "reading": reading}
            own_s, megatron_s = times * mesh_s["ATP-4"], times * mesh_s["ATP-1"]
            rows.append(value_row("equation_2_over_table_3", (own_s + computation_s) / layer_s, **keys))
            rows.append(value_row("gain", 1 + (megatron_s - own_s) / layer_s, **keys))
    return rows


def _delta(d1: int, d2: int) -> float:
    """Return section 5.4's time of a mesh on IC5 and IC6, in units of 2 L b s h / GroupBW."""
    return (14 * d2 + 4 * d1 - 18) / (d1 * d2)


def _time(rates: Bandwidths, d1: int, d2: int) -> float:
    """Return equation 2 in units of 2 L b s h and the bytes of a value."""
    return 7 / (d1 * rates.b2_bytes_per_s) + 2 / (d2 * rates.b1_bytes_per_s)


def scaling_rows(*, num_devices: Sequence[int]) -> list[dict[str, Any]]:
    """Return figure 12 in units of 2 L b s h / GroupBW, and the same with the division by d2 that section 5.4 drops."""
    rows = []
    for num in num_devices:
        by_mesh = {d2: _delta(d1, d2) for d1, d2 in meshes(num)}
        for d2 in (1, 2, 4):
            if d2 < num:
                rows.append(value_row("time", by_mesh[d2], mesh=f"ATP-{d2}", devices=num))
        rows.append(value_row("time", min(by_mesh.values()), mesh="ATP-OPT", devices=num))
        divided = [_time(flat("flat", num, 1.0, "any").algorithm(*mesh), *mesh) for mesh in meshes(num)]
        rows.append(value_row("time_by_equation_3", min(divided), mesh="ATP-OPT", devices=num))
        rows.append(value_row("time_by_equation_3", divided[0], mesh="ATP-1", devices=num))
    return rows


NAMED = (
    *(("IC1", 8, 4), ("IC2", 8, 1), ("IC3", 8, 1), ("IC4", 4, 1), ("IC4", 8, 1), ("IC4", 16, 2)),
    *(("IC5", 4, 1), ("IC5", 8, 2), ("IC5", 16, 2), ("IC6", 16, 2)),
)
"""Interconnect, devices, and the i of the ATP-i that section 5.3 or figure 12 names as the best."""


def winner_rows() -> list[dict[str, Any]]:
    """Return by how much the mesh that the text names is behind the best, by equations 2 to 4 and by section 5.4.

    `best_mesh` is the i of the best ATP-i. Section 5.4's formula is for one layer and for the torus; section 5.3 leaves
    equation 4 out for IC2; figure 7a has four nodes of four devices where section 5.3 has one layer.
    `shared_bytes_per_s` is equation 3 on figure 7a, and `google_over_best` is the time of the mesh (q / 2, 2 q) of
    section 3.2.1 on a torus of q x q devices over the best one's, and of the same mesh with its axes exchanged.
    """
    rows = []
    for ic, num, named in NAMED:
        matrix = matrix_of(ic, num)  # section 5.3 has IC4 with 4 devices, figure 12 IC5 with any number
        ways = {"equations 2 to 4": {strategy.d2: strategy.total_s for strategy in search(matrix, num, GPTS["M3"])}}
        if ic in ("IC3", "IC4", "IC5", "IC6"):
            ways["section 5.4"] = {d2: _delta(d1, d2) for d1, d2 in meshes(num)}
        if ic == "IC2":
            ways["section 5.3"] = {d2: _time(matrix.shared(d1, d2), d1, d2) for d1, d2 in meshes(num)}
        if num == FIGURE_7A.num_devices and ic == "IC4":
            ways["figure 7a"] = {strategy.d2: strategy.total_s for strategy in search(FIGURE_7A, num, GPTS["M3"])}
        for way, by_mesh in ways.items():
            keys: dict[str, Any] = {"interconnect": ic, "devices": num, "way": way}
            best = min(by_mesh, key=by_mesh.__getitem__)
            rows.append(value_row("behind", by_mesh[named] / by_mesh[best] - 1, **keys))
            rows.append(value_row("best_mesh", best, **keys))
            if ic == "IC6":
                for mesh, d2 in (("(q / 2, 2 q)", 8), ("(2 q, q / 2)", 2)):
                    rows.append(value_row("google_over_best", by_mesh[d2] / by_mesh[best], mesh=mesh, **keys))
            if way == "figure 7a":
                rows.append(value_row("over_atp_1", by_mesh[1] / by_mesh[named], mesh=f"ATP-{named}", **keys))
    shared = FIGURE_7A.shared(8, 2)
    for axis, rate in ((1, shared.b1_bytes_per_s), (2, shared.b2_bytes_per_s)):
        rows.append(value_row("shared_bytes_per_s", rate, "B/s", mesh="(8, 2)", axis=axis))
    return rows


def memory_rows(*, models: Sequence[str], num_devices: int) -> list[dict[str, Any]]:
    """Return bytes of weights and of activations kept for the backward pass, of a layer on a device, by mesh."""
    rows = []
    for model in models:
        work = GPTS[model]
        for d1, d2 in meshes(num_devices):
            for cuts in (False, True):
                kept = activation_elements(work, d1, d2, sequence_parallel=cuts) * work.value_bytes
                mesh = f"ATP-{d2}" + (", sequence parallel" if cuts else "")
                rows.append(value_row("activation_bytes", kept, "B", model=model, mesh=mesh))
            weights = weight_elements(work.hidden, d1, d2) * work.value_bytes
            rows.append(value_row("weight_bytes", weights, "B", model=model, mesh=f"ATP-{d2}"))
    return rows


def rival_rows(*, models: Sequence[str], num_devices: Sequence[int]) -> list[dict[str, Any]]:
    """Return the bytes a device sends for a layer, both passes: ATP's meshes, and 2-D or 2.5-D (`summa_elements`)."""
    rows = []
    for model in models:
        work = GPTS[model]
        for num in num_devices:
            keys: dict[str, Any] = {"model": model, "devices": num}
            for d1, d2 in meshes(num):
                sizes = {1: d1, 2: d2}
                sent = sum(message.sent_bytes(sizes[message.axis]) for message in messages(work, d1, d2))
                rows.append(value_row("sent_bytes", sent, "B", scheme=f"ATP-{d2}", **keys))
            sent = work.value_bytes * sum(summa_elements(work, *SQUARES[num]).values())
            rows.append(value_row("sent_bytes", sent, "B", scheme="2D/2.5D", **keys))
    return rows
