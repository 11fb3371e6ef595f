"""Singular values: the cumulative share of their sum against the share of the dimension, a line a matrix.

Source: "Does compressing activations help model parallel training?", figure 2.
Simplified: the diagonal stands for a matrix whose singular values are all equal.
Left out: the singular values themselves, on a logarithmic axis.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from .style import PUBLISHED, new_axes, styled

__all__ = ["singular_values"]

_BAND_ALPHA = 0.2
_STYLES = ("-", "--", "-.", (0, (1, 1)))  # lines stay apart without colour too


@styled()
def singular_values(curves: Mapping[str, Sequence], *, ax: Axes | None = None, title: str = "") -> Axes:
    """Draw the mean curve of each matrix, with the range over seeds as a band.

    Args:
        curves: matrix to its cumulative shares [seeds, K], each row rising to 1.
        ax: where to draw; None starts a figure.
        title: what to write above.

    Returns:
        The axes.

    Raises:
        ValueError: if the curves of a matrix are not a table of seeds by dimensions.
    """
    ax = new_axes(ax)
    for number, (name, rows) in enumerate(curves.items()):
        shares = np.asarray(rows, dtype=float)
        if shares.ndim != 2 or not shares.size:
            raise ValueError(f"curves[{name!r}] has shape {shares.shape}; it must be [seeds, K]")
        _curve(ax, name, shares, _STYLES[number % len(_STYLES)])
    ax.plot([0, 1], [0, 1], color=PUBLISHED, linewidth=1, label="all values equal")
    ax.set(xlabel="share of the dimension", ylabel="share of the sum of singular values", xlim=(0, 1), ylim=(0, 1.01))
    ax.set_title(title)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    ax.legend(loc="lower right")
    return ax


def _curve(ax: Axes, name: str, shares: np.ndarray, style) -> None:
    """Draw one matrix from (0, 0) on."""
    shares = np.concatenate([np.zeros((len(shares), 1)), shares], axis=1)
    dimension = np.linspace(0, 1, shares.shape[1])
    (line,) = ax.plot(dimension, shares.mean(0), linestyle=style, label=name)
    if len(shares) > 1:
        ax.fill_between(dimension, shares.min(0), shares.max(0), color=line.get_color(), alpha=_BAND_ALPHA, linewidth=0)
