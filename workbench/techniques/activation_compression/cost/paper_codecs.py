"""What the paper's codecs cost, fitted to the columns Tensor Enc. and Tensor Dec. of tables 4 and 7.

Source: "Does compressing activations help model parallel training?", tables 2, 4, 7 and 12, the cells of
`cells.CALIBRATION`. Encoding and decoding are straight lines through the smallest and the largest message of a method.
Simplified: the local machine launches faster by as much as it samples faster: no cell shows its launching.
Left out: the number of bits, which hardly matters in table 4 (Q1, Q2) though it does in table 12 (Q1 to Q3).

Units: seconds, elements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType

from workbench.cluster import Algorithm, Collective, collective_time_s

from ..method import Family
from .machine import CodecCost, FittedMachine
from .messages import ALL_REDUCES_PER_LAYER, Setting

__all__ = ["local_codecs", "p3_codecs", "with_local_launching"]

SHORT = Setting(micro_batch=8, sequence=128)  # table 12
ELEMENTS = 32 * 512 * 1024  # of one activation in table 4, and as many in table 7
MESSAGES = ALL_REDUCES_PER_LAYER * 12  # encoded forward in table 4 and 12: 12 layers
PRE_MESSAGES = ALL_REDUCES_PER_LAYER * 6 * 8  # in table 7, on the last of 4 stages: 6 layers, 8 micro-batches
SENT = MappingProxyType({"A1": 50, "A2": 100, "T1": 10, "T4": 100, "R3": 50, "R4": 100})  # of 1024 elements, table 1

Reader = Callable[..., float]  # seconds of one published cell


def local_codecs(seconds: Reader, local: FittedMachine) -> MappingProxyType[Family, CodecCost]:
    """Return the codecs of the local machine (table 4), launching apart."""
    mesh = (2, 2)
    top_k = _along_sent(seconds, 4, mesh, MESSAGES, ("T1", "T4"))
    drawn = {name: seconds(4, "encode", name, *mesh) / MESSAGES / ELEMENTS for name in ("R3", "R4")}
    sample_s = drawn["R3"] * 1024 / SENT["R3"]
    random_k = CodecCost(
        decode_s_per_element=top_k.decode_s_per_element, decode_s_per_sent=top_k.decode_s_per_sent,
        sample_s_per_sent=sample_s, pool_s_per_element=drawn["R4"] - sample_s * SENT["R4"] / 1024,
    )  # fmt: skip
    auto_encoder = replace(_along_sent(seconds, 4, mesh, MESSAGES, ("A1", "A2")), backward_ratio=_coded_backward(seconds, local))
    return MappingProxyType({
        Family.AUTOENCODER: auto_encoder, Family.TOP_K: top_k, Family.RANDOM_K: random_k,
        Family.QUANTIZATION: _quantization(seconds, 4, mesh, MESSAGES),
    })  # fmt: skip


def p3_codecs(seconds: Reader, p3: FittedMachine, local: FittedMachine) -> MappingProxyType[Family, CodecCost]:
    """Return the codecs of p3.8xlarge (table 7), their launching (table 12) and sampling (table 2)."""
    mesh = (4, 4)
    top_k = replace(_along_sent(seconds, 7, mesh, PRE_MESSAGES, ("T1", "T4")), **_launch_costs(seconds, p3, "T1"))
    drawn_s = (seconds(2, "iteration", "R3", 1, 4) - seconds(2, "iteration", "w/o", 1, 4)) / 2  # 2 encoded boundaries
    sample_s = drawn_s / ELEMENTS * 1024 / SENT["R3"]
    local_random_k = local.codec(Family.RANDOM_K)
    slower = sample_s / local_random_k.sample_s_per_sent
    random_k = replace(
        top_k, encode_s_per_element=0.0, encode_s_per_sent=0.0,
        sample_s_per_sent=sample_s, pool_s_per_element=slower * local_random_k.pool_s_per_element,
    )  # fmt: skip
    quantization = replace(_quantization(seconds, 7, mesh, PRE_MESSAGES), **_launch_costs(seconds, p3, "Q1"))
    return MappingProxyType({
        Family.AUTOENCODER: _p3_auto_encoder(seconds, p3, local), Family.TOP_K: top_k, Family.RANDOM_K: random_k,
        Family.QUANTIZATION: quantization,
    })  # fmt: skip


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


def _line(low: tuple[float, float], high: tuple[float, float]) -> tuple[float, float]:
    """Return seconds an element of the activation and an element sent, from two (share sent, seconds a message)."""
    per_sent = (high[1] - low[1]) / (high[0] - low[0]) / ELEMENTS
    return low[1] / ELEMENTS - per_sent * low[0], per_sent


def _along_sent(seconds: Reader, table: int, mesh: tuple[int, int], messages: int, names: tuple[str, str]) -> CodecCost:
    """Fit encoding and decoding to two methods; gathered messages are decoded once a rank, codes once."""
    decoded = messages * (1 if names[0].startswith("A") else mesh[0])
    lines = [
        _line(*((SENT[name] / 1024, seconds(table, column, name, *mesh) / count) for name in names))
        for column, count in (("encode", messages), ("decode", decoded))
    ]
    (encode, encode_sent), (decode, decode_sent) = lines
    return CodecCost(
        encode_s_per_element=encode, encode_s_per_sent=encode_sent,
        decode_s_per_element=decode, decode_s_per_sent=decode_sent,
    )  # fmt: skip


def _quantization(seconds: Reader, table: int, mesh: tuple[int, int], messages: int) -> CodecCost:
    return CodecCost(
        encode_s_per_element=seconds(table, "encode", "Q1", *mesh) / messages / ELEMENTS,
        decode_s_per_element=seconds(table, "decode", "Q1", *mesh) / messages / mesh[0] / ELEMENTS,
    )


def _coded_backward(seconds: Reader, local: FittedMachine) -> float:
    """Return A2's excess in table 4's backward pass, encoder gradients apart, over its encoding and decoding."""
    ring = Collective.ALL_REDUCE, Algorithm.RING, 2, 1024 * SENT["A2"] * 2
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
        _along_sent(seconds, 7, (4, 4), PRE_MESSAGES, ("A1", "A2")),
        backward_ratio=local.codec(Family.AUTOENCODER).backward_ratio,
        launch_s=launched_s,
        backward_launch_s=p3.backward_over_forward * launched_s,
    )
