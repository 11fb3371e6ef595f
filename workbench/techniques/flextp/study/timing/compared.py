"""From a catalogue's plain values to variants with names and key columns.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section V names the solutions.
Simplified: the skewness of several stragglers is told as that of the slowest one.
Left out: accuracy, which `study.scores` has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..scores import name_of
from ..variant import Variant

__all__ = ["keys_of", "traces_of", "variants_of"]

SHORT = {"pruning_ratio": "γ", "skewness": "χ", "migrated": "share", "num_senders": "x"}
COLUMNS = {"migrated": "migrated_share"}  # what rows call a field, as the published tables do
Told = Mapping[str, Any]  # a variant in plain values: solution, and fields of `Variant`


def variants_of(compared: Sequence[Told], keys: Sequence[str]) -> dict[str, Variant]:
    """Return the variants of a figure, by name.

    Args:
        compared: what is compared; every entry names its solution.
        keys: the fields that tell entries of one solution apart.

    Raises:
        ValueError: if two entries get one name.
    """
    variants = {_label(told, keys): Variant.of(dict(told)) for told in compared}
    if len(variants) < len(compared):
        raise ValueError(f"keys is {list(keys)}, must tell apart {[_label(told, keys) for told in compared]}")
    return variants


def keys_of(compared: Sequence[Told], keys: Sequence[str], **same: Any) -> dict[str, dict[str, Any]]:
    """Return the key columns of every variant's rows, by its name.

    Args:
        compared, keys: as for `variants_of`.
        same: further columns, with one value for all.
    """
    return {_label(told, keys): {"solution": name_of(told), **_values(told, keys), **same} for told in compared}


def traces_of(variants: Mapping[str, Variant], num_ranks: int) -> dict[str, str]:
    """Return every variant's stragglers as a grid, a row a rank and a column an epoch."""
    return {name: variant.trace(num_ranks, 1).as_grid() for name, variant in variants.items()}


def _label(told: Told, keys: Sequence[str]) -> str:
    values = _values(told, keys)
    return " ".join([name_of(told), *(_short(name, values[_column(name)]) for name in keys if _column(name) in values)])


def _short(name: str, value: Any) -> str:
    return f"{SHORT[name]} {value:g}" if name in SHORT else str(value)


def _column(name: str) -> str:
    return COLUMNS.get(name, name)


def _values(told: Told, keys: Sequence[str]) -> dict[str, Any]:
    given = {**told, "skewness": max(told.get("skewness") or [1.0])}
    return {_column(name): given[name] for name in keys if given.get(name) is not None}
