"""A block on meshes of real ranks equals a block in one process, and moves as much as the closed forms say."""

import gc
import time

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional

from tests.cases import refusal, tidy
from workbench.launch import run_on_ranks
from workbench.models.gpt2 import GPT2Block, GPT2Config
from workbench.parallel.traffic import Phase, tcp_bytes_sent
from workbench.techniques.atp.method.summa import PassElements, forward_backward_elements
from workbench.techniques.atp.runtime.summa import SummaBlock, SummaLinear, SummaMesh, SummaNorm

CONFIG = GPT2Config.tiny(hidden_size=8, num_heads=4, dropout=0.0)
BATCH, SEQUENCE = 4, 3


@pytest.fixture(scope="module")
def ranks(pools):
    return pools(4)


def case():
    """Draw a full block whose biases and norms are not trivial, an input, and the gradient of the output."""
    draw = torch.Generator().manual_seed(0)
    block = GPT2Block(CONFIG, 0).double()
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, generator=draw)
    x, grad = (torch.randn(BATCH, SEQUENCE, 8, generator=draw, dtype=torch.float64) for _ in range(2))
    return block, x, grad


def on_mesh(q, depth):
    """Run on a rank: output, gradient of the input, of the parameters, and elements moved in both passes."""
    mesh, (full, x, grad) = SummaMesh(q, depth), case()
    block = SummaBlock(CONFIG, mesh).double()
    block.load_full_(full.state_dict())
    x_rank = mesh.cut(x).requires_grad_()
    y = block(x_rank)
    y.backward(mesh.cut(grad))
    moved = [mesh.elements(phase, element_bytes=8) for phase in (Phase.FORWARD, Phase.BACKWARD)]
    return mesh.join(y), mesh.join(x_rank.grad), block.full(gradient=True), moved


# Tokens 4 * 3 = 12, hidden 8. The four linears have inputs of 1 + 1 + 1 + 4 = 7 hiddens and weights of
# 3 + 1 + 4 + 4 = 12 squares; biases and norms are 9 + 4 = 13 hiddens; two norms have a mean and a variance each.
ACTIVATIONS, WEIGHTS, VECTORS, STATISTICS = 7 * 12 * 8, 12 * 8 * 8, 13 * 8, 2 * 2 * 12
BOTH = {
    (2, 1): {"row_broadcast": ACTIVATIONS // 2, "column_broadcast": WEIGHTS // 2, "row_all_reduce": STATISTICS // 2},
    (1, 4): {},
    (2, 2): {"row_broadcast": ACTIVATIONS // 4, "column_broadcast": WEIGHTS // 2, "row_all_reduce": STATISTICS // 4},
}
ONLY_BACKWARD = {
    (2, 1): {"row_reduce": ACTIVATIONS // 2, "column_reduce": WEIGHTS // 2, "column_all_reduce": VECTORS // 2},
    (1, 4): {"depth_all_reduce": WEIGHTS + VECTORS},
    (2, 2): {
        "row_reduce": ACTIVATIONS // 4,
        "column_reduce": WEIGHTS // 2,
        "column_all_reduce": VECTORS // 2,
        "depth_all_reduce": WEIGHTS // 4 + VECTORS // 2,
    },
}


@pytest.mark.parametrize("mesh", BOTH)
def test_a_block_on_a_mesh_equals_that_of_one_process_with_all_gradients_and_moves_the_closed_forms(ranks, mesh):
    block, x, grad = case()
    y = block(x.requires_grad_())
    y.backward(grad)
    gradients = {name: parameter.grad for name, parameter in block.named_parameters()}
    elements = [PassElements(**BOTH[mesh]), PassElements(**BOTH[mesh], **ONLY_BACKWARD[mesh])]
    counted = forward_backward_elements(BATCH, SEQUENCE, 8, *mesh)
    assert [counted.forward, counted.backward] == elements
    # Only 2.5-D on 2 x 2 x 2 needs eight ranks.
    by_rank = run_on_ranks(on_mesh, 8, 2, 2, preload=[__name__]) if mesh == (2, 2) else ranks.run(tidy, on_mesh, *mesh)
    for rank_y, rank_x_grad, rank_gradients, moved in by_rank:
        torch.testing.assert_close(rank_y, y.detach())
        torch.testing.assert_close(rank_x_grad, x.grad)
        torch.testing.assert_close(rank_gradients, gradients)
        assert moved == elements


def sent_bytes():
    """Run on a rank: bytes written in a forward and a backward pass, once connections are open."""
    gc.collect()  # connections of an earlier test's groups, which would otherwise close in between
    time.sleep(0.5)
    mesh = SummaMesh(2)
    block, x = SummaBlock(GPT2Config.tiny(hidden_size=128, dropout=0.0), mesh), mesh.cut(torch.ones(4, 16, 128))
    for _ in range(2):
        start, y = tcp_bytes_sent(), block(x.requires_grad_())
        dist.barrier()
        middle = tcp_bytes_sent()
        y.sum().backward()
        dist.barrier()
    return middle - start, tcp_bytes_sent() - middle


def test_counted_elements_are_the_bytes_on_the_wire_but_for_headers(ranks):
    counted = forward_backward_elements(4, 16, 128, 2)
    for sent, counts in zip(
        zip(*ranks.run(tidy, sent_bytes), strict=True), [counted.forward, counted.backward], strict=True
    ):
        # Of n counts, two ranks send n in a broadcast, 1.5 n in gloo's reduce, 2 n in an all-reduce.
        halves = counts.row_broadcast + counts.column_broadcast + 1.5 * (counts.row_reduce + counts.column_reduce)
        written = 4 * 4 * (halves + 2 * (counts.row_all_reduce + counts.column_all_reduce)) / 2  # 4 ranks, 4 bytes
        assert written <= sum(sent) < 1.05 * written


def differentiated_twice():
    mesh = SummaMesh(2)
    x = mesh.cut(torch.ones(4, 3, 8)).requires_grad_()
    (gradient,) = torch.autograd.grad(SummaLinear(8, 8, mesh)(x).square().sum(), x, create_graph=True)
    return refusal(gradient.sum().backward)


def test_second_derivatives_are_refused(ranks):
    assert all("once_differentiable" in message for message in ranks.run(tidy, differentiated_twice))


def test_a_block_begins_with_the_weights_of_one_process(ranks):
    full = dict(GPT2Block(CONFIG, 1).state_dict())
    for weights in ranks.run(tidy, lambda: SummaBlock(CONFIG, SummaMesh(2), index=1).full()):
        torch.testing.assert_close(weights, full, rtol=0, atol=0)


def normalised():
    mesh, norm_input = SummaMesh(2), torch.randn(2, 8, generator=torch.Generator().manual_seed(1)) + 1000
    norm = SummaNorm(8, mesh)
    norm.load_full_(torch.ones(8), torch.zeros(8))
    return norm_input, mesh.join(norm(mesh.cut(norm_input)))


def test_a_norm_is_right_where_the_mean_is_far_above_the_spread(ranks):
    for norm_input, normed in ranks.run(tidy, normalised):
        torch.testing.assert_close(normed, functional.layer_norm(norm_input, (8,)), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda: SummaMesh(3), "q: depth * q * q is 1 * 3 * 3, which must be the number of ranks, 4"),
        (lambda: SummaMesh(2, 0), "number of ranks, 4"),
        (lambda: SummaBlock(GPT2Config.tiny(hidden_size=9, num_heads=3, dropout=0.0), SummaMesh(2)), "num_heads: 3 is"),
        (lambda: SummaBlock(GPT2Config.tiny(), SummaMesh(2)), "dropout: 0.1 must be 0"),
        (lambda: SummaNorm(9, SummaMesh(2)), "hidden_size: 9 is not divisible by q, 2"),
        (lambda: SummaLinear(8, 9, SummaMesh(2)), "out_features: 9 is not divisible"),
        (lambda: SummaMesh(1, 4).cut(torch.ones(6, 3, 8)), "batch: 6 is not divisible by q * depth, 4"),
        (lambda: SummaMesh(2).cut(torch.ones(6, 3, 7)), "hidden: 7 is not divisible by q, 2"),
        (lambda: SummaLinear(8, 4, SummaMesh(2)).load_full_(torch.ones(4, 2), torch.ones(4)), "weight: a part of"),
        (lambda: forward_backward_elements(6, 3, 8, 2, 2), "batch: 6 is not divisible by q * depth, 4"),
    ],
)
def test_bad_sizes_are_named_on_all_ranks(ranks, call, rule):
    assert all(rule in message for message in ranks.run(tidy, refusal, call))
