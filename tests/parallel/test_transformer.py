"""The cut transformer layer against torch's own and against itself uncut."""

import copy

import pytest
import torch
from torch import nn

from workbench.parallel import PreNormTransformerLayer, TransformerConfig, TransformerLayer, VirtualTensorGroup

CONFIG = TransformerConfig(hidden_size=16, num_heads=4, mlp_size=32)
WITH_DROPOUT = TransformerConfig(hidden_size=16, num_heads=4, mlp_size=32, dropout=0.2, attention_dropout=0.3)


def batch() -> torch.Tensor:
    return torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(1))


def torch_layer(layer: TransformerLayer) -> nn.TransformerEncoderLayer:
    """Make torch's layer with the weights of an uncut layer of ours."""
    twin = nn.TransformerEncoderLayer(
        16,
        4,
        32,
        dropout=0.0,
        activation="gelu",
        layer_norm_eps=1e-12,
        batch_first=True,
        norm_first=isinstance(layer, PreNormTransformerLayer),
    )
    twin.self_attn.in_proj_weight.data.copy_(layer.attention.query_key_value.weights[0])
    twin.self_attn.in_proj_bias.data.copy_(layer.attention.query_key_value.biases[0])
    for theirs, ours in (
        (twin.self_attn.out_proj, layer.attention.output),
        (twin.linear1, layer.mlp.input),
        (twin.linear2, layer.mlp.output),
    ):
        theirs.weight.data.copy_(ours.weights[0])
        theirs.bias.data.zero_()
    return twin


@pytest.mark.parametrize("kind", [TransformerLayer, PreNormTransformerLayer])
def test_the_uncut_layer_equals_torchs_transformer_layer(kind):
    layer = kind(CONFIG, VirtualTensorGroup(1))
    ours, theirs = batch().requires_grad_(), batch().requires_grad_()
    y, expected = layer(ours), torch_layer(layer)(theirs)
    torch.testing.assert_close(y, expected)
    y.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("config", [CONFIG, WITH_DROPOUT], ids=["plain", "dropout"])
@pytest.mark.parametrize("size", [2, 4])
def test_a_cut_layer_equals_the_uncut_one_also_in_what_it_drops(config, size):
    results = []
    for num_ranks in (1, size):
        layer = TransformerLayer(config, VirtualTensorGroup(num_ranks), site="layers.0")
        x = batch().requires_grad_()
        y = layer(x)
        y.square().mean().backward()
        results.append((y, x.grad, layer.attention_norm.weight.grad, layer.mlp.output.bias.grad))
    for one, many in zip(*results, strict=True):
        torch.testing.assert_close(many, one)


def test_dropout_is_off_in_evaluation_and_draws_anew_in_training():
    layer = TransformerLayer(WITH_DROPOUT, VirtualTensorGroup(2))
    assert not torch.equal(layer(batch()), layer(batch()))
    layer.eval()
    assert torch.equal(layer(batch()), layer(batch()))


def test_dropout_keeps_the_mean_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    layer = TransformerLayer(WITH_DROPOUT, VirtualTensorGroup(2))
    dropped = layer.mlp_dropout(torch.ones(100_000))
    # Each unit is 0 or 1/0.8: variance 0.25, so the mean of 100,000 has deviation 0.0016.
    assert abs(dropped.mean().item() - 1) < 5 * 0.0016
    assert set(dropped.unique().tolist()) == {0.0, 1.25}
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


def test_a_model_can_be_copied_and_shares_its_group():
    layer = TransformerLayer(WITH_DROPOUT, VirtualTensorGroup(2))
    twin = copy.deepcopy(layer)
    assert torch.equal(twin(batch()), layer(batch()))
    assert twin.mlp.output.group is layer.mlp.output.group


def test_heads_that_the_ranks_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="num_heads: 4 is not divisible by 3"):
        TransformerLayer(CONFIG, VirtualTensorGroup(3))
    with pytest.raises(ValueError, match="num_heads: 5 does not divide hidden_size 16"):
        TransformerConfig(hidden_size=16, num_heads=5, mlp_size=32)


def test_attention_in_bfloat16_is_that_of_fp32_but_for_rounding():
    # In bfloat16 on a CPU attention is written out, since torch's fused one is slower there.
    config = TransformerConfig(hidden_size=64, num_heads=4, mlp_size=128)
    exact, narrow = (TransformerLayer(config, VirtualTensorGroup(2), dtype=d) for d in (torch.float32, torch.bfloat16))
    x_BSH = torch.randn(3, 7, 64, generator=torch.Generator().manual_seed(0))
    mask = torch.zeros(3, 1, 1, 7)
    mask[1, ..., 4:] = torch.finfo(torch.float32).min
    expected, found = exact(x_BSH, mask), narrow(x_BSH.bfloat16(), mask)
    torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.05)
