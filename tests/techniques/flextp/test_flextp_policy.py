"""What a user may ask of balancing, what is refused before any work, and the planner that follows."""

import math
from dataclasses import fields, replace

import pytest

from workbench.techniques.flextp.method import (
    Costs,
    Imputation,
    Plan,
    RankPlan,
    RankTimes,
    Reference,
    Scheme,
    Selection,
    Solution,
)
from workbench.techniques.flextp.runtime import Policy, check_policy, needs_costs, planner_of

PLAN = Plan.plain(2)


def test_by_default_stragglers_drop_and_migrate_as_in_the_paper():
    policy = Policy()
    assert (policy.solution, policy.selection, policy.imputation) == ("SEMI", Selection("Pri"), Imputation("Zero"))
    assert (policy.threshold, policy.decay, policy.scheme) == (0.1, 0.8, "broadcast-reduce")  # III-A, III-B, IV-A
    assert policy.is_incremental
    assert (policy.pruning_ratio, policy.num_senders, policy.refine) == (None, None, False)


def test_choices_may_be_named_as_the_paper_names_them():
    named = Policy(solution="ZERO", selection="Pri", reference="min", imputation="Average", scheme="scatter-gather")
    chosen = Policy(
        solution=Solution.ZERO,
        selection=Selection.PRIORITY,
        reference=Reference.MIN,
        imputation=Imputation.AVERAGE,
        scheme=Scheme.SCATTER_GATHER,
    )
    assert named == chosen
    assert str(named) == str(chosen)  # which is what ranks compare


@pytest.mark.parametrize("field", ["solution", "selection", "reference", "imputation", "scheme"])
def test_a_choice_that_there_is_not_is_refused(field):
    with pytest.raises(ValueError, match=f"{field} is 'best'; it must be one of"):
        Policy(**{field: "best"})


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"solution": "ZERO", "pruning_ratio": 1.0}, r"pruning_ratio is 1.0; it must be in \[0, 1\)"),
        ({"solution": "ZERO", "pruning_ratio": -0.1}, r"pruning_ratio is -0.1; it must be in \[0, 1\)"),
        ({"solution": "ZERO", "pruning_ratio": math.nan}, r"pruning_ratio is nan; it must be in \[0, 1\)"),
        ({"solution": "MIG", "pruning_ratio": 0.5}, "pruning_ratio is 0.5; it must be None with MIG"),
        ({"solution": "given"}, "plan is None; it must be given with given, and only there"),
        ({"solution": "ZERO", "plan": PLAN}, "must be given with given, and only there"),
        ({"solution": "ZERO", "selection": "PriDiffE"}, "pruning_ratio is None; .* where selection is PriDiffE"),
        (
            {"solution": "MIG", "num_senders": 1},
            "num_senders is 1; it must be None, or 0 or more where solution is SEMI",
        ),
        ({"num_senders": -1}, "num_senders is -1; it must be None, or 0 or more where solution is SEMI"),
        ({"solution": "ZERO", "refine": True}, "refine is True; it must be False where solution is ZERO"),
        ({"solution": "Baseline", "refine": True}, "refine is True; it must be False where solution is Baseline"),
        ({"refine": True, "num_senders": 1}, "num_senders is 1; it must be None where refine is True"),
        ({"threshold": 0.0}, "threshold is 0.0; it must be finite and above 0"),
        ({"threshold": math.inf}, "threshold is inf; it must be finite and above 0"),
        ({"patience": 0}, "patience is 0; it must be at least 1"),
        ({"patience": 1.5}, "patience is 1.5; it must be a whole number"),
        ({"pruning_ratio": "0.5"}, "pruning_ratio is '0.5'; it must be a number"),
        ({"decay": None}, "decay is None; it must be a number"),
        ({"num_senders": 1.0}, "num_senders is 1.0; it must be a whole number"),
        ({"iterations_per_epoch": "4"}, "iterations_per_epoch is '4'; it must be a whole number"),
        ({"seed": None}, "seed is None; it must be a whole number"),
        ({"solution": "given", "plan": 3}, "plan is 3; it must be a Plan or None"),
        ({"refine": True, "selection": "PriDiffR"}, "selection is PriDiffR; it must be Rd or Pri where refine is True"),
        ({"micro_threshold": -1e-9}, "micro_threshold is -1e-09; it must be finite and 0 or more"),
        ({"micro_threshold": math.inf}, "micro_threshold is inf; it must be finite and 0 or more"),
        ({"speed_share": 1.0}, r"speed_share is 1.0; it must be in \[0, 1\)"),
        ({"speed_share": -0.5}, r"speed_share is -0.5; it must be in \[0, 1\)"),
        ({"decay": 1.1}, r"decay is 1.1; it must be in \[0, 1\]"),
        ({"decay": -0.1}, r"decay is -0.1; it must be in \[0, 1\]"),
        ({"iterations_per_epoch": 0}, "iterations_per_epoch is 0; it must be at least 1"),
    ],
)
def test_policies_that_contradict_themselves_are_refused(policy, message):
    with pytest.raises(ValueError, match=message):
        Policy(**policy)


@pytest.mark.parametrize(
    "policy",
    [
        {"solution": "ZERO", "pruning_ratio": 0.0},
        {"solution": "ZERO", "selection": "PriDiffE", "pruning_ratio": 0.5},
        {"solution": "given", "plan": PLAN},
        {"num_senders": 0},
        {"solution": "MIG", "refine": True},
        {"micro_threshold": 0.0, "speed_share": 0.0, "decay": 0.0, "iterations_per_epoch": 1},
        {"decay": 1.0, "speed_share": 0.99, "threshold": 5.0},
    ],
)
def test_the_ends_of_every_range_are_allowed(policy):
    made = Policy(**policy)
    assert {field: getattr(made, field) for field in policy} == {
        field: {"selection": Selection.DIFFERENTIATED_EMPIRICAL}.get(field, value) for field, value in policy.items()
    }


def test_ranks_see_a_difference_in_any_field_of_their_policies():
    other = {
        "solution": "ZERO",
        "selection": "Rd",
        "pruning_ratio": 0.5,
        "plan": PLAN,
        "refine": True,
        "speed_share": 0.5,
        "num_senders": 1,
        "reference": "min",
        "imputation": "Same",
        "scheme": "scatter-gather",
        "threshold": 0.2,
        "patience": 2,
        "decay": 0.5,
        "micro_threshold": 0.1,
        "iterations_per_epoch": 7,
        "is_incremental": False,
        "seed": 1,
    }
    assert set(other) == {field.name for field in fields(Policy)}
    more = {"pruning_ratio": {"solution": "ZERO"}, "plan": {"solution": "given"}}
    made = {str(replace(Policy(), **{name: value}, **more.get(name, {}))) for name, value in other.items()}
    assert len(made | {str(Policy())}) == len(other) + 1


def ranks(*product_s, other_s=0.0):
    return [RankTimes(own_s=other_s + seconds, product_s=seconds) for seconds in product_s]


def shares(plan):
    """[dropped by each rank], [migrated by each rank]."""
    return [rank.dropped for rank in plan.ranks], [rank.migrated for rank in plan.ranks]


def planned(times, costs=None, **policy):
    return shares(planner_of(Policy(**policy), len(times), costs)(times))


# Own times 9, 5, 2 and 2. Down to the fastest, 2: 7 of 8 and 3 of 4 s of products go, 7/8 and 3/4.
TWO = ranks(8, 4, 1, 1, other_s=1)
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


def test_a_refined_plan_drops_for_the_speed_asked_for_and_a_sender_sends_at_least_a_thirty_second():
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
    assert [needs_costs(Policy(**policy)) for policy in needing] == [True] * 4
    assert [needs_costs(Policy(**policy)) for policy in others] == [False] * 5
    for policy in needing[:1] + needing[2:]:
        with pytest.raises(ValueError, match=f"costs is None; it must be given where solution is {policy['solution']}"):
            planner_of(Policy(**policy), 4)
    for policy in [*others, needing[1]]:  # whose plan asks for no costs, but for times without what is fixed
        planner_of(Policy(**policy), 4)


def test_policies_for_other_ranks_are_refused():
    check_policy(Policy(num_senders=3), 4)
    for check in (check_policy, planner_of):
        with pytest.raises(ValueError, match="num_senders is 4; it must be at most 3"):
            check(Policy(num_senders=4), 4)
        with pytest.raises(ValueError, match="plan is of 4 ranks; it must be of the group's 3"):
            check(Policy(solution="given", plan=GIVEN), 3)
