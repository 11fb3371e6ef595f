"""The rows of what is measured on real ranks of shaped hosts: meshes, rivals, chunks, the choice on random links."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from workbench.checks import require_counts, require_one_of, require_positive
from workbench.cluster import GIGABIT_BYTES_PER_S, Link
from workbench.models.gpt2 import GPT2Config
from workbench.rows import median_row, ratio_row, value_row
from workbench.study.timing import FASTEST_BYTES_PER_S, Timed, Trial, Turns, open_ranks, time_variants
from workbench.timeline import Recorder

from .cost import published_s
from .method.equations import Workload, messages
from .method.matrix import HierarchicalCommMatrix, Layer
from .method.search import Strategy, meshes, search, search_by_torch, search_exactly
from .runtime.block import BlockConfig, Mesh, MeshBlock, open_mesh
from .runtime.measure import measure
from .runtime.summa import SummaBlock, SummaMesh

__all__ = ["MEGATRON", "PLACES", "SUMMA", "Setting", "choice_rows", "fit_rows", "link_bytes", "mesh_rows"]
__all__ += ["overlap_rows", "place", "place_at_share", "random_settings", "rate_at_share", "repeated_s_per_value"]
__all__ += ["time_schemes"]

MEGATRON, SUMMA = "Megatron-LM", "2D/2.5D"  # the first is mesh (N, 1), whose messages block
FP32_BYTES = 4
SEED = 0
REPEATS = 5  # of the work that is timed alone


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A block in training on ranks of hosts; ranks of one host talk over its loopback."""

    num_ranks: int = 8
    num_hosts: int = 4
    gigabits_per_s: float = 0.1  # of each host
    hidden: int = 256
    heads: int = 16
    batch: int = 8
    sequence: int = 64

    def __post_init__(self) -> None:
        require_counts(2, num_ranks=self.num_ranks)
        require_counts(1, num_hosts=self.num_hosts)
        require_positive(gigabits_per_s=self.gigabits_per_s)
        self.block.check_mesh(self.num_ranks, 1)
        if self.num_ranks % self.num_hosts:
            raise ValueError(f"num_hosts is {self.num_hosts}; it must divide the {self.num_ranks} ranks")

    @property
    def workload(self) -> Workload:
        """What the cost model is told."""
        sizes = {name: getattr(self, name) for name in ("batch", "sequence", "hidden", "heads")}
        return Workload(**sizes, value_bytes=FP32_BYTES)

    @property
    def block(self) -> BlockConfig:
        """A block of GPT-2."""
        return BlockConfig(hidden_size=self.hidden, num_heads=self.heads, mlp_size=4 * self.hidden)


PLACES = {"IC1": lambda ranks: 2, "IC2": lambda ranks: ranks // 2, "IC3": lambda ranks: 1, "IC4": lambda ranks: ranks}
"""Hosts for so many ranks whose links are like the paper's: two halves, pairs, no slow links, single devices."""


def place(interconnect: str, num_ranks: int, **sizes: Any) -> Setting:
    """Return a setting whose hosts stand for an interconnect of `PLACES`; `sizes` are further fields of `Setting`."""
    require_one_of(PLACES, interconnect=interconnect)
    return Setting(num_ranks=num_ranks, num_hosts=PLACES[interconnect](num_ranks), **sizes)


def link_bytes(setting: Setting, d1: int, d2: int) -> float:
    """Return the bytes of an iteration on a mesh that leave a host: of each axis, by the rings that do."""
    sizes = setting.num_hosts, setting.num_ranks // setting.num_hosts
    hosts = HierarchicalCommMatrix(name="hosts", layers=tuple(Layer.switched(size, 1.0, 1.0) for size in sizes))
    leaving, total = hosts.rings(d1, d2), 0.0
    for message in messages(setting.workload, d1, d2):
        total += leaving[message.axis - 1].get(0, 0) * message.sent_bytes((d1, d2)[message.axis - 1])
    return total


def rate_at_share(num_bytes: float, beyond_s: float, fast_s: float, share: float) -> float:
    """Return the links' bytes per second at which an iteration is 1 / (1 - share) times as long as without slow links.

    Without them it takes `fast_s`; with them, `beyond_s` beside the time of `num_bytes` on a host's link. Where no link
    is fast enough, it is the fastest one's.
    """
    return num_bytes / max(fast_s / (1 - share) - beyond_s, num_bytes / FASTEST_BYTES_PER_S)


def place_at_share(interconnect: str, num_ranks: int, turns: Turns, **sizes: Any) -> tuple[Setting, list[dict]]:
    """Choose the rate of the links by Megatron-LM's iterations alone, and return the setting and rows of the choice.

    The rule: communication has the share that M3 has in table 3, which is what the rate on the interconnect lacks to
    that on IC3, with the table's mesh. Megatron-LM is timed without slow links, then with links whose rate would be
    right if nothing overlapped; what an iteration then takes beyond the links' time corrects the rate once. IC3 has no
    slow links, and no choice.
    """
    first = place(interconnect, num_ranks, **sizes)
    if first.num_hosts == 1:
        return first, []
    share = 1 - published_s("IC3", "M3") / published_s(interconnect, "M3")
    mesh = (2, num_ranks // 2) if interconnect == "IC1" else (num_ranks, 1)  # of table 3's baseline
    own_bytes, all_bytes = link_bytes(first, *mesh), link_bytes(first, num_ranks, 1)

    def megatron_s(setting: Setting) -> list[float]:
        return time_schemes(setting, [MEGATRON], turns, links=False).iterations_s(MEGATRON)

    fast = megatron_s(replace(first, num_hosts=1))
    rate = rate_at_share(own_bytes, median(fast), median(fast), share)
    slow = megatron_s(replace(first, gigabits_per_s=rate / GIGABIT_BYTES_PER_S))
    corrected = rate_at_share(own_bytes, median(slow) - all_bytes / rate, median(fast), share)
    keys: dict[str, Any] = {"place": interconnect, "ranks": num_ranks}
    rows = [
        median_row("fast_iteration_s", fast, "s", **keys),
        value_row("paper_share", share, **keys),
        value_row("hidden_over_tokens", first.hidden / (first.batch * first.sequence), **keys),
        value_row("link_bytes", own_bytes, "B", mesh=str(mesh), **keys),
        value_row("rate_bytes_per_s", rate, "B/s", choice="first", **keys),
        median_row("first_iteration_s", slow, "s", **keys),
        value_row("rate_bytes_per_s", corrected, "B/s", choice="corrected", **keys),
    ]
    return replace(first, gigabits_per_s=corrected / GIGABIT_BYTES_PER_S), rows


def time_schemes(setting: Setting, schemes: Sequence[str], turns: Turns, *, links: bool = True) -> Timed:
    """Time one block's forward and backward pass in turns, after measuring the links.

    Args:
        setting: The block and the ranks.
        schemes: `MEGATRON`, `SUMMA`, and names of strategies: "ATP-2", "ATP-2, sequence parallel", "ATP-1, 4 chunks",
            "ATP-1, blocking".
        turns: How many.
        links: Whether to measure the links, which the searches need.

    A scheme's facts hold what `measure` found. ValueError, before ranks start, for a mesh that is not of all ranks.
    """
    for name in (scheme for scheme in schemes if scheme.startswith("ATP-")):
        d2 = name.split(",")[0].removeprefix("ATP-")
        if not d2.isdecimal() or setting.num_ranks % max(int(d2), 1):
            raise ValueError(f"schemes has {name!r}; i of ATP-i must divide the {setting.num_ranks} ranks")
    link = None
    if setting.num_hosts > 1:
        rate = setting.gigabits_per_s * GIGABIT_BYTES_PER_S
        link = Link(bandwidth_bytes_per_s=rate, source="a chosen rate")
    preload = ("workbench.techniques.atp.measured",)
    with open_ranks(setting.num_ranks, link=link, num_hosts=setting.num_hosts, preload=preload) as ranks:
        return time_variants(ranks, _trials, setting, tuple(schemes), links, turns=turns)


def _trials(recorder: Recorder, setting: Setting, schemes: Sequence[str], links: bool) -> dict[str, Trial]:
    torch.manual_seed(SEED)
    facts: dict[str, Any] = {}
    if links:
        measured = measure(largest_bytes=setting.workload.num_values * FP32_BYTES)
        facts = {"matrix": measured.matrix, "fits": measured.fits, "axis_fits": measured.axis_fits}
        facts["repeated_s_per_value"] = repeated_s_per_value(setting)
    shapes: dict[tuple[int, int], Mesh] = {}
    return {scheme: _trial(setting, scheme, shapes, facts) for scheme in schemes}


def _trial(setting: Setting, scheme: str, shapes: dict[tuple[int, int], Mesh], facts: dict[str, Any]) -> Trial:
    module, shape = _block(setting, scheme, shapes)
    x, grad = torch.randn(shape, requires_grad=True), torch.randn(shape)

    def step() -> None:
        module.zero_grad()
        module(x).backward(grad)

    return Trial(step=step, settling=1, close=lambda: facts)


def _block(
    setting: Setting, scheme: str, shapes: dict[tuple[int, int], Mesh]
) -> tuple[nn.Module, tuple[int, int, int]]:
    """Return a scheme's block on this rank, and the shape of its input."""
    whole = setting.batch, setting.sequence, setting.hidden
    if scheme == SUMMA:
        mesh = SummaMesh(2, setting.num_ranks // 4)
        sizes = GPT2Config(hidden_size=setting.hidden, num_layers=1, num_heads=setting.heads, dropout=0.0)
        return SummaBlock(sizes, mesh), (whole[0] // (2 * mesh.depth), whole[1], whole[2] // 2)
    name, *options = ("ATP-1, blocking" if scheme == MEGATRON else scheme).split(", ")
    d2 = int(name.removeprefix("ATP-"))
    shape = setting.num_ranks // d2, d2
    if shape not in shapes:
        shapes[shape] = open_mesh(*shape)
    more: dict[str, Any] = {}
    for option in options:
        if option == "sequence parallel":
            more["sequence_parallel"], whole = True, (whole[0], whole[1] // shape[0], whole[2])
        elif option == "blocking":
            more["overlap"] = False
        else:
            more["chunks"] = int(option.removesuffix(" chunks"))
    return MeshBlock(replace(setting.block, **more), shapes[shape]), (whole[0], whole[1], whole[2] // d2)


def repeated_s_per_value(setting: Setting) -> float:
    """Return what a value costs in both passes of two norms and two sums, all ranks at work at once; mean of ranks."""
    x = torch.randn(setting.batch, setting.sequence, setting.hidden, requires_grad=True)
    norms, seconds = [nn.LayerNorm(setting.hidden) for _ in range(2)], []
    for _ in range(REPEATS + 1):
        dist.barrier()
        began_s = time.perf_counter()
        y = x
        for norm in norms:
            y = y + norm(y)
        y.backward(x.detach())
        seconds.append(time.perf_counter() - began_s)
    mean = torch.tensor(median(seconds[1:]) / x.numel(), dtype=torch.float64)
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def _facts(timed: Timed) -> dict[str, Any]:
    return next(iter(timed.facts.values()))[0]


def fit_rows(timed: Timed, **keys: Any) -> list[dict[str, Any]]:
    """Return what was measured of each layer of the links, the outermost first, and how well a line fits."""
    rows = []
    for number, (layer, fit) in enumerate(zip(_facts(timed)["matrix"].layers, _facts(timed)["fits"], strict=True), 1):
        layer_keys = {"layer": number, **keys}
        rows.append(value_row("members", layer.size, **layer_keys))
        rows.append(value_row("group_bytes_per_s", layer.group_bytes_per_s, "B/s", **layer_keys))
        rows.append(value_row("startup_s", layer.startup_s, "s", **layer_keys))
        rows.append(value_row("r_squared", fit.r_squared, **layer_keys))
    for (d1, d2, axis, name), fit in _facts(timed)["axis_fits"].items():
        axis_keys = {"mesh": f"({d1}, {d2})", "axis": axis, "collective": name, **keys}
        rows.append(value_row("axis_startup_s", fit.latency_s, "s", **axis_keys))
        rows.append(value_row("axis_bytes_per_s", fit.bandwidth_bytes_per_s, "B/s", **axis_keys))
        rows.append(value_row("axis_r_squared", fit.r_squared, **axis_keys))
    return rows


def mesh_rows(timed: Timed, setting: Setting, **keys: Any) -> list[dict[str, Any]]:
    """Return iterations of schemes, gains over Megatron-LM, and what the searches chose if the links were measured.

    `behind_best` is the time with a search's mesh over that with the mesh that was measured to be the fastest.
    """
    seconds = {name: timed.iterations_s(name) for name in timed.rounds}
    rows = [median_row("iteration_s", taken_s, "s", scheme=name, **keys) for name, taken_s in seconds.items()]
    atp_s = {name: taken_s for name, taken_s in seconds.items() if name.startswith("ATP-")}
    if MEGATRON in seconds:
        rows += [ratio_row("gain", seconds[MEGATRON], taken_s, scheme=name, **keys) for name, taken_s in atp_s.items()]
    if SUMMA in seconds:
        rows.append(ratio_row("gain", seconds[MEGATRON], seconds[SUMMA], scheme=SUMMA, **keys))
    best = min(atp_s, key=lambda name: median(atp_s[name]))
    rows.append(value_row("fastest_mesh", int(best.split(",")[0].removeprefix("ATP-")), **keys))
    for way, chosen in (_chosen(timed, setting, list(atp_s)) if _facts(timed) else {}).items():
        rows.append(ratio_row("behind_best", atp_s[chosen.name], atp_s[best], search=way, **keys))
        rows.append(value_row("chosen_mesh", chosen.d2, search=way, **keys))
        rows.append(value_row("predicted_s", chosen.total_s, "s", search=way, **keys))
    return rows


def _chosen(timed: Timed, setting: Setting, timed_names: Sequence[str]) -> dict[str, Strategy]:
    """Return the first strategy that was timed too, by each search."""
    facts = _facts(timed)
    work = replace(setting.workload, repeated_s_per_value=facts["repeated_s_per_value"])
    matrix, num = facts["matrix"], setting.num_ranks
    space = (False, True) if any(name.endswith("sequence parallel") for name in timed_names) else (False,)
    orders = {
        "equations 2 to 4": search(matrix, num, setting.workload),
        "with start-ups": search_exactly(matrix, num, work, sequence_parallel=space),
        "always ATP-1": [strategy for strategy in search(matrix, num, setting.workload) if strategy.d2 == 1],
        "torch's model": search_by_torch(num, setting.workload, num // setting.num_hosts),
    }
    return {way: next(strategy for strategy in order if strategy.name in timed_names) for way, order in orders.items()}


def overlap_rows(timed: Timed, **keys: Any) -> list[dict[str, Any]]:
    """Return iterations by chunks, and gains over the same mesh with one chunk and overlapped gradients."""
    seconds = {name: timed.iterations_s(name) for name in timed.rounds}
    rows = []
    for name, taken_s in seconds.items():
        mesh, _, how = name.partition(", ")
        mesh_keys = {"mesh": mesh, "how": how or "overlapped gradients", **keys}
        rows.append(median_row("iteration_s", taken_s, "s", **mesh_keys))
        rows.append(ratio_row("gain", seconds[mesh], taken_s, **mesh_keys))
    return rows


def random_settings(number: int, seed: int) -> list[Setting]:
    """Draw blocks and links: 2 to 8 hosts of 8 ranks, 0.05 to 1 Gbit/s, messages of 16 KB to 2 MB."""
    draw, settings = np.random.default_rng(seed), []
    for _ in range(number):
        num_hosts, hidden = int(draw.choice([2, 4, 8])), int(draw.choice([64, 128, 256, 512]))
        rate = round(float(10 ** draw.uniform(np.log10(0.05), 0)), 2)
        sizes = {"batch": int(draw.choice([2, 4, 8])), "sequence": int(draw.choice([32, 64, 128]))}
        settings.append(Setting(num_hosts=num_hosts, gigabits_per_s=rate, hidden=hidden, heads=8, **sizes))
    return settings


def choice_rows(
    settings: Sequence[Setting], turns: Turns, watch: Callable[[str], object] = lambda text: None
) -> list[dict[str, Any]]:
    """Time every strategy on each topology, and count how often each search's choice is the best or hardly behind it.

    A choice is a hit if the interval of its time over the best one's reaches down to 1. `watch` is told of progress.
    """
    rows: list[dict[str, Any]] = []
    hits: dict[str, list[tuple[bool, float]]] = {}
    for number, setting in enumerate(settings, 1):
        watch(f"topology {number} of {len(settings)}")
        names = [f"ATP-{d2}" for _, d2 in meshes(setting.num_ranks)]
        cut = [f"{name}, sequence parallel" for name in names[:-1]]
        timed = time_schemes(setting, [*names, *cut], turns)
        links = f"{setting.num_hosts} hosts, {setting.gigabits_per_s} Gbit/s"
        size = f"{setting.batch} x {setting.sequence} x {setting.hidden}"
        keys = {"topology": number, "links": links, "size": size}
        of_meshes = mesh_rows(timed, setting, **keys)
        rows += [*of_meshes, *fit_rows(timed, **keys)]
        for row in of_meshes:
            if row["quantity"] == "behind_best":
                hits.setdefault(row["search"], []).append((row["low"] <= 1.0, row["value"]))
    for way, choices in hits.items():
        rows.append(value_row("hits", sum(hit for hit, _ in choices), search=way))
        rows.append(value_row("mean_behind", sum(behind for _, behind in choices) / len(choices), search=way))
    return rows
