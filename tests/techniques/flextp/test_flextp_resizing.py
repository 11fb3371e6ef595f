"""Resized products and their lineage, figure 2, and the choice of columns: least moved first, ties by chance."""

import math

import pytest
import torch
from torch.nn import functional

from workbench.techniques.flextp import method
from workbench.techniques.flextp.method import Buffers, ColumnStatistics, Imputation, Lineage, Selection, worked_example

N, K, NUM_OUTPUTS = 6, 9, 5


def integers(*shape, seed):
    """Small whole numbers in fp32: their sums are exact in any order."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).float()


def normals(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def operands(draw):
    """Draw x [N, K], weight [O, K] and the output's gradient [N, O]."""
    return draw(N, K, seed=0), draw(NUM_OUTPUTS, K, seed=1), draw(N, NUM_OUTPUTS, seed=2)


def fast_results(x, weight, grad, kept, imputation, previous, buffers):
    """Run the three products and recover both gradients, all into memory that is given."""
    num_columns = x.shape[1]
    part_OC, part_NC = x.new_empty(len(weight), len(kept)), x.new_empty(len(x), len(kept))
    method.gradient_of_columns(grad.T, x, kept, out=part_OC, buffers=buffers)
    method.gradient_of_columns(grad, weight, kept, out=part_NC, buffers=buffers)
    output, grad_weight, grad_input = x.new_empty(len(x), len(weight)), torch.empty_like(weight), torch.empty_like(x)
    return (
        method.product_of_columns(x, weight, kept, out=output, buffers=buffers),
        method.recovered(part_OC, kept, num_columns, imputation, previous[0], out=grad_weight),
        method.recovered(part_NC, kept, num_columns, imputation, previous[1], out=grad_input),
    )


@pytest.mark.parametrize("imputation", Imputation, ids=lambda i: i.value)
@pytest.mark.parametrize("draw", [integers, normals])
def test_fast_and_definition_agree_and_bit_for_bit_where_sums_are_exact(draw, imputation):
    for dropped in ([], [0], [8], [1, 3, 4], [0, 1, 2, 3, 4, 5, 6, 7]):
        assert_agreement(draw, imputation, dropped)


def assert_agreement(draw, imputation, dropped):
    x, weight, grad = operands(draw)
    previous_weight, previous_input = draw(NUM_OUTPUTS, K, seed=3), draw(N, K, seed=4)
    kept = method.kept_columns(dropped, K)
    fast = fast_results(x, weight, grad, kept, imputation, (previous_weight, previous_input), Buffers())
    defined = (
        method.resized_product_by_definition(x, weight, dropped),
        method.resized_gradient_by_definition(grad.T, x, dropped, imputation, previous_weight),
        method.resized_gradient_by_definition(grad, weight, dropped, imputation, previous_input),
    )
    is_exact = draw is integers and imputation is not Imputation.AVERAGE
    tolerance = {"rtol": 0, "atol": 0} if is_exact else {}
    for ours, expected in zip(fast, defined, strict=True):
        torch.testing.assert_close(ours, expected, **tolerance)


def test_with_all_columns_kept_everything_is_the_plain_layer_bit_for_bit_and_nothing_is_copied():
    x, weight, grad = (tensor.requires_grad_() for tensor in operands(normals))
    output, every, buffers = functional.linear(x, weight), method.kept_columns([], K), Buffers()
    output.backward(grad.detach())
    plain = x.detach(), weight.detach()
    results = fast_results(*plain, grad.detach(), every, Imputation.ZERO, (None, None), None)
    assert all(map(torch.equal, results, (output, weight.grad, x.grad)))
    assert torch.equal(method.product_of_columns(*plain, every, buffers=buffers), output)
    assert method.recovered(plain[0], every, K) is plain[0]
    assert buffers.num_bytes == 0


def test_missing_columns_are_zero_or_the_rows_average_or_what_stood_there_before():
    part = torch.tensor([[1.0, 5.0], [4.0, -2.0]])
    kept = torch.tensor([0, 2])
    previous = torch.tensor([[9.0, 8.0, 7.0], [6.0, 5.0, 4.0]])
    zero = torch.tensor([[1.0, 0.0, 5.0], [4.0, 0.0, -2.0]])
    average = torch.tensor([[1.0, 3.0, 5.0], [4.0, 1.0, -2.0]])  # (1 + 5) / 2 and (4 - 2) / 2
    same = torch.tensor([[1.0, 8.0, 5.0], [4.0, 5.0, -2.0]])
    assert torch.equal(method.recovered(part, kept, 3), zero)
    assert torch.equal(method.recovered(part, kept, 3, Imputation.AVERAGE), average)
    assert torch.equal(method.recovered(part, kept, 3, Imputation.SAME, previous), same)
    assert torch.equal(method.recovered(part, kept, 3, Imputation.SAME), zero)  # no previous iteration yet
    assert torch.equal(method.recovered(part, kept, 3, Imputation.SAME, previous, out=previous), same)
    assert torch.equal(previous, same)  # the next iteration's previous one, in place


def test_buffers_of_one_rank_serve_layers_of_different_size_without_growing_again():
    buffers, large, small = Buffers(), (normals(8, 10, seed=0), normals(7, 10, seed=1)), operands(normals)[:2]
    for _ in range(2):
        for x, weight in (large, small, large):
            kept = method.kept_columns([1, 2], x.shape[1])
            product = method.product_of_columns(x, weight, kept, buffers=buffers)
            torch.testing.assert_close(product, x[:, kept] @ weight[:, kept].T)
        assert buffers.num_bytes == 4 * (8 * 8 + 7 * 8)  # the larger layer's extracted input and weight


def test_a_ratio_drops_the_nearest_number_of_columns_and_never_all():
    counts = {(0.0, 8): 0, (0.5, 8): 4, (0.5, 5): 3, (0.24, 4): 1, (0.1, 4): 0, (0.99, 4): 3, (0.9, 1): 0}
    assert {case: method.num_dropped_columns(*case) for case in counts} == counts


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_resized_products_are_those_of_the_cpu():
    x, weight, grad = operands(integers)
    kept, previous = method.kept_columns([1, 3, 4], K), (None, None)
    on_cpu = fast_results(x, weight, grad, kept, Imputation.ZERO, previous, Buffers())
    on_gpu = fast_results(x.cuda(), weight.cuda(), grad.cuda(), kept.cuda(), Imputation.ZERO, previous, Buffers())
    for ours, other in zip(on_gpu, on_cpu, strict=True):
        assert torch.equal(ours.cpu(), other)


def test_the_lineage_prints_as_a_table_and_an_entry_replaces_the_one_before_it():
    lineage = Lineage()
    lineage.record_("blocks.0.mlp.input", "weight", [5, 0, 1, 2])
    lineage.record_("head", "input", torch.tensor([], dtype=torch.int64))
    lineage.record_("head", "weight", [7])
    lineage.record_("head", "weight", torch.tensor([4, 1]))
    assert lineage["head", "weight"].tolist() == [1, 4]
    assert str(lineage).splitlines() == [
        "layer               matrix  dropped columns",
        "blocks.0.mlp.input  weight  0-2 5",
        "head                input   none",
        "head                weight  1 4",
    ]


# The worked example of figure 2, columns 2 and 4 of 4 dropped, against numbers worked by hand.
# x = 1 2 3 1    W = 1 1 2 1    grad_output = 1 0 2
#     2 1 1 3        2 1 1 2                  2 1 1
#                    1 3 2 1


def test_products_of_the_worked_example_come_out_with_kept_columns_and_are_recovered_by_the_lineage():
    example = worked_example()
    output, grad_weight, grad_input = example.products
    # [1·1 + 3·2, 1·2 + 3·1, 1·1 + 3·2], [2·1 + 1·2, 2·2 + 1·1, 2·1 + 1·2]
    assert output.result.tolist() == [[7, 5, 7], [4, 5, 4]]
    assert output.plain.tolist() == [[10, 9, 14], [8, 12, 10]]
    assert grad_weight.result.tolist() == [[5, 0, 5, 0], [2, 0, 1, 0], [4, 0, 7, 0]]
    assert grad_weight.plain.tolist() == [[5, 4, 5, 7], [2, 1, 1, 3], [4, 5, 7, 5]]
    assert grad_input.result.tolist() == [[3, 0, 6, 0], [5, 0, 7, 0]]
    assert grad_input.plain.tolist() == [[3, 7, 6, 3], [5, 6, 7, 5]]
    assert all(example.lineage["linear", matrix].tolist() == [1, 3] for matrix in ("input", "weight"))
    # 2 rows · 4 columns · 3 outputs, and 2 · 2 · 3
    assert (example.plain_multiplications, example.multiplications) == (3 * 24, 3 * 12)
    _, grad_weight, grad_input = worked_example(Imputation.AVERAGE).products
    assert grad_weight.result.tolist() == [[5, 5, 5, 5], [2, 1.5, 1, 1.5], [4, 5.5, 7, 5.5]]
    assert grad_input.result.tolist() == [[3, 4.5, 6, 4.5], [5, 6, 7, 6]]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def statistics_of(change):
    """Statistics of a weight [1, K] whose columns moved by what is given."""
    statistics = ColumnStatistics(torch.zeros(1, len(change)))
    statistics.update_(torch.tensor([change]), [])
    return statistics


def test_the_change_of_a_column_is_its_weights_mean_distance_and_dropped_columns_keep_theirs():
    statistics = ColumnStatistics(torch.tensor([[1.0, 2.0, 0.0], [3.0, -1.0, 0.0]]))
    assert statistics.change.tolist() == [math.inf, math.inf, math.inf]
    statistics.update_(torch.tensor([[2.0, 2.0, 4.0], [0.0, -3.0, -2.0]]), [])
    assert statistics.change.tolist() == [2.0, 1.0, 3.0]  # (1 + 3) / 2, (0 + 2) / 2, (4 + 2) / 2
    statistics.update_(torch.tensor([[2.0, 2.5, 4.0], [0.0, -3.0, -2.0]]), [])
    assert statistics.change.tolist() == [0.0, 0.25, 0.0]  # since the last update, not since the first

    def change_after(is_incremental):
        statistics = ColumnStatistics(torch.zeros(1, 3), is_incremental=is_incremental)
        statistics.update_(torch.tensor([[5.0, 6.0, 7.0]]), [2])
        statistics.update_(torch.tensor([[9.0, 6.0, 8.0]]), torch.tensor([1]))
        return statistics.change.tolist()

    assert change_after(True) == [4.0, 6.0, 1.0]  # column 1 was dropped: as in the first epoch
    assert change_after(False) == [4.0, 0.0, 1.0]
    never_measured = ColumnStatistics(torch.zeros(1, 3))
    never_measured.update_(torch.tensor([[5.0, 0.0, 7.0]]), [1])
    order = method.priority_list(never_measured, selection=Selection.PRIORITY, generator=generator())
    assert order.tolist() == [0, 2, 1]  # and is not dropped next


@pytest.mark.parametrize("num_rows", [1, 64, 65, 200])
def test_one_pass_measures_what_the_definition_says_in_single_precision_on_a_copy(num_rows):
    then, now = (torch.randn(num_rows, 7, generator=generator(seed)) for seed in (0, 1))
    weight = then.clone()
    statistics = ColumnStatistics(weight)
    weight.copy_(now)  # as an optimizer does
    statistics.update_(weight, [])
    torch.testing.assert_close(statistics.change, method.column_change_by_definition(now, then))
    narrow = ColumnStatistics(torch.zeros(4096, 1, dtype=torch.bfloat16))
    narrow.update_(torch.ones(4096, 1, dtype=torch.bfloat16), [])
    assert narrow.change.dtype == torch.float32 and narrow.change.tolist() == [1.0]


@pytest.mark.parametrize(
    ("selection", "change"),
    [(Selection.RANDOM, [9.0, 1.0, 1.0, 5.0]), (Selection.PRIORITY, [2.0, 2.0, 2.0, 2.0]), (Selection.PRIORITY, None)],
)
def test_random_choices_and_ties_and_the_first_choice_follow_the_callers_generator(selection, change):
    statistics = ColumnStatistics(torch.zeros(1, 4)) if change is None else statistics_of(change)
    before = torch.random.get_rng_state()
    generators = [generator(seed) for seed in (*range(40), 7)]
    first = [method.priority_list(statistics, selection=selection, generator=own)[0].item() for own in generators]
    assert set(first) == {0, 1, 2, 3} and first[7] == first[40]
    assert torch.equal(torch.random.get_rng_state(), before)


def test_columns_below_the_random_walk_are_candidates_and_a_layer_drops_them_but_at_least_the_decayed_ratio():
    # θ_micro = 0.25 · 0.01 / √100
    assert method.micro_threshold(0.01, 100) == pytest.approx(0.00025)
    statistics = statistics_of([1.0, 2.0, 3.0, 4.0])
    assert [method.candidate_share(statistics, threshold) for threshold in (0.5, 2.0, 2.5, 9.0)] == [0, 0.25, 0.5, 1]
    assert method.candidate_share(ColumnStatistics(torch.zeros(1, 4)), 1e9) == 0  # nothing measured yet
    # a γ = 0.8 · 0.5 = 0.4
    assert method.layer_ratios([0.0, 0.4, 0.75, 1.0], 0.5) == pytest.approx([0.4, 0.4, 0.75, 0.99])
    assert method.layer_ratios([0.0, 1.0], 0.0) == [0.0, 0.0]  # a rank with nothing to lose drops nothing


def test_ratios_of_mean_gamma_share_what_lies_above_the_decayed_ratio_by_candidates():
    # a γ = 0.4 each; 4 · 0.5 - 1.6 = 0.4 remain, of which a layer has its share of 2.15
    found = method.mean_ratios([0.0, 0.4, 0.75, 1.0], 0.5)
    assert found == pytest.approx([0.4, 0.4 + 0.16 / 2.15, 0.4 + 0.3 / 2.15, 0.4 + 0.4 / 2.15])
    assert method.mean_ratios([0.0, 0.0], 0.5) == pytest.approx([0.5, 0.5])  # no candidates: as Pri
    assert method.mean_ratios([0.0, 1.0], 0.9) == pytest.approx([0.81, 0.99])  # the second is full
    assert method.mean_ratios([0.3, 1.0], 0.0) == [0.0, 0.0]
