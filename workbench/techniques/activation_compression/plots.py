"""The pictures and tables of activation compression: parts of an iteration, scores, bytes, singular values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from workbench import plots
from workbench.plots import merged, rows_of, with_intervals
from workbench.plots.style import BLACK, GREY, KIND_COLOR, PALETTE, PUBLISHED
from workbench.timeline import Kind

__all__ = ["draw_by_layers", "draw_per_byte", "draw_relative_scores", "draw_settings"]
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

FAMILY_COLORS = MappingProxyType(dict(zip("wATQR", (BLACK, *PALETTE), strict=False)))  # of methods, by first letter
SHARES = (0.05, 0.1, 0.2, 0.5, 1.0)  # that are written at the axis
UNSEEN = 0.01  # a share whose bar is too low to be seen


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


def draw_settings(rows: Iterable[Mapping], settings: Sequence[Mapping], published: pd.DataFrame) -> Figure:
    """Draw the parts of an iteration, a stacked bar a setting and method, and below the speedups beside the paper's."""
    rows = list(rows)
    parts: list[pd.DataFrame] = []
    speedups: list[pd.DataFrame] = []
    for number, setting in enumerate(settings):
        parts.append(stacked_parts(rows, setting).assign(setting=number))
        speedups.append(speedups_beside_published(rows, setting, published).assign(setting=number))
    both = [pd.concat(tables) for tables in (parts, speedups)]
    for table in both:
        table["bar"] = table["setting"].astype(str) + " " + table["method"]
    bars = both[0][["bar", "setting", "method"]].drop_duplicates()
    bar_in = max(0.32, 1.5 * len(settings) / len(bars))  # wide enough for the words above a setting's bars
    figure, (above, under) = plots.figure(2, 1, figsize=(2.6 + bar_in * len(bars), 7), sharex=True)
    colors = {name: KIND_COLOR[kind] for name, kind in PARTS.values()}
    plots.bars(both[0], ax=above, x="bar", y="time", by="part", stacked=True, unit="ms", colors=colors)
    plots.comparison(both[1], ax=under, x="bar", y_label="speedup")
    under.axhline(1, color="black", linewidth=1, zorder=3)
    under.set_xticks(range(len(bars)), bars["method"], rotation=90)
    first = 0
    for number, setting in enumerate(settings):
        num_bars = (bars["setting"] == number).sum()
        links = {"carried over": "slow links,\nshare carried over"}.get(setting["link"], f"{setting['link']} links")
        batch = f"batch {setting['micro_batch']:g} x {setting['sequence']:g}"
        words = f"TP {setting['tp']:g}, PP {setting['pp']:g}\n{links}\n{batch}"
        place = {"transform": above.get_xaxis_transform(), "ha": "center", "va": "bottom", "fontsize": 9}
        above.text(first + (num_bars - 1) / 2, 1.01, words, **place)
        first += num_bars
        for ax in (above, under) if first < len(bars) else ():
            ax.axvline(first - 0.5, color=GREY, linewidth=0.8)
    return figure


def scores_beside_published(rows: Iterable[Mapping], published: pd.DataFrame, task: str) -> pd.DataFrame:
    """Put one task's relative scores beside the paper's, and the share `constant` that a constant answer keeps."""
    rows = list(rows)
    ours = merged(rows, "relative_score", ["method"], task=task).rename(columns={"value": "ours"})
    constant = merged(rows, "constant_share", ["task"]).set_index("task").value
    papers = published[published.task == task] if len(published) else published
    return _with_published(ours, papers).assign(constant=constant.get(task))


def draw_relative_scores(rows: Iterable[Mapping], published: pd.DataFrame, tasks: Sequence[str]) -> Figure:
    """Draw the share of each task's uncompressed score that is kept beside the paper's; dashed: a constant answer."""
    rows = list(rows)
    columns = min(2, len(tasks))
    num_rows = -(-len(tasks) // 2)
    figure, axes = plots.figure(num_rows, columns, figsize=(1.2 + 6 * columns, 2.8 * num_rows), squeeze=False)
    for ax in axes.flat[len(tasks) :]:
        ax.remove()
    for ax, task in zip(axes.flat, tasks, strict=False):
        both = scores_beside_published(rows, published, task)
        plots.comparison(both, ax=ax, x="method", y_label="score / uncompressed")
        for bars in (drawn for drawn in ax.containers if isinstance(drawn, BarContainer)):
            labels = [f"{bar.get_height():.1g}" if bar.get_height() < UNSEEN else "" for bar in bars]
            ax.bar_label(bars, labels)  # no bar at all was not run or printed
        ax.axhline(1, color="black", linewidth=0.8)
        for constant in both.constant.dropna().unique():
            ax.axhline(constant, color="black", linewidth=0.8, linestyle="dashed")
        ax.set_title(task)
    plots.aside(figure)
    return figure


def score_table(rows: Iterable[Mapping]) -> pd.DataFrame:
    """Show scores in per cent, a task a row and a method a column: mean and spread over seeds."""
    scores = merged(rows, "score", ["task", "method"]).assign(quantity="score", unit="1")
    shown = with_intervals(scores.to_dict("records"), columns="method").droplevel("quantity")
    return shown.assign(chance=merged(rows, "chance", ["task"]).set_index("task").value.map("{:.4g}".format))


def draw_by_layers(rows: Iterable[Mapping], *, ax: Axes, along: str) -> Axes:
    """Draw the share that each task keeps of its uncompressed score, along "layer_share" or "place"."""
    words = {
        "layer_share": "share of the layers that is compressed, the last ones",
        "place": "place of the compressed layers: 0 the first, 1 the last",
    }
    table = merged(rows, "relative_score", ["task", along])
    plots.lines(table, ax=ax, x=along, by="task", x_label=words[along], y_label="score / uncompressed")
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
            ax.hlines(score.value, share, sent.value[method], color=color, linestyles=":", linewidth=1)
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
    plots.lines(pd.concat(rows), ax=ax, x="share", by="matrix")
    ax.set(xlabel="share of the dimension", ylabel="share of the sum of singular values")
    ax.plot([0, 1], [0, 1], color=PUBLISHED, linewidth=1, label="all values equal")
    ax.set(xlim=(0, 1), ylim=(0, 1.01))
    ax.set_title(title)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    ax.legend(loc="lower right")  # curves rise above the diagonal
    return ax
