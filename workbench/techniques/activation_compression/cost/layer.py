"""Seconds of one tensor-parallel layer by the alpha-beta model.

Source: "Does compressing activations help model parallel training?", section 4.7 (FLOPs of a layer), table 4 (encoding
and decoding times).
Simplified: one layer, one micro-batch; encoding scales with the elements.
Left out: launching of kernels, pipelines; see `iteration`.

Units: bytes, seconds, elements.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from workbench.cluster import Backend, Collective, Link, algorithm_of, collective_time_s

from ..method import Family, method
from .cells import PublishedCell, published_ms
from .machine import FittedMachine
from .messages import ALL_REDUCES_PER_LAYER, SUMMABLE, Setting

__all__ = ["LayerTime", "forward_flops", "head_times", "layer_compute_s", "layer_time"]

FORWARD_FLOPS_PER_ROW = 24  # of 96·B·s·h²: forward once, backward twice, once more where activations are recomputed
ATTENTION_FLOPS_PER_PAIR = 4  # of 16·B·s²·h, likewise
HEAD_FLOPS_PER_LOGIT = 2  # of h: a product and a sum
BACKWARD_OVER_FORWARD = 2  # gradients of weights and of inputs
TABLE_4 = {"tp": 2, "pp": 2}  # where table 4 was measured, on the local machine
TABLE_4_LAYERS = 24  # as many encoded activations, two for each of 12 layers


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerTime:
    """Seconds of one tensor-parallel layer, forward and backward, one after the other.

    Attributes:
        forward_s: matrix products and attention, forward.
        encode_s: encoding of both activations.
        transfer_s: both forward reductions.
        decode_s: decoding of what arrived.
        backward_s: matrix products and attention, backward.
        backward_transfer_s: both backward reductions, which stay full size.
    """

    forward_s: float
    encode_s: float
    transfer_s: float
    decode_s: float
    backward_s: float
    backward_transfer_s: float

    @property
    def total_s(self) -> float:
        """Seconds of the whole layer."""
        return sum(getattr(self, field.name) for field in fields(self))


def layer_time(setting: Setting, link: Link, *, flops_per_s: float | None = None) -> LayerTime:
    """Predict one compressed layer; nothing overlaps, since each reduction waits for what it sums.

    Args:
        setting: sizes and method; `layers`, `pp` and micro-batches do not matter here.
        link: between tensor-parallel ranks.
        flops_per_s: of one device, reached; None takes what the V100s of table 4 reached without compression.

    Raises:
        ValueError: for a method whose encoding time table 4 does not give, a rate that is not positive, or a code that
            is fused with the layer, which only `iteration_time` knows.

    Source: section 4.7; encoding and decoding scale with the elements, decoding of gathered messages with the ranks.
    """
    flops_per_s = _table_4_flops_per_s() if flops_per_s is None else flops_per_s
    if not flops_per_s > 0:
        raise ValueError(f"flops_per_s={flops_per_s}: must be positive")
    if setting.is_fused:
        raise ValueError("fused=True: layer_time encodes full-size partials; iteration_time knows fused codes")
    encode_s, decode_s = _encode_and_decode_s(setting)
    forward_s = forward_flops(setting) / setting.tp / flops_per_s
    family = method(setting.method).family
    carried_by = Collective.ALL_REDUCE if family in SUMMABLE else Collective.ALL_GATHER
    return LayerTime(
        forward_s=forward_s,
        encode_s=encode_s,
        transfer_s=ALL_REDUCES_PER_LAYER * _transfer_s(carried_by, setting, setting.encoded_bytes(), link),
        decode_s=decode_s,
        backward_s=BACKWARD_OVER_FORWARD * forward_s,
        backward_transfer_s=ALL_REDUCES_PER_LAYER
        * _transfer_s(Collective.ALL_REDUCE, setting, setting.activation_bytes(), link),
    )


def _transfer_s(collective: Collective, setting: Setting, message_bytes: int, link: Link) -> float:
    return collective_time_s(collective, algorithm_of(Backend.NCCL, collective), setting.tp, message_bytes, link)


def forward_flops(setting: Setting) -> float:
    """Return the FLOPs of one layer's forward pass, over all tensor-parallel ranks: 24·B·s·h² + 4·B·s²·h."""
    rows, h = setting.micro_batch * setting.sequence, setting.hidden
    return FORWARD_FLOPS_PER_ROW * rows * h * h + ATTENTION_FLOPS_PER_PAIR * rows * setting.sequence * h


def layer_compute_s(setting: Setting, machine: FittedMachine) -> float:
    """Return the seconds that one rank computes one layer's forward pass, launching apart."""
    elements = setting.micro_batch * setting.sequence * setting.hidden
    shared_s = forward_flops(setting) / machine.flops_per_s + setting.scores * machine.attention_s_per_score
    return shared_s / setting.tp + elements * machine.replicated_s_per_element


def head_times(setting: Setting, machine: FittedMachine) -> tuple[float, float]:
    """Return the seconds of one micro-batch's language-model head and loss on a rank, forward and backward."""
    if not setting.logits:
        return 0.0, 0.0
    logits = setting.logits / setting.tp
    product_s = HEAD_FLOPS_PER_LOGIT * setting.hidden * logits / machine.flops_per_s
    forward_s = machine.head_s + product_s + logits * machine.head_forward_s_per_logit
    return forward_s, machine.backward_over_forward * product_s + logits * machine.head_backward_s_per_logit


def _table_4_ms(name: str, column: str) -> float:
    cell = PublishedCell("table-4", f"{column}_ms", name, **TABLE_4)
    return published_ms([cell])[cell]


def _table_4_flops_per_s() -> float:
    """Return what one V100 reached in table 4's uncompressed forward passes, communication apart."""
    computed_s = 1e-3 * (_table_4_ms("w/o", "forward") - _table_4_ms("w/o", "tensor"))
    return TABLE_4_LAYERS * forward_flops(Setting()) / TABLE_4["tp"] / computed_s


def _encode_and_decode_s(setting: Setting) -> tuple[float, float]:
    """Scale table 4's columns Tensor Enc. and Tensor Dec., which have no row for Q3, to the layer's elements."""
    family = method(setting.method).family
    if family in (Family.NONE, Family.HALF):
        return 0.0, 0.0
    scale = setting.activation_bytes() / Setting().activation_bytes() * Setting().value_bytes / setting.value_bytes
    encode_s, decode_s = (
        1e-3 * scale * ALL_REDUCES_PER_LAYER / TABLE_4_LAYERS * _table_4_ms(setting.method, column)
        for column in ("encode", "decode")
    )
    return encode_s, decode_s * (1 if family is Family.AUTOENCODER else setting.tp / TABLE_4["tp"])
