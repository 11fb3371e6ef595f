"""Collectives: closed forms worked by hand, limits, and the bytes that gloo really sends."""

import pytest

from tests.cases import refusals
from workbench import cluster
from workbench.cluster import Algorithm, Collective, Link

LINK = Link(bandwidth_bytes_per_s=1e6, latency_s=0.001, source="test")
# Bytes by rank for 4 ranks and 4,000 bytes; seconds for 4 ranks and 1 MB at 1 MB/s and 1 ms; messages' worth of bytes
# that cross the wire between n ranks.
KNOWN = {
    # 2 * 3 quarters of the message at every rank
    (Collective.ALL_REDUCE, Algorithm.RING): ((6000,) * 4, 6 * 0.001 + 1.5, lambda n: 2 * (n - 1)),
    # Two trees 0-2, 2-1, 2-3 and, mirrored, 3-1, 1-0, 1-2: ranks 1 and 2 have four edges of 2,000 bytes, 0 and 3 two
    (Collective.ALL_REDUCE, Algorithm.DOUBLE_TREE): ((4000, 8000, 8000, 4000), 4 * 0.001 + 2.0, lambda n: 2 * (n - 1)),
    (Collective.ALL_GATHER, Algorithm.RING): ((12000,) * 4, 3 * 0.001 + 3.0, lambda n: n * (n - 1)),
    (Collective.REDUCE_SCATTER, Algorithm.RING): ((3000,) * 4, 3 * 0.001 + 0.75, lambda n: n - 1),
    (Collective.REDUCE_SCATTER, Algorithm.FULL_ALL_REDUCE): ((6000,) * 4, 6 * 0.001 + 1.5, lambda n: 2 * (n - 1)),
    # 0 sends to 1 and 2, 1 sends to 3. The messages to 1 and 2 share a link until 2 s; that to 3 takes 1 s more.
    (Collective.BROADCAST, Algorithm.BINOMIAL): ((8000, 4000, 0, 0), 2 * 0.001 + 3.0, lambda n: n - 1),
    (Collective.BROADCAST, Algorithm.RING): ((4000, 4000, 4000, 0), 3 * 0.001 + 1.0, lambda n: n - 1),
    (Collective.ALL_TO_ALL, Algorithm.PAIRWISE): ((3000,) * 4, 0.001 + 0.75, lambda n: n - 1),
    (Collective.SEND, Algorithm.DIRECT): ((4000, 0, 0, 0), 0.001 + 1.0, lambda n: 1),
}

ELEMENT_BYTES = {"float32": 4, "float16": 2, "int64": 8}
# Elements: divisible, odd, fewer than there are ranks' segments, and more than a segment of 1 MiB a rank.
SIZES = [(dtype, size) for dtype in ELEMENT_BYTES for size in (1000, 1003, 7)] + [("float32", 3_000_001)]


def really_sent(sizes_of: dict[str, list[tuple[str, int]]]) -> dict[str, list[int]]:
    """Return the bytes that this rank wrote to its TCP sockets in each collective of each size."""
    return {name: [bytes_of_one(name, *size) for size in sizes] for name, sizes in sizes_of.items()}


def bytes_of_one(name: str, dtype: str, num_elements: int) -> int:
    import torch
    import torch.distributed as dist

    from workbench.parallel.traffic import tcp_bytes_sent

    size, rank = dist.get_world_size(), dist.get_rank()
    x = torch.ones(num_elements, dtype=getattr(torch, dtype))
    parts = num_elements // size
    operations = {
        "all_reduce": lambda: dist.all_reduce(x),
        "all_gather": lambda: dist.all_gather([torch.empty_like(x) for _ in range(size)], x),
        "reduce_scatter": lambda: dist.reduce_scatter_single(x[:parts].clone(), x),
        "broadcast": lambda: dist.broadcast(x, 0),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(x), x),
        "send": lambda: (dist.send(x, 1) if rank == 0 else dist.recv(x, 0)) if rank < 2 else None,
    }
    before = tcp_bytes_sent()
    operations[name]()
    return tcp_bytes_sent() - before


def expected(collective: Collective, num_ranks: int, num_elements: int, element_bytes: int) -> list[int]:
    """Return payload and headers of each rank by the closed forms."""
    algorithm = cluster.algorithm_of(cluster.Backend.GLOO, collective)
    size = {"message_bytes": num_elements * element_bytes, "element_bytes": element_bytes}
    payload = cluster.collective_bytes(collective, algorithm, num_ranks, **size).by_rank
    headers = cluster.gloo_header_bytes(collective, num_ranks, **size)
    return [payload_bytes + header_bytes for payload_bytes, header_bytes in zip(payload, headers, strict=True)]


@pytest.mark.parametrize("num_ranks", [4, 3])
def test_gloo_sends_exactly_the_bytes_of_the_closed_form_and_its_headers(pools, num_ranks):
    sizes_of = dict.fromkeys(Collective, SIZES)
    for collective in (Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL):
        sizes_of[collective] = [(dtype, size - size % num_ranks) for dtype, size in SIZES]
    sent = pools(num_ranks).run(really_sent, {kind.name.lower(): sizes for kind, sizes in sizes_of.items()})
    for collective, sizes in sizes_of.items():
        for number, (dtype, size) in enumerate(sizes):
            by_rank = [of_rank[collective.name.lower()][number] for of_rank in sent]
            assert by_rank == expected(collective, num_ranks, size, ELEMENT_BYTES[dtype]), (collective, dtype, size)


@pytest.mark.parametrize(("collective", "algorithm"), KNOWN)
def test_bytes_and_seconds_of_four_ranks_and_the_total_of_any_number_are_those_worked_by_hand(collective, algorithm):
    by_rank, seconds, num_messages = KNOWN[collective, algorithm]
    sent = cluster.collective_bytes(collective, algorithm, 4, 4000, element_bytes=4)
    assert (sent.by_rank, sent.total, sent.most) == (by_rank, sum(by_rank), max(by_rank))
    assert cluster.collective_time_s(collective, algorithm, 4, 1_000_000, LINK) == pytest.approx(seconds)
    for num_ranks in range(2, 18):
        sent = cluster.collective_bytes(collective, algorithm, num_ranks, 8 * num_ranks, element_bytes=4)
        assert sent.total == num_messages(num_ranks) * 8 * num_ranks


@pytest.mark.parametrize(("collective", "algorithm"), KNOWN)
def test_time_grows_with_message_and_ranks_from_nothing_for_one_rank(collective, algorithm):
    assert (
        cluster.collective_bytes(collective, algorithm, 1, 1000).by_rank
        == cluster.gloo_header_bytes(collective, 1, 1000)
        == (0,)
    )
    cost = cluster.collective_cost(collective, algorithm, 8, 1000)
    by_size = [cluster.collective_time_s(collective, algorithm, 8, size, LINK) for size in (0, 1, 1000, 10**6, 10**9)]
    assert by_size[0] == pytest.approx(cost.num_latencies * 0.001)
    assert all(smaller < larger for smaller, larger in zip(by_size, by_size[1:], strict=False))
    by_ranks = [cluster.collective_time_s(collective, algorithm, num, 10**6, LINK) for num in range(1, 34)]
    assert by_ranks[0] == 0 and all(fewer <= more for fewer, more in zip(by_ranks, by_ranks[1:], strict=False))
    slow, fast = (Link(bandwidth_bytes_per_s=rate, latency_s=0, source="test") for rate in (0.5e6, 1e6))
    assert cost.time_s(slow) == pytest.approx(2 * cost.time_s(fast))


def test_a_ring_approaches_twice_the_message_a_rank_and_a_double_tree_has_it():
    ring = cluster.collective_cost(Collective.ALL_REDUCE, Algorithm.RING, 1000, 1.0)
    tree = cluster.collective_cost(Collective.ALL_REDUCE, Algorithm.DOUBLE_TREE, 1000, 1.0)
    assert (ring.num_latencies, ring.bytes_in_series) == (1998, pytest.approx(2 * 999 / 1000))
    assert (tree.num_latencies, tree.bytes_in_series) == (20, 2)
    assert cluster.collective_bytes(Collective.ALL_REDUCE, Algorithm.DOUBLE_TREE, 100, 1000).most == 2000


def test_a_binomial_broadcast_to_eight_ranks_waits_for_six_messages():
    # Rank 0's three children share its link and have the message at 3; rank 1's two (3 and 5) at 5; rank 3's (7) at 6.
    cost = cluster.collective_cost(Collective.BROADCAST, Algorithm.BINOMIAL, 8, 1.0)
    assert (cost.num_latencies, cost.bytes_in_series) == (3, 6)


def test_seven_floats_on_four_ranks_are_cut_into_seven_segments_of_one_float():
    # Eight segments were wanted, two a rank; the last is empty. Chunks are 8, 8, 8 and 4 bytes: 2 * 28 - own - below.
    sent = cluster.collective_bytes(Collective.ALL_REDUCE, Algorithm.RING, 4, 28, element_bytes=4)
    assert sent.by_rank == (56 - 8 - 4, 56 - 8 - 8, 56 - 8 - 8, 56 - 4 - 8)
    # Rank 0 sends 14 - 2 - 1 = 11 messages and receives rank 1's 14 - 2 - 2 = 10: 48 * (2 * 11 + 10).
    assert cluster.gloo_header_bytes(Collective.ALL_REDUCE, 4, 28, element_bytes=4)[0] == 1536


def counted(collective, algorithm, num_ranks, message_bytes, element_bytes=1):
    return lambda: cluster.collective_bytes(
        collective, algorithm, num_ranks, message_bytes, element_bytes=element_bytes
    )


test_wrong_arguments_are_named = refusals(
    (counted(Collective.ALL_REDUCE, Algorithm.RING, 0, 8), "num_ranks is 0"),
    (counted(Collective.ALL_REDUCE, Algorithm.RING, 2, -1), "message_bytes is -1"),
    (counted(Collective.ALL_REDUCE, Algorithm.RING, 2, 6, 4), "message_bytes is 6.* a multiple of element_bytes = 4"),
    (counted(Collective.ALL_REDUCE, Algorithm.BINOMIAL, 2, 8), "algorithm is .*BINOMIAL"),
    (counted(Collective.ALL_TO_ALL, Algorithm.PAIRWISE, 4, 6), "message_bytes is 6.* 4 equal parts"),
)
