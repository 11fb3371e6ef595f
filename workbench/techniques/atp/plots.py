"""The pictures that only ATP has: rates and gains by interconnect, meshes, scaling, and choices on random links."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from workbench import plots

__all__ = ["draw_bytes", "draw_choices", "draw_gains", "draw_memory", "draw_panels", "draw_scaling", "draw_sharding"]
__all__ += ["draw_winners"]

Rows = Sequence[Mapping[str, Any]]


def _table(rows: Rows, quantity: str) -> pd.DataFrame:
    return pd.DataFrame([row for row in rows if row["quantity"] == quantity])


def draw_panels(rows: Rows, quantity: str, *, panel: str, x: str, by: str | None, y_label: str) -> Figure:
    """Draw bars of one quantity, a panel for each value of a column, two panels a row."""
    table = _table(rows, quantity)
    names = list(dict.fromkeys(table[panel]))
    num_rows = -(-len(names) // 2)
    columns = min(2, len(names))
    figure, axes = plots.figure(num_rows, columns, figsize=(5.8 * columns, 3.2 * num_rows), squeeze=False)
    for ax, name in zip(axes.flat, names, strict=False):
        plots.bars(table[table[panel] == name], ax=ax, x=x, by=by, y_label=y_label)
        ax.set_title(f"{name} devices" if panel == "devices" else "" if name == quantity else str(name))
    for ax in axes.flat[len(names) :]:
        ax.remove()
    if by is not None:
        plots.aside(figure)
    return figure


def draw_gains(rows: Rows, *, x: str, by: str, panel: str) -> Figure:
    """Draw gains, with a line at 1, a panel for each value of a column."""
    figure = draw_panels(rows, "gain", panel=panel, x=x, by=by, y_label="times as fast")
    for ax in figure.axes:
        ax.axhline(1.0, color="black", linewidth=0.8)
    return figure


def draw_scaling(rows: Rows) -> Figure:
    """Draw figure 12: communication by devices, a line a mesh; beside it what equation 3 gives."""
    figure, axes = plots.figure(1, 2, figsize=(11, 3.6), sharey=True)
    titles = {"time": "section 5.4", "time_by_equation_3": "a flat network by equation 3"}
    for ax, (quantity, title) in zip(axes, titles.items(), strict=True):
        table = _table(rows, quantity)
        y_label = "time / (2 L b s h / GroupBW)" if quantity == "time" else ""
        plots.lines(table, ax=ax, x="devices", by="mesh", x_label="devices", y_label=y_label, log_x=True)
        ax.set_title(title)
    plots.aside(figure)
    return figure


def draw_sharding(rows: Rows) -> Figure:
    """Draw the share of input, weight and output on a rank, by parallelism."""
    figure, ax = plots.figure(figsize=(9, 3.2))
    plots.bars(_table(rows, "share"), ax=ax, x="parallelism", by="tensor", y_label="share of it on a rank of four")
    return figure


def draw_bytes(rows: Rows) -> Figure:
    """Draw what equation 2 counts, as shares, by mesh and axis."""
    names = {"all_reduces_over_equation_2": "all-reduces", "exact_over_equation_2": "and the core's exchange"}
    names |= {"norms_over_equation_2": "norms (not in it)"}
    table = pd.DataFrame([{**row, "what": names[row["quantity"]]} for row in rows if row["quantity"] in names])
    table = table.assign(place=table["mesh"] + "\naxis " + table["axis"].astype(str))
    figure, ax = plots.figure(figsize=(9, 3.4))
    plots.bars(table, ax=ax, x="place", by="what", y_label="bytes over equation 2's")
    ax.axhline(1.0, color="black", linewidth=0.8)
    return figure


def draw_memory(rows: Rows) -> Figure:
    """Draw the activations that a layer keeps on a device, by model and mesh, as shares of ATP-1's."""
    table = _table(rows, "activation_bytes")
    first = table[table["mesh"] == "ATP-1"].set_index("model")["value"]
    table = table.assign(value=table["value"] / table["model"].map(first))
    figure, ax = plots.figure(figsize=(9, 3.4))
    plots.bars(table, ax=ax, x="model", by="mesh", y_label="activations over ATP-1's")
    return figure


def draw_winners(rows: Rows) -> Figure:
    """Draw by how much the mesh of the text is behind the best one, by interconnect and formula."""
    table = _table(rows, "behind")
    table = table.assign(place=table["interconnect"] + "\n" + table["devices"].astype(str), value=100 * table["value"])
    figure, ax = plots.figure(figsize=(9, 3.4))
    plots.bars(table, ax=ax, x="place", by="way", y_label="% behind the best mesh", x_label="interconnect, devices")
    return figure


def draw_choices(rows: Rows) -> Figure:
    """Draw for each random topology by how much each search's choice is behind the best one."""
    table = _table(rows, "behind_best")
    table[["value", "low", "high"]] = 100 * (table[["value", "low", "high"]] - 1)  # from zero on, no spread is cut off
    figure, ax = plots.figure(figsize=(10, 3.6))
    plots.bars(table, ax=ax, x="topology", by="search", y_label="% behind the best one", x_label="topology")
    ax.axhline(0.0, color="black", linewidth=0.8)
    return figure
