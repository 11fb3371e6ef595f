import pytest

from workbench.techniques.flextp.method.costs import Costs
from workbench.techniques.flextp.method.optimum import best_plan_by_search
from workbench.techniques.flextp.method.plan import Plan, RankTimes

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
        (1.0, 0.75, 0.0),
        (1.25, 0.5, 0.25),
        (1.5, 0.0, 0.5),
    ]


def test_ranks_of_one_speed_have_one_plan():
    assert [each.plan for each in best_plan_by_search(ranks(1, 1, 1), COSTS, 8)] == [Plan.plain(3)]


@pytest.mark.parametrize(
    ("num_steps", "message"), [(0, "num_steps is 0; it must be at least 1"), (40, "551,368,000 plans")]
)
def test_a_search_that_cannot_end_is_refused(num_steps, message):
    with pytest.raises(ValueError, match=message):
        best_plan_by_search(ranks(8, 4, 2, 1), COSTS, num_steps)
