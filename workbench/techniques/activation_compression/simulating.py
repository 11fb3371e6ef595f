"""The timing tables, predicted: rows as the paper prints them, and how far each lies from its cell.

Source: "Does compressing activations help model parallel training?", tables 2 to 4, 6, 7, 9, 12 and figure 1, through
`cost.iteration_time`.
Simplified: as `cost.iteration`. Table 9 does not say how many messages its times cover: one of its cells does.
Left out: nothing.

Units: milliseconds, as the tables are printed; shares and speedups are pure numbers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from .cost import (
    CALIBRATION,
    FittedMachine,
    IterationTime,
    Setting,
    boundary_times,
    break_even_map,
    iteration_time,
    paper_machine,
    published_ms,
)
from .timing.variants import timed

__all__ = [
    "error_rows",
    "machine_rows",
    "simulate_boundaries",
    "simulate_break_even",
    "simulate_gains",
    "simulate_shares",
    "simulate_times",
    "summary_rows",
]

Rows = list[dict[str, Any]]
UNCOMPRESSED_FP32, FP32_BYTES = "w/o fp32", 4  # a name, bytes of a value; the paper sends fp16 (section 4.1)
LIMIT_S = 100.0  # table 6 prints longer times as "over 100,000 ms"
PARTS = tuple(field.name for field in fields(IterationTime))


def simulate_times(
    methods: Sequence[str], meshes: Sequence[Sequence[int]], *, nvlink: Sequence[bool] = (True,), **sizes: int
) -> Rows:
    """Predict iterations for every method, (TP, PP) and machine.

    Args:
        methods: names, perhaps with a variant as `timing.timed` reads it ("A1 fused", "T1 int32"), or "w/o fp32", what
            would be sent without the paper's fp16; speedups are over "w/o" whether or not it is among them.
        meshes: (TP, PP) pairs.
        nvlink: the machines, with NVLink or without.
        sizes: further fields of Setting.

    Returns:
        Rows: iteration_ms and total_ms (the same under the names that tables use), the parts of table 4, speedup,
        exceeds_100_s; keys method, tp, pp, and nvlink where there are two machines; and uncompressed_ms by mesh.
    """
    rows: Rows = []
    for joined in nvlink:
        for tp, pp in meshes:
            plain = Setting(tp=tp, pp=pp, nvlink=joined, **sizes)
            plain_s = iteration_time(plain).total_s
            mesh = {"mesh": f"TP {tp}, PP {pp}"} | ({"nvlink": int(joined)} if len(nvlink) > 1 else {})
            rows.append({"quantity": "uncompressed_ms", **mesh, "value": 1e3 * plain_s, "unit": "ms"})
            for name in methods:
                setting = _setting(name, tp=tp, pp=pp, nvlink=joined, **sizes)
                rows += _times_of(name, setting, plain_s, two_machines=len(nvlink) > 1)
    return rows


def _setting(name: str, **sizes: int) -> Setting:
    if name == UNCOMPRESSED_FP32:
        return Setting(value_bytes=FP32_BYTES, **sizes)
    return timed(name, **sizes).setting


def _times_of(name: str, setting: Setting, plain_s: float, *, two_machines: bool) -> Rows:
    time = iteration_time(setting)
    keys = {"method": name, "tp": setting.tp, "pp": setting.pp}
    if two_machines:
        keys["nvlink"] = int(setting.nvlink)
    in_ms = {"iteration_ms": time.total_s, "total_ms": time.total_s}
    in_ms |= {f"{part.removesuffix('_s')}_ms": getattr(time, part) for part in PARTS}
    if setting.method == "w/o":
        in_ms = {part: value for part, value in in_ms.items() if part not in ("encode_ms", "decode_ms")}
    pure = {"speedup": plain_s / time.total_s, "exceeds_100_s": int(time.total_s > LIMIT_S)}
    rows = [{"quantity": quantity, **keys, "value": 1e3 * value, "unit": "ms"} for quantity, value in in_ms.items()]
    return rows + [{"quantity": quantity, **keys, "value": value, "unit": "1"} for quantity, value in pure.items()]


def simulate_boundaries(methods: Sequence[str], meshes: Sequence[Sequence[int]], **sizes: int) -> Rows:
    """Predict the time of each pipeline boundary, as many messages as table 9's calibrating cell covers.

    Returns:
        Rows: boundary_ms and boundary_share (over "w/o"), keys method, tp, pp, boundary; messages_timed.
    """
    messages = _messages_timed()
    rows: Rows = [{"quantity": "messages_timed", "value": messages, "unit": "message"}]
    for tp, pp in meshes:
        plain = _boundaries_ms(Setting(tp=tp, pp=pp, **sizes), messages)
        for name in methods:
            ours = _boundaries_ms(_setting(name, tp=tp, pp=pp, **sizes), messages)
            for boundary, (value, whole) in enumerate(zip(ours, plain, strict=True)):
                keys = {"method": name, "tp": tp, "pp": pp, "boundary": boundary}
                rows.append({"quantity": "boundary_ms", **keys, "value": value, "unit": "ms"})
                if name != "w/o":
                    rows.append({"quantity": "boundary_share", **keys, "value": value / whole, "unit": "1"})
    return rows


def _messages_timed() -> float:
    one = _boundaries_ms(Setting(tp=4, pp=4, micro_batch=128, sequence=128, num_nodes=4), 1.0)[0]
    (cell,) = [cell for cell in CALIBRATION if cell.table == "table-9"]
    return published_ms([cell])[cell] / one


def _boundaries_ms(setting: Setting, messages: float) -> list[float]:
    times = boundary_times(setting, paper_machine(nvlink=setting.nvlink))
    return [1e3 * messages * (there + back) / 2 for there, back in times]


def simulate_shares(
    meshes: Sequence[Sequence[int]], shapes: Sequence[Sequence[int]], *, nvlink: Sequence[bool] = (True, False)
) -> Rows:
    """Predict which share of an uncompressed iteration tensor communication takes, forward alone as in table 4.

    Args:
        meshes: (TP, PP) pairs.
        shapes: (micro-batch, sequence) pairs.
        nvlink: the machines.

    Returns:
        Rows: communication_share, keys method, tp, pp, nvlink, micro_batch, sequence.
    """
    rows: Rows = []
    for joined in nvlink:
        for tp, pp in meshes:
            for micro_batch, sequence in shapes:
                shape = {"micro_batch": micro_batch, "sequence": sequence}
                time = iteration_time(Setting(tp=tp, pp=pp, nvlink=joined, **shape))
                keys = {"method": "w/o", "tp": tp, "pp": pp, "nvlink": int(joined), **shape}
                share = time.tensor_s / time.total_s
                rows.append({"quantity": "communication_share", **keys, "value": share, "unit": "1"})
    return rows


def simulate_break_even(
    machine: FittedMachine, setting: Setting, *, micro_batches: Sequence[int], code_sizes: Sequence[int]
) -> Rows:
    """Map where compression begins to pay.

    Args:
        machine: rates, links and codecs, the paper's or your own.
        setting: the rest, with the method that compresses.
        micro_batches: B.
        code_sizes: c at a hidden size of 1024.

    Returns:
        Rows: break_even_bandwidth, bytes/s of one connection between ranks below which the method pays, 0 where it
        never does; a point where it always does has none; keys micro_batch, code_size.
    """
    points = break_even_map(machine, setting, micro_batches=micro_batches, code_sizes=code_sizes)
    return [
        {
            "quantity": "break_even_bandwidth",
            "micro_batch": point.micro_batch,
            "code_size": point.code_size,
            "value": point.bandwidth_bytes_per_s,
            "unit": "byte/s",
        }
        for point in points
        if math.isfinite(point.bandwidth_bytes_per_s)
    ]


def simulate_gains(methods: Sequence[str], meshes: Sequence[Sequence[int]], places: Sequence[Sequence[int]]) -> Rows:
    """Predict whether compression pays where the paper measured it.

    Args:
        methods: names.
        meshes: (TP, PP) pairs.
        places: (nvlink, micro-batch, sequence): the machine, and the sizes.

    Returns:
        Rows: speedup, and pays, 1 where it exceeds 1; keys method, tp, pp, nvlink, micro_batch, sequence.
    """
    rows: Rows = []
    for nvlink, micro_batch, sequence in places:
        shape = {"nvlink": int(nvlink), "micro_batch": micro_batch, "sequence": sequence}
        found = simulate_times(methods, meshes, nvlink=[bool(nvlink)], micro_batch=micro_batch, sequence=sequence)
        for row in found:
            if row["quantity"] == "speedup":
                rows += [{**row, **shape}, {**row, **shape, "quantity": "pays", "value": int(row["value"] > 1)}]
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


def error_rows(values: Rows, published: Iterable[Mapping[str, Any]], calibration: Sequence[Mapping[str, Any]]) -> Rows:
    """Compare predicted with published cells, those that calibrate left out.

    Args:
        values: ours.
        published: rows with quantity, value, unit and keys; of them the quantities in "ms" are compared.
        calibration: quantity and keys of the cells that calibrate.

    Returns:
        Rows: relative_error of each cell (keys: the cell's and `of`, its quantity), median_error, p90_error and
        largest_error of their sizes, and held_out_cells, their number.

    Raises:
        ValueError: where nothing is left to compare.
    """
    ours = {_identity(row): row["value"] for row in values}
    used = {_identity(cell) for cell in calibration}
    rows: Rows = []
    for cell in published:
        identity = _identity(cell)
        if cell["unit"] == "ms" and identity in ours and identity not in used:
            error = ours[identity] / cell["value"] - 1
            keys = {name: key for name, key in identity if name != "quantity"}
            rows.append({"quantity": "relative_error", "of": cell["quantity"], **keys, "value": error, "unit": "1"})
    if not rows:
        raise ValueError("published: it must hold at least one cell in ms that is predicted and does not calibrate")
    return rows + summary_rows([abs(row["value"]) for row in rows])


def summary_rows(sizes: Iterable[float]) -> Rows:
    """Summarise the sizes of relative errors: median, 90th percentile, largest, and how many there are."""
    sizes = sorted(sizes)
    tenth = statistics.quantiles(sizes, n=10, method="inclusive")[-1] if len(sizes) > 1 else sizes[0]
    summary = {"median_error": statistics.median(sizes), "p90_error": tenth, "largest_error": sizes[-1]}
    rows: Rows = [{"quantity": name, "value": value, "unit": "1"} for name, value in summary.items()]
    return [*rows, {"quantity": "held_out_cells", "value": len(sizes), "unit": "1"}]


NOT_KEYS = frozenset({"value", "unit", "source", "low", "high", "seed"})


def _identity(row: Mapping[str, Any]) -> frozenset[tuple[str, Any]]:
    """Return quantity and keys; a column that is empty in a row, as tables read from files have them, is no key."""
    keys = {name: key for name, key in row.items() if name not in NOT_KEYS}
    return frozenset((name, key) for name, key in keys.items() if key is not None and key == key)
