"""What is asked: a model, machines, batch, failures, a straggler; every default is said."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from workbench.checks import require_counts, require_not_negative, require_positive
from workbench.cluster import GIGABIT_BYTES_PER_S, Machines, Topology, preset
from workbench.models import Workload, h100
from workbench.models.gradients import of_workload
from workbench.models.sizes import Family, ModelSizes
from workbench.study.thesis import scaled
from workbench.techniques.gemini.cost.training import OPT_FAILURES_PER_MACHINE_DAY
from workbench.techniques.gemini.method.waste import GPU_BYTES_PER_PARAMETER, TABLE_6_2
from workbench.techniques.zen.simulated import MODELS as EMBEDDING_MODELS
from workbench.timeline.gradients import FORWARD_SHARE, Gradients

from .live import look_at
from .machines import machines_of

__all__ = ["Question", "ask"]

BATCH, SEQUENCE = 8, 1024  # sequences of a replica and micro-batch, and tokens of each, where nothing is said
STATE_SHARE = 0.8  # of a GPU's memory, for weights, gradients and Adam's moments; the rest is for activations
PASSES = 3  # products of forward and backward, in units of forward
REFERENCE = "gpt2"  # the model whose rate on an H100 stands for that of transformers


def _sizes(family: Family, hidden: int, layers: int, heads: int, words: int, positions: int) -> ModelSizes:
    return ModelSizes(
        family=family,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_layers=layers,
        num_heads=heads,
        vocab_size=words,
        max_positions=positions,
    )


# Radford et al. 2019, table 2; Devlin et al. 2018, section 3.
GPT2_SIZES = {"": (768, 12, 12), " medium": (1024, 24, 16), " large": (1280, 36, 20), " XL": (1600, 48, 25)}
BERT_SIZES = {" base": (768, 12, 12), " large": (1024, 24, 16)}
SIZES = {f"GPT-2{name}": _sizes(Family.GPT_2, *sizes, 50257, 1024) for name, sizes in GPT2_SIZES.items()}
SIZES |= {f"BERT{name}": _sizes(Family.BERT, *sizes, 30522, 512) for name, sizes in BERT_SIZES.items()}
SIZES |= TABLE_6_2
MEASURED = {"GPT-2": "gpt2", "BERT base": "bert_base", "VGG16": "vgg16", "ResNet-50": "resnet50"}
MEASURED |= {"ResNet-101": "resnet101", "word LSTM": "lstm"}
"""Models whose gradients were measured on an H100, by the names in `models.h100`."""
NAMES = list(dict.fromkeys([*SIZES, *MEASURED, *EMBEDDING_MODELS]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A training on machines, as the cost models of the techniques take it."""

    name: str  # of the model
    machines: Topology
    batch: int  # sequences or examples of a replica in an iteration
    sizes: ModelSizes | None  # of a transformer; None for other models
    workload: Workload | None  # the same with its batch
    gradients: Gradients | None  # of a replica, with its seconds of computing; None where they are not known
    embedding: tuple[int, int] | None  # rows and width of tables whose gradients are sparse
    density: float  # share of those rows that one GPU's batch touches
    tp: int  # ranks of a tensor-parallel group
    pp: int  # pipeline stages
    failures_per_machine_day: float
    slow: float  # how many times as long a slow GPU takes
    slow_share: float  # of its iterations; 1 for one GPU that is always slow
    said: tuple[str, ...] = field(default=(), compare=False)  # defaults and assumptions, in words

    def __post_init__(self) -> None:
        require_counts(1, batch=self.batch, tp=self.tp, pp=self.pp)
        require_not_negative(failures_per_machine_day=self.failures_per_machine_day)
        for name, holds, rule in (
            ("density", 0 < self.density <= 1, "above 0 and at most 1"),
            ("slow", 1 <= self.slow < math.inf, "at least 1"),
            ("slow_share", 0 < self.slow_share <= 1, "above 0 and at most 1"),
        ):
            if not holds:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be {rule}")
        if self.machines.num_devices % (self.tp * self.pp):
            raise ValueError(f"tp x pp is {self.tp} x {self.pp}; it must divide the {self.machines.num_devices} GPUs")

    @property
    def num_replicas(self) -> int:
        """Data-parallel replicas."""
        return self.machines.num_devices // (self.tp * self.pp)

    @property
    def computation_s(self) -> float:
        """Seconds that a GPU computes in an iteration; 0 where that is not known."""
        alone_s = self.gradients.forward_s + self.gradients.backward_s if self.gradients else 0.0
        return alone_s / (self.tp * self.pp)

    @property
    def flops_per_s(self) -> float:
        """Rate of a GPU in this model's products."""
        assert self.workload is not None
        return _flops(self.workload) / (self.computation_s * self.tp * self.pp)

    @property
    def cluster(self) -> Machines:
        """The machines as the planners of Espresso and Cupcake take them; start-ups not measured are those of H100."""
        host, assumed = self.machines.host, h100.machines(self.machines.num_hosts, 1.0)
        intra, inter = host.device_link, self.machines.network or host.device_link
        if "latency_s" in intra.inferred:
            intra = replace(intra, latency_s=assumed.intra.latency_s)
        if "latency_s" in inter.inferred:
            inter = replace(inter, latency_s=assumed.inter.latency_s)
        return Machines(
            num_machines=self.machines.num_hosts, gpus_per_machine=host.num_devices, intra=intra, inter=inter
        )

    def value_of(self, name: str) -> float:
        """Return one input; "network" is in Gbit/s."""
        if name != "network":
            return float(getattr(self, name))
        assert self.machines.network is not None
        return self.machines.network.bandwidth_bytes_per_s / GIGABIT_BYTES_PER_S

    def changed(self, name: str, value: float) -> Question:
        """Return the question with one input changed, in the units of `value_of`."""
        if name != "network":
            change: dict[str, Any] = {name: value}
            return replace(self, **change)
        assert self.machines.network is not None
        network = replace(self.machines.network, bandwidth_bytes_per_s=value * GIGABIT_BYTES_PER_S)
        return replace(self, machines=replace(self.machines, network=network))


def ask(
    model: str | Path | dict[str, Any] | nn.Module,
    machines: str | Topology,
    *,
    step: Callable[[], object] | None = None,
    batch: int | None = None,
    sequence: int | None = None,
    tp: int | None = None,
    pp: int | None = None,
    computation_s: float | None = None,
    failures_per_machine_day: float = OPT_FAILURES_PER_MACHINE_DAY,
    slow: float = 1.0,
    slow_share: float = 1.0,
    density: float | None = None,
    embedding: tuple[int, int] | None = None,
) -> Question:
    """Put a question together; `workbench.advise` says what the arguments are. ValueError names what is wrong."""
    topology = machines_of(machines) if isinstance(machines, str) else machines
    said: list[str] = []
    live = None
    if isinstance(model, nn.Module):
        if step is None:
            raise ValueError("step is missing; a module needs a function that runs one forward and backward pass of it")
        live = look_at(model, step)
        name, sizes = live.gradients.name, _sizes_of_config(live.config)
        density = live.density if density is None else density
        if embedding is None and live.embedding is not None and density < 1:
            embedding = live.embedding
            said.append(f"embedding of {embedding[0]:,} rows of {embedding[1]}, {density:.2%} of them in a step")
    else:
        if step is not None:
            raise ValueError(f"step is given, but model is {str(model)!r}; it must be the module that the step runs")
        name, sizes = _model(model)
        if name in EMBEDDING_MODELS and embedding is None:
            paper = EMBEDDING_MODELS[name]
            embedding = round(paper.embedding_parameters / paper.width), paper.width
            said.append(f"embedding of {embedding[0]:,} rows of {embedding[1]} (Zen's table 3.1)")
    density = 1.0 if density is None else density
    timed = MEASURED.get(name) if live is None else None  # whatever the class of one's own module is called
    measured = h100.load(timed) if timed else None
    of_batch, of_sequence = h100.BATCHES[timed] if timed else (BATCH, SEQUENCE)
    seen = ""
    if live is not None and live.tokens is not None:
        (of_batch, of_sequence), seen = live.tokens, ", as in the step"
    elif sizes is not None:
        of_sequence = min(of_sequence, sizes.max_positions)
    for what, given, default in (("batch", batch, of_batch), ("sequence", sequence, of_sequence)):
        if given is None and (sizes is not None or (measured is not None and what == "batch")):
            said.append(f"{what} {default}" + (" a replica" if what == "batch" else "") + seen)
    batch, sequence = of_batch if batch is None else batch, of_sequence if sequence is None else sequence
    require_counts(1, batch=batch, sequence=sequence)
    if live is None:
        gradients, workload = _computation(name, sizes, measured, topology, (batch, sequence), computation_s, said)
    else:
        gradients = _measured_here(live.gradients, computation_s, said)
        workload = None if sizes is None else sizes.workload(name, batch=batch, sequence=sequence)
    if tp is None or pp is None:
        num_trained, frozen_bytes = sum(gradients.num_elements) if gradients else 0, live.frozen_bytes if live else 0
        tp, pp = _fewest_ranks(name, num_trained, frozen_bytes, topology, tp, pp, sizes, said)
    said.append(f"{failures_per_machine_day:g} failures a machine and day")
    said.append("no straggler" if slow == 1 else f"a GPU {slow:g} times as slow, in {slow_share:.0%} of its iterations")
    return Question(
        name=name,
        machines=topology,
        batch=batch,
        sizes=sizes,
        workload=workload,
        gradients=gradients,
        embedding=embedding,
        density=density,
        tp=tp,
        pp=pp,
        failures_per_machine_day=failures_per_machine_day,
        slow=slow,
        slow_share=slow_share,
        said=tuple(said),
    )


def _computation(
    name: str,
    sizes: ModelSizes | None,
    measured: Gradients | None,
    topology: Topology,
    size: tuple[int, int],
    computation_s: float | None,
    said: list[str],
) -> tuple[Gradients | None, Workload | None]:
    """Return the gradients and the layers of a replica's batch with their seconds on one GPU; add what was assumed."""
    batch, sequence = size
    gradients = workload = None
    faster = topology.host.device.fp16_flops_per_s / preset("1x1 H100").host.device.fp16_flops_per_s
    if sizes is not None:
        workload = sizes.workload(name, batch=batch, sequence=sequence)
        alone_s = _flops(workload) / (_reference_flops_per_s() * faster)
        how = f"computation at the {_reference_flops_per_s() / 1e12:.0f} TFLOP/s of GPT-2 on an H100 in TF32"
    if measured is not None:
        share = batch * sequence / math.prod(h100.BATCHES[MEASURED[name]])
        alone_s = (measured.forward_s + measured.backward_s) * share / faster
        how = "computation as measured on an H100 in TF32, in proportion to the batch"
    if sizes is not None or measured is not None:
        if computation_s is None:
            how += "" if faster == 1 else f", times {faster:.2g} by the FP16 rates"
            said.append(f"{how}, {alone_s:.3g} s (yours decides: give computation_s)")
        else:
            require_positive(computation_s=computation_s)
            alone_s = computation_s
        if measured is not None:
            gradients = scaled(measured, alone_s / (measured.forward_s + measured.backward_s))
        else:
            assert workload is not None
            backward_s = alone_s / (1 + FORWARD_SHARE)
            gradients = of_workload(workload, backward_s=backward_s, forward_s=alone_s - backward_s)
    return gradients, workload


def _measured_here(gradients: Gradients, computation_s: float | None, said: list[str]) -> Gradients:
    """Return a module's gradients with the seconds that were measured or, if given, in proportion; say which."""
    here_s = gradients.forward_s + gradients.backward_s
    if computation_s is None:
        said.append(f"computation as {gradients.source}, {here_s:.3g} s (yours decides: give computation_s)")
        return gradients
    require_positive(computation_s=computation_s)
    return scaled(gradients, computation_s / here_s)


def _flops(work: Workload) -> float:
    return PASSES * (work.num_layers * work.layer_flops + work.head_flops)


def _reference_flops_per_s() -> float:
    batch, sequence = h100.BATCHES[REFERENCE]
    measured = h100.load(REFERENCE)
    work = SIZES["GPT-2"].workload("GPT-2", batch=batch, sequence=sequence)
    return _flops(work) / (measured.forward_s + measured.backward_s)


def _fewest_ranks(
    name: str,
    num_trained: float,
    frozen_bytes: int,
    machines: Topology,
    tp: int | None,
    pp: int | None,
    sizes: ModelSizes | None,
    said: list[str],
) -> tuple[int, int]:
    """Return the fewest ranks whose memory holds trained and frozen parameters, as TP and PP; add what was assumed."""
    state_bytes = GPU_BYTES_PER_PARAMETER * num_trained + frozen_bytes
    held = f"{GPU_BYTES_PER_PARAMETER} bytes a parameter"
    held += f" that is trained, and {frozen_bytes / 1e9:.2g} GB of frozen ones" if frozen_bytes else ""
    for layout in _layouts(state_bytes, machines, tp, pp, sizes):
        said.append(f"TP {layout[0]}, PP {layout[1]}: the fewest ranks whose memory holds {held}")
        return layout
    need = f"{name} needs {state_bytes / 1e9:,.0f} GB for its states"
    raise ValueError(f"machines is {machines.name!r}; {need}, more than fits")


def _layouts(
    state_bytes: float, machines: Topology, tp: int | None, pp: int | None, sizes: ModelSizes | None
) -> Iterator[tuple[int, int]]:
    """Yield what fits, the fewest ranks first: tensor parallelism inside a machine, then stages on several."""
    inside, room = machines.host.num_devices, STATE_SHARE * machines.host.device.memory_bytes
    cuts = [cut for cut in range(1, inside + 1) if inside % cut == 0 and (sizes is None or sizes.num_heads % cut == 0)]
    stages = [num_stages for num_stages in range(1, machines.num_hosts + 1) if machines.num_hosts % num_stages == 0]
    for num_stages in stages if pp is None else [pp]:
        for cut in cuts if tp is None else [tp]:
            if state_bytes / (cut * num_stages) <= room:
                yield cut, num_stages


CONFIG = {  # field of ModelSizes -> its names in the configs of Hugging Face
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_layers": ("num_hidden_layers", "n_layer"),
    "num_heads": ("num_attention_heads", "n_head"),
    "vocab_size": ("vocab_size",),
}


def _model(model: str | Path | dict[str, Any]) -> tuple[str, ModelSizes | None]:
    """Return a model's name and sizes: of a known name, or of a Hugging Face config and its few numbers."""
    if isinstance(model, str):
        plain = {_plain(name): name for name in NAMES}
        if _plain(model) in plain:
            return plain[_plain(model)], SIZES.get(plain[_plain(model)])
    if isinstance(model, dict):
        config = model
    else:
        path = Path(model)
        if not path.is_file():
            known = ", ".join(NAMES)
            raise ValueError(f"model is {str(model)!r}; it must be a config.json of Hugging Face or one of {known}")
        config = {"name": str(path)} | json.loads(path.read_text(encoding="utf-8"))
    sizes = _sizes_of_config(config)
    if sizes is None:
        missing = next(names for names in CONFIG.values() if not any(isinstance(config.get(key), int) for key in names))
        raise ValueError(f"model has no {' or '.join(missing)}; a config must have one")
    return str(config.get("name") or config.get("model_type") or "model"), sizes


def _sizes_of_config(config: Mapping[str, Any]) -> ModelSizes | None:
    """Return the sizes of a transformer, None where its config lacks one."""
    sizes: dict[str, int] = {}
    for name, names in CONFIG.items():
        values = [config[key] for key in names if isinstance(config.get(key), int)]
        if not values:
            return None
        sizes[name] = values[0]
    inner = config.get("intermediate_size") or config.get("n_inner") or 4 * sizes["hidden_size"]
    positions = config.get("max_position_embeddings") or config.get("n_positions") or SEQUENCE
    kind = {"bert": Family.BERT, "roberta": Family.ROBERTA}.get(str(config.get("model_type")), Family.GPT_2)
    return ModelSizes(family=kind, intermediate_size=inner, max_positions=positions, **sizes)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
