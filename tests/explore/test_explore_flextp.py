"""The lesson on straggler-tolerant tensor parallelism: explorer, timelines, watched ranks."""

import pytest
import torch

from workbench.explore import flextp as lesson
from workbench.explore.flextp.explorer import AS_EQUATION_1, BASELINE, REFINED, compare
from workbench.parallel import TransformerConfig, TransformerLayer
from workbench.techniques import flextp
from workbench.techniques.flextp.cost import VIT_1B
from workbench.techniques.flextp.method import Costs, Plan, RankPlan, RankTimes, worked_example
from workbench.timeline import Action, Kind
from workbench.timeline.stragglers import StragglerTrace

PLACE = {"skewness": 4.0, "num_stragglers": 2, "pruning_ratio": AS_EQUATION_1, "bandwidth_bytes_per_s": 15.75e9}


def test_the_explorer_says_what_it_shows():
    explorer = lesson.explore_flextp()
    assert explorer.status.startswith("SEMI, refined: an epoch of ")
    assert explorer.result.speedup > 1
    explorer.set(choice=BASELINE)
    assert explorer.status.startswith("Nothing is done: an epoch takes ")
    assert explorer.result.speedup == 1


@pytest.mark.parametrize("choice", lesson.CHOICES.values(), ids=lambda choice: choice.name)
def test_the_parts_of_every_rank_add_up_to_the_epoch(choice):
    epoch = compare(choice=choice, **PLACE).chosen
    timeline, planned = epoch.timeline, epoch.planned
    assert timeline.end_s * VIT_1B.num_iterations == pytest.approx(planned.time_s)
    for rank, waiting_s in enumerate(planned.waiting_s):
        waits_s = timeline.total_s(resource=f"rank {rank}", kind=Kind.WAIT)
        assert waits_s * VIT_1B.num_iterations == pytest.approx(waiting_s, abs=1e-6)


def test_without_help_the_epoch_is_a_straight_line_over_the_skewness():
    rows = [row for row in compare(choice=REFINED, **PLACE).curves if row["solution"].startswith("Baseline")]
    slopes = [
        (after["epoch (s)"] - before["epoch (s)"]) / (after["skewness"] - before["skewness"])
        for before, after in zip(rows, rows[1:], strict=False)
    ]
    assert slopes == pytest.approx([slopes[0]] * len(slopes))


def test_the_price_stands_beside_the_name():
    # Two of eight ranks drop half of their columns: an eighth of all products.
    rows = compare(choice=BASELINE, **(PLACE | {"pruning_ratio": 0.5})).curves
    assert {row["solution"] for row in rows} >= {"Baseline (0.0% dropped)", "ZERO (12.5% dropped)"}


def test_a_timeline_shows_products_other_transfer_and_waiting_apart():
    times = [RankTimes(own_s=9, product_s=8), RankTimes(own_s=3, product_s=2)]
    plan = Plan(ranks=(RankPlan(dropped=0.25, migrated=0.5), RankPlan()))
    timeline = lesson.plan_timeline(times, plan, Costs.straight(alloc_s=0.5, communicate_s=1, compute_s=2))
    # Rank 0: 1 other and 0.5 alloc, 8 / 4 products, 0.5 transfer; rank 1: 1, 2, half a share of its own 2, 0.5.
    spans = [
        ", ".join(f"{action.label} {action.start_s:g}-{action.end_s:g}" for action in timeline.of(f"rank {rank}"))
        for rank in range(2)
    ]
    assert spans == [
        "other 0-1.5, products 1.5-3.5, transfer 3.5-4, wait 4-4.5",
        "other 0-1, products 1-3, for others 3-4, transfer 4-4.5",
    ]


def test_the_picture_of_the_worked_example_writes_every_number_of_its_matrices():
    drawn = lesson.draw_worked_example(worked_example())
    numbers = [[text.get_text() for text in ax.texts if text.get_text().isdigit()] for ax in drawn.axes]
    assert numbers[2] == ["7", "5", "7", "4", "5", "4"]  # output
    assert numbers[6] == ["5", "0", "5", "0", "2", "0", "1", "0", "4", "0", "7", "0"]  # grad_weight, recovered
    assert numbers[11] == ["3", "7", "6", "3", "5", "6", "7", "5"]  # grad_input without resizing


CONFIG = TransformerConfig(hidden_size=16, num_heads=4, mlp_size=32)
NUM_ITERATIONS = 4


def watched():
    rank = lesson.WatchedRank()
    model = TransformerLayer(CONFIG, rank.group)
    policy = flextp.Policy(solution="ZERO", selection="Pri")
    balancer = flextp.balance(model, rank.group, policy=policy, trace=StragglerTrace.fixed(2, {1: 8.0}), slowness=4)
    x = torch.randn(2, 64, 16, generator=torch.Generator().manual_seed(0))
    return lesson.watch_training(rank, model, balancer, x, NUM_ITERATIONS)


def test_watched_ranks_agree_on_every_plan_and_their_actions_fill_the_iteration(pools):
    iterations = list(zip(*pools(2).run(watched), strict=True))
    assert len(iterations) == NUM_ITERATIONS
    assert all(first.plan == second.plan and first.loss == second.loss for first, second in iterations)
    assert iterations[0][0].plan.is_plain
    assert iterations[-1][0].plan.ranks[1].dropped > 0
    timeline = lesson.iteration_timeline(iterations[0])
    for number, on_rank in enumerate(iterations[0]):
        assert timeline.total_s(resource=f"rank {number}") == pytest.approx(on_rank.duration_s)


def test_a_rank_waits_in_an_all_reduce_until_the_last_one_has_come_and_then_transfers():
    def iteration(rank, entry_s):
        action = Action(resource=f"rank {rank}", start_s=entry_s, end_s=6, kind=Kind.COMMUNICATE, label="all_reduce")
        return lesson.WatchedIteration(plan=Plan.plain(2), start_s=0, end_s=7, actions=(action,), loss=0.0)

    timeline = lesson.iteration_timeline([iteration(0, 2), iteration(1, 5)])
    ends = [[(action.kind, action.end_s) for action in timeline.of(f"rank {rank}")] for rank in range(2)]
    transferred = [(Kind.COMMUNICATE, 6), (Kind.COMPUTE, 7)]
    assert ends == [[(Kind.COMPUTE, 2), (Kind.WAIT, 5), *transferred], [(Kind.COMPUTE, 5), *transferred]]
