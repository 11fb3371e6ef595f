"""SDPipe: signals a second of the scheduler, and runs simulated with it; its iterations on ranks are an item."""

import random
import time

from workbench.study.measuring import Benchmark, BenchmarkRow
from workbench.techniques.sdpipe.cost import Cluster, Workload, drawn_delays_s, simulate
from workbench.techniques.sdpipe.method import Scheduler

NUM_SIGNALS = 100_000
LEAST_RATE = 50_000  # signals/s
WORKLOAD = Workload(num_stages=4, num_micro_batches=4, forward_s=0.01, backward_s=0.02, stage_bytes=25e6)
DELAY_S = 0.3


def signals() -> list[BenchmarkRow]:
    """Let free workers signal in random order, without a window and with one."""
    rows = []
    for num_pipelines, window_s in ((4, 0.0), (16, 0.0), (16, 0.01), (1024, 0.01)):
        scheduler, draw = Scheduler(4, num_pipelines, 10, window_s), random.Random(0)
        free, now_s, sent, began_s = [(s, w) for s in range(4) for w in range(num_pipelines)], 0.0, 0, time.monotonic()
        while sent < NUM_SIGNALS:
            if free:
                place = draw.randrange(len(free))
                free[place], free[-1] = free[-1], free[place]
                formed, sent = scheduler.signal(*free.pop(), now_s), sent + 1
            else:
                now_s = scheduler.next_deadline_s()
                formed = scheduler.expire(now_s)
            now_s += 0.004 / num_pipelines
            free += [(group.stage, worker) for group in formed for worker in group.members]
        rate = sent / (time.monotonic() - began_s)
        asked = {"asked": f"at least {LEAST_RATE:,}", "holds": rate >= LEAST_RATE}
        rows.append(BenchmarkRow(name=f"4 x {num_pipelines}, T = {window_s:g} s", figure=rate, unit="1/s", **asked))
    return rows


def simulations() -> list[BenchmarkRow]:
    """Simulate a thousand iterations."""
    rows = []
    for num_pipelines, most_s in ((16, 1.0), (1024, 60.0)):
        delays_s = drawn_delays_s(1000, 4, num_pipelines, delay_s=DELAY_S)
        began_s = time.monotonic()
        simulate("SDPipe", WORKLOAD, Cluster(), delays_s)
        name = f"{4 * num_pipelines:,} workers, 1,000 iterations"
        rows.append(BenchmarkRow.of_seconds(name, time.monotonic() - began_s, most_s))
    return rows


BENCHMARKS = [
    Benchmark(name="sdpipe-signals", asks="Ready signals a second.", run=signals),
    Benchmark(name="sdpipe-simulations", asks="Seconds of a simulated run, the scheduler included.", run=simulations),
]
