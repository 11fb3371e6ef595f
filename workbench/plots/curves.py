"""Curves of trainings side by side: the loss against time and against steps."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from .lines import lines
from .style import figure as panels

__all__ = ["training_curves"]


def training_curves(
    results: Sequence[Mapping[str, Any]], target: float, *, key: str = "scheme", steps: str = "steps"
) -> Figure:
    """Draw the training loss against seconds and against steps: means over seeds, bands from least to most.

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
    for ax, column, label in ((axes[0], 0, "seconds"), (axes[1], 1, steps)):
        points = []
        for name, curves in by_name.items():
            stacked = np.stack([curve[: min(map(len, curves))] for curve in curves])
            low, high = stacked[:, :, 2].min(0), stacked[:, :, 2].max(0)
            middle = stacked.mean(0)
            columns = {key: name, "x": middle[:, column], "value": middle[:, 2], "low": low, "high": high}
            points.append(pd.DataFrame(columns))
        lines(pd.concat(points), ax=ax, x="x", by=key, x_label=label, y_label="training loss", markers=False)
        ax.axhline(target, color="0.6", linewidth=0.8, zorder=0)
    axes[0].get_legend().remove()
    return figure
