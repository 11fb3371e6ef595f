import random

import pytest

from workbench.techniques.flextp.method.costs import Costs, PiecewiseLinear
from workbench.techniques.flextp.method.optimum import best_plan_by_search, certify, fastest_division, gentlest_division
from workbench.techniques.flextp.method.plan import Plan, RankPlan, RankTimes

COSTS = Costs.straight(compute_s=1)
PRECISION = 1e-5


def ranks(*product_s, other_s=0.0, unit_s=1.0):
    return [RankTimes(own_s=(other_s + each) * unit_s, product_s=each * unit_s) for each in product_s]


def straight_costs(*, whole_s=0.0, alloc_s=0.0, extract_s=0.0, communicate_s=0.0, compute_s=1.0, narrow_s=0.0):
    return Costs(
        alloc_s=alloc_s,
        extract=PiecewiseLinear.straight(extract_s),
        communicate=PiecewiseLinear.straight(communicate_s, at_zero_s=whole_s),
        compute=PiecewiseLinear.straight(compute_s, at_zero_s=narrow_s),
    )


def test_two_ranks_by_hand():
    # Rank 0 takes 3 (1 - d - m), rank 1 takes 1 + m. Without dropping both take 1.5 s at m = 1/2; with d = 1/2 both
    # take 1.125 s at m = 1/8. For 1.25 s, m = 1/4 and 3 (3/4 - d) = 1.25, so d = 1/3.
    assert fastest_division(ranks(3, 1), COSTS, most_dropped=0).iteration_s == pytest.approx(1.5, rel=PRECISION)
    assert fastest_division(ranks(3, 1), COSTS, most_dropped=0.5).iteration_s == pytest.approx(1.125, rel=PRECISION)
    gentlest = gentlest_division(ranks(3, 1), COSTS, most_s=1.25)
    assert gentlest.dropped == pytest.approx(1 / 3, rel=PRECISION)
    assert gentlest.plan.ranks[0].migrated == pytest.approx(1 / 4, rel=PRECISION)
    assert gentlest_division(ranks(3, 1), COSTS, most_s=0.9) is None  # rank 1 alone takes 1 s


@pytest.mark.parametrize(("whole_s", "best_s"), [(1.0, 2.5), (2.0, 3.0)])
def test_migrating_is_left_alone_where_the_first_column_costs_more_than_all_of_it_saves(whole_s, best_s):
    costs = straight_costs(whole_s=whole_s)
    assert fastest_division(ranks(3, 1), costs, most_dropped=0).iteration_s == pytest.approx(best_s, rel=PRECISION)


def test_a_certificate_says_what_the_best_have_over_a_plan():
    # Doing nothing takes 3 s; half as long without dropping, so it is slower by all of that.
    certificate = certify(ranks(3, 1), Plan.plain(2), COSTS)
    assert certificate.slower_by == pytest.approx(1, rel=PRECISION)
    assert certificate.drops_more_by == 0
    # Dropping half takes 1.5 s: 1.125 s is possible, and 1.5 s with nothing dropped.
    certificate = certify(ranks(3, 1), Plan(ranks=(RankPlan(dropped=0.5), RankPlan())), COSTS)
    assert certificate.slower_by == pytest.approx(1 / 3, rel=PRECISION)
    assert certificate.drops_more_by == pytest.approx(0.5, rel=PRECISION)
    # The best plan has no gap, and none is below 0.
    certificate = certify(ranks(3, 1), Plan(ranks=(RankPlan(migrated=0.5), RankPlan())), COSTS)
    assert 0 <= certificate.slower_by < PRECISION
    assert certificate.drops_more_by == 0


@pytest.mark.parametrize(("num_stragglers", "num_steps"), [(1, 24), (2, 8), (3, 4)])
@pytest.mark.parametrize("seed", range(3))
def test_no_division_of_the_grid_beats_the_best_one(num_stragglers, num_steps, seed):
    generator = random.Random(seed)
    product_s = [generator.uniform(1.2, 8) for _ in range(num_stragglers)] + [1.0] * (4 - num_stragglers)
    times = ranks(*product_s, other_s=generator.uniform(0, 1))
    costs = straight_costs(
        whole_s=generator.uniform(0, 0.3),
        alloc_s=0.01,
        extract_s=0.05,
        communicate_s=generator.uniform(0, 0.6),
        narrow_s=generator.uniform(0, 0.3),
    )
    for each in best_plan_by_search(times, costs, num_steps):
        assert fastest_division(times, costs, most_dropped=each.dropped).iteration_s <= each.iteration_s * (
            1 + PRECISION
        )
        assert gentlest_division(times, costs, most_s=each.iteration_s).dropped <= each.dropped + PRECISION


def test_the_grid_comes_to_the_best_as_its_steps_shrink():
    times, costs = ranks(5, 1, 1, 1, other_s=0.3), straight_costs(whole_s=0.1, extract_s=0.05, communicate_s=0.3)
    best_s = fastest_division(times, costs, most_dropped=0.25).iteration_s
    gaps = []
    for num_steps in (4, 16, 64, 256):
        front = best_plan_by_search(times, costs, num_steps)
        gaps.append(min(each.iteration_s for each in front if each.dropped <= 0.25) / best_s - 1)
    assert gaps[0] > 0.05
    assert gaps == sorted(gaps, reverse=True)
    assert 0 <= gaps[-1] < 0.01


def test_the_best_plan_is_the_same_in_milliseconds():
    costs = [straight_costs(communicate_s=0.3 * unit_s, compute_s=unit_s) for unit_s in (1, 1e-6)]
    plans = [
        fastest_division(ranks(5, 2, 1, other_s=0.3, unit_s=unit_s), each, most_dropped=0.1).plan
        for unit_s, each in zip((1, 1e-6), costs, strict=True)
    ]
    assert [rank.dropped for rank in plans[0].ranks] == pytest.approx(
        [rank.dropped for rank in plans[1].ranks], abs=1e-6
    )
    assert [rank.migrated for rank in plans[0].ranks] == pytest.approx(
        [rank.migrated for rank in plans[1].ranks], abs=1e-6
    )


def test_what_has_no_straight_line_is_refused():
    bent = Costs(
        alloc_s=0,
        extract=PiecewiseLinear(shares=(0, 0.5, 1), seconds=(0, 0.1, 0.9)),
        communicate=PiecewiseLinear.straight(0),
        compute=PiecewiseLinear.straight(1),
    )
    with pytest.raises(ValueError, match=r"extract of costs bends at 0.5; it must be a straight line"):
        fastest_division(ranks(3, 1), bent, most_dropped=0)
    with pytest.raises(ValueError, match="most_dropped is -1; it must be at least 0"):
        fastest_division(ranks(3, 1), COSTS, most_dropped=-1)
