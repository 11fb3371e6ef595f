"""An iteration of a tensor-parallel Vision Transformer: its shapes, bytes and FLOPs, and the seconds they take."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from workbench.cluster import Device, Link
from workbench.models import vit_config
from workbench.reproduction import read_published
from workbench.techniques.flextp.cost import (
    VIT_1B,
    VIT_3B,
    FlexMachine,
    Workload,
    extraction_s,
    iteration_parts,
    paper_machine,
)

PUBLISHED = Path(__file__).parents[3] / "reproductions/flextp/published"
# Two images of three tokens, hidden 8, heads of 4, one layer: on two ranks the four products have
# K x O = 8 x 12, 4 x 8, 8 x 16 and 16 x 8, together 384, and six rows each.
TINY = Workload(name="tiny", hidden=8, batch=2, num_layers=1, sequence=3, head_size=4, num_images=5)


def machine(**changes) -> FlexMachine:
    device = Device(
        name="slow", memory_bytes=1, fp16_flops_per_s=1, fp32_flops_per_s=1, memory_bytes_per_s=10, source="test"
    )
    whole = {"num_ranks": 2, "device": device, "link": Link(bandwidth_bytes_per_s=4), "product_flops_per_s": 100}
    return FlexMachine(**whole | changes)


def test_the_sizes_are_those_of_the_models_that_are_trained():
    for workload, config in ((VIT_1B, vit_config.VIT_1B), (VIT_3B, vit_config.VIT_3B)):
        theirs = (config.hidden_size, config.num_layers, config.sequence, config.hidden_size // config.num_heads)
        assert (workload.hidden, workload.num_layers, workload.sequence, workload.head_size) == theirs
        assert config.mlp_size == 4 * workload.hidden


def test_the_parameters_are_those_that_the_paper_states():
    for row in read_published(PUBLISHED / "setting.csv"):
        if row.quantity == "parameters":
            workload = {"ViT-1B": VIT_1B, "ViT-3B": VIT_3B}[row.keys["model"]]
            assert workload.num_parameters == pytest.approx(row.value, rel=0.02)


def test_an_epoch_has_as_many_iterations_as_cifar_10_has_batches():
    assert VIT_1B.num_iterations == 782  # 50,000 / 64 = 781.25
    assert VIT_3B.num_iterations == 1563  # 50,000 / 32 = 1562.5
    assert TINY.num_iterations == 3  # 5 / 2


def test_the_shards_of_a_layer_have_the_shapes_of_megatrons():
    shapes = [(each.num_columns, each.num_outputs) for each in TINY.linears(2)]
    assert shapes == [(8, 12), (4, 8), (8, 16), (16, 8)]
    assert all(each.num_rows == 6 for each in TINY.linears(2))
    assert TINY.linears(2)[1].input_bytes == 6 * 4 * 2  # rows x columns x bytes of fp16


def test_flops_are_two_a_multiplication_in_three_products():
    assert TINY.product_flops(2) == 3 * 2 * 6 * 384
    # Scores and their products with values: 2 products of 2 x 2 b s^2 h forward, twice that backward, over two ranks.
    assert TINY.attention_flops(2) == 12 * 2 * 9 * 8 / 2


def test_what_is_not_cut_costs_every_rank_the_same():
    # Forward, whole hidden states of 6 x 8: two norms of 4 bytes an element, two residuals of 11. Cut in two: GELU of
    # 6 x 32 with 4 bytes, and scores of 2 images, 2 heads, 3 x 3 with 9 bytes. Backward twice as much.
    assert TINY.elementwise_bytes(2) == 3 * (2 * 15 * 48 + 4 * 96 + 9 * 18)
    assert TINY.elementwise_bytes(1) == 3 * (2 * 15 * 48 + 4 * 192 + 9 * 36)
    assert TINY.optimizer_bytes(2) == 28 * 12 * 64 / 2


def test_an_iteration_is_the_sum_of_its_parts_each_over_its_own_rate():
    parts = iteration_parts(TINY, machine())
    assert parts.product_s == 13824 / 100
    assert parts.attention_s == 864 / 100
    assert parts.elementwise_s == TINY.elementwise_bytes(2) / 10
    assert parts.optimizer_s == 1075.2  # 28 x 12 x 64 / 2 = 10752 bytes
    assert parts.all_reduce_s == 4 * 96 / 4  # a ring of two passes 2 (2 - 1) / 2 of 6 x 8 x 2 bytes; four a layer
    assert parts.own_s == pytest.approx(parts.other_s + parts.product_s)


def test_taking_columns_out_costs_nothing_if_none_is_and_less_the_more_are():
    # Inputs 6 x (8 + 4 + 8 + 16) and weights 384 are 600 elements, 1200 bytes. Half of them kept: copied twice (read
    # and written, 2 bytes for each, so 4 x 0.5), gradients read (0.5) and written (1).
    assert extraction_s(TINY, machine(), 0.0) == 0
    assert extraction_s(TINY, machine(), 0.5) == 1200 * 3.5 / 10
    assert extraction_s(TINY, machine(), 0.25) > extraction_s(TINY, machine(), 0.75)
    with pytest.raises(ValueError, match=r"removed is 1.5; it must be in \[0, 1\]"):
        extraction_s(TINY, machine(), 1.5)


@pytest.mark.parametrize("part", ["product_s", "attention_s", "elementwise_s", "all_reduce_s", "optimizer_s"])
def test_every_part_grows_with_the_hidden_size(part):
    smaller, larger = (iteration_parts(each, paper_machine()) for each in (VIT_1B, replace(VIT_1B, hidden=3072)))
    assert getattr(larger, part) > getattr(smaller, part)


def test_an_infinitely_fast_link_leaves_only_what_a_rank_does_itself():
    parts = iteration_parts(TINY, machine(link=Link(bandwidth_bytes_per_s=1e30)))
    assert math.isclose(parts.own_s, iteration_parts(TINY, machine()).own_s - 96)


def test_the_papers_machine_multiplies_at_a_rate_that_it_can_have():
    fitted = paper_machine()
    assert 0 < fitted.product_flops_per_s < fitted.device.fp16_flops_per_s
    assert fitted.num_ranks == 8
    assert fitted.message_link.bandwidth_bytes_per_s < fitted.link.bandwidth_bytes_per_s


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(VIT_1B, batch=0), "batch is 0; it must be an integer of at least 1"),
        (lambda: machine(num_ranks=1), "num_ranks is 1; it must be an integer of at least 2"),
        (lambda: machine(product_flops_per_s=0), "product_flops_per_s is 0; it must be finite and above 0"),
        (lambda: machine(message_efficiency=1.5), r"message_efficiency is 1.5; it must be in \(0, 1\]"),
    ],
)
def test_a_size_or_rate_out_of_range_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_model_can_be_had_without_torch():
    code = "import sys, workbench.techniques.flextp.cost; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*.csv")), ids=lambda path: path.stem)
def test_a_published_file_can_be_read_and_each_row_says_where_it_is_from(path):
    for row in read_published(path):
        assert row.source.startswith(("section", "table"))
