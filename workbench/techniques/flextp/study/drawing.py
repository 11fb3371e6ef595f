"""Charts and tables of accuracy under stragglers.

Source: figures 3 and 5 to 11, parts (a), of "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload
Control", which plot accuracy, or its difference to the Baseline's.
Simplified: bars for all of them. Left out: verdicts, which are computed elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import pandas as pd
from matplotlib.axes import Axes

from workbench import plots

from .scores import BASELINE, POINTS

__all__ = ["draw_accuracies", "loss_table", "merged"]

LABELS = MappingProxyType(
    {
        "pruning_ratio": "pruning ratio γ",
        "skewness": "skewness χ of the straggler",
        "imputation": "imputation",
        "num_senders": "stragglers that migrate, x",
        "solution": "solution",
        "everywhere": "who drops",
        "is_incremental": "dropped columns keep their statistics",
    }
)

WHO_DROPS = MappingProxyType({0: "the straggler alone", 1: "every rank"})


def merged(rows: Iterable[Mapping], quantity: str, keys: list[str], reading: str = "") -> pd.DataFrame:
    """Merge the seeds of one quantity: its keys, value (mean), low and high.

    Args:
        rows: of a record.
        quantity: which.
        keys: columns that tell rows apart; a row may lack one.
        reading: of the quantity, where it has several.
    """
    table = pd.DataFrame(rows)
    table = table[table.quantity == quantity]
    table = table[table.reading == reading] if reading else table
    return table.groupby(keys, sort=False, dropna=False).value.agg(value="mean", low="min", high="max").reset_index()


def draw_accuracies(rows: Iterable[Mapping], *, ax: Axes, along: str, by: str = "solution") -> Axes:
    """Draw accuracies as bars, the Baseline's as a line; what spans the seeds is marked on both.

    Args:
        rows: of `accuracy_rows`.
        ax: where to draw.
        along: column at the axis.
        by: column of the bars beside each other; the one at the axis draws one bar a place.

    Rows that have nothing at the axis, such as SEMI's own choice along numbers of senders, stand in the table alone.
    """
    rows = [row for row in rows if row["quantity"] == "accuracy"]
    keys = list(dict.fromkeys((along, by)))
    table = merged([row for row in rows if row["solution"] != BASELINE], "accuracy", keys).dropna(subset=[along])
    if "everywhere" in table:
        table["everywhere"] = table.everywhere.map(WHO_DROPS)
    plots.bars(
        table.rename(columns={by: LABELS.get(by, by)} if by != along else {}),
        ax=ax,
        x=along,
        by=None if by == along else LABELS.get(by, by),
    )
    plain = merged([row for row in rows if row["solution"] == BASELINE], "accuracy", ["solution"]).iloc[0]
    ax.axhline(plain.value, color="black", linewidth=1)
    ax.axhspan(plain.low, plain.high, color="black", alpha=0.12, linewidth=0)
    ax.set(xlabel=LABELS.get(along, along), ylabel="accuracy (%)", title="black: Baseline")
    return ax


def loss_table(rows: Iterable[Mapping], keys: list[str]) -> pd.DataFrame:
    """Show the points of accuracy that are lost, mean and spread over seeds, beside the share of products dropped.

    Args:
        rows: of `accuracy_rows`.
        keys: columns that tell rows apart.
    """
    rows = list(rows)
    keys = ["solution", *keys]
    lost = merged(rows, "accuracy_loss", keys, POINTS).rename(columns={"value": "points lost"})
    for quantity in ("accuracy", "dropped_share", "migrated_share"):
        lost = lost.merge(merged(rows, quantity, keys)[[*keys, "value"]].rename(columns={"value": f"{quantity} (%)"}))
    return lost.round(2)
