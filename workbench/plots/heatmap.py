"""A matrix as colours on a scale around zero that compared figures share, or as its numbers."""

from collections.abc import Collection, Sequence
from types import MappingProxyType

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike

from .style import GREY, INK, PALE, SKY, new_axes, styled

__all__ = ["heatmap", "matrix"]

_ON_CELL = MappingProxyType({"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.7})  # text stays legible
_COLORS = "RdBu_r"  # blue below zero, red above: colour-blind readers can tell them apart
_FILL_ALPHA = 0.35  # opacity of a cell, so that its number stays legible


@styled()
def heatmap(
    values: ArrayLike,
    *,
    ax: Axes | None = None,
    limit: float,
    x_label: str = "feature",
    y_label: str = "token",
    x_ticks: Sequence[object] | None = None,
    y_ticks: Sequence[object] | None = None,
    texts: Sequence[Sequence[str]] | None = None,
) -> Axes:
    """Draw a matrix as colours.

    Args:
        values: [rows, columns]; row 0 on top.
        ax: where to draw; None starts a figure.
        limit: absolute value of the darkest colours, also used for values beyond it.
        x_label: at the axis of columns.
        y_label: at the axis of rows.
        x_ticks: the name of each column; None numbers them.
        y_ticks: the name of each row; None numbers them.
        texts: [rows, columns]; written into the cells.

    Raises:
        ValueError: if limit is not above 0.
    """
    if not limit > 0:
        raise ValueError(f"limit is {limit!r}; it must be more than 0")
    ax = new_axes(ax)
    ax.imshow(values, cmap=_COLORS, vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
    ax.set(xlabel=x_label, ylabel=y_label)
    ax.grid(visible=False)
    for set_ticks, names in ((ax.set_xticks, x_ticks), (ax.set_yticks, y_ticks)):
        if names is not None:
            set_ticks(range(len(names)), list(map(str, names)))
    for row, line in enumerate(texts or ()):
        for column, text in enumerate(line):
            ax.text(column, row, text, ha="center", va="center", bbox=_ON_CELL)
    return ax


@styled()
def matrix(
    values: ArrayLike, *, ax: Axes | None = None, faded_rows: Collection[int] = (), faded_columns: Collection[int] = ()
) -> Axes:
    """Write a small matrix as a grid of its numbers, as on a blackboard.

    Args:
        values: [rows, columns]; row 0 on top.
        ax: where to draw; None starts a figure.
        faded_rows: rows that do not count.
        faded_columns: columns that do not count.

    Raises:
        ValueError: if `values` does not have two dims.
    """
    table = np.asarray(values)
    if table.ndim != 2:
        raise ValueError(f"values has {table.ndim} dims; it must have 2")
    ax = new_axes(ax)
    for row, line in enumerate(table.tolist()):
        for column, value in enumerate(line):
            is_faded = row in faded_rows or column in faded_columns
            fill, color, weight = (PALE, GREY, "normal") if is_faded else (SKY, INK, "bold")
            ax.add_patch(Rectangle((column, row), 1, 1, facecolor=fill, edgecolor="white", alpha=_FILL_ALPHA))
            ax.text(column + 0.5, row + 0.5, f"{value:g}", ha="center", va="center", color=color, weight=weight)
    num_rows, num_columns = table.shape
    ax.set(xlim=(0, num_columns), ylim=(num_rows, 0), aspect="equal")
    ax.axis("off")
    return ax
