"""The inventory against the layers that it lists and the messages that they send."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from workbench import models
from workbench.parallel import Stage, VirtualTensorGroup
from workbench.parallel.boundary import Boundary
from workbench.parallel.linear import ShardedLinear
from workbench.parallel.pipeline import VirtualPipeline
from workbench.parallel.traffic import Phase

TINY = models.BertConfig.tiny()
# The same on two sequences of three tokens in fp32.
WORK = models.Workload(hidden=16, inner=64, num_layers=4, batch=2, sequence=3, head_size=4, element_bytes=4)
# Two images of three tokens, hidden 8, heads of 4, one layer, five images.
SMALL = models.Workload(hidden=8, num_layers=1, batch=2, sequence=3, head_size=4, num_samples=5)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_weights_are_those_of_a_layer(size):
    layer = models.BertEncoder(TINY, VirtualTensorGroup(size), device="meta").layers[0]
    built = {}
    for name, parameter in layer.named_parameters():
        *path, last = name.split(".")
        built[".".join(path) if last.isdigit() else name] = tuple(parameter.shape)
    assert {tensor.name: tensor.local_shape for tensor in WORK.tensors(size)} == built


@pytest.mark.parametrize(("size", "num_stages"), [(1, 4), (2, 2), (4, 1)])
def test_messages_are_those_of_a_step(size, num_stages):
    group = VirtualTensorGroup(size)
    stages = [Stage(index=index, num_stages=num_stages) for index in range(num_stages)]
    pipeline = VirtualPipeline(
        [models.BertForSequenceClassification(TINY, group, stage=stage) for stage in stages],
        boundaries=[Boundary(traffic=group.traffic) for _ in stages[1:]],
        loss=lambda output, targets: output.square().mean(),
    )
    ids = torch.ones(2, 3, dtype=torch.long)
    pipeline.step(ids, ids)
    sent = [(m.site, m.phase.value, m.message_bytes) for m in group.traffic]
    layers = [
        (m.site, m.phase, m.message_bytes) for layer in range(TINY.num_layers) for m in WORK.messages(size, layer=layer)
    ]
    boundaries = [  # both ways: 2 sequences of 3 tokens of 16 fp32 values
        (f"stage.{stage}.input", phase.value, 2 * 3 * 16 * 4) for stage in range(1, num_stages) for phase in Phase
    ]
    assert sorted(layers + boundaries) == sorted(sent)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: WORK.tensors(3), "hidden is 16; it must be divisible by the 3 ranks"),
        (lambda: replace(WORK, batch=0), "batch is 0; it must be an integer of at least 1"),
        (lambda: replace(WORK, hidden=True), "hidden is True; it must be an integer of at least 1"),
        (lambda: replace(WORK, vocabulary=-1), "vocabulary is -1; it must be an integer of at least 0"),
        (lambda: WORK.num_iterations, "num_samples is None"),
    ],
)
def test_a_size_out_of_range_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


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


def test_the_messages_of_bert_large_and_a_ranks_share_of_a_layer_are_counted():
    # Fine-tuning: micro-batch 32, sequence 512, hidden 1024, fp16: 32 MiB.
    large = models.Workload(hidden=1024, num_layers=24, batch=32, sequence=512)
    assert [message.message_bytes for message in large.messages(2)] == [32 * 1024**2] * 4
    # H = 16, M = 64, two ranks: 12 H^2 / 2 weights; halves of 3H and M biases; 6 H whole.
    total = sum(tensor.local_elements for tensor in WORK.tensors(2))
    assert sum(tensor.local_bytes for tensor in WORK.tensors(2)) == 4 * total
    assert total == 12 * 16**2 // 2 + (3 * 16 + 64) // 2 + 6 * 16


def test_a_layers_products_take_72_operations_a_row_and_squared_hidden_size():
    # 12 H^2 weights, a multiplication and an addition each, three products: 72 N H^2.
    work = models.Workload(hidden=2048, num_layers=24, batch=64, sequence=65)
    linears = work.linears(8)
    assert 8 * sum(linear.iteration_flops for linear in linears) == 72 * 64 * 65 * 2048**2 == 3 * work.linear_flops
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
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
