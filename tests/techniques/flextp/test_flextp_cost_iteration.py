"""An iteration of a tensor-parallel Vision Transformer: its shapes, bytes and FLOPs, and the seconds they take."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from workbench.cluster import FittedMachine, Link
from workbench.models import Workload, vit
from workbench.reproduction import read_published
from workbench.techniques.flextp.cost import VIT_1B, VIT_3B, extraction_s, iteration_parts, paper_machine

PUBLISHED = Path(__file__).parents[3] / "reproductions/flextp/published"
# Two images of three tokens, hidden 8, heads of 4, one layer: on two ranks the four products have
# K x O = 8 x 12, 4 x 8, 8 x 16 and 16 x 8, together 384, and six rows each.
TINY = Workload(name="tiny", hidden=8, batch=2, num_layers=1, sequence=3, head_size=4, num_samples=5)


def machine(**changes) -> FittedMachine:
    whole = {"devices_per_host": 2, "memory_bytes_per_s": 10, "link": Link(bandwidth_bytes_per_s=4), "flops_per_s": 100}
    return FittedMachine(name="slow", source="test", **whole | changes)


def test_the_sizes_are_those_of_the_models_that_are_trained():
    for workload, config in ((VIT_1B, vit.VIT_1B), (VIT_3B, vit.VIT_3B)):
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
    assert 0 < fitted.flops_per_s < fitted.peak_flops_per_s
    assert fitted.num_devices == 8
    assert fitted.message_link.bandwidth_bytes_per_s < fitted.link.bandwidth_bytes_per_s


def test_the_model_can_be_had_without_torch():
    code = "import sys, workbench.techniques.flextp.cost; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*.csv")), ids=lambda path: path.stem)
def test_a_published_file_can_be_read_and_each_row_says_where_it_is_from(path):
    for row in read_published(path):
        assert row.source.startswith(("section", "table"))
