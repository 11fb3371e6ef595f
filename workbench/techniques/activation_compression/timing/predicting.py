"""Figure 5 on this machine: fit on some settings, predict the others, and check where compression begins to pay.

Source: "Does compressing activations help model parallel training?", section 4.7 and figure 5.
Simplified: settings are held out whole; none of their rounds is seen by the fit.
Left out: nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from workbench.cluster import Link
from workbench.launch import Ranks

from ..cost import FittedMachine, Setting, break_even, iteration_time, speedup_at
from .fitting import Fitted, MeasuredSetting, fit_machine, settings_of
from .links import Calibration, ranks_at_share
from .study import BASELINE, measure_iterations, measure_on
from .variants import timed

__all__ = ["FitStudy", "break_even_rows", "measure_fit"]

Rows = list[dict]
LEARNED = "A1"  # whose break-even is checked


@dataclass(frozen=True, kw_only=True, slots=True)
class FitStudy:
    """What was fitted and how far it carries.

    Attributes:
        rows: errors, goodness of fit, predicted beside measured iterations and speedups.
        fitted: the machine.
        calibration: of the link.
        trace: Chrome trace of one iteration.
    """

    rows: Rows
    fitted: Fitted
    calibration: Calibration
    trace: dict


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
    """Measure, fit, predict.

    Args:
        fit_on: settings the machine is fitted to: {"methods", "meshes", "micro_batch", "sequence", "hidden"}.
        held_out: settings it predicts, likewise.
        faster: factors by which the link is made faster to measure where a learned code stops paying.
        share: of an iteration that forward tensor communication takes over the link.
        num_hosts: that the ranks are spread over.
        num_iterations: of each method.
        seed: of weights and random methods.
        device: "cpu" or "cuda"; None takes WORKBENCH_DEVICE, else "cpu".
        sizes: further fields of Setting.
    """
    shape = _shape(fit_on[0])
    common = {"num_iterations": num_iterations, "seed": seed, **sizes}
    where = {"num_hosts": num_hosts, "device": device}
    with ranks_at_share(share, seed=seed, **where, **shape, **sizes) as (ranks, calibration):
        seen, trace = _measure(ranks, fit_on, common)
        unseen, _ = _measure(ranks, held_out, common)
    fitted = fit_machine(settings_of(seen, **sizes))
    rows = _quality_rows(fitted)
    rows += _prediction_rows(settings_of(seen, **sizes), fitted, "fitted")
    rows += _prediction_rows(settings_of(unseen, **sizes), fitted, "held out")
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
    lines = fitted.r_squared.items()
    rows = [{"quantity": "r_squared", "of": name, "value": value, "unit": "1"} for name, value in lines]
    constants = {
        "flops_per_s": (machine.flops_per_s, "FLOP/s"),
        "link_bandwidth": (machine.link.bandwidth_bytes_per_s, "byte/s"),
        "link_latency": (machine.link.latency_s, "s"),
        "layer_launch": (machine.layer_launch_s, "s"),
        "backward_over_forward": (machine.backward_over_forward, "1"),
    }
    return rows + [{"quantity": name, "value": value, "unit": unit} for name, (value, unit) in constants.items()]


def _prediction_rows(measured: Sequence[MeasuredSetting], fitted: Fitted, which: str) -> Rows:
    rows, errors = [], []
    for one in measured:
        predicted_s = iteration_time(one.setting, fitted.machine).total_s
        measured_s = one.parts_s["iteration"]
        errors.append(abs(predicted_s / measured_s - 1))
        keys = {**one.keys, "settings": which}
        rows.append({"quantity": "predicted_ms", **keys, "value": 1e3 * predicted_s, "unit": "ms"})
        rows.append({"quantity": "measured_ms", **keys, "value": 1e3 * measured_s, "unit": "ms"})
    return [*rows, {"quantity": "median_error", "settings": which, "value": median(errors), "unit": "1"}]


def _measure_links(link: Link, faster: Sequence[float], common: Mapping) -> dict[float, dict]:
    """Measure a learned code at TP 4 over faster and faster links: the row of its speedup by factor of the rate."""
    found = {}
    for factor in faster:
        over = replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * factor)
        rows = measure_iterations([BASELINE, LEARNED], [(4, 1)], link=over, **common).rows
        (found[factor],) = [row for row in rows if row["quantity"] == "speedup" and row["method"] == LEARNED]
    return found


def break_even_rows(machine: FittedMachine, setting: Setting, link: Link, over_links: Mapping[float, Mapping]) -> Rows:
    """Put what a code gained over faster links beside what a machine's model says of them.

    Args:
        machine: fitted over `link`.
        setting: of the code.
        link: the slowest.
        over_links: by factor of its rate, the measured speedup: {"value", "low", "high"}.

    Returns:
        Rows by factor: both speedups; saved_share_error, predicted less measured share of the iteration that the code
        saves; same_side, 1 or 0, where the measured interval does not hold a speedup of 1: whether both say that the
        code pays, or that it does not. And the predicted break_even_bandwidth.
    """
    fitted_over_real = machine.link.bandwidth_bytes_per_s / link.bandwidth_bytes_per_s
    rows, keys = [], {"method": setting.method, "tp": setting.tp, "pp": setting.pp}
    for factor, found in over_links.items():
        at = {**keys, "faster": factor}
        predicted = speedup_at(machine, setting, link.bandwidth_bytes_per_s * factor * fitted_over_real)
        spread = {name: found[name] for name in ("value", "low", "high")}
        rows.append({"quantity": "speedup_over_link", **at, **spread, "unit": "1"})
        rows.append({"quantity": "predicted_speedup_over_link", **at, "value": predicted, "unit": "1"})
        rows.append({"quantity": "saved_share_error", **at, "value": 1 / found["value"] - 1 / predicted, "unit": "1"})
        if not found["low"] <= 1 <= found["high"]:
            agree = (predicted > 1) == (found["value"] > 1)
            rows.append({"quantity": "same_side", **at, "value": int(agree), "unit": "1"})
    point = break_even(machine, setting).bandwidth_bytes_per_s
    return [*rows, {"quantity": "break_even_bandwidth", **keys, "value": point, "unit": "byte/s"}]
