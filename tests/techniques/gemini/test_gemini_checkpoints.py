"""Real ranks: replicas that arrive byte for byte beside training, and training that goes on after any failure."""

import os
import signal
import threading
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from cases import refusals
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workbench.launch.agreement import meet
from workbench.launch.failures import RankFailed
from workbench.techniques.gemini import control, runtime
from workbench.techniques.gemini.control import Fault, Victim, run_training
from workbench.techniques.gemini.measured.training import PoolContext, shard
from workbench.techniques.gemini.method import partition_checkpoint, placement
from workbench.techniques.gemini.runtime import TrafficWatch, routes_of, transfer
from workbench.techniques.gemini.runtime.encoding import checksum
from workbench.techniques.gemini.runtime.replicas import KeptShards, recover_


def die_before_meeting(context) -> str:
    if context.generation == 1:
        if context.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        meet("checkpoint of iteration 7", 30.0)
    return "again"


def test_a_rank_that_dies_is_a_lost_peer_to_those_that_wait_for_it_and_not_one_that_is_late(fleet):
    outcome = run_training(die_before_meeting, 2, machines=fleet, timeout_s=200)
    assert outcome.results == ("again",) * 2
    kinds = {event.rank: event.details["kind"] for event in outcome.named(control.EventName.RANK_FAILED)}
    assert kinds.pop(1) == "died" and set(kinds.values()) <= {"lost a peer or waits for one"}


def test_members_of_a_group_send_round_and_the_ring_sends_on():
    # Groups {0, 1} and {2, 3, 4} as a ring: machine 4 sends to 2.
    holders = placement(5, 2).holders
    assert routes_of(0, holders) == (runtime.Route(target=1, source=1),)
    assert routes_of(4, holders) == (runtime.Route(target=2, source=3),)
    with pytest.raises(ValueError, match=r"replica 1 comes to rank 2 from ranks \[0, 1\]"):
        routes_of(2, ((0, 2), (1, 2), (2, 0)))


def sent_and_kept(num_replicas: int, sizes: list[int], num_buffers: int) -> bool:
    """Send shards of different sizes; say whether every kept shard is that of its source."""
    rank, world = dist.get_rank(), dist.get_world_size()
    routes, group = routes_of(rank, placement(world, num_replicas).holders), dist.new_group()
    options = {"num_replicas": num_replicas, "reserved_bytes": 100 * num_buffers, "num_buffers": num_buffers}
    plans = [partition_checkpoint([1e-4, 3e-4, 1.0], size, bandwidth_bytes_per_s=1e6, **options) for size in sizes]
    shards = [torch.randint(0, 256, (size,), dtype=torch.uint8, generator=seeded(i)) for i, size in enumerate(sizes)]
    kept = {route.source: torch.zeros(sizes[route.source], dtype=torch.uint8) for route in routes}
    transfer, spans = runtime.Transfer(routes, group=group, num_buffers=num_buffers), []
    places = {
        source: runtime.Shard(data=data, chunks=plans[source], digest=checksum(shards[source].numpy()))
        for source, data in [*kept.items(), (rank, shards[rank])]
    }
    for _ in range(2):  # twice: a transfer is used again and again
        for end in transfer.start(lambda: places, wait=spans.append):
            end.result(timeout=100)
    transfer.close()
    planned = [chunk.span for chunk in plans[rank]]
    assert spans == 2 * planned and planned == sorted(planned)
    return all(torch.equal(content, shards[source]) for source, content in kept.items())


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("num_replicas", "num_buffers"), [(2, 1), (3, 2)])
def test_what_is_kept_is_what_was_sent(pools, num_replicas, num_buffers):
    assert all(pools(4).run(sent_and_kept, num_replicas, [1234, 1, 999, 400], num_buffers))


def sent_and_damaged() -> str:
    """Send a shard of which the first rank changes one bit on the way; return the error, if any."""
    rank, data = dist.get_rank(), torch.arange(200, dtype=torch.uint8)
    routes, group = routes_of(rank, placement(2, 2).holders), dist.new_group()
    options = {"num_replicas": 2, "reserved_bytes": 100, "num_buffers": 2, "bandwidth_bytes_per_s": 1e6}
    chunks, place = partition_checkpoint([1.0], 200, **options), torch.zeros(200, dtype=torch.uint8)
    digest = checksum(data.numpy())
    if rank == 0:
        data = data.clone()
        data[120] ^= 8
    transfer = runtime.Transfer(routes, group=group, num_buffers=2)
    shards = {
        number: runtime.Shard(data=data if number == rank else place, chunks=chunks, digest=digest) for number in (0, 1)
    }
    ends = transfer.start(lambda: shards, wait=lambda _: None)
    errors = [str(error) for end in ends if (error := end.exception(timeout=100))]
    dist.barrier()
    return "".join(errors)


def test_a_bit_that_changes_on_the_way_is_found_by_the_receiver(pools):
    assert pools(2).run(sent_and_damaged) == ["", "the shard of rank 0 arrived at rank 1 changed"]


def test_messages_are_noted_as_they_end_and_the_network_is_idle_once_enough_ended_and_none_is_under_way():
    times_s = [0.0]
    watch = TrafficWatch(lambda: times_s[-1])
    long = watch.begin()
    times_s.append(1.0)
    with watch.message():
        times_s.append(2.0)
    times_s.append(5.0)
    watch.end(long)
    assert watch.operations == ((1.0, 2.0), (0.0, 5.0))
    assert watch.next_iteration() == ((1.0, 2.0), (0.0, 5.0)) and watch.operations == () and watch.started_s == 5.0
    watch = TrafficWatch()
    assert watch.wait_for_idle(0, timeout_s=0) and not watch.wait_for_idle(1, timeout_s=0)
    first, second = watch.begin(), watch.begin()
    watch.end(first)
    assert not watch.wait_for_idle(1, timeout_s=0), "the second one is under way"
    threading.Timer(0.05, watch.end, [second]).start()
    assert watch.wait_for_idle(1, timeout_s=10), "the end of the second one wakes the waiting thread"
    assert watch.wait_for_idle(2, timeout_s=0) and not watch.wait_for_idle(3, timeout_s=0)
    watch.finish_iteration()
    assert watch.wait_for_idle(3, timeout_s=0), "nothing more will come"
    watch.next_iteration()
    with pytest.raises(ZeroDivisionError):
        transfer._Watched(watch, lambda *args, **more: 1 // 0)(torch.ones(1), torch.ones(1), None)
    assert watch.wait_for_idle(1, timeout_s=0), "one that failed is over too"


def watched_training(kind: str, is_watched: bool) -> tuple[list[float], list[int], bool]:
    """Train two steps; return all parameters' sums, the number of messages of each step, and whether they nest."""
    torch.manual_seed(0)
    options = {} if kind == "fsdp" else {"bucket_cap_mb": 0.002}
    if kind == "ddp of a subgroup":
        options["process_group"] = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])][dist.get_rank() // 2]
    model = wrapped(kind, [nn.Linear(30, 30), nn.Linear(30, 30)], **options)
    watch = TrafficWatch()
    if is_watched:
        runtime.watch_traffic(model, watch)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    inputs = torch.randn(8, 30, generator=seeded(dist.get_rank()))
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


def test_watching_changes_no_bit_and_sees_every_message(pools):
    counts = {}
    for kind in ("ddp", "ddp of a subgroup", "fsdp"):
        without, watched = (pools(4).run(watched_training, kind, is_watched) for is_watched in (False, True))
        for plain, seen in zip(without, watched, strict=True):
            assert plain[0] == seen[0], f"{kind}: other parameters when watched"
            assert seen[2], f"{kind}: a message outside its iteration"
            assert plain[1] == [0, 0, 0]
        counts[kind] = [seen[1] for seen in watched]
    # DDP: one bucket in its first pass, then one for each layer.
    # FSDP: two blocks gather forward, the last stays or gathers again backward, each scatters.
    assert counts["ddp"] == [[1, 2, 2]] * 4
    assert all(steps[0] == steps[2] >= 4 for steps in counts["fsdp"])


NUM_MACHINES, NUM_ITERATIONS = 4, 9
LOCAL, PEER = "local memory", "peer memory"
SMALL = {"reserved_bytes": 4096, "num_buffers": 4, "num_profiled": 2}  # so that some iterations interleave


def wrapped(kind: str, blocks: list[nn.Module], **options) -> nn.Module:
    """Make a model of blocks, for DDP or sharded block by block."""
    model = nn.Sequential(*blocks)
    return shard(*blocks, model) if kind == "fsdp" else DistributedDataParallel(model, **options)


def build(kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(7)
    blocks = [nn.Sequential(nn.Linear(24, 24), nn.Dropout(0.2), nn.GELU()) for _ in range(3)]
    model = wrapped(kind, blocks, **({"bucket_cap_mb": 0.001} if kind == "ddp" else {}))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(context, kind: str, options: dict) -> dict:
    model, optimizer = build(kind)
    extra = {}
    if kind == "ddp":  # with a second optimizer
        weights = list(model.parameters())
        optimizer = torch.optim.AdamW(weights[:2], lr=0.01)
        extra["second"] = torch.optim.AdamW(weights[2:], lr=0.02)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)

    def loss() -> torch.Tensor:
        return model(torch.randn(8, 24)).square().mean()  # drawn from the global generator, whose state is kept

    torch.manual_seed(context.rank)
    options = runtime.CheckpointOptions(**{**SMALL, **options})
    parts = {"scheduler": schedule, "extra": extra, "options": options}
    checkpoints = runtime.InMemoryCheckpoints(context, model, optimizer, **parts)
    for _ in range(checkpoints.iteration, NUM_ITERATIONS):
        model.zero_grad()
        loss().backward()
        for adam in (*extra.values(), optimizer):  # the further one first: it must not change what is being sent either
            adam.step()
        schedule.step()
        checkpoints.step()
    settled = checkpoints.interleaving.profile is not None
    checkpoints.close()
    local = [getattr(weight, "_local_tensor", weight).detach() for weight in model.parameters()]
    return {
        "values": [value.tolist() for value in local] + [schedule.get_last_lr(), torch.get_rng_state().tolist()],
        "settled": settled,
        "tiers": [source.tier.value for source in checkpoints.plan.sources],
        "resumed": checkpoints.plan.iteration,
        "kept_bytes": sum(context.memory_names().values()),
        "shard_bytes": checkpoints.shard_bytes,
    }


@pytest.fixture(scope="module")
def trained(fleet):
    """Trains on warm machines."""
    patient = {"timing": control.Timing(lease_s=8.0), "timeout_s": 100}  # a busy machine may fall silent for four
    return lambda kind, faults=(), **options: run_training(
        train, NUM_MACHINES, args=(kind, options), faults=faults, machines=fleet, **patient
    )


@pytest.fixture(scope="module")
def undisturbed(trained) -> dict:
    return {kind: trained(kind, scheme=scheme) for kind, scheme in (("ddp", "Gemini"), ("fsdp", "Unpipelined"))}


def values(outcome) -> list:
    return [rank["values"] for rank in outcome.results]


def test_a_run_without_failure_starts_at_0_interleaves_once_it_has_profiled_and_keeps_five_buffers(undisturbed):
    ranks = undisturbed["fsdp"].results
    assert all(rank["settled"] and rank["resumed"] == 0 for rank in ranks)
    for rank in ranks:  # three of its own and two of a peer's, each with a page of its own
        assert rank["kept_bytes"] == 5 * (rank["shard_bytes"] + 4096)


def test_after_the_loss_of_a_rank_or_of_a_whole_group_every_rank_ends_with_the_same_bits(trained, undisturbed):
    outcome = trained("ddp", [Fault(kills=Victim.RANK, numbers=(2,), at_iteration=4)])
    assert values(outcome) == values(undisturbed["ddp"])
    # Rank 2 may have been killed when its peer had kept all, and itself not yet.
    tiers = outcome.results[0]["tiers"]
    assert {*tiers[:2], tiers[3]} == {LOCAL} and tiers[2] in (LOCAL, PEER) and outcome.results[0]["resumed"] >= 2
    # Without storage training starts again.
    outcome = trained("fsdp", [Fault(kills=Victim.MACHINE, numbers=(2, 3), at_iteration=3)])
    assert values(outcome) == values(undisturbed["fsdp"])
    assert outcome.results[0]["tiers"] == ["the start"] * 4


def test_two_losses_one_after_the_other_find_as_many_replicas_as_one(trained, undisturbed):
    # Machine 1 comes back from machine 0, which dies as soon as all four have resumed: what it kept was sent again.
    first = Fault(kills=Victim.MACHINE, numbers=(1,), at_iteration=7)
    second = Fault(kills=Victim.MACHINE, numbers=(0,), after_event="resumed", occurrence=2 * NUM_MACHINES)
    outcome = trained("fsdp", [first, second])
    assert values(outcome) == values(undisturbed["fsdp"])
    served = {event.rank: event.details for event in outcome.named("retrieve") if event.generation == 2}
    assert [served[rank]["tier"] for rank in range(4)] == [LOCAL, PEER, LOCAL, LOCAL]
    # Of 7 iterations at most two are lost: one on its way, and one that not all ranks know to be complete.
    assert served[0]["iteration"] >= 5
    last = outcome.results[0]
    assert last["resumed"] >= 5 and "the start" not in last["tiers"]


def recover_with_storage_of_rank_0() -> None:
    model = nn.Linear(2, 2)
    state, context = runtime.TrainingState(model, torch.optim.SGD(model.parameters())), PoolContext(dist.get_rank(), 2)
    stored = SimpleNamespace(iterations=lambda: (3,), read=lambda state, iteration: None)
    recover_(state, context, KeptShards(context), stored if dist.get_rank() == 0 else None)


def test_a_rank_without_the_storage_from_which_all_resume_does_not_begin_with_its_first_weights(pools):
    with pytest.raises(RankFailed, match="storage is None on rank 1; it must be given on every rank"):
        pools(2).run(recover_with_storage_of_rank_0)


def skip_an_update(context) -> tuple[int, int]:
    """Train with an update left out, as a loss scaler does; return both iteration numbers."""
    model, optimizer = build("fsdp")
    options = runtime.CheckpointOptions(**SMALL)
    checkpoints = runtime.InMemoryCheckpoints(context, model, optimizer, options=options)
    for iteration in range(NUM_ITERATIONS):
        model(torch.randn(8, 24)).square().mean().backward()
        if iteration not in (1, 6, 7):
            optimizer.step()
        optimizer.zero_grad()
        checkpoints.step()
    checkpoints.close()
    return checkpoints._kept.slot(context.rank).latest().iteration, checkpoints.iteration


def test_an_update_that_is_left_out_spoils_no_checkpoint_and_no_profile(fleet):
    outcome = run_training(skip_an_update, 2, machines=fleet, timeout_s=200)
    assert outcome.results == ((NUM_ITERATIONS, NUM_ITERATIONS),) * 2 and outcome.num_generations == 1


def made(**options) -> runtime.InMemoryCheckpoints:
    model = nn.Linear(2, 2)
    options = runtime.CheckpointOptions(**{"num_replicas": 1} | options)
    optimizer = torch.optim.SGD(model.parameters())
    return runtime.InMemoryCheckpoints(SimpleNamespace(num_machines=1), model, optimizer, options=options)


test_bad_input_is_refused_before_anything_is_sent = refusals(
    ({"num_replicas": 2}, "num_replicas is 2; it must be at most num_machines, 1"),
    ({"num_buffers": 0}, "num_buffers is 0"),
    ({"timeout_s": 0}, "timeout_s is 0"),
    ({"every": 0}, "every is 0"),
    ({"storage_every": 3}, "storage_every is 3; it must be 0 where there is no storage"),
    ({"scheme": "Baseline"}, "scheme is 'Baseline'; it must be one that checkpoints"),
    of=made,
)
