"""Placements against algorithm 6.1 and figure 6.3 worked by hand; what machines keep, send and survive."""

import pytest

from workbench.techniques.gemini import method
from workbench.techniques.gemini.method.placement import (
    Placement,
    components,
    is_recoverable,
    kept_bytes,
    placement,
    replicas_kept,
    sent_bytes,
    survivors,
)

pytestmark = pytest.mark.timeout(60)


def test_the_room_hands_out_the_function_though_a_module_has_its_name():
    import workbench.techniques.gemini.method.placement  # noqa: F401

    assert method.placement is placement
    assert method.recovery_probability(placement(4, 2), 2).numerator == 2


def test_four_machines_make_two_groups_as_in_figure_6_3a():
    assert placement(4, 2, "group").holders == ((0, 1), (1, 0), (2, 3), (3, 2))


def test_four_machines_make_the_ring_of_figure_6_3b():
    assert placement(4, 2, "ring").holders == ((0, 1), (1, 2), (2, 3), (3, 0))


def test_five_machines_make_a_group_and_a_ring_of_three_as_in_figure_6_3c():
    placed = placement(5, 2)
    assert placed.kind == "mixed"
    assert placed.holders == ((0, 1), (1, 0), (2, 3), (3, 4), (4, 2))


def test_where_the_replicas_divide_the_machines_mixed_is_group():
    assert placement(12, 3) == placement(12, 3, "group")


def test_eleven_machines_with_three_replicas_make_two_groups_and_a_ring_of_five():
    # floor(11/3) - 1 = 2 groups of 3; 11 - 6 = 5 machines are left
    placed = placement(11, 3)
    assert components(placed) == ((0, 1, 2), (3, 4, 5), (6, 7, 8, 9, 10))
    assert placed.holders[5] == (5, 3, 4)
    assert placed.holders[6:] == ((6, 7, 8), (7, 8, 9), (8, 9, 10), (9, 10, 6), (10, 6, 7))


def test_fewer_than_two_groups_of_machines_are_one_ring():
    assert placement(5, 3).holders == placement(5, 3, "ring").holders


@pytest.mark.parametrize("kind", ["mixed", "ring"])
def test_one_replica_stays_at_home_and_as_many_as_machines_go_everywhere(kind):
    assert placement(3, 1, kind).holders == ((0,), (1,), (2,))
    assert [sorted(holders) for holders in placement(3, 3, kind).holders] == [[0, 1, 2]] * 3


@pytest.mark.parametrize("kind", ["mixed", "ring"])
@pytest.mark.parametrize("num_replicas", [1, 2, 3, 4, 5])
def test_every_machine_keeps_and_sends_the_same_whatever_the_remainder(kind, num_replicas):
    for num_machines in range(num_replicas, 14):
        placed = placement(num_machines, num_replicas, kind)
        assert {len(kept) for kept in replicas_kept(placed)} == {num_replicas}
        # 2 buffers · m replicas · 10 bytes, and m - 1 copies of 10 bytes on the way
        assert {kept_bytes(placed, machine, 10) for machine in range(num_machines)} == {2 * num_replicas * 10}
        assert {sent_bytes(placed, machine, 10) for machine in range(num_machines)} == {(num_replicas - 1) * 10}


def test_a_machine_keeps_its_own_replica_first_then_those_it_is_sent():
    assert replicas_kept(placement(5, 2)) == ((0, 1), (1, 0), (2, 4), (3, 2), (4, 3))


def test_a_placement_of_ones_own_may_load_one_machine_more_than_another():
    star = Placement.own([(0, 1), (1, 0), (2, 0)])
    assert star.kind == "own"
    assert replicas_kept(star) == ((0, 1, 2), (1, 0), (2,))
    assert [kept_bytes(star, machine, 5) for machine in range(3)] == [30, 20, 10]


def test_two_neighbours_lose_a_ring_but_not_every_pair_loses_two_groups():
    group, ring = placement(4, 2), placement(4, 2, "ring")
    pairs = [(a, b) for a in range(4) for b in range(a + 1, 4)]
    # section 6.4: two of six cases with groups, four of six with a ring
    assert [pair for pair in pairs if not is_recoverable(group, pair)] == [(0, 1), (2, 3)]
    assert [pair for pair in pairs if not is_recoverable(ring, pair)] == [(0, 1), (0, 3), (1, 2), (2, 3)]


def test_survivors_come_in_the_order_of_the_holders_and_a_lost_shard_has_none():
    assert survivors(placement(5, 2), {2, 3}) == ((0, 1), (1, 0), (), (4,), (4,))


def test_without_failures_everybody_survives():
    assert survivors(placement(5, 2), ()) == placement(5, 2).holders


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((3, 4), "num_replicas is 4; it must be at most num_machines, 3"),
        ((3, 0), "num_replicas is 0"),
        ((0, 1), "num_machines is 0"),
        ((4.0, 2), "num_machines is 4.0"),
        ((4, True), "num_replicas is True"),
        ((5, 2, "group"), "num_machines is 5; it must be a multiple of num_replicas, 2"),
        ((4, 2, "star"), "kind is 'star'; it must be one of group, mixed, ring"),
        ((4, 2, "own"), "kind is 'own'"),
    ],
)
def test_impossible_placements_are_refused_with_the_rule(arguments, said):
    with pytest.raises(ValueError, match=said):
        placement(*arguments)


@pytest.mark.parametrize(
    ("holders", "said"),
    [
        ([], "num_machines is 0"),
        ([(1, 0), (0, 1)], "must begin with machine 0 itself"),
        ([(0, 0), (1, 0)], "must name num_replicas, 2, different machines"),
        ([(0, 1), (1,)], "must name num_replicas, 2, different machines"),
        ([(0, 2), (1, 0)], "names machine 2; machines are 0 to 1"),
    ],
)
def test_impossible_lists_of_ones_own_are_refused_with_the_rule(holders, said):
    with pytest.raises(ValueError, match=said):
        Placement.own(holders)


def test_failed_machines_and_shards_that_do_not_exist_are_refused():
    placed = placement(4, 2)
    with pytest.raises(ValueError, match="failed names machine 4"):
        is_recoverable(placed, [4])
    with pytest.raises(ValueError, match="machine names machine -1"):
        kept_bytes(placed, -1, 10)
    with pytest.raises(ValueError, match="shard_bytes is -1"):
        sent_bytes(placed, 0, -1)
