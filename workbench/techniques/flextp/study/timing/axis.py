"""Rows that compare places of a figure's axis: how epochs grow with skewness, and which division is the fastest.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", figures 9 to 11.
Simplified: rounds are taken to be independent; quotients are taken round by round, so that what slows a whole round
cancels.
Left out: axes whose places are not compared with one another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from workbench.training.measuring import median_interval

__all__ = ["along_axis"]

Keys = Mapping[str, Mapping[str, Any]]
Rounds = Mapping[str, Sequence[float]]
DIVISION, PLANNED = "SEMI(x)", "SEMI"


def along_axis(rounds: Rounds, keys: Keys, rows: Sequence[Mapping], along: str) -> list[dict]:
    """Return rows that compare places of a figure's axis.

    Args:
        rounds: seconds of each variant's iterations, round by round, by its name.
        keys: key columns of each variant, by its name.
        rows: of the study, with `epoch_s` and `dropped_share`.
        along: the key column on the axis.

    Returns:
        Over skewness, of every solution with three places or more `growth`, the last epoch over the first, and
        `off_straight_line`, how far the epoch furthest from the line between both lies from it, as a share. Over the
        number of senders `over_fastest_division`, an epoch of SEMI over the fastest of the given divisions;
        `better_divisions`, how many of them drop less and are faster, at the least and at the most by the intervals of
        their quotients; and `slowest_epoch_s` of all divisions and of Baseline. Along other axes nothing.
    """
    if along == "skewness":
        return list(_along_skewness(rounds, keys))
    return [*_divisions(rounds, keys, rows), *_slowest(rows)] if along == "num_senders" else []


def _along_skewness(rounds: Rounds, keys: Keys) -> Iterator[dict]:
    places: dict[str, dict[float, Sequence[float]]] = {}
    for name, told in keys.items():
        places.setdefault(told["solution"], {})[told["skewness"]] = rounds[name]
    for solution, found in places.items():
        if len(found) > 2:
            ordered = sorted(found.items())
            yield _row("growth", {"solution": solution}, _over(ordered[-1][1], ordered[0][1]))
            yield _row("off_straight_line", {"solution": solution}, _furthest_off(ordered))


def _furthest_off(places: Sequence[tuple[float, Sequence[float]]]) -> list[float]:
    """Return by how much each round lies off the line, at the place whose median is furthest from it."""
    (first, of_first), (last, of_last) = places[0], places[-1]

    def off(place: float, values: Sequence[float]) -> list[float]:
        share = (place - first) / (last - first)
        return [each / (a + share * (b - a)) - 1 for each, a, b in zip(values, of_first, of_last, strict=True)]

    return max((off(*each) for each in places[1:-1]), key=lambda values: abs(median(values)))


def _divisions(rounds: Rounds, keys: Keys, rows: Sequence[Mapping]) -> Iterator[dict]:
    by_solution = {told["solution"]: name for name, told in keys.items()}
    given = [name for name, told in keys.items() if told["solution"] == DIVISION]
    if PLANNED not in by_solution:
        return
    planned, fastest = rounds[by_solution[PLANNED]], min(given, key=lambda name: median(rounds[name]))
    yield _row("over_fastest_division", {"solution": PLANNED}, _over(planned, rounds[fastest]))
    dropped = {_place(row): row["value"] for row in rows if row["quantity"] == "dropped_share"}
    gentler = [name for name in given if dropped[_place(keys[name])] < dropped[PLANNED, None]]
    quotients = [_over(rounds[name], planned) for name in gentler]
    ends = [median_interval(each) for each in quotients]
    yield {
        "quantity": "better_divisions",
        "solution": PLANNED,
        "value": sum(median(each) < 1 for each in quotients),
        "low": sum(high < 1 for _, high in ends),
        "high": sum(low < 1 for low, _ in ends),
        "unit": "1",
    }


def _place(keys: Mapping[str, Any]) -> tuple[str, int | None]:
    return keys["solution"], keys.get("num_senders")


def _slowest(rows: Sequence[Mapping]) -> Iterator[dict]:
    epochs = [row for row in rows if row["quantity"] == "epoch_s"]
    for solution in (DIVISION, "Baseline"):
        slowest = max((row for row in epochs if row["solution"] == solution), key=lambda row: row["value"])
        kept = {name: slowest[name] for name in ("solution", "unit", "value", "low", "high")}
        yield {"quantity": "slowest_epoch_s", **kept}


def _over(above: Sequence[float], below: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=True)]


def _row(quantity: str, keys: Mapping[str, Any], values: Sequence[float]) -> dict:
    low, high = median_interval(values)
    return {"quantity": quantity, **keys, "value": median(values), "low": low, "high": high, "unit": "1"}
