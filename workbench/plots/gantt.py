"""Timelines as Gantt charts: a row a resource, a bar an action.

Source: Gantt's chart, as pipeline papers draw it.
Simplified: a label is written only where it fits into its bar.
Left out: arrows between actions.
"""

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.transforms import ScaledTranslation

from workbench.timeline import Action, Timeline

from .style import INK, KIND_COLOR, KIND_HATCH, new_axes, styled
from .units import time_unit

__all__ = ["gantt"]

_BAR_HEIGHT = 0.7  # of the row
_LETTER_SHARE = 0.012  # of the axes' width that one letter needs, at the style's size of text
_LEGEND_BELOW_IN = 0.42  # inches under the axes: below tick labels and the name of the axis
_LABEL_ALPHA = 0.8  # of the white behind a label, so that hatching does not cross it


@styled()
def gantt(timeline: Timeline, *, ax: Axes | None = None, end_s: float | None = None, legend: bool = True) -> Axes:
    """Draw a timeline.

    Args:
        timeline: its resources are the rows, from top to bottom.
        ax: where to draw; None starts a figure.
        end_s: right end of the time axis, to compare figures; None takes the timeline's.
        legend: name the kinds of action under the chart.

    Returns:
        The axes; time in the unit its label names.
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
    if legend:
        _legend(ax, timeline)
    return ax


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
        ax.text(
            middle,
            row,
            action.label,
            ha="center",
            va="center",
            fontsize=8,
            color=INK,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": _LABEL_ALPHA, "pad": 1},
        )


def _legend(ax: Axes, timeline: Timeline) -> None:
    kinds = dict.fromkeys(action.kind for action in timeline.actions)
    patches = [
        Patch(facecolor=KIND_COLOR[kind], hatch=KIND_HATCH[kind], edgecolor="white", label=kind.value) for kind in kinds
    ]
    if patches:
        below = ax.transAxes + ScaledTranslation(0, -_LEGEND_BELOW_IN, ax.figure.dpi_scale_trans)
        ax.legend(
            handles=patches,
            loc="upper center",
            bbox_to_anchor=(0.5, 0),
            bbox_transform=below,
            ncols=len(patches),
            borderaxespad=0,
        )
