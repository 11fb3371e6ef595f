"""Real ranks: values and meetings, replicas that arrive byte for byte beside training, and training's own messages."""

import os
import signal
import threading
import time

import pytest
import torch.distributed as dist
from torch import nn

from workbench.launch import RankFailed
from workbench.techniques.gemini.method import partition_checkpoint, placement
from workbench.techniques.gemini.runtime import (
    EventName,
    RankMissing,
    Route,
    TrafficWatch,
    Transfer,
    meet,
    routes_of,
    run_training,
    tell_all,
    watch_traffic,
)


def gathered() -> list:
    return tell_all({"rank": dist.get_rank(), "long": "x" * 100 * dist.get_rank()})


def test_every_rank_hears_what_every_rank_said_however_long(pools):
    everyone = [{"rank": rank, "long": "x" * 100 * rank} for rank in range(3)]
    assert pools(3).run(gathered) == [everyone] * 3


def meet_without(late: int) -> str:
    group = dist.new_group()  # what is left undone spoils its connections
    meet("begins", 30.0, group)  # all come
    if dist.get_rank() == late:
        time.sleep(3.0)
        return "late"
    with pytest.raises((RankMissing, RuntimeError)) as missing:
        meet("checkpoint of iteration 7", 1.0, group)
    return f"{missing.type.__name__}: {missing.value}"


def test_a_rank_that_does_not_come_in_time_is_named_by_the_first(pools):
    first, second, late = pools(3).run(meet_without, 2)
    assert first == "RankMissing: rank 0: checkpoint of iteration 7: ranks [2] did not come within 1 s"
    assert second.startswith("RuntimeError: ") and late == "late"  # it has lost the first


def test_where_the_first_rank_is_late_the_others_name_it(pools):
    late, *others = pools(3).run(meet_without, 0)
    told = "RankMissing: rank {}: checkpoint of iteration 7: rank 0 did not answer within 1.5 s"
    assert late == "late" and others == [told.format(1), told.format(2)]


def die_before_meeting(context) -> str:
    if context.generation > 1:
        return "again"
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    meet("checkpoint of iteration 7", 30.0)


def test_a_rank_that_dies_is_a_lost_peer_to_those_that_wait_for_it_and_not_one_that_is_late(fleet):
    outcome = run_training(die_before_meeting, 3, machines=fleet, timeout_s=60)
    assert outcome.results == ("again",) * 3
    kinds = {event.rank: event.details["kind"] for event in outcome.named(EventName.RANK_FAILED)}
    assert kinds.pop(1) == "died" and set(kinds.values()) <= {"lost a peer or waits for one"}


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


class Clock:
    """Says what it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_messages_are_noted_in_the_order_of_their_ends_and_forgotten_with_the_iteration():
    clock = Clock()
    watch = TrafficWatch(clock)
    long = watch.begin()
    clock.now_s = 1.0
    with watch.message():
        clock.now_s = 2.0
    clock.now_s = 5.0
    watch.end(long)
    assert watch.operations == ((1.0, 2.0), (0.0, 5.0))
    assert watch.next_iteration() == ((1.0, 2.0), (0.0, 5.0)) and watch.operations == () and watch.started_s == 5.0


def test_the_network_is_idle_only_once_enough_messages_have_ended_and_none_is_under_way():
    watch = TrafficWatch(Clock())
    assert watch.wait_for_idle(0, timeout_s=0) and not watch.wait_for_idle(1, timeout_s=0)
    first, second = watch.begin(), watch.begin()
    watch.end(first)
    assert not watch.wait_for_idle(1, timeout_s=0), "the second one is under way"
    watch.end(second)
    assert watch.wait_for_idle(1, timeout_s=0) and watch.wait_for_idle(2, timeout_s=0)
    assert not watch.wait_for_idle(3, timeout_s=0)
    watch.finish_iteration()
    assert watch.wait_for_idle(3, timeout_s=0), "nothing more will come"


def test_who_waits_is_woken_by_the_end_of_a_message():
    watch = TrafficWatch()
    started_s = watch.begin()
    threading.Timer(0.05, watch.end, [started_s]).start()
    assert watch.wait_for_idle(1, timeout_s=10)


def test_a_model_that_is_not_distributed_has_nothing_to_watch():
    with pytest.raises(ValueError, match="model is Linear; it must be wrapped in DDP or given to fully_shard"):
        watch_traffic(nn.Linear(2, 2), TrafficWatch())


def trained(kind: str, watched: bool) -> tuple[list[float], list[int], bool]:
    """Train two steps; return all parameters' sums, the number of messages of each step, and whether they nest."""
    import torch
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    blocks = [nn.Linear(30, 30), nn.Linear(30, 30)]
    model = nn.Sequential(*blocks)
    if kind == "ddp":
        model = DistributedDataParallel(model)
    elif kind == "ddp of a subgroup":
        groups = [torch.distributed.new_group(ranks) for ranks in ([0, 1], [2])]
        model = DistributedDataParallel(model, process_group=groups[torch.distributed.get_rank() // 2])
    else:
        for module in (*blocks, model):
            fully_shard(module)
    watch = TrafficWatch()
    if watched:
        watch_traffic(model, watch)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    inputs = torch.randn(8, 30, generator=torch.Generator().manual_seed(torch.distributed.get_rank()))
    counts, in_order = [], True
    for _ in range(3):
        started_s = watch.started_s
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        operations = watch.next_iteration()
        counts.append(len(operations))
        in_order &= all(started_s <= start_s <= end_s <= watch.started_s for start_s, end_s in operations)
    local = [getattr(weight, "_local_tensor", weight) for weight in model.parameters()]
    return [weight.detach().double().flatten().tolist() for weight in local], counts, in_order


def both_ways() -> dict[str, tuple]:
    return {kind: (trained(kind, False), trained(kind, True)) for kind in ("ddp", "ddp of a subgroup", "fsdp")}


def test_watching_changes_no_bit_and_sees_every_message(pools):
    for by_kind in pools(3).run(both_ways):
        for kind, (plain, watched) in by_kind.items():
            assert plain[0] == watched[0], f"{kind}: other parameters when watched"
            assert watched[2], f"{kind}: a message outside its iteration"
            assert plain[1] == [0, 0, 0]
        # DDP: one bucket. FSDP: two blocks gather forward, the last stays or gathers again backward, each scatters.
        assert by_kind["ddp"][1][1] == [1, 1, 1]
        assert by_kind["fsdp"][1][1][0] == by_kind["fsdp"][1][1][2] >= 4
