"""Lines: a value along a quantity, a line a series, a band where there is a spread."""

from collections.abc import Iterable, Mapping

import pandas as pd
from matplotlib.axes import Axes

from .style import LINE_STYLES, MARKERS, PALETTE, beside, log_scale, new_axes, styled
from .tables import table_of

__all__ = ["lines"]

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
    markers: bool = True,
) -> Axes:
    """Draw a line a series (column `by`), its points joined in the order of x, with a band from `low` to `high`."""
    rows = table_of(data, (x, y, by))
    ax = new_axes(ax)
    for number, (name, part) in enumerate([(None, rows)] if by is None else rows.groupby(by, sort=False)):
        lap, place = divmod(number, len(PALETTE))
        look = {"clip_on": False, "in_layout": False}  # markers at the edge are drawn whole
        look |= {"marker": MARKERS[place]} if markers else {}
        style = LINE_STYLES[(lap if markers else number) % len(LINE_STYLES)]
        part, color = part.sort_values(x), PALETTE[place]
        ax.plot(part[x], part[y], color=color, linestyle=style, label=name, **look)
        if {"low", "high"} <= set(part) and part.low.notna().any():
            ax.fill_between(part[x], part["low"], part["high"], color=color, alpha=_BAND_ALPHA, linewidth=0)
    ax.set(xlabel=x if x_label is None else x_label, ylabel=y if y_label is None else y_label)
    log_scale(ax, x=log_x, y=log_y)
    if by:
        beside(ax, title=by)
    return ax
