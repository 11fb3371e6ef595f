"""The rows of what is simulated on the paper's two clusters, with gradients and constants that its authors released."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import median
from types import MappingProxyType
from typing import Any

import numpy as np

from workbench.compression.costs import Processor
from workbench.datasets import gradient_traces
from workbench.study.rows import value_row
from workbench.study.thesis import paper_codec, paper_machines
from workbench.timeline.gradients import Gradients

from .cost import SCALING, WHOLE, job_of, scaling_factor
from .method.baselines import ALL, BASELINES, MYOPIC, ON_CPUS, ON_GPUS, baseline_strategy, crippled_strategy, options_of
from .method.certificate import lower_bound_s
from .method.job import INTER, INTRA, Job
from .method.options import Option
from .method.search import find_strategy, improve

__all__ = ["CALIBRATION", "CONSTANTS", "PANELS", "benefit_ratios", "benefit_rows", "distance_rows", "scaling_rows"]
__all__ += ["space_rows", "throughput_rows"]

CALIBRATION = MappingProxyType({"scaling factors of FP32 on 64 GPUs": dict(SCALING), "source": "table 4.1, 4.8.4"})
CONSTANTS = MappingProxyType(
    {"codec times, start-ups, gradients, links inside machines": "the authors' release", "networks": "nominal rates"}
)
FP32, FP16, ESPRESSO, IMPROVED, BOUND = "FP32", "FP16", "Espresso", "Espresso, improved", "Upper Bound"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Speeds:
    """Iteration times by scheme."""

    by_scheme: Mapping[str, float]
    compressed: int  # tensors of Espresso's strategy
    on_cpus: int  # of them


def _speeds(job: Job) -> _Speeds:
    thresholds = gradient_traces.baseline_thresholds()
    plain = [job.uncompressed] * job.gradients.num_tensors
    cast = gradient_traces.gpu_compression_constants()[job.codec.name, "fp16"]
    by_scheme = {FP32: job.iteration_s(plain), FP16: job.half_precision_s(cast.encode_s)}
    for name, baseline in BASELINES.items():
        strategy = baseline_strategy(job, baseline, thresholds[job.gradients.name, name])
        by_scheme[baseline.name] = job.iteration_s(strategy)
    found = find_strategy(job)
    by_scheme[ESPRESSO] = found.iteration_s
    by_scheme[IMPROVED] = improve(job, found.strategy).iteration_s
    by_scheme[BOUND] = _bound_s(job)
    return _Speeds(
        by_scheme=by_scheme,
        compressed=sum(option.is_compressed for option in found.strategy),
        on_cpus=sum(Processor.CPU in option.processors for option in found.strategy),
    )


def _bound_s(job: Job) -> float:
    """Return the time of an iteration if the codec takes no time: the paper's upper bound (section 4.8.1)."""
    free = dict.fromkeys(Processor, np.zeros_like)
    codec = replace(job.codec, encode_s=free, decode_s=free)
    job = Job(job.gradients, job.machines, codec, options_of(ON_GPUS))
    return improve(job, find_strategy(job).strategy).iteration_s


def throughput_rows(*, models: Sequence[str], num_gpus: Sequence[int], certified: bool = True) -> list[dict[str, Any]]:
    """Return the speed of all schemes by model and number of GPUs, Espresso's gains, and the distance to the best.

    `certified` adds, at the largest number of GPUs, at most how many per cent Espresso is from the best strategy.
    """
    rows = []
    for model in models:
        batch = gradient_traces.experiment_settings()[model].batch_per_gpu
        for gpus in num_gpus:
            speeds = _speeds(job_of(model, gpus))
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


def scaling_rows(cells: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Return scaling factors on 64 GPUs without compression, with it on GPUs and on CPUs, and changes in per cent.

    A cell is a model and an algorithm. Compression on GPUs is that of HiPress, on CPUs that of BytePS-Compress, from
    the sizes on that the release names for the model. `uncalibrated_scaling_factor` is FP32's with the released times.
    """
    thresholds, rows = gradient_traces.baseline_thresholds(), []
    for model, algorithm in cells:
        job, keys = job_of(model, WHOLE, algorithm), {"model": model, "algorithm": algorithm}
        plain = scaling_factor(job)
        rows.append(value_row("scaling_factor", plain, scheme=FP32, **keys))
        for scheme, name in (("GC with GPU", "hipress"), ("GC with CPU", "byteps-compress")):
            strategy = baseline_strategy(job, BASELINES[name], thresholds[model, name])
            factor, compressed = scaling_factor(job, strategy), sum(option.is_compressed for option in strategy)
            rows.append(value_row("scaling_factor", factor, scheme=scheme, **keys))
            rows.append(value_row("change", 100 * (factor / plain - 1), "%", scheme=scheme, **keys))
            rows.append(value_row("compressed_tensors", compressed, scheme=scheme, **keys))
    for model in SCALING:
        factor = scaling_factor(job_of(model, WHOLE, is_calibrated=False))
        rows.append(value_row("uncalibrated_scaling_factor", factor, model=model))
    return rows


def benefit_ratios(job: Job, option: Option) -> np.ndarray:
    """Return by size of a job's tensors what an option saves of communication over what its compression takes."""
    sent_s = {}
    for one in (job.uncompressed, option):
        is_sent = np.isin(job.resources(one), (INTRA, INTER))
        sent_s[one] = job.seconds(one)[is_sent].sum(axis=0)
    return (sent_s[job.uncompressed] - sent_s[option]) / (job.seconds(option).sum(axis=0) - sent_s[option])


def benefit_rows(*, algorithms: Sequence[str], log2_sizes: Sequence[int], num_gpus: int) -> list[dict[str, Any]]:
    """Return benefit ratios of HiPress' and HiTopKComm's option on NVLink machines by codec and number of elements."""
    sizes, rows = tuple(2**power for power in log2_sizes), []
    order = {"tensors": tuple(map(str, sizes)), "num_elements": sizes, "gap_s": (0.0,) * len(sizes)}
    tensors = Gradients(name="one size each", forward_s=0.0, source="chosen sizes", **order)
    for algorithm in algorithms:
        job = Job(tensors, paper_machines("nvlink", num_gpus), paper_codec(algorithm))
        for name in ("hipress", "hitopkcomm"):
            ratios = benefit_ratios(job, BASELINES[name].option).tolist()
            keys = {"algorithm": algorithm, "scheme": BASELINES[name].name}
            for size, ratio in zip(job.sizes, ratios, strict=True):
                rows.append(value_row("benefit_ratio", ratio, elements=size, **keys))
    return rows


def distance_rows(*, testbed: str, models: Sequence[str], algorithms: Sequence[str]) -> list[dict[str, Any]]:
    """Return how far below the upper bound the throughput of each scheme is on 64 GPUs of a testbed, and medians.

    `behind_espresso` is by how many points a scheme's median is farther from the bound than Espresso's.
    """
    rows, found = [], defaultdict(list)
    for model, algorithm in product(models, algorithms):
        times = _speeds(job_of(model, WHOLE, algorithm, testbed=testbed)).by_scheme
        for scheme in (name for name in times if name != BOUND):
            found[scheme].append(100 * (1 - times[BOUND] / times[scheme]))
            keys = {"scheme": scheme, "model": model, "algorithm": algorithm}
            rows.append(value_row("below_bound", found[scheme][-1], "%", **keys))
    nearest = median(found[ESPRESSO])
    for scheme, distances in found.items():
        rows.append(value_row("median_below_bound", median(distances), "%", scheme=scheme))
        rows.append(value_row("largest_below_bound", max(distances), "%", scheme=scheme))
        rows.append(value_row("behind_espresso", median(distances) - nearest, "%", scheme=scheme))
    return rows


PANELS = MappingProxyType(
    {
        "a": (ALL, MYOPIC),
        "b": (ON_GPUS, ON_CPUS),
        "c": ("Inter Allgather", "Inter Alltoall"),
        "d": ("Inter Alltoall", "Alltoall+Alltoall"),
    }
)
"""Panel n of the figure leaves out dimension n, in two ways."""


def space_rows(*, panel: str, algorithms: Sequence[str], testbeds: Sequence[str]) -> list[dict[str, Any]]:
    """Return VGG16's scaling factors on 64 GPUs with Espresso and in the two crippled spaces of a panel.

    `espresso_over` is how many times as fast Espresso trains; `second_over_first` compares the two spaces.
    """
    rows, (first, second) = [], PANELS[panel]
    for testbed in testbeds:
        ratios = []
        for algorithm in algorithms:
            factors = _factors(job_of("vgg16", WHOLE, algorithm, testbed=testbed), panel)
            keys = {"testbed": testbed, "algorithm": algorithm}
            ratios.append(factors[second] / factors[first])
            rows.append(value_row("second_over_first", ratios[-1], **keys))
            for space, factor in factors.items():
                rows.append(value_row("scaling_factor", factor, space=space, **keys))
                if space in PANELS[panel]:
                    rows.append(value_row("espresso_over", factors[ESPRESSO] / factor, space=space, **keys))
        for name, extreme in (("least", min(ratios)), ("largest", max(ratios))):
            rows.append(value_row(f"{name}_second_over_first", extreme, testbed=testbed))
    return rows


def _factors(job: Job, panel: str) -> dict[str, float]:
    found = {space: crippled_strategy(job, space) for space in PANELS[panel]}
    found[ESPRESSO] = find_strategy(job).strategy
    found[IMPROVED] = improve(job, found[ESPRESSO]).strategy
    return {FP32: scaling_factor(job)} | {name: scaling_factor(job, strategy) for name, strategy in found.items()}
