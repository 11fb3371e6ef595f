"""The paper's two machines, fitted to the cells of `cells.CALIBRATION` by arithmetic that a reader can follow.

What memory limits is not fitted: bytes read and written, over the data sheet's bandwidth, for attention scores, loss
and optimizer. A local machine on several hosts, which the paper has not, gets p3's network.
Source: "Does compressing activations help model parallel training?", section 4.1 (machines), tables 2 to 4, 6, 7, 12;
NVIDIA, DGX-1 with Tesla V100 system architecture: of four devices, the connections of the pairs 0-1 and 2-3 are one
and two, and four rings run through all of them at once (`nvidia-smi topo -m` shows NV1, NV2).
Simplified: each constant comes from one or two cells, in closed form; where a cell is nearly all launching, what the
device does meanwhile is left aside, which costs about 1 %.
Left out: error bars; the tables print one number a cell.

Units: seconds, bytes, elements; cells are milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

from workbench.cluster import Algorithm, Collective, Link, Sample, catalogue, collective_time_s, fit

from .cells import PublishedCell, published_ms
from .layer import HEAD_FLOPS_PER_LOGIT, forward_flops, head_times, layer_compute_s
from .machine import FittedMachine
from .messages import Setting
from .paper_codecs import local_codecs, p3_codecs, with_local_launching
from .paper_settings import (
    ALL_REDUCES,
    ELEMENTS,
    LAYERS,
    LONG,
    MESSAGES,
    PRE,
    PRE_MESSAGES,
    PRE_MICRO_BATCHES,
    PRE_STAGE_LAYERS,
    SHORT,
    Reader,
)

__all__ = ["PaperMachines", "calibrate", "paper_machine"]

CLUSTER = "activation-compression/4x-p3.8xlarge"  # the catalogue's name
MESSAGE_BYTES = LONG.activation_bytes()
PARAMETERS = 12 * LONG.hidden**2 * LAYERS  # of the layers of BERT-large
NVLINK_CONNECTIONS = MappingProxyType({2: (1.0, 2.0), 4: (4.0,)})  # pairs 0-1 and 2-3; rings through all four
OPTIMIZER_BYTES_PER_PARAMETER = 28  # Adam on fp32 states: reads 16 (weight, gradient, two moments), writes 12
SCORE_BYTES = 13  # forward: product writes 2; mask and softmax 2 + 2; dropout 2 + 2 and a mask of 1; product reads 2
LOGIT_BYTES = 40  # forward: product writes 2; to fp32 2 + 4; maximum 4; difference 8; exponential 8; sum 4; quotient 8
LOGIT_BACKWARD_BYTES = 18  # scaling 8; to fp16 4 + 2; two products read 2 each


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperMachines:
    """The machines of section 4.1.

    Attributes:
        local: four V100 on a PCIe bridge.
        p3: four p3.8xlarge with four V100 each, NVLink inside, 10 Gbit/s between.
    """

    local: FittedMachine
    p3: FittedMachine


@cache
def _fitted() -> PaperMachines:
    return calibrate(published_ms())


def paper_machine(*, nvlink: bool) -> FittedMachine:
    """Return the paper's machine with or without NVLink; the latter is one host."""
    return _fitted().p3 if nvlink else _fitted().local


def calibrate(cells_ms: Mapping[PublishedCell, float]) -> PaperMachines:
    """Fit both machines to published cells.

    Args:
        cells_ms: milliseconds of every cell of `cells.CALIBRATION`; no other is looked at.

    Raises:
        ValueError: naming a cell that is missing.
    """

    def seconds(table: int, quantity: str, name: str, tp: int, pp: int, **keys: int) -> float:
        cell = PublishedCell(f"table-{table}", f"{quantity}_ms", name, tp, pp, **keys)
        if cell not in cells_ms:
            raise ValueError(f"cells_ms: it must hold {cell}")
        return 1e-3 * cells_ms[cell]

    p3 = _p3_compute(seconds)
    p3 = _with_launching(seconds, p3)
    p3 = _with_pre_training(seconds, p3)
    local = _local_compute(seconds, p3)
    local = replace(local, codecs=local_codecs(seconds, local))
    p3 = replace(p3, codecs=p3_codecs(seconds, p3, local))
    return PaperMachines(local=with_local_launching(p3, local), p3=p3)


# --- compute and links


def _handover_s(seconds: Reader, local_link: Link) -> float:
    """Return what table 4's A2 waits beyond its boundary's two messages."""
    return seconds(4, "waiting_and_pipeline", "A2", 2, 2) / 2 - local_link.time_s(Setting(method="A2").encoded_bytes())


def _local_link(seconds: Reader) -> Link:
    plain_s = seconds(4, "tensor", "w/o", 2, 2) / (2 * MESSAGES)
    coded_s = (seconds(4, "tensor", "A1", 2, 2) - MESSAGES * plain_s) / MESSAGES
    coded = Setting(method="A1").encoded_bytes(), coded_s
    return _link(2, (MESSAGE_BYTES, plain_s), coded, "table 4, w/o and A1, Tensor Comm.")


def _p3_link(seconds: Reader) -> Link:
    times = [seconds(7, "tensor", name, 4, 4) / PRE_MESSAGES for name in ("w/o", "A1")]
    sizes = [MESSAGE_BYTES, Setting(method="A1").encoded_bytes()]
    source = "table 7, w/o and A1, Tensor Comm., a stage with all layers encoded"
    rings = _link(4, *zip(sizes, times, strict=True), source)
    (connections,) = NVLINK_CONNECTIONS[4]
    return replace(rings, bandwidth_bytes_per_s=rings.bandwidth_bytes_per_s / connections)


def _link(num_ranks: int, one: tuple[float, float], other: tuple[float, float], source: str) -> Link:
    ring = {"num_ranks": num_ranks, "collective": Collective.ALL_REDUCE, "algorithm": Algorithm.RING}
    return fit([Sample(message_bytes=size, time_s=time, **ring) for size, time in (one, other)]).link(source)


def _ring_s(
    link: Link,
    num_ranks: int,
    connections: float = 1.0,
    collective: Collective = Collective.ALL_REDUCE,
    message_bytes: float = MESSAGE_BYTES,
) -> float:
    faster = replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * connections)
    return collective_time_s(collective, Algorithm.RING, num_ranks, message_bytes, faster)


def _backward_ratio(seconds: Reader) -> float:
    """Return backward over forward compute on the local machine; T1's backward pass carries no codec."""
    tensor_s = seconds(4, "tensor", "w/o", 2, 2)
    return (seconds(4, "backward", "T1", 2, 2) - tensor_s) / (seconds(4, "forward", "w/o", 2, 2) - tensor_s)


def _p3_compute(seconds: Reader) -> FittedMachine:
    """Fit rate and repeated work to table 2, w/o: (1, 4) is shared work + repeated, (4, 1) a quarter + repeated."""
    link, ratio = _p3_link(seconds), _backward_ratio(seconds)
    handover_s = _handover_s(seconds, _local_link(seconds))
    optimizer_s, per_parameter_s = _p3_optimizer(seconds)
    updated_s = optimizer_s + per_parameter_s * PARAMETERS / 4  # on each of four ranks
    alone_s = seconds(2, "iteration", "w/o", 1, 4) - updated_s - 6 * (handover_s + link.time_s(MESSAGE_BYTES))
    summed_s = ALL_REDUCES * _ring_s(link, 4, NVLINK_CONNECTIONS[4][0])
    in_four_s = seconds(2, "iteration", "w/o", 4, 1) - updated_s - summed_s
    shared_s = (alone_s - in_four_s) / (1 - 1 / 4) / (1 + ratio)
    repeated_s = alone_s / (1 + ratio) - shared_s
    per_score_s = SCORE_BYTES / _memory_bytes_per_s()
    return FittedMachine(
        name="p3.8xlarge",
        source="tables 2, 4, 6, 7 and 12, the cells of CALIBRATION",
        flops_per_s=LAYERS * forward_flops(LONG) / (shared_s - LAYERS * LONG.scores * per_score_s),
        replicated_s_per_element=repeated_s / (LAYERS * ELEMENTS),
        attention_s_per_score=per_score_s,
        backward_over_forward=ratio,
        link=link,
        connections=NVLINK_CONNECTIONS,
        network=catalogue[CLUSTER].network,
        handover_s=handover_s,
        optimizer_s=optimizer_s,
        optimizer_s_per_parameter=per_parameter_s,
    )


def _memory_bytes_per_s() -> float:
    return catalogue[CLUSTER].host.device.memory_bytes_per_s


def _p3_optimizer(seconds: Reader) -> tuple[float, float]:
    """Return the optimizer's fixed seconds, from table 7, and those a parameter, from the device's memory."""
    per_parameter_s = OPTIMIZER_BYTES_PER_PARAMETER / _memory_bytes_per_s()
    return seconds(7, "optimizer", "w/o", 4, 4) - per_parameter_s * PARAMETERS / 16, per_parameter_s


def _local_compute(seconds: Reader, p3: FittedMachine) -> FittedMachine:
    """Fit the rate to table 4's forward pass, as memory is p3's, and the bridge among four ranks to table 3."""
    link = _local_link(seconds)
    slower = _slower(seconds, p3)
    rest_s = seconds(3, "iteration", "w/o", 4, 1, nvlink=0) - seconds(4, "optimizer", "A1", 2, 2)
    scaled = replace(p3, flops_per_s=p3.flops_per_s / slower)
    ring_s = (rest_s - (1 + p3.backward_over_forward) * _compute_s(scaled, LONG, 4)) / ALL_REDUCES
    latency_s = _ring_s(link, 4, message_bytes=0)
    share = (_ring_s(link, 4) - latency_s) / (ring_s - latency_s)
    small_bytes = Setting(method="T1").encoded_bytes()
    gathered_s = (seconds(4, "tensor", "T1", 2, 2) - seconds(4, "tensor", "w/o", 2, 2) / 2) / MESSAGES
    return replace(
        p3,
        name="local machine",
        source="tables 3 and 4, the cells of CALIBRATION",
        flops_per_s=scaled.flops_per_s,
        link=link,
        connections=MappingProxyType({4: (share,)}),
        optimizer_s=seconds(4, "optimizer", "A1", 2, 2) - p3.optimizer_s_per_parameter * PARAMETERS / 4,
        gather_s=gathered_s - _ring_s(link, 2, collective=Collective.ALL_GATHER, message_bytes=small_bytes),
    )


def _slower(seconds: Reader, p3: FittedMachine) -> float:
    """Return p3's rate over the local machine's."""
    computed_s = seconds(4, "forward", "w/o", 2, 2) - seconds(4, "tensor", "w/o", 2, 2)
    products_s = LAYERS * forward_flops(LONG) / 2 / p3.flops_per_s
    return 1 + (computed_s - _compute_s(p3, LONG, 2)) / products_s


def _compute_s(machine: FittedMachine, setting: Setting, tp: int, layers: int = LAYERS) -> float:
    return layers * layer_compute_s(replace(setting, tp=tp, pp=1), machine)


# --- launching


def _with_launching(seconds: Reader, p3: FittedMachine) -> FittedMachine:
    """Fit the launching of layers and collectives to table 12, w/o, where the device mostly waits for it."""
    fixed_s = p3.optimizer_s + p3.optimizer_s_per_parameter * PARAMETERS / 4
    send_s = p3.handover_s + p3.link.time_s(SHORT.activation_bytes())
    alone_s = (seconds(12, "iteration", "w/o", 1, 4) - fixed_s - 6 * send_s) / (1 + p3.backward_over_forward)
    power = p3.overlap_power
    layers_s = (alone_s**power - _compute_s(p3, SHORT, 1) ** power) ** (1 / power)
    in_pairs_s = seconds(12, "iteration", "w/o", 2, 2) - fixed_s - 2 * send_s
    collectives_s = in_pairs_s - (1 + p3.backward_over_forward) * layers_s
    return replace(p3, layer_launch_s=layers_s / LAYERS, collective_launch_s=collectives_s / ALL_REDUCES)


# --- pre-training


def _with_pre_training(seconds: Reader, p3: FittedMachine) -> FittedMachine:
    """Fit the language-model head to table 7, w/o, whose slowest stage has it, and the network's share to table 6.

    What its backward pass takes beyond the layers says how much longer the head takes than its FLOPs and bytes at the
    data sheet's bandwidth; what the forward pass takes beyond that, no logit explains: fetching the batch, for one.
    """
    alone = replace(PRE, tp=4, pp=4)
    excess_s = _beyond_layers_s(seconds, p3)
    forward_s, backward_s = (count / _memory_bytes_per_s() for count in (LOGIT_BYTES, LOGIT_BACKWARD_BYTES))
    product_s = HEAD_FLOPS_PER_LOGIT * PRE.hidden / p3.flops_per_s
    longer = excess_s[1] / (PRE.logits / 4) / (p3.backward_over_forward * product_s + backward_s)
    with_loss = replace(
        p3,
        head_forward_s_per_logit=longer * (product_s + forward_s) - product_s,
        head_backward_s_per_logit=longer * (p3.backward_over_forward * product_s + backward_s)
        - p3.backward_over_forward * product_s,
    )
    small_bytes, rings = Setting(method="T1").encoded_bytes(), NVLINK_CONNECTIONS[4][0]
    gathered_s = seconds(7, "tensor", "T1", 4, 4) / PRE_MESSAGES
    with_head = replace(
        with_loss,
        head_s=excess_s[0] - head_times(alone, with_loss)[0],
        gather_s=gathered_s - _ring_s(p3.link, 4, rings, Collective.ALL_GATHER, small_bytes),
    )
    return replace(with_head, network_share=_network_share(seconds, with_head))


def _beyond_layers_s(seconds: Reader, p3: FittedMachine) -> tuple[float, float]:
    """Return what table 7's last stage takes for a micro-batch beyond its layers, forward and backward."""
    compute_s = _compute_s(p3, PRE, 4, PRE_STAGE_LAYERS)
    forward_s, backward_s, tensor_s = (
        seconds(7, column, "w/o", 4, 4) / PRE_MICRO_BATCHES for column in ("forward", "backward", "tensor")
    )
    return forward_s - tensor_s - compute_s, backward_s - tensor_s - p3.backward_over_forward * compute_s


def _network_share(seconds: Reader, p3: FittedMachine) -> float:
    """Solve table 6, w/o at (8, 2): 8 + 1 slots, 48 all-reduces each, half of the last stage's head, sends."""
    across = replace(PRE, tp=8, pp=2)
    stage_s = (1 + p3.backward_over_forward) * _compute_s(p3, PRE, 8, LAYERS // 2)
    send_s = p3.handover_s + p3.network.time_s(MESSAGE_BYTES / 2)  # two hosts a stage carry half a message each
    slots = PRE_MICRO_BATCHES + 1
    heads_s = PRE_MICRO_BATCHES * sum(head_times(across, p3))
    rest_s = seconds(6, "iteration", "w/o", 8, 2) - seconds(7, "optimizer", "w/o", 4, 4)
    rest_s -= slots * (stage_s + send_s) + heads_s
    across_s = rest_s / (slots * ALL_REDUCES / 2) - _ring_s(p3.link, 4, NVLINK_CONNECTIONS[4][0])
    nominal = Algorithm.DOUBLE_TREE, 2, MESSAGE_BYTES, p3.network
    return collective_time_s(Collective.ALL_REDUCE, *nominal) / across_s
