"""Which scheme wins, by density, ranks and link, and where a tensor of your own lies: the question beyond the paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
import torch.distributed as dist
from scipy.optimize import brentq
from torch import Tensor

from workbench.checks import require_counts
from workbench.cluster import GIGABIT_BYTES_PER_S, Link
from workbench.launch.agreement import tell_all
from workbench.parallel.links import measure_link
from workbench.parallel.wire import Wire
from workbench.rows import value_row

from .cost import Sparsity, seconds, sparsity_of
from .method.formats import BLOCK_ELEMENTS
from .runtime.sparse import Sparse

__all__ = ["CALIBRATION", "CANDIDATES", "Advice", "advise", "fastest_rows", "map_rows", "modelled"]

CANDIDATES = ("Dense", "AGsparse", "SparCML", "Sparse PS", "OmniReduce", "Zen")
CALIBRATION = MappingProxyType({"indices": "occur like words, the i-th likeliest 1/i as often", "links": "chosen"})
DENSITIES = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7)  # of a map
ENTRIES = 50_000  # of the modelled tensor: shares hardly depend on it


def modelled(density: float, num_ranks: int, entry_elements: int = 1, num_entries: int = ENTRIES) -> Sparsity:
    """Return the sparsity that ranks expect whose entries occur like words: the i-th likeliest 1/i as often.

    Args:
        density: of a rank's gradient, in (0, 1).
        num_ranks: a power of two, at least 2.
        entry_elements: values of an entry.
        num_entries: of the tensor.
    """
    require_counts(2, num_ranks=num_ranks)
    if not 0 < density < 1:
        raise ValueError(f"density is {density}; it must be above 0 and below 1")
    if num_ranks & (num_ranks - 1):
        raise ValueError(f"num_ranks is {num_ranks}; it must be a power of two")
    chances = chances_of(density, num_entries)

    def of_ranks(num: int) -> np.ndarray:
        return 1 - (1 - chances) ** num

    steps = {2**step for step in range(num_ranks.bit_length())} | {num_ranks - 1}
    rows = max(1, BLOCK_ELEMENTS // entry_elements)
    even = {"hashed": 1.0}
    return Sparsity(
        domain_size=num_entries,
        entry_elements=entry_elements,
        num_indices=1,
        num_ranks=num_ranks,
        density={num: float(of_ranks(num).mean()) for num in sorted(steps)},
        push=even | {"ranges": _fullest(chances, num_ranks)},
        pull=even | {"ranges": _fullest(of_ranks(num_ranks), num_ranks)},
        blocks=(_fullest_blocks(of_ranks(1), rows, num_ranks), _fullest_blocks(of_ranks(num_ranks), rows, num_ranks)),
    )


def chances_of(density: float, num_entries: int) -> np.ndarray:
    """Return each entry's probability 1 - e^(-draws/i) of being nonzero, [entries], whose mean is the density."""
    places = np.arange(1, num_entries + 1)

    def excess(draws: float) -> float:
        return -np.expm1(-draws / places).mean() - density

    most = 1e3 * num_entries
    draws = brentq(excess, 0.0, most) if density > 0 and excess(most) > 0 else most * (density > 0)
    return -np.expm1(-draws / places)


def _fullest(chances: np.ndarray, num_ranges: int) -> float:
    """Return the density of the first range, the fullest of n, divided by the density of all ranges."""
    return float(chances[: -(-len(chances) // num_ranges)].mean() / chances.mean())


def _fullest_blocks(chances: np.ndarray, rows: int, num_ranges: int) -> float:
    """Return the share of nonzero blocks in the first range."""
    first = chances[: -(-len(chances) // num_ranges)]
    whole = first[: max(1, len(first) // rows) * rows].reshape(-1, min(rows, len(first)))
    return float((1 - np.prod(1 - whole, axis=1)).mean())


def map_rows(
    *,
    densities: Sequence[float],
    num_ranks: Sequence[int],
    gigabits_per_s: Sequence[float],
    tensor_mib: float,
    entry_elements: int,
    latency_s: float,
) -> list[dict[str, Any]]:
    """Return the time of every scheme relative to the fastest, by density, ranks and link rate."""
    rows = []
    for density, num in product(densities, num_ranks):
        of = modelled(density, num, entry_elements)
        scale = tensor_mib * 2**20 / of.tensor_bytes
        for rate in gigabits_per_s:
            link = Link(
                bandwidth_bytes_per_s=rate * GIGABIT_BYTES_PER_S / scale, latency_s=latency_s, source="a chosen rate"
            )
            times_s = {scheme: seconds(scheme, of, link) for scheme in CANDIDATES}
            least_s = min(times_s.values())
            keys: dict[str, Any] = {"density": density, "ranks": num, "gigabits_per_s": rate}
            rows += [value_row("over_best", time_s / least_s, scheme=name, **keys) for name, time_s in times_s.items()]
            rival_s = min(time_s for name, time_s in times_s.items() if name != "Zen")
            rows.append(value_row("zen_gain", rival_s / times_s["Zen"], **keys))
    return rows


def fastest_rows(values: Sequence[Mapping[str, Any]], num_ranks: int, gigabits_per_s: float) -> list[dict[str, Any]]:
    """Return the fastest scheme of `CANDIDATES` by density, from rows "seconds" that were measured on real ranks."""
    timed = [row for row in values if row["quantity"] == "seconds" and row["scheme"] in CANDIDATES]
    rows = []
    for density in sorted({row["density"] for row in timed}):
        best = min((row for row in timed if row["density"] == density), key=lambda row: row["value"])
        keys = {"scheme": best["scheme"], "density": density, "ranks": num_ranks, "gigabits_per_s": gigabits_per_s}
        rows.append(value_row("fastest_s", best["value"], "s", **keys))
    return rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """Times of all schemes for a tensor on a link."""

    sparsity: Sparsity
    link: Link
    seconds: dict[str, float]  # by scheme, the fastest first; without computation

    @property
    def best(self) -> str:
        return next(iter(self.seconds))

    @property
    def point(self) -> tuple[float, int]:
        """This tensor's place on a map: density and ranks."""
        return self.sparsity.density[1], self.sparsity.num_ranks

    def map_rows(self) -> list[dict[str, Any]]:
        """Return `map_rows` for this size and link; `plots.draw_map(rows, {"mine": advice.point})` draws them."""
        return map_rows(
            densities=DENSITIES,
            num_ranks=[2, 4, 8, 16, 32, 64, 128],
            gigabits_per_s=[self.link.bandwidth_bytes_per_s / GIGABIT_BYTES_PER_S],
            tensor_mib=self.sparsity.tensor_bytes / 2**20,
            entry_elements=self.sparsity.entry_elements,
            latency_s=self.link.latency_s,
        )

    def __str__(self) -> str:
        of, link = self.sparsity, self.link
        head = (
            f"{of.tensor_bytes / 2**20:.1f} MiB on {of.num_ranks} ranks, {of.density[1]:.2%} not zero, "
            f"{of.density[of.num_ranks]:.2%} in the sum, {link.bandwidth_bytes_per_s / GIGABIT_BYTES_PER_S:.2f} Gbit/s"
        )
        lines = (f"  {1e3 * taken_s:9.2f} ms  {scheme}" for scheme, taken_s in self.seconds.items())
        return "\n".join((head, *lines))


def advise(gradient: Tensor, link: Link | None = None, group: dist.ProcessGroup | None = None) -> Advice:
    """Predict the time of each scheme to sum a gradient over the ranks of a group; all its ranks call it.

    Args:
        gradient: this rank's gradient before the sum, as under `model.no_sync()`; see `all_reduce_sparse`.
        link: link of a rank; None measures it with messages between neighbours.
        group: a group with a power of two ranks; None for the default group.

    Raises:
        ValueError: if the number of ranks is no power of two, or if all ranks have the same gradient, as after a sum.
    """
    num_ranks = dist.get_world_size(group)
    if num_ranks < 2 or num_ranks & (num_ranks - 1):
        raise ValueError(f"the group has {num_ranks} ranks; it must be a power of two, at least 2")
    Wire(group, gradient.device).agree({"shape": tuple(gradient.shape), "dtype": gradient.dtype})
    sparse = Sparse.of(gradient)
    totals = tell_all(sparse.values.double().sum().item(), group)
    if totals[0] and len({*totals}) == 1:
        rule = "give this rank's own, before it is summed, as under `model.no_sync()`"
        raise ValueError(f"gradient is the same on all ranks, as a sum is; {rule}")
    sets: list[Any] = [None] * num_ranks
    dist.all_gather_object(sets, sparse.indices.cpu().numpy(), group=group)
    link = link or measure_link(group, gradient.device)
    value_bytes = sparse.values.element_size()
    of = sparsity_of(sets, sparse.domain_size, prod(gradient.shape[1:]), value_bytes=value_bytes)
    times_s = {scheme: seconds(scheme, of, link) for scheme in CANDIDATES}
    return Advice(sparsity=of, link=link, seconds=dict(sorted(times_s.items(), key=lambda pair: pair[1])))
