"""Tables and charts of the accuracy study.

Source: none; plain bars, and points where bytes are set against scores.
Simplified: one chart a task. Left out: verdicts, which are computed elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd
from matplotlib.axes import Axes

from workbench import plots

__all__ = ["beside_published", "draw_relative_scores", "score_table"]


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
    table["shown"] = [
        f"{row.value:.1f}" + (f" ({row.low:.1f} to {row.high:.1f})" if row.low < row.high else "") for row in table.itertuples()
    ]
    chance = merged(rows, "chance", ["task"]).set_index("task").value.map("{:.1f}".format)
    shown = table.pivot_table(index="task", columns="method", values="shown", aggfunc="first", sort=False)
    return shown.assign(chance=chance)
