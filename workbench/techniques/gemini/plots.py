"""The pictures of Gemini: placements and their odds, checkpoints within an iteration, recovery, wasted time."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from workbench import plots
from workbench.plots import format_time, rows_of, styled
from workbench.plots.style import GREY, INK, PALE, PALETTE, VERMILION
from workbench.plots.units import time_unit
from workbench.timeline import Kind, Timeline

from .method import InterleavedIteration, Placement, Tier, components, replicas_kept, survivors

__all__ = ["ITERATION_KINDS", "draw_ablation", "draw_best", "draw_by_failures", "draw_by_machines"]
__all__ += ["draw_frequencies", "draw_idle_spans", "draw_lengths", "draw_models", "draw_mt_nlg", "draw_overhead"]
__all__ += ["draw_overheads", "draw_placement", "draw_probabilities", "draw_recovery", "draw_reductions"]
__all__ += ["draw_retrieval", "draw_schedules", "draw_schemes", "draw_tiers", "draw_time", "draw_timelines"]
__all__ += ["draw_wasted", "draw_worked_example"]

WIDE = (9.5, 3.8)  # inches
MEBIBYTE = 2**20

# The colours of an iteration with checkpoints, and of a training with failures.
ITERATION_KINDS = MappingProxyType(
    {
        "training's messages": Kind.COMMUNICATE,
        "checkpoint arrives": Kind.ENCODE,
        "copied to host memory": Kind.DECODE,
        "forward": Kind.FORWARD,
        "backward": Kind.BACKWARD,
        "update": Kind.OTHER,
    }
)
TRAINING_KINDS = MappingProxyType(
    {
        "progress that stays": Kind.COMPUTE,
        "progress that is lost": Kind.OTHER,
        "checkpoint": Kind.COMMUNICATE,
        "detection, replacement, restart, warm-up": Kind.WAIT,
        "serialising": Kind.ENCODE,
        "retrieval": Kind.DECODE,
    }
)

_GAP = 0.6  # between machines that share nothing, in widths of a machine
_BOX = 0.84  # width and height of a box
_NUM_COLORS = 10  # of shards; they repeat, and every box carries its shard's number
_LIGHT = 0.55  # of a colour, so that black numbers stay legible on it


@styled()
def draw_placement(placed: Placement, *, ax: Axes, failed: Collection[int] = (), title: str = "") -> Axes:
    """Draw a placement as figure 6.3: a column a machine, a box a replica, the colour that of the shard."""
    lost = {shard for shard, alive in enumerate(survivors(placed, failed)) if not alive}
    kept = replicas_kept(placed)
    height = max(map(len, kept))
    at, names = 0.0, {}  # where a column stands, and its machine
    for part in components(placed):
        num_sets = len({frozenset(placed.holders[machine]) for machine in part})
        name = "group" if num_sets == 1 else "ring" if placed.kind in ("ring", "mixed") else ""
        if name and len(part) > 1:
            end = at + len(part) - 1
            ax.plot([at - 0.4, end + 0.4], [height - 0.3] * 2, color=GREY, linewidth=1)
            ax.text((at + end) / 2, height - 0.22, name, ha="center", va="bottom", fontsize=8, color=INK)
        for machine in part:
            names[at] = str(machine)
            is_alive = machine not in failed
            for level, shard in enumerate(kept[machine]):
                color = matplotlib.colormaps["tab10"](shard % _NUM_COLORS)[:3]
                light = tuple(1 - _LIGHT * (1 - part) for part in color)
                edge, width = (VERMILION, 2.5) if shard in lost else (INK, 1.4) if level == 0 else (GREY, 0.8)
                look: dict[str, Any] = {"facecolor": light if is_alive else PALE, "edgecolor": edge, "linewidth": width}
                ax.add_patch(Rectangle((at - _BOX / 2, level - _BOX / 2), _BOX, _BOX, **look))
                look = {"color": INK if is_alive else GREY, "weight": "bold" if level == 0 else "normal"}
                ax.text(at, level, str(shard), ha="center", va="center", **look)
            if not is_alive:
                ax.plot(at, -0.75, marker="x", color=VERMILION, markersize=9, markeredgewidth=2.5)
            at += 1
        at += _GAP
    ax.set_xticks(list(names), list(names.values()))
    ax.set(xlabel="machine", title=title, yticks=[])
    ax.set(xlim=(-0.6, max(names) + 0.6), ylim=(-1.05 if failed else -0.6, height + 0.35))
    ax.grid(visible=False)
    ax.spines["left"].set_visible(False)
    ax.set_aspect("equal")
    return ax


@styled()
def draw_probabilities(rows: Sequence[Mapping], published: pd.DataFrame, ring_lower: pd.DataFrame) -> Figure:
    """Draw figure 6.9, a panel a number of failures: groups and a ring, exact, by the bound, and in the paper."""
    table = rows_of(rows, "recovery_probability")
    table["series"] = table.placement + table.way.map({"exact": ", exact", "bound": ", union bound"})
    counts = sorted(table.k.unique())
    drawn, axes = plots.figure(1, len(counts), figsize=(1.4 + 2.9 * len(counts), 3.8), sharey=True, squeeze=False)
    for ax, k in zip(axes[0], counts, strict=True):
        label = "recovered from memory (%)" if ax is axes[0, 0] else ""
        plots.lines(table[table.k == k], ax=ax, x="num_machines", by="series", x_label="machines N", y_label=label)
        # The paper's values of groups, and the ring's, which follow from its difference.
        paper = published[published.k == k].merge(
            ring_lower[ring_lower.k == k], on=["num_machines", "k"], how="left", suffixes=("", "_lower")
        )
        ring = paper.value * (1 - paper.value_lower / 100)
        look: dict[str, Any] = {"color": GREY, "markersize": 10, "zorder": 1, "linestyle": ""}
        ax.plot(paper.num_machines, paper.value, marker="D", label="published", **look)
        ax.plot(paper.num_machines, ring, marker="s", label="published: ring, relatively lower", **look)
        for row, of_ring in zip(paper.itertuples(), ring, strict=True):
            lower = "" if math.isnan(of_ring) else f",\nring {row.value_lower:.1f} % lower: {of_ring:.1f} %"
            text = f"published: {row.value:.1f} %{lower}"
            ax.text(0.97, 0.05, text, transform=ax.transAxes, ha="right", va="bottom", fontsize=8, color=INK)
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter("{x:g}")
        ax.set_title(f"k = {k} lost at once")
    plots.below(drawn)
    return drawn


_VALUES = ["value", "low", "high"]
_ROOM = 0.25  # of the heights, above the highest bar, for numbers and error bars


def draw_schemes(iterations: Sequence[InterleavedIteration]) -> Figure:
    """Draw the timeline of one iteration under each scheme, on one scale (figures 6.4 and 6.5)."""
    timelines = {}
    for iteration in iterations:
        memory = f", buffer {iteration.buffer_bytes / MEBIBYTE:g} MiB" if iteration.buffer_bytes else ""
        out = ": out of memory" if iteration.is_out_of_memory else ""
        timelines[f"{iteration.scheme}: {iteration.iteration_s:.3g} s{memory}{out}"] = iteration.timeline
    return draw_timelines(timelines, ITERATION_KINDS, figsize=(9, 0.7 + 1.35 * len(iterations)))


def draw_timelines(
    timelines: Mapping[str, Timeline], names: Mapping[str, Kind], *, figsize: tuple[float, float]
) -> Figure:
    """Draw timelines on one scale, each under its title, and name the kinds of action in them."""
    figure = plots.gantts(timelines, figsize=figsize, legend=False)[0].figure
    plots.kind_legend(figure, _drawn(names, timelines.values()))
    return figure


def _drawn(names: Mapping[str, Kind], timelines: Iterable[Timeline]) -> dict[str, Kind]:
    drawn = {action.kind for timeline in timelines for action in timeline.actions if action.duration_s > 0}
    return {name: kind for name, kind in names.items() if kind in drawn}


def draw_models(rows: Sequence[Mapping], published: pd.DataFrame | None = None) -> Figure:
    """Draw iteration time and the network's idle time, without checkpoints and with Gemini (figures 6.7, 6.8, 6.13)."""
    figure, axes = plots.figure(1, 2, figsize=WIDE)
    quantities = {"iteration_s": "iteration time (s)", "idle_s": "idle network (s)"}
    for ax, (quantity, label) in zip(axes, quantities.items(), strict=True):
        table = rows_of(rows, quantity)
        models = list(dict.fromkeys(table.model))
        table["model"] = table.model.str.replace(" ", "\n")
        plots.bars(table, ax=ax, x="model", by="scheme", y_label=label, value_labels=True)
    for row in () if published is None else published.itertuples():
        place, label = models.index(row.model), f"the paper's {row.value:g} s (fitted)"
        axes[0].hlines(row.value, place - 0.45, place + 0.45, color="black", linestyles="--", label=label)
    plots.below(figure, num_columns=4)
    return figure


def draw_reductions(rows: Sequence[Mapping], published: pd.DataFrame) -> Figure:
    """Draw how many times shorter checkpoints are than to storage, by machines and network (figure 6.11)."""
    table = rows_of(rows, "reduction")
    table["network"] = [f"{rate:g} Gbit/s" for rate in table.network_gbit_per_s]
    figure, ax = plots.figure()
    label = "times shorter than storage's"
    plots.lines(table, ax=ax, x="num_machines", by="network", x_label="machines", y_label=label)
    plots.mark_published(ax, published.num_machines, published.value, "the paper (at 400: more than)")
    ax.set(xticks=sorted(set(table.num_machines)), ylim=(0, None))
    plots.beside(ax)
    return figure


def draw_frequencies(rows: Sequence[Mapping], published: pd.DataFrame) -> Figure:
    """Draw seconds between checkpoints, and how many times more often Gemini takes them (figure 6.12)."""
    figure, (left, right) = plots.figure(1, 2, figsize=WIDE)
    common: dict[str, Any] = {"x": "policy", "log_y": True, "value_labels": True}
    plots.bars(rows_of(rows, "interval_s"), ax=left, y_label="between checkpoints (s)", **common)
    gains = _beside_published(rows_of(rows, "frequency_gain"), published, "policy").dropna(subset="published")
    gains["policy"] = gains.policy.replace({"Strawman": "Strawman\n(published: more than)"})
    plots.comparison(gains, ax=right, y_label="times as often as the policy", **common)
    return figure


def _beside_published(ours: pd.DataFrame, published: pd.DataFrame, key: str) -> pd.DataFrame:
    """Put the paper's values into the column `published`, ours into `ours`."""
    ours = ours.rename(columns={"value": "ours"})
    return ours.merge(published[[key, "value"]].rename(columns={"value": "published"}), on=key, how="left")


def draw_ablation(rows: Sequence[Mapping], published: pd.DataFrame, free_mb: float) -> Figure:
    """Draw each scheme's overhead beside the paper's, overheads by rate of copying, and buffers (figure 6.16)."""
    figure, (left, middle, right) = plots.figure(1, 3, figsize=(15, 4))
    both = _beside_published(rows_of(rows, "overhead"), published, "scheme")
    label = "slower than without checkpoints (%)"
    plots.comparison(both[both.scheme != "Baseline"], ax=left, x="scheme", y_label=label, value_labels=True)
    rates = rows_of(rows, "overhead_by_rate")
    rates = rates[rates.scheme.isin(["Blocking", "Unpipelined", "Gemini"])]
    label = "copying of a machine (Gbit/s)"
    plots.lines(rates, ax=middle, x="copy_gbit_per_s", by="scheme", x_label=label, y_label="slower (%)")
    (asked,) = rows_of(rows, "copy_rate_asked_gbit_per_s").value
    plots.published_line(middle, asked, f"{asked:.0f}: what 3.5 %\nasks for", along_x=True)
    middle.set_xlim(left=0)
    plots.beside(middle)
    megabytes = {row.scheme: row.value / 1e6 for row in rows_of(rows, "buffer_bytes").itertuples() if row.value > 0}
    (span_gb,) = rows_of(rows, "largest_span_buffer_gb", whose="the model").value
    megabytes["Naive, span\nof 1.6 s"] = span_gb * 1e3
    sizes = pd.DataFrame(megabytes.items(), columns=["scheme", "buffer"])
    plots.bars(sizes, ax=right, x="scheme", y="buffer", unit="MB", log_y=True, value_labels=True)
    right.axhline(free_mb, color="black", linestyle="--", label=f"free (assumed\n{free_mb:g} MB)")
    plots.beside(right)
    for ax in (left, right):
        ax.tick_params(axis="x", rotation=30)
    return figure


@styled()
def draw_overhead(rows: Sequence[Mapping], published: pd.DataFrame | None = None) -> Figure:
    """Draw measured iteration times, idle time that is left, overheads beside the paper's, and buffers."""
    figure, ((times, idle), (overheads, buffers)) = plots.figure(2, 2, figsize=(12, 8))

    def named(**names: str) -> pd.DataFrame:
        tables = [rows_of(rows, quantity).assign(of=name) for quantity, name in names.items()]
        return pd.concat(tables).reindex(columns=["scheme", "of", *_VALUES])

    both = named(over_baseline="measured here")
    both[_VALUES] = 100 * (both[_VALUES] - 1)
    if published is not None:
        both = pd.concat([both, published[published.scheme.isin(both.scheme)].assign(of="the paper")])
    memory = named(buffer_bytes="sub-buffers, both ways", shard_bytes="one checkpoint")
    memory[_VALUES] /= MEBIBYTE
    seconds = named(iteration_s="iteration", cpu_s="processor, a rank")
    for ax, table, label, title in (
        (times, seconds, "seconds", "An iteration, and a rank's processor time for it"),
        (idle, named(idle_s="idle"), "idle network (s)", "Network time left idle in an iteration"),
        (overheads, both, "longer than without (%)", "By how much iterations are longer; dotted: 1 %"),
        (buffers, memory, "MiB a rank", "Sub-buffers beside a checkpoint"),
    ):
        if len(table):
            plots.bars(table, ax=ax, x="scheme", by="of", y_label=label, value_labels=True)
            plots.beside(ax)
            ax.margins(y=_ROOM)
            ax.tick_params(axis="x", rotation=20)  # names of five schemes
        else:
            ax.text(0.5, 0.5, "not measured with these schemes", ha="center", transform=ax.transAxes)
            ax.set_ylabel(label)
        ax.set_title(title)
    overheads.axhline(1, color=GREY, linestyle=":", linewidth=1)
    return figure


@styled()
def draw_lengths(rows: Sequence[Mapping]) -> Figure:
    """Draw what a checkpoint in every iteration costs by the iteration's length, and the processor's seconds."""
    figure, (left, right) = plots.figure(1, 2, figsize=(11, 4.2))
    length_s = rows_of(rows, "iteration_s", scheme="Baseline").set_index("batch").value
    cost, work = (rows_of(rows, name) for name in ("over_baseline", "cpu_s"))
    cost[_VALUES] = 100 * (cost[_VALUES] - 1)
    axis: dict[str, Any] = {"x": "length", "by": "scheme", "x_label": "iteration (s)"}
    plots.lines(cost.assign(length=cost.batch.map(length_s)), ax=left, y_label="longer (%)", **axis)
    left.axhline(1, color=GREY, linestyle=":", linewidth=1)
    crossing = rows_of(rows, "one_per_cent_s")
    words = f"under 1 % from {crossing.value.iloc[0]:.2f} s on" if len(crossing) else "never under 1 %"
    left.set_title(f"A checkpoint in every iteration: {words}")
    plots.lines(work.assign(length=work.batch.map(length_s)), ax=right, y_label="processor of a rank (s)", **axis)
    right.set_title("Processor seconds of an iteration")
    return figure


@styled()
def draw_idle_spans(rows: Sequence[Mapping]) -> Figure:
    """Draw the idle time of each recorded iteration, and the part of it that a plan can use."""
    figure, ax = plots.figure(figsize=(9, 3.8))
    used = sum(rows_of(rows, "span").value)
    plots.bars(rows_of(rows, "total_s"), ax=ax, x="iteration", y_label="idle network (s)", x_label="iteration")
    ax.axhline(used, color="black", linestyle="--", label=f"spans that are used, {used:.2f} s")
    ax.legend()
    return figure


@styled()
def draw_tiers(rows: Sequence[Mapping], published: pd.DataFrame) -> Figure:
    """Draw measured checkpoint times, and how many times shorter those to peers are, by rate of links and machines."""
    figure, (left, right) = plots.figure(2, 1, figsize=(9, 7), sharex=True)
    axis: dict[str, Any] = {"x": "link_mbit_per_s", "x_label": "link of a machine (Mbit/s)"}
    times = rows_of(rows, "checkpoint_s")
    times["checkpoint to"] = [f"{row.tier}, {row.num_machines} machines" for row in times.itertuples()]
    plots.lines(times, ax=left, by="checkpoint to", y_label="checkpoint (s)", log_y=True, **axis)
    names = {"reduction": "measured", "reduction_of_rates": "of the rates alone"}
    drawn = pd.concat([rows_of(rows, quantity).assign(reduction=name) for quantity, name in names.items()])
    drawn["reduction"] = [f"{row.num_machines} machines, {row.reduction}" for row in drawn.itertuples()]
    name = "paper, " + published.num_machines.astype(str) + " machines, Gbit/s"
    paper = {axis["x"]: published.network_gbit_per_s, "reduction": name}
    drawn = pd.concat([drawn, published[["value"]].assign(**paper)])
    plots.lines(drawn, ax=right, by="reduction", y_label="times shorter than to storage", **axis)
    left.label_outer()
    return figure


@styled()
def draw_retrieval(rows: Sequence[Mapping]) -> Figure:
    """Draw measured seconds to fetch the state from each tier, by rate of links and machines."""
    table = rows_of(rows, "retrieval_s")
    table["place"] = [f"{row.num_machines} machines\n{row.link_mbit_per_s:g} Mbit/s" for row in table.itertuples()]
    figure, ax = plots.figure(figsize=(10, 4.5))
    label = "until every rank has its state (s)"
    plots.bars(table, ax=ax, x="place", by="tier", y_label=label, log_y=True, value_labels=True)
    ax.margins(y=_ROOM)
    return figure


_TIER_COLOR = MappingProxyType(dict(zip(Tier, (PALETTE[2], PALETTE[1], PALETTE[4], GREY), strict=True)))
_MARKERS = MappingProxyType(
    {"rank": "o", "machine": "X", "store": "D", "frozen store": "d", "bit flipped": "^", "chunk damaged": "v"}
)
_ROW_IN, _FURNITURE_IN = 0.2, 1.7  # height of a row, and of title, axis and legend
_MOST_ROWS = 40  # more are too many to look at
_RAISED = 0.3  # of a row: a flipped bit's mark, since the kill that it causes comes at the same moment


@styled()
def draw_recovery(observed: Any, *, ax: Axes) -> Axes:
    """Draw a recovery as figures 6.1 and 6.14 do, from the log of a training with a kill, a `RecoveryObserved`."""
    timeline = observed.timeline
    plots.gantt(timeline, ax=ax, legend=False)
    phases = ", ".join(f"{phase} {format_time(seconds)}" for phase, seconds in observed.phases.seconds.items())
    ax.set_title(f"{observed.kind} failure: {phases}", fontsize=9)
    ax.axvline(timeline.of("recovery")[0].start_s / time_unit(timeline.end_s).size, color=VERMILION, linewidth=1.5)
    served = {f"machine {number}": f"machine {number},\n{tier}" for number, tier in enumerate(observed.phases.tiers)}
    ax.set_yticks(range(len(timeline.resources)), [served.get(row, row) for row in timeline.resources])
    figure = ax.get_figure(root=True)
    if figure is not None and not figure.legends:
        plots.kind_legend(figure, _drawn(TRAINING_KINDS, [timeline]))
    return ax


def draw_schedules(trainings: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw a row a training: its generations, its failures, and the slowest tier that served each generation.

    Of many trainings, those that did not end rightly come first, and the rest is left out.
    """
    is_good = [training["ends_rightly"] and training["different_ranks"] == 0 for training in trainings]
    good, num_trainings = sum(is_good), len(trainings)
    trainings = [trainings[at] for at in sorted(range(num_trainings), key=is_good.__getitem__)[:_MOST_ROWS]]
    figure, ax = plots.figure(figsize=(9.5, _FURNITURE_IN + _ROW_IN * len(trainings)))
    edge = {"color": "black", "markeredgecolor": "white"}
    dots: dict[str, Any] = {"linestyle": "", "markersize": 5.5, "zorder": 3, **edge}
    for row, training in enumerate(trainings):
        for bar in training.get("generations", ()):
            look: dict[str, Any] = {"color": _TIER_COLOR.get(bar["tier"], "white"), "edgecolor": INK, "linewidth": 0.5}
            ax.barh(row, bar["end_s"] - bar["start_s"], left=bar["start_s"], height=0.6, **look)
        for strike in training.get("strikes", ()):
            place = row - _RAISED if strike["what"] == "bit flipped" else row
            ax.plot(strike["at_s"], place, marker=_MARKERS[strike["what"]], clip_on=False, **dots)
        if not training.get("generations"):
            ax.text(0, row, training["error"] or "did not finish", va="center", fontsize=8)
    ax.set_yticks(range(len(trainings)), [training["seed"] for training in trainings], fontsize=7)
    ax.set(xlabel="time since the first event (s)", ylabel="seed", ylim=(len(trainings) - 0.4, -0.6))
    ax.set(xlim=(0, None))
    ax.grid(visible=False, axis="y")
    ax.set_title(f"{good} of {num_trainings} trainings ended with the bits of an undisturbed one, or as they had to")
    if len(trainings) < num_trainings:
        ax.set_ylabel(f"seed ({num_trainings - len(trainings)} more trainings are not drawn)")
    patches = [Patch(facecolor=_TIER_COLOR[tier], edgecolor=INK, label=f"began from {tier.value}") for tier in Tier]
    patches.append(Patch(facecolor="white", edgecolor=INK, label="ended before it had begun"))
    marks = [Line2D([], [], marker=marker, label=f"failure: {what}", **dots) for what, marker in _MARKERS.items()]
    figure.legend(handles=[*patches, *marks], loc="outside lower center", ncols=4, fontsize=8)
    return figure


def draw_worked_example(timeline: Timeline) -> Figure:
    """Draw figure 6.1: training up to iteration 310, back to 200, and on."""
    title = "a failure at iteration 310 goes back to iteration 200"
    return draw_timelines({title: timeline}, TRAINING_KINDS, figsize=(9, 3.0))


def draw_overheads(timelines: Mapping[str, Timeline], rows: Sequence[Mapping], published: pd.DataFrame) -> Figure:
    """Draw figure 6.14, a panel a kind of failure; titles say its minutes and the paper's."""
    ours, paper = (table.set_index("failure").value for table in (rows_of(rows, "total_min"), published))
    said = {name: f"; the paper: around {paper[name]:g}" if name in paper else "" for name in timelines}
    titles = {name: f"{name}: {ours[name]:.1f} min besides lost progress{said[name]}" for name in timelines}
    shown = {titles[name]: timeline for name, timeline in timelines.items()}
    return draw_timelines(shown, TRAINING_KINDS, figsize=(9.5, 2.2 * len(timelines) + 0.6))


def draw_wasted(rows: Sequence[Mapping], published: pd.DataFrame, iteration_s: float) -> Figure:
    """Draw figure 6.10: the average wasted time by the number of replaced machines, and the paper's for Gemini."""
    table = rows_of(rows, "wasted_s")
    table["value"] /= 60
    figure, ax = plots.figure(figsize=(10, 3.8))
    labels: dict[str, Any] = {"x_label": "machines replaced", "y_label": "average wasted time (min)"}
    plots.bars(table, ax=ax, x="replaced", by="solution", log_y=True, value_labels=True, **labels)
    ax.set_ylim(bottom=0.5)
    (said,) = published.value
    label = f"Gemini, the paper:\n{said:g} iterations"
    plots.published_line(ax, said * iteration_s / 60, label)
    plots.beside(ax)
    return figure


def draw_mt_nlg(rows: Sequence[Mapping], published: pd.DataFrame) -> Figure:
    """Draw the example of section 6.2.2 beside the text's minutes."""
    names = {"checkpoint_min": "one checkpoint", "wasted_min": "wasted by a failure"}
    table = _beside_published(pd.DataFrame(rows), published, "quantity")
    table["of"] = table.quantity.map(names)
    figure, ax = plots.figure()
    plots.comparison(table, ax=ax, x="of", x_label="MT-NLG, 6.36 TB over 20 Gbps", y_label="time (min)")
    return figure


def draw_by_failures(rows: Sequence[Mapping], published: pd.DataFrame) -> Figure:
    """Draw figure 6.15a; a cross is HighFreq's ratio without failures, by the paper's share of serialising."""
    figure, ax = _draw_ratios(rows, x="failures_per_day", x_label="failures a day, of 16 machines together")
    (share,) = published.value
    plots.mark_published(ax, 0, 1 - share / 100, f"HighFreq, the paper:\n{share:g} % serialising")
    plots.beside(ax)
    return figure


def draw_by_machines(rows: Sequence[Mapping], published: pd.DataFrame) -> Figure:
    """Draw figure 6.15b, and on to more machines than the paper's 1,000."""
    figure, ax = _draw_ratios(rows, x="num_machines", log_x=True, x_label="machines, of which 1.5 % fail every day")
    plots.mark_published(ax, published.num_machines, published.value, "Gemini, the paper")
    plots.published_line(ax, 1000, "the paper's largest", along_x=True)
    plots.beside(ax)
    return figure


def _draw_ratios(rows: Sequence[Mapping], **axis: Any) -> tuple[Figure, Axes]:
    figure, ax = plots.figure(figsize=(9.0, 4.2))
    plots.lines(rows_of(rows, "effective_ratio"), ax=ax, by="solution", y_label="effective training time ratio", **axis)
    ax.set_ylim(0, 1.05)
    return figure, ax


def draw_time(rows: Sequence[Mapping], num_machines: int, *, ax: Axes | None = None) -> Axes:
    """Draw where time goes with so many machines, a stacked bar a solution."""
    shares = rows_of(rows, "time_share", num_machines=num_machines)
    shares["value"] *= 100
    ax = plots.bars(shares, ax=ax, x="solution", y_label="share of the time (%)", by="cause", stacked=True)
    ax.tick_params(axis="x", rotation=25)
    ax.set_title(f"{num_machines:,} machines")
    return ax


def draw_best(rows: Sequence[Mapping]) -> Figure:
    """Draw the map of the best checkpointing: replicas as colour; replicas, interval and waste as text."""
    replicas, intervals, waste = (
        rows_of(rows, name).pivot(index="failures_per_machine_day", columns="link_gbps", values="value")
        for name in ("best_replicas", "best_interval", "waste")
    )
    texts = [
        [f"m = {m:.0f}, every {n:.0f}\n{lost:.2g} %" for m, n, lost in zip(*line, strict=True)]
        for line in zip(replicas.to_numpy(), intervals.to_numpy(), waste.to_numpy(), strict=True)
    ]
    figure, ax = plots.figure(figsize=(2.0 * len(replicas.columns) + 1.5, 0.75 * len(replicas) + 1.2))
    labels: dict[str, Any] = {"x_label": "link of a machine (Gbps)", "y_label": "failures of a machine a day"}
    labels |= {"x_ticks": [f"{link:g}" for link in replicas], "y_ticks": [f"{rate:g}" for rate in replicas.index]}
    plots.heatmap(replicas, ax=ax, limit=float(replicas.to_numpy().max()), texts=texts, **labels)
    ax.set_title("replicas, iterations from checkpoint to checkpoint, time wasted")
    return figure
