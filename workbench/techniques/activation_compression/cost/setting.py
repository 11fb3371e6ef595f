"""The setting of an iteration, the messages that it sends (sections 3.2, 3.3, 4.1), and what a layer and they take.

Where messages travel: ranks of a stage stand side by side, hosts are filled one after the other. Inside a host a ring;
across hosts NCCL's double tree, and a boundary of which each rank sends its own share.

Legend: B micro-batch, s sequence, h hidden, c code size, k elements kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Any

from workbench.checks import require_counts, require_positive
from workbench.cluster import (
    Algorithm,
    Backend,
    Collective,
    FittedMachine,
    Link,
    algorithm_of,
    collective_bytes,
    collective_time_s,
)
from workbench.models import Workload
from workbench.study.published import published_value

from ..method import PAPER_HIDDEN, Family, Method, code_size, method

__all__ = ["ALL_REDUCES_PER_LAYER", "BERT_VOCABULARY", "SUMMABLE", "LayerTime", "PlannedMessages", "Purpose", "Setting"]
__all__ += ["Variant", "all_reduce_s", "encoded_tensor_s", "head_times", "layer_compute_s", "layer_time"]
__all__ += ["planned_messages", "read_variant", "send_s", "table_4_ms"]

ALL_REDUCES_PER_LAYER = 2  # forward, and as many backward: attention and MLP (section 2.1)
BERT_VOCABULARY = 30522  # words of BERT's vocabulary (Devlin et al. 2018)
SUMMABLE = frozenset({Family.NONE, Family.HALF, Family.AUTOENCODER})  # methods whose messages an all-reduce can add
SPARSE = (Family.TOP_K, Family.RANDOM_K)


class Purpose(Enum):
    """Why a message is sent."""

    TENSOR_FORWARD = "tensor forward"
    TENSOR_BACKWARD = "tensor backward"
    ENCODER_GRADIENT = "encoder gradient"
    BOUNDARY_FORWARD = "boundary forward"
    BOUNDARY_BACKWARD = "boundary backward"


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One training iteration of the study; the defaults are those of tables 2 to 4."""

    method: str = "w/o"  # a name of table 1, or "w/o"
    tp: int = 2  # tensor-parallel ranks
    pp: int = 2  # pipeline stages
    micro_batch: int = 32  # B, sequences
    sequence: int = 512  # s, tokens
    nvlink: bool = True  # whether the GPUs of a host are joined by NVLink
    num_micro_batches: int = 1  # micro-batches an iteration
    num_nodes: int = 1  # hosts
    hidden: int = 1024  # h, elements
    layers: int = 24  # transformer layers
    compressed_layers: int = 12  # number of compressed layers, the last ones
    value_bytes: int = 2  # bytes of an uncompressed value; 2 is fp16
    index_bytes: int = 8  # bytes of an index in a sparse message; 8 is int64
    # Words that the last stage's language-model head tells apart, 0 for no such head; None takes BERT's 30,522 on
    # several hosts, where the study pre-trains, and no head on one, where it fine-tunes.
    vocabulary: int | None = None
    code_size: int | None = None  # c at a hidden size of 1024, in place of the method's own; None keeps that
    # Whether a learned code is computed as x·(W·E), not as (x·W)·E, the paper's way, so that a compressed row-parallel
    # product never takes its full size; other methods ignore it.
    fused: bool = False
    # Whether the gradients of all encoders of a stage are summed in one message a backward pass, as
    # `runtime.EncoderGradients` does; by default each encoder's is summed by itself.
    fuse_gradients: bool = False

    def __post_init__(self) -> None:
        method(self.method)
        counts = ("tp", "pp", "micro_batch", "sequence", "num_micro_batches", "num_nodes", "hidden", "layers")
        require_counts(1, **{field: getattr(self, field) for field in counts})
        rules = {
            "pp": (self.layers % self.pp == 0, f"divide the {self.layers} layers"),
            "compressed_layers": (0 <= self.compressed_layers <= self.layers, f"be in 0..{self.layers}, the layers"),
            "num_nodes": (self.tp * self.pp % self.num_nodes == 0, f"divide the {self.tp * self.pp} ranks"),
            "vocabulary": (self.vocabulary is None or self.vocabulary >= 0, "be None, or 0 or more"),
            "code_size": (
                self.code_size is None or 1 <= self.code_size <= PAPER_HIDDEN,
                f"be None, or in 1..{PAPER_HIDDEN}",
            ),
        }
        for field, (holds, rule) in rules.items():
            if not holds:
                raise ValueError(f"{field} is {getattr(self, field)}; it must {rule}")

    @property
    def chosen(self) -> Method:
        """The method, with the setting's own code size where it has one."""
        named = method(self.method)
        return named if self.code_size is None else replace(named, paper_code_size=self.code_size)

    @property
    def family(self) -> Family:
        """What the method does to an activation."""
        return method(self.method).family

    @property
    def encoder_elements(self) -> int:
        """Weights of one learned encoder, h·c; 0 for methods that learn none."""
        is_learned = self.family is Family.AUTOENCODER
        return self.hidden * code_size(self.chosen.paper_code_size, self.hidden) if is_learned else 0

    @property
    def is_fused(self) -> bool:
        """Whether the method learns a code and it is fused with the layers that it encodes."""
        return self.fused and self.family is Family.AUTOENCODER

    @property
    def ranks_per_node(self) -> int:
        """Ranks on one host; ranks of one stage stand side by side."""
        return self.tp * self.pp // self.num_nodes

    @property
    def layers_per_stage(self) -> int:
        """Layers of one pipeline stage."""
        return self.layers // self.pp

    @property
    def workload(self) -> Workload:
        """The model and one micro-batch of it; BERT's heads have 64 columns."""
        words = (BERT_VOCABULARY if self.num_nodes > 1 else 0) if self.vocabulary is None else self.vocabulary
        return Workload(
            hidden=self.hidden,
            num_layers=self.layers,
            batch=self.micro_batch,
            sequence=self.sequence,
            vocabulary=words,
            element_bytes=self.value_bytes,
        )

    def hosts_of(self, stage: int) -> range:
        """Return the hosts that the ranks of a stage stand on; hosts are filled one after the other."""
        first, last = stage * self.tp, (stage + 1) * self.tp - 1
        return range(first // self.ranks_per_node, last // self.ranks_per_node + 1)

    def is_compressed(self, layer: int) -> bool:
        """Tell whether the reductions of a layer, and the boundary in front of it, travel encoded."""
        return self.method != "w/o" and layer >= self.layers - self.compressed_layers

    def encoded_layers(self, stage: int) -> int:
        """Return how many layers of a stage reduce encoded; none where a stage is one rank, which reduces nothing."""
        first = stage * self.layers_per_stage
        return sum(self.tp > 1 and self.is_compressed(first + number) for number in range(self.layers_per_stage))

    def encoder_sums(self, stage: int) -> tuple[int, int]:
        """Return how many messages sum a stage's encoder gradients after one backward pass, and elements of each."""
        encoders = ALL_REDUCES_PER_LAYER * self.encoded_layers(stage) if self.encoder_elements else 0
        if self.fuse_gradients and encoders:
            return 1, encoders * self.encoder_elements
        return encoders, self.encoder_elements

    def activation_bytes(self) -> int:
        """Return the bytes of one uncompressed activation, B·s·h·v."""
        return self.micro_batch * self.sequence * self.hidden * self.value_bytes

    def encoded_bytes(self) -> int:
        """Return the bytes of one encoded activation."""
        sizes = {"value_bytes": self.value_bytes, "index_bytes": self.index_bytes}
        return self.chosen.message_bytes(self.micro_batch * self.sequence, self.hidden, **sizes)

    def sent_elements(self) -> int:
        """Return the code's or the kept elements of one encoded activation; 0 where no element is singled out."""
        if self.family is Family.AUTOENCODER:
            return self.encoded_bytes() // self.value_bytes
        return self.encoded_bytes() // (self.value_bytes + self.index_bytes) if self.family in SPARSE else 0

    def boundary_bytes(self, layer: int) -> tuple[int, int]:
        """Return the bytes of the message at the boundary in front of a layer, and of the gradient that answers it.

        A code's gradient has the code's size; a sparse message's gradient is its kept values, whose indices the
        receiver knows; a quantised message's gradient is of full size (section 3.3).
        """
        whole, encoded = self.activation_bytes(), self.encoded_bytes()
        if not self.is_compressed(layer):
            return whole, whole
        if self.family in SPARSE:
            return encoded, encoded * self.value_bytes // (self.value_bytes + self.index_bytes)
        return encoded, whole if self.family is Family.QUANTIZATION else encoded


UNCHANGED: Mapping[str, Any] = MappingProxyType({})


class Variant(Enum):
    """A difference from a method of table 1: its suffix in a name, families that can have it, fields it changes."""

    PLAIN = "", tuple(Family), UNCHANGED
    NARROW_INDEX = "int32", SPARSE, {"index_bytes": 4}
    # By the slow definitions: a sort of all elements, bits one by one, positions drawn one Python number at a time.
    LITERAL = "literal", (*SPARSE, Family.QUANTIZATION), UNCHANGED
    PRICED = "at the paper's price", tuple(Family), UNCHANGED  # coding takes its share of table 4's iteration, or more
    FEEDBACK = "feedback", tuple(Family), UNCHANGED  # each message holds the error of the one before
    FUSED = "fused", (Family.AUTOENCODER,), {"fused": True}
    FP32 = "fp32", (Family.NONE,), {"value_bytes": 4}  # the paper sends fp16 (section 4.1)


def read_variant(name: str, **sizes: Any) -> tuple[Setting, Variant]:
    """Read the name of a method or of a variant, such as "A1" or "T1 int32"; `sizes` are fields of the setting."""
    base, _, suffix = name.partition(" ")
    family = method(base).family
    possible = {variant.value[0]: variant for variant in Variant if family in variant.value[1]}
    if suffix not in possible:
        raise ValueError(f"name is {name!r}; the variant of {base} must be one of {list(possible)}")
    return Setting(method=base, **sizes | possible[suffix].value[2]), possible[suffix]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedMessages:
    """Equal messages of one iteration, sent by every tensor-parallel rank of a stage."""

    purpose: Purpose  # why they are sent
    stage: int  # the pipeline stage whose ranks send them
    layer: int  # the layer they belong to; at a boundary the first layer of the receiving stage
    count: int  # messages an iteration and rank
    message_bytes: int  # what one rank hands to the collective, bytes
    collective: Collective  # what carries them
    num_ranks: int  # ranks that take part in one collective
    senders: int  # ranks of the stage that send them, each as often
    compressed: bool  # whether they travel encoded

    @property
    def rank_bytes(self) -> int:
        """Bytes that one rank sends an iteration; the mean, where a ring's chunks differ by an element."""
        return self.wire_bytes // self.senders

    @property
    def wire_bytes(self) -> int:
        """Bytes that all ranks of the stage send an iteration, by the closed form of the collective."""
        algorithm = algorithm_of(Backend.NCCL, self.collective)
        of_one = collective_bytes(self.collective, algorithm, self.num_ranks, self.message_bytes).total
        return self.count * of_one * (self.senders if self.collective is Collective.SEND else 1)


def planned_messages(setting: Setting) -> tuple[PlannedMessages, ...]:
    """List one iteration's messages, layer by layer (sections 3.2, 3.3); both backward reductions stay full size."""
    whole_bytes, micro_batches = setting.activation_bytes(), setting.num_micro_batches
    planned = []
    for layer in range(setting.layers):
        stage, place = divmod(layer, setting.layers_per_stage)
        compressed = setting.is_compressed(layer)
        message = partial(PlannedMessages, layer=layer, senders=setting.tp)
        if layer and not place:
            there, back = setting.boundary_bytes(layer)
            send = partial(message, count=micro_batches, collective=Collective.SEND, num_ranks=2)
            forward = send(
                purpose=Purpose.BOUNDARY_FORWARD, stage=stage - 1, message_bytes=there, compressed=compressed
            )
            is_smaller = back < whole_bytes
            backward = send(purpose=Purpose.BOUNDARY_BACKWARD, stage=stage, message_bytes=back, compressed=is_smaller)
            planned += [forward, backward]
        if setting.tp == 1:
            continue
        reduce = partial(message, stage=stage, num_ranks=setting.tp)
        is_summed = not compressed or setting.family in SUMMABLE
        forward = reduce(
            purpose=Purpose.TENSOR_FORWARD,
            count=ALL_REDUCES_PER_LAYER * micro_batches,
            message_bytes=setting.encoded_bytes() if compressed else whole_bytes,
            collective=Collective.ALL_REDUCE if is_summed else Collective.ALL_GATHER,
            compressed=compressed,
        )
        summed = replace(forward, collective=Collective.ALL_REDUCE, compressed=False)
        planned += [forward, replace(summed, purpose=Purpose.TENSOR_BACKWARD, message_bytes=whole_bytes)]
        sums, elements = setting.encoder_sums(stage)
        is_first = not place or not setting.is_compressed(layer - 1)  # encoded layer of the stage
        if compressed and sums and (is_first or not setting.fuse_gradients):
            count = (1 if setting.fuse_gradients else ALL_REDUCES_PER_LAYER) * micro_batches
            size = elements * setting.value_bytes
            planned.append(replace(summed, purpose=Purpose.ENCODER_GRADIENT, count=count, message_bytes=size))
    return tuple(planned)


# --- what a layer and messages take

HEAD_FLOPS_PER_LOGIT = 2  # times h: a product and a sum
BACKWARD_OVER_FORWARD = 2  # gradients of weights and of inputs
TABLE_4 = {"tp": 2, "pp": 2}  # where table 4 was measured, on the local machine
TABLE_4_LAYERS = 24  # as many encoded activations, two for each of 12 layers


def table_4_ms(name: str, column: str) -> float:
    """Return a number of table 4, such as ("T1", "encode")."""
    return published_value("activation_compression", "table-4", f"{column}_ms", method=name, **TABLE_4)


def layer_compute_s(setting: Setting, machine: FittedMachine) -> float:
    """Return the seconds that one rank computes one layer's forward pass, launching apart."""
    work = setting.workload
    shared_s = work.layer_flops / machine.flops_per_s + work.scores * machine.attention_s_per_score
    return shared_s / setting.tp + work.elements * machine.replicated_s_per_element


def head_times(setting: Setting, machine: FittedMachine) -> tuple[float, float]:
    """Return the seconds of one micro-batch's language-model head and loss on a rank, forward and backward."""
    if not setting.workload.logits:
        return 0.0, 0.0
    logits = setting.workload.logits / setting.tp
    product_s = HEAD_FLOPS_PER_LOGIT * setting.hidden * logits / machine.flops_per_s
    forward_s = machine.head_s + product_s + logits * machine.head_forward_s_per_logit
    return forward_s, machine.backward_over_forward * product_s + logits * machine.head_backward_s_per_logit


# --- messages


def all_reduce_s(setting: Setting, machine: FittedMachine, stage: int, message_bytes: float) -> float:
    """Return the seconds of summing a message over a stage's ranks: rings in hosts, two trees between them."""
    hosts = len(setting.hosts_of(stage))
    num_ranks, link = _ranks_of_a_host(setting, machine, stage)
    local_s = collective_time_s(Collective.ALL_REDUCE, Algorithm.RING, num_ranks, message_bytes, link)
    if hosts == 1:
        return local_s
    trees = Collective.ALL_REDUCE, Algorithm.DOUBLE_TREE
    return local_s + collective_time_s(*trees, hosts, message_bytes, machine.reached_network)


def encoded_tensor_s(setting: Setting, machine: FittedMachine, stage: int) -> float:
    """Return the seconds in which a stage's ranks sum their codes, or gather other encoded messages; 0 for one rank."""
    message_bytes = setting.encoded_bytes()
    if setting.family in SUMMABLE:
        return all_reduce_s(setting, machine, stage, message_bytes)
    if setting.tp == 1:
        return 0.0
    across = len(setting.hosts_of(stage)) > 1
    link = machine.full_network if across else _ranks_of_a_host(setting, machine, stage)[1]
    gather = Collective.ALL_GATHER, Algorithm.RING
    return machine.gather_s + collective_time_s(*gather, setting.tp, message_bytes, link)


def send_s(setting: Setting, machine: FittedMachine, boundary: int, message_bytes: float) -> float:
    """Return the seconds of one message from stage `boundary` to the next, or back."""
    hosts = setting.hosts_of(boundary)
    if hosts == setting.hosts_of(boundary + 1):
        return machine.handover_s + machine.link.time_s(message_bytes)
    return machine.handover_s + machine.full_network.time_s(message_bytes / len(hosts))


def _ranks_of_a_host(setting: Setting, machine: FittedMachine, stage: int) -> tuple[int, Link]:
    """Return how many ranks one stage has on its fullest host, and the link that joins them there."""
    num_ranks = math.ceil(setting.tp / len(setting.hosts_of(stage)))
    connections = machine.connections_of(num_ranks)
    group = stage * setting.tp % setting.ranks_per_node // num_ranks
    rate = machine.link.bandwidth_bytes_per_s * connections[group % len(connections)]
    return num_ranks, replace(machine.link, bandwidth_bytes_per_s=rate)


# --- one layer alone


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerTime:
    """Seconds of one tensor-parallel layer, forward and backward, one after the other."""

    forward_s: float  # matrix products and attention, forward
    encode_s: float  # encoding of both activations
    transfer_s: float  # both forward reductions
    decode_s: float  # decoding of what arrived
    backward_s: float  # matrix products and attention, backward
    backward_transfer_s: float  # both backward reductions, which stay full size

    @property
    def total_s(self) -> float:
        """Seconds of the whole layer."""
        return sum(getattr(self, field.name) for field in fields(self))


def layer_time(setting: Setting, link: Link, *, flops_per_s: float | None = None) -> LayerTime:
    """Predict one compressed layer; nothing overlaps, since each reduction waits for what it sums.

    `link` joins the tensor-parallel ranks; `layers`, `pp` and micro-batches of the setting do not matter. A device
    reaches `flops_per_s`, or what the V100s of table 4 reached without compression. Refused are methods whose encoding
    time table 4 does not give, and fused codes, which only `iteration_time` knows.
    """

    if flops_per_s is None:
        computed_s = 1e-3 * (table_4_ms("w/o", "forward") - table_4_ms("w/o", "tensor"))
        flops_per_s = TABLE_4_LAYERS * Setting().workload.layer_flops / TABLE_4["tp"] / computed_s
    require_positive(flops_per_s=flops_per_s)
    if setting.is_fused:
        raise ValueError("fused is True; it must be False, for only iteration_time knows fused codes")
    encode_s = decode_s = 0.0
    if setting.family not in (Family.NONE, Family.HALF):  # table 4's columns, scaled to the layer's elements
        scale = setting.activation_bytes() / Setting().activation_bytes() * Setting().value_bytes / setting.value_bytes
        per_ms = 1e-3 * scale * ALL_REDUCES_PER_LAYER / TABLE_4_LAYERS
        encode_s, decode_s = (per_ms * table_4_ms(setting.method, column) for column in ("encode", "decode"))
        decode_s *= 1 if setting.family is Family.AUTOENCODER else setting.tp / TABLE_4["tp"]
    forward_s = setting.workload.layer_flops / setting.tp / flops_per_s
    collective = Collective.ALL_REDUCE if setting.family in SUMMABLE else Collective.ALL_GATHER
    ring = Algorithm.RING, setting.tp
    full_s = collective_time_s(Collective.ALL_REDUCE, *ring, setting.activation_bytes(), link)
    return LayerTime(
        forward_s=forward_s,
        encode_s=encode_s,
        transfer_s=ALL_REDUCES_PER_LAYER * collective_time_s(collective, *ring, setting.encoded_bytes(), link),
        decode_s=decode_s,
        backward_s=BACKWARD_OVER_FORWARD * forward_s,
        backward_transfer_s=ALL_REDUCES_PER_LAYER * full_s,
    )
