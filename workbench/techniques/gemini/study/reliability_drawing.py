"""The picture of many failure schedules: a row a training, its generations, what struck it, and what served recovery.

Source: ours.
Simplified: a generation has the colour of the slowest tier that served one of its ranks.
Left out: machines one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from workbench import plots
from workbench.plots.style import INK

from ..method.recovery import Tier
from .drawing import TIER_COLOR
from .schedules import FLIPPED

__all__ = ["draw_schedules"]

MARKERS = MappingProxyType({"rank": "o", "machine": "X", "store": "D", FLIPPED: "^"})
ROW_IN, FURNITURE_IN = 0.2, 1.7  # height of a row, and of title, axis and legend
RAISED = 0.3  # of a row: a flipped bit's mark
UNFINISHED = "did not finish"


def draw_schedules(found: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the schedules.

    Args:
        found: rows of `reliability.run_schedule`.
    """
    figure, ax = plots.figure(figsize=(9.5, FURNITURE_IN + ROW_IN * len(found)))
    for row, each in enumerate(found):
        for bar in each.get("generations", ()):
            width = bar["end_s"] - bar["start_s"]
            color = TIER_COLOR.get(bar["tier"], "white")
            ax.barh(row, width, left=bar["start_s"], height=0.6, color=color, edgecolor=INK, linewidth=0.5)
        for what, marker in MARKERS.items():
            struck = [strike["at_s"] for strike in each.get("strikes", ()) if strike["what"] == what]
            height = row - RAISED if what == FLIPPED else row  # what is killed for it comes at the same moment
            ax.plot(
                struck,
                [height] * len(struck),
                linestyle="",
                marker=marker,
                color="black",
                markersize=5.5,
                markeredgecolor="white",
                markeredgewidth=0.5,
                zorder=3,
            )
        if not each["is_finished"]:
            ax.text(0, row, UNFINISHED, va="center", fontsize=8)
    ax.set_yticks(range(len(found)), [each["seed"] for each in found], fontsize=7)
    ax.set(xlabel="time since the first event (s)", ylabel="seed", ylim=(len(found) - 0.4, -0.6))
    ax.set_xlim(left=0)
    ax.grid(visible=False, axis="y")
    good = sum(each["is_finished"] and each["different_ranks"] == 0 for each in found)
    ax.set_title(f"{good} of {len(found)} trainings ended with the bits of an undisturbed one")
    patches = [
        Patch(facecolor=TIER_COLOR[tier.value], edgecolor=INK, label=f"began from {tier.value}") for tier in Tier
    ]
    names = {"rank": "rank killed", "machine": "machine killed", "store": "store killed", FLIPPED: FLIPPED}
    marks = [
        Line2D([], [], linestyle="", marker=marker, color="black", markersize=5.5, label=names[what])
        for what, marker in MARKERS.items()
    ]
    figure.legend(handles=[*patches, *marks], loc="outside lower center", ncols=4, fontsize=8)
    return figure
