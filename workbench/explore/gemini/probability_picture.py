"""Figure 6.9: how probably training recovers from memory, by machines, beside the bound and the paper's numbers.

Source: thesis, chapter 6 (Gemini), figure 6.9 and section 6.7.2.
Simplified: a panel a number of failed machines.
Left out: the figure's own curves, which did not survive; three numbers of the text did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workbench.plots import figure
from workbench.plots.style import BLUE, GREEN, GREY, INK, VERMILION, styled

__all__ = ["draw_probabilities", "draw_rack_recovery"]

_COLORS = {"group": BLUE, "ring": VERMILION}
_STYLES = {"exact": ("-", "o"), "bound": (":", "")}
_RACK_COLORS = {"group": GREY, "ring": INK, "group across racks": GREEN, "ring across racks": VERMILION}


@styled()
def draw_probabilities(
    rows: Iterable[Mapping[str, object]], published: pd.DataFrame, ring_lower: pd.DataFrame
) -> Figure:
    """Draw a panel a number of failures: groups and a ring, exact and by the bound, and what the paper prints.

    Args:
        rows: of `count_probabilities`.
        published: recovery_probability as the paper has it: num_machines, k, value in percent.
        ring_lower: by how many percent of it the ring's is lower, as the paper has it: num_machines, k, value.

    Returns:
        The figure.
    """
    table = pd.DataFrame(rows)
    table = table[table.quantity == "recovery_probability"]
    counts = sorted(table.k.unique())
    drawn, axes = figure(1, len(counts), figsize=(1.4 + 2.9 * len(counts), 3.8), sharey=True, squeeze=False)
    for ax, k in zip(axes[0], counts, strict=True):
        for kind, color in _COLORS.items():
            for way, (line, marker) in _STYLES.items():
                part = table[(table.k == k) & (table.placement == kind) & (table.way == way)]
                part = part.sort_values("num_machines")
                name = f"{kind}, {'exact' if way == 'exact' else 'union bound'}"
                ax.plot(part.num_machines, part.value, line, marker=marker, color=color, label=name)
        _mark_published(ax, published[published.k == k], ring_lower[ring_lower.k == k])
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter("{x:g}")
        ax.set(title=f"k = {k} lost at once", xlabel="machines N")
    axes[0, 0].set_ylabel("recovered from memory (%)")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=3)
    return drawn


@styled()
def draw_rack_recovery(rows: Iterable[Mapping[str, object]]) -> Figure:
    """Draw a panel a cluster: how probably training recovers when racks are lost, by placement.

    Args:
        rows: of `count_racks`.

    Returns:
        The figure.
    """
    table = pd.DataFrame(rows)
    table = table[table.quantity == "rack_recovery"]
    clusters = table[["num_machines", "per_rack", "num_replicas"]].drop_duplicates().to_dict("records")
    drawn, axes = figure(1, len(clusters), figsize=(0.6 + 3.2 * len(clusters), 3.9), sharey=True, squeeze=False)
    width = 0.8 / len(_RACK_COLORS)
    for ax, cluster in zip(axes[0], clusters, strict=True):
        part = table[(table[list(cluster)] == pd.Series(cluster)).all(axis="columns")]
        for number, (name, color) in enumerate(_RACK_COLORS.items()):
            chosen = part[part.placement == name]
            at = chosen.lost + (number - (len(_RACK_COLORS) - 1) / 2) * width
            bars = ax.bar(at, chosen.value, width, color=color, label=name)
            ax.bar_label(bars, fmt="%.0f", fontsize=6, padding=1)
        ax.set(
            title="{num_machines} machines, {per_rack} a rack,\nm = {num_replicas}".format(**cluster),
            xlabel="racks lost at once",
            xticks=sorted(part.lost.unique()),
        )
        ax.grid(visible=False, axis="x")
    axes[0, 0].set_ylabel("recovered from memory (%)")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=4)
    return drawn


def _mark_published(ax: Axes, published: pd.DataFrame, ring_lower: pd.DataFrame) -> None:
    """Mark what the paper prints of groups, and what its difference makes of the ring."""
    both = published.merge(ring_lower, on=["num_machines", "k"], how="left", suffixes=("", "_lower"))
    options = {"color": GREY, "markersize": 10, "zorder": 1, "linestyle": ""}
    ax.plot(both.num_machines, both.value, marker="D", label="published", **options)
    ring = both.value * (1 - both.value_lower / 100)
    ax.plot(both.num_machines, ring, marker="s", label="published: ring, relatively lower", **options)
    for each, of_ring in zip(both.itertuples(), ring, strict=True):
        text = f"published: {each.value:.1f} %"
        if of_ring == of_ring:  # not missing
            text += f",\nring {each.value_lower:.1f} % lower: {of_ring:.1f} %"
        ax.text(0.97, 0.05, text, transform=ax.transAxes, ha="right", va="bottom", fontsize=8, color=INK)
