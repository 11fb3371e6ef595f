"""Whole racks that fail: exact probabilities by hand and by trying, and what a placement that knows racks gains."""

from fractions import Fraction
from itertools import combinations

import pytest

from workbench.techniques.gemini.method.placement import Placement, components, placement, replicas_kept
from workbench.techniques.gemini.method.probability import recovery_probability
from workbench.techniques.gemini.method.racks import (
    num_racks,
    rack_placement,
    rack_recovery_probability,
    rack_recovery_probability_by_definition,
    racks_in_order,
)

pytestmark = pytest.mark.timeout(60)


def _pairings(machines):
    """Yield every way to pair machines."""
    if not machines:
        yield ()
        return
    first, *others = machines
    for partner in others:
        left = [each for each in others if each != partner]
        yield from (((first, partner), *rest) for rest in _pairings(left))


def test_racks_are_filled_one_after_the_other():
    assert racks_in_order(7, 3) == (0, 0, 0, 1, 1, 1, 2)
    assert num_racks(racks_in_order(7, 3)) == 3


def test_groups_of_neighbours_die_with_their_rack():
    # 8 machines, racks 0 1 | 2 3 | 4 5 | 6 7, groups 01, 23, 45, 67
    racks = racks_in_order(8, 2)
    assert rack_recovery_probability_by_definition(placement(8, 2), racks, 1) == 0


def test_groups_across_two_racks_outlive_one_and_most_pairs_of_racks():
    # racks 0 and 1 are paired, and 2 and 3: 2 of 6 pairs of racks are fatal
    racks = racks_in_order(8, 2)
    placed = rack_placement(racks, 2)
    assert components(placed) == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert rack_recovery_probability_by_definition(placed, racks, 1) == 1
    assert rack_recovery_probability_by_definition(placed, racks, 2) == Fraction(4, 6)


def test_no_other_pairing_of_eight_machines_outlives_more_pairs_of_racks():
    racks = racks_in_order(8, 2)
    ours = rack_recovery_probability(rack_placement(racks, 2), racks, 2)
    pairings = list(_pairings(list(range(8))))
    assert len(pairings) == 105  # 8!/(2^4·4!)
    for pairing in pairings:
        partner = dict([*pairing, *((b, a) for a, b in pairing)])
        placed = Placement.own([(machine, partner[machine]) for machine in range(8)])
        assert rack_recovery_probability(placed, racks, 2) <= ours


@pytest.mark.parametrize("racks", [(0, 0, 1, 1, 2, 2), (0, 1, 2, 0, 1, 2, 0), (0, 0, 0, 1, 2, 3, 4), (0,) * 5])
def test_counting_over_racks_agrees_with_trying(racks):
    for placed in (placement(len(racks), 2), placement(len(racks), 3, "ring"), rack_placement(racks, 2)):
        for num_lost in range(num_racks(racks) + 1):
            exact = rack_recovery_probability_by_definition(placed, racks, num_lost)
            assert rack_recovery_probability(placed, racks, num_lost) == exact


def test_with_one_machine_a_rack_racks_are_machines():
    for kind in ("mixed", "ring"):
        placed = placement(11, 3, kind)
        for k in range(12):
            assert rack_recovery_probability(placed, tuple(range(11)), k) == recovery_probability(placed, k)


@pytest.mark.parametrize(("num_machines", "per_rack", "num_replicas"), [(16, 4, 2), (24, 4, 3), (1000, 20, 2)])
def test_knowing_the_racks_costs_nothing_when_machines_fail_one_by_one(num_machines, per_rack, num_replicas):
    racks = racks_in_order(num_machines, per_rack)
    plain, aware = placement(num_machines, num_replicas), rack_placement(racks, num_replicas)
    assert {len(kept) for kept in replicas_kept(aware)} == {num_replicas}
    for k in (num_replicas, num_replicas + 2):
        assert recovery_probability(aware, k) == recovery_probability(plain, k)
    assert rack_recovery_probability(plain, racks, 1) < rack_recovery_probability(aware, racks, 1) == 1


@pytest.mark.parametrize("kind", ["mixed", "ring"])
def test_holders_stand_in_different_racks_where_no_rack_has_more_than_its_share(kind):
    racks = racks_in_order(17, 3)
    placed = rack_placement(racks, 2, kind)
    assert all(len({racks[holder] for holder in holders}) == 2 for holders in placed.holders)


def test_two_racks_cannot_give_three_replicas_a_rack_each():
    racks = racks_in_order(6, 3)
    placed = rack_placement(racks, 3)
    assert all(len({racks[holder] for holder in holders}) == 2 for holders in placed.holders)
    assert [rack_recovery_probability(placed, racks, lost) for lost in range(3)] == [1, 1, 0]


def test_unequal_racks_are_drawn_from_the_fullest_first():
    # racks of 4, 2, 1, 1: rack 0 must give one machine to every group
    racks = (0, 0, 0, 0, 1, 1, 2, 3)
    placed = rack_placement(racks, 2)
    assert components(placed) == ((0, 4), (1, 5), (2, 6), (3, 7))
    fatal = [pair for pair in combinations(range(4), 2) if 0 in pair]
    assert rack_recovery_probability(placed, racks, 2) == 1 - Fraction(len(fatal), 6)


def test_racks_that_do_not_fit_are_refused():
    placed = placement(4, 2)
    with pytest.raises(ValueError, match="rack_of has 3 entries; it must have one a machine, 4"):
        rack_recovery_probability(placed, (0, 0, 1), 1)
    with pytest.raises(ValueError, match=r"rack_of names the racks \[0, 2\]"):
        rack_placement((0, 0, 2, 2), 2)
    with pytest.raises(ValueError, match="num_lost is 3"):
        rack_recovery_probability(placed, (0, 0, 1, 1), 3)
    with pytest.raises(ValueError, match="machines_per_rack is 0"):
        racks_in_order(4, 0)
    with pytest.raises(ValueError, match="num_replicas is 5"):
        rack_placement((0, 0, 1, 1), 5)
