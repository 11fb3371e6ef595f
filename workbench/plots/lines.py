"""Lines: a value along a quantity, a line a series, a band where there is a spread."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from .style import beside, log_scale, looks_of, new_axes, styled
from .tables import table_of

__all__ = ["lines"]

_BAND_ALPHA = 0.2
_MOST_MARKERS = 10  # of a line, about


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
    """Draw a line a series (column `by`), its points joined in the order of x, with a band from `low` to `high`."""
    rows = table_of(data, (x, y, by))
    ax = new_axes(ax)
    series: dict[Any, pd.DataFrame] = {None: rows} if by is None else dict(list(rows.groupby(by, sort=False)))
    looks = looks_of(ax, series)
    for (name, part), look in zip(series.items(), looks, strict=True):
        part = part.sort_values(x)
        name = int(name) if isinstance(name, float) and name.is_integer() else name  # a table with gaps has 4.0 for 4
        how: dict[str, Any] = {"color": look.color, "linestyle": look.line_style, "marker": look.marker}
        how |= {"markevery": max(1, len(part) // _MOST_MARKERS)}
        how |= {"clip_on": False, "in_layout": False}  # markers at the edge are drawn whole
        ax.plot(part[x], part[y], label=name, **how)
        if {"low", "high"} <= set(part) and part.low.notna().any():
            ax.fill_between(part[x], part["low"], part["high"], color=look.color, alpha=_BAND_ALPHA, linewidth=0)
    ax.set(xlabel=x if x_label is None else x_label, ylabel=y if y_label is None else y_label)
    log_scale(ax, x=log_x, y=log_y)
    if by:
        beside(ax, title=by)
    return ax
