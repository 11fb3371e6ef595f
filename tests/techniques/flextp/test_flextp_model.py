import pytest

from workbench.techniques.flextp.method.costs import (
    Costs,
    PiecewiseLinear,
    RankParts,
    ideal_s,
    iteration_s,
    own_speed,
    rank_parts,
    rank_s,
)
from workbench.techniques.flextp.method.plan import Plan, RankPlan, RankTimes

COSTS = Costs.straight(alloc_s=0.25, extract_s=0.5, communicate_s=2, compute_s=1)


def ranks(*product_s, other_s=0.0):
    return [RankTimes(own_s=other_s + each, product_s=each) for each in product_s]


def test_a_plain_plan_takes_as_long_as_the_slowest_rank():
    assert iteration_s(ranks(8, 1, 1, other_s=2), Plan.plain(3), COSTS) == 10


def test_every_rank_pays_for_what_it_keeps_removes_sends_and_receives():
    # V = 0.5, sent in 1 s on all ranks; each of two receivers multiplies 0.25 more.
    # rank 0: 2 + 8 x (1 - 0.75) + 0.25 + 0.5 x 0.75 + 1 = 5.625; rank 1, twice as slow as rank 2: 2 + 2 + 0.5 + 1;
    # rank 2: 2 + 1 + 0.25 + 1.
    plan = Plan(ranks=(RankPlan(dropped=0.25, migrated=0.5), RankPlan(), RankPlan()))
    assert rank_s(ranks(8, 2, 1, other_s=2), plan, COSTS) == (5.625, 5.5, 4.25)
    sender, receiver, _ = rank_parts(ranks(8, 2, 1, other_s=2), plan, COSTS)
    assert sender == RankParts(other_s=2, kept_s=2, removing_s=0.625, received_s=0, transfer_s=1)
    assert receiver == RankParts(other_s=2, kept_s=2, removing_s=0, received_s=0.5, transfer_s=1)


def test_all_ranks_wait_for_the_messages_of_every_sender():
    # Two senders of a half each, one receiver: 2 (0.3 + 0.5 x 1) = 1.6 s on all; it also multiplies their columns.
    costs = Costs(
        alloc_s=0.0,
        extract=PiecewiseLinear.straight(0.0),
        compute=PiecewiseLinear.straight(1.0),
        communicate=PiecewiseLinear.straight(1.0, at_zero_s=0.3),
    )
    plan = Plan(ranks=(RankPlan(migrated=0.5), RankPlan(migrated=0.5), RankPlan()))
    assert rank_s(ranks(4, 2, 1), plan, costs) == pytest.approx((2 + 1.6, 1 + 1.6, 1 + 1 + 1.6))


def test_a_plan_that_only_drops_sends_nothing():
    # 8 x 0.5 + 0.25 + 0.25.
    plan = Plan(ranks=(RankPlan(dropped=0.5), RankPlan()))
    assert rank_s(ranks(8, 1), plan, COSTS) == (4.5, 1.0)


def test_the_model_starts_from_unresized_times():
    resized = [RankTimes(own_s=4, product_s=2, work=0.25), *ranks(1, other_s=2)]
    assert rank_s(resized, Plan.plain(2), COSTS) == (10, 3)


def test_what_a_product_takes_however_narrow_is_paid_whatever_is_moved():
    # A normal rank's products take 4 s, 1 of them however narrow, and 2 s more of each sender. Rank 0 is twice as slow
    # and keeps half: 2 (1 + 3 x 0.5) s; ranks 1 and 2 multiply a quarter more: 4 + 2 + 3 x 0.25. All do 1 s else.
    costs = Costs(
        alloc_s=0.0,
        extract=PiecewiseLinear.straight(0.0),
        communicate=PiecewiseLinear.straight(0.0),
        compute=PiecewiseLinear.straight(3.0, at_zero_s=2.0),
        fixed_share=0.25,
    )
    plan = Plan(ranks=(RankPlan(migrated=0.5), RankPlan(), RankPlan()))
    assert rank_s(list(map(costs.proportional, ranks(8, 4, 4, other_s=1))), plan, costs) == (6, 7.75, 7.75)


def test_own_speed_is_counted_from_the_fastest():
    assert own_speed(ranks(8, 2, 4, other_s=1)) == (4, 1, 2)


@pytest.mark.parametrize(
    ("product_s", "level_s"),
    [
        ((8, 1, 1, 1), 1.28),  # L / 8 + 3 L = 4
        ((8, 4, 1, 1), 32 / 19),  # L / 8 + L / 4 + 2 L = 4
        ((1, 1), 1.0),
    ],
)
def test_a_balance_that_costs_nothing_ends_at_one_level(product_s, level_s):
    assert ideal_s(ranks(*product_s)) == pytest.approx(level_s)
    assert ideal_s(ranks(*product_s, other_s=3)) == pytest.approx(3 + level_s)


def test_no_balance_is_faster_than_a_rank_s_other_time():
    # Rank 0 gives all its columns away and still takes 10 s.
    assert ideal_s([RankTimes(own_s=11, product_s=1), *ranks(1, 1)]) == pytest.approx(10)


def test_more_costs_never_make_an_iteration_faster():
    plan = Plan(ranks=(RankPlan(dropped=0.25, migrated=0.5), RankPlan(), RankPlan()))
    times = ranks(8, 2, 1, other_s=2)
    base = {"alloc_s": 0.25, "extract_s": 0.5, "communicate_s": 2, "compute_s": 1}
    for name, value in base.items():
        dearer = Costs.straight(**{**base, name: 2 * value})
        assert iteration_s(times, plan, dearer) >= iteration_s(times, plan, COSTS)


def test_times_without_products_have_no_balance():
    with pytest.raises(ValueError, match="product_s of rank 1 is 0"):
        ideal_s([RankTimes(own_s=2, product_s=1), RankTimes(own_s=1, product_s=0)])


def test_times_and_plan_must_have_as_many_ranks():
    with pytest.raises(ValueError, match="times has 2 ranks; it must have as many as plan, 3"):
        rank_s(ranks(1, 1), Plan.plain(3), COSTS)
