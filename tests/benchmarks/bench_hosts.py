"""Benchmark of shaped hosts: the bandwidth that gloo reaches on them, as a share of the closed form's.

Several ranks share this machine's cores, so a share below 1 has two reasons: packet headers (0.7 % at an MTU of
9000 bytes), and, from several Gbit/s on, the processor, which copies every byte several times.
"""

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import cloudpickle
import torch
import torch.distributed as dist

from workbench.cluster import Backend, Collective, Link, Sample, algorithm_of, collective_time_s, fit
from workbench.launch import Ranks, ShapedHosts
from workbench.rows import median_interval
from workbench.study.measuring import Benchmark, BenchmarkRow

# Ranks cannot import this file by its name.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

NUM_HOSTS = 4
MESSAGE_BYTES = 16_000_000
ASKED_SHARE = 0.9
SCRIPT_WITHOUT_ROOT = Path(__file__).parents[1] / "launch" / "shaped_all_reduce.py"


def times_s(collective: Collective, message_bytes: int, num_times: int = 8) -> list[float]:
    """Return the seconds of a collective on this rank, each from barrier to barrier."""
    x = torch.ones(message_bytes // 4)
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())] if collective is Collective.ALL_GATHER else []
    out = torch.empty_like(x)
    run = {
        Collective.ALL_REDUCE: lambda: dist.all_reduce(x),
        Collective.ALL_GATHER: lambda: dist.all_gather(parts, x),
        Collective.REDUCE_SCATTER: lambda: dist.reduce_scatter_single(out[: len(x) // dist.get_world_size()], x),
        Collective.BROADCAST: lambda: dist.broadcast(x, 0),
        Collective.ALL_TO_ALL: lambda: dist.all_to_all_single(out, x),
        Collective.SEND: lambda: {0: lambda: dist.send(x, 1), 1: lambda: dist.recv(x, 0)}[dist.get_rank()](),
    }[collective]
    times = []
    for _ in range(num_times):
        dist.barrier()
        start = time.perf_counter()
        run()
        dist.barrier()
        times.append(time.perf_counter() - start)
    return times


def share_row(name: str, closed_form_s: float, times: list[float], *, asked: bool = False) -> BenchmarkRow:
    """Make a row of the closed form's time over the measured one."""
    shares = [closed_form_s / seconds for seconds in times]
    low, high = median_interval(shares)
    share = {"name": name, "figure": median(shares), "unit": "x", "low": low, "high": high}
    if asked:
        share |= {"asked": f"at least {ASKED_SHARE}", "holds": share["figure"] >= ASKED_SHARE}
    return BenchmarkRow(**share)


def closed_form_s(collective: Collective, link: Link, message_bytes: int = MESSAGE_BYTES) -> float:
    """Return the closed form of gloo's algorithm, without latency: that is what bandwidth is asked about."""
    bare = Link(bandwidth_bytes_per_s=link.bandwidth_bytes_per_s, source=link.source)
    return collective_time_s(collective, algorithm_of(Backend.GLOO, collective), NUM_HOSTS, message_bytes, bare)


def all_reduce() -> list[BenchmarkRow]:
    """Measure the all-reduce at 1 and 10 Gbit/s, and at 1 Gbit/s without root."""
    rows = []
    for link, name, asked in ((Link.gigabit(), "1 Gbit/s", True), (Link.ten_gigabit(), "10 Gbit/s", False)):
        with Ranks(NUM_HOSTS, hosts=ShapedHosts(NUM_HOSTS, link)) as ranks:
            times = ranks.run(times_s, Collective.ALL_REDUCE, MESSAGE_BYTES)[0]
        title = f"16 MB all-reduce, 4 hosts, {name}: share of closed form"
        rows.append(share_row(title, closed_form_s(Collective.ALL_REDUCE, link), times, asked=asked))
    return [*rows, _without_root()]


def _without_root() -> BenchmarkRow:
    command = [sys.executable, str(SCRIPT_WITHOUT_ROOT), str(MESSAGE_BYTES), "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    times = [float(seconds) for seconds in done.stdout.split()[2:]]
    closed = closed_form_s(Collective.ALL_REDUCE, Link.gigabit())
    return share_row("16 MB all-reduce, 4 hosts, 1 Gbit/s, no root: share", closed, times, asked=True)


def collectives() -> list[BenchmarkRow]:
    rows, link, message_bytes = [], Link.gigabit(), 4_000_000
    others = [what for what in Collective if what not in (Collective.ALL_REDUCE, Collective.SEND)]
    with Ranks(NUM_HOSTS, hosts=ShapedHosts(NUM_HOSTS, link)) as ranks:
        for collective in others:
            times = ranks.run(times_s, collective, message_bytes)[0]
            name = f"4 MB {collective.value}, 4 hosts, 1 Gbit/s: share of closed form"
            rows.append(share_row(name, closed_form_s(collective, link, message_bytes), times))
    return rows


def link_fit() -> list[BenchmarkRow]:
    link = Link.gigabit()
    with Ranks(2, hosts=ShapedHosts(2, link)) as ranks:
        samples = [
            Sample(message_bytes=size, time_s=time_s)
            for size in (4_000, 400_000, 4_000_000)
            for time_s in ranks.run(times_s, Collective.SEND, size)[0]
        ]
    found = fit(samples)
    share = found.bandwidth_bytes_per_s / link.bandwidth_bytes_per_s
    return [
        BenchmarkRow(name="bandwidth fitted to sends at 1 Gbit/s: share of nominal", figure=share, unit="x"),
        BenchmarkRow(name="latency fitted to sends, with a barrier", figure=found.latency_s, unit="s"),
    ]


BENCHMARKS = [
    Benchmark(name="hosts-all-reduce", asks="Bandwidth of a 16 MB all-reduce on shaped hosts.", run=all_reduce),
    Benchmark(name="hosts-collectives", asks="Time of gloo's other collectives on shaped hosts.", run=collectives),
    Benchmark(name="hosts-fit", asks="The link that measured sends amount to.", run=link_fit),
]
