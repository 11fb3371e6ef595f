"""The pictures that only Cupcake has: worked examples, parts of an iteration, latencies, scaling factors, headroom."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from workbench import plots
from workbench.timeline import Action, Kind, Timeline

from .advice import Headroom
from .cost import CUPCAKE
from .method import Span

__all__ = ["as_timeline", "draw_breakdown", "draw_causes", "draw_exactness", "draw_examples", "draw_headroom"]
__all__ += ["draw_headroom_by_rate", "draw_latencies", "draw_rivals", "draw_scaling_factors", "draw_search_times"]

Rows = Sequence[Mapping[str, Any]]
KINDS = {"forward": Kind.FORWARD, "backward": Kind.BACKWARD, "encode": Kind.ENCODE, "decode": Kind.DECODE}


def as_timeline(spans: Sequence[Span]) -> Timeline:
    """Return spans as a timeline to draw; an operation is labelled with its group, counted from 1."""
    actions = [
        Action(
            resource=span.resource,
            label=str(span.group + 1) if span.group >= 0 else span.what,
            kind=KINDS.get(span.what, Kind.COMMUNICATE),
            start_s=span.start_s,
            end_s=span.end_s,
        )
        for span in spans
        if span.end_s > span.start_s
    ]
    return Timeline(actions=tuple(actions))


def draw_causes(rows: Rows) -> Figure:
    """Draw Cupcake's largest gains after each change, a panel a testbed and model."""
    table = pd.DataFrame([row for row in rows if row["quantity"] == "largest_gain"])
    panels = list(table.groupby(["testbed", "model"], sort=False))
    shape = math.ceil(len(panels) / 2), min(2, len(panels))
    figure, axes = plots.figure(*shape, figsize=(6 * shape[1], 2.6 * shape[0]), squeeze=False)
    for ax in axes.flat[len(panels) :]:
        ax.remove()
    for ax, ((testbed, model), part) in zip(axes.flat, panels, strict=False):
        plots.bars(part, ax=ax, x="over", by="cause", y_label="Cupcake's gain")
        ax.axhline(1.0, color="0.6", linewidth=0.8, zorder=0)
        ax.set(title=f"{model}, {testbed}", xlabel="")
    plots.aside(figure)
    return figure


def draw_examples(examples: Mapping[str, Sequence[Span]], *, unit: str = "slots") -> Figure:
    """Draw timelines under one another on one axis, each with a line where its iteration ends."""
    timelines = {name: as_timeline(spans) for name, spans in examples.items()}
    height_in = sum(0.55 + 0.27 * len(timeline.resources) for timeline in timelines.values())
    axes = plots.gantts(timelines, figsize=(9, height_in + 0.5), legend=False)
    end = max(timeline.end_s for timeline in timelines.values())
    for ax, timeline in zip(axes, timelines.values(), strict=True):
        ax.set(xlim=(0, 1.02 * end))
        ax.axvline(timeline.end_s, color="black", linewidth=1.2)
        if unit == "slots":
            ax.set(xticks=range(int(end) + 1))
    axes[-1].set_xlabel(unit)
    names = {"gradients of a group": Kind.BACKWARD, "encodes": Kind.ENCODE, "sends": Kind.COMMUNICATE}
    plots.kind_legend(axes[0].figure, names, num_rows=1)
    return axes[0].figure


def draw_breakdown(rows: Rows) -> Figure:
    """Draw the parts of an iteration one on the other, a bar a codec and scheme."""
    table = pd.DataFrame([row for row in rows if row["quantity"] == "part_s"]).fillna({"codec": ""})
    table = table.assign(value=1e3 * table["value"], bar=table["codec"] + "\n" + table["scheme"])
    figure, ax = plots.figure(figsize=(11, 4))
    plots.bars(table, ax=ax, x="bar", by="part", y_label="ms of an iteration", stacked=True)
    return figure


def draw_latencies(rows: Rows) -> Figure:
    """Draw encoding and decoding by the size of a tensor, a row a device, a line a codec."""
    table = pd.DataFrame([row for row in rows if row["quantity"] == "latency_s"])
    table = table.assign(mib=table["bytes"] / 2**20, value=1e3 * table["value"])
    devices = list(table["device"].unique())
    figure, axes = plots.figure(len(devices), 2, figsize=(11, 3.4 * len(devices)), squeeze=False, sharex=True)
    for row, device in zip(axes, devices, strict=True):
        for ax, operation in zip(row, ("encode", "decode"), strict=True):
            part = table[(table["device"] == device) & (table["operation"] == operation)]
            plots.lines(part, ax=ax, x="mib", by="codec", log_x=True, log_y=True, x_label="MiB of a tensor")
            ax.set(title=device, ylabel=f"ms to {operation}")
    plots.aside(figure)
    return figure


def draw_scaling_factors(rows: Rows) -> Figure:
    """Draw scaling factors by codec and scheme, a panel a model."""
    table = pd.DataFrame([row for row in rows if row["quantity"] == "scaling_factor"])
    models = table["model"].unique()
    figure, axes = plots.figure(1, len(models), figsize=(5.6 * len(models), 3.8), squeeze=False, sharey=True)
    for ax, model in zip(axes[0], models, strict=True):
        y_label = "scaling factor" if ax is axes[0][0] else ""
        plots.bars(table[table["model"] == model], ax=ax, x="codec", by="scheme", y_label=y_label)
        ax.set(title=model, ylim=(0, 1.02))
    plots.aside(figure)
    return figure


def draw_rivals(rows: Rows) -> Figure:
    """Draw by how much an iteration with each rule to fuse is longer than the optimum's, by model."""
    table = pd.DataFrame([row for row in rows if row["quantity"] == "gain" and row["over"] != CUPCAKE])
    table = table.assign(value=(100 * (table["value"] - 1)).round(3).abs()).rename(columns={"over": "rule"})
    figure, ax = plots.figure(figsize=(10, 3.8))
    plots.bars(table, ax=ax, x="model", by="rule", y_label="% longer than the optimum", value_labels=True)
    return figure


def draw_search_times(rows: Rows, growth: Rows) -> Figure:
    """Draw the seconds of every search with costs α + β·x, those stopped hatched, and the growth of the fast one."""
    rows = [row for row in rows if row["quantity"] == "search_s" and row["costs"] == "α + β·x"]
    table = pd.DataFrame(rows).drop(columns=["low", "high"], errors="ignore")
    figure, (left, right) = plots.figure(1, 2, figsize=(12, 3.8))
    plots.bars(table, ax=left, x="model", by="way", y_label="s", log_y=True)
    stopped = {(row["model"], row["way"]) for row in rows if row["how"] == "stopped"}
    for container, way in zip(left.containers, table["way"].unique(), strict=False):
        for bar, model in zip(container, table["model"].unique(), strict=False):
            if (model, way) in stopped:
                bar.set_hatch("//")
    left.set_title("costs α + β·x; hatched: stopped, not ended")
    growth = [row for row in growth if row["quantity"] == "milliseconds"]
    plots.lines(growth, ax=right, x="tensors", by="costs", log_x=True, log_y=True)
    right.set_ylabel("ms, dynamic programming")
    return figure


def draw_exactness(rows: Rows) -> Figure:
    """Draw how often each search misses the optimum, in per cent of the problems."""
    table = pd.DataFrame(rows).pivot_table(index=["costs", "search"], columns="quantity", values="value", sort=False)
    table = table.reset_index().assign(value=lambda t: 100 * t["misses"] / t["problems"])
    figure, ax = plots.figure(figsize=(9, 3.6))
    plots.bars(table, ax=ax, x="search", by="costs", y_label="% of problems missed", value_labels=True)
    ax.tick_params(axis="x", rotation=15)
    return figure


def draw_headroom(headroom: Headroom) -> Figure:
    """Draw a model's iteration in DDP's buckets and fused best, by what is sent, above its computation."""
    names = {"DDP's buckets": "buckets_s", "fused best": "best_s"}
    rows = [
        {"sent": sent, "fusion": name, "value": 1e3 * getattr(left, field)}
        for sent, left in headroom.left.items()
        for name, field in names.items()
    ]
    figure, ax = plots.figure(figsize=(8, 3.6))
    plots.bars(rows, ax=ax, x="sent", by="fusion", y_label="ms an iteration", value_labels=True)
    ax.axhline(1e3 * headroom.alone_s, color="black", linewidth=1)
    ax.set_title(f"{headroom.model}; the line is an iteration without communication")
    return figure


def draw_headroom_by_rate(rows: Rows) -> Figure:
    """Draw how many times as fast the best fusion is, by the rate of the network, a panel a model."""
    table = pd.DataFrame([row for row in rows if row["quantity"] == "gain"])
    models = table["model"].unique()
    columns = min(2, len(models))
    shape = math.ceil(len(models) / columns), columns
    figure, axes = plots.figure(*shape, figsize=(6 * columns, 3.4 * shape[0]), squeeze=False, sharey=True, sharex=True)
    for ax, model in zip(axes.flat, models, strict=False):
        plots.lines(table[table["model"] == model], ax=ax, x="gigabits_per_s", by="sent", log_x=True)
        ax.set(title=model, xlabel="Gbit/s between machines", ylabel="times as fast as DDP's buckets")
        ax.set_ylim(0.98, 0.02 + table["value"].max())
    for ax in axes.flat[len(models) :]:
        ax.remove()
    plots.aside(figure)
    return figure
