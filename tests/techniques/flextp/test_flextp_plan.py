"""Times, plans and the dealing out of migrated columns."""

import json

import pytest

from workbench.techniques.flextp.method import Plan, RankPlan, RankTimes, column_ranges, receivers_of


def test_unresized_times_divide_the_products_by_the_work():
    # 3 s of other things, 2 s of products on half of the columns: all of them take 4 s, 7 s in all.
    times = RankTimes(own_s=5.0, product_s=2.0, work=0.5)
    assert times.unresized() == RankTimes(own_s=7.0, product_s=4.0, work=1.0)
    assert RankTimes(own_s=3.0, product_s=0.0, work=0.0).unresized() == RankTimes(own_s=3.0, product_s=0.0)


NAN = float("nan")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RankTimes(own_s=3.0, product_s=1.0, work=0.0).unresized(), "work is 0.0; it must be above 0"),
        (lambda: RankTimes(own_s=-1.0, product_s=0.0), "own_s is -1.0"),
        (lambda: RankTimes(own_s=NAN, product_s=0.0), "own_s is nan"),
        (lambda: RankTimes(own_s=1.0, product_s=2.0), "product_s is 2.0"),
        (lambda: RankTimes(own_s=1.0, product_s=0.5, work=-0.5), "work is -0.5"),
        (lambda: RankTimes(own_s=1.0, product_s=0.5, work=1.25), "work is 1.25"),
        (lambda: RankPlan(dropped=1.0), "dropped is 1.0"),
        (lambda: RankPlan(dropped=-0.1), "dropped is -0.1"),
        (lambda: RankPlan(migrated=1.0), "migrated is 1.0"),
        (lambda: RankPlan(dropped=0.5, migrated=0.5), r"dropped \+ migrated is 1.0"),
        (lambda: Plan(ranks=(RankPlan(migrated=0.1),) * 2), r"senders is \(0, 1\); it must have at most .* = 1"),
        (lambda: Plan(ranks=()), r"ranks is \(\)"),
        (lambda: receivers_of(2, [2], 2), r"senders has rank 2; it must be in 0\.\.1"),
        (lambda: receivers_of(0, [1], 3), r"sender is 0; it must be among the senders \(1,\)"),
        (lambda: receivers_of(0, [0, 1], 2), "senders has 2 of 2 ranks; it must leave one to receive"),
        (lambda: column_ranges(-1, 2), "num_columns is -1"),
        (lambda: column_ranges(1, 0), "num_receivers is 0"),
    ],
)
def test_times_and_plans_that_cannot_be_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("num_columns", "widths"),
    [(0, [0, 0, 0]), (1, [0, 0, 1]), (2, [0, 1, 1]), (5, [1, 2, 2]), (7, [1, 2, 2, 2]), (10, [2, 3, 2, 3])],
)
def test_where_columns_do_not_divide_both_ends_are_rounded_down(num_columns, widths):
    ranges = column_ranges(num_columns, len(widths))
    assert [len(part) for part in ranges] == widths
    assert [place for part in ranges for place in part] == list(range(num_columns))


def test_migrated_columns_are_divided_evenly_over_all_that_send_none():
    # Rank 0 sends 0.6 and rank 2 sends 0.2: 0.8 over the two receivers is 0.4 each; rank 3 drops 0.5 of its own.
    plan = Plan(ranks=(RankPlan(dropped=0.2, migrated=0.6), RankPlan(), RankPlan(migrated=0.2), RankPlan(dropped=0.5)))
    assert (plan.senders, plan.receivers) == ((0, 2), (1, 3))
    assert [plan.received_share(rank) for rank in range(4)] == pytest.approx([0, 0.4, 0, 0.4])
    assert not plan.is_plain


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
    assert plan.is_near(Plan(ranks=(RankPlan(dropped=0.5024), RankPlan())))
    assert not plan.is_near(Plan(ranks=(RankPlan(dropped=0.5026), RankPlan())))
    assert not Plan(ranks=(RankPlan(dropped=0.001), RankPlan())).is_near(Plan.plain(2))
    assert not plan.is_near(Plan(ranks=(RankPlan(dropped=0.5, migrated=0.001), RankPlan())))
