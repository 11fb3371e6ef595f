"""The rows of figures 6.7, 6.8, 6.11, 6.12, 6.13 and 6.16: what the cost model says of the paper's machines.

Source: thesis, chapter 6 (Gemini), section 6.7; the model and what it is fitted to: `..cost`.
Simplified: see `..cost`.
Left out: verdicts, which are computed elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace

from ..cost import (
    CALIBRATION,
    GeminiMachine,
    Workload,
    agent_memory_bytes,
    calibrated,
    checkpoint_s,
    peer_retrieval_s,
    phases_of,
    published_value,
    storage_s,
    traffic_of,
)
from ..cost.machine import GIGABIT_BYTES
from ..method.interleaving import InterleavedIteration, Scheme, interleave, planning_spans_s
from ..method.waste import CheckpointPolicy, Job, gemini, high_frequency, strawman
from .worked_example import Rows, scheme_rows

__all__ = ["calibration_of", "predict_ablation", "predict_frequencies", "predict_models", "predict_reductions"]

GIGABYTE = 1e9
TERABIT_BYTES = 1e12 / 8
LARGEST_RATE, LEAST_RATE = 400.0, 10.0  # Gbit/s of copying, where the search for the paper's 3.5 % begins and ends
BISECTIONS = 12  # of the logarithm of that rate: to a thousandth


def calibration_of() -> dict[str, object]:
    """Return what the model is fitted to and what came of it, as `record` takes it."""
    found = calibrated()
    shares = {
        name: machine.flops_per_s / machine.peak_flops_per_s
        for name, machine in (("A100", found.p4d), ("V100", found.p3dn))
    }
    return {
        "cells": [dict(keys) for _, keys in CALIBRATION],
        "network_efficiency": found.network_efficiency,
        "share_of_peak": shares,
        "p4d": asdict(found.p4d),
        "p3dn": asdict(found.p3dn),
    }


def predict_models(machine: str, models: Sequence[str]) -> Rows:
    """Predict iterations without checkpoints and with one in each.

    Args:
        machine: "p4d" or "p3dn", 16 of them.
        models: of table 6.2.

    Returns:
        Rows, key model: iteration_s and idle_s, key scheme (Baseline, Gemini); overhead in %, key scheme;
        network_s, key what (idle without checkpoints, needed by the checkpoint); agent_memory_gb, host_memory_gb.

    Raises:
        ValueError: if there is no such machine or model.
    """
    return [row for model in models for row in _model_rows(_machine(machine), Workload.named(model))]


def predict_reductions(model: str, networks: Sequence[float], nums_machines: Sequence[int]) -> Rows:
    """Predict how many times shorter checkpoints are than storage's (figure 6.11).

    Args:
        model: of table 6.2.
        networks: Gbit/s of a p4d machine.
        nums_machines: N.

    Returns:
        Rows, keys network_gbit_per_s, num_machines: checkpoint_s, reduction; storage_s without keys but num_machines;
        reduction_at_400 of 16 machines, key whose; matching_storage_tbit_per_s, key rate besides.
    """
    workload, base = Workload.named(model), calibrated().p4d
    rows: Rows = []
    for number in nums_machines:
        stored_s = storage_s(workload, base.of(number))
        rows.append({"quantity": "storage_s", "num_machines": number, "value": stored_s, "unit": "s"})
        for network in networks:
            keys = {"network_gbit_per_s": network, "num_machines": number}
            seconds = checkpoint_s(workload, base.of(number).with_network(network))
            rows.append({"quantity": "checkpoint_s", **keys, "value": seconds, "unit": "s"})
            rows.append({"quantity": "reduction", **keys, "value": stored_s / seconds, "unit": "1"})
    return rows + _bound_rows(workload, base)


def predict_frequencies(model: str) -> Rows:
    """Predict how often each policy checkpoints on 16 p4d (figure 6.12).

    Args:
        model: of table 6.2.

    Returns:
        Rows, key policy: interval_s, interval_iterations, frequency_gain of Gemini over it; checkpoint_s of Gemini's
        and storage's; and, key whose, the numbers that the text bounds.
    """
    workload, machine = Workload.named(model), calibrated().p4d
    job = _job(workload, machine)
    policies = [strawman(job), high_frequency(job), gemini(job)]
    interval_s = {policy.name: _interval_s(policy) for policy in policies}
    rows: Rows = []
    for policy in policies:
        keys = {"policy": policy.name}
        iterations = policy.levels[0].interval_iterations
        gain = interval_s[policy.name] / interval_s["Gemini"]
        seconds = checkpoint_s(workload, machine) if policy.name == "Gemini" else job.storage_s
        rows += [
            {"quantity": "interval_s", **keys, "value": interval_s[policy.name], "unit": "s"},
            {"quantity": "interval_iterations", **keys, "value": iterations, "unit": "1"},
            {"quantity": "frequency_gain", **keys, "value": gain, "unit": "1"},
            {"quantity": "checkpoint_s", **keys, "value": seconds, "unit": "s"},
        ]
    bounds = {"policy": "Strawman"}, {"policy": "Gemini"}
    gain = interval_s["Strawman"] / interval_s["Gemini"]
    said = [
        published_value("fig-6-12.csv", quantity=name, **keys)
        for name, keys in zip(("frequency_gain", "checkpoint_s"), bounds, strict=True)
    ]
    rows += _beside("gain_over_strawman", gain, said[0], "1")
    rows += _beside("checkpoint_and_bound_s", checkpoint_s(workload, machine), said[1], "s")
    return rows + _beside("retrieval_and_bound_s", peer_retrieval_s(workload, machine), said[1], "s")


def predict_ablation(model: str, schemes: Sequence[str], free_mb: float, copy_rates: Sequence[float]) -> Rows:
    """Predict what each scheme costs on 16 p3dn (figure 6.16).

    Args:
        model: of table 6.2.
        schemes: names of `Scheme`.
        free_mb: of a device, for buffers, in MB.
        copy_rates: Gbit/s of a machine's copying to host memory; the first is the model's.

    Returns:
        Rows, key scheme: as `predict_schemes`, at the first rate; overhead_by_rate, keys scheme, copy_gbit_per_s;
        transferred_overhead, with the A100's share of peak; naive's largest_span_s (ours),
        largest_span_buffer_gb and largest_span_out_of_memory for the span that the paper profiled; and the rate of
        copying that the paper's 3.5 % asks for, copy_rate_asked_gbit_per_s.
    """
    found, workload = calibrated(), Workload.named(model)
    first = replace(found.p3dn, copy_bytes_per_s=copy_rates[0] * GIGABIT_BYTES)
    baseline_s = _iteration(workload, first, Scheme.BASELINE).iteration_s
    rows: Rows = []
    for scheme in schemes:
        rows += scheme_rows(_iteration(workload, first, scheme, free_mb * 1e6), baseline_s)
        for rate in copy_rates if scheme != Scheme.BASELINE else ():
            keys = {"scheme": str(scheme), "copy_gbit_per_s": rate}
            overhead = _overhead(workload, found.p3dn, scheme, rate)
            rows.append({"quantity": "overhead_by_rate", **keys, "value": overhead, "unit": "%"})
    transferred = _overhead(workload, found.transferred, Scheme.BLOCKING, copy_rates[0])
    rows.append({"quantity": "transferred_overhead", "scheme": "Blocking", "value": transferred, "unit": "%"})
    return rows + _span_rows(workload, first, free_mb) + [_asked_row(workload, found.p3dn)]


def _machine(name: str) -> GeminiMachine:
    machines = {"p4d": calibrated().p4d, "p3dn": calibrated().p3dn}
    if name not in machines:
        raise ValueError(f"machine is {name!r}; it must be 'p4d' or 'p3dn'")
    return machines[name]


def _iteration(
    workload: Workload, machine: GeminiMachine, scheme: Scheme | str, free_bytes: float = math.inf
) -> InterleavedIteration:
    found = phases_of(workload, machine)
    traffic = traffic_of(workload, machine, free_bytes=free_bytes)
    return interleave(found.phases, traffic, scheme, update_s=found.update_s)


def _model_rows(machine: GeminiMachine, workload: Workload) -> Rows:
    without, with_checkpoints = (_iteration(workload, machine, each) for each in (Scheme.BASELINE, Scheme.GEMINI))
    rows: Rows = []
    for found in (without, with_checkpoints):
        rows += [
            row
            for row in scheme_rows(found, without.iteration_s)
            if row["quantity"] in ("iteration_s", "idle_s", "overhead")
        ]
    usable_s = math.fsum(planning_spans_s(phases_of(workload, machine).phases))
    times_s = {"idle without checkpoints": usable_s, "needed by the checkpoint": with_checkpoints.checkpoint_s}
    rows += [{"quantity": "network_s", "what": what, "value": value, "unit": "s"} for what, value in times_s.items()]
    kept_gb = agent_memory_bytes(workload, machine) / GIGABYTE
    memory_gb = {"agent_memory_gb": kept_gb, "host_memory_gb": machine.host_memory_bytes / GIGABYTE}
    rows += [{"quantity": name, "value": value, "unit": "GB"} for name, value in memory_gb.items()]
    return [{"model": workload.name, **row} for row in rows]


def _bound_rows(workload: Workload, base: GeminiMachine) -> Rows:
    """Return 16 machines at 400 Gbit/s beside what the text bounds, and the storage that would be as fast."""
    said = published_value("fig-6-11.csv", quantity="reduction", network_gbit_per_s=400, num_machines=16)
    paper = base.of(16).with_network(400)
    rows = _beside("reduction_at_400", storage_s(workload, paper) / checkpoint_s(workload, paper), said, "1")
    rates = {"nominal": paper.network.bandwidth_bytes_per_s, "fitted": paper.network_bytes_per_s}
    for rate, bytes_per_s in rates.items():
        keys = {"network_gbit_per_s": 400, "num_machines": 16, "rate": rate}
        value = paper.num_machines * bytes_per_s / TERABIT_BYTES
        rows.append({"quantity": "matching_storage_tbit_per_s", **keys, "value": value, "unit": "Tbit/s"})
    return rows


def _beside(quantity: str, ours: float, bound: float, unit: str) -> Rows:
    """Return ours and the text's "more than" or "less than" as rows that can be put in order."""
    rows = {"the model": ours, "the text's bound": bound}
    return [{"quantity": quantity, "whose": whose, "value": value, "unit": unit} for whose, value in rows.items()]


def _job(workload: Workload, machine: GeminiMachine) -> Job:
    found = phases_of(workload, machine)
    traffic = traffic_of(workload, machine)
    baseline = interleave(found.phases, traffic, Scheme.BASELINE, update_s=found.update_s)
    return Job(
        name=workload.name,
        iteration_s=baseline.iteration_s,
        state_bytes=workload.checkpoint_bytes,
        num_machines=machine.num_machines,
        storage_bytes_per_s=machine.storage_bytes_per_s,
        network_bytes_per_s=machine.network_bytes_per_s,
    )


def _interval_s(policy: CheckpointPolicy) -> float:
    return policy.levels[0].interval_iterations * policy.iteration_s


def _overhead(workload: Workload, machine: GeminiMachine, scheme: Scheme | str, copy_rate: float) -> float:
    """Return in % how much longer an iteration is than without checkpoints, at a rate of copying in Gbit/s."""
    machine = replace(machine, copy_bytes_per_s=copy_rate * GIGABIT_BYTES)
    baseline, found = (_iteration(workload, machine, each) for each in (Scheme.BASELINE, scheme))
    return 100 * (found.iteration_s / baseline.iteration_s - 1)


def _span_rows(workload: Workload, machine: GeminiMachine, free_mb: float) -> Rows:
    """Return the largest idle span of ours, and the buffer that the paper's asks for."""
    span_s = published_value("fig-6-16.csv", quantity="largest_span_s", scheme="Naive")
    said = published_value("fig-6-16.csv", quantity="largest_span_buffer_gb", scheme="Naive")
    buffer_gb = span_s * machine.network_bytes_per_s / machine.devices_per_machine / GIGABYTE
    keys: Mapping[str, object] = {"scheme": "Naive"}
    ours_s = max(planning_spans_s(phases_of(workload, machine).phases))
    is_out = int(buffer_gb * GIGABYTE > free_mb * 1e6)
    return [
        {"quantity": "largest_span_s", **keys, "value": ours_s, "unit": "s"},
        {"quantity": "largest_span_out_of_memory", **keys, "value": is_out, "unit": "1"},
        *_beside("largest_span_buffer_gb", buffer_gb, said, "GB"),
    ]


def _asked_row(workload: Workload, machine: GeminiMachine) -> dict[str, object]:
    """Return the rate of copying below which the unpipelined scheme is slower than the text says, by bisection.

    There it jumps: with slower copies a chunk less fits into every span.
    """
    said = published_value("fig-6-16.csv", quantity="overhead", scheme="Unpipelined")
    allowed_s = (1 + said / 100) * _iteration(workload, machine, Scheme.BASELINE).iteration_s

    def excess_s(rate: float) -> float:
        copying = replace(machine, copy_bytes_per_s=rate * GIGABIT_BYTES)
        return _iteration(workload, copying, Scheme.UNPIPELINED).iteration_s - allowed_s

    rate = _rate_of(excess_s)
    return {"quantity": "copy_rate_asked_gbit_per_s", "scheme": "Unpipelined", "value": rate, "unit": "Gbit/s"}


def _rate_of(excess: Callable[[float], float]) -> float:
    slow, fast = LEAST_RATE, LARGEST_RATE
    for _ in range(BISECTIONS):
        middle = math.sqrt(slow * fast)
        slow, fast = (middle, fast) if excess(middle) > 0 else (slow, middle)
    return math.sqrt(slow * fast)
