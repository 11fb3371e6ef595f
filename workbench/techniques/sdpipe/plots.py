"""The pictures that only SDPipe has: loss against time and mini-batches, speedups, the map of P and T."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workbench import plots
from workbench.timeline import Timeline

__all__ = ["draw_map", "draw_scaling", "draw_sizes", "draw_slowness", "draw_speeds", "draw_timelines"]

Rows = Sequence[Mapping[str, Any]]


def draw_timelines(timelines: Mapping[str, Timeline], height_in: float = 2.2) -> Figure:
    """Draw timelines under one another."""
    return plots.gantts(timelines, figsize=(9, height_in * len(timelines)))[0].figure


def draw_speeds(rows: Rows, dose: str) -> Figure:
    """Draw the speed of all schemes on all meshes, a panel a model and setting."""
    table = pd.DataFrame([row for row in rows if row["quantity"] == "examples_per_s" and row["dose"] == dose])
    models, settings = table["model"].unique(), table["setting"].unique()
    size = {"figsize": (4.5 * len(settings), 3.2 * len(models)), "squeeze": False}
    figure, axes = plots.figure(len(models), len(settings), **size)
    for row, model in zip(axes, models, strict=True):
        for ax, setting in zip(row, settings, strict=True):
            part = table[(table["model"] == model) & (table["setting"] == setting)]
            plots.bars(part, ax=ax, x="mesh", by="scheme", y_label="examples/s")
            ax.set_title(f"{model}, {setting}")
            if ax is not axes[0][-1]:
                ax.get_legend().remove()
    return figure


def draw_scaling(rows: Rows) -> Figure:
    """Draw speedups over HetPipe against the number of workers."""
    table = pd.DataFrame([row for row in rows if row["quantity"] == "over_hetpipe"])
    groups = list(table.groupby(["model", "setting"], sort=False))
    figure, axes = plots.figure(1, len(groups), figsize=(4 * len(groups), 3.6), sharey=True, squeeze=False)
    for ax, ((model, setting), part) in zip(axes[0], groups, strict=True):
        plots.lines(part, ax=ax, x="workers", by="scheme", log_x=True, log_y=True, y_label="times as fast as HetPipe")
        ax.set_title(f"{model}, {setting}")
        if ax is not axes[0][-1]:
            ax.get_legend().remove()
    return figure


def draw_slowness(speeds: Sequence[Sequence[float]], names: Sequence[str], hours: float) -> Figure:
    """Draw the recorded speeds of workers, a row each, over time."""
    figure, axes = plots.figure(len(speeds), 1, figsize=(9, 0.55 * len(speeds)), sharex=True, sharey=True)
    for ax, speed, name in zip(axes, speeds, names, strict=True):
        ax.plot(np.linspace(0, hours, len(speed)), speed, linewidth=0.8)
        ax.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
        ax.set_yticks([0, 1])
    axes[-1].set_xlabel("hours")
    axes[0].set_title("share of a GPU's peak speed")
    return figure


def draw_sizes(rows: Rows, published: pd.DataFrame) -> Axes:
    """Draw median sizes of groups against P, bands from the lower to the upper quartile, the paper's beside ours."""
    ours = pd.DataFrame([row for row in rows if row["quantity"] == "group_size"]).rename(columns={"P": "history"})
    ax = plots.lines(ours, x="history", by="settings", x_label="P", y_label="workers of a group", log_x=True)
    ax.plot(published["P"].astype(float), published["value"].astype(float), "kx", label="published", linestyle="none")
    ax.legend()
    return ax


def draw_map(rows: Rows, quantities: Mapping[str, tuple[str, float]]) -> Figure:
    """Draw quantities by P and T as heat maps side by side, each under its title; white is the value beside it."""
    figure, axes = plots.figure(1, len(quantities), figsize=(4.2 * len(quantities), 3.6), squeeze=False)
    for ax, (quantity, (title, white)) in zip(axes[0], quantities.items(), strict=True):
        table = pd.DataFrame([row for row in rows if row["quantity"] == quantity])
        cells = table.pivot(index="P", columns="T", values="value")
        values, texts = cells.to_numpy() - white, cells.map(lambda value: f"{value:.3g}").to_numpy().tolist()
        ticks = {
            "x_ticks": list(cells.columns),
            "y_ticks": list(cells.index),
            "x_label": "T (iterations)",
            "y_label": "P",
        }
        plots.heatmap(values, ax=ax, limit=float(np.abs(values).max()) or 1.0, texts=texts, **ticks)
        ax.set_title(title)
    return figure
