"""Rows of a timing study as tables that the plots take, and what claims need beside them.

Source: "Does compressing activations help model parallel training?", the columns of table 4.
Simplified: parts are medians, so they need not add up to the median iteration.
Left out: the plots themselves (`workbench.plots`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import pandas as pd

__all__ = ["SMALL_BERT", "beside_published", "best_learned", "stacked_parts", "title"]

SMALL_BERT = MappingProxyType({"hidden": 256, "layers": 8, "compressed_layers": 4, "value_bytes": 4})
"""A BERT whose iteration takes some 0.3 s on two cores; half of its layers are compressed, as in the paper."""

PARTS = MappingProxyType(
    {
        "compute_ms": "forward computation", "encode_ms": "encoding", "tensor_ms": "tensor communication",
        "tensor_waiting_ms": "waiting for the last rank", "decode_ms": "decoding", "backward_ms": "backward",
        "optimizer_ms": "optimizer", "waiting_and_pipeline_ms": "waiting and pipeline",
    }
)  # fmt: skip
INSIDE_FORWARD = ("encode_ms", "decode_ms", "tensor_ms", "tensor_waiting_ms")
TARGET = MappingProxyType({"tp": 4, "pp": 1, "nvlink": 0})  # where the paper gains most, 17.8 %
LEARNED = ("A1", "A2")


def stacked_parts(rows: Iterable[Mapping], setting: Mapping) -> pd.DataFrame:
    """Take one setting's iteration apart, a row a method and part: method, part, time in ms."""
    table = _at(rows, setting).pivot_table(index="method", columns="quantity", values="value", sort=False)
    table["compute_ms"] = table.forward_ms - table[list(INSIDE_FORWARD)].sum(axis=1)
    parts = table[list(PARTS)].clip(lower=0).rename(columns=PARTS)
    return parts.reset_index().melt(id_vars="method", var_name="part", value_name="time")


def beside_published(rows: Iterable[Mapping], setting: Mapping, published: pd.DataFrame) -> pd.DataFrame:
    """Put one setting's speedups beside the paper's: method, ours, low, high, published."""
    ours = _at(rows, setting)
    ours = ours[ours.quantity == "speedup"].rename(columns={"value": "ours"})[["method", "ours", "low", "high"]]
    shared = [key for key in ("tp", "pp", "nvlink") if key in published]
    theirs = published[(published[shared] == [setting[key] for key in shared]).all(axis=1)] if len(published) else published
    known = dict(zip(theirs.method, theirs.value, strict=True)) if len(theirs) else {}
    return ours.assign(published=[known.get(name, float("nan")) for name in ours.method])


def best_learned(rows: Iterable[Mapping], published: pd.DataFrame) -> list[dict]:
    """Put the best learned code at TP 4 without NVLink beside the paper's best; nothing where either is missing."""
    table = _at(rows, TARGET)
    ours = table[(table.quantity == "speedup") & table.method.isin(LEARNED)] if len(table) else table
    if not len(ours) or "nvlink" not in published:
        return []
    theirs = published[(published[list(TARGET)] == list(TARGET.values())).all(axis=1)]
    best = ours.loc[ours.value.idxmax()]
    common = {"quantity": "best_learned_speedup", "unit": "1"}
    measured = {"value": float(best.value), "low": float(best.low), "high": float(best.high)}
    return [
        {**common, "of": "published", "value": float(theirs[theirs.method.isin(LEARNED)].value.max())},
        {**common, "of": "measured", **measured},
    ]


def title(setting: Mapping) -> str:
    """Name a setting above its bars."""
    links = "fast links" if setting["nvlink"] else "slow links"
    return f"TP {setting['tp']}, PP {setting['pp']}, {links}, batch {setting['micro_batch']} x {setting['sequence']}"


def _at(rows: Iterable[Mapping], setting: Mapping) -> pd.DataFrame:
    table = pd.DataFrame(rows)
    for key, value in setting.items():
        table = table[table[key] == value]
    return table
