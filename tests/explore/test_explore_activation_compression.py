"""The lesson on activation compression: the predicted layer, controls, reductions on real ranks."""

import sys
from dataclasses import replace

import pytest
import torch

from workbench.cluster import Link
from workbench.compression import AutoEncoder, Identity, TopK
from workbench.explore import activation_compression as lesson
from workbench.explore.activation_compression.break_even import compare_at, describe_map
from workbench.techniques.activation_compression import cost
from workbench.techniques.activation_compression.reconstruction import encode_text
from workbench.timeline import Kind

SHAPE = (16, 8)
ACTIVATION_BYTES = 32 * 512 * 1024 * 2
COMPRESSED = [approach for approach in lesson.Approach if approach is not lesson.Approach.NONE]


def fast(approach, bandwidth_bytes_per_s=1e30, code_size=100):
    return lesson.predict_layer(approach=approach, code_size=code_size, bandwidth_bytes_per_s=bandwidth_bytes_per_s)


def test_four_full_sums_of_an_uncompressed_layer_take_what_a_ring_takes():
    # 4 all-reduces, each 2 * 3 latencies of 10 us and 2 * 3/4 of the activation, at 10 GB/s.
    time = lesson.predict_layer(bandwidth_bytes_per_s=10e9).time
    expected_s = 4 * (6 * 10e-6 + 1.5 * ACTIVATION_BYTES / 10e9)
    assert time.transfer_s + time.backward_transfer_s == pytest.approx(expected_s)


def test_a_code_of_100_columns_has_the_bytes_of_100_columns_and_travels_in_all_reduces():
    layer = lesson.predict_layer(approach=lesson.Approach.AUTO_ENCODER, code_size=100, bandwidth_bytes_per_s=10e9)
    assert layer.message_bytes == 32 * 512 * 100 * 2
    assert layer.time.transfer_s == pytest.approx(2 * (6 * 10e-6 + 1.5 * layer.message_bytes / 10e9))


@pytest.mark.parametrize("code_size", lesson.CODE_SIZES)
def test_sizes_that_the_paper_does_not_time_have_exact_bytes_and_no_negative_seconds(code_size):
    rows, layers = 32 * 512, {approach: fast(approach, code_size=code_size) for approach in COMPRESSED}
    assert layers[lesson.Approach.AUTO_ENCODER].message_bytes == rows * code_size * 2
    assert layers[lesson.Approach.TOP_K_SAME_ELEMENTS].message_bytes == rows * code_size * (2 + 8)
    for layer in layers.values():
        assert min(getattr(layer.time, name) for name in cost.LayerTime.__dataclass_fields__) >= 0


@pytest.mark.parametrize(("code_size", "bits"), [(25, 2), (100, 2), (200, 4), (400, 8)])
def test_quantisation_takes_the_bits_whose_message_is_nearest_to_the_code(code_size, bits):
    # Packed values, and a scale and a bias of 2 bytes each a row.
    assert bits in lesson.BITS
    assert fast(lesson.Approach.QUANTIZATION, code_size=code_size).message_bytes == 32 * 512 * (1024 * bits // 8 + 4)


@pytest.mark.parametrize("approach", COMPRESSED)
def test_compression_saves_time_below_the_break_even_bandwidth_and_costs_it_above(approach):
    def saved_s(factor):
        bandwidth_bytes_per_s = factor * lesson.break_even_bytes_per_s(approach, 100)
        plain, compressed = (fast(chosen, bandwidth_bytes_per_s).time for chosen in (lesson.Approach.NONE, approach))
        return plain.total_s - compressed.total_s

    assert saved_s(1.0) == pytest.approx(0.0, abs=1e-9)
    assert saved_s(0.5) > 0 > saved_s(2.0)


def test_the_timeline_is_the_layer_in_order_and_adds_up_to_its_time():
    layer = lesson.predict_layer(approach=lesson.Approach.AUTO_ENCODER)
    actions = layer.timeline.of("auto-encoder")
    forward = "attention encode sum decode MLP encode sum decode"
    assert " ".join(action.label for action in actions) == f"{forward} MLP sum attention sum"
    assert layer.timeline.end_s == pytest.approx(layer.time.total_s)
    assert layer.timeline.total_s(kind=Kind.ENCODE) == pytest.approx(layer.time.encode_s)
    gathered = lesson.predict_layer(approach=lesson.Approach.TOP_K_SAME_BYTES).timeline
    labels = [action.label for action in gathered.actions]
    assert (labels.count("gather"), labels.count("sum")) == (2, 2)


def test_with_nvlink_the_model_says_faster_where_the_paper_measured_slower():
    # The lesson says so beside its control. Table 2, TP 4: 261.48 ms without, 275.54 ms with A2.
    plain, compressed = fast(lesson.Approach.NONE, 40e9), fast(lesson.Approach.AUTO_ENCODER, 40e9)
    assert compressed.time.total_s < plain.time.total_s


def test_a_code_as_wide_as_the_activation_is_refused():
    with pytest.raises(ValueError, match="code_size is 1024"):
        lesson.predict_layer(approach=lesson.Approach.AUTO_ENCODER, code_size=1024)


def test_the_explorer_says_what_it_shows():
    explorer = lesson.explore_activation_compression()
    assert explorer.status.startswith("Auto-encoder: a message of 3.28 MB (10.2 times smaller), a layer of ")
    assert explorer.result.speedup > 1
    explorer.set(approach=lesson.Approach.NONE)
    assert explorer.status.startswith("Without compression a layer takes ")


def test_recorded_reductions_on_real_ranks_give_sums_bytes_and_their_order_of_actions(pools):
    top, code = TopK(4), AutoEncoder(8, 2)
    plain, coded, kept = (pools(2).run(lesson.record_reduction, codec, SHAPE) for codec in (Identity(), code, top))
    parts = [lesson.partial_of(rank, SHAPE) for rank in range(2)]
    assert torch.allclose(plain[1].total, parts[0] + parts[1])
    assert torch.allclose(coded[1].total, code(parts[0] + parts[1]).detach(), atol=1e-6)
    assert torch.equal(kept[1].total, top(parts[0]) + top(parts[1]))
    assert [on_ranks[0].message_bytes for on_ranks in (plain, coded, kept)] == [16 * 8 * 4, 16 * 2 * 4, 4 * (4 + 8)]
    assert [action.kind for action in kept[0].actions] == [Kind.ENCODE, Kind.COMMUNICATE, Kind.DECODE]
    assert {action.resource for reduction in kept for action in reduction.actions} == {"rank 0", "rank 1"}


def test_the_error_path_says_which_layers_and_refuses_those_that_are_not_there():
    explorer = lesson.explore_error_path(encode_text(4, encoder="stand-in"))
    assert explorer.status.startswith("T4 in layer 1: the output of layer 1 is ")
    explorer.set(first_layer=2, num_compressed=2)
    assert explorer.status.startswith("Not possible: 2 layers from layer 2 on: the encoder has 2")
    explorer.set(first_layer=1)
    assert explorer.status.startswith("T4 in layers 1 to 2: the output of layer 2 is ")
    assert explorer.result.rows["is_compressed"].all()


@pytest.fixture(autouse=True)
def _two_batches(monkeypatch):
    monkeypatch.setattr(sys.modules[compare_at.__module__], "BATCHES", (4, 32))  # instead of eight


def test_it_begins_at_the_papers_machine_where_compression_pays():
    explorer, machine = lesson.explore_break_even(), cost.paper_machine(nvlink=False)
    setting = cost.Setting(method="A2", tp=4, pp=1)
    assert explorer.result.speedup == cost.speedup_at(machine, setting, machine.link.bandwidth_bytes_per_s)
    assert explorer.result.limit_bytes_per_s == cost.break_even_bytes_per_s(machine, setting)
    assert explorer.status.startswith("Compression pays at batch 32, code of 100, 11 GB/s: 1.1")


def test_your_own_numbers_are_among_the_choices_and_chosen():
    link = Link(bandwidth_bytes_per_s=1.23e8, latency_s=1e-4)
    machine = cost.FittedMachine(name="mine", source="a test", flops_per_s=3.21e10, link=link)
    explorer = lesson.explore_break_even(machine)
    assert (explorer.values["flops_per_s"], explorer.values["bandwidth_bytes_per_s"]) == (3.21e10, 1.23e8)
    setting = cost.Setting(method="A2", tp=4, pp=1)
    assert explorer.result.speedup == pytest.approx(cost.speedup_at(machine, setting, 1.23e8))


def test_the_break_even_follows_the_costs_of_encoding():
    machine, start = cost.paper_machine(nvlink=False), lesson.explore_break_even().values | {"code_size": 400}

    def limit(machine=machine, **changes):
        return compare_at(machine, **start | changes).limit_bytes_per_s

    dearer = [limit(codec_factor=factor) for factor in (4.0, 1.0, 0.25)]
    assert dearer == sorted(dearer)
    assert limit(replace(machine, codecs={})) > limit()
    assert limit(fused=True) > limit(fused=False)
    above = compare_at(machine, **start | {"micro_batch": 4, "bandwidth_bytes_per_s": 1e11})
    assert describe_map(above).startswith("Compression does not pay at batch 4, code of 400, 100 GB/s")
