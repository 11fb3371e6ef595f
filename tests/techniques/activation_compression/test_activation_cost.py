"""Bytes of an iteration against values worked by hand from the paper's settings."""

import pytest

from workbench.techniques.activation_compression.cost import Purpose, Setting, planned_messages
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


def test_equal_cost_methods_send_exactly_the_bytes_of_the_code():
    for sparse, code in (("T1", "A1"), ("T2", "A2"), ("R1", "A1"), ("R2", "A2")):
        assert Setting(method=sparse).encoded_bytes() == Setting(method=code).encoded_bytes()


def test_an_uncompressed_iteration_sends_two_all_reduces_a_layer_each_way():
    # TP 2: a ring all-reduce of m bytes puts 2·m·(2−1)/2 on the wire for each of 2 ranks: 2·m in all.
    forward = wire_bytes(Setting(method="w/o", tp=2, pp=2), Purpose.TENSOR_FORWARD)
    assert forward == 24 * 2 * 2 * (2 * ELEMENTS)
    assert wire_bytes(Setting(method="w/o", tp=2, pp=2), Purpose.TENSOR_BACKWARD) == forward


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


def test_learned_encoders_sum_their_gradient_over_the_group():
    planned = planned_messages(Setting(method="A1", tp=2, pp=1))
    gradients = [p for p in planned if p.purpose is Purpose.ENCODER_GRADIENT]
    assert len(gradients) == 12 and {p.message_bytes for p in gradients} == {1024 * 50 * 2}


def test_one_rank_alone_sends_nothing():
    for name in METHODS:
        assert planned_messages(Setting(method=name, tp=1, pp=1)) == ()


def test_bytes_grow_with_the_number_of_micro_batches():
    one, eight = (
        sum(p.wire_bytes for p in planned_messages(Setting(method="Q2", tp=4, pp=4, num_micro_batches=n))) for n in (1, 8)
    )
    assert eight == 8 * one


@pytest.mark.parametrize(
    ("fields", "named"),
    [({"method": "Z9"}, "Z9"), ({"tp": 0}, "tp=0"), ({"pp": 5}, "pp=5"), ({"compressed_layers": 25}, "compressed_layers=25")],
)
def test_a_wrong_setting_names_the_field(fields, named):
    with pytest.raises(ValueError, match=named):
        Setting(**fields)


def test_codes_keep_their_share_of_another_hidden_size():
    assert method("A1").message_bytes(10, 384) == 10 * 19 * 2  # 50/1024 of 384 is 18.75
