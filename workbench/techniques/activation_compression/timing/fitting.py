"""This machine's rates, fitted to measured iterations, so that the cost model can answer for settings nobody ran.

Source: "Does compressing activations help model parallel training?", section 4.7: computation is linear in FLOPs,
communication in bytes, coding in elements. Least squares of relative errors, no coefficient below zero.
Simplified: iterations with one micro-batch and two tensor-parallel ranks or more; launching adds to computing, since
nothing overlaps on a core.
Left out: a rank that has a core to itself (TP 1).

Units: seconds, bytes, elements, FLOPs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean, median
from types import MappingProxyType

import numpy as np

from workbench.cluster import Algorithm, Collective, Fit, Sample, collective_time_s, fit

from ..cost import CodecCost, FittedMachine, Setting
from ..method import Family, method
from .study import BASELINE
from .variants import timed

__all__ = ["Fitted", "MeasuredSetting", "fit_machine", "settings_of"]

S_PER_MS = 1e-3
REDUCTIONS_PER_LAYER = 2  # forward; as many backward
GATHERED = (Family.TOP_K, Family.RANDOM_K, Family.QUANTIZATION)


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredSetting:
    """One setting with the medians of its parts, in seconds.

    Attributes:
        setting: what was run.
        parts_s: quantity without its unit, such as "forward", to seconds.
        keys: the keys of its rows.
    """

    setting: Setting
    parts_s: Mapping[str, float]
    keys: Mapping

    @property
    def forward_compute_s(self) -> float:
        """Forward, less coding and communication."""
        inside = ("encode", "decode", "tensor", "tensor_waiting")
        return self.parts_s["forward"] - sum(self.parts_s[part] for part in inside)

    @property
    def num_encoded(self) -> int:
        """Reductions that travel encoded."""
        return REDUCTIONS_PER_LAYER * self.setting.compressed_layers

    @property
    def elements(self) -> int:
        """Of one activation."""
        return self.setting.micro_batch * self.setting.sequence * self.setting.hidden


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """A machine and how well its lines fit.

    Attributes:
        machine: for `cost.iteration_time` and `cost.break_even`.
        r_squared: by what was fitted: "computation", "communication", and "coding" of each family.
        residuals: likewise, relative: measured over fitted, minus 1.
        communication: the link's fit.
    """

    machine: FittedMachine
    r_squared: Mapping[str, float]
    residuals: Mapping[str, tuple[float, ...]]
    communication: Fit


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    """A linear fit and how good it is.

    Attributes:
        coefficients: none negative.
        fitted: seconds on the line.
        r_squared: 1 less the share of the weighted variation that the line leaves.
        residuals: measured over fitted, minus 1.
    """

    coefficients: tuple[float, ...]
    fitted: tuple[float, ...]
    r_squared: float
    residuals: tuple[float, ...]


def settings_of(rows: Iterable[Mapping], **sizes) -> list[MeasuredSetting]:
    """Put the rows of `measure_iterations` together, setting by setting.

    Args:
        rows: with the keys method, tp, pp, micro_batch, sequence; further fields of Setting may be keys too.
        sizes: fields of Setting that are no keys.
    """
    found: dict[tuple, dict] = {}
    names = ("method", "tp", "pp", "nvlink", "micro_batch", "sequence", "hidden")
    for row in rows:
        keys = {name: row[name] for name in names if name in row}
        one = found.setdefault(tuple(keys.items()), {"keys": keys, "parts": {}})
        if row["unit"] == "ms" and "boundary" not in row:
            one["parts"][row["quantity"].removesuffix("_ms")] = S_PER_MS * row["value"]
    return [_measured(one["keys"], one["parts"], sizes) for one in found.values()]


def _measured(keys: Mapping, parts: Mapping, sizes: Mapping) -> MeasuredSetting:
    fields = {name: value for name, value in keys.items() if name not in ("method", "nvlink")}
    return MeasuredSetting(setting=timed(keys["method"], **{**sizes, **fields}).setting, parts_s=parts, keys=keys)


def fit_machine(measured: Sequence[MeasuredSetting]) -> Fitted:
    """Fit this machine's rates.

    Args:
        measured: settings over one link, with two tensor-parallel ranks or more, of several sizes, "w/o" among them.

    Returns:
        The machine, with the goodness of its fits.

    Raises:
        ValueError: where nothing is uncompressed.
    """
    plain = [one for one in measured if one.setting.method == BASELINE]
    if not plain:
        raise ValueError(f"measured has no {BASELINE!r}: computation and communication are fitted to it")
    waits_s = fmean(one.parts_s["tensor_waiting"] / _reductions(one) for one in plain)
    computation, communication = _computation(plain), _communication(plain)
    link = communication.link("fitted to measured all-reduces on this machine's shaped hosts")
    codecs = {family: _codec(family, measured, plain) for family in _families(measured)}
    per_flop, per_element, per_layer = computation.coefficients
    machine = FittedMachine(
        name="this machine",
        source="fitted to measured iterations",
        flops_per_s=1 / per_flop,
        link=link,
        replicated_s_per_element=per_element,
        layer_launch_s=per_layer,
        collective_launch_s=waits_s,
        overlap_power=1,
        backward_over_forward=_backward_over_forward(plain, waits_s),
        gather_s=_gather_s(measured, plain, link),
        handover_s=_handover_s(plain, link),
        optimizer_s=fmean(one.parts_s["optimizer"] for one in measured),
        codecs=MappingProxyType({family: cost for family, (cost, _) in codecs.items()}),
    )
    lines = {"computation": computation, **{f"coding, {family.value}": line for family, (_, line) in codecs.items()}}
    return Fitted(
        machine=machine,
        communication=communication,
        r_squared={name: line.r_squared for name, line in lines.items()} | {"communication": communication.r_squared},
        residuals={name: line.residuals for name, line in lines.items()},
    )


def _reductions(one: MeasuredSetting) -> int:
    return REDUCTIONS_PER_LAYER * one.setting.layers


def _families(measured: Iterable[MeasuredSetting]) -> list[Family]:
    families = dict.fromkeys(method(one.setting.method).family for one in measured)
    return [family for family in families if family is not Family.NONE]


def _line(columns: Sequence[Sequence[float]], seconds: Sequence[float]) -> _Line:
    """Fit seconds = columns · coefficients, every point weighing as much as its relative error."""
    columns, seconds = np.asarray(columns, dtype=float), np.asarray(seconds, dtype=float)
    scaled = columns * _weights(seconds)[:, None]
    size = np.abs(scaled).max(axis=0)
    size[size == 0] = 1
    coefficients = _none_negative(scaled / size) / size
    return _judged(coefficients, seconds, columns @ coefficients)


def _weights(seconds: np.ndarray) -> np.ndarray:
    return 1 / np.maximum(seconds, 1e-9)  # a time below a nanosecond weighs as one


def _judged(coefficients: Iterable[float], seconds: np.ndarray, fitted: np.ndarray) -> _Line:
    """Say how far fitted seconds lie from measured ones, relative to how far these lie from their mean."""
    squares = _weights(seconds) ** 2
    around_mean = np.sum(squares * (seconds - np.average(seconds, weights=squares)) ** 2)
    around_line = np.sum(squares * (seconds - fitted) ** 2)
    return _Line(
        coefficients=tuple(float(value) for value in coefficients),
        fitted=tuple(float(value) for value in fitted),
        r_squared=float(1 - around_line / around_mean) if around_mean > 0 else float("nan"),
        residuals=tuple(float(value) for value in seconds / np.maximum(fitted, 1e-12) - 1),
    )


def _none_negative(scaled: np.ndarray) -> np.ndarray:
    """Solve scaled · x = 1 by least squares with no x below zero: the best of all choices of columns."""
    best, least = np.zeros(scaled.shape[1]), np.inf
    for count in range(1, scaled.shape[1] + 1):
        for chosen in map(list, combinations(range(scaled.shape[1]), count)):
            part = np.linalg.lstsq(scaled[:, chosen], np.ones(len(scaled)), rcond=None)[0]
            error = float(np.sum((scaled[:, chosen] @ part - 1) ** 2))
            if (part >= 0).all() and error < least:
                best, least = np.zeros(scaled.shape[1]), error
                best[chosen] = part
    return best


def _computation(plain: Sequence[MeasuredSetting]) -> _Line:
    """Fit a layer's forward computation to the FLOPs of a rank, the elements, and a constant."""
    columns = [[one.setting.workload.layer_flops / one.setting.tp, one.elements, 1.0] for one in plain]
    seconds = [one.forward_compute_s / one.setting.layers for one in plain]
    line = _line(columns, seconds)
    if line.coefficients[0] > 0:
        return line
    per_flop = _line([[flops, 1.0] for flops, _, _ in columns], seconds)
    per_flop_s, launch_s = per_flop.coefficients
    return replace(per_flop, coefficients=(per_flop_s, 0.0, launch_s))


def _communication(plain: Sequence[MeasuredSetting]) -> Fit:
    """Fit the link to the full-size all-reduces, forward and backward."""
    return fit(
        Sample(
            message_bytes=one.setting.activation_bytes(),
            time_s=one.parts_s[part] / _reductions(one),
            num_ranks=one.setting.tp,
            collective=Collective.ALL_REDUCE,
            algorithm=Algorithm.RING,
        )
        for one in plain
        for part in ("tensor", "tensor_backward")
    )


def _backward_over_forward(plain: Sequence[MeasuredSetting], waits_s: float) -> float:
    ratios = []
    for one in plain:
        backward_s = one.parts_s["backward"] - one.parts_s["tensor_backward"] - _reductions(one) * waits_s
        ratios.append(backward_s / one.forward_compute_s)
    return max(0.0, median(ratios))


def _plain_twin(one: MeasuredSetting, plain: Iterable[MeasuredSetting]) -> MeasuredSetting | None:
    """Find the uncompressed iteration of the same sizes."""
    wanted = {name: value for name, value in one.keys.items() if name != "method"}
    twins = (other for other in plain if {k: v for k, v in other.keys.items() if k != "method"} == wanted)
    return next(twins, None)


def _gather_s(measured: Sequence[MeasuredSetting], plain: Sequence[MeasuredSetting], link) -> float:
    """What gathering takes beyond its bytes, the median over sparse and quantised methods."""
    beyond = []
    for one in measured:
        twin = _plain_twin(one, plain)
        if twin is None or method(one.setting.method).family not in GATHERED:
            continue
        full_s = twin.parts_s["tensor"] / _reductions(twin)
        mine_s = (one.parts_s["tensor"] - full_s * (_reductions(one) - one.num_encoded)) / one.num_encoded
        ring_s = collective_time_s(
            Collective.ALL_GATHER, Algorithm.RING, one.setting.tp, one.setting.encoded_bytes(), link
        )
        beyond.append(mine_s - ring_s)
    return max(0.0, median(beyond)) if beyond else 0.0


def _handover_s(plain: Sequence[MeasuredSetting], link) -> float:
    """What passing one message on takes beyond its bytes."""
    beyond = [
        one.parts_s["waiting_and_pipeline"] / (2 * (one.setting.pp - 1)) - link.time_s(one.setting.activation_bytes())
        for one in plain
        if one.setting.pp > 1
    ]
    return max(0.0, median(beyond)) if beyond else 0.0


def _codec(
    family: Family, measured: Sequence[MeasuredSetting], plain: Sequence[MeasuredSetting]
) -> tuple[CodecCost, _Line]:
    """Fit encoding and decoding to elements and to what is sent; what neither explains is launching."""
    mine = [one for one in measured if method(one.setting.method).family is family]
    gathered = [one.setting.tp if family in GATHERED else 1 for one in mine]
    encode_s = [one.parts_s["encode"] / one.num_encoded for one in mine]
    decode_s = [one.parts_s["decode"] / one.num_encoded for one in mine]
    columns = [[one.elements, one.setting.sent_elements(), 1.0] for one in mine]
    encode = _line(columns, encode_s)
    decode = _line([[n * a, n * b, c] for n, (a, b, c) in zip(gathered, columns, strict=True)], decode_s)
    backward_s = [_more_backward_s(one, plain) for one in mine]
    coding_s = [a + b for a, b in zip(encode_s, decode_s, strict=True)]
    ratio = max(0.0, median(more / both for more, both in zip(backward_s, coding_s, strict=True)))
    cost = CodecCost(
        encode_s_per_element=encode.coefficients[0],
        encode_s_per_sent=encode.coefficients[1],
        decode_s_per_element=decode.coefficients[0],
        decode_s_per_sent=decode.coefficients[1],
        launch_s=encode.coefficients[2] + decode.coefficients[2],
        backward_ratio=ratio if family is Family.AUTOENCODER else 0.0,
    )
    fitted_s = np.asarray(encode.fitted) + np.asarray(decode.fitted)
    return cost, _judged((), np.asarray(coding_s), fitted_s)


def _more_backward_s(one: MeasuredSetting, plain: Sequence[MeasuredSetting]) -> float:
    """What the backward pass of one encoded reduction takes beyond that of a plain one, communication apart."""
    twin = _plain_twin(one, plain)
    if twin is None:
        return 0.0
    mine, theirs = (each.parts_s["backward"] - each.parts_s["tensor_backward"] for each in (one, twin))
    return max(0.0, mine - theirs) / one.num_encoded
