"""Should I compress? The best plan beside FP16, by link and number of machines, and how sure the answer is."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.cluster import GIGABIT_BYTES_PER_S, Link, Machines
from workbench.compression.costs import CodecTimes, Processor
from workbench.compression.profiling import times_of
from workbench.models import h100
from workbench.study.rows import value_row

from .cost import Job
from .method.certificate import lower_bound_s
from .method.search import find_strategy, improve

__all__ = ["advice_rows", "begins_to_pay", "h100_codec", "h100_machines"]

GPUS_PER_MACHINE = 8
NVLINK_BYTES_PER_S = 450e9  # of a GPU, one direction: 18 links of 25 GB/s, NVIDIA's data sheet of the H100
INTRA_STARTUP_S, INTER_STARTUP_S = 10e-6, 50e-6  # orders of magnitude, not measured
PAYS = 1.05  # times as fast as FP16: a plan that gains less is not worth its trouble


def h100_codec(name: str) -> CodecTimes:
    """Return what a codec takes on an H100 and on a thread of its machine, as measured."""
    measured = h100.codec_times()
    return times_of(name, {Processor.GPU: measured[name, "cuda"], Processor.CPU: measured[name, "cpu"]})


def h100_machines(num_machines: int, gigabits_per_s: float) -> Machines:
    """Return machines of 8 H100, joined by a network of this rate."""
    intra = Link(bandwidth_bytes_per_s=NVLINK_BYTES_PER_S, latency_s=INTRA_STARTUP_S)
    inter = Link(bandwidth_bytes_per_s=gigabits_per_s * GIGABIT_BYTES_PER_S, latency_s=INTER_STARTUP_S)
    return Machines(num_machines=num_machines, gpus_per_machine=GPUS_PER_MACHINE, intra=intra, inter=inter)


def advice_rows(
    *, models: Sequence[str], codecs: Sequence[str], gigabits_per_s: Sequence[float], num_machines: Sequence[int]
) -> list[dict[str, Any]]:
    """Return how many times as fast as FP16 the best plan trains: at least, by the plan; at most, by the lower bound.

    `pays_below` is the rate of the network, in Gbit/s, below which the plan gains 5 %; 0 if it never does.
    """
    rows, casts = [], h100.codec_times()["fp16", "cuda"]
    for model in models:
        gradients = h100.load(model)
        mean = sum(gradients.num_elements) / gradients.num_tensors
        cast_s = float(np.interp(mean, [one.num_elements for one in casts], [one.encode_s for one in casts]))
        for machines in num_machines:
            best: dict[float, float] = {}
            for rate in gigabits_per_s:
                keys = {"model": model, "machines": machines, "gigabits_per_s": rate}
                jobs = {name: Job(gradients, h100_machines(machines, rate), h100_codec(name)) for name in codecs}
                found = {name: improve(job, find_strategy(job).strategy) for name, job in jobs.items()}
                codec = min(found, key=lambda name: found[name].iteration_s)
                half_s = jobs[codec].half_precision_s(cast_s)
                best[rate] = half_s / found[codec].iteration_s
                bound_s = min(lower_bound_s(job) for job in jobs.values())
                compressed = sum(option.is_compressed for option in found[codec].strategy)
                rows.append(value_row("gain", best[rate], codec=codec, **keys))
                rows.append(value_row("gain_at_most", half_s / bound_s, **keys))
                rows.append(value_row("compressed_tensors", compressed, codec=codec, **keys))
                rows.append(value_row("fp16_scaling", (gradients.forward_s + gradients.backward_s) / half_s, **keys))
            rows.append(value_row("pays_below", begins_to_pay(best), "Gbit/s", model=model, machines=machines))
    return rows


def begins_to_pay(gains: dict[float, float]) -> float:
    """Return the rate below which the gain over FP16 is at least `PAYS`, on a line through the logarithms of rates."""
    rates = sorted(gains)
    paying = [rate for rate in rates if gains[rate] >= PAYS]
    if not paying or paying[-1] == rates[-1]:
        return paying[-1] if paying else 0.0
    last, after = paying[-1], rates[rates.index(paying[-1]) + 1]
    share = (gains[last] - PAYS) / (gains[last] - gains[after])
    return float(last * (after / last) ** share)
