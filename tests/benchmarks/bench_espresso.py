"""Espresso: one evaluation of F for ResNet101's 314 gradients; the searches are timed by items.

The gradients are those of the authors' release where it is, else drawn ones of as many tensors; names say which.
"""

import time
from statistics import median

import numpy as np

from workbench.cluster.machines import Link, Machines
from workbench.compression.costs import CodecTimes, Processor
from workbench.datasets.places import DataError
from workbench.study.measuring import Benchmark, BenchmarkRow
from workbench.techniques.espresso.measured import searched_job
from workbench.techniques.espresso.method.baselines import BASELINES
from workbench.techniques.espresso.method.job import Job
from workbench.timeline.gradients import Gradients

NUM_TENSORS = 314
RUNS = 7
EVALUATED_S = 20e-6  # most that is asked


def drawn_job() -> Job:
    """Return a job of as many gradients as ResNet101's, on 8 machines of 8 GPUs."""
    draw = np.random.default_rng(0)
    sizes = [int(size) for size in draw.choice([256, 1024, 262_144, 589_824, 2_359_296], NUM_TENSORS)]
    names = tuple(f"t{number}" for number in range(NUM_TENSORS))
    gap_s = tuple(draw.uniform(0, 8e-4, NUM_TENSORS))
    gradients = Gradients(
        name="drawn", tensors=names, num_elements=tuple(sizes), gap_s=gap_s, forward_s=0.06, source="drawn"
    )
    intra, inter = Link(bandwidth_bytes_per_s=1e11), Link(bandwidth_bytes_per_s=1.25e10, latency_s=2e-5)
    machines = Machines(num_machines=8, gpus_per_machine=8, intra=intra, inter=inter)

    def seconds(factor: float) -> dict:
        return {Processor.GPU: lambda n: 1e-4 + 1e-10 * n, Processor.CPU: lambda n: 1e-4 + factor * n}

    codec = CodecTimes(name="drawn", encode_s=seconds(2e-9), decode_s=seconds(1e-9), sent_bytes=0.125)
    return Job(gradients, machines, codec)


def job() -> Job:
    try:
        return searched_job("resnet101", "pcie")
    except DataError:
        return drawn_job()


def median_s(call) -> float:
    """Return the median seconds of some calls, after one that compiles."""
    call()
    seconds = []
    for _ in range(RUNS):
        began_s = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began_s)
    return median(seconds)


def evaluations() -> list[BenchmarkRow]:
    """Time F after the change of one gradient, over all gradients; no limit lets it stop early."""
    of = job()
    sizes, option = of.gradients.num_elements, BASELINES["hipress"].option
    queues = of.queues([of.uncompressed] * len(sizes))
    changes = [of.packed([option], [size]) for size in sizes]
    seconds = median_s(lambda: [queues.best_chain(tensor, chain) for tensor, chain in enumerate(changes)]) / len(sizes)
    name = f"F after a change, mean over {len(sizes)} gradients, {of.gradients.name}"
    return [BenchmarkRow.of_seconds(name, seconds, EVALUATED_S)]


BENCHMARKS = [
    Benchmark(name="espresso-evaluation", asks="How long does F take after a change of one gradient?", run=evaluations)
]
