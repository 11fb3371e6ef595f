"""Plans that level all ranks, and certificates of the best division, beside a search on a grid."""

import random
from dataclasses import replace

import pytest
from flextp_cases import ranks, shares, straight_costs

from workbench.techniques.flextp.method import (
    Costs,
    PiecewiseLinear,
    Plan,
    RankPlan,
    RankTimes,
    best_plan_by_search,
    certify,
    fastest_division,
    gentlest_division,
    ideal_s,
    iteration_s,
    levelled_plan,
    plan_semi,
    rank_s,
    stragglers,
)

FREE = Costs.straight(compute_s=1)
PRECISION = 1e-5


@pytest.mark.parametrize(
    ("times", "senders", "level_s"),
    [
        (ranks(8, 1, 1, 1), (0,), 1.28),  # L / 8 + 3 L = 4
        (ranks(8, 1, 4, 1), (0, 2), 32 / 19),  # L / 8 + L / 4 + 2 L = 4
    ],
)
def test_where_moving_costs_nothing_all_ranks_end_at_the_ideal(times, senders, level_s):
    plan = levelled_plan(times, FREE, senders)
    assert plan.senders == senders
    assert plan.ranks[0].migrated == pytest.approx(1 - level_s / 8)
    assert rank_s(times, plan, FREE) == pytest.approx([level_s] * 4)


def test_what_sending_and_giving_up_columns_costs_is_made_up_for():
    # The straggler also pays 0.1 + 0.2 q: 8 (1 - q) + 0.1 + 0.2 q = 1 + q / 3.
    costs = Costs.straight(alloc_s=0.1, extract_s=0.2, compute_s=1)
    plan = levelled_plan(ranks(8, 1, 1, 1), costs, [0], speed_share=0)
    assert plan.ranks[0].migrated == pytest.approx(7.1 / (8 - 0.2 + 1 / 3), rel=1e-6)
    dear = Costs.straight(communicate_s=100, compute_s=1)  # sending never pays, and nothing may be dropped
    assert levelled_plan(ranks(8, 1, 1, 1), dear, [0], speed_share=0).is_plain


def test_receivers_pay_for_every_sender_s_product_however_narrow():
    # Each of two receivers multiplies for each of two senders by itself, 0.25 s at least: 8 (1 - m) = 1 + 0.5 + m.
    costs = replace(FREE, compute=PiecewiseLinear.straight(1.0, at_zero_s=0.25))
    times = ranks(8, 8, 1, 1)
    plan = levelled_plan(times, costs, [0, 1], speed_share=0)
    assert shares(plan, "migrated") == pytest.approx([6.5 / 9, 6.5 / 9, 0, 0])
    assert rank_s(times, plan, costs) == pytest.approx([20 / 9] * 4)
    assert certify(times, plan, costs).fastest.iteration_s == pytest.approx(20 / 9)


def test_nothing_is_dropped_where_migration_alone_is_fast_enough():
    # Sending 0.84 takes 0.42 s: 1.28 + 0.42 = 1.70 s, 75.3 % of the ideal's speed.
    costs = Costs.straight(communicate_s=0.5, compute_s=1)
    plan = levelled_plan(ranks(8, 1, 1, 1), costs, [0], speed_share=0.75)
    assert plan.ranks[0].dropped == 0
    assert iteration_s(ranks(8, 1, 1, 1), plan, costs) == pytest.approx(1.70)


def test_only_as_much_is_dropped_as_the_speed_asked_for_needs():
    # 90 % of the ideal's speed is 1.28 / 0.9 = 1.4222 s. Receivers: 1 + m / 3 + m / 2 = 1.4222 gives m = 0.50667.
    # The straggler: 8 (1 - q) + 0.25333 = 1.4222 gives q = 0.85389, of which 0.34722 are dropped.
    times, costs = ranks(8, 1, 1, 1), Costs.straight(communicate_s=0.5, compute_s=1)
    plan = levelled_plan(times, costs, [0], speed_share=0.9)
    assert plan.ranks[0].migrated == pytest.approx(0.506667, abs=1e-5)
    assert plan.ranks[0].dropped == pytest.approx(0.347222, abs=1e-5)
    assert iteration_s(times, plan, costs) == pytest.approx(1.28 / 0.9)


@pytest.mark.parametrize("other_s", [0, 2])
def test_levelled_semi_is_as_fast_as_asked_and_keeps_what_eq_2_drops(other_s):
    # One straggler of 8 on 4 ranks. Eq. 2 sees that extraction costs little and drops most of 0.875.
    times = ranks(8, 1, 1, 1, other_s=other_s)
    costs = Costs.straight(alloc_s=0.005, extract_s=0.05, communicate_s=0.1, compute_s=1)
    paper, ours = plan_semi(times, costs), plan_semi(times, costs, refine=True)
    assert paper.ranks[0].dropped > 0.75
    assert ours.ranks[0].dropped < 0.05
    assert ideal_s(times) == pytest.approx(other_s + 1.28)
    assert iteration_s(times, ours, costs) <= ideal_s(times) / 0.9 * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_levelled_plans_are_near_the_best_of_all_divisions(seed):
    # No more than 1 % slower than the fastest that drops no more; 0.01 of the columns more than the gentlest as fast.
    generator = random.Random(seed)
    times = ranks(1, *(generator.uniform(1.2, 8) for _ in range(2)), other_s=generator.uniform(0, 2))
    costs = Costs.straight(alloc_s=0.005, extract_s=0.05, communicate_s=generator.uniform(0.05, 1.5), compute_s=1)
    certificate = certify(times, plan_semi(times, costs, refine=True), costs)
    assert certificate.slower_by <= 0.01
    assert certificate.drops_more_by <= 0.01


def test_a_light_straggler_sends_a_little_so_that_it_receives_nothing():
    # Sending alone, the heavy straggler hands the light one half: 8 (1 - m) = 1.6 (1 + m / 2), 2.18 s. When the light
    # one sends 1/32, all goes to the normal rank: 8 (1 - m) = 1 + m + 1/32, so m = 6.96875 / 9 and 1.81 s.
    times = ranks(8, 1.6, 1)
    plan = levelled_plan(times, FREE, [0, 1], speed_share=0)
    assert shares(plan, "migrated") == pytest.approx([6.96875 / 9, 1 / 32, 0])
    assert iteration_s(times, plan, FREE) == pytest.approx(8 * (1 - 6.96875 / 9))


def test_a_rank_that_counts_as_no_straggler_gives_up_nothing():
    # The ideal of 1.3, 1, 1, 1 is 4 / (1 / 1.3 + 3) = 1.06; nine tenths of its speed would be 1.18 s.
    times = ranks(1.3, 1, 1, 1)
    assert levelled_plan(times, FREE, []).is_plain
    assert levelled_plan(ranks(8, 1.3, 1, 1), FREE, [0]).ranks[1].removed == 0


def test_of_the_plans_that_reach_the_level_the_one_that_drops_least_is_taken():
    # With ranks 1 and 2 as senders the others would have to give up more than all they have: 1.09 times the level.
    times = [RankTimes(own_s=0.85 + each, product_s=each) for each in (2.9, 5.7, 7.7, 1.0)]
    costs = Costs.straight(extract_s=0.05, communicate_s=1.1, compute_s=1.0)
    costs = replace(costs, communicate=PiecewiseLinear.fitted([(0.0, 1.0), (1.0, 1.1)]))
    plan = levelled_plan(times, costs, [2, 1, 0], speed_share=0.9)
    assert iteration_s(times, plan, costs) <= ideal_s(times) / 0.9 * (1 + 1e-6)


def test_a_sender_whose_messages_would_ask_more_of_it_than_it_has_drops_the_rest():
    # All that it may give up is not enough once it sends much, for messages keep it busy, too: it sends what leaves it
    # 0.99 to give up in all, and no division drops less.
    times = [RankTimes(own_s=7.8, product_s=6.4), *[RankTimes(own_s=1.3, product_s=0.85)] * 3]
    costs = Costs.straight(extract_s=0.05, compute_s=0.85)
    costs = replace(costs, communicate=PiecewiseLinear.straight(0.6, at_zero_s=0.18))
    plan = levelled_plan(times, costs, [0])
    assert plan.ranks[0].removed == pytest.approx(0.99) and plan.ranks[0].migrated > 0.1
    assert certify(times, plan, costs).drops_more_by < 1e-4


def test_two_ranks_by_hand():
    # Rank 0 takes 3 (1 - d - m), rank 1 takes 1 + m. Without dropping both take 1.5 s at m = 1/2; with d = 1/2 both
    # take 1.125 s at m = 1/8. For 1.25 s, m = 1/4 and 3 (3/4 - d) = 1.25, so d = 1/3.
    assert fastest_division(ranks(3, 1), FREE, most_dropped=0).iteration_s == pytest.approx(1.5, rel=PRECISION)
    assert fastest_division(ranks(3, 1), FREE, most_dropped=0.5).iteration_s == pytest.approx(1.125, rel=PRECISION)
    gentlest = gentlest_division(ranks(3, 1), FREE, most_s=1.25)
    assert gentlest.dropped == pytest.approx(1 / 3, rel=PRECISION)
    assert gentlest.plan.ranks[0].migrated == pytest.approx(1 / 4, rel=PRECISION)
    assert gentlest_division(ranks(3, 1), FREE, most_s=0.9) is None  # rank 1 alone takes 1 s


@pytest.mark.parametrize(("whole_s", "best_s"), [(1.0, 2.5), (2.0, 3.0)])
def test_migrating_is_left_alone_where_the_first_column_costs_more_than_all_of_it_saves(whole_s, best_s):
    costs = straight_costs(whole_s=whole_s)
    assert fastest_division(ranks(3, 1), costs, most_dropped=0).iteration_s == pytest.approx(best_s, rel=PRECISION)


def test_a_certificate_says_what_the_best_have_over_a_plan():
    # Doing nothing takes 3 s; half as long without dropping, so it is slower by all of that.
    certificate = certify(ranks(3, 1), Plan.plain(2), FREE)
    assert certificate.slower_by == pytest.approx(1, rel=PRECISION)
    assert certificate.drops_more_by == 0
    # Dropping half takes 1.5 s: 1.125 s is possible, and 1.5 s with nothing dropped.
    certificate = certify(ranks(3, 1), Plan(ranks=(RankPlan(dropped=0.5), RankPlan())), FREE)
    assert certificate.slower_by == pytest.approx(1 / 3, rel=PRECISION)
    assert certificate.drops_more_by == pytest.approx(0.5, rel=PRECISION)
    # The best plan has no gap, and none is below 0.
    certificate = certify(ranks(3, 1), Plan(ranks=(RankPlan(migrated=0.5), RankPlan())), FREE)
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
    for plan in best_plan_by_search(times, costs, num_steps):
        fastest = fastest_division(times, costs, most_dropped=plan.dropped)
        assert fastest.iteration_s <= plan.iteration_s * (1 + PRECISION)
        assert gentlest_division(times, costs, most_s=plan.iteration_s).dropped <= plan.dropped + PRECISION


def test_the_best_plan_is_the_same_in_microseconds():
    seconds, microseconds = (
        fastest_division(
            ranks(5, 2, 1, other_s=0.3, unit_s=unit_s),
            straight_costs(communicate_s=0.3 * unit_s, compute_s=unit_s),
            most_dropped=0.1,
        ).plan
        for unit_s in (1, 1e-6)
    )
    for field in ("dropped", "migrated"):
        assert shares(seconds, field) == pytest.approx(shares(microseconds, field), abs=1e-6)


def test_the_front_holds_the_plans_that_no_other_beats():
    # Rank 0 takes 3 (1 - d - m), rank 1 takes 1 + m; shares are quarters.
    # d 0.75: m 0    -> 0.75, 1    | d 0.25: m 0.25 -> 1.5,  1.25, m 0.5 -> 0.75, 1.5
    # d 0.5:  m 0.25 -> 0.75, 1.25 | d 0:    m 0.5  -> 1.5,  1.5
    # Dropping a quarter is no faster than dropping nothing: three plans are left.
    front = best_plan_by_search(ranks(3, 1), FREE, 4)
    assert [(each.iteration_s, each.dropped, each.plan.ranks[0].migrated) for each in front] == [
        (1.0, 0.75, 0.0),
        (1.25, 0.5, 0.25),
        (1.5, 0.0, 0.5),
    ]
    assert [scored.plan for scored in best_plan_by_search(ranks(1, 1, 1), FREE, 8)] == [Plan.plain(3)]


BENT = replace(FREE, extract=PiecewiseLinear(shares=(0, 0.5, 1), seconds=(0, 0.1, 0.9)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: levelled_plan(ranks(8, 4), FREE, [0, 1]), r"slowest_first is \(0, 1\); it must leave a rank of 2"),
        (lambda: levelled_plan(ranks(8, 1), FREE, stragglers(ranks(8, 1)), speed_share=1), "speed_share is 1"),
        (lambda: fastest_division(ranks(3, 1), BENT, most_dropped=0), "extract of costs bends at 0.5"),
        (lambda: fastest_division(ranks(3, 1), FREE, most_dropped=-1), "most_dropped is -1; it must be at least 0"),
        (lambda: best_plan_by_search(ranks(8, 4, 2, 1), FREE, 0), "num_steps is 0; it must be at least 1"),
        (lambda: best_plan_by_search(ranks(8, 4, 2, 1), FREE, 40), "551,368,000 plans"),
    ],
)
def test_levels_costs_and_grids_that_cannot_be_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
