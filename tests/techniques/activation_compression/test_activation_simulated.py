"""Rows of the counted and simulated items, section 4.7's model term by term, and where compression begins to pay."""

import math
from dataclasses import replace

import pytest
from cases import value

from workbench.cluster import CodecCost, FittedMachine, Link
from workbench.techniques.activation_compression import cost, simulated
from workbench.techniques.activation_compression.cost import Setting, iteration_time
from workbench.techniques.activation_compression.counted import count_messages, count_study, rehearse_iterations
from workbench.techniques.activation_compression.method import Family

V100 = cost.v100_scaling()
PRE = {"micro_batch": 128, "sequence": 128, "num_micro_batches": 8, "num_nodes": 4}


def test_rows_hold_the_iteration_in_milliseconds_its_speedup_and_the_share_of_communication():
    rows = simulated.simulate_times(["A1", "w/o"], [[4, 1]], nvlink=[False])
    settings = (Setting(method=name, tp=4, pp=1, nvlink=False) for name in ("w/o", "A1"))
    plain, coded = (1e3 * iteration_time(setting).total_s for setting in settings)
    assert value(rows, "iteration_ms", method="A1") == pytest.approx(coded)
    assert value(rows, "speedup", method="A1") == pytest.approx(plain / coded)
    assert value(rows, "uncompressed_ms", mesh="TP 4, PP 1") == pytest.approx(plain)
    assert all("nvlink" not in row for row in rows)
    both = [row for row in simulated.simulate_times(["w/o"], [[2, 2]], nvlink=[True, False]) if "method" in row]
    assert {row["nvlink"] for row in both} == {0, 1} and "encode_ms" not in {row["quantity"] for row in both}
    rows = simulated.simulate_shares([[2, 2]], [[32, 512]], nvlink=[False])
    time = iteration_time(Setting(nvlink=False))
    assert value(rows, "communication_share") == time.tensor_s / time.total_s == pytest.approx(0.233, abs=0.003)


def test_variants_are_rows_beside_the_methods_of_table_1():
    variants = ["w/o", "fp16", "w/o fp32", "A1", "A1 fused", "T1", "T1 int32"]
    rows = simulated.simulate_times(variants, [[4, 1]], nvlink=[False])
    took = {row["method"]: row["value"] for row in rows if row["quantity"] == "iteration_ms"}
    assert took["w/o"] == took["fp16"] < took["w/o fp32"]  # the paper's own messages are fp16
    assert took["A1 fused"] < took["A1"]
    assert value(rows, "speedup", method="w/o fp32") < 1 < value(rows, "speedup", method="A1")
    # As many bytes of narrower entries are more elements: at most as much is gathered, more is decoded.
    assert took["T1 int32"] > took["T1"]


def test_a_gain_is_told_for_each_place_and_whether_it_is_one():
    rows = simulated.simulate_gains(["A1"], [[4, 1]], [[0, 32, 512], [1, 8, 128]])
    slow = {"nvlink": 0, "micro_batch": 32, "sequence": 512}
    assert value(rows, "pays", **slow) == 1 and value(rows, "speedup", **slow) > 1.1
    assert value(rows, "pays", nvlink=1, micro_batch=8, sequence=128) == 0
    assert len(rows) == 8
    printed_ms = 1e3 * cost.iteration_time(cost.Setting(method="A1", tp=4, pp=1, nvlink=False)).total_s
    assert value(rows, "speedup_over_printed", **slow) == pytest.approx(736.01 / printed_ms)  # table 3
    assert value(rows, "pays_over_printed", nvlink=1, micro_batch=8, sequence=128) == 0


def test_encoding_that_takes_no_time_makes_top_k_faster_and_leaves_the_uncompressed_alone():
    rows = simulated.simulate_times(["w/o", "T2"], [[4, 4]], **PRE)
    assert value(rows, "speedup_without_encoding", method="w/o") == 1
    assert value(rows, "speedup_without_encoding", method="T2") > value(rows, "speedup", method="T2")
    assert not [row for row in rows if row["quantity"] == "speedup_over_printed"]  # tables 3 and 12 are of one machine


def test_random_k_of_table_6_takes_more_than_100_seconds_and_one_cell_of_table_9_scales_its_boundaries():
    rows = simulated.simulate_times(["R2", "R4"], [[4, 4]], **PRE)
    assert (value(rows, "exceeds_100_s", method="R2"), value(rows, "exceeds_100_s", method="R4")) == (0, 1)
    rows = simulated.simulate_boundaries(["w/o", "A2"], [[4, 4]], **PRE)
    assert value(rows, "boundary_ms", method="w/o", boundary=0) == pytest.approx(77.82)
    assert value(rows, "boundary_share", method="A2", boundary=0) == 1
    # 3.28 MB instead of 33.5 MB at 1.25 GB/s, each with 1.75 ms of handing over.
    share = (1.75 + 2.62) / (1.75 + 26.84)
    assert value(rows, "boundary_share", method="A2", boundary=1) == pytest.approx(share, rel=0.01)


def test_table_10_takes_a_micro_batch_of_16_figure_5_adds_up_and_larger_models_gain_less_on_a_fixed_cluster():
    rows = simulated.table_10_rows(V100)
    one_node = cost.layer_speedup(V100, hidden=6144, **SHAPE)
    assert value(rows, "speedup", hidden=6144) == pytest.approx(one_node)
    cluster = {"layers": 128, "num_nodes": 64, "num_micro_batches": 3072 / 16}
    assert value(rows, "speedup", hidden=25600) == cost.cluster_speedup(V100, hidden=25600, **cluster, **SHAPE)
    printed = {"gain_error_with_peak_alpha": "speedup", "gain_error_with_fitted_alpha": "speedup_with_fitted_alpha"}
    for error, speedup in printed.items():  # table 10 has 1.47
        assert value(rows, error, hidden=25600) == pytest.approx(abs(value(rows, speedup, hidden=25600) - 1.47) / 0.47)
    rows = simulated.figure_5_rows(V100, [1024])
    parts = value(rows, "computation_ms") + value(rows, "communication_ms")
    assert value(rows, "layer_ms") == pytest.approx(parts)
    assert value(rows, "threshold_elements") == 16 * 128 * 100
    assert value(rows, "threshold_bytes") == 409_600  # the printed d
    fixed = simulated.fixed_cluster_rows(V100, [1024, 4096], [8])
    assert value(fixed, "fixed_cluster_speedup", hidden=1024) > value(fixed, "fixed_cluster_speedup", hidden=4096) > 1
    machine = cost.paper_machine(nvlink=True)
    units = {row["constant"]: row for row in simulated.machine_rows(machine)}
    assert units["launching a layer"]["value"] == pytest.approx(1e3 * machine.layer_launch_s)  # in ms


def test_half_of_the_bytes_stay_beside_the_codes_and_gathered_messages_cost_more_for_four_ranks():
    # TP 2: 24 of 48 messages shrink to 50/1024.
    rows = count_study(["A1"], [(2, 2)], rehearse=False)
    assert value(rows, "tensor_share") == 0.5 + 0.5 * 50 / 1024
    rows = count_messages(["A1", "T1"], micro_batch=1, sequence=8, hidden=1024)
    assert {row["tp"]: row["value"] for row in rows if row["quantity"] == "wire_over_code"} == {2: 1.0, 4: 2.0}


@pytest.mark.parametrize(("names", "value_bytes"), [(["A1", "T1", "Q1"], 2), (["w/o", "fp16", "R1"], 4)])
def test_real_ranks_send_the_planned_bytes_and_their_headers_to_the_byte(names, value_bytes):
    rows = rehearse_iterations(names, [(1, 4), (2, 2), (4, 1)], value_bytes=value_bytes)
    unexplained = [row for row in rows if row["quantity"] == "rehearsal_unexplained_bytes"]
    assert len(unexplained) == 9 and not any(row["value"] for row in unexplained), unexplained


SHAPE = {"batch": 16, "sequence": 128}
# Round numbers: at B·s = 2, h = 10: 96·2·100 + 16·1·4·10 = 19,840 FLOPs (B = 1, s = 2), a message of 20 elements.
ROUND = cost.ScalingModel(
    alpha_s_per_flop=1e-4,
    beta_s_per_element=0.5,
    gamma_s_per_element=0.1,
    bandwidth_elements_per_s=2.0,
    small_s=0.25,
    threshold_elements=4,
    code_size=2,
)


def round_layer(model: cost.ScalingModel, *, compressed: bool) -> float:
    return cost.layer_seconds_by_definition(model, batch=1, sequence=2, hidden=10, compressed=compressed)


def test_a_layer_is_flops_and_a_message_and_a_cluster_is_a_pipeline_of_equal_stages():
    assert round_layer(ROUND, compressed=False) == pytest.approx(1.984 + 0.5 * 20)
    assert round_layer(ROUND, compressed=True) == pytest.approx(1.984 + 0.25 + 0.1 * 20)  # 2·2 = 4 elements, not above
    longer = replace(ROUND, threshold_elements=3)
    assert round_layer(longer, compressed=True) == pytest.approx(1.984 + 2 + 2)
    # 3 micro-batches on 2 nodes of 2 layers: 3 - 1 + 2 slots of 2 layers, a boundary of 20 or 4 elements at 2 a second.
    plain, coded = (round_layer(ROUND, compressed=compressed) for compressed in (False, True))
    speedup = cost.cluster_speedup(ROUND, batch=1, sequence=2, hidden=10, layers=4, num_nodes=2, num_micro_batches=3)
    assert speedup == pytest.approx((4 * 2 * plain + 10) / (4 * 2 * coded + 2))
    for hidden in (1024, 6144):
        on_one_node = cost.cluster_speedup(V100, hidden=hidden, layers=40, num_nodes=1, num_micro_batches=64, **SHAPE)
        assert on_one_node == pytest.approx(cost.layer_speedup(V100, hidden=hidden, **SHAPE))


def test_the_gain_falls_with_the_hidden_size_and_tends_to_h_over_e_as_nodes_are_added_and_nothing_else_is():
    gains = [cost.layer_speedup(V100, hidden=hidden, **SHAPE) for hidden in (1024, 4096, 16384, 65536, 10**8)]
    assert gains == sorted(gains, reverse=True)
    assert gains[-1] == pytest.approx(1, abs=1e-3)
    speedup = cost.cluster_speedup(V100, hidden=25600, layers=128, num_nodes=10**9, num_micro_batches=192, **SHAPE)
    assert speedup == pytest.approx(25600 / 100, rel=1e-3)


def test_constants_of_v100s_and_of_a_machine_are_those_worked_by_hand():
    model = V100
    assert 1 / model.alpha_s_per_flop == pytest.approx(4 * 125e12)  # data sheet, four devices
    assert model.bandwidth_elements_per_s == 10e9 / 8 / 2 / 4  # 10 Gbit/s, fp16, four ranks a node
    # Table 4: A2's 3.12 + 4.56 ms and its gradients, some 8.4 ms, for 24 messages of 16.8 million; two a layer.
    assert model.gamma_s_per_element == pytest.approx(2 * (3.12 + 4.56 + 8.4) * 1e-3 / 24 / 2**24, rel=0.02)
    # Table 3 at TP 4 without NVLink: 736.01 ms, some 190 ms of them compute; 96 all-reduces, four a layer.
    assert model.beta_s_per_element == pytest.approx(4 * (736.01 - 190) * 1e-3 / 96 / 2**24, rel=0.05)
    # 33.5 MB over 50 MB/s: a ring of four sends 1.5 times as much, 4 all-reduces a layer; each starts with 1 ms.
    codecs = {Family.AUTOENCODER: CodecCost(encode_s_per_element=1e-9, decode_s_per_element=2e-9, backward_ratio=1.0)}
    link = Link(bandwidth_bytes_per_s=50e6, source="made up")
    machine = replace(simple(), link=link, collective_launch_s=1e-3, codecs=codecs)
    model = cost.machine_scaling(machine)
    assert model.alpha_s_per_flop == 1 / (4 * machine.flops_per_s)
    assert model.small_s == pytest.approx(4 * 1e-3, rel=1e-3)  # and one element's bytes
    assert model.gamma_s_per_element == pytest.approx(2 * 2 * (1e-9 + 2e-9))  # twice a layer, backward as long
    assert model.beta_s_per_element * 2**24 == pytest.approx(4 * 1.5 * 2**25 / 50e6)
    assert model.beta_s_per_element * model.threshold_elements == pytest.approx(model.small_s)  # the pieces meet
    assert model.bandwidth_elements_per_s == 50e6 / 2 / 4  # its link joins the nodes, too


def simple() -> FittedMachine:
    link = Link(bandwidth_bytes_per_s=1e9)
    return FittedMachine(name="t", source="by hand", flops_per_s=1e12, link=link, overlap_power=1.0)


def test_at_break_even_neither_side_is_faster_and_a_message_larger_than_the_plain_one_never_pays():
    machine = cost.paper_machine(nvlink=False)
    setting = Setting(method="A1", tp=4, pp=1)
    limit = cost.break_even_bytes_per_s(machine, setting)
    speedup = cost.speedup_at(machine, setting, machine.link.bandwidth_bytes_per_s)
    plain, coded = (iteration_time(replace(setting, method=name), machine).total_s for name in ("w/o", "A1"))
    assert speedup == plain / coded
    below, at, above = (cost.speedup_at(machine, setting, factor * limit) for factor in (0.5, 1, 2))
    assert below > 1 > above and at == pytest.approx(1, abs=1e-9)
    # Q-like: keeping all elements of a sparse message costs 10 bytes for 2; gathered by 4, three times again.
    all_kept = Setting(method="T3", code_size=1024, tp=4, pp=1)
    assert cost.break_even_bytes_per_s(cost.paper_machine(nvlink=False), all_kept) == 0
    assert cost.break_even_bytes_per_s(simple(), Setting(method="w/o", tp=2, pp=1)) == 0


def test_codes_that_cost_a_second_a_message_pay_below_the_bandwidth_worked_by_hand():
    # A ring among 2 sends M = 33.5 MB a message. 24 messages shrink by M·(1 - 50/1024) bytes; 24 encoder gradients of
    # 1024·50·2 bytes come on top. A second a message is repaid where the difference takes a second.
    expected = 2**25 * (1 - 50 / 1024) - 1024 * 50 * 2
    dear = replace(simple(), codecs={Family.AUTOENCODER: CodecCost(encode_s_per_element=1 / 2**24)})
    setting, place = Setting(method="A1", tp=2, pp=1), {"micro_batches": [32], "code_sizes": [50]}
    assert cost.break_even_bytes_per_s(dear, setting) == pytest.approx(expected, rel=1e-6)
    (row,) = simulated.simulate_break_even(dear, setting, **place)
    assert (row["micro_batch"], row["code_size"], row["value"]) == (32, 50, pytest.approx(expected, rel=1e-3))
    # Free codes pay on any link: a map shows no bandwidth.
    assert simulated.simulate_break_even(simple(), setting, **place) == []


def test_larger_batches_pay_over_faster_links_and_larger_codes_over_slower_ones():
    machine, sizes = cost.paper_machine(nvlink=True), [25, 100, 400]
    setting = Setting(method="A1", tp=4, pp=1)
    points = cost.break_even_map(machine, setting, micro_batches=[4, 16, 64], code_sizes=sizes)
    by_size = [[points[batch, size] for batch in (4, 16, 64)] for size in sizes]
    assert all(row == sorted(row) for row in by_size)
    assert all(column == tuple(sorted(column, reverse=True)) for column in zip(*by_size, strict=True))
    assert all(0 < bandwidth < math.inf for row in by_size for bandwidth in row)
