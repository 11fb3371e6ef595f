"""The same layers and boundaries on a GPU."""

import pytest
import torch
from torch import nn

from workbench.compression import Quantize, TopK
from workbench.parallel import TransformerConfig, TransformerLayer, VirtualTensorGroup
from workbench.parallel.boundary import Boundary
from workbench.parallel.pipeline import VirtualPipeline

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

CONFIG = TransformerConfig(hidden_size=16, num_heads=4, mlp_size=32, dropout=0.2, attention_dropout=0.3)


def run(device: str, codec) -> dict:
    group = VirtualTensorGroup(2)
    parts = [TransformerLayer(CONFIG, group, site=f"layers.{i}", device=device) for i in range(2)]
    pipeline = VirtualPipeline(parts, boundaries=[Boundary(codec)], loss=lambda y, targets: y.square().mean())
    x = torch.randn(4, 5, 16, generator=torch.Generator().manual_seed(0)).to(device)
    result = pipeline.step(x, x)
    grads = {n: p.grad.cpu() for n, p in nn.ModuleList(parts).named_parameters()}
    return {"loss": result.loss.cpu(), "output": result.output.cpu()} | grads


@pytest.mark.parametrize("codec", [None, TopK(0.5), Quantize(4)], ids=["none", "top-k", "quantize"])
def test_a_gpu_gives_what_the_cpu_gives_dropout_included(codec):
    torch.testing.assert_close(run("cuda", codec), run("cpu", codec), rtol=1e-3, atol=1e-4)
