"""Bars: one value a category, side by side or stacked, with the spread where there is one; a paper's beside ours."""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from .style import OURS, PUBLISHED, beside, log_scale, looks_of, new_axes, styled
from .tables import table_of

__all__ = ["bars", "comparison"]

_GROUP_WIDTH = 0.8  # width of a group, as a share of the distance between two categories
_SIDE_COLOR = MappingProxyType({"published": PUBLISHED, "ours": OURS})
_ON_BAR: Mapping[str, Any] = MappingProxyType(
    {"label_type": "center", "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1}}
)
_ROOM = 0.12  # margin above the highest bar, for its number


@styled()
def bars(
    data: pd.DataFrame | Iterable[Mapping],
    *,
    ax: Axes | None = None,
    x: str,
    y: str = "value",
    by: str | None = None,
    x_label: str = "",
    y_label: str | None = None,
    unit: str = "",
    log_y: bool = False,
    stacked: bool = False,
    value_labels: bool = False,
    colors: Mapping[str, str] | None = None,
) -> Axes:
    """Draw a bar a row at the categories of `x`; the column `by` makes series, side by side or stacked."""
    rows = table_of(data, (x, by, y))
    keys = [column for column in (x, by) if column is not None]
    if rows.duplicated(keys).any():
        raise ValueError(f"rows repeat {keys!r}; each bar must come once")
    ax = new_axes(ax)
    categories = list(dict.fromkeys(rows[x]))
    series = {None: rows} if by is None else {name: rows[rows[by] == name] for name in dict.fromkeys(rows[by])}
    series = {name: part.set_index(x).reindex(categories) for name, part in series.items()}
    looks = dict(zip(series, looks_of(ax, series), strict=True))
    for name, place in _places(series, y, stacked):
        part, look = series[name], looks[name]
        how: dict[str, Any] = {"color": look.color, "label": name, "yerr": _spread(part, y), "capsize": 2}
        if colors is not None and name is not None:
            how |= {"color": colors.get(name, look.color)}
        elif look.hatch:
            how |= {"hatch": look.hatch, "edgecolor": "white", "linewidth": 0}
        drawn = ax.bar(**place, height=part[y], **how)
        if value_labels:
            ax.bar_label(drawn, fmt=_number, fontsize=8, **(_ON_BAR if stacked else {}))
    if value_labels and not stacked:
        ax.margins(y=_ROOM)
    ax.set_xticks(range(len(categories)), [str(category) for category in categories])
    label = y if y_label is None else y_label
    ax.set(xlabel=x_label, ylabel=f"{label} ({unit})" if unit else label)
    ax.grid(visible=False, axis="x")
    log_scale(ax, y=log_y)
    if by:
        beside(ax, title=by)
    return ax


@styled()
def comparison(
    data: pd.DataFrame | Iterable[Mapping],
    *,
    ax: Axes | None = None,
    x: str,
    published: str = "published",
    ours: str = "ours",
    **options: Any,
) -> Axes:
    """Draw the paper's value and ours side by side; a side without any value is left out.

    Args:
        data: rows with the columns named below; `low` and `high` are the spread of ours.
        ax: where to draw; None starts a figure.
        x: column that names the rows.
        published: column of the paper's values.
        ours: column of our values.
        options: those of `bars`.

    Raises:
        ValueError: if a column is missing or a row's name comes twice.
    """
    rows = table_of(data, (x, published, ours))
    spread = [column for column in ("low", "high") if column in rows]
    left = rows[[x, published]].rename(columns={published: "value"}).assign(source="published")
    right = rows[[x, ours, *spread]].rename(columns={ours: "value"}).assign(source="ours")
    known = [side for side in (left, right) if side.value.notna().any()]
    ax = bars(pd.concat(known or [left, right]), ax=ax, x=x, by="source", colors=_SIDE_COLOR, **options)
    beside(ax)
    return ax


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
    if not {"low", "high"} <= set(part) or part.low.isna().all():
        return None
    return np.stack([part[y] - part["low"], part["high"] - part[y]])


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
