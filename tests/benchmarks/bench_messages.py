"""Two ranks at 1 Gbit/s send each other 2 MB: the time over what one direction of the link needs."""

import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist

from workbench.cluster import GIGABIT_BYTES_PER_S, Link
from workbench.launch import Ranks, ShapedHosts
from workbench.parallel.messages import all_to_all
from workbench.study.measuring import Benchmark, BenchmarkRow

NUM_BYTES, ROUNDS = 2_000_000, 9
MOST_OVER_BYTES = 1.3


def both_ways() -> list[BenchmarkRow]:
    def swap_s() -> dict[str, float]:  # inside, because ranks cannot import this file by its name
        sent, arrived = torch.zeros(2, NUM_BYTES, dtype=torch.uint8), torch.zeros(2, NUM_BYTES, dtype=torch.uint8)
        ways: dict[str, Callable[[], object]] = {
            "messages of parallel": lambda: all_to_all([*arrived], [*sent], group=None),
            "torch's all_to_all_single": lambda: dist.all_to_all_single(arrived, sent),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, swap in ways.items():
                dist.barrier()
                began_s = time.perf_counter()
                swap()
                times[name].append(time.perf_counter() - began_s)
        return {name: median(seconds) for name, seconds in times.items()}

    with Ranks(2, hosts=ShapedHosts(2, link=Link(bandwidth_bytes_per_s=GIGABIT_BYTES_PER_S, source="chosen"))) as ranks:
        ours, torchs = ranks.run(swap_s)[0].items()
    over = ours[1] * GIGABIT_BYTES_PER_S / NUM_BYTES
    asked = {"asked": f"at most {MOST_OVER_BYTES:g}", "holds": over <= MOST_OVER_BYTES}
    of_torch = BenchmarkRow(name=torchs[0], figure=torchs[1] * GIGABIT_BYTES_PER_S / NUM_BYTES, unit="x")
    return [BenchmarkRow(name=ours[0], figure=over, unit="x", **asked), of_torch]


BENCHMARKS = [
    Benchmark(name="messages-both-ways", asks="A link carries messages in both directions at once.", run=both_ways)
]
