"""Launch: ranks start within 1.5 s and an empty call takes 2 ms at most.

The best of several is judged, because other processes can only add to it; the median is shown. Other tools are timed in
bench_four_ways_to_fail.
"""

import time
from collections.abc import Sequence
from statistics import median

from workbench.launch import Ranks
from workbench.study.measuring import Benchmark, BenchmarkRow

NUM_RANKS = 4
NUM_STARTS = 5
NUM_CALLS = 300
ASKED_START_S = 1.5
ASKED_CALL_S = 2e-3


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


def starts() -> list[BenchmarkRow]:
    times = [start_of_ranks_s() for _ in range(NUM_STARTS)]
    return asked_rows(f"{NUM_RANKS} ranks ready, Ranks", times, ASKED_START_S)


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
