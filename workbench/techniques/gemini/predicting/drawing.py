"""The figures of these items; bars that the text prints no number for have no published value beside them.

Source: thesis, chapter 6 (Gemini), figures 6.4, 6.5, 6.7, 6.8, 6.11, 6.12, 6.13, 6.16.
Simplified: a published bound ("more than", "less than") is a dashed line.
Left out: verdicts, which are computed elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from workbench import plots
from workbench.plots.style import KIND_COLOR, KIND_HATCH, OURS, PALETTE, PUBLISHED
from workbench.timeline import Kind

from ..method.interleaving import InterleavedIteration

__all__ = ["draw_ablation", "draw_frequencies", "draw_models", "draw_reductions", "draw_schemes", "gantt_legend"]

WIDE = (9.5, 3.8)  # inches
MEBIBYTE = 2**20
MEGABYTE = 1e6
COLORS = MappingProxyType({"Baseline": PALETTE[3], "Gemini": OURS})  # grey is the paper's
WHAT = MappingProxyType(
    {
        Kind.COMMUNICATE: "training's messages",
        Kind.ENCODE: "checkpoint arrives",
        Kind.DECODE: "copied to host memory",
        Kind.FORWARD: "forward",
        Kind.BACKWARD: "backward",
        Kind.OTHER: "update",
    }
)  # what the kinds of action stand for here


def rows_of(rows: Iterable[Mapping], quantity: str, *keys: str) -> pd.DataFrame:
    """Return the rows of one quantity: its keys and value."""
    table = pd.DataFrame(rows)
    return table[table.quantity == quantity][[*keys, "value"]]


def draw_schemes(iterations: Sequence[InterleavedIteration]) -> Figure:
    """Draw the timeline of one iteration under each scheme, on one scale (figures 6.4 and 6.5).

    Args:
        iterations: from top to bottom.
    """
    figure, axes = plots.figure(
        len(iterations), 1, figsize=(9, 0.7 + 1.35 * len(iterations)), sharex=True, squeeze=False
    )
    end_s = max(each.timeline.end_s for each in iterations)
    for ax, each in zip(axes[:, 0], iterations, strict=True):
        plots.gantt(each.timeline, ax=ax, end_s=end_s, legend=False)
        ax.set_title(_title(each))
        ax.label_outer()
    gantt_legend(figure, [kind for kind in WHAT if any(_has(each, kind) for each in iterations)])
    return figure


def gantt_legend(figure: Figure, kinds: Sequence[Kind]) -> None:
    """Say below a figure what the colours of an iteration's timeline stand for."""
    patches = [
        Patch(facecolor=KIND_COLOR[each], hatch=KIND_HATCH[each], edgecolor="white", label=WHAT[each]) for each in kinds
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=math.ceil(len(patches) / 2))


def draw_models(rows: Iterable[Mapping], said: pd.DataFrame | None = None) -> Figure:
    """Draw iteration time and the network's idle time, without checkpoints and with Gemini (figures 6.7, 6.8, 6.13).

    Args:
        rows: of `predict_models`.
        said: published iteration times, if any: lines across the bar they belong to.
    """
    figure, axes = plots.figure(1, 2, figsize=WIDE)
    for ax, quantity, name in zip(axes, ("iteration_s", "idle_s"), ("iteration time", "idle network"), strict=True):
        table = rows_of(rows, quantity, "model", "scheme").rename(columns={"value": name})
        table["model"] = table.model.str.replace(" ", "\n")
        plots.bars(table, ax=ax, x="model", y=name, by="scheme", unit="s", value_labels=True, colors=COLORS)
        ax.get_legend().remove()
        if quantity == "iteration_s" and said is not None:
            _said_lines(ax, table, said)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def draw_reductions(rows: Iterable[Mapping], said: pd.DataFrame) -> Figure:
    """Draw how many times shorter checkpoints are than storage's, by machines and network (figure 6.11)."""
    figure, ax = plots.figure()
    table = rows_of(rows, "reduction", "network_gbit_per_s", "num_machines")
    table["network"] = [f"{rate:g} Gbit/s" for rate in table.network_gbit_per_s]
    plots.lines(
        table, ax=ax, x="num_machines", by="network", x_label="machines", y_label="times shorter than storage's"
    )
    for number, point in enumerate(said.itertuples()):
        ax.plot(
            point.num_machines,
            point.value,
            "x",
            color="black",
            markersize=9,
            label="the paper (at 400: more than)" if number == 0 else None,
        )
    ax.set_xticks(sorted(set(table.num_machines)))
    ax.set_ylim(bottom=0)
    plots.beside(ax, title=None)
    return figure


def draw_frequencies(rows: Iterable[Mapping], said: pd.DataFrame) -> Figure:
    """Draw seconds between checkpoints, and how many times more often Gemini takes them (figure 6.12)."""
    figure, (left, right) = plots.figure(1, 2, figsize=WIDE)
    table = rows_of(rows, "interval_s", "policy").rename(columns={"value": "between checkpoints"})
    plots.bars(table, ax=left, x="policy", y="between checkpoints", unit="s")
    left.set_yscale("log")
    left.bar_label(left.containers[0], fmt="%.0f", fontsize=8)
    gains = rows_of(rows, "frequency_gain", "policy").rename(columns={"value": "ours"})
    gains = gains.merge(said[["policy", "value"]].rename(columns={"value": "published"}))
    gains["policy"] = gains.policy.replace({"Strawman": "Strawman\n(published: more than)"})
    plots.comparison(gains, ax=right, x="policy", log=True)
    right.set_ylabel("times as often as the policy")
    _write_values(right)
    return figure


def draw_ablation(rows: Iterable[Mapping], said: pd.DataFrame, free_mb: float) -> Figure:
    """Draw each scheme's overhead beside the paper's, overheads by rate of copying, and buffers (figure 6.16).

    Args:
        rows: of `predict_ablation`.
        said: published overheads, column scheme.
        free_mb: of a device, for buffers, in MB.
    """
    figure, (left, middle, right) = plots.figure(1, 3, figsize=(13, 4))
    ours = rows_of(rows, "overhead", "scheme").rename(columns={"value": "ours"})
    both = ours.merge(said[["scheme", "value"]].rename(columns={"value": "published"}), how="left")
    plots.comparison(both[both.scheme != "Baseline"], ax=left, x="scheme")
    left.set_ylabel("slower than without checkpoints (%)")
    left.legend(title=None, loc="upper right")
    left.tick_params(axis="x", rotation=30)
    _write_values(left)
    _draw_rates(middle, rows)
    _draw_buffers(right, rows, free_mb)
    return figure


def _draw_rates(ax: Axes, rows: Iterable[Mapping]) -> None:
    """Draw what schemes cost by the rate of copying, and the rate that the paper's number asks for."""
    rates = rows_of(rows, "overhead_by_rate", "scheme", "copy_gbit_per_s")
    rates = rates[rates.scheme.isin(["Blocking", "Unpipelined", "Gemini"])]
    plots.lines(
        rates, ax=ax, x="copy_gbit_per_s", by="scheme", x_label="copying of a machine (Gbit/s)", y_label="slower (%)"
    )
    (asked,) = rows_of(rows, "copy_rate_asked_gbit_per_s").value
    ax.axvline(asked, color=PUBLISHED, linestyle="--", label=f"{asked:.0f}: what 3.5 % asks for")
    ax.set_xlim(left=0)
    ax.legend(title=None)


def _draw_buffers(ax: Axes, rows: Iterable[Mapping], free_mb: float) -> None:
    """Draw the buffers of each scheme, and of a chunk that fills the paper's largest span."""
    sizes = rows_of(rows, "buffer_bytes", "scheme").assign(buffer=lambda table: table.value / MEGABYTE)
    table = pd.DataFrame(rows)
    (span_gb,) = table[(table.quantity == "largest_span_buffer_gb") & (table.whose == "the model")].value
    row = pd.DataFrame([{"scheme": "Naive, span\nof 1.6 s", "buffer": span_gb * 1e3}])
    plots.bars(pd.concat([sizes[sizes.value > 0], row]), ax=ax, x="scheme", y="buffer", unit="MB")
    ax.bar_label(ax.containers[0], fmt="%.0f", fontsize=8)
    ax.axhline(free_mb, color="black", linestyle="--", label=f"free (assumed {free_mb:g} MB)")
    ax.set_yscale("log")
    ax.legend(loc="upper left")
    ax.tick_params(axis="x", rotation=30)


def _write_values(ax: Axes) -> None:
    for drawn in ax.containers:
        ax.bar_label(drawn, fmt="%.3g", fontsize=8)


def _title(found: InterleavedIteration) -> str:
    memory = f", buffer {found.buffer_bytes / MEBIBYTE:g} MiB" if found.buffer_bytes else ""
    out = ": out of memory" if found.is_out_of_memory else ""
    return f"{found.scheme}: {found.iteration_s:.3g} s{memory}{out}"


def _has(found: InterleavedIteration, kind: Kind) -> bool:
    return any(action.kind is kind and action.duration_s > 0 for action in found.timeline.actions)


def _said_lines(ax: Axes, table: pd.DataFrame, said: pd.DataFrame) -> None:
    places = {model: place for place, model in enumerate(dict.fromkeys(table.model))}
    for point in said.itertuples():
        place = places[point.model.replace(" ", "\n")]
        ax.hlines(
            point.value,
            place - 0.45,
            place + 0.45,
            color="black",
            linestyles="--",
            label=f"the paper's {point.value:g} s (fitted)",
        )
