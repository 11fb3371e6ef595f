"""A map of who wins: resizing, migration or both, by skewness, number of stragglers and rate of the link.

Source: beyond the paper; its section IV-B says that resizing suits many slight stragglers and migration few heavy
ones, and its figures 10 and 11 show one place each.
Objective: enough speed first, then accuracy. Of Baseline, ZERO, MIG and SEMI those count that reach a share of the
speed of a balance that costs and drops nothing (`method.model.ideal_s`); where none does, those within a margin of the
fastest. Of these the one wins that drops the smallest share of all products, and then the simpler one. (By time alone
ZERO would win nearly everywhere: what is dropped takes no time.)
Simplified: all stragglers are equally slow; otherwise as `solutions`.
Left out: accuracy itself.

Units: seconds of an epoch, bytes/s, shares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ..method.costs import ideal_s
from ..method.plan import COMPARED, Solution
from .machine import FlexMachine
from .solutions import PlannedEpoch, model_times, planned_epoch
from .table_1 import paper_machine
from .workload import VIT_1B, Workload

__all__ = ["ENOUGH", "MARGIN", "MapPoint", "winner_map", "winner_of"]

ENOUGH = 0.75  # of the ideal's speed; ours: below what SEMI's levelled plans aim at (`method.levelling`)
MARGIN = 0.02  # of the fastest epoch's time: what the model tells apart no better, as table I shows

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
        ideal_s: seconds of an epoch if columns moved for nothing and none were dropped.
        winner: by the objective above.
    """

    skewness: float
    num_stragglers: int
    bandwidth_bytes_per_s: float
    epochs: MappingProxyType[Solution, PlannedEpoch]
    ideal_s: float
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
            | {"speed_of_ideal": self.ideal_s / epoch.time_s, "wins": solution is self.winner, "means": self.means}
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
    speed_share: float = ENOUGH,
) -> tuple[MapPoint, ...]:
    """Return the winner at every combination.

    Args:
        skewnesses: each at least 1.
        nums_stragglers: each 0 to N - 1; ranks from 0 on are slow.
        bandwidths_bytes_per_s: of the link, which all-reduces use, too.
        workload: model and batch.
        machine: the paper's, if none is given; its link is replaced.
        refine: as for `planned_epoch`.
        speed_share: of the ideal's speed, which a solution has to reach; in [0, 1].

    Raises:
        ValueError: naming the argument that is out of range.
    """
    machine = paper_machine() if machine is None else machine
    if strange := [number for number in nums_stragglers if not 0 <= number < machine.num_ranks]:
        raise ValueError(f"nums_stragglers has {strange[0]!r}; each must be in 0..{machine.num_ranks - 1}")
    if not 0 <= speed_share <= 1:
        raise ValueError(f"speed_share is {speed_share!r}; it must be in [0, 1]")
    arguments = {"workload": workload, "refine": refine}
    return tuple(
        _point(machine.with_bandwidth(bandwidth), skewness, number, arguments, speed_share)
        for bandwidth in bandwidths_bytes_per_s
        for number in nums_stragglers
        for skewness in skewnesses
    )


def winner_of(epochs: Mapping[Solution, PlannedEpoch], allowed_s: float, margin: float = MARGIN) -> Solution:
    """Return the solution that drops least among those that are fast enough; among equals the first.

    Args:
        epochs: by solution, simpler ones first.
        allowed_s: seconds of an epoch that are fast enough.
        margin: where none is that fast, how much slower than the fastest is, as a share of its time.
    """
    allowed_s = max(allowed_s, min(epoch.time_s for epoch in epochs.values()) * (1 + margin))
    enough = [solution for solution, epoch in epochs.items() if epoch.time_s <= allowed_s]
    return min(enough, key=lambda solution: epochs[solution].dropped_share)


def _point(
    machine: FlexMachine, skewness: float, num_stragglers: int, arguments: dict[str, Any], speed_share: float
) -> MapPoint:
    slow = dict.fromkeys(range(num_stragglers), skewness)
    workload = arguments["workload"]
    epochs = {solution: planned_epoch(solution, slow, machine=machine, **arguments) for solution in COMPARED}
    best_s = workload.num_iterations * ideal_s(model_times(slow, workload, machine))
    return MapPoint(
        skewness=skewness,
        num_stragglers=num_stragglers,
        bandwidth_bytes_per_s=machine.link.bandwidth_bytes_per_s,
        epochs=MappingProxyType(epochs),
        ideal_s=best_s,
        winner=winner_of(epochs, best_s / speed_share if speed_share else math.inf),
    )
