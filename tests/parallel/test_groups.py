"""Tensor groups and stages: sums, copies, gathers, random streams, and the bytes that are sent."""

import socket

import pytest
import torch

from workbench.compression.codec import site_seed
from workbench.parallel import (
    Message,
    MessageKind,
    Phase,
    ProcessTensorGroup,
    Stage,
    VirtualTensorGroup,
    generator_for,
    traffic,
)
from workbench.parallel.traffic import tcp_bytes_sent


def test_sum_adds_partials_copy_sums_gradients_and_gather_keeps_types_and_order():
    group = VirtualTensorGroup(2)
    a, b = (torch.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    total = group.sum([a, 10 * b])
    total.backward(torch.tensor([1.0, 3.0]))
    assert total.tolist() == [11.0, 22.0]
    assert (a.grad.tolist(), b.grad.tolist()) == ([1.0, 3.0], [10.0, 30.0])
    x = torch.tensor([2.0], requires_grad=True)
    y = group.copy(x)
    sum(y * weight for weight in (1.0, 10.0, 100.0)).backward()
    assert (y.item(), x.grad.item()) == (2.0, 111.0)
    messages = [torch.tensor([1, 2]), torch.tensor([3, 4])]
    assert [message.tolist() for message in group.gather(messages)] == [[1, 2], [3, 4]]
    assert not any(message.requires_grad for message in group.gather([a, b]))


def test_traffic_counts_the_bytes_that_one_rank_contributes_and_none_of_a_group_of_one():
    group = VirtualTensorGroup(2)
    x = torch.ones(3, 4, requires_grad=True)
    with group.traffic.at("here"):
        y = group.copy(x)
    with group.traffic.at("there"):
        group.sum([y, y]).sum().backward()
        group.gather([torch.zeros(5, dtype=torch.uint8)] * 2)
    expected = {  # 12 fp32 elements are 48 bytes, 5 bytes are 5
        ("sum", "forward", 48, "there"),
        ("copy-backward", "backward", 48, "here"),
        ("gather", "forward", 5, "there"),
    }
    assert {(m.what, m.phase, m.message_bytes, m.site) for m in group.traffic} == expected
    assert group.traffic.num_bytes() == 101
    assert group.traffic.num_bytes(phase="forward") == 53
    assert group.traffic.num_bytes(site="there") == 53
    group.traffic.clear()
    assert len(group.traffic) == 0
    with group.traffic.at("boundary", phase=Phase.BACKWARD):
        group.traffic.record(MessageKind.SEND, torch.zeros(2, dtype=torch.float16), num_ranks=2)
    sent = {"what": MessageKind.SEND, "phase": Phase.BACKWARD, "site": "boundary"}
    assert group.traffic.messages == [Message(message_bytes=4, num_ranks=2, **sent)]
    alone = VirtualTensorGroup(1)
    alone.copy(alone.sum([x])).sum().backward()
    assert len(alone.traffic) == 0


def test_layers_and_codecs_derive_the_same_seed_from_the_same_name():
    for seed, site in [(0, ""), (3, "layers.1.mlp.output")]:
        assert generator_for(seed, site).initial_seed() == site_seed(seed, site)
    assert len({generator_for(*place).initial_seed() for place in [(0, "a"), (0, "b"), (1, "a"), (0, "a")]}) == 3


def test_stages_hold_consecutive_equal_runs():
    stages = [Stage(index=index, num_stages=3) for index in range(3)]
    assert [list(stage.layers(6)) for stage in stages] == [[0, 1], [2, 3], [4, 5]]
    assert [(stage.is_first, stage.is_last) for stage in stages] == [(True, False), (False, False), (False, True)]


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda: VirtualTensorGroup(2).sum([torch.ones(1)]), "tensors: 1 given.*2 ranks"),
        (lambda: VirtualTensorGroup(0), "size: 0"),
        (ProcessTensorGroup, "torch.distributed is not initialised"),
        (lambda: Stage(index=0, num_stages=3).layers(7), "num_layers: 7 is not divisible by 3"),
        (lambda: Stage(index=3, num_stages=3), r"index: 3 is not in 0\.\.2"),
        (lambda: Stage(index=0, num_stages=0), "num_stages: 0"),
    ],
)
def test_groups_and_stages_that_cannot_be_are_refused(call, rule):
    with pytest.raises(ValueError, match=rule):
        call()


@pytest.fixture
def connection():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            yield client, accepted


def test_written_bytes_count_once_and_received_ones_do_not(connection):
    client, accepted = connection
    before = tcp_bytes_sent()
    client.sendall(bytes(1000))
    assert tcp_bytes_sent() - before == 1000
    accepted.recv(1000, socket.MSG_WAITALL)
    assert tcp_bytes_sent() - before == 1000
    accepted.sendall(bytes(7))
    assert tcp_bytes_sent() - before == 1007


def test_bytes_that_wait_for_a_slow_reader_count(connection):
    client, _ = connection
    client.setblocking(False)
    before, written = tcp_bytes_sent(), 0
    with pytest.raises(BlockingIOError):
        while True:
            written += client.send(bytes(100_000))
    assert tcp_bytes_sent() - before == written


def test_listening_and_other_sockets_and_files_count_nothing(tmp_path):
    before = tcp_bytes_sent()
    one, other = socket.socketpair()
    with one, other, open(tmp_path / "file", "wb") as file, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        one.sendall(bytes(100))
        datagrams.sendto(bytes(100), ("127.0.0.1", 9))
        file.write(bytes(100))
        with socket.create_server(("127.0.0.1", 0)):
            assert tcp_bytes_sent() == before


def test_other_systems_get_a_clear_error(monkeypatch):
    monkeypatch.setattr(traffic.sys, "platform", "darwin")
    with pytest.raises(RuntimeError, match="Linux's TCP_INFO; this is darwin"):
        tcp_bytes_sent()
