"""Rows of figures 6.4, 6.5, 6.7, 6.8, 6.11 to 6.13 and 6.16: a worked example, and a model of the paper's machines."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from workbench.cluster import GIGABIT_BYTES_PER_S, FittedMachine, bisected
from workbench.models import Workload
from workbench.rows import value_row
from workbench.study.published import published_value
from workbench.timeline import Kind

from .. import cost
from ..method.interleaving import CheckpointTraffic, InterleavedIteration, Phase, Scheme, interleave, planning_spans_s
from ..method.recovery import Tier
from ..method.waste import gemini, high_frequency, strawman

__all__ = ["EXAMPLE_PHASES", "EXAMPLE_TRAFFIC", "STEP_S", "calibration_of", "example_iterations", "predict_ablation"]
__all__ += ["predict_frequencies", "predict_models", "predict_reductions", "predict_schemes", "predict_splits"]

Rows = list[dict[str, Any]]

STEP_S = 1.0  # a column of the grid; whole seconds, so that chunks come out whole as well
GIGABYTE = 1e9
SPAN_ROUNDING_S = 0.05  # half of the last digit of the longest span, 1.6 s
TERABIT_BYTES = 1e12 / 8
LARGEST_RATE, LEAST_RATE = 400.0, 10.0  # Gbit/s of copying, where the search for the paper's 3.5 % begins and ends
NUM_BISECTIONS = 12  # of the logarithm of that rate: to a thousandth
BUFFER_BYTES = 32 * 2**20  # that arrive, or are copied, in one step


# Two layers, and eight buffers' worth of a checkpoint through two buffers (figures 6.4 and 6.5).
_LAYER: dict[str, Any] = {"gather_s": STEP_S, "compute_s": 4 * STEP_S}
EXAMPLE_PHASES = (
    Phase(label="F0", **_LAYER),
    Phase(label="F1", **_LAYER),
    Phase(label="B1", **_LAYER, scatter_s=STEP_S, kind=Kind.BACKWARD),
    Phase(label="B0", **_LAYER, scatter_s=STEP_S, kind=Kind.BACKWARD),
)
EXAMPLE_TRAFFIC = CheckpointTraffic(
    checkpoint_bytes=8 * BUFFER_BYTES,
    bandwidth_bytes_per_s=BUFFER_BYTES / STEP_S,
    copy_bytes_per_s=BUFFER_BYTES / STEP_S,
    reserved_bytes=2 * BUFFER_BYTES,
    num_buffers=2,
    safety=1.0,
    free_bytes=2 * BUFFER_BYTES,
)


def example_iterations(schemes: Sequence[str]) -> list[InterleavedIteration]:
    """Return the example's iteration under each scheme."""
    return [interleave(EXAMPLE_PHASES, EXAMPLE_TRAFFIC, scheme, update_s=STEP_S) for scheme in schemes]


def predict_schemes(schemes: Sequence[str]) -> Rows:
    """Return the times and the memory of the example's iteration under each scheme."""
    baseline, *chosen = example_iterations([Scheme.BASELINE, *schemes])
    return [row for iteration in chosen for row in scheme_rows(iteration, baseline.iteration_s)]


def scheme_rows(iteration: InterleavedIteration, baseline_s: float) -> Rows:
    """Return the times and the memory of one iteration."""
    values = (
        ("iteration_s", iteration.iteration_s, "s"),
        ("overhead", 100 * (iteration.iteration_s / baseline_s - 1), "%"),
        ("idle_s", iteration.idle_s, "s"),
        ("buffer_bytes", iteration.buffer_bytes, "B"),
        ("out_of_memory", int(iteration.is_out_of_memory), "1"),
    )
    return [value_row(name, value, unit, scheme=str(iteration.scheme)) for name, value, unit in values]


def calibration_of() -> dict[str, object]:
    """Return what the model is fitted to and what came of it, as `record` takes it."""
    fitted = cost.calibrated()
    shares = {
        name: machine.flops_per_s / (machine.peak_flops_per_s or math.nan)
        for name, machine in (("A100", fitted.p4d), ("V100", fitted.p3dn))
    }
    return {
        "cells": [cell.keys() for cell in cost.CALIBRATION],
        "network_efficiency": fitted.p4d.network_share,
        "share_of_peak": shares,
        "p4d": fitted.p4d.as_record(),
        "p3dn": fitted.p3dn.as_record(),
    }


def predict_models(machine: str, models: Sequence[str]) -> Rows:
    """Predict iterations without checkpoints and with a checkpoint in every iteration."""
    fitted = {"p4d": cost.calibrated().p4d, "p3dn": cost.calibrated().p3dn}
    if machine not in fitted:
        raise ValueError(f"machine is {machine!r}; it must be 'p4d' or 'p3dn'")
    chosen, rows = fitted[machine], []
    for workload in map(cost.workload_named, models):
        keys: dict[str, Any] = {"model": workload.name}
        plain, sent = (cost.iteration_of(workload, chosen, scheme) for scheme in (Scheme.BASELINE, Scheme.GEMINI))
        for row in scheme_rows(plain, plain.iteration_s) + scheme_rows(sent, plain.iteration_s):
            rows += [keys | row] if row["quantity"] in ("iteration_s", "idle_s", "overhead") else []
        for scheme in (Scheme.BLOCKING, Scheme.UNPIPELINED):
            overhead = _overhead(workload, chosen, scheme)
            rows.append(value_row("overhead", overhead, "%", **keys, scheme=str(scheme)))
        rows.append(value_row("checkpoint_over_iteration", sent.checkpoint_s / plain.iteration_s, **keys))
        idle_s = math.fsum(planning_spans_s(cost.phases_of(workload, chosen)))
        rows.append(value_row("network_s", idle_s, "s", **keys, what="idle without checkpoints"))
        rows.append(value_row("network_s", sent.checkpoint_s, "s", **keys, what="needed by the checkpoint"))
    return rows


def predict_splits(model: str, network_shares: Sequence[float]) -> Rows:
    """Predict what checkpoints cost a model on 16 p4d by the share of the network's rate that messages reach.

    The iteration stays as long: what messages take less or more of it, computing takes more or less.
    """
    workload, p4d = cost.workload_named(model), cost.calibrated().p4d
    iteration_s = cost.baseline_s(workload, p4d)
    rows: Rows = []
    for share in network_shares:
        machine = cost.iterating_in(iteration_s, workload, replace(p4d, network_share=share))
        keys: dict[str, Any] = {"model": model, "network_share": share}
        rows.append(value_row("checkpoint_by_split_s", cost.checkpoint_s(workload, machine), "s", **keys))
        for scheme in (Scheme.BLOCKING, Scheme.UNPIPELINED, Scheme.GEMINI):
            overhead = _overhead(workload, machine, scheme)
            rows.append(value_row("overhead_by_split", overhead, "%", **keys, scheme=str(scheme)))
    return rows


def predict_reductions(model: str, networks: Sequence[float], nums_machines: Sequence[int]) -> Rows:
    """Predict how many times shorter checkpoints are than storage's (figure 6.11)."""
    workload, base = cost.workload_named(model), cost.calibrated().p4d
    rows: Rows = []
    for number in nums_machines:
        stored_s = cost.storage_s(workload, replace(base, num_hosts=number))
        for network in networks:
            keys = {"network_gbit_per_s": network, "num_machines": number}
            seconds = cost.checkpoint_s(workload, replace(base, num_hosts=number).with_network(network))
            rows.append(value_row("checkpoint_s", seconds, "s", **keys))
            rows.append(value_row("reduction", stored_s / seconds, "1", **keys))
    # 16 machines at 400 Gbit/s beside the text's bound, and the storage that would be as fast.
    bound = published_value("gemini", "fig-6-11", "reduction", network_gbit_per_s=400, num_machines=16)
    paper = replace(base, num_hosts=16).with_network(400)
    ours = cost.storage_s(workload, paper) / cost.checkpoint_s(workload, paper)
    rows += _beside("reduction_at_400", ours, bound, "1")
    place: dict[str, Any] = {"network_gbit_per_s": 400, "num_machines": 16, "rate": "nominal"}
    matching = paper.num_hosts * paper.full_network.bandwidth_bytes_per_s / TERABIT_BYTES
    return [*rows, value_row("matching_storage_tbit_per_s", matching, "Tbit/s", **place)]


def predict_frequencies(model: str) -> Rows:
    """Predict how often each policy checkpoints on 16 p4d (figure 6.12)."""
    workload, machine = cost.workload_named(model), cost.calibrated().p4d
    job = cost.job_of(workload, machine)
    policies = [strawman(job), high_frequency(job), gemini(job)]
    iterations = {policy.name: policy.levels[0].interval_iterations for policy in policies}
    checkpoint_s = cost.checkpoint_s(workload, machine)
    rows: Rows = []
    for name, number in iterations.items():
        seconds = checkpoint_s if name == "Gemini" else job.storage_s
        rows.append(value_row("interval_s", number * job.iteration_s, "s", policy=name))
        rows.append(value_row("interval_iterations", number, policy=name))
        rows.append(value_row("frequency_gain", number / iterations["Gemini"], policy=name))
        rows.append(value_row("checkpoint_s", seconds, "s", policy=name))
    gain_bound = published_value("gemini", "fig-6-12", "frequency_gain", policy="Strawman")
    bound_s = published_value("gemini", "fig-6-12", "checkpoint_s", policy="Gemini")
    rows += _beside("gain_over_strawman", iterations["Strawman"] / iterations["Gemini"], gain_bound, "1")
    rows += _beside("checkpoint_and_bound_s", checkpoint_s, bound_s, "s")
    rows.append(value_row("retrieval_gain", job.storage_s / job.retrieval_s(Tier.PEER), policy="Gemini"))
    rows.append(value_row("checkpoint_over_iteration", checkpoint_s / job.iteration_s))
    return rows + _beside("retrieval_and_bound_s", job.retrieval_s(Tier.PEER), bound_s, "s")


def predict_ablation(model: str, schemes: Sequence[str], free_mb: float, copy_rates: Sequence[float]) -> Rows:
    """Predict what each scheme costs on 16 p3dn (figure 6.16)."""
    fitted, workload = cost.calibrated(), cost.workload_named(model)
    p3dn, baseline_s = fitted.p3dn, cost.baseline_s(workload, fitted.p3dn)

    def copying(rate: float) -> FittedMachine:
        return replace(p3dn, copy_bytes_per_s=rate * GIGABIT_BYTES_PER_S)

    rows: Rows = []
    for scheme in schemes:
        rows += scheme_rows(cost.iteration_of(workload, p3dn, scheme, free_bytes=free_mb * 1e6), baseline_s)
        for rate in copy_rates if scheme != Scheme.BASELINE else ():
            keys: dict[str, Any] = {"scheme": str(scheme), "copy_gbit_per_s": rate}
            rows.append(value_row("overhead_by_rate", _overhead(workload, copying(rate), scheme), "%", **keys))
    spans_s = planning_spans_s(cost.phases_of(workload, p3dn))
    transferred = _overhead(workload, fitted.transferred, Scheme.BLOCKING)
    rows += [
        value_row("idle_used", cost.checkpoint_s(workload, p3dn) / math.fsum(spans_s), scheme="Gemini"),
        value_row("copy_over_network", (p3dn.copy_bytes_per_s or 0.0) / p3dn.network_bytes_per_s),
        value_row("transferred_overhead", transferred, "%", scheme="Blocking"),
    ]
    # The largest idle span of ours, and the buffer that the paper's asks for.
    span_s = published_value("gemini", "fig-6-16", "largest_span_s", scheme="Naive")
    said = published_value("gemini", "fig-6-16", "largest_span_buffer_gb", scheme="Naive")
    gb_per_s = p3dn.network_bytes_per_s / p3dn.devices_per_host / GIGABYTE
    low, high = ((span_s + rounding_s) * gb_per_s for rounding_s in (-SPAN_ROUNDING_S, SPAN_ROUNDING_S))
    is_out = int(span_s * gb_per_s * GIGABYTE > free_mb * 1e6)
    rows += [
        value_row("largest_span_s", max(spans_s), "s", scheme="Naive"),
        value_row("largest_span_out_of_memory", is_out, scheme="Naive"),
        value_row("largest_span_buffer_gb", span_s * gb_per_s, "GB", low=low, high=high, whose="the model"),
        value_row("largest_span_buffer_gb", said, "GB", whose="the text's bound"),
    ]
    # The rate of copying below which the unpipelined scheme is slower than the text says.
    slower = published_value("gemini", "fig-6-16", "overhead", scheme="Unpipelined")
    allowed_s = (1 + slower / 100) * baseline_s

    def is_slower(rate: float) -> bool:
        return cost.iteration_of(workload, copying(rate), Scheme.UNPIPELINED).iteration_s > allowed_s

    rate = bisected(is_slower, LEAST_RATE, LARGEST_RATE, NUM_BISECTIONS)
    return [*rows, value_row("copy_rate_asked_gbit_per_s", rate, "Gbit/s", scheme="Unpipelined")]


def _beside(quantity: str, ours: float, bound: float, unit: str) -> Rows:
    """Return ours and the text's "more than" or "less than" as rows that can be put in order."""
    both = {"the model": ours, "the text's bound": bound}
    return [value_row(quantity, value, unit, whose=whose) for whose, value in both.items()]


def _overhead(workload: Workload, machine: FittedMachine, scheme: Scheme | str) -> float:
    """Return in % how much longer an iteration is than without checkpoints."""
    return 100 * (cost.iteration_of(workload, machine, scheme).iteration_s / cost.baseline_s(workload, machine) - 1)
