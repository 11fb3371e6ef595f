"""Bytes and seconds of layers and iterations by hand, and the paper's machines: their fit and limits."""

import csv
import math
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pytest
from cases import refusals

from workbench.cluster import CodecCost, FittedMachine, Link
from workbench.study.published import Cell
from workbench.techniques.activation_compression import cost
from workbench.techniques.activation_compression.cost import Purpose, Setting, iteration_time, layer_time
from workbench.techniques.activation_compression.method import METHODS, Family, method

ELEMENTS = 32 * 512 * 1024  # one activation of fine-tuning: 16,777,216


def planned(purpose: Purpose, **fields) -> list[cost.PlannedMessages]:
    return [message for message in cost.planned_messages(Setting(**fields)) if message.purpose is purpose]


def wire_bytes(purpose: Purpose, **fields) -> int:
    return sum(message.wire_bytes for message in planned(purpose, **fields))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("w/o", 2 * ELEMENTS),
        ("A1", 32 * 512 * 50 * 2),
        ("A2", 32 * 512 * 100 * 2),
        ("T1", 32 * 512 * 10 * 10),  # k = B·s·50·2/10 elements of 2 + 8 bytes
        ("T3", 32 * 512 * 50 * 10),
        ("R2", 32 * 512 * 20 * 10),
        ("R4", 32 * 512 * 100 * 10),
        ("Q1", 32 * 512 * (256 + 4)),
        ("Q2", 32 * 512 * (512 + 4)),
        ("Q3", 32 * 512 * (1024 + 4)),
    ],
)
def test_one_message_has_the_bytes_of_table_1(name, expected):
    assert Setting(method=name).encoded_bytes() == expected
    assert Setting(method="A2", code_size=50).encoded_bytes() == Setting(method="A1").encoded_bytes()
    assert method("A1").message_bytes(10, 384) == 10 * 19 * 2  # another hidden size: 50/1024 of 384 is 18.75


def test_an_iteration_sends_two_all_reduces_a_layer_each_way_and_gathering_costs_more_beyond_two_ranks():
    # TP 2: a ring all-reduce of m bytes puts 2·m·(2−1)/2 on the wire for each of 2 ranks: 2·m in all.
    for purpose in (Purpose.TENSOR_FORWARD, Purpose.TENSOR_BACKWARD):
        assert wire_bytes(purpose, method="w/o", tp=2, pp=2) == 24 * 2 * 2 * (2 * ELEMENTS)
    assert {cost.planned_messages(Setting(method=name, tp=1, pp=1)) for name in METHODS} == {()}
    # m bytes: a ring all-reduce sends 2·m·(n−1)/n a rank, an all-gather m·(n−1): equal at n = 2, twice as much at 4.
    for tp, times in ((2, 1), (4, 2)):
        shape = {"tp": tp, "pp": 1, "compressed_layers": 24}
        top_k, code = (wire_bytes(Purpose.TENSOR_FORWARD, method=name, **shape) for name in ("T1", "A1"))
        assert top_k == times * code


@pytest.mark.parametrize(
    ("purpose", "tp", "pp", "layers"),
    [
        (Purpose.TENSOR_FORWARD, 4, 1, list(range(12, 24))),  # the last half of the layers
        (Purpose.TENSOR_BACKWARD, 4, 1, []),
        # Boundaries where the receiving stage starts with a compressed layer.
        (Purpose.BOUNDARY_FORWARD, 2, 2, [12]),
        (Purpose.BOUNDARY_FORWARD, 2, 4, [12, 18]),
        (Purpose.BOUNDARY_FORWARD, 2, 8, [12, 15, 18, 21]),
    ],
)
def test_compression_touches_forward_reductions_and_boundaries_of_the_last_layers_alone(purpose, tp, pp, layers):
    encoded = {message.layer for message in planned(purpose, method="A2", tp=tp, pp=pp) if message.compressed}
    assert sorted(encoded) == layers


@pytest.mark.parametrize(
    ("name", "expected"),
    [("A1", 32 * 512 * 50 * 2), ("T1", 32 * 512 * 10 * 2), ("R3", 32 * 512 * 50 * 2), ("Q1", 2 * ELEMENTS)],
)
def test_the_gradient_of_a_boundary_message_is_small_except_for_quantisation(name, expected):
    (gradient,) = planned(Purpose.BOUNDARY_BACKWARD, method=name, tp=1, pp=2)
    assert gradient.message_bytes == expected


def test_gradients_of_encoders_are_summed_over_the_group_one_by_one_or_in_one_message_of_as_many_bytes():
    gradients = planned(Purpose.ENCODER_GRADIENT, method="A1", tp=2, pp=1)
    assert len(gradients) == 12 and {p.message_bytes for p in gradients} == {1024 * 50 * 2}
    shape = {"method": "A1", "tp": 2, "pp": 4, "num_micro_batches": 3}
    one_by_one, together = (planned(Purpose.ENCODER_GRADIENT, **shape, fuse_gradients=fuse) for fuse in (False, True))
    # Of 4 stages of 6 layers the last two are encoded: 12 encoders of 1024·50 weights each.
    in_all = 12 * 1024 * 50 * 2
    assert [(p.stage, p.count, p.message_bytes) for p in together] == [(2, 3, in_all), (3, 3, in_all)]
    assert sum(p.wire_bytes for p in together) == sum(p.wire_bytes for p in one_by_one)


def slow_link(bandwidth_bytes_per_s: float = 1.0, latency_s: float = 0.0) -> Link:
    return Link(bandwidth_bytes_per_s=bandwidth_bytes_per_s, latency_s=latency_s)


def test_the_time_of_a_layer_is_flops_over_rate_and_bytes_over_bandwidth_and_encoding_takes_what_table_4_says():
    # 2 rows of h = 4: 24·2·16 + 4·2·2·4 = 832 FLOPs forward, 416 a rank; 16 bytes a message, 2·16·(1/2) a rank.
    setting = Setting(method="w/o", tp=2, pp=1, micro_batch=1, sequence=2, hidden=4, layers=1, compressed_layers=0)
    seconds = layer_time(setting, slow_link(), flops_per_s=416)
    assert (seconds.forward_s, seconds.backward_s) == (1.0, 2.0)
    assert (seconds.transfer_s, seconds.backward_transfer_s) == (2 * 16.0, 2 * 16.0)
    assert seconds.total_s == 1 + 2 + 32 + 32
    # Table 4: 2.16 ms for 24 encoded activations, two of them in a layer.
    assert layer_time(Setting(method="A1"), slow_link(1e9)).encode_s == pytest.approx(2.16e-3 / 12)


@pytest.mark.parametrize("name", ["w/o", "A1", "T3", "Q2"])
def test_a_faster_link_never_makes_a_layer_slower(name):
    times = [layer_time(Setting(method=name, tp=4), slow_link(rate)).total_s for rate in (1e8, 1e9, 1e10, 1e12)]
    assert times == sorted(times, reverse=True)


ACROSS = Setting(tp=2, pp=2, num_nodes=2, nvlink=False)
test_fused_layers_missing_cells_and_networks_zeros_and_variants_that_a_method_cannot_have_are_refused_by_name = (
    refusals(
        (lambda: layer_time(Setting(method="A1", fused=True), slow_link()), "fused is True"),
        (lambda: layer_time(Setting(method="Q3"), slow_link()), "encode_ms with {'method': 'Q3'"),
        (lambda: cost.calibrate(cost.published_ms(cost.CALIBRATION[:5])), "lacks tensor_ms of .* pp 2 in table-4"),
        (lambda: iteration_time(ACROSS, machine()), "network is None"),
        (lambda: replace(cost.v100_scaling(), beta_s_per_element=0.0), "beta_s_per_element is 0"),
        *(
            (partial(cost.read_variant, name), f"name is '{name}'; the variant of {name[:2]} must be one of")
            for name in ("A1 int32", "A1 literal", "T1 fused", "A1 other")
        ),
    )
)

test_a_wrong_setting_names_the_field = refusals(
    ({"method": "Z9"}, "Z9"),
    ({"tp": 0}, "tp is 0; it must be a whole number of at least 1"),
    ({"pp": 5}, "pp is 5; it must divide the 24 layers"),
    ({"compressed_layers": 25}, r"compressed_layers is 25; it must be in 0..24, the layers"),
    ({"num_nodes": 3}, "num_nodes is 3; it must divide the 4 ranks"),
    ({"vocabulary": -1}, "vocabulary is -1; it must be None, or 0 or more"),
    ({"code_size": 0}, "code_size is 0; it must be None, or in 1..1024"),
    of=Setting,
)

SMALL = {"micro_batch": 1, "sequence": 2, "hidden": 4, "layers": 2, "compressed_layers": 1, "value_bytes": 2}
# One layer of SMALL, forward: 24·2·16 + 4·2·2·4 = 832 FLOPs; one activation: 8 elements, 16 bytes.


def machine(**fields) -> FittedMachine:
    plain = {"name": "round numbers", "source": "worked by hand", "flops_per_s": 832.0, "overlap_power": 1.0}
    return FittedMachine(**{**plain, "link": Link(bandwidth_bytes_per_s=16.0), **fields})


def test_ranks_share_the_flops_add_ring_all_reduces_and_repeat_the_rest():
    single = iteration_time(Setting(tp=1, pp=1, **SMALL), machine())
    assert (single.forward_s, single.backward_s, single.total_s) == (2.0, 4.0, 6.0)
    # 2 layers, half a second each; 4 all-reduces of 16 bytes: 2·16·(1/2) bytes on 16 bytes/s, a second each, both ways.
    pair = iteration_time(Setting(tp=2, pp=1, **SMALL), machine())
    assert (pair.forward_s, pair.tensor_s, pair.backward_s) == (1.0 + 4.0, 4.0, 2.0 + 4.0)
    repeating = machine(replicated_s_per_element=1 / 8)  # 8 elements: a second a layer
    assert iteration_time(Setting(tp=1, pp=1, **SMALL), repeating).forward_s == 2 * (1 + 1)
    assert iteration_time(Setting(tp=2, pp=1, **SMALL), repeating).forward_s == 2 * (0.5 + 1) + 4


def test_gathered_messages_are_decoded_once_a_rank_and_codes_once():
    sparse = CodecCost(encode_s_per_element=1 / 8, decode_s_per_element=2 / 8)
    coding = machine(codecs={Family.TOP_K: sparse, Family.AUTOENCODER: replace(sparse, backward_ratio=1.0)})
    sparse, code = (iteration_time(Setting(method=name, tp=2, pp=1, **SMALL), coding) for name in ("T1", "A1"))
    assert (sparse.encode_s, sparse.decode_s) == (2 * 1.0, 2 * 2 * 2.0)  # 2 messages of one layer
    assert (code.encode_s, code.decode_s) == (2 * 1.0, 2 * 2.0)
    # The code's backward pass takes what encoding and decoding took, and sums two gradients of 4·1 elements, 8 bytes.
    plain = iteration_time(Setting(tp=2, pp=1, **SMALL), machine())
    assert code.backward_s == plain.backward_s + 6.0 + 2 * 8 / 16


def test_micro_batches_pass_the_stages_one_by_one_and_a_full_pipeline_exchanges_both_directions_at_once():
    time = iteration_time(Setting(tp=1, pp=2, **SMALL), machine(handover_s=0.25))
    assert (time.forward_s, time.backward_s) == (2.0, 4.0)
    assert time.waiting_and_pipeline_s == 2 * (0.25 + 1.0)
    # Boundary messages take a second each way. Fill and drain: 2 s; 3 further slots: 3 s of stage and 1 s of exchange.
    time = iteration_time(Setting(tp=1, pp=2, num_micro_batches=4, **SMALL), machine())
    assert time.total_s == (3 + 3 + 2) + 3 * (3 + 1)


def test_attention_scores_are_shared_by_the_ranks_and_grow_with_the_square_of_the_sequence():
    # 1 head of 4 columns: 1·1·2² = 4 scores a layer, at a quarter of a second each; twice the tokens, 16 scores.
    scoring, plain = machine(attention_s_per_score=0.25), machine()
    for sequence, scores_s in ((2, 1.0), (4, 4.0)):
        for tp in (1, 2):
            setting = Setting(tp=tp, pp=1, **{**SMALL, "sequence": sequence})
            more_s = iteration_time(setting, scoring).forward_s - iteration_time(setting, plain).forward_s
            assert more_s == pytest.approx(2 * scores_s / tp)


def test_equal_stages_take_m_minus_one_plus_pp_slots_and_the_slowest_stage_sets_the_pace():
    # Stages of 1 + 2 s; a link without limits; 4 micro-batches, 2 stages: 3 + 2 slots of 3 s.
    fast = machine(link=Link(bandwidth_bytes_per_s=1e30))
    assert iteration_time(Setting(tp=1, pp=2, num_micro_batches=4, **SMALL), fast).total_s == pytest.approx(5 * 3.0)
    # A head of 13 words on the last stage: 1·2·13 logits at 0.5 and 1 s, 2·4·26 = 208 FLOPs: 13.25 s, and twice that.
    fast = replace(fast, head_forward_s_per_logit=0.5, head_backward_s_per_logit=1.0)
    time = iteration_time(Setting(tp=1, pp=2, num_micro_batches=4, vocabulary=13, **SMALL), fast)
    assert time.total_s == pytest.approx((3 + 3 + 39.75) + 3 * (3 + 39.75))
    assert (time.forward_s, time.backward_s) == pytest.approx((4 * 14.25, 4 * 28.5))
    assert time.waiting_and_pipeline_s == pytest.approx(3.0)


def test_across_two_hosts_one_message_is_on_the_network_and_groups_of_a_host_use_the_connections_they_have():
    # TP 2 on 2 hosts: two trees, each half a message up and down: 16 bytes in series at 4 bytes/s, half of it reached.
    split = machine(network=Link(bandwidth_bytes_per_s=4.0), network_share=0.5)
    time = iteration_time(Setting(tp=2, pp=1, num_nodes=2, vocabulary=0, **SMALL), split)
    assert time.tensor_s == 4 * 16 / 2
    # 3 ranks on hosts of 2, so that a stage straddles them: a ring of two at 16 bytes/s, two trees at 4.
    setting = Setting(tp=3, pp=2, num_nodes=3, vocabulary=0, **SMALL)
    assert iteration_time(setting, replace(split, network_share=1.0)).tensor_s == pytest.approx(4 * (1.0 + 16 / 4))
    two = machine(connections={2: (1.0, 2.0)})
    time = iteration_time(Setting(tp=2, pp=2, **SMALL), two)
    assert time.tensor_s == 2 * 1.0 + 2 * 0.5


def test_a_fused_code_trades_full_size_products_for_narrow_ones_that_take_a_share_of_what_encoding_takes():
    # Hidden 4, c = 1 column, 2 rows, 1 of 2 layers encoded on 2 ranks; inputs of a rank: 2 (attention) and 8 (MLP).
    # Spared forward: 2·2·10·4 = 160 FLOPs. Instead W·E: 2·10·4·1 = 80, and x·(W·E): 2·2·10·1 = 40. 832 FLOPs a second.
    setting = Setting(method="A1", code_size=256, tp=2, pp=1, **SMALL)
    plain, fused = (iteration_time(replace(setting, fused=choice), machine()) for choice in (False, True))
    assert fused.encode_s == pytest.approx((80 + 40) / 832)
    assert plain.forward_s - fused.forward_s == pytest.approx((160 - 80 - 40) / 832)
    assert plain.backward_s - fused.backward_s == pytest.approx(2 * 160 / 832)  # no backward_ratio: coding is free
    # Encoding 8 elements takes 8 s: a row of 4 takes 4 s. W·E has 2 + 8 rows; x·(W·E) is 10/4 of encoding 2 rows.
    costs = {Family.AUTOENCODER: CodecCost(encode_s_per_element=1.0, backward_ratio=1.0)}
    setting = Setting(method="A1", code_size=256, tp=2, pp=1, fused=True, **SMALL)
    time = iteration_time(setting, machine(codecs=costs))
    assert time.encode_s == pytest.approx(10 * 4 + 10 / 4 * 8)
    free = iteration_time(replace(setting, fused=False), machine())
    assert time.backward_s == pytest.approx(free.backward_s - 2 * 160 / 832 + 60)


def test_fusing_changes_learned_codes_under_tensor_parallelism_alone_and_no_layers_are_no_compression():
    for name in METHODS:
        for tp, pp in ((1, 4), (2, 2)):
            setting = Setting(method=name, tp=tp, pp=pp)
            same = iteration_time(replace(setting, fused=True)) == iteration_time(setting)
            assert same == (tp == 1 or name not in ("A1", "A2"))
        assert iteration_time(Setting(method=name, compressed_layers=0)).total_s == iteration_time(Setting()).total_s


def test_gradients_summed_together_launch_one_collective_and_wait_for_one_latency():
    # 1 encoded layer: two encoders of 4·1 weights, 8 bytes each; a ring of 2: latency twice a collective.
    late = machine(link=Link(bandwidth_bytes_per_s=16.0, latency_s=1.0), collective_launch_s=0.5)
    setting = Setting(method="A1", tp=2, pp=1, **SMALL)
    apart, together = (iteration_time(replace(setting, fuse_gradients=choice), late) for choice in (False, True))
    assert apart.backward_s - together.backward_s == pytest.approx(2 * 1.0 + 0.5)
    assert apart.forward_s == together.forward_s


PUBLISHED = Path(__file__).parents[3] / "reproductions/activation_compression/published"
TABLES = ("table-2", "table-3", "table-4", "table-6", "table-7", "table-9", "table-12")


def published(table: str) -> list[dict]:
    with (PUBLISHED / f"{table}.csv").open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["unit"] == "ms" or row["quantity"] == "exceeds_100_s"]


def test_machines_are_fitted_to_each_of_the_named_cells_alone_and_these_are_at_most_one_of_five():
    cells = cost.published_ms()
    other = Cell.of("table-2", "iteration_ms", method="T1", tp=2, pp=2)
    assert cost.calibrate(cells | {other: 1.0}) == cost.calibrate(cells)
    # Cells of table 2; table 9 is scaled.
    repeated = [cell for cell in cells if ("nvlink", 1) in cell.columns or cell.table == "table-9"]
    for cell in set(cells) - set(repeated):
        assert cost.calibrate(cells | {cell: 1.001 * cells[cell]}) != cost.calibrate(cells), cell
    counts = {table: (len(cost.calibration_cells(table)), len(published(table))) for table in TABLES}
    for table, (used, printed) in counts.items():
        assert 5 * used <= printed, table
    assert 5 * sum(used for used, _ in counts.values()) <= sum(printed for _, printed in counts.values())
    assert sum(used for used, _ in counts.values()) == len(cost.CALIBRATION)


@pytest.mark.parametrize(
    ("setting", "quantity", "milliseconds"),
    [
        (Setting(tp=1, pp=4), "total_s", 591.96),
        (Setting(tp=4, pp=1), "total_s", 261.48),
        (Setting(tp=4, pp=1, nvlink=False), "total_s", 736.01),
        (Setting(nvlink=False), "forward_s", 276.34),
        (Setting(nvlink=False), "tensor_s", 150.72),
        (Setting(method="T4", nvlink=False), "decode_s", 45.36),
        (Setting(method="R4", nvlink=False), "encode_s", 44038.56),
        (Setting(method="A2", nvlink=False), "waiting_and_pipeline_s", 4.07),
        (Setting(micro_batch=8, sequence=128), "total_s", 121.26),
        (Setting(tp=8, pp=2, micro_batch=128, sequence=128, num_micro_batches=8, num_nodes=4), "total_s", 15642.30),
    ],
)
def test_cells_that_calibrate_come_back_within_two_percent(setting, quantity, milliseconds):
    assert 1e3 * getattr(iteration_time(setting), quantity) == pytest.approx(milliseconds, rel=0.02)


def test_rates_stay_below_the_data_sheet_of_a_v100():
    for nvlink in (True, False):
        reached = cost.paper_machine(nvlink=nvlink)
        assert 30e12 < reached.flops_per_s < 112e12
        assert 1e9 < reached.link.bandwidth_bytes_per_s < 25e9  # one NVLink; PCIe 3 has 15.75e9
        assert reached.replicated_s_per_element > 2 * 2 / 900e9  # reads and writes fp16 at least once


ONE_OF_A_KIND = ("w/o", "fp16", "A2", "T1", "R4", "Q1", "Q3f")  # others differ in a number
SWEEPS = {
    "micro_batch": [1, 2, 3, 8, 24, 32, 64, 512],
    "sequence": [16, 32, 128, 200, 512, 4096],
    "layers": [4, 8, 24, 96],
    "hidden": [64, 256, 768, 1024, 12288],
    "num_micro_batches": [1, 2, 4, 8, 64],
}


@pytest.mark.parametrize("field", SWEEPS)
def test_more_never_takes_less(field):
    for name, nvlink, (tp, pp) in product(ONE_OF_A_KIND, (True, False), ((1, 4), (2, 2), (4, 1))):
        seconds = [0.0]
        for value in SWEEPS[field]:
            half = {"compressed_layers": value // 2} if field == "layers" else {}
            setting = Setting(method=name, tp=tp, pp=pp, nvlink=nvlink, **half, **{field: value})
            seconds.append(iteration_time(setting).total_s * (1 + 1e-12))
            assert seconds[-2] <= seconds[-1] < math.inf, (name, nvlink, tp, pp, value)


def test_the_parts_add_up_and_none_is_negative():
    for name, num in product(METHODS, (1, 8)):
        shape = {"tp": 2, "pp": 4, "micro_batch": 3, "sequence": 77, "num_nodes": 2}
        time = iteration_time(Setting(method=name, num_micro_batches=num, **shape))
        assert min(getattr(time, part) for part in time.__dataclass_fields__) >= 0
        assert time.encode_s + time.decode_s + time.tensor_s <= time.forward_s * (1 + 1e-9)
        parts = time.forward_s + time.backward_s + time.optimizer_s + time.waiting_and_pipeline_s
        assert time.total_s == pytest.approx(parts)


def test_small_work_takes_its_launching_large_work_its_flops_and_only_a_slow_link_leaves_something_to_gain():
    small = [iteration_time(Setting(tp=1, pp=4, micro_batch=batch, sequence=16)).total_s for batch in (1, 2)]
    large = [iteration_time(Setting(tp=1, pp=4, micro_batch=batch)).total_s for batch in (512, 1024)]
    assert small[1] / small[0] == pytest.approx(1, abs=0.01)
    assert large[1] / large[0] == pytest.approx(2, abs=0.01)
    unlimited, slow = (replace(cost.paper_machine(nvlink=False), link=slow_link(rate)) for rate in (1e18, 1e8))
    code, plain = (Setting(method=name, tp=4, pp=1, nvlink=False) for name in ("A1", "w/o"))
    assert iteration_time(code, unlimited).total_s > iteration_time(plain, unlimited).total_s
    # Half of the forward messages shrink to 50/1024: 96 messages become 72 and 24 small ones.
    ratio = iteration_time(code, slow).total_s / iteration_time(plain, slow).total_s
    assert ratio == pytest.approx((72 + 24 * 50 / 1024) / 96, rel=0.01)
