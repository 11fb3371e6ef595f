"""Seconds of one tensor-parallel layer by the alpha-beta model.

Source: "Does compressing activations help model parallel training?", section 4.7 (FLOPs of a layer), table 4 (encoding
and decoding times).
Simplified: one layer, one micro-batch; encoding scales with the elements.
Left out: launching of kernels, pipelines; see `iteration`.

Units: bytes, seconds, elements.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from types import MappingProxyType

from workbench.cluster import Backend, Collective, Link, algorithm_of, collective_time_s

from ..method import Family, method
from .messages import ALL_REDUCES_PER_LAYER, SUMMABLE, Setting

__all__ = ["LayerTime", "forward_flops", "layer_time"]

FORWARD_FLOPS_PER_ROW = 24  # of 96·B·s·h²: forward once, backward twice, and once more where activations are recomputed
ATTENTION_FLOPS_PER_PAIR = 4  # of 16·B·s²·h, likewise
BACKWARD_OVER_FORWARD = 2  # gradients of weights and of inputs
V100_FLOPS_PER_S = 42.6e12  # table 4: 24 layers, 5.4e12 FLOPs a GPU at TP 2, in 276.34 − 150.72 ms
TABLE_4_ELEMENTS = 24 * 32 * 512 * 1024  # table 4: 24 encoded activations an iteration
TABLE_4_RANKS = 2

ENCODE_AND_DECODE_MS = MappingProxyType(
    {
        "A1": (2.16, 3.12), "A2": (3.12, 4.56), "T1": (70.08, 13.68), "T2": (70.32, 16.80), "T3": (72.24, 27.36),
        "T4": (74.88, 45.36), "R1": (2040.24, 15.84), "R2": (4244.64, 19.44), "R3": (11499.12, 29.76),
        "R4": (44038.56, 47.52), "Q1": (20.64, 32.16), "Q2": (19.92, 30.24),
    }
)  # fmt: skip
"""Milliseconds of table 4's columns Tensor Enc. and Tensor Dec. on V100s; it has no row for Q3."""


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


def layer_time(setting: Setting, link: Link, *, flops_per_s: float = V100_FLOPS_PER_S) -> LayerTime:
    """Predict one compressed layer; nothing overlaps, since each reduction waits for what it sums.

    Args:
        setting: sizes and method; `layers`, `pp` and micro-batches do not matter here.
        link: between tensor-parallel ranks.
        flops_per_s: of one device, reached.

    Raises:
        ValueError: for a method whose encoding time table 4 does not give, or a rate that is not positive.

    Source: section 4.7; encoding and decoding scale with the elements, decoding of gathered messages with the ranks.
    """
    if not flops_per_s > 0:
        raise ValueError(f"flops_per_s={flops_per_s}: must be positive")
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


def _encode_and_decode_s(setting: Setting) -> tuple[float, float]:
    family = method(setting.method).family
    if family in (Family.NONE, Family.HALF):
        return 0.0, 0.0
    if setting.method not in ENCODE_AND_DECODE_MS:
        raise ValueError(f"method={setting.method!r}: table 4 gives no encoding time for it")
    elements = ALL_REDUCES_PER_LAYER * setting.micro_batch * setting.sequence * setting.hidden
    encode_s, decode_s = (1e-3 * ms * elements / TABLE_4_ELEMENTS for ms in ENCODE_AND_DECODE_MS[setting.method])
    return encode_s, decode_s * (1 if family is Family.AUTOENCODER else setting.tp / TABLE_4_RANKS)
