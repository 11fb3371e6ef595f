"""Resized products: fast equals definition, all columns kept is the plain layer, gradients come back to their place."""

import pytest
import torch
from torch.nn import functional

from workbench.techniques.flextp.method import resizing
from workbench.techniques.flextp.method.resizing import Buffers, Imputation

pytestmark = pytest.mark.timeout(60)

N, K, O = 6, 9, 5


def integers(*shape, seed):
    """Small whole numbers in fp32: their sums are exact in any order."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).float()


def normals(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def operands(draw):
    """Draw x [N, K], weight [O, K] and the output's gradient [N, O]."""
    return draw(N, K, seed=0), draw(O, K, seed=1), draw(N, O, seed=2)


DROPPED = [[], [0], [8], [1, 3, 4], [0, 1, 2, 3, 4, 5, 6, 7]]


def fast_results(x, weight, grad, kept, imputation, previous, buffers):
    """Run the three products and recover both gradients, all into memory that is given."""
    num_columns = x.shape[1]
    part_OC, part_NC = x.new_empty(len(weight), len(kept)), x.new_empty(len(x), len(kept))
    resizing.weight_gradient_of_columns(grad, x, kept, out=part_OC, buffers=buffers)
    resizing.input_gradient_of_columns(grad, weight, kept, out=part_NC, buffers=buffers)
    output, grad_weight, grad_input = x.new_empty(len(x), len(weight)), torch.empty_like(weight), torch.empty_like(x)
    return (
        resizing.product_of_columns(x, weight, kept, out=output, buffers=buffers),
        resizing.recovered(part_OC, kept, num_columns, imputation, previous[0], out=grad_weight),
        resizing.recovered(part_NC, kept, num_columns, imputation, previous[1], out=grad_input),
    )


def results_by_definition(x, weight, grad, dropped, imputation, previous):
    previous_weight, previous_input = previous
    return (
        resizing.resized_product_by_definition(x, weight, dropped),
        resizing.resized_weight_gradient_by_definition(grad, x, dropped, imputation, previous_weight),
        resizing.resized_input_gradient_by_definition(grad, weight, dropped, imputation, previous_input),
    )


@pytest.mark.parametrize("dropped", DROPPED, ids=str)
@pytest.mark.parametrize("imputation", [Imputation.ZERO, Imputation.SAME], ids=lambda i: i.value)
def test_fast_and_definition_agree_bit_for_bit_where_sums_are_exact(dropped, imputation):
    x, weight, grad = operands(integers)
    previous = integers(O, K, seed=3), integers(N, K, seed=4)
    kept = resizing.kept_columns(dropped, K)
    fast = fast_results(x, weight, grad, kept, imputation, previous, Buffers())
    for ours, defined in zip(fast, results_by_definition(x, weight, grad, dropped, imputation, previous), strict=True):
        assert torch.equal(ours, defined)


@pytest.mark.parametrize("dropped", DROPPED, ids=str)
@pytest.mark.parametrize("imputation", Imputation, ids=lambda i: i.value)
def test_fast_and_definition_agree_to_float_tolerance_on_any_numbers(dropped, imputation):
    x, weight, grad = operands(normals)
    previous = normals(O, K, seed=3), normals(N, K, seed=4)
    kept = resizing.kept_columns(dropped, K)
    fast = fast_results(x, weight, grad, kept, imputation, previous, None)
    for ours, defined in zip(fast, results_by_definition(x, weight, grad, dropped, imputation, previous), strict=True):
        torch.testing.assert_close(ours, defined)


def test_with_all_columns_kept_everything_is_the_plain_layer_bit_for_bit():
    x, weight, grad = (tensor.requires_grad_() for tensor in operands(normals))
    functional.linear(x, weight).backward(grad.detach())
    x_plain, weight_plain, grad = x.detach(), weight.detach(), grad.detach()
    every = resizing.kept_columns([], K)
    product = resizing.product_of_columns(x_plain, weight_plain, every)
    assert torch.equal(product, functional.linear(x_plain, weight_plain))
    assert torch.equal(resizing.product_of_columns(x_plain, weight_plain, every, out=torch.empty(N, O)), product)
    grad_weight = resizing.weight_gradient_of_columns(grad, x_plain, every)
    grad_input = resizing.input_gradient_of_columns(grad, weight_plain, every)
    assert torch.equal(resizing.recovered(grad_weight, every, K), weight.grad)
    assert torch.equal(resizing.recovered(grad_input, every, K), x.grad)


def test_with_all_columns_kept_the_product_is_functional_linear_and_copies_nothing(monkeypatch):
    calls = []
    monkeypatch.setattr(resizing.functional, "linear", lambda *matrices: calls.append(matrices) or "the product")
    x, weight, _ = operands(normals)
    assert resizing.product_of_columns(x, weight, torch.arange(K), buffers=(buffers := Buffers())) == "the product"
    assert calls == [(x, weight)] and buffers.num_bytes == 0


def test_kept_gradients_are_those_of_the_plain_layer_on_the_kept_columns():
    x, weight, grad = operands(integers)
    kept = resizing.kept_columns([2, 5, 6], K)
    x_kept, weight_kept = x[:, kept].requires_grad_(), weight[:, kept].requires_grad_()
    functional.linear(x_kept, weight_kept).backward(grad)
    grad_weight = resizing.weight_gradient_of_columns(grad, x, kept)
    grad_input = resizing.input_gradient_of_columns(grad, weight, kept)
    assert torch.equal(resizing.recovered(grad_weight, kept, K)[:, kept], weight_kept.grad)
    assert torch.equal(resizing.recovered(grad_input, kept, K)[:, kept], x_kept.grad)


def test_missing_columns_are_zero_or_the_rows_average_or_what_stood_there_before():
    part = torch.tensor([[1.0, 5.0], [4.0, -2.0]])
    kept = torch.tensor([0, 2])
    previous = torch.tensor([[9.0, 8.0, 7.0], [6.0, 5.0, 4.0]])
    zero = torch.tensor([[1.0, 0.0, 5.0], [4.0, 0.0, -2.0]])
    average = torch.tensor([[1.0, 3.0, 5.0], [4.0, 1.0, -2.0]])  # (1 + 5) / 2 and (4 - 2) / 2
    same = torch.tensor([[1.0, 8.0, 5.0], [4.0, 5.0, -2.0]])
    assert torch.equal(resizing.recovered(part, kept, 3), zero)
    assert torch.equal(resizing.recovered(part, kept, 3, Imputation.AVERAGE), average)
    assert torch.equal(resizing.recovered(part, kept, 3, Imputation.SAME, previous), same)
    assert torch.equal(resizing.recovered(part, kept, 3, Imputation.SAME), zero)  # no previous iteration yet
    assert torch.equal(resizing.recovered(part, kept, 3, Imputation.SAME, previous, out=previous), same)
    assert torch.equal(previous, same)  # the next iteration's previous one, in place


def test_buffers_of_one_rank_serve_layers_of_different_size_without_growing_again():
    buffers, large, small = Buffers(), (normals(8, 10, seed=0), normals(7, 10, seed=1)), operands(normals)[:2]
    for _ in range(2):
        for x, weight in (large, small, large):
            kept = resizing.kept_columns([1, 2], x.shape[1])
            product = resizing.product_of_columns(x, weight, kept, buffers=buffers)
            torch.testing.assert_close(product, x[:, kept] @ weight[:, kept].T)
        assert buffers.num_bytes == 4 * (8 * 8 + 7 * 8)  # the larger layer's extracted input and weight


def test_a_ratio_drops_the_nearest_number_of_columns_and_never_all():
    counts = {(0.0, 8): 0, (0.5, 8): 4, (0.5, 5): 3, (0.24, 4): 1, (0.1, 4): 0, (0.99, 4): 3, (0.9, 1): 0}
    assert {case: resizing.num_dropped_columns(*case) for case in counts} == counts


@pytest.mark.parametrize("ratio", [-0.1, 1.0, float("nan")])
def test_a_ratio_outside_its_range_is_refused(ratio):
    with pytest.raises(ValueError, match=r"pruning_ratio is .*; it must be in \[0, 1\)"):
        resizing.num_dropped_columns(ratio, 4)


@pytest.mark.parametrize(
    ("dropped", "message"), [([4], "column 4"), ([-1], "column -1"), ([1, 1], "twice"), ([3, 0, 2, 1], "all 4 columns")]
)
def test_columns_that_do_not_exist_or_leave_nothing_are_refused(dropped, message):
    with pytest.raises(ValueError, match=message):
        resizing.kept_columns(dropped, 4)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_resized_products_are_those_of_the_cpu():
    x, weight, grad = operands(integers)
    kept, previous = resizing.kept_columns([1, 3, 4], K), (None, None)
    on_cpu = fast_results(x, weight, grad, kept, Imputation.ZERO, previous, Buffers())
    on_gpu = fast_results(x.cuda(), weight.cuda(), grad.cuda(), kept.cuda(), Imputation.ZERO, previous, Buffers())
    for ours, theirs in zip(on_gpu, on_cpu, strict=True):
        assert torch.equal(ours.cpu(), theirs)
