"""Lines: a value along a quantity, a line a series, a band where there is a spread.

Source: none; a plain line chart.
Simplified: points are joined in the order of x.
Left out: two y axes.
"""

from collections.abc import Iterable, Mapping

import pandas as pd
from matplotlib.axes import Axes

from .style import new_axes, styled

__all__ = ["lines"]

_MARKERS = "osD^vPX"
_BAND_ALPHA = 0.2


@styled()
def lines(
    data: pd.DataFrame | Iterable[Mapping],
    *,
    ax: Axes | None = None,
    x: str,
    y: str = "value",
    by: str | None = None,
    x_label: str | None = None,
    y_label: str | None = None,
    log_x: bool = False,
    log_y: bool = False,
) -> Axes:
    """Draw a line a series on the given axes, or on those of a new figure, and return them.

    Args:
        data: rows with the columns named below; `low` and `high` become a band.
        ax: where to draw.
        x: column along the axis.
        y: column of the values.
        by: column that makes series; None draws one line.
        x_label: what to write at the axis; None takes the column's name.
        y_label: what to write at the axis; None takes the column's name.
        log_x: a logarithmic x axis.
        log_y: a logarithmic y axis.

    Raises:
        ValueError: if a column is missing.
    """
    rows = pd.DataFrame(data)
    for column in filter(None, (x, y, by)):
        if column not in rows:
            raise ValueError(f"column is {column!r}; it must be one of {list(rows)!r}")
    ax = new_axes(ax)
    for number, (name, part) in enumerate([(None, rows)] if by is None else rows.groupby(by, sort=False)):
        _line(ax, part.sort_values(x), x, y, marker=_MARKERS[number % len(_MARKERS)], label=name)
    ax.set(xlabel=x_label or x, ylabel=y_label or y)
    _scale(ax, log_x, log_y)
    if by:
        ax.legend(title=by)
    return ax


def _scale(ax: Axes, log_x: bool, log_y: bool) -> None:
    for axis, set_scale, log in ((ax.xaxis, ax.set_xscale, log_x), (ax.yaxis, ax.set_yscale, log_y)):
        if log:
            set_scale("log")
            axis.set_major_formatter("{x:g}")


def _line(ax: Axes, part: pd.DataFrame, x: str, y: str, *, marker: str, label: str | None) -> None:
    (line,) = ax.plot(part[x], part[y], marker=marker, label=label)
    if {"low", "high"} <= set(part):
        ax.fill_between(part[x], part["low"], part["high"], color=line.get_color(), alpha=_BAND_ALPHA, linewidth=0)
