"""This machine's rates, fitted to measured iterations, and figure 5: how well they predict others, and where codes pay.

Section 4.7: computation is linear in FLOPs, communication in bytes, coding in elements. Least squares of relative
errors, no coefficient below zero. Seconds, bytes, elements, FLOPs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean, median
from types import MappingProxyType

import numpy as np

from workbench.cluster import Algorithm, Collective, Fit, Link, Sample, collective_time_s, fit
from workbench.launch import Ranks
from workbench.study.rows import ratios, value_row

from ..cost import CodecCost, FittedMachine, Setting, break_even, iteration_time, speedup_at
from ..method import Family, method
from .iterations import BASELINE, measure_iterations, measure_on
from .links import Calibration, ranks_at_share
from .variants import timed

__all__ = [
    "FitStudy",
    "Fitted",
    "MeasuredSetting",
    "break_even_rows",
    "fit_machine",
    "measure_fit",
    "prediction_rows",
    "settings_of",
]

LEARNED = "A1"  # whose break-even is checked
S_PER_MS = 1e-3
REDUCTIONS_PER_LAYER = 2  # forward; as many backward
GATHERED = (Family.TOP_K, Family.RANDOM_K, Family.QUANTIZATION)
Rows = list[dict]


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredSetting:
    """One setting with the medians of its parts."""

    setting: Setting  # that was run
    parts_s: Mapping[str, float]  # quantity without its unit, such as "forward", to seconds
    keys: Mapping  # of its rows

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
    """A machine and how well its lines fit."""

    machine: FittedMachine  # for `cost.iteration_time` and `cost.break_even`
    r_squared: Mapping[str, float]  # of "computation", "communication", and "coding" of each family
    residuals: Mapping[str, tuple[float, ...]]  # of the same, relative: measured over fitted, minus 1
    communication: Fit  # of the link


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    """A linear fit and how good it is."""

    coefficients: tuple[float, ...]  # none negative
    fitted: tuple[float, ...]  # seconds on the line
    r_squared: float  # 1 less the share of the weighted variation that the line leaves
    residuals: tuple[float, ...]  # measured over fitted, minus 1


def settings_of(rows: Iterable[Mapping], **sizes) -> list[MeasuredSetting]:
    """Put rows of `measure_on` together, setting by setting; `sizes` are fields of Setting that are no keys of rows."""
    parts_of: dict[tuple, dict[str, float]] = {}
    names = ("method", "tp", "pp", "nvlink", "micro_batch", "sequence", "hidden")
    for row in rows:
        parts_s = parts_of.setdefault(tuple((name, row[name]) for name in names if name in row), {})
        if row["unit"] == "ms" and "boundary" not in row:
            parts_s[row["quantity"].removesuffix("_ms")] = S_PER_MS * row["value"]
    return [_measured(dict(keys), parts_s, sizes) for keys, parts_s in parts_of.items()]


def _measured(keys: Mapping, parts_s: Mapping, sizes: Mapping) -> MeasuredSetting:
    fields = {name: value for name, value in keys.items() if name not in ("method", "nvlink")}
    return MeasuredSetting(setting=timed(keys["method"], **{**sizes, **fields}).setting, parts_s=parts_s, keys=keys)


def fit_machine(measured: Sequence[MeasuredSetting]) -> Fitted:
    """Fit this machine's rates to settings over one link, with TP 2 or more, of several sizes, "w/o" among them."""
    plain = [one for one in measured if one.setting.method == BASELINE]
    if not plain:
        raise ValueError(
            f"measured has no {BASELINE!r}; it must be there, computation and communication are fitted to it"
        )
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
    over_forward = []
    for one in plain:
        backward_s = one.parts_s["backward"] - one.parts_s["tensor_backward"] - _reductions(one) * waits_s
        over_forward.append(backward_s / one.forward_compute_s)
    return max(0.0, median(over_forward))


def _plain_twin(one: MeasuredSetting, plain: Iterable[MeasuredSetting]) -> MeasuredSetting | None:
    """Find the uncompressed iteration of the same sizes."""
    return next((other for other in plain if other.keys == {**one.keys, "method": BASELINE}), None)


def _gather_s(measured: Sequence[MeasuredSetting], plain: Sequence[MeasuredSetting], link) -> float:
    """Return the seconds of gathering beyond its bytes, the median over sparse and quantised methods."""
    beyond = []
    for one in measured:
        twin = _plain_twin(one, plain)
        if twin is None or method(one.setting.method).family not in GATHERED:
            continue
        full_s = twin.parts_s["tensor"] / _reductions(twin)
        encoded_s = (one.parts_s["tensor"] - full_s * (_reductions(one) - one.num_encoded)) / one.num_encoded
        ring_s = collective_time_s(
            Collective.ALL_GATHER, Algorithm.RING, one.setting.tp, one.setting.encoded_bytes(), link
        )
        beyond.append(encoded_s - ring_s)
    return max(0.0, median(beyond)) if beyond else 0.0


def _handover_s(plain: Sequence[MeasuredSetting], link) -> float:
    """Return the seconds of passing one message on beyond its bytes."""
    beyond = [
        one.parts_s["waiting_and_pipeline"] / (2 * (one.setting.pp - 1)) - link.time_s(one.setting.activation_bytes())
        for one in plain
        if one.setting.pp > 1
    ]
    return max(0.0, median(beyond)) if beyond else 0.0


def _codec(
    family: Family, measured: Sequence[MeasuredSetting], plain: Sequence[MeasuredSetting]
) -> tuple[CodecCost, _Line]:
    """Fit encoding and decoding to elements and to sent elements; the constant is launching."""
    coded = [one for one in measured if method(one.setting.method).family is family]
    gathered = [one.setting.tp if family in GATHERED else 1 for one in coded]
    encode_s = [one.parts_s["encode"] / one.num_encoded for one in coded]
    decode_s = [one.parts_s["decode"] / one.num_encoded for one in coded]
    columns = [[one.elements, one.setting.sent_elements(), 1.0] for one in coded]
    encode = _line(columns, encode_s)
    decode = _line([[n * a, n * b, c] for n, (a, b, c) in zip(gathered, columns, strict=True)], decode_s)
    backward_s = [_more_backward_s(one, plain) for one in coded]
    coding_s = [a + b for a, b in zip(encode_s, decode_s, strict=True)]
    ratio = max(0.0, median(ratios(backward_s, coding_s)))
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
    """Return the backward seconds of one encoded reduction beyond those of a plain one, communication apart."""
    twin = _plain_twin(one, plain)
    if twin is None:
        return 0.0
    coded_s, plain_s = (each.parts_s["backward"] - each.parts_s["tensor_backward"] for each in (one, twin))
    return max(0.0, coded_s - plain_s) / one.num_encoded


@dataclass(frozen=True, kw_only=True, slots=True)
class FitStudy:
    """A fitted machine and how far it carries."""

    rows: Rows  # errors, goodness of fit, predicted beside measured iterations and speedups
    fitted: Fitted  # the machine
    calibration: Calibration  # of the link
    trace: dict  # Chrome trace of one iteration


def measure_fit(
    *,
    fit_on: Sequence[Mapping],
    held_out: Sequence[Mapping],
    faster: Sequence[float],
    share: float,
    num_hosts: int,
    num_iterations: int,
    seed: int = 0,
    device: str | None = None,
    **sizes,
) -> FitStudy:
    """Fit a machine to some measured settings, predict the others, and the gain of a code over `faster` links.

    A setting holds methods, meshes, micro_batch, sequence and hidden; `sizes` are further fields of Setting.
    """
    shape = _shape(fit_on[0])
    common = {"num_iterations": num_iterations, "seed": seed, **sizes}
    where = {"num_hosts": num_hosts, "device": device}
    with ranks_at_share(share, seed=seed, **where, **shape, **sizes) as (ranks, calibration):
        seen, trace = _measure(ranks, fit_on, common)
        unseen, _ = _measure(ranks, held_out, common)
    fitted = fit_machine(settings_of(seen, **sizes))
    rows = [*_quality_rows(fitted), small_fit_row(settings_of(seen, **sizes))]
    rows += prediction_rows(settings_of(seen, **sizes), fitted, "fitted")
    rows += prediction_rows(settings_of(unseen, **sizes), fitted, "held out")
    rows += [row for row in seen + unseen if row["quantity"] == "speedup" and row["method"] != BASELINE]
    setting = timed(LEARNED, tp=4, pp=1, **shape, **sizes).setting
    over_links = _measure_links(calibration.link, faster, {**where, **shape, **common})
    rows += break_even_rows(fitted.machine, setting, calibration.link, over_links)
    return FitStudy(rows=rows, fitted=fitted, calibration=calibration, trace=trace)


def _shape(one: Mapping) -> dict:
    return {name: one[name] for name in ("micro_batch", "sequence", "hidden")}


def _measure(ranks: Ranks, wanted: Sequence[Mapping], common: Mapping) -> tuple[Rows, dict]:
    rows, trace = [], {}
    for one in wanted:
        meshes = [tuple(mesh) for mesh in one["meshes"]]
        measured = measure_on(ranks, one["methods"], meshes, keys=_shape(one), **_shape(one), **common)
        rows, trace = rows + measured.rows, trace or measured.trace
    return rows, trace


def _quality_rows(fitted: Fitted) -> Rows:
    machine = fitted.machine
    rows = [value_row("r_squared", value, of=name) for name, value in fitted.r_squared.items()]
    return [
        *rows,
        value_row("flops_per_s", machine.flops_per_s, "FLOP/s"),
        value_row("link_bandwidth", machine.link.bandwidth_bytes_per_s, "byte/s"),
        value_row("link_latency", machine.link.latency_s, "s"),
        value_row("layer_launch", machine.layer_launch_s, "s"),
        value_row("backward_over_forward", machine.backward_over_forward),
    ]


def small_fit_row(measured: Sequence[MeasuredSetting]) -> Mapping:
    """Return the time at the largest hidden size, predicted with alpha of the smallest one, over the measured time."""
    plain = sorted((one for one in measured if one.setting.method == BASELINE), key=lambda one: one.setting.hidden)
    small, large = plain[0], plain[-1]
    flops = [one.setting.workload.layer_flops / one.setting.tp * one.setting.layers for one in (small, large)]
    alpha = small.forward_compute_s / flops[0]
    keys = {"fitted_at": small.setting.hidden, "predicted_at": large.setting.hidden}
    return value_row("small_fit_error", alpha * flops[1] / large.forward_compute_s, **keys)


def prediction_rows(measured: Sequence[MeasuredSetting], fitted: Fitted, settings: str) -> Rows:
    """Put predicted iterations beside measured ones; `settings` is a key of all rows, such as "held out"."""
    rows, errors = [], []
    for one in measured:
        predicted_s, measured_s = iteration_time(one.setting, fitted.machine).total_s, one.parts_s["iteration"]
        errors.append(abs(predicted_s / measured_s - 1))
        keys = {**one.keys, "settings": settings}
        rows.append(value_row("predicted_ms", 1e3 * predicted_s, "ms", **keys))
        rows.append(value_row("measured_ms", 1e3 * measured_s, "ms", **keys))
    return [*rows, value_row("median_error", median(errors), settings=settings)]


def _measure_links(link: Link, faster: Sequence[float], common: Mapping) -> dict[float, dict]:
    """Measure a learned code at TP 4 over faster and faster links: the row of its speedup by factor of the rate."""
    found = {}
    for factor in faster:
        over = replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * factor)
        rows = measure_iterations([BASELINE, LEARNED], [(4, 1)], link=over, **common).rows
        (found[factor],) = [row for row in rows if row["quantity"] == "speedup" and row["method"] == LEARNED]
    return found


def break_even_rows(machine: FittedMachine, setting: Setting, link: Link, over_links: Mapping[float, Mapping]) -> Rows:
    """Put the measured gain of a code over faster links beside the gain by a machine's model.

    Args:
        machine: Fitted over `link`.
        setting: Of the code.
        link: The slowest.
        over_links: By factor of its rate, the measured speedup: {"value", "low", "high"}.

    Returns:
        Rows by factor: both speedups; saved_share_error, predicted less measured share of the iteration that the code
        saves; same_side, 1 or 0, where the measured interval does not hold a speedup of 1: whether both say that the
        code pays, or that it does not. And the predicted break_even_bandwidth.
    """
    fitted_over_real = machine.link.bandwidth_bytes_per_s / link.bandwidth_bytes_per_s
    rows, keys = [], {"method": setting.method, "tp": setting.tp, "pp": setting.pp}
    for factor, measured in over_links.items():
        at, gain = {**keys, "faster": factor}, measured["value"]
        predicted = speedup_at(machine, setting, link.bandwidth_bytes_per_s * factor * fitted_over_real)
        rows.append(value_row("speedup_over_link", gain, low=measured["low"], high=measured["high"], **at))
        rows.append(value_row("predicted_speedup_over_link", predicted, **at))
        rows.append(value_row("saved_share_error", 1 / gain - 1 / predicted, **at))
        if not measured["low"] <= 1 <= measured["high"]:
            rows.append(value_row("same_side", int((predicted > 1) == (gain > 1)), **at))
    point = break_even(machine, setting).bandwidth_bytes_per_s
    return [*rows, value_row("break_even_bandwidth", point, "byte/s", **keys)]
