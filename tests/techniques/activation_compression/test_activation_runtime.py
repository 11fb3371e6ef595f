"""Encoded reductions, plain and fused: worked examples, equal to the definition, virtual as real ranks."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from workbench.compression import FP16, AutoEncoder, ErrorFeedback, Identity, Quantize, RandomK, TopK
from workbench.models.bert import BertConfig, BertEncoder
from workbench.parallel import ProcessTensorGroup, RowParallelLinear, VirtualTensorGroup
from workbench.techniques.activation_compression import runtime
from workbench.techniques.activation_compression.cost import Setting
from workbench.techniques.activation_compression.method import METHODS, method
from workbench.techniques.activation_compression.runtime import EncoderGradients, compress

CONFIG = BertConfig.tiny(hidden_size=64, mlp_size=128, num_layers=4)
IDS = torch.arange(24).reshape(2, 12) % 50 + 1


def encoder_gradients_of_the_second_time(one_message: bool) -> dict[str, torch.Tensor]:
    """Compress, take it back, compress again; return the encoders' gradients."""
    group = ProcessTensorGroup()
    model, gradients = BertEncoder(CONFIG, group), EncoderGradients(group) if one_message else None
    compress(model, "A1", layers=2, gradients=gradients).remove()
    compress(model, "A1", layers=2, gradients=gradients)
    model(IDS).square().sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if name.endswith("encoder")}


def worked_code() -> AutoEncoder:
    """Return the code of h = 2, c = 1 with encoder (1, 2)ᵀ and decoder (1, 10)."""
    codec = AutoEncoder(2, 1)
    with torch.no_grad():
        codec.encoder.copy_(torch.tensor([[1.0], [2.0]]))
        codec.decoder.copy_(torch.tensor([[1.0, 10.0]]))
    return codec


def test_codes_of_partial_sums_add_up_the_largest_elements_do_not_and_gradients_reach_the_kept_ones_only():
    # Codes 1·1 + 2·2 = 5 and 3·1 + 0·2 = 3; their sum 8 is (4, 2)·(1, 2)ᵀ.
    reduction = runtime.CompressedReduction(worked_code(), VirtualTensorGroup(2))
    total = reduction([torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 0.0]])])
    assert total.tolist() == [[8.0, 80.0]]
    # Top-1 of (3, 2, 0) and of (0, 2, 3) keeps the two threes; the sum (3, 4, 3) is largest in the middle.
    partials = [torch.tensor(part, requires_grad=True) for part in ([3.0, 2.0, 0.0], [0.0, 2.0, 3.0])]
    total = runtime.CompressedReduction(TopK(1), VirtualTensorGroup(2))(partials)
    assert total.tolist() == [3.0, 0.0, 3.0]
    total.backward(torch.tensor([5.0, 6.0, 7.0]))
    assert [partial.grad.tolist() for partial in partials] == [[5.0, 0.0, 0.0], [0.0, 0.0, 7.0]]


def test_second_derivatives_of_gathered_sums_are_refused():
    partials = [torch.tensor(part, requires_grad=True) for part in ([3.0, 2.0], [1.0, 2.0])]
    total = runtime.CompressedReduction(TopK(1), VirtualTensorGroup(2))(partials)
    (gradient,) = torch.autograd.grad(total.square().sum(), partials[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):  # no message would bring other ranks' share
        gradient.sum().backward()


def test_the_identity_codec_changes_no_output_and_no_gradient():
    plain, wrapped = (BertEncoder(CONFIG, VirtualTensorGroup(2)) for _ in range(2))
    compress(wrapped, Identity(), layers=4)
    for model in (plain, wrapped):
        model(IDS).square().sum().backward()
    assert torch.equal(plain(IDS), wrapped(IDS))
    for (name, weight), (_, expected) in zip(wrapped.named_parameters(), plain.named_parameters(), strict=True):
        assert torch.equal(weight.grad, expected.grad), name


def test_the_bytes_a_codec_counts_are_the_bytes_the_paper_defines():
    x = torch.randn(4, 8, 64, generator=torch.Generator().manual_seed(0)).to(torch.float16)
    for name in METHODS:
        setting = Setting(method=name, micro_batch=4, sequence=8, hidden=64)
        codec = method(name).codec(64, dtype=torch.float16)
        counted = codec.payload_bytes(x.shape, torch.float16)
        assert codec.encode(x).num_bytes == counted == setting.encoded_bytes(), name


def test_errors_are_fed_back_to_their_own_virtual_rank_and_random_choices_differ_between_ranks():
    reduction = runtime.CompressedReduction(ErrorFeedback(TopK(1)).for_site("here"), VirtualTensorGroup(2))
    reduction([torch.tensor([3.0, 2.0]), torch.tensor([0.0, 1.0])])
    # What was left behind: (0, 2) on rank 0 and nothing on rank 1; so rank 0 now keeps 2 + 2, rank 1 keeps 1.
    assert reduction([torch.tensor([3.0, 2.0]), torch.tensor([0.0, 1.0])]).tolist() == [0.0, 5.0]
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
    with pytest.raises(ValueError, match="the output of 0 is compressed already"):
        compress(model, TopK(2), layers=["1", "0"])
    assert not hasattr(model[1], "output_codec")
    compression.remove()
    assert torch.equal(model(x), before)


def test_the_last_half_of_the_layers_is_the_default_and_undoing_two_compressions_restores_the_model():
    model = BertEncoder(CONFIG, VirtualTensorGroup(2))
    sites = compress(model, Quantize(4)).sites
    assert sites == tuple(f"layers.{i}.{part}.output" for i in (2, 3) for part in ("attention", "mlp"))
    assert compress(nn.Sequential(*(nn.Linear(4, 4) for _ in range(5))), TopK(1)).sites == ("2", "3", "4")
    model = BertEncoder(CONFIG, VirtualTensorGroup(4))
    first, second = compress(model, "A1", layers=2), compress(model, Quantize(4), layers=2)
    assert first.sites == second.sites
    second.remove()
    first.remove()
    assert all(layer.mlp.output.reduction is None for layer in model.layers)


@pytest.mark.parametrize("layers", [0, 5, [], [9], [1, 1], ["layers.nine"], ["layers", "layers.1"]])
def test_layers_that_do_not_exist_come_twice_or_are_none_are_refused_before_anything_changes(layers):
    model = BertEncoder(CONFIG, VirtualTensorGroup(2))
    with pytest.raises(ValueError, match="layers"):
        compress(model, Quantize(4), layers=layers)
    assert all(layer.mlp.output.reduction is None for layer in model.layers)


def test_one_message_of_gradients_is_for_real_ranks_and_known_weights_and_serves_codes_that_came_later(pools):
    one_each, one_message = (pools(2).run(encoder_gradients_of_the_second_time, way) for way in (False, True))
    for apart, together in zip(one_each, one_message, strict=True):
        assert len(together) == 4
        for name, gradient in apart.items():
            assert gradient.abs().max() > 0
            torch.testing.assert_close(together[name], gradient)
    with pytest.raises(ValueError, match=r"group holds ranks \(0, 1\) in one process"):
        EncoderGradients(VirtualTensorGroup(2))

    class Renamed(AutoEncoder):
        def __init__(self) -> None:
            super().__init__(4, 2)
            self.projection = self.encoder
            del self.encoder

    with pytest.raises(ValueError, match="codec=Renamed: none of its weights is named encoder"):
        EncoderGradients(VirtualTensorGroup(1)).expect(Renamed())


SMALL_CONFIG = BertConfig.tiny(hidden_size=32, mlp_size=64, num_layers=2, num_heads=4)
CODE = AutoEncoder(32, 5, seed=7, dtype=torch.float64)
NUM_STEPS = 4
# Unit roundoff: half the distance from 1 to the next number.
ROUNDOFF = {torch.float64: 2**-53, torch.float32: 2**-24, torch.float16: 2**-11, torch.bfloat16: 2**-8}


def trained(group, *, fused: bool, one_message: bool = False) -> dict[str, Tensor]:
    """Train an encoder with biases; return the first step's output and gradients, and the parameters at the end."""
    model = BertEncoder(SMALL_CONFIG, group, dtype=torch.float64)
    for module in model.modules():
        if isinstance(module, RowParallelLinear):
            module.bias.data.copy_(torch.linspace(-1, 1, 32))
    compress(model, CODE, layers=2, fused=fused, gradients=EncoderGradients(group) if one_message else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0, momentum=0.9)
    results = {}
    for step in range(NUM_STEPS):
        output = model(IDS)
        output.square().mul(torch.linspace(0, 1, 32)).mean().backward()
        if not step:
            results["output"] = output.detach()
            results |= {f"gradient of {n}": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        optimizer.zero_grad()
    return results | {name: parameter.detach() for name, parameter in model.named_parameters()}


def every_way_on_a_real_rank() -> list[dict[str, Tensor]]:
    group = ProcessTensorGroup()
    return [
        trained(group, fused=fused, one_message=joint) for fused, joint in ((False, False), (True, False), (True, True))
    ]


def check_equal(ours: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert ours.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-12, atol=1e-12 * tensor.abs().max().item(), msg=name)


def test_a_worked_example_of_a_fused_code():
    # Rank 0: x = (1, 2), W = ((1, 0), (0, 1)), E = (1, 2)ᵀ: Wᵀ E = (1, 2)ᵀ and the code is 1·1 + 2·2 = 5.
    # Rank 1: x = (3, 1), W = ((0, 1), (1, 0)):              Wᵀ E = (2, 1)ᵀ and the code is 3·2 + 1·1 = 7.
    # Decoded: 12 · (1, 10) = (12, 120); the bias (1, 1) comes once.
    layer = RowParallelLinear(4, 2, VirtualTensorGroup(2))
    layer.load_full_(torch.tensor([[1.0, 0, 0, 1], [0, 1, 1, 0]]), torch.tensor([1.0, 1]))
    layer.reduction = runtime.FusedReduction(worked_code(), layer.group)
    assert layer([torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 1.0]])]).tolist() == [[13.0, 121.0]]


def test_outputs_gradients_and_trained_weights_are_those_of_the_definition_and_encoders_the_same_on_all_ranks(pools):
    on_all = pools(4).run(every_way_on_a_real_rank)
    for definition, *fused in on_all:
        for tensors in fused:
            check_equal(tensors, definition)
    for first, *others in zip(*on_all, strict=True):  # of each way, all ranks
        encoders = [name for name in first if name.endswith(".encoder") and "gradient" not in name]
        assert len(encoders) == 4
        assert all(torch.equal(other[name], first[name]) for name in encoders for other in others)


def drawn(dtype: torch.dtype) -> list[Tensor]:
    """Draw x, W, b, E, D and the gradient of the output: N = 6 tokens, I = 16, h = 12, c = 3."""
    generator = torch.Generator().manual_seed(0)
    shapes = (6, 16), (12, 16), (12,), (12, 3), (3, 12), (6, 12)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def run_layer(tensors: list[Tensor], *, fused: bool) -> dict[str, Tensor]:
    """Return the output and all gradients of one layer over four ranks."""
    x, weight, bias, encoder, decoder, gradient = tensors
    layer = RowParallelLinear(16, 12, VirtualTensorGroup(4), dtype=x.dtype)
    layer.load_full_(weight, bias)
    compress(nn.ModuleDict({"output": layer}), AutoEncoder(12, 3, dtype=x.dtype), layers=["output"], fused=fused)
    with torch.no_grad():
        layer.reduction.codecs[0].encoder.copy_(encoder)
        layer.reduction.codecs[0].decoder.copy_(decoder)
    xs = [part.clone().requires_grad_() for part in x.chunk(4, dim=1)]
    y = layer(xs)
    y.backward(gradient)
    gradients = {name: parameter.grad for name, parameter in layer.named_parameters()}
    return {"output": y.detach(), **gradients, **{f"x{rank}": part.grad for rank, part in enumerate(xs)}}


@pytest.mark.parametrize("dtype", ROUNDOFF, ids=str)
def test_rounding_is_within_its_bound_in_every_precision(dtype):
    # A chain of products of n summed terms in all is off by at most n·u times the same chain of magnitudes. The
    # longest, E's gradient, is xᵀ (g Dᵀ) of W: 12 + 6 + 4 terms and 4 ranks; the output's is 4 + 12 + 4 + 3 and a bias:
    # n <= 30 covers all, with a rounding for each product. Both ways are off by as much.
    magnitudes = run_layer([tensor.double().abs() for tensor in drawn(dtype)], fused=False)
    definition, fused = (run_layer(drawn(dtype), fused=way) for way in (False, True))
    assert fused.keys() == definition.keys() and all(tensor.dtype == dtype for tensor in fused.values())
    for name, expected in definition.items():
        bound = 2 * 30 * ROUNDOFF[dtype] * magnitudes[name].abs()
        assert ((fused[name] - expected).double().abs() <= bound).all(), name


def test_the_full_size_partial_is_never_formed_and_the_same_messages_travel():
    sizes = {}
    for fused in (False, True):
        seen, group = [], VirtualTensorGroup(4)

        def product(x, weight, seen=seen):
            seen.append(tuple(weight.shape))
            return functional.linear(x, weight)

        layer = RowParallelLinear(16, 12, group, matrix_product=product)
        compress(nn.ModuleDict({"output": layer}), AutoEncoder(12, 3), layers=["output"], fused=fused)
        layer([torch.ones(6, 4)] * 4).sum().backward()
        sizes[fused] = seen, list(group.traffic)
    assert (sizes[False][0], sizes[True][0]) == ([(12, 4)] * 4, [(3, 4)] * 4)
    assert sizes[True][1] == sizes[False][1]


@pytest.mark.parametrize("fused", [False, True])
def test_learned_codes_are_parameters_with_their_own_weights_until_they_are_taken_out(fused):
    model = BertEncoder(SMALL_CONFIG, VirtualTensorGroup(2))
    before, parameters = model(IDS), set(dict(model.named_parameters()))
    compression = compress(model, "A1", layers=1, fused=fused)
    encoders = [parameter for name, parameter in model.named_parameters() if name.endswith("encoder")]
    assert len(encoders) == 2 and not torch.equal(*encoders)
    assert not torch.equal(model(IDS), before)
    compression.remove()
    assert torch.equal(model(IDS), before) and set(dict(model.named_parameters())) == parameters


@pytest.mark.parametrize(
    "codec",
    [TopK(0.1), RandomK(0.1), Quantize(4), FP16(), ErrorFeedback(AutoEncoder(32, 4))],
    ids=lambda codec: type(codec).__name__,
)
def test_codes_that_are_not_linear_are_refused_by_name_before_anything_changes(codec):
    model = BertEncoder(SMALL_CONFIG, VirtualTensorGroup(2))
    with pytest.raises(ValueError, match=rf"fused=True with codec={type(codec).__name__}(.|\n)*only a linear code"):
        compress(model, codec, layers=2, fused=True)
    assert all(layer.mlp.output.reduction is None for layer in model.layers)
    with pytest.raises(ValueError, match="fused=True: 0 holds no row-parallel linear"):
        compress(nn.Sequential(nn.Linear(4, 4)), AutoEncoder(4, 2), layers=["0"], fused=True)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_gpu_gives_the_same_within_rounding(dtype):
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(0)).to("cuda", dtype)
    outputs = []
    for fused in (False, True):
        layer = RowParallelLinear(32, 48, VirtualTensorGroup(2), device="cuda", dtype=dtype)
        compress(nn.ModuleDict({"output": layer}), AutoEncoder(48, 8, dtype=dtype), layers=["output"], fused=fused)
        outputs.append(layer(list(x.chunk(2, dim=1))).double())
    # 16 + 48 + 2 + 8 terms, magnitudes: |x| <= 4.5, |W| <= 0.1, |E|, |D| <= 0.25.
    bound = 2 * 74 * ROUNDOFF[dtype] * 32 * 48 * 8 * 4.5 * 0.1 * 0.25 * 0.25
    assert (outputs[0] - outputs[1]).abs().max().item() <= bound
