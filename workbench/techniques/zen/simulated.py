"""The rows of what is simulated: times of the schemes on the paper's clusters, from index sets of real batches.

The sets of the LSTM are of the paper's own size; the other models' are those of smaller models of the kind, of which
densities, overlaps and skewness are taken, with the paper's numbers of parameters.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import numpy as np

from workbench.cluster import GIGABIT_BYTES_PER_S, Link
from workbench.rows import value_row
from workbench.study.embedding_tasks import EmbeddingTask

from .cost import (
    SCHEMES,
    Sparsity,
    bytes_on_busiest_link,
    lower_bound_bytes,
    lstm_sets,
    seconds,
    sparsity_of,
    task_sets,
)
from .method.sparsity import union_of

__all__ = ["CALIBRATION", "GPUS_PER_MACHINE", "MODELS", "Model", "communication_rows", "scaling_rows"]
__all__ += ["throughput_rows"]

GPUS_PER_MACHINE = 8
VALUE_BYTES = 4
BITS = 8
UPPER_BOUND = "Upper bound"


@dataclass(frozen=True, slots=True)
class Model:
    """A row of table 3.1, and the batch of our own data that stands for it."""

    task: str  # of EMBEDDING_TASKS; the LSTM's sets are the paper's own
    mlp_parameters: float
    embedding_parameters: float
    width: int  # of the tables; of DeepFM and NMT ours
    batch: int  # examples of a GPU in the paper
    our_batch: int  # examples that our sets are of
    gain: float  # of Zen in throughput over AllReduce, 16 machines, as the text says
    gain_at_gbps: int  # on which network


MODELS: Mapping[str, Model] = MappingProxyType(
    {
        "LSTM": Model("lstm", 20e6, 406e6, 256, 128, 128, 3.1, 25),
        "DeepFM": Model("deepfm", 68e6, 214e6, 16, 1024, 62, 1.46, 100),
        "NMT": Model("nmt", 31e6, 112e6, 256, 64, 64, 1.45, 100),
        "BERT": Model("bert", 86e6, 23e6, 768, 4, 40, 1.13, 25),
    }
)
"""DeepFM's batch is smaller so that 128 GPUs read each of our 8,000 rows once; BERT's sentences are shorter."""


PRINTED = MappingProxyType({"BERT": (0.0106, 0.408)})
"""Densities of a GPU's gradient (table 3.1) and of the sum of 128 GPUs (section 3.3.4)."""
PRINTED_COO = MappingProxyType({"LSTM": 4.97, "BERT": 2.39, "NMT": 1 / 0.64})
"""Speedups with COO: figure 3.18, and for NMT the 36 % of figure 3.7."""

CALIBRATION = MappingProxyType(
    {
        "sizes and links": "as the paper names them",
        "densities": "rows of real batches: " + ", ".join(f"{name} {m.our_batch} a GPU" for name, m in MODELS.items()),
        "computation": "from one gain of the text for each model, which DeepFM does not reach even with 0 s: "
        + ", ".join(f"{name} {m.gain} at {m.gain_at_gbps} Gbit/s" for name, m in MODELS.items()),
    }
)


@cache
def _gpu_sets(name: str, num_gpus: int) -> list[tuple[list[np.ndarray], int]]:
    if name == "LSTM":
        sets, num_rows = lstm_sets(num_gpus)
        half = num_rows // 2  # the input table, then the softmax
        return [([rows[rows < half] for rows in sets], half), ([rows[rows >= half] - half for rows in sets], half)]
    return task_sets(EmbeddingTask(MODELS[name].task, batch=MODELS[name].our_batch, seed=0), num_gpus)


@cache
def sparsities_on(name: str, num_machines: int, gpus_per_machine: int) -> list[Sparsity]:
    """Return the sparsity of each table's gradients that machines exchange: each has the sum of its GPUs' batches."""
    width, sparsities = MODELS[name].width, []
    for sets, num_rows in _gpu_sets(name, num_machines * gpus_per_machine):
        starts = range(0, len(sets), gpus_per_machine)
        summed = [union_of(sets[first : first + gpus_per_machine]) for first in starts]
        sparsities.append(sparsity_of(summed, num_rows, width, num_indices=width))
    return sparsities


def _sum_of(quantity: Callable[[Sparsity], float], tables: Sequence[Sparsity]) -> float:
    return sum(quantity(of) for of in tables)


def _density(tables: Sequence[Sparsity], num: int) -> float:
    """Return the density of all tables together, of the sum of so many."""
    return _sum_of(lambda of: of.density[num] * of.domain_size, tables) / _sum_of(lambda of: of.domain_size, tables)


def _gpu_density(name: str, num_gpus: int) -> float:
    """Return the mean density of a GPU's gradients, of all tables together."""
    tables = _gpu_sets(name, num_gpus)
    touched = sum(float(np.mean([len(rows) for rows in sets])) for sets, _ in tables)
    return touched / sum(num_rows for _, num_rows in tables)


def scaling_rows(*, model: str, num_gpus: Sequence[int]) -> list[dict[str, Any]]:
    """Return times over that of Dense, each GPU a machine of its own, by number of GPUs."""
    rows = []
    for num in num_gpus:
        tables = sparsities_on(model, num, 1)
        dense = _sum_of(partial(bytes_on_busiest_link, "Dense"), tables)
        for scheme in ("Dense", "AGsparse", "SparCML", "Sparse PS", "OmniReduce", "Balanced Parallelism", "Zen"):
            sent = _sum_of(partial(bytes_on_busiest_link, scheme), tables)
            rows.append(value_row("over_dense", sent / dense, scheme=scheme, gpus=num))
        push_for_both = _sum_of(lambda of: bytes_on_busiest_link("Sparse PS", replace(of, pull=of.push)), tables)
        rows.append(value_row("over_dense_with_one_skewness", push_for_both / dense, scheme="Sparse PS", gpus=num))
        rows.append(value_row("density", _density(tables, 1), gpus=num, of="a GPU"))
        rows.append(value_row("density", _density(tables, num), gpus=num, of="the sum"))
    return rows


def _link(gigabits_per_s: float) -> Link:
    return Link(bandwidth_bytes_per_s=gigabits_per_s * GIGABIT_BYTES_PER_S, source="the paper's network, as named")


def _embedding_s(name: str, scheme: str, num_machines: int, link: Link) -> float:
    """Return how long a scheme takes for a model's embeddings, of the paper's number of parameters."""
    tables = sparsities_on(name, num_machines, GPUS_PER_MACHINE)
    scale = MODELS[name].embedding_parameters * VALUE_BYTES / _sum_of(lambda of: of.tensor_bytes, tables)
    if scheme == UPPER_BOUND:
        return scale * _sum_of(lower_bound_bytes, tables) / link.bandwidth_bytes_per_s
    return scale * _sum_of(lambda of: seconds(scheme, of, link), tables)


def communication_rows(*, num_machines: int, gigabits_per_s: float) -> list[dict[str, Any]]:
    """Return how many times as fast as Dense each scheme synchronises the embeddings."""
    link, rows = _link(gigabits_per_s), []
    for name in MODELS:
        times_s = {scheme: _embedding_s(name, scheme, num_machines, link) for scheme in SCHEMES}
        for scheme, taken_s in times_s.items():
            rows.append(value_row("speedup", times_s["Dense"] / taken_s, model=name, scheme=scheme))
            rows.append(value_row("zen_over", taken_s / times_s["Zen"], model=name, scheme=scheme))
        rows.append(value_row("bitmap_gain", times_s["Zen, COO"] / times_s["Zen"] - 1, model=name))
        tables = sparsities_on(name, num_machines, GPUS_PER_MACHINE)
        densities = {"a machine": _density(tables, 1), "the sum": _density(tables, num_machines)}
        densities["a GPU"] = _gpu_density(name, num_machines * GPUS_PER_MACHINE)
        rows += [value_row("density", density, model=name, of=of) for of, density in densities.items()]
        rows.append(value_row("examples", MODELS[name].our_batch * num_machines * GPUS_PER_MACHINE, model=name))
        rows += _printed_rows(name)
    for scheme in SCHEMES:
        best = max(row["value"] for row in rows if row["quantity"] == "zen_over" and row["scheme"] == scheme)
        rows.append(value_row("largest_zen_over", best, scheme=scheme))
        of_scheme = [row for row in rows if row["quantity"] == "speedup" and row["scheme"] == scheme]
        rows.append(min(of_scheme, key=lambda row: row["value"]) | {"quantity": "least_speedup"})
    return rows


def _printed_rows(name: str) -> list[dict[str, Any]]:
    """Return Zen's speedups and its bitmap's gain from bytes with densities of the text, not our data's.

    "printed" are those that it names, with a GPU a machine. "least" are those with which the bitmap gains least, if COO
    gives the printed speedup: it saves indices of the sum alone, so a machine's gradient is then as dense as the sum.
    `pull_saved` is the dense tensor over the printed sum, without and with its indices.
    """
    rows, half = [], 0.5 / PRINTED_COO.get(name, 1.0)
    chosen = {"least": (half, half)} if name in PRINTED_COO else {}
    for of, (sent, summed) in (chosen | ({"printed": PRINTED[name]} if name in PRINTED else {})).items():
        speedups = {"Zen, COO": 1 / (sent + summed), "Zen": 2 / (2 * sent + summed + 1 / (BITS * VALUE_BYTES))}
        for scheme, speedup in speedups.items():
            rows.append(value_row(f"speedup_of_{of}_densities", speedup, model=name, scheme=scheme, gpus=1))
        gain = speedups["Zen"] / speedups["Zen, COO"] - 1
        rows.append(value_row(f"bitmap_gain_of_{of}_densities", gain, model=name, gpus=1))
        if of == "printed":
            rows.append(value_row("pull_saved", 1 / summed, model=name, format="values"))
            rows.append(value_row("pull_saved", 1 / (2 * summed), model=name, format="COO"))
    return rows


def computation_s(name: str) -> float:
    """Return the computation of an iteration at which Zen gains over Dense what the text says, on 16 machines.

    It is not published. With communication D by Dense and Z by Zen it is (D - gain Z) / (gain - 1); 0 if that is less.
    """
    model = MODELS[name]
    dense_s, zen_s = (_communication_s(name, scheme, 16, _link(model.gain_at_gbps)) for scheme in ("Dense", "Zen"))
    return max(0.0, (dense_s - model.gain * zen_s) / (model.gain - 1))


def _communication_s(name: str, scheme: str, num_machines: int, link: Link) -> float:
    """Return the time of all gradients: the scheme's for the embeddings, Dense's for the rest."""
    rest_bytes = 2 * (num_machines - 1) / num_machines * MODELS[name].mlp_parameters * VALUE_BYTES
    return rest_bytes / link.bandwidth_bytes_per_s + _embedding_s(name, scheme, num_machines, link)


def throughput_rows(*, num_machines: Sequence[int], gigabits_per_s: float) -> list[dict[str, Any]]:
    """Return samples a second by scheme and machines, and what Zen gains; see `computation_s`."""
    link, rows = _link(gigabits_per_s), []
    for name, model in MODELS.items():
        rows.append(value_row("computation_s", computation_s(name), "s", model=name))
        most = max(num_machines)
        summed = _density(sparsities_on(name, most, GPUS_PER_MACHINE), most)
        rows.append(value_row("density", _gpu_density(name, most * GPUS_PER_MACHINE), model=name, of="a GPU"))
        rows.append(value_row("density", summed, model=name, of="the sum"))
        rows.append(value_row("examples", model.our_batch * most * GPUS_PER_MACHINE, model=name))
        dense_s, zen_s = (_embedding_s(name, scheme, most, link) for scheme in ("Dense", "Zen"))
        rows += [value_row("dense_s", dense_s, "s", model=name), value_row("zen_s", zen_s, "s", model=name)]
        for num in num_machines:
            rates = {}
            for scheme in (*SCHEMES, UPPER_BOUND):
                iteration_s = computation_s(name) + _communication_s(name, scheme, num, link)
                rates[scheme] = model.batch * GPUS_PER_MACHINE * num / iteration_s
                rows.append(value_row("samples_per_s", rates[scheme], "1/s", model=name, scheme=scheme, machines=num))
            for scheme, rate in rates.items():
                rows.append(value_row("gain", rates["Zen"] / rate, model=name, over=scheme, machines=num))
    return rows
