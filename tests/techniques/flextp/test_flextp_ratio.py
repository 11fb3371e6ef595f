import math

import pytest

from workbench.techniques.flextp.method.plan import RankTimes
from workbench.techniques.flextp.method.planners import (
    MOST_REMOVED,
    Reference,
    have_moved,
    printed_ratio,
    pruning_ratio,
    pruning_ratios,
    speedup_bound,
)


def ranks(*product_s, other_s=0.0):
    return [RankTimes(own_s=other_s + each, product_s=each) for each in product_s]


def measured_under(ratios, unresized):
    """Return what ranks would measure that drop these shares of their columns."""
    return [
        RankTimes(own_s=each.other_s + each.product_s * kept, product_s=each.product_s * kept, work=kept)
        for kept, each in zip((1 - ratio for ratio in ratios), unresized, strict=True)
    ]


def test_a_straggler_drops_what_brings_it_down_to_the_mean():
    # 2 s of other things; products 8, 1, 1, 1. Own times 10, 3, 3, 3, mean 4.75: 5.25 of 8 s of products must go.
    assert pruning_ratios(ranks(8, 1, 1, 1, other_s=2), Reference.MEAN) == [5.25 / 8, 0, 0, 0]


def test_a_straggler_drops_what_brings_it_down_to_the_fastest():
    # Own times 10, 5, 3, 3, least 3: 7 of 8 s and 2 of 3 s of products must go.
    assert pruning_ratios(ranks(8, 3, 1, 1, other_s=2), Reference.MIN) == [7 / 8, 2 / 3, 0, 0]


def test_ranks_of_one_speed_drop_nothing():
    for reference in Reference:
        assert pruning_ratios(ranks(1, 1, 1), reference) == [0, 0, 0]


def test_a_rank_that_is_slow_elsewhere_than_in_products_keeps_some_columns():
    assert pruning_ratio(own_s=10, reference_s=1, product_s=2) == MOST_REMOVED
    assert pruning_ratio(own_s=10, reference_s=1, product_s=0) == 0


def test_planning_again_under_the_plan_gives_the_same_ratios():
    unresized = ranks(8, 2, 1, 1, other_s=2)
    for reference in (Reference.MEAN, Reference.MIN):
        ratios = pruning_ratios(unresized, reference)
        assert pruning_ratios(measured_under(ratios, unresized), reference) == pytest.approx(ratios)


@pytest.mark.parametrize(
    ("skewness", "num_ranks", "bound"), [(8, 4, 32 / 11), (8, 8, 64 / 15), (1, 4, 1), (2, 2, 4 / 3)]
)
def test_the_mean_bounds_the_speedup(skewness, num_ranks, bound):
    unresized = ranks(skewness, *[1] * (num_ranks - 1))
    ratios = pruning_ratios(unresized, Reference.MEAN)
    slowest_s = max(each.own_s for each in measured_under(ratios, unresized))
    assert speedup_bound(skewness, num_ranks) == pytest.approx(bound)
    assert skewness / slowest_s == pytest.approx(bound)


def test_other_time_lowers_the_bound():
    # One unit of other time: 9 before; the mean is 1 + 11/4 = 3.75.
    unresized = ranks(8, 1, 1, 1, other_s=1)
    ratios = pruning_ratios(unresized, Reference.MEAN)
    assert speedup_bound(8, 4, other=1) == pytest.approx(9 / 3.75)
    assert max(each.own_s for each in measured_under(ratios, unresized)) == pytest.approx(3.75)


def swing(reference, rounds):
    """Return the straggler's product seconds, planning again and again from what was measured."""
    unresized, times, seconds = ranks(8, 1, 1, 1), ranks(8, 1, 1, 1), []
    for _ in range(rounds):
        seconds.append(times[0].product_s)
        ratios = [printed_ratio(rank, times, reference) for rank in range(4)]
        times = measured_under(ratios, unresized)
    return seconds


def test_the_literal_form_against_the_mean_swings_into_a_worse_ratio():
    # With m the straggler's seconds: gamma = (m - (m + 3) / 4) / m, so the next m is 8 (1 - gamma) = 2 + 6 / m.
    # round    0     1        2            3           4
    # m        8     2.75     4.1818       3.4348      3.7468
    # It ends at m = 1 + sqrt(7) = 3.646, a speedup of 2.19 where un-resized times reach 2.91 in one round.
    assert swing(Reference.MEAN, 5) == pytest.approx([8, 2.75, 46 / 11, 79 / 23, 296 / 79])
    assert swing(Reference.MEAN, 60)[-1] == pytest.approx(1 + math.sqrt(7))


def test_the_literal_form_against_the_fastest_swings_for_ever():
    # gamma = (m - 1) / m, so the next m is 8 / m.
    assert swing(Reference.MIN, 6) == pytest.approx([8, 1, 8, 1, 8, 1])


def test_against_the_current_mean_every_planning_asks_for_more():
    # m becomes the mean of what is measured now, (m + 3) / 4: it comes down to the others' 1.
    unresized, times, seconds = ranks(8, 1, 1, 1), ranks(8, 1, 1, 1), []
    for _ in range(5):
        seconds.append(times[0].product_s)
        times = measured_under(pruning_ratios(times, Reference.CURRENT_MEAN), unresized)
    assert seconds == pytest.approx([8, 2.75, 1.4375, 1.109375, 1.02734375])


def test_a_plan_is_stale_once_any_rank_moved_by_more_than_a_tenth():
    before = ranks(8, 1, 1, 1)
    assert not have_moved(ranks(8.5, 1.09, 0.91, 1), before)
    assert have_moved(ranks(8, 1, 1, 1.11), before)
    assert have_moved(ranks(7.1, 1, 1, 1), before)


def test_a_rank_that_only_follows_its_plan_has_not_moved_but_the_mean_has():
    unresized = ranks(8, 1, 1, 1, other_s=2)
    under = measured_under([0.875, 0, 0, 0], unresized)
    assert not have_moved(under, unresized)
    assert have_moved(under, unresized, reference=Reference.CURRENT_MEAN)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: speedup_bound(0.5, 4), "skewness is 0.5"),
        (lambda: speedup_bound(2, 0), "num_ranks is 0"),
        (lambda: speedup_bound(2, 4, other=-1), "other is -1"),
        (lambda: pruning_ratio(1, -1, 1), "reference_s is -1"),
        (lambda: pruning_ratio(1, 1, 2), "product_s is 2"),
    ],
)
def test_numbers_that_cannot_be_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
