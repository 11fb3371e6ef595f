"""The pictures that only Zen has: sparsity, imbalance, lost gradients, formats, times of schemes, and who wins."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patheffects import Normal, Stroke

from workbench import plots
from workbench.plots.style import looks_of

from .advice import CANDIDATES

__all__ = ["draw_balance", "draw_communications", "draw_densities", "draw_extraction", "draw_formats", "draw_hashing"]
__all__ += ["draw_learning", "draw_losses", "draw_map", "draw_overlaps", "draw_scaling", "draw_skewness", "draw_space"]
__all__ += ["draw_tables", "draw_throughput"]

Rows = Sequence[Mapping[str, Any]]
OUTLINED = (Stroke(linewidth=3, foreground="grey"), Normal())  # a white line in a legend on white


def _of(rows: Rows, quantity: str) -> pd.DataFrame:
    return pd.DataFrame([row for row in rows if row["quantity"] == quantity])


def draw_tables(rows: Rows) -> Figure:
    """Draw the density of every row's gradients, in per cent."""
    table = _of(rows, "density").assign(value=lambda t: 100 * t["value"])
    figure, ax = plots.figure(figsize=(7, 3.2))
    plots.bars(table, ax=ax, x=table.columns[1], y_label="% of gradients not zero", value_labels=True)
    return figure


def draw_overlaps(rows: Rows) -> Figure:
    """Draw the distribution of overlap ratios, and densification by ranks."""
    figure, (left, right) = plots.figure(1, 2, figsize=(12, 3.8))
    table = _of(rows, "overlap")
    plots.lines(
        table, ax=left, x="value", y="percentile", by="task", x_label="overlap ratio", y_label="% of pairs below"
    )
    densification = _of(rows, "densification")
    label = "densification ratio"
    plots.lines(densification, ax=right, x="ranks", by="task", log_x=True, log_y=True, x_label="ranks", y_label=label)
    plots.aside(figure)
    return figure


def draw_skewness(rows: Rows) -> Figure:
    """Draw which of eight ranges hold the non-zero gradients, and the skewness ratio by the number of ranges."""
    shares = _of(rows, "share").pivot_table(index="task", columns="range", values="value", sort=False)
    figure, (left, right) = plots.figure(1, 2, figsize=(12, 3.8))
    texts = [[f"{100 * value:.0f} %" for value in line] for line in shares.to_numpy()]
    names, values = list(shares.index), shares.to_numpy()
    plots.heatmap(values, ax=left, limit=1.0, x_label="eighth of the rows", y_label="", y_ticks=names, texts=texts)
    skewness, label = _of(rows, "skewness"), "skewness ratio"
    plots.lines(skewness, ax=right, x="partitions", by="task", log_x=True, log_y=True, x_label="ranges", y_label=label)
    return figure


def _panels(
    table: pd.DataFrame, panel: str, x: str, by: str, y_label: str, *, share_y: bool = False, **look: Any
) -> Figure:
    """Draw lines along x in a panel for each value of a column; each panel has a legend."""
    parts = list(table.groupby(panel, sort=False))
    figure, axes = plots.figure(1, len(parts), figsize=(3.8 * len(parts) + 1.5, 3.8), squeeze=False, sharey=share_y)
    for ax, (name, part) in zip(axes[0], parts, strict=True):
        series = by if by in part and part[by].notna().all() else None
        plots.lines(part, ax=ax, x=x, by=series, x_label=x, y_label=y_label if ax is axes[0][0] else "", **look)
        ax.set_title(name)
    return figure


def draw_balance(rows: Rows) -> Figure:
    """Draw imbalance ratios by ranks or partitions, a panel for each of what is balanced."""
    table = _of(rows, "imbalance")
    x, by, panel = ("ranks", "scheme", "what") if "scheme" in table else ("partitions", "indices", "kind")
    figure = _panels(table, panel, x, by, "imbalance ratio", share_y=True, log_x=True, log_y=True)
    for ax in figure.axes:
        plots.published_line(ax, 1.1, "1.1, the paper's bound for Zen")
    plots.aside(figure)
    return figure


def _lines(
    rows: Rows, quantity: str, x: str, by: str, labels: tuple[str, str], times: float = 1.0, **look: Any
) -> Figure:
    """Draw one panel of a quantity, multiplied, along x; the labels are those of x and of the quantity."""
    table = _of(rows, quantity)
    if by == "density":
        table["density"] = table["density"].map("{:.1%}".format)
    for column in {"value", "low", "high"} & set(table):
        table[column] *= times
    figure, ax = plots.figure(figsize=(9, 4))
    plots.lines(table, ax=ax, x=x, by=by, x_label=labels[0], y_label=labels[1], **look)
    return figure


def draw_losses(rows: Rows) -> Figure:
    """Draw the share of gradients that the strawman loses."""
    labels = "slots over the size of the gradient", "% lost"
    return _lines(rows, "lost", "memory", "density", labels, 100.0, log_x=True, log_y=True)


def draw_extraction(rows: Rows) -> Figure:
    """Draw how long the slots' non-zero entries take to find, by memory and density."""
    labels = "slots over the size of the gradient", "ms"
    return _lines(rows, "extraction_s", "memory", "density", labels, 1e3, log_x=True)


def draw_hashing(rows: Rows) -> Figure:
    """Draw how long partitioning takes by r1, by k, and beside other ways to the same partitions."""
    table = _of(rows, "partition_s").drop(columns=["low", "high"]).assign(value=lambda t: 1e3 * t["value"])
    figure, axes = plots.figure(1, 3, figsize=(12, 3.4))
    names = {"r1": "r1, slots an index", "k": "k, hash functions"}
    for ax, (way, label) in zip(axes, names.items(), strict=False):
        plots.bars(table[table["way"] == way], ax=ax, x="number", x_label=label, y_label="ms", value_labels=True)
    others = table[(table["way"] != "k") & (table["number"].isna() | (table["number"] == 2.0))]
    plots.bars(others.replace({"way": {"r1": "algorithm 3.2"}}), ax=axes[2], x="way", y_label="ms", value_labels=True)
    axes[2].tick_params(axis="x", rotation=20)
    return figure


def draw_formats(rows: Rows) -> Figure:
    """Draw the size of a sum in each format over the dense tensor's, by density."""
    figure = _lines(rows, "size", "density", "format", ("density of the sum", "size over dense"), log_y=True)
    plots.published_line(figure.axes[0], 1.0, "dense")
    return figure


def draw_space(rows: Rows) -> Figure:
    """Draw what each of the fifteen schemes sends over what the best one sends, by overlap."""
    table = _of(rows, "behind_best").assign(value=lambda t: 1 + t["value"])
    table = table[table["ranks"] == table["ranks"].max()]
    figure, ax = plots.figure(figsize=(9, 7))
    grid = table.pivot_table(index="scheme", columns="overlap", values="value", sort=False)
    texts = [[f"{value:.2f}" for value in line] for line in grid.to_numpy()]
    plots.heatmap(
        np.log2(grid.to_numpy()),
        ax=ax,
        limit=4.0,
        texts=texts,
        x_ticks=list(grid.columns),
        y_ticks=list(grid.index),
        x_label="overlap",
        y_label="",
    )
    ax.set_title(f"gradients on the busiest link over the best scheme's, {int(table['ranks'].max())} ranks")
    return figure


def draw_scaling(rows: Rows) -> Figure:
    """Draw times over that of Dense by number of GPUs."""
    return _lines(rows, "over_dense", "gpus", "scheme", ("GPUs", "time over Dense"), log_x=True, log_y=True)


def draw_communications(rows: Rows) -> Figure:
    """Draw how many times as fast as Dense schemes are, by model."""
    if not (table := _of(rows, "speedup")).empty:
        figure, ax = plots.figure(figsize=(11, 4))
        plots.bars(table, ax=ax, x="model", by="scheme", y_label="times as fast as Dense")
        return figure
    table = _of(rows, "seconds").assign(value=lambda t: 1e3 * t["value"])
    table[["low", "high"]] *= 1e3
    figure, ax = plots.figure(figsize=(11, 4))
    plots.bars(table, ax=ax, x="task", by="scheme", y_label="ms")
    return figure


def draw_throughput(rows: Rows) -> Figure:
    """Draw samples a second by machines, a panel a model."""
    figure = _panels(_of(rows, "samples_per_s"), "model", "machines", "scheme", "samples/s")
    for ax in figure.axes:
        ax.set_ylim(0)
    plots.aside(figure)
    return figure


def draw_densities(rows: Rows) -> Figure:
    """Draw measured times of schemes by density."""
    labels = "share of values not zero", "ms"
    return _lines(rows, "seconds", "density", "scheme", labels, 1e3, log_x=True, log_y=True)


def draw_learning(rows: Rows) -> Figure:
    """Draw test scores by step, a panel a measure."""
    figure = _panels(_of(rows, "score"), "metric", "step", "variant", "score, %")
    plots.aside(figure)
    return figure


def draw_map(rows: Rows, points: Mapping[str, tuple[float, float]] | None = None) -> Figure:
    """Draw which scheme is fastest by density and ranks, a panel a rate; white lines where Zen gains 10 %.

    Args:
        rows: of `advice.map_rows`; those of `advice.fastest_rows` are drawn as circles.
        points: own tensors by name, as (density, ranks).
    """
    table, gains, measured = (_of(rows, name) for name in ("over_best", "zen_gain", "fastest_s"))
    rates = table["gigabits_per_s"].unique()
    figure, axes = plots.figure(1, len(rates), figsize=(3.6 * len(rates) + 1.6, 3.8), squeeze=False, sharey=True)
    looks = looks_of(axes[0][0], CANDIDATES)
    colors = ListedColormap([look.color for look in looks])
    for ax, rate in zip(axes[0], rates, strict=True):
        part = table[table["gigabits_per_s"] == rate]
        best = part.loc[part.groupby(["ranks", "density"])["value"].idxmin()]
        grid = best.assign(value=best["scheme"].map(CANDIDATES.index)).pivot(
            index="ranks", columns="density", values="value"
        )
        x, y = 100 * grid.columns.to_numpy(float), grid.index.to_numpy(float)
        ax.pcolormesh(x, y, grid.to_numpy(), cmap=colors, vmin=-0.5, vmax=len(CANDIDATES) - 0.5, shading="nearest")
        gain = gains[gains["gigabits_per_s"] == rate].pivot(index="ranks", columns="density", values="value")
        ax.contour(x, y, gain.to_numpy(), levels=[1.1], colors="white")
        ax.set(xscale="log", yscale="log", title=f"{rate:g} Gbit/s", xlabel="% of entries not zero")
        ax.set_yticks(y, [f"{num:g}" for num in y], minor=False)
        ax.minorticks_off()
        ax.grid(visible=False)
        if not measured.empty:
            seen = measured[measured["gigabits_per_s"] == rate]
            colored = {"color": [looks[CANDIDATES.index(name)].color for name in seen["scheme"]], "edgecolor": "white"}
            ax.scatter(100 * seen["density"], seen["ranks"], s=80, linewidth=2, zorder=3, **colored)
        for name, (density, ranks) in (points or {}).items():
            ax.plot(100 * density, ranks, marker="*", markersize=14, color="black", label=name)
    axes[0][0].set_ylabel("ranks")
    fastest = [*table[table["value"] == 1.0]["scheme"], *(() if measured.empty else measured["scheme"])]
    shown = sorted({CANDIDATES.index(name) for name in fastest})
    handles = [axes[0][-1].plot([], [], "s", color=looks[at].color, label=CANDIDATES[at])[0] for at in shown]
    handles += axes[0][-1].plot([], [], color="white", path_effects=OUTLINED, label="Zen gains 10 %")
    if not measured.empty:
        handles += axes[0][-1].plot([], [], "o", color="grey", markersize=9, label="measured on real ranks")
    handles += [line for line in axes[0][-1].lines if line.get_marker() == "*"]
    figure.legend(handles=handles, loc="outside right upper", title="fastest")
    return figure
