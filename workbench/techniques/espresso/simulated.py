"""The rows of what is simulated on the paper's two clusters, with gradients and constants that its authors released."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import median
from types import MappingProxyType
from typing import Any

import numpy as np

from workbench.cluster.machines import GIGABIT_BYTES_PER_S, Link
from workbench.compression.costs import Processor
from workbench.datasets import gradient_traces
from workbench.rows import value_row
from workbench.study.thesis import paper_codec, paper_machines
from workbench.timeline.gradients import Gradients

from .advice import lemma_rows
from .cost import AS_MODELLED, SCALING, WHOLE, Change, job_of, scaling_factor, whole_sizes
from .method.baselines import ALL, BASELINES, MYOPIC, ON_CPUS, ON_GPUS, baseline_strategy, crippled_strategy, options_of
from .method.certificate import lower_bound_s
from .method.job import INTER, INTRA, Job
from .method.options import Option
from .method.search import before_bubbles, compress_on_gpus, find_strategy, improve

__all__ = ["CALIBRATION", "CAUSES", "CONSTANTS", "PANELS", "benefit_ratios", "benefit_rows", "cause_rows"]
__all__ += ["distance_rows", "scaling_rows", "space_rows", "throughput_rows"]

CALIBRATION = MappingProxyType({"scaling factors of FP32 on 64 GPUs": dict(SCALING), "source": "table 4.1, 4.8.4"})
CONSTANTS = MappingProxyType(
    {
        "codec times, start-ups, gradients, links inside machines": "the authors' release",
        "networks": "the rate that gives FP32's scaling factor",
    }
)
TABLE_4_1 = (("gpt2", "dgc"), ("bert_base", "efsignsgd"), ("lstm", "dgc"))
FP32, FP16, ESPRESSO, IMPROVED, BOUND = "FP32", "FP16", "Espresso", "Espresso, improved", "Upper Bound"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Speeds:
    """Iteration times by scheme."""

    by_scheme: Mapping[str, float]
    compressed: int  # tensors of Espresso's strategy
    on_cpus: int  # of them


NOTHING: Mapping[str, int] = MappingProxyType({})


def _strategy(job: Job, name: str, thresholds: Mapping[str, int] = NOTHING) -> tuple[Option, ...]:
    """Return a baseline's strategy; `thresholds` replaces the least elements that the release names for it."""
    least = thresholds.get(name, gradient_traces.baseline_thresholds()[job.gradients.name, name])
    return baseline_strategy(job, BASELINES[name], least, whole_sizes(job.gradients))


def _speeds(job: Job, thresholds: Mapping[str, int] = NOTHING) -> _Speeds:
    plain = [job.uncompressed] * job.gradients.num_tensors
    cast = gradient_traces.gpu_compression_constants()[job.codec.name, "fp16"]
    by_scheme = {FP32: job.iteration_s(plain), FP16: job.half_precision_s(cast.encode_s)}
    for name, baseline in BASELINES.items():
        by_scheme[baseline.name] = job.iteration_s(_strategy(job, name, thresholds))
    espresso = find_strategy(job)
    by_scheme[ESPRESSO] = espresso.iteration_s
    by_scheme[IMPROVED] = improve(job, espresso.strategy).iteration_s
    by_scheme[BOUND] = _bound_s(job)
    return _Speeds(
        by_scheme=by_scheme,
        compressed=sum(option.is_compressed for option in espresso.strategy),
        on_cpus=sum(Processor.CPU in option.processors for option in espresso.strategy),
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
        rows.append(_network_row(job_of(model, max(num_gpus)), model=model))
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
    rows = []
    for model, algorithm in cells:
        job, keys = job_of(model, WHOLE, algorithm), {"model": model, "algorithm": algorithm}
        rows.append(value_row("scaling_factor", scaling_factor(job), scheme=FP32, **keys))
        rows.append(_network_row(job, **keys))
        rows += _changes(job, keys)
    for model in SCALING:
        factor = scaling_factor(job_of(model, WHOLE, is_calibrated=False))
        rows.append(value_row("uncalibrated_scaling_factor", factor, model=model))
    return rows


def _network_row(job: Job, **keys: str) -> dict[str, Any]:
    """Return the rate of the network between machines."""
    return value_row("network_gigabits_per_s", job.machines.inter.bandwidth_bytes_per_s / GIGABIT_BYTES_PER_S, **keys)


def _changes(job: Job, keys: Mapping[str, Any], thresholds: Mapping[str, int] = NOTHING) -> list[dict[str, Any]]:
    """Return what compressing on GPUs and on CPUs changes of FP32's scaling factor, in per cent."""
    rows = []
    for scheme, name in (("GC with GPU", "hipress"), ("GC with CPU", "byteps-compress")):
        strategy = _strategy(job, name, thresholds)
        factor = scaling_factor(job, strategy)
        rows.append(value_row("scaling_factor", factor, scheme=scheme, **keys))
        rows.append(value_row("change", 100 * (factor / scaling_factor(job) - 1), "%", scheme=scheme, **keys))
        rows.append(value_row("compressed_tensors", sum(o.is_compressed for o in strategy), scheme=scheme, **keys))
    return rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """One thing changed, on some models, to see which disagreements hang on it."""

    models: Sequence[str]
    change: Change = AS_MODELLED
    thresholds: Mapping[str, int] = field(default_factory=dict)  # least elements that a baseline compresses
    algorithm: str = ""  # codec; empty: as the authors' scripts name it
    num_gpus: Sequence[int] | None = None  # for which throughputs are wanted; None: all


LEMMA_JOBS = 500
PIECE_BYTES = 4_096_000  # BytePS' partitions in the release's scripts
CAUSES: Mapping[str, Cause] = MappingProxyType(
    {
        "each message decoded": Cause(
            models=("bert_base", "gpt2", "resnet101"), change=Change(decodes_each_message=True)
        ),
        "Random-K": Cause(models=("ugatit",), algorithm="randomk"),
        "DGC": Cause(models=("bert_base", "lstm"), algorithm="dgc"),
        "pieces of 4 MB": Cause(models=("lstm",), change=Change(piece_bytes=PIECE_BYTES)),
        "CPUs at 20 Gbit/s": Cause(models=("bert_base", "lstm", "resnet101"), change=Change(cpu_gigabits_per_s=20)),
        "two CPUs": Cause(models=("bert_base",), change=Change(has_two_cpus=True), num_gpus=(WHOLE,)),
        "HiTopKComm compresses all": Cause(models=("resnet101",), thresholds={"hitopkcomm": 1}),
        "HiPress compresses as HiTopKComm": Cause(
            models=("resnet101",), thresholds={"hipress": 16_384}, num_gpus=(WHOLE,)
        ),
        "BytePS-Compress compresses as HiPress": Cause(
            models=("bert_base",), thresholds={"byteps-compress": 16_777_216}, num_gpus=(WHOLE,)
        ),
        "PCIe at 100 Gbit/s": Cause(models=("vgg16",), change=Change(inside_gigabits_per_s=100), num_gpus=(WHOLE,)),
        "counted by size": Cause(models=("bert_base",), num_gpus=()),
        "network at 10 Gbit/s": Cause(
            models=("vgg16", "resnet101", "bert_base", "gpt2", "lstm"),
            change=Change(between_gigabits_per_s=10),
            num_gpus=(),
        ),
        "network at 100 Gbit/s": Cause(
            models=("bert_base",), change=Change(between_gigabits_per_s=100), algorithm="efsignsgd", num_gpus=(WHOLE,)
        ),
        "one sequence": Cause(models=("gpt2",), change=Change(computation=1 / 4), num_gpus=()),
        "80 tokens": Cause(models=("gpt2",), change=Change(computation=80 / 4096), num_gpus=()),
        "no time on links": Cause(models=()),
    }
)


def cause_rows(*, causes: Sequence[str], num_gpus: Sequence[int]) -> list[dict[str, Any]]:
    """Return what throughputs and tables 4.1 and 4.6 become with one thing changed at a time; `cause` names it.

    `combinations_by_size` is what algorithm 4.2 would look at if equal tensors had equal options.
    """
    rows = []
    for name in causes:
        cause = CAUSES[name]
        for model in cause.models:
            for gpus in num_gpus if cause.num_gpus is None else cause.num_gpus:
                job = job_of(model, gpus, cause.algorithm, change=cause.change)
                times, keys = _speeds(job, cause.thresholds).by_scheme, {"cause": name, "model": model, "gpus": gpus}
                for scheme in (FP32, *(baseline.name for baseline in BASELINES.values())):
                    rows.append(value_row("gain", times[scheme] / times[ESPRESSO], over=scheme, **keys))
                    rows.append(value_row("over_fp32", times[FP32] / times[scheme], scheme=scheme, **keys))
                rows.append(value_row("scaling_factor", scaling_factor(job), scheme=FP32, **keys))
                rows.append(value_row("below_bound", 100 * (1 - times[BOUND] / times[ESPRESSO]), "%", **keys))
            job = job_of(model, WHOLE, cause.algorithm, testbed="nvlink", change=cause.change)
            pairs = zip(job.gradients.num_elements, compress_on_gpus(job).strategy, strict=True)
            left = Counter(size for size, option in pairs if option.is_compressed)
            ways = math.prod(count + 1 for count in left.values())
            rows.append(value_row("to_offload", left.total(), cause=name, model=model, testbed="nvlink"))
            rows.append(value_row("combinations_by_size", ways, cause=name, model=model, testbed="nvlink"))
            factor = scaling_factor(job_of(model, WHOLE, is_calibrated=False, change=cause.change))
            rows.append(value_row("uncalibrated_scaling_factor", factor, cause=name, model=model))
        for model, algorithm in TABLE_4_1:
            if model in cause.models:
                job = job_of(model, WHOLE, algorithm, change=cause.change)
                rows += _changes(job, {"cause": name, "model": model, "algorithm": algorithm}, cause.thresholds)
        if name == "no time on links":
            rows += [row | {"cause": name} for row in lemma_rows(LEMMA_JOBS, link=Link(bandwidth_bytes_per_s=1e12))]
    return rows


def benefit_ratios(job: Job, option: Option) -> np.ndarray:
    """Return by size of a job's tensors what an option saves of communication over what its compression takes."""
    sent_s = {}
    for choice in (job.uncompressed, option):
        is_sent = np.isin(job.resources(choice), (INTRA, INTER))
        sent_s[choice] = job.seconds(choice)[is_sent].sum(axis=0)
    return (sent_s[job.uncompressed] - sent_s[option]) / (job.seconds(option).sum(axis=0) - sent_s[option])


def benefit_rows(*, algorithms: Sequence[str], log2_sizes: Sequence[int], num_gpus: int) -> list[dict[str, Any]]:
    """Return benefit ratios of HiPress' and HiTopKComm's option on NVLink machines by codec and number of elements."""
    sizes, rows = tuple(2**power for power in log2_sizes), []
    tensors = Gradients(
        name="one size each",
        tensors=tuple(map(str, sizes)),
        num_elements=sizes,
        gap_s=(0.0,) * len(sizes),
        forward_s=0.0,
        source="chosen sizes",
    )
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

    `behind_espresso` is by how many points a scheme's median is farther from the bound than Espresso's;
    `before_bubbles` is the share of a model's tensors whose communication ends before a bubble without compression.
    """
    rows, by_scheme = [], defaultdict(list)
    for model in models:
        job = job_of(model, WHOLE, testbed=testbed)
        rows.append(value_row("before_bubbles", len(before_bubbles(job)) / job.gradients.num_tensors, model=model))
        rows.append(_network_row(job, model=model))
    for model, algorithm in product(models, algorithms):
        times = _speeds(job_of(model, WHOLE, algorithm, testbed=testbed)).by_scheme
        for scheme in (name for name in times if name != BOUND):
            by_scheme[scheme].append(100 * (1 - times[BOUND] / times[scheme]))
            keys = {"scheme": scheme, "model": model, "algorithm": algorithm}
            rows.append(value_row("below_bound", by_scheme[scheme][-1], "%", **keys))
    nearest = median(by_scheme[ESPRESSO])
    for scheme, distances in by_scheme.items():
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
            job = job_of("vgg16", WHOLE, algorithm, testbed=testbed)
            strategies = {space: crippled_strategy(job, space) for space in PANELS[panel]}
            strategies[ESPRESSO] = find_strategy(job).strategy
            strategies[IMPROVED] = improve(job, strategies[ESPRESSO]).strategy
            factors = {FP32: scaling_factor(job)}
            factors |= {space: scaling_factor(job, strategy) for space, strategy in strategies.items()}
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
