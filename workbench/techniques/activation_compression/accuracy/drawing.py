"""Tables and charts of the accuracy study.

Source: none; plain bars, and points where bytes are set against scores.
Simplified: one chart a task. Left out: verdicts, which are computed elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import pandas as pd
from matplotlib.axes import Axes

from workbench import plots
from workbench.plots.style import PALETTE

__all__ = ["beside_published", "draw_by_layers", "draw_per_byte", "draw_relative_scores", "merged", "score_table"]

LAYER_LABELS = MappingProxyType(
    {"num_layers": "compressed layers, the last ones", "first_layer": "first of the compressed layers"}
)
FAMILY_COLORS = MappingProxyType({"w": "black", "A": PALETTE[0], "T": PALETTE[1], "Q": PALETTE[2], "R": PALETTE[3]})
SHARES = (0.05, 0.1, 0.2, 0.5, 1.0)  # that are written at the axis
CLOSE = 0.97  # of the uncompressed score: within 3 %, as section 4.3 asks


def merged(rows: Iterable[Mapping], quantity: str, keys: list[str]) -> pd.DataFrame:
    """Merge the seeds of one quantity: its keys, value (mean), low and high.

    Args:
        rows: of a record.
        quantity: which.
        keys: columns that tell rows apart.
    """
    table = pd.DataFrame(rows)
    table = table[table.quantity == quantity].groupby(keys, sort=False).value
    return table.agg(value="mean", low="min", high="max").reset_index()


def beside_published(rows: Iterable[Mapping], published: pd.DataFrame, task: str) -> pd.DataFrame:
    """Put the relative scores of one task beside the paper's: method, ours, low, high, published.

    Args:
        rows: of `score_rows`.
        published: the paper's relative scores; may be empty.
        task: which.
    """
    ours = merged(rows, "relative_score", ["task", "method"])
    ours = ours[ours.task == task].rename(columns={"value": "ours"})
    theirs = published[published.task == task] if len(published) else published
    known = dict(zip(theirs.method, theirs.value, strict=True)) if len(theirs) else {}
    return ours.assign(published=[known.get(name, float("nan")) for name in ours.method])


def draw_relative_scores(beside: pd.DataFrame, *, ax: Axes, task: str) -> Axes:
    """Draw what a task keeps of its uncompressed score, the paper's beside ours.

    Args:
        beside: of `beside_published`.
        ax: where to draw.
        task: written above.
    """
    plots.comparison(beside, ax=ax, x="method")
    ax.axhline(1, color="black", linewidth=0.8)
    ax.set(title=task, ylabel="score / uncompressed")
    return ax


def score_table(rows: Iterable[Mapping]) -> pd.DataFrame:
    """Show scores in per cent, a task a row and a method a column: mean and spread over seeds."""
    table = merged(rows, "score", ["task", "method"])
    table["shown"] = [_spread(row.value, row.low, row.high) for row in table.itertuples()]
    chance = merged(rows, "chance", ["task"]).set_index("task").value.map("{:.1f}".format)
    shown = table.pivot_table(index="task", columns="method", values="shown", aggfunc="first", sort=False)
    return shown.assign(chance=chance)


def _spread(value: float, low: float, high: float) -> str:
    return f"{value:.1f}" + (f" ({low:.1f} to {high:.1f})" if low < high else "")


def draw_by_layers(rows: Iterable[Mapping], *, ax: Axes, along: str) -> Axes:
    """Draw what is left of each task's uncompressed score, along the compressed layers.

    Args:
        rows: of `layer_rows`.
        ax: where to draw.
        along: "num_layers" or "first_layer".
    """
    table = merged(rows, "relative_score", ["task", along])
    plots.lines(table, ax=ax, x=along, by="task", x_label=LAYER_LABELS[along], y_label="score / uncompressed")
    ax.axhline(1, color="black", linewidth=0.8)
    ax.xaxis.get_major_locator().set_params(integer=True)
    return ax


def draw_per_byte(rows: Iterable[Mapping], *, ax: Axes) -> Axes:
    """Set what a method keeps of the score against what it sends: up and left is better.

    Args:
        rows: of `mean_rows`.
        ax: where to draw.
    """
    rows = list(rows)
    names = ("mean_relative_score", "mean_message_share")
    scores, shares = (merged(rows, name, ["method"]).set_index("method") for name in names)
    for method, score in scores.iterrows():
        share, color = shares.value[method], FAMILY_COLORS[method[0]]
        spread = [[score.value - score.low], [score.high - score.value]]
        ax.errorbar(share, score.value, yerr=spread, fmt="o", color=color, capsize=2)
        ax.annotate(method, (share, score.value), xytext=(5, 5), textcoords="offset points", color=color, weight="bold")
    ax.axhspan(CLOSE, ax.get_ylim()[1], color="green", alpha=0.08, linewidth=0)
    ax.set(xscale="log", xlabel="bytes of a compressed message / uncompressed", ylabel="score / uncompressed")
    ax.set_xticks(SHARES, [f"{share:.0%}" for share in SHARES])
    ax.minorticks_off()
    return ax
