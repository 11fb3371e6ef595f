"""Rows of the counted and simulated items."""

from dataclasses import replace

import pytest

from workbench.cluster import Link
from workbench.techniques.activation_compression.cost import (
    CodecCost,
    FittedMachine,
    Setting,
    cluster_speedup,
    iteration_time,
    layer_speedup,
    paper_machine,
    v100_scaling,
)
from workbench.techniques.activation_compression.counted import count_messages, count_study, rehearse_iterations
from workbench.techniques.activation_compression.method import Family
from workbench.techniques.activation_compression.simulated import (
    figure_5_rows,
    fixed_cluster_rows,
    machine_rows,
    simulate_boundaries,
    simulate_break_even,
    simulate_gains,
    simulate_shares,
    simulate_times,
    table_10_rows,
)

PRE = {"micro_batch": 128, "sequence": 128, "num_micro_batches": 8, "num_nodes": 4}


def value(rows: list[dict], quantity: str, **keys) -> float:
    (row,) = [
        row for row in rows if row["quantity"] == quantity and all(row.get(name) == key for name, key in keys.items())
    ]
    return row["value"]


def test_rows_hold_the_iteration_in_milliseconds_and_its_speedup():
    rows = simulate_times(["A1", "w/o"], [[4, 1]], nvlink=[False])
    plain, coded = (
        1e3 * iteration_time(Setting(method=name, tp=4, pp=1, nvlink=False)).total_s for name in ("w/o", "A1")
    )
    assert value(rows, "iteration_ms", method="A1") == pytest.approx(coded)
    assert value(rows, "speedup", method="A1") == pytest.approx(plain / coded)
    assert value(rows, "uncompressed_ms", mesh="TP 4, PP 1") == pytest.approx(plain)
    assert all("nvlink" not in row for row in rows)
    both = [row for row in simulate_times(["w/o"], [[2, 2]], nvlink=[True, False]) if "method" in row]
    assert {row["nvlink"] for row in both} == {0, 1} and "encode_ms" not in {row["quantity"] for row in both}


def test_variants_are_rows_beside_the_methods_of_table_1():
    rows = simulate_times(["w/o", "fp16", "w/o fp32", "A1", "A1 fused", "T1", "T1 int32"], [[4, 1]], nvlink=[False])
    took = {row["method"]: row["value"] for row in rows if row["quantity"] == "iteration_ms"}
    assert took["w/o"] == took["fp16"] < took["w/o fp32"]  # the paper's own messages are fp16
    assert took["A1 fused"] < took["A1"]
    assert value(rows, "speedup", method="w/o fp32") < 1 < value(rows, "speedup", method="A1")
    # As many bytes of narrower entries are more elements: at most as much is gathered, more is decoded.
    assert took["T1 int32"] > took["T1"]


def test_a_map_has_a_bandwidth_where_there_is_one():
    # Free codes, TP 2: 24 messages of 1 - c/1024 of 33.5 MB less outweigh 24 gradients of 2,048·c bytes on any link.
    machine = FittedMachine(name="t", source="by hand", flops_per_s=1e12, link=Link(bandwidth_bytes_per_s=1e9))
    setting = Setting(method="A1", tp=2, pp=1)
    assert simulate_break_even(machine, setting, micro_batches=[32], code_sizes=[50]) == []
    dear = replace(machine, codecs={Family.AUTOENCODER: CodecCost(encode_s_per_element=1 / 2**24)})  # 1 s a message
    (row,) = simulate_break_even(dear, setting, micro_batches=[32], code_sizes=[50])
    assert (row["micro_batch"], row["code_size"]) == (32, 50)
    assert row["value"] == pytest.approx(2**25 * (1 - 50 / 1024) - 1024 * 50 * 2, rel=1e-3)


def test_a_gain_is_told_for_each_place_and_whether_it_is_one():
    rows = simulate_gains(["A1"], [[4, 1]], [[0, 32, 512], [1, 8, 128]])
    slow = {"nvlink": 0, "micro_batch": 32, "sequence": 512}
    assert value(rows, "pays", **slow) == 1 and value(rows, "speedup", **slow) > 1.1
    assert value(rows, "pays", nvlink=1, micro_batch=8, sequence=128) == 0
    assert len(rows) == 4


def test_random_k_of_table_6_takes_more_than_100_seconds_where_the_paper_stops_counting():
    rows = simulate_times(["R2", "R4"], [[4, 4]], **PRE)
    assert (value(rows, "exceeds_100_s", method="R2"), value(rows, "exceeds_100_s", method="R4")) == (0, 1)


def test_one_cell_of_table_9_scales_its_boundaries():
    rows = simulate_boundaries(["w/o", "A2"], [[4, 4]], **PRE)
    assert value(rows, "boundary_ms", method="w/o", boundary=0) == pytest.approx(77.82)
    assert value(rows, "boundary_share", method="A2", boundary=0) == 1
    # 3.28 MB instead of 33.5 MB at 1.25 GB/s, each with 1.75 ms of handing over: (1.75 + 2.62) / (1.75 + 26.8).
    assert value(rows, "boundary_share", method="A2", boundary=1) == pytest.approx(
        (1.75 + 2.62) / (1.75 + 26.84), rel=0.01
    )


def test_the_share_of_communication_is_forward_tensor_time_over_the_iteration():
    rows = simulate_shares([[2, 2]], [[32, 512]], nvlink=[False])
    time = iteration_time(Setting(nvlink=False))
    assert value(rows, "communication_share") == time.tensor_s / time.total_s == pytest.approx(0.233, abs=0.003)


SHAPE = {"batch": 16, "sequence": 128}


def test_table_10_takes_a_micro_batch_of_16():
    first, last = (
        row for row in table_10_rows(v100_scaling()) if row["quantity"] == "speedup" and row["hidden"] in (6144, 25600)
    )
    assert first["value"] == pytest.approx(layer_speedup(v100_scaling(), hidden=6144, **SHAPE))  # one node
    more = cluster_speedup(v100_scaling(), hidden=25600, layers=128, num_nodes=64, num_micro_batches=3072 / 16, **SHAPE)
    assert last["value"] == more


def test_figure_5_adds_up_and_a_fixed_cluster_gains_less_the_larger_the_model():
    rows = figure_5_rows(v100_scaling(), [1024])
    parts = value(rows, "computation_ms") + value(rows, "communication_ms")
    assert value(rows, "layer_ms") == pytest.approx(parts)
    assert value(rows, "threshold_elements") == 16 * 128 * 100
    fixed = fixed_cluster_rows(v100_scaling(), [1024, 4096], [8])
    assert value(fixed, "fixed_cluster_speedup", hidden=1024) > value(fixed, "fixed_cluster_speedup", hidden=4096) > 1
    machine = paper_machine(nvlink=True)
    units = {row["constant"]: row for row in machine_rows(machine)}
    assert units["launching a layer"]["value"] == pytest.approx(1e3 * machine.layer_launch_s)  # in ms


# --- counted


def test_the_share_of_bytes_that_stays_is_half_and_the_codes_half():
    # TP 2: 24 of 48 messages shrink to 50/1024.
    (share,) = [
        row["value"] for row in count_study(["A1"], [(2, 2)], rehearse=False) if row["quantity"] == "tensor_share"
    ]
    assert share == 0.5 + 0.5 * 50 / 1024


@pytest.mark.parametrize(("names", "value_bytes"), [(["A1", "T1", "Q1"], 2), (["w/o", "fp16", "R1"], 4)])
def test_real_ranks_send_the_planned_bytes_and_their_headers_to_the_byte(names, value_bytes):
    rows = rehearse_iterations(names, [(1, 4), (2, 2), (4, 1)], value_bytes=value_bytes)
    unexplained = {
        (row["method"], row["tp"]): row["value"] for row in rows if row["quantity"] == "rehearsal_unexplained_bytes"
    }
    assert len(unexplained) == 9
    assert set(unexplained.values()) == {0}, unexplained


def test_wire_costs_of_gathered_messages_are_counted_for_two_and_four_ranks():
    rows = count_messages(["A1", "T1"], micro_batch=1, sequence=8, hidden=1024)
    assert {row["tp"]: row["value"] for row in rows if row["quantity"] == "wire_over_code"} == {2: 1.0, 4: 2.0}
