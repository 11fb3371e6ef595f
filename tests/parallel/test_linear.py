"""Column- and row-parallel linears against one uncut linear."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from workbench.parallel import ColumnParallelLinear, RowParallelLinear, VirtualTensorGroup, cut, join


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


def test_every_number_of_ranks_starts_from_the_same_full_weight():
    for size in (2, 4):
        for dim, (one, many) in enumerate(zip(pair(1), pair(size), strict=True)):
            assert torch.equal(join(list(many.weights), dim=dim), one.weights[0])


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    pair(2)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_matrix_product_is_an_argument():
    seen = []

    def product(x, weight):
        seen.append((tuple(x.shape), tuple(weight.shape)))
        return functional.linear(x, weight)

    column, row = pair(2, matrix_product=product)
    row(column(torch.ones(5, 6)))
    assert seen == [((5, 6), (4, 6))] * 2 + [((5, 4), (6, 4))] * 2


def test_each_local_rank_may_have_its_own_matrix_product():
    def times(factor):
        return lambda x, weight: functional.linear(x, weight) * factor

    column, row = pair(2, bias=False, matrix_product=[times(1), times(10)])
    plain, _ = pair(2, bias=False)
    x = torch.ones(5, 6)
    for factor, ours, theirs in zip((1, 10), column(x), plain(x), strict=True):
        torch.testing.assert_close(ours, theirs * factor)
    ones = [torch.ones(5, 4)] * 2
    expected = sum(functional.linear(y, w) * f for y, w, f in zip(ones, row.weights, (1, 10), strict=True))
    torch.testing.assert_close(row(ones), expected)
    with pytest.raises(ValueError, match="matrix_product: 3 given; column has 2 local ranks"):
        pair(2, matrix_product=[times(1)] * 3)


def test_a_reduction_module_is_registered_and_can_be_taken_back():
    class Halve(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.tensor(0.5))

        def forward(self, partials):
            return sum(partials) * self.factor

    column, row = pair(2, bias=False)
    x = torch.ones(5, 6)
    plain = row(column(x))
    row.reduction = Halve()
    assert "reduction.factor" in dict(row.named_parameters())
    torch.testing.assert_close(row(column(x)), plain / 2)
    row.reduction = lambda partials: sum(partials) * 3
    assert "reduction.factor" not in dict(row.named_parameters())
    torch.testing.assert_close(row(column(x)), plain * 3)
    row.reduction = None
    torch.testing.assert_close(row(column(x)), plain)


def test_uneven_cuts_are_refused_by_name():
    group = VirtualTensorGroup(4)
    with pytest.raises(ValueError, match="out_features: 6 is not divisible"):
        ColumnParallelLinear(8, 6, group)
    with pytest.raises(ValueError, match="in_features: 6 is not divisible"):
        RowParallelLinear(6, 8, group)


def test_a_weight_of_another_shape_or_a_missing_bias_is_refused():
    (column, _) = pair(2)
    with pytest.raises(ValueError, match=r"column.weight: shape \(6, 8\)"):
        column.load_full_(torch.zeros(6, 8), torch.zeros(8))
    with pytest.raises(ValueError, match="column.bias: given False, needed True"):
        column.load_full_(torch.zeros(8, 6))


def test_blocks_are_cut_each_by_itself():
    full = torch.arange(8)  # two blocks of four: 0..3 and 4..7
    shards = [cut(full, dim=0, rank=rank, size=2, num_blocks=2) for rank in range(2)]
    assert [shard.tolist() for shard in shards] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert torch.equal(join(shards, dim=0, num_blocks=2), full)
