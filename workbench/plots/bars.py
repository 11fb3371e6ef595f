"""Bars: one value a category, in groups or stacked, with the spread where there is one.

Source: none; a plain bar chart.
Simplified: categories keep the order of the rows.
Left out: bars in both directions.
"""

from collections.abc import Iterable, Iterator, Mapping
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
    series = {name: part.set_index(x).reindex(categories) for name, part in series.items()}
    for name, place in _places(series, y, stacked):
        drawn = ax.bar(
            **place,
            height=series[name][y],
            yerr=_spread(series[name], y),
            capsize=2,
            label=name,
            color=(colors or {}).get(name),
        )
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


def _places(series: Mapping[str | None, pd.DataFrame], y: str, stacked: bool) -> Iterator[tuple[str | None, dict]]:
    """Give x, width and bottom of each series' bars: on top of each other, or side by side."""
    bottom = 0.0
    for number, (name, part) in enumerate(series.items()):
        middles = np.arange(len(part))
        if stacked:
            yield name, {"x": middles, "width": _GROUP_WIDTH, "bottom": bottom}
            bottom = bottom + part[y].fillna(0).to_numpy()
        else:
            width = _GROUP_WIDTH / len(series)
            yield name, {"x": middles + (number - (len(series) - 1) / 2) * width, "width": width}


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
