"""Bytes on the wire: what the kernel counts is what a program wrote."""

import socket

import pytest

from workbench.parallel import traffic
from workbench.parallel.traffic import tcp_bytes_sent


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


def test_other_sockets_and_files_count_nothing(tmp_path):
    before = tcp_bytes_sent()
    one, other = socket.socketpair()
    with one, other, open(tmp_path / "file", "wb") as file, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        one.sendall(bytes(100))
        datagrams.sendto(bytes(100), ("127.0.0.1", 9))
        file.write(bytes(100))
        assert tcp_bytes_sent() == before


def test_a_listening_socket_has_sent_nothing():
    before = tcp_bytes_sent()
    with socket.create_server(("127.0.0.1", 0)):
        assert tcp_bytes_sent() == before


def test_other_systems_get_a_clear_error(monkeypatch):
    monkeypatch.setattr(traffic.sys, "platform", "darwin")
    with pytest.raises(RuntimeError, match="Linux's TCP_INFO; this is darwin"):
        tcp_bytes_sent()
