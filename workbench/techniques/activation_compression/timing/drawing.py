"""Rows of a timing study as tables that the plots take, and what claims need beside them.

Source: "Does compressing activations help model parallel training?", the columns of table 4.
Simplified: parts are medians, so they need not add up to the median iteration.
Left out: the plots themselves (`workbench.plots`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import pandas as pd

from workbench.timeline import Kind

__all__ = [
    "KIND_OF_PART",
    "SMALL_BERT",
    "beside_largest",
    "beside_published",
    "label_axes",
    "stacked_parts",
    "with_intervals",
]

SMALL_BERT = MappingProxyType(
    {"hidden": 256, "layers": 4, "compressed_layers": 2, "value_bytes": 4, "fuse_gradients": True}
)
"""A BERT whose iteration takes some 0.2 s on two cores; half of its layers are compressed, as in the paper."""

PARTS = MappingProxyType(
    {
        "compute_ms": "forward computation",
        "encode_ms": "encoding",
        "tensor_ms": "tensor communication",
        "decode_ms": "decoding",
        "backward_ms": "backward",
        "optimizer_ms": "optimizer",
        "waits_ms": "waiting and pipeline",
    }
)
KIND_OF_PART = MappingProxyType(
    {
        "forward computation": Kind.FORWARD,
        "encoding": Kind.ENCODE,
        "tensor communication": Kind.COMMUNICATE,
        "decoding": Kind.DECODE,
        "backward": Kind.BACKWARD,
        "optimizer": Kind.OTHER,
        "waiting and pipeline": Kind.WAIT,
    }
)
"""What each part is, so that it has the colour that it has on timelines."""
INSIDE_FORWARD = ("encode_ms", "decode_ms", "tensor_ms", "tensor_waiting_ms")
TARGET = MappingProxyType({"tp": 4, "pp": 1, "nvlink": 0})  # where the paper gains most, 17.8 %


def stacked_parts(rows: Iterable[Mapping], setting: Mapping) -> pd.DataFrame:
    """Take one setting's iteration apart, a row a method and part: method, part, time in ms.

    Waiting is that for the last rank of a collective and that for other stages, messages between stages included.
    """
    table = _at(rows, setting).pivot_table(index="method", columns="quantity", values="value", sort=False)
    table["compute_ms"] = table.forward_ms - table[list(INSIDE_FORWARD)].sum(axis=1)
    table["waits_ms"] = table.tensor_waiting_ms + table.waiting_and_pipeline_ms
    parts = table[list(PARTS)].clip(lower=0).rename(columns=PARTS)
    return parts.reset_index().melt(id_vars="method", var_name="part", value_name="time")


def with_intervals(rows: Iterable[Mapping], quantity: str, columns: str = "method") -> pd.DataFrame:
    """Write one quantity of all settings as "median (low to high)", a column a method.

    Args:
        rows: of a study.
        quantity: which of them.
        columns: the key that makes columns; the other keys of a setting make rows.
    """
    table = pd.DataFrame(rows)
    table = table[table.quantity == quantity].dropna(axis=1, how="all")
    names = ("link", "micro_batch", "sequence", "tp", "pp", "of", "method")
    keys = [key for key in names if key in table and key != columns]
    table["written"] = [f"{row.value:.3f} ({row.low:.3f} to {row.high:.3f})" for row in table.itertuples()]
    return table.pivot_table(index=keys, columns=columns, values="written", aggfunc="first", sort=False)


def beside_published(rows: Iterable[Mapping], setting: Mapping, published: pd.DataFrame) -> pd.DataFrame:
    """Put one setting's speedups beside the paper's: method, ours, low, high, published."""
    ours = _at(rows, setting)
    ours = ours[ours.quantity == "speedup"].rename(columns={"value": "ours"})[["method", "ours", "low", "high"]]
    theirs = published
    for key in {"tp", "pp", "nvlink"} & set(published):
        theirs = theirs[theirs[key] == setting[key]]
    known = dict(zip(theirs.method, theirs.value, strict=True)) if len(theirs) else {}
    return ours.assign(published=[known.get(name, float("nan")) for name in ours.method])


def beside_largest(rows: Iterable[Mapping], published: pd.DataFrame) -> list[dict]:
    """Put the speedup of the paper's fastest learned code, at TP 4 without NVLink, beside ours of the same code.

    Returns:
        Rows of quantity largest_speedup: published and measured (key of), for each link and each way to execute the
        code (keys link, execution); none where either side has no such setting.
    """
    table = _at(rows, TARGET)
    if "nvlink" not in published or not len(table):
        return []
    theirs = published[(published[list(TARGET)] == list(TARGET.values())).all(axis=1)]
    largest = theirs.loc[theirs.value.idxmax()]
    names = {largest.method: "as in the paper", f"{largest.method} fused": "fused"}
    ours = table[(table.quantity == "speedup") & table.method.isin(list(names))]
    return [row for _, one in ours.iterrows() for row in _largest_rows(one, names[one.method], float(largest.value))]


def _largest_rows(ours: pd.Series, execution: str, published: float) -> list[dict]:
    keys = {"quantity": "largest_speedup", "link": ours.link, "execution": execution, "unit": "1"}
    measured = {name: float(ours[name]) for name in ("value", "low", "high")}
    return [{**keys, "of": "published", "value": published}, {**keys, "of": "measured", **measured}]


def label_axes(left, right, setting: Mapping) -> None:
    """Name the setting above its bars, write the methods slanted, and mark where a method gains nothing.

    Args:
        left, right: axes of the parts and of the speedups.
        setting: tp, pp, link, micro_batch, sequence.
    """
    links = {"carried over": "slow links (share carried over)"}.get(setting["link"], f"{setting['link']} links")
    left.set_title(f"TP {setting['tp']}, PP {setting['pp']}, {links}")
    right.set_title(f"batch {setting['micro_batch']} x {setting['sequence']}")
    right.set_ylabel("speedup")
    right.axhline(1, color="black", linewidth=1, zorder=3)
    for axes in (left, right):
        for label in axes.get_xticklabels():
            label.set(rotation=45, size=8, horizontalalignment="right", rotation_mode="anchor")


def _at(rows: Iterable[Mapping], setting: Mapping) -> pd.DataFrame:
    table = pd.DataFrame(rows)
    for key, value in setting.items():
        table = table[table[key] == value]
    return table
