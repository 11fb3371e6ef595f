"""This machine's rates, fitted to measured iterations, and figure 5: how well they predict others, and where codes pay.

Section 4.7: computation is linear in FLOPs, communication in bytes, coding in elements. Least squares of relative
errors, no coefficient below zero. Seconds, bytes, elements, FLOPs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy.optimize import nnls

from workbench.cluster import Algorithm, CodecCost, Collective, FittedMachine, Link, Sample, collective_time_s, fit
from workbench.launch import Ranks
from workbench.rows import ratios, value_row
from workbench.study.timing import open_ranks

from .. import cost
from ..cost import ALL_REDUCES_PER_LAYER, SUMMABLE, Setting, iteration_time, read_variant
from ..method import Family
from .iterations import BASELINE, PRELOAD, Calibration, measure_on, ranks_at_share, turns_of

__all__ = ["FitStudy", "Fitted", "MeasuredSetting", "break_even_rows", "fit_line", "fit_machine", "measure_fit"]
__all__ += ["prediction_rows", "r_squared", "settings_of", "small_fit_row"]

LEARNED = "A1"  # whose break-even is checked
S_PER_MS = 1e-3
SHORTEST_S = 1e-9  # a shorter time weighs as much as this one
SIZES = ("micro_batch", "sequence", "hidden")
Rows = list[dict]


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredSetting:
    """One setting with the medians of its parts."""

    setting: Setting  # that was run
    parts_s: Mapping[str, float]  # quantity without its unit, such as "forward", to seconds
    plain_s: Mapping[str, float] | None  # likewise of the uncompressed iteration of these sizes, if it was measured
    keys: Mapping  # key columns of its rows

    @property
    def forward_compute_s(self) -> float:
        """Forward, less coding and communication."""
        inside = ("encode", "decode", "tensor", "tensor_waiting")
        return self.parts_s["forward"] - sum(self.parts_s[part] for part in inside)

    @property
    def num_reductions(self) -> int:
        """Reductions of a forward pass."""
        return ALL_REDUCES_PER_LAYER * self.setting.layers

    @property
    def num_encoded(self) -> int:
        """Reductions that travel encoded."""
        return ALL_REDUCES_PER_LAYER * self.setting.compressed_layers


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """A machine and how well its lines fit."""

    machine: FittedMachine  # for `cost.iteration_time` and `cost.break_even_bytes_per_s`
    r_squared: Mapping[str, float]  # by "computation", "communication", and "coding" of each family


def settings_of(rows: Iterable[Mapping], **sizes) -> list[MeasuredSetting]:
    """Put rows of `measure_on` together, setting by setting; `sizes` are fields of Setting that are no keys of rows."""
    parts_of: dict[tuple, dict[str, float]] = {}
    names = ("method", "tp", "pp", "nvlink", *SIZES)
    for row in rows:
        parts_s = parts_of.setdefault(tuple((name, row[name]) for name in names if name in row), {})
        if row["unit"] == "ms" and "boundary" not in row:
            parts_s[row["quantity"].removesuffix("_ms")] = S_PER_MS * row["value"]
    settings = []
    for named, parts_s in parts_of.items():
        keys = dict(named)
        fields = {name: value for name, value in named if name not in ("method", "nvlink")}
        setting, _ = read_variant(keys["method"], **{**sizes, **fields})
        plain_s = parts_of.get(tuple((keys | {"method": BASELINE}).items()))
        settings.append(MeasuredSetting(setting=setting, parts_s=parts_s, plain_s=plain_s, keys=keys))
    return settings


def fit_machine(measured: Sequence[MeasuredSetting]) -> Fitted:
    """Fit this machine's rates to settings over one link, with TP 2 or more, of several sizes, "w/o" among them."""
    plain = [run for run in measured if run.setting.method == BASELINE]
    if not plain:
        rule = "it must be there, computation and communication are fitted to it"
        raise ValueError(f"measured has no {BASELINE!r}; {rule}")

    # A layer's forward computation takes the FLOPs of a rank, the elements, and a constant.
    columns = [[run.setting.workload.layer_flops / run.setting.tp, run.setting.workload.elements, 1.0] for run in plain]
    layer_s = [run.forward_compute_s / run.setting.layers for run in plain]
    (per_flop, per_element, per_layer), line_s = fit_line(columns, layer_s)
    if not per_flop > 0:
        (per_flop, per_layer), line_s = fit_line([[flops, 1.0] for flops, _, _ in columns], layer_s)
        per_element = 0.0

    # The link carries the full-size all-reduces, forward and backward.
    communication = fit(
        Sample(
            message_bytes=run.setting.activation_bytes(),
            time_s=run.parts_s[part] / run.num_reductions,
            num_ranks=run.setting.tp,
            collective=Collective.ALL_REDUCE,
            algorithm=Algorithm.RING,
        )
        for run in plain
        for part in ("tensor", "tensor_backward")
    )
    link = communication.link("fitted to measured all-reduces on this machine's shaped hosts")
    waits_s = fmean(run.parts_s["tensor_waiting"] / run.num_reductions for run in plain)
    backward = []
    for run in plain:
        backward_s = run.parts_s["backward"] - run.parts_s["tensor_backward"] - run.num_reductions * waits_s
        backward.append(backward_s / run.forward_compute_s)
    handovers_s = [
        run.parts_s["waiting_and_pipeline"] / (2 * (run.setting.pp - 1)) - link.time_s(run.setting.activation_bytes())
        for run in plain
        if run.setting.pp > 1
    ]
    gathers_s = _gathers_s(measured, link)
    goodness = {"computation": r_squared(layer_s, line_s)}
    codecs: dict[Hashable, CodecCost] = {}
    for family in dict.fromkeys(run.setting.family for run in measured if run.setting.family is not Family.NONE):
        coded = [run for run in measured if run.setting.family is family]
        codecs[family], goodness[f"coding, {family.value}"] = _fit_codec(family, coded)
    machine = FittedMachine(
        name="this machine",
        source="fitted to measured iterations",
        flops_per_s=1 / per_flop,
        link=link,
        replicated_s_per_element=per_element,
        layer_launch_s=per_layer,
        collective_launch_s=waits_s,
        overlap_power=1,
        backward_over_forward=max(0.0, median(backward)),
        gather_s=max(0.0, median(gathers_s)) if gathers_s else 0.0,
        handover_s=max(0.0, median(handovers_s)) if handovers_s else 0.0,
        optimizer_s=fmean(run.parts_s["optimizer"] for run in measured),
        codecs=MappingProxyType(codecs),
    )
    return Fitted(machine=machine, r_squared=goodness | {"communication": communication.r_squared})


def _gathers_s(measured: Sequence[MeasuredSetting], link: Link) -> list[float]:
    """Return the seconds of gathering sparse and quantised messages beyond those of their bytes."""
    gathers_s = []
    for run in measured:
        if run.plain_s is not None and run.setting.family not in SUMMABLE:
            full_s = run.plain_s["tensor"] / run.num_reductions
            encoded_s = (run.parts_s["tensor"] - full_s * (run.num_reductions - run.num_encoded)) / run.num_encoded
            ring = Collective.ALL_GATHER, Algorithm.RING, run.setting.tp, run.setting.encoded_bytes()
            gathers_s.append(encoded_s - collective_time_s(*ring, link))
    return gathers_s


def _fit_codec(family: Family, coded: Sequence[MeasuredSetting]) -> tuple[CodecCost, float]:
    """Fit encoding and decoding to elements and to sent elements; the constant is launching. Return R² as well."""
    columns = [[run.setting.workload.elements, run.setting.sent_elements(), 1.0] for run in coded]
    messages = [1 if family in SUMMABLE else run.setting.tp for run in coded]  # decoded for each one sent
    decoded = [[count * a, count * b, c] for count, (a, b, c) in zip(messages, columns, strict=True)]
    encode_s, decode_s = ([run.parts_s[part] / run.num_encoded for run in coded] for part in ("encode", "decode"))
    (encode, encode_sent, encode_launch_s), encode_line_s = fit_line(columns, encode_s)
    (decode, decode_sent, decode_launch_s), decode_line_s = fit_line(decoded, decode_s)
    coding_s = [a + b for a, b in zip(encode_s, decode_s, strict=True)]
    backward_s = []  # what an encoded reduction adds to a plain one, communication apart
    for run in coded:
        parts_s = (run.parts_s, run.plain_s or run.parts_s)
        coded_s, plain_s = (part["backward"] - part["tensor_backward"] for part in parts_s)
        backward_s.append(max(0.0, coded_s - plain_s) / run.num_encoded)
    ratio = max(0.0, median(ratios(backward_s, coding_s))) if family is Family.AUTOENCODER else 0.0
    codec = CodecCost(
        encode_s_per_element=encode,
        encode_s_per_sent=encode_sent,
        decode_s_per_element=decode,
        decode_s_per_sent=decode_sent,
        launch_s=encode_launch_s + decode_launch_s,
        backward_ratio=ratio,
    )
    return codec, r_squared(coding_s, encode_line_s + decode_line_s)


def fit_line(columns: Sequence[Sequence[float]], seconds: Sequence[float]) -> tuple[tuple[float, ...], np.ndarray]:
    """Fit seconds = columns · coefficients, none negative, to the least relative errors; return both sides."""
    table, times_s = np.asarray(columns, dtype=float), np.asarray(seconds, dtype=float)
    scaled = table / np.maximum(times_s, SHORTEST_S)[:, None]
    size = np.abs(scaled).max(axis=0)
    size[size == 0] = 1
    coefficients = nnls(scaled / size, np.ones(len(scaled)))[0] / size
    return tuple(coefficients.tolist()), table @ coefficients


def r_squared(seconds: Sequence[float], fitted_s: np.ndarray) -> float:
    """Return the share of the times' relative variation around their mean that a line explains."""
    times_s = np.asarray(seconds)
    squares = 1 / np.maximum(times_s, SHORTEST_S) ** 2
    around_mean = np.sum(squares * (times_s - np.average(times_s, weights=squares)) ** 2)
    around_line = np.sum(squares * (times_s - fitted_s) ** 2)
    return float(1 - around_line / around_mean) if around_mean > 0 else float("nan")


@dataclass(frozen=True, kw_only=True, slots=True)
class FitStudy:
    """A fitted machine and how far it carries."""

    rows: Rows  # errors, goodness of fit, predicted beside measured iterations and speedups
    fitted: Fitted  # the machine
    calibration: Calibration  # how the link was found
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
    **sizes,
) -> FitStudy:
    """Fit a machine to some measured settings, predict the others, and the gain of a code over `faster` links.

    A setting holds methods, meshes, micro_batch, sequence and hidden; `sizes` are further fields of Setting.
    """
    shape = {name: fit_on[0][name] for name in SIZES}
    common = {"num_iterations": num_iterations, "seed": seed, **sizes}
    for asked in (*fit_on, *held_out):
        turns_of(asked["methods"], num_iterations)
    with ranks_at_share(share, num_hosts=num_hosts, seed=seed, **shape, **sizes) as (ranks, calibration):
        seen, trace = _measure(ranks, fit_on, common)
        unseen, _ = _measure(ranks, held_out, common)
    fitted_to = settings_of(seen, **sizes)
    fitted = fit_machine(fitted_to)
    machine, link = fitted.machine, calibration.link
    rows = [value_row("r_squared", value, of=name) for name, value in fitted.r_squared.items()]
    rows += [
        value_row("flops_per_s", machine.flops_per_s, "FLOP/s"),
        value_row("link_bandwidth", machine.link.bandwidth_bytes_per_s, "byte/s"),
        value_row("link_latency", machine.link.latency_s, "s"),
        value_row("layer_launch", machine.layer_launch_s, "s"),
        value_row("backward_over_forward", machine.backward_over_forward),
        small_fit_row(fitted_to),
    ]
    rows += prediction_rows(fitted_to, fitted, "fitted")
    rows += prediction_rows(settings_of(unseen, **sizes), fitted, "held out")
    rows += [row for row in seen + unseen if row["quantity"] == "speedup" and row["method"] != BASELINE]
    over_links = {}  # a learned code at TP 4 over faster and faster links: the row of its speedup
    for factor in faster:
        over = replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * factor)
        with open_ranks(4, link=over, num_hosts=num_hosts, preload=PRELOAD) as ranks:
            timed = measure_on(ranks, [BASELINE, LEARNED], [(4, 1)], **shape, **common).rows
        (over_links[factor],) = [row for row in timed if row["quantity"] == "speedup" and row["method"] == LEARNED]
    rows += break_even_rows(machine, Setting(method=LEARNED, tp=4, pp=1, **shape, **sizes), link, over_links)
    return FitStudy(rows=rows, fitted=fitted, calibration=calibration, trace=trace)


def _measure(ranks: Ranks, settings: Sequence[Mapping], common: Mapping) -> tuple[Rows, dict]:
    rows: Rows = []
    for asked in settings:
        shape = {name: asked[name] for name in SIZES}
        measured = measure_on(ranks, asked["methods"], asked["meshes"], keys=shape, **shape, **common)
        rows += measured.rows
    return rows, measured.trace


def small_fit_row(measured: Sequence[MeasuredSetting]) -> dict[str, Any]:
    """Return the time at the largest hidden size, predicted with alpha of the smallest one, over the measured time."""
    plain = sorted((run for run in measured if run.setting.method == BASELINE), key=lambda run: run.setting.hidden)
    small, large = plain[0], plain[-1]
    flops = [run.setting.workload.layer_flops / run.setting.tp * run.setting.layers for run in (small, large)]
    alpha = small.forward_compute_s / flops[0]
    error = alpha * flops[1] / large.forward_compute_s
    return value_row("small_fit_error", error, fitted_at=small.setting.hidden, predicted_at=large.setting.hidden)


def prediction_rows(measured: Sequence[MeasuredSetting], fitted: Fitted, settings: str) -> Rows:
    """Put predicted iterations beside measured ones; `settings` is a key of all rows, such as "held out"."""
    rows, errors = [], []
    for run in measured:
        predicted_s, measured_s = iteration_time(run.setting, fitted.machine).total_s, run.parts_s["iteration"]
        errors.append(abs(predicted_s / measured_s - 1))
        keys = {**run.keys, "settings": settings}
        rows.append(value_row("predicted_ms", 1e3 * predicted_s, "ms", **keys))
        rows.append(value_row("measured_ms", 1e3 * measured_s, "ms", **keys))
    return [*rows, value_row("median_error", median(errors), settings=settings)]


def break_even_rows(machine: FittedMachine, setting: Setting, link: Link, over_links: Mapping[float, Mapping]) -> Rows:
    """Put the measured gain of a code over faster links beside the gain by the model of a machine, fitted over `link`.

    `over_links` is by factor of the link's rate the row of the measured speedup.

    Rows by factor: both speedups; saved_share_error, predicted less measured share of the iteration that the code
    saves; same_side, 1 or 0, where the measured interval does not hold a speedup of 1: whether both say that the code
    pays, or that it does not. And the predicted break_even_bandwidth.
    """
    fitted_over_real = machine.link.bandwidth_bytes_per_s / link.bandwidth_bytes_per_s
    rows: Rows = []
    keys: dict[str, Any] = {"method": setting.method, "tp": setting.tp, "pp": setting.pp}
    for factor, measured in over_links.items():
        at, gain = {**keys, "faster": factor}, measured["value"]
        predicted = cost.speedup_at(machine, setting, link.bandwidth_bytes_per_s * factor * fitted_over_real)
        rows.append(value_row("speedup_over_link", gain, low=measured["low"], high=measured["high"], **at))
        rows.append(value_row("predicted_speedup_over_link", predicted, **at))
        rows.append(value_row("saved_share_error", 1 / gain - 1 / predicted, **at))
        if not measured["low"] <= 1 <= measured["high"]:
            rows.append(value_row("same_side", int((predicted > 1) == (gain > 1)), **at))
    limit = cost.break_even_bytes_per_s(machine, setting)
    return [*rows, value_row("break_even_bandwidth", limit, "byte/s", **keys)]
