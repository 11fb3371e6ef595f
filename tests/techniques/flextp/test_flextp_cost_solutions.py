"""Epochs of Baseline, ZERO, MIG and SEMI from the model, and the map of who wins."""

import itertools

import pytest

from workbench.techniques.flextp.cost import (
    VIT_1B,
    VIT_3B,
    PlannedEpoch,
    Solution,
    division_epochs,
    epoch_of_plan,
    epoch_time_s,
    extraction_s,
    iteration_parts,
    migration_epoch_time_s,
    paper_machine,
    planned_epoch,
    winner_map,
    winner_of,
)
from workbench.techniques.flextp.method.plan import COMPARED, Plan, RankPlan
from workbench.techniques.flextp.method.planners import Reference, speedup_bound

PARTS = iteration_parts(VIT_1B, paper_machine())
ITERATIONS = 782
SLOW = {3: 8.0}


@pytest.mark.parametrize("skewness", [1.0, 2.0, 5.5, 8.0])
def test_baseline_takes_as_long_as_its_straggler_and_so_is_linear_in_skewness(skewness):
    expected_s = ITERATIONS * (PARTS.other_s + skewness * PARTS.product_s)
    assert epoch_time_s("Baseline", {3: skewness}) == pytest.approx(expected_s)


@pytest.mark.parametrize("solution", COMPARED)
def test_where_nobody_is_slow_nobody_does_anything(solution):
    epoch = planned_epoch(solution)
    assert epoch.plan.is_plain
    assert epoch.time_s == pytest.approx(373)
    assert epoch.waiting_s == pytest.approx([0] * 8)


def test_resizing_once_by_the_mean_brings_the_straggler_down_to_it_and_no_further():
    epoch = planned_epoch("ZERO", SLOW, reference=Reference.MEAN)
    # Mean of seven ranks of one product time and one of eight: 15 / 8. The straggler drops (8 - 15/8) / 8 = 49/64.
    assert epoch.plan.ranks[3].dropped == pytest.approx(49 / 64)
    assert epoch.dropped_share == pytest.approx(49 / 64 / 8)
    extracting_s = extraction_s(VIT_1B, paper_machine(), 0.5)
    assert epoch.time_s == pytest.approx(ITERATIONS * (PARTS.other_s + 15 / 8 * PARTS.product_s + extracting_s))
    assert epoch.own_s[3] == epoch.time_s
    assert epoch.waiting_s[0] == pytest.approx(ITERATIONS * (7 / 8 * PARTS.product_s + extracting_s))


def test_resizing_by_the_current_mean_brings_the_straggler_to_within_a_tenth_of_the_others():
    once, settled = (planned_epoch("ZERO", SLOW, reference=each) for each in (Reference.MEAN, Reference.CURRENT_MEAN))
    assert settled.plan.senders == () and [rank for rank, each in enumerate(settled.plan.ranks) if each.dropped] == [3]
    extracting_s = extraction_s(VIT_1B, paper_machine(), 0.5)
    plain_s, level_s = ITERATIONS * (PARTS.other_s + PARTS.product_s), settled.time_s - ITERATIONS * extracting_s
    assert plain_s < level_s < 1.1 * plain_s
    assert settled.time_s < once.time_s and settled.dropped_share > once.dropped_share


@pytest.mark.parametrize("workload", [VIT_1B, VIT_3B], ids=lambda workload: workload.name)
def test_no_speedup_of_resizing_once_exceeds_the_bound_of_its_criterion(workload):
    parts = iteration_parts(workload, paper_machine())
    for skewness in (2.0, 4.0, 8.0):
        epochs_s = [
            epoch_time_s(which, {0: skewness}, workload=workload, reference=Reference.MEAN)
            for which in ("Baseline", "ZERO")
        ]
        bound = speedup_bound(skewness, 8, other=parts.other_s / parts.product_s)
        assert 0.9 * bound < epochs_s[0] / epochs_s[1] <= bound


def test_a_given_ratio_prunes_every_rank_where_all_are_alike_and_stragglers_alone_where_not():
    everywhere, alone = planned_epoch("ZERO", pruning_ratio=0.5), planned_epoch("ZERO", SLOW, pruning_ratio=0.5)
    assert [rank.dropped for rank in everywhere.plan.ranks] == [0.5] * 8
    assert [rank.dropped for rank in alone.plan.ranks] == [0, 0, 0, 0.5, 0, 0, 0, 0]
    expected_s = PARTS.other_s + PARTS.product_s / 2 + extraction_s(VIT_1B, paper_machine(), 0.5)
    assert everywhere.time_s == pytest.approx(ITERATIONS * expected_s)


def test_epochs_fall_as_the_ratio_rises():
    epochs_s = [epoch_time_s("ZERO", pruning_ratio=ratio) for ratio in (0.25, 0.5, 0.75)]
    assert all(one > other for one, other in itertools.pairwise([373, *epochs_s]))


@pytest.mark.parametrize("refine", [False, True])
def test_migration_drops_nothing_and_beats_baseline_under_a_heavy_straggler(refine):
    epoch = planned_epoch("MIG", SLOW, refine=refine)
    assert epoch.plan.senders == (3,)
    assert epoch.dropped_share == 0
    assert epoch.time_s < epoch_time_s("Baseline", SLOW) / 3


def test_migrating_among_equals_costs_what_table_1_s_model_says_but_for_taking_columns_out():
    ranks = (RankPlan(migrated=0.5), RankPlan(migrated=0.5)) + (RankPlan(),) * 6
    epoch = epoch_of_plan(Plan(ranks=ranks))
    assert epoch.time_s == pytest.approx(migration_epoch_time_s("broadcast-reduce", 2, 0.5), rel=1e-4)
    assert epoch.own_s[0] < epoch.own_s[7]  # senders wait for receivers


def test_divisions_run_from_resizing_alone_to_migration_alone_and_drop_ever_less():
    epochs = division_epochs({0: 8.0, 1: 6.0, 2: 4.0, 3: 2.0})
    assert [epoch.plan.senders for epoch in epochs] == [(), (0,), (0, 1), (0, 1, 2), (0, 1, 2, 3)]
    # To the fastest rank's time: 7/8 + 5/6 + 3/4 + 1/2 of a rank's columns at first, of eight ranks.
    assert epochs[0].dropped_share == pytest.approx((7 / 8 + 5 / 6 + 3 / 4 + 1 / 2) / 8)
    assert [epoch.dropped_share for epoch in epochs] == sorted((each.dropped_share for each in epochs), reverse=True)
    assert epochs[-1].dropped_share == 0


@pytest.mark.parametrize("solution", ["MIG", "SEMI"])
def test_a_slower_link_never_makes_an_epoch_shorter(solution):
    machines = [paper_machine().with_bandwidth(bandwidth) for bandwidth in (1e11, 1e10, 1e9)]
    epochs_s = [epoch_time_s(solution, SLOW, machine=machine) for machine in machines]
    assert all(one < other for one, other in itertools.pairwise(epochs_s))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"solution": "PRAYER"}, "solution is 'PRAYER'; it must be one of 'Baseline', 'ZERO', 'MIG', 'SEMI'"),
        ({"skewness": {8: 2.0}}, "skewness has rank 8; ranks are 0..7"),
        ({"skewness": {0: 0.5}}, "skewness of rank 0 is 0.5; it must be finite and at least 1"),
        ({"pruning_ratio": 1.0}, r"dropped is 1.0; it must be in \[0, 1\)"),
        ({"solution": "MIG", "pruning_ratio": 0.5}, "pruning_ratio is 0.5; only ZERO takes one, solution is 'MIG'"),
    ],
)
def test_an_argument_out_of_range_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        epoch_time_s(**{"solution": "ZERO"} | arguments)


def epoch(time_s: float, dropped: float) -> PlannedEpoch:
    return PlannedEpoch(plan=Plan(ranks=(RankPlan(dropped=dropped), RankPlan())), time_s=time_s, own_s=(time_s, time_s))


def test_the_winner_drops_least_of_those_that_are_fast_enough_and_of_equals_comes_first():
    epochs = {Solution.ZERO: epoch(100.0, 0.5), Solution.MIG: epoch(104.0, 0.0), Solution.SEMI: epoch(104.0, 0.0)}
    assert winner_of(epochs, allowed_s=105.0) is Solution.MIG
    assert winner_of(epochs, allowed_s=103.0) is Solution.ZERO
    # Nothing is as fast as 90 s: those within a margin of the fastest count.
    assert winner_of(epochs, allowed_s=90.0) is Solution.ZERO
    assert winner_of(epochs, allowed_s=90.0, margin=0.05) is Solution.MIG


def test_under_heavy_stragglers_resizing_wins_on_slow_links_and_migration_on_fast_ones():
    slow, fast = winner_map(skewnesses=[8.0], nums_stragglers=[2], bandwidths_bytes_per_s=[1e9, 1e11])
    assert (slow.means, fast.means) == ("resizing", "migration")


def test_the_ideal_gives_every_rank_as_much_as_it_can_do_in_the_same_time():
    (point,) = winner_map(skewnesses=[8.0], nums_stragglers=[2], bandwidths_bytes_per_s=[1e10])
    # Six ranks and two of an eighth of their speed share eight shards: 8 / (6 + 2/8) of a product time each.
    other_s = iteration_parts(VIT_1B, paper_machine().with_bandwidth(1e10)).other_s
    assert point.ideal_s == pytest.approx(ITERATIONS * (other_s + 8 / 6.25 * PARTS.product_s))


def test_where_nobody_is_slow_doing_nothing_wins():
    points = winner_map(skewnesses=[1.0, 8.0], nums_stragglers=[0], bandwidths_bytes_per_s=[1e10])
    assert [(point.winner, point.means) for point in points] == [(Solution.BASELINE, "nothing")] * 2


def test_a_map_with_no_rank_left_to_receive_is_refused():
    with pytest.raises(ValueError, match=r"nums_stragglers has 8; each must be in 0..7"):
        winner_map(skewnesses=[2.0], nums_stragglers=[8], bandwidths_bytes_per_s=[1e9])
