"""Parts of an iteration, what migrating costs, epochs of the solutions, and who wins: by hand, limits, and table I."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest

from workbench.cluster import FittedMachine, Link
from workbench.models import Workload, vit
from workbench.reproduction import read_published
from workbench.techniques.flextp.cost import (
    CALIBRATION,
    CHOSEN_ON,
    VIT_1B,
    VIT_3B,
    PlannedEpoch,
    Scheme,
    Solution,
    calibrate,
    epoch_of_plan,
    epoch_time_s,
    extraction_s,
    iteration_parts,
    migration_epoch_time_s,
    migration_time,
    paper_machine,
    planned_epoch,
    published_epochs_s,
    table_1_cell,
    turns,
    winner_map,
    winner_of,
)
from workbench.techniques.flextp.method.plan import COMPARED, Plan, RankPlan
from workbench.techniques.flextp.method.planners import Reference

PUBLISHED = Path(__file__).parents[3] / "reproductions/flextp/published"
SETTING = PUBLISHED / "setting.csv"
# Two images of three tokens, hidden 8, heads of 4, one layer: on two ranks the four products have
# K x O = 8 x 12, 4 x 8, 8 x 16 and 16 x 8, together 384, and six rows each.
TINY = Workload(name="tiny", hidden=8, batch=2, num_layers=1, sequence=3, head_size=4, num_samples=5)


def machine(**changes) -> FittedMachine:
    whole = {"devices_per_host": 2, "memory_bytes_per_s": 10, "link": Link(bandwidth_bytes_per_s=4), "flops_per_s": 100}
    return FittedMachine(name="slow", source="test", **whole | changes)


def test_the_sizes_are_those_of_the_models_that_are_trained_and_of_the_paper():
    paper = {row.keys["model"]: row.value for row in read_published(SETTING) if row.quantity == "parameters"}
    for workload, config, num_iterations in ((VIT_1B, vit.VIT_1B, 782), (VIT_3B, vit.VIT_3B, 1563)):
        trained = (config.hidden_size, config.num_layers, config.sequence, config.hidden_size // config.num_heads)
        assert (workload.hidden, workload.num_layers, workload.sequence, workload.head_size) == trained
        assert config.mlp_size == 4 * workload.hidden
        assert workload.num_parameters == pytest.approx(paper[workload.name], rel=0.02)
        assert workload.num_iterations == num_iterations  # 50,000 / 64 = 781.25 and 50,000 / 32 = 1562.5


def test_an_iteration_is_the_sum_of_its_parts_each_over_its_own_rate():
    parts = iteration_parts(TINY, machine())
    assert parts.product_s == 13824 / 100
    assert parts.attention_s == 864 / 100
    assert parts.elementwise_s == TINY.elementwise_bytes(2) / 10
    assert parts.optimizer_s == 1075.2  # 28 x 12 x 64 / 2 = 10752 bytes
    assert parts.all_reduce_s == 4 * 96 / 4  # a ring of two passes 2 (2 - 1) / 2 of 6 x 8 x 2 bytes; four a layer
    assert parts.own_s == pytest.approx(parts.other_s + parts.product_s)


def test_taking_columns_out_costs_nothing_if_none_is_and_less_the_more_are():
    # Inputs 6 x (8 + 4 + 8 + 16) and weights 384 are 600 elements, 1200 bytes. Half of them kept: copied twice (read
    # and written, 2 bytes for each, so 4 x 0.5), gradients read (0.5) and written (1).
    assert extraction_s(TINY, machine(), 0.0) == 0
    assert extraction_s(TINY, machine(), 0.5) == 1200 * 3.5 / 10
    assert extraction_s(TINY, machine(), 0.25) > extraction_s(TINY, machine(), 0.75)
    with pytest.raises(ValueError, match=r"removed is 1.5; it must be in \[0, 1\]"):
        extraction_s(TINY, machine(), 1.5)


# --- migration

SCHEMES = list(Scheme)
# Six rows, hidden 8, four ranks. K x O of the shards: column-parallel 8 x 6, row-parallel 2 x 8, column-parallel
# 8 x 8, row-parallel 8 x 8. Bytes of fp16: weights 96 + 32 + 128 + 128 = 384, inputs of row-parallel layers
# 24 + 96 = 120, of column-parallel ones 96 + 96 = 192, outputs of column-parallel ones 72 + 96 = 168.
FOUR = FittedMachine(
    name="slow",
    source="test",
    devices_per_host=4,
    memory_bytes_per_s=1,
    link=Link(bandwidth_bytes_per_s=1),
    flops_per_s=3 * 2 * 6 * 192 / 9,  # 9 s in products: 48 + 16 + 64 + 64 multiplications a row, three times
    link_share=0.5,
)


def added(scheme: Scheme, num_senders: int, share: float, machine: FittedMachine = FOUR):
    return migration_time(scheme, TINY, machine, num_senders=num_senders, migrated_share=share)


def test_broadcast_reduce_takes_the_time_of_one_copy_out_and_one_back_of_every_sender():
    time = added(Scheme.BROADCAST_REDUCE, 1, 0.5)
    assert time.whole_s == 2 * 168  # grad_output out, output back
    assert time.out_s == (384 + 120) / 2
    assert time.back_s == (384 + 120) / 2
    assert time.product_s == 9 * 0.5 / 3  # half of a rank's products over three receivers
    assert time.total_s == time.transfer_s + 1.5
    two, three = added(Scheme.BROADCAST_REDUCE, 2, 0.5), added(Scheme.BROADCAST_REDUCE, 3, 0.5)
    assert (two.whole_s, two.out_s, two.product_s) == (2 * 336, 504, 9 * 0.5 * 2 / 2)
    assert two.back_s == 252  # two receivers send half a share to each of two senders
    assert three.back_s == 3 * 252  # the only receiver sends three shares
    assert three.product_s == 9 * 0.5 * 3


def test_scatter_gather_serves_one_receiver_after_the_other_at_the_rate_of_messages():
    time = added(Scheme.SCATTER_GATHER, 1, 0.5)
    assert time.whole_s == 2 * 168
    assert time.out_s == pytest.approx(3 * (384 + 120) / 2 / 0.5 - 9 / 3)  # less a third of the products
    assert time.back_s == pytest.approx((384 + 120 + 192) / 2 / 0.5 - 9 / 3)  # nothing is merged


def test_latencies_count_once_a_hop():
    late = replace(FOUR, link=Link(bandwidth_bytes_per_s=1e30, latency_s=1.0))
    broadcast, scatter = (added(scheme, 1, 1.0, late) for scheme in SCHEMES)
    assert broadcast.whole_s == pytest.approx(2 * 2 * 3)  # two layers, out and back, three hops
    assert broadcast.out_s == pytest.approx(4 * 3)
    assert broadcast.back_s == pytest.approx(4)
    assert scatter.out_s == pytest.approx(4 * 3 - 3)
    assert scatter.back_s == pytest.approx(4 * 2 * 3 - 3)  # two gradients from each of three receivers


@pytest.mark.parametrize(("num_senders", "num_receivers"), [(1, 7), (2, 6), (4, 4), (7, 1)])
def test_messages_in_a_row_are_those_of_senders_that_follow_each_other_from_receiver_to_receiver(
    num_senders, num_receivers
):
    ends = [[0] * num_receivers for _ in range(num_senders)]
    for sender, receiver in itertools.product(range(num_senders), range(num_receivers)):
        sender_free = ends[sender][receiver - 1] if receiver else 0
        receiver_free = ends[sender - 1][receiver] if sender else 0
        ends[sender][receiver] = max(sender_free, receiver_free) + 1
    assert turns(num_senders, num_receivers) == ends[-1][-1] == 7


@pytest.mark.parametrize("scheme", SCHEMES)
def test_nothing_migrated_costs_nothing_and_a_little_costs_what_travels_whole(scheme):
    assert added(scheme, 1, 0.0).total_s == 0
    least = added(scheme, 1, 1e-12)
    assert least.total_s == pytest.approx(least.whole_s, abs=8)  # messages of a byte
    # Messages hide behind products but give no time back.
    slow = added(Scheme.SCATTER_GATHER, 1, 0.5, replace(FOUR, flops_per_s=FOUR.flops_per_s / 1e6))
    assert (slow.out_s, slow.back_s) == (0, 0)


def test_the_model_hits_the_cells_that_it_is_fitted_to_and_the_others_within_a_twentieth():
    for scheme, share in itertools.product(SCHEMES, (0.0, 0.25, 0.5, 0.75, 1.0)):
        cell = table_1_cell(scheme, 1, share)
        error = migration_epoch_time_s(scheme, 1, share) / published_epochs_s((cell,))[cell] - 1
        assert error == pytest.approx(0, abs=1e-9 if cell in CALIBRATION else 0.05)
    fitted = paper_machine()
    assert 0 < fitted.flops_per_s < fitted.peak_flops_per_s
    assert fitted.message_link.bandwidth_bytes_per_s < fitted.link.bandwidth_bytes_per_s


def test_no_other_cell_than_those_named_is_looked_at():
    cells = dict(published_epochs_s())
    assert calibrate(cells | dict.fromkeys(CHOSEN_ON, 1.0)) == calibrate(cells) == paper_machine()
    for cell in CALIBRATION:
        assert calibrate(cells | {cell: 1.01 * cells[cell]}) != calibrate(cells)


def test_a_cell_that_is_missing_or_impossible_is_named():
    cells = dict(published_epochs_s(CALIBRATION))
    with pytest.raises(ValueError, match="cells_s lacks .*migrated_share 1.0"):
        calibrate({cell: cells[cell] for cell in CALIBRATION[:2]})
    with pytest.raises(ValueError, match="cells_s has 400 s for scatter-gather at share 1"):
        calibrate(cells | {CALIBRATION[2]: 400})
    with pytest.raises(ValueError, match="links and memory alone take longer"):
        calibrate(cells | {CALIBRATION[0]: 10.0, CALIBRATION[1]: 10.0})
    with pytest.raises(ValueError, match="table-1 has 0 rows of epoch_s with .*'num_senders': 3"):
        published_epochs_s((table_1_cell("scatter-gather", 3, 0.0),))


# --- solutions

PARTS = iteration_parts(VIT_1B, paper_machine())
ITERATIONS = 782
SLOW = {3: 8.0}
EXTRACTING_S = extraction_s(VIT_1B, paper_machine(), 0.5)


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
    assert epoch.time_s == pytest.approx(ITERATIONS * (PARTS.other_s + 15 / 8 * PARTS.product_s + EXTRACTING_S))
    assert epoch.own_s[3] == epoch.time_s
    assert epoch.waiting_s[0] == pytest.approx(ITERATIONS * (7 / 8 * PARTS.product_s + EXTRACTING_S))


def test_migrating_among_equals_costs_what_table_1_s_model_says_but_for_taking_columns_out():
    ranks = (RankPlan(migrated=0.5), RankPlan(migrated=0.5)) + (RankPlan(),) * 6
    epoch = epoch_of_plan(Plan(ranks=ranks))
    assert epoch.time_s == pytest.approx(migration_epoch_time_s("broadcast-reduce", 2, 0.5), rel=1e-4)
    assert epoch.own_s[0] < epoch.own_s[7]  # senders wait for receivers
    assert planned_epoch("MIG", SLOW, refine=True).plan.senders == (3,)


def epoch(time_s, dropped):
    return PlannedEpoch(plan=Plan.of_shares([dropped, 0], [0, 0]), time_s=time_s, own_s=(time_s, time_s))


def test_the_winner_drops_least_of_those_that_are_fast_enough_and_of_equals_comes_first():
    epochs = {Solution.ZERO: epoch(100.0, 0.5), Solution.MIG: epoch(104.0, 0.0), Solution.SEMI: epoch(104.0, 0.0)}
    assert winner_of(epochs, allowed_s=105.0) is Solution.MIG
    assert winner_of(epochs, allowed_s=103.0) is Solution.ZERO
    # Nothing is as fast as 90 s: those within a margin of the fastest count.
    assert winner_of(epochs, allowed_s=90.0) is Solution.ZERO
    assert winner_of(epochs, allowed_s=90.0, margin=0.05) is Solution.MIG


def test_the_map_says_what_wins_and_the_ideal_which_gives_every_rank_as_much_as_it_can_do_in_the_same_time():
    slow, fast = winner_map(skewnesses=[8.0], nums_stragglers=[2], bandwidths_bytes_per_s=[1e9, 1e11])
    assert (slow.means, fast.means) == ("resizing", "migration")
    # Six ranks and two of an eighth of their speed share eight shards: 8 / (6 + 2/8) of a product time each.
    other_s = iteration_parts(VIT_1B, paper_machine().with_bandwidth(1e9)).other_s
    assert slow.ideal_s == pytest.approx(ITERATIONS * (other_s + 8 / 6.25 * PARTS.product_s))
    points = winner_map(skewnesses=[1.0, 8.0], nums_stragglers=[0], bandwidths_bytes_per_s=[1e10])
    assert [(point.winner, point.means) for point in points] == [(Solution.BASELINE, "nothing")] * 2


MIGRATION = {"scheme": "broadcast-reduce", "num_senders": 1, "migrated_share": 0.5}
PLACES = {"skewnesses": [2.0], "nums_stragglers": [1], "bandwidths_bytes_per_s": [1e9]}


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        (migration_epoch_time_s, MIGRATION | {"scheme": "gossip"}, "scheme is 'gossip'; it must be one of"),
        (migration_epoch_time_s, MIGRATION | {"num_senders": 0}, "num_senders is 0; it must be an integer in 1..7"),
        (migration_epoch_time_s, MIGRATION | {"num_senders": 8}, "num_senders is 8; it must be an integer in 1..7"),
        (migration_epoch_time_s, MIGRATION | {"num_senders": 1.5}, "num_senders is 1.5; it must be an integer"),
        (
            migration_epoch_time_s,
            MIGRATION | {"migrated_share": 1.01},
            r"migrated_share is 1.01; it must be in \[0, 1\]",
        ),
        (migration_epoch_time_s, MIGRATION | {"migrated_share": math.nan}, "migrated_share is nan; it must be in"),
        (epoch_time_s, {"solution": "PRAYER"}, "solution is 'PRAYER'; it must be one of 'Baseline', 'ZERO', 'MIG'"),
        (epoch_time_s, {"solution": "ZERO", "skewness": {8: 2.0}}, "skewness has rank 8; ranks are 0..7"),
        (epoch_time_s, {"solution": "ZERO", "skewness": {0: 0.5}}, "skewness of rank 0 is 0.5; it must be finite and"),
        (epoch_time_s, {"solution": "ZERO", "pruning_ratio": 1.0}, r"dropped is 1.0; it must be in \[0, 1\)"),
        (epoch_time_s, {"solution": "MIG", "pruning_ratio": 0.5}, "pruning_ratio is 0.5; only ZERO takes one"),
        (winner_map, PLACES | {"nums_stragglers": [8]}, r"nums_stragglers has 8; each must be in 0..7"),
    ],
)
def test_an_argument_out_of_range_is_named_with_its_rule(call, arguments, message):
    with pytest.raises(ValueError, match=message):
        call(**arguments)
