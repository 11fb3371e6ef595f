"""What each technique's own cost model says of a question, beside the best plain setting; or why it does not apply."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType

import numpy as np

from workbench.cluster import FittedMachine, Link, bisected
from workbench.models import h100
from workbench.techniques.activation_compression import cost as activations
from workbench.techniques.activation_compression.cost.paper import MEMORY_BYTES_PER_S
from workbench.techniques.activation_compression.method import METHODS, Family
from workbench.techniques.atp.method.equations import Workload as BlockWorkload
from workbench.techniques.atp.method.matrix import HierarchicalCommMatrix, Layer
from workbench.techniques.atp.method.search import search_exactly
from workbench.techniques.cupcake.cost import costs_on
from workbench.techniques.cupcake.method import iteration_time, optimal_fusion
from workbench.techniques.cupcake.method.rivals import ddp_buckets
from workbench.techniques.espresso.method.job import Job
from workbench.techniques.espresso.method.search import find_strategy, improve
from workbench.techniques.flextp import cost as flexible
from workbench.techniques.flextp.method.plan import Solution
from workbench.techniques.gemini import cost as checkpoints
from workbench.techniques.gemini.method.interleaving import Scheme as Sending
from workbench.techniques.gemini.method.recovery import Tier
from workbench.techniques.gemini.method.waste import (
    BUFFERS_PER_REPLICA,
    CheckpointingNeeds,
    average_wasted_s,
    best_checkpointing,
    high_frequency,
)
from workbench.techniques.sdpipe import cost as pipelines
from workbench.techniques.sdpipe.simulated import FLOAT_BYTES, NUM_MICRO_BATCHES
from workbench.techniques.zen.advice import CANDIDATES, modelled
from workbench.techniques.zen.cost import seconds as sum_s
from workbench.timeline.gradients import Gradients
from workbench.timeline.queues import IS_COMPILED

from .question import Question

__all__ = ["DECIDERS", "PAYS", "PREDICTIONS", "Decider", "Limit", "Prediction", "break_even", "predict"]
__all__ += ["sums_s"]

PAYS = 1.05  # least gain that is worth its trouble, as in `espresso.planning`
CODECS = ("efsignsgd", "dgc")  # the better one counts, as in espresso/advice/simulated
ITERATIONS = 60  # of SDPipe's simulation
NUM_BISECTIONS = 12  # of the logarithm of an input: exact to a per cent
NUM_REPLICAS = 2  # Gemini's default


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """What the cost model of a technique says."""

    plain: str  # the best plain setting
    without_s: float  # with it
    with_s: float  # with the technique
    of: str = "an iteration"  # what takes these seconds
    how: str  # the choice of the technique's own planner
    variant: str = ""  # the codec or the solution, by which records of accuracy are picked
    memory: str = ""
    ratio: float | None = None  # the ratio that decides, by which regimes are compared
    least_s: float = 0.0  # what no technique shortens: computation

    @property
    def gain(self) -> float:
        """How many times as fast."""
        return self.without_s / self.with_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Decider:
    """An input whose value decides whether a technique pays."""

    name: str  # a field of Question, or "network", in Gbit/s
    low: float  # ends of the search
    high: float
    words: str  # with a placeholder for the value


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """The value of an input at which a gain passes `PAYS`."""

    value: float
    pays_below: bool  # or above


def predict(technique: str, question: Question) -> Prediction | str:
    """Return the prediction, or the reason why the technique does not apply."""
    return PREDICTIONS[technique](question)


def break_even(technique: str, question: Question, decider: Decider) -> Limit | None:
    """Find where the answer changes between an input's value and an end of the search; None if it does at neither."""

    def pays(value: float) -> bool:
        prediction = predict(technique, question.changed(decider.name, value))
        return isinstance(prediction, Prediction) and prediction.gain >= PAYS

    if decider.name == "network" and question.machines.network is None:
        return None
    now = min(max(question.value_of(decider.name), decider.low), decider.high)
    for end in (decider.low, decider.high):
        low, high = min(now, end), max(now, end)
        if (pays_below := pays(low)) != pays(high):
            value = bisected(lambda value: pays(value) == pays_below, low, high, NUM_BISECTIONS)
            return Limit(value=value, pays_below=pays_below)
    return None


# --- gradients


def _no_gradients(q: Question) -> str:
    if q.machines.num_devices == 1:
        return "one GPU exchanges no gradients"
    if q.tp * q.pp > 1:
        return f"its model knows data parallelism alone, and this training needs TP {q.tp}, PP {q.pp}"
    return "" if q.gradients else "the seconds of this model's gradients are not recorded: `measure` yours"


def _fused(gradients: Gradients, ends: tuple[int, ...]) -> Gradients:
    """Return gradients that leave in groups, each ready with its last."""
    groups = [slice(*pair) for pair in pairwise((0, *ends))]
    return replace(
        gradients,
        tensors=tuple(gradients.tensors[group][-1] for group in groups),
        num_elements=tuple(sum(gradients.num_elements[group]) for group in groups),
        gap_s=tuple(sum(gradients.gap_s[group]) for group in groups),
    )


def espresso(q: Question) -> Prediction | str:
    """Compare its best plan with FP32 and 16 bits, tensor by tensor and in DistributedDataParallel's buckets."""
    if (reason := _no_gradients(q)) or q.gradients is None:
        return reason
    if not IS_COMPILED:
        return "its search takes minutes as plain Python: ask it outside of a browser"
    buckets = _fused(q.gradients, ddp_buckets(costs_on(h100.codec(CODECS[0]), q.cluster).plain.problem(q.gradients)))
    casts, plain = h100.codec_times()["fp16", "cuda"], {}
    for name, gradients in (("DDP's buckets", buckets), ("each tensor", q.gradients)):
        job = Job(gradients, q.cluster, h100.codec(CODECS[0]))
        size = sum(gradients.num_elements) / gradients.num_tensors
        cast_s = float(np.interp(size, [cast.num_elements for cast in casts], [cast.encode_s for cast in casts]))
        plain[f"{name} in 16 bits"] = job.half_precision_s(cast_s)
        plain[f"{name} in FP32"] = job.iteration_s([job.uncompressed] * gradients.num_tensors)
    best = min(plain, key=plain.__getitem__)
    plans = {}
    for codec in CODECS:
        job = Job(q.gradients, q.cluster, h100.codec(codec))
        plans[codec] = improve(job, find_strategy(job).strategy)
    codec = min(plans, key=lambda name: plans[name].iteration_s)
    compressed = sum(option.is_compressed for option in plans[codec].strategy)
    return Prediction(
        plain=best,
        without_s=plain[best],
        with_s=plans[codec].iteration_s,
        how=f"{compressed} of {q.gradients.num_tensors} gradients by {codec}",
        variant=codec,
        memory=f"{4 * sum(q.gradients.num_elements) / 1e9:.2g} GB a GPU for error feedback" if compressed else "",
        ratio=q.computation_s / plain[best],
        least_s=q.computation_s,
    )


def cupcake(q: Question) -> Prediction | str:
    """Compare its best fusion, compressed, with DistributedDataParallel's buckets in FP32 and in 16 bits."""
    if (reason := _no_gradients(q)) or q.gradients is None:
        return reason
    costs = {codec: costs_on(h100.codec(codec), q.cluster) for codec in CODECS}
    of_none = costs[CODECS[0]]
    plain = {}
    for name, way in (("DDP's buckets in FP32", of_none.plain), ("DDP's buckets in 16 bits", of_none.half)):
        problem = way.problem(q.gradients)
        plain[name] = iteration_time(problem, ddp_buckets(problem))
    best = min(plain, key=plain.__getitem__)
    by_codec = {}
    for codec, way in costs.items():
        problem = way.problem(q.gradients)
        fusion = optimal_fusion(problem)
        by_codec[codec] = iteration_time(problem, fusion), len(fusion)
    codec = min(by_codec, key=by_codec.__getitem__)
    return Prediction(
        plain=best,
        without_s=plain[best],
        with_s=by_codec[codec][0],
        how=f"{by_codec[codec][1]} groups by {codec}",
        variant=codec,
        memory=f"{4 * sum(q.gradients.num_elements) / 1e9:.2g} GB a GPU for error feedback",
        ratio=1 - q.computation_s / plain[best],
        least_s=q.computation_s,
    )


def sums_s(n: int, density: float, embedding: tuple[int, int], link: Link) -> dict[str, float]:
    """Return the seconds of each scheme that sums a table of so many rows and so wide over n ranks, one a link."""
    rows, width = embedding
    of = modelled(density, n, width)
    per_tensor = replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * of.domain_size / rows)
    return {scheme: sum_s(scheme, of, per_tensor) for scheme in CANDIDATES}


def zen(q: Question) -> Prediction | str:
    """Compare Zen's sum of sparse gradients with torch's dense sum and with AGsparse, machine by machine.

    AGsparse gathers indices and values, as torch's sparse sum does on gloo; NCCL has no sparse sum.
    """
    if q.embedding is None or q.density == 1:
        return "no embedding is sparse" + ("" if q.embedding is None else ": density is 1; give the share of its rows")
    n, inside = q.machines.num_hosts, q.machines.host.num_devices
    network = q.machines.network or q.machines.host.device_link
    n, inside = (n, inside) if n > 1 else (inside, 1)
    if n < 2 or n & (n - 1) or inside & (inside - 1):
        return f"{n} x {inside} ranks: its model of the schemes needs powers of two, at least 2"
    rows, width = q.embedding
    density = q.density if inside == 1 else modelled(q.density, inside, width).density[inside]
    times_s = sums_s(n, density, (rows, width), network)
    plain = {"torch's dense sum": times_s["Dense"], "AGsparse": times_s["AGsparse"]}
    best, fastest = min(plain, key=plain.__getitem__), min(times_s, key=times_s.__getitem__)
    others = "" if fastest == "Zen" else f"; {fastest} takes {times_s[fastest]:.3g} s"
    return Prediction(
        plain=best,
        without_s=plain[best],
        with_s=times_s["Zen"],
        of="the sum of the embeddings' gradients",
        how=f"Zen on {n} ranks, {density:.2%} of the rows in each{others}",
        ratio=density,
    )


# --- tensor parallelism and pipelines


def _machine(q: Question, fitted: FittedMachine, devices_per_host: int, num_hosts: int = 1) -> FittedMachine:
    """Return a fitted machine on other devices and links; what memory limits takes as much less as memory is faster."""
    host = q.machines.host
    assert fitted.memory_bytes_per_s is not None
    slower = fitted.memory_bytes_per_s / host.device.memory_bytes_per_s
    bound = ["replicated_s_per_element", "attention_s_per_score", "optimizer_s_per_parameter"]
    bound += ["head_forward_s_per_logit", "head_backward_s_per_logit"]
    per_element = ("encode_s_per_element", "encode_s_per_sent", "decode_s_per_element", "decode_s_per_sent")
    codecs = {
        family: replace(cost, **{name: slower * getattr(cost, name) for name in per_element})
        for family, cost in fitted.codecs.items()
    }
    return replace(
        fitted,
        flops_per_s=q.flops_per_s,
        memory_bytes_per_s=host.device.memory_bytes_per_s,
        link=host.device_link,
        network=q.machines.network,
        connections={},
        num_hosts=num_hosts,
        devices_per_host=devices_per_host,
        codecs=codecs,
        **{name: slower * getattr(fitted, name) for name in bound},
    )


def activation_compression(q: Question) -> Prediction | str:
    """Compare the fastest code of activations with none, on V100s' constants carried over to these devices."""
    if q.tp * q.pp == 1:
        return "one GPU holds the model: no activation travels"
    if q.workload is None:
        return "its model is of transformers"
    ranks, inside = q.tp * q.pp, q.machines.host.num_devices
    num_nodes = math.ceil(ranks / inside)
    if q.workload.num_layers % q.pp or ranks % num_nodes:
        return f"{q.workload.num_layers} layers on {q.pp} stages of {num_nodes} machines: its model needs equal parts"
    v100 = replace(activations.paper_machine(nvlink=True), memory_bytes_per_s=MEMORY_BYTES_PER_S)
    machine = _machine(q, v100, inside)
    plain = activations.Setting(
        tp=q.tp,
        pp=q.pp,
        micro_batch=max(1, q.batch // (NUM_MICRO_BATCHES if q.pp > 1 else 1)),
        num_micro_batches=NUM_MICRO_BATCHES if q.pp > 1 else 1,
        sequence=q.workload.sequence,
        num_nodes=num_nodes,
        hidden=q.workload.hidden,
        layers=q.workload.num_layers,
        compressed_layers=q.workload.num_layers // 2,
        vocabulary=q.workload.vocabulary,
    )
    times = activations.iteration_time(plain, machine)
    coded = [name for name, method in METHODS.items() if method.family not in (Family.NONE, Family.HALF)]
    coded_s = {name: activations.iteration_time(replace(plain, method=name), machine).total_s for name in coded}
    best = min(coded_s, key=coded_s.__getitem__)
    below = activations.break_even_bytes_per_s(machine, replace(plain, method=best))
    limit = f"; gains below {below * 8 / 1e9:,.0f} Gbit/s inside machines" if 0 < below < math.inf else ""
    return Prediction(
        plain="Megatron's TP in 16 bits",
        without_s=times.total_s,
        with_s=coded_s[best],
        how=f"{best} on the last half of the layers{limit}",
        variant=best,
        ratio=times.tensor_s / times.total_s,
    )


def atp(q: Question) -> Prediction | str:
    """Compare the best mesh with Megatron's, (N, 1), both with and without sequence parallelism."""
    if q.tp == 1:
        return "one GPU holds a layer: nothing is cut"
    if q.workload is None or q.sizes is None:
        return "its model is of transformers"
    work = BlockWorkload(
        batch=q.batch,
        sequence=q.workload.sequence,
        hidden=q.workload.hidden,
        heads=q.sizes.num_heads,
        num_layers=max(1, q.workload.num_layers // q.pp),
    )
    links, inside = [(q.tp, q.machines.host.device_link)], q.machines.host.num_devices
    if q.tp > inside:
        if q.tp % inside or q.machines.network is None:
            return f"TP {q.tp} on machines of {inside} GPUs: its matrix needs whole machines"
        links = [(q.tp // inside, q.machines.network), (inside, links[0][1])]
    layers = [
        Layer.switched(num, link.bandwidth_bytes_per_s, link.bandwidth_bytes_per_s, link.latency_s)
        for num, link in links
    ]
    matrix = HierarchicalCommMatrix(name=q.machines.name, layers=tuple(layers))
    meshes = search_exactly(matrix, q.tp, work)
    plain = next(mesh for mesh in meshes if mesh.d2 == 1)
    return Prediction(
        plain=f"Megatron's TP {q.tp}{', sequence parallel' if plain.sequence_parallel else ''}",
        without_s=q.computation_s + plain.total_s,
        with_s=q.computation_s + meshes[0].total_s,
        how=meshes[0].name,
        ratio=plain.total_s / (q.computation_s + plain.total_s),
    )


def flextp(q: Question) -> Prediction | str:
    """Compare migrating and dropping columns with waiting for the slow rank."""
    if q.tp == 1:
        return "no tensor parallelism"
    if q.slow == 1:
        return "no GPU is slow"
    if q.slow_share < 1:
        return "delays come and go: a plan is of ranks that stay slow"
    if q.workload is None or q.tp > q.machines.host.num_devices:
        return "its model is of transformers inside one machine"
    fitted = flexible.paper_machine()
    machine = _machine(q, fitted, q.tp)
    work = replace(q.workload, num_samples=q.batch, num_layers=max(1, q.workload.num_layers // q.pp))
    assert isinstance(machine, flexible.Server)
    epochs = {
        solution: flexible.planned_epoch(
            solution, {0: q.slow}, workload=work, machine=machine, refine=solution in (Solution.MIG, Solution.SEMI)
        )
        for solution in (Solution.BASELINE, Solution.MIG, Solution.SEMI)
    }
    best = min((Solution.MIG, Solution.SEMI), key=lambda solution: epochs[solution].time_s)
    parts = flexible.iteration_parts(work, machine)
    return Prediction(
        plain=f"Megatron's TP {q.tp}, which waits",
        without_s=epochs[Solution.BASELINE].time_s,
        with_s=epochs[best].time_s,
        how=f"{best}, {epochs[best].dropped_share:.0%} of the products dropped",
        variant=str(best),
        ratio=parts.product_s / parts.own_s,
    )


def sdpipe(q: Question) -> Prediction | str:
    """Compare SDPipe with an all-reduce, both with a flush, under injected delays."""
    if q.pp == 1:
        return "no pipeline: it averages stages"
    if q.num_replicas == 1:
        return "one replica averages with none"
    if q.slow == 1:
        return "no GPU is slow"
    assert q.workload is not None
    pass_s = q.computation_s / NUM_MICRO_BATCHES / 3
    work = pipelines.Workload(
        num_stages=q.pp,
        num_micro_batches=NUM_MICRO_BATCHES,
        forward_s=pass_s,
        backward_s=2 * pass_s,
        stage_bytes=FLOAT_BYTES * q.workload.num_parameters / q.pp,
    )
    network = q.machines.network or q.machines.host.device_link
    cluster = pipelines.Cluster(
        gpus_per_machine=max(1, q.machines.host.num_devices // q.tp), card_bytes_per_s=network.bandwidth_bytes_per_s
    )
    shape, delay_s = (ITERATIONS, q.pp, q.num_replicas), (q.slow - 1) * q.computation_s
    late_s = np.zeros(shape)
    if q.slow_share == 1:
        late_s[:, 0, 0] = delay_s
    else:
        late_s = pipelines.drawn_delays_s(*shape, delay_s=delay_s, share=q.slow_share)
    iterations_s = {
        scheme: pipelines.simulate(scheme, work, cluster, late_s).iteration_s
        for scheme in (pipelines.Scheme.ALL_REDUCE, pipelines.Scheme.SDPIPE)
    }
    return Prediction(
        plain="an all-reduce after 1F1B",
        without_s=iterations_s[pipelines.Scheme.ALL_REDUCE],
        with_s=iterations_s[pipelines.Scheme.SDPIPE],
        how=f"{q.num_replicas} pipelines of {q.pp} stages",
        ratio=delay_s / work.iteration_s,
    )


# --- failures


def gemini(q: Question) -> Prediction | str:
    """Compare checkpoints in the memory of other machines with torch's asynchronous ones, which stop nothing here."""
    if q.machines.num_hosts == 1:
        return "one machine has no other to keep its checkpoint"
    if q.failures_per_machine_day == 0:
        return "no machine fails"
    if q.workload is None:
        return "its model is of transformers"
    host, storage = q.machines.host, q.machines.storage
    assert q.machines.network is not None and storage is not None
    fitted = checkpoints.calibrated()
    machine = FittedMachine(
        name=q.machines.name,
        source=q.machines.source,
        flops_per_s=q.flops_per_s,
        link=host.device_link,
        num_hosts=q.machines.num_hosts,
        devices_per_host=host.num_devices,
        memory_bytes_per_s=host.device.memory_bytes_per_s,
        host_memory_bytes=host.memory_bytes,
        network=q.machines.network,
        network_share=fitted.p4d.network_share,
        copy_bytes_per_s=checkpoints.COPY_BYTES_PER_S,
        storage_bytes_per_s=storage.bandwidth_bytes_per_s,
    )
    job = checkpoints.job_of(q.workload, machine)
    idle_s = checkpoints.iteration_of(q.workload, machine, Sending.BASELINE).idle_s
    memory_bytes = checkpoints.agent_memory_bytes(q.workload, machine, num_replicas=NUM_REPLICAS)
    if host.memory_bytes is not None and memory_bytes > host.memory_bytes:
        return f"two replicas need {memory_bytes / 1e9:,.0f} GB of a machine's memory, more than it has"
    needs = CheckpointingNeeds(
        job=job,
        idle_s=min(idle_s, job.iteration_s),
        memory_bytes=max(memory_bytes, BUFFERS_PER_REPLICA * job.shard_bytes),
        failures_per_machine_day=q.failures_per_machine_day,
    )
    overheads = checkpoints.PAPER_OVERHEADS
    waited_s = overheads.detection_s + overheads.warm_up_s
    waited_s += (overheads.least_replacement_s + overheads.most_replacement_s) / 2
    written_s = overheads.serialise_s * job.shard_bytes / checkpoints.GPT2_100B.shard_bytes
    lost_s = average_wasted_s(high_frequency(job), job, Tier.STORAGE)
    best = best_checkpointing(needs)
    shares = (needs.failures_per_s * (waited_s + lost_s), best.waste + needs.failures_per_s * (waited_s + written_s))
    if shares[1] >= 1:
        return "failures come faster than recoveries end"
    without_s, with_s = (checkpoints.DAY_S / (1 - share) if share < 1 else math.inf for share in shares)
    return Prediction(
        plain="torch's asynchronous checkpoints as often as storage allows",
        without_s=without_s,
        with_s=with_s,
        of="a day of training, failures included",
        how=f"{best.num_replicas} replicas every {best.interval_iterations} iterations of ZeRO-3",
        memory=f"{memory_bytes / 1e9:,.0f} GB of each machine's memory",
        ratio=checkpoints.checkpoint_s(q.workload, machine) / job.iteration_s,
    )


PREDICTIONS: Mapping[str, Callable[[Question], Prediction | str]] = MappingProxyType(
    {
        technique.__name__: technique
        for technique in (activation_compression, atp, cupcake, espresso, flextp, gemini, sdpipe, zen)
    }
)
NETWORK = Decider(name="network", low=0.1, high=1e4, words="{:.3g} Gbit/s between machines")
SLOW = Decider(name="slow", low=1.001, high=32.0, words="a GPU that takes {:.2f} times as long")
FAILURES = Decider(name="failures_per_machine_day", low=1e-4, high=1.0, words="{:.2g} failures a machine and day")
DECIDERS: Mapping[str, Decider] = MappingProxyType(
    dict.fromkeys(("atp", "cupcake", "espresso"), NETWORK)
    | dict.fromkeys(("flextp", "sdpipe"), SLOW)
    | {"gemini": FAILURES, "zen": Decider(name="density", low=1e-4, high=0.99, words="a density of {:.2g}")}
)
