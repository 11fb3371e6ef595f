"""The inventory against the layers that it lists."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from tests.cases import refusals
from workbench import models
from workbench.parallel import VirtualTensorGroup
from workbench.parallel.linear import ShardedLinear

# Two images of three tokens, hidden 8, heads of 4, one layer, five images.
SMALL = models.Workload(hidden=8, num_layers=1, batch=2, sequence=3, head_size=4, num_samples=5)


test_a_size_out_of_range_is_named = refusals(
    (lambda: replace(SMALL, batch=0), "batch is 0; it must be an integer of at least 1"),
    (lambda: replace(SMALL, hidden=True), "hidden is True; it must be an integer of at least 1"),
    (lambda: replace(SMALL, vocabulary=-1), "vocabulary is -1; it must be an integer of at least 0"),
    (lambda: replace(SMALL, num_samples=None).num_iterations, "num_samples is None"),
)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_products_are_those_that_the_linears_compute(size):
    config = models.ViTConfig(hidden_size=16, num_layers=2, num_heads=4, mlp_size=32, image_size=8, patch_size=4)
    model, seen = models.ViTForImageClassification(config, VirtualTensorGroup(size)), []

    def noted(site):
        def product(x, weight):
            seen.append((site, x.shape[:-1].numel(), x.shape[-1], weight.shape[0]))
            return torch.nn.functional.linear(x, weight)

        return product

    for module in model.modules():
        if isinstance(module, ShardedLinear):
            module.matrix_product = noted(module.site)
    model(torch.zeros(3, 3, 8, 8))
    work = models.Workload(hidden=16, inner=32, num_layers=2, batch=3, sequence=config.sequence, head_size=4)
    listed = [
        (linear.site, linear.num_rows, linear.num_inputs, linear.num_outputs)
        for layer in range(2)
        for linear in work.linears(size, layer=layer)
    ]
    assert [entry for entry in listed for _ in range(size)] == seen


def test_a_layers_products_take_72_operations_a_row_and_squared_hidden_size():
    # 12 H^2 weights, a multiplication and an addition each, three products: 72 N H^2.
    work = models.Workload(hidden=2048, num_layers=24, batch=64, sequence=65)
    linears = work.linears(8)
    assert 8 * 3 * sum(linear.flops for linear in linears) == 72 * 64 * 65 * 2048**2 == 3 * work.linear_flops
    assert linears[3].flops == 2 * (64 * 65) * 1024 * 2048


def test_the_shards_of_a_layer_have_the_shapes_of_megatrons():
    shapes = [(linear.num_inputs, linear.num_outputs) for linear in SMALL.linears(2)]
    assert shapes == [(8, 12), (4, 8), (8, 16), (16, 8)]
    second = SMALL.linears(2)[1]
    assert (second.cut, second.num_rows) == (models.Cut.ROW, 6)
    # Rows x inputs, inputs x outputs and rows x outputs of fp16.
    assert (second.input_bytes, second.weight_bytes, second.output_bytes) == (6 * 4 * 2, 4 * 8 * 2, 6 * 8 * 2)


def test_a_forward_pass_takes_24_b_s_h2_and_4_b_s2_h_operations():
    # 6 tokens: 2 x 6 x 12 x 64 in linears, 4 x 6 x 3 x 8 in the attention core; a head of 10 words: 2 x 8 x 60.
    assert (SMALL.linear_flops, SMALL.attention_flops, SMALL.layer_flops) == (9216, 576, 24 * 6 * 64 + 4 * 6 * 3 * 8)
    with_head = replace(SMALL, vocabulary=10, other_parameters=7)
    assert (with_head.logits, with_head.head_flops, with_head.num_parameters) == (60, 960, 12 * 64 + 7)
    assert (SMALL.scores, SMALL.activation_bytes, SMALL.num_iterations) == (2 * 2 * 9, 96, 3)  # 5 / 2


def test_what_is_not_cut_costs_every_rank_the_same():
    # Forward, whole hidden states of 6 x 8: two norms of 4 bytes an element, two residuals of 11. Cut in two: GELU of
    # 6 x 32 with 4 bytes, and scores of 2 images, 2 heads, 3 x 3 with 9 bytes. Backward twice as much.
    assert SMALL.elementwise_bytes(2) == 3 * (2 * 15 * 48 + 4 * 96 + 9 * 18)
    assert SMALL.elementwise_bytes(1) == 3 * (2 * 15 * 48 + 4 * 192 + 9 * 36)
    assert SMALL.optimizer_bytes(2) == 28 * 12 * 64 / 2


def test_the_inventory_can_be_had_without_torch():
    code = "import sys, workbench.models.inventory; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=200).returncode == 0
