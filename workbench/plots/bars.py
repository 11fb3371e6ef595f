"""Bars: one value a category, in groups or stacked, with the spread where there is one.

Source: none; a plain bar chart.
Simplified: categories keep the order of the rows.
Left out: bars in both directions.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from .style import beside, new_axes, styled

__all__ = ["bars"]

_GROUP_WIDTH = 0.8  # of the distance between two categories
_ON_BAR = MappingProxyType({"label_type": "center", "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1}})


@styled()
def bars(
    data: pd.DataFrame | Iterable[Mapping],
    *,
    ax: Axes | None = None,
    x: str,
    y: str = "value",
    by: str | None = None,
    stacked: bool = False,
    unit: str = "",
    value_labels: bool = False,
    colors: Mapping[str, str] | None = None,
) -> Axes:
    """Draw a bar a row on the given axes, or on those of a new figure, and return them.

    Args:
        data: rows with the columns named below; `low` and `high` become error bars.
        ax: where to draw.
        x: column of the categories.
        y: column of the heights.
        by: column that makes series: bars side by side, or on top of each other.
        stacked: put the series on top of each other.
        unit: written beside the name of the height.
        value_labels: write each bar's value on it.
        colors: the colour of a series; those not named take the style's, in order.

    Raises:
        ValueError: if a column is missing, or a category and series come twice.
    """
    rows = _checked(pd.DataFrame(data), x, y, by)
    ax = new_axes(ax)
    categories = list(dict.fromkeys(rows[x]))
    series = {None: rows} if by is None else {name: rows[rows[by] == name] for name in dict.fromkeys(rows[by])}
    width = _GROUP_WIDTH if stacked else _GROUP_WIDTH / len(series)
    bottom = np.zeros(len(categories))
    for number, (name, part) in enumerate(series.items()):
        part = part.set_index(x).reindex(categories)
        shift = 0.0 if stacked else (number - (len(series) - 1) / 2) * width
        drawn = ax.bar(np.arange(len(categories)) + shift, part[y], width, bottom=bottom if stacked else 0.0,
                       yerr=_spread(part, y), capsize=2, label=name, color=(colors or {}).get(name))
        bottom = bottom + part[y].fillna(0).to_numpy()
        if value_labels:
            ax.bar_label(drawn, fmt="%.3g", fontsize=8, **(_ON_BAR if stacked else {}))
    _finish(ax, categories, f"{y} ({unit})" if unit else y, by)
    return ax


def _checked(rows: pd.DataFrame, x: str, y: str, by: str | None) -> pd.DataFrame:
    keys = [column for column in (x, by) if column is not None]
    for column in (*keys, y):
        if column not in rows:
            raise ValueError(f"column is {column!r}; it must be one of {list(rows)!r}")
    if rows.duplicated(keys).any():
        raise ValueError(f"rows repeat {keys!r}; each bar must come once")
    return rows


def _spread(part: pd.DataFrame, y: str) -> np.ndarray | None:
    if not {"low", "high"} <= set(part):
        return None
    return np.stack([part[y] - part["low"], part["high"] - part[y]])


def _finish(ax: Axes, categories: list, y_label: str, by: str | None) -> None:
    ax.set_xticks(range(len(categories)), [str(category) for category in categories])
    ax.set_ylabel(y_label)
    ax.grid(visible=False, axis="x")
    if by:
        beside(ax, title=by)
