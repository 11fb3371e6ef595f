"""Choosing columns: least moved first, ties by chance, and a choice that rotates because statistics are incremental."""

import pytest
import torch

from workbench.techniques.flextp import method
from workbench.techniques.flextp.method import ColumnStatistics, Selection

pytestmark = pytest.mark.timeout(60)

INF = float("inf")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def choose_columns(statistics, num_dropped, **how):
    return method.first_columns(method.priority_list(statistics, **how), num_dropped)


def statistics_of(change):
    """Statistics of a weight [1, K] whose columns moved by what is given."""
    statistics = ColumnStatistics(torch.zeros(1, len(change)))
    statistics.update_(torch.tensor([change]), [])
    return statistics


def test_the_change_of_a_column_is_the_mean_distance_its_weights_have_moved():
    statistics = ColumnStatistics(torch.tensor([[1.0, 2.0, 0.0], [3.0, -1.0, 0.0]]))
    assert statistics.change.tolist() == [INF, INF, INF]
    statistics.update_(torch.tensor([[2.0, 2.0, 4.0], [0.0, -3.0, -2.0]]), [])
    assert statistics.change.tolist() == [2.0, 1.0, 3.0]  # (1 + 3) / 2, (0 + 2) / 2, (4 + 2) / 2
    statistics.update_(torch.tensor([[2.0, 2.5, 4.0], [0.0, -3.0, -2.0]]), [])
    assert statistics.change.tolist() == [0.0, 0.25, 0.0]  # since the last update, not since the first


@pytest.mark.parametrize("num_rows", [1, 64, 65, 200])
def test_one_pass_measures_what_the_definition_says(num_rows):
    then, now = (torch.randn(num_rows, 7, generator=generator(seed)) for seed in (0, 1))
    statistics = ColumnStatistics(then)
    statistics.update_(now, [])
    torch.testing.assert_close(statistics.change, method.column_change_by_definition(now, then))


def test_half_precision_weights_are_measured_in_single_precision():
    statistics = ColumnStatistics(torch.zeros(4096, 1, dtype=torch.bfloat16))
    statistics.update_(torch.ones(4096, 1, dtype=torch.bfloat16), [])
    assert statistics.change.dtype == torch.float32 and statistics.change.tolist() == [1.0]


def test_dropped_columns_keep_their_statistic_and_without_the_increment_lose_it():
    def change_after(is_incremental):
        statistics = ColumnStatistics(torch.zeros(1, 3), is_incremental=is_incremental)
        statistics.update_(torch.tensor([[5.0, 6.0, 7.0]]), [2])
        statistics.update_(torch.tensor([[9.0, 6.0, 8.0]]), torch.tensor([1]))
        return statistics.change.tolist()

    assert change_after(True) == [4.0, 6.0, 1.0]  # column 1 was dropped: as in the first epoch
    assert change_after(False) == [4.0, 0.0, 1.0]


def test_a_column_dropped_before_it_was_ever_measured_is_not_dropped_next():
    statistics = ColumnStatistics(torch.zeros(1, 3))
    statistics.update_(torch.tensor([[5.0, 0.0, 7.0]]), [1])
    assert statistics.change.tolist() == [5.0, INF, 7.0]
    order = method.priority_list(statistics, selection=Selection.PRIORITY, generator=generator())
    assert order.tolist() == [0, 2, 1]


def test_the_copy_is_the_weights_own_size_and_is_not_the_weight():
    weight = torch.zeros(4, 3)
    statistics = ColumnStatistics(weight)
    assert statistics.num_bytes == 4 * 3 * 4 + 3 * 4
    weight.add_(1)  # as an optimizer does
    statistics.update_(weight, [])
    assert statistics.change.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("selection", [s for s in Selection if s is not Selection.RANDOM], ids=lambda s: s.value)
def test_the_least_moved_columns_are_dropped_first(selection):
    statistics = statistics_of([4.0, 1.0, 3.0, 2.0, 5.0])
    order = method.priority_list(statistics, selection=selection, generator=generator())
    assert order.tolist() == [1, 3, 2, 0, 4]
    assert choose_columns(statistics, 3, selection=selection, generator=generator()).tolist() == [1, 2, 3]


def test_choices_of_one_list_nest_when_the_ratio_changes_within_an_epoch():
    statistics = ColumnStatistics(torch.zeros(1, 12))
    for selection in Selection:
        order = method.priority_list(statistics, selection=selection, generator=generator(3))
        choices = [set(method.first_columns(order, num_dropped).tolist()) for num_dropped in range(12)]
        assert [len(choice) for choice in choices] == list(range(12))
        assert all(small < large for small, large in zip(choices, choices[1:], strict=False))


@pytest.mark.parametrize(
    ("selection", "change"),
    [(Selection.RANDOM, [9.0, 1.0, 1.0, 5.0]), (Selection.PRIORITY, [2.0, 2.0, 2.0, 2.0]), (Selection.PRIORITY, None)],
)
def test_random_choices_and_ties_and_the_first_choice_follow_the_callers_generator(selection, change):
    statistics = ColumnStatistics(torch.zeros(1, 4)) if change is None else statistics_of(change)
    before = torch.random.get_rng_state()
    chosen = [
        tuple(choose_columns(statistics, 1, selection=selection, generator=generator(seed)).tolist())
        for seed in range(40)
    ]
    assert set(chosen) == {(0,), (1,), (2,), (3,)}
    again = choose_columns(statistics, 1, selection=selection, generator=generator(7))
    assert tuple(again.tolist()) == chosen[7]
    assert torch.equal(torch.random.get_rng_state(), before)


def test_more_columns_than_can_be_dropped_are_refused():
    statistics = statistics_of([1.0, 2.0])
    for num_dropped in (-1, 2):
        with pytest.raises(ValueError, match=f"num_dropped is {num_dropped}"):
            choose_columns(statistics, num_dropped, selection=Selection.PRIORITY, generator=generator())


def test_a_weight_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"\[2, 4\]; it must be \[2, 3\]"):
        ColumnStatistics(torch.zeros(2, 3)).update_(torch.zeros(2, 4), [])


def dropped_by_epoch(*, is_incremental, num_epochs=24, num_dropped=2):
    """Fit a least-squares problem by resized SGD: the columns dropped in each epoch, Zero in the missing gradients."""
    num_columns, random = 6, generator(1)
    x_NK = torch.randn(32, num_columns, generator=random)
    target_NO = x_NK @ torch.randn(3, num_columns, generator=random).T
    weight_OK = torch.zeros(3, num_columns)
    statistics, choices = ColumnStatistics(weight_OK, is_incremental=is_incremental), []
    for _ in range(num_epochs):
        dropped = choose_columns(statistics, num_dropped, selection=Selection.PRIORITY, generator=random)
        kept = method.kept_columns(dropped, num_columns)
        for batch in range(4):
            x, target = x_NK[8 * batch : 8 * batch + 8], target_NO[8 * batch : 8 * batch + 8]
            error = (method.product_of_columns(x, weight_OK, kept) - target) / 8
            gradient = method.recovered(method.weight_gradient_of_columns(error, x, kept), kept, num_columns)
            weight_OK -= 0.05 * gradient
        statistics.update_(weight_OK, dropped)
        choices.append(tuple(dropped.tolist()))
    return choices


def test_without_the_increment_the_same_columns_are_dropped_for_ever():
    choices = dropped_by_epoch(is_incremental=False)
    assert set(choices) == {choices[0]}


def test_with_the_increment_the_choice_rotates_over_all_columns():
    choices = dropped_by_epoch(is_incremental=True)
    assert {column for choice in choices for column in choice} == set(range(6))
    assert max(choices.count(choice) for choice in set(choices)) < len(choices) / 2


def test_the_threshold_is_a_quarter_of_the_random_walk_of_an_epoch():
    # θ_micro = 0.25 · 0.01 / √100, θ = 100 θ_micro = 0.25 · 0.01 · 10
    assert method.micro_threshold(0.01, 100) == pytest.approx(0.00025)
    assert method.change_threshold(100, method.micro_threshold(0.01, 100)) == pytest.approx(0.025)


def test_candidates_are_the_columns_that_moved_less_than_the_threshold():
    statistics = statistics_of([1.0, 2.0, 3.0, 4.0])
    assert [method.candidate_share(statistics, threshold) for threshold in (0.5, 2.0, 2.5, 9.0)] == [0, 0.25, 0.5, 1]
    assert method.candidate_share(ColumnStatistics(torch.zeros(1, 4)), 1e9) == 0  # nothing measured yet


def test_a_layer_drops_its_candidates_but_at_least_the_decayed_ratio_and_never_all():
    # a γ = 0.8 · 0.5 = 0.4
    assert method.layer_ratios([0.0, 0.4, 0.75, 1.0], 0.5) == pytest.approx([0.4, 0.4, 0.75, 0.95])
    assert method.layer_ratios([0.3, 0.3], 0.5, decay=0.0) == [0.3, 0.3]


def test_a_rank_with_nothing_to_lose_drops_nothing_whatever_its_candidates():
    assert method.layer_ratios([0.0, 1.0], 0.0) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: method.layer_ratios([0.5], 1.0), "pruning_ratio is 1.0"),
        (lambda: method.layer_ratios([1.5], 0.5), "candidate_shares has 1.5"),
        (lambda: method.layer_ratios([0.5], 0.5, decay=-1), "decay is -1"),
        (lambda: method.micro_threshold(0.0, 10), "learning_rate is 0.0"),
        (lambda: method.micro_threshold(0.1, 0), "iterations_per_epoch is 0"),
        (lambda: method.change_threshold(0, 0.1), "iterations_per_epoch is 0"),
        (lambda: method.change_threshold(10, -0.1), "micro_threshold is -0.1"),
    ],
)
def test_values_outside_their_range_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
