"""Rows of the counted items: bytes by encoding, by the plan of an iteration, and by what sockets really sent.

Sockets are counted for a small model of the same structure; the plan is then evaluated at the paper's sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch

from workbench.cluster import Collective, gloo_header_bytes
from workbench.launch import Ranks
from workbench.study.rows import value_row

from .cost import PlannedMessages, Purpose, Setting, planned_messages
from .method import Family, method
from .training import sent_bytes

__all__ = ["FINE_TUNING", "count_messages", "count_study", "header_bytes", "rehearse_iterations"]

Rows = list[dict]
FINE_TUNING = ((1, 4), (2, 2), (4, 1))
"""(TP, PP) of tables 2 to 4, on 4 GPUs."""


def count_messages(names: Sequence[str], *, micro_batch: int, sequence: int, hidden: int, seed: int = 0) -> Rows:
    """Encode one random fp16 activation by every method and count what would cross the wire.

    Returns:
        Rows: encoded_bytes (counted on the payload), defined_bytes (the paper's definition), bits_per_element,
        element_ratio (elements over elements sent), and wire_over_code (bytes that all ranks send, over those of the
        code said to cost the same) for 2 and 4 ranks.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(micro_batch, sequence, hidden, generator=generator).to(torch.float16)
    rows = [row for name in names for row in _message_rows(name, x)]
    sizes = {"micro_batch": micro_batch, "sequence": sequence, "hidden": hidden}
    sizes |= {"pp": 1, "layers": 1, "compressed_layers": 1}
    return rows + [row for name in names for tp in (2, 4) for row in _wire_rows(name, tp, sizes)]


def _message_rows(name: str, x: torch.Tensor) -> Rows:
    chosen = method(name)
    rows, hidden = x.shape[:-1].numel(), x.shape[-1]
    payload = chosen.codec(hidden).to(x.dtype).encode(x)
    counted = [
        ("encoded_bytes", payload.num_bytes, "byte"),
        ("defined_bytes", chosen.message_bytes(rows, hidden), "byte"),
        ("bits_per_element", 8 * payload.num_bytes / x.numel(), "bit"),
    ]
    if chosen.family is not Family.QUANTIZATION:
        counted.append(("element_ratio", x.numel() / payload.tensors[0].numel(), "1"))
    return [value_row(quantity, value, unit, method=name) for quantity, value, unit in counted]


def _wire_rows(name: str, tp: int, sizes: dict[str, int]) -> Rows:
    if not method(name).same_bytes:
        return []
    code = "A1" if method(name).paper_code_size == method("A1").paper_code_size else "A2"
    sent = [_total(Setting(method=which, tp=tp, **sizes), {Purpose.TENSOR_FORWARD}) for which in (name, code)]
    return [value_row("wire_over_code", sent[0] / sent[1], method=name, tp=tp)]


def count_study(names: Sequence[str], meshes: Sequence[Sequence[int]], *, rehearse: bool, **sizes: int) -> Rows:
    """Count the bytes of one training iteration for every method and (TP, PP).

    Returns:
        Rows with the keys method, tp, pp: what `_iteration_rows`, `_share_rows` and `rehearse_iterations` say.
    """
    settings = [Setting(method=name, tp=tp, pp=pp, **sizes) for tp, pp in meshes for name in names]
    rows = [row for setting in settings for row in (*_iteration_rows(setting), *_share_rows(setting))]
    return rows + (rehearse_iterations(names, FINE_TUNING) if rehearse else [])


def rehearse_iterations(names: Sequence[str], meshes: Sequence[tuple[int, int]], **sizes: int) -> Rows:
    """Train a small model for one step on real ranks and compare what sockets sent with the plan.

    Returns:
        Rows, over all ranks: rehearsal_sent_bytes (by the kernel's TCP counters), rehearsal_planned_bytes (by
        `planned_messages`), rehearsal_header_bytes (gloo's) and rehearsal_unexplained_bytes (what remains).
    """
    settings = [Setting(method=name, tp=tp, pp=pp, **{**REHEARSAL, **sizes}) for tp, pp in meshes for name in names]
    with Ranks(math.prod(meshes[0]), preload=("workbench.models.bert", __name__)) as ranks:
        by_rank = ranks.run(sent_bytes, settings)
    rows = []
    for setting, sent in zip(settings, map(sum, zip(*by_rank, strict=True)), strict=True):
        planned, headers = _total(setting, set(Purpose)), header_bytes(setting)
        found = {"sent": sent, "planned": planned, "header": headers, "unexplained": sent - planned - headers}
        rows += [_row(f"rehearsal_{what}_bytes", setting, count, "byte") for what, count in found.items()]
    return rows


def header_bytes(setting: Setting) -> int:
    """Return the bytes that gloo adds to the planned messages of one iteration, over all ranks.

    Source: `workbench.cluster.gloo_header_bytes`; a payload of several tensors is as many messages to gloo.
    """
    return sum(
        planned.count
        * (planned.senders if planned.collective is Collective.SEND else 1)
        * sum(gloo_header_bytes(planned.collective, planned.num_ranks, num_bytes, element_bytes=element_bytes))
        for planned in planned_messages(setting)
        for num_bytes, element_bytes in _tensors(planned, setting)
    )


def _tensors(planned: PlannedMessages, setting: Setting) -> list[tuple[int, int]]:
    """Return (bytes, bytes of an element) of each tensor that one message consists of."""
    family = method(setting.method).family if planned.compressed else Family.NONE
    forward = planned.purpose is not Purpose.BOUNDARY_BACKWARD
    if family in (Family.TOP_K, Family.RANDOM_K) and forward:
        num_kept = planned.message_bytes // (setting.value_bytes + setting.index_bytes)
        return [(num_kept * size, size) for size in (setting.value_bytes, setting.index_bytes)]
    whole = [(planned.message_bytes, {Family.QUANTIZATION: 1, Family.HALF: 2}.get(family, setting.value_bytes))]
    quantised = method(setting.method).family is Family.QUANTIZATION and setting.is_compressed(planned.layer)
    if quantised and planned.collective is Collective.SEND:
        whole.append((0, TOKEN_ELEMENT_BYTES))  # see `workbench.parallel.boundary`: an empty tensor ties the graphs
    return whole


TOKEN_ELEMENT_BYTES = 4  # the token is fp32, and empty

REHEARSAL = MappingProxyType(
    {"micro_batch": 4, "sequence": 16, "hidden": 64, "layers": 8, "compressed_layers": 4, "value_bytes": 2}
)
"""A model of BERT's structure in the paper's fp16, small enough for two cores: bytes are compared to the byte."""

FORWARD = frozenset({Purpose.TENSOR_FORWARD, Purpose.BOUNDARY_FORWARD})
BACKWARD = frozenset(Purpose) - FORWARD


def _iteration_rows(setting: Setting) -> Rows:
    """Bytes on the wire by purpose, forward, backward and in all, and of the rank that sends most."""
    totals = [
        ("total_bytes", frozenset(Purpose)),
        ("forward_bytes", FORWARD),
        ("backward_bytes", BACKWARD),
        *((f"{purpose.value.replace(' ', '_')}_bytes", {purpose}) for purpose in Purpose),
    ]
    rows = [_row(quantity, setting, _total(setting, purposes), "byte") for quantity, purposes in totals]
    return [*rows, _row("rank_bytes", setting, _busiest_rank_bytes(setting), "byte")]


def _row(quantity: str, setting: Setting, value: float, unit: str, **keys: int) -> dict:
    return value_row(quantity, value, unit, method=setting.method, tp=setting.tp, pp=setting.pp, **keys)


def _total(setting: Setting, purposes: Iterable[Purpose]) -> int:
    return sum(planned.wire_bytes for planned in planned_messages(setting) if planned.purpose in purposes)


def _busiest_rank_bytes(setting: Setting) -> int:
    by_stage = [0] * setting.pp
    for planned in planned_messages(setting):
        by_stage[planned.stage] += planned.rank_bytes
    return max(by_stage)


def _share_rows(setting: Setting) -> Rows:
    """Bytes over those without compression: forward tensor bytes, each boundary, each boundary's gradient.

    Source: the columns Tensor Comm. of tables 4 and 7 are the times of the first, table 9 those of the second.
    """
    plain = replace(setting, method="w/o")
    rows = []
    if setting.tp > 1:
        share = _total(setting, {Purpose.TENSOR_FORWARD}) / _total(plain, {Purpose.TENSOR_FORWARD})
        rows.append(_row("tensor_share", setting, share, "1"))
    both = {Purpose.BOUNDARY_FORWARD, Purpose.BOUNDARY_BACKWARD}
    for quantity, purposes in (("boundary_share", both), ("boundary_gradient_share", {Purpose.BOUNDARY_BACKWARD})):
        pairs = zip(_boundaries(setting, purposes), _boundaries(plain, purposes), strict=True)
        rows += [
            _row(quantity, setting, ours / theirs, "1", boundary=number) for number, (ours, theirs) in enumerate(pairs)
        ]
    return rows


def _boundaries(setting: Setting, purposes: set[Purpose]) -> list[int]:
    totals = dict.fromkeys(range(setting.layers_per_stage, setting.layers, setting.layers_per_stage), 0)
    for planned in planned_messages(setting):
        if planned.purpose in purposes:
            totals[planned.layer] += planned.wire_bytes
    return list(totals.values())
