"""Choosing columns: least moved first, ties by chance, and a choice that rotates because statistics are incremental."""

import pytest
import torch

from workbench.techniques.flextp import method
from workbench.techniques.flextp.method import ColumnStatistics, Selection

pytestmark = pytest.mark.timeout(60)

INF = float("inf")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


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
def test_one_pass_measures_what_the_definition_says_in_single_precision_on_a_copy(num_rows):
    then, now = (torch.randn(num_rows, 7, generator=generator(seed)) for seed in (0, 1))
    weight = then.clone()
    statistics = ColumnStatistics(weight)
    weight.copy_(now)  # as an optimizer does
    statistics.update_(weight, [])
    torch.testing.assert_close(statistics.change, method.column_change_by_definition(now, then))
    assert statistics.num_bytes == 4 * (7 * num_rows + 7)
    narrow = ColumnStatistics(torch.zeros(4096, 1, dtype=torch.bfloat16))
    narrow.update_(torch.ones(4096, 1, dtype=torch.bfloat16), [])
    assert narrow.change.dtype == torch.float32 and narrow.change.tolist() == [1.0]


def test_dropped_columns_keep_their_statistic_and_without_the_increment_lose_it():
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


@pytest.mark.parametrize("selection", [s for s in Selection if s is not Selection.RANDOM], ids=lambda s: s.value)
def test_the_least_moved_columns_are_dropped_first_and_choices_of_one_list_nest(selection):
    order = method.priority_list(statistics_of([4.0, 1.0, 3.0, 2.0, 5.0]), selection=selection, generator=generator())
    assert order.tolist() == [1, 3, 2, 0, 4]
    assert [method.first_columns(order, number).tolist() for number in (0, 1, 3)] == [[], [1], [1, 2, 3]]


@pytest.mark.parametrize(
    ("selection", "change"),
    [(Selection.RANDOM, [9.0, 1.0, 1.0, 5.0]), (Selection.PRIORITY, [2.0, 2.0, 2.0, 2.0]), (Selection.PRIORITY, None)],
)
def test_random_choices_and_ties_and_the_first_choice_follow_the_callers_generator(selection, change):
    statistics = ColumnStatistics(torch.zeros(1, 4)) if change is None else statistics_of(change)
    before = torch.random.get_rng_state()
    first = [
        method.priority_list(statistics, selection=selection, generator=generator(seed))[0].item()
        for seed in (*range(40), 7)
    ]
    assert set(first) == {0, 1, 2, 3} and first[7] == first[40]
    assert torch.equal(torch.random.get_rng_state(), before)


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
    assert method.layer_ratios([0.0, 1.0], 0.0) == [0.0, 0.0]  # a rank with nothing to lose drops nothing


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: method.first_columns(torch.arange(2), -1), r"num_dropped is -1; it must be in \[0, 2\)"),
        (lambda: method.first_columns(torch.arange(2), 2), "num_dropped is 2"),
        (lambda: ColumnStatistics(torch.zeros(2, 3)).update_(torch.zeros(2, 4), []), r"\[2, 4\]; it must be \[2, 3\]"),
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
