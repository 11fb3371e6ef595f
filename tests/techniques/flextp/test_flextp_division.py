"""How columns are divided: who gets which, who gets one more, and how much work that is."""

import pytest
import torch
from torch import nn

from workbench.parallel import ColumnParallelLinear, RowParallelLinear, VirtualTensorGroup
from workbench.techniques.flextp.method.plan import Plan, RankPlan, RankTimes, column_ranges
from workbench.techniques.flextp.runtime.balancer import Balancer
from workbench.techniques.flextp.runtime.division import divide
from workbench.techniques.flextp.runtime.policy import Policy


def columns(*indices):
    return torch.tensor(indices, dtype=torch.int64)


def dealt_out(division):
    return [
        (each.sender, {rank: each.columns_of(rank).tolist() for rank in each.parts}) for each in division.migrations
    ]


# Ten columns on each of four ranks. Rank 1 migrates eight and drops one; rank 0 drops two.
DROPPED = {0: columns(9, 2), 1: columns(6), 2: columns(), 3: columns()}
DIVISION = divide(10, num_ranks=4, dropped=DROPPED, migrated={1: columns(7, 0, 3, 9, 4, 2, 8, 5)})


def test_receivers_are_served_in_the_order_of_their_numbers_counted_from_the_sender():
    # Eight columns for ranks 2, 3 and 0 end at 8/3, 16/3 and 8, rounded down: 2, 5 and 8.
    assert dealt_out(DIVISION) == [(1, {2: [7, 0], 3: [3, 9, 4], 0: [2, 8, 5]})]
    assert list(DIVISION.migrations[0].parts) == [2, 3, 0]


@pytest.mark.parametrize(
    ("num_columns", "widths"),
    [
        (0, [0, 0, 0]),
        (1, [0, 0, 1]),
        (2, [0, 1, 1]),
        (3, [1, 1, 1]),
        (4, [1, 1, 2]),
        (5, [1, 2, 2]),
        (7, [1, 2, 2, 2]),
        (10, [2, 3, 2, 3]),
        (11, [2, 3, 3, 3]),
    ],
)
def test_where_columns_do_not_divide_both_ends_are_rounded_down(num_columns, widths):
    ranges = column_ranges(num_columns, len(widths))
    assert [len(each) for each in ranges] == widths
    assert [place for each in ranges for place in each] == list(range(num_columns))


def test_several_senders_are_left_out_of_the_count_of_each():
    migrated = {3: columns(0, 1, 2), 0: columns(5, 4)}
    division = divide(6, num_ranks=4, dropped={1: columns()}, migrated=migrated)
    assert dealt_out(division) == [(0, {1: [5], 2: [4]}), (3, {1: [0], 2: [1, 2]})]


def test_a_rank_keeps_what_it_neither_drops_nor_migrates_in_ascending_order():
    assert {rank: None if own.kept is None else own.kept.tolist() for rank, own in DIVISION.own.items()} == {
        0: [0, 1, 3, 4, 5, 6, 7, 8],
        1: [1],
        2: None,
        3: None,
    }
    assert [own.dropped.tolist() for own in DIVISION.own.values()] == [[2, 9], [6], [], []]


def test_what_is_kept_received_and_dropped_are_all_columns():
    # Rank 0 keeps 8 of 10 and receives 3, rank 1 keeps 1, ranks 2 and 3 keep 10 and receive 2 and 3.
    kept = [DIVISION.kept(rank) for rank in range(4)]
    assert kept == pytest.approx([0.8, 0.1, 1, 1])
    assert [DIVISION.dropped(rank) for rank in range(4)] == pytest.approx([0.2, 0.1, 0, 0])
    received = [sum(len(each.parts[rank]) for each in DIVISION.migrations if rank in each.parts) for rank in range(4)]
    assert received == [3, 0, 2, 3]
    assert sum(kept) + sum(received) / 10 == pytest.approx(4 - 0.2 - 0.1)


def test_a_division_is_plain_if_local_ranks_keep_all_and_nobody_migrates():
    none = columns()
    assert divide(4, num_ranks=2, dropped={0: none, 1: none}, migrated={}).is_plain
    assert not divide(4, num_ranks=2, dropped={0: columns(1), 1: none}, migrated={}).is_plain
    # Rank 1 alone, as a real rank: it keeps all of its own, but rank 0 sends it some.
    assert not divide(4, num_ranks=2, dropped={1: none}, migrated={0: columns(2)}).is_plain


@pytest.mark.parametrize(
    ("dropped", "migrated", "message"),
    [
        ({0: [4]}, {}, r"dropped and migrated columns of rank 0 are 4 to 4; it must be in 0\.\.3"),
        ({0: [-1, 2]}, {}, r"dropped and migrated columns of rank 0 are -1 to 2; it must be in 0\.\.3"),
        ({0: [1, 1]}, {}, "dropped and migrated columns of rank 0 name a column twice"),
        ({0: [1]}, {0: [2, 1]}, "dropped and migrated columns of rank 0 name a column twice"),
        ({0: []}, {1: [0, 4]}, r"migrated columns of rank 1 are 0 to 4; it must be in 0\.\.3"),
        ({0: []}, {1: [3, 3]}, "migrated columns of rank 1 name a column twice"),
        ({0: [1, 2]}, {0: [0, 3]}, "rank 0 drops or migrates all of its 4 columns; it must keep at least one"),
        ({0: []}, {2: [1]}, r"senders has rank 2; it must be in 0\.\.1"),
        ({0: []}, {0: [1], 1: [1]}, "senders has 2 of 2 ranks; it must leave one to receive"),
    ],
)
def test_columns_that_cannot_be_divided_are_refused(dropped, migrated, message):
    given = [{rank: columns(*indices) for rank, indices in each.items()} for each in (dropped, migrated)]
    with pytest.raises(ValueError, match=message):
        divide(4, num_ranks=2, dropped=given[0], migrated=given[1])


class Noting:
    """Times that are always the same, and a note of the work that they are told."""

    def __init__(self):
        self.work = {}

    def begin(self, rank, iteration):
        pass

    def end(self, rank, work):
        self.work[rank] = work
        return RankTimes(own_s=1.0, product_s=1.0, work=work)


def test_layers_weigh_as_much_as_their_weights_in_what_a_rank_has_kept_and_dropped():
    # Two ranks; shards [4, 3], [5, 4] and, never multiplied, [4, 8]: sizes 12 and 20. Rank 0 drops a quarter: 1 of 3
    # and 1 of 4 columns. Rank 1 migrates half: 2 of 3 and 2 of 4.
    group, times = VirtualTensorGroup(2), Noting()
    first, second = ColumnParallelLinear(3, 8, group), RowParallelLinear(8, 5, group)
    model = nn.ModuleList([first, second, ColumnParallelLinear(8, 8, group)])
    plan = Plan(ranks=(RankPlan(dropped=0.25), RankPlan(migrated=0.5)))
    balancer = Balancer(model, group, Policy(solution="given", plan=plan, selection="Rd"), times=times)
    with balancer.iteration():
        second(first(torch.ones(2, 3))).sum().backward()
    assert times.work == pytest.approx({0: (12 * 2 / 3 + 20 * 3 / 4) / 32, 1: (12 * 1 / 3 + 20 * 2 / 4) / 32})
    assert balancer.dropped_share == pytest.approx((12 * 1 / 3 + 20 * 1 / 4) / 32 / 2)  # the mean of both ranks
