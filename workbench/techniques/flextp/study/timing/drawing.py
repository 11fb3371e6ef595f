"""Rows and timelines of a timing study as figures.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", parts (b) of figures 5 to 11.
Simplified: bars where the axis has few places, lines where it is a quantity.
Left out: the plots themselves (`workbench.plots`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workbench import plots
from workbench.timeline import Timeline

from .machinery import BALANCED, MOST_IDLE

__all__ = ["draw_epochs", "draw_machinery", "draw_timelines", "parts_of", "with_intervals"]

PARTS = ("product_s", "other_s", "waiting_s", "transfer_s")
SHARES = ("product_share", "dropped_share", "migrated_share")
GANTT_HEIGHT_IN = 1.9  # inches of four ranks
SERIES = ("solution", "scheme", "num_senders")
AS_LINES = ("skewness", "migrated_share")


def draw_epochs(rows: Iterable[Mapping], along: str, ax: Axes | None = None) -> Axes:
    """Draw seconds of an epoch along a figure's axis: lines over skewness and shares, else bars.

    Args:
        rows: of a study, with keys solution and `along`.
        along: the key column on the axis; a Baseline without it stands at every place.
        ax: where to draw; None starts a figure.
    """
    epochs = [row for row in rows if row["quantity"] == "epoch_s"]
    names = dict.fromkeys(row[along] for row in epochs if along in row)
    spread = [row | {along: place} for row in epochs for place in ([row[along]] if along in row else names)]
    table = pd.DataFrame(spread).rename(columns={"value": "epoch"})
    named = [name for name in SERIES if name in table and name != along]
    table["series"] = table[named].apply(_series, axis=1)
    if along in AS_LINES:
        return plots.lines(table, ax=ax, x=along, y="epoch", by="series", y_label="epoch (s)")
    axes = plots.bars(table, ax=ax, x=along, y="epoch", by="series", unit="s")
    axes.set_xlabel(along.replace("_", " "))
    return axes


def draw_machinery(rows: Iterable[Mapping]) -> Figure:
    """Draw what balancing costs where there is nothing to balance, beside the most that is asked.

    Args:
        rows: of `measure_machinery`.
    """
    figure, ax = plots.figure(figsize=(8, 2.6))
    found = {row["quantity"]: row for row in rows if row["solution"] == BALANCED}
    named = {"iterations": found["over_unbalanced"], "processor time": found["cpu_over_unbalanced"]}
    for place, row in enumerate(named.values()):
        ax.plot([row["low"], row["high"]], [place, place], lw=3, alpha=0.5, color="C0", solid_capstyle="butt")
        ax.plot([row["value"]], [place], "o", color="C0")
        ax.annotate(
            f"{row['value']:.3f} ({row['low']:.3f} to {row['high']:.3f})",
            (row["value"], place),
            xytext=(0, 9),
            textcoords="offset points",
            ha="center",
        )
    ax.axvline(1.0, color="0.6", lw=1)
    ax.axvline(MOST_IDLE, color="C3", lw=1, ls="--", label=f"asked: at most {MOST_IDLE:g}")
    ax.set_yticks(range(len(named)), list(named))
    ax.set_ylim(-0.6, len(named) - 0.3)
    ax.set_xlabel("with balancing, over the model as it is")
    ax.legend(loc="lower right")
    return figure


def draw_timelines(timelines: Mapping[str, Timeline], names: Sequence[str]) -> Figure:
    """Draw one iteration of some variants one under the other, on one axis of time.

    Args:
        timelines: of a study.
        names: of the variants; those that it has not are passed over.
    """
    shown = {name: timelines[name] for name in names if name in timelines}
    figure, axes = plots.figure(len(shown), 1, figsize=(11, GANTT_HEIGHT_IN * len(shown)), squeeze=False, sharex=True)
    end_s = max(timeline.end_s for timeline in shown.values())
    for (name, timeline), (ax,) in zip(shown.items(), axes, strict=True):
        plots.gantt(timeline, ax=ax, end_s=end_s, legend=timeline is list(shown.values())[-1])
        ax.set_yticks(ax.get_yticks(), [resource.removeprefix(f"{name} ") for resource in timeline.resources])
        ax.set_title(name)
    for (ax,) in axes[:-1]:
        ax.set_xlabel("")
    return figure


def parts_of(rows: Iterable[Mapping]) -> pd.DataFrame:
    """Return where an iteration's time went, a row a variant: seconds of the mean rank, and shares."""
    wanted = {"iteration_s", *PARTS, *SHARES}
    table = pd.DataFrame([row for row in rows if row["quantity"] in wanted and "rank" not in row])
    keys = [name for name in table if name not in ("quantity", "value", "low", "high", "unit")]
    table[keys] = table[keys].astype(object).where(table[keys].notna(), "")
    table = table.pivot_table(index=keys, columns="quantity", values="value", sort=False)
    return table[["iteration_s", *PARTS, *SHARES]]


def with_intervals(rows: Iterable[Mapping], quantities: Sequence[str]) -> pd.DataFrame:
    """Write ratios as "median (low to high)", a row a variant; those that no variant has are left out."""
    table = pd.DataFrame([row | {"written": _written(row)} for row in rows if row["quantity"] in quantities])
    keys = [name for name in table if name not in ("quantity", "written", "value", "low", "high", "unit")]
    table[keys] = table[keys].astype(object).where(table[keys].notna(), "")
    return table.pivot_table(index=keys, columns="quantity", values="written", aggfunc="first", sort=False).fillna("")


def _written(row: Mapping) -> str:
    spread = f" ({row['low']:.3f} to {row['high']:.3f})" if "low" in row else ""
    return f"{row['value']:.3f}{spread}"


def _series(names: pd.Series) -> str:
    return " ".join(f"x {name:g}" if isinstance(name, float) else str(name) for name in names if not pd.isna(name))
