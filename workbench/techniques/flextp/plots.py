"""The pictures and tables of FlexTP: epochs and accuracy under stragglers, timelines, the map of winners."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workbench import plots
from workbench.plots import merged, rows_of
from workbench.timeline import Timeline

__all__ = ["draw_accuracies", "draw_divisions", "draw_epochs", "draw_machinery", "draw_map", "draw_migration"]
__all__ += ["draw_ratios", "draw_skewness", "draw_text", "draw_timelines", "loss_table"]

BASELINE = "Baseline"  # the solution that does nothing
BALANCED = "with balance"  # the model with `balance`, where there is nothing to balance
LABELS = {
    "pruning_ratio": "pruning ratio γ",
    "skewness": "skewness χ of the straggler",
    "num_senders": "stragglers that migrate, x",
    "everywhere": "who drops",
    "is_incremental": "dropped columns keep their statistics",
}
WHO_DROPS = {0: "the straggler alone", 1: "every rank"}
SERIES = ("solution", "scheme", "num_senders")  # keys that name a series of epochs
AS_LINES = ("skewness", "migrated_share")  # keys that are quantities; along others, epochs are bars
GANTT_HEIGHT_IN = 1.9  # inches of four ranks
LETTERS = {"nothing": "–", "resizing": "R", "both": "B", "migration": "M"}
WIDE = (9.5, 3.8)  # inches


def draw_accuracies(rows: Iterable[Mapping], *, ax: Axes, along: str, by: str = "solution") -> Axes:
    """Draw accuracies as bars, `by` names those beside each other, and the Baseline's as a line, with their spreads."""
    rows = [row for row in rows if row["quantity"] == "accuracy"]
    helped = [row for row in rows if row["solution"] != BASELINE]
    table = merged(helped, "accuracy", list(dict.fromkeys((along, by)))).dropna(subset=[along])
    if "everywhere" in table:
        table["everywhere"] = table.everywhere.map(WHO_DROPS)
    series = None if by == along else LABELS.get(by, by)
    table = table if series is None else table.rename(columns={by: series})
    plots.bars(table, ax=ax, x=along, by=series, unit="%", x_label=LABELS.get(along, along), y_label="accuracy")
    baseline = merged(rows, "accuracy", ["solution"], solution=BASELINE).iloc[0]
    ax.axhline(baseline.value, color="black", linewidth=1)
    ax.axhspan(baseline.low, baseline.high, color="black", alpha=0.12, linewidth=0)
    ax.set_title("black: Baseline")
    return ax


def loss_table(rows: Iterable[Mapping], keys: list[str]) -> pd.DataFrame:
    """Show the points of accuracy that are lost, mean and spread over seeds, beside the share of dropped products."""
    rows, keys = list(rows), ["solution", *keys]
    lost = merged(rows, "accuracy_loss", keys, reading="points").rename(columns={"value": "points lost"})
    for quantity in ("accuracy", "dropped_share", "migrated_share"):
        lost = lost.merge(merged(rows, quantity, keys)[[*keys, "value"]].rename(columns={"value": f"{quantity} (%)"}))
    return lost.round(2)


def draw_epochs(rows: Iterable[Mapping], along: str, *, ax: Axes | None = None) -> Axes:
    """Draw measured seconds of an epoch: lines along skewness and shares, else bars; Baseline is at every place."""
    epochs = [row for row in rows if row["quantity"] == "epoch_s"]
    places = dict.fromkeys(row[along] for row in epochs if along in row)
    table = pd.DataFrame(
        [{**row, along: place} for row in epochs for place in ([row[along]] if along in row else places)]
    )

    def series(names: pd.Series) -> str:
        return " ".join(f"x {name:g}" if isinstance(name, float) else str(name) for name in names if not pd.isna(name))

    names = [name for name in SERIES if name in table and name != along]
    if len(names) > 1 and table["solution"].nunique() == 1:
        names.remove("solution")  # it tells no series from another, and would give all of them its colour
    table["series"] = table[names].apply(series, axis=1)
    draw = plots.lines if along in AS_LINES else plots.bars
    return draw(table, ax=ax, x=along, by="series", x_label=along.replace("_", " "), y_label="epoch (s)")


def draw_machinery(rows: Iterable[Mapping], *, asked: float) -> Figure:
    """Draw the cost of balancing where there is nothing to balance, beside the largest that is asked for."""
    figure, ax = plots.figure(figsize=(8, 2.6))
    measured = {row["quantity"]: row for row in rows if row["solution"] == BALANCED}
    for place, row in enumerate((measured["over_unbalanced"], measured["cpu_over_unbalanced"])):
        ends = [[row["value"] - row["low"]], [row["high"] - row["value"]]]
        ax.errorbar([row["value"]], [place], xerr=ends, fmt="o", color="C0", capsize=4)
        text = f"{row['value']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
        ax.annotate(text, (row["value"], place), xytext=(0, 9), textcoords="offset points", ha="center")
    ax.axvline(1.0, color="0.6", lw=1)
    ax.axvline(asked, color="C3", lw=1, ls="--", label=f"asked: at most {asked:g}")
    ax.set_yticks([0, 1], ["iterations", "processor time"])
    ax.set_ylim(-0.6, 1.7)
    ax.set_xlabel("with balancing, over the model as it is")
    plots.beside(ax)
    return figure


def draw_timelines(timelines: Mapping[str, Timeline], names: Sequence[str]) -> Figure:
    """Draw one iteration of the named variants, one under the other."""
    shown = {}
    for name in names:  # it stands in the title
        actions = timelines[name].actions
        shown[name] = Timeline.merged([[replace(a, resource=a.resource.removeprefix(f"{name} ")) for a in actions]])
    return plots.gantts(shown, figsize=(11, GANTT_HEIGHT_IN * len(shown)))[0].figure


def draw_ratios(rows: Iterable[Mapping]) -> Figure:
    """Draw simulated epochs by pruning ratio, a bar a solution (figures 5b to 8b)."""
    figure, ax = plots.figure()
    label = "share of the columns that is dropped, γ"
    epochs = rows_of(rows, "epoch_s")
    plots.bars(epochs, ax=ax, x="pruning_ratio", by="solution", value_labels=True, x_label=label, y_label="epoch (s)")
    return figure


def _draw_panels(rows: Iterable[Mapping], x: str, x_label: str, by: str | None = None) -> Figure:
    """Draw epochs on the left and the dropped share on the right."""
    figure, axes = plots.figure(1, 2, figsize=WIDE)
    panels = (("epoch_s", "epoch (s)"), ("dropped_share", "dropped share of products"))
    for ax, (quantity, label) in zip(axes, panels, strict=True):
        plots.lines(rows_of(rows, quantity), ax=ax, x=x, by=by, x_label=x_label, y_label=label)
        ax.set_ylim(0, None)
    return figure


def draw_skewness(rows: Iterable[Mapping]) -> Figure:
    """Draw simulated epochs and the dropped share by skewness, a line a solution (figures 9b and 10b)."""
    figure = _draw_panels(rows, x="skewness", by="solution", x_label="skewness χ")
    plots.below(figure, num_columns=4)
    return figure


def draw_divisions(rows: Iterable[Mapping]) -> Figure:
    """Draw epochs and the dropped share by the number of senders, and the division that Eq. 3 takes (figure 11b)."""
    figure = _draw_panels(rows, x="num_senders", by="receivers", x_label="stragglers that migrate, x")
    planned = rows_of(rows, "planned_senders", solution="SEMI").value.iloc[0]
    for ax in figure.axes:
        plots.published_line(ax, planned, "Eq. 3 takes", along_x=True)
        ax.set_xticks(ax.lines[0].get_xdata())
    plots.below(figure)
    return figure


def draw_text(rows: Iterable[Mapping], share: float) -> Figure:
    """Draw the text's four gains over the paper's by the share of products; `share` is what table I leaves to them."""
    figure, ax = plots.figure(figsize=WIDE)
    label = "share of products in a plain iteration of ViT-1B"
    gains = rows_of(rows, "gain_over_papers")
    plots.lines(gains, ax=ax, x="share", by="headline", x_label=label, y_label="our gain over the paper's")
    ax.axhline(1.0, color="black", linewidth=1)
    plots.published_line(ax, share, "table I's share", along_x=True)
    plots.below(figure, num_columns=2)
    return figure


def draw_migration(rows: Iterable[Mapping], published: pd.DataFrame) -> Figure:
    """Draw table I: epochs by migrated share, a panel a number of senders; crosses are the paper's."""
    epochs = rows_of(rows, "epoch_s").astype({"num_senders": int})
    numbers = list(dict.fromkeys(epochs.num_senders))
    figure, axes = plots.figure(1, len(numbers), figsize=(2.6 * len(numbers), 3.6), sharey=True, squeeze=False)
    for ax, number in zip(axes[0], numbers, strict=True):
        here, said = epochs[epochs.num_senders == number], published[published.num_senders == number]
        plots.lines(here, ax=ax, x="migrated_share", by="scheme", x_label="migrated share", y_label="epoch (s)")
        if len(said):
            plots.mark_published(ax, said.migrated_share, said.value, "the paper")
        ax.set_title(f"{number} sender{'s' * (number > 1)}")
        ax.label_outer()
    axes[0, 0].set_ylim(bottom=0)
    plots.below(figure)
    return figure


def draw_map(rows: Iterable[Mapping]) -> Figure:
    """Draw the winners, a panel a link: red drops columns, blue migrates them; letters say it, too."""
    places = rows_of(rows, "leaning")
    links = list(dict.fromkeys(places.bandwidth_gb_per_s))
    size = (3.2 * len(links), 1.4 + 0.38 * places.num_stragglers.nunique())
    figure, axes = plots.figure(1, len(links), figsize=size, squeeze=False, sharey=True)
    for ax, link in zip(axes[0], links, strict=True):
        here = places[places.bandwidth_gb_per_s == link]
        table = here.pivot(index="num_stragglers", columns="skewness", values=["value", "means"])
        shares, texts = table["value"].astype(float), table["means"].map(LETTERS.get).to_numpy().tolist()
        ticks: dict[str, Any] = {"x_ticks": [f"{chi:g}" for chi in shares], "y_ticks": list(map(int, shares.index))}
        y_label = "stragglers" if ax is axes[0, 0] else ""
        plots.heatmap(shares, ax=ax, limit=1, texts=texts, x_label="skewness χ", y_label=y_label, **ticks)
        ax.set_title(f"{link:g} GB/s")
    figure.supxlabel(",  ".join(f"{letter}: {means}" for means, letter in LETTERS.items()), fontsize="medium")
    return figure
