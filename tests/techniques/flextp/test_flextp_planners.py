"""Eqs. 1 to 3, where resizing comes to rest, plans that level all ranks, and certificates of the best division."""

import random
from dataclasses import replace
from functools import partial

import pytest
from flextp_cases import ranks, shares

from workbench.techniques.flextp import method
from workbench.techniques.flextp.method import Costs, Line, Plan, RankPlan, RankTimes, Reference, Solution

CHEAP = Costs.straight(extract_s=1, communicate_s=0.5, compute_s=1)
PLANNERS = {
    "resizing": {"solution": Solution.ZERO, "reference": Reference.MEAN},
    "migration": {"solution": Solution.MIG},
    "migration, levelled": {"solution": Solution.MIG, "refine": True},
    "SEMI": {"solution": Solution.SEMI},
    "SEMI, levelled": {"solution": Solution.SEMI, "refine": True},
}
planners = pytest.mark.parametrize(
    "planner", [partial(method.plan_for, costs=CHEAP, **how) for how in PLANNERS.values()], ids=PLANNERS
)


def measured_under(ratios, unresized):
    """Return the times of ranks that remove these shares of their columns."""
    return [rank.at_work(1 - ratio) for ratio, rank in zip(ratios, unresized, strict=True)]


def test_a_straggler_drops_what_brings_it_down_to_the_reference():
    # 2 s of other things; products 8, 1, 1, 1. Own times 10, 3, 3, 3, mean 4.75: 5.25 of 8 s of products must go.
    assert method.pruning_ratios(ranks(8, 1, 1, 1, other_s=2), Reference.MEAN) == [5.25 / 8, 0, 0, 0]
    # Own times 10, 5, 3, 3, least 3: 7 of 8 s and 2 of 3 s of products must go.
    assert method.pruning_ratios(ranks(8, 3, 1, 1, other_s=2), Reference.MIN) == [7 / 8, 2 / 3, 0, 0]
    for reference in Reference:
        assert method.pruning_ratios(ranks(1, 1, 1), reference) == [0, 0, 0]
    # A rank that is slow elsewhere than in products keeps some columns.
    assert method.pruning_ratio(own_s=10, reference_s=1, product_s=2) == method.MOST_REMOVED
    assert method.pruning_ratio(own_s=10, reference_s=1, product_s=0) == 0


def test_a_plan_is_stale_once_any_rank_moved_by_more_than_a_tenth_other_than_by_its_plan():
    before = ranks(8, 1, 1, 1, other_s=2)
    assert not method.have_moved(ranks(9, 1.2, 0.8, 1, other_s=2), before)
    assert method.have_moved(ranks(8, 1, 1, 1.31, other_s=2), before)
    assert method.have_moved(ranks(6.9, 1, 1, 1, other_s=2), before)
    planned = measured_under([0.875, 0, 0, 0], before)
    assert not method.have_moved(planned, before)
    assert method.have_moved(planned, before, reference=Reference.CURRENT_MEAN)


@pytest.mark.parametrize(
    ("skewness", "num_ranks", "other", "bound"), [(8, 4, 0, 32 / 11), (1, 4, 0, 1), (8, 4, 1, 9 / 3.75)]
)
def test_the_mean_bounds_the_speedup_and_other_time_lowers_the_bound(skewness, num_ranks, other, bound):
    unresized = ranks(skewness, *[1] * (num_ranks - 1), other_s=other)
    ratios = method.pruning_ratios(unresized, Reference.MEAN)
    slowest_s = max(rank.own_s for rank in measured_under(ratios, unresized))
    assert method.speedup_bound(skewness, num_ranks, other=other) == pytest.approx(bound)
    assert (skewness + other) / slowest_s == pytest.approx(bound)


def test_eq_2_balances_dropping_and_migrating_and_without_a_crossing_all_or_nothing_is_migrated():
    # Straggler: 1 s a dropped share. Three others: 1 s a migrated share to send, 3 s / 3 to multiply.
    # 2 m = 0.9 - m, so m = 0.3; with 0.3 s for allocation 2 m = 0.3 + 0.9 - m, so m = 0.4.
    functions = {"extract_s": 1, "communicate_s": 1, "compute_s": 3}
    assert method.split_of_one(0.9, Costs.straight(**functions), 3) == pytest.approx((0.3, 0.6))
    assert method.split_of_one(0.9, Costs.straight(alloc_s=0.3, **functions), 3) == pytest.approx((0.4, 0.5))
    # Multiplying 0.9 / 3 costs 0.03 s, less than the second that dropping takes whatever is dropped.
    assert method.split_of_one(0.9, Costs.straight(alloc_s=1, compute_s=0.1), 3) == (0.9, 0.0)
    # The first message takes 2 s, more than the 0.9 s of dropping everything.
    late = Costs.straight(whole_s=2, extract_s=1, communicate_s=1, compute_s=1)
    assert method.split_of_one(0.9, late, 3) == (0.0, 0.9)


@pytest.mark.parametrize("seed", range(20))
def test_bisection_finds_what_trying_all_finds(seed):
    generator = random.Random(seed)
    most_s = {"alloc_s": 0.2, "extract_s": 2, "whole_s": 0.3, "communicate_s": 3, "compute_s": 3}
    costs = Costs.straight(**{name: generator.uniform(0, seconds) for name, seconds in most_s.items()})
    removed, num_receivers = generator.uniform(0, 0.99), generator.randint(1, 7)
    split = method.split_of_one(removed, costs, num_receivers)
    assert split == pytest.approx(method.split_of_one_by_definition(removed, costs, num_receivers), abs=1e-4)
    assert sum(split) == pytest.approx(removed)


def test_one_straggler_removes_what_eq_1_says_and_by_eq_3_those_migrate_whose_saving_exceeds_the_cost():
    # Other time 2; own times 10, 3, 3, 3: 7/8 of its columns go. 0.5 m + m / 3 = 0.875 - m gives m = 0.875 x 6 / 11.
    plan = method.plan_semi(ranks(8, 1, 1, 1, other_s=2), CHEAP)
    assert shares(plan, "migrated") == pytest.approx([0.875 * 6 / 11, 0, 0, 0])
    assert shares(plan, "dropped") == pytest.approx([0.875 * 5 / 11, 0, 0, 0])
    # x = 1: saves 7; V = 0.875, and the straggler of 4 among three receivers multiplies 0.875 / 3 at a quarter speed:
    #        0.4375 + 1.1667 = 1.60. x = 2: saves 3; V = 1.625 over two normal ranks: 0.8125 + 0.8125 = 1.63.
    times = ranks(8, 4, 1, 1)
    assert method.num_senders(times, CHEAP) == 2
    assert shares(method.plan_semi(times, CHEAP), "migrated") == [0.875, 0.75, 0, 0]
    # Sending costs 2 s a share now. x = 1: 1.75 + 1.17 = 2.92 < 7; x = 2: 3.25 + 0.8125 = 4.06 > 3.
    dear = Costs.straight(extract_s=1, communicate_s=2, compute_s=1)
    assert method.num_senders(times, dear) == 1
    assert shares(method.plan_semi(times, dear), "migrated") == [0.875, 0, 0, 0]
    assert shares(method.plan_semi(times, dear), "dropped") == [0, 0.75, 0, 0]


def test_every_sender_is_paid_for_by_itself_and_saves_no_more_than_its_products_take():
    # Eight ranks, of which four take 2 s, so that each saves 1 and migrates 1/2; 0.2 s a sender whatever its columns.
    # x = 2: V = 1 over six receivers, of which stragglers take 2/6, and 0.4: 0.73 < 1. x = 3: 2 x 1.5/5 + 0.6 > 1;
    # x = 4: only normal ranks are left, 2/4 + 0.8 = 1.3 > 1. Priced once, 0.2 for all, four would pay 0.7.
    times = ranks(2, 2, 2, 2, 1, 1, 1, 1)
    assert method.num_senders(times, Costs.straight(whole_s=0.2, compute_s=1)) == 2
    # 0.2 s a sender in the products of receivers, twice that on stragglers. x = 1: 2 (0.2 + 0.5 / 7) < 1;
    # x = 2: 2 (2 x 0.2 + 1 / 6) = 1.13 > 1; x = 4: 4 x 0.2 + 2 / 4 > 1. Priced once, four would pay 0.7.
    assert method.num_senders(times, Costs.straight(narrow_s=0.2, compute_s=1)) == 1
    # Rank 0 is 7 s slower, but only 3 s of it are products, of which 0.99 migrate: it saves 2.97 s, and costs 0.99 x 4
    # s and a third of 0.99.
    times = [RankTimes(own_s=8.0, product_s=3.0), *ranks(1, 1, 1)]
    assert method.num_senders(times, Costs.straight(communicate_s=4, compute_s=1)) == 0
    assert method.num_senders(times, Costs.straight(communicate_s=2.5, compute_s=1)) == 1


def test_migration_can_pay_for_two_where_it_does_not_for_one():
    # Received columns take three times as long as own ones. x = 1: the straggler of 7.5 receives half of 0.875, which
    # takes it 3 x 7.5 x 0.4375 = 9.8 > 7. x = 2: the normal rank receives 0.875 + 0.8667, 5.2 < 6.5.
    # Stopping at the first that does not pay would give 0; the largest x that pays is 2.
    times, costs = ranks(8, 7.5, 1), Costs.straight(compute_s=3)
    assert method.num_senders(times, costs) == 2


def test_stragglers_are_named_slowest_first_and_a_division_lets_the_slowest_migrate_and_the_others_resize():
    assert method.stragglers(ranks(2, 1, 8, 1.05, 2)) == (2, 0, 4)
    assert method.stragglers(ranks(2, 1, 8, 1.05, 2), tolerance=0) == (2, 0, 4, 3)
    assert method.stragglers(ranks(2, 1, 8, 1.05, 2), Reference.MEAN) == (2,)  # the mean is 2.81
    # Half of eight ranks straggle, as in figure 11: 7/8, 5/6, 3/4 and 1/2 of their columns go.
    times = ranks(8, 6, 4, 2, 1, 1, 1, 1)
    plan = method.plan_division(times, 2)
    assert shares(plan, "migrated") == [7 / 8, 5 / 6, 0, 0, 0, 0, 0, 0]
    assert shares(plan, "dropped") == [0, 0, 3 / 4, 1 / 2, 0, 0, 0, 0]
    assert method.plan_division(times, 4) == method.plan_for(Solution.MIG, times)


@planners
@pytest.mark.parametrize("seed", range(4))
def test_plans_do_not_depend_on_the_numbers_of_the_ranks_or_on_the_plan_that_was_measured_under(planner, seed):
    generator = random.Random(seed)
    num_ranks = generator.randint(2, 6)
    times = ranks(*(generator.choice([1, 1, 4]) * generator.uniform(1, 3) for _ in range(num_ranks)), other_s=1)
    order = random.Random(seed).sample(range(num_ranks), num_ranks)
    plan, renumbered = planner(times=times), planner(times=[times[rank] for rank in order])
    again = planner(times=measured_under([rank.removed for rank in plan.ranks], times))
    for field in ("dropped", "migrated"):
        planned = shares(plan, field)
        assert shares(renumbered, field) == pytest.approx([planned[rank] for rank in order], abs=1e-6)
        assert shares(again, field) == pytest.approx(planned, abs=1e-6)


@planners
def test_ranks_within_a_tenth_of_the_fastest_give_nothing_up_and_others_keep_columns(planner):
    assert planner(times=ranks(1.09, 1, 1.05, 1)).is_plain
    plan = planner(times=[RankTimes(own_s=20, product_s=1), *ranks(1, 1)])  # slow elsewhere than in products
    assert plan.ranks[1:] == (RankPlan(), RankPlan())
    assert 0 <= plan.ranks[0].removed < 1


def test_plans_are_renewed_until_one_moves_nobody_by_more_than_a_tenth_and_two_stragglers_come_down_together():
    # Products 3 and 2 beside 1 and 1, no other time. Means: 7/4, then (7/4 + 7/4 + 2) / 4 = 11/8, then
    # (11/8 + 11/8 + 2) / 4 = 19/16, then (19/16 x 2 + 2) / 4 = 35/32: 8 % less than 19/16, but still 4.5 % above the
    # mean, 67/64, to which they come down next; there they are 2.3 % above it.
    level_s = 67 / 64
    settled = method.settled_resizing(ranks(3.0, 2.0, 1.0, 1.0))
    assert shares(settled, "dropped") == pytest.approx([1 - level_s / 3, 1 - level_s / 2, 0, 0])
    assert method.settled_resizing(ranks(1, 1, 1)).is_plain


FREE = Costs.straight(compute_s=1)
PRECISION = 1e-5


def test_where_moving_costs_nothing_all_ranks_end_at_the_ideal():
    # L / 8 + 3 L = 4, and L / 8 + L / 4 + 2 L = 4.
    for times, senders, level_s in ((ranks(8, 1, 1, 1), (0,), 1.28), (ranks(8, 1, 4, 1), (0, 2), 32 / 19)):
        plan = method.levelled_plan(times, FREE, senders)
        assert plan.senders == senders
        assert plan.ranks[0].migrated == pytest.approx(1 - level_s / 8)
        assert method.rank_s(times, plan, FREE) == pytest.approx([level_s] * 4)


def test_sending_and_giving_up_columns_is_made_up_for_and_receivers_pay_for_every_sender_however_narrow():
    # The straggler also pays 0.1 + 0.2 q: 8 (1 - q) + 0.1 + 0.2 q = 1 + q / 3.
    costs = Costs.straight(alloc_s=0.1, extract_s=0.2, compute_s=1)
    plan = method.levelled_plan(ranks(8, 1, 1, 1), costs, [0], speed_share=0)
    assert plan.ranks[0].migrated == pytest.approx(7.1 / (8 - 0.2 + 1 / 3), rel=1e-6)
    dear = Costs.straight(communicate_s=100, compute_s=1)  # sending never pays, and nothing may be dropped
    assert method.levelled_plan(ranks(8, 1, 1, 1), dear, [0], speed_share=0).is_plain
    # Each of two receivers multiplies for each of two senders by itself, 0.25 s at least: 8 (1 - m) = 1 + 0.5 + m.
    costs = replace(FREE, compute=Line(at_zero_s=0.25, per_share_s=1.0))
    times = ranks(8, 8, 1, 1)
    plan = method.levelled_plan(times, costs, [0, 1], speed_share=0)
    assert shares(plan, "migrated") == pytest.approx([6.5 / 9, 6.5 / 9, 0, 0])
    assert method.rank_s(times, plan, costs) == pytest.approx([20 / 9] * 4)
    assert method.fastest_division(times, costs, most_dropped=0).iteration_s == pytest.approx(20 / 9)


def test_only_as_much_is_dropped_as_the_speed_asked_for_needs():
    # Sending 0.84 takes 0.42 s: 1.28 + 0.42 = 1.70 s, 75.3 % of the ideal's speed.
    # 90 % of the ideal's speed is 1.28 / 0.9 = 1.4222 s. Receivers: 1 + m / 3 + m / 2 = 1.4222 gives m = 0.50667.
    # The straggler: 8 (1 - q) + 0.25333 = 1.4222 gives q = 0.85389, of which 0.34722 are dropped.
    times, costs = ranks(8, 1, 1, 1), Costs.straight(communicate_s=0.5, compute_s=1)
    plan = method.levelled_plan(times, costs, [0], speed_share=0.75)
    assert (plan.ranks[0].dropped, method.iteration_s(times, plan, costs)) == (0, pytest.approx(1.70))
    plan = method.levelled_plan(times, costs, [0], speed_share=0.9)
    assert plan.ranks[0].migrated == pytest.approx(0.506667, abs=1e-5)
    assert plan.ranks[0].dropped == pytest.approx(0.347222, abs=1e-5)
    assert method.iteration_s(times, plan, costs) == pytest.approx(1.28 / 0.9)


@pytest.mark.parametrize("seed", range(3))
def test_levelled_plans_are_near_the_best_of_all_divisions(seed):
    # No more than 1 % slower than the fastest that drops no more; 0.01 of the columns more than the gentlest as fast.
    generator = random.Random(seed)
    times = ranks(1, *(generator.uniform(1.2, 8) for _ in range(2)), other_s=generator.uniform(0, 2))
    costs = Costs.straight(alloc_s=0.005, extract_s=0.05, communicate_s=generator.uniform(0.05, 1.5), compute_s=1)
    certificate = method.certify(times, method.plan_for(Solution.SEMI, times, costs, refine=True), costs)
    assert certificate.slower_by <= 0.01
    assert certificate.drops_more_by <= 0.01


def test_a_light_straggler_sends_a_little_so_that_it_receives_nothing():
    # Sending alone, the heavy straggler hands the light one half: 8 (1 - m) = 1.6 (1 + m / 2), 2.18 s. When the light
    # one sends 1/32, all goes to the normal rank: 8 (1 - m) = 1 + m + 1/32, so m = 6.96875 / 9 and 1.81 s.
    times = ranks(8, 1.6, 1)
    plan = method.levelled_plan(times, FREE, [0, 1], speed_share=0)
    assert shares(plan, "migrated") == pytest.approx([6.96875 / 9, 1 / 32, 0])
    assert method.iteration_s(times, plan, FREE) == pytest.approx(8 * (1 - 6.96875 / 9))


def test_two_ranks_by_hand():
    # Rank 0 takes 3 (1 - d - m), rank 1 takes 1 + m. Without dropping both take 1.5 s at m = 1/2; with d = 1/2 both
    # take 1.125 s at m = 1/8. For 1.25 s, m = 1/4 and 3 (3/4 - d) = 1.25, so d = 1/3.
    assert method.fastest_division(ranks(3, 1), FREE, most_dropped=0).iteration_s == pytest.approx(1.5, rel=PRECISION)
    half = method.fastest_division(ranks(3, 1), FREE, most_dropped=0.5)
    assert half.iteration_s == pytest.approx(1.125, rel=PRECISION)
    gentlest = method.gentlest_division(ranks(3, 1), FREE, most_s=1.25)
    assert gentlest.plan.dropped == pytest.approx(1 / 3, rel=PRECISION)
    assert gentlest.plan.ranks[0].migrated == pytest.approx(1 / 4, rel=PRECISION)
    assert method.gentlest_division(ranks(3, 1), FREE, most_s=0.9) is None  # rank 1 alone takes 1 s
    # Dividing evenly takes 1.5 s and what the first column costs; doing nothing takes 3 s.
    for whole_s, best_s in ((1.0, 2.5), (2.0, 3.0)):
        fastest = method.fastest_division(ranks(3, 1), Costs.straight(whole_s=whole_s, compute_s=1), most_dropped=0)
        assert fastest.iteration_s == pytest.approx(best_s, rel=PRECISION)


def test_a_certificate_says_what_the_best_have_over_a_plan():
    # Doing nothing takes 3 s; half as long without dropping, so it is slower by all of that.
    certificate = method.certify(ranks(3, 1), Plan.plain(2), FREE)
    assert certificate.slower_by == pytest.approx(1, rel=PRECISION)
    assert certificate.drops_more_by == 0
    # Dropping half takes 1.5 s: 1.125 s is possible, and 1.5 s with nothing dropped.
    certificate = method.certify(ranks(3, 1), Plan(ranks=(RankPlan(dropped=0.5), RankPlan())), FREE)
    assert certificate.slower_by == pytest.approx(1 / 3, rel=PRECISION)
    assert certificate.drops_more_by == pytest.approx(0.5, rel=PRECISION)
    # The best plan has no gap, and none is below 0.
    certificate = method.certify(ranks(3, 1), Plan(ranks=(RankPlan(migrated=0.5), RankPlan())), FREE)
    assert 0 <= certificate.slower_by < PRECISION
    assert certificate.drops_more_by == 0


@pytest.mark.parametrize(("num_stragglers", "num_steps"), [(1, 16), (2, 6), (3, 3)])
@pytest.mark.parametrize("seed", range(2))
def test_no_division_of_the_grid_beats_the_best_one(num_stragglers, num_steps, seed):
    generator = random.Random(seed)
    product_s = [generator.uniform(1.2, 8) for _ in range(num_stragglers)] + [1.0] * (4 - num_stragglers)
    times = ranks(*product_s, other_s=generator.uniform(0, 1))
    most_s = {"whole_s": 0.3, "communicate_s": 0.6, "narrow_s": 0.3}
    drawn = {name: generator.uniform(0, seconds) for name, seconds in most_s.items()}
    costs = Costs.straight(alloc_s=0.01, extract_s=0.05, compute_s=1, **drawn)
    for scored in method.best_plan_by_search(times, costs, num_steps):
        dropped = scored.plan.dropped
        fastest = method.fastest_division(times, costs, most_dropped=dropped)
        assert fastest.iteration_s <= scored.iteration_s * (1 + PRECISION)
        gentlest = method.gentlest_division(times, costs, most_s=scored.iteration_s)
        assert gentlest.plan.dropped <= dropped + PRECISION


def test_the_front_holds_the_plans_that_no_other_beats():
    # Rank 0 takes 3 (1 - d - m), rank 1 takes 1 + m; shares are quarters.
    # d 0.75: m 0    -> 0.75, 1    | d 0.25: m 0.25 -> 1.5,  1.25, m 0.5 -> 0.75, 1.5
    # d 0.5:  m 0.25 -> 0.75, 1.25 | d 0:    m 0.5  -> 1.5,  1.5
    # Dropping a quarter is no faster than dropping nothing: three plans are left.
    front = method.best_plan_by_search(ranks(3, 1), FREE, 4)
    assert [(scored.iteration_s, scored.plan.dropped, scored.plan.ranks[0].migrated) for scored in front] == [
        (1.0, 0.75, 0.0),
        (1.25, 0.5, 0.25),
        (1.5, 0.0, 0.5),
    ]
    assert [scored.plan for scored in method.best_plan_by_search(ranks(1, 1, 1), FREE, 8)] == [Plan.plain(3)]
