"""What the paper's codecs cost, fitted to the columns Tensor Enc. and Tensor Dec. of tables 4 and 7.

Source: "Does compressing activations help model parallel training?", tables 2, 4, 7 and 12, the cells of
`cells.CALIBRATION`. Encoding and decoding are straight lines through the smallest and the largest message of a method.
Codes and quantisation cost both machines' V100s the same; Top-K does not (local: four times as long, table 4 and 7).
Simplified: the local machine launches faster by as much as it samples faster: no cell shows its launching.
Left out: the number of bits, which hardly matters in table 4 (Q1, Q2) though it does in table 12 (Q1 to Q3); ranks that
disturb each other's sampling: one alone (table 2, TP 1) draws R3's indices in a tenth less time than four at once.

Units: seconds, elements.
"""

from __future__ import annotations

import math
from dataclasses import replace
from types import MappingProxyType

from workbench.cluster import Algorithm, Collective, collective_time_s

from ..method import Family
from .machine import GROWN_FROM, CodecCost, FittedMachine
from .paper_settings import ELEMENTS, LONG, MESSAGES, PRE_MESSAGES, SHORT, Reader

__all__ = ["local_codecs", "p3_codecs", "with_local_launching"]


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
