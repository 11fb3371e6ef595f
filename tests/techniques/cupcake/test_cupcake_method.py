"""Timelines by hand, equation 5.1 against a simulation, and the optimum and algorithm 5.1 against brute force."""

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.cases import refusals
from workbench.techniques.cupcake.method import (
    FlatThenLinear,
    FusionProblem,
    Linear,
    Pruning,
    brute_force_fusion,
    iteration_time,
    optimal_fusion,
    rules,
    search_fusion,
    timeline,
)
from workbench.techniques.cupcake.method.optimal import link_free_by_definition, optimal_fusion_by_labels
from workbench.techniques.cupcake.method.rivals import buckets, ddp_buckets, each, even_split, single_split
from workbench.techniques.cupcake.method.search import search
from workbench.timeline.queues import queues_by_definition

PRUNINGS = [Pruning.NONE, Pruning.OUTCOME, Pruning.OVERLAP, Pruning.BOTH]


def five_tensors(**more):
    costs = {"compress": Linear(1.0, 0.5), "communicate": Linear(1.0, 1.0)} | more
    return FusionProblem((2, 1, 2, 1, 3), (4, 2, 1, 3, 2), 1.0, **costs)


def small(**more):
    given = {"backward_s": (1, 1), "size_bytes": (1, 2), "forward_s": 0} | more
    return FusionProblem(**{"compress": Linear(1, 1), "communicate": Linear(1, 1)} | given)


def random_problem(draw, *, flat=False, whole=False, costs=(), **more):
    """Draw 1 to 7 tensors; whole numbers are often 0 or equal."""

    def numbers(top, size=None):
        return draw.integers(0, top, size).astype(float) if whole else draw.uniform(0, top, size)

    def cost():
        if flat and draw.random() < 0.7:
            return FlatThenLinear(float(numbers(6)), float(numbers(6)), float(numbers(3)))
        return Linear(float(draw.choice([0.0, numbers(4)])), float(numbers(3)))

    num, more = int(draw.integers(1, 8)), more | {name: cost() for name in ("compress", "communicate", *costs)}
    return FusionProblem(numbers(4, num).tolist(), numbers(5, num).tolist(), float(numbers(3)), **more)


def fusions(problem, num_groups=None):
    """Return all fusions that a problem allows, or those of so many groups."""
    num, counts = problem.num_tensors, [num_groups] if num_groups else range(1, problem.num_tensors + 1)
    every = [(*inner, num) for count in counts for inner in combinations(range(1, num), count - 1)]
    sizes = problem.size_bytes
    return [e for e in every if all(sum(sizes[a:b]) <= problem.largest_bytes for a, b in pairwise((0, *e)))]


def best_s(problem, num_groups=None):
    return min(iteration_time(problem, fusion) for fusion in fusions(problem, num_groups))


def grid(spans):
    """Write spans as text, a column a second: the first letter of the operation, a capital for the second group."""
    rows, num = {}, int(max(span.end_s for span in spans))
    for span in spans:
        row = rows.setdefault(span.resource, ["."] * num)
        place, letter = slice(int(span.start_s), int(span.end_s)), span.what[0]
        row[place] = (letter.upper() if span.group == 1 else letter) * len(row[place])
    return {resource: "".join(row) for resource, row in rows.items()}


def test_five_tensors_in_three_groups_by_hand():
    # Groups of 4, 2, 6 bytes: encoded in 1 + 2, 1 + 1, 1 + 3 s; sent in 5, 3, 7 s. The second waits for the link at 9.
    assert grid(timeline(five_tensors(), (1, 2, 5))) == {
        "device": "fbbeeeBEEbbbbbbeeee.......",
        "link": "......sssssSSS.....sssssss",
    }
    assert iteration_time(five_tensors(), (1, 2, 5)) == 26


def test_a_cpu_encodes_beside_the_device_and_decodes_at_last_while_a_second_link_sends_on():
    # Two groups of 6 bytes: encoded in 4 s, sent in 7, sent on in 3, decoded in 2.
    costs = {"compress": Linear(1, 0.5), "onward": Linear(0, 0.5), "decode": Linear(2, 0)}
    assert grid(timeline(five_tensors(**costs, on_cpu=True), (2, 5))) == {
        "device": "fbbbBBBBBB.................",
        "CPU": "....eeee..EEEE....dd.....DD",
        "link": "........sssssssSSSSSSS.....",
        "second link": "...............sss....SSS..",
    }


def test_a_group_that_is_not_encoded_is_sent_at_once_at_its_own_cost():
    # The first group's 6 bytes are sent in 12 s, while the second is computed, then encoded in 4 s.
    problem = five_tensors(send_plain=Linear(0, 2), decode=Linear(2, 0))
    assert grid(timeline(problem, (2, 5), [False, True])) == {
        "device": "fbbbBBBBBBEEEE.........DD",
        "link": "....ssssssssssssSSSSSSS..",
    }


def test_equation_5_1_is_the_end_of_a_simulation_by_definition():
    draw = np.random.default_rng(0)
    for number in range(120):
        coder = 3 if number % 3 == 1 else 0  # a CPU or the device
        problem = random_problem(draw, flat=True, whole=number % 2 == 0, costs=["onward"], on_cpu=coder == 3)
        fusion = fusions(problem)[draw.integers(2 ** (problem.num_tensors - 1))]
        costs, chains = {coder: problem.compress, 1: problem.communicate, 2: problem.onward}, [[]] * problem.num_tensors
        for start, end in pairwise((0, *fusion)):
            size = sum(problem.size_bytes[start:end])
            chains[end - 1] = [(resource, float(cost(size))) for resource, cost in costs.items()]
        last_s = max(tasks[-1][1] for tasks in queues_by_definition(problem.backward_s, chains))
        assert iteration_time(problem, fusion) == pytest.approx(problem.forward_s + last_s)


KINDS = {
    "linear": {},
    "flat": {"flat": True},
    "decoding": {"flat": True, "costs": ["decode"]},
    "second link": {"flat": True, "costs": ["onward"]},
    "CPU": {"flat": True, "costs": ["decode", "onward"], "on_cpu": True},
    "linear, limited": {"largest_bytes": 8.0},
    "flat, limited": {"flat": True, "costs": ["decode"], "largest_bytes": 8.0},
}


@pytest.mark.parametrize("whole", [False, True], ids=["real", "whole"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_optimal_fusion_takes_as_long_as_the_best_of_all_fusions(kind, whole):
    draw = np.random.default_rng(1)
    for _ in range(60):
        problem = random_problem(draw, whole=whole, **KINDS[kind])
        assert iteration_time(problem, optimal_fusion(problem)) == pytest.approx(best_s(problem), abs=1e-12)


def test_with_linear_costs_following_all_ways_finds_what_the_recurrence_finds_for_many_tensors():
    draw = np.random.default_rng(6)
    for num in (40, 90, 140):
        times, sizes = draw.exponential(1.0, num), draw.exponential(1.0, num) ** 3
        problem = FusionProblem(times, sizes, 1.0, Linear(0.5, 0.1), Linear(0.3, 0.4))
        found_s = [iteration_time(problem, find(problem)) for find in (optimal_fusion, optimal_fusion_by_labels)]
        assert found_s[0] == pytest.approx(found_s[1], rel=1e-10)


def test_with_linear_costs_the_optimum_has_the_fewest_groups_of_all_that_are_as_fast():
    draw = np.random.default_rng(2)
    for _ in range(60):
        problem = random_problem(draw, whole=True)
        fewest = next(count for count in range(1, 8) if best_s(problem, count) == best_s(problem))
        assert len(brute_force_fusion(problem)) == len(optimal_fusion(problem)) == fewest


def test_the_recurrence_gives_when_the_link_is_free_after_the_best_of_all_fusions_in_k_groups():
    draw = np.random.default_rng(3)
    for number in range(25):
        problem = random_problem(draw, whole=number % 2 == 0)
        for (j, k), free_s in link_free_by_definition(problem).items():
            if k:
                first = replace(problem, backward_s=problem.backward_s[:j], size_bytes=problem.size_bytes[:j])
                assert free_s == pytest.approx(best_s(first, k))


@pytest.mark.parametrize("prune", PRUNINGS)
def test_with_linear_costs_algorithm_5_1_finds_the_optimum_whatever_it_prunes(prune):
    draw = np.random.default_rng(4)
    for number in range(60):
        problem = random_problem(draw, whole=number % 2 == 0)
        assert iteration_time(problem, search_fusion(problem, prune)) == pytest.approx(best_s(problem), abs=1e-12)


def test_counting_that_the_last_gradient_is_sent_prunes_more_and_still_finds_the_optimum():
    draw, looked_at = np.random.default_rng(5), []
    for number in range(60):
        problem = random_problem(draw, whole=number % 2 == 0)
        searched = search(problem, counts_last=True)
        assert iteration_time(problem, searched.fusion) == pytest.approx(best_s(problem), abs=1e-12)
        looked_at.append((searched.num_groups, search(problem).num_groups))
    assert all(fewer <= groups for fewer, groups in looked_at)
    assert sum(fewer for fewer, _ in looked_at) < sum(groups for _, groups in looked_at)


def test_as_printed_algorithm_5_1_misses_one_group():
    alone = small(backward_s=(1,), size_bytes=(1,))
    assert search_fusion(alone, as_printed=True) == () and search_fusion(alone) == (1,)
    # One group: 1 + 1 + 9 + 2 = 13 s. Two: the second is encoded at 1 + 9 + 1 + 9 = 20 s.
    slow = small(size_bytes=(1, 1), compress=Linear(9, 0), communicate=Linear(0, 1))
    assert search_fusion(slow) == (2,) and iteration_time(slow, (2,)) == 13
    assert search_fusion(slow, as_printed=True) == (1, 2) and iteration_time(slow, (1, 2)) == 21


def test_with_a_flat_part_both_prunings_can_miss_the_optimum():
    # Pruning 2. The best first group is sent in 7 s. Tensors 2 and 3 are encoded in 6 s: tensor 2 alone is not tried.
    problem = FusionProblem((1, 1, 0, 0, 2, 2, 0), (3, 3, 4, 2, 2, 3, 1), 0, FlatThenLinear(4, 4, 1), Linear(1, 1))
    assert brute_force_fusion(problem) == (2, 3, 5, 7)
    assert [iteration_time(problem, search_fusion(problem, prune)) for prune in PRUNINGS] == [30, 30, 31, 31]
    assert search_fusion(problem) == (1, 2, 3, 5, 7)
    # Pruning 1 takes one group of all other 8 bytes for optimistic: 1 + 2 (8 - 2) = 13 s. In groups of 3, 3 and 2 bytes
    # they take 3 + 3 + 1 = 7 s, and all is encoded at 5 + 1 + 7 = 13 s.
    problem = FusionProblem((2, 2, 0, 1, 0), (1, 1, 3, 3, 2), 0, FlatThenLinear(1, 2, 2), Linear(0, 0))
    assert iteration_time(problem, (2, 3, 4, 5)) == iteration_time(problem, optimal_fusion(problem)) == 13
    assert [iteration_time(problem, search_fusion(problem, prune)) for prune in PRUNINGS] == [13, 14, 13, 14]


def test_simpler_rules_by_hand():
    problem = five_tensors()
    assert [even_split(problem, count) for count in (1, 2, 3, 9)] == [(5,), (2, 5), (1, 3, 5), each(problem)]
    mib = replace(problem, size_bytes=[size * 2**20 for size in (0.5, 0.5, 2, 0.25, 0.25)])
    assert [buckets(mib, size) for size in (0.25, 1, 3)] == [(1, 2, 3, 4, 5), (2, 3, 5), (3, 5)]
    assert buckets(mib, 2.5, 0.5) == (1, 3, 5) and rules(0.5)["Bucket fusion"](mib) == (2, 3, 5)
    # Computed at 1, 2, 3 s. In one group sent at 6 s, in two at 5 s, in three at 4 s.
    three = FusionProblem((1, 1, 1), (1, 1, 1), 0, Linear(0, 0), Linear(0, 1))
    assert single_split(three) == (1, 3) and iteration_time(three, (1, 3)) == 5
    assert optimal_fusion(three) == (1, 2, 3) and iteration_time(three, (1, 2, 3)) == 4
    found_s = {name: iteration_time(three, rule(three)) for name, rule in rules().items()}
    assert found_s == {"Layer-wise": 4, "Bucket fusion": 6, "DDP's buckets": 6, "Evenly split": 4, "Single split": 5}


def test_ddps_buckets_are_those_that_torch_assigns():
    elements = np.random.default_rng(7).integers(1, 2**21, 60).tolist()
    limits = [dist._DEFAULT_FIRST_BUCKET_BYTES, 25 * 2**20]
    tensors = [torch.empty(num, device="meta") for num in elements]
    indices, _ = dist._compute_bucket_assignment_by_size(tensors, limits, [False] * 60)
    problem = FusionProblem([1.0] * 60, [4.0 * num for num in elements], 0, Linear(0, 0), Linear(0, 0))
    assert ddp_buckets(problem) == tuple(bucket[-1] + 1 for bucket in indices)


test_bad_input_is_named = refusals(
    (lambda: small(backward_s=(1, -1)), r"backward_s\[1\] is -1; it must be finite and not negative"),
    (lambda: small(size_bytes=(float("nan"), 1)), r"size_bytes\[0\] is nan; it must be finite"),
    (lambda: small(size_bytes=(1,)), r"lengths \(2, 1\); they must be equal and at least 1"),
    (lambda: small(backward_s=(), size_bytes=()), r"lengths \(0, 0\)"),
    (lambda: small(backward_s=None), "backward_s is None; it must be a sequence of numbers"),
    (lambda: small(largest_bytes=1), r"largest_bytes is 1; it must hold size_bytes\[1\] = 2"),
    (lambda: small(size_bytes=(1e308, 1e308)), "size_bytes overflows: over 2 tensors it is inf; it must be finite"),
    (lambda: small(backward_s=(1e308, 1e308)), "backward_s overflows: over 2 tensors it is inf"),
    (lambda: small(size_bytes=(1e300, 1e300), compress=Linear(0, 1e9)), "compress overflows: over 2 tensors it is inf"),
    (lambda: Linear(-1, 0), "startup_s is -1"),
    (lambda: iteration_time(small(), (1,)), r"fusion is \(1,\); it must end at 2"),
    (lambda: iteration_time(small(), (1, 1, 2)), r"fusion is \(1, 1, 2\); ends must rise from 1"),
    (lambda: iteration_time(small(largest_bytes=2), (2,)), "tensors 0 to 1 have 3 of 2 B"),
    (lambda: iteration_time(small(), (1.5, 2)), r"fusion\[0\] is 1.5; it must be a whole number of at least 1"),
    (lambda: iteration_time(small(), 2), "fusion is 2; it must be a sequence of group ends"),
    (lambda: search_fusion(small(), True), "prune is True; it must be a Pruning"),
    (lambda: buckets(small(), 1, 0), "first_mb is 0; it must be finite and above 0"),
    (lambda: search_fusion(small(decode=Linear(1, 0))), "decode is .* use optimal_fusion"),
)
