"""Launch: ranks start within 1.5 s and an empty call takes 2 ms at most.

Beside them torch.multiprocessing's spawn and an ipyparallel cluster, timed until four ranks have formed a gloo group
and summed a number. The best of several is judged, because other processes can only add to it; the median is shown.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from workbench.launch import Ranks
from workbench.study.measuring import Benchmark, BenchmarkRow

NUM_RANKS = 4
NUM_STARTS = 5
NUM_CALLS = 300
ASKED_START_S = 1.5
ASKED_CALL_S = 2e-3
TIMEOUT_S = 120

# Spawned processes import the file they come from, so it must be one.
SPAWN = """
import tempfile, time
import torch, torch.distributed as dist, torch.multiprocessing as mp

def rank(number, num_ranks, path):
    store = dist.FileStore(path, num_ranks)
    dist.init_process_group("gloo", store=store, rank=number, world_size=num_ranks)
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        mp.spawn(rank, args=(4, folder + "/store"), nprocs=4)
        print(time.perf_counter() - start)
"""
CLUSTER = """
import time
import ipyparallel, torch
from workbench.launch import IPyParallelRanks

def total():
    import torch, torch.distributed as dist
    dist.all_reduce(torch.ones(1))

start = time.perf_counter()
with ipyparallel.Cluster(n=4, log_level=40) as client:
    ranks = IPyParallelRanks(client)
    ranks.run(total)
    print(time.perf_counter() - start)
"""


def start_of_ranks_s() -> float:
    """Return the seconds until a new pool has made its first collective."""

    def total() -> None:  # inside, because ranks cannot import this file by its name
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.ones(1))

    start = time.perf_counter()
    with Ranks(NUM_RANKS) as ranks:
        ranks.run(total)
        return time.perf_counter() - start


def start_of_script_s(script: str) -> float:
    """Return the seconds that a script prints."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "start.py"
        path.write_text(script)
        command = [sys.executable, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    return float(done.stdout.split()[-1])


def starts() -> list[BenchmarkRow]:
    ways = {
        "Ranks": start_of_ranks_s,
        "torch.multiprocessing spawn": lambda: start_of_script_s(SPAWN),
        "ipyparallel cluster": lambda: start_of_script_s(CLUSTER),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(NUM_STARTS):
        for name, way in ways.items():
            times[name].append(way())
    rows = asked_rows(f"{NUM_RANKS} ranks ready, Ranks", times["Ranks"], ASKED_START_S)
    for name in list(ways)[1:]:
        median_s = median(times[name])
        rows.append(BenchmarkRow(name=f"{NUM_RANKS} ranks ready, {name}, median", figure=median_s, unit="s"))
        ratio = median_s / median(times["Ranks"])
        rows.append(BenchmarkRow(name=f"{name} over Ranks, medians", figure=ratio, unit="x"))
    return rows


def empty_calls() -> list[BenchmarkRow]:
    times = []
    with Ranks(NUM_RANKS) as ranks:
        for _ in range(NUM_CALLS):
            start = time.perf_counter()
            ranks.run(int)
            times.append(time.perf_counter() - start)
    return asked_rows(f"empty call on {NUM_RANKS} warm ranks", times, ASKED_CALL_S)


def asked_rows(name: str, times: Sequence[float], most_s: float) -> list[BenchmarkRow]:
    """Make a row of the best time, of which something is asked, and one of the median."""
    best = min(times)
    return [
        BenchmarkRow.of_seconds(f"{name}, best", best, most_s),
        BenchmarkRow(name=f"{name}, median", figure=median(times), unit="s"),
    ]


BENCHMARKS = (
    Benchmark(name="launch-start", asks=f"{NUM_RANKS} ranks are ready within {ASKED_START_S} s", run=starts),
    Benchmark(name="launch-empty-call", asks=f"an empty call takes at most {ASKED_CALL_S * 1e3:g} ms", run=empty_calls),
)
