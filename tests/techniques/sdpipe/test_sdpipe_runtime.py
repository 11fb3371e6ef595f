"""The scheduler's process and its end, averaging on real ranks, and a user's own pipeline."""

import contextlib
import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from unittest import mock

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
import zmq
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

from tests.cases import refusal, refusals, tidy
from workbench.launch import run_on_ranks
from workbench.parallel.replicas import Place
from workbench.techniques.sdpipe import Options, synchronized
from workbench.techniques.sdpipe.runtime.averaging import SDPipe
from workbench.techniques.sdpipe.runtime.service import Client, Grouped, SchedulerLost, Server, WorkerLost


@pytest.fixture(scope="module")
def ranks(pools):
    return pools(4)


@contextlib.contextmanager
def served(num_stages, num_pipelines, *, absent=0, window_s=math.inf, **limits):
    """Yield a server, and clients of all its workers but those of the last, absent pipelines, by their place."""
    server = Server(num_stages, num_pipelines + absent, Options(window_s=window_s))
    places = [(stage, worker) for stage in range(num_stages) for worker in range(num_pipelines)]
    clients = {place: Client(server.access, *place, **limits) for place in places}
    try:
        yield server, clients
    finally:
        for client in clients.values():
            client.close()
        server.close()


test_bad_arguments_are_refused_before_the_schedulers_process_starts = refusals(
    (lambda: Server(0, 2, Options()), "num_stages is 0; it must be a whole number of at least 1"),
    (lambda: Server(1, 1, Options()), "num_pipelines is 1; it must be a whole number of at least 2"),
    (lambda: Options(history=0), "history is 0; it must be a whole number of at least 1"),
    (lambda: Options(window_s=math.nan), "window_s is nan; it must be at least 0"),
    (lambda: Options(lease_s=0.0), "lease_s is 0.0; it must be finite and above 0"),
)


def test_options_that_no_message_can_hold_start_no_process():
    before = psutil.Process().children()
    with pytest.raises(TypeError):
        Server(1, 2, Options(window_s=np.float32(0.5)))
    assert psutil.Process().children() == before
    server = Server(1, 2, Options(lease_s=np.float32(5.0)))  # a lease is the clients' alone
    assert server.close()["num_signals"] == 0


def test_workers_are_told_their_group_and_the_server_what_it_counted():
    server = Server(2, 2, Options(window_s=0.05))
    first, second = (Client(server.access, 0, worker) for worker in (0, 1))
    for text in (b"", b"\xff", b"7", b"[]", b'["ping", 0, 5, null]', b'["shout", 0, 0, null]', b'["ping", [], {}, 0]'):
        first._socket.send(text)  # what cannot be read is dropped
    assert first.state()["history"] == []
    first.signal(), second.signal()
    assert first.group() == second.group() == Grouped(members=(0, 1), is_kept=False)
    first.signal(), second.signal()
    assert first.group() == second.group() == Grouped(members=(0, 1), is_kept=True)  # they met before
    first.signal()
    assert first.group().members == (0,)  # after its window
    first.close(), second.close()
    counts = {"num_signals": 5, "num_groups": 3, "num_refused": 7, "num_enforced": 0, "num_unchecked": 0}
    assert server.close() == counts


def test_a_signal_that_is_refused_and_the_group_of_a_worker_that_fails_are_told_to_it_and_who_left_is_not_waited_for():
    with served(1, 3) as (_, clients):
        first, second, last = clients.values()
        first.signal(), first.signal()
        with pytest.raises(ValueError, match="worker is 0; it waits in stage 0 already"):
            first.group()
        second.signal(), last.come(is_last=True)
        assert first.group().members == second.group().members == (0, 1)
        first.signal(), second.signal()
        assert second.group().members == first.fail().members == (0, 1)


def signalled(clients, lengths_s):
    for client, length_s in zip(clients, lengths_s, strict=True):
        client.signal(length_s)
    return [client.group().members for client in clients]


def test_without_a_window_all_are_waited_for_until_each_has_told_ten_lengths_whose_median_decides():
    with served(1, 2, window_s=None) as (_, by_place):
        first, second = clients = list(by_place.values())
        for length_s in (None, *[0.2] * 9):
            assert signalled(clients, (length_s, 0.4)) == [(0, 1)] * 2
        began_s = time.monotonic()
        second.signal(0.4), time.sleep(0.3), first.signal(0.3)
        assert [client.group().members for client in clients] == [(0, 1)] * 2  # the first one has told ten now
        assert time.monotonic() - began_s >= 0.3
        began_s = time.monotonic()
        first.signal(0.2)
        assert first.group().members == (0,)
        # The median of 9 x 0.2, 0.3 and 11 x 0.4 s is 0.4 s; T is half of it.
        assert 0.15 <= time.monotonic() - began_s < 60.0


def test_others_go_on_without_the_pipeline_of_a_worker_that_failed_or_whose_process_ended():
    with served(2, 2, absent=1) as (server, clients):
        code = "import json, sys; from workbench.techniques.sdpipe.runtime.service import Client"
        code += "\nclient = Client(json.loads(sys.argv[1]), 0, 2); client.state(); print(flush=True); input()"
        command = [sys.executable, "-c", code, json.dumps(server.access)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            other.stdout.readline()
            clients[0, 0].signal(), clients[0, 1].signal()
            other.kill()
        assert clients[0, 0].group().members == clients[0, 1].group().members == (0, 1)
        clients[1, 1].signal()
        assert clients[0, 1].fail() is None
        with pytest.raises(WorkerLost, match="worker 1 of stage 1: worker 1 of stage 0 has failed"):
            clients[1, 1].group()
        for stage in (0, 1):
            clients[stage, 0].come(is_last=True)
        failed = "worker 2 of stage 0 has ended its process; worker 1 of stage 0 has failed"
        assert clients[0, 0].meet() == clients[1, 0].meet() == Grouped(members=(0,), is_over=True, failed=failed)


def test_a_worker_that_is_silent_for_longer_than_the_limit_is_named():
    with served(1, 3, timeout_s=1.5) as (_, clients):
        first, second, _ = clients.values()
        first.signal(), second.signal()
        with pytest.raises(WorkerLost, match=r"worker 0 of stage 0: no group for 1.5 s; silent: .*worker 2 of stage 0"):
            first.group()
        second.come(is_last=False)
        silent = r"worker 1 of stage 0: not all have come; silent: worker \d of stage 0 for"
        with pytest.raises(WorkerLost, match=silent):
            second.meet()


@pytest.mark.parametrize("ended_by", [signal.SIGKILL, signal.SIGSTOP])
def test_a_scheduler_that_dies_or_stands_still_is_named_within_a_lease(ended_by):
    server = Server(1, 2, Options(window_s=math.inf))
    client = Client(server.access, 0, 1, lease_s=0.6)
    client.signal()
    os.kill(server.pid, ended_by)
    began_s = time.monotonic()
    with pytest.raises(SchedulerLost, match="worker 1 of stage 0: the scheduler at tcp.* has not answered for"):
        client.group()
    assert time.monotonic() - began_s < 60.0
    client.close()
    assert server.close() == {}
    assert not psutil.pid_exists(server.pid)


def test_the_scheduler_ends_with_its_owner():
    code = "from workbench.techniques.sdpipe.runtime.service import Options, Server"
    code += "\nprint(Server(1, 2, Options(window_s=1.0)).pid, flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        process = psutil.Process(int(owner.stdout.readline()))
        owner.kill()
        psutil.wait_procs([process], timeout=60)
        assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


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


def trained(num_steps, options, before_step=lambda sync, number, step: None):
    part, schedule, number, index = pipeline(2)
    optimizer, draw = torch.optim.SGD(part.parameters(), lr=0.1), torch.Generator().manual_seed(number)
    sync = synchronized(part, optimizer, num_stages=2, options=options)
    for step in range(num_steps):
        before_step(sync, number, step)
        x = torch.randn(4, 4, generator=draw)
        inputs, last = ((x,) if index == 0 else ()), ({"target": x.flip(1)} if index == 1 else {})
        schedule.step(*inputs, **last)
        optimizer.step()
        optimizer.zero_grad()
    counted = sync.close()
    optimizer.step()  # without gradients, and nobody is waited for any more
    return [weight.detach().clone() for weight in part.parameters()], sync.log.groups, counted


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


TOGETHER = Options(window_s=math.inf)


def speak_to(path, seed, num_messages):
    """Send what is no message of the training to its scheduler, as another process of the machine can."""
    latest = time.monotonic() + 120
    while not (path.exists() and path.read_text()) and time.monotonic() < latest:
        time.sleep(0.01)
    address, draw = path.read_text(), random.Random(seed)
    forged = [[what, stage, worker, value] for what, value in (("fail", "has failed"), ("come", True), ("signal", None))
              for stage in (0, 1) for worker in (0, 1)]  # fmt: skip
    wrong = [None, [], ["ping"], ["ping", 0, 0, None, 0], ["fail", "0", [], {}], {"what": "leave"}, 7]
    wrong.append(["load", 0, 0, {}])
    texts = [json.dumps(message).encode() for message in forged + wrong] + [b"", b"\xff\x00", b"[" * 100_000, b"{"]
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE"
    with zmq.Context() as context:
        for number in range(num_messages):
            if number % 2:
                with (
                    contextlib.suppress(OSError),  # the scheduler may hang up before the end of a long text
                    socket.create_connection(tuple(address.removeprefix("tcp://").split(":")), timeout=5) as raw,
                ):
                    raw.sendall(draw.choice([*texts, greeting, greeting + draw.randbytes(200), draw.randbytes(99)]))
                continue
            with context.socket(zmq.DEALER) as dealer:
                dealer.linger, dealer.sndtimeo = 1, 100
                if number % 4:
                    dealer.curve_serverkey, _ = zmq.curve_keypair()
                    dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
                dealer.connect(address)
                with contextlib.suppress(zmq.Again):  # refused before it could send
                    dealer.send_multipart(draw.choices(texts, k=draw.choice([1, 1, 2])))
                    dealer.poll(1)


def among_strangers(path, last_step, sync, number, step):
    """Tell strangers the address in the second step, and wait for their end before the last one."""
    if dist.get_rank() == 0 and step == 1:
        path.write_text(sync._client._address)
    while dist.get_rank() == 0 and step == last_step and not path.with_suffix(".over").exists():
        time.sleep(0.01)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_users_pipeline_trains_as_all_reduce_and_a_hundred_messages_of_strangers_are_dropped_and_counted(
    ranks, tmp_path
):
    path, expected = tmp_path / "address", by_all_reduce(12)
    with ThreadPoolExecutor() as pool:
        stranger = pool.submit(speak_to, path, 5, 100)
        stranger.add_done_callback(lambda _: path.with_suffix(".over").touch())
        results = ranks.run(tidy, trained, 12, TOGETHER, partial(among_strangers, path, 11), timeout_s=240)
        stranger.result()
    for rank, (weights, groups, counted) in enumerate(results):
        assert {group.members for group in groups} == {frozenset({0, 1})}
        for weight, other in zip(weights, expected[2 * (rank % 2) :], strict=False):
            assert torch.allclose(weight, other, atol=1e-5)
        assert rank or (counted["num_signals"], counted["num_groups"]) == (48, 24)
        assert rank or counted["num_refused"] >= 100


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_workers_that_are_late_are_left_behind_but_not_longer_than_p_groups(ranks):
    def late(sync, number, step):
        time.sleep(0.02 * number)

    results = ranks.run(tidy, trained, 12, Options(window_s=0.0, history=3), late)
    sizes = [[len(group.members) for group in groups] for _, groups, _ in results]
    assert all(1 in group_sizes and 2 in group_sizes for group_sizes in sizes)


def alone(num_steps, how, device="cpu", action=None, **more):
    """Train this rank's stage by itself, on batches of its pipeline; `action` is called before each update."""
    rank, mesh = dist.get_rank(), None
    if how == "mesh":  # stages one after the other: ranks 0 and 1 are the first
        mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("stages", "pipelines"))
    stage, number = (rank // 2, rank % 2) if mesh or how == "wrong" else (rank % 2, rank // 2)
    if how == "flat":
        stage, number = 0, rank
    part = torch.nn.Linear(4, 3 + stage)
    torch.nn.init.constant_(part.weight, 0.1 * (1 + rank)), torch.nn.init.zeros_(part.bias)
    part.to(device)
    optimizer, draw = torch.optim.SGD(part.parameters(), lr=0.1), torch.Generator().manual_seed(number)
    place = {"group": mesh["pipelines"]} if mesh else {"num_stages": 1 if how == "flat" else 2}
    with synchronized(part, optimizer, **place, options=Options(**more)) as sync:
        for step in range(num_steps):
            part(torch.randn(8, 4, generator=draw).to(device)).square().sum().backward()
            if action is None or action(rank, step, optimizer) is None:
                optimizer.step()
            optimizer.zero_grad()
    return part.weight.detach().cpu(), [sorted(group.members) for group in sync.log.groups]


def skip_one(rank, step, optimizer):
    """Skip one update, as a scaler of gradients does where they are not finite."""
    return "skipped" if (rank, step) == (1, 3) else None


def test_a_rank_that_skips_an_update_while_iterations_are_measured_holds_nobody_up_for_ever(ranks):
    results = ranks.run(tidy, alone, 14, "flat", action=skip_one, history=5, timeout_s=200)
    assert [len(groups) for _, groups in results] == [14, 13, 14, 14]


@pytest.mark.parametrize("how", ["pairs", "mesh"])
def test_workers_of_a_stage_begin_equal_and_average_in_any_layout(ranks, how):
    results = ranks.run(tidy, alone, 4, how, window_s=math.inf, timeout_s=200)
    first, second = ((0, 2), (1, 3)) if how == "pairs" else ((0, 1), (2, 3))
    for pair in (first, second):
        assert torch.equal(results[pair[0]][0], results[pair[1]][0])
        assert [groups for _, groups in (results[rank] for rank in pair)] == [[[0, 1]] * 4] * 2
    (none, _), *_ = ranks.run(tidy, alone, 0, how, window_s=math.inf, timeout_s=200)
    assert torch.allclose(none, torch.full((3, 4), 0.1))


def test_a_layout_that_would_average_different_stages_is_refused_by_all_with_two_ranks_named(ranks):
    rule = "module holds weight [3, 4] torch.float32 on rank 0 and weight [4, 4] torch.float32 on rank 2"
    assert all(rule in message for message in ranks.run(tidy, refusal, alone, 1, "wrong", timeout_s=200))


class Failed(Exception):
    """An error of a user's own."""


def caught(num_steps, failing):
    """Train; one rank fails between its ready signal and the end of the update."""

    def fail(rank, step, optimizer):
        if rank == failing and step == 3:
            optimizer.register_step_pre_hook(lambda *_: (_ for _ in ()).throw(Failed("my own")))

    try:
        alone(num_steps, "flat", action=fail, window_s=math.inf)
    except Failed:
        return "failed"
    return "ended"


def test_an_error_between_a_signal_and_its_update_is_raised_there_and_the_others_end(ranks):
    assert ranks.run(tidy, caught, 6, 3, timeout_s=200) == ["ended", "ended", "ended", "failed"]


def test_on_a_gpu_the_signal_of_a_backward_pass_waits_until_it_is_computed(monkeypatch):
    sdpipe, called = SDPipe.__new__(SDPipe), mock.MagicMock()
    sdpipe._is_averaged, sdpipe._averaged_s, sdpipe._ties = False, None, mock.MagicMock()
    sdpipe._replica, sdpipe._client = mock.Mock(device=torch.device("cuda", 0)), called
    monkeypatch.setattr(torch.cuda, "current_stream", called.current_stream)
    sdpipe.before_update()
    stream = mock.call.current_stream(sdpipe._replica.device)
    assert called.mock_calls == [stream, stream.synchronize(), mock.call.signal(None)]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_models_are_averaged_as_on_a_processor(ranks):
    for window_s in (math.inf, None):
        on_gpu = run_on_ranks(alone, 4, 14, "flat", "cuda", window_s=window_s, device="cuda", timeout_s=120)
        on_processor = ranks.run(tidy, alone, 14, "flat", window_s=math.inf)
        for (weight, groups), (expected, _) in zip(on_gpu, on_processor, strict=True):
            assert len(groups) == 14
            assert window_s is None or torch.allclose(weight, expected, rtol=1e-4, atol=1e-6)


def of_another_model():
    synchronized(torch.nn.Linear(2, 2), torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1), num_stages=1)


def wrapped():
    model = torch.nn.Linear(2, 2)
    synchronized(DistributedDataParallel(model), torch.optim.SGD(model.parameters(), lr=0.1), num_stages=1)


def test_what_cannot_be_synchronized_is_refused(ranks):
    cases = {
        "num_stages is 3; it must divide the number of ranks, 4": lambda: Place.of_this_rank(3),
        "num_stages, group are None, None; give exactly one": lambda: synchronized(None, None),
        "optimizer has parameters that the module lacks, of the sizes [[2], [2, 2]]": of_another_model,
        "module is a DistributedDataParallel": wrapped,
    }
    for messages in ranks.run(tidy, lambda: [refusal(call) for call in cases.values()]):
        assert all(rule in message for rule, message in zip(cases, messages, strict=True)), messages
