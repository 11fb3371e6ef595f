"""Training's own messages are noted as they come and go, and watching them changes no bit of the training."""

import threading

import pytest
from torch import nn

from workbench.techniques.gemini.runtime.traffic import TrafficWatch, watch_traffic


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
    with pytest.raises(ValueError, match="Linear is wrapped neither in DDP nor by fully_shard"):
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
        # DDP: one bucket. FSDP: two blocks gather forward, the last also stays or gathers again backward, each scatters.
        assert by_kind["ddp"][1][1] == [1, 1, 1]
        assert by_kind["fsdp"][1][1][0] == by_kind["fsdp"][1][1][2] >= 4
