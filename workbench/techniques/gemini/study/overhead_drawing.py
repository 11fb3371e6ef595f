"""Figures of what checkpoints cost: iterations, idle time and buffers by scheme; times of tiers.

Source: "Gemini: Fast Failure Recovery in Distributed Training with In-Memory Checkpoints", figures 6.7, 6.8, 6.11 and
6.16.
Simplified: published values are drawn where the text prints a ratio; its seconds are of other machines.
Left out: the plots themselves (`workbench.plots`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from workbench import plots

__all__ = ["draw_overhead", "draw_reductions", "draw_retrieval", "in_words"]

PER_CENT, MIB = 100, 1 / 2**20
PAPER, OURS = "the paper", "measured here"


@plots.style.styled()
def draw_overhead(rows: Iterable[Mapping], published: pd.DataFrame | None = None) -> Figure:
    """Draw iteration times, idle time that is left, overheads beside the paper's, and buffers.

    Args:
        rows: of `measure_overhead`.
        published: rows with `scheme` and `value` in per cent; None for none.
    """
    rows = list(rows)
    figure, axes = plots.figure(2, 2, figsize=(12, 8))
    _bars(rows, axes[0, 0], {"iteration_s": "iteration", "cpu_s": "processor, a rank"}, 1, "seconds")
    _bars(rows, axes[0, 1], {"idle_s": "idle"}, 1, "idle network (s)")
    axes[0, 1].set_title("Network time left idle in an iteration")
    axes[0, 0].set_title("An iteration, and a rank's processor time for it")
    _overheads(rows, published, axes[1, 0])
    memory = {"buffer_bytes": "sub-buffers, both ways", "shard_bytes": "one checkpoint"}
    _bars(rows, axes[1, 1], memory, MIB, "MiB a rank")
    axes[1, 1].set_title("Sub-buffers beside a checkpoint")
    for ax in axes.flat:
        ax.tick_params(axis="x", rotation=20)  # names of five schemes
    return figure


def _bars(rows: list[Mapping], ax: Axes, names: Mapping[str, str], factor: float, label: str) -> None:
    chosen = [_scaled(row, factor, names[row["quantity"]]) for row in rows if row["quantity"] in names]
    if not chosen:
        ax.text(0.5, 0.5, "not measured with these schemes", ha="center", transform=ax.transAxes)
        return
    plots.bars(chosen, ax=ax, x="scheme", by="of" if len(names) > 1 else None, value_labels=True)
    if len(names) > 1:
        ax.get_legend().set_title("")
    ax.set(xlabel="", ylabel=label)
    ax.margins(y=0.25)


def _scaled(row: Mapping, factor: float, of: str) -> dict:
    spread = {name: row.get(name, row["value"]) * factor for name in ("value", "low", "high")}
    return {"scheme": row["scheme"], "of": of, **spread}


def _overheads(rows: list[Mapping], published: pd.DataFrame | None, ax: Axes) -> None:
    ours = [row for row in rows if row["quantity"] == "over_baseline"]
    excess = [row | {name: row[name] - 1 for name in ("value", "low", "high")} for row in ours]
    drawn = [_scaled(row, PER_CENT, OURS) for row in excess]
    if published is not None:
        theirs = published[published.scheme.isin([row["scheme"] for row in ours])]
        drawn += [
            {"scheme": row.scheme, "of": PAPER, "value": row.value, "low": row.value, "high": row.value}
            for row in theirs.itertuples()
        ]
    plots.bars(drawn, ax=ax, x="scheme", by="of", value_labels=True)
    ax.get_legend().set_title("")
    ax.axhline(1, color="#888888", linestyle=":", linewidth=1)
    ax.set(xlabel="", ylabel="longer than without (%)", title="By how much iterations are longer; dotted: 1 %")
    ax.margins(y=0.25)


@plots.style.styled()
def draw_reductions(rows: Iterable[Mapping], published: pd.DataFrame | None = None) -> Figure:
    """Draw checkpoint times and how many times shorter those to peers are, by rate of links and machines.

    Args:
        rows: of `tier_rows`.
        published: rows with `network_gbit_per_s`, `num_machines` and `value`; None for none.
    """
    table = pd.DataFrame(list(rows))
    figure, (left, right) = plots.figure(1, 2, figsize=(11, 4.5))
    times = table[table.quantity == "checkpoint_s"]
    times = times.assign(to=[f"{row.tier}, {row.num_machines} machines" for row in times.itertuples()])
    labels = {"x": "link_mbit_per_s", "x_label": "link of a machine (Mbit/s)"}
    plots.lines(times, ax=left, by="to", y_label="checkpoint (s)", log_y=True, **labels)
    left.set_title("A checkpoint until it is complete")
    drawn = table[table.quantity.isin(["reduction", "reduction_of_rates"])]
    drawn = drawn.assign(of=[_told(row) for row in drawn.itertuples()])
    if published is not None:
        theirs = [
            {
                "link_mbit_per_s": float(row.network_gbit_per_s),
                "of": f"paper, {row.num_machines} machines, Gbit/s",
                "value": row.value,
                "low": row.value,
                "high": row.value,
            }
            for row in published.itertuples()
        ]
        drawn = pd.concat([drawn, pd.DataFrame(theirs)])
    plots.lines(drawn, ax=right, by="of", y_label="times shorter than to storage", **labels)
    right.set_title("How many times shorter to peers")
    for ax in (left, right):
        ax.legend(fontsize=8)
    return figure


def _told(row) -> str:
    return f"{row.num_machines} machines, " + ("measured" if row.quantity == "reduction" else "of the rates alone")


@plots.style.styled()
def draw_retrieval(rows: Iterable[Mapping]) -> Figure:
    """Draw seconds to fetch the state from each tier, by rate of links and machines.

    Args:
        rows: of `tier_rows`.
    """
    table = pd.DataFrame([row for row in rows if row["quantity"] == "retrieval_s"])
    table["place"] = [f"{row.num_machines} machines\n{row.link_mbit_per_s:g} Mbit/s" for row in table.itertuples()]
    figure, ax = plots.figure(figsize=(10, 4.5))
    plots.bars(table, ax=ax, x="place", by="tier", value_labels=True)
    ax.set(yscale="log", xlabel="", ylabel="until every rank has its state (s)")
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.margins(y=0.25)
    return figure


def in_words(rows: Iterable[Mapping]) -> pd.DataFrame:
    """Write "median (low to high) unit", a row a quantity, a column a place."""
    table = pd.DataFrame(list(rows))
    keys = [name for name in table if name not in ("quantity", "value", "low", "high", "unit")]
    table["place"] = table[keys].apply(lambda row: ", ".join(_short(each) for each in row.dropna()), axis=1)
    table["shown"] = [_written(row) for row in table.to_dict("records")]
    return table.pivot_table(index="quantity", columns="place", values="shown", aggfunc="first", sort=False).fillna("")


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _written(row: Mapping) -> str:
    unit = "" if row["unit"] == "1" else f" {row['unit']}"
    spread = "" if pd.isna(row.get("low")) or row["low"] == row["high"] else f" ({row['low']:.4g} to {row['high']:.4g})"
    return f"{row['value']:.4g}{spread}{unit}"
