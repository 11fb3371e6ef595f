"""Measured iterations beside predicted ones: a bar a scheme, a mark where a cost model has it."""

import math
from collections.abc import Iterable, Mapping

import pandas as pd
from matplotlib.figure import Figure

from .bars import bars
from .style import aside, log_scale, looks_of
from .style import figure as new_figure

__all__ = ["measured_and_predicted", "predicted_against_measured"]


def measured_and_predicted(rows: Iterable[Mapping]) -> Figure:
    """Draw measured iterations of all schemes as bars and predicted ones as marks, a panel a model and place."""
    table = pd.DataFrame(rows)
    table = table[table["quantity"].isin(["iteration_s", "predicted_s"])].assign(value=lambda t: 1e3 * t["value"])
    panels = [part for _, part in table.groupby(["model", "ranks"], sort=False)]
    num_columns = min(2, len(panels))
    num_rows = math.ceil(len(panels) / num_columns)
    size = {"figsize": (5.6 * num_columns, 4 * num_rows), "squeeze": False}
    figure, axes = new_figure(num_rows, num_columns, **size)
    for ax in axes.flat[len(panels) :]:
        ax.remove()
    for ax, part in zip(axes.flat, panels, strict=False):
        measured = part[part["quantity"] == "iteration_s"].drop(columns=["low", "high"])
        bars(measured, ax=ax, x="scheme", y_label="ms an iteration")
        predicted = part[part["quantity"] == "predicted_s"].set_index("scheme")["value"]
        places = [(at, predicted[name]) for at, name in enumerate(measured["scheme"]) if name in predicted]
        ax.scatter(*zip(*places, strict=True), marker="D", color="black", zorder=3, label="predicted")
        ax.set(title=" on ".join(part.iloc[0][["model", "ranks"]]), xlabel="")
        ax.set_xticks(ax.get_xticks(), measured["scheme"], rotation=40, ha="right", rotation_mode="anchor")
    aside(figure)
    return figure


def predicted_against_measured(rows: Iterable[Mapping], by: str) -> Figure:
    """Draw predicted over measured iterations as points, one look for each value of the key column `by`."""
    table = pd.DataFrame(rows)
    seconds = table[table["quantity"].isin(["iteration_s", "predicted_s"])]
    pairs = seconds.pivot_table(index=[by, "setting", "scheme"], columns="quantity", values="value", sort=False)
    figure, ax = new_figure(figsize=(6.4, 4.8))
    names = pairs.index.get_level_values(by)
    series = list(dict.fromkeys(names))
    for name, look in zip(series, looks_of(ax, series), strict=True):
        part = pairs[names == name]
        ax.scatter(part["iteration_s"], part["predicted_s"], color=look.color, marker=look.marker, label=name)
    ends = [pairs.to_numpy().min(), pairs.to_numpy().max()]
    ax.plot(ends, ends, color="black", label="as predicted")
    ax.set(xlabel="measured, s an iteration", ylabel="predicted, s an iteration")
    log_scale(ax, x=True, y=True)
    aside(figure)
    return figure
