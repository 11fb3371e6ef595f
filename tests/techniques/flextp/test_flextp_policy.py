"""What a user may ask of balancing, what is refused before any work, and the planner that follows."""

import math

import pytest
from flextp_cases import ranks, shares

from workbench.techniques.flextp.method import Costs, Plan, RankPlan, RankTimes
from workbench.techniques.flextp.runtime import Policy, check_policy, needs_costs, planner_of

PLAN = Plan.plain(2)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"scheme": "best"}, "'best'"),
        ({"solution": "ZERO", "pruning_ratio": 1.0}, r"pruning_ratio is 1.0; it must be in \[0, 1\)"),
        ({"solution": "MIG", "pruning_ratio": 0.5}, "pruning_ratio is 0.5; it must be None with MIG"),
        ({"solution": "given"}, "plan is None; it must be given with given, and only there"),
        ({"solution": "ZERO", "plan": PLAN}, "must be given with given, and only there"),
        ({"solution": "ZERO", "selection": "PriDiffE"}, "pruning_ratio is None; .* where selection is PriDiffE"),
        ({"solution": "MIG", "num_senders": 1}, "num_senders is 1; it must be None, or 0 or more where"),
        ({"solution": "ZERO", "refine": True}, "refine is True; it must be False where solution is ZERO"),
        ({"refine": True, "num_senders": 1}, "num_senders is 1; it must be None where refine is True"),
        ({"threshold": 0.0}, "threshold is 0.0; it must be finite and above 0"),
        ({"threshold": math.inf}, "threshold is inf; it must be finite and above 0"),
        ({"patience": 0}, "patience is 0; it must be at least 1"),
        ({"pruning_ratio": "0.5"}, "pruning_ratio is '0.5'; it must be a number"),
        ({"num_senders": 1.0}, "num_senders is 1.0; it must be a whole number"),
        ({"solution": "given", "plan": 3}, "plan is 3; it must be a Plan or None"),
        ({"refine": True, "selection": "PriDiffR"}, "selection is PriDiffR; it must be Rd or Pri where refine is True"),
        ({"micro_threshold": -1e-9}, "micro_threshold is -1e-09; it must be finite and 0 or more"),
        ({"speed_share": 1.0}, r"speed_share is 1.0; it must be in \[0, 1\)"),
        ({"decay": 1.1}, r"decay is 1.1; it must be in \[0, 1\]"),
        ({"iterations_per_epoch": 0}, "iterations_per_epoch is 0; it must be at least 1"),
    ],
)
def test_policies_that_contradict_themselves_are_refused(policy, message):
    with pytest.raises(ValueError, match=message):
        Policy(**policy)


def shares_of(plan):
    """[dropped by each rank], [migrated by each rank]."""
    return shares(plan, "dropped"), shares(plan, "migrated")


def planned(times, costs=None, **policy):
    return shares_of(planner_of(Policy(**policy), len(times), costs)(times))


# Own times 9, 5, 2 and 2. Down to the fastest, 2: 7 of 8 and 3 of 4 s of products go, 7/8 and 3/4.
TWO = ranks(8, 4, 1, 1, other_s=1)
NOTHING = [0, 0, 0, 0]
GIVEN = Plan(ranks=(RankPlan(), RankPlan(migrated=0.5), RankPlan(dropped=0.25), RankPlan()))


def test_one_rank_baseline_and_a_given_plan_follow_no_times():
    assert planned(TWO, solution="Baseline") == (NOTHING, NOTHING)
    for times in (TWO, ranks(1, 1, 1, 1)):
        assert planned(times, solution="given", plan=GIVEN) == shares_of(GIVEN)
    assert planned(ranks(8), solution="given", plan=Plan.of_shares([0.5], [0])) == ([0.5], [0])
    for policy in ({}, {"solution": "MIG"}, {"solution": "ZERO", "pruning_ratio": 0.5}, {"refine": True}):
        assert planned(ranks(8), **policy) == ([0], [0])


def test_zero_compares_with_the_policy_s_reference_or_drops_a_constant_ratio_on_stragglers():
    # The mean is 18/4 = 4.5: 4.5 of 8 and 0.5 of 4 s go.
    assert planned(TWO, solution="ZERO", reference="mean") == ([0.5625, 0.125, 0, 0], NOTHING)
    assert planned(TWO, solution="ZERO", reference="min") == ([0.875, 0.75, 0, 0], NOTHING)
    # Rank 0 drops half, 1 + 4 s now: the current mean is (5 + 5 + 2 + 2) / 4 = 3.5, of whole times still 4.5.
    now = [RankTimes(own_s=5, product_s=4, work=0.5), *TWO[1:]]
    assert planned(now, solution="ZERO") == ([5.5 / 8, 1.5 / 4, 0, 0], NOTHING)
    assert planned(now, solution="ZERO", reference="mean") == ([0.5625, 0.125, 0, 0], NOTHING)
    assert planned(TWO, solution="ZERO", pruning_ratio=0.25) == ([0.25, 0.25, 0, 0], NOTHING)
    assert planned(ranks(1.05, 1, 1), solution="ZERO", pruning_ratio=0.25) == ([0, 0, 0], [0, 0, 0])


def test_only_semi_and_refined_plans_need_a_pre_test():
    fixed = {"solution": "SEMI", "num_senders": 0}
    for policy in ({"solution": "SEMI"}, {"solution": "SEMI", "refine": True}, {"solution": "MIG", "refine": True}):
        assert needs_costs(Policy(**policy))
        with pytest.raises(ValueError, match="costs is None; it must be given where solution is"):
            planner_of(Policy(**policy), 4)
    assert needs_costs(Policy(**fixed))  # for times without what is fixed, not for the plan
    planner_of(Policy(**fixed), 4)
    for policy in ({"solution": "ZERO", "pruning_ratio": 0.5}, {"solution": "MIG"}, {"solution": "Baseline"}):
        assert not needs_costs(Policy(**policy))


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
    assert planned(TWO, solution="MIG") == (NOTHING, [0.875, 0.75, 0, 0])
    assert planned(TWO, solution="SEMI", num_senders=num_senders) == plan


def test_the_threshold_says_in_every_solution_who_is_a_straggler():
    # Rank 1 is 2.5 times as slow as the fastest, 5/4.5 times as slow as the mean.
    assert planned(TWO, solution="ZERO", reference="mean", threshold=0.2) == ([0.5625, 0, 0, 0], NOTHING)
    helped = {"ZERO": {"pruning_ratio": 0.25}, "MIG": {}, "SEMI": {"num_senders": 2}}
    for solution, more in helped.items():
        dropped, migrated = planned(TWO, solution=solution, threshold=1.6, **more)
        assert (dropped[0] + migrated[0] > 0, dropped[1], migrated[1]) == (True, 0, 0)
    costs = Costs.straight(communicate_s=0.1, compute_s=1)
    for solution in ("MIG", "SEMI"):
        for refine in (False, True):
            plain = planned(TWO, costs, solution=solution, refine=refine, threshold=3.6)
            assert plain == (NOTHING, NOTHING)


def test_policies_for_other_ranks_are_refused():
    check_policy(Policy(num_senders=3), 4)
    for check in (check_policy, planner_of):
        with pytest.raises(ValueError, match="num_senders is 4; it must be at most 3"):
            check(Policy(num_senders=4), 4)
        with pytest.raises(ValueError, match="plan is of 4 ranks; it must be of the group's 3"):
            check(Policy(solution="given", plan=GIVEN), 3)
