import random
from dataclasses import replace

import pytest

from workbench.techniques.flextp.method.costs import Costs, PiecewiseLinear
from workbench.techniques.flextp.method.plan import Plan, RankPlan, RankTimes
from workbench.techniques.flextp.method.planners import (
    Reference,
    cost_effective,
    num_senders,
    plan_division,
    plan_migration,
    plan_resizing,
    plan_semi,
    split_of_one,
    split_of_one_by_definition,
    stragglers,
)

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
    return [RankTimes(own_s=other_s + each, product_s=each) for each in product_s]


def shares(plan, field):
    return [getattr(rank, field) for rank in plan.ranks]


def drawn_times(seed):
    generator = random.Random(seed)
    num_ranks = generator.randint(2, 6)
    return ranks(*(generator.choice([1, 1, 4]) * generator.uniform(1, 3) for _ in range(num_ranks)), other_s=1)


def measured_under(plan, unresized):
    """Return what ranks would measure under a plan."""
    return [each.at_work(1 - mine.removed) for each, mine in zip(unresized, plan.ranks, strict=True)]


def test_eq_2_balances_what_dropping_and_migrating_cost():
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
    found = split_of_one(removed, costs, num_receivers)
    assert found == pytest.approx(split_of_one_by_definition(removed, costs, num_receivers), abs=1e-4)
    assert sum(found) == pytest.approx(removed)


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


def test_what_travels_with_every_sender_is_paid_by_each():
    # Eight ranks, of which four take 2 s, so that each saves 1 and migrates 1/2; 0.2 s a sender whatever its columns.
    # x = 2: V = 1 over six receivers, of which stragglers take 2/6, and 0.4: 0.73 < 1. x = 3: 2 x 1.5/5 + 0.6 = 1.2 > 1;
    # x = 4: only normal ranks are left, 2/4 + 0.8 = 1.3 > 1. Priced once, 0.2 for all, four would pay 0.7.
    costs = Costs(
        alloc_s=0.0,
        extract=PiecewiseLinear.straight(0.0),
        compute=PiecewiseLinear.straight(1.0),
        communicate=PiecewiseLinear.straight(0.0, at_zero_s=0.2),
    )
    times = ranks(2, 2, 2, 2, 1, 1, 1, 1)
    assert cost_effective(times, costs) == (True, True, False, False)
    assert num_senders(times, costs) == 2


def test_what_a_product_takes_however_narrow_is_paid_for_each_sender():
    # As above, but 0.2 s a sender in the products of receivers, twice that on stragglers. x = 1: 2 (0.2 + 0.5 / 7) < 1;
    # x = 2: 2 (2 x 0.2 + 1 / 6) = 1.13 > 1; x = 4: 4 x 0.2 + 2 / 4 > 1. Priced once, four would pay 0.7.
    costs = replace(Costs.straight(compute_s=1), compute=PiecewiseLinear.straight(1.0, at_zero_s=0.2))
    assert cost_effective(ranks(2, 2, 2, 2, 1, 1, 1, 1), costs) == (True, False, False, False)


def test_a_sender_saves_no_more_than_its_products_take():
    # Rank 0 is 7 s slower, but only 3 s of it are products, of which 0.99 migrate: it saves 2.97 s, and costs 0.99 x 4 s
    # and a third of 0.99.
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


def test_one_straggler_removes_what_eq_1_says_and_eq_2_splits_it():
    # Other time 2; own times 10, 3, 3, 3: 7/8 of its columns go. 0.5 m + m / 3 = 0.875 - m gives m = 0.875 x 6 / 11.
    plan = plan_semi(ranks(8, 1, 1, 1, other_s=2), CHEAP)
    assert shares(plan, "migrated") == pytest.approx([0.875 * 6 / 11, 0, 0, 0])
    assert shares(plan, "dropped") == pytest.approx([0.875 * 5 / 11, 0, 0, 0])


@planners
def test_ranks_within_a_tenth_of_the_fastest_are_left_alone(planner):
    assert planner(ranks(1.09, 1, 1.05, 1)).is_plain


def test_stragglers_are_named_slowest_first():
    assert stragglers(ranks(2, 1, 8, 1.05, 2)) == (2, 0, 4)
    assert stragglers(ranks(2, 1, 8, 1.05, 2), tolerance=0) == (2, 0, 4, 3)
    assert stragglers(ranks(2, 1, 8, 1.05, 2), Reference.MEAN) == (2,)  # the mean is 2.81


def test_resizing_brings_stragglers_down_to_the_mean():
    assert shares(plan_resizing(ranks(8, 1, 1, 1, other_s=2)), "dropped") == [5.25 / 8, 0, 0, 0]
    assert shares(plan_resizing(ranks(8, 2, 1, 1), Reference.MIN), "dropped") == [7 / 8, 0.5, 0, 0]


def test_a_division_lets_the_slowest_migrate_and_the_others_resize():
    # Half of eight ranks straggle, as in figure 11: 7/8, 5/6, 3/4 and 1/2 of their columns go.
    times = ranks(8, 6, 4, 2, 1, 1, 1, 1)
    plan = plan_division(times, 2)
    assert shares(plan, "migrated") == [7 / 8, 5 / 6, 0, 0, 0, 0, 0, 0]
    assert shares(plan, "dropped") == [0, 0, 3 / 4, 1 / 2, 0, 0, 0, 0]
    assert plan_division(times, 0) == plan_resizing(times, Reference.MIN)
    assert plan_division(times, 4) == plan_migration(times, CHEAP)


@pytest.mark.parametrize("num_senders", [-1, 3])
def test_only_stragglers_can_be_senders(num_senders):
    with pytest.raises(ValueError, match=rf"num_senders is {num_senders}; it must be in 0..2"):
        plan_division(ranks(8, 4, 1, 1), num_senders)


@pytest.mark.parametrize(
    ("removed", "num_receivers", "message"), [(1.0, 3, "removed is 1.0"), (0.5, 0, "num_receivers is 0")]
)
def test_a_split_that_cannot_be_is_refused(removed, num_receivers, message):
    with pytest.raises(ValueError, match=message):
        split_of_one(removed, CHEAP, num_receivers)


@planners
@pytest.mark.parametrize("seed", range(10))
def test_renumbering_the_ranks_renumbers_the_plan(planner, seed):
    times = drawn_times(seed)
    order = random.Random(seed).sample(range(len(times)), len(times))
    plan, renumbered = planner(times), planner([times[rank] for rank in order])
    for field in ("dropped", "migrated"):
        assert shares(renumbered, field) == pytest.approx([shares(plan, field)[rank] for rank in order], abs=1e-6)


@planners
@pytest.mark.parametrize("seed", range(10))
def test_planning_again_from_what_was_measured_under_the_plan_gives_the_same_plan(planner, seed):
    unresized = drawn_times(seed)
    plan = planner(unresized)
    again = planner(measured_under(plan, unresized))
    for field in ("dropped", "migrated"):
        assert shares(again, field) == pytest.approx(shares(plan, field), abs=1e-6)


@planners
def test_a_rank_slow_elsewhere_than_in_products_still_keeps_columns(planner):
    times = [RankTimes(own_s=20, product_s=1), *ranks(1, 1)]
    plan = planner(times)
    assert plan.ranks[1:] == (RankPlan(), RankPlan())
    assert 0 <= plan.ranks[0].removed < 1


def test_two_ranks_of_which_one_straggles_have_one_receiver():
    plan = plan_migration(ranks(3, 1), CHEAP)
    assert plan == Plan(ranks=(RankPlan(migrated=2 / 3), RankPlan()))
    assert plan.received_share(1) == 2 / 3
