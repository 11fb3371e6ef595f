"""TopK and RandomK: ties by hand, the sampled path against the definition, uniform and seeded positions."""

import itertools
import math
import random

import numpy as np
import pytest
import torch

from workbench.compression import RandomK, TopK, randomk, topk

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


@pytest.fixture
def small_samples(monkeypatch):
    """Let the sampled path start at 1024 elements, in blocks of 512."""
    monkeypatch.setattr(topk, "SAMPLE_SIZE", 1 << 10)
    monkeypatch.setattr(topk, "BLOCK_SIZE", 1 << 9)


def between_samples(x):
    return torch.arange(len(x)) % (len(x) // topk.SAMPLE_SIZE + 1) > 0


def rare(x):
    return torch.rand(len(x), generator=torch.Generator().manual_seed(len(x) + 1)) < 1e-3


KINDS = {
    "normal": lambda x: x,
    "all equal": torch.ones_like,
    "all zero": torch.zeros_like,
    "both zeros": lambda x: x.sign() * 0.0,
    "few values": lambda x: x.round(),
    "ascending": lambda x: x.sort().values,
    "descending by magnitude": lambda x: x[x.abs().sort(descending=True).indices],
    "heavy tails": lambda x: x**-5,
    "sparse": lambda x: x * rare(x),
    "largest between the samples": lambda x: torch.where(between_samples(x), x, x * 1e-3),
    "largest at the samples": lambda x: torch.where(between_samples(x), x, x * 1e3),
    "with NaN and inf": lambda x: torch.where(rare(x), math.nan, torch.where(x > 3, -math.inf, x)),
    "subnormal": lambda x: x * 1e-41,
}


def adversary(kind, size):
    return KINDS[kind](torch.randn(size, generator=torch.Generator().manual_seed(size)))


def test_largest_magnitudes_in_ascending_positions():
    payload = TopK(3).encode(torch.tensor([[0.5, -4.0], [3.0, 1.0], [-2.0, 0.0]]))
    values, indices = payload.tensors
    assert indices.tolist() == [1, 2, 4]
    assert values.tolist() == [-4, 3, -2]
    assert TopK(3).decode(payload).tolist() == [[0, -4], [3, 0], [-2, 0]]


def test_of_equal_magnitudes_the_lowest_positions_stay_and_nan_counts_as_largest():
    x = torch.tensor([1.0, -2.0, 2.0, -1.0, 2.0, 1.0])
    assert topk.largest_indices(x, 2).tolist() == [1, 2]
    assert topk.largest_indices(x, 4).tolist() == [0, 1, 2, 4]
    x = torch.tensor([1.0, math.inf, -math.nan, 5.0, math.nan])
    assert topk.largest_indices(x, 1).tolist() == [2]
    assert topk.largest_indices(x, 3).tolist() == [1, 2, 4]


@pytest.mark.parametrize("kind", KINDS)
def test_fast_path_gives_the_positions_of_the_definition(kind, small_samples):
    for dtype, size in itertools.product(DTYPES, (1000, 1025, 10_007)):
        x = adversary(kind, size).to(dtype)
        for k in (1, size // 100, size // 10, size // 2 + 1, size - 1):
            assert torch.equal(topk.largest_indices(x, k), topk.largest_indices_by_definition(x, k)), (size, k)


@pytest.mark.parametrize("kind", KINDS)
def test_plain_operations_for_other_devices_give_the_same_positions(kind):
    x = adversary(kind, 5000)
    for k in (1, 50, 500, 4999):
        keys = topk._keys(x.view(torch.int32), topk._bits_of_infinity(x.dtype) + 1)
        assert torch.equal(topk._largest_of_keys(keys, k), topk.largest_indices_by_definition(x, k))


def test_a_sample_that_misleads_is_found_out(monkeypatch):
    x = torch.randn(2 * topk.SAMPLE_SIZE, generator=torch.Generator().manual_seed(0))
    expected = topk.largest_indices_by_definition(x, 1000)
    monkeypatch.setattr(topk, "BLOCK_SIZE", 1 << 10)
    for threshold in (0, np.iinfo(np.int32).max):
        monkeypatch.setattr(topk, "_sampled_threshold", lambda bits, k, threshold=threshold: threshold)
        assert torch.equal(topk.largest_indices(x, 1000), expected)


def test_where_fewer_than_k_are_not_zero_nothing_is_sorted_out(small_samples, monkeypatch):
    x = adversary("sparse", 10_007)
    expected = topk.largest_indices_by_definition(x, 100)
    assert 0 < x.count_nonzero() < 100
    monkeypatch.delattr(topk, "_kept_of_keys")  # takes seconds on millions of zeros
    assert torch.equal(topk.largest_indices(x, 100), expected)


def test_the_sample_visits_every_position_of_the_last_dimension():
    # 1024 divides the number of elements, so a stride of 256 would see 4 channels of 1024 only.
    x = torch.zeros(1 << 14, 1024)
    x[:, 5] = 7.0
    threshold = topk._sampled_threshold(x.view(-1).view(torch.int32).numpy(), x.shape[0] // 2)
    assert threshold == np.float32(7.0).view(np.int32)


@pytest.mark.parametrize(("keep", "kept"), [(0.01, 1), (0.1, 10), (1.0, 97), (1, 1), (97, 97), (500, 97)])
def test_number_and_bytes_of_elements_kept_of_97(keep, kept):
    assert TopK(keep).num_kept((97,)) == kept
    assert len(TopK(keep).encode(torch.randn(97)).tensors[0]) == kept
    # Values of 2 bytes with indices of 8, or of 4.
    assert TopK(keep).payload_bytes((97,), torch.float16) == 10 * kept
    narrow = TopK(keep, index_dtype=torch.int32)
    assert narrow.payload_bytes((97,), torch.float16) == 6 * kept
    assert narrow.encode(torch.randn(97).half()).tensors[1].dtype == torch.int32


@pytest.mark.parametrize("keep", [0, -1, 0.0, 1.5, math.nan, True, "3"])
def test_a_share_or_number_out_of_range_and_an_index_of_2_bytes_are_refused(keep):
    with pytest.raises(ValueError, match="keep"):
        TopK(keep)
    with pytest.raises(ValueError, match="index_dtype"):
        TopK(3, index_dtype=torch.int16)


CHI_SQUARE = {14: 42.6, 49: 95.0}  # 99.99 % quantiles of the distribution, by degrees of freedom


def chi_square(counts, expected):
    return sum((count - expected) ** 2 / expected for count in counts)


def test_positions_are_different_ascending_and_in_range():
    for num_elements, share in itertools.product([1, 2, 10, 1000, 100_000], [0.0, 0.001, 0.1, 0.5, 0.51, 0.9, 1.0]):
        k = round(share * num_elements)
        indices = randomk.random_indices(num_elements, k, np.random.default_rng(0))
        assert indices.dtype == np.int64 and len(indices) == k and (np.diff(indices) > 0).all()
        assert k == 0 or (indices[0] >= 0 and indices[-1] < num_elements)


@pytest.mark.parametrize(("num_elements", "k"), [(6, 2), (6, 4)])
@pytest.mark.parametrize(
    ("draw", "make_generator"),
    [(randomk.random_indices, np.random.default_rng), (randomk.random_indices_by_definition, random.Random)],
    ids=["fast", "definition"],
)
def test_every_set_of_positions_is_equally_likely(draw, make_generator, num_elements, k):
    generator = make_generator(1)
    num_draws, counts = 600, dict.fromkeys(itertools.combinations(range(num_elements), k), 0)
    for _ in range(num_draws):
        counts[tuple(int(index) for index in draw(num_elements, k, generator))] += 1
    assert chi_square(counts.values(), num_draws / len(counts)) < CHI_SQUARE[len(counts) - 1]


@pytest.mark.parametrize("k", [3_000, 30_000, 70_000])
def test_positions_spread_evenly_over_a_large_tensor(k):
    generator, num_elements = np.random.default_rng(2), 100_000
    counts = np.zeros(50)
    for _ in range(10):
        counts += np.histogram(randomk.random_indices(num_elements, k, generator), bins=50, range=(0, num_elements))[0]
    # Without replacement the counts vary less than chi-square allows, by 1 - k/n.
    assert chi_square(counts, 10 * k / 50) / (1 - k / num_elements) < CHI_SQUARE[49]


def test_each_call_draws_anew_and_seed_and_site_repeat_the_stream():
    x = torch.arange(1000.0)
    first, again, other = RandomK(50, seed=7), RandomK(50, seed=7), RandomK(50, seed=8)
    drawn, anew = (first.encode(x).tensors[1].tolist() for _ in range(2))
    assert drawn != anew
    assert [again.encode(x).tensors[1].tolist() for _ in range(2)] == [drawn, anew]
    assert other.encode(x).tensors[1].tolist() != drawn
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
    randomk.set_stream_position_(other, randomk.stream_position(stream))
    assert other.bit_generator.state == stream.bit_generator.state
    with pytest.raises(ValueError, match=r"position is \(3,\).*it must be \(6,\)"):
        RandomK(1).load_state_dict({"_extra_state": torch.zeros(3, dtype=torch.int64)})
