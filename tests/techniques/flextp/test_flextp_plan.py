import json

import pytest

from workbench.techniques.flextp.method.plan import Plan, RankPlan, RankTimes


def test_unresized_times_divide_the_products_by_the_work():
    # 3 s of other things, 2 s of products on half of the columns: all of them take 4 s, 7 s in all.
    times = RankTimes(own_s=5.0, product_s=2.0, work=0.5)
    assert times.unresized() == RankTimes(own_s=7.0, product_s=4.0, work=1.0)


def test_times_without_products_are_their_own_unresized_equivalents():
    assert RankTimes(own_s=3.0, product_s=0.0, work=0.0).unresized() == RankTimes(own_s=3.0, product_s=0.0)


def test_products_without_columns_are_refused():
    with pytest.raises(ValueError, match="work is 0.0; it must be above 0"):
        RankTimes(own_s=3.0, product_s=1.0, work=0.0).unresized()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"own_s": -1.0, "product_s": 0.0}, "own_s is -1.0"),
        ({"own_s": float("nan"), "product_s": 0.0}, "own_s is nan"),
        ({"own_s": 1.0, "product_s": 2.0}, "product_s is 2.0"),
        ({"own_s": 1.0, "product_s": 0.5, "work": -0.5}, "work is -0.5"),
        ({"own_s": 1.0, "product_s": 0.5, "work": 1.25}, "work is 1.25"),
    ],
)
def test_times_that_cannot_be_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        RankTimes(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dropped": 1.0}, "dropped is 1.0"),
        ({"dropped": -0.1}, "dropped is -0.1"),
        ({"migrated": 1.0}, "migrated is 1.0"),
        ({"dropped": 0.5, "migrated": 0.5}, r"dropped \+ migrated is 1.0"),
    ],
)
def test_a_rank_always_keeps_columns(fields, message):
    with pytest.raises(ValueError, match=message):
        RankPlan(**fields)


def test_migrated_columns_are_divided_evenly_over_all_that_send_none():
    # Rank 0 sends 0.6 and rank 2 sends 0.2: 0.8 over the two receivers is 0.4 each; rank 3 drops 0.5 of its own.
    plan = Plan(ranks=(RankPlan(dropped=0.2, migrated=0.6), RankPlan(), RankPlan(migrated=0.2), RankPlan(dropped=0.5)))
    assert (plan.senders, plan.receivers) == ((0, 2), (1, 3))
    assert [plan.received_share(rank) for rank in range(4)] == pytest.approx([0, 0.4, 0, 0.4])
    assert not plan.is_plain


def test_a_plan_in_which_every_rank_migrates_has_nobody_to_receive():
    with pytest.raises(ValueError, match=r"senders is \(0, 1\); at most num_ranks - 1 = 1"):
        Plan(ranks=(RankPlan(migrated=0.1),) * 2)


def test_a_plan_says_itself_in_a_sentence_a_rank():
    plan = Plan(ranks=(RankPlan(dropped=0.125, migrated=0.5), RankPlan(), RankPlan(dropped=0.25)))
    assert plan.describe() == (
        "rank 0 drops 12.5% of its columns and migrates 50.0% of its columns (25.0% to each of ranks 1 and 2).\n"
        "rank 1 multiplies all its columns and receives 25.0% as many from rank 0.\n"
        "rank 2 drops 25.0% of its columns and receives 25.0% as many from rank 0."
    )
    assert Plan.plain(1).describe() == "rank 0 multiplies all its columns."


def test_a_plan_survives_json():
    plan = Plan(ranks=(RankPlan(dropped=0.1, migrated=0.7), RankPlan()))
    assert Plan.from_record(json.loads(json.dumps(plan.as_record()))) == plan


def test_plans_are_near_if_they_differ_by_few_columns_and_not_in_who_does_what():
    plan = Plan(ranks=(RankPlan(dropped=0.5), RankPlan()))
    assert plan.is_near(Plan(ranks=(RankPlan(dropped=0.502), RankPlan())))
    assert not plan.is_near(Plan(ranks=(RankPlan(dropped=0.52), RankPlan())))
    assert not Plan(ranks=(RankPlan(dropped=0.001), RankPlan())).is_near(Plan.plain(2))
    assert not plan.is_near(Plan(ranks=(RankPlan(dropped=0.5, migrated=0.001), RankPlan())))
