"""The paper's jobs: released gradients and codec times, on the two clusters, calibrated on FP32's scaling factors.

No network reaches its nominal rate. Where the text says FP32's scaling factor on 64 GPUs, the network has the rate that
gives it with the released lengths of computation; what Espresso gains is then predicted. Other models have the largest
such rate of their testbed. No rate gives LSTM's factor, because its links inside machines alone take longer: its
computation is scaled instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

import numpy as np

from workbench.cluster.fitting import bisected
from workbench.cluster.machines import GIGABIT_BYTES_PER_S
from workbench.compression.costs import CodecTimes, Processor
from workbench.datasets import gradient_traces
from workbench.study.thesis import paper_codec, paper_machines, scaled
from workbench.timeline.gradients import Gradients

from .method.job import CPU, FP32_BYTES, Job, Step
from .method.options import Option

__all__ = ["AS_MODELLED", "SCALING", "WHOLE", "Change", "in_pieces", "job_of", "scaling_factor", "whole_sizes"]


WHOLE = 64  # GPUs


SCALING = MappingProxyType({"bert_base": 0.51, "gpt2": 0.58, "lstm": 0.46, "resnet101": 0.70})  # table 4.1, 4.8.4
RATED = ("bert_base", "gpt2", "resnet101")  # models whose factor some rate of the network gives


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One thing in which a job differs from the model: an intervention that tests a cause."""

    decodes_each_message: bool = False
    cpu_gigabits_per_s: float = 0.0  # of gradients that a machine's CPUs compress and decompress; 0: times by size
    has_two_cpus: bool = False  # that compress at the same time, each for another GPU
    piece_bytes: int = 0  # tensors are cut into pieces of so many bytes at most; 0: whole
    inside_gigabits_per_s: float = 0.0  # rate of PCIe inside machines; 0: that of the authors' planner
    between_gigabits_per_s: float = 0.0  # rate of the network; 0: calibrated
    computation: float = 1.0  # factor on all computing times


AS_MODELLED = Change()


def job_of(
    model: str,
    num_gpus: int,
    algorithm: str = "",
    *,
    testbed: str = "",
    is_calibrated: bool = True,
    change: Change = AS_MODELLED,
) -> Job:
    """Return a job of the paper; by default with the codec and on the testbed that its authors' scripts name."""
    settings = gradient_traces.experiment_settings()[model]
    testbed = testbed or settings.testbed
    rate, scale = _calibrated(model, testbed, change) if is_calibrated else (0.0, 1.0)
    rate = change.between_gigabits_per_s * GIGABIT_BYTES_PER_S or rate
    return _job(model, num_gpus, algorithm or settings.algorithm, testbed, change, rate, scale)


def _job(model: str, num_gpus: int, algorithm: str, testbed: str, change: Change, rate: float, scale: float) -> Job:
    """Return a job at a rate of the network in bytes per second, or 0 for its nominal rate."""
    machines, gradients = paper_machines(testbed, num_gpus), gradient_traces.load(model)
    if rate:
        machines = replace(machines, inter=replace(machines.inter, bandwidth_bytes_per_s=rate))
    if testbed == "pcie" and (inside := change.inside_gigabits_per_s * GIGABIT_BYTES_PER_S):
        machines = replace(machines, intra=replace(machines.intra, bandwidth_bytes_per_s=inside))
    scale *= change.computation
    gradients = gradients if scale == 1 else scaled(gradients, scale)
    kind = _TwoCpus if change.has_two_cpus else Job
    return kind(in_pieces(gradients, change.piece_bytes), machines, _codec(algorithm, change))


class _TwoCpus(Job):
    """A job on machines with two CPUs that compress at the same time, each for another GPU."""

    def _taken_s(self, step: Step, num_elements: np.ndarray) -> np.ndarray:
        if step.resource == CPU:
            step = replace(step, times=max(step.copies, step.times / 2))
        return super()._taken_s(step, num_elements)


def _codec(algorithm: str, change: Change) -> CodecTimes:
    codec = replace(paper_codec(algorithm), decodes_at_once=not change.decodes_each_message)
    if not change.cpu_gigabits_per_s:
        return codec
    s_per_element = FP32_BYTES / (change.cpu_gigabits_per_s * GIGABIT_BYTES_PER_S)
    on_cpu = {Processor.CPU: lambda elements: s_per_element * np.asarray(elements, float)}
    nothing = {Processor.CPU: np.zeros_like}  # the rate is of the whole path
    return replace(codec, encode_s={**codec.encode_s, **on_cpu}, decode_s={**codec.decode_s, **nothing})


@cache
def _calibrated(model: str, testbed: str, change: Change) -> tuple[float, float]:
    """Return the network's rate in bytes per second, or 0 for nominal, and the factor on a model's computing times."""
    settings = gradient_traces.experiment_settings()
    tested_on = settings[model].testbed

    def is_slow(rate: float, scale: float) -> bool:
        job = _job(model, WHOLE, settings[model].algorithm, tested_on, change, rate, scale)
        return scaling_factor(job) < SCALING[model]

    if model in RATED and testbed == tested_on:
        nominal = paper_machines(testbed, WHOLE).inter.bandwidth_bytes_per_s
        return bisected(lambda rate: is_slow(rate, 1.0), nominal / 100, nominal, 40), 1.0
    rate = max(_calibrated(rated, testbed, change)[0] for rated in RATED if settings[rated].testbed == testbed)
    if model not in SCALING or model in RATED:
        return rate, 1.0
    if testbed != tested_on:
        return rate, _calibrated(model, tested_on, change)[1]
    return rate, bisected(lambda scale: is_slow(rate, scale), 0.01, 10.0, 40)


def scaling_factor(job: Job, strategy: Sequence[Option] | None = None) -> float:
    """Return the throughput of one GPU of many over that of a GPU alone; without a strategy, FP32's (section 4.2.1)."""
    alone_s = job.gradients.forward_s + job.gradients.backward_s
    return alone_s / job.iteration_s(strategy or [job.uncompressed] * job.gradients.num_tensors)


def in_pieces(gradients: Gradients, piece_bytes: int) -> Gradients:
    """Cut gradients into equal pieces of at most so many bytes, all ready with their tensor; 0 leaves them whole."""
    if not piece_bytes:
        return gradients
    pieces = []
    for tensor, elements, gap_s in zip(gradients.tensors, gradients.num_elements, gradients.gap_s, strict=True):
        count = -(-elements * FP32_BYTES // piece_bytes)
        sizes = [elements * (piece + 1) // count - elements * piece // count for piece in range(count)]
        pieces += [(f"{tensor}#{piece}", size, 0.0 if piece else gap_s) for piece, size in enumerate(sizes)]
    names, num_elements, gaps_s = zip(*pieces, strict=True)
    return replace(gradients, tensors=names, num_elements=num_elements, gap_s=gaps_s)


def whole_sizes(gradients: Gradients) -> list[int]:
    """Return for each gradient the elements of the tensor that it is a piece of."""
    wholes = [name.partition("#")[0] for name in gradients.tensors]
    sums = dict.fromkeys(wholes, 0)
    for whole, elements in zip(wholes, gradients.num_elements, strict=True):
        sums[whole] += elements
    return [sums[whole] for whole in wholes]
