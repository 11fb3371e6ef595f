"""The figures of the items on failures.

Source: thesis, chapter 6 (Gemini), figures 6.1, 6.10, 6.14 and 6.15, as far as the text says what they show.
Simplified: bands and bars' ends are the least and the most of all seeds.
Left out: verdicts, which are computed elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from workbench import plots
from workbench.plots.style import KIND_COLOR, KIND_HATCH, PUBLISHED
from workbench.timeline import Timeline

from .effective import causes
from .setting import GPT2_100B
from .timeline import KINDS
from .wasting import REPLACED

__all__ = [
    "draw_best",
    "draw_by_failures",
    "draw_by_machines",
    "draw_mt_nlg",
    "draw_overheads",
    "draw_replay",
    "draw_time",
    "draw_wasted",
    "draw_worked_example",
    "timeline_legend",
]

_WHAT = (
    "progress that stays",
    "progress that is lost",
    "checkpoint",
    "detection, replacement, warm-up",
    "serialising",
    "retrieval",
)
_KIND_OF = MappingProxyType({each: KINDS.get(each, KINDS["detection"]) for each in _WHAT})
_SECONDS_PER_MINUTE = 60


def rows_of(rows: Iterable[Mapping], quantity: str) -> pd.DataFrame:
    """Return the rows of one quantity, without columns that none of them has."""
    table = pd.DataFrame(rows)
    return table[table.quantity == quantity].dropna(axis="columns", how="all")


def timeline_legend(figure: Figure, num_columns: int = 3) -> None:
    """Say under a figure what the bars of its timelines are."""
    patches = [
        Patch(facecolor=KIND_COLOR[kind], hatch=KIND_HATCH[kind], edgecolor="white", label=what)
        for what, kind in _KIND_OF.items()
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=num_columns)


def draw_worked_example(timeline: Timeline) -> Figure:
    """Draw figure 6.1: training up to iteration 310, back to 200, and on."""
    figure, ax = plots.figure(figsize=(9, 3.0))
    plots.gantt(timeline, ax=ax, legend=False)
    ax.set_title("a failure at iteration 310 goes back to iteration 200")
    timeline_legend(figure)
    return figure


def draw_overheads(timelines: Mapping[str, Timeline], rows: Iterable[Mapping], published: pd.DataFrame) -> Figure:
    """Draw figure 6.14, a panel a kind of failure; titles say its minutes and the paper's."""
    figure, axes = plots.figure(len(timelines), 1, figsize=(9.5, 2.2 * len(timelines) + 0.6), sharex=True)
    end_s = max(timeline.end_s for timeline in timelines.values())
    ours, theirs = (table.set_index("failure").value for table in (rows_of(rows, "total_min"), published))
    for ax, (failure, timeline) in zip(axes, timelines.items(), strict=True):
        plots.gantt(timeline, ax=ax, legend=False, end_s=end_s)
        said = f"; the paper: around {theirs[failure]:g}" if failure in theirs else ""
        ax.set_title(f"{failure}: {ours[failure]:.1f} min besides lost progress{said}")
        ax.label_outer()
    timeline_legend(figure)
    return figure


def draw_wasted(rows: Iterable[Mapping], published: pd.DataFrame) -> Figure:
    """Draw figure 6.10: wasted time by replaced machines, a bar a solution; the paper's iterations as a line."""
    table = rows_of(rows, "wasted_s").rename(columns={"value": "average wasted time"})
    table["average wasted time"] /= _SECONDS_PER_MINUTE
    table = table[table.replaced.isin(list(REPLACED))]
    figure, ax = plots.figure(figsize=(10, 3.8))
    plots.bars(table, ax=ax, x="replaced", y="average wasted time", by="solution", unit="min", value_labels=True)
    ax.set_yscale("log")
    ax.set_ylim(bottom=0.5)
    ax.yaxis.set_major_formatter("{x:g}")
    ax.set_xlabel("machines replaced")
    (said,) = published.value
    at_min = said * GPT2_100B.iteration_s / _SECONDS_PER_MINUTE
    ax.axhline(at_min, color=PUBLISHED, linestyle="--", label=f"Gemini, the paper:\n{said:g} iterations")
    plots.beside(ax)
    return figure


def draw_mt_nlg(rows: Iterable[Mapping], published: pd.DataFrame) -> Figure:
    """Draw the example of section 6.2.2 beside the text's minutes."""
    ours = pd.DataFrame(rows)[["quantity", "value"]].rename(columns={"value": "ours"})
    theirs = published[["quantity", "value"]].rename(columns={"value": "published"})
    names = {"checkpoint_min": "one checkpoint", "wasted_min": "wasted by a failure"}
    table = ours.merge(theirs, on="quantity", how="left").assign(minutes=lambda both: both.quantity.map(names))
    figure, ax = plots.figure()
    plots.comparison(table, ax=ax, x="minutes", unit="min")
    ax.set_xlabel("MT-NLG, 6.36 TB over 20 Gbps")
    return figure


def draw_by_failures(rows: Iterable[Mapping], published: pd.DataFrame) -> Figure:
    """Draw figure 6.15a; a cross is what the paper's share of serialising leaves HighFreq without failures."""
    figure, ax = plots.figure(figsize=(7.6, 4.0))
    ratios = rows_of(rows, "effective_ratio")
    plots.lines(
        ratios,
        ax=ax,
        x="failures_per_day",
        by="solution",
        x_label="failures a day, of 16 machines together",
        y_label="effective training time ratio",
    )
    (share,) = published.value
    label = f"HighFreq, the paper:\n{share:g} % serialising"
    ax.plot(0, 1 - share / 100, "x", color="black", markersize=9, label=label)
    ax.set_ylim(0, 1.05)
    plots.beside(ax)
    return figure


def draw_by_machines(rows: Iterable[Mapping], published: pd.DataFrame) -> Figure:
    """Draw figure 6.15b, and on to more machines than the paper's 1,000."""
    figure, ax = plots.figure(figsize=(9.0, 4.2))
    plots.lines(
        rows_of(rows, "effective_ratio"),
        ax=ax,
        x="num_machines",
        by="solution",
        log_x=True,
        x_label="machines, of which 1.5 % fail every day",
        y_label="effective training time ratio",
    )
    ax.plot(published.num_machines, published.value, "x", color="black", markersize=9, label="Gemini, the paper")
    ax.axvline(1000, color=PUBLISHED, linestyle="--", linewidth=1)
    ax.set_ylim(0, 1.05)
    plots.beside(ax)
    return figure


def draw_time(rows: Iterable[Mapping], num_machines: int, ax: Axes | None = None) -> Axes:
    """Draw what time goes to with so many machines, a stacked bar a solution."""
    shares = rows_of(rows, "time_share").query("num_machines == @num_machines")
    order = {cause: place for place, cause in enumerate(causes())}
    shares = shares.sort_values("cause", key=lambda names: names.map(order), kind="stable")
    shares = shares.assign(value=100 * shares.value).rename(columns={"value": "share of the time"})
    ax = plots.bars(shares, ax=ax, x="solution", y="share of the time", by="cause", stacked=True, unit="%")
    ax.tick_params(axis="x", rotation=25)
    ax.set_title(f"{num_machines:,} machines")
    return ax


def draw_replay(rows: Iterable[Mapping], published: pd.DataFrame) -> Figure:
    """Draw effective ratios and wasted GPU hours of the replayed trainings; the line is what OPT-175B is said to."""
    figure, (left, right) = plots.figure(1, 2, figsize=(10, 3.8))
    ratios = rows_of(rows, "effective_ratio").rename(columns={"value": "effective training time ratio"})
    plots.bars(ratios, ax=left, x="training", y="effective training time ratio", by="solution", value_labels=True)
    hours = rows_of(rows, "wasted_gpu_hours").copy()
    hours[["value", "low", "high"]] /= 1000
    hours = hours.rename(columns={"value": "wasted by failures"})
    plots.bars(
        hours, ax=right, x="training", y="wasted by failures", by="solution", unit="1,000 GPU hours", value_labels=True
    )
    (said,) = published.value
    right.axhline(said / 1000, color=PUBLISHED, linestyle="--", label=f"OPT-175B,\nthe paper: {said / 1000:g}")
    plots.beside(right)
    left.get_legend().remove()
    return figure


def draw_best(rows: Iterable[Mapping]) -> Figure:
    """Draw the map: replicas as colour; replicas, interval and waste as text."""
    table = pd.DataFrame(rows)
    axes_of = {"index": "failures_per_machine_day", "columns": "link_gbps", "values": "value"}
    names = ("best_replicas", "best_interval", "waste")
    replicas, intervals, waste = (table[table.quantity == name].pivot(**axes_of) for name in names)
    texts = [
        [f"m = {m:.0f}, every {n:.0f}\n{lost:.2g} %" for m, n, lost in zip(*line, strict=True)]
        for line in zip(replicas.to_numpy(), intervals.to_numpy(), waste.to_numpy(), strict=True)
    ]
    figure, ax = plots.figure(figsize=(2.0 * len(replicas.columns) + 1.5, 0.75 * len(replicas) + 1.2))
    plots.heatmap(
        replicas,
        ax=ax,
        limit=float(replicas.to_numpy().max()),
        texts=texts,
        x_label="link of a machine (Gbps)",
        y_label="failures of a machine a day",
        x_ticks=[f"{link:g}" for link in replicas.columns],
        y_ticks=[f"{rate:g}" for rate in replicas.index],
    )
    ax.set_title("replicas, iterations from checkpoint to checkpoint, time wasted")
    return figure
