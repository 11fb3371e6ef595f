"""Bytes of an iteration, and seconds of a layer, against values worked by hand from the settings of the paper."""

import pytest

from workbench.cluster import Link
from workbench.techniques.activation_compression.cost import Purpose, Setting, layer_time, planned_messages
from workbench.techniques.activation_compression.method import METHODS, method

ELEMENTS = 32 * 512 * 1024  # one activation of fine-tuning: 16,777,216


def wire_bytes(setting: Setting, purpose: Purpose) -> int:
    return sum(planned.wire_bytes for planned in planned_messages(setting) if planned.purpose is purpose)


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
    assert method("A1").message_bytes(10, 384) == 10 * 19 * 2  # another hidden size: 50/1024 of 384 is 18.75


def test_an_uncompressed_iteration_sends_two_all_reduces_a_layer_each_way_and_one_rank_alone_nothing():
    # TP 2: a ring all-reduce of m bytes puts 2·m·(2−1)/2 on the wire for each of 2 ranks: 2·m in all.
    for purpose in (Purpose.TENSOR_FORWARD, Purpose.TENSOR_BACKWARD):
        assert wire_bytes(Setting(method="w/o", tp=2, pp=2), purpose) == 24 * 2 * 2 * (2 * ELEMENTS)
    assert {planned_messages(Setting(method=name, tp=1, pp=1)) for name in METHODS} == {()}


def test_compression_touches_the_forward_reductions_of_the_last_layers_alone():
    planned = planned_messages(Setting(method="A1", tp=4, pp=1))
    encoded = [p.layer for p in planned if p.purpose is Purpose.TENSOR_FORWARD and p.compressed]
    assert encoded == list(range(12, 24))
    assert not any(p.compressed for p in planned if p.purpose is Purpose.TENSOR_BACKWARD)


def test_gathered_messages_cost_more_than_reduced_ones_beyond_two_ranks():
    # m bytes: a ring all-reduce sends 2·m·(n−1)/n a rank, an all-gather m·(n−1): equal at n = 2, twice as much at 4.
    def tensor_forward(name, tp):
        setting = Setting(method=name, tp=tp, pp=1, compressed_layers=24)
        return wire_bytes(setting, Purpose.TENSOR_FORWARD)

    assert tensor_forward("T1", 2) == tensor_forward("A1", 2)
    assert tensor_forward("T1", 4) == 2 * tensor_forward("A1", 4)


@pytest.mark.parametrize(("pp", "expected"), [(2, [12]), (4, [12, 18]), (8, [12, 15, 18, 21])])
def test_a_boundary_is_compressed_where_the_receiving_stage_starts_with_a_compressed_layer(pp, expected):
    planned = planned_messages(Setting(method="A2", tp=2, pp=pp))
    assert [p.layer for p in planned if p.purpose is Purpose.BOUNDARY_FORWARD and p.compressed] == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("A1", 32 * 512 * 50 * 2), ("T1", 32 * 512 * 10 * 2), ("R3", 32 * 512 * 50 * 2), ("Q1", 2 * ELEMENTS)],
)
def test_the_gradient_of_a_boundary_message_is_small_except_for_quantisation(name, expected):
    planned = planned_messages(Setting(method=name, tp=1, pp=2))
    (gradient,) = [p for p in planned if p.purpose is Purpose.BOUNDARY_BACKWARD]
    assert gradient.message_bytes == expected


def test_gradients_of_encoders_are_summed_over_the_group_one_by_one_or_in_one_message_of_as_many_bytes():
    gradients = [p for p in planned_messages(Setting(method="A1", tp=2, pp=1)) if p.purpose is Purpose.ENCODER_GRADIENT]
    assert len(gradients) == 12 and {p.message_bytes for p in gradients} == {1024 * 50 * 2}
    each, together = (
        [p for p in planned_messages(setting) if p.purpose is Purpose.ENCODER_GRADIENT]
        for setting in (
            Setting(method="A1", tp=2, pp=4, num_micro_batches=3, fuse_gradients=fuse) for fuse in (False, True)
        )
    )
    # Of 4 stages of 6 layers the last two are encoded: 12 encoders of 1024·50 weights each.
    assert [(p.stage, p.count, p.message_bytes) for p in together] == [
        (2, 3, 12 * 1024 * 50 * 2),
        (3, 3, 12 * 1024 * 50 * 2),
    ]
    assert sum(p.wire_bytes for p in together) == sum(p.wire_bytes for p in each)


def slow_link(bandwidth_bytes_per_s: float = 1.0, latency_s: float = 0.0) -> Link:
    return Link(bandwidth_bytes_per_s=bandwidth_bytes_per_s, latency_s=latency_s)


def test_the_time_of_a_layer_is_flops_over_rate_and_bytes_over_bandwidth():
    # 2 rows of h = 4: 24·2·16 + 4·2·2·4 = 832 FLOPs forward, 416 a rank; 16 bytes a message, 2·16·(1/2) a rank.
    setting = Setting(method="w/o", tp=2, pp=1, micro_batch=1, sequence=2, hidden=4, layers=1, compressed_layers=0)
    seconds = layer_time(setting, slow_link(), flops_per_s=416)
    assert (seconds.forward_s, seconds.backward_s) == (1.0, 2.0)
    assert (seconds.transfer_s, seconds.backward_transfer_s) == (2 * 16.0, 2 * 16.0)
    assert seconds.total_s == 1 + 2 + 32 + 32


def test_encoding_takes_what_table_4_says_at_its_own_size():
    # Table 4: 2.16 ms for 24 encoded activations, two of them in a layer.
    assert layer_time(Setting(method="A1"), slow_link(1e9)).encode_s == pytest.approx(2.16e-3 / 12)


@pytest.mark.parametrize("name", ["w/o", "A1", "T3", "Q2"])
def test_a_faster_link_never_makes_a_layer_slower(name):
    times = [layer_time(Setting(method=name, tp=4), slow_link(rate)).total_s for rate in (1e8, 1e9, 1e10, 1e12)]
    assert times == sorted(times, reverse=True)


def test_a_layer_alone_knows_neither_fused_codes_nor_a_method_without_a_published_encoding_time():
    with pytest.raises(ValueError, match="fused is True"):
        layer_time(Setting(method="A1", fused=True), slow_link())
    with pytest.raises(ValueError, match="encode_ms with {'method': 'Q3'"):
        layer_time(Setting(method="Q3"), slow_link())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"method": "Z9"}, "Z9"),
        ({"tp": 0}, "tp is 0; it must be at least 1"),
        ({"pp": 5}, "pp is 5; it must divide the 24 layers"),
        ({"compressed_layers": 25}, r"compressed_layers is 25; it must be in 0..24, the layers"),
        ({"num_nodes": 3}, "num_nodes is 3; it must divide the 4 ranks"),
        ({"vocabulary": -1}, "vocabulary is -1; it must be None, or 0 or more"),
        ({"code_size": 0}, "code_size is 0; it must be None, or in 1..1024"),
    ],
)
def test_a_wrong_setting_names_the_field(fields, message):
    with pytest.raises(ValueError, match=message):
        Setting(**fields)
