"""Column- and row-parallel linears and the cut transformer layer, against torch's own and against themselves uncut."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.cases import refusals
from workbench.parallel import (
    ColumnParallelLinear,
    PreNormTransformerLayer,
    RowParallelLinear,
    TransformerConfig,
    TransformerLayer,
    VirtualTensorGroup,
    cut,
    join,
)


def pair(size: int, **options) -> nn.ModuleList:
    group = VirtualTensorGroup(size)
    return nn.ModuleList(
        [ColumnParallelLinear(6, 8, group, seed=3, **options), RowParallelLinear(8, 6, group, seed=3, **options)]
    )


@pytest.mark.parametrize("size", [1, 2, 4])
def test_column_then_row_equals_two_plain_linears_in_output_and_all_gradients(size):
    column, row = pair(size)
    first, second = nn.Linear(6, 8), nn.Linear(8, 6)
    column.load_full_(first.weight.detach(), first.bias.detach())
    row.load_full_(second.weight.detach(), second.bias.detach())
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    ours, plain = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, expected = row(column(ours)), second(first(plain))
    y.square().sum().backward()
    expected.square().sum().backward()
    close = torch.testing.assert_close
    close(y, expected)
    close(ours.grad, plain.grad)
    close(join([w.grad for w in column.weights], dim=0), first.weight.grad)
    close(join([b.grad for b in column.biases], dim=0), first.bias.grad)
    close(join([w.grad for w in row.weights], dim=1), second.weight.grad)
    close(row.bias.grad, second.bias.grad)


def test_every_number_of_ranks_starts_from_the_same_full_weight_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    for size in (2, 4):
        for dim, (whole, part) in enumerate(zip(pair(1), pair(size), strict=True)):
            assert torch.equal(join(list(part.weights), dim=dim), whole.weights[0])
    assert torch.equal(torch.get_rng_state(), before)


def test_each_local_rank_may_have_its_own_matrix_product():
    def times(factor):
        return lambda x, weight: functional.linear(x, weight) * factor

    column, row = pair(2, bias=False, matrix_product=[times(1), times(10)])
    plain, _ = pair(2, bias=False)
    x = torch.ones(5, 6)
    for factor, scaled, expected in zip((1, 10), column(x), plain(x), strict=True):
        torch.testing.assert_close(scaled, expected * factor)
    ones = [torch.ones(5, 4)] * 2
    expected = sum(functional.linear(y, w) * f for y, w, f in zip(ones, row.weights, (1, 10), strict=True))
    torch.testing.assert_close(row(ones), expected)


class Halve(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(0.5))

    def forward(self, partials):
        return sum(partials) * self.factor


def test_a_reduction_module_is_registered_and_can_be_taken_back():
    column, row = pair(2, bias=False)
    inner = column(torch.ones(5, 6))
    plain = row(inner)
    for reduction, factor in ((Halve(), 0.5), (lambda partials: sum(partials) * 3, 3), (None, 1)):
        row.reduction = reduction
        assert ("reduction.factor" in dict(row.named_parameters())) == isinstance(reduction, Halve)
        torch.testing.assert_close(row(inner), plain * factor)


def test_blocks_are_cut_each_by_itself():
    full = torch.arange(8)  # two blocks of four: 0..3 and 4..7
    shards = [cut(full, dim=0, rank=rank, size=2, num_blocks=2) for rank in range(2)]
    assert [shard.tolist() for shard in shards] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert torch.equal(join(shards, dim=0, num_blocks=2), full)


CONFIG = TransformerConfig(hidden_size=16, num_heads=4, mlp_size=32)
WITH_DROPOUT = TransformerConfig(hidden_size=16, num_heads=4, mlp_size=32, dropout=0.2, attention_dropout=0.3)


def batch() -> torch.Tensor:
    return torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(1))


def torch_layer(layer: TransformerLayer) -> nn.TransformerEncoderLayer:
    """Make torch's layer with the weights of an uncut layer of ours."""
    options = {"dropout": 0.0, "activation": "gelu", "layer_norm_eps": 1e-12, "batch_first": True}
    twin = nn.TransformerEncoderLayer(16, 4, 32, norm_first=isinstance(layer, PreNormTransformerLayer), **options)
    twin.self_attn.in_proj_weight.data.copy_(layer.attention.query_key_value.weights[0])
    twin.self_attn.in_proj_bias.data.copy_(layer.attention.query_key_value.biases[0])
    plain = (twin.self_attn.out_proj, twin.linear1, twin.linear2)
    for linear, sharded in zip(plain, (layer.attention.output, layer.mlp.input, layer.mlp.output), strict=True):
        linear.weight.data.copy_(sharded.weights[0])
        linear.bias.data.zero_()
    return twin


@pytest.mark.parametrize("kind", [TransformerLayer, PreNormTransformerLayer])
def test_the_uncut_layer_equals_torchs_transformer_layer(kind):
    layer = kind(CONFIG, VirtualTensorGroup(1))
    x, x_torch = batch().requires_grad_(), batch().requires_grad_()
    y, expected = layer(x), torch_layer(layer)(x_torch)
    torch.testing.assert_close(y, expected)
    y.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad, x_torch.grad, rtol=1e-4, atol=1e-5)


def test_dropout_draws_anew_in_training_keeps_the_mean_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    layer = TransformerLayer(WITH_DROPOUT, VirtualTensorGroup(2))
    twin = copy.deepcopy(layer)
    first = layer(batch())
    assert torch.equal(twin(batch()), first) and twin.mlp.output.group is layer.mlp.output.group
    assert not torch.equal(layer(batch()), first)
    dropped = layer.mlp_dropout(torch.ones(100_000))
    # Each unit is 0 or 1/0.8: variance 0.25, so the mean of 100,000 has deviation 0.0016.
    assert abs(dropped.mean().item() - 1) < 5 * 0.0016
    assert set(dropped.unique().tolist()) == {0.0, 1.25}
    layer.eval()
    assert torch.equal(layer(batch()), layer(batch()))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_layer_sends_two_sums_forward_and_two_back():
    group = VirtualTensorGroup(2)
    layer = TransformerLayer(CONFIG, group, site="layers.7")
    layer(batch().requires_grad_()).sum().backward()
    size = 3 * 5 * 16 * 4  # batch, sequence, hidden, bytes of fp32
    assert [(m.what, m.site, m.message_bytes) for m in group.traffic] == [
        ("sum", "layers.7.attention.output", size),
        ("sum", "layers.7.mlp.output", size),
        ("copy-backward", "layers.7.mlp.input", size),
        ("copy-backward", "layers.7.attention.query_key_value", size),
    ]


def test_masked_positions_change_nothing():
    layer = TransformerLayer(CONFIG, VirtualTensorGroup(2))
    mask = torch.zeros(3, 1, 1, 5)
    mask[..., 3:] = torch.finfo(torch.float32).min
    x = batch()
    changed = x.clone()
    changed[:, 3:] = 7.0
    torch.testing.assert_close(layer(x, mask)[:, :3], layer(changed, mask)[:, :3])


def test_attention_in_bfloat16_is_that_of_fp32_but_for_rounding():
    # In bfloat16 on a CPU attention is written out, since torch's fused one is slower there.
    config = TransformerConfig(hidden_size=64, num_heads=4, mlp_size=128)
    exact, narrow = (TransformerLayer(config, VirtualTensorGroup(2), dtype=d) for d in (torch.float32, torch.bfloat16))
    x_BSH = torch.randn(3, 7, 64, generator=torch.Generator().manual_seed(0))
    mask = torch.zeros(3, 1, 1, 7)
    mask[1, ..., 4:] = torch.finfo(torch.float32).min
    expected, output = exact(x_BSH, mask), narrow(x_BSH.bfloat16(), mask)
    torch.testing.assert_close(output.float(), expected, rtol=0.05, atol=0.05)


def load_column_(*weight_and_bias):
    column, _ = pair(2)
    column.load_full_(*weight_and_bias)


test_cuts_and_weights_that_do_not_fit_are_refused = refusals(
    (lambda: ColumnParallelLinear(8, 6, VirtualTensorGroup(4)), "out_features: 6 is not divisible"),
    (lambda: RowParallelLinear(6, 8, VirtualTensorGroup(4)), "in_features: 6 is not divisible"),
    (lambda: load_column_(torch.zeros(6, 8), torch.zeros(8)), r"column.weight: shape \(6, 8\)"),
    (lambda: load_column_(torch.zeros(8, 6)), "column.bias: given False, needed True"),
    (lambda: pair(2, matrix_product=[functional.linear] * 3), "matrix_product: 3 given; column has 2 local ranks"),
    (lambda: TransformerLayer(CONFIG, VirtualTensorGroup(3)), "num_heads: 4 is not divisible by 3"),
    (lambda: TransformerConfig(hidden_size=16, num_heads=5, mlp_size=32), "num_heads: 5 does not divide"),
)
