"""Queues of chains of tasks behind gradients: by hand, and the fast evaluation equal to the definition."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases import refusals
from workbench.timeline.queues import DEVICE, Chains, Queues, queues_by_definition

CPU, LINK = 1, 2
SECONDS = st.one_of(st.sampled_from([0.0, 1.0, 2.0]), st.floats(0.0, 3.0))
CHAINS = st.lists(st.tuples(st.integers(0, 3), SECONDS), max_size=5)


def packed(chains):
    return Chains.of(chains, num_resources=4, longest=5)


def ends_at(gap_s, chains):
    return max(end for tasks in queues_by_definition(gap_s, chains) for _, end in tasks)


def test_a_link_is_busy_with_the_first_gradient_while_the_second_is_computed():
    # Computed 0..1 and 1..2; the link takes 3 for the first, and then 1 for the second.
    assert queues_by_definition([1, 1], [[(LINK, 3)], [(LINK, 1)]]) == [[(0, 1), (1, 4)], [(1, 2), (4, 5)]]


def test_compressing_on_the_device_delays_the_next_gradient_and_on_a_processor_it_does_not():
    on_device = queues_by_definition([1, 1], [[(DEVICE, 1), (LINK, 1)], []])
    assert on_device == [[(0, 1), (1, 2), (2, 3)], [(2, 3)]]
    on_processor = queues_by_definition([1, 1], [[(CPU, 2), (LINK, 1)], []])
    assert on_processor == [[(0, 1), (1, 3), (3, 4)], [(1, 2)]]


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_evaluations_of_changed_chains_equal_the_definition(data):
    num = data.draw(st.integers(1, 7))
    gap_s = data.draw(st.lists(SECONDS, min_size=num, max_size=num))
    chains = data.draw(st.lists(CHAINS, min_size=num, max_size=num))
    queues = Queues(gap_s, packed(chains))
    assert queues.placed() == queues_by_definition(gap_s, chains)
    for _ in range(3):
        changed, others = data.draw(st.integers(0, num - 1)), data.draw(st.lists(CHAINS, min_size=1, max_size=3))
        wanted = [ends_at(gap_s, [*chains[:changed], other, *chains[changed + 1 :]]) for other in others]
        best = wanted.index(min(wanted))
        assert queues.best_chain(changed, packed(others)) == (best, wanted[best])
        assert queues.best_chain(changed, packed(others), wanted[best]) == (-1, wanted[best])
        chains[changed] = others[0]
        queues.set_(changed, packed(others[:1]))
        assert queues.placed() == queues_by_definition(gap_s, chains)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_the_best_of_many_exchanged_chains_is_taken(data):
    num = data.draw(st.integers(1, 5))
    gap_s = data.draw(st.lists(SECONDS, min_size=num, max_size=num))
    chains, others = (data.draw(st.lists(CHAINS, min_size=num, max_size=num)) for _ in range(2))
    choices = data.draw(st.lists(st.lists(st.booleans(), min_size=num, max_size=num), min_size=1, max_size=9))
    by_choice = [
        [other if taken else chain for chain, other, taken in zip(chains, others, choice, strict=True)]
        for choice in choices
    ]
    wanted = [ends_at(gap_s, chosen) for chosen in by_choice]
    is_better = min(wanted) < ends_at(gap_s, chains)
    queues = Queues(gap_s, packed(chains))
    assert queues.take_best_(packed(others), np.array(choices)) == (wanted.index(min(wanted)) if is_better else -1)
    assert queues.placed() == queues_by_definition(gap_s, by_choice[wanted.index(min(wanted))] if is_better else chains)
    assert queues.duration_s == (min(wanted) if is_better else ends_at(gap_s, chains))


test_bad_chains_are_refused = refusals(
    (lambda: packed([[(4, 1.0)]]), "the resource must be in 0..3"),
    (lambda: packed([[(0, -1.0)]]), "not negative"),
    (lambda: packed([[(0, 1.0)] * 6]), "at most 5"),
    (lambda: Queues([], packed([])), "at least 1"),
)
