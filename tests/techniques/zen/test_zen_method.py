"""Hashing, formats and schemes by hand-worked values, by definition, and against each other."""

import numpy as np
import pytest
import torch

from tests.cases import refusals
from workbench.cluster import Link
from workbench.techniques.zen import cost
from workbench.techniques.zen.method import HashBitmap, hierarchical_hash, partition, partition_by_definition
from workbench.techniques.zen.method.formats import KEPT, hash_bitmap, index_bytes, nonzero_blocks
from workbench.techniques.zen.method.hashing import (
    LARGEST_INDEX,
    hash_of,
    hash_of_by_definition,
    partition_of,
    strawman_hash,
)
from workbench.techniques.zen.method.schemes import RIVALS, SCHEMES, Scheme, stages, traffic
from workbench.techniques.zen.method.sparsity import (
    densification_ratio,
    imbalance_ratio,
    overlap_ratio,
    push_imbalance,
    range_counts,
    skewness_ratio,
)


def some_indices(num=600, seed=0):
    draw = torch.Generator().manual_seed(seed)
    indices = torch.randint(LARGEST_INDEX, (num,), generator=draw).unique()
    return torch.cat([indices, torch.tensor([LARGEST_INDEX])])[torch.randperm(len(indices) + 1, generator=draw)]


def test_the_hash_is_murmurhash3_of_four_bytes_and_vectorised_hashes_equal_the_definition():
    for key, seed, expected in ((0, 0, 0x2362F9DE), (0, 1, 0x78ED212D), (1, 0, 0xFBF1402A)):
        assert hash_of_by_definition(key, seed) == expected
    indices = some_indices()
    assert hash_of(indices, 77).tolist() == [hash_of_by_definition(index, 77) for index in indices.tolist()]


@pytest.mark.parametrize("num_partitions", [1, 3, 16])
@pytest.mark.parametrize(
    ("parallel_slots", "serial_slots"),
    [(1200, 120), (1200, 0), (20, 3), (0, 0), (2, 100)],
    ids=["as in the paper", "no serial area", "serial area overflows", "no slots", "fewer slots than partitions"],
)
def test_hierarchical_hashing_equals_its_definition_and_loses_nothing(num_partitions, parallel_slots, serial_slots):
    indices, slots = some_indices(), {"parallel_slots": parallel_slots, "serial_slots": serial_slots}
    fast = hierarchical_hash(indices, num_partitions, seed=5, **slots)
    slow = partition_by_definition(indices, num_partitions, 5, **slots)
    counted = partition(indices, num_partitions, 5)
    homes = partition_of(indices, num_partitions, 5)
    for number, parts in enumerate(zip(fast, slow, counted, strict=True)):
        expected = sorted(indices[homes == number].tolist())
        assert all(sorted(part.tolist()) == expected for part in parts)
    assert sorted(torch.cat(fast).tolist()) == sorted(indices.tolist())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("parallel_slots", "serial_slots"), [(400_000, 40_000), (100_000, 0), (4, 1)])
def test_on_a_gpu_hierarchical_hashing_makes_the_same_partitions(parallel_slots, serial_slots):
    indices = some_indices(200_000)
    slots = {"parallel_slots": parallel_slots, "serial_slots": serial_slots}
    for partitions in (hierarchical_hash(indices.cuda(), 4, seed=5, **slots), partition(indices.cuda(), 4, 5)):
        for part, expected in zip(partitions, partition(indices, 4, 5), strict=True):
            assert torch.equal(part.cpu().sort().values, expected.sort().values)


def test_indices_at_the_ends_of_the_range_and_of_one_partition_alone_are_kept():
    for few in ([], [0], [LARGEST_INDEX], [0, LARGEST_INDEX]):
        parts = hierarchical_hash(torch.tensor(few, dtype=torch.int64), 4, parallel_slots=8, serial_slots=1, seed=0)
        assert len(parts) == 4
        assert sorted(torch.cat(parts).tolist()) == few
    indices = torch.arange(20_000)
    members = indices[partition_of(indices, 8, 3) == 5]
    partitions = hierarchical_hash(members, 8, parallel_slots=2 * len(members), serial_slots=len(members) // 5, seed=3)
    assert sorted(partitions[5].tolist()) == members.tolist()
    assert not any(len(part) for number, part in enumerate(partitions) if number != 5)


def test_an_index_has_the_same_partition_on_every_rank():
    indices = some_indices()
    whole = hierarchical_hash(indices, 6, parallel_slots=1200, serial_slots=120, seed=1)
    half = hierarchical_hash(indices[::2], 6, parallel_slots=9, serial_slots=0, seed=1)
    for part, full in zip(half, whole, strict=True):
        assert set(part.tolist()) <= set(full.tolist())


def test_the_strawman_loses_what_balls_in_bins_say():
    indices = torch.arange(200_000)
    kept = sum(map(len, strawman_hash(indices, 16, 400_000, seed=2)))
    assert 1 - kept / 200_000 == pytest.approx(1 - 2 * (1 - np.exp(-0.5)), abs=0.002)  # N/m = 1/2


def test_partitions_of_random_indices_are_balanced_as_theorem_3_2_says():
    counts = torch.bincount(partition_of(torch.arange(0, 2_000_000, 17), 16, 0), minlength=16).numpy()
    bound = np.sqrt(2 * 16 * np.log(16) / counts.sum())  # the maximum of n bins is within sqrt(2 m log n / n)
    assert imbalance_ratio(counts) - 1 < 1.5 * bound


test_wrong_arguments_are_refused = refusals(
    (lambda: partition(torch.tensor([3, -1]), 2, 0), "indices hold -1"),
    (lambda: partition(torch.tensor([LARGEST_INDEX + 1]), 2, 0), "2147483648; each must be in 0 .. 2147483647"),
    (lambda: partition(torch.tensor([1.0]), 2, 0), "float32"),
    (lambda: partition(torch.tensor([1]), 0, 0), "num_partitions is 0"),
    (lambda: hierarchical_hash(torch.tensor([1]), 1, parallel_slots=-1, serial_slots=0, seed=0), "parallel_slots"),
    (lambda: HashBitmap(0, 2, 0), "domain_size is 0"),
    (lambda: HashBitmap(10, 2, 0).encode(torch.tensor([10]), 0), "indices hold 10"),
    (lambda: HashBitmap(10, 1, 0).encode(torch.tensor([1]), 1), "partition is 1"),
    (lambda: HashBitmap(10, 1, 0).decode(torch.zeros(1, dtype=torch.uint8), 0), r"it is uint8 \(2,\)"),
    (lambda: Scheme.parse("Ring"), "must name one choice"),
    (lambda: Scheme.parse("Ring, One-shot, Centralization, Balanced"), "only partitions have one"),
    (lambda: traffic(RIVALS["SparCML"], [np.array([0])] * 3, np.zeros(4, int)), "a power of two"),
)


def test_the_hash_bitmap_of_figure_3_10_by_hand():
    bitmap = HashBitmap(15, 3, seed=0)
    members = [
        [i for i in range(15) if hash_of_by_definition(i, hash_of_by_definition(0, 0)) * 3 >> 32 == p] for p in range(3)
    ]
    first = members[0]
    bits = bitmap.encode(torch.tensor([first[2], first[1]]), 0)
    assert bits[0] == 0b110  # the second and the third
    assert bitmap.decode(bits, 0).tolist() == first[1:3]


@pytest.mark.parametrize(("domain_size", "num_partitions"), [(1, 1), (15, 3), (1000, 7), (4096, 16)])
def test_bitmaps_have_a_bit_for_each_index_and_give_the_indices_back(domain_size, num_partitions):
    bitmap = HashBitmap(domain_size, num_partitions, seed=4)
    indices = torch.arange(domain_size)[torch.randperm(domain_size, generator=torch.Generator().manual_seed(0))]
    assert sum(bitmap.sizes) == domain_size  # |G| bits, theorem 3.3
    assert domain_size / 8 <= bitmap.num_bytes() < domain_size / 8 + num_partitions
    for kept in (indices, indices[: domain_size // 3], indices[:0]):
        for number, part in enumerate(partition(kept, num_partitions, 4)):
            bits = bitmap.encode(part, number)
            assert bits.nbytes == bitmap.num_bytes(number)
            assert bitmap.decode(bits, number).tolist() == sorted(part.tolist())


def test_bitmaps_of_many_sizes_are_not_kept_for_ever():
    for size in range(1, KEPT + 20):
        hash_bitmap(size, 2, 0)
    assert hash_bitmap.cache_info().currsize == KEPT
    assert hash_bitmap(KEPT, 2, 0) is hash_bitmap(KEPT, 2, 0)


def test_an_index_given_twice_is_one_bit():
    bitmap = HashBitmap(10, 1, seed=0)
    assert bitmap.decode(bitmap.encode(torch.tensor([4, 4, 9]), 0), 0).tolist() == [4, 9]


def test_formats_cost_what_section_3_3_4_says():
    # DeepFM's 214 M values on 16 servers: bitmaps of 27 MB with a hash bitmap, 428 MB without.
    sizes = {name: index_bytes(name, 10**6, 214 * 10**6, 16) for name in ("hash bitmap", "bitmap", "COO")}
    assert sizes == {"hash bitmap": 26.75e6, "bitmap": 428e6, "COO": 4e6}
    assert nonzero_blocks(torch.tensor([700, 3, 255, 256])).tolist() == [0, 1, 2]


def test_measures_of_sparsity_by_hand():
    first, second = np.array([0, 1, 2, 7]), np.array([1, 2, 3])
    assert overlap_ratio(first, second) == 2 / 3
    assert densification_ratio([first, second]) == 5 / 3.5
    assert range_counts(first, 8, 4).tolist() == [2, 1, 0, 1]
    assert skewness_ratio(first, 8, 4) == 2
    assert push_imbalance([first, second], np.array([0, 0, 1, 1, 0, 0, 1, 1]), 2) == 4 / 3


# Figure 3.6: three ranks with six gradients each of fifteen; in (a) four of each are in the middle range.
SETS = [np.array([0, 5, 6, 7, 8, 10]), np.array([1, 5, 6, 7, 8, 11]), np.array([2, 5, 6, 7, 8, 12])]


def test_push_and_pull_by_hand():
    push, pull = stages(RIVALS["Sparse PS"], SETS, np.arange(15) // 5)
    assert push.received.tolist() == [2, 8, 2]
    assert push.sent.tolist() == [5, 2, 5]
    assert pull.sent.tolist() == [6, 8, 6]  # three, four and three sums to two ranks each
    assert pull.received.tolist() == [7, 6, 7]
    assert traffic(RIVALS["Sparse PS"], SETS, np.arange(15) // 5) == 16


def test_the_space_has_fifteen_schemes_that_print_and_parse():
    assert len(SCHEMES) == len(set(SCHEMES)) == 15  # 5 centralised, 5 parallel of each balance
    assert [Scheme.parse(str(scheme)) for scheme in SCHEMES] == list(SCHEMES)
    assert set(RIVALS.values()) <= set(SCHEMES)


def equal_sets(num=8):
    return [np.arange(80) for _ in range(num)]


def apart(num=8):
    return [np.arange(rank * 10, rank * 10 + 10) for rank in range(num)]


@pytest.mark.parametrize(
    ("sets", "expected"),
    [(equal_sets(), {"centralised": 3 * 80, "balanced": 2 * 70}), (apart(), {"centralised": 70, "balanced": 80})],
    ids=["whole overlap", "no overlap"],
)
def test_theorem_3_1_holds_at_both_ends(sets, expected):
    home = np.arange(80) % 8
    if len(sets[0]) == 10:  # of each rank's ten, spread them as evenly as ten over eight allow
        expected = expected | {"balanced": traffic(RIVALS["Balanced Parallelism"], sets, home)}
    by_scheme = {scheme: traffic(scheme, sets, home) for scheme in SCHEMES if scheme.balance != "Imbalanced"}
    best_central = min(n for scheme, n in by_scheme.items() if scheme.partition == "Centralization")
    assert by_scheme[RIVALS["SparCML"]] == best_central == expected["centralised"]
    assert by_scheme[RIVALS["Balanced Parallelism"]] == expected["balanced"]
    winner = "Balanced Parallelism" if len(sets[0]) == 80 else "SparCML"
    assert by_scheme[RIVALS[winner]] == min(by_scheme.values())


def zipf_sets(num, domain_size=20_000, drawn=2000):
    draw = np.random.default_rng(0)
    weights = 1 / np.arange(1, domain_size + 1)
    return [np.unique(draw.choice(domain_size, drawn, p=weights / weights.sum())) for _ in range(num)]


def test_formulas_equal_the_enumeration_of_what_is_sent():
    sets = zipf_sets(8)
    of = cost.sparsity_of(sets, 20_000, 1)
    homes = partition_of(torch.arange(20_000), 8, cost.SEED).numpy()
    ranges = np.arange(20_000) * 8 // 20_000
    for name, home in (("AGsparse", ranges), ("SparCML", ranges), ("Sparse PS", ranges), ("Zen, COO", homes)):
        scheme = RIVALS.get(name, RIVALS["Balanced Parallelism"])
        counted = 8 * traffic(scheme, sets, home)  # value and index
        assert cost.bytes_on_busiest_link(name, of) == pytest.approx(counted, rel=0.03)


def test_costs_have_their_limits():
    of = cost.sparsity_of(equal_sets(8), 80, 1)  # all there, all overlapping
    dense = cost.bytes_on_busiest_link("Dense", of)
    assert dense == 2 * 7 / 8 * 320
    assert cost.bytes_on_busiest_link("Balanced Parallelism", of) == 2 * dense
    assert cost.bytes_on_busiest_link("SparCML", of) == 3 * 320  # the whole tensor in each stage
    assert cost.lower_bound_bytes(of) == 320
    link = Link(bandwidth_bytes_per_s=1e9, latency_s=1e-3, source="test")
    assert cost.seconds("Dense", of, link) == pytest.approx(dense / 1e9 + 14e-3)
    with pytest.raises(ValueError, match="scheme is 'Zenn'"):
        cost.bytes_on_busiest_link("Zenn", of)
