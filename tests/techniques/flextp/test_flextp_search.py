import pytest

from workbench.techniques.flextp.method.costs import Costs
from workbench.techniques.flextp.method.plan import Plan, RankPlan, RankTimes
from workbench.techniques.flextp.method.search import best_plan_by_search, certify, fastest_dropping

COSTS = Costs.straight(compute_s=1)


def ranks(*product_s):
    return [RankTimes(own_s=each, product_s=each) for each in product_s]


def test_the_front_holds_the_plans_that_no_other_beats():
    # Rank 0 takes 3 (1 - d - m), rank 1 takes 1 + m; shares are quarters.
    # d 0.75: m 0    -> 0.75, 1    | d 0.25: m 0.25 -> 1.5,  1.25, m 0.5 -> 0.75, 1.5
    # d 0.5:  m 0.25 -> 0.75, 1.25 | d 0:    m 0.5  -> 1.5,  1.5
    # Dropping a quarter is no faster than dropping nothing: three plans are left.
    front = best_plan_by_search(ranks(3, 1), COSTS, 4)
    assert [(each.iteration_s, each.dropped, each.plan.ranks[0].migrated) for each in front] == [
        (1.0, 0.75, 0.0), (1.25, 0.5, 0.25), (1.5, 0.0, 0.5),
    ]


def test_a_certificate_says_what_the_best_have_over_a_plan():
    # Doing nothing takes 3 s; half as long without dropping, so it is slower by all of that.
    certificate = certify(ranks(3, 1), Plan.plain(2), COSTS, 4)
    assert (certificate.slower_by, certificate.drops_more_by) == (1.0, 0.0)
    # Dropping half takes 1.5 s: 1.25 s is possible, and 1.5 s with nothing dropped.
    certificate = certify(ranks(3, 1), Plan(ranks=(RankPlan(dropped=0.5), RankPlan())), COSTS, 4)
    assert (certificate.slower_by, certificate.drops_more_by) == (pytest.approx(0.2), 0.5)


def test_a_plan_between_the_steps_is_never_beaten_by_its_own_shares():
    # 3 (1 - m) = 1 + m at m = 0.5; with thirds the grid has only 1/3 and 2/3.
    certificate = certify(ranks(3, 1), Plan(ranks=(RankPlan(migrated=0.5), RankPlan())), COSTS, 3)
    assert (certificate.slower_by, certificate.drops_more_by) == (0, 0)
    # Of the grid alone a migrated third takes max(2, 4/3) s, two thirds max(1, 5/3) s, nothing 3 s.
    grid = best_plan_by_search(ranks(3, 1), COSTS, 3)
    assert fastest_dropping(0, grid).iteration_s == pytest.approx(5 / 3)
    with pytest.raises(ValueError, match="at_most is -1, and each of the plans drops more"):
        fastest_dropping(-1, grid)


def test_ranks_of_one_speed_have_one_plan():
    assert [each.plan for each in best_plan_by_search(ranks(1, 1, 1), COSTS, 8)] == [Plan.plain(3)]


@pytest.mark.parametrize(
    ("num_steps", "message"), [(0, "num_steps is 0; it must be at least 1"), (40, "551,368,000 plans")]
)
def test_a_search_that_cannot_end_is_refused(num_steps, message):
    with pytest.raises(ValueError, match=message):
        best_plan_by_search(ranks(8, 4, 2, 1), COSTS, num_steps)
