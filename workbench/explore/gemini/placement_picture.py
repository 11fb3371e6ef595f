"""A placement as a picture: a column a machine, a box a replica, the colour that of the shard.

Source: thesis, chapter 6 (Gemini), figure 6.3, which draws it so.
Simplified: machines that share replicas stand together, whatever their numbers; colours repeat after ten shards, and
every box carries its shard's number.
Left out: the second buffer of each replica.
"""

from __future__ import annotations

from collections.abc import Collection

import matplotlib
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from workbench.plots.style import GREY, INK, PALE, VERMILION, styled
from workbench.techniques.gemini.method.placement import Placement, components, replicas_kept, survivors

__all__ = ["draw_placement"]

_GAP = 0.6  # between machines that share nothing, in widths of a machine
_BOX = 0.84  # width and height of a box
_NUM_COLORS = 10
_LIGHT = 0.55  # of a colour, so that black numbers stay legible on it


@styled()
def draw_placement(placed: Placement, *, ax: Axes, failed: Collection[int] = (), title: str | None = None) -> Axes:
    """Draw who keeps what, and what is left when machines have failed.

    Args:
        placed: any placement.
        ax: where to draw.
        failed: machines whose memory is lost: their boxes are faded, and those of a shard that has no living replica
            left have a bold red edge.
        title: above the picture.

    Returns:
        The axes.

    Raises:
        ValueError: if a failed machine does not exist.
    """
    lost = {shard for shard, alive in enumerate(survivors(placed, failed)) if not alive}
    kept = replicas_kept(placed)
    places = _places(placed)
    for machine, shards in enumerate(kept):
        for level, shard in enumerate(shards):
            _draw_box(ax, places[machine], level, shard, is_alive=machine not in failed, is_lost=shard in lost)
        if machine in failed:
            ax.plot(places[machine], -0.75, marker="x", color=VERMILION, markersize=9, markeredgewidth=2.5)
    _draw_parts(ax, placed, places, max(map(len, kept)))
    machines = sorted(places, key=places.__getitem__)
    ax.set_xticks([places[machine] for machine in machines], [str(machine) for machine in machines])
    bottom, top = -1.05 if failed else -0.6, max(map(len, kept)) + 0.35
    ax.set(xlabel="machine", xlim=(-0.6, max(places.values()) + 0.6), ylim=(bottom, top))
    ax.set_title(title or "")
    ax.set_yticks([])
    ax.grid(visible=False)
    ax.spines["left"].set_visible(False)
    ax.set_aspect("equal")
    return ax


def _places(placed: Placement) -> dict[int, float]:
    """Return where every machine's column stands."""
    places: dict[int, float] = {}
    at = 0.0
    for part in components(placed):
        for machine in part:
            places[machine] = at
            at += 1
        at += _GAP
    return places


def _draw_parts(ax: Axes, placed: Placement, places: dict[int, float], height: int) -> None:
    """Write above machines that share replicas what they are."""
    for part in components(placed):
        num_sets = len({frozenset(placed.holders[machine]) for machine in part})
        ends = places[part[0]], places[part[-1]]
        name = "group" if num_sets == 1 else "ring" if placed.kind in ("ring", "mixed") else ""
        if name and len(part) > 1:
            ax.plot([ends[0] - 0.4, ends[1] + 0.4], [height - 0.3] * 2, color=GREY, linewidth=1)
            ax.text(sum(ends) / 2, height - 0.22, name, ha="center", va="bottom", fontsize=8, color=INK)


def _draw_box(ax: Axes, x: float, level: int, shard: int, *, is_alive: bool, is_lost: bool) -> None:
    red, green, blue, _ = matplotlib.colormaps["tab10"](shard % _NUM_COLORS)
    light = tuple(1 - _LIGHT * (1 - part) for part in (red, green, blue))
    edge, width = (VERMILION, 2.5) if is_lost else (INK if level == 0 else GREY, 1.4 if level == 0 else 0.8)
    corner = (x - _BOX / 2, level - _BOX / 2)
    fill = light if is_alive else PALE
    ax.add_patch(Rectangle(corner, _BOX, _BOX, facecolor=fill, edgecolor=edge, linewidth=width))
    color = INK if is_alive else GREY
    ax.text(x, level, str(shard), ha="center", va="center", color=color, weight="bold" if level == 0 else "normal")
