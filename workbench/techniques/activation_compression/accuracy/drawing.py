"""Tables and charts of the accuracy study.

Source: none; plain bars, and points where bytes are set against scores.
Simplified: one chart a task. Left out: verdicts, which are computed elsewhere.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.patches import Rectangle

from workbench import plots
from workbench.plots.style import PALETTE

from .scores import BASELINE, CLOSE_POINTS, bytes_text

__all__ = [
    "beside_published",
    "draw_by_layers",
    "draw_per_byte",
    "draw_points_lost",
    "draw_relative_scores",
    "merged",
    "score_table",
]

LAYER_LABELS = MappingProxyType(
    {
        "layer_share": "share of the layers that is compressed, the last ones",
        "place": "place of the compressed layers: 0 the first, 1 the last",
    }
)
FAMILY_COLORS = MappingProxyType({"w": "black", "A": PALETTE[0], "T": PALETTE[1], "Q": PALETTE[2], "R": PALETTE[3]})
SHARES = (0.05, 0.1, 0.2, 0.5, 1.0)  # that are written at the axis
KEPT_COLOR, OPEN_COLOR = "#a6d8a8", "#cfdcec"  # no seed loses more; some do and some do not
LOST_POINTS = (10.0, 20.0)  # at which the colour of a loss changes
LOST_COLORS = ("#fbd3b8", "#f7a479", "#d9604c")
AT_CHANCE_COLOR = "#dddddd"
UNSEEN = 0.01  # a share whose bar is too low to be seen
LOST_LEGEND = f"green: no seed loses more than {CLOSE_POINTS:.0f}; blue: some do; red: all do"
UP, DOWN = 0.15, 0.27  # of a line's height, from the middle of a cell: its mean, its spread


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
    """Put the relative scores of one task beside the paper's: method, ours, low, high, published, constant.

    Args:
        rows: of `score_rows`.
        published: the paper's relative scores; may be empty.
        task: which.

    Returns:
        A row a method; `constant` is what a constant answer keeps of the uncompressed score.
    """
    rows = list(rows)
    ours = merged(rows, "relative_score", ["task", "method"])
    ours = ours[ours.task == task].rename(columns={"value": "ours"})
    constant = merged(rows, "constant_share", ["task"]).set_index("task").value
    theirs = published[published.task == task] if len(published) else published
    known = dict(zip(theirs.method, theirs.value, strict=True)) if len(theirs) else {}
    return ours.assign(published=[known.get(name, float("nan")) for name in ours.method], constant=constant.get(task))


def draw_relative_scores(beside: pd.DataFrame, *, ax: Axes, task: str) -> Axes:
    """Draw what a task keeps of its uncompressed score, the paper's beside ours; dashed is a constant answer.

    Args:
        beside: of `beside_published`.
        ax: where to draw.
        task: written above.
    """
    plots.comparison(beside, ax=ax, x="method")
    for bars in (each for each in ax.containers if isinstance(each, BarContainer)):
        labels = [f"{bar.get_height():.1g}" if bar.get_height() < UNSEEN else "" for bar in bars]
        ax.bar_label(bars, labels)  # no bar at all was not run or printed
    ax.axhline(1, color="black", linewidth=0.8)
    for constant in beside.constant.dropna().unique():
        ax.axhline(constant, color="black", linewidth=0.8, linestyle="dashed")
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
        along: "layer_share" or "place".
    """
    table = merged(rows, "relative_score", ["task", along])
    plots.lines(table, ax=ax, x=along, by="task", x_label=LAYER_LABELS[along], y_label="score / uncompressed")
    ax.axhline(1, color="black", linewidth=0.8)
    return ax


def draw_per_byte(rows: Iterable[Mapping], *, ax: Axes) -> Axes:
    """Set what a method keeps of the score against what it sends: up and left is better.

    Full dots count messages; a ring counts the gradients of learned codes, too. The dashed line is a constant answer.

    Args:
        rows: of `mean_rows`.
        ax: where to draw.
    """
    rows = list(rows)
    names = ("relative_score", "message_share", "sent_share")
    scores, shares, sent = (merged(rows, f"mean_{name}", ["method"]).set_index("method") for name in names)
    for method, score in scores.iterrows():
        share, color = shares.value[method], FAMILY_COLORS[method[0]]
        spread = [[score.value - score.low], [score.high - score.value]]
        ax.errorbar(share, score.value, yerr=spread, fmt="o", color=color, capsize=2)
        if sent.value[method] > share:
            ax.plot([share, sent.value[method]], [score.value] * 2, ":", color=color, linewidth=1)
            ax.plot(sent.value[method], score.value, "o", color=color, fillstyle="none")
        ax.annotate(method, (share, score.value), xytext=(5, 5), textcoords="offset points", color=color, weight="bold")
    constant = [row["value"] for row in rows if row["quantity"] == "mean_constant_share"]
    ax.axhline(sum(constant) / max(1, len(constant)), color="grey", linestyle="--", linewidth=1)
    ax.axhline(1, color="black", linewidth=0.8)
    ax.set(
        xscale="log", xlabel="bytes sent where messages are compressed / uncompressed", ylabel="score / uncompressed"
    )
    ax.set_xticks(SHARES, [f"{share:.0%}" for share in SHARES])
    ax.minorticks_off()
    return ax


def draw_points_lost(rows: Iterable[Mapping], *, ax: Axes, at_chance: Collection[str | tuple[str, str]] = ()) -> Axes:
    """Draw a table of the points that a method loses on each task, what sends least at the top.

    Below the mean stands the spread of the seeds. Green: no seed loses more than 3; blue: 3 lies inside the spread;
    red: every seed loses more. Hatched is no better than a constant answer, whose loss stands below the task; a grey
    task is at chance without compression. In brackets stands what a learned code sends with its gradients.

    Args:
        rows: of `score_rows`.
        ax: where to draw.
        at_chance: tasks that say nothing, and pairs (task, method) that have learned nothing.
    """
    rows = list(rows)
    keys = ["task", "method"]
    scores, chance = (merged(rows, name, keys).set_index(keys).value for name in ("score", "chance"))
    lost = merged(rows, "points_lost", keys)
    told = [row for row in rows if row["task"] not in at_chance] or rows  # bytes as the other pictures tell them
    names = ("message_share", "sent_share")
    shares, sent = (merged(told, name, ["method"]).set_index("method").value for name in names)
    shares = shares.sort_values(kind="stable")
    tasks, lines = list(lost.task.unique()), {method: line for line, method in enumerate(shares.index)}
    for row in lost.itertuples():
        grey, hatched = row.task in at_chance, (row.task, row.method) in at_chance
        look = {"facecolor": AT_CHANCE_COLOR if grey else _lost_color(row), "edgecolor": "white", "linewidth": 2}
        place = (tasks.index(row.task), lines[row.method])
        corner = (place[0] - 0.5, place[1] - 0.5)
        ax.add_patch(Rectangle(corner, 1, 1, **look, hatch="///" if hatched and not grey else None))
        _write_lost(ax, *place, row)
    ax.set(xlim=(-0.5, len(tasks) - 0.5), ylim=(len(shares) - 0.5, -0.5), xlabel=LOST_LEGEND)
    ax.set_title("points of the score lost, and their spread over the seeds")
    most = {task: scores[task, BASELINE] - chance[task, BASELINE] for task in tasks}
    names = [f"{task}\nat chance" if task in at_chance else f"{task}\nof {most[task]:.0f}" for task in tasks]
    ax.set_xticks(range(len(tasks)), names)
    ax.set_yticks(
        range(len(shares)), [f"{name}  {bytes_text([share], [sent[name]])}" for name, share in shares.items()]
    )
    ax.set_ylabel("method and its bytes")
    ax.grid(False)
    return ax


def _lost_color(row: Any) -> str:
    if row.high <= CLOSE_POINTS:
        return KEPT_COLOR
    return OPEN_COLOR if row.low <= CLOSE_POINTS else LOST_COLORS[bisect_left(LOST_POINTS, row.value)]


def _write_lost(ax: Axes, column: int, line: int, row: Any) -> None:
    """Write the mean, and below it in small the spread where there is one."""
    known = row.low < row.high
    ax.text(column, line - UP * known, f"{row.value:z.1f}", ha="center", va="center")
    if known:
        ax.text(column, line + DOWN, f"{row.low:z.1f} to {row.high:z.1f}", ha="center", va="center", fontsize="x-small")
