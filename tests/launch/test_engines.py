"""The same function under torchrun and on an ipyparallel cluster."""

import atexit
from unittest import mock

import ipyparallel
import pytest
import torch
import torch.distributed as dist
from processes_seen import run_python

from workbench.launch import IPyParallelRanks, PerRank, RankFailed, run_here
from workbench.launch.engines import join_job

SCRIPT = """
import os, sys
from pathlib import Path
import torch, torch.distributed as dist
from workbench.launch import PerRank, Ranks, run_here

def total(number, *, plus):
    x = torch.tensor([float(number + plus)])
    dist.all_reduce(x)
    return x.item()

class Own:
    pass

def is_the_first_ranks(own, pid, call):
    first = torch.tensor([os.getpid()])
    dist.broadcast(first, 0)
    return type(own) is Own and pid == first.item() and call() == 3

for _ in range(2):
    value = run_here(total, PerRank([1, 2]), plus=10)
with Ranks(2) as ranks:
    kept = ranks.put("kept", int, "3")
    values = ranks.run(total, PerRank([1, 2]), plus=kept) + ranks.start(dist.get_rank).result()
    pid = ranks.put("pid", int, os.getpid())
    for given in (os.getpid(), pid):
        values += ranks.run(is_the_first_ranks, Own(), given, lambda: 3)
try:
    Ranks(3)
except RuntimeError as error:
    Path(sys.argv[1], f"rank-{dist.get_rank()}").write_text(f"{value} {values} {error}")
"""
FOUND = "23.0 [9.0, 9.0, 0, 1, True, True, True, True] torchrun or srun has started 2 ranks, and 3 ranks are asked for"
# 11 + 12, 4 + 5


def test_a_function_and_a_pool_of_the_same_size_run_under_torchrun(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = run_python(*torchrun, str(script), str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"rank-{rank}").read_text() for rank in range(2)] == [FOUND, FOUND]


def test_outside_torchrun_the_missing_variable_is_named(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(RuntimeError, match=r"RANK is not set: run_here works under torchrun or srun; .*Ranks\("):
        run_here(len, [])


@pytest.mark.parametrize(("num_gpus", "gpu"), [(4, 3), (1, 0)])  # Slurm may show each rank its own one alone
def test_a_rank_of_a_job_takes_a_gpu_that_it_sees(monkeypatch, num_gpus, gpu):
    called = mock.Mock()
    for name, value in {"RANK": 3, "LOCAL_RANK": 3, "WORLD_SIZE": 4, "MASTER_ADDR": "", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    monkeypatch.setattr(torch.cuda, "set_device", called.set_device)
    monkeypatch.setattr(dist, "init_process_group", called.init_process_group)
    monkeypatch.setattr(atexit, "register", called.register)
    join_job("cuda", torch.get_num_threads())
    assert called.mock_calls[:2] == [mock.call.set_device(gpu), mock.call.init_process_group("nccl")]


def test_engines_are_numbered_on_their_host_for_gpus_of_their_own(monkeypatch):
    calls, client = [], mock.MagicMock(ids=[0, 1, 2])
    client.__getitem__.return_value.apply_sync.return_value = ["a", "b", "a"]
    monkeypatch.setattr(IPyParallelRanks, "_call_all", lambda _, given, timeout_s: calls.extend(given))
    IPyParallelRanks(client, address="127.0.0.1")
    assert [args[:2] for _, args, _ in calls] == [(0, 0), (1, 0), (2, 1)]


@pytest.fixture(scope="module")
def client():
    with ipyparallel.Cluster(n=2, log_level=40) as client:
        yield client


def test_a_function_runs_on_an_ipyparallel_cluster(client, capsys):
    offset = 10

    def total(number):
        x = torch.tensor([float(number + offset)])
        dist.all_reduce(x)
        print("has", number)
        return x.item(), torch.get_num_threads()

    with IPyParallelRanks(client) as ranks:
        assert ranks.num_ranks == 2
        assert ranks.run(total, PerRank([1, 2])) == [(23.0, 1), (23.0, 1)]
    assert capsys.readouterr().out == "[rank 0] has 1\n[rank 1] has 2\n"


def test_a_failure_on_an_engine_is_reported_like_one_of_a_rank(client):
    def fail():
        if dist.get_rank() == 1:
            raise KeyError("weight")
        return 0

    ranks = IPyParallelRanks(client)
    with pytest.raises(RankFailed, match="rank 1 raised KeyError: 'weight'"):
        ranks.run(fail)
    with pytest.raises(RuntimeError, match="restart the engines"):
        ranks.run(fail)
