"""Timelines as Gantt charts: a row a resource, a bar an action, labelled where the label fits."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.transforms import ScaledTranslation

from workbench.timeline import Action, Kind, Timeline

from .style import INK, KIND_COLOR, KIND_HATCH, figure, new_axes, styled
from .units import time_unit

__all__ = ["gantt", "gantts", "kind_legend"]

_BAR_HEIGHT = 0.7  # share of the row
_LETTER_SHARE = 0.012  # width of one letter as a share of the axes' width, at the style's size of text
_LEGEND_BELOW_IN = 0.42  # inches under the axes: below tick labels and the name of the axis
_LABEL_ALPHA = 0.8  # opacity of the white behind a label, so that hatching does not cross it


@styled()
def gantt(timeline: Timeline, *, ax: Axes | None = None, end_s: float | None = None, legend: bool = True) -> Axes:
    """Draw a timeline; the label of the time axis names its unit.

    Args:
        timeline: its resources are the rows, from top to bottom.
        ax: where to draw; None starts a figure.
        end_s: right end of the time axis, to compare figures; None takes the timeline's.
        legend: name the kinds of action under the chart.
    """
    ax = new_axes(ax)
    end_s = timeline.end_s if end_s is None else end_s
    unit = time_unit(end_s)
    rows = {resource: row for row, resource in enumerate(timeline.resources)}
    for action in timeline.actions:
        _bar(ax, action, rows[action.resource], unit.size, end_s)
    ax.set_yticks(list(rows.values()), list(rows))
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlim(min(timeline.start_s, 0.0) / unit.size, end_s / unit.size or 1.0)
    ax.set_xlabel(f"time ({unit.symbol})")
    ax.grid(visible=False, axis="y")
    patches = _patches({kind.value: kind for kind in dict.fromkeys(action.kind for action in timeline.actions)})
    if legend and patches:
        below = ax.transAxes + ScaledTranslation(0, -_LEGEND_BELOW_IN, ax.figure.dpi_scale_trans)
        place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "bbox_transform": below}
        ax.legend(handles=patches, ncols=len(patches), borderaxespad=0, **place)
    return ax


@styled()
def gantts(timelines: Mapping[str, Timeline], *, figsize: tuple[float, float], legend: bool = True) -> np.ndarray:
    """Draw timelines one under the other, on one scale of time, each under its title.

    Args:
        timelines: by title, from top to bottom.
        figsize: width and height in inches.
        legend: name the kinds of action under the last timeline.

    Returns:
        The axes, from top to bottom.
    """
    _, axes = figure(len(timelines), 1, figsize=figsize, sharex=True, squeeze=False)
    end_s = max(timeline.end_s for timeline in timelines.values())
    for ax, (title, timeline) in zip(axes[:, 0], timelines.items(), strict=True):
        gantt(timeline, ax=ax, end_s=end_s, legend=legend and ax is axes[-1, 0])
        ax.set_title(title)
        ax.label_outer()
    return axes[:, 0]


def kind_legend(drawn: Figure, names: Mapping[str, Kind], *, num_rows: int = 2) -> None:
    """Put a legend of colours under a figure, with more specific names than the kinds of action."""
    columns = math.ceil(len(names) / num_rows)
    drawn.legend(handles=_patches(names), loc="outside lower center", ncols=columns)


def _bar(ax: Axes, action: Action, row: int, unit_s: float, end_s: float) -> None:
    ax.barh(
        row,
        action.duration_s / unit_s,
        left=action.start_s / unit_s,
        height=_BAR_HEIGHT,
        color=KIND_COLOR[action.kind],
        hatch=KIND_HATCH[action.kind],
        edgecolor="white",
        linewidth=0.5,
    )
    if action.label and action.duration_s > len(action.label) * _LETTER_SHARE * end_s:
        middle = (action.start_s + action.end_s) / 2 / unit_s
        behind = {"facecolor": "white", "edgecolor": "none", "alpha": _LABEL_ALPHA, "pad": 1}
        ax.text(middle, row, action.label, ha="center", va="center", fontsize=8, color=INK, bbox=behind)


def _patches(names: Mapping[str, Kind]) -> list[Patch]:
    return [
        Patch(facecolor=KIND_COLOR[kind], hatch=KIND_HATCH[kind], edgecolor="white", label=name)
        for name, kind in names.items()
    ]
