"""From a catalogue's plain values to variants with names and key columns; rows that compare along a figure's axis.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section V names the solutions.
Simplified: the skewness of several stragglers is told as that of the slowest one.
Left out: accuracy, which `study.scores` has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..scores import name_of
from ..variant import Variant

__all__ = ["along_axis", "keys_of", "traces_of", "variants_of"]

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


def along_axis(rows: Sequence[Mapping], along: str) -> list[dict]:
    """Return rows that compare places of a figure's axis.

    Args:
        rows: of a study.
        along: the key column on the axis.

    Returns:
        Over skewness, of every solution `growth`, the last epoch over the first, and `off_straight_line`, how far the
        epoch furthest from the line between both lies from it, as a share. Over the number of senders,
        `over_fastest_division`, an epoch of SEMI over the fastest of the given divisions, `better_divisions`, how many
        of them drop less and are faster by their whole intervals, and `slowest_epoch_s` of all divisions and of
        Baseline. Along other axes nothing.
    """
    if along == "skewness":
        places = {name: sorted(found.items()) for name, found in _epochs(rows, along).items()}
        return [row for name, found in places.items() if len(found) > 2 for row in _growth({"solution": name}, found)]
    return _divisions(rows) if along == "num_senders" else []


def traces_of(variants: Mapping[str, Variant], num_ranks: int) -> dict[str, str]:
    """Return every variant's stragglers as a grid, a row a rank and a column an epoch."""
    return {name: variant.trace(num_ranks, 1).as_grid() for name, variant in variants.items()}


def _divisions(rows: Sequence[Mapping]) -> list[dict]:
    epochs = [row for row in rows if row["quantity"] == "epoch_s"]
    given = [row for row in epochs if row["solution"] == "SEMI(x)"]
    ends, fastest = ("value", "low", "high"), min(row["value"] for row in given)
    own = [{**row, "quantity": "over_fastest_division", "unit": "1"} | {end: row[end] / fastest for end in ends}
           for row in epochs if row["solution"] == "SEMI"]  # fmt: skip
    better = [
        {"quantity": "better_divisions", "solution": "SEMI", "value": len(_better(rows, given, row)), "unit": "1"}
        for row in epochs if row["solution"] == "SEMI"
    ]  # fmt: skip
    plain = [row for row in epochs if row["solution"] == "Baseline"]
    slowest = [max(found, key=lambda row: row["value"]) for found in (given, plain) if found]
    keep = ("solution", "unit", *ends)
    return own + better + [{"quantity": "slowest_epoch_s", **{name: row[name] for name in keep}} for row in slowest]


def _better(rows: Sequence[Mapping], given: Sequence[Mapping], planned: Mapping) -> list[Mapping]:
    """Return those of the given divisions that are faster than the planned one and drop less."""
    dropped = {(row["solution"], row.get("num_senders")): row["value"]
               for row in rows if row["quantity"] == "dropped_share"}  # fmt: skip
    faster = [row for row in given if row["high"] < planned["low"]]
    of_planned = dropped[planned["solution"], planned.get("num_senders")]
    return [row for row in faster if dropped[row["solution"], row["num_senders"]] < of_planned]


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


def _epochs(rows: Iterable[Mapping], along: str) -> dict[str, dict[float, float]]:
    found: dict[str, dict[float, float]] = {}
    for row in rows:
        if row["quantity"] == "epoch_s" and along in row:
            found.setdefault(row["solution"], {})[row[along]] = row["value"]
    return found


def _growth(keys: Mapping, places: Sequence[tuple[float, float]]) -> list[dict]:
    (first, first_s), (last, last_s) = places[0], places[-1]
    slope = (last_s - first_s) / (last - first)
    off = max((value / (first_s + slope * (place - first)) - 1 for place, value in places[1:-1]), key=abs)
    values = {"growth": last_s / first_s, "off_straight_line": off}
    return [{"quantity": name, **keys, "value": value, "unit": "1"} for name, value in values.items()]
