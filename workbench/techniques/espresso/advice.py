"""Should I compress? The best plan compared with FP32 and FP16, by network, and its distance from the optimum."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from workbench.cluster import Link, Machines
from workbench.compression.costs import CodecTimes, Processor
from workbench.models import h100
from workbench.rows import value_row
from workbench.study.sensitivity import sensitivity_rows
from workbench.study.thesis import scaled
from workbench.timeline.gradients import Gradients

from .cost import WHOLE, job_of
from .method.baselines import BASELINES
from .method.certificate import best_by_exhaustion, lower_bound_s
from .method.job import Job
from .method.search import brute_force, compress_on_gpus, find_strategy, improve, offload
from .planning import PAYS

__all__ = ["MEASURED_ON", "advice_rows", "begins_to_pay", "certificate_rows", "input_rows", "lemma_rows", "shortened"]

WORSE = 1e-6  # per cent; a larger difference is more than rounding
MEASURED_ON = MappingProxyType({"source": "gradients and codecs measured on an H100 (models.h100); start-ups assumed"})


def advice_rows(
    *, models: Sequence[str], codecs: Sequence[str], gigabits_per_s: Sequence[float], num_machines: Sequence[int]
) -> list[dict[str, Any]]:
    """Return the speedup of the best plan over no compression, and its upper bound.

    Without compression the faster of FP32 and FP16 is sent; on a fast network the casts cost more than they save.

    `pays_below` is the network rate, in Gbit/s, below which the plan gains 5 %; 0 if it never does.
    """
    rows, casts = [], h100.codec_times()["fp16", "cuda"]
    for model in models:
        gradients = h100.load(model)
        mean = sum(gradients.num_elements) / gradients.num_tensors
        cast_s = float(np.interp(mean, [cast.num_elements for cast in casts], [cast.encode_s for cast in casts]))
        for machines in num_machines:
            best: dict[float, float] = {}
            for rate in gigabits_per_s:
                keys = {"model": model, "machines": machines, "gigabits_per_s": rate}
                jobs = {name: Job(gradients, h100.machines(machines, rate), h100.codec(name)) for name in codecs}
                improved = {name: improve(job, find_strategy(job).strategy) for name, job in jobs.items()}
                codec = min(improved, key=lambda name: improved[name].iteration_s)
                plain = [jobs[codec].uncompressed] * gradients.num_tensors
                plain_s = min(jobs[codec].half_precision_s(cast_s), jobs[codec].iteration_s(plain))
                best[rate] = plain_s / improved[codec].iteration_s
                bound_s = min(lower_bound_s(job) for job in jobs.values())
                compressed = sum(option.is_compressed for option in improved[codec].strategy)
                rows.append(value_row("gain", best[rate], codec=codec, **keys))
                rows.append(value_row("gain_at_most", plain_s / bound_s, **keys))
                rows.append(value_row("compressed_tensors", compressed, codec=codec, **keys))
                rows.append(value_row("plain_scaling", (gradients.forward_s + gradients.backward_s) / plain_s, **keys))
            rows.append(value_row("pays_below", begins_to_pay(best), "Gbit/s", model=model, machines=machines))
    return rows


def begins_to_pay(gains: dict[float, float]) -> float:
    """Return the rate up to which the gain is at least `PAYS`, interpolated over the logarithms of rates.

    Return the largest rate if all rates pay, and 0 if the smallest does not.
    """
    last = 0.0
    for rate in sorted(gains):
        if gains[rate] < PAYS:
            share = (gains[last] - PAYS) / (gains[last] - gains[rate]) if last else 0.0
            return float(last * (rate / last) ** share) if last else 0.0
        last = rate
    return float(last)


def certificate_rows(*, models: Sequence[str], num_gpus: int) -> list[dict[str, Any]]:
    """Return the distance in % of algorithm 4.1, our further passes and the bound from the optimum of small jobs.

    A job has the three largest gradients of a released model. The optimum tries all options on GPUs.
    """
    rows = []
    for model in models:
        whole = job_of(model, num_gpus)
        gradients = shortened(whole.gradients)
        options = [whole.uncompressed, *(o for o in whole.options if o.processors == {Processor.GPU})]
        job = Job(gradients, whole.machines, whole.codec, options)
        _, optimum_s = best_by_exhaustion(job, options)
        on_gpus = compress_on_gpus(job)
        times_s = {"Espresso": on_gpus.iteration_s, "Espresso, improved": improve(job, on_gpus.strategy).iteration_s}
        for scheme, time_s in times_s.items():
            rows.append(value_row("above_optimum", 100 * (time_s / optimum_s - 1), "%", scheme=scheme, model=model))
        rows.append(value_row("bound_below_optimum", 100 * (1 - lower_bound_s(job) / optimum_s), "%", model=model))
        rows.append(value_row("strategies", len(options) ** gradients.num_tensors, model=model))
    return rows


INPUTS = ("computation", "link between machines", "links inside machines", "start-ups", "codec")


def input_rows(gains: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return how a model's gain over FP32 on 64 GPUs hangs on each input, and what would have to be true.

    Inputs are factors: of the times of computation, of both links' rates, of the start-ups and of the codec's times.

    Args:
        gains: the paper's gain by model.
    """
    rows = []
    for model, gain in gains.items():
        rows += sensitivity_rows(partial(_gain, job_of(model, WHOLE)), dict.fromkeys(INPUTS, 1.0), gain, model=model)
    return rows


def _gain(job: Job, **factors: float) -> float:
    """Return the gain over FP32 with each input multiplied by its factor."""
    computation, between, inside, startups, codec = (factors[name] for name in INPUTS)

    def link(of: Link, rate: float) -> Link:
        seconds = of.latency_s * startups
        return replace(of, bandwidth_bytes_per_s=of.bandwidth_bytes_per_s * rate, latency_s=seconds)

    def times(table: Mapping[Processor, Any]) -> dict[Processor, Any]:
        return {name: partial(_times, taken_s, codec) for name, taken_s in table.items()}

    intra, inter = link(job.machines.intra, inside), link(job.machines.inter, between)
    coded = replace(job.codec, encode_s=times(job.codec.encode_s), decode_s=times(job.codec.decode_s))
    changed = Job(scaled(job.gradients, computation), replace(job.machines, intra=intra, inter=inter), coded)
    plain_s = changed.iteration_s([changed.uncompressed] * job.gradients.num_tensors)
    return plain_s / find_strategy(changed).iteration_s


def _times(taken_s: Callable[[np.ndarray], np.ndarray], factor: float, elements: np.ndarray) -> np.ndarray:
    return factor * taken_s(elements)


def shortened(gradients: Gradients) -> Gradients:
    """Return the three largest gradients; the gap of each includes the gaps of the gradients dropped before it."""
    sizes, ready_s = gradients.num_elements, np.cumsum(gradients.gap_s)
    kept = sorted(sorted(range(len(sizes)), key=lambda tensor: -sizes[tensor])[:3])
    gaps = np.diff(ready_s[kept], prepend=0.0)
    return replace(
        gradients,
        tensors=tuple(gradients.tensors[i] for i in kept),
        num_elements=tuple(sizes[i] for i in kept),
        gap_s=tuple(gaps.tolist()),
        source=f"three gradients of {gradients.source}",
    )


SLOW_LINK = Link(bandwidth_bytes_per_s=1e8, latency_s=1e-4)


def lemma_rows(num_jobs: int, link: Link = SLOW_LINK) -> list[dict[str, Any]]:
    """Return the largest excess of algorithm 4.2 over the best offloading of six equal gradients, in %, and how often.

    Jobs have random gaps of up to 3 ms on 2 x 2 GPUs; a CPU takes four times as long as a GPU. `link` is the network.
    """
    draw, above = np.random.default_rng(0), []
    intra = Link(bandwidth_bytes_per_s=1e10)
    machines = Machines(num_machines=2, gpus_per_machine=2, intra=intra, inter=link)
    times = {p: partial(np.multiply, factor * 1e-9) for p, factor in ((Processor.GPU, 1), (Processor.CPU, 4))}
    codec = CodecTimes(name="drawn", encode_s=times, decode_s=times, sent_bytes=0.08)
    six = partial(
        Gradients, tensors=tuple("abcdef"), num_elements=(10**6,) * 6, forward_s=0.0, name="equal", source="drawn"
    )
    for _ in range(num_jobs):
        job = Job(six(gap_s=tuple(draw.uniform(0, 3e-3, 6))), machines, codec)
        on_gpus = [BASELINES["hitopkcomm"].option] * 6
        above.append(100 * (offload(job, on_gpus).iteration_s / brute_force(job, on_gpus, range(6))[1] - 1))
    share = 100 * sum(value > WORSE for value in above) / num_jobs
    return [value_row("offloading_above_best", max(above), "%"), value_row("offloading_worse", share, "%")]
