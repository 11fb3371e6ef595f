"""Table I for one to four senders: epochs, the lead of broadcast-reduce, and how far off the published cells are.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section V-C, table I.
Simplified, left out: see `cost.migration` and `cost.table_1`.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from ..cost import CALIBRATION, CHOSEN_ON, Scheme, migration_epoch_time_s, migration_errors
from .epochs import Rows

__all__ = ["calibration_cells", "simulate_migration"]


def simulate_migration(nums_senders: Sequence[int], shares: Sequence[float]) -> Rows:
    """Time epochs in which ranks that are all alike migrate columns.

    Args:
        nums_senders: x, each 1 to 7.
        shares: of their columns, each in [0, 1].

    Returns:
        Rows: epoch_s, keys scheme, num_senders, migrated_share; lead_s, scatter-gather's epoch minus
        broadcast-reduce's, for every share above 0; relative_error of each published cell that does not calibrate, and
        median_error, largest_error of their sizes.
    """
    schemes = (Scheme.BROADCAST_REDUCE, Scheme.SCATTER_GATHER)
    rows: Rows = []
    for num_senders in nums_senders:
        for share in shares:
            place = {"num_senders": num_senders, "migrated_share": float(share)}
            took_s = {scheme: migration_epoch_time_s(scheme, **place) for scheme in schemes}
            rows += [
                {"quantity": "epoch_s", "scheme": str(scheme), **place, "value": each_s, "unit": "s"}
                for scheme, each_s in took_s.items()
            ]
            if share > 0:
                lead_s = took_s[Scheme.SCATTER_GATHER] - took_s[Scheme.BROADCAST_REDUCE]
                rows.append({"quantity": "lead_s", **place, "value": lead_s, "unit": "s"})
    return rows + _error_rows()


def calibration_cells() -> list[dict[str, Any]]:
    """Return the cells that the model is made with, as `record` takes them; without migration all are one number."""
    cells = [
        {"scheme": str(cell.scheme), "num_senders": cell.num_senders, "migrated_share": cell.migrated_share}
        for cell in (*CALIBRATION, *CHOSEN_ON)
        if cell.migrated_share > 0
    ]
    return [{"quantity": "epoch_s", **cell} for cell in [{"migrated_share": 0.0}, *cells]]


def _error_rows() -> Rows:
    held_out = [error for error in migration_errors() if not error.calibrates]
    rows: Rows = [
        {
            "quantity": "relative_error",
            "scheme": str(error.cell.scheme),
            "num_senders": error.cell.num_senders,
            "migrated_share": error.cell.migrated_share,
            "value": error.relative,
            "unit": "1",
        }
        for error in held_out
    ]
    sizes = [abs(error.relative) for error in held_out]
    summary = {"median_error": statistics.median(sizes), "largest_error": max(sizes)}
    return rows + [{"quantity": name, "value": value, "unit": "1"} for name, value in summary.items()]
