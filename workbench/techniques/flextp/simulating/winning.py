"""The map of where resizing, migration or both win: rows of its places, and shares of them.

Source: beyond the paper; `cost.winners` has the objective.
Simplified, left out: see there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..cost import MapPoint, Solution, winner_map
from ..method.plan import Plan
from .epochs import Rows, model_named

__all__ = ["MEANS", "map_rows", "simulate_map"]

MEANS = ("nothing", "resizing", "both", "migration")
AXES = ("skewness", "num_stragglers", "bandwidth_gb_per_s")


def simulate_map(
    model: str,
    *,
    skewnesses: Sequence[float],
    nums_stragglers: Sequence[int],
    bandwidths_gb_per_s: Sequence[float],
    refine: bool,
) -> tuple[MapPoint, ...]:
    """Return the map on the paper's machine with other links; arguments as for `cost.winner_map`, GB/s for bytes/s."""
    return winner_map(
        skewnesses=skewnesses,
        nums_stragglers=nums_stragglers,
        bandwidths_bytes_per_s=[1e9 * bandwidth for bandwidth in bandwidths_gb_per_s],
        workload=model_named(model),
        refine=refine,
    )


def map_rows(points: Sequence[MapPoint]) -> Rows:
    """Return the places of a map and who wins there.

    Returns:
        Rows: of the winner speed_of_ideal, dropped_share and leaning (dropped minus migrated columns, as a share of
        both: 1 is resizing, -1 migration, 0 also neither), and migration_over_resizing, MIG's epoch over ZERO's, keys
        skewness, num_stragglers, bandwidth_gb_per_s, winner, means; won_by_<axis>, the share of places that have one
        value of an axis where the winner means something, keys means and the axis.
    """
    rows: Rows = []
    for point in points:
        place = _place(point) | {"winner": str(point.winner), "means": point.means}
        winner = point.epochs[point.winner]
        values = {
            "speed_of_ideal": point.ideal_s / winner.time_s,
            "dropped_share": winner.dropped_share,
            "leaning": _leaning(winner.plan),
            "migration_over_resizing": point.epochs[Solution.MIG].time_s / point.epochs[Solution.ZERO].time_s,
        }
        rows += [{"quantity": name, **place, "value": value, "unit": "1"} for name, value in values.items()]
    return rows + [row for axis in AXES for row in _share_rows(points, axis)]


def _place(point: MapPoint) -> dict[str, float]:
    bandwidth = point.bandwidth_bytes_per_s / 1e9
    return dict(zip(AXES, (point.skewness, point.num_stragglers, bandwidth), strict=True))


def _leaning(plan: Plan) -> float:
    dropped, migrated = math.fsum(rank.dropped for rank in plan.ranks), plan.migrated
    return (dropped - migrated) / (dropped + migrated) if not plan.is_plain else 0.0


def _share_rows(points: Sequence[MapPoint], axis: str) -> Rows:
    rows: Rows = []
    for value in dict.fromkeys(_place(point)[axis] for point in points):
        there = [point.means for point in points if _place(point)[axis] == value]
        shares = {means: there.count(means) / len(there) for means in MEANS}
        place = {"quantity": f"won_by_{axis}", axis: value}
        rows += [{**place, "means": means, "value": share, "unit": "1"} for means, share in shares.items()]
    return rows
