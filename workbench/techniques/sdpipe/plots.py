"""The pictures that only SDPipe has: loss against time and mini-batches, speedups, the map of P and T."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workbench import plots
from workbench.timeline import Timeline

__all__ = ["draw_map", "draw_replay", "draw_scaling", "draw_sizes", "draw_speeds", "draw_timelines"]

Rows = Sequence[Mapping[str, Any]]


def draw_timelines(timelines: Mapping[str, Timeline], height_in: float = 2.2) -> Figure:
    """Draw timelines under one another."""
    return plots.gantts(timelines, figsize=(9, height_in * len(timelines)))[0].figure


def draw_speeds(rows: Rows, dose: str) -> Figure:
    """Draw the speed of all schemes on all meshes, a panel a model and setting."""
    table = plots.rows_of(rows, "examples_per_s", dose=dose)
    models, settings = table["model"].unique(), table["setting"].unique()
    size = {"figsize": (4.5 * len(settings), 3.2 * len(models)), "squeeze": False}
    figure, axes = plots.figure(len(models), len(settings), **size)
    for row, model in zip(axes, models, strict=True):
        for ax, setting in zip(row, settings, strict=True):
            part = table[(table["model"] == model) & (table["setting"] == setting)]
            plots.bars(part, ax=ax, x="mesh", by="scheme", y_label="examples/s")
            ax.set_title(f"{model}, {setting}")
    plots.aside(figure)
    return figure


def draw_scaling(rows: Rows) -> Figure:
    """Draw speedups over HetPipe against the number of workers."""
    table = plots.rows_of(rows, "over_hetpipe")
    groups = list(table.groupby(["model", "setting"], sort=False))
    figure, axes = plots.figure(1, len(groups), figsize=(4 * len(groups), 3.6), sharey=True, squeeze=False)
    for ax, ((model, setting), part) in zip(axes[0], groups, strict=True):
        plots.lines(part, ax=ax, x="workers", by="scheme", log_x=True, log_y=True, y_label="times as fast as HetPipe")
        ax.set_title(f"{model}, {setting}")
    plots.aside(figure)
    return figure


def draw_replay(rows: Rows, speeds: Sequence[Sequence[float]], hours: float) -> Figure:
    """Draw the speed of all schemes while workers replay recorded speeds, and these speeds, a row a worker."""
    figure, (left, right) = plots.figure(1, 2, figsize=(12, 4.2))
    table = plots.rows_of(rows, "examples_per_s")
    plots.bars(table, ax=left, x="scheme", y_label="examples/s", value_labels=True)
    left.set_xticks(left.get_xticks(), table["scheme"], rotation=30, ha="right", rotation_mode="anchor")
    lost = np.asarray(speeds) - 1
    plots.heatmap(lost, ax=right, limit=1.0, x_label="hours", y_label="worker", y_ticks=range(len(lost)))
    right.set_xticks(np.linspace(0, lost.shape[1] - 1, 10), np.linspace(0, hours, 10).round(1))
    right.set_title("replayed speeds: white a GPU's peak, dark blue none of it")
    return figure


def draw_sizes(rows: Rows, published: pd.DataFrame) -> Axes:
    """Draw median sizes of groups against P, bands from the lower to the upper quartile, the paper's beside ours."""
    ours = plots.rows_of(rows, "group_size").rename(columns={"P": "history"})
    ax = plots.lines(ours, x="history", by="settings", x_label="P", y_label="workers of a group", log_x=True)
    ax.plot(published["P"].astype(float), published["value"].astype(float), "kx", label="published", linestyle="none")
    ax.legend()
    return ax


def draw_map(rows: Rows, quantities: Mapping[str, tuple[str, float]]) -> Figure:
    """Draw quantities by P and T as heat maps side by side, each under its title; white is the value beside it."""
    figure, axes = plots.figure(1, len(quantities), figsize=(4.2 * len(quantities), 3.6), squeeze=False)
    for ax, (quantity, (title, white)) in zip(axes[0], quantities.items(), strict=True):
        table = plots.rows_of(rows, quantity)
        cells = table.pivot(index="P", columns="T", values="value")
        values, texts = cells.to_numpy() - white, cells.map(lambda value: f"{value:.3g}").to_numpy().tolist()
        limit, ticks = float(np.abs(values).max()) or 1.0, {"x_ticks": [*cells.columns], "y_ticks": [*cells.index]}
        plots.heatmap(values, ax=ax, limit=limit, texts=texts, **ticks, x_label="T (iterations)", y_label="P")
        ax.set_title(title)
    return figure
