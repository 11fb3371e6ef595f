"""The pictures and tables of activation compression: parts of an iteration, scores, bytes, singular values."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.patches import Rectangle
from matplotlib.ticker import PercentFormatter

from workbench import plots
from workbench.plots import merged, rows_of
from workbench.plots.style import BLACK, GREY, KIND_COLOR, PALETTE, PUBLISHED
from workbench.timeline import Kind

__all__ = ["draw_by_layers", "draw_per_byte", "draw_points_lost", "draw_relative_scores", "draw_setting"]
__all__ += ["draw_spectrum", "score_table", "scores_beside_published", "speedups_beside_published", "stacked_parts"]

PARTS = MappingProxyType(
    {
        "compute_ms": ("forward computation", Kind.FORWARD),
        "encode_ms": ("encoding", Kind.ENCODE),
        "tensor_ms": ("tensor communication", Kind.COMMUNICATE),
        "decode_ms": ("decoding", Kind.DECODE),
        "backward_ms": ("backward", Kind.BACKWARD),
        "optimizer_ms": ("optimizer", Kind.OTHER),
        "waits_ms": ("waiting and pipeline", Kind.WAIT),
    }
)  # the name of each part of an iteration, and the kind of action whose colour it has on timelines
INSIDE_FORWARD = ("encode_ms", "decode_ms", "tensor_ms", "tensor_waiting_ms")

LAYER_LABELS = MappingProxyType(
    {
        "layer_share": "share of the layers that is compressed, the last ones",
        "place": "place of the compressed layers: 0 the first, 1 the last",
    }
)
UNCOMPRESSED = "w/o"  # as table 1 names it
FAMILY_COLORS = MappingProxyType(dict(zip("wATQR", (BLACK, *PALETTE), strict=False)))
SHARES = (0.05, 0.1, 0.2, 0.5, 1.0)  # that are written at the axis
UNSEEN = 0.01  # a share whose bar is too low to be seen
CLOSE_POINTS = 3  # points of score that section 4.3 lets a method lose
KEPT_COLOR, OPEN_COLOR, AT_CHANCE_COLOR = "#a6d8a8", "#cfdcec", "#dddddd"  # no seed loses more; some do; no matter
LOST_POINTS = (10.0, 20.0)  # at which the colour of a loss changes
LOST_COLORS = ("#fbd3b8", "#f7a479", "#d9604c")
LOST_LEGEND = f"green: no seed loses more than {CLOSE_POINTS}; blue: some do; red: all do"
UP, DOWN = 0.15, 0.27  # distance of mean and spread from the middle of a cell, in cells


def _with_published(ours: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    known = dict(zip(published.method, published.value, strict=True)) if len(published) else {}
    return ours.assign(published=[known.get(name, float("nan")) for name in ours.method])


def stacked_parts(rows: Iterable[Mapping], setting: Mapping) -> pd.DataFrame:
    """Return one setting's parts of an iteration: method, part, time in ms.

    Waiting is that for the last rank of a collective and that for other stages, messages between stages included.
    Parts are medians, so they need not add up to the median iteration.
    """
    here = pd.DataFrame([row for row in rows if setting.items() <= row.items()])
    table = here.pivot_table(index="method", columns="quantity", values="value", sort=False)
    table["compute_ms"] = table.forward_ms - table[list(INSIDE_FORWARD)].sum(axis=1)
    table["waits_ms"] = table.tensor_waiting_ms + table.waiting_and_pipeline_ms
    parts = table[list(PARTS)].clip(lower=0).rename(columns={quantity: name for quantity, (name, _) in PARTS.items()})
    return parts.reset_index().melt(id_vars="method", var_name="part", value_name="time")


def speedups_beside_published(rows: Iterable[Mapping], setting: Mapping, published: pd.DataFrame) -> pd.DataFrame:
    """Put one setting's speedups beside the paper's: method, ours, low, high, published."""
    ours = rows_of(rows, "speedup", **setting).rename(columns={"value": "ours"})[["method", "ours", "low", "high"]]
    for key in {"tp", "pp", "nvlink"} & set(published):
        published = published[published[key] == setting[key]]
    return _with_published(ours, published)


def draw_setting(
    rows: Iterable[Mapping], setting: Mapping, published: pd.DataFrame, *, axes: Sequence[Axes], legend: bool = True
) -> None:
    """Draw the parts of an iteration, a stacked bar a method, and the speedups beside the paper's."""
    left, right = axes
    colors = {name: KIND_COLOR[kind] for name, kind in PARTS.values()}
    parts = stacked_parts(rows, setting)
    plots.bars(parts, ax=left, x="method", y="time", by="part", stacked=True, unit="ms", colors=colors)
    if not legend:
        left.get_legend().remove()
    both = speedups_beside_published(rows, setting, published)
    plots.comparison(both, ax=right, x="method", y_label="speedup")
    links = {"carried over": "slow links (share carried over)"}.get(setting["link"], f"{setting['link']} links")
    left.set_title(f"TP {setting['tp']}, PP {setting['pp']}, {links}")
    right.set_title(f"batch {setting['micro_batch']} x {setting['sequence']}")
    right.axhline(1, color="black", linewidth=1, zorder=3)
    for label in (*left.get_xticklabels(), *right.get_xticklabels()):
        label.set(rotation=45, size=8, horizontalalignment="right", rotation_mode="anchor")


def scores_beside_published(rows: Iterable[Mapping], published: pd.DataFrame, task: str) -> pd.DataFrame:
    """Put one task's relative scores beside the paper's, and the share `constant` that a constant answer keeps."""
    rows = list(rows)
    ours = merged(rows, "relative_score", ["method"], task=task).rename(columns={"value": "ours"})
    constant = merged(rows, "constant_share", ["task"]).set_index("task").value
    papers = published[published.task == task] if len(published) else published
    return _with_published(ours, papers).assign(constant=constant.get(task))


def draw_relative_scores(rows: Iterable[Mapping], published: pd.DataFrame, *, ax: Axes, task: str) -> Axes:
    """Draw the share of a task's uncompressed score that is kept beside the paper's; dashed: a constant answer."""
    both = scores_beside_published(rows, published, task)
    plots.comparison(both, ax=ax, x="method", y_label="score / uncompressed")
    for bars in (drawn for drawn in ax.containers if isinstance(drawn, BarContainer)):
        labels = [f"{bar.get_height():.1g}" if bar.get_height() < UNSEEN else "" for bar in bars]
        ax.bar_label(bars, labels)  # no bar at all was not run or printed
    ax.axhline(1, color="black", linewidth=0.8)
    for constant in both.constant.dropna().unique():
        ax.axhline(constant, color="black", linewidth=0.8, linestyle="dashed")
    ax.set_title(task)
    return ax


def score_table(rows: Iterable[Mapping]) -> pd.DataFrame:
    """Show scores in per cent, a task a row and a method a column: mean and spread over seeds."""
    table = merged(rows, "score", ["task", "method"])
    spreads = (f" ({row.low:.1f} to {row.high:.1f})" if row.low < row.high else "" for row in table.itertuples())
    table["shown"] = [f"{value:.1f}{spread}" for value, spread in zip(table.value, spreads, strict=True)]
    chance = merged(rows, "chance", ["task"]).set_index("task").value.map("{:.1f}".format)
    shown = table.pivot_table(index="task", columns="method", values="shown", aggfunc="first", sort=False)
    return shown.assign(chance=chance)


def draw_by_layers(rows: Iterable[Mapping], *, ax: Axes, along: str) -> Axes:
    """Draw the share that each task keeps of its uncompressed score, along "layer_share" or "place"."""
    table = merged(rows, "relative_score", ["task", along])
    plots.lines(table, ax=ax, x=along, by="task", x_label=LAYER_LABELS[along], y_label="score / uncompressed")
    ax.axhline(1, color="black", linewidth=0.8)
    return ax


def draw_per_byte(rows: Iterable[Mapping], *, ax: Axes) -> Axes:
    """Set the score that a method keeps against the bytes that it sends: up and left is better.

    Full dots count messages; a ring counts the gradients of learned codes, too. The dashed line is a constant answer.
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
    ax.axhline(sum(constant) / max(1, len(constant)), color=GREY, linestyle="--", linewidth=1)
    ax.axhline(1, color="black", linewidth=0.8)
    x_label = "bytes sent where messages are compressed / uncompressed"
    ax.set(xscale="log", xlabel=x_label, ylabel="score / uncompressed")
    ax.set_xticks(SHARES, [f"{share:.0%}" for share in SHARES])
    ax.minorticks_off()
    return ax


def draw_points_lost(rows: Iterable[Mapping], *, ax: Axes, at_chance: Collection[str | tuple[str, str]] = ()) -> Axes:
    """Draw a table of the points that a method loses on each task; the method that sends least is at the top.

    Below the mean stands the spread of the seeds. Green: no seed loses more than 3; blue: 3 lies inside the spread;
    red: every seed loses more. Hatched is no better than a constant answer, whose loss stands below the task; a grey
    task is at chance without compression. Beside a method stands its mean share of the bytes over tasks that say
    something; in brackets the bytes of a learned code with its gradients. `at_chance` holds tasks that say nothing, and
    pairs (task, method) that have learned nothing.
    """
    rows = list(rows)
    counted = [row for row in rows if row["task"] not in at_chance] or rows
    order = merged(counted, "message_share", ["method"]).sort_values("value", kind="stable").method
    shares, sent = (
        merged(counted, name, ["method"]).set_index("method").value.map("{:.0%}".format)
        for name in ("message_share", "sent_share")
    )
    more = {method: f" ({sent[method]} with gradients)" if sent[method] != shares[method] else "" for method in order}
    names = {method: f"{method}  {shares[method]}{more[method]}".replace("%", "\u00a0%") for method in order}
    lost = merged(rows, "points_lost", ["task", "method"])
    tasks = list(lost.task.unique())
    for row in lost.itertuples():
        color = LOST_COLORS[bisect_left(LOST_POINTS, row.value)]
        if row.low <= CLOSE_POINTS:
            color = KEPT_COLOR if row.high <= CLOSE_POINTS else OPEN_COLOR
        hatch = "///" if (row.task, row.method) in at_chance else None
        if row.task in at_chance:
            color, hatch = AT_CHANCE_COLOR, None
        column, line, has_spread = tasks.index(row.task), list(names).index(row.method), row.low < row.high
        look = {"facecolor": color, "edgecolor": "white", "linewidth": 2, "hatch": hatch}
        ax.add_patch(Rectangle((column - 0.5, line - 0.5), 1, 1, **look))
        ax.text(column, line - UP * has_spread, f"{row.value:z.1f}", ha="center", va="center")
        if has_spread:
            spread = f"{row.low:z.1f} to {row.high:z.1f}"
            ax.text(column, line + DOWN, spread, ha="center", va="center", fontsize="x-small")
    ax.set(xlim=(-0.5, len(tasks) - 0.5), ylim=(len(names) - 0.5, -0.5), xlabel=LOST_LEGEND, ylabel="method and bytes")
    ax.set_title("points of the score lost, and their spread over the seeds")
    score, chance = (merged(rows, name, ["task"], method=UNCOMPRESSED) for name in ("score", "chance"))
    most = score.set_index("task").value - chance.set_index("task").value
    ax.set_xticks(range(len(tasks)), [f"{t}\n{'at chance' if t in at_chance else f'of {most[t]:.0f}'}" for t in tasks])
    ax.set_yticks(range(len(names)), list(names.values()))
    ax.grid(False)
    return ax


def draw_spectrum(curves: Mapping[str, Sequence], *, ax: Axes, title: str = "") -> Axes:
    """Draw the cumulative share of the sum of singular values, a line a matrix, the range over seeds as a band."""
    rows = []
    for name, curve in curves.items():
        shares = np.asarray(curve, dtype=float)
        if shares.ndim != 2 or not shares.size:
            raise ValueError(f"curves[{name!r}] has shape {shares.shape}; it must be [seeds, K]")
        shares = np.concatenate([np.zeros((len(shares), 1)), shares], axis=1)  # from (0, 0) on
        spread = {"value": shares.mean(0), "low": shares.min(0), "high": shares.max(0)}
        rows.append(pd.DataFrame({"matrix": name, "share": np.linspace(0, 1, shares.shape[1]), **spread}))
    labels = {"x_label": "share of the dimension", "y_label": "share of the sum of singular values"}
    plots.lines(pd.concat(rows), ax=ax, x="share", by="matrix", markers=False, **labels)
    ax.plot([0, 1], [0, 1], color=PUBLISHED, linewidth=1, label="all values equal")
    ax.set(xlim=(0, 1), ylim=(0, 1.01))
    ax.set_title(title)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    ax.legend(loc="lower right")  # curves rise above the diagonal
    return ax
