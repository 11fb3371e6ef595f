"""Ranks on this machine: values, arguments, tensors, output, and what they refuse."""

import asyncio
import gc
import os
import subprocess
import sys
import time
import warnings

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from processes_seen import living

from workbench.launch import PerRank, Ranks, rank_environment

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def ranks():
    with Ranks(4) as pool:
        yield pool


def rank_times_ten(number: int, *, plus: int = 0) -> int:
    return 10 * dist.get_rank() + number + plus


def test_values_come_back_in_rank_order(ranks):
    assert ranks.run(rank_times_ten, 1, plus=2) == [3, 13, 23, 33]


def test_the_process_group_sums_over_all_ranks(ranks):
    def total():
        x = torch.tensor([float(dist.get_rank() + 1)])
        dist.all_reduce(x)
        return x.item()

    assert ranks.run(total) == [10.0] * 4  # 1 + 2 + 3 + 4


def test_a_smaller_group_can_be_made_later(ranks):
    def total_of_pair():
        pair = dist.new_group([1, 3])
        x = torch.tensor([float(dist.get_rank())])
        if dist.get_rank() in (1, 3):
            dist.all_reduce(x, group=pair)
        return x.item()

    assert ranks.run(total_of_pair) == [0.0, 4.0, 2.0, 4.0]


def test_every_rank_gets_its_own_argument(ranks):
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


def test_tensors_that_share_memory_still_share_it_on_the_ranks(ranks):
    whole = torch.zeros(50_000)

    def write(parts):
        whole, view = parts
        view.fill_(2.0)
        return whole.sum().item()

    assert ranks.run(write, (whole, whole[:10])) == [20.0] * 4


def test_a_slice_travels_without_the_tensor_it_was_cut_from(ranks):
    slices = PerRank(list(torch.arange(8.0).chunk(4)))
    assert ranks.run(lambda x: (x.tolist(), x.untyped_storage().nbytes()), slices) == [
        ([0.0, 1.0], 8),
        ([2.0, 3.0], 8),
        ([4.0, 5.0], 8),
        ([6.0, 7.0], 8),
    ]  # 2 elements of 4 bytes


def test_modules_and_empty_tensors_survive_the_journey(ranks):
    layer = torch.nn.Linear(2, 1)
    layer.extra = torch.empty(0, 3)

    def back(layer):
        layer(torch.ones(2)).backward()
        return layer, layer.weight.grad

    for returned, gradient in ranks.run(back, layer):
        assert torch.equal(returned.weight, layer.weight) and returned.weight.requires_grad
        assert torch.equal(gradient, torch.ones(1, 2))
        assert returned.extra.shape == (0, 3)


def test_large_results_leave_no_open_descriptors(ranks):
    ranks.run(torch.zeros, 100_000)
    before = psutil.Process().num_fds()
    results = [ranks.run(torch.zeros, 100_000) for _ in range(5)]
    assert psutil.Process().num_fds() == before
    assert len(results) == 5


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
    own = lambda: ({name: os.environ[name] for name in names}, torch.get_num_threads())  # noqa: E731
    assert ranks.run(own) == [(rank_environment(), 1)] * 4


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


def test_closing_a_pool_during_an_awaited_run_says_nothing(capfd):
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
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")


def test_closing_leaves_no_process_and_refuses_further_calls():
    pool = Ranks(2, threads_per_rank=2)
    assert pool.run(torch.get_num_threads) == [2, 2]
    [nursery] = {psutil.Process(pid).ppid() for pid in pool.pids}
    started = [psutil.Process(nursery).ppid(), nursery, *pool.pids]
    pool.close()
    assert living(started) == []
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        pool.run(os.getpid)
