"""Rows of the simulated items: the timing tables, figures 1 and 5, table 10, and the map of where compression pays.

Table 9 does not say how many messages its times cover: one of its cells does. Of table 10, the text calls m the size of
a micro-batch; equation 3 needs their number, batch / 16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import product
from typing import Any

from workbench.cluster import FittedMachine
from workbench.rows import value_row
from workbench.study.published import published_value

from . import cost
from .cost import IterationTime, Purpose, ScalingModel, Setting, iteration_time, paper_machine, read_variant

__all__ = ["TABLE_10", "figure_5_rows", "fixed_cluster_rows", "machine_rows", "simulate_boundaries"]
__all__ += ["simulate_break_even", "simulate_gains", "simulate_shares", "simulate_times", "table_10_on"]
__all__ += ["table_10_rows"]

Rows = list[dict[str, Any]]

LIMIT_S = 100.0  # table 6 prints longer times as "over 100,000 ms"


def simulate_times(
    methods: Sequence[str], meshes: Sequence[Sequence[int]], *, nvlink: Sequence[bool] = (True,), **sizes: Any
) -> Rows:
    """Predict iterations for every method or variant ("A1 fused", "w/o fp32"), (TP, PP) and machine.

    Rows: iteration_ms and total_ms (the same under the names that tables use), the parts of table 4, speedup, also with
    encoding that takes no time, and over the uncompressed time that the paper prints; exceeds_100_s; keys method, tp,
    pp, and nvlink where there are two machines; and uncompressed_ms by mesh.
    """
    rows: Rows = []
    for joined in nvlink:
        place: dict[str, Any] = {"nvlink": int(joined)} if len(nvlink) > 1 else {}
        for tp, pp in meshes:
            plain_s = iteration_time(Setting(tp=tp, pp=pp, nvlink=joined, **sizes)).total_s
            rows.append(value_row("uncompressed_ms", 1e3 * plain_s, "ms", mesh=f"TP {tp}, PP {pp}", **place))
            for name in methods:
                setting, _ = read_variant(name, tp=tp, pp=pp, nvlink=joined, **sizes)
                time, keys = iteration_time(setting), {"method": name, "tp": tp, "pp": pp, **place}
                seconds = {"iteration": time.total_s, "total": time.total_s}
                seconds |= {part.name.removesuffix("_s"): getattr(time, part.name) for part in fields(IterationTime)}
                for part, value in seconds.items():
                    if setting.method != "w/o" or part not in ("encode", "decode"):
                        rows.append(value_row(f"{part}_ms", 1e3 * value, "ms", **keys))
                rows.append(value_row("speedup", plain_s / time.total_s, **keys))
                rows.append(value_row("speedup_without_encoding", plain_s / (time.total_s - time.encode_s), **keys))
                if setting.num_nodes == 1:
                    rows.append(value_row("speedup_over_printed", _printed_s(setting) / time.total_s, **keys))
                rows.append(value_row("exceeds_100_s", int(time.total_s > LIMIT_S), **keys))
    return rows


def _printed_s(setting: Setting) -> float:
    """Return the seconds without compression that table 3 or 12 prints of an iteration on one machine."""
    table, more = ("table-3", {"nvlink": int(setting.nvlink)}) if setting.sequence == 512 else ("table-12", {})
    place: dict[str, Any] = {"method": "w/o", "tp": setting.tp, "pp": setting.pp, **more}
    return 1e-3 * published_value("activation_compression", table, "iteration_ms", **place)


def simulate_boundaries(methods: Sequence[str], meshes: Sequence[Sequence[int]], **sizes: Any) -> Rows:
    """Predict boundary_ms, boundary_share over "w/o", and messages_timed, which table 9's calibrating cell tells."""

    def boundaries_ms(setting: Setting, messages: float) -> list[float]:
        times = cost.boundary_times(setting, paper_machine(nvlink=setting.nvlink))
        return [1e3 * messages * (there + back) / 2 for there, back in times]

    one_ms = boundaries_ms(Setting(tp=4, pp=4, micro_batch=128, sequence=128, num_nodes=4), 1.0)[0]
    (cell,) = [cell for cell in cost.CALIBRATION if cell.table == "table-9"]
    messages = cell.value("activation_compression") / one_ms
    rows: Rows = [value_row("messages_timed", messages, "message")]
    for tp, pp in meshes:
        plain_ms = boundaries_ms(Setting(tp=tp, pp=pp, **sizes), messages)
        for name in methods:
            coded_ms = boundaries_ms(read_variant(name, tp=tp, pp=pp, **sizes)[0], messages)
            for boundary, (value, whole) in enumerate(zip(coded_ms, plain_ms, strict=True)):
                keys: dict[str, Any] = {"method": name, "tp": tp, "pp": pp, "boundary": boundary}
                rows.append(value_row("boundary_ms", value, "ms", **keys))
                if name != "w/o":
                    rows.append(value_row("boundary_share", value / whole, **keys))
    return rows


def simulate_shares(
    meshes: Sequence[Sequence[int]], shapes: Sequence[Sequence[int]], *, nvlink: Sequence[bool] = (True, False)
) -> Rows:
    """Predict the communication_share of an uncompressed iteration that forward tensor communication takes."""
    rows: Rows = []
    for joined, (tp, pp), (micro_batch, sequence) in product(nvlink, meshes, shapes):
        sizes: dict[str, Any] = {"tp": tp, "pp": pp, "micro_batch": micro_batch, "sequence": sequence}
        time = iteration_time(Setting(nvlink=joined, **sizes))
        share = time.tensor_s / time.total_s
        rows.append(value_row("communication_share", share, method="w/o", nvlink=int(joined), **sizes))
    return rows


def simulate_break_even(
    machine: FittedMachine, setting: Setting, *, micro_batches: Sequence[int], code_sizes: Sequence[int]
) -> Rows:
    """Map break_even_bandwidth, bytes/s between two ranks below which the method pays, by batch and code size.

    It is 0 where the method never pays; a point where it always does has no row.
    """
    points = cost.break_even_map(machine, setting, micro_batches=micro_batches, code_sizes=code_sizes)
    return [
        value_row("break_even_bandwidth", bandwidth, "byte/s", micro_batch=batch, code_size=size)
        for (batch, size), bandwidth in points.items()
        if math.isfinite(bandwidth)
    ]


def simulate_gains(methods: Sequence[str], meshes: Sequence[Sequence[int]], places: Sequence[Sequence[int]]) -> Rows:
    """Predict speedup where the paper measured it, and pays, 1 above 1; a place is (nvlink, batch, sequence)."""
    rows: Rows = []
    for nvlink, micro_batch, sequence in places:
        shape = {"nvlink": int(nvlink), "micro_batch": micro_batch, "sequence": sequence}
        times = simulate_times(methods, meshes, nvlink=[bool(nvlink)], micro_batch=micro_batch, sequence=sequence)
        for row in times:
            if pays := {"speedup": "pays", "speedup_over_printed": "pays_over_printed"}.get(row["quantity"]):
                rows += [{**row, **shape}, {**row, **shape, "quantity": pays, "value": int(row["value"] > 1)}]
    return rows


def machine_rows(machine: FittedMachine) -> Rows:
    """Return a machine's constants in readable units: rows with constant, value and unit."""
    link = machine.link
    constants = {
        "compute": (machine.flops_per_s / 1e12, "TFLOP/s"),
        "work that every rank repeats": (1e12 * machine.replicated_s_per_element, "ps an element"),
        "backward over forward": (machine.backward_over_forward, "1"),
        "launching a layer": (1e3 * machine.layer_launch_s, "ms"),
        "launching a collective": (1e3 * machine.collective_launch_s, "ms"),
        "bandwidth of a link": (link.bandwidth_bytes_per_s / 1e9, "GB/s"),
        "latency of a link": (1e6 * link.latency_s, "µs"),
    }
    return [{"constant": name, "value": value, "unit": unit} for name, (value, unit) in constants.items()]


# --- larger models and clusters

TABLE_10 = (
    (6144, 40, 1, 1024),
    (8192, 48, 2, 1536),
    (10240, 60, 4, 1792),
    (12288, 80, 8, 2304),
    (16384, 96, 16, 2176),
    (20480, 105, 35, 2528),
    (25600, 128, 64, 3072),
)
"""Hidden size, layers, nodes, global batch: the settings of table 10."""

MICRO_BATCH, SEQUENCE = 16, 128  # table 10's caption; section 4.7's d = 16·128·100
PRINTED_PRODUCT = MICRO_BATCH * SEQUENCE * 100  # what the text says d is
MANY_NODES = 10**9


def table_10_rows(model: ScalingModel) -> Rows:
    """Predict table 10, and what its last setting would gain with ever more nodes.

    Rows: speedup; speedup_with_m_16, for the text's other reading of m; layer_speedup, of one layer; keys hidden,
    layers, num_nodes, batch. speedup_with_fitted_alpha, with alpha from the rate that the paper's machine without
    NVLink reached; key hidden. gain_error_with_fitted_alpha and gain_error_with_peak_alpha, shares of the published
    gain; key hidden. limit_over_h_e: the speedup with very many nodes over h/e. boundary_bytes_over_counted, key of:
    bytes of an uncompressed boundary in the cost model and in equation 3.
    """
    fitted = replace(model, alpha_s_per_flop=cost.machine_scaling(paper_machine(nvlink=False)).alpha_s_per_flop)
    rows: Rows = []
    for hidden, layers, num_nodes, batch in TABLE_10:
        keys: dict[str, Any] = {"hidden": hidden, "layers": layers, "num_nodes": num_nodes, "batch": batch}
        shape = {"batch": MICRO_BATCH, "sequence": SEQUENCE, "hidden": hidden}
        cluster: dict[str, Any] = {**shape, "layers": layers, "num_nodes": num_nodes}
        cluster["num_micro_batches"] = batch / MICRO_BATCH
        other = cost.cluster_speedup(model, **cluster | {"num_micro_batches": MICRO_BATCH})
        rows.append(value_row("speedup", at_peak := cost.cluster_speedup(model, **cluster), **keys))
        rows.append(value_row("speedup_with_m_16", other, **keys))
        rows.append(value_row("layer_speedup", cost.layer_speedup(model, **shape), **keys))
        speedup = cost.cluster_speedup(fitted, **cluster)
        printed = published_value("activation_compression", "table-10", "speedup", hidden=hidden)
        rows.append(value_row("speedup_with_fitted_alpha", speedup, hidden=hidden))
        for alpha, value in (("fitted", speedup), ("peak", at_peak)):
            error = abs(value - printed) / (printed - 1)
            rows.append(value_row(f"gain_error_with_{alpha}_alpha", error, hidden=hidden))
    limit = cost.cluster_speedup(model, **cluster | {"num_nodes": MANY_NODES}) / (hidden / model.code_size)
    rows.append(value_row("limit_over_h_e", limit, hidden=hidden, layers=layers))

    setting = Setting(tp=cost.TENSOR_RANKS, pp=2)
    counted = sum(
        planned.message_bytes * planned.senders * planned.count
        for planned in cost.planned_messages(setting)
        if planned.purpose is Purpose.BOUNDARY_FORWARD
    )
    sent = setting.activation_bytes() * setting.num_micro_batches  # in `cost.setting.send_s`, shared by the ranks
    by_model = {"simulated times": sent, "equation 3": cost.TENSOR_RANKS * sent}  # equation 3 with w of one rank
    rows += [value_row("boundary_bytes_over_counted", size / counted, of=name) for name, size in by_model.items()]
    return rows


def table_10_on(machine: FittedMachine) -> Rows:
    """Predict table_10_speedup for nodes of four ranks of a machine, by the paper's own model; key hidden."""
    rows = table_10_rows(cost.machine_scaling(machine))
    speedups = ((row["hidden"], row["value"]) for row in rows if row["quantity"] == "speedup")
    return [value_row("table_10_speedup", value, hidden=hidden) for hidden, value in speedups]


def fixed_cluster_rows(model: ScalingModel, hiddens: Sequence[int], nodes: Sequence[int]) -> Rows:
    """Predict the speedup as the model grows on a cluster that does not: fixed_cluster_speedup by hidden, num_nodes."""
    shape = {"batch": MICRO_BATCH, "sequence": SEQUENCE, "layers": 40, "num_micro_batches": 64}
    rows: Rows = []
    for num_nodes in nodes:
        for hidden in hiddens:
            keys: dict[str, Any] = {"hidden": hidden, "num_nodes": num_nodes}
            rows.append(value_row("fixed_cluster_speedup", cost.cluster_speedup(model, **keys, **shape), **keys))
    return rows


def figure_5_rows(model: ScalingModel, hiddens: Sequence[int]) -> Rows:
    """Predict figure 5: one layer on four tensor-parallel ranks, by hidden size.

    Rows: computation_ms (a), communication_ms (b), overhead_ms (c), layer_speedup (d), key hidden; threshold_elements,
    the product the text gives for d, and threshold_bytes, its bytes in fp16; pieces_at_threshold, beta·d over c.
    """
    rows: Rows = []
    for hidden in hiddens:
        shape = {"batch": MICRO_BATCH, "sequence": SEQUENCE, "hidden": hidden}
        elements = MICRO_BATCH * SEQUENCE * hidden
        times = {
            "computation_ms": model.alpha_s_per_flop * cost.flops(**shape),
            "communication_ms": cost.communication_s(model, elements),
            "overhead_ms": model.gamma_s_per_element * elements,
            "layer_ms": cost.layer_seconds_by_definition(model, compressed=False, **shape),
        }
        rows += [value_row(name, 1e3 * value, "ms", hidden=hidden) for name, value in times.items()]
        rows.append(value_row("layer_speedup", cost.layer_speedup(model, **shape), hidden=hidden))
    meeting = model.beta_s_per_element * model.threshold_elements / model.small_s
    rows.append(value_row("threshold_elements", PRINTED_PRODUCT, "element"))
    rows.append(value_row("threshold_bytes", PRINTED_PRODUCT * cost.VALUE_BYTES, "byte"))
    rows.append(value_row("pieces_at_threshold", meeting))
    rows.append(value_row("pieces_at_threshold_of_one_all_reduce", meeting / (2 * cost.ALL_REDUCES_PER_LAYER)))
    return rows
