"""What one stage's layers, head and messages take: matrix products, attention, collectives, and one layer alone.

Where messages travel: ranks of a stage stand side by side, hosts are filled one after the other. Inside a host a ring;
across hosts NCCL's double tree, and a boundary of which each rank sends its own share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from workbench.cluster import Algorithm, Backend, Collective, FittedMachine, Link, algorithm_of, collective_time_s
from workbench.study.published import published_value

from ..method import Family
from .setting import ALL_REDUCES_PER_LAYER, SUMMABLE, Setting

__all__ = ["LayerTime", "all_reduce_s", "encoded_tensor_s", "head_times", "layer_compute_s", "layer_time", "send_s"]

HEAD_FLOPS_PER_LOGIT = 2  # of h: a product and a sum
BACKWARD_OVER_FORWARD = 2  # gradients of weights and of inputs
TABLE_4 = {"tp": 2, "pp": 2}  # where table 4 was measured, on the local machine
TABLE_4_LAYERS = 24  # as many encoded activations, two for each of 12 layers


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

    def table_4_ms(name: str, column: str) -> float:
        return published_value("activation_compression", "table-4", f"{column}_ms", method=name, **TABLE_4)

    def reduction_s(collective: Collective, message_bytes: int) -> float:
        algorithm = algorithm_of(Backend.NCCL, collective)
        return collective_time_s(collective, algorithm, setting.tp, message_bytes, link)

    if flops_per_s is None:
        computed_s = 1e-3 * (table_4_ms("w/o", "forward") - table_4_ms("w/o", "tensor"))
        flops_per_s = TABLE_4_LAYERS * Setting().workload.layer_flops / TABLE_4["tp"] / computed_s
    if not flops_per_s > 0:
        raise ValueError(f"flops_per_s is {flops_per_s}; it must be above 0")
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
    full_s = reduction_s(Collective.ALL_REDUCE, setting.activation_bytes())
    return LayerTime(
        forward_s=forward_s,
        encode_s=encode_s,
        transfer_s=ALL_REDUCES_PER_LAYER * reduction_s(collective, setting.encoded_bytes()),
        decode_s=decode_s,
        backward_s=BACKWARD_OVER_FORWARD * forward_s,
        backward_transfer_s=ALL_REDUCES_PER_LAYER * full_s,
    )
