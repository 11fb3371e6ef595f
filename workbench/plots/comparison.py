"""What a paper published beside what we found.

Source: none; two bars a row, the paper's grey, ours blue.
Simplified: one unit and one quantity a figure.
Left out: verdicts, which are computed elsewhere and shown in the report.
"""

from collections.abc import Iterable, Mapping

import pandas as pd
from matplotlib.axes import Axes

from .bars import bars
from .style import OURS, PUBLISHED, beside, new_axes, styled

__all__ = ["comparison"]


@styled()
def comparison(
    data: pd.DataFrame | Iterable[Mapping],
    *,
    ax: Axes | None = None,
    x: str,
    published: str = "published",
    ours: str = "ours",
    unit: str = "",
    log: bool = False,
) -> Axes:
    """Draw two bars a row; a value that is missing leaves its place empty, and a side without any is left out.

    Args:
        data: rows with the columns named below; `low` and `high` are the spread of ours.
        ax: where to draw; None starts a figure.
        x: column that names the rows.
        published: column of the paper's values.
        ours: column of our values.
        unit: written at the value axis.
        log: a logarithmic value axis, for values of very different sizes.

    Returns:
        The axes.

    Raises:
        ValueError: if a column is missing or a row's name comes twice.
    """
    rows = pd.DataFrame(data)
    for column in (x, published, ours):
        if column not in rows:
            raise ValueError(f"column is {column!r}; it must be one of {list(rows)!r}")
    ax = new_axes(ax)
    bars(
        _long(rows, x, published, ours),
        ax=ax,
        x=x,
        by="source",
        unit=unit,
        colors={"published": PUBLISHED, "ours": OURS},
    )
    ax.set_yscale("log" if log else "linear")
    beside(ax)
    return ax


def _long(rows: pd.DataFrame, x: str, published: str, ours: str) -> pd.DataFrame:
    spread = [column for column in ("low", "high") if column in rows]
    left = rows[[x, published]].rename(columns={published: "value"}).assign(source="published")
    right = rows[[x, ours, *spread]].rename(columns={ours: "value"}).assign(source="ours")
    known = [side for side in (left, right) if side.value.notna().any()]
    return pd.concat(known or [left, right], ignore_index=True)
