"""The pictures that only Espresso has: bars in panels, counts, worked examples, tensors by size."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from workbench import plots
from workbench.plots.style import looks_of
from workbench.timeline import Kind, Timeline

__all__ = ["draw_advice", "draw_benefit_ratios", "draw_beside_published", "draw_causes", "draw_counts"]
__all__ += [
    "draw_distances",
    "draw_examples",
    "draw_panels",
    "draw_routines",
    "draw_same_sizes",
    "draw_scaling_factors",
]

Rows = Sequence[Mapping[str, Any]]
TESTBEDS = {"nvlink": "NVLink, 100 Gbit/s", "pcie": "PCIe, 25 Gbit/s"}  # the paper's two, as titles


def draw_panels(rows: Rows, quantity: str, *, panel: str, x: str, by: str, y_label: str) -> Figure:
    """Draw a quantity as bars by two columns, a panel for each value of a third one."""
    table = pd.DataFrame([row for row in rows if row["quantity"] == quantity])
    panels = list(table.groupby(panel, sort=False))
    figure, axes = plots.figure(1, len(panels), figsize=(5.2 * len(panels), 3.6), squeeze=False)
    for ax, (name, part) in zip(axes[0], panels, strict=True):
        plots.bars(part, ax=ax, x=x, by=by, y_label=y_label)
        ax.set(title=TESTBEDS.get(name, name), xlabel=x)
    plots.aside(figure)
    return figure


def draw_counts(rows: Rows) -> Figure:
    """Draw the number of paths of each part of the decision tree, on a logarithmic axis."""
    figure, ax = plots.figure(1, 1, figsize=(7, 3))
    plots.bars(pd.DataFrame(rows), ax=ax, x="part", y_label="paths")
    ax.set(yscale="log", xlabel="")
    return figure


def draw_examples(timelines: Mapping[str, Timeline]) -> Figure:
    """Draw strategies of a worked example under one another, on one scale of slots."""
    height_in = sum(0.55 + 0.27 * len(timeline.resources) for timeline in timelines.values())
    axes = plots.gantts(timelines, figsize=(9, height_in + 0.4), legend=False)
    end = max(timeline.end_s for timeline in timelines.values())
    for ax, timeline in zip(axes, timelines.values(), strict=True):
        ax.set(xticks=range(int(end) + 1), xlim=(0, end + 0.3))
        ax.axvline(timeline.end_s, color="black", linewidth=1.2)
    axes[-1].set_xlabel("slots")
    names = {"T: computes a gradient": Kind.COMPUTE, "C: compresses": Kind.ENCODE, "S: sends": Kind.COMMUNICATE}
    plots.kind_legend(axes[0].figure, names, num_rows=1)
    return axes[0].figure


def draw_same_sizes(rows: Rows) -> Figure:
    """Draw how many tensors have each size, a panel a model, a point a size."""
    table = pd.DataFrame([row for row in rows if row["quantity"] == "same_size"])
    groups = list(table.groupby("model", sort=False))
    figure, axes = plots.figure(2, math.ceil(len(groups) / 2), figsize=(10, 5), sharex=True, squeeze=False)
    for ax, (model, part) in zip(axes.flat, groups, strict=False):
        size_mib = part["bytes"] / 2**20
        ax.vlines(size_mib, 0, part["value"], linewidth=1)
        ax.plot(size_mib, part["value"], "o")
        ax.set(xscale="log", ylim=(0, None), title=f"{model}: {part['value'].sum():.0f} tensors, {len(part)} sizes")
    for ax in axes[-1]:
        ax.set_xlabel("MiB of a tensor")
    for ax in axes[:, 0]:
        ax.set_ylabel("tensors of this size")
    return figure


def draw_beside_published(rows: Rows, published: Mapping[str, pd.DataFrame], labels: Mapping[str, str]) -> Figure:
    """Draw quantities by model beside the paper's, a panel a quantity; `labels` names their axes."""
    figure, axes = plots.figure(1, len(labels), figsize=(6.4 * len(labels), 3.6), squeeze=False)
    for ax, (quantity, label) in zip(axes[0], labels.items(), strict=True):
        ours = pd.DataFrame([row for row in rows if row["quantity"] == quantity]).rename(columns={"value": "ours"})
        paper = published[quantity].rename(columns={"value": "published"})
        on = ["model", "testbed"] if "testbed" in paper else ["model"]
        both = ours.merge(paper[[*on, "published"]], on=on)
        plots.comparison(both, ax=ax, x="model", y_label=label, log_y=True, value_labels=True)
        ax.tick_params(axis="x", rotation=25)
    plots.aside(figure)
    return figure


def draw_routines(rows: Rows) -> Figure:
    """Draw what each scheme moves over the busiest link by the number of GPUs."""
    table = pd.DataFrame([row for row in rows if row["quantity"] == "busiest_link_bytes"])
    is_compressed = table["tensor"] == "compressed"
    names = table["scheme"].where(~is_compressed, table["scheme"] + ", compressed")
    figure, ax = plots.figure(1, 1, figsize=(8, 4))
    table = table.assign(value=table["value"] / 2**20, scheme=names)
    plots.lines(table, ax=ax, x="gpus", by="scheme", log_x=True, log_y=True, x_label="GPUs", y_label="MiB")
    gpus = sorted(table["gpus"].unique())
    ax.set_xticks(gpus, list(map(str, gpus)))
    ax.set_xticks([], minor=True)
    return figure


def draw_scaling_factors(rows: Rows, published: pd.DataFrame) -> Figure:
    """Draw scaling factors beside the paper's, by model and scheme; FP32's are calibrated on them."""
    table = pd.DataFrame([row for row in rows if row["quantity"] == "scaling_factor"]).rename(columns={"value": "ours"})
    table = table.merge(published.rename(columns={"value": "published"})[["model", "scheme", "published"]]).round(2)
    table["cell"] = table["model"] + "\n" + table["scheme"].replace({"FP32": "FP32,\ncalibrated"})
    figure, ax = plots.figure(figsize=(11, 3.8))
    plots.comparison(table, ax=ax, x="cell", y_label="scaling factor", value_labels=True)
    return figure


def draw_benefit_ratios(rows: Rows) -> Figure:
    """Draw benefit ratios by the size of a tensor, a panel a way to communicate, with the line above which it pays."""
    table = pd.DataFrame(rows).assign(mib=lambda table: table["elements"] * 4 / 2**20)
    figure, axes = plots.figure(1, 2, figsize=(11, 3.8), sharey=True)
    for ax, (scheme, part) in zip(axes, table.groupby("scheme", sort=False), strict=True):
        plots.lines(part, ax=ax, x="mib", by="algorithm", log_x=True, log_y=True, x_label="MiB of a tensor")
        ax.set_ylabel("time saved / time spent")
        ax.axhline(1, color="black", linewidth=1)
        ax.set_title(f"as {scheme} communicates")
    plots.aside(figure)
    axes[1].set_ylabel("")
    return figure


@plots.styled()
def draw_distances(rows: Rows) -> Figure:
    """Draw the cumulative distribution of the distance to the upper bound, a line a scheme."""
    table = pd.DataFrame([row for row in rows if row["quantity"] == "below_bound"])
    figure, ax = plots.figure(figsize=(8, 4))
    schemes = table.groupby("scheme", sort=False)
    for (scheme, part), look in zip(schemes, looks_of(ax, schemes.groups), strict=True):
        width = 2.6 if scheme.startswith("Espresso") else 1.8
        ax.ecdf(part["value"], label=scheme, color=look.color, linestyle=look.line_style, linewidth=width)
    ax.axvline(10, color="grey", linewidth=1, linestyle=":")
    ax.set(xlabel="% below the upper bound", ylabel="share of models and codecs", ylim=(0, 1.02))
    plots.beside(ax)
    return figure


def draw_causes(rows: Rows) -> Figure:
    """Draw what Espresso gains over each system on most GPUs after each change, a panel a model."""
    table = pd.DataFrame([row for row in rows if row["quantity"] == "gain"])
    table = table[table["gpus"] == table["gpus"].max()]
    models = list(table.groupby("model", sort=False))
    figure, axes = plots.figure(len(models), 1, figsize=(9, 2.6 * len(models)), squeeze=False)
    for ax, (model, part) in zip(axes[:, 0], models, strict=True):
        plots.bars(part, ax=ax, x="over", by="cause", y_label="Espresso's gain")
        ax.axhline(1.0, color="0.6", linewidth=0.8, zorder=0)
        ax.set(title=model, xlabel="")
    plots.aside(figure)
    return figure


def draw_advice(rows: Rows) -> Figure:
    """Draw the gain against the network's rate: a band from the plan's to the bound's, a panel a model."""
    table = pd.DataFrame([row for row in rows if row["quantity"] in ("gain", "gain_at_most")])
    wide = table.pivot_table(index=["model", "machines", "gigabits_per_s"], columns="quantity", values="value")
    wide = wide.reset_index().rename(columns={"gain_at_most": "high"}).assign(value=lambda t: t["gain"])
    models = table["model"].unique()
    figure, axes = plots.figure(1, len(models), figsize=(4 * len(models), 3.4), squeeze=False, sharey=True)
    for ax, model in zip(axes[0], models, strict=True):
        part = wide[wide["model"] == model].rename(columns={"gain": "low"})
        plots.lines(part, ax=ax, x="gigabits_per_s", by="machines", log_x=True, x_label="Gbit/s between machines")
        ax.axhline(1.0, color="0.6", linewidth=0.8, zorder=0)
        ax.set(title=model, ylabel="times as fast as plain")
    plots.aside(figure)
    return figure
