"""Ranks on this machine: values, arguments, tensors, output, and their environment."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from processes_seen import living, run_python

from workbench.launch import PerRank, RankFailed, Ranks, rank_environment
from workbench.launch.rank_process import MOST_CHARACTERS, RankOutput

# A result of 64 MiB is made and dropped ten times; the page faults of the best time count.
FAULTS = """
import resource, torch
torch.set_num_threads(1)
x = torch.zeros(16 << 20)
def faults_of_one_result():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    x + 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(min(faults_of_one_result() for _ in range(10)))
"""


@pytest.fixture(scope="module")
def ranks():
    with Ranks(4) as pool:
        yield pool


def rank_times_ten(number: int, *, plus: int = 0) -> int:
    return 10 * dist.get_rank() + number + plus


def test_values_come_back_in_rank_order_and_every_rank_gets_its_own_argument(ranks):
    assert ranks.run(rank_times_ten, 1, plus=2) == [3, 13, 23, 33]
    assert ranks.run(rank_times_ten, PerRank([4, 3, 2, 1])) == [4, 13, 22, 31]
    assert ranks.run(rank_times_ten, 0, plus=PerRank([1, 2, 3, 4])) == [1, 12, 23, 34]
    with pytest.raises(ValueError, match="PerRank has 2 values; it must have 4"):
        ranks.run(rank_times_ten, PerRank([1, 2]))


def test_an_object_put_on_the_ranks_arrives_where_its_handle_is_given(ranks):
    counter = ranks.put("counter", lambda start: [dist.get_rank() + start], 100)

    def count(kept: dict) -> int:
        kept["list"].append(0)
        return kept["list"][0] + len(kept["list"])

    assert ranks.run(count, {"list": counter}) == [102, 103, 104, 105]
    assert ranks.run(count, {"list": counter}) == [103, 104, 105, 106]  # the same lists


def test_large_tensors_and_arrays_travel_both_ways_and_can_be_changed(ranks):
    tensor = torch.arange(100_000, dtype=torch.float32)
    array = np.arange(100_000)

    def change(tensor, array):
        tensor += dist.get_rank()
        array[0] = dist.get_rank()
        return tensor.to(torch.bfloat16), array

    for rank, (sent, numbers) in enumerate(ranks.run(change, tensor, array)):
        assert torch.equal(sent, (tensor + rank).to(torch.bfloat16))
        assert numbers[0] == rank and numbers[-1] == 99_999
        sent += 1
    assert tensor[0] == 0 and array[0] == 0  # the owner's are its own


def test_a_slice_travels_without_the_tensor_it_was_cut_from(ranks):
    slices = PerRank(list(torch.arange(8.0).chunk(4)))
    received = ranks.run(lambda x: (x.tolist(), x.untyped_storage().nbytes()), slices)
    assert received == [([2.0 * rank, 2.0 * rank + 1], 8) for rank in range(4)]  # 2 elements of 4 bytes


def test_a_module_survives_the_journey(ranks):
    layer = torch.nn.Linear(2, 1)

    def back(layer):
        layer(torch.ones(2)).backward()
        return layer, layer.weight.grad

    for returned, gradient in ranks.run(back, layer):
        assert torch.equal(returned.weight, layer.weight) and returned.weight.requires_grad
        assert torch.equal(gradient, torch.ones(1, 2))


def test_what_a_function_captures_is_measured(ranks):
    captured = np.zeros(17 << 20, dtype=np.uint8)
    with pytest.warns(UserWarning, match=r"17 MiB .*\(the largest: captured\).*put\(\)"):
        ranks.run(lambda: captured.nbytes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ranks.run(len, captured)


def test_output_is_shown_with_the_rank_it_comes_from(ranks, capsys):
    def speak():
        print("one\ntwo", end="")
        os.system("echo from a program >&2") if dist.get_rank() == 1 else None

    ranks.run(speak)
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert sorted(lines) == sorted(f"[rank {r}] {word}" for r in range(4) for word in ("one", "two"))
    assert shown.err == "[rank 1] from a program\n"


def test_a_started_run_can_be_waited_for_and_awaited(ranks):
    def slow(number):
        time.sleep(0.3)
        return number

    run = ranks.start(slow, 5)
    assert not run.done()
    with pytest.raises(RuntimeError, match="busy"):
        ranks.run(slow, 1)
    assert run.result() == [5] * 4 and run.done()

    async def two():
        return [await ranks.start(slow, 6), await ranks.start(slow, 7)]

    assert asyncio.run(two()) == [[6] * 4, [7] * 4]


def test_ranks_run_in_the_environment_that_records_copy(ranks):
    names = list(rank_environment())
    surroundings = lambda: ({name: os.environ[name] for name in names}, torch.get_num_threads())  # noqa: E731
    assert ranks.run(surroundings) == [(rank_environment(), 1)] * 4


def test_ranks_draw_different_numbers_from_numpy_and_the_same_from_torch(ranks):
    drawn = ranks.run(lambda: (np.random.random(), torch.initial_seed()))
    assert len({number for number, _ in drawn}) == 4
    assert len({seed for _, seed in drawn}) == 1


def test_a_pool_dropped_without_closing_leaves_no_open_descriptors():
    gc.collect()
    before = psutil.Process().num_fds()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        pool = Ranks(2)
        started = pool.pids
        del pool
        gc.collect()
    assert psutil.Process().num_fds() == before
    assert living(started) == []


def test_closing_a_pool_during_an_awaited_run_says_nothing():
    script = """
import asyncio, time
from workbench.launch import Ranks
ranks = Ranks(2)
async def close_early():
    task = asyncio.ensure_future(ranks.start(time.sleep, 60)._wait())
    await asyncio.sleep(0.3)
    task.cancel()
    await asyncio.sleep(0)
    ranks.close()
    await asyncio.sleep(0.3)
asyncio.run(close_early())
"""
    done = run_python("-c", script)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_writes_for_ever_delays_nothing_and_closing_leaves_no_process_and_refuses_further_calls():
    def write_for_ever():
        while True:
            os.write(1, b"again and again\n" * 1000)

    pool = Ranks(2, threads_per_rank=2, echo=False)
    start = time.monotonic()
    with pytest.raises(RankFailed, match="rank 0 did not answer within 1 s"):
        pool.run(write_for_ever, timeout_s=1.0)
    assert time.monotonic() - start < 60.0  # 1 s, up to 1 s for stacks, and a busy machine
    start = time.monotonic()
    pool.run(lambda: subprocess.Popen(["yes"]) and None)
    assert pool.run(torch.get_num_threads) == [2, 2]
    [fork_server] = {psutil.Process(pid).ppid() for pid in pool.pids}
    started = [psutil.Process(fork_server).ppid(), fork_server, *pool.pids]
    pool.close()
    assert time.monotonic() - start < 60.0
    assert living(started) == []
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        pool.run(os.getpid)


def test_threads_and_interface_are_those_asked_for():
    environment = rank_environment(3, "eth1")
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "3"
    assert environment["OPENBLAS_NUM_THREADS"] == "1"  # or NumPy would start threads before the fork
    assert environment["GLOO_SOCKET_IFNAME"] == "eth1"
    with pytest.raises(ValueError, match="threads_per_rank is 0; it must be at least 1"):
        rank_environment(0)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="settings of glibc")
def test_a_large_result_reuses_touched_memory():
    def page_faults(environment: dict[str, str]) -> int:
        return int(run_python("-c", FAULTS, env=environment).stdout)

    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    assert page_faults({**plain, **rank_environment()}) < 10
    assert page_faults(plain) >= 30  # 64 MiB are 32 huge pages, or 16384 pages of 4 KiB


@pytest.fixture
def wire():
    """The writing end of a pipe and the output that reads it."""
    reading_end, writing_end = os.pipe()
    output = RankOutput(3, reading_end, "stdout", echo=True)
    yield writing_end, output
    output.close()
    os.close(writing_end)


def test_a_line_that_never_ends_costs_a_moment_and_is_shown_in_pieces(wire, capsys):
    writing_end, output = wire
    writer = threading.Thread(target=lambda: [os.write(writing_end, b"x" * 4000) for _ in range(750)])
    start = time.process_time()
    writer.start()
    while writer.is_alive():
        output.pass_on()
    output.pass_on()
    output.finish_line()
    assert time.process_time() - start < 1.5  # seconds
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3  # 3 000 000 characters, cut after 1 MiB = 1 048 576 and at most one read more
    assert "".join(line.removeprefix("[rank 3] ") for line in lines) == "x" * 3_000_000
    assert all(len(line) >= MOST_CHARACTERS for line in lines[:2])


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ([b"one\r", b"\ntwo\r\n"], "[rank 3] one\r\n[rank 3] two\r\n"),
        ([b"1 %\r2", b" %\r3 %\r"], "[rank 3] 1 %\r[rank 3] 2 %\r[rank 3] 3 %\r"),
        ([b"a\n\nb\x0cc", b"\xc3", b"\xa9"], "[rank 3] a\n[rank 3] \n[rank 3] b\x0ccé\n"),
    ],
)
def test_a_line_has_one_prefix_wherever_reads_cut_it(wire, capsys, pieces, shown):
    writing_end, output = wire
    for piece in pieces:
        os.write(writing_end, piece)
        output.pass_on()
    output.finish_line()
    assert capsys.readouterr().out == shown


def test_one_call_passes_on_what_a_pipe_holds_and_no_more(wire, capsys):
    writing_end, output = wire
    os.write(writing_end, b"12345678\n" * 7000)  # 63 000 bytes, below the 65 536 of a pipe
    assert output.pass_on()
    assert capsys.readouterr().out.count("\n") == 7000
