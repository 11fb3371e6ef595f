"""Times, plans, costs of a pre-test and the planner of a policy by hand, and what all of them refuse."""

import json
import math
from dataclasses import replace

import pytest
from cases import refusals
from flextp_cases import ranks, shares

from workbench.techniques.flextp import cost, method
from workbench.techniques.flextp.method import Costs, Line, Plan, RankPlan, RankTimes
from workbench.techniques.flextp.runtime import Policy, check_policy, needs_costs, planner_of
from workbench.techniques.flextp.simulated import simulate_ratios

COSTS = Costs.straight(alloc_s=0.25, extract_s=0.5, communicate_s=2, compute_s=1)
SENT = Plan.of_shares([0.25, 0, 0], [0.5, 0, 0])


@pytest.mark.parametrize("widths", [[0, 0, 0], [0, 0, 1], [0, 1, 1], [1, 2, 2], [1, 2, 2, 2], [2, 3, 2, 3]], ids=str)
def test_where_columns_do_not_divide_both_ends_are_rounded_down(widths):
    ranges = method.column_ranges(sum(widths), len(widths))
    assert [len(part) for part in ranges] == widths
    assert [place for part in ranges for place in part] == list(range(sum(widths)))


def test_migrated_columns_are_divided_evenly_over_all_that_send_none_and_a_plan_says_itself_in_sentences():
    plan = Plan.of_shares([0.125, 0, 0.25], [0.5, 0, 0])
    assert (plan.senders, plan.receivers, plan.is_plain) == ((0,), (1, 2), False)
    assert plan.describe() == (
        "rank 0 drops 12.5% of its columns and migrates 50.0% of its columns (25.0% to each of ranks 1 and 2).\n"
        "rank 1 multiplies all its columns and receives 25.0% as many from rank 0.\n"
        "rank 2 drops 25.0% of its columns and receives 25.0% as many from rank 0."
    )
    assert Plan.plain(1).describe() == "rank 0 multiplies all its columns."


def test_plans_are_near_if_they_differ_by_few_columns_and_not_in_who_does_what():
    plan = Plan.of_shares([0.5, 0], [0, 0])
    others = Plan.of_shares([0.5024, 0]), Plan.of_shares([0.5026, 0]), Plan.of_shares([0.5, 0], [0.001, 0])
    assert [plan.is_near(other) for other in others] == [True, False, False]
    assert not Plan.of_shares([0.001, 0]).is_near(Plan.plain(2))


def test_a_fitted_line_goes_through_two_points_and_is_never_negative_and_level_where_it_would_fall():
    # 8 s a share through (0.5, 2): at 0 it would be -2. A single point makes a constant.
    line = Line.fitted([0.5, 1.0], [2.0, 6.0])
    assert [line(share) for share in (0, 0.25, 0.5, 1, 1.5)] == [0, 0, 2, 6, 10]
    assert Line.fitted([0.5], [2.0]) == Line.fitted([0.25, 0.75], [3.0, 1.0]) == Line(at_zero_s=2.0)


NARROW = Costs.straight(compute_s=3.0, narrow_s=2.0, fixed_share=0.25)


def test_times_without_a_plan_divide_products_by_the_work_and_of_narrow_ones_less_is_in_proportion():
    # A rank's own products take 4 s, 1 of them however narrow: with half of its columns 1.5 of 2.5 s are in proportion.
    half = NARROW.proportional(RankTimes(own_s=3.5, product_s=2.5, work=0.5))
    assert half == RankTimes(own_s=3.5, product_s=1.5, work=0.5)
    whole = RankTimes(own_s=5.0, product_s=3.0)
    assert half.unresized() == NARROW.proportional(RankTimes(own_s=5.0, product_s=4.0)) == whole
    narrow = RankTimes(own_s=2.0, product_s=1.5, work=0.01)
    assert Costs.straight(compute_s=1.0).proportional(narrow) == narrow
    # 3 s of other things, 2 s of products on half of the columns: all of them take 4 s, 7 s in all.
    times = RankTimes(own_s=5.0, product_s=2.0, work=0.5)
    assert times.unresized() == RankTimes(own_s=7.0, product_s=4.0, work=1.0)
    assert RankTimes(own_s=3.0, product_s=0.0, work=0.0).unresized() == RankTimes(own_s=3.0, product_s=0.0)


def test_every_rank_pays_for_what_it_keeps_removes_sends_and_receives():
    # V = 0.5, sent in 1 s on all ranks; each of two receivers multiplies 0.25 more.
    # rank 0: 2 + 8 x (1 - 0.75) + 0.25 + 0.5 x 0.75 + 1 = 5.625; rank 1, twice as slow as rank 2: 2 + 2 + 0.5 + 1;
    # rank 2: 2 + 1 + 0.25 + 1.
    assert method.rank_s(ranks(8, 2, 1, other_s=2), SENT, COSTS) == (5.625, 5.5, 4.25)
    sender, receiver, _ = method.rank_parts(ranks(8, 2, 1, other_s=2), SENT, COSTS)
    assert sender == method.RankParts(other_s=2, kept_s=2, removing_s=0.625, received_s=0, transfer_s=1)
    assert receiver == method.RankParts(other_s=2, kept_s=2, removing_s=0, received_s=0.5, transfer_s=1)
    # Without senders 8 x 0.5 + 0.25 + 0.25, and without a plan the slowest rank's own time.
    assert method.rank_s(ranks(8, 1), Plan.of_shares([0.5, 0], [0, 0]), COSTS) == (4.5, 1.0)
    assert method.iteration_s(ranks(8, 1, 1, other_s=2), Plan.plain(3), COSTS) == 10
    resized = [RankTimes(own_s=4, product_s=2, work=0.25), *ranks(1, other_s=2)]
    assert method.rank_s(resized, Plan.plain(2), COSTS) == (10, 3)
    # Two senders of a half each, one receiver: 2 (0.3 + 0.5 x 1) = 1.6 s on all; it also multiplies their columns.
    costs = Costs.straight(communicate_s=1.0, whole_s=0.3, compute_s=1.0)
    plan = Plan.of_shares([0, 0, 0], [0.5, 0.5, 0])
    assert method.rank_s(ranks(4, 2, 1), plan, costs) == pytest.approx((2 + 1.6, 1 + 1.6, 1 + 1 + 1.6))
    # A normal rank's products take 4 s, 1 of them however narrow, and 2 s more of each sender. Rank 0 is twice as slow
    # and keeps half: 2 (1 + 3 x 0.5) s; ranks 1 and 2 multiply a quarter more: 4 + 2 + 3 x 0.25. All do 1 s else.
    plan = Plan.of_shares([0, 0, 0], [0.5, 0, 0])
    assert method.rank_s(list(map(NARROW.proportional, ranks(8, 4, 4, other_s=1))), plan, NARROW) == (6, 7.75, 7.75)


def test_a_balance_that_costs_nothing_ends_at_one_level():
    # L / 8 + 3 L = 4, and L / 8 + L / 4 + 2 L = 4.
    for product_s, level_s in (((8, 1, 1, 1), 1.28), ((8, 4, 1, 1), 32 / 19), ((1, 1), 1.0)):
        assert method.ideal_s(ranks(*product_s)) == pytest.approx(level_s)
        assert method.ideal_s(ranks(*product_s, other_s=3)) == pytest.approx(3 + level_s)
    # Rank 0 gives all its columns away and still takes 10 s.
    assert method.ideal_s([RankTimes(own_s=11, product_s=1), *ranks(1, 1)]) == pytest.approx(10)


def test_costs_survive_json():
    costs = replace(COSTS, communicate=Line(at_zero_s=-0.25, per_share_s=3.0), fixed_share=0.25)
    assert Costs.from_record(json.loads(json.dumps(costs.as_record()))) == costs


def shares_of(plan):
    """[dropped by each rank], [migrated by each rank]."""
    return shares(plan, "dropped"), shares(plan, "migrated")


def planned(times, costs=None, **policy):
    return shares_of(planner_of(Policy(**policy), len(times), costs)(times))


# Own times 9, 5, 2 and 2. Down to the fastest, 2: 7 of 8 and 3 of 4 s of products go, 7/8 and 3/4.
TWO = ranks(8, 4, 1, 1, other_s=1)
NOTHING = [0, 0, 0, 0]
GIVEN, TO_NORMAL = Plan.of_shares([0, 0, 0.25, 0], [0, 0.5, 0, 0]), replace(Plan.plain(2), to_normal=True)


def test_one_rank_baseline_and_given_plans_follow_no_times_and_as_many_of_the_slowest_migrate_as_are_named():
    assert planned(TWO, solution="Baseline") == (NOTHING, NOTHING)
    for times in (TWO, ranks(1, 1, 1, 1)):
        assert planned(times, solution="given", plan=GIVEN) == shares_of(GIVEN)
    assert planned(ranks(8), solution="given", plan=Plan.of_shares([0.5], [0])) == ([0.5], [0])
    for policy in ({}, {"solution": "MIG"}, {"solution": "ZERO", "pruning_ratio": 0.5}, {"refine": True}):
        assert planned(ranks(8), **policy) == ([0], [0])
    assert planned(TWO, solution="SEMI", num_senders=1) == ([0, 0.75, 0, 0], [0.875, 0, 0, 0])
    for policy in ({"solution": "MIG"}, {"solution": "SEMI", "num_senders": 3}):  # there are only two stragglers
        assert planned(TWO, **policy) == (NOTHING, [0.875, 0.75, 0, 0])


def test_zero_compares_with_the_policy_s_reference_or_drops_a_constant_ratio_on_stragglers():
    # The mean is 18/4 = 4.5: 4.5 of 8 and 0.5 of 4 s go.
    assert planned(TWO, solution="ZERO", reference="mean") == ([0.5625, 0.125, 0, 0], NOTHING)
    # Rank 0 drops half, 1 + 4 s now: the current mean is (5 + 5 + 2 + 2) / 4 = 3.5, of whole times still 4.5.
    now = [RankTimes(own_s=5, product_s=4, work=0.5), *TWO[1:]]
    assert planned(now, solution="ZERO") == ([5.5 / 8, 1.5 / 4, 0, 0], NOTHING)
    assert planned(now, solution="ZERO", reference="mean") == ([0.5625, 0.125, 0, 0], NOTHING)
    assert planned(TWO, solution="ZERO", pruning_ratio=0.25) == ([0.25, 0.25, 0, 0], NOTHING)
    assert planned(ranks(1.05, 1, 1), solution="ZERO", pruning_ratio=0.25) == ([0, 0, 0], [0, 0, 0])


def test_only_semi_and_refined_plans_need_a_pre_test():
    asks = {"solution": "SEMI"}, {"solution": "SEMI", "num_senders": 0}, {"solution": "MIG", "refine": True}
    does_not = {"solution": "ZERO", "pruning_ratio": 0.5}, {"solution": "MIG"}, {"solution": "Baseline"}
    assert [needs_costs(Policy(**policy)) for policy in (*asks, *does_not)] == [True] * 3 + [False] * 3


STRAIGHT = Costs.straight(compute_s=1)
BENT = replace(STRAIGHT, extract=Line(at_zero_s=-0.1, per_share_s=1.0))


def migrated(scheme="broadcast-reduce", num_senders=1, share=0.5):
    return lambda: cost.migration_epoch_time_s(scheme, num_senders, share)


def epoch(solution, **options):
    return lambda: cost.planned_epoch(solution, **options)


test_times_plans_costs_and_ratios_that_cannot_be_are_refused = refusals(
    (lambda: RankTimes(own_s=3.0, product_s=1.0, work=0.0).unresized(), "work is 0.0; it must be above 0"),
    (lambda: RankTimes(own_s=math.nan, product_s=0.0), "own_s is nan"),
    (lambda: RankTimes(own_s=1.0, product_s=2.0), "product_s is 2.0"),
    (lambda: RankPlan(dropped=1.0), "dropped is 1.0"),
    (lambda: RankPlan(dropped=0.5, migrated=0.5), r"dropped \+ migrated is 1.0"),
    (lambda: Plan(ranks=(RankPlan(migrated=0.1),) * 2), r"senders is \(0, 1\); it must be at most .* = 1"),
    (lambda: Plan(ranks=()), r"ranks is \(\)"),
    (lambda: method.receivers_of(2, [2], 2), r"senders has rank 2; it must be in 0\.\.1"),
    (lambda: method.receivers_of(0, [1], 3), r"sender is 0; it must be among the senders \(1,\)"),
    (lambda: method.receivers_of(0, [0, 1], 2), r"senders is \(0, 1\); it must be at most num_ranks - 1 = 1"),
    (lambda: Line(at_zero_s=math.inf), "at_zero_s is inf; it must be finite"),
    (lambda: Line(per_share_s=-1), "per_share_s is -1; it must be finite and never fall"),
    (lambda: Line(per_share_s=1.0)(-0.5), "share is -0.5"),
    (lambda: Costs.straight(alloc_s=-1, compute_s=1), "alloc_s is -1"),
    (lambda: replace(STRAIGHT, fixed_share=1.0), "fixed_share is 1.0"),
    (lambda: method.ideal_s([*ranks(1, other_s=1), *ranks(0, other_s=1)]), "product_s of rank 1 is 0"),
    (lambda: method.rank_s(ranks(1, 1), Plan.plain(3), STRAIGHT), "number of times is 2; it must be that of"),
    (lambda: method.speedup_bound(0.5, 4), "skewness is 0.5"),
    (lambda: method.split_of_one(1.0, STRAIGHT, 3), "removed is 1.0"),
    (lambda: method.plan_division(ranks(8, 4, 1, 1), 3), "num_senders is 3; it must be in 0..2"),
    (lambda: method.levelled_plan(ranks(8, 1), STRAIGHT, [0], speed_share=1), "speed_share is 1"),
    (lambda: method.fastest_division(ranks(3, 1), BENT, most_dropped=0), "extract.at_zero_s of costs is -0.1; it must"),
    (lambda: method.best_plan_by_search(ranks(8, 4, 2, 1), STRAIGHT, 40), "num_steps is 40; .*, not 551,368,000"),
    (lambda: method.num_dropped_columns(1.0, 4), r"pruning_ratio is 1.0; it must be in \[0, 1\)"),
    (lambda: method.kept_columns([-1], 4), "column -1"),
    (migrated(scheme="gossip"), "scheme is 'gossip'; it must be one of"),
    (migrated(num_senders=8), r"num_senders is 8; it must be an integer in 1\.\.7"),
    (migrated(share=1.01), r"migrated_share is 1.01; it must be in \[0, 1\]"),
    (epoch("PRAYER"), "solution is 'PRAYER'; it must be one of 'Baseline', 'ZERO', 'MIG'"),
    (epoch("ZERO", skewness={8: 2.0}), r"rank of skewness is 8; it must be in 0\.\.7"),
    (epoch("ZERO", skewness={0: 0.5}), "skewness of rank 0 is 0.5; it must be finite and"),
    (epoch("MIG", pruning_ratio=0.5), "pruning_ratio is 0.5; it must be None but for ZERO"),
    (lambda: check_policy(Policy(num_senders=4), 4), "num_senders is 4; it must be at most 3"),
    (lambda: check_policy(Policy(solution="given", plan=Plan.plain(4)), 3), "plan is .*; it must be of the group's 3"),
    (lambda: planned(TWO, solution="MIG", refine=True), "costs is None; it must be given where"),
    (lambda: simulate_ratios("ViT-2B", [0.5], ["Baseline"]), "model is 'ViT-2B'"),
    (lambda: simulate_ratios("ViT-1B", [0.5], ["SDP"]), "solution is 'SDP'"),
    (lambda: method.plan_equal_drop(ranks(1, other_s=1), 1.5), r"dropped is 1.5; it must be in \[0, all"),
    (lambda: check_policy(Policy(solution="given", plan=TO_NORMAL), 2), "to_normal of plan is True; it must be False"),
)

test_policies_that_contradict_themselves_are_refused = refusals(
    ({"scheme": "best"}, "'best'"),
    ({"solution": "ZERO", "pruning_ratio": 1.0}, r"pruning_ratio is 1.0; it must be in \[0, 1\)"),
    ({"solution": "MIG", "pruning_ratio": 0.5}, "pruning_ratio is 0.5; it must be None with MIG"),
    ({"solution": "given"}, "plan is None; it must be given with given, and only there"),
    ({"solution": "ZERO", "selection": "PriDiffE"}, "pruning_ratio is None; .* where selection is PriDiffE"),
    ({"solution": "MIG", "num_senders": 1}, "num_senders is 1; it must be None, or 0 or more where"),
    ({"solution": "ZERO", "refine": True}, "refine is True; it must be False where solution is ZERO"),
    ({"refine": True, "num_senders": 1}, "num_senders is 1; it must be None, or 0 or more where .* refine is False"),
    ({"refine": True, "selection": "PriDiffR"}, "selection is 'PriDiffR'; it must be Rd or Pri with refine or"),
    ({"patience": 0}, "patience is 0; it must be at least 1"),
    ({"micro_threshold": -0.1}, "micro_threshold is -0.1; it must be finite and 0 or more"),
    ({"pruning_ratio": "0.5"}, r"pruning_ratio is '0.5'; it must be of type int \| float \| None"),
    ({"num_senders": 1.0}, r"num_senders is 1.0; it must be of type int \| None"),
    ({"solution": "given", "plan": 3}, r"plan is 3; it must be of type .*Plan \| None"),
    of=Policy,
)
