"""Bytes and seconds of compressed activations in tensor- and pipeline-parallel training.

Source: "Does compressing activations help model parallel training?", table 1 (methods), sections 3.2 and 3.3 (what is
compressed and which collective carries it), section 4.1 (settings), section 4.7 (FLOPs of a layer), table 4 (encoding
and decoding times).
Simplified: embedding, head and loss are left out, as in the paper's layer model; every tensor-parallel rank sends the
pipeline boundary once. Seconds are those of one tensor-parallel layer by the alpha-beta model.
Left out: whole iterations with waiting.

Units: bytes, seconds, elements. Legend: B micro-batch, s sequence, h hidden, c code size, k elements kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import Enum
from types import MappingProxyType

from workbench.cluster import Backend, Collective, Link, algorithm_of, collective_bytes, collective_time_s

from .method import Family, Method, code_size, method

__all__ = ["LayerTime", "PlannedMessages", "Purpose", "Setting", "layer_time", "planned_messages"]

ALL_REDUCES_PER_LAYER = 2  # forward, and as many backward: attention and MLP (section 2.1)
SUMMABLE = frozenset({Family.NONE, Family.HALF, Family.AUTOENCODER})  # methods whose messages an all-reduce can add


class Purpose(Enum):
    """Why a message is sent."""

    TENSOR_FORWARD = "tensor forward"
    TENSOR_BACKWARD = "tensor backward"
    ENCODER_GRADIENT = "encoder gradient"
    BOUNDARY_FORWARD = "boundary forward"
    BOUNDARY_BACKWARD = "boundary backward"


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One training iteration of the study; the defaults are those of tables 2 to 4.

    Attributes:
        method: a name of table 1, or "w/o".
        tp: tensor-parallel ranks.
        pp: pipeline stages.
        micro_batch: B, sequences.
        sequence: s, tokens.
        nvlink: whether the GPUs of a host are joined by NVLink.
        num_micro_batches: micro-batches an iteration.
        num_nodes: hosts.
        hidden: h, elements.
        layers: transformer layers.
        compressed_layers: of them, counted from the last.
        value_bytes: of an uncompressed value; 2 is fp16.
        index_bytes: of an index of a sparse message; 8 is int64.
    """

    method: str = "w/o"
    tp: int = 2
    pp: int = 2
    micro_batch: int = 32
    sequence: int = 512
    nvlink: bool = True
    num_micro_batches: int = 1
    num_nodes: int = 1
    hidden: int = 1024
    layers: int = 24
    compressed_layers: int = 12
    value_bytes: int = 2
    index_bytes: int = 8

    def __post_init__(self) -> None:
        method(self.method)
        for field in ("tp", "pp", "micro_batch", "sequence", "num_micro_batches", "num_nodes", "hidden", "layers"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}={getattr(self, field)}: at least 1")
        if self.layers % self.pp:
            raise ValueError(f"pp={self.pp}: must divide layers={self.layers}")
        if not 0 <= self.compressed_layers <= self.layers:
            raise ValueError(f"compressed_layers={self.compressed_layers}: between 0 and layers={self.layers}")

    @property
    def layers_per_stage(self) -> int:
        """Layers of one pipeline stage."""
        return self.layers // self.pp

    def is_compressed(self, layer: int) -> bool:
        """Tell whether the reductions of a layer, and the boundary in front of it, travel encoded."""
        return self.method != "w/o" and layer >= self.layers - self.compressed_layers

    def activation_bytes(self) -> int:
        """Return the bytes of one uncompressed activation, B·s·h·v."""
        return self.micro_batch * self.sequence * self.hidden * self.value_bytes

    def encoded_bytes(self) -> int:
        """Return the bytes of one encoded activation."""
        return method(self.method).message_bytes(
            self.micro_batch * self.sequence, self.hidden, value_bytes=self.value_bytes, index_bytes=self.index_bytes
        )

    def boundary_gradient_bytes(self) -> int:
        """Return the bytes of the gradient that answers an encoded boundary message.

        A code's gradient has the code's size; a sparse message's gradient is its kept values, whose indices the
        receiver knows; a quantised message's gradient is of full size (section 3.3).
        """
        family = method(self.method).family
        if family in (Family.TOP_K, Family.RANDOM_K):
            return self.encoded_bytes() * self.value_bytes // (self.value_bytes + self.index_bytes)
        return self.activation_bytes() if family is Family.QUANTIZATION else self.encoded_bytes()


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedMessages:
    """Equal messages of one iteration, sent by every tensor-parallel rank of a stage.

    Attributes:
        purpose: why they are sent.
        stage: the pipeline stage whose ranks send them.
        layer: the layer they belong to; at a boundary the first layer of the receiving stage.
        count: messages an iteration and rank.
        message_bytes: what one rank hands to the collective, bytes.
        collective: what carries them.
        num_ranks: ranks that take part in one collective.
        senders: ranks of the stage that send them, each as often.
        compressed: whether they travel encoded.
    """

    purpose: Purpose
    stage: int
    layer: int
    count: int
    message_bytes: int
    collective: Collective
    num_ranks: int
    senders: int
    compressed: bool

    @property
    def rank_bytes(self) -> int:
        """Bytes that one rank sends an iteration; the mean, where a ring's chunks differ by an element."""
        return self.wire_bytes // self.senders

    @property
    def wire_bytes(self) -> int:
        """Bytes that all ranks of the stage send an iteration, by the closed form of the collective."""
        algorithm = algorithm_of(Backend.NCCL, self.collective)
        one = collective_bytes(self.collective, algorithm, self.num_ranks, self.message_bytes).total
        return self.count * one * (self.senders if self.collective is Collective.SEND else 1)


def planned_messages(setting: Setting) -> tuple[PlannedMessages, ...]:
    """List the messages of one training iteration, in the order of the layers.

    Source: sections 3.2, 3.3; both forward reductions of a compressed layer travel encoded, both backward ones do not.
    """
    return tuple(
        planned
        for layer in range(setting.layers)
        for planned in (*_boundary_messages(setting, layer), *_tensor_messages(setting, layer))
    )


def _tensor_messages(setting: Setting, layer: int) -> Iterator[PlannedMessages]:
    if setting.tp == 1:
        return
    compressed = setting.is_compressed(layer)
    common = dict(
        stage=layer // setting.layers_per_stage,
        layer=layer,
        count=ALL_REDUCES_PER_LAYER * setting.num_micro_batches,
        num_ranks=setting.tp,
        senders=setting.tp,
    )
    family = method(setting.method).family
    summable = not compressed or family in SUMMABLE
    yield PlannedMessages(
        purpose=Purpose.TENSOR_FORWARD,
        message_bytes=setting.encoded_bytes() if compressed else setting.activation_bytes(),
        collective=Collective.ALL_REDUCE if summable else Collective.ALL_GATHER,
        compressed=compressed,
        **common,
    )
    full = dict(collective=Collective.ALL_REDUCE, compressed=False, **common)
    yield PlannedMessages(purpose=Purpose.TENSOR_BACKWARD, message_bytes=setting.activation_bytes(), **full)
    if compressed and family is Family.AUTOENCODER:
        encoder_elements = setting.hidden * code_size(method(setting.method).paper_code_size, setting.hidden)
        encoder_bytes = encoder_elements * setting.value_bytes
        yield PlannedMessages(purpose=Purpose.ENCODER_GRADIENT, message_bytes=encoder_bytes, **full)


def _boundary_messages(setting: Setting, layer: int) -> Iterator[PlannedMessages]:
    if layer == 0 or layer % setting.layers_per_stage:
        return
    compressed = setting.is_compressed(layer)
    stage = layer // setting.layers_per_stage
    common = dict(
        layer=layer, count=setting.num_micro_batches, collective=Collective.SEND, num_ranks=2, senders=setting.tp
    )
    yield PlannedMessages(
        purpose=Purpose.BOUNDARY_FORWARD,
        stage=stage - 1,
        message_bytes=setting.encoded_bytes() if compressed else setting.activation_bytes(),
        compressed=compressed,
        **common,
    )
    backward_bytes = setting.boundary_gradient_bytes() if compressed else setting.activation_bytes()
    yield PlannedMessages(
        purpose=Purpose.BOUNDARY_BACKWARD,
        stage=stage,
        message_bytes=backward_bytes,
        compressed=backward_bytes < setting.activation_bytes(),
        **common,
    )


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

    Left out: launching kernels, and the all-reduce of the encoder's gradient, 2·h·c elements a layer.

    Source: section 4.7; encoding and decoding scale with the elements, decoding of gathered messages with the ranks.
    """
    if not flops_per_s > 0:
        raise ValueError(f"flops_per_s={flops_per_s}: must be positive")
    encode_s, decode_s = _encode_and_decode_s(setting)
    forward_s = _forward_flops(setting) / setting.tp / flops_per_s
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


def _forward_flops(setting: Setting) -> float:
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
