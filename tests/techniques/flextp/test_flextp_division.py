"""Which columns a rank drops and migrates, who computes them, and how much work that is."""

from types import SimpleNamespace

import pytest
import torch
from cases import refusals
from torch import nn

from workbench.parallel import ColumnParallelLinear, RowParallelLinear, VirtualTensorGroup
from workbench.parallel.seeds import generator_for
from workbench.techniques.flextp.method import Plan, RankPlan, RankTimes
from workbench.techniques.flextp.runtime import Balancer, ColumnChooser, Policy, divide


def columns(*indices):
    return torch.tensor(indices, dtype=torch.int64)


def dealt_out(division):
    moved = division.migrations
    return [(each.sender, {rank: each.columns_of(rank).tolist() for rank in each.parts}) for each in moved]


# Ten columns on each of four ranks. Rank 1 migrates eight and drops one; rank 0 drops two.
DROPPED = {0: columns(9, 2), 1: columns(6), 2: columns(), 3: columns()}
DIVISION = divide(10, num_ranks=4, dropped=DROPPED, migrated={1: columns(7, 0, 3, 9, 4, 2, 8, 5)})


def test_receivers_are_served_in_the_order_of_their_numbers_and_a_rank_keeps_the_others_in_ascending_order():
    # Eight columns for ranks 2, 3 and 0 end at 8/3, 16/3 and 8, rounded down: 2, 5 and 8.
    assert dealt_out(DIVISION) == [(1, {2: [7, 0], 3: [3, 9, 4], 0: [2, 8, 5]})]
    assert list(DIVISION.migrations[0].parts) == [2, 3, 0]
    # Several senders do not receive.
    migrated = {3: columns(0, 1, 2), 0: columns(5, 4)}
    division = divide(6, num_ranks=4, dropped={1: columns()}, migrated=migrated)
    assert dealt_out(division) == [(0, {1: [5], 2: [4]}), (3, {1: [0], 2: [1, 2]})]
    kept = {0: [0, 1, 3, 4, 5, 6, 7, 8], 1: [1], 2: None, 3: None}
    assert {rank: left if left is None else left.tolist() for rank, left in DIVISION.kept.items()} == kept
    assert [dropped.tolist() for dropped in DIVISION.dropped.values()] == [[2, 9], [6], [], []]
    none = columns()
    assert divide(4, num_ranks=2, dropped={0: none, 1: none}, migrated={}).is_plain
    assert not divide(4, num_ranks=2, dropped={0: columns(1), 1: none}, migrated={}).is_plain
    # Rank 1 alone, as a real rank: it keeps all of its own, but rank 0 sends it some.
    assert not divide(4, num_ranks=2, dropped={1: none}, migrated={0: columns(2)}).is_plain


def divided(dropped, migrated):
    moved = {rank: columns(*indices) for rank, indices in migrated.items()}
    divide(4, num_ranks=2, dropped={0: columns(*dropped)}, migrated=moved)


test_columns_that_cannot_be_divided_are_refused = refusals(
    (lambda: divided([4], {}), r"dropped and migrated of rank 0 has column 4; it must be in \[0, 4\)"),
    (lambda: divided([1], {0: [2, 1]}), "dropped and migrated of rank 0 has a column twice"),
    (lambda: divided([], {1: [0, 4]}), r"migrated of rank 1 has column 4; it must be in \[0, 4\)"),
    (lambda: divided([1, 2], {0: [0, 3]}), "dropped and migrated of rank 0 has all 4 columns; it must leave at least"),
)


def test_layers_weigh_as_much_as_their_weights_in_what_a_rank_has_kept_and_dropped():
    # Two ranks; shards [4, 3], [5, 4] and, never multiplied, [4, 8]: sizes 12 and 20. Rank 0 drops a quarter: 1 of 3
    # and 1 of 4 columns. Rank 1 migrates half: 2 of 3 and 2 of 4.
    group, work_of = VirtualTensorGroup(2), {}

    def times_of(rank, iteration, work):
        work_of[rank] = work
        return RankTimes(own_s=1.0, product_s=1.0, work=work)

    times = SimpleNamespace(of=times_of, is_proportional=True)
    first, second = ColumnParallelLinear(3, 8, group), RowParallelLinear(8, 5, group)
    model = nn.ModuleList([first, second, ColumnParallelLinear(8, 8, group)])
    plan = Plan(ranks=(RankPlan(dropped=0.25), RankPlan(migrated=0.5)))
    balancer = Balancer(model, group, Policy(solution="given", plan=plan, selection="Rd"), modelled=times)
    with balancer.iteration():
        second(first(torch.ones(2, 3))).sum().backward()
    assert work_of == pytest.approx({0: (12 * 2 / 3 + 20 * 3 / 4) / 32, 1: (12 * 1 / 3 + 20 * 2 / 4) / 32})
    assert balancer.dropped_share == pytest.approx((12 * 1 / 3 + 20 * 1 / 4) / 32 / 2)  # the mean of both ranks


def chosen(chooser, **shares):
    """(dropped, migrated) of every layer."""
    return [(each.dropped.tolist(), each.migrated.tolist()) for each in chooser.choose(RankPlan(**shares))]


def move(weight, *steps):
    """Move the columns of a weight of two rows by so much on average: twice as much in one row, not in the other."""
    with torch.no_grad():
        weight[0] += 2 * torch.tensor(steps)


def measured(*changes, **policy):
    """A chooser whose one weight has moved by so much in its first epoch, and the weight."""
    weight = nn.Parameter(torch.zeros(2, len(changes)))
    chooser = ColumnChooser([weight], Policy(**{"solution": "ZERO", "selection": "Pri", **policy}), rank=0)
    move(weight, *changes)
    chooser.close_epoch([weight])
    return chooser, weight


SIX = (5.0, 1.0, 3.0, 0.0, 4.0, 2.0)  # least moved first: 3, 1, 5, 2, 4, 0


def test_the_least_moved_columns_are_dropped_and_the_next_ones_migrate():
    chooser, _ = measured(*SIX)
    assert chosen(chooser, dropped=0.5) == [([1, 3, 5], [])]
    assert chosen(chooser, migrated=0.5) == [([], [3, 1, 5])]
    assert chosen(chooser, dropped=1 / 3, migrated=1 / 3) == [([1, 3], [5, 2])]
    assert chosen(chooser) == [([], [])]
    # Migrated columns follow from the plan alone: 0.4 of 6 are 2 columns. 0.59 would be 4, and none be left.
    assert chosen(chooser, dropped=0.59, migrated=0.4) == [([1, 3, 5], [2, 4])]
    assert chosen(chooser, dropped=0.005, migrated=0.99) == [([], [3, 1, 5, 2, 4])]


def test_columns_dropped_at_any_time_of_an_epoch_keep_their_statistic_and_migrated_ones_are_measured_anew():
    # Columns 1 and 3 are dropped, 5 and 2 migrated; those and 0 and 4 have moved since. Least first: 3, 5, 2, 0, 4, 1.
    chooser, weight = measured(*SIX)
    chosen(chooser, dropped=1 / 3, migrated=1 / 3)
    move(weight, 0.5, 0.0, 0.25, 0.0, 0.75, 0.125)
    chooser.close_epoch([weight])
    assert chosen(chooser, migrated=0.9) == [([], [3, 5, 2, 0, 4])]
    # Nothing was dropped in this epoch: column 1 has not moved, and goes to the head with all others that have not.
    chooser.close_epoch([weight])
    move(weight, 1.0, 0.0, 2.0, 3.0, 4.0, 5.0)
    chooser.close_epoch([weight])
    assert chosen(chooser, migrated=0.9) == [([], [1, 0, 2, 3, 4])]
    chooser, weight = measured(*SIX)
    chosen(chooser, dropped=0.5)
    chosen(chooser)  # the straggler has vanished within the epoch
    move(weight, 0.5, 0.0, 0.25, 0.0, 0.75, 0.0)
    chooser.close_epoch([weight])
    assert chosen(chooser, migrated=0.9) == [([], [3, 2, 0, 4, 1])]  # statistics 0.5, 1, 0.25, 0, 0.75, 2


def two_layers(frozen=(), **policy):
    """Layers of 4 and of 8 columns. Two of the first have moved by less than 1 = 4 iterations · 0.25."""
    weights = [nn.Parameter(torch.zeros(2, 4)), nn.Parameter(torch.zeros(2, 8))]
    for layer in frozen:
        weights[layer].requires_grad_(False)
    more = {"solution": "ZERO", "iterations_per_epoch": 4, "micro_threshold": 0.25, **policy}
    chooser = ColumnChooser(weights, Policy(**more), rank=0)
    for layer, steps in enumerate([(3.0, 0.5, 1.0, 0.75), (9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0)]):
        if layer not in frozen:
            move(weights[layer], *steps)
    chooser.close_epoch(weights)
    return chooser


def test_layers_that_move_little_drop_more_where_layers_have_ratios_of_their_own():
    # γ = 1/4. The first layer has 2 of 4 candidates; the second none and drops 0.8 γ = 0.2: 1.6 of 8 columns.
    assert chosen(two_layers(selection="PriDiffR"), dropped=0.25) == [([1, 3], []), ([6, 7], [])]
    more = {"selection": "PriDiffE", "pruning_ratio": 0.25}
    assert chosen(two_layers(**more), dropped=0.25) == [([1, 3], []), ([6, 7], [])]
    assert chosen(two_layers(selection="Pri"), dropped=0.25) == [([1], []), ([6, 7], [])]
    # A rank that is no straggler drops no candidates, and migration knows none.
    assert chosen(two_layers(selection="PriDiffR")) == [([], []), ([], [])]
    assert [len(migrated) for _, migrated in chosen(two_layers(selection="PriDiffR"), migrated=0.25)] == [1, 2]
    # Before the first statistics no column is a candidate: 0.8 columns of 4, and 1.6 of 8.
    differs = Policy(solution="ZERO", selection="PriDiffR", micro_threshold=0.25)
    fresh = ColumnChooser([torch.zeros(2, 4), torch.zeros(2, 8)], differs, rank=0)
    assert [len(dropped) for dropped, _ in chosen(fresh, dropped=0.25)] == [1, 2]
    with pytest.raises(ValueError, match="micro_threshold is 0; it must be above 0 where selection is PriDiffR"):
        ColumnChooser([torch.zeros(2, 4)], Policy(solution="ZERO", selection="PriDiffR"), rank=0)


def test_a_frozen_layer_has_no_candidates_since_it_has_not_moved_because_it_may_not():
    # 0.8 γ of 4 columns are 0.8, of 8 are 1.6; which ones of the frozen layer is left to chance.
    (first, _), (second, _) = chosen(two_layers(selection="PriDiffR", frozen=[0]), dropped=0.25)
    assert (len(first), second) == (1, [6, 7])
    thawed = [nn.Parameter(torch.zeros(2, 4), requires_grad=False)]
    policy = Policy(solution="ZERO", selection="PriDiffR", micro_threshold=0.25, iterations_per_epoch=4)
    chooser = ColumnChooser(thawed, policy, rank=0)
    thawed[0].requires_grad_()
    move(thawed[0], 3.0, 0.5, 1.0, 0.75)
    chooser.close_epoch(thawed)
    assert chosen(chooser, dropped=0.25) == [([1, 3], [])]


@pytest.mark.parametrize("name", ["lists", "was_dropped", "change", "then"])
def test_a_state_of_fewer_layers_is_refused(name):
    chooser = two_layers()
    state = chooser.state_dict()
    with pytest.raises(ValueError, match="shorter"):
        chooser.load_state_dict(state | {name: state[name][:1]})


def test_the_first_choice_is_random_and_every_rank_and_seed_has_a_stream_of_its_own():
    def first(seed=0, rank=0, selection="Pri"):
        policy = Policy(solution="ZERO", selection=selection, seed=seed)
        return chosen(ColumnChooser([torch.zeros(1, 64)] * 2, policy, rank), migrated=0.5)

    assert first() == first()
    stream = generator_for(0, "flextp.columns.0")  # one list after the other, layer by layer
    drawn = [torch.randperm(64, generator=stream)[:32].tolist() for _ in range(2)]
    assert [migrated for _, migrated in first()] == drawn
    layers = {tuple(migrated) for each in (first(), first(rank=1), first(seed=1)) for _, migrated in each}
    assert len(layers) == 6
    assert first(selection="Rd") == first()


@pytest.mark.parametrize("policy", [{"selection": "Rd"}, {"solution": "Baseline"}, {"solution": "MIG"}], ids=str)
def test_random_choices_look_at_no_weights_and_hold_for_an_epoch(policy):
    chooser, weight = measured(*SIX, **policy)
    twin, _ = measured(*reversed(SIX), selection="Rd")
    first, _, again = [chosen(chooser, migrated=share) for share in (0.9, 0.5, 0.9)]
    assert first == again == chosen(twin, migrated=0.9)
    assert chooser._statistics[0].then_OK.numel() == 0  # no copy of the weight
    orders = {str(first)}
    for _ in range(3):
        chooser.close_epoch([weight])
        orders.add(str(chosen(chooser, migrated=0.9)))
    assert len(orders) > 1
