"""The rows of what is simulated on the paper's two clusters, with gradients and constants that its authors released.

The authors' batches of BERT-base and GPT-2 are not those of table 4.4. Where the text says FP32's scaling factor, all
times of a model's computation are scaled to it on 64 GPUs; what Espresso gains is then predicted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from workbench.cluster.fitting import bisected
from workbench.cluster.machines import Link, Machines
from workbench.cluster.papers import THESIS_MACHINES
from workbench.compression.costs import CodecTimes, Processor, interpolated
from workbench.datasets import gradient_traces
from workbench.study.rows import value_row
from workbench.timeline.gradients import Gradients

from .cost import FP32_BYTES, Job
from .method.baselines import BASELINES, baseline_strategy, options_of
from .method.certificate import lower_bound_s
from .method.search import find_strategy, improve

__all__ = ["CALIBRATION", "SCALING", "TESTBEDS", "job_of", "paper_codec", "paper_machines", "throughput_rows"]

TESTBEDS = MappingProxyType({"nvlink": "espresso/8x-nvlink-100gbps", "pcie": "espresso/8x-pcie-25gbps"})
GPUS_PER_MACHINE = 8
WHOLE = 64  # GPUs
SCALING = MappingProxyType(
    {"bert_base": 0.51, "gpt2": 0.58, "lstm": 0.46, "resnet101": 0.70}
)  # table 4.1, section 4.8.4
CALIBRATION = MappingProxyType({"scaling factors of FP32 on 64 GPUs": dict(SCALING), "source": "table 4.1, 4.8.4"})
FP32, FP16, ESPRESSO, IMPROVED, BOUND = "FP32", "FP16", "Espresso", "Espresso, improved", "Upper Bound"


def paper_codec(algorithm: str) -> CodecTimes:
    """Return what the authors measured of a codec: level up to 2^20 elements on a GPU, by size on a CPU."""
    on_gpu = gradient_traces.gpu_compression_constants()[algorithm, "one_level"]
    on_cpu, constants = gradient_traces.cpu_compression_times()[algorithm], gradient_traces.communication_constants()
    is_sparse = algorithm in ("randomk", "dgc")
    ratio = constants["wire_ratio_sparsification" if is_sparse else "wire_ratio_one_bit"]
    base, sizes = constants["compression_base_elements"], on_cpu.num_elements

    def level(seconds: float):
        return lambda elements: seconds * np.maximum(1.0, elements / base)

    return CodecTimes(
        name=algorithm,
        encode_s={Processor.GPU: level(on_gpu.encode_s), Processor.CPU: interpolated(sizes, on_cpu.compress_s)},
        decode_s={Processor.GPU: level(on_gpu.decode_s), Processor.CPU: interpolated(sizes, on_cpu.decompress_s)},
        sent_bytes=FP32_BYTES * ratio,
    )


def paper_machines(testbed: str, num_gpus: int) -> Machines:
    """Return machines of a testbed, with the start-up of the authors' planner between them."""
    (topology,) = (one for one in THESIS_MACHINES if one.name == TESTBEDS[testbed])
    startup_s = gradient_traces.communication_constants()["startup"]
    inter = Link(bandwidth_bytes_per_s=topology.network.bandwidth_bytes_per_s, latency_s=startup_s)
    sizes = {"num_machines": num_gpus // GPUS_PER_MACHINE, "gpus_per_machine": GPUS_PER_MACHINE}
    return Machines(**sizes, intra=topology.host.device_link, inter=inter)


def job_of(model: str, num_gpus: int, algorithm: str = "", options: Sequence | None = None) -> Job:
    """Return a job of the paper; by default with the codec that its authors' scripts name for the model."""
    settings = gradient_traces.experiment_settings()[model]
    codec = paper_codec(algorithm or settings.algorithm)
    gradients = gradient_traces.load(model)
    if model in SCALING:
        whole = paper_machines(settings.testbed, WHOLE)

        def is_below(scale: float) -> bool:
            return _scaling_factor(Job(_scaled(gradients, scale), whole, codec)) < SCALING[model]

        gradients = _scaled(gradients, bisected(is_below, 0.01, 10.0, 40))
    return Job(gradients, paper_machines(settings.testbed, num_gpus), codec, options)


def _scaled(gradients: Gradients, scale: float) -> Gradients:
    times = {"forward_s": gradients.forward_s * scale, "gap_s": tuple(gap_s * scale for gap_s in gradients.gap_s)}
    return replace(gradients, **times, source=f"{gradients.source}, times scaled by {scale:.2f}")


def _alone_s(job: Job) -> float:
    return job.gradients.forward_s + job.gradients.backward_s


def _scaling_factor(job: Job) -> float:
    return _alone_s(job) / job.iteration_s([job.uncompressed] * job.gradients.num_tensors)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Speeds:
    """Iteration times by scheme."""

    by_scheme: Mapping[str, float]
    compressed: int  # tensors of Espresso's strategy
    on_cpus: int  # of them


def _speeds(model: str, num_gpus: int) -> _Speeds:
    job, thresholds = job_of(model, num_gpus), gradient_traces.baseline_thresholds()
    plain = [job.uncompressed] * job.gradients.num_tensors
    cast = gradient_traces.gpu_compression_constants()[job.codec.name, "fp16"]
    by_scheme = {FP32: job.iteration_s(plain), FP16: job.half_precision_s(cast.encode_s)}
    for name, baseline in BASELINES.items():
        by_scheme[baseline.name] = job.iteration_s(baseline_strategy(job, baseline, thresholds[model, name]))
    found = find_strategy(job)
    by_scheme[ESPRESSO] = found.iteration_s
    by_scheme[IMPROVED] = improve(job, found.strategy).iteration_s
    by_scheme[BOUND] = find_strategy(_without_cost(job)).iteration_s
    return _Speeds(
        by_scheme=by_scheme,
        compressed=sum(option.is_compressed for option in found.strategy),
        on_cpus=sum(Processor.CPU in option.processors for option in found.strategy),
    )


def _without_cost(job: Job) -> Job:
    """Return the job with a codec that takes no time: the paper's upper bound (section 4.8.1)."""
    free = dict.fromkeys(Processor, np.zeros_like)
    codec = replace(job.codec, encode_s=free, decode_s=free)
    return Job(job.gradients, job.machines, codec, options_of("GPU compression"))


def throughput_rows(*, models: Sequence[str], num_gpus: Sequence[int], certified: bool = True) -> list[dict[str, Any]]:
    """Return the speed of all schemes by model and number of GPUs, Espresso's gains, and the distance to the best.

    `certified` adds, at the largest number of GPUs, at most how many per cent Espresso is from the best strategy.
    """
    rows = []
    for model in models:
        batch = gradient_traces.experiment_settings()[model].batch_per_gpu
        for gpus in num_gpus:
            speeds = _speeds(model, gpus)
            times, keys = speeds.by_scheme, {"model": model, "gpus": gpus}
            for scheme, seconds in times.items():
                rows.append(value_row("samples_per_s", batch * gpus / seconds, "1/s", scheme=scheme, **keys))
                if scheme not in (ESPRESSO, IMPROVED, BOUND):
                    rows.append(value_row("gain", seconds / times[ESPRESSO], over=scheme, **keys))
                if scheme != FP32:
                    rows.append(value_row("over_fp32", times[FP32] / seconds, scheme=scheme, **keys))
            rows.append(value_row("below_bound", 100 * (1 - times[BOUND] / times[ESPRESSO]), "%", **keys))
            rows.append(value_row("compressed_tensors", speeds.compressed, **keys))
            rows.append(value_row("tensors_on_cpus", speeds.on_cpus, **keys))
        if certified:
            job = job_of(model, max(num_gpus))
            least_s = lower_bound_s(job)
            for scheme in (ESPRESSO, IMPROVED):
                distance = 100 * (times[scheme] / least_s - 1)
                rows.append(value_row("from_best_at_most", distance, "%", scheme=scheme, **keys))
    return rows
