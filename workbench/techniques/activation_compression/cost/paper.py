"""The paper's two machines, fitted to the cells of `CALIBRATION` by arithmetic that a reader can follow.

Each constant comes from one or two cells, in closed form; of no table more than one cell in five is used, nor of all
together. What memory limits is bytes over the data sheet's bandwidth. Of four devices of a DGX-1 the connections of the
pairs 0-1 and 2-3 are one and two, and four rings run through all at once (NVIDIA, DGX-1 system architecture).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from workbench.cluster import Algorithm, CodecCost, Collective, FittedMachine, Link, Sample, catalogue, fit
from workbench.cluster.collectives import collective_time_s
from workbench.cluster.fitted import GROWN_FROM
from workbench.models.inventory import OPTIMIZER_BYTES_PER_PARAMETER
from workbench.rows import Key
from workbench.study.published import Cell

from ..method import Family
from .setting import ALL_REDUCES_PER_LAYER, BERT_VOCABULARY, HEAD_FLOPS_PER_LOGIT, Setting, head_times, layer_compute_s

__all__ = ["CALIBRATION", "PaperMachines", "calibrate", "calibration_cells", "paper_machine", "published_ms"]

LONG = Setting()  # tables 2 to 4
SHORT = Setting(micro_batch=8, sequence=128)  # table 12
PRE = Setting(micro_batch=128, sequence=128, vocabulary=BERT_VOCABULARY)  # tables 6, 7 and 9, one micro-batch

LAYERS = LONG.layers
ELEMENTS = LONG.workload.elements  # one activation in tables 2 to 4, and as many in PRE
MESSAGES = ALL_REDUCES_PER_LAYER * LONG.compressed_layers  # encoded forward, an iteration of tables 2 to 4 and 12
ALL_REDUCES = 2 * ALL_REDUCES_PER_LAYER * LAYERS  # both ways, likewise, without compression
PRE_STAGE_LAYERS, PRE_MICRO_BATCHES = 6, 8  # table 7: the last of 4 stages, whose layers are all encoded
PRE_MESSAGES = ALL_REDUCES_PER_LAYER * PRE_STAGE_LAYERS * PRE_MICRO_BATCHES

Reader = Callable[..., float]
"""Returns the seconds of one published cell: of a table, a column, a method, TP and PP."""


# --- cells


# A table, TP, PP and further keys; then methods with the columns that are read.
CALIBRATION_TEXT = """
    # p3.8xlarge, batch 32, sequence 512: compute with and without tensor parallelism, Python's sampling
    table-2 1 4: w/o iteration
    table-2 4 1: w/o iteration, R1 iteration, R3 iteration
    table-3 1 4 nvlink=1: w/o iteration
    table-3 4 1 nvlink=1: w/o iteration
    # local machine, likewise: four ranks on its PCIe bridge, and the parts of an iteration
    table-3 4 1 nvlink=0: w/o iteration
    table-4 2 2: w/o forward tensor, A1 encode decode tensor optimizer, A2 encode decode backward waiting_and_pipeline
    table-4 2 2: T1 encode decode tensor backward, T4 encode decode, R3 encode, R4 encode, Q1 encode decode
    # four p3.8xlarge, pre-training: all-reduce across hosts; NVLink, codecs, language-model head
    table-6 8 2: w/o iteration
    table-7 4 4: w/o forward backward tensor optimizer, A1 tensor, T1 encode decode tensor, T4 encode decode
    table-9 4 4 boundary=0: w/o boundary
    # p3.8xlarge, batch 8, sequence 128: launching kernels
    table-12 1 4: w/o iteration
    table-12 2 2: w/o iteration, A1 iteration, T1 iteration, Q2 iteration
    table-12 4 1: T1 iteration, Q2 iteration
"""


def _cells(line: str) -> list[Cell]:
    place, methods = line.split(":")
    table, tp, pp, *more = place.split()
    keys = {"tp": int(tp), "pp": int(pp)} | {name: int(key) for name, key in (entry.split("=") for entry in more)}
    named = [(name, columns) for name, *columns in map(str.split, methods.split(","))]
    return [Cell.of(table, f"{column}_ms", method=name, **keys) for name, columns in named for column in columns]


_LINES = [line for line in map(str.strip, CALIBRATION_TEXT.splitlines()) if line and not line.startswith("#")]
CALIBRATION: tuple[Cell, ...] = tuple(cell for line in _LINES for cell in _cells(line))
"""Every published number that a constant of the paper's machines comes from."""


def calibration_cells(table: str) -> list[dict[str, Key]]:
    """Return the cells of one table that calibrate, as `record(calibration={"cells": ...})` takes them."""
    return [cell.keys() for cell in CALIBRATION if cell.table == table]


def published_ms(cells: Iterable[Cell] = CALIBRATION) -> dict[Cell, float]:
    """Read the milliseconds of cells from the published files; a cell that a file lacks is refused by name."""
    return {cell: cell.value("activation_compression") for cell in cells}


# --- the machines

CLUSTER = catalogue["activation-compression/4x-p3.8xlarge"]
MEMORY_BYTES_PER_S = CLUSTER.host.device.memory_bytes_per_s
MESSAGE_BYTES = LONG.activation_bytes()
PARAMETERS = LONG.workload.num_parameters  # all layers of BERT-large
NVLINK_CONNECTIONS = MappingProxyType({2: (1.0, 2.0), 4: (4.0,)})  # pairs 0-1 and 2-3; rings through all four
RINGS = NVLINK_CONNECTIONS[4][0]
SCORE_BYTES = 13  # forward: product writes 2; mask and softmax 2 + 2; dropout 2 + 2 and a mask of 1; product reads 2
LOGIT_BYTES = 40  # forward: product writes 2; to fp32 2 + 4; maximum 4; difference 8; exponential 8; sum 4; quotient 8
LOGIT_BACKWARD_BYTES = 18  # scaling 8; to fp16 4 + 2; two products read 2 each


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperMachines:
    """The machines of section 4.1."""

    local: FittedMachine  # four V100 on a PCIe bridge
    p3: FittedMachine  # four p3.8xlarge with four V100 each, NVLink inside, 10 Gbit/s between


@cache
def paper_machine(*, nvlink: bool) -> FittedMachine:
    """Return the paper's machine with or without NVLink; the latter is one host."""
    machines = calibrate(published_ms())
    return machines.p3 if nvlink else machines.local


def calibrate(cells_ms: Mapping[Cell, float]) -> PaperMachines:
    """Fit both machines to the milliseconds of every cell of `CALIBRATION`; one that is missing is refused by name."""

    def seconds(table: int, quantity: str, name: str, tp: int, pp: int, **keys: int) -> float:
        cell = Cell.of(f"table-{table}", f"{quantity}_ms", method=name, tp=tp, pp=pp, **keys)
        if cell not in cells_ms:
            raise ValueError(f"cells_ms lacks {cell}; it must hold it")
        return 1e-3 * cells_ms[cell]

    plain_s = seconds(4, "tensor", "w/o", 2, 2) / (2 * MESSAGES)
    coded_s = (seconds(4, "tensor", "A1", 2, 2) - MESSAGES * plain_s) / MESSAGES
    local_link = _link(2, plain_s, coded_s, "table 4, w/o and A1, Tensor Comm.")
    p3 = _with_pre_training(seconds, _p3_compute(seconds, local_link))
    local = _local_compute(seconds, p3, local_link)
    local = replace(local, codecs=_local_codecs(seconds, local))
    p3 = replace(p3, codecs=_p3_codecs(seconds, p3, local))
    # The local machine launches as much faster as its Python samples.
    faster = local.codec(Family.RANDOM_K).sample_s_per_sent / p3.codec(Family.RANDOM_K).sample_s_per_sent
    launched = {
        family: replace(cost, **{name: faster * getattr(p3.codec(family), name) for name in LAUNCHES})
        for family, cost in local.codecs.items()
    }
    launches_s = {name: faster * getattr(p3, name) for name in ("layer_launch_s", "collective_launch_s")}
    return PaperMachines(local=replace(local, **launches_s, codecs=MappingProxyType(launched)), p3=p3)


# --- compute and links


def _link(num_ranks: int, plain_s: float, coded_s: float, source: str) -> Link:
    """Fit a link to ring all-reduces of a whole activation and of its code of A1."""
    ring: dict[str, Any] = {"num_ranks": num_ranks, "collective": Collective.ALL_REDUCE, "algorithm": Algorithm.RING}
    times_s = {MESSAGE_BYTES: plain_s, Setting(method="A1").encoded_bytes(): coded_s}
    return fit([Sample(message_bytes=size, time_s=time_s, **ring) for size, time_s in times_s.items()]).link(source)


def _ring_s(
    link: Link,
    num_ranks: int,
    connections: float = 1.0,
    collective: Collective = Collective.ALL_REDUCE,
    message_bytes: float = MESSAGE_BYTES,
) -> float:
    faster = replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * connections)
    return collective_time_s(collective, Algorithm.RING, num_ranks, message_bytes, faster)


def _compute_s(machine: FittedMachine, setting: Setting, tp: int, layers: int = LAYERS) -> float:
    return layers * layer_compute_s(replace(setting, tp=tp, pp=1), machine)


def _p3_compute(seconds: Reader, local_link: Link) -> FittedMachine:
    """Fit p3's link, compute, update and launching.

    Table 2, w/o: (1, 4) is shared work and repeated work, (4, 1) a quarter of the shared and the same repeated work.
    Table 12, w/o, where the device mostly waits, gives the launching of layers and collectives.
    """
    source = "table 7, w/o and A1, Tensor Comm., a stage with all layers encoded"
    plain_s, coded_s = (seconds(7, "tensor", name, 4, 4) / PRE_MESSAGES for name in ("w/o", "A1"))
    rings = _link(4, plain_s, coded_s, source)
    link = replace(rings, bandwidth_bytes_per_s=rings.bandwidth_bytes_per_s / RINGS)
    tensor_s = seconds(4, "tensor", "w/o", 2, 2)  # likewise backward; T1's backward pass carries no codec
    ratio = (seconds(4, "backward", "T1", 2, 2) - tensor_s) / (seconds(4, "forward", "w/o", 2, 2) - tensor_s)
    # A2 waits for two messages of its boundary, and for handing over.
    coded_bytes = Setting(method="A2").encoded_bytes()
    handover_s = seconds(4, "waiting_and_pipeline", "A2", 2, 2) / 2 - local_link.time_s(coded_bytes)
    per_parameter_s = OPTIMIZER_BYTES_PER_PARAMETER / MEMORY_BYTES_PER_S
    optimizer_s = seconds(7, "optimizer", "w/o", 4, 4) - per_parameter_s * PARAMETERS / 16
    updated_s = optimizer_s + per_parameter_s * PARAMETERS / 4  # on each of four ranks

    alone_s = seconds(2, "iteration", "w/o", 1, 4) - updated_s - 6 * (handover_s + link.time_s(MESSAGE_BYTES))
    in_four_s = seconds(2, "iteration", "w/o", 4, 1) - updated_s - ALL_REDUCES * _ring_s(link, 4, RINGS)
    shared_s = (alone_s - in_four_s) / (1 - 1 / 4) / (1 + ratio)
    repeated_s = alone_s / (1 + ratio) - shared_s
    per_score_s = SCORE_BYTES / MEMORY_BYTES_PER_S
    p3 = FittedMachine(
        name="p3.8xlarge",
        source="tables 2, 4, 6, 7 and 12, the cells of CALIBRATION",
        flops_per_s=LAYERS * LONG.workload.layer_flops / (shared_s - LAYERS * LONG.workload.scores * per_score_s),
        replicated_s_per_element=repeated_s / (LAYERS * ELEMENTS),
        attention_s_per_score=per_score_s,
        backward_over_forward=ratio,
        link=link,
        connections=NVLINK_CONNECTIONS,
        network=CLUSTER.network,
        handover_s=handover_s,
        optimizer_s=optimizer_s,
        optimizer_s_per_parameter=per_parameter_s,
    )

    send_s = handover_s + link.time_s(SHORT.activation_bytes())
    alone_s = (seconds(12, "iteration", "w/o", 1, 4) - updated_s - 6 * send_s) / (1 + ratio)
    layers_s = (alone_s**p3.overlap_power - _compute_s(p3, SHORT, 1) ** p3.overlap_power) ** (1 / p3.overlap_power)
    collectives_s = seconds(12, "iteration", "w/o", 2, 2) - updated_s - 2 * send_s - (1 + ratio) * layers_s
    return replace(p3, layer_launch_s=layers_s / LAYERS, collective_launch_s=collectives_s / ALL_REDUCES)


def _with_pre_training(seconds: Reader, p3: FittedMachine) -> FittedMachine:
    """Fit the language-model head to table 7, w/o, whose slowest stage has it, and the network's share to table 6.

    What its backward pass takes beyond the layers says how much longer the head takes than its FLOPs and bytes at the
    data sheet's bandwidth; what the forward pass takes beyond that, no logit explains: fetching the batch, for one.
    Table 6, w/o at (8, 2), is 8 + 1 slots, 48 all-reduces each, half of the last stage's head, and sends.
    """
    ratio = p3.backward_over_forward
    stage_s = _compute_s(p3, PRE, 4, PRE_STAGE_LAYERS)
    forward_s, backward_s, tensor_s = (
        seconds(7, column, "w/o", 4, 4) / PRE_MICRO_BATCHES for column in ("forward", "backward", "tensor")
    )
    beyond_s, beyond_backward_s = forward_s - tensor_s - stage_s, backward_s - tensor_s - ratio * stage_s
    logit_s, logit_backward_s = (count / MEMORY_BYTES_PER_S for count in (LOGIT_BYTES, LOGIT_BACKWARD_BYTES))
    product_s = HEAD_FLOPS_PER_LOGIT * PRE.hidden / p3.flops_per_s
    longer = beyond_backward_s / (PRE.workload.logits / 4) / (ratio * product_s + logit_backward_s)
    p3 = replace(
        p3,
        head_forward_s_per_logit=longer * (product_s + logit_s) - product_s,
        head_backward_s_per_logit=longer * (ratio * product_s + logit_backward_s) - ratio * product_s,
    )
    gathered_s = seconds(7, "tensor", "T1", 4, 4) / PRE_MESSAGES
    small_bytes = Setting(method="T1").encoded_bytes()
    p3 = replace(
        p3,
        head_s=beyond_s - head_times(replace(PRE, tp=4, pp=4), p3)[0],
        gather_s=gathered_s - _ring_s(p3.link, 4, RINGS, Collective.ALL_GATHER, small_bytes),
    )

    stage_s = (1 + ratio) * _compute_s(p3, PRE, 8, LAYERS // 2)
    send_s = p3.handover_s + p3.full_network.time_s(MESSAGE_BYTES / 2)  # two hosts a stage carry half a message each
    slots = PRE_MICRO_BATCHES + 1
    heads_s = PRE_MICRO_BATCHES * sum(head_times(replace(PRE, tp=8, pp=2), p3))
    rest_s = seconds(6, "iteration", "w/o", 8, 2) - seconds(7, "optimizer", "w/o", 4, 4)
    rest_s -= slots * (stage_s + send_s) + heads_s
    across_s = rest_s / (slots * ALL_REDUCES / 2) - _ring_s(p3.link, 4, RINGS)
    nominal = Algorithm.DOUBLE_TREE, 2, MESSAGE_BYTES, p3.full_network
    return replace(p3, network_share=collective_time_s(Collective.ALL_REDUCE, *nominal) / across_s)


def _local_compute(seconds: Reader, p3: FittedMachine, link: Link) -> FittedMachine:
    """Fit the rate to table 4's forward pass, as memory is p3's, and the bridge among four ranks to table 3."""
    tensor_s, optimizer_s = seconds(4, "tensor", "w/o", 2, 2), seconds(4, "optimizer", "A1", 2, 2)
    computed_s = seconds(4, "forward", "w/o", 2, 2) - tensor_s
    products_s = LAYERS * LONG.workload.layer_flops / 2 / p3.flops_per_s
    slower = 1 + (computed_s - _compute_s(p3, LONG, 2)) / products_s
    scaled = replace(p3, flops_per_s=p3.flops_per_s / slower)
    rest_s = seconds(3, "iteration", "w/o", 4, 1, nvlink=0) - optimizer_s
    ring_s = (rest_s - (1 + p3.backward_over_forward) * _compute_s(scaled, LONG, 4)) / ALL_REDUCES
    latency_s = _ring_s(link, 4, message_bytes=0)
    share = (_ring_s(link, 4) - latency_s) / (ring_s - latency_s)
    small_bytes = Setting(method="T1").encoded_bytes()
    gathered_s = (seconds(4, "tensor", "T1", 2, 2) - tensor_s / 2) / MESSAGES
    return replace(
        scaled,
        name="local machine",
        source="tables 3 and 4, the cells of CALIBRATION",
        link=link,
        connections=MappingProxyType({4: (share,)}),
        optimizer_s=optimizer_s - p3.optimizer_s_per_parameter * PARAMETERS / 4,
        gather_s=gathered_s - _ring_s(link, 2, collective=Collective.ALL_GATHER, message_bytes=small_bytes),
    )


# --- codecs: straight lines through the smallest and the largest message of a method

LAUNCHES = ("launch_s", "launch_s_per_decoded", "backward_launch_s")


def _sent(name: str) -> int:
    return replace(LONG, method=name).sent_elements()


def _along_sent(seconds: Reader, table: int, mesh: tuple[int, int], messages: int, names: tuple[str, str]) -> CodecCost:
    """Fit encoding and decoding to two methods; gathered messages are decoded once a rank, codes once."""
    costs: dict[str, float] = {}
    for column, count in (("encode", messages), ("decode", messages * (1 if names[0].startswith("A") else mesh[0]))):
        (low, low_s), (high, high_s) = (
            (_sent(name) / ELEMENTS, seconds(table, column, name, *mesh) / count) for name in names
        )
        per_sent_s = (high_s - low_s) / (high - low) / ELEMENTS
        costs |= {f"{column}_s_per_element": low_s / ELEMENTS - per_sent_s * low, f"{column}_s_per_sent": per_sent_s}
    return CodecCost(**costs)


def _local_codecs(seconds: Reader, local: FittedMachine) -> Mapping[Hashable, CodecCost]:
    """Return the codecs of the local machine (table 4), launching apart.

    Random-K decodes as Top-K does; R3 draws alone, R4 lists its population as well, and R1 beside R3 on p3, almost all
    of them drawing, says by which exponent an index costs more the more are drawn. A code's backward pass is the excess
    of A2's in table 4, encoder gradients apart.
    """
    mesh = (2, 2)
    codes = _along_sent(seconds, 4, mesh, MESSAGES, ("A1", "A2"))
    ring = Collective.ALL_REDUCE, Algorithm.RING, 2, replace(LONG, method="A2").encoder_elements * LONG.value_bytes
    gradient_s = MESSAGES * collective_time_s(*ring, local.link)
    excess_s = seconds(4, "backward", "A2", *mesh) - seconds(4, "backward", "T1", *mesh) - gradient_s
    coding_s = seconds(4, "encode", "A2", *mesh) + seconds(4, "decode", "A2", *mesh)
    top_k = _along_sent(seconds, 4, mesh, MESSAGES, ("T1", "T4"))
    plain_s = seconds(2, "iteration", "w/o", 4, 1)
    few_s, more_s = (seconds(2, "iteration", name, 4, 1) - plain_s for name in ("R1", "R3"))
    growth = math.log(more_s / few_s) / math.log(_sent("R3") / _sent("R1")) - 1
    drawn_s, listed_s = (
        seconds(4, "encode", name, *mesh) / MESSAGES / (_sent(name) / GROWN_FROM) ** growth for name in ("R3", "R4")
    )
    per_sent_s = drawn_s / _sent("R3")
    random_k = CodecCost(
        decode_s_per_element=top_k.decode_s_per_element,
        decode_s_per_sent=top_k.decode_s_per_sent,
        sample_s_per_sent=per_sent_s,
        pool_s_per_element=(listed_s - per_sent_s * _sent("R4")) / ELEMENTS,
        sample_growth=growth,
    )
    quantization = CodecCost(
        encode_s_per_element=seconds(4, "encode", "Q1", *mesh) / MESSAGES / ELEMENTS,
        decode_s_per_element=seconds(4, "decode", "Q1", *mesh) / MESSAGES / mesh[0] / ELEMENTS,
    )
    return MappingProxyType(
        {
            Family.AUTOENCODER: replace(codes, backward_ratio=excess_s / coding_s),
            Family.TOP_K: top_k,
            Family.RANDOM_K: random_k,
            Family.QUANTIZATION: quantization,
        }
    )


def _p3_codecs(seconds: Reader, p3: FittedMachine, local: FittedMachine) -> Mapping[Hashable, CodecCost]:
    """Return the codecs of p3.8xlarge (table 7), their launching (table 12) and sampling (table 2).

    A gathered method launches its excess in table 12 with 2 and with 4 ranks; a code with 2, its collectives apart.
    """
    plain_s = seconds(12, "iteration", "w/o", 2, 2)
    send_s = p3.handover_s + p3.link.time_s(SHORT.activation_bytes())

    def gathered_launches(name: str) -> dict[str, float]:
        two_s = (seconds(12, "iteration", name, 2, 2) - plain_s) / (MESSAGES + 1)
        four_s = (seconds(12, "iteration", name, 4, 1) - (plain_s - 2 * send_s)) / MESSAGES
        per_decoded_s = (four_s - two_s) / 2
        return {"launch_s": two_s - 2 * per_decoded_s, "launch_s_per_decoded": per_decoded_s}

    excess_s = seconds(12, "iteration", "A1", 2, 2) - plain_s - MESSAGES * p3.collective_launch_s
    launch_s = excess_s / (MESSAGES + 1) / (1 + p3.backward_over_forward)
    code_launches = {"launch_s": launch_s, "backward_launch_s": p3.backward_over_forward * launch_s}
    top_k = replace(_along_sent(seconds, 7, (4, 4), PRE_MESSAGES, ("T1", "T4")), **gathered_launches("T1"))
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
    return MappingProxyType(
        {
            Family.AUTOENCODER: replace(local.codec(Family.AUTOENCODER), **code_launches),
            Family.TOP_K: top_k,
            Family.RANDOM_K: random_k,
            Family.QUANTIZATION: replace(local.codec(Family.QUANTIZATION), **gathered_launches("Q2")),
        }
    )
