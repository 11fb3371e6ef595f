"""The time to encode, send and decode a group of gradients, and the iteration time with every fusion rule.

`Costs` come from times measured on ranks (`planning.measure_costs`) or from a codec's times and the links of a cluster.
An all-gather exchanges encoded groups; an all-reduce sums uncompressed groups.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType

import numpy as np
from scipy.optimize import nnls

from workbench.cluster import Machines
from workbench.cluster.fitting import bisected
from workbench.compression.costs import CodecTimes, Processor
from workbench.datasets import gradient_traces
from workbench.study.thesis import paper_codec, paper_machines, scaled
from workbench.timeline.gradients import Gradients

from .method.optimal import optimal_fusion
from .method.problem import FREE, Cost, FlatThenLinear, FusionProblem, Linear, iteration_time
from .method.rivals import ddp_buckets, each, rules

__all__ = ["CUPCAKE", "DDP_BUCKETS", "FP16", "FP32", "FP32_BUCKETS", "FP32_FUSED", "GRACE", "HIPRESS", "TESTBEDS"]
__all__ += ["Costs", "Strategy", "costs_of", "costs_on", "fitted", "fitted_costs", "gradients_of"]
__all__ += ["is_worth_compressing", "largest_miss", "machines_of", "strategies", "uncompressed_s", "with_rate"]

FP32_BYTES = 4
FP32, FP32_BUCKETS, FP32_FUSED = "FP32, each tensor", "FP32", "FP32, fused best"
FP16, DDP_BUCKETS = "FP16", "DDP's buckets"
GRACE, HIPRESS, CUPCAKE = "GRACE", "HiPress", "Cupcake"
SIZES = tuple(2.0**power for power in range(10, 29))  # bytes of fp32, at which the costs of a codec are fitted
ALL_REDUCE_STARTUPS = 2  # in the planner of Espresso's authors: one for each half


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """The time of each operation on a group, as a function of its bytes in fp32."""

    codec: str
    compress: Cost
    communicate: Cost  # of an encoded group
    decode: Cost  # of the messages of all ranks
    send_plain: Linear  # of an uncompressed group
    onward: Linear = FREE  # inside machines, encoded or not
    measured: Mapping[str, "Costs"] = field(default_factory=dict)  # of FP32 and FP16; derived from these where missing
    misses: Mapping[str, float] = field(default_factory=dict)  # largest relative error of each fitted operation

    def problem(self, gradients: Gradients, **more: object) -> FusionProblem:
        """Return the problem of a model's gradients with these costs."""
        costs = {name: getattr(self, name) for name in ("compress", "communicate", "decode", "send_plain", "onward")}
        return FusionProblem(gradients.gap_s, gradients.size_bytes, gradients.forward_s, **costs | more)

    @property
    def lines(self) -> dict[str, tuple[float, float, float]]:
        """The `numbers` of each operation, which are the arguments of an equal `FlatThenLinear`."""
        return {name: getattr(self, name).numbers for name in ("compress", "communicate", "decode", "send_plain")}

    @property
    def plain(self) -> "Costs":
        """The costs without a codec."""
        if FP32_BUCKETS in self.measured:
            return self.measured[FP32_BUCKETS]
        return replace(self, codec="FP32", compress=FREE, communicate=self.send_plain, decode=FREE)

    @property
    def half(self) -> "Costs":
        """The costs with 16 bits a value instead of a codec, on all links; unless measured, casting takes no time."""
        if FP16 in self.measured:
            return self.measured[FP16]
        line, onward = (Linear(link.startup_s, link.s_per_byte / 2) for link in (self.send_plain, self.onward))
        return replace(self.plain, codec="fp16", communicate=line, send_plain=line, onward=onward)

    @property
    def as_in_the_paper(self) -> "Costs":
        """The costs with a fitted α + β·x for encoding, and without decoding."""
        line = fitted([(size, float(self.compress(size))) for size in SIZES])[0]
        return replace(self, compress=line, decode=FREE)


Samples = Sequence[tuple[float, float]]  # bytes in fp32, and seconds


def fitted(samples: Samples) -> tuple[Linear, FlatThenLinear]:
    """Fit both models to pairs of bytes and seconds, by non-negative least squares of the relative errors.

    The flat part ends at a size of the samples, or at 0.
    """
    (startup_s, s_per_byte), _ = _fitted(samples, 0.0)
    ends = (0.0, *sorted({size for size, _ in samples})[:-1])
    flat_bytes = min(ends, key=lambda end: _fitted(samples, end)[1])
    (flat_s, above), _ = _fitted(samples, flat_bytes)
    return Linear(startup_s, s_per_byte), FlatThenLinear(flat_s, flat_bytes, above)


def _fitted(samples: Samples, flat_bytes: float) -> tuple[tuple[float, float], float]:
    """Return the flat time and the seconds of each byte above, then the norm of the relative errors."""
    sizes, seconds = np.array(samples, float).T
    terms = np.stack([1 / seconds, np.maximum(0.0, sizes - flat_bytes) / seconds], axis=1)
    coefficients, error = nnls(terms, np.ones(len(samples)))
    return tuple(coefficients.tolist()), float(error)


def largest_miss(cost: Cost, samples: Samples) -> float:
    """Return the largest relative error of a cost for pairs of bytes and seconds."""
    return max(abs(float(cost(size)) / seconds - 1) for size, seconds in samples)


def fitted_costs(codec: str, times: Mapping[str, Samples], send_plain: Samples) -> Costs:
    """Fit the costs of a codec to times of "encode", "send" and "decode", and of the device's "work" while it sends.

    The work counts as encoding, not as sending. `misses` are of the times as they were measured.
    """
    send = fitted(times["send"])[0]
    work = FREE if all(seconds == 0 for _, seconds in times["work"]) else fitted(times["work"])[0]
    encode = [(size, seconds + work(size)) for size, seconds in times["encode"]]
    compress, decode, plain = fitted(encode)[1], fitted(times["decode"])[1], fitted(send_plain)[0]
    misses = {
        "compress": largest_miss(compress, encode),
        "communicate": largest_miss(send, times["send"]),
        "decode": largest_miss(decode, times["decode"]),
        "send_plain": largest_miss(plain, send_plain),
    }
    left = Linear(max(0.0, send.startup_s - work.startup_s), max(0.0, send.s_per_byte - work.s_per_byte))
    return Costs(codec=codec, compress=compress, communicate=left, decode=decode, send_plain=plain, misses=misses)


def costs_on(codec: CodecTimes, machines: Machines) -> Costs:
    """Return the costs on a cluster's GPUs, where a group has the messages of all peers.

    On one machine all GPUs gather all messages. On several machines, the GPUs of a machine first sum uncompressed
    gradients. Each GPU encodes its share, gathers the messages of its peers on other machines, and shares the sum with
    its machine. The two steps inside machines count as one link after the link between machines.
    """
    n, per_machine = machines.num_machines, machines.gpus_per_machine
    peers, share = (n, 1 / per_machine) if n > 1 else (per_machine, 1.0)
    link, sending = (machines.inter, per_machine * share) if n > 1 else (machines.intra, 1.0)
    per_byte = sending / link.bandwidth_bytes_per_s  # a machine's GPUs share its network card
    onward = FREE
    if n > 1:
        inside = 2 * (per_machine - 1) / per_machine / machines.intra.bandwidth_bytes_per_s
        onward = Linear(2 * machines.intra.latency_s, inside)
    elements = np.array(SIZES) / FP32_BYTES * share
    encode_s = codec.encode_s[Processor.GPU](elements)
    decode_s = (1 if codec.decodes_at_once else peers) * codec.decode_s[Processor.GPU](elements)
    return Costs(
        codec=codec.name,
        compress=fitted(list(zip(SIZES, encode_s.tolist(), strict=True)))[1],
        communicate=Linear(link.latency_s, (peers - 1) * codec.sent_bytes / FP32_BYTES * per_byte),
        decode=fitted(list(zip(SIZES, decode_s.tolist(), strict=True)))[1],
        send_plain=Linear(ALL_REDUCE_STARTUPS * link.latency_s, 2 * (peers - 1) / peers * per_byte),
        onward=onward,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """A rule's fusion of a model's gradients."""

    name: str
    fusion: tuple[int, ...]
    compressed: tuple[bool, ...]  # each group
    iteration_s: float


def is_worth_compressing(costs: Costs, size_bytes: float) -> bool:
    """Say whether a single tensor is faster encoded than uncompressed: HiPress' rule."""
    encoded_s = costs.compress(size_bytes) + costs.communicate(size_bytes) + costs.decode(size_bytes)
    return bool(encoded_s < costs.send_plain(size_bytes))


def strategies(
    gradients: Gradients, costs: Costs, *, bucket_scale: float = 1.0, weighed: Costs | None = None
) -> dict[str, Strategy]:
    """Return every rule's fusion: no compression, single tensors, HiPress, simpler fusions, and the optimum.

    `bucket_scale` multiplies the sizes of bucket fusion; HiPress chooses tensors by the costs `weighed`.
    """
    whole, plain, half = (way.problem(gradients) for way in (costs, costs.plain, costs.half))
    by_rule = {}

    def add(name: str, problem: FusionProblem, fusion: tuple[int, ...], flags: Sequence[bool] | None = None) -> None:
        iteration_s = iteration_time(problem, fusion, flags)  # None: all groups as the problem's own costs have it
        compressed = (problem is whole,) * len(fusion) if flags is None else tuple(flags)
        by_rule[name] = Strategy(name=name, fusion=fusion, compressed=compressed, iteration_s=iteration_s)

    add(FP32, plain, each(plain))
    add(FP32_BUCKETS, plain, ddp_buckets(plain))
    add(FP32_FUSED, plain, optimal_fusion(plain))
    add(FP16, half, ddp_buckets(half))
    add(GRACE, whole, each(whole))
    add(HIPRESS, whole, each(whole), [is_worth_compressing(weighed or costs, size) for size in gradients.size_bytes])
    for name, rule in rules(bucket_scale).items():
        if name != "Layer-wise":
            add(name, whole, rule(whole))
    add(CUPCAKE, whole, optimal_fusion(whole))
    return by_rule


TESTBEDS = MappingProxyType({"server": 8, "cluster": 64})  # GPUs


ALONE_S, OVERHEAD_S = 48e-3, 56e-3  # ResNet50, CIFAR-10: time on one GPU, overhead of FP32 on eight (section 5.2.3)


@cache
def gradients_of(model: str) -> Gradients:
    """Return a model's released gradients; ResNet50's with the text's length of an iteration."""
    gradients = gradient_traces.load(model)
    return scaled(gradients, ALONE_S / alone_s(gradients)) if model == "resnet50" else gradients


def alone_s(gradients: Gradients) -> float:
    return gradients.forward_s + gradients.backward_s


@cache
def machines_of(testbed: str) -> Machines:
    """Return a testbed; the server's link rate gives ResNet50 the text's overhead of FP32."""
    machines = paper_machines(testbed, TESTBEDS[testbed])
    if testbed != "server":
        return machines
    resnet = gradients_of("resnet50")

    def is_slow(rate: float) -> bool:
        return uncompressed_s(resnet, with_rate(machines, rate)) > ALONE_S + OVERHEAD_S

    return with_rate(machines, bisected(is_slow, 1e8, 1e11, 30))


def with_rate(machines: Machines, rate: float) -> Machines:
    """Return machines whose links inside carry `rate` bytes per second."""
    return replace(machines, intra=replace(machines.intra, bandwidth_bytes_per_s=rate))


def uncompressed_s(gradients: Gradients, machines: Machines) -> float:
    """Return the iteration without compression, in DistributedDataParallel's buckets."""
    plain = costs_on(paper_codec("dgc"), machines).plain.problem(gradients)
    return iteration_time(plain, ddp_buckets(plain))


def costs_of(codec: str, testbed: str) -> Costs:
    """Return the costs of a codec on a testbed, "server" or "cluster"."""
    return costs_on(paper_codec(codec), machines_of(testbed))
