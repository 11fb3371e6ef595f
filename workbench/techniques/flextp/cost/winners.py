"""A map of who wins: resizing, migration or both, by skewness, number of stragglers and rate of the link.

Source: beyond the paper; its section IV-B says that resizing suits many slight stragglers and migration few heavy
ones, and its figures 10 and 11 show one place each.
Objective: time first. Of Baseline, ZERO (Eq. 1 with the mean), MIG and SEMI the fastest wins; of those that are within
a margin of the fastest, the one that drops the smallest share of all products, and then the simpler one.
Simplified: all stragglers are equally slow; otherwise as `solutions`.
Left out: accuracy itself.

Units: seconds of an epoch, bytes/s, shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from .machine import FlexMachine
from ..method.solution import COMPARED, Solution
from .solutions import PlannedEpoch, planned_epoch
from .table_1 import paper_machine
from .workload import VIT_1B, Workload

__all__ = ["MARGIN", "MapPoint", "winner_map", "winner_of"]

MARGIN = 0.02  # of the fastest epoch: less than what the model misses table I by

_MEANS = MappingProxyType(
    {(False, False): "nothing", (True, False): "resizing", (False, True): "migration", (True, True): "both"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class MapPoint:
    """One place of the map.

    Attributes:
        skewness: of every straggler.
        num_stragglers: how many ranks are slow.
        bandwidth_bytes_per_s: of the link between any two ranks.
        epochs: of every solution.
        winner: by the objective above.
    """

    skewness: float
    num_stragglers: int
    bandwidth_bytes_per_s: float
    epochs: MappingProxyType[Solution, PlannedEpoch]
    winner: Solution

    @property
    def means(self) -> str:
        """What the winner's plan does: "nothing", "resizing", "migration" or "both"."""
        ranks = self.epochs[self.winner].plan.ranks
        return _MEANS[any(each.dropped > 0 for each in ranks), any(each.migrated > 0 for each in ranks)]

    def rows(self) -> tuple[dict[str, Any], ...]:
        """Return a row a solution, for tables and figures."""
        place = {
            "skewness": self.skewness,
            "num_stragglers": self.num_stragglers,
            "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s,
        }
        return tuple(
            place
            | {"solution": str(solution), "epoch_s": epoch.time_s, "dropped_share": epoch.dropped_share}
            | {"wins": solution is self.winner, "means": self.means}
            for solution, epoch in self.epochs.items()
        )


def winner_map(
    *,
    skewnesses: Sequence[float],
    nums_stragglers: Sequence[int],
    bandwidths_bytes_per_s: Sequence[float],
    workload: Workload = VIT_1B,
    machine: FlexMachine | None = None,
    refine: bool = False,
) -> tuple[MapPoint, ...]:
    """Return the winner at every combination.

    Args:
        skewnesses: each at least 1.
        nums_stragglers: each 0 to N - 1; ranks from 0 on are slow.
        bandwidths_bytes_per_s: of the link, which all-reduces use, too.
        workload: model and batch.
        machine: the paper's, if none is given; its link is replaced.
        refine: as for `planned_epoch`.

    Raises:
        ValueError: naming the argument that is out of range.
    """
    machine = paper_machine() if machine is None else machine
    if strange := [number for number in nums_stragglers if not 0 <= number < machine.num_ranks]:
        raise ValueError(f"nums_stragglers has {strange[0]!r}; each must be in 0..{machine.num_ranks - 1}")
    arguments = {"workload": workload, "refine": refine}
    return tuple(
        _point(machine.with_bandwidth(bandwidth), skewness, number, arguments)
        for bandwidth in bandwidths_bytes_per_s
        for number in nums_stragglers
        for skewness in skewnesses
    )


def winner_of(epochs: MappingProxyType[Solution, PlannedEpoch], margin: float = MARGIN) -> Solution:
    """Return the solution that drops least among those nearly as fast as the fastest; among equals the first.

    Args:
        epochs: by solution, simpler ones first.
        margin: how much slower than the fastest, as a share of its time.
    """
    fastest_s = min(epoch.time_s for epoch in epochs.values())
    near = [solution for solution, epoch in epochs.items() if epoch.time_s <= fastest_s * (1 + margin)]
    return min(near, key=lambda solution: epochs[solution].dropped_share)


def _point(machine: FlexMachine, skewness: float, num_stragglers: int, arguments: dict[str, Any]) -> MapPoint:
    slow = dict.fromkeys(range(num_stragglers), skewness)
    epochs = {solution: planned_epoch(solution, slow, machine=machine, **arguments) for solution in COMPARED}
    return MapPoint(
        skewness=skewness,
        num_stragglers=num_stragglers,
        bandwidth_bytes_per_s=machine.link.bandwidth_bytes_per_s,
        epochs=MappingProxyType(epochs),
        winner=winner_of(MappingProxyType(epochs)),
    )
