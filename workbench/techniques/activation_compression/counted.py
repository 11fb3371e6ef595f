"""Rows of the counted items: bytes by encoding, by the plan of an iteration, and by what sockets really sent.

Sockets are counted for a small model of the same structure; the plan is then evaluated at the paper's sizes.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import replace
from itertools import product
from types import MappingProxyType
from typing import Any

import torch

from workbench.cluster import Collective, gloo_header_bytes
from workbench.launch import Ranks
from workbench.rows import value_row

from .cost import PlannedMessages, Purpose, Setting, planned_messages
from .method import Family, method
from .training import sent_bytes

__all__ = ["FINE_TUNING", "REHEARSAL", "count_messages", "count_study", "header_bytes", "rehearse_iterations"]

Rows = list[dict[str, Any]]
FINE_TUNING = ((1, 4), (2, 2), (4, 1))
"""(TP, PP) of tables 2 to 4, on 4 GPUs."""

REHEARSAL = MappingProxyType(
    {"micro_batch": 4, "sequence": 16, "hidden": 64, "layers": 8, "compressed_layers": 4, "value_bytes": 2}
)
"""A model of BERT's structure in the paper's fp16, small enough for two cores: bytes are compared to the byte."""

FORWARD = frozenset({Purpose.TENSOR_FORWARD, Purpose.BOUNDARY_FORWARD})
TOKEN_ELEMENT_BYTES = 4  # see `workbench.parallel.boundary`: an empty fp32 tensor ties the graphs


def count_messages(names: Sequence[str], *, micro_batch: int, sequence: int, hidden: int, seed: int = 0) -> Rows:
    """Encode one random fp16 activation by every method and count what would cross the wire.

    Rows: encoded_bytes (counted on the payload), defined_bytes (the paper's definition), bits_per_element,
    element_ratio (elements over elements sent), and wire_over_code (bytes that all ranks send, over those of the code
    said to cost the same) for 2 and 4 ranks.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(micro_batch, sequence, hidden, generator=generator).to(torch.float16)
    shape: dict[str, Any] = {"micro_batch": micro_batch, "sequence": sequence, "hidden": hidden}
    rows, wire = [], []
    for name in names:
        chosen = method(name)
        payload = chosen.codec(hidden).to(x.dtype).encode(x)
        defined = chosen.message_bytes(micro_batch * sequence, hidden)
        rows.append(value_row("encoded_bytes", payload.num_bytes, "byte", method=name))
        rows.append(value_row("defined_bytes", defined, "byte", method=name))
        rows.append(value_row("bits_per_element", 8 * payload.num_bytes / x.numel(), "bit", method=name))
        if chosen.family is not Family.QUANTIZATION:
            rows.append(value_row("element_ratio", x.numel() / payload.tensors[0].numel(), method=name))
        if not chosen.same_bytes:
            continue
        code = "A1" if chosen.paper_code_size == method("A1").paper_code_size else "A2"
        for tp in (2, 4):
            layer = Setting(tp=tp, pp=1, layers=1, compressed_layers=1, **shape)
            sparse, summed = (_total(replace(layer, method=which), {Purpose.TENSOR_FORWARD}) for which in (name, code))
            wire.append(value_row("wire_over_code", sparse / summed, method=name, tp=tp))
    return rows + wire


def count_study(names: Sequence[str], meshes: Sequence[Sequence[int]], *, rehearse: bool, **sizes: Any) -> Rows:
    """Count the bytes of one training iteration for every method and (TP, PP).

    Rows with the keys method, tp, pp: bytes on the wire by purpose, forward, backward and in all, and of the rank that
    sends most; shares of the bytes without compression: forward tensor bytes, each boundary, each boundary's gradient
    (the columns Tensor Comm. of tables 4 and 7 are the times of the first, table 9 those of the second); and those of
    `rehearse_iterations`.
    """
    rows: Rows = []
    for (tp, pp), name in product(meshes, names):
        setting = Setting(method=name, tp=tp, pp=pp, **sizes)
        plain = replace(setting, method="w/o")
        keys: dict[str, Any] = {"method": name, "tp": tp, "pp": pp}
        totals = {"total": set(Purpose), "forward": FORWARD, "backward": set(Purpose) - FORWARD}
        totals |= {purpose.value.replace(" ", "_"): {purpose} for purpose in Purpose}
        for quantity, purposes in totals.items():
            rows.append(value_row(f"{quantity}_bytes", _total(setting, purposes), "byte", **keys))
        by_stage = [0] * pp
        for planned in planned_messages(setting):
            by_stage[planned.stage] += planned.rank_bytes
        rows.append(value_row("rank_bytes", max(by_stage), "byte", **keys))
        if tp > 1:
            share = _total(setting, {Purpose.TENSOR_FORWARD}) / _total(plain, {Purpose.TENSOR_FORWARD})
            rows.append(value_row("tensor_share", share, **keys))
        back = {Purpose.BOUNDARY_BACKWARD}
        both = {Purpose.BOUNDARY_FORWARD, *back}
        for quantity, purposes in (("boundary_share", both), ("boundary_gradient_share", back)):
            for boundary in range(pp - 1):
                layer = (boundary + 1) * setting.layers_per_stage
                share = _total(setting, purposes, layer) / _total(plain, purposes, layer)
                rows.append(value_row(quantity, share, **keys, boundary=boundary))
    return rows + (rehearse_iterations(names, FINE_TUNING) if rehearse else [])


def _total(setting: Setting, purposes: Container[Purpose], layer: int | None = None) -> int:
    """Add up the bytes on the wire for some purposes, of one layer or of all."""
    chosen = [planned for planned in planned_messages(setting) if planned.purpose in purposes]
    return sum(planned.wire_bytes for planned in chosen if layer in (None, planned.layer))


def rehearse_iterations(names: Sequence[str], meshes: Sequence[tuple[int, int]], **sizes: Any) -> Rows:
    """Train a small model for one step on real ranks and compare what sockets sent with the plan.

    Rows, over all ranks: rehearsal_sent_bytes (by the kernel's TCP counters), rehearsal_planned_bytes (by
    `planned_messages`), rehearsal_header_bytes (gloo's) and rehearsal_unexplained_bytes (what remains).
    """
    settings = [Setting(method=name, tp=tp, pp=pp, **{**REHEARSAL, **sizes}) for tp, pp in meshes for name in names]
    with Ranks(math.prod(meshes[0]), preload=("workbench.models.bert", __name__)) as ranks:
        by_rank = ranks.run(sent_bytes, settings)
    rows = []
    for setting, sent in zip(settings, map(sum, zip(*by_rank, strict=True)), strict=True):
        planned, headers = _total(setting, set(Purpose)), header_bytes(setting)
        counts = {"sent": sent, "planned": planned, "header": headers, "unexplained": sent - planned - headers}
        keys: dict[str, Any] = {"method": setting.method, "tp": setting.tp, "pp": setting.pp}
        rows += [value_row(f"rehearsal_{what}_bytes", count, "byte", **keys) for what, count in counts.items()]
    return rows


def header_bytes(setting: Setting) -> int:
    """Return the bytes that gloo adds to an iteration's messages, over all ranks; each tensor is a message."""
    return sum(
        planned.count
        * (planned.senders if planned.collective is Collective.SEND else 1)
        * sum(gloo_header_bytes(planned.collective, planned.num_ranks, num_bytes, element_bytes=element_bytes))
        for planned in planned_messages(setting)
        for num_bytes, element_bytes in _tensors(planned, setting)
    )


def _tensors(planned: PlannedMessages, setting: Setting) -> list[tuple[int, int]]:
    """Return (bytes, bytes of an element) of each tensor that one message consists of."""
    family = setting.family if planned.compressed else Family.NONE
    forward = planned.purpose is not Purpose.BOUNDARY_BACKWARD
    if family in (Family.TOP_K, Family.RANDOM_K) and forward:
        num_kept = planned.message_bytes // (setting.value_bytes + setting.index_bytes)
        return [(num_kept * size, size) for size in (setting.value_bytes, setting.index_bytes)]
    tensors = [(planned.message_bytes, {Family.QUANTIZATION: 1, Family.HALF: 2}.get(family, setting.value_bytes))]
    quantised = setting.family is Family.QUANTIZATION and setting.is_compressed(planned.layer)
    return tensors + [(0, TOKEN_ELEMENT_BYTES)] * (quantised and planned.collective is Collective.SEND)
