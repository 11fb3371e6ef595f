"""The scheduler's process and its end, averaging on real ranks, and a user's own pipeline."""

import math
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from workbench.launch import RankFailed, Ranks
from workbench.techniques.sdpipe import Options, synchronized
from workbench.techniques.sdpipe.runtime.averaging import Averager, Place, average_by_definition
from workbench.techniques.sdpipe.runtime.service import Client, Grouped, SchedulerLost, Server


@pytest.fixture(scope="module")
def ranks():
    with Ranks(4, echo=False) as pool:
        yield pool


def test_workers_are_told_their_group_and_the_server_what_it_counted():
    server = Server(2, 2, window_s=0.05)
    first, second = (Client(server.address, 0, worker) for worker in (0, 1))
    first.signal(), second.signal()
    assert first.group() == second.group() == Grouped((0, 1), is_kept=False)
    first.signal(), second.signal()
    assert first.group() == second.group() == Grouped((0, 1), is_kept=True)  # they met before
    first.signal()
    assert first.group().members == (0,)  # after its window
    first.close(), second.close()
    assert server.close() == {"num_signals": 5, "num_groups": 3, "num_enforced": 0, "num_unchecked": 0}


def test_a_signal_that_is_refused_is_told_to_its_worker_and_a_pipeline_that_left_is_not_waited_for():
    server = Server(1, 3, window_s=math.inf)
    first, second, last = (Client(server.address, 0, worker) for worker in range(3))
    first.signal(), first.signal()
    with pytest.raises(ValueError, match="worker is 0; it waits in stage 0 already"):
        first.group()
    second.signal(), last.leave()
    assert first.group().members == second.group().members == (0, 1)
    for client in (first, second, last):
        client.close()
    server.close()


@pytest.mark.parametrize("ended_by", [signal.SIGKILL, signal.SIGSTOP])
def test_a_scheduler_that_dies_or_stands_still_is_named_within_a_lease(ended_by):
    server = Server(1, 2, window_s=math.inf)
    client = Client(server.address, 0, 1, lease_s=0.6)
    client.signal()
    os.kill(server.pid, ended_by)
    began_s = time.monotonic()
    with pytest.raises(SchedulerLost, match="worker 1 of stage 0: the scheduler at tcp.* has not answered for"):
        client.group()
    assert time.monotonic() - began_s < 3.0
    client.close()
    assert server.close() == {}
    assert not psutil.pid_exists(server.pid)


def test_the_scheduler_ends_with_its_owner():
    code = "from workbench.techniques.sdpipe.runtime.service import Server"
    code += "\nprint(Server(1, 2, window_s=1.0).pid, flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        process = psutil.Process(int(owner.stdout.readline()))
        owner.kill()
        psutil.wait_procs([process], timeout=10)
        assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def averaged(rounds, name):
    place = Place.of_this_rank(1)
    averager, found = Averager(place, dist.group.WORLD, name), []
    flat = torch.tensor([float(10**place.pipeline), 1.0])
    for members, is_kept in rounds:
        if place.pipeline in members:
            averager.average_(flat, Grouped(members, is_kept))
        found.append(flat.clone())
    count = averager.num_communicators
    averager.close()
    return found, count


def test_members_average_as_defined_by_messages_and_by_communicators_of_their_own(ranks):
    rounds = [((0, 2), False), ((1, 3), True), ((0, 1, 3), True), ((2,), False), ((0, 2, 3), False), ((1, 3), True)]
    models = [torch.tensor([float(10**worker), 1.0]) for worker in range(4)]
    results = ranks.run(averaged, rounds, "a test")
    for number, (members, _) in enumerate(rounds):
        models = average_by_definition(models, members)
        for worker, (found, _) in enumerate(results):
            assert torch.allclose(found[number], models[worker])
        assert len({tuple(results[worker][0][number].tolist()) for worker in members}) == 1  # the same bits
    assert [count for _, count in results] == [1, 2, 0, 2]  # kept: {1, 3} and {0, 1, 3}


def pipeline(num_stages):
    """Build this rank's stage of a small regression, as a user would with torch alone."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 4) for _ in range(num_stages)]
    pipelines = dist.get_world_size() // num_stages
    groups = [dist.new_group(list(range(p * num_stages, (p + 1) * num_stages))) for p in range(pipelines)]
    number, index = divmod(dist.get_rank(), num_stages)
    stage = PipelineStage(layers[index], index, num_stages, torch.device("cpu"), group=groups[number])
    schedule = Schedule1F1B(stage, 2, torch.nn.functional.mse_loss)
    return layers[index], schedule, number, index


def trained(num_steps, window_s, late=None):
    part, schedule, number, index = pipeline(2)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(number)
    with synchronized(part, optimizer, num_stages=2, options=Options(window_s=window_s, history=3)) as sync:
        for _ in range(num_steps):
            x = torch.randn(4, 4, generator=draw)
            if late == number:
                time.sleep(0.02)
            inputs, last = ((x,) if index == 0 else ()), ({"target": x.flip(1)} if index == 1 else {})
            schedule.step(*inputs, **last)
            optimizer.step()
            optimizer.zero_grad()
        groups = sync.log.groups
    return [weight.detach().clone() for weight in part.parameters()], groups


def by_all_reduce(num_steps):
    """Train all layers in one process on the batches of both pipelines."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(2)])
    optimizer, draws = torch.optim.SGD(model.parameters(), lr=0.1), [torch.Generator().manual_seed(n) for n in (0, 1)]
    for _ in range(num_steps):
        for draw in draws:
            x = torch.randn(4, 4, generator=draw)
            (torch.nn.functional.mse_loss(model(x), x.flip(1)) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(model.parameters())


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_without_a_limit_of_time_a_users_pipeline_trains_as_all_reduce(ranks):
    results, expected = ranks.run(trained, 6, math.inf), by_all_reduce(6)
    for rank, (weights, groups) in enumerate(results):
        assert {group.members for group in groups} == {frozenset({0, 1})}
        for weight, other in zip(weights, expected[2 * (rank % 2) :], strict=False):
            assert torch.allclose(weight, other, atol=1e-6)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_workers_that_are_late_are_left_behind_but_not_longer_than_p_groups(ranks):
    results = ranks.run(trained, 12, 0.0, 1)
    sizes = [[len(group.members) for group in groups] for _, groups in results]
    assert all(1 in found and 2 in found for found in sizes)


def test_a_number_of_stages_that_does_not_fit_is_refused(ranks):
    with pytest.raises(RankFailed, match="num_stages is 3; it must divide the number of ranks, 4"):
        ranks.run(lambda: Place.of_this_rank(3))
