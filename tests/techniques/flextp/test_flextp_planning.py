"""From a policy to a plan: every solution's planner, on times whose plans are worked by hand."""

import pytest

from workbench.techniques.flextp.method.costs import Costs
from workbench.techniques.flextp.method.plan import Plan, RankPlan, RankTimes
from workbench.techniques.flextp.runtime.policy import Policy, check_policy, needs_costs, planner_of


def ranks(*product_s, other_s=0.0):
    return [RankTimes(own_s=other_s + each, product_s=each) for each in product_s]


def shares(plan):
    """[dropped by each rank], [migrated by each rank]."""
    return [each.dropped for each in plan.ranks], [each.migrated for each in plan.ranks]


def planned(times, costs=None, **policy):
    return shares(planner_of(Policy(**policy), len(times), costs)(times))


# Own times 9, 5, 2 and 2. Down to the fastest, 2: 7 of 8 and 3 of 4 s of products go, 7/8 and 3/4.
TWO = ranks(8, 4, 1, 1, other_s=1)
ONE = ranks(8, 1, 1, 1)
NOTHING = [0, 0, 0, 0]
GIVEN = Plan(ranks=(RankPlan(), RankPlan(migrated=0.5), RankPlan(dropped=0.25), RankPlan()))


def test_baseline_changes_nothing_and_a_given_plan_holds_whatever_the_times():
    assert planned(TWO, solution="Baseline") == (NOTHING, NOTHING)
    assert planned(TWO, solution="given", plan=GIVEN) == shares(GIVEN)
    assert planned(ranks(1, 1, 1, 1), solution="given", plan=GIVEN) == shares(GIVEN)


def test_zero_compares_with_the_policy_s_reference():
    # The mean is 18/4 = 4.5: 4.5 of 8 and 0.5 of 4 s go.
    assert planned(TWO, solution="ZERO", reference="mean") == ([0.5625, 0.125, 0, 0], NOTHING)
    assert planned(TWO, solution="ZERO", reference="min") == ([0.875, 0.75, 0, 0], NOTHING)
    # Rank 0 drops half, 1 + 4 s now: the current mean is (5 + 5 + 2 + 2) / 4 = 3.5, of whole times still 4.5.
    now = [RankTimes(own_s=5, product_s=4, work=0.5), *TWO[1:]]
    assert planned(now, solution="ZERO") == ([5.5 / 8, 1.5 / 4, 0, 0], NOTHING)
    assert planned(now, solution="ZERO", reference="mean") == ([0.5625, 0.125, 0, 0], NOTHING)


def test_a_constant_ratio_is_dropped_by_every_straggler_and_by_no_other():
    assert planned(TWO, solution="ZERO", pruning_ratio=0.25) == ([0.25, 0.25, 0, 0], NOTHING)
    assert planned(ranks(1.05, 1, 1), solution="ZERO", pruning_ratio=0.25) == ([0, 0, 0], [0, 0, 0])


def test_migration_alone_migrates_what_brings_stragglers_down_to_the_fastest():
    assert planned(TWO, solution="MIG") == (NOTHING, [0.875, 0.75, 0, 0])


@pytest.mark.parametrize(
    ("num_senders", "plan"),
    [
        (0, ([0.875, 0.75, 0, 0], NOTHING)),
        (1, ([0, 0.75, 0, 0], [0.875, 0, 0, 0])),
        (2, (NOTHING, [0.875, 0.75, 0, 0])),
        (3, (NOTHING, [0.875, 0.75, 0, 0])),  # there are only two stragglers
    ],
)
def test_the_slowest_stragglers_migrate_as_many_as_the_policy_names(num_senders, plan):
    assert planned(TWO, solution="SEMI", num_senders=num_senders) == plan


def test_semi_lets_as_many_stragglers_migrate_as_pays():
    # The second one saves 3 s. Sending 1.625 of a rank's columns takes 1.625 s at 1 s a share, and each of two ranks
    # multiplies 0.8125: 2.4375 s. At 2 s a share that is 4.0625 s; the first alone saves 7 s and costs 1.75 + 4 · 7/24.
    cheap, dear = (Costs.straight(communicate_s=seconds, compute_s=1) for seconds in (1, 2))
    assert planned(TWO, cheap, solution="SEMI") == (NOTHING, [0.875, 0.75, 0, 0])
    assert planned(TWO, dear, solution="SEMI") == ([0, 0.75, 0, 0], [0.875, 0, 0, 0])


def test_semi_divides_one_straggler_s_columns_so_that_both_sides_pay_alike():
    # m + r = 7/8 and r = m + m / 3: m = 3/8.
    costs = Costs.straight(extract_s=1, communicate_s=1, compute_s=1)
    dropped, migrated = planned(ONE, costs, solution="SEMI")
    assert migrated == pytest.approx([0.375, 0, 0, 0])
    assert dropped == pytest.approx([0.5, 0, 0, 0])


def test_refined_plans_level_all_ranks_and_drop_only_for_the_speed_asked_for():
    # 8 (1 - m) = 1 + m / 3. Sending m takes m / 2: 1.28 + 0.42 s, three quarters of the ideal's speed, 1.28 s. For nine
    # tenths receivers end at 1 + m / 3 + m / 2 = 1.28 / 0.9, and the straggler drops the rest.
    costs = Costs.straight(communicate_s=0.5, compute_s=1)
    for policy in ({"solution": "MIG"}, {"solution": "SEMI", "speed_share": 0.75}):
        dropped, migrated = planned(ONE, costs, refine=True, **policy)
        assert (dropped, migrated) == (NOTHING, pytest.approx([0.84, 0, 0, 0]))
    dropped, migrated = planned(ONE, costs, solution="SEMI", refine=True, speed_share=0.9)
    m = (1.28 / 0.9 - 1) * 6 / 5
    assert migrated[0] == pytest.approx(m, abs=1e-6)
    assert dropped[0] == pytest.approx(1 - m - (1.28 / 0.9 - m / 2) / 8, abs=1e-6)


def test_the_threshold_says_in_every_solution_who_is_a_straggler():
    # Rank 1 is 2.5 times as slow as the fastest, 5/4.5 times as slow as the mean.
    assert planned(TWO, solution="ZERO", reference="mean", threshold=0.2) == ([0.5625, 0, 0, 0], NOTHING)
    found = {"ZERO": {"pruning_ratio": 0.25}, "MIG": {}, "SEMI": {"num_senders": 2}}
    for solution, more in found.items():
        dropped, migrated = planned(TWO, solution=solution, threshold=1.6, **more)
        assert (dropped[0] + migrated[0] > 0, dropped[1], migrated[1]) == (True, 0, 0)
    costs = Costs.straight(communicate_s=0.1, compute_s=1)
    for solution in ("MIG", "SEMI"):
        for refine in (False, True):
            plain = planned(TWO, costs, solution=solution, refine=refine, threshold=3.6)
            assert plain == (NOTHING, NOTHING)


def test_a_straggler_gives_up_ninety_nine_hundredths_at_most_so_that_it_can_be_measured():
    # Products take 2 s of 10 and all others need 1 s: not even all of them would be enough.
    times = [RankTimes(own_s=10, product_s=2), *ranks(1, 1)]
    assert planned(times, solution="ZERO", reference="min") == ([0.99, 0, 0], [0, 0, 0])
    assert planned(times, solution="MIG") == ([0, 0, 0], [0.99, 0, 0])
    free = Costs.straight(compute_s=1)
    assert planned(times, free, solution="MIG", refine=True)[1] == pytest.approx([0.99, 0, 0], abs=1e-6)


def test_a_sender_of_a_refined_plan_sends_at_least_a_thirty_second():
    # All goes to the one normal rank: 8 (1 - m) = 1 + m + 1/32. As a receiver rank 1 would slow the others' columns.
    free = Costs.straight(compute_s=1)
    dropped, migrated = planned(ranks(8, 1.6, 1), free, solution="MIG", refine=True)
    assert (dropped, migrated) == ([0, 0, 0], pytest.approx([6.96875 / 9, 1 / 32, 0], abs=1e-6))

    # Sending takes 0.2 s a share. The ideal is 3 / (1/8 + 1/1.6 + 1) = 12/7 s; nine tenths of its speed are 40/21 s:
    # the receiver takes 1 + v + 0.2 v = 40/21, v = 0.754. Of the share that each gives up v's part migrates, and the
    # rest is dropped.
    volume = (40 / 21 - 1) / 1.2
    given_up = [1 - (40 / 21 - 0.2 * volume) / 8, 1 / 32]
    part = volume / sum(given_up)
    costs = Costs.straight(communicate_s=0.2, compute_s=1)
    dropped, migrated = planned(ranks(8, 1.6, 1), costs, solution="SEMI", refine=True, speed_share=0.9)
    assert migrated == pytest.approx([given_up[0] * part, part / 32, 0], abs=1e-6)
    assert dropped == pytest.approx([given_up[0] * (1 - part), (1 - part) / 32, 0], abs=1e-6)


def test_plans_are_near_while_they_differ_by_less_than_one_column_in_four_hundred():
    for field in ("dropped", "migrated"):
        plan = Plan(ranks=(RankPlan(**{field: 0.5}), RankPlan()))
        for change, is_near in ((0.0024, True), (-0.0024, True), (0.0026, False), (-0.0026, False)):
            assert plan.is_near(Plan(ranks=(RankPlan(**{field: 0.5 + change}), RankPlan()))) is is_near


def test_one_rank_alone_keeps_its_columns_unless_a_plan_was_given():
    for policy in ({}, {"solution": "MIG"}, {"solution": "ZERO", "pruning_ratio": 0.5}, {"refine": True}):
        assert planned(ranks(8), **policy) == ([0], [0])
    plan = Plan(ranks=(RankPlan(dropped=0.5),))
    assert planned(ranks(8), solution="given", plan=plan) == ([0.5], [0])


def test_only_semi_and_refined_plans_need_a_pre_test():
    needing = [
        {"solution": "SEMI"},
        {"solution": "SEMI", "num_senders": 0},
        {"solution": "SEMI", "refine": True},
        {"solution": "MIG", "refine": True},
    ]
    others = [
        {"solution": "Baseline"},
        {"solution": "ZERO"},
        {"solution": "ZERO", "pruning_ratio": 0.5},
        {"solution": "MIG"},
        {"solution": "given", "plan": GIVEN},
    ]
    assert [needs_costs(Policy(**each)) for each in needing] == [True] * 4
    assert [needs_costs(Policy(**each)) for each in others] == [False] * 5
    for each in needing[:1] + needing[2:]:
        with pytest.raises(ValueError, match=f"costs is None; it must be given where solution is {each['solution']}"):
            planner_of(Policy(**each), 4)
    for each in [*others, needing[1]]:  # whose plan asks for no costs, but for times without what is fixed
        planner_of(Policy(**each), 4)


def test_policies_for_other_ranks_are_refused():
    check_policy(Policy(num_senders=3), 4)
    for check in (check_policy, planner_of):
        with pytest.raises(ValueError, match="num_senders is 4; it must be at most 3 of 4 ranks"):
            check(Policy(num_senders=4), 4)
        with pytest.raises(ValueError, match="plan is of 4 ranks; it must be of the group's 3"):
            check(Policy(solution="given", plan=GIVEN), 3)
