"""Groups and layers on real gloo ranks: against virtual ranks and against DTensor."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.cases import refusal
from workbench import parallel
from workbench.compression import AutoEncoder, Quantize, TopK
from workbench.parallel.boundary import Boundary
from workbench.parallel.pipeline import Pipeline, VirtualPipeline, open_mesh

CONFIG = parallel.TransformerConfig(hidden_size=16, num_heads=4, mlp_size=32, dropout=0.2, attention_dropout=0.3)


@pytest.fixture(scope="module")
def ranks(pools):
    return pools(4)


def batch(seed: int = 0) -> torch.Tensor:
    return torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(seed))


def collectives() -> tuple:
    group, rank = parallel.ProcessTensorGroup(), dist.get_rank()
    x = torch.tensor([1.0], requires_grad=True)
    partial = torch.tensor([10.0**rank], requires_grad=True)
    with group.traffic.at("here"):
        total = group.sum([group.copy(x) * partial])
        total.backward(torch.tensor([2.0]))
        gathered = [message.item() for message in group.gather([torch.tensor([rank], dtype=torch.uint8)])]
    traffic = [(m.what, m.phase, m.message_bytes, m.num_ranks, m.site) for m in group.traffic]
    return group.local_ranks, total.item(), partial.grad.item(), x.grad.item(), gathered, traffic


def test_sum_copy_and_gather_on_four_ranks(ranks):
    traffic = [
        ("sum", "forward", 4, 4, "here"),
        ("copy-backward", "backward", 4, 4, "here"),
        ("gather", "forward", 1, 4, "here"),
    ]
    for rank, result in enumerate(ranks.run(collectives)):
        # The gradient of a partial result is that of the sum, times x; that of x is 2 times all partial results.
        assert result == ((rank,), 1111.0, 2.0, 2222.0, [0, 1, 2, 3], traffic)


def run_layer(group, steps: int = 2) -> dict:
    """Take a few steps, so that dropout has to stay in step too."""
    layer = parallel.TransformerLayer(CONFIG, group, site="layers.0")
    for step in range(steps):
        x = batch(step).requires_grad_()
        layer.zero_grad()
        y = layer(x)
        y.square().mean().backward()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter -= 0.1 * parameter.grad
    return {
        "y": y.detach(),
        "grad_x": x.grad,
        "norm": layer.attention_norm.weight.grad,
        "row_bias": layer.mlp.output.bias.grad,
        "column": layer.attention.query_key_value.full_weight(),
        "row": layer.mlp.output.full_weight(gradient=True),
        "bytes": group.traffic.num_bytes(phase="backward"),
    }


def test_a_layer_with_dropout_equals_its_virtual_twin_and_the_uncut_layer_after_two_updates(ranks):
    expected, uncut = (run_layer(parallel.VirtualTensorGroup(size)) for size in (4, 1))
    for result in ranks.run(lambda: run_layer(parallel.ProcessTensorGroup())):
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)
    assert (uncut.pop("bytes"), expected.pop("bytes")) == (0, 2 * 2 * 3 * 5 * 16 * 4)
    torch.testing.assert_close(expected, uncut, rtol=1e-5, atol=1e-6)


def plain_pair() -> nn.Sequential:
    first, second = nn.Linear(16, 32), nn.Linear(32, 16)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in (*first.parameters(), *second.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4)
    return nn.Sequential(first, nn.GELU(), second)


def run_dtensor(mesh) -> list[torch.Tensor]:
    pair = parallelize_module(plain_pair(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x = batch().requires_grad_()
    y = pair(x)
    y.square().mean().backward()
    grads = [parameter.grad for parameter in pair.parameters()]
    return [y.detach(), x.grad, *(g.full_tensor() if isinstance(g, DTensor) else g for g in grads)]


def run_ours(group) -> list[torch.Tensor]:
    plain = plain_pair()
    column, row = parallel.ColumnParallelLinear(16, 32, group), parallel.RowParallelLinear(32, 16, group)
    column.load_full_(plain[0].weight.detach(), plain[0].bias.detach())
    row.load_full_(plain[2].weight.detach(), plain[2].bias.detach())
    x = batch().requires_grad_()
    y = row(nn.functional.gelu(column(x)))
    y.square().mean().backward()
    grads = [m.full_weight(True) for m in (column, row)], [m.full_bias(True) for m in (column, row)]
    return [y.detach(), x.grad, grads[0][0], grads[1][0], grads[0][1], grads[1][1]]


def run_both() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("other", "tensor"))["tensor"]
    return run_dtensor(mesh), run_ours(parallel.ProcessTensorGroup(mesh.get_group()))


def test_outputs_and_gradients_equal_dtensors_on_pairs_of_ranks(ranks):
    for by_dtensor, by_workbench in ranks.run(run_both):
        names = ("output", "input", "column weight", "column bias", "row weight", "row bias")
        for name, expected, actual in zip(names, by_dtensor, by_workbench, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6, msg=name)


def differentiated_twice() -> str:
    group = parallel.ProcessTensorGroup()
    column, row = parallel.ColumnParallelLinear(16, 32, group), parallel.RowParallelLinear(32, 16, group)
    x = batch().requires_grad_()
    (gradient,) = torch.autograd.grad(row(column(x).square()).square().sum(), x, create_graph=True)
    return refusal(gradient.square().sum().backward)


def test_second_derivatives_are_refused(ranks):
    assert all("once_differentiable" in message for message in ranks.run(differentiated_twice))


CODECS = [None, TopK(0.3), Quantize(4), AutoEncoder(16, 4, seed=2)]
BATCHES = [("step", 4), ("evaluate", 8), ("step", 4), ("evaluate", 4), ("step", 12), ("evaluate", 8)]


def stage_part(index: int) -> nn.Module:
    first, second = plain_pair()[::2]
    return nn.Sequential(first, nn.Tanh(), second) if index % 2 else nn.Sequential(nn.Tanh(), first, second)


def run_batches(pipeline: Pipeline | VirtualPipeline) -> list:
    """Give the last stage's outputs of training and evaluation on batches of other sizes."""
    outputs = []
    for number, (what, size) in enumerate(BATCHES):
        x = torch.randn(size, 5, 16, generator=torch.Generator().manual_seed(number))
        outputs.append(pipeline.step(x, x).output if what == "step" else pipeline.evaluate(x))
    return outputs


OPTIONS = {"num_micro_batches": 2, "loss": nn.functional.mse_loss}


def run_pipelines(codecs: list) -> list:
    mesh, results = open_mesh(tensor=1, pipeline=4), []
    for codec in codecs:
        before, after = (Boundary(codec and codec.for_site(str(mesh.stage.index + i))) for i in range(2))
        part = stage_part(mesh.stage.index)
        pipeline = Pipeline(part, mesh, hidden_size=16, before=before, after=after, **OPTIONS)
        results.append((run_batches(pipeline), [parameter.grad for parameter in part.parameters()]))
    return results


def test_batches_of_other_sizes_may_alternate_between_training_and_evaluation(ranks):
    results = ranks.run(run_pipelines, CODECS)
    for number, codec in enumerate(CODECS):
        boundaries = [Boundary(codec and codec.for_site(str(index))) for index in (1, 2, 3)]
        twin = VirtualPipeline([stage_part(index) for index in range(4)], boundaries=boundaries, **OPTIONS)
        torch.testing.assert_close(results[3][number][0], run_batches(twin), rtol=1e-5, atol=1e-6)
        for rank, part in enumerate(twin.parts):
            expected = [parameter.grad for parameter in part.parameters()]
            torch.testing.assert_close(results[rank][number][1], expected, rtol=1e-5, atol=1e-6)
