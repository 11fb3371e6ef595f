"""The inventory against the layers that it lists and the messages that they send."""

import pytest
import torch

from workbench.models import (
    VIT_1B,
    BertConfig,
    BertEncoder,
    BertForSequenceClassification,
    ViTConfig,
    ViTForImageClassification,
    layer_messages,
    layer_products,
    layer_weights,
)
from workbench.parallel import Stage, VirtualTensorGroup
from workbench.parallel.boundary import Boundary
from workbench.parallel.linear import ShardedLinear
from workbench.parallel.traffic import MessageKind, Phase
from workbench.parallel.virtual_pipeline import VirtualPipeline

TINY = BertConfig.tiny()


def test_bert_larges_all_reduce_is_the_papers():
    # Fine-tuning: micro-batch 32, sequence 512, hidden 1024, fp16: 32 MiB.
    entries = layer_messages(
        BertConfig.bert_large(), 0, batch=32, sequence=512, num_tensor_ranks=2, dtype=torch.float16
    )
    assert [entry.message_bytes for entry in entries] == [32 * 1024**2] * 4


@pytest.mark.parametrize("size", [1, 2, 4])
def test_weights_are_those_of_a_layer(size):
    layer = BertEncoder(TINY, VirtualTensorGroup(size), device="meta").layers[0]
    built = {}
    for name, parameter in layer.named_parameters():
        *path, last = name.split(".")
        built[".".join(path) if last.isdigit() else name] = tuple(parameter.shape)
    assert {entry.name: entry.local_shape for entry in layer_weights(TINY, size)} == built


def test_one_ranks_share_of_a_layer_is_counted():
    # H = 16, M = 64, two ranks: 12 H^2 / 2 weights; halves of 3H and M biases; 6 H whole.
    total = sum(entry.local_elements for entry in layer_weights(TINY, 2))
    assert total == 12 * 16**2 // 2 + (3 * 16 + 64) // 2 + 6 * 16


@pytest.mark.parametrize(("size", "num_stages"), [(1, 4), (2, 2), (4, 1)])
def test_messages_are_those_of_a_step(size, num_stages):
    group = VirtualTensorGroup(size)
    stages = [Stage(index=index, num_stages=num_stages) for index in range(num_stages)]
    pipeline = VirtualPipeline(
        [BertForSequenceClassification(TINY, group, stage=stage) for stage in stages],
        boundaries=[Boundary(traffic=group.traffic) for _ in stages[1:]],
        loss=lambda output, targets: output.square().mean(),
    )
    ids = torch.ones(2, 3, dtype=torch.long)
    pipeline.step(ids, ids)
    sent = [(m.site, m.what, m.phase, m.message_bytes) for m in group.traffic]
    layers = [
        (m.site, m.what, m.phase, m.message_bytes)
        for layer in range(TINY.num_layers)
        for m in layer_messages(TINY, layer, batch=2, sequence=3, num_tensor_ranks=size)
    ]
    boundaries = [  # both ways: 2 sequences of 3 tokens of 16 fp32 values
        (f"stage.{stage}.input", MessageKind.SEND, phase, 2 * 3 * 16 * 4)
        for stage in range(1, num_stages)
        for phase in Phase
    ]
    assert sorted(layers + boundaries) == sorted(sent)


def test_ranks_that_do_not_divide_the_inner_units_are_refused():
    with pytest.raises(ValueError, match="mlp_size: 64 is not divisible by 3"):
        layer_weights(BertConfig(hidden_size=9, num_heads=3, mlp_size=64, num_layers=1), 3)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_products_are_those_that_the_linears_compute(size):
    config = ViTConfig(hidden_size=16, num_layers=2, num_heads=4, mlp_size=32, image_size=8, patch_size=4)
    model, seen = ViTForImageClassification(config, VirtualTensorGroup(size)), []

    def noted(site):
        def product(x, weight):
            seen.append((site, x.shape[:-1].numel(), x.shape[-1], weight.shape[0]))
            return torch.nn.functional.linear(x, weight)

        return product

    for module in model.modules():
        if isinstance(module, ShardedLinear):
            module.matrix_product = noted(module.site)
    model(torch.zeros(3, 3, 8, 8))
    listed = [
        (entry.site, entry.num_rows, entry.num_inputs, entry.num_outputs)
        for layer in range(2)
        for entry in layer_products(config, layer, batch=3, sequence=config.sequence, num_tensor_ranks=size)
    ]
    assert [entry for entry in listed for _ in range(size)] == seen


def test_a_layers_products_take_72_operations_a_row_and_squared_hidden_size():
    # 12 H^2 weights, a multiplication and an addition each, three products: 72 N H^2.
    entries = layer_products(VIT_1B, 0, batch=64, sequence=65, num_tensor_ranks=8)
    assert 8 * sum(entry.iteration_flops for entry in entries) == 72 * 64 * 65 * 2048**2
    assert entries[3].flops == 2 * (64 * 65) * 1024 * 2048
