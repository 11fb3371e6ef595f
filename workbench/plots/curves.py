"""Curves of trainings side by side: the loss against time and against steps."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from .lines import lines
from .style import aside
from .style import figure as panels

__all__ = ["training_curves"]

SMOOTHED = 12  # a point of a line is the mean of this part of its curve


def training_curves(
    results: Sequence[Mapping[str, Any]], target: float, *, key: str = "scheme", steps: str = "steps"
) -> Figure:
    """Draw the training loss against seconds and against steps, smoothed: means over seeds, bands from least to most.

    Args:
        results: each with its `setting` and its `curve` of (seconds, steps, loss).
        target: a loss, drawn as a grey line.
        key: field of the setting that names a line.
        steps: what a step is.
    """
    figure, axes = panels(1, 2, figsize=(11, 4), sharey=True)
    by_name: dict[str, list[np.ndarray]] = {}
    for result in results:
        by_name.setdefault(str(result["setting"][key]), []).append(np.array(result["curve"]))
    width = max(1, min(len(curve) for curves in by_name.values() for curve in curves) // SMOOTHED)
    y_label = "training loss" if width == 1 else f"training loss, mean of {width} points"
    for ax, column, label in ((axes[0], 0, "seconds"), (axes[1], 1, steps)):
        points = []
        for name, curves in by_name.items():
            stacked = np.stack([_smoothed(curve[: min(map(len, curves))], width) for curve in curves])
            low, high = stacked[:, :, 2].min(0), stacked[:, :, 2].max(0)
            middle = stacked.mean(0)
            columns = {key: name, "x": middle[:, column], "value": middle[:, 2], "low": low, "high": high}
            points.append(pd.DataFrame(columns))
        lines(pd.concat(points), ax=ax, x="x", by=key, x_label=label, y_label=y_label if column == 0 else "")
        ax.axhline(target, color="0.6", linewidth=0.8, zorder=0)
    aside(figure)
    return figure


def _smoothed(curve: np.ndarray, width: int) -> np.ndarray:
    """Return the running means of so many points; losses of single mini-batches are a tangle."""
    return np.stack([np.convolve(column, np.full(width, 1 / width), "valid") for column in curve.T], axis=1)
