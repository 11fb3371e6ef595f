"""Nothing is loaded from a connection before both ends have proved the job's secret, whoever else connects."""

import contextlib
import hmac
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from workbench.launch.environment import own_environment
from workbench.launch.protocol import MachineStarted, RankEnded, RankStarted
from workbench.launch.tcp_store import listening_socket
from workbench.techniques.gemini.control import hosts_of_torchrun as handshake
from workbench.techniques.gemini.control.hosts_of_torchrun import accept_hosts, connect_to_operator, read_secret

pytestmark = pytest.mark.timeout(600)
SECRET = b"0123456789abcdef0123456789abcdef"


class Bomb:
    """Leaves a file where it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture
def door():
    with listening_socket("127.0.0.1") as listening:
        yield listening


def accepted(door, ranks=(1,), limit_s=60.0):
    return ThreadPoolExecutor(1).submit(accept_hosts, door, SECRET, ranks, limit_s)


def framed(data):
    return len(data).to_bytes(4, "big") + data


def test_hosts_are_accepted_by_rank_beside_strangers_who_are_dropped_and_counted(door, tmp_path):
    place, bomb = door.getsockname(), pickle.dumps(Bomb(tmp_path / "loaded"))
    with contextlib.ExitStack() as strangers:
        hello = handshake.HELLO.pack(handshake.MAGIC, 1, b"n" * 32)
        for words in (b"", b"work", b"garbage" * 100, framed(bomb), hello):
            stranger = strangers.enter_context(socket.create_connection(place))
            stranger.sendall(words)
        stranger.sendall(bytes(32))  # as a proof
        socket.create_connection(place).close()
        waiting = accepted(door, ranks=(1, 2))
        with pytest.raises(RuntimeError, match="did not prove that it knows this job's secret: its proof is wrong"):
            connect_to_operator(place, b"another secret that is as long as it has to be", 1)
        hosts = [connect_to_operator(place, SECRET, rank) for rank in (2, 1)]
        connections, num_dropped = waiting.result()
    assert num_dropped == 7
    for host, connection in zip(hosts[::-1], connections, strict=True):
        connection.send({"to": "host"})
        host.send(["to", "operator"])
        assert (host.recv(), connection.recv()) == ({"to": "host"}, ["to", "operator"])
        host.close()
        with pytest.raises(EOFError):
            connection.recv()
        connection.close()
    assert not (tmp_path / "loaded").exists()


def test_a_rank_that_is_not_missing_is_dropped_and_hosts_that_do_not_come_are_named(door):
    waiting = accepted(door, ranks=(1, 2, 3), limit_s=2.0)
    places = [connect_to_operator(door.getsockname(), SECRET, rank) for rank in (1, 1, 7)]
    with pytest.raises(TimeoutError, match=r"hosts \[2, 3\] did not come within 2 s; 2 connections did not prove"):
        waiting.result()
    for place in places:
        place.close()


def test_silent_connections_make_room_and_have_little_time(door, monkeypatch):
    monkeypatch.setattr(handshake, "MOST_UNPROVEN", 3)
    with contextlib.ExitStack() as strangers:
        for _ in range(8):
            strangers.enter_context(socket.create_connection(door.getsockname()))
        waiting = accepted(door)
        with contextlib.closing(connect_to_operator(door.getsockname(), SECRET, 1)):
            [connection], num_dropped = waiting.result()
    connection.close()
    assert num_dropped == 8


def forger(answer):
    """Listen as a false operator that gives an answer to whatever it hears, and return its address."""
    listening = listening_socket("127.0.0.1")

    def answer_all():
        with listening, contextlib.suppress(OSError):
            end, _ = listening.accept()
            with end:
                hello = end.recv(handshake.HELLO.size)
                end.sendall(answer(hello))
                end.recv(1)

    threading.Thread(target=answer_all, daemon=True).start()
    return listening.getsockname()


FORGERIES = {
    "nothing": lambda hello: b"",
    "zeros": lambda hello: bytes(64),
    "an echo": lambda hello: hello + hello[:20],  # what the host said itself
    "another secret": lambda hello: bytes(32) + hmac.digest(b"guessed", b"operator\0" + hello + bytes(32), "sha256"),
}


def test_the_ranks_of_another_host_are_known_until_they_end_or_the_host_is_gone(door):
    waiting, place = accepted(door), door.getsockname()
    host = connect_to_operator(place, SECRET, 1)
    [connection], _ = waiting.result()
    host.send(7.0)  # its clock
    local = SimpleNamespace(names=(), pids={}, wait=lambda timeout_s: [])
    machines = handshake.ClusterMachines(local, [connection], 1)
    machines.start("a", print, host=1)
    started = [RankStarted(machine="a", rank=rank, pid=20 + rank, time_s=7.0) for rank in (0, 1)]
    heard = []
    for event in (MachineStarted(machine="a", pid=10, time_s=7.0), *started):
        host.send(event)
        heard += machines.wait(10.0)
    assert len(heard) == 3 and machines.pids == {"a": {"agent": 10, "ranks": {0: 20, 1: 21}}}
    host.send(RankEnded(machine="a", rank=0, status=0, time_s=7.0))
    assert machines.wait(10.0) and machines.pids["a"]["ranks"] == {1: 21}
    host.close()
    [ended] = machines.wait(10.0)
    assert ended.machine == "a" and machines.pids == {} and machines.names == ()


@pytest.mark.parametrize("forged", FORGERIES)
def test_a_false_operator_is_found_out_before_anything_is_sent_to_it_or_loaded(forged):
    limit_s, why = (0.3, "timed out") if forged == "nothing" else (60.0, "its proof is wrong")
    with pytest.raises(RuntimeError, match=f"did not prove that it knows this job's secret: .*{why}"):
        connect_to_operator(forger(FORGERIES[forged]), SECRET, 1, limit_s)


def test_a_message_that_somebody_in_between_changes_or_repeats_is_not_loaded(door, tmp_path):
    """A relay passes the handshake on, because it is genuine; then it sends what it likes."""
    relay = listening_socket("127.0.0.1")
    waiting, host = accepted(door), ThreadPoolExecutor(1).submit(connect_to_operator, relay.getsockname(), SECRET, 1)
    ends = relay.accept()[0], socket.create_connection(door.getsockname())
    for number_bytes, (source, target) in ((44, ends), (64, ends[::-1]), (32, ends)):
        target.sendall(source.recv(number_bytes, socket.MSG_WAITALL))
    [[operator], _], host = waiting.result(), host.result()
    to_host, to_operator = (Connection(end.detach()) for end in ends)
    host.send("first")
    genuine = to_host.recv_bytes()
    to_operator.send_bytes(genuine)
    assert operator.recv() == "first"
    bomb = pickle.dumps(Bomb(tmp_path / "loaded"))
    for forged in (genuine, genuine[:32] + bomb, b"", bomb):  # the first is a repetition
        to_operator.send_bytes(forged)
        with pytest.raises(ConnectionAbortedError, match="was not sent by the other host"):
            operator.recv()
    to_host.send_bytes(genuine)  # its own words back
    with pytest.raises(ConnectionAbortedError, match="was not sent by the other host"):
        host.recv()
    assert not (tmp_path / "loaded").exists()
    for end in (host, operator, to_host, to_operator, relay):
        end.close()


def test_the_secret_is_a_variable_or_a_file_that_nobody_else_reads_and_is_never_made_up(monkeypatch, tmp_path):
    monkeypatch.delenv("WORKBENCH_SECRET", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"WORKBENCH_SECRET is not set, and .*=\$\(openssl rand -hex 32\)"):
        read_secret()
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_bytes(SECRET + b"\n")
    monkeypatch.setenv("WORKBENCH_SECRET_FILE", str(file))
    assert read_secret() == SECRET
    for mode in (0o640, 0o604, 0o620, 0o602):
        file.chmod(mode)
        with pytest.raises(ValueError, match=f"mode {mode:o}; it must be a plain file of your own, of mode 600"):
            read_secret()
    file.chmod(0o600)
    file.write_text("short")
    with pytest.raises(ValueError, match="has 5 characters; it must have at least 32"):
        read_secret()
    (tmp_path / "link").symlink_to(file)
    os.mkfifo(tmp_path / "fifo", 0o600)
    for name, why in (("link", "it must be no link"), ("fifo", "must be a plain file"), (".", "must be a plain file")):
        monkeypatch.setenv("WORKBENCH_SECRET_FILE", str(tmp_path / name))
        with pytest.raises(ValueError, match=why):
            read_secret()
    if os.geteuid() == 0:
        file.write_bytes(SECRET)
        os.chown(file, 65534, 65534)
        monkeypatch.setenv("WORKBENCH_SECRET_FILE", str(file))
        with pytest.raises(ValueError, match="of user 65534"):
            read_secret()
    monkeypatch.setenv("WORKBENCH_SECRET", "tooshort")
    with pytest.raises(ValueError, match="WORKBENCH_SECRET has 8 characters"):
        read_secret()


JOB = """
from workbench.techniques.gemini.control.hosts_of_torchrun import run_under_torchrun


def train(context):
    import torch
    import torch.distributed as dist
    total = torch.tensor([context.rank + 1.0])
    dist.all_reduce(total)
    return context.rank, total.item()

if __name__ == "__main__":
    outcome = run_under_torchrun(train, timeout_s=280)
    print("OUTCOME", outcome and outcome.results, flush=True)
"""


@contextlib.contextmanager
def job(tmp_path, ranks, **secrets):
    """Run the processes that torchrun would start, on one machine, and serve their rendezvous."""
    (tmp_path / "train.py").write_text(JOB)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    inherited = {name: value for name, value in own_environment().items() if not name.startswith("WORKBENCH_SECRET")}
    known = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "LOCAL_WORLD_SIZE": "1", "HOME": str(tmp_path)}
    known |= {"WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True", **secrets}
    with contextlib.ExitStack() as running:
        hosts = [
            running.enter_context(
                subprocess.Popen(
                    [sys.executable, str(tmp_path / "train.py")],
                    env=inherited | known | {"RANK": str(rank)},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            for rank in ranks
        ]
        try:
            yield store, hosts
        finally:
            for host in hosts:
                host.kill()


def test_who_reads_the_rendezvous_store_finds_no_secret_and_has_nothing_loaded_by_the_operator(tmp_path):
    with job(tmp_path, (0, 1), WORKBENCH_SECRET=SECRET.decode()) as (store, [operator, host]):
        store.wait(["workbench/operator"])
        data = store.get("workbench/operator")
        ip, port = json.loads(data)
        assert SECRET not in data and SECRET.hex().encode() not in data
        bomb = framed(pickle.dumps(Bomb(tmp_path / "loaded")))
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection((ip, port)) as stranger:
            stranger.sendall(bomb)
        said = operator.communicate(timeout=300)[0]
        assert "OUTCOME ((0, 3.0), (1, 3.0))" in said, said
        assert "OUTCOME None" in host.communicate(timeout=250)[0]
    assert not (tmp_path / "loaded").exists()
