"""Encoded reductions: worked examples, the plain model as a limit, virtual against real ranks."""

import pytest
import torch
from torch import nn

from workbench.compression import AutoEncoder, ErrorFeedback, Identity, Quantize, RandomK, TopK
from workbench.launch import Ranks
from workbench.models.bert import BertConfig, BertEncoder
from workbench.parallel import ColumnParallelLinear, ProcessTensorGroup, RowParallelLinear, VirtualTensorGroup
from workbench.techniques.activation_compression.cost import Setting
from workbench.techniques.activation_compression.method import METHODS, method
from workbench.techniques.activation_compression.runtime import CompressedReduction, EncoderGradients, compress

CONFIG = BertConfig.tiny(hidden_size=64, mlp_size=128, num_layers=4)
IDS = torch.arange(24).reshape(2, 12) % 50 + 1


def outputs_and_gradients(group, method_name: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the output and every gradient, those of cut weights put together from all ranks."""
    model = BertEncoder(CONFIG, group)
    compress(model, method(method_name).codec(64, dtype=torch.float32), layers=2)
    output = model(IDS)
    output.square().sum().backward()
    cut = [module for module in model.modules() if isinstance(module, ColumnParallelLinear | RowParallelLinear)]
    gradients = {f"{module.site}.weight": module.full_weight(gradient=True) for module in cut}
    gradients |= {f"{module.site}.bias": module.full_bias(gradient=True) for module in cut}
    whole = {n: p.grad for n, p in model.named_parameters() if "weights." not in n and "biases." not in n}
    return output.detach(), gradients | {n: g for n, g in whole.items() if g is not None}


def on_a_real_rank(method_name: str):
    return outputs_and_gradients(ProcessTensorGroup(), method_name)


def encoder_gradients_of_the_second_time(one_message: bool) -> dict[str, torch.Tensor]:
    """Compress, take it back, compress again; return the encoders' gradients."""
    group = ProcessTensorGroup()
    model, gradients = BertEncoder(CONFIG, group), EncoderGradients(group) if one_message else None
    compress(model, "A1", layers=2, gradients=gradients).remove()
    compress(model, "A1", layers=2, gradients=gradients)
    model(IDS).square().sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if name.endswith("encoder")}


@pytest.fixture(scope="module")
def two_ranks():
    with Ranks(2, preload=("workbench.models.bert",)) as ranks:
        yield ranks


def test_codes_of_partial_sums_add_up_to_the_code_of_the_sum():
    # Two ranks, h = 2, c = 1, encoder (1, 2)ᵀ: codes 1·1 + 2·2 = 5 and 3·1 + 0·2 = 3; their sum 8 is (4, 2)·(1, 2)ᵀ.
    codec = AutoEncoder(2, 1)
    with torch.no_grad():
        codec.encoder.copy_(torch.tensor([[1.0], [2.0]]))
        codec.decoder.copy_(torch.tensor([[1.0, 10.0]]))
    reduction = CompressedReduction(codec, VirtualTensorGroup(2))
    total = reduction([torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 0.0]])])
    assert total.tolist() == [[8.0, 80.0]]


def test_the_largest_of_partial_sums_are_not_the_largest_of_the_sum():
    # Top-1 of (3, 2, 0) and of (0, 2, 3) keeps the two threes; the sum (3, 4, 3) is largest in the middle.
    reduction = CompressedReduction(TopK(1), VirtualTensorGroup(2))
    assert reduction([torch.tensor([3.0, 2.0, 0.0]), torch.tensor([0.0, 2.0, 3.0])]).tolist() == [3.0, 0.0, 3.0]


def test_gathered_gradients_reach_the_kept_elements_of_each_rank_only():
    partials = [torch.tensor([3.0, 2.0, 0.0], requires_grad=True), torch.tensor([0.0, 2.0, 3.0], requires_grad=True)]
    CompressedReduction(TopK(1), VirtualTensorGroup(2))(partials).backward(torch.tensor([5.0, 6.0, 7.0]))
    assert [partial.grad.tolist() for partial in partials] == [[5.0, 0.0, 0.0], [0.0, 0.0, 7.0]]


def test_the_identity_codec_changes_no_output_and_no_gradient():
    plain, wrapped = (BertEncoder(CONFIG, VirtualTensorGroup(2)) for _ in range(2))
    compress(wrapped, Identity(), layers=4)
    for model in (plain, wrapped):
        model(IDS).square().sum().backward()
    assert torch.equal(plain(IDS), wrapped(IDS))
    for (name, ours), (_, theirs) in zip(wrapped.named_parameters(), plain.named_parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad), name


@pytest.mark.parametrize("name", METHODS)
def test_virtual_ranks_equal_real_ranks(name, two_ranks):
    output, gradients = outputs_and_gradients(VirtualTensorGroup(2), name)
    for rank_output, rank_gradients in two_ranks.run(on_a_real_rank, name):
        torch.testing.assert_close(rank_output, output)
        assert rank_gradients.keys() == gradients.keys()
        for parameter, gradient in gradients.items():
            theirs = rank_gradients[parameter]
            torch.testing.assert_close(theirs, gradient, msg=lambda m: f"{parameter}: {m}")  # noqa: B023


@pytest.mark.parametrize("name", METHODS)
def test_the_bytes_a_codec_counts_are_the_bytes_the_paper_defines(name):
    x = torch.randn(4, 8, 64, generator=torch.Generator().manual_seed(0)).to(torch.float16)
    setting = Setting(method=name, micro_batch=4, sequence=8, hidden=64)
    codec = method(name).codec(64, dtype=torch.float16)
    assert codec.encode(x).num_bytes == codec.payload_bytes(x.shape, torch.float16) == setting.encoded_bytes()


def test_errors_of_virtual_ranks_are_fed_back_to_their_own_rank():
    reduction = CompressedReduction(ErrorFeedback(TopK(1)).for_site("here"), VirtualTensorGroup(2))
    reduction([torch.tensor([3.0, 2.0]), torch.tensor([0.0, 1.0])])
    # What was left behind: (0, 2) on rank 0 and nothing on rank 1; so rank 0 now keeps 2 + 2, rank 1 keeps 1.
    assert reduction([torch.tensor([3.0, 2.0]), torch.tensor([0.0, 1.0])]).tolist() == [0.0, 5.0]


def test_random_choices_differ_between_ranks():
    codec = RandomK(8, seed=3).for_site("here")
    chosen = [codec.for_rank(rank).encode(torch.ones(1000)).tensors[1].tolist() for rank in range(2)]
    assert chosen[0] != chosen[1]


def test_a_users_own_model_is_compressed_at_the_output_of_named_layers():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    before = model(x)
    compression = compress(model, TopK(1), layers=["0"])
    inner = model[0](x)
    assert compression.sites == ("0",) and int((inner != 0).sum()) == 1
    compression.remove()
    assert torch.equal(model(x), before)


def test_the_last_half_of_the_layers_is_the_default():
    model = BertEncoder(CONFIG, VirtualTensorGroup(2))
    sites = compress(model, Quantize(4)).sites
    assert sites == tuple(f"layers.{i}.{part}.output" for i in (2, 3) for part in ("attention", "mlp"))
    assert compress(nn.Sequential(*(nn.Linear(4, 4) for _ in range(5))), TopK(1)).sites == ("2", "3", "4")


@pytest.mark.parametrize("layers", [0, 5, [], [9], [1, 1], ["layers.nine"], ["layers", "layers.1"]])
def test_layers_that_do_not_exist_come_twice_or_are_none_are_refused_before_anything_changes(layers):
    model = BertEncoder(CONFIG, VirtualTensorGroup(2))
    with pytest.raises(ValueError, match="layers"):
        compress(model, Quantize(4), layers=layers)
    assert all(layer.mlp.output.reduction is None for layer in model.layers)
    with pytest.raises(ValueError, match="name modules"):
        compress(nn.Linear(4, 4), TopK(1))


def test_learned_codes_are_parameters_of_the_model_with_their_own_weights():
    model = BertEncoder(CONFIG, VirtualTensorGroup(2))
    compression = compress(model, "A1", layers=1)
    encoders = [parameter for name, parameter in model.named_parameters() if name.endswith("encoder")]
    assert len(encoders) == 2 and not torch.equal(*encoders)
    compression.remove()
    assert not [name for name, _ in model.named_parameters() if name.endswith("encoder")]


def test_a_learned_code_at_a_layers_output_is_trained_moved_and_evaluated_with_the_model():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    compression = compress(model, ErrorFeedback(AutoEncoder(8, 2)), layers=["0"])
    assert "0.output_codec.codec.encoder" in dict(model.named_parameters())
    model.eval()
    x = torch.ones(3, 8)
    assert torch.equal(model(x), model(x)) and model(torch.ones(5, 8)).shape == (5, 8)
    assert model.to(torch.float64)[0].output_codec.codec.encoder.dtype is torch.float64
    compression.remove()
    assert len(list(model.parameters())) == 4


def test_compressing_again_finds_the_layers_and_undoing_both_restores_the_model():
    model = BertEncoder(CONFIG, VirtualTensorGroup(4))
    first, second = compress(model, "A1", layers=2), compress(model, Quantize(4), layers=2)
    assert first.sites == second.sites
    second.remove()
    first.remove()
    assert all(layer.mlp.output.reduction is None for layer in model.layers)


def test_one_message_of_gradients_serves_codes_that_came_after_others_were_taken_out(two_ranks):
    one_each, one_message = (two_ranks.run(encoder_gradients_of_the_second_time, way) for way in (False, True))
    for apart, together in zip(one_each, one_message, strict=True):
        assert len(together) == 4
        for name, gradient in apart.items():
            assert gradient.abs().max() > 0
            torch.testing.assert_close(together[name], gradient)


def test_one_message_of_gradients_is_for_real_ranks_and_for_weights_that_are_known_to_encode():
    with pytest.raises(ValueError, match=r"group holds ranks \(0, 1\) in one process"):
        EncoderGradients(VirtualTensorGroup(2))

    class Renamed(AutoEncoder):
        def __init__(self) -> None:
            super().__init__(4, 2)
            self.projection = self.encoder
            del self.encoder

    with pytest.raises(ValueError, match="codec=Renamed: none of its weights is named encoder"):
        EncoderGradients(VirtualTensorGroup(1)).expect(Renamed())


def test_an_output_is_not_compressed_twice():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    compression = compress(model, TopK(1), layers=["1"])
    with pytest.raises(ValueError, match="the output of 1 is compressed already"):
        compress(model, TopK(2), layers=["0", "1"])
    assert not hasattr(model[0], "output_codec")
    compression.remove()
