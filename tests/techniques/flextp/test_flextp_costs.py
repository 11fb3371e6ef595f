"""Costs of a pre-test, and the time of an iteration under a plan."""

from dataclasses import replace

import pytest
from flextp_cases import ranks, straight_costs

from workbench.techniques.flextp.method import (
    Costs,
    PiecewiseLinear,
    Plan,
    RankParts,
    RankPlan,
    RankTimes,
    ideal_s,
    iteration_s,
    rank_parts,
    rank_s,
)

COSTS = Costs.straight(alloc_s=0.25, extract_s=0.5, communicate_s=2, compute_s=1)
SENT = Plan(ranks=(RankPlan(dropped=0.25, migrated=0.5), RankPlan(), RankPlan()))


def test_a_function_goes_through_its_points_and_straight_on():
    seconds = PiecewiseLinear(shares=(0.25, 0.5, 1.0), seconds=(1.0, 2.0, 6.0))
    # Between 0.25 and 0.5 4 s a share, beyond 8 s a share.
    assert [seconds(share) for share in (0, 0.25, 0.375, 0.5, 0.75, 1, 1.5)] == [0, 1, 1.5, 2, 4, 6, 10]
    # 8 s a share through (0.5, 2): at 0 it would be -2. A single point makes a constant.
    assert PiecewiseLinear(shares=(0.5, 1.0), seconds=(2.0, 6.0))(0) == 0
    assert PiecewiseLinear(shares=(0.5,), seconds=(2.0,))(0.9) == 2


def test_of_several_samples_at_one_share_the_median_counts_and_samples_that_fall_are_levelled():
    samples = [(0.5, 2.0), (1.0, 4.0), (0.5, 90.0), (0.5, 1.0), (1.0, 6.0)]
    assert PiecewiseLinear.fitted(samples) == PiecewiseLinear(shares=(0.5, 1.0), seconds=(2.0, 5.0))
    # 3 then 2 fall: the nearest that do not are both 2.5.
    samples = [(0.25, 1.0), (0.5, 3.0), (0.75, 2.0), (1.0, 4.0)]
    assert PiecewiseLinear.fitted(samples).seconds == pytest.approx((1.0, 2.5, 2.5, 4.0))


def test_every_sender_pays_for_what_travels_however_few_its_columns():
    # 3 s of whole tensors and 2 s a share: one sender of 1.5 pays 6, three of 0.5 pay 3 (3 + 1); nobody pays nothing.
    costs = straight_costs(communicate_s=2.0, whole_s=3.0)
    assert [costs.communicate_s(1.5, senders) for senders in (1, 3)] == [6, 12]
    assert costs.communicate_s(0.0, 0) == 0
    assert Costs.straight(communicate_s=2.0, compute_s=1.0).communicate_s(1.5, 3) == pytest.approx(3)


NARROW = replace(straight_costs(compute_s=3.0, narrow_s=2.0), fixed_share=0.25)


def test_a_receiver_multiplies_for_every_sender_by_itself():
    # A volume of 1.5 for 3 receivers: of one sender 2 + 3 x 0.5 s, of two 2 (2 + 3 x 0.25).
    assert [NARROW.compute_s(1.5, senders, 3) for senders in (1, 2)] == [3.5, 5.5]
    assert NARROW.compute_s(0.0, 0, 3) == 0
    assert Costs.straight(compute_s=1.0).compute_s(1.5, 3, 2) == pytest.approx(0.75)


def test_of_a_narrow_product_less_is_in_proportion_to_its_columns():
    # A rank's own products take 4 s, 1 of them however narrow: with half of its columns 1.5 of 2.5 s are in proportion.
    half = NARROW.proportional(RankTimes(own_s=3.5, product_s=2.5, work=0.5))
    assert half == RankTimes(own_s=3.5, product_s=1.5, work=0.5)
    assert (
        half.unresized()
        == NARROW.proportional(RankTimes(own_s=5.0, product_s=4.0))
        == RankTimes(own_s=5.0, product_s=3.0)
    )
    narrow = RankTimes(own_s=2.0, product_s=1.5, work=0.01)
    assert Costs.straight(compute_s=1.0).proportional(narrow) == narrow


def test_every_rank_pays_for_what_it_keeps_removes_sends_and_receives():
    # V = 0.5, sent in 1 s on all ranks; each of two receivers multiplies 0.25 more.
    # rank 0: 2 + 8 x (1 - 0.75) + 0.25 + 0.5 x 0.75 + 1 = 5.625; rank 1, twice as slow as rank 2: 2 + 2 + 0.5 + 1;
    # rank 2: 2 + 1 + 0.25 + 1.
    assert rank_s(ranks(8, 2, 1, other_s=2), SENT, COSTS) == (5.625, 5.5, 4.25)
    sender, receiver, _ = rank_parts(ranks(8, 2, 1, other_s=2), SENT, COSTS)
    assert sender == RankParts(other_s=2, kept_s=2, removing_s=0.625, received_s=0, transfer_s=1)
    assert receiver == RankParts(other_s=2, kept_s=2, removing_s=0, received_s=0.5, transfer_s=1)
    # Without senders 8 x 0.5 + 0.25 + 0.25, and without a plan the slowest rank's own time.
    assert rank_s(ranks(8, 1), Plan.of_shares([0.5, 0], [0, 0]), COSTS) == (4.5, 1.0)
    assert iteration_s(ranks(8, 1, 1, other_s=2), Plan.plain(3), COSTS) == 10
    resized = [RankTimes(own_s=4, product_s=2, work=0.25), *ranks(1, other_s=2)]
    assert rank_s(resized, Plan.plain(2), COSTS) == (10, 3)


def test_all_ranks_wait_for_the_messages_of_every_sender():
    # Two senders of a half each, one receiver: 2 (0.3 + 0.5 x 1) = 1.6 s on all; it also multiplies their columns.
    costs = straight_costs(communicate_s=1.0, whole_s=0.3)
    plan = Plan(ranks=(RankPlan(migrated=0.5), RankPlan(migrated=0.5), RankPlan()))
    assert rank_s(ranks(4, 2, 1), plan, costs) == pytest.approx((2 + 1.6, 1 + 1.6, 1 + 1 + 1.6))


def test_what_a_product_takes_however_narrow_is_paid_whatever_is_moved():
    # A normal rank's products take 4 s, 1 of them however narrow, and 2 s more of each sender. Rank 0 is twice as slow
    # and keeps half: 2 (1 + 3 x 0.5) s; ranks 1 and 2 multiply a quarter more: 4 + 2 + 3 x 0.25. All do 1 s else.
    plan = Plan(ranks=(RankPlan(migrated=0.5), RankPlan(), RankPlan()))
    assert rank_s(list(map(NARROW.proportional, ranks(8, 4, 4, other_s=1))), plan, NARROW) == (6, 7.75, 7.75)


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
    # Rank 0 gives all its columns away and still takes 10 s.
    assert ideal_s([RankTimes(own_s=11, product_s=1), *ranks(1, 1)]) == pytest.approx(10)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: PiecewiseLinear(shares=(), seconds=()), r"shares is \(\)"),
        (lambda: PiecewiseLinear(shares=(0.5, 0.5), seconds=(1, 2)), "ascending"),
        (lambda: PiecewiseLinear(shares=(0.25, 0.5), seconds=(2, 1)), "never fall"),
        (lambda: PiecewiseLinear.fitted([]), r"shares is \(\)"),
        (lambda: PiecewiseLinear.fitted([(0.5, -1.0)]), "not negative"),
        (lambda: PiecewiseLinear.straight(1.0)(-0.5), "share is -0.5"),
        (lambda: Costs.straight(alloc_s=-1, compute_s=1), "alloc_s is -1"),
        (lambda: replace(NARROW, fixed_share=1.0), "fixed_share is 1.0"),
        (lambda: ideal_s([*ranks(1, other_s=1), *ranks(0, other_s=1)]), "product_s of rank 1 is 0"),
        (lambda: rank_s(ranks(1, 1), Plan.plain(3), COSTS), "times has 2 ranks; it must have as many as plan, 3"),
    ],
)
def test_costs_that_cannot_be_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
