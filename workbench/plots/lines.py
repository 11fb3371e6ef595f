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
    """Draw a line a series.

    Args:
        data: rows with the columns named below; `low` and `high` become a band.
        ax: where to draw; None starts a figure.
        x: column along the axis.
        y: column of the values.
        by: column that makes series; None draws one line.
        x_label: what to write at the axis; None takes the column's name.
        y_label: what to write at the axis; None takes the column's name.
        log_x: a logarithmic x axis.
        log_y: a logarithmic y axis.

    Returns:
        The axes.

    Raises:
        ValueError: if a column is missing.
    """
    rows = pd.DataFrame(data)
    for column in filter(None, (x, y, by)):
        if column not in rows:
            raise ValueError(f"column is {column!r}; it must be one of {list(rows)!r}")
    ax = new_axes(ax)
    for number, (name, part) in enumerate([("", rows)] if by is None else rows.groupby(by, sort=False)):
        _line(ax, part.sort_values(x), x, y, marker=_MARKERS[number % len(_MARKERS)], label=str(name) if by else None)
    ax.set(xlabel=x_label or x, ylabel=y_label or y, xscale="log" if log_x else "linear", yscale="log" if log_y else "linear")
    for axis, log in ((ax.xaxis, log_x), (ax.yaxis, log_y)):
        if log:
            axis.set_major_formatter("{x:g}")
    if by:
        ax.legend(title=by)
    return ax


def _line(ax: Axes, part: pd.DataFrame, x: str, y: str, *, marker: str, label: str | None) -> None:
    (line,) = ax.plot(part[x], part[y], marker=marker, label=label)
    if {"low", "high"} <= set(part):
        ax.fill_between(part[x], part["low"], part["high"], color=line.get_color(), alpha=_BAND_ALPHA, linewidth=0)
