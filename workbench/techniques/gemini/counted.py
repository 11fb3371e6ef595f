"""Rows of the counted items; a gigabyte is 10⁹ bytes, and probabilities are exact fractions until they are percent."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import comb
from statistics import fmean, pstdev
from types import MappingProxyType
from typing import Any

from workbench.rows import value_row

from . import method
from .method import checkpoint_bytes, components, num_parameters, placement, recovery_probability, union_bound

__all__ = ["FIGURE_6_3", "MACHINES", "PARAMETERS", "count_bounds", "count_checkpoints", "count_gaps", "count_memory"]
__all__ += ["count_idle_spans", "count_parameters", "count_placements", "count_probabilities", "count_theorem"]

Rows = list[dict[str, Any]]

GIGABYTE_BYTES = 10**9
STORAGE_BYTES_PER_S = 20e9 / 8  # 20 Gbps to remote persistent storage (section 2.4)

# Parameters of the models of table 2.1.
PARAMETERS: Mapping[str, float] = MappingProxyType(
    {"Turing-NLG": 17.2e9, "GPT-3": 175e9, "OPT-175B": 175e9, "Gopher": 280e9, "MT-NLG": 530e9, "PaLM": 540e9}
)

GPT_2_PARAMETERS = 1.5e9  # of which PaLM's are 360 times as many (section 6.1)

GPUS_PER_MACHINE = 8
# The machines of table 6.1: gigabytes of a GPU, and of the CPU memory.
MACHINES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "p3dn.24xlarge": (32, 768),
        "p4d.24xlarge": (40, 1152),
        "ND40rs_v2": (32, 672),
        "ND96asr_v4": (40, 900),
        "n1-8-v100": (32, 624),
        "a2-highgpu-8g": (40, 640),
        "DGX A100": (80, 2000),
    }
)

FIGURE_6_3 = ((4, "group"), (4, "ring"), (5, "mixed"))  # machines and kind of its placements, of two replicas
# The largest model that each of the testbeds could train (section 6.7.2).
LARGEST_MODEL = MappingProxyType({"p3dn.24xlarge": "GPT-2 40B", "p4d.24xlarge": "GPT-2 100B"})


def count_checkpoints() -> Rows:
    """Return the size of every checkpoint of table 2.1, and what section 2.4 says of them."""
    rows: Rows = []
    for model, parameters in PARAMETERS.items():
        rows.append(value_row("checkpoint_size", checkpoint_bytes(parameters) / GIGABYTE_BYTES, "GB", model=model))
    first, last = PARAMETERS["Turing-NLG"], PARAMETERS["MT-NLG"]
    transfer_s = checkpoint_bytes(last) / STORAGE_BYTES_PER_S
    wasted_s = transfer_s + transfer_s / 2 + transfer_s  # Eq. 6.1 with checkpoints back to back
    pair: dict[str, Any] = {"from": "Turing-NLG", "to": "MT-NLG"}
    return [
        *rows,
        value_row("growth", last / first, "1", of="parameters", **pair),
        value_row("growth", checkpoint_bytes(last) / checkpoint_bytes(first), "1", of="checkpoint", **pair),
        value_row("growth_elsewhere", PARAMETERS["PaLM"] / GPT_2_PARAMETERS, of="parameters"),
        value_row("time_to_storage", transfer_s / 60, "min", model="MT-NLG"),
        value_row("recovery_overhead", wasted_s / 3600, "h", model="MT-NLG"),
    ]


def count_memory(num_machines: int, num_replicas: int) -> Rows:
    """Return the memory of every machine of table 6.1 beside what checkpoints take of it."""
    num_buffers = method.BUFFERS_PER_REPLICA * num_replicas
    rows: Rows = []
    for name, (of_gpu, of_cpu) in MACHINES.items():
        of_gpus = GPUS_PER_MACHINE * of_gpu
        fullest = of_gpus * method.BYTES_PER_PARAMETER / method.GPU_BYTES_PER_PARAMETER
        rows.append(value_row("memory", of_gpus, "GB", machine=name, memory="GPU"))
        rows.append(value_row("memory", of_cpu, "GB", machine=name, memory="CPU"))
        rows.append(value_row("memory_ratio", of_cpu / of_gpus, "1", machine=name))
        rows.append(value_row("fullest_buffers", num_buffers * fullest, "GB", machine=name, memory="needed"))
        rows.append(value_row("fullest_buffers", of_cpu, "GB", machine=name, memory="there is"))
    for name, model in LARGEST_MODEL.items():
        shard = checkpoint_bytes(num_parameters(method.TABLE_6_2[model])) / num_machines / GIGABYTE_BYTES
        rows.append(value_row("buffers", num_buffers * shard, "GB", machine=name, memory="needed"))
        rows.append(value_row("buffers", MACHINES[name][1], "GB", machine=name, memory="there is"))
    return rows


def count_parameters(num_gpus: int) -> Rows:
    """Return the parameters of every model of table 6.2, as printed and with heads of 128, and a checkpoint."""
    rows: Rows = []
    for name, sizes in method.TABLE_6_2.items():
        wide = replace(sizes, hidden_size=128 * sizes.num_heads)
        rows.append(value_row("parameters", num_parameters(sizes), model=name))
        rows.append(value_row("parameters_of_wide_heads", num_parameters(wide), model=name))
    shard = checkpoint_bytes(num_parameters(method.TABLE_6_2["GPT-2 100B"])) / num_gpus / GIGABYTE_BYTES
    return [*rows, value_row("checkpoint_per_gpu", shard, "GB", model="GPT-2 100B")]


def count_placements(num_replicas: int = 2) -> Rows:
    """Return what the placements of figure 6.3 lose when two machines fail, and how they are divided."""
    rows: Rows = []
    fatal = {}
    for num_machines, kind in FIGURE_6_3:
        placed, num_sets = placement(num_machines, num_replicas, kind), comb(num_machines, num_replicas)
        fatal[kind] = num_sets * (1 - method.recovery_probability_by_definition(placed, num_replicas))
        keys: dict[str, Any] = {"placement": kind, "num_machines": num_machines}
        rows += [value_row("fatal", int(fatal[kind]), "1", **keys), value_row("of", num_sets, "1", **keys)]
        for number, part in enumerate(components(placed), 1):
            rows.append(value_row("part_size", len(part), "1", part=number, **keys))
    saved = 1 - fatal["group"] / fatal["ring"]
    return [*rows, value_row("fallback_saved", _percent(saved), "%", num_machines=4)]


def count_probabilities(machine_counts: Sequence[int], failure_counts: Sequence[int], num_replicas: int = 2) -> Rows:
    """Return how probably training recovers from memory, by machines, failures and placement."""
    rows: Rows = []
    for num_machines, k, kind in product(machine_counts, failure_counts, ("group", "ring")):
        placed = placement(num_machines, num_replicas, kind)
        exact, bound = recovery_probability(placed, k), union_bound(placed, k)
        keys: dict[str, Any] = {"placement": kind, "num_machines": num_machines, "k": k}
        rows.append(value_row("recovery_probability", _percent(exact), "%", way="exact", **keys))
        rows.append(value_row("recovery_probability", _percent(bound), "%", way="bound", **keys))
        rows.append(value_row("fallback", _percent(1 - exact), "%", **keys))
    return rows


def count_bounds(num_machines: int, num_replicas: int, failure_counts: Sequence[int]) -> Rows:
    """Return how far the ring is behind groups, in every reading of the words, and how far the corollary is off."""
    rows: Rows = []
    group, ring = (placement(num_machines, num_replicas, kind) for kind in ("group", "ring"))
    for k in failure_counts:
        keys = {"num_machines": num_machines, "k": k}
        for way, count in (("exact", recovery_probability), ("bound", union_bound)):
            of_group, of_ring = count(group, k), count(ring, k)
            if of_group:
                relative = _percent((of_group - of_ring) / of_group)
                rows.append(value_row("ring_lower", relative, "%", reading=f"{way}, relative", **keys))
            rows.append(value_row("ring_lower", _percent(of_group - of_ring), "%", reading=f"{way}, points", **keys))
        error = recovery_probability(group, k) - union_bound(group, k)
        rows.append(value_row("bound_error", _percent(error), "%", **keys))
    return rows


def count_theorem(sizes: Sequence[Sequence[int]]) -> Rows:
    """Return the best of all placements beside algorithm 6.1's."""
    rows: Rows = []
    for num_machines, num_replicas, k in sizes:
        keys = {"num_machines": num_machines, "num_replicas": num_replicas, "k": k}
        ours = recovery_probability(placement(num_machines, num_replicas), k)
        rows.append(value_row("best_probability", _percent(ours), "%", among="algorithm 6.1", **keys))
        for among in ("all", "balanced"):
            best = method.best_placement(num_machines, num_replicas, k, balanced=among == "balanced").probability
            rows.append(value_row("best_probability", _percent(best), "%", among=among, **keys))
            rows.append(value_row("missed", _percent(best - ours), "%", among=among, **keys))
            if k == num_replicas and among == "all":
                missed = method.upper_bound(num_machines, num_replicas) - best
                rows.append(value_row("upper_bound_missed", _percent(missed), "%", **keys))
    return rows


def count_gaps(most_machines: int, replica_counts: Sequence[int]) -> Rows:
    """Return how much of the paper's bound on the gap algorithm 6.1 uses where m does not divide N."""
    rows: Rows = []
    for size in ((number, m) for m in replica_counts for number in range(m + 1, most_machines + 1) if number % m):
        gap = method.upper_bound(*size) - recovery_probability(placement(*size), size[1])
        share = float(gap / method.gap_bound(*size))
        rows.append(value_row("gap_share", share, "1", num_machines=size[0], num_replicas=size[1]))
    return rows


def _percent(share: Fraction) -> float:
    return float(100 * share)


def count_idle_spans(
    iterations: Sequence[Mapping[Any, float]],  # recorded spans by place
    *,
    left_out: int,  # iterations before the first that is profiled
    threshold_s: float,  # spans whose least length is not above it are not used
    checkpoint_bytes: int,  # of a device
    **traffic: Any,  # see `partition_checkpoint`
) -> Rows:
    """Return how much recorded idle spans deviate, and what algorithm 6.2 makes of them."""
    profiled = iterations[left_out:]
    rows, used_s = [], []
    for place in profiled[0]:
        lengths_s = [spans[place] for spans in profiled if place in spans]
        if len(lengths_s) == len(profiled) and min(lengths_s) > threshold_s:
            used_s.append(min(lengths_s))
            name = f"{place[0]} {place[1]}"
            rows.append(value_row("span", min(lengths_s), "s", span=name))
            rows.append(value_row("deviation", pstdev(lengths_s) / fmean(lengths_s), of="a used span", span=name))
    totals_s = [sum(spans.values()) for spans in profiled]
    rows += [value_row("total_s", total_s, "s", iteration=left_out + number) for number, total_s in enumerate(totals_s)]
    rows.append(value_row("deviation", pstdev(totals_s) / fmean(totals_s), of="all idle time"))
    chunks = method.partition_checkpoint([*used_s, 0.0], checkpoint_bytes, num_replicas=2, **traffic)
    inside = sum(chunk.size_bytes for chunk in chunks if chunk.span < len(used_s))
    rows.append(value_row("num_chunks", len(chunks)))
    rows.append(value_row("share_in_spans", inside / checkpoint_bytes))
    return rows
