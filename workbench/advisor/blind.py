"""The blind test: settings are drawn, times predicted and sealed, and only then is every scheme measured in turns.

A kind of setting has a training, its schemes, and the cost models of the techniques, calibrated on the ranks.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from statistics import median
from types import MappingProxyType
from typing import Any

import numpy as np

from workbench.cluster import GIGABIT_BYTES_PER_S, Link
from workbench.models.small import SMALL_MODELS
from workbench.parallel.links import measure_link
from workbench.rows import spread_row, value_row
from workbench.rows.progress import say_progress
from workbench.study import data_parallel
from workbench.study.data_parallel import DDP, FP16, Hooks
from workbench.study.timing import Timed, Turns, open_ranks, time_variants
from workbench.techniques.activation_compression.cost import iteration_time, read_variant
from workbench.techniques.activation_compression.measured import fitting, iterations
from workbench.techniques.atp import measured as meshes
from workbench.techniques.atp.method.search import search_exactly
from workbench.techniques.cupcake import cost as fusions
from workbench.techniques.espresso.planning import PLANNED
from workbench.techniques.flextp.measured import rows as balanced
from workbench.techniques.flextp.measured.timing import Measured, Size, measure_variants
from workbench.techniques.flextp.runtime import PATIENCE
from workbench.techniques.gemini.control import Fault, TrainingOutcome, Victim
from workbench.techniques.gemini.measured.recovery import phases_of, train
from workbench.techniques.gemini.measured.training import Size as Trained
from workbench.techniques.gemini.runtime import PersistentTier
from workbench.techniques.sdpipe import cost as pipelines
from workbench.techniques.sdpipe import training as sdpipe

from . import blind_ranks
from .blind_ranks import CUPCAKE, ESPRESSO, NUM_RANKS, SUMS, Given, attach, calibrate_meshes, plan_gradients, sums
from .predictions import PAYS, sums_s

__all__ = ["KINDS", "Drawn", "Predicted", "advised", "draw", "measure", "predict", "rows", "seal"]

CODES = ("w/o", "A1", "T1", "Q1")  # of activations: none, learned, sparse, quantised
FITTED = ({"micro_batch": 1, "sequence": 64, "hidden": 128}, {"micro_batch": 10, "sequence": 128, "hidden": 256})
SMALL_BERT = MappingProxyType({"layers": 4, "compressed_layers": 2, "value_bytes": 4, "fuse_gradients": True})
STAGES = PIPELINES = 2
PIPELINED_ITERATIONS = 16  # the last half counts
KNOWN_PASS_S = 0.012
RUNS = 2  # of a pipelined training with each scheme, on ranks of its own
WITHIN = 1.1  # most time of the advised scheme, as a multiple of the fastest one's


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """A drawn setting."""

    number: int
    kind: str  # a name of KINDS
    num_hosts: int  # of the ranks: 2 x 2 or 4 x 1
    gigabits_per_s: float  # of a host's link; 0 for this machine's loopback
    sizes: Mapping[str, Any] = field(default_factory=dict)  # what is trained

    @property
    def link(self) -> Link | None:
        rate = self.gigabits_per_s * GIGABIT_BYTES_PER_S
        return Link(bandwidth_bytes_per_s=rate, source="a drawn rate") if rate else None

    @property
    def places(self) -> dict[str, Any]:
        """Arguments of `open_ranks`."""
        return {"link": self.link, "num_hosts": self.num_hosts, "preload": (blind_ranks.__name__,)}

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
                          for name, value in self.sizes.items())  # fmt: skip
        link = f"{self.gigabits_per_s:g} Gbit/s" if self.gigabits_per_s else "loopback"
        return f"{self.kind}: {sizes}; {self.num_hosts} x {NUM_RANKS // self.num_hosts} ranks, {link}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """What is predicted for a setting."""

    seconds: Mapping[str, float]  # of an iteration, by scheme
    plain: Sequence[str]  # schemes that no technique is needed for
    plans: Mapping[str, Any] = field(default_factory=dict)  # what was planned, for the measurement
    refused: str = ""  # why there is no prediction


def advised(predicted: Predicted) -> str:
    """Return the advised scheme: the fastest one if it gains `PAYS` over the best plain one, by the predictions."""
    plain = min(predicted.plain, key=predicted.seconds.__getitem__)
    best = min(predicted.seconds, key=predicted.seconds.__getitem__)
    return best if predicted.seconds[plain] / predicted.seconds[best] >= PAYS else plain


def draw(number: int, seed: int = 0) -> list[Drawn]:
    """Draw settings, the kinds in turns; the rule was fixed before the first measurement."""
    random, settings = np.random.default_rng(seed), []

    def one_of(*values: Any) -> Any:
        return values[random.integers(len(values))]

    def between(low: float, high: float) -> float:
        return float(f"{np.exp(random.uniform(np.log(low), np.log(high))):.2g}")

    for at in range(number):
        kind, num_hosts, rate = list(KINDS)[at % len(KINDS)], one_of(2, 4), between(0.2, 5.0)
        if kind == "gradients":
            sizes = {"model": one_of(*SMALL_MODELS), "codec": one_of("efsignsgd", "dgc"), "batch": one_of(2, 4, 8)}
        elif kind == "embeddings":
            num_hosts = NUM_RANKS  # its model knows one rank a machine
            sizes = {"rows": one_of(10_000, 30_000, 100_000), "width": one_of(8, 16, 32)}
            sizes |= {"density": between(0.003, 0.7)}
        elif kind == "meshes":
            sizes = {"batch": one_of(4, 8), "sequence": one_of(32, 64, 128), "hidden": one_of(128, 256, 512)}
        elif kind == "activations":
            sizes = {"micro_batch": one_of(3, 6, 8), "sequence": one_of(64, 96, 128), "hidden": one_of(128, 256)}
        elif kind == "tensors":
            num_hosts, rate = 1, 0.0
            sizes = {"hidden": one_of(128, 256), "layers": one_of(1, 2), "batch": one_of(4, 8, 16)}
            sizes |= {"skewness": between(1.1, 8.0)}
        elif kind == "failures":
            num_hosts, rate = 1, 0.0
            sizes = {"device_s": between(0.05, 0.5), "every": one_of(5, 10, 20)}
            sizes |= {"lost_at": int(random.integers(20, 40))}
        else:
            num_hosts, rate = 1, 0.0
            sizes = {"pass_s": between(0.008, 0.02), "delay": between(0.3, 3.0), "delay_share": between(0.05, 0.5)}
        settings.append(Drawn(number=at + 1, kind=kind, num_hosts=num_hosts, gigabits_per_s=rate, sizes=sizes))
    return settings


def predict(setting: Drawn) -> Predicted:
    """Calibrate the cost models on ranks that run no scheme of the setting, and predict every scheme.

    Where samples are too noisy for a model to be fitted, nothing is predicted, and the setting counts as missed.
    """
    try:
        return KINDS[setting.kind][0](setting)
    except ValueError as error:
        return Predicted(seconds={}, plain=(), refused=str(error))


def measure(setting: Drawn, predicted: Predicted, rounds: int) -> Mapping[str, Sequence[float]]:
    """Measure every scheme in turns on other ranks; return the seconds of an iteration, round by round."""
    return {} if predicted.refused else KINDS[setting.kind][1](setting, predicted, Turns(rounds=rounds, warmup=1))


def seal(settings: Sequence[Drawn], predictions: Sequence[Predicted]) -> str:
    """Return the digest of all predictions, which is taken before anything is measured."""
    pairs = zip(settings, predictions, strict=True)
    text = [[asdict(setting), dict(predicted.seconds), list(predicted.plain)] for setting, predicted in pairs]
    return hashlib.sha256(json.dumps(text, sort_keys=True).encode()).hexdigest()


def rows(
    settings: Sequence[Drawn],
    predictions: Sequence[Predicted],
    measured: Sequence[Mapping[str, Sequence[float]]],
    sealed: str,
) -> list[dict[str, Any]]:
    """Return predicted and measured times, errors in per cent and regrets by setting, then what they come to.

    `regret` is the time of the advised scheme over the fastest one's, less 1, in per cent; `plain_regret` that of the
    best plain scheme by the predictions, which is what advising nothing costs.

    Raises:
        ValueError: if the predictions are not those of the seal.
    """
    if (now := seal(settings, predictions)) != sealed:
        raise ValueError(f"sealed is {sealed!r}; the predictions have {now!r}, they were changed after the seal")
    table: list[dict[str, Any]] = []
    errors: dict[str, list[float]] = {}
    regrets: list[float] = []
    plain_regrets: list[float] = []
    for setting, predicted, seconds in zip(settings, predictions, measured, strict=True):
        keys = {"setting": setting.number, "kind": setting.kind, "what": str(setting)}
        if predicted.refused:
            table.append(value_row("refused", 1.0, why=predicted.refused, **keys))
            continue
        taken = {scheme: median(times) for scheme, times in seconds.items()}
        fastest, chosen = min(taken, key=taken.__getitem__), advised(predicted)
        plain = min(predicted.plain, key=predicted.seconds.__getitem__)
        for scheme, times in seconds.items():
            error = 100 * (predicted.seconds[scheme] / taken[scheme] - 1)
            errors.setdefault(setting.kind, []).append(abs(error))
            scheme_keys: dict[str, Any] = keys | {"scheme": scheme}
            table.append(value_row("predicted_s", predicted.seconds[scheme], "s", **scheme_keys))
            table.append(spread_row("iteration_s", times, "s", **scheme_keys))
            table.append(value_row("error", error, "%", **scheme_keys))
        regrets.append(100 * (taken[chosen] / taken[fastest] - 1))
        plain_regrets.append(100 * (taken[plain] / taken[fastest] - 1))
        table.append(value_row("regret", regrets[-1], "%", advised=chosen, fastest=fastest, **keys))
        table.append(value_row("plain_regret", plain_regrets[-1], "%", plain=plain, fastest=fastest, **keys))
    most = 100 * (WITHIN - 1)
    if not regrets:
        raise ValueError(f"predictions has {len(predictions)} entries; no model could be calibrated for any of them")
    table += [value_row("median_error_of_kind", median(values), "%", kind=kind) for kind, values in errors.items()]
    table.append(value_row("median_error", median(chain.from_iterable(errors.values())), "%"))
    for quantity, values in (("within", regrets), ("plain_within", plain_regrets)):
        table.append(value_row(f"num_{quantity}", sum(regret <= most for regret in values)))
        table.append(value_row(f"share_{quantity}", sum(regret <= most for regret in values) / len(settings)))
    return [*table, value_row("largest_regret", max(regrets), "%"), value_row("settings", len(settings))]


# --- gradients: Espresso and Cupcake beside DistributedDataParallel in FP32 and 16 bits


def _gradients_of(setting: Drawn) -> data_parallel.Setting:
    inside = NUM_RANKS // setting.num_hosts
    return data_parallel.Setting(
        num_machines=setting.num_hosts, gpus_per_machine=inside, gigabits_per_s=setting.gigabits_per_s, **setting.sizes
    )


def _predict_gradients(setting: Drawn) -> Predicted:
    """Predict plain buckets by Cupcake's model, which has buckets."""
    with open_ranks(NUM_RANKS, **setting.places) as ranks:
        plans, *_ = ranks.run(plan_gradients, _gradients_of(setting))
    of_cupcake = plans[CUPCAKE].predicted_s
    seconds = {DDP: of_cupcake[fusions.FP32_BUCKETS], FP16: of_cupcake[fusions.FP16]}
    seconds |= {ESPRESSO: plans[ESPRESSO].predicted_s[PLANNED], CUPCAKE: of_cupcake[CUPCAKE]}
    return Predicted(seconds=seconds, plain=(DDP, FP16), plans=plans)


def _measure_gradients(setting: Drawn, predicted: Predicted, turns: Turns) -> Mapping[str, Sequence[float]]:
    hooks = Hooks(schemes=(ESPRESSO, CUPCAKE), plan=Given(predicted.plans), attach=attach)
    schemes = list(predicted.seconds)
    return _seconds(data_parallel.time_schemes(_gradients_of(setting), schemes, hooks, turns), predicted)


def _seconds(timed: Timed, predicted: Predicted) -> dict[str, list[float]]:
    return {scheme: timed.iterations_s(scheme) for scheme in predicted.seconds}


# --- embeddings: Zen beside torch's dense sum and a gather of indices and values (AGsparse)

KNOWN_TABLES = ({"rows": 2_000, "width": 8, "density": 0.05}, {"rows": 50_000, "width": 16, "density": 0.4})


def _predict_embeddings(setting: Drawn) -> Predicted:
    """Fit what a scheme takes beyond the time of its bytes to two other tables on the same links."""
    with open_ranks(NUM_RANKS, **setting.places) as ranks:
        link, *_ = ranks.run(measure_link)
        known = [time_variants(ranks, sums, sizes, turns=Turns(rounds=6, warmup=1)) for sizes in KNOWN_TABLES]

    def of_bytes(sizes: Mapping[str, Any]) -> dict[str, float]:
        return sums_s(NUM_RANKS, sizes["density"], (sizes["rows"], sizes["width"]), link)

    in_theory, seconds = [of_bytes(sizes) for sizes in KNOWN_TABLES], {}
    for name, scheme in SUMS.items():
        taken_s = [median(timed.iterations_s(name)) for timed in known]
        factor, startup_s = np.polyfit([modelled_s[scheme] for modelled_s in in_theory], taken_s, 1)
        seconds[name] = float(startup_s + factor * of_bytes(setting.sizes)[scheme])
        if not seconds[name] > 0:
            raise ValueError(f"{name} takes {taken_s} s with two tables: too noisy to fit")
    return Predicted(seconds=seconds, plain=list(SUMS)[:2])


def _measure_embeddings(setting: Drawn, predicted: Predicted, turns: Turns) -> Mapping[str, Sequence[float]]:
    with open_ranks(NUM_RANKS, **setting.places) as ranks:
        return _seconds(time_variants(ranks, sums, dict(setting.sizes), turns=turns), predicted)


# --- meshes: ATP beside Megatron's tensor parallelism with and without sequence parallelism

MEGATRONS = ("ATP-1", "ATP-1, sequence parallel")


def _block_of(setting: Drawn) -> meshes.Setting:
    rate = setting.gigabits_per_s
    return meshes.Setting(num_ranks=NUM_RANKS, num_hosts=setting.num_hosts, gigabits_per_s=rate, **setting.sizes)


def _predict_meshes(setting: Drawn) -> Predicted:
    block = _block_of(setting)
    with open_ranks(NUM_RANKS, **setting.places) as ranks:
        (matrix, repeated, computation_s), *_ = ranks.run(calibrate_meshes, block)
    work = replace(block.workload, repeated_s_per_value=repeated)
    every = search_exactly(matrix, NUM_RANKS, work)
    candidates = [
        candidate for candidate in every if candidate.d1 > 1 or not candidate.sequence_parallel
    ]  # one rank cuts no sequence
    return Predicted(
        seconds={candidate.name: computation_s + candidate.total_s for candidate in candidates}, plain=MEGATRONS
    )


def _measure_meshes(setting: Drawn, predicted: Predicted, turns: Turns) -> Mapping[str, Sequence[float]]:
    return _seconds(meshes.time_schemes(_block_of(setting), list(predicted.seconds), turns, links=False), predicted)


# --- activations: codes of tensor parallelism beside none


def _predict_activations(setting: Drawn) -> Predicted:
    """Fit a machine to two other sizes over the same link."""
    seen: list[dict[str, Any]] = []
    few = {"num_iterations": 6, **SMALL_BERT}
    with open_ranks(NUM_RANKS, **setting.places) as ranks:
        for sizes in FITTED:
            seen += iterations.measure_on(ranks, CODES, [(NUM_RANKS, 1)], keys=sizes, **sizes, **few).rows
    machine = fitting.fit_machine(fitting.settings_of(seen, **SMALL_BERT)).machine
    variants = _coded(setting)
    return Predicted(
        seconds={name: iteration_time(coded, machine).total_s for name, (coded, _) in variants.items()}, plain=CODES[:1]
    )


def _coded(setting: Drawn) -> dict[str, tuple[Any, Any]]:
    return {name: read_variant(name, tp=NUM_RANKS, pp=1, **setting.sizes, **SMALL_BERT) for name in CODES}


def _measure_activations(setting: Drawn, predicted: Predicted, turns: Turns) -> Mapping[str, Sequence[float]]:
    with open_ranks(NUM_RANKS, **setting.places) as ranks:
        return _seconds(time_variants(ranks, iterations.trials, _coded(setting), 0, turns=turns), predicted)


# --- pipelines: SDPipe beside an all-reduce, under drawn delays; each pass lasts its nominal time

FLUSHED = {"an all-reduce after 1F1B": pipelines.Scheme.ALL_REDUCE, "SDPipe": pipelines.Scheme.SDPIPE}


def _training_of(setting: Drawn, scheme: str, seed: int = 0) -> sdpipe.Setting:
    more: dict[str, Any] = {"num_stages": STAGES, "num_pipelines": PIPELINES, "trace": "drawn"}
    return sdpipe.Setting(scheme=scheme, seed=seed, iterations=PIPELINED_ITERATIONS, **more, **setting.sizes)


def _predict_pipelines(setting: Drawn) -> Predicted:
    """Lengthen a pass by what it takes beyond its nominal time in other pipelines, which nothing delays."""
    known = replace(_training_of(setting, pipelines.Scheme.ALL_REDUCE), trace="none", delay=0.0, pass_s=KNOWN_PASS_S)
    late_s = KNOWN_PASS_S * (_trained_s(known) / _simulated_s(known) - 1)
    seconds = {name: _simulated_s(_training_of(setting, scheme), late_s) for name, scheme in FLUSHED.items()}
    return Predicted(seconds=seconds, plain=list(FLUSHED)[:1])


def _simulated_s(training: sdpipe.Setting, late_s: float = 0.0) -> float:
    """Return the seconds of an iteration if each forward pass takes `late_s` longer, a backward pass twice as much."""
    workload = replace(training, pass_s=training.pass_s + late_s).workload
    delays_s, scheme = sdpipe.delays_of(training), pipelines.Scheme(training.scheme)
    run = pipelines.simulate(scheme, workload, pipelines.Cluster(), delays_s, history=training.history)
    return run.iteration_s


def _trained_s(training: sdpipe.Setting) -> float:
    """Train on ranks; return the seconds of an iteration in the last half."""
    ends_s = np.array([seen.ends_s for seen in sdpipe.run_workers(training, sdpipe.delays_of(training))])
    half = training.iterations // 2
    spans_s = (ends_s[:, -1] - ends_s[:, half - 1]) / (training.iterations - half)
    return float(len(spans_s) / (1 / spans_s).sum())  # as `Run.iteration_s`


def _measure_pipelines(setting: Drawn, predicted: Predicted, turns: Turns) -> Mapping[str, Sequence[float]]:
    """Train with each scheme in turns, with the predicted delays."""
    seconds: dict[str, list[float]] = {name: [] for name in FLUSHED}
    for number in range(RUNS):
        for name, scheme in FLUSHED.items():
            seconds[name].append(_trained_s(_training_of(setting, scheme)))
        say_progress(number + 1, RUNS, "runs")
    return seconds


# --- tensors: FlexTP's migration and resizing beside Megatron's tensor parallelism, which waits for its slow rank

WAITING = "Megatron's TP, which waits"
BALANCED = ("MIG", "SEMI")
SLOWNESS = 4.0  # of all ranks' products, by sleeping, so that four ranks do not wait for two cores


def _balanced(skewness: float) -> dict[str, balanced.Variant]:
    """Return the schemes, the first rank so many times as slow as the others."""
    waiting = balanced.Variant(skewness=(skewness,))
    return {WAITING: waiting} | {
        name: replace(waiting, solution=name, refine=True, patience=PATIENCE) for name in BALANCED
    }


def _measure_balanced(setting: Drawn, variants: Mapping[str, balanced.Variant], rounds: int) -> Measured:
    size = Size(**{name: value for name, value in setting.sizes.items() if name != "skewness"})
    return measure_variants(dict(variants), size=size, num_ranks=NUM_RANKS, rounds=rounds, slowness=SLOWNESS)


def _predict_tensors(setting: Drawn) -> Predicted:
    """Time the training while no rank is slow, and FlexTP's pre-test."""
    even = _measure_balanced(setting, _balanced(1.0), rounds=6)
    own_s, product_s = (
        next(row["value"] for row in even.rows if (row["quantity"], row["variant"]) == (quantity, WAITING))
        for quantity in ("iteration_s", "product_s")
    )
    assert even.costs is not None  # SEMI needs them
    known: dict[str, Any] = {"own_s": own_s, "product_s": product_s}
    schemes = _balanced(setting.sizes["skewness"]).items()
    seconds = {name: balanced.predict(scheme, even.costs, NUM_RANKS, **known)[0] for name, scheme in schemes}
    return Predicted(seconds=seconds, plain=(WAITING,))


def _measure_tensors(setting: Drawn, predicted: Predicted, turns: Turns) -> Mapping[str, Sequence[float]]:
    return _measure_balanced(setting, _balanced(setting.sizes["skewness"]), turns.rounds).rounds


# --- failures: Gemini's checkpoints beside some in storage, in a training of 40 iterations that loses a machine

STORED, GEMINI = "checkpoints in storage", "Gemini"
ITERATIONS = 40
KNOWN_FAILURE = MappingProxyType({"device_s": 0.1, "every": 8, "lost_at": 12})


def _train_and_lose(scheme: str, sizes: Mapping[str, Any], iterations: int) -> TrainingOutcome:
    """Train on four machines, of which one is lost; with a single replica it is storage that has the lost shard."""
    with tempfile.TemporaryDirectory(prefix="blind-storage-") as folder:
        options: dict[str, Any] = {"num_replicas": 1, "storage_every": sizes["every"]}
        options |= {"storage": PersistentTier(f"file://{folder}")}
        fault = Fault(kills=Victim.MACHINE, numbers=(1,), at_iteration=sizes["lost_at"])
        training = Trained(device_s=sizes["device_s"], iterations=iterations)
        return train(training, NUM_RANKS, {"num_replicas": 2} if scheme == GEMINI else options, faults=[fault])


def _predict_failures(setting: Drawn) -> Predicted:
    """Take over from another training, which loses a machine, too, what recovery and an iteration's own work take."""
    device_s, lost_at = setting.sizes["device_s"], setting.sizes["lost_at"]
    seconds = {}
    for scheme in (STORED, GEMINI):
        known = phases_of(_train_and_lose(scheme, KNOWN_FAILURE, iterations=16))
        lost = known.lost_iterations if scheme == GEMINI else lost_at % setting.sizes["every"]
        iteration_s = known.usual_s - KNOWN_FAILURE["device_s"] + device_s
        seconds[scheme] = iteration_s + (known.total_s + lost * iteration_s) / ITERATIONS
    return Predicted(seconds=seconds, plain=(STORED,))


def _measure_failures(setting: Drawn, predicted: Predicted, turns: Turns) -> Mapping[str, Sequence[float]]:
    """Train with each scheme in turns, from the end of the first iteration to that of the last."""
    seconds: dict[str, list[float]] = {STORED: [], GEMINI: []}
    for _ in range(RUNS):
        for scheme, times_s in seconds.items():
            ends = _train_and_lose(scheme, setting.sizes, ITERATIONS).named("iteration")
            times_s.append((ends[-1].time_s - ends[0].time_s) / (ITERATIONS - 1))
    return seconds


Predict = Callable[[Drawn], Predicted]
Measure = Callable[[Drawn, Predicted, Turns], Mapping[str, Sequence[float]]]
KINDS: Mapping[str, tuple[Predict, Measure]] = MappingProxyType(
    {
        "gradients": (_predict_gradients, _measure_gradients),
        "embeddings": (_predict_embeddings, _measure_embeddings),
        "meshes": (_predict_meshes, _measure_meshes),
        "activations": (_predict_activations, _measure_activations),
        "pipelines": (_predict_pipelines, _measure_pipelines),
        "tensors": (_predict_tensors, _measure_tensors),
        "failures": (_predict_failures, _measure_failures),
    }
)
"""How each kind is predicted and measured."""
