"""The paper's two machines, fitted to the cells of `CALIBRATION` by arithmetic that a reader can follow.

Each constant comes from one or two cells, in closed form; of no table more than one cell in five is used, nor of all
together. What memory limits is bytes over the data sheet's bandwidth. Of four devices of a DGX-1 the connections of the
pairs 0-1 and 2-3 are one and two, and four rings run through all at once (NVIDIA, DGX-1 system architecture).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

from workbench.cluster import (
    Algorithm,
    CodecCost,
    Collective,
    FittedMachine,
    Link,
    Sample,
    catalogue,
    collective_time_s,
    fit,
)
from workbench.cluster.fitted import GROWN_FROM
from workbench.models.inventory import OPTIMIZER_BYTES_PER_PARAMETER
from workbench.study.published import Cell
from workbench.study.rows import Key

from ..method import Family
from .layer import HEAD_FLOPS_PER_LOGIT, head_times, layer_compute_s
from .setting import ALL_REDUCES_PER_LAYER, BERT_VOCABULARY, Setting

__all__ = ["CALIBRATION", "PaperMachines", "calibrate", "calibration_cells", "paper_machine", "published_ms"]

LONG = Setting()  # tables 2 to 4
SHORT = Setting(micro_batch=8, sequence=128)  # table 12
PRE = Setting(micro_batch=128, sequence=128, vocabulary=BERT_VOCABULARY)  # tables 6, 7 and 9, one micro-batch

LAYERS = LONG.layers
ELEMENTS = LONG.workload.elements  # of one activation in tables 2 to 4, and as many in PRE
MESSAGES = ALL_REDUCES_PER_LAYER * LONG.compressed_layers  # encoded forward, an iteration of tables 2 to 4 and 12
ALL_REDUCES = 2 * ALL_REDUCES_PER_LAYER * LAYERS  # both ways, likewise, without compression
PRE_STAGE_LAYERS, PRE_MICRO_BATCHES = 6, 8  # table 7: the last of 4 stages, whose layers are all encoded
PRE_MESSAGES = ALL_REDUCES_PER_LAYER * PRE_STAGE_LAYERS * PRE_MICRO_BATCHES

Reader = Callable[..., float]
"""Returns the seconds of one published cell: of a table, a column, a method, TP and PP."""


# --- cells


def _cells(table: str, tp: int, pp: int, columns: Mapping[str, str], **keys: int) -> tuple[Cell, ...]:
    """Name cells of one mesh: methods, and the columns of each in one text."""
    return tuple(
        Cell.of(table, f"{column}_ms", method=name, tp=tp, pp=pp, **keys)
        for name, wanted in columns.items()
        for column in wanted.split()
    )


CALIBRATION: tuple[Cell, ...] = (
    # p3.8xlarge, batch 32, sequence 512: compute with and without tensor parallelism, Python's sampling
    *_cells("table-2", 1, 4, {"w/o": "iteration"}),
    *_cells("table-2", 4, 1, {"w/o": "iteration", "R1": "iteration", "R3": "iteration"}),
    *_cells("table-3", 1, 4, {"w/o": "iteration"}, nvlink=1),
    *_cells("table-3", 4, 1, {"w/o": "iteration"}, nvlink=1),
    # local machine, likewise: four ranks on its PCIe bridge, and the parts of an iteration
    *_cells("table-3", 4, 1, {"w/o": "iteration"}, nvlink=0),
    *_cells(
        "table-4",
        2,
        2,
        {
            "w/o": "forward tensor",
            "A1": "encode decode tensor optimizer",
            "A2": "encode decode backward waiting_and_pipeline",
            "T1": "encode decode tensor backward",
            "T4": "encode decode",
            "R3": "encode",
            "R4": "encode",
            "Q1": "encode decode",
        },
    ),
    # four p3.8xlarge, pre-training: all-reduce across hosts; NVLink, codecs, language-model head
    *_cells("table-6", 8, 2, {"w/o": "iteration"}),
    *_cells(
        "table-7",
        4,
        4,
        {
            "w/o": "forward backward tensor optimizer",
            "A1": "tensor",
            "T1": "encode decode tensor",
            "T4": "encode decode",
        },
    ),
    *_cells("table-9", 4, 4, {"w/o": "boundary"}, boundary=0),
    # p3.8xlarge, batch 8, sequence 128: launching kernels
    *_cells("table-12", 1, 4, {"w/o": "iteration"}),
    *_cells("table-12", 2, 2, dict.fromkeys(("w/o", "A1", "T1", "Q2"), "iteration")),
    *_cells("table-12", 4, 1, dict.fromkeys(("T1", "Q2"), "iteration")),
)
"""Every published number that a constant of the paper's machines comes from."""


def calibration_cells(table: str) -> list[dict[str, Key]]:
    """Return the cells of one table that calibrate, as `record(calibration={"cells": ...})` takes them."""
    return [cell.keys() for cell in CALIBRATION if cell.table == table]


def published_ms(cells: Iterable[Cell] = CALIBRATION) -> dict[Cell, float]:
    """Read the milliseconds of cells from the published files.

    Raises:
        ValueError: naming a cell that its file does not hold.
    """
    return {cell: cell.value("activation_compression") for cell in cells}


# --- the machines

CLUSTER = "activation-compression/4x-p3.8xlarge"  # the catalogue's name
MESSAGE_BYTES = LONG.activation_bytes()
PARAMETERS = LONG.workload.num_parameters  # of the layers of BERT-large
NVLINK_CONNECTIONS = MappingProxyType({2: (1.0, 2.0), 4: (4.0,)})  # pairs 0-1 and 2-3; rings through all four
SCORE_BYTES = 13  # forward: product writes 2; mask and softmax 2 + 2; dropout 2 + 2 and a mask of 1; product reads 2
LOGIT_BYTES = 40  # forward: product writes 2; to fp32 2 + 4; maximum 4; difference 8; exponential 8; sum 4; quotient 8
LOGIT_BACKWARD_BYTES = 18  # scaling 8; to fp16 4 + 2; two products read 2 each


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperMachines:
    """The machines of section 4.1."""

    local: FittedMachine  # four V100 on a PCIe bridge
    p3: FittedMachine  # four p3.8xlarge with four V100 each, NVLink inside, 10 Gbit/s between


@cache
def _fitted() -> PaperMachines:
    return calibrate(published_ms())


def paper_machine(*, nvlink: bool) -> FittedMachine:
    """Return the paper's machine with or without NVLink; the latter is one host."""
    return _fitted().p3 if nvlink else _fitted().local


def calibrate(cells_ms: Mapping[Cell, float]) -> PaperMachines:
    """Fit both machines to published cells.

    Args:
        cells_ms: milliseconds of every cell of `CALIBRATION`; no other is looked at.

    Raises:
        ValueError: naming a cell that is missing.
    """

    def seconds(table: int, quantity: str, name: str, tp: int, pp: int, **keys: int) -> float:
        cell = Cell.of(f"table-{table}", f"{quantity}_ms", method=name, tp=tp, pp=pp, **keys)
        if cell not in cells_ms:
            raise ValueError(f"cells_ms lacks {cell}; it must hold it")
        return 1e-3 * cells_ms[cell]

    p3 = _with_pre_training(seconds, _with_launching(seconds, _p3_compute(seconds)))
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
        flops_per_s=LAYERS * LONG.workload.layer_flops / (shared_s - LAYERS * LONG.workload.scores * per_score_s),
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
    products_s = LAYERS * LONG.workload.layer_flops / 2 / p3.flops_per_s
    return 1 + (computed_s - _compute_s(p3, LONG, 2)) / products_s


def _compute_s(machine: FittedMachine, setting: Setting, tp: int, layers: int = LAYERS) -> float:
    return layers * layer_compute_s(replace(setting, tp=tp, pp=1), machine)


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


def _with_pre_training(seconds: Reader, p3: FittedMachine) -> FittedMachine:
    """Fit the language-model head to table 7, w/o, whose slowest stage has it, and the network's share to table 6.

    What its backward pass takes beyond the layers says how much longer the head takes than its FLOPs and bytes at the
    data sheet's bandwidth; what the forward pass takes beyond that, no logit explains: fetching the batch, for one.
    """
    alone = replace(PRE, tp=4, pp=4)
    excess_s = _beyond_layers_s(seconds, p3)
    forward_s, backward_s = (count / _memory_bytes_per_s() for count in (LOGIT_BYTES, LOGIT_BACKWARD_BYTES))
    product_s = HEAD_FLOPS_PER_LOGIT * PRE.hidden / p3.flops_per_s
    longer = excess_s[1] / (PRE.workload.logits / 4) / (p3.backward_over_forward * product_s + backward_s)
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
    send_s = p3.handover_s + p3.full_network.time_s(MESSAGE_BYTES / 2)  # two hosts a stage carry half a message each
    slots = PRE_MICRO_BATCHES + 1
    heads_s = PRE_MICRO_BATCHES * sum(head_times(across, p3))
    rest_s = seconds(6, "iteration", "w/o", 8, 2) - seconds(7, "optimizer", "w/o", 4, 4)
    rest_s -= slots * (stage_s + send_s) + heads_s
    across_s = rest_s / (slots * ALL_REDUCES / 2) - _ring_s(p3.link, 4, NVLINK_CONNECTIONS[4][0])
    nominal = Algorithm.DOUBLE_TREE, 2, MESSAGE_BYTES, p3.full_network
    return collective_time_s(Collective.ALL_REDUCE, *nominal) / across_s


# --- codecs: straight lines through the smallest and the largest message of a method


def local_codecs(seconds: Reader, local: FittedMachine) -> MappingProxyType[Family, CodecCost]:
    """Return the codecs of the local machine (table 4), launching apart."""
    mesh = (2, 2)
    top_k = _along_sent(seconds, 4, mesh, MESSAGES, ("T1", "T4"))
    random_k = CodecCost(
        decode_s_per_element=top_k.decode_s_per_element,
        decode_s_per_sent=top_k.decode_s_per_sent,
        **_sampling(seconds, mesh),
    )
    codes = _along_sent(seconds, 4, mesh, MESSAGES, ("A1", "A2"))
    auto_encoder = replace(codes, backward_ratio=_coded_backward(seconds, local))
    return MappingProxyType(
        {
            Family.AUTOENCODER: auto_encoder,
            Family.TOP_K: top_k,
            Family.RANDOM_K: random_k,
            Family.QUANTIZATION: _quantization(seconds, mesh),
        }
    )


def p3_codecs(seconds: Reader, p3: FittedMachine, local: FittedMachine) -> MappingProxyType[Family, CodecCost]:
    """Return the codecs of p3.8xlarge (table 7), their launching (table 12) and sampling (table 2)."""
    mesh = (4, 4)
    top_k = replace(_along_sent(seconds, 7, mesh, PRE_MESSAGES, ("T1", "T4")), **_launch_costs(seconds, p3, "T1"))
    drawn_s = (seconds(2, "iteration", "R3", 4, 1) - seconds(2, "iteration", "w/o", 4, 1)) / MESSAGES
    sampled = local.codec(Family.RANDOM_K)
    slower = drawn_s / sampled.sample_s(ELEMENTS, _sent("R3"))
    random_k = replace(
        top_k,
        encode_s_per_element=0.0,
        encode_s_per_sent=0.0,
        sample_s_per_sent=slower * sampled.sample_s_per_sent,
        pool_s_per_element=slower * sampled.pool_s_per_element,
        sample_growth=sampled.sample_growth,
    )
    quantization = replace(local.codec(Family.QUANTIZATION), **_launch_costs(seconds, p3, "Q2"))
    return MappingProxyType(
        {
            Family.AUTOENCODER: _p3_auto_encoder(seconds, p3, local),
            Family.TOP_K: top_k,
            Family.RANDOM_K: random_k,
            Family.QUANTIZATION: quantization,
        }
    )


def with_local_launching(p3: FittedMachine, local: FittedMachine) -> FittedMachine:
    """Scale p3's launching by how much faster the local machine's Python samples."""
    faster = local.codec(Family.RANDOM_K).sample_s_per_sent / p3.codec(Family.RANDOM_K).sample_s_per_sent
    scaled = {
        family: replace(cost, **{name: faster * getattr(p3.codec(family), name) for name in LAUNCHES})
        for family, cost in local.codecs.items()
    }
    return replace(
        local,
        layer_launch_s=faster * p3.layer_launch_s,
        collective_launch_s=faster * p3.collective_launch_s,
        codecs=MappingProxyType(scaled),
    )


LAUNCHES = ("launch_s", "launch_s_per_decoded", "backward_launch_s")


def _sent(name: str) -> int:
    return replace(LONG, method=name).sent_elements()


def _sample_growth(seconds: Reader) -> float:
    """Return by which exponent an index costs more the more are drawn: R1 and R3 on p3, almost all of them drawing."""
    plain_s = seconds(2, "iteration", "w/o", 4, 1)
    few_s, more_s = (seconds(2, "iteration", name, 4, 1) - plain_s for name in ("R1", "R3"))
    return math.log(more_s / few_s) / math.log(_sent("R3") / _sent("R1")) - 1


def _sampling(seconds: Reader, mesh: tuple[int, int]) -> dict[str, float]:
    """Return what drawing costs: R3 draws alone, R4 lists its population as well."""
    growth = _sample_growth(seconds)
    each_s = {
        name: seconds(4, "encode", name, *mesh) / MESSAGES / (_sent(name) / GROWN_FROM) ** growth
        for name in ("R3", "R4")
    }
    per_sent_s = each_s["R3"] / _sent("R3")
    pool_s = (each_s["R4"] - per_sent_s * _sent("R4")) / ELEMENTS
    return {"sample_s_per_sent": per_sent_s, "pool_s_per_element": pool_s, "sample_growth": growth}


def _line(low: tuple[float, float], high: tuple[float, float]) -> tuple[float, float]:
    """Return seconds an element of the activation and an element sent, from two (share sent, seconds a message)."""
    per_sent = (high[1] - low[1]) / (high[0] - low[0]) / ELEMENTS
    return low[1] / ELEMENTS - per_sent * low[0], per_sent


def _along_sent(seconds: Reader, table: int, mesh: tuple[int, int], messages: int, names: tuple[str, str]) -> CodecCost:
    """Fit encoding and decoding to two methods; gathered messages are decoded once a rank, codes once."""
    decoded = messages * (1 if names[0].startswith("A") else mesh[0])
    lines = [
        _line(*((_sent(name) / ELEMENTS, seconds(table, column, name, *mesh) / count) for name in names))
        for column, count in (("encode", messages), ("decode", decoded))
    ]
    (encode, encode_sent), (decode, decode_sent) = lines
    return CodecCost(
        encode_s_per_element=encode,
        encode_s_per_sent=encode_sent,
        decode_s_per_element=decode,
        decode_s_per_sent=decode_sent,
    )


def _quantization(seconds: Reader, mesh: tuple[int, int]) -> CodecCost:
    return CodecCost(
        encode_s_per_element=seconds(4, "encode", "Q1", *mesh) / MESSAGES / ELEMENTS,
        decode_s_per_element=seconds(4, "decode", "Q1", *mesh) / MESSAGES / mesh[0] / ELEMENTS,
    )


def _coded_backward(seconds: Reader, local: FittedMachine) -> float:
    """Return A2's excess in table 4's backward pass, encoder gradients apart, over its encoding and decoding."""
    ring = Collective.ALL_REDUCE, Algorithm.RING, 2, replace(LONG, method="A2").encoder_elements * LONG.value_bytes
    gradient_s = MESSAGES * collective_time_s(*ring, local.link)
    excess_s = seconds(4, "backward", "A2", 2, 2) - seconds(4, "backward", "T1", 2, 2) - gradient_s
    return excess_s / (seconds(4, "encode", "A2", 2, 2) + seconds(4, "decode", "A2", 2, 2))


def _launch_costs(seconds: Reader, p3: FittedMachine, name: str) -> dict[str, float]:
    """Return the launching of one message of a gathered method: its excess in table 12 with 2 and with 4 ranks."""
    send_s = p3.handover_s + p3.link.time_s(SHORT.activation_bytes())
    plain_s = seconds(12, "iteration", "w/o", 2, 2)
    two_s = (seconds(12, "iteration", name, 2, 2) - plain_s) / (MESSAGES + 1)
    four_s = (seconds(12, "iteration", name, 4, 1) - (plain_s - 2 * send_s)) / MESSAGES
    per_decoded_s = (four_s - two_s) / 2
    return {"launch_s": two_s - 2 * per_decoded_s, "launch_s_per_decoded": per_decoded_s}


def _p3_auto_encoder(seconds: Reader, p3: FittedMachine, local: FittedMachine) -> CodecCost:
    excess_s = seconds(12, "iteration", "A1", 2, 2) - seconds(12, "iteration", "w/o", 2, 2)
    launched_s = (excess_s - MESSAGES * p3.collective_launch_s) / (MESSAGES + 1) / (1 + p3.backward_over_forward)
    return replace(
        local.codec(Family.AUTOENCODER), launch_s=launched_s, backward_launch_s=p3.backward_over_forward * launched_s
    )
