"""RandomK: without replacement, uniform, seeded, and like random.sample in distribution."""

import itertools
import random

import numpy as np
import pytest
import torch

from workbench.compression import RandomK
from workbench.compression.randomk import (
    random_indices,
    random_indices_by_definition,
    set_stream_position_,
    stream_position,
)

CHI_SQUARE = {9: 33.7, 14: 42.6, 49: 95.0}  # 99.99 % quantiles of the distribution, by degrees of freedom


def chi_square(counts, expected):
    return sum((count - expected) ** 2 / expected for count in counts)


@pytest.mark.parametrize("num_elements", [1, 2, 10, 1000, 100_000])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.51, 0.9, 1.0])
def test_positions_are_different_ascending_and_in_range(num_elements, share):
    k = round(share * num_elements)
    indices = random_indices(num_elements, k, np.random.default_rng(0))
    assert indices.dtype == np.int64
    assert len(indices) == k
    assert (np.diff(indices) > 0).all()
    assert k == 0 or (indices[0] >= 0 and indices[-1] < num_elements)


@pytest.mark.parametrize(("num_elements", "k"), [(6, 2), (6, 4), (10, 1)])
@pytest.mark.parametrize(
    ("draw", "generator"),
    [(random_indices, np.random.default_rng(1)), (random_indices_by_definition, random.Random(1))],
    ids=["fast", "definition"],
)
def test_every_set_of_positions_is_equally_likely(draw, generator, num_elements, k):
    num_draws, counts = 1_500, dict.fromkeys(itertools.combinations(range(num_elements), k), 0)
    for _ in range(num_draws):
        counts[tuple(int(index) for index in draw(num_elements, k, generator))] += 1
    assert chi_square(counts.values(), num_draws / len(counts)) < CHI_SQUARE[len(counts) - 1]


@pytest.mark.parametrize("k", [3_000, 30_000, 70_000])
def test_positions_spread_evenly_over_a_large_tensor(k):
    generator, num_elements = np.random.default_rng(2), 100_000
    counts = np.zeros(50)
    for _ in range(10):
        counts += np.histogram(random_indices(num_elements, k, generator), bins=50, range=(0, num_elements))[0]
    # Without replacement the counts vary less than chi-square allows, by 1 - k/n.
    assert chi_square(counts, 10 * k / 50) / (1 - k / num_elements) < CHI_SQUARE[49]


def test_each_call_draws_anew_and_seed_and_site_repeat_the_stream():
    x = torch.arange(1000.0)
    first, again, other = RandomK(50, seed=7), RandomK(50, seed=7), RandomK(50, seed=8)
    one, two = (first.encode(x).tensors[1].tolist() for _ in range(2))
    assert one != two
    assert [again.encode(x).tensors[1].tolist() for _ in range(2)] == [one, two]
    assert other.encode(x).tensors[1].tolist() != one
    by_site = [first.for_site(site).encode(x).tensors[1].tolist() for site in ("a", "b", "a")]
    assert by_site[0] == by_site[2] != by_site[1]
    values, indices = first.encode(x.view(10, 100)).tensors
    assert values.tolist() == indices.tolist()


def test_no_global_generator_is_touched():
    before = np.random.get_state()[1].copy(), random.getstate(), torch.get_rng_state()
    RandomK(0.1, seed=1).encode(torch.randn(1000, generator=torch.Generator().manual_seed(0)))
    assert (np.random.get_state()[1] == before[0]).all()
    assert random.getstate() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


def test_a_stream_continues_where_another_was_saved_half_a_draw_included():
    # 32-bit draws come in pairs from one of 64 bits: after an odd number of them one is left over.
    stream, other = np.random.default_rng(1), np.random.default_rng(2)
    stream.integers(2**31, size=3, dtype=np.int32)
    assert stream.bit_generator.state["has_uint32"] == 1
    set_stream_position_(other, stream_position(stream))
    assert other.bit_generator.state == stream.bit_generator.state
    with pytest.raises(ValueError, match=r"position is \(3,\).*it must be \(6,\)"):
        RandomK(1).load_state_dict({"_extra_state": torch.zeros(3, dtype=torch.int64)})
