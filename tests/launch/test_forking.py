"""Warm processes: what they fork is as a fresh process, and ends with its owner and with them."""

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from processes_seen import assert_all_dead_within

from workbench.launch import Machines, RankFailed, Ranks, kernel_server
from workbench.launch.environment import rank_environment
from workbench.launch.fork_server import WARM_VARIABLE
from workbench.launch.forking import ForkedProcess, Order, WarmProcess, forked


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluate(Order):
    """End with the value of an expression."""

    expression: str

    def carry_out(self, fds):
        self.take_surroundings()
        return eval(self.expression, {"os": os, "time": time})


@pytest.fixture(scope="module")
def warm():
    paths = [os.path.dirname(__file__), *map(str, Path(__file__).parents[1:3])]  # where `Evaluate` is defined
    environment = {**rank_environment(1), "PYTHONPATH": os.pathsep.join(paths)}
    with WarmProcess(["torch.distributed"], environment) as process:
        yield process


@pytest.fixture
def start(warm, tmp_path):
    def start(expression, **variables):
        environment = {**os.environ, **rank_environment(1), **variables}
        order = Evaluate(environment=environment, folder=str(tmp_path), owner_pid=os.getpid(), expression=expression)
        return forked(warm.address, order)

    return start


@pytest.fixture
def warmed(monkeypatch, warm):
    monkeypatch.setenv(WARM_VARIABLE, warm.address)


def own_pid():
    return os.getpid()


def raise_error():
    raise ValueError("no")


def is_forked(ranks) -> bool:
    return isinstance(ranks._server._process, ForkedProcess)


def test_ranks_of_a_warm_process_answer_fail_and_start_again(warmed, monkeypatch):
    monkeypatch.setenv("KMP_INIT_AT_FORK", "FALSE")  # as scikit-learn does where it is imported
    with Ranks(2) as ranks:
        before = ranks.run(own_pid)
        with pytest.raises(RankFailed, match="no"):
            ranks.run(raise_error)
        after = ranks.run(own_pid)
        assert is_forked(ranks) and len({*before, *after}) == 4
    assert_all_dead_within([*before, *after], 20.0)


def test_ranks_end_within_a_second_of_their_owner(warmed):
    program = "import time; from workbench.launch import Ranks; ranks = Ranks(2); print(*ranks.pids, flush=True)"
    command = [sys.executable, "-c", f"{program}; time.sleep(600)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        pids = [int(word) for word in owner.stdout.readline().split()]
        [server] = {psutil.Process(pid).ppid() for pid in pids}
        guard = psutil.Process(server).ppid()
        assert len(pids) == 2 and psutil.Process(guard).ppid() != owner.pid
        owner.kill()
        assert_all_dead_within([*pids, server, guard], 20.0)


def test_ranks_end_with_their_warm_process_and_the_next_ones_are_fresh(monkeypatch):
    with WarmProcess(["torch.distributed"], rank_environment(1)) as warm:
        monkeypatch.setenv(WARM_VARIABLE, warm.address)
        with Ranks(2) as ranks:
            before = ranks.run(own_pid)
            [server] = {psutil.Process(pid).ppid() for pid in before}
            guard = psutil.Process(server).ppid()
            warm.close()
            assert_all_dead_within([*before, server, guard], 20.0)
            with pytest.raises(RankFailed):
                ranks.run(own_pid)
            assert len(ranks.run(own_pid)) == 2 and not is_forked(ranks)


def test_variables_that_are_read_at_the_start_need_a_fresh_process(warmed, monkeypatch):
    with Machines(echo=False) as machines:  # these have another level of torch's log
        assert isinstance(machines._server._process, subprocess.Popen)
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    with Ranks(1) as ranks:
        assert not is_forked(ranks)


def test_the_stamp_of_the_library_changes_with_a_file_and_kernels_keep_the_library_until_then(monkeypatch, tmp_path):
    package, stamps = tmp_path / "workbench", []
    (package / "launch").mkdir(parents=True)
    monkeypatch.setattr("workbench.launch.kernel_server.__file__", str(package / "launch/kernel_server.py"))
    for change in ("", "launch/new.py", "launch/__pycache__/new.pyc", "launch/more/new.py"):
        (package / change).parent.mkdir(exist_ok=True)
        (package / change).touch() if change else None
        stamps.append(kernel_server.library_stamp())
    assert len(set(stamps)) == 3 and stamps[1] == stamps[2]

    held = dict(sys.modules)
    monkeypatch.setattr(sys, "modules", dict(held))
    monkeypatch.setenv(kernel_server.LIBRARY_VARIABLE, stamps[-1])
    kernel_server._forget_changed_library()
    assert sys.modules == held
    monkeypatch.setenv(kernel_server.LIBRARY_VARIABLE, stamps[0])
    kernel_server._forget_changed_library()
    assert {name.partition(".")[0] for name in held.keys() - sys.modules.keys()} == {"workbench"}
    assert "workbench.launch" not in sys.modules and "pytest" in sys.modules


def test_no_warm_process_is_no_error(monkeypatch):
    monkeypatch.setenv(WARM_VARIABLE, "workbench-nobody")
    with Ranks(1) as ranks:
        assert not is_forked(ranks)


@pytest.mark.parametrize(
    ("expression", "status"),
    [
        ("3", 3),
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("len(os.listdir('/proc/self/task'))", 1),
        ("os.getsid(0) == os.getpid()", 1),
        ("int(os.environ['SEEN'])", 7),
    ],
)
def test_a_forked_process_has_one_thread_its_own_session_and_environment(start, expression, status):
    assert start(expression, SEEN="7").wait(60) == status


def test_a_forked_process_holds_no_descriptor_of_another(start, warm):
    count = "len(os.listdir('/proc/self/fd'))"
    alone = start(count).wait(60)
    strangers = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    for stranger in strangers:
        stranger.connect(f"\0{warm.address}")
        stranger.send(b"no order")
    waiting = start("time.sleep(600)")
    assert start(count).wait(60) == alone
    waiting.kill()
    waiting.wait(60)
    for stranger in strangers:
        assert stranger.recv(8) and stranger.recv(1) == b""
        stranger.close()


def test_waiting_for_a_forked_process_has_a_limit_and_a_kill_ends_it(start):
    process = start("time.sleep(600)")
    with pytest.raises(subprocess.TimeoutExpired, match=str(process.pid)):
        process.wait(0.1)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
