"""The figures of the simulated items, as the paper plots them as far as its text says.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section V.
Simplified: where accuracy would stand, the share of products that are dropped stands.
Left out: verdicts, which are computed elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workbench import plots
from workbench.plots.style import PUBLISHED

__all__ = ["draw_divisions", "draw_map", "draw_migration", "draw_ratios", "draw_skewness", "draw_text", "rows_of"]

LETTERS = MappingProxyType({"nothing": "–", "resizing": "R", "both": "B", "migration": "M"})
WIDE = (9.5, 3.8)  # inches


def rows_of(rows: Iterable[Mapping], quantity: str, *keys: str) -> pd.DataFrame:
    """Return the rows of one quantity: its keys and value."""
    table = pd.DataFrame(rows)
    return table[table.quantity == quantity][[*keys, "value"]]


def draw_ratios(rows: Iterable[Mapping]) -> Figure:
    """Draw epochs by pruning ratio, a bar a solution (figures 5b to 8b)."""
    figure, ax = plots.figure()
    epochs = rows_of(rows, "epoch_s", "solution", "pruning_ratio").rename(columns={"value": "epoch"})
    plots.bars(epochs, ax=ax, x="pruning_ratio", y="epoch", by="solution", unit="s", value_labels=True)
    ax.set_xlabel("share of the columns that is dropped, γ")
    return figure


def draw_skewness(rows: Iterable[Mapping]) -> Figure:
    """Draw epochs, and what is dropped, by skewness, a line a solution (figures 9b and 10b)."""
    figure, (left, right) = plots.figure(1, 2, figsize=WIDE)
    keys = ("solution", "skewness")
    for ax, quantity, label in ((left, "epoch_s", "epoch (s)"), (right, "dropped_share", "dropped share of products")):
        plots.lines(rows_of(rows, quantity, *keys), ax=ax, x="skewness", by="solution", y_label=label)
        ax.set(xlabel="skewness χ", ylim=(0, None))
    right.get_legend().remove()
    return figure


def draw_divisions(rows: Iterable[Mapping]) -> Figure:
    """Draw epochs, and what is dropped, by the number of senders, and the division that Eq. 3 takes (figure 11b)."""
    figure, (left, right) = plots.figure(1, 2, figsize=WIDE)
    planned = rows_of(rows, "planned_senders", "solution").set_index("solution").value["SEMI"]
    for ax, quantity, label in ((left, "epoch_s", "epoch (s)"), (right, "dropped_share", "dropped share of products")):
        divisions = rows_of(rows, quantity, "num_senders")
        plots.lines(divisions, ax=ax, x="num_senders", y_label=label)
        ax.axvline(planned, color=PUBLISHED, linestyle="--", label="Eq. 3 takes")
        ax.set_xticks(divisions.num_senders)
        ax.set(xlabel="stragglers that migrate, x", ylim=(0, None))
    left.legend()
    return figure


def draw_text(rows: Iterable[Mapping], published: pd.DataFrame) -> Figure:
    """Draw the time saved without and with a straggler, and the paper's efficiency as a line."""
    figure, axes = plots.figure(1, 2, figsize=WIDE)
    saved = pd.DataFrame(rows).query("quantity == 'efficiency_gain' and meaning == 'time saved'")
    panels = (("homogeneous", "pruning_ratio"), ("heterogeneous", "solution"))
    for ax, (environment, x) in zip(axes, panels, strict=True):
        here = saved[saved.environment == environment].rename(columns={"value": "time saved"})
        plots.bars(here, ax=ax, x=x, y="time saved", by="model", unit="%")
        (claimed,) = published[published.environment == environment].value
        ax.axhline(claimed, color=PUBLISHED, linestyle="--", label="the paper")
        ax.set(title=environment, xlabel=x.replace("_", " "))
        ax.tick_params(axis="x", rotation=0 if x == "pruning_ratio" else 40)
        ax.get_legend().remove()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def draw_migration(rows: Iterable[Mapping], published: pd.DataFrame) -> Figure:
    """Draw table I: epochs by migrated share, a panel a number of senders; crosses are the paper's."""
    epochs = rows_of(rows, "epoch_s", "scheme", "num_senders", "migrated_share").astype({"num_senders": int})
    numbers = list(dict.fromkeys(epochs.num_senders))
    figure, axes = plots.figure(1, len(numbers), figsize=(2.6 * len(numbers), 3.6), sharey=True, squeeze=False)
    for ax, number in zip(axes[0], numbers, strict=True):
        here = epochs[epochs.num_senders == number]
        plots.lines(here, ax=ax, x="migrated_share", by="scheme", x_label="migrated share", y_label="epoch (s)")
        _crosses(ax, published[published.num_senders == number])
        ax.set_title(f"{number} sender{'s' * (number > 1)}")
        ax.label_outer()
        ax.get_legend().remove()
    axes[0, 0].set_ylim(bottom=0)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def draw_map(rows: Iterable[Mapping]) -> Figure:
    """Draw the map of winners: a panel a link, skewness across, stragglers down.

    Red: the winner drops columns, blue: it migrates them, and between the two in what proportion. Letters say it, too.
    """
    places = pd.DataFrame(rows).query("quantity == 'leaning'")
    links = list(dict.fromkeys(places.bandwidth_gb_per_s))
    size = (3.2 * len(links), 1.4 + 0.38 * places.num_stragglers.nunique())
    figure, axes = plots.figure(1, len(links), figsize=size, squeeze=False, sharey=True)
    for ax, link in zip(axes[0], links, strict=True):
        here = places[places.bandwidth_gb_per_s == link]
        axes_of = {"index": "num_stragglers", "columns": "skewness"}
        table, means = (here.pivot(**axes_of, values=name) for name in ("value", "means"))
        ticks = {"x_ticks": [f"{chi:g}" for chi in table.columns], "y_ticks": [int(number) for number in table.index]}
        texts = means.map(LETTERS.get).to_numpy().tolist()
        labels = {"x_label": "skewness χ", "y_label": "stragglers" if ax is axes[0, 0] else ""}
        plots.heatmap(table, ax=ax, limit=1, texts=texts, **labels, **ticks)
        ax.set_title(f"{link:g} GB/s")
    figure.supxlabel(",  ".join(f"{letter}: {means}" for means, letter in LETTERS.items()), fontsize="medium")
    return figure


def _crosses(ax: Axes, cells: pd.DataFrame) -> None:
    for number, scheme in enumerate(dict.fromkeys(cells.scheme)):
        here = cells[cells.scheme == scheme]
        label = "the paper" if number == 0 else None
        ax.plot(here.migrated_share, here.value, "x", color="black", markersize=9, label=label)
