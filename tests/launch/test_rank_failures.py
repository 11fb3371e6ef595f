"""What RankFailed reports, what is stopped, and that the pool can be used again."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from functools import partial
from types import SimpleNamespace

import psutil
import pytest
import torch
import torch.distributed as dist
from processes_seen import assert_all_dead_within

from workbench.launch import FailureKind, RankFailed, Ranks, run_on_ranks, worker_group
from workbench.launch.failures import RankFailure

RAISED, DIED = FailureKind.RAISED, FailureKind.DIED


@pytest.fixture(scope="module")
def ranks():
    with Ranks(3, echo=False) as pool:
        yield pool


def fork_server_of(pool: Ranks) -> int:
    return psutil.Process(pool.pids[0]).ppid()


def wait_for_everyone() -> None:
    dist.all_reduce(torch.ones(1))


def raise_key_error():
    raise KeyError("weight")


def crash():
    ctypes.string_at(0)


def leave():
    os.write(2, b"going\n")
    os._exit(5)


class Unwelcome:
    """Pickles, but cannot be unpickled where no process group is."""

    def __init__(self, error: type[Exception]):
        self.error = error

    def __reduce__(self):
        return _only_on_ranks, (self.error,)


def _only_on_ranks(error: type[Exception]) -> None:
    if not dist.is_initialized():
        raise error("not here")


class Unreadable:
    def __reduce__(self):
        raise OSError("disk is gone")


NOT_HERE = "returned what cannot be unpickled here: {}: not here"


@pytest.mark.parametrize(
    ("fail", "kind", "message", "where"),
    [
        (raise_key_error, RAISED, "raised KeyError: 'weight'", 'raise KeyError("weight")'),
        (partial(signal.raise_signal, signal.SIGKILL), DIED, "was killed by signal 9, likely out of memory", ""),
        (crash, DIED, "was killed by signal 11 (SIGSEGV)", "in crash"),
        (leave, DIED, "ended by itself with exit status 5", "going"),
        (sys._getframe, RAISED, "raised TypeError: cannot pickle 'frame' object", "TypeError"),
        (Unreadable, RAISED, "raised OSError: disk is gone", "in __reduce__"),
        (partial(Unwelcome, ValueError), RAISED, NOT_HERE.format("ValueError"), "in _only_on_ranks"),
        (partial(Unwelcome, EOFError), RAISED, NOT_HERE.format("EOFError"), "in _only_on_ranks"),
    ],
    ids=["raises", "killed", "crash", "exits", "unsendable", "error of the system", "unreadable", "unreadable end"],
)
def test_the_failing_rank_comes_first_with_its_cause_and_all_are_stopped(ranks, fail, kind, message, where):
    before = ranks.run(os.getpid)
    with pytest.raises(RankFailed) as caught:
        ranks.run(lambda: fail() if dist.get_rank() == 1 else wait_for_everyone(), timeout_s=20)
    first, *others = caught.value.failures
    assert (first.rank, first.kind, first.message) == (1, kind, message)
    assert where in first.traceback
    assert "launch/rank.py" not in first.traceback
    assert str(caught.value).startswith(f"rank 1 {message}")
    assert {failure.kind for failure in others} <= {FailureKind.PEER_LOST}
    assert_all_dead_within(before, 20.0)


def test_the_pool_starts_new_ranks_after_a_failure_but_old_handles_are_refused(ranks):
    kept = ranks.put("kept", list)
    with pytest.raises(RankFailed, match="next run starts new ones"):
        ranks.run(raise_key_error)
    assert ranks.run(dist.get_rank) == [0, 1, 2]
    with pytest.raises(ValueError, match="'kept' belongs to ranks that were stopped"):
        ranks.run(len, kept)


def test_all_failing_tracebacks_are_reported_first_cause_first(ranks, monkeypatch):
    monkeypatch.setattr(worker_group, "GRACE_S", 6.0)  # or a busy machine could change the order

    def fail_in_turn():
        rank = dist.get_rank()
        if rank == 0:
            wait_for_everyone()
        time.sleep(0.0 if rank == 2 else 2.0)
        raise ValueError(f"from {rank}")

    with pytest.raises(RankFailed) as caught:
        ranks.run(fail_in_turn)
    assert [failure.rank for failure in caught.value.failures] == [2, 1]


def test_a_hang_names_the_rank_that_others_wait_for_and_shows_where(ranks, monkeypatch):
    monkeypatch.setattr(worker_group, "STACK_PATIENCE_S", 10.0)  # on a busy machine a stack takes its time

    def hang():
        while dist.get_rank() == 1:  # the signal that asks for its stack ends a sleep
            ctypes.PyDLL(None).sleep(600)  # holds the interpreter lock
        wait_for_everyone()

    ranks.run(wait_for_everyone)  # started and connected, so that the limit below is all for reaching the collective
    with pytest.raises(RankFailed) as caught:
        ranks.run(hang, timeout_s=6.0)
    first, *others = caught.value.failures
    assert (first.rank, first.kind) == (1, FailureKind.SILENT)
    assert first.message == "did not answer within 6 s"
    assert "in hang" in first.traceback
    assert sorted(failure.rank for failure in others) == [0, 2]  # both are asked at once
    expected = "did not answer within 6 s because it waits for another rank"
    assert [failure.message for failure in others] == [expected, expected], [failure.traceback for failure in others]


def test_a_fork_server_that_does_not_answer_is_killed_and_the_next_run_starts_another(monkeypatch):
    monkeypatch.setattr(worker_group, "STOP_PATIENCE_S", 0.5)
    with Ranks(2, echo=False) as ranks:
        before, fork_server = ranks.pids, fork_server_of(ranks)
        os.kill(fork_server, signal.SIGSTOP)
        with pytest.raises(RankFailed, match="rank 0 did not answer within 0.5 s"):
            ranks.run(time.sleep, 60, timeout_s=0.5)
        assert_all_dead_within([*before, fork_server], 20.0)
        assert ranks.run(dist.get_rank) == [0, 1]


@pytest.mark.parametrize("ranks_run", [True, False])
def test_a_killed_fork_server_is_reported_and_the_next_run_starts_another(ranks, ranks_run):
    ranks.run(dist.get_rank)
    fork_server = fork_server_of(ranks)
    if not ranks_run:  # these ranks are stopped, no others were started yet
        with pytest.raises(RankFailed):
            ranks.run(raise_key_error)
    before = [*ranks.pids, fork_server]
    os.kill(fork_server, signal.SIGKILL)
    assert_all_dead_within(before, 20.0)
    with pytest.raises(RankFailed, match="rank 0 ended with its fork server"):
        ranks.run(dist.get_rank)
    assert ranks.run(dist.get_rank) == [0, 1, 2]


def test_a_module_the_ranks_cannot_import_is_reported_by_name(ranks, tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("def nothing(): pass\n")
    monkeypatch.syspath_prepend(tmp_path)  # after the ranks were started
    import only_here

    with pytest.raises(RankFailed, match="No module named 'only_here'"):
        ranks.run(only_here.nothing)


def test_a_program_that_a_rank_started_ends_with_the_run_that_failed(ranks):
    def start_and_fail():
        program = subprocess.Popen(["sleep", "600"], start_new_session=True)
        raise ValueError(f"started {program.pid}.")

    with pytest.raises(RankFailed) as caught:
        ranks.run(start_and_fail)
    pids = [int(failure.message.split("started ")[1][:-1]) for failure in caught.value.failures]
    assert len(pids) == 3
    assert_all_dead_within(pids, 20.0)


# Lambdas, which travel whole to the fork server.
NO_WAY_IN = SimpleNamespace(interface="lo", description=None, enter=lambda host: os.stat("/no/such/host"))
HOSTS = SimpleNamespace(open=lambda: NO_WAY_IN, host_of=lambda rank, num_ranks: rank, warn_of=lambda description: None)


@pytest.mark.parametrize(
    ("options", "error", "rule"),
    [
        ({"num_ranks": 0}, ValueError, "num_ranks is 0"),
        ({"timeout_s": 0}, ValueError, "timeout_s is 0"),
        ({"threads_per_rank": 0}, ValueError, "threads_per_rank is 0"),
        ({"device": "tpu"}, ValueError, "device is 'tpu'"),
        ({"preload": ["no_such_module"]}, RuntimeError, "cannot start: ModuleNotFoundError.*no_such_module"),
        ({"hosts": HOSTS}, RankFailed, "rank 0 ended by itself with exit status 1\n(.*\n)*.*Error: .*/no/such/host"),
        pytest.param(
            *({"device": "cuda"}, RankFailed, "rank 0 raised RuntimeError: .*has no usable GPU"),
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"),
        ),
    ],
)
def test_ranks_that_cannot_start_say_why(options, error, rule):
    with pytest.raises(error, match=rule):
        Ranks(**{"num_ranks": 2} | options)


def test_the_number_of_ranks_is_the_kernel_s_where_none_is_given(monkeypatch):
    monkeypatch.delenv("WORKBENCH_NUM_RANKS", raising=False)
    with pytest.raises(ValueError, match="num_ranks is missing; give a number or set WORKBENCH_NUM_RANKS"):
        Ranks()
    monkeypatch.setenv("WORKBENCH_NUM_RANKS", "many")
    with pytest.raises(ValueError, match="WORKBENCH_NUM_RANKS is 'many'"):
        Ranks()
    monkeypatch.setenv("WORKBENCH_NUM_RANKS", "2")
    assert run_on_ranks(dist.get_rank, None) == [0, 1]


def test_failures_are_ordered_by_time_with_victims_last():
    cases = ((0, FailureKind.PEER_LOST, 1.0), (1, DIED, 3.0), (2, RAISED, 2.0))
    failures = [RankFailure(rank=rank, kind=kind, time_s=time_s, message="") for rank, kind, time_s in cases]
    assert [failure.rank for failure in RankFailed(failures).failures] == [2, 1, 0]
