"""A heat map: a matrix as colours, zero in the middle, the same scale for all that are compared.

Source: none; a plain picture of a matrix.
Simplified: what lies beyond the scale takes its end's colour.
Left out: other scales of colour.
"""

from collections.abc import Sequence
from types import MappingProxyType

from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from .style import new_axes, styled

__all__ = ["heatmap"]

_ON_CELL = MappingProxyType({"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.7})  # text stays legible
COLORS = "RdBu_r"  # blue below zero, red above: told apart by colour-blind readers


@styled()
def heatmap(
    matrix: ArrayLike,
    *,
    ax: Axes | None = None,
    limit: float,
    x_label: str = "feature",
    y_label: str = "token",
    x_ticks: Sequence[object] | None = None,
    y_ticks: Sequence[object] | None = None,
    texts: Sequence[Sequence[str]] | None = None,
) -> Axes:
    """Draw a matrix on the given axes, or on those of a new figure, and return them.

    Args:
        matrix: [rows, columns]; row 0 on top.
        ax: where to draw.
        limit: the value of the darkest colours, with either sign.
        x_label: what the columns are.
        y_label: what the rows are.
        x_ticks: what each column is; None numbers them.
        y_ticks: what each row is; None numbers them.
        texts: [rows, columns]; what to write into each cell.

    Raises:
        ValueError: if limit is not above 0.
    """
    if not limit > 0:
        raise ValueError(f"limit is {limit!r}; it must be more than 0")
    ax = new_axes(ax)
    ax.imshow(matrix, cmap=COLORS, vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
    ax.set(xlabel=x_label, ylabel=y_label)
    ax.grid(visible=False)
    if x_ticks is not None:
        ax.set_xticks(range(len(x_ticks)), list(map(str, x_ticks)))
    if y_ticks is not None:
        ax.set_yticks(range(len(y_ticks)), list(map(str, y_ticks)))
    for row, line in enumerate(texts or ()):
        for column, text in enumerate(line):
            ax.text(column, row, text, ha="center", va="center", bbox=_ON_CELL)
    return ax
