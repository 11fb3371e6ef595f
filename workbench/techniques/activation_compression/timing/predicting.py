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

from ..cost import break_even, iteration_time
from ..cost.break_even import speedup_at
from .fitting import Fitted, MeasuredSetting, fit_machine, settings_of
from .links import Calibration, link_for_share
from .study import BASELINE, measure_iterations
from .variants import timed

__all__ = ["FitStudy", "measure_fit"]

Rows = list[dict]


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
        sizes: further fields of Setting.
    """
    first = fit_on[0]
    shape = {name: first[name] for name in ("micro_batch", "sequence", "hidden")}
    calibration = link_for_share(share, num_hosts=num_hosts, seed=seed, **shape, **sizes)
    common = {"num_hosts": num_hosts, "num_iterations": num_iterations, "seed": seed}
    seen, trace = _measure(fit_on, calibration.link, common, sizes)
    unseen, _ = _measure(held_out, calibration.link, common, sizes)
    fitted = fit_machine(settings_of(seen, **sizes))
    rows = _quality_rows(fitted)
    rows += _prediction_rows(settings_of(seen, **sizes), fitted, "fitted")
    rows += _prediction_rows(settings_of(unseen, **sizes), fitted, "held out")
    rows += [row for row in seen + unseen if row["quantity"] == "speedup" and row["method"] != BASELINE]
    rows += _break_even_rows(fitted, calibration.link, faster, first, common, sizes)
    return FitStudy(rows=rows, fitted=fitted, calibration=calibration, trace=trace)


def _measure(wanted: Sequence[Mapping], link: Link, common: Mapping, sizes: Mapping) -> tuple[Rows, dict]:
    rows, trace = [], {}
    for one in wanted:
        shape = {name: one[name] for name in ("micro_batch", "sequence", "hidden")}
        meshes = [tuple(mesh) for mesh in one["meshes"]]
        measured = measure_iterations(one["methods"], meshes, link=link, keys=shape, **common, **shape, **sizes)
        rows, trace = rows + measured.rows, trace or measured.trace
    return rows, trace


def _quality_rows(fitted: Fitted) -> Rows:
    machine = fitted.machine
    rows = [{"quantity": "r_squared", "of": name, "value": value, "unit": "1"} for name, value in fitted.r_squared.items()]
    constants = {
        "flops_per_s": (machine.flops_per_s, "FLOP/s"), "link_bandwidth": (machine.link.bandwidth_bytes_per_s, "byte/s"),
        "link_latency": (machine.link.latency_s, "s"), "layer_launch": (machine.layer_launch_s, "s"),
        "backward_over_forward": (machine.backward_over_forward, "1"),
    }  # fmt: skip
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


def _break_even_rows(fitted: Fitted, link: Link, faster: Sequence[float], first: Mapping, common: Mapping, sizes: Mapping) -> Rows:
    """Measure a learned code over faster links beside what the fitted machine says of them."""
    shape = {name: first[name] for name in ("micro_batch", "sequence", "hidden")}
    setting = timed("A1", tp=4, pp=1, **shape, **sizes).setting
    fitted_over_real = fitted.machine.link.bandwidth_bytes_per_s / link.bandwidth_bytes_per_s
    rows, errors = [], []
    for factor in faster:
        rate = link.bandwidth_bytes_per_s * factor
        over = replace(link, bandwidth_bytes_per_s=rate)
        measured = measure_iterations([BASELINE, "A1"], [(4, 1)], link=over, **common, **shape, **sizes)
        (found,) = [row for row in measured.rows if row["quantity"] == "speedup" and row["method"] == "A1"]
        predicted = speedup_at(fitted.machine, setting, rate * fitted_over_real)
        errors.append(abs(predicted / found["value"] - 1))
        keys = {"method": "A1", "tp": 4, "pp": 1, "faster": factor}
        spread = {name: found[name] for name in ("value", "low", "high")}
        rows.append({"quantity": "speedup_over_link", **keys, **spread, "unit": "1"})
        rows.append({"quantity": "predicted_speedup_over_link", **keys, "value": predicted, "unit": "1"})
    point = break_even(fitted.machine, setting).bandwidth_bytes_per_s
    rows.append({"quantity": "break_even_bandwidth", "method": "A1", "tp": 4, "pp": 1, "value": point, "unit": "byte/s"})
    return [*rows, {"quantity": "median_error", "settings": "faster links", "value": median(errors), "unit": "1"}]
