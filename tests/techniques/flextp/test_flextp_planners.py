"""Eq. 1 and its references, Eqs. 2 and 3, and where resizing against the current mean comes to rest."""

import math
import random

import pytest
import torch

from workbench.parallel import ColumnParallelLinear, VirtualTensorGroup
from workbench.techniques.flextp.method import (
    MOST_REMOVED,
    Costs,
    PiecewiseLinear,
    Plan,
    RankPlan,
    RankTimes,
    Reference,
    cost_effective,
    have_moved,
    num_senders,
    plan_division,
    plan_migration,
    plan_resizing,
    plan_semi,
    pruning_ratio,
    pruning_ratios,
    settled_resizing,
    speedup_bound,
    split_of_one,
    split_of_one_by_definition,
    stragglers,
)
from workbench.techniques.flextp.runtime import ModelledTimes, Policy, balance
from workbench.timeline.stragglers import StragglerTrace

CHEAP = Costs.straight(extract_s=1, communicate_s=0.5, compute_s=1)
DEAR = Costs.straight(extract_s=1, communicate_s=2, compute_s=1)
PLANNERS = {
    "resizing": lambda times: plan_resizing(times),
    "migration": lambda times: plan_migration(times, CHEAP),
    "migration, levelled": lambda times: plan_migration(times, CHEAP, refine=True),
    "SEMI": lambda times: plan_semi(times, CHEAP),
    "SEMI, levelled": lambda times: plan_semi(times, CHEAP, refine=True),
}
planners = pytest.mark.parametrize("planner", PLANNERS.values(), ids=PLANNERS)


def ranks(*product_s, other_s=0.0):
    return [RankTimes(own_s=other_s + seconds, product_s=seconds) for seconds in product_s]


def shares(plan, field):
    return [getattr(rank, field) for rank in plan.ranks]


def measured_under(ratios, unresized):
    """Return the times of ranks that remove these shares of their columns."""
    return [rank.at_work(1 - ratio) for ratio, rank in zip(ratios, unresized, strict=True)]


def test_a_straggler_drops_what_brings_it_down_to_the_reference():
    # 2 s of other things; products 8, 1, 1, 1. Own times 10, 3, 3, 3, mean 4.75: 5.25 of 8 s of products must go.
    assert pruning_ratios(ranks(8, 1, 1, 1, other_s=2), Reference.MEAN) == [5.25 / 8, 0, 0, 0]
    # Own times 10, 5, 3, 3, least 3: 7 of 8 s and 2 of 3 s of products must go.
    assert pruning_ratios(ranks(8, 3, 1, 1, other_s=2), Reference.MIN) == [7 / 8, 2 / 3, 0, 0]
    for reference in Reference:
        assert pruning_ratios(ranks(1, 1, 1), reference) == [0, 0, 0]


def test_a_rank_that_is_slow_elsewhere_than_in_products_keeps_some_columns():
    assert pruning_ratio(own_s=10, reference_s=1, product_s=2) == MOST_REMOVED
    assert pruning_ratio(own_s=10, reference_s=1, product_s=0) == 0


@pytest.mark.parametrize(
    ("skewness", "num_ranks", "other", "bound"),
    [(8, 4, 0, 32 / 11), (8, 8, 0, 64 / 15), (1, 4, 0, 1), (2, 2, 0, 4 / 3), (8, 4, 1, 9 / 3.75)],
)
def test_the_mean_bounds_the_speedup_and_other_time_lowers_the_bound(skewness, num_ranks, other, bound):
    unresized = ranks(skewness, *[1] * (num_ranks - 1), other_s=other)
    ratios = pruning_ratios(unresized, Reference.MEAN)
    slowest_s = max(rank.own_s for rank in measured_under(ratios, unresized))
    assert speedup_bound(skewness, num_ranks, other=other) == pytest.approx(bound)
    assert (skewness + other) / slowest_s == pytest.approx(bound)


def straggler_s(rounds, plan, measured=lambda rank: rank):
    """Return the straggler's product seconds, planning again and again from measured times."""
    unresized, times, seconds = ranks(8, 1, 1, 1), ranks(8, 1, 1, 1), []
    for _ in range(rounds):
        seconds.append(times[0].product_s)
        times = measured_under(plan([measured(rank) for rank in times]), unresized)
    return seconds


def printed(rank):
    """Return the times as Eq. 1 is printed: as measured, whatever was dropped meanwhile."""
    return RankTimes(own_s=rank.own_s, product_s=rank.product_s)


def test_the_printed_form_against_the_mean_swings_into_a_worse_ratio_and_against_the_fastest_for_ever():
    # With m the straggler's seconds: gamma = (m - (m + 3) / 4) / m, so the next m is 8 (1 - gamma) = 2 + 6 / m.
    # round    0     1        2            3           4
    # m        8     2.75     4.1818       3.4348      3.7468
    # It ends at m = 1 + sqrt(7) = 3.646, a speedup of 2.19 where un-resized times reach 2.91 in one round.
    swing = straggler_s(60, lambda times: pruning_ratios(times, Reference.MEAN), printed)
    assert swing[:5] == pytest.approx([8, 2.75, 46 / 11, 79 / 23, 296 / 79])
    assert swing[-1] == pytest.approx(1 + math.sqrt(7))
    # Against the fastest gamma = (m - 1) / m, so the next m is 8 / m.
    swing = straggler_s(6, lambda times: pruning_ratios(times, Reference.MIN), printed)
    assert swing == pytest.approx([8, 1, 8, 1, 8, 1])


def test_against_the_current_mean_every_planning_asks_for_more():
    # m becomes the mean of what is measured now, (m + 3) / 4: it comes down to the others' 1.
    seconds = straggler_s(5, lambda times: pruning_ratios(times, Reference.CURRENT_MEAN))
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
        (lambda: split_of_one(1.0, CHEAP, 3), "removed is 1.0"),
        (lambda: split_of_one(0.5, CHEAP, 0), "num_receivers is 0"),
        (lambda: plan_division(ranks(8, 4, 1, 1), -1), "num_senders is -1; it must be in 0..2"),
        (lambda: plan_division(ranks(8, 4, 1, 1), 3), "num_senders is 3; it must be in 0..2"),
        (lambda: settled_resizing(ranks(8, 1), 0.0), r"threshold is 0.0; it must be in \(0, 1\)"),
        (lambda: settled_resizing(ranks(8, 1), 1.0), r"threshold is 1.0; it must be in \(0, 1\)"),
    ],
)
def test_numbers_that_cannot_be_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_eq_2_balances_the_costs_of_dropping_and_migrating():
    # Straggler: 1 s a dropped share. Three others: 1 s a migrated share to send, 3 s / 3 to multiply.
    # 2 m = 0.9 - m, so m = 0.3; with 0.3 s for allocation 2 m = 0.3 + 0.9 - m, so m = 0.4.
    functions = {"extract_s": 1, "communicate_s": 1, "compute_s": 3}
    assert split_of_one(0.9, Costs.straight(**functions), 3) == pytest.approx((0.3, 0.6))
    assert split_of_one(0.9, Costs.straight(alloc_s=0.3, **functions), 3) == pytest.approx((0.4, 0.5))


def test_without_a_crossing_all_or_nothing_is_migrated():
    # Multiplying 0.9 / 3 costs 0.03 s, less than the second that dropping takes whatever is dropped.
    assert split_of_one(0.9, Costs.straight(alloc_s=1, compute_s=0.1), 3) == (0.9, 0.0)
    # The first message takes 2 s, more than the 0.9 s of dropping everything.
    late = PiecewiseLinear.straight(1, at_zero_s=2)
    costs = Costs(alloc_s=0, extract=PiecewiseLinear.straight(1), communicate=late, compute=PiecewiseLinear.straight(1))
    assert split_of_one(0.9, costs, 3) == (0.0, 0.9)


@pytest.mark.parametrize("seed", range(20))
def test_bisection_finds_what_trying_all_finds(seed):
    generator = random.Random(seed)
    costs = Costs(
        alloc_s=generator.uniform(0, 0.2),
        extract=PiecewiseLinear.straight(generator.uniform(0, 2)),
        communicate=PiecewiseLinear.fitted([(share / 4, generator.uniform(0, share)) for share in range(5)]),
        compute=PiecewiseLinear.straight(generator.uniform(0.1, 3)),
    )
    removed, num_receivers = generator.uniform(0, 0.99), generator.randint(1, 7)
    split = split_of_one(removed, costs, num_receivers)
    assert split == pytest.approx(split_of_one_by_definition(removed, costs, num_receivers), abs=1e-4)
    assert sum(split) == pytest.approx(removed)


def test_one_straggler_removes_what_eq_1_says_and_eq_2_splits_it():
    # Other time 2; own times 10, 3, 3, 3: 7/8 of its columns go. 0.5 m + m / 3 = 0.875 - m gives m = 0.875 x 6 / 11.
    plan = plan_semi(ranks(8, 1, 1, 1, other_s=2), CHEAP)
    assert shares(plan, "migrated") == pytest.approx([0.875 * 6 / 11, 0, 0, 0])
    assert shares(plan, "dropped") == pytest.approx([0.875 * 5 / 11, 0, 0, 0])


def test_eq_3_lets_all_migrate_whose_saving_exceeds_the_cost():
    # x = 1: saves 7; V = 0.875, and the straggler of 4 among three receivers multiplies 0.875 / 3 at a quarter speed:
    #        0.4375 + 1.1667 = 1.60. x = 2: saves 3; V = 1.625 over two normal ranks: 0.8125 + 0.8125 = 1.63.
    times = ranks(8, 4, 1, 1)
    assert cost_effective(times, CHEAP) == (True, True)
    assert shares(plan_semi(times, CHEAP), "migrated") == [0.875, 0.75, 0, 0]


def test_eq_3_lets_the_lighter_stragglers_resize():
    # Sending costs 2 s a share now. x = 1: 1.75 + 1.17 = 2.92 < 7; x = 2: 3.25 + 0.8125 = 4.06 > 3.
    times = ranks(8, 4, 1, 1)
    assert cost_effective(times, DEAR) == (True, False)
    plan = plan_semi(times, DEAR)
    assert shares(plan, "migrated") == [0.875, 0, 0, 0]
    assert shares(plan, "dropped") == [0, 0.75, 0, 0]


def costs_of(*, send_s=0.0, narrow_s=0.0):
    """Seconds that every sender costs, however few its columns are: its messages, and its products on receivers."""
    return Costs(
        alloc_s=0.0,
        extract=PiecewiseLinear.straight(0.0),
        compute=PiecewiseLinear.straight(1.0, at_zero_s=narrow_s),
        communicate=PiecewiseLinear.straight(0.0, at_zero_s=send_s),
    )


def test_every_sender_is_paid_for_by_itself():
    # Eight ranks, of which four take 2 s, so that each saves 1 and migrates 1/2; 0.2 s a sender whatever its columns.
    # x = 2: V = 1 over six receivers, of which stragglers take 2/6, and 0.4: 0.73 < 1. x = 3: 2 x 1.5/5 + 0.6 > 1;
    # x = 4: only normal ranks are left, 2/4 + 0.8 = 1.3 > 1. Priced once, 0.2 for all, four would pay 0.7.
    times = ranks(2, 2, 2, 2, 1, 1, 1, 1)
    assert cost_effective(times, costs_of(send_s=0.2)) == (True, True, False, False)
    assert num_senders(times, costs_of(send_s=0.2)) == 2
    # 0.2 s a sender in the products of receivers, twice that on stragglers. x = 1: 2 (0.2 + 0.5 / 7) < 1;
    # x = 2: 2 (2 x 0.2 + 1 / 6) = 1.13 > 1; x = 4: 4 x 0.2 + 2 / 4 > 1. Priced once, four would pay 0.7.
    assert cost_effective(times, costs_of(narrow_s=0.2)) == (True, False, False, False)


def test_a_sender_saves_no_more_than_its_products_take():
    # Rank 0 is 7 s slower, but only 3 s of it are products, of which 0.99 migrate: it saves 2.97 s, and costs 0.99 x 4
    # s and a third of 0.99.
    times = [RankTimes(own_s=8.0, product_s=3.0), *ranks(1, 1, 1)]
    assert cost_effective(times, Costs.straight(communicate_s=4, compute_s=1)) == (False,)
    assert cost_effective(times, Costs.straight(communicate_s=2.5, compute_s=1)) == (True,)


def test_migration_can_pay_for_two_where_it_does_not_for_one():
    # Received columns take three times as long as own ones. x = 1: the straggler of 7.5 receives half of 0.875, which
    # takes it 3 x 7.5 x 0.4375 = 9.8 > 7. x = 2: the normal rank receives 0.875 + 0.8667, 5.2 < 6.5.
    # Stopping at the first that does not pay would give 0; the largest x that pays is 2.
    times, costs = ranks(8, 7.5, 1), Costs.straight(compute_s=3)
    assert cost_effective(times, costs) == (False, True)
    assert num_senders(times, costs) == 2


def test_stragglers_are_named_slowest_first():
    assert stragglers(ranks(2, 1, 8, 1.05, 2)) == (2, 0, 4)
    assert stragglers(ranks(2, 1, 8, 1.05, 2), tolerance=0) == (2, 0, 4, 3)
    assert stragglers(ranks(2, 1, 8, 1.05, 2), Reference.MEAN) == (2,)  # the mean is 2.81


def test_a_division_lets_the_slowest_migrate_and_the_others_resize():
    # Half of eight ranks straggle, as in figure 11: 7/8, 5/6, 3/4 and 1/2 of their columns go.
    times = ranks(8, 6, 4, 2, 1, 1, 1, 1)
    plan = plan_division(times, 2)
    assert shares(plan, "migrated") == [7 / 8, 5 / 6, 0, 0, 0, 0, 0, 0]
    assert shares(plan, "dropped") == [0, 0, 3 / 4, 1 / 2, 0, 0, 0, 0]
    assert plan_division(times, 0) == plan_resizing(times, Reference.MIN)
    assert plan_division(times, 4) == plan_migration(times, CHEAP)
    assert plan_migration(ranks(3, 1), CHEAP) == Plan(ranks=(RankPlan(migrated=2 / 3), RankPlan()))


@planners
def test_ranks_within_a_tenth_of_the_fastest_are_left_alone(planner):
    assert planner(ranks(1.09, 1, 1.05, 1)).is_plain


@planners
@pytest.mark.parametrize("seed", range(10))
def test_plans_do_not_depend_on_the_numbers_of_the_ranks_or_on_the_plan_that_was_measured_under(planner, seed):
    generator = random.Random(seed)
    num_ranks = generator.randint(2, 6)
    times = ranks(*(generator.choice([1, 1, 4]) * generator.uniform(1, 3) for _ in range(num_ranks)), other_s=1)
    order = random.Random(seed).sample(range(num_ranks), num_ranks)
    plan, renumbered = planner(times), planner([times[rank] for rank in order])
    again = planner(measured_under([rank.removed for rank in plan.ranks], times))
    for field in ("dropped", "migrated"):
        planned = shares(plan, field)
        assert shares(renumbered, field) == pytest.approx([planned[rank] for rank in order], abs=1e-6)
        assert shares(again, field) == pytest.approx(planned, abs=1e-6)


@planners
def test_a_rank_slow_elsewhere_than_in_products_still_keeps_columns(planner):
    plan = planner([RankTimes(own_s=20, product_s=1), *ranks(1, 1)])
    assert plan.ranks[1:] == (RankPlan(), RankPlan())
    assert 0 <= plan.ranks[0].removed < 1


# One straggler of skewness 8 among four, 0.2 s of other time. Its own time becomes the mean of what is measured,
# (t + 3 x 1.2) / 4, which its next measurement then moves:
#   8.2 -> 2.95 -> 1.6375 -> 1.309375 -> 1.22734375 -> 1.2068359375
# The fourth plan moves it by 6 %, the fifth by 2 %.
SETTLED_S = {0.10: 1.22734375, 0.03: 1.2068359375}
ONE_SLOW = ranks(8.0, 1.0, 1.0, 1.0, other_s=0.2)


@pytest.mark.parametrize(("threshold", "own_s"), SETTLED_S.items())
def test_plans_are_renewed_until_a_plan_moves_nobody_by_more_than_the_threshold(threshold, own_s):
    settled = settled_resizing(ONE_SLOW, threshold)
    assert shares(settled, "dropped") == pytest.approx([(8.2 - own_s) / 8, 0, 0, 0])
    assert settled_resizing(ONE_SLOW[1:]).is_plain


def test_two_stragglers_come_down_together():
    # Products 3 and 2 beside 1 and 1, no other time. Means: 7/4, then (7/4 + 7/4 + 2) / 4 = 11/8, then
    # (11/8 + 11/8 + 2) / 4 = 19/16, then (19/16 x 2 + 2) / 4 = 35/32: 8 % less than 19/16, but still 4.5 % above the
    # mean, 67/64, to which they come down next; there they are 2.3 % above it.
    level_s = 67 / 64
    settled = settled_resizing(ranks(3.0, 2.0, 1.0, 1.0))
    assert shares(settled, "dropped") == pytest.approx([1 - level_s / 3, 1 - level_s / 2, 0, 0])


def test_a_plan_that_dropped_too_much_is_taken_back():
    # Under a twentieth of its columns the straggler takes 0.6 s, the others 1.2: mean 1.05 s, to which it is let come
    # up. The mean is then 1.1625 s, and with it there 1.190625 s, a move by less than a tenth, at which it rests.
    settled = settled_resizing([ONE_SLOW[0].at_work(0.05), *ONE_SLOW[1:]])
    assert shares(settled, "dropped") == pytest.approx([(8.2 - 1.190625) / 8, 0, 0, 0])


def test_the_run_time_settles_on_the_same_plan():
    group = VirtualTensorGroup(4)
    # One wide layer, so that shares are rounded to 1 / 4096.
    model = ColumnParallelLinear(4096, 4, group, site="only")
    times = ModelledTimes(StragglerTrace.fixed(4, {0: 8.0}), product_s=1.0, other_s=0.2)
    policy = Policy(solution="ZERO", selection="Rd", reference=Reference.CURRENT_MEAN)
    balancer = balance(model, group, policy=policy, modelled=times)
    x = torch.ones(1, 4096)
    for _ in range(8):
        with balancer.iteration():
            sum(part.sum() for part in model(x)).backward()
    assert len(balancer.steps) == 4
    settled = settled_resizing(ONE_SLOW)
    assert shares(balancer.plan, "dropped") == pytest.approx(shares(settled, "dropped"), abs=1e-3)
