"""Placements by hand: kept, sent, surviving replicas; exact probabilities of recovery from lost machines."""

import random
from fractions import Fraction
from math import comb

import pytest
from cases import refusals

from workbench.techniques.gemini import method
from workbench.techniques.gemini.method import Placement, placement, recovery_probability

TWO_GROUPS = placement(6, 3, "group").holders
PLACEMENTS = [
    # Figures 6.3a to 6.3c: two groups, a ring, a group and a ring of three.
    ((4, 2, "group"), ((0, 1), (1, 0), (2, 3), (3, 2))),
    ((4, 2, "ring"), ((0, 1), (1, 2), (2, 3), (3, 0))),
    ((5, 2), ((0, 1), (1, 0), (2, 3), (3, 4), (4, 2))),
    # floor(11/3) - 1 = 2 groups of 3; 11 - 6 = 5 machines are left for a ring.
    ((11, 3), (*TWO_GROUPS, (6, 7, 8), (7, 8, 9), (8, 9, 10), (9, 10, 6), (10, 6, 7))),
    # Fewer than two groups of machines are one ring.
    ((5, 3), placement(5, 3, "ring").holders),
    # Where the replicas divide the machines, mixed is group.
    ((12, 3), placement(12, 3, "group").holders),
]


@pytest.mark.parametrize(("arguments", "holders"), PLACEMENTS)
def test_machines_hold_replicas_as_the_figures_draw_them(arguments, holders):
    assert placement(*arguments).holders == holders


@pytest.mark.parametrize("kind", ["mixed", "ring"])
def test_every_machine_keeps_the_same_whatever_the_remainder(kind):
    for num_replicas, num_machines in ((m, n) for m in range(1, 6) for n in range(m, 14)):
        placed = placement(num_machines, num_replicas, kind)
        assert {len(kept) for kept in method.replicas_kept(placed)} == {num_replicas}
        # 2 buffers · m replicas · 10 bytes
        assert {method.kept_bytes(placed, machine, 10) for machine in range(num_machines)} == {2 * num_replicas * 10}
    # One replica stays at home, and as many as machines go everywhere.
    assert placement(3, 1, kind).holders == ((0,), (1,), (2,))
    assert [sorted(holders) for holders in placement(3, 3, kind).holders] == [[0, 1, 2]] * 3


def test_a_machine_keeps_its_own_replica_first_and_survivors_come_in_the_order_of_the_holders():
    assert method.replicas_kept(placement(5, 2)) == ((0, 1), (1, 0), (2, 4), (3, 2), (4, 3))
    star = Placement.own([(0, 1), (1, 0), (2, 0)])
    assert star.kind == "own"
    assert method.replicas_kept(star) == ((0, 1, 2), (1, 0), (2,))
    assert [method.kept_bytes(star, machine, 5) for machine in range(3)] == [30, 20, 10]
    assert method.survivors(placement(5, 2), {2, 3}) == ((0, 1), (1, 0), (), (4,), (4,))


K_RULE = "it must be a whole number from 0 to num_machines, 4"

test_impossible_placements_and_bounds_are_refused_with_the_rule = refusals(
    (lambda: placement(3, 4), "num_replicas is 4; it must be at most num_machines, 3"),
    (lambda: placement(3, 0), "num_replicas is 0"),
    (lambda: placement(5, 2, "group"), "num_machines is 5; it must be a multiple of num_replicas, 2"),
    (lambda: placement(4, 2, "star"), "kind is 'star'; it must be one of group, mixed, ring"),
    (lambda: Placement.own([]), "num_machines is 0"),
    (lambda: Placement.own([(1, 0), (0, 1)]), "must begin with machine 0 itself"),
    (lambda: Placement.own([(0, 0), (1, 0)]), "must name num_replicas, 2, different machines"),
    (lambda: Placement.own([(0, 1), (1,)]), "must name num_replicas, 2, different machines"),
    (lambda: Placement.own([(0, 2), (1, 0)]), "names machine 2; machines are 0 to 1"),
    (lambda: method.survivors(placement(4, 2), [4]), "failed names machine 4"),
    (lambda: method.kept_bytes(placement(4, 2), -1, 10), "machine names machine -1"),
    (lambda: method.group_bound(5, 2, 2), "must be a multiple of num_replicas, 2"),
    (lambda: method.upper_bound(2, 3), "num_replicas is 3; it must be at most num_machines, 2"),
    (lambda: method.gap_bound(4, 2), "there is no gap"),
    (lambda: recovery_probability(_own(num_machines=200, num_replicas=4, seed=1), 40), "neither group nor ring"),
    (lambda: method.best_placement(6, 3, 3), "which makes 1,000,000 placements"),
    (lambda: method.kept_bytes(placement(4, 2), 0, -1), "shard_bytes is -1"),
    (lambda: method.recovery_probability_by_definition(placement(4, 2), 5), f"k is 5; {K_RULE}"),
    (lambda: method.group_bound(4, 2, -1), "k is -1"),
    *((lambda k=k: recovery_probability(placement(4, 2), k), f"k is {k}; {K_RULE}") for k in (-1, 5, 2.0, True)),
)


def _own(num_machines: int, num_replicas: int, seed: int) -> Placement:
    generator = random.Random(seed)
    others = {machine: [other for other in range(num_machines) if other != machine] for machine in range(num_machines)}
    return Placement.own([(machine, *generator.sample(others[machine], num_replicas - 1)) for machine in others])


def test_sixteen_machines_have_the_probabilities_of_section_6_7_2():
    # k = 2: 8 of 120 pairs are groups. k = 3: 8 groups times 14 third machines, of 560 triples.
    assert recovery_probability(placement(16, 2), 2) == 1 - Fraction(8, 120)
    assert recovery_probability(placement(16, 2), 3) == 1 - Fraction(8 * 14, 560)
    # A ring counts three in a row once: 16 neighbours times 14 third machines, less the 16 triples in a row.
    assert recovery_probability(placement(16, 2, "ring"), 3) == 1 - Fraction(16 * 14 - 16, 560)
    # Five of a thousand in five different groups: C(500, 5) groups, either member of each.
    assert recovery_probability(placement(1000, 2), 5) == Fraction(comb(500, 5) * 2**5, comb(1000, 5))


def test_counting_agrees_with_trying_for_every_small_size_and_for_random_placements():
    sizes = [(num_machines, m) for num_machines in range(1, 9) for m in range(1, num_machines + 1)]
    placements = [placement(*size, kind) for size in sizes for kind in ("mixed", "ring")]
    placements += [_own(num_machines=3 + seed % 6, num_replicas=1 + seed % 3, seed=seed) for seed in range(30)]
    # A ring whose machines are not in the order of their numbers: 3, 0, 4, 1, 5, 2.
    placements.append(Placement.own([(0, 4), (1, 5), (2, 3), (3, 0), (4, 1), (5, 2)]))
    for placed in placements:
        for k in range(placed.num_machines + 1):
            assert recovery_probability(placed, k) == method.recovery_probability_by_definition(placed, k), placed


@pytest.mark.parametrize("num_replicas", [2, 3])
def test_a_large_ring_of_one_s_own_is_counted_as_the_ring_that_it_is(num_replicas):
    ring = placement(40, num_replicas, "ring")
    assert recovery_probability(Placement.own(ring.holders), 10) == recovery_probability(ring, 10)
    order = random.Random(0).sample(range(40), 40)
    pairs = [(machine, order[(order.index(machine) + 1) % 40]) for machine in range(40)]
    assert recovery_probability(Placement.own(pairs), 10) == recovery_probability(placement(40, 2, "ring"), 10)


@pytest.mark.parametrize(("num_machines", "num_replicas"), [(16, 2), (12, 3), (12, 4)])
def test_corollary_6_1_is_exact_below_two_groups_of_failures_and_too_low_beyond(num_machines, num_replicas):
    placed = placement(num_machines, num_replicas)
    for k in range(num_machines + 1):
        bound, exact = method.group_bound(num_machines, num_replicas, k), recovery_probability(placed, k)
        assert (bound == exact) if k < 2 * num_replicas else (bound <= exact)
        assert bound < exact or k != 2 * num_replicas
    # N = 16, m = 2, k = 8: 8·C(14, 6) = 24,024 exceeds C(16, 8) = 12,870; all in different groups: 2^8 of them
    assert method.group_bound(16, 2, 8) == 0
    assert recovery_probability(placement(16, 2), 8) == Fraction(2**8, 12870)


@pytest.mark.parametrize("num_machines", [2, 4, 6])
def test_trying_every_placement_finds_none_better_than_groups(num_machines):
    best = method.best_placement(num_machines, 2, 2)
    by_groups = recovery_probability(placement(num_machines, 2), 2)
    assert best.probability == by_groups == method.upper_bound(num_machines, 2)


def test_the_best_placement_of_all_may_be_unbalanced_and_beat_the_mixed_one():
    # N = 4, k = 3: if all send to machine 0, only the loss of 1, 2 and 3 is survived: 1 of 4; groups lose one always
    best = method.best_placement(4, 2, 3)
    assert best.probability == Fraction(1, 4) > recovery_probability(placement(4, 2), 3) == 0
    assert method.best_placement(4, 2, 3, balanced=True).probability == 0
    # N = 5, m = 2: three pairs, such as 01, 02, 34, cover five machines; mixed has 01, 23, 34, 42
    assert method.best_placement(5, 2, 2).probability == method.upper_bound(5, 2) == Fraction(7, 10)
    assert method.best_placement(5, 2, 2, balanced=True).probability == recovery_probability(placement(5, 2), 2)
    # N = 5, m = 3: four different sets of ten; in the ring each machine has its own, five
    balanced = method.best_placement(5, 3, 3, balanced=True)
    assert balanced.probability == recovery_probability(balanced.example, 3) == Fraction(6, 10)
    assert recovery_probability(placement(5, 3), 3) == Fraction(5, 10)


def test_the_gap_of_the_mixed_placement_keeps_the_paper_s_bound_and_reaches_it_at_the_largest_remainder():
    for num_replicas in (2, 3, 4):
        for num_machines in range(num_replicas + 1, 30):
            if remainder := num_machines % num_replicas:
                exact = recovery_probability(placement(num_machines, num_replicas), num_replicas)
                gap = method.upper_bound(num_machines, num_replicas) - exact
                # m + q + p - 1 different sets instead of p + 1
                assert gap == Fraction(num_replicas + remainder - 2, comb(num_machines, num_replicas))
                assert (gap == method.gap_bound(num_machines, num_replicas)) == (remainder == num_replicas - 1)
