"""Replicas arrive byte for byte, through small sub-buffers, between real ranks; a lost peer is an error, not a hang."""

import os
import signal

import pytest

from workbench.launch import RankFailed
from workbench.techniques.gemini.method.partition import partition_checkpoint
from workbench.techniques.gemini.method.placement import placement
from workbench.techniques.gemini.runtime.transfer import Route, Transfer, routes_of


def test_members_of_a_group_send_round_and_the_ring_sends_on():
    # Groups {0, 1} and {2, 3, 4} as a ring: machine 4 sends to 2.
    holders = placement(5, 2).holders
    assert routes_of(0, holders) == (Route(target=1, source=1),)
    assert routes_of(4, holders) == (Route(target=2, source=3),)
    with pytest.raises(ValueError, match=r"replica 1 comes to rank 2 from ranks \[0, 1\]"):
        routes_of(2, ((0, 2), (1, 2), (2, 0)))


def shard_of(rank: int, num_bytes: int):
    import torch

    return torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(rank))


def sent_and_kept(num_replicas: int, sizes: list[int], num_buffers: int) -> bool:
    """Send shards of different sizes; say whether what is kept is what the others have."""
    import torch
    import torch.distributed as dist

    rank, world = dist.get_rank(), dist.get_world_size()
    routes, group = routes_of(rank, placement(world, num_replicas).holders), dist.new_group()
    options = {"num_replicas": num_replicas, "reserved_bytes": 100 * num_buffers, "num_buffers": num_buffers}
    plans = {
        other: partition_checkpoint([1e-4, 3e-4, 1.0], size, bandwidth_bytes_per_s=1e6, **options)
        for other, size in enumerate(sizes)
    }
    transfer = Transfer(routes, group=group, chunk_bytes=100, num_buffers=num_buffers)
    mine = shard_of(rank, sizes[rank])
    kept = {route.source: torch.zeros(sizes[route.source], dtype=torch.uint8) for route in routes}
    spans = []

    def read(chunk, out) -> None:
        out.copy_(mine[chunk.offset_bytes : chunk.offset_bytes + out.numel()])

    def keep(source: int, offset: int, received) -> None:
        kept[source][offset : offset + received.numel()].copy_(received)

    for _ in range(2):  # twice: a transfer is used again and again
        ends = transfer.start(
            plans[rank], {source: plans[source] for source in kept}, read=read, keep=keep, wait=spans.append
        )
        for end in ends:
            end.result(timeout=30)
    transfer.close()
    assert spans == 2 * [chunk.span for chunk in plans[rank]] and spans[: len(spans) // 2] == sorted(
        spans[: len(spans) // 2]
    )
    return all(torch.equal(content, shard_of(source, sizes[source])) for source, content in kept.items())


@pytest.mark.parametrize(("num_replicas", "num_buffers"), [(2, 4), (2, 1), (3, 2)])
def test_what_is_kept_is_what_was_sent(pools, num_replicas, num_buffers):
    assert all(pools(4).run(sent_and_kept, num_replicas, [1234, 1, 999, 400], num_buffers))


def wait_for_a_lost_peer() -> None:
    import torch.distributed as dist

    rank, group = dist.get_rank(), dist.new_group()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    plan = partition_checkpoint(
        [1.0], 5_000_000, num_replicas=2, reserved_bytes=100_000, num_buffers=2, bandwidth_bytes_per_s=1e6
    )
    transfer = Transfer(routes_of(rank, placement(2, 2).holders), group=group, chunk_bytes=100_000, num_buffers=2)
    nothing = lambda *_: None  # noqa: E731
    for end in transfer.start(plan, {1: plan}, read=nothing, keep=nothing, wait=nothing):
        end.result(timeout=30)


def test_a_lost_peer_is_an_error_that_names_it(pools):
    with pytest.raises(RankFailed, match="rank 1"):
        pools(2).run(wait_for_a_lost_peer, timeout_s=40)
