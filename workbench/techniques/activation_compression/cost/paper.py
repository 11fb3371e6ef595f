"""The paper's two machines, fitted to the cells of `cells.CALIBRATION` by arithmetic that a reader can follow.

Source: "Does compressing activations help model parallel training?", section 4.1 (machines), tables 2 to 4, 6, 7, 12;
NVIDIA, DGX-1 with Tesla V100 system architecture: of four devices, the connections of the pairs 0-1 and 2-3 are one
and two, and four rings run through all of them at once (`nvidia-smi topo -m` shows NV1, NV2).
Simplified: each constant comes from one or two cells, in closed form; where a cell is nearly all launching, what the
device does meanwhile is left aside, which costs about 1 %.
Left out: error bars; the tables print one number a cell.

Units: seconds, bytes, elements; cells are milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

from workbench.cluster import Algorithm, Collective, Link, Sample, catalogue, collective_time_s, fit

from .cells import CALIBRATION, PublishedCell, value_ms
from .layer import forward_flops
from .machine import FittedMachine
from .messages import ALL_REDUCES_PER_LAYER, BERT_VOCABULARY, Setting
from .paper_codecs import local_codecs, p3_codecs, with_local_launching

__all__ = ["PaperMachines", "calibrate", "paper_machine"]

CLUSTER = "activation-compression/4x-p3.8xlarge"  # the catalogue's name
LONG, SHORT, PRE = Setting(), Setting(micro_batch=8, sequence=128), Setting(micro_batch=128, sequence=128)
ELEMENTS = 32 * 512 * 1024  # of one activation in tables 2 to 4, and as many in tables 6, 7 and 9
MESSAGE_BYTES = 2 * ELEMENTS  # fp16
ENCODED_LAYERS, LAYERS = 12, 24
PARAMETERS = 12 * 1024**2 * LAYERS  # of the layers of BERT-large
MESSAGES = ALL_REDUCES_PER_LAYER * ENCODED_LAYERS  # encoded forward, an iteration of tables 2 to 4
ALL_REDUCES = 2 * ALL_REDUCES_PER_LAYER * LAYERS  # both ways
PRE_STAGE_LAYERS, PRE_MICRO_BATCHES = 6, 8  # table 7: the last of 4 stages
PRE_MESSAGES = ALL_REDUCES_PER_LAYER * PRE_STAGE_LAYERS * PRE_MICRO_BATCHES
NVLINK_CONNECTIONS = MappingProxyType({2: (1.0, 2.0), 4: (4.0,)})  # pairs 0-1 and 2-3; rings through all four
OPTIMIZER_BYTES_PER_PARAMETER = 28  # Adam on fp32 states: reads 16 (weight, gradient, two moments), writes 12

Reader = Callable[..., float]  # seconds of one published cell


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
    return calibrate(CALIBRATION)


def paper_machine(*, nvlink: bool) -> FittedMachine:
    """Return the paper's machine with or without NVLink; the latter is one host."""
    return _fitted().p3 if nvlink else _fitted().local


def calibrate(cells: Sequence[PublishedCell]) -> PaperMachines:
    """Fit both machines to published cells.

    Args:
        cells: those of `cells.CALIBRATION`, or the same read from the published files.

    Raises:
        ValueError: naming a cell that is missing.
    """

    def seconds(table: int, quantity: str, name: str, tp: int, pp: int, **keys: int) -> float:
        return 1e-3 * value_ms(cells, f"table-{table}", f"{quantity}_ms", name, tp, pp, **keys)

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
    rings = _link(4, *zip(sizes, times, strict=True), "table 7, w/o and A1, Tensor Comm., a stage with all layers encoded")
    (connections,) = NVLINK_CONNECTIONS[4]
    return replace(rings, bandwidth_bytes_per_s=rings.bandwidth_bytes_per_s / connections)


def _link(num_ranks: int, one: tuple[float, float], other: tuple[float, float], source: str) -> Link:
    ring = {"num_ranks": num_ranks, "collective": Collective.ALL_REDUCE, "algorithm": Algorithm.RING}
    return fit([Sample(message_bytes=size, time_s=time, **ring) for size, time in (one, other)]).link(source)


def _ring_s(link: Link, num_ranks: int, connections: float = 1.0, collective: Collective = Collective.ALL_REDUCE,
            message_bytes: float = MESSAGE_BYTES) -> float:  # fmt: skip
    faster = replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * connections)
    return collective_time_s(collective, Algorithm.RING, num_ranks, message_bytes, faster)


def _backward_ratio(seconds: Reader) -> float:
    """Return backward over forward compute on the local machine; T1's backward pass carries no codec."""
    tensor_s = seconds(4, "tensor", "w/o", 2, 2)
    return (seconds(4, "backward", "T1", 2, 2) - tensor_s) / (seconds(4, "forward", "w/o", 2, 2) - tensor_s)


def _p3_compute(seconds: Reader) -> FittedMachine:
    """Fit rate and repeated work to table 2, w/o: (1, 4) is shared work + repeated work, (4, 1) a quarter + repeated."""
    link, ratio = _p3_link(seconds), _backward_ratio(seconds)
    handover_s = _handover_s(seconds, _local_link(seconds))
    optimizer_s, per_parameter_s = _p3_optimizer(seconds)
    updated_s = optimizer_s + per_parameter_s * PARAMETERS / 4  # on each of four ranks
    alone_s = seconds(2, "iteration", "w/o", 1, 4) - updated_s - 6 * (handover_s + link.time_s(MESSAGE_BYTES))
    in_four_s = seconds(2, "iteration", "w/o", 4, 1) - updated_s - ALL_REDUCES * _ring_s(link, 4, NVLINK_CONNECTIONS[4][0])
    shared_s = (alone_s - in_four_s) / (1 - 1 / 4) / (1 + ratio)
    repeated_s = alone_s / (1 + ratio) - shared_s
    return FittedMachine(
        name="p3.8xlarge",
        source="tables 2, 4, 6, 7 and 12, the cells of CALIBRATION",
        flops_per_s=LAYERS * forward_flops(LONG) / shared_s,
        replicated_s_per_element=repeated_s / (LAYERS * ELEMENTS),
        backward_over_forward=ratio,
        link=link,
        connections=NVLINK_CONNECTIONS,
        network=catalogue[CLUSTER].network,
        handover_s=handover_s,
        optimizer_s=optimizer_s,
        optimizer_s_per_parameter=per_parameter_s,
    )


def _p3_optimizer(seconds: Reader) -> tuple[float, float]:
    """Return the optimizer's fixed seconds, from table 7, and those a parameter, from the device's memory."""
    per_parameter_s = OPTIMIZER_BYTES_PER_PARAMETER / catalogue[CLUSTER].host.device.memory_bytes_per_s
    return seconds(7, "optimizer", "w/o", 4, 4) - per_parameter_s * PARAMETERS / 16, per_parameter_s


def _local_compute(seconds: Reader, p3: FittedMachine) -> FittedMachine:
    """Scale p3's compute to table 4's forward pass at TP 2, and fit the bridge among four ranks to table 3."""
    link = _local_link(seconds)
    at_two, at_four = (_compute_s(p3, LONG, tp) for tp in (2, 4))
    slower = (seconds(4, "forward", "w/o", 2, 2) - seconds(4, "tensor", "w/o", 2, 2)) / at_two
    rest_s = seconds(3, "iteration", "w/o", 4, 1, nvlink=0) - seconds(4, "optimizer", "A1", 2, 2)
    ring_s = (rest_s - (1 + p3.backward_over_forward) * slower * at_four) / ALL_REDUCES
    latency_s = _ring_s(link, 4, message_bytes=0)
    share = (_ring_s(link, 4) - latency_s) / (ring_s - latency_s)
    small_bytes = Setting(method="T1").encoded_bytes()
    gathered_s = (seconds(4, "tensor", "T1", 2, 2) - seconds(4, "tensor", "w/o", 2, 2) / 2) / MESSAGES
    return replace(
        p3,
        name="local machine",
        source="tables 3 and 4, the cells of CALIBRATION",
        flops_per_s=p3.flops_per_s / slower,
        replicated_s_per_element=p3.replicated_s_per_element * slower,
        link=link,
        connections=MappingProxyType({4: (share,)}),
        network=None,
        network_share=1.0,
        optimizer_s=seconds(4, "optimizer", "A1", 2, 2) - p3.optimizer_s_per_parameter * PARAMETERS / 4,
        gather_s=gathered_s - _ring_s(link, 2, collective=Collective.ALL_GATHER, message_bytes=small_bytes),
    )


def _compute_s(machine: FittedMachine, setting: Setting, tp: int, layers: int = LAYERS) -> float:
    elements = setting.micro_batch * setting.sequence * setting.hidden
    one_s = forward_flops(setting) / tp / machine.flops_per_s + machine.replicated_s_per_element * elements
    return layers * one_s


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
    """Fit the language-model head to table 7, w/o, whose slowest stage has it, and the network's share to table 6."""
    compute_s = _compute_s(p3, PRE, 4, PRE_STAGE_LAYERS)
    tensor_s = seconds(7, "tensor", "w/o", 4, 4) / PRE_MICRO_BATCHES
    logits = PRE.micro_batch * PRE.sequence * BERT_VOCABULARY / 4
    forward_s = seconds(7, "forward", "w/o", 4, 4) / PRE_MICRO_BATCHES - tensor_s - compute_s
    backward_s = seconds(7, "backward", "w/o", 4, 4) / PRE_MICRO_BATCHES - tensor_s - p3.backward_over_forward * compute_s
    small_bytes, rings = Setting(method="T1").encoded_bytes(), NVLINK_CONNECTIONS[4][0]
    gathered_s = seconds(7, "tensor", "T1", 4, 4) / PRE_MESSAGES
    with_head = replace(
        p3,
        head_forward_s_per_logit=forward_s / logits,
        head_backward_s_per_logit=backward_s / logits,
        gather_s=gathered_s - _ring_s(p3.link, 4, rings, Collective.ALL_GATHER, small_bytes),
    )
    return replace(with_head, network_share=_network_share(seconds, with_head))


def _network_share(seconds: Reader, p3: FittedMachine) -> float:
    """Solve table 6, w/o at (8, 2): 8 + 1 slots, 48 all-reduces each, half of the last stage's head, sends."""
    stage_s = (1 + p3.backward_over_forward) * _compute_s(p3, PRE, 8, LAYERS // 2)
    per_logit_s = p3.head_forward_s_per_logit + p3.head_backward_s_per_logit
    head_s = per_logit_s * PRE.micro_batch * PRE.sequence * BERT_VOCABULARY / 8
    send_s = p3.handover_s + p3.network.time_s(MESSAGE_BYTES / 2)  # two hosts a stage carry half a message each
    slots = PRE_MICRO_BATCHES + 1
    sends_s = slots * send_s
    computed_s = slots * stage_s + PRE_MICRO_BATCHES * head_s + seconds(7, "optimizer", "w/o", 4, 4)
    rest_s = seconds(6, "iteration", "w/o", 8, 2) - computed_s - sends_s
    across_s = rest_s / (slots * ALL_REDUCES / 2) - _ring_s(p3.link, 4, NVLINK_CONNECTIONS[4][0])
    nominal = Algorithm.DOUBLE_TREE, 2, MESSAGE_BYTES, p3.network
    return collective_time_s(Collective.ALL_REDUCE, *nominal) / across_s
