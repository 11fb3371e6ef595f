import pytest

from workbench.explore.activation_compression.layer import (
    BITS,
    CODE_SIZES,
    Approach,
    break_even_bytes_per_s,
    predict_layer,
)
from workbench.techniques.activation_compression.cost import LayerTime
from workbench.timeline import Kind

ACTIVATION_BYTES = 32 * 512 * 1024 * 2
COMPRESSED = [each for each in Approach if each is not Approach.NONE]


def fast(approach, bandwidth_bytes_per_s=1e30, code_size=100):
    return predict_layer(approach=approach, code_size=code_size, bandwidth_bytes_per_s=bandwidth_bytes_per_s)


def test_four_full_sums_of_an_uncompressed_layer_take_what_a_ring_takes():
    # 4 all-reduces, each 2 * 3 latencies of 10 us and 2 * 3/4 of the activation, at 10 GB/s.
    time = predict_layer(bandwidth_bytes_per_s=10e9).time
    expected_s = 4 * (6 * 10e-6 + 1.5 * ACTIVATION_BYTES / 10e9)
    assert time.transfer_s + time.backward_transfer_s == pytest.approx(expected_s)


def test_a_code_of_100_columns_has_the_bytes_of_100_columns_and_travels_in_all_reduces():
    layer = predict_layer(approach=Approach.AUTO_ENCODER, code_size=100, bandwidth_bytes_per_s=10e9)
    assert layer.message_bytes == 32 * 512 * 100 * 2
    assert layer.time.transfer_s == pytest.approx(2 * (6 * 10e-6 + 1.5 * layer.message_bytes / 10e9))


@pytest.mark.parametrize("code_size", CODE_SIZES)
def test_sizes_that_the_paper_does_not_time_have_exact_bytes(code_size):
    rows = 32 * 512
    assert fast(Approach.AUTO_ENCODER, code_size=code_size).message_bytes == rows * code_size * 2
    same_elements = fast(Approach.TOP_K_SAME_ELEMENTS, code_size=code_size)
    assert same_elements.message_bytes == rows * code_size * (2 + 8)


@pytest.mark.parametrize(("code_size", "bits"), [(25, 2), (100, 2), (200, 4), (400, 8)])
def test_quantisation_takes_the_bits_whose_message_is_nearest_to_the_code(code_size, bits):
    # Packed values, and a scale and a bias of 2 bytes each a row.
    assert bits in BITS
    assert fast(Approach.QUANTIZATION, code_size=code_size).message_bytes == 32 * 512 * (1024 * bits // 8 + 4)


@pytest.mark.parametrize("approach", COMPRESSED)
@pytest.mark.parametrize("code_size", CODE_SIZES)
def test_no_prediction_has_negative_seconds(approach, code_size):
    time = fast(approach, code_size=code_size).time
    assert min(getattr(time, name) for name in LayerTime.__dataclass_fields__) >= 0


@pytest.mark.parametrize("approach", COMPRESSED)
def test_at_the_break_even_bandwidth_both_layers_take_the_same_time(approach):
    bandwidth_bytes_per_s = break_even_bytes_per_s(approach, 100)
    plain, compressed = fast(Approach.NONE, bandwidth_bytes_per_s), fast(approach, bandwidth_bytes_per_s)
    assert compressed.time.total_s == pytest.approx(plain.time.total_s)


def test_above_the_break_even_bandwidth_compression_is_slower_and_below_it_faster():
    bandwidth_bytes_per_s = break_even_bytes_per_s(Approach.AUTO_ENCODER, 100)
    for factor, is_faster in ((0.5, True), (2.0, False)):
        plain, compressed = (
            fast(each, factor * bandwidth_bytes_per_s) for each in (Approach.NONE, Approach.AUTO_ENCODER)
        )
        assert (compressed.time.total_s < plain.time.total_s) is is_faster


def test_the_timeline_is_the_layer_in_order_and_adds_up_to_its_time():
    layer = predict_layer(approach=Approach.AUTO_ENCODER)
    actions = layer.timeline.of("auto-encoder")
    assert [action.label for action in actions] == [
        "attention",
        "encode",
        "sum",
        "decode",
        "MLP",
        "encode",
        "sum",
        "decode",
        "MLP",
        "sum",
        "attention",
        "sum",
    ]
    assert layer.timeline.end_s == pytest.approx(layer.time.total_s)
    assert layer.timeline.total_s(kind=Kind.ENCODE) == pytest.approx(layer.time.encode_s)


def test_with_nvlink_the_model_says_faster_where_the_paper_measured_slower():
    # The lesson says so beside its control. Table 2, TP 4: 261.48 ms without, 275.54 ms with A2.
    plain, compressed = fast(Approach.NONE, 40e9), fast(Approach.AUTO_ENCODER, 40e9)
    assert compressed.time.total_s < plain.time.total_s


def test_gathered_messages_are_called_so():
    labels = [action.label for action in predict_layer(approach=Approach.TOP_K_SAME_BYTES).timeline.actions]
    assert (labels.count("gather"), labels.count("sum")) == (2, 2)


def test_a_code_as_wide_as_the_activation_is_refused():
    with pytest.raises(ValueError, match="code_size is 1024"):
        predict_layer(approach=Approach.AUTO_ENCODER, code_size=1024)
