"""The pictures that only Espresso has: the decision tree's counts, speeds by number of GPUs."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from workbench import plots

__all__ = ["draw_counts", "draw_speeds"]

Rows = Sequence[Mapping[str, Any]]


def draw_speeds(rows: Rows) -> Figure:
    """Draw the speed of all schemes by the number of GPUs, a panel a model."""
    table = pd.DataFrame([row for row in rows if row["quantity"] == "samples_per_s"])
    models = table["model"].unique()
    figure, axes = plots.figure(1, len(models), figsize=(5.2 * len(models), 3.6), squeeze=False)
    for ax, model in zip(axes[0], models, strict=True):
        plots.bars(table[table["model"] == model], ax=ax, x="gpus", by="scheme", y_label="samples/s")
        ax.set(title=model, xlabel="GPUs")
        if ax is not axes[0][-1]:
            ax.get_legend().remove()
    return figure


def draw_counts(rows: Rows) -> Figure:
    """Draw the number of paths of each part of the decision tree, on a logarithmic axis."""
    figure, ax = plots.figure(1, 1, figsize=(7, 3))
    plots.bars(pd.DataFrame(rows), ax=ax, x="part", y_label="paths")
    ax.set(yscale="log", xlabel="")
    return figure
