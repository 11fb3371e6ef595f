"""Messages between stages, with both ends in one process."""

import pytest
import torch
from torch import nn

from workbench.compression import FP16, AutoEncoder, ErrorFeedback, Identity, Quantize, RandomK, TopK
from workbench.parallel import TransformerConfig, TransformerLayer, VirtualTensorGroup
from workbench.parallel.boundary import Boundary
from workbench.parallel.pipeline import VirtualPipeline

CODECS = {
    "identity": Identity(),
    "half": FP16(),
    "top-k": TopK(0.4),
    "random-k": RandomK(0.4, seed=3),
    "quantize": Quantize(2),
    "auto-encoder": AutoEncoder(8, 4, seed=3),
}


def over(codec, x: torch.Tensor) -> tuple[torch.Tensor, Boundary]:
    boundary = Boundary(codec, site="here")
    boundary.prepare(x.shape, x.dtype, "cpu")
    return boundary.receive(*boundary.send(x)), boundary


def sent(boundary: Boundary, phase: str) -> list[int]:
    return [m.message_bytes for m in boundary.traffic if m.phase == phase]


@pytest.mark.parametrize("name", CODECS)
def test_a_boundary_gives_what_the_codec_gives_and_its_gradient(name):
    x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    ours, alone = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, _ = over(CODECS[name].for_site("a"), ours)
    expected = CODECS[name].for_site("a")(alone)
    assert torch.equal(y, expected)
    weights = torch.arange(48.0).reshape(2, 3, 8)
    y.mul(weights).sum().backward()
    expected.mul(weights).sum().backward()
    torch.testing.assert_close(ours.grad, alone.grad)


def test_top_k_gets_the_gradients_of_the_kept_values_and_a_quantised_message_a_full_size_gradient():
    x = torch.tensor([[1.0, -5.0, 2.0, 4.0]], requires_grad=True)
    y, boundary = over(TopK(2), x)
    assert y.tolist() == [[0.0, -5.0, 0.0, 4.0]]
    y.backward(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    assert x.grad.tolist() == [[0.0, 2.0, 0.0, 4.0]]
    assert sent(boundary, "forward") == [2 * 4, 2 * 8]  # fp32 values, int64 indices
    assert sent(boundary, "backward") == [2 * 4]
    x = torch.tensor([[0.0, 1.0, 2.0, 3.0]], requires_grad=True)
    y, boundary = over(Quantize(2), x)
    assert y.tolist() == [[0.0, 1.0, 2.0, 3.0]]  # four levels, four values
    y.backward(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    assert x.grad.tolist() == [[1.0, 2.0, 3.0, 4.0]]
    assert sent(boundary, "forward") == [1 + 4, 0]  # packed, with fp16 scale and bias; token
    assert sent(boundary, "backward") == [4 * 4]


def test_an_example_does_not_advance_a_codecs_random_stream():
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    codec = RandomK(0.5, seed=1)
    untouched = RandomK(0.5, seed=1).encode(x).tensors[1]
    boundary = Boundary(codec)
    boundary.prepare(x.shape, x.dtype, "cpu")
    assert torch.equal(boundary.send(x)[1], untouched)


def test_error_feedback_is_off_in_evaluation():
    boundary = Boundary(ErrorFeedback(TopK(1)))
    pipeline = VirtualPipeline(
        [nn.Identity(), nn.Identity()], boundaries=[boundary], loss=lambda output, targets: output.sum()
    )
    x = torch.tensor([[[3.0, 2.0]]], requires_grad=True)
    assert pipeline.step(x, x).output.tolist() == [[[3.0, 0.0]]]  # 2 is remembered
    assert pipeline.evaluate(x).tolist() == [[[3.0, 0.0]]]
    assert boundary.training
    assert pipeline.step(x, x).output.tolist() == [[[0.0, 4.0]]]


def test_micro_batches_and_boundaries_are_checked():
    parts = [nn.Identity(), nn.Identity()]
    with pytest.raises(ValueError, match="boundaries: 2 given; 2 stages have 1"):
        VirtualPipeline(parts, boundaries=[Boundary(), Boundary()])
    pipeline = VirtualPipeline(parts, num_micro_batches=3)
    with pytest.raises(ValueError, match="num_micro_batches: 3 does not divide a batch of 4"):
        pipeline.evaluate(torch.ones(4, 1, 1))


CONFIG = TransformerConfig(hidden_size=16, num_heads=4, mlp_size=32, dropout=0.2, attention_dropout=0.3)


def run_on(device: str, codec) -> dict:
    group = VirtualTensorGroup(2)
    parts = [TransformerLayer(CONFIG, group, site=f"layers.{i}", device=device) for i in range(2)]
    pipeline = VirtualPipeline(parts, boundaries=[Boundary(codec)], loss=lambda y, targets: y.square().mean())
    x = torch.randn(4, 5, 16, generator=torch.Generator().manual_seed(0)).to(device)
    result = pipeline.step(x, x)
    grads = {n: p.grad.cpu() for n, p in nn.ModuleList(parts).named_parameters()}
    return {"loss": result.loss.cpu(), "output": result.output.cpu()} | grads


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("codec", [None, TopK(0.5), Quantize(4)], ids=["none", "top-k", "quantize"])
def test_a_gpu_gives_what_the_cpu_gives_dropout_included(codec):
    torch.testing.assert_close(run_on("cuda", codec), run_on("cpu", codec), rtol=1e-3, atol=1e-4)
