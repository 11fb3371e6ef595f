"""A small matrix as a grid of its numbers; rows and columns that do not count are faded.

Source: none; as a blackboard has it.
Simplified: whole numbers and short decimals.
Left out: matrices too large to read; `heatmap` draws those.
"""

from collections.abc import Collection

import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike

from .style import GREY, INK, PALE, SKY, new_axes, styled

__all__ = ["matrix"]

_FILL_ALPHA = 0.35  # of a cell that counts, so that its number stays legible


@styled()
def matrix(
    values: ArrayLike, *, ax: Axes | None = None, faded_rows: Collection[int] = (), faded_columns: Collection[int] = ()
) -> Axes:
    """Write a matrix on the given axes, or on those of a new figure, and return them.

    Args:
        values: [rows, columns]; row 0 on top.
        ax: where to draw.
        faded_rows: rows that do not count.
        faded_columns: columns that do not count.

    Raises:
        ValueError: if `values` does not have two dims.
    """
    table = torch.as_tensor(values)
    if table.ndim != 2:
        raise ValueError(f"values has {table.ndim} dims; it must have 2")
    ax = new_axes(ax)
    for row, line in enumerate(table.tolist()):
        for column, value in enumerate(line):
            _cell(ax, row, column, value, is_faded=row in faded_rows or column in faded_columns)
    num_rows, num_columns = table.shape
    ax.set(xlim=(0, num_columns), ylim=(num_rows, 0), aspect="equal")
    ax.axis("off")
    return ax


def _cell(ax: Axes, row: int, column: int, value: float, *, is_faded: bool) -> None:
    fill, color, weight = (PALE, GREY, "normal") if is_faded else (SKY, INK, "bold")
    ax.add_patch(Rectangle((column, row), 1, 1, facecolor=fill, edgecolor="white", alpha=_FILL_ALPHA))
    ax.text(column + 0.5, row + 0.5, f"{value:g}", ha="center", va="center", color=color, weight=weight)
