"""Counting the bytes of the study: by encoding, by the plan of an iteration, and by what sockets really sent.

Source: "Does compressing activations help model parallel training?", tables 1, 2, 4, 6, 7, 9 (the settings).
Simplified: the bytes that sockets send are counted for a small model of the same structure; the plan, which they are
compared with, is then evaluated at the paper's sizes.
Left out: seconds.

Every function returns rows (dicts of quantity, value, unit and keys) as `workbench.reproduction.record` takes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from .cost import Purpose, Setting, planned_messages
from .method import Family, method

__all__ = ["FINE_TUNING", "PRE_TRAINING", "count_iterations", "count_messages", "tensor_shares"]

FINE_TUNING = ((1, 4), (2, 2), (4, 1))
"""(TP, PP) of tables 2 to 4, on 4 GPUs."""
PRE_TRAINING = ((2, 8), (4, 4), (8, 2))
"""(TP, PP) of tables 6 and 7, on 16 GPUs."""


def count_messages(
    names: Sequence[str], *, micro_batch: int, sequence: int, hidden: int, seed: int = 0
) -> list[dict]:
    """Encode one random fp16 activation by every method and count what would cross the wire.

    Args:
        names: of methods.
        micro_batch: B, sequences.
        sequence: s, tokens.
        hidden: h, elements.
        seed: of the activation.

    Returns:
        Rows: encoded_bytes (counted on the payload), defined_bytes (the paper's definition), bits_per_element,
        element_ratio (elements over elements sent), and wire_over_code (bytes that all ranks send, over those of the
        code said to cost the same) for 2 and 4 ranks.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(micro_batch, sequence, hidden, generator=generator).to(torch.float16)
    rows = [row for name in names for row in _message_rows(name, x)]
    sizes = dict(micro_batch=micro_batch, sequence=sequence, hidden=hidden, pp=1, layers=1, compressed_layers=1)
    return rows + [row for name in names for tp in (2, 4) for row in _wire_rows(name, tp, sizes)]


def _message_rows(name: str, x: torch.Tensor) -> list[dict]:
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
    return [{"quantity": quantity, "method": name, "value": value, "unit": unit} for quantity, value, unit in counted]


def _wire_rows(name: str, tp: int, sizes: dict[str, int]) -> list[dict]:
    if not method(name).same_bytes:
        return []
    code = "A1" if method(name).paper_code_size == method("A1").paper_code_size else "A2"
    sent = [_total(Setting(method=which, tp=tp, **sizes), {Purpose.TENSOR_FORWARD}) for which in (name, code)]
    return [{"quantity": "wire_over_code", "method": name, "tp": tp, "value": sent[0] / sent[1], "unit": "1"}]


def count_iterations(names: Sequence[str], meshes: Iterable[tuple[int, int]], **sizes: int) -> list[dict]:
    """Count the bytes of one training iteration for every method and (TP, PP).

    Args:
        names: of methods.
        meshes: (TP, PP) pairs.
        sizes: further fields of Setting.

    Returns:
        Rows, a purpose each: wire_bytes (all ranks together), rank_bytes (the rank that sends most) and, for
        purposes taken together, forward_bytes, backward_bytes and total_bytes on the wire.
    """
    return [row for tp, pp in meshes for name in names for row in _iteration_rows(Setting(method=name, tp=tp, pp=pp, **sizes))]


FORWARD = frozenset({Purpose.TENSOR_FORWARD, Purpose.BOUNDARY_FORWARD})
BACKWARD = frozenset(Purpose) - FORWARD


def _iteration_rows(setting: Setting) -> list[dict]:
    keys = {"method": setting.method, "tp": setting.tp, "pp": setting.pp}
    rows = []
    for quantity, purposes in (
        ("total_bytes", frozenset(Purpose)),
        ("forward_bytes", FORWARD),
        ("backward_bytes", BACKWARD),
        *((f"{purpose.value.replace(' ', '_')}_bytes", {purpose}) for purpose in Purpose),
    ):
        rows.append({"quantity": quantity, **keys, "value": _total(setting, purposes), "unit": "byte"})
    rows.append({"quantity": "rank_bytes", **keys, "value": _busiest_rank_bytes(setting), "unit": "byte"})
    return rows


def _total(setting: Setting, purposes: Iterable[Purpose]) -> int:
    return sum(planned.wire_bytes for planned in planned_messages(setting) if planned.purpose in purposes)


def _busiest_rank_bytes(setting: Setting) -> int:
    by_stage = [0] * setting.pp
    for planned in planned_messages(setting):
        by_stage[planned.stage] += planned.rank_bytes
    return max(by_stage)


def tensor_shares(names: Sequence[str], *, tp: int, pp: int, **sizes: int) -> list[dict]:
    """Compare forward bytes with the uncompressed iteration, purpose by purpose.

    Args:
        names: of methods.
        tp: tensor-parallel ranks.
        pp: stages.
        sizes: further fields of Setting.

    Returns:
        Rows: tensor_share (forward tensor bytes on the wire over those without compression), and boundary_share for
        every boundary (both directions).

    Source: the "Tensor Comm." columns of tables 4 and 7 are the times of these bytes; table 9 those of a boundary.
    """
    plain = Setting(method="w/o", tp=tp, pp=pp, **sizes)
    rows = []
    for name in names:
        setting = Setting(method=name, tp=tp, pp=pp, **sizes)
        share = _total(setting, {Purpose.TENSOR_FORWARD}) / _total(plain, {Purpose.TENSOR_FORWARD})
        keys = {"method": name, "tp": tp, "pp": pp}
        rows.append({"quantity": "tensor_share", **keys, "value": share, "unit": "1"})
        for boundary, (ours, theirs) in enumerate(zip(_boundaries(setting), _boundaries(plain), strict=True)):
            rows.append({"quantity": "boundary_share", **keys, "boundary": boundary, "value": ours / theirs, "unit": "1"})
    return rows


def _boundaries(setting: Setting) -> list[int]:
    totals = dict.fromkeys(range(setting.layers_per_stage, setting.layers, setting.layers_per_stage), 0)
    for planned in planned_messages(setting):
        if planned.purpose in (Purpose.BOUNDARY_FORWARD, Purpose.BOUNDARY_BACKWARD):
            totals[planned.layer] += planned.wire_bytes
    return list(totals.values())
