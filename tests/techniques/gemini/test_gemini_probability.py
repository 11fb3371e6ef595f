"""The exact probability of recovery: worked by hand, by trying every subset, and beside the paper's bounds."""

import random
from fractions import Fraction
from math import comb

import pytest

from workbench.techniques.gemini.method.placement import Placement, placement
from workbench.techniques.gemini.method.probability import (
    best_placement,
    clopper_pearson,
    estimate_recovery_probability,
    gap_bound,
    gap_to_upper_bound,
    group_bound,
    recovery_probability,
    recovery_probability_by_definition,
    upper_bound,
)
from workbench.techniques.gemini.method.surviving import (
    TooTangled,
    num_surviving,
    num_surviving_by_definition,
    surviving_of_frontier,
    surviving_of_groups,
    surviving_of_ring,
)

pytestmark = pytest.mark.timeout(60)


def _own(num_machines: int, num_replicas: int, seed: int) -> Placement:
    generator = random.Random(seed)
    others = {machine: [each for each in range(num_machines) if each != machine] for machine in range(num_machines)}
    return Placement.own([(each, *generator.sample(others[each], num_replicas - 1)) for each in others])


def test_the_definition_counts_the_pairs_of_figure_6_3():
    # of 6 pairs, 2 are a group and 4 are neighbours in the ring
    assert recovery_probability_by_definition(placement(4, 2), 2) == Fraction(4, 6)
    assert recovery_probability_by_definition(placement(4, 2, "ring"), 2) == Fraction(2, 6)
    # of 10 pairs of five machines, one is the group and three are neighbours in the ring of three
    assert recovery_probability_by_definition(placement(5, 2), 2) == Fraction(6, 10)


def test_sixteen_machines_have_the_probabilities_of_section_6_7_2():
    # k = 2: 8 of 120 pairs are groups. k = 3: 8 groups times 14 third machines, of 560 triples.
    assert recovery_probability(placement(16, 2), 2) == 1 - Fraction(8, 120)
    assert recovery_probability(placement(16, 2), 3) == 1 - Fraction(8 * 14, 560)


def test_a_ring_of_sixteen_counts_three_in_a_row_once():
    # 16 neighbours times 14 third machines, less the 16 triples in a row, each of which holds two pairs of neighbours
    assert recovery_probability(placement(16, 2, "ring"), 3) == 1 - Fraction(16 * 14 - 16, 560)


@pytest.mark.parametrize("kind", ["mixed", "ring"])
def test_counting_agrees_with_trying_for_every_small_size(kind):
    for num_machines in range(1, 9):
        for num_replicas in range(1, num_machines + 1):
            placed = placement(num_machines, num_replicas, kind)
            for k in range(num_machines + 1):
                assert recovery_probability(placed, k) == recovery_probability_by_definition(placed, k)


@pytest.mark.parametrize("seed", range(30))
def test_counting_agrees_with_trying_for_placements_of_ones_own(seed):
    placed = _own(num_machines=3 + seed % 6, num_replicas=1 + seed % 3, seed=seed)
    for k in range(placed.num_machines + 1):
        assert recovery_probability(placed, k) == recovery_probability_by_definition(placed, k)


def test_counting_agrees_with_trying_for_sets_of_different_sizes_and_things_in_none():
    sets = [(0,), (1, 2), (2, 3, 4), (5, 6), (7, 8, 9)]
    for k in range(12):
        assert num_surviving(sets, 12, k) == num_surviving_by_definition(sets, 12, k)


def test_a_ring_is_counted_whatever_its_kind_is_called_or_its_machines_are_numbered():
    shuffled = [3, 0, 4, 1, 5, 2]
    rows = {shuffled[place]: (shuffled[place], shuffled[(place + 1) % 6]) for place in range(6)}
    placed = Placement.own([rows[machine] for machine in range(6)])
    for k in range(7):
        assert recovery_probability(placed, k) == recovery_probability(placement(6, 2, "ring"), k)


def test_groups_and_rings_by_their_formulas_are_those_of_the_frontier():
    ring = {frozenset(holders) for holders in placement(30, 3, "ring").holders}
    groups = {frozenset(holders) for holders in placement(30, 3).holders}
    # of 30 in runs or groups of three at most 20 can be lost
    assert surviving_of_frontier(range(30), ring, 30) == [surviving_of_ring(30, 3, k) for k in range(21)]
    assert surviving_of_frontier(range(30), groups, 30) == [surviving_of_groups(10, 3, k) for k in range(21)]
    assert surviving_of_ring(30, 3, 21) == surviving_of_groups(10, 3, 21) == 0


def test_fewer_failures_than_replicas_never_matter_and_losing_all_always_does():
    for kind in ("mixed", "ring"):
        placed = placement(23, 4, kind)
        assert [recovery_probability(placed, k) for k in range(4)] == [1] * 4
        assert recovery_probability(placed, 4) < 1
        assert recovery_probability(placed, 23) == 0


def test_more_failures_and_fewer_replicas_are_never_better():
    probabilities = {m: [recovery_probability(placement(24, m), k) for k in range(25)] for m in (1, 2, 3, 4)}
    for values in probabilities.values():
        assert values == sorted(values, reverse=True)
    for m in (1, 2, 3):
        assert all(one <= other for one, other in zip(probabilities[m], probabilities[m + 1], strict=True))


@pytest.mark.parametrize(("num_replicas", "kind"), [(2, "mixed"), (3, "mixed"), (2, "ring"), (3, "ring")])
def test_five_of_a_thousand_machines_are_nearly_always_recovered(num_replicas, kind):
    assert 0.97 < recovery_probability(placement(1000, num_replicas, kind), 5) < 1


def test_five_of_a_thousand_in_pairs_are_counted_as_by_hand():
    # five machines of five different groups: C(500, 5) groups, either member of each
    assert recovery_probability(placement(1000, 2), 5) == Fraction(comb(500, 5) * 2**5, comb(1000, 5))


@pytest.mark.parametrize(("num_machines", "num_replicas"), [(16, 2), (12, 3), (12, 4)])
def test_corollary_6_1_is_exact_below_two_groups_of_failures_and_too_low_beyond(num_machines, num_replicas):
    placed = placement(num_machines, num_replicas)
    for k in range(num_machines + 1):
        bound, exact = group_bound(num_machines, num_replicas, k), recovery_probability(placed, k)
        assert (bound == exact) if k < 2 * num_replicas else (bound <= exact)
    assert group_bound(num_machines, num_replicas, 2 * num_replicas) < recovery_probability(placed, 2 * num_replicas)


def test_the_bound_is_zero_where_the_formula_falls_below():
    # N = 16, m = 2, k = 8: 8·C(14, 6) = 24,024 exceeds C(16, 8) = 12,870; all in different groups: 2^8 of them
    assert group_bound(16, 2, 8) == 0
    assert recovery_probability(placement(16, 2), 8) == Fraction(2**8, 12870)


def test_groups_reach_the_upper_bound_and_so_no_placement_is_better():
    for num_machines, num_replicas in ((4, 2), (6, 2), (6, 3)):
        assert gap_to_upper_bound(placement(num_machines, num_replicas)) == 0


@pytest.mark.parametrize("num_machines", [2, 4, 6])
def test_trying_every_placement_finds_none_better_than_groups(num_machines):
    best = best_placement(num_machines, 2, 2)
    assert best.num_tried == (num_machines - 1) ** num_machines
    assert best.probability == recovery_probability(placement(num_machines, 2), 2) == upper_bound(num_machines, 2)


def test_the_best_placements_of_six_machines_are_the_fifteen_ways_to_pair_them():
    # 6!/(2^3·3!) = 15 perfect matchings
    assert best_placement(6, 2, 2).num_best == 15


def test_with_more_failures_than_replicas_a_star_beats_groups_but_loads_one_machine_with_everything():
    # N = 4, k = 3: if all send to machine 0, only the loss of 1, 2 and 3 is survived: 1 of 4; groups lose one always
    best = best_placement(4, 2, 3)
    assert best.probability == Fraction(1, 4) > recovery_probability(placement(4, 2), 3) == 0
    assert best_placement(4, 2, 3, balanced=True).probability == 0


def test_where_replicas_do_not_divide_machines_an_unbalanced_placement_reaches_the_bound_that_mixed_misses():
    # N = 5, m = 2: three pairs, such as 01, 02, 34, cover five machines; mixed has 01, 23, 34, 42
    assert best_placement(5, 2, 2).probability == upper_bound(5, 2) == Fraction(7, 10)
    assert best_placement(5, 2, 2, balanced=True).probability == recovery_probability(placement(5, 2), 2)


def test_with_five_machines_and_three_replicas_even_a_balanced_placement_beats_the_ring():
    balanced = best_placement(5, 3, 3, balanced=True)
    assert balanced.probability == Fraction(6, 10)  # four different sets of ten
    assert recovery_probability(placement(5, 3), 3) == Fraction(5, 10)  # five: each machine has its own
    assert recovery_probability(balanced.example, 3) == balanced.probability


def test_the_gap_of_the_mixed_placement_keeps_the_paper_s_bound_and_reaches_it_at_the_largest_remainder():
    for num_replicas in (2, 3, 4):
        for num_machines in range(num_replicas + 1, 30):
            if remainder := num_machines % num_replicas:
                gap = gap_to_upper_bound(placement(num_machines, num_replicas))
                # m + q + p - 1 different sets instead of p + 1
                assert gap == Fraction(num_replicas + remainder - 2, comb(num_machines, num_replicas))
                assert (gap == gap_bound(num_machines, num_replicas)) == (remainder == num_replicas - 1)


def test_an_entwined_placement_of_two_hundred_machines_is_refused_and_can_be_estimated():
    placed = _own(num_machines=200, num_replicas=4, seed=1)
    with pytest.raises(TooTangled, match="estimate_recovery_probability samples instead"):
        recovery_probability(placed, 40)
    estimate = estimate_recovery_probability(placed, 40, num_samples=500, seed=3)
    assert 0 <= estimate.low < estimate.share < estimate.high <= 1


def test_intervals_hold_the_exact_probability_about_as_often_as_they_say():
    placed = placement(16, 2)
    exact = recovery_probability(placed, 3)
    estimates = [estimate_recovery_probability(placed, 3, num_samples=200, seed=seed) for seed in range(200)]
    held = sum(estimate.low <= exact <= estimate.high for estimate in estimates)
    assert held >= 0.93 * 200  # seeded; 95 % are promised at least
    assert len({estimate.num_recovered for estimate in estimates}) > 10


def test_the_interval_of_no_hit_in_ten_is_the_known_one():
    # 1 - 0.025^(1/10)
    assert clopper_pearson(0, 10, 0.95) == (0.0, pytest.approx(1 - 0.025**0.1))
    assert clopper_pearson(10, 10, 0.95) == (pytest.approx(0.025**0.1), 1.0)
    # Clopper and Pearson's chart; 5 of 10 at 95 %: 0.187 to 0.813
    assert clopper_pearson(5, 10, 0.95) == (pytest.approx(0.1871, abs=1e-4), pytest.approx(0.8129, abs=1e-4))


@pytest.mark.parametrize("k", [-1, 5, 2.0, True])
def test_impossible_numbers_of_failures_are_refused(k):
    placed = placement(4, 2)
    for ask in (recovery_probability, recovery_probability_by_definition):
        with pytest.raises(ValueError, match="k is .*; it must be a whole number from 0 to num_machines, 4"):
            ask(placed, k)
    with pytest.raises(ValueError, match="k is"):
        group_bound(4, 2, k)
    with pytest.raises(ValueError, match="k is"):
        estimate_recovery_probability(placed, k, num_samples=10, seed=0)


def test_bounds_refuse_sizes_that_they_are_not_about():
    with pytest.raises(ValueError, match="must be a multiple of num_replicas, 2"):
        group_bound(5, 2, 2)
    with pytest.raises(ValueError, match="num_replicas is 3; it must be 1 to num_machines, 2"):
        upper_bound(2, 3)
    with pytest.raises(ValueError, match="there is no gap"):
        gap_bound(4, 2)
    with pytest.raises(ValueError, match="num_samples"):
        estimate_recovery_probability(placement(4, 2), 2, num_samples=0, seed=0)
    with pytest.raises(ValueError, match="which makes 1,000,000 placements"):
        best_placement(6, 3, 3)
