"""The learned code taken of the weight, x (Wᵀ E), beside the definition, (x Wᵀ) E: the same numbers."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from workbench.compression import FP16, AutoEncoder, ErrorFeedback, Quantize, RandomK, TopK
from workbench.launch import Ranks
from workbench.models.bert import BertConfig, BertEncoder
from workbench.parallel import ProcessTensorGroup, RowParallelLinear, TensorGroup, VirtualTensorGroup
from workbench.techniques.activation_compression.runtime import EncoderGradients, FusedReduction, compress

CONFIG = BertConfig.tiny(hidden_size=32, mlp_size=64, num_layers=2, num_heads=4)
IDS = torch.arange(24).reshape(2, 12) % 50 + 1
CODE = AutoEncoder(32, 5, seed=7, dtype=torch.float64)
NUM_STEPS = 4
# Unit roundoff: half the distance from 1 to the next number.
ROUNDOFF = {torch.float64: 2**-53, torch.float32: 2**-24, torch.float16: 2**-11, torch.bfloat16: 2**-8}


def small_bert(group: TensorGroup, *, fused: bool, gradients: EncoderGradients | None = None) -> BertEncoder:
    """Build a compressed encoder in float64 whose biases are not zero."""
    model = BertEncoder(CONFIG, group, dtype=torch.float64)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, RowParallelLinear):
                module.bias.copy_(torch.linspace(-1, 1, 32))
    compress(model, CODE, layers=2, fused=fused, gradients=gradients)
    return model


def trained(group: TensorGroup, *, fused: bool, one_message: bool = False) -> dict[str, Tensor]:
    """Train some steps; return the first step's output and gradients, and the parameters at the end."""
    model = small_bert(group, fused=fused, gradients=EncoderGradients(group) if one_message else None)
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


def both_ways_on_a_real_rank(one_message: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    group = ProcessTensorGroup()
    return trained(group, fused=False), trained(group, fused=True, one_message=one_message)


def check_equal(ours: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert ours.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-12, atol=1e-12 * tensor.abs().max().item(), msg=name)


@pytest.fixture(scope="module")
def four_ranks():
    with Ranks(4, preload=("workbench.models.bert",)) as ranks:
        yield ranks


def test_a_worked_example():
    # Rank 0: x = (1, 2), W = ((1, 0), (0, 1)), E = (1, 2)ᵀ: Wᵀ E = (1, 2)ᵀ and the code is 1·1 + 2·2 = 5.
    # Rank 1: x = (3, 1), W = ((0, 1), (1, 0)):              Wᵀ E = (2, 1)ᵀ and the code is 3·2 + 1·1 = 7.
    # Decoded: 12 · (1, 10) = (12, 120); the bias (1, 1) comes once.
    layer = RowParallelLinear(4, 2, VirtualTensorGroup(2))
    layer.load_full_(torch.tensor([[1.0, 0, 0, 1], [0, 1, 1, 0]]), torch.tensor([1.0, 1]))
    codec = AutoEncoder(2, 1)
    with torch.no_grad():
        codec.encoder.copy_(torch.tensor([[1.0], [2.0]]))
        codec.decoder.copy_(torch.tensor([[1.0, 10.0]]))
    layer.reduction = FusedReduction(codec, layer.group)
    assert layer([torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 1.0]])]).tolist() == [[13.0, 121.0]]


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_outputs_all_gradients_and_trained_weights_are_those_of_the_definition(num_ranks):
    group = VirtualTensorGroup(num_ranks)
    check_equal(trained(group, fused=True), trained(group, fused=False))


@pytest.mark.parametrize("one_message", [False, True])
def test_on_real_ranks_too_and_the_encoders_stay_the_same_on_all_of_them(one_message, four_ranks):
    on_all = four_ranks.run(both_ways_on_a_real_rank, one_message)
    for definition, fused in on_all:
        check_equal(fused, definition)
    encoders = [name for name in on_all[0][1] if name.endswith(".encoder") and "gradient" not in name]
    assert len(encoders) == 4
    for name in encoders:
        assert all(torch.equal(fused[name], on_all[0][1][name]) for _, fused in on_all), name


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


def test_fused_and_plain_reductions_read_each_others_checkpoints():
    fused, definition = (small_bert(VirtualTensorGroup(2), fused=way) for way in (True, False))
    with torch.no_grad():
        for parameter in fused.parameters():
            parameter.add_(0.01)
    definition.load_state_dict(fused.state_dict())
    torch.testing.assert_close(definition(IDS), fused(IDS), rtol=1e-12, atol=1e-12)


def test_taking_the_code_out_gives_the_plain_layer_back():
    model = BertEncoder(CONFIG, VirtualTensorGroup(2))
    before, parameters = model(IDS), set(dict(model.named_parameters()))
    compression = compress(model, "A1", layers=2, fused=True)
    assert not torch.equal(model(IDS), before)
    compression.remove()
    assert torch.equal(model(IDS), before) and set(dict(model.named_parameters())) == parameters


@pytest.mark.parametrize(
    "codec",
    [TopK(0.1), RandomK(0.1), Quantize(4), FP16(), ErrorFeedback(AutoEncoder(32, 4))],
    ids=lambda codec: type(codec).__name__,
)
def test_codes_that_are_not_linear_are_refused_by_name_before_anything_changes(codec):
    model = BertEncoder(CONFIG, VirtualTensorGroup(2))
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
