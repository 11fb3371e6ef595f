"""Rows of timed variants: parts of an iteration, ratios within rounds, the best possible speedup, and a figure's axis.

A Baseline without stragglers gives o, its other and transfer time over its product time, without waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from statistics import fmean, median

from workbench.study.breakdown import Breakdown, break_down
from workbench.study.rows import median_row, ratio_row, ratios, value_row
from workbench.study.timing import Timed, dose_rows
from workbench.timeline import Dose
from workbench.training.measuring import median_interval

from ..method import Plan, RankTimes, Reference, Scheme, Selection, Solution, ideal_s, speedup_bound
from .variant import Variant

__all__ = ["Notes", "along_axis", "rows_of"]

Variants = Mapping[str, Variant | None]
Keys = Mapping[str, Mapping]  # key columns of each variant, by its name
Rounds = Mapping[str, Sequence[float]]  # seconds of each variant's iterations, round by round
RANK_PARTS = ("product_s", "waiting_s", "other_s")
DIVISION, PLANNED = "SEMI(x)", "SEMI"


@dataclass(frozen=True, kw_only=True, slots=True)
class Notes:
    """The balancing of one turn on one rank."""

    dose: Dose  # injected delays
    dropped_share: float = 0.0  # of the rank's products, computed by nobody
    plan: Plan | None = None  # of all ranks; None for a model without balancing

    @property
    def migrated_share(self) -> float:
        """Share of all ranks' products that another rank computed."""
        return 0.0 if self.plan is None else self.plan.migrated / self.plan.num_ranks


def rows_of(variants: Variants, timed: Timed, *, keys: Keys, iterations_per_epoch: int) -> list[dict]:
    """Return the rows of a study; `timed` holds `Notes`, `keys` the key columns of each variant."""
    rows = []
    for name in variants:
        notes = [[turn.notes for turn in turns] for turns in timed.rounds[name]]
        rows += [median_row(*column, **keys[name]) for column in _columns(timed, name, iterations_per_epoch)]
        for quantity, shares in (
            ("dropped_share", [fmean(note.dropped_share for note in by_rank) for by_rank in notes]),
            ("migrated_share", [by_rank[0].migrated_share for by_rank in notes]),
        ):
            rows.append(median_row(quantity, shares, **keys[name]))
        rows += [median_row(*column, **keys[name]) for column in _comparisons(variants, timed, name)]
        rows += _by_rank(notes, keys[name])
        rows += dose_rows([[note.dose for note in by_rank] for by_rank in notes], **keys[name])
    return rows


def _columns(timed: Timed, name: str, iterations_per_epoch: int) -> Iterator[tuple[str, list[float], str]]:
    """Yield quantity, value round by round, and unit of a variant's times."""
    iterations, length = timed.iterations_s(name), timed.rounds[name][0][0].length
    yield "iteration_s", iterations, "s"
    yield "epoch_s", [iterations_per_epoch * seconds for seconds in iterations], "s"
    yield "cpu_s", timed.cpu_s(name), "s"
    parts = _parts(timed, name)
    if any(fsum(part.product_s) for part in parts):  # no products are recorded beside a model without balancing
        for quantity in RANK_PARTS:
            yield quantity, [fmean(getattr(part, quantity)) / length for part in parts], "s"
        yield "transfer_s", [part.transfer_s / length for part in parts], "s"
        yield "product_share", [fmean(part.product_s) / part.iteration_s for part in parts], "1"


def _parts(timed: Timed, name: str) -> list[Breakdown]:
    return [break_down([turn.actions for turn in turns]) for turns in timed.rounds[name]]


def _by_rank(notes: Sequence[Sequence[Notes]], keys: Mapping) -> Iterator[dict]:
    """Yield the shares that each rank of a balanced variant dropped and gave away."""
    if notes[0][0].plan is None:
        return
    for rank in range(len(notes[0])):
        dropped = [by_rank[rank].dropped_share for by_rank in notes]
        migrated = [by_rank[rank].plan.ranks[rank].migrated for by_rank in notes]
        yield median_row("rank_drops", dropped, **keys, rank=rank)
        yield median_row("rank_migrates", migrated, **keys, rank=rank)


def _comparisons(variants: Variants, timed: Timed, name: str) -> Iterator[tuple[str, list[float], str]]:
    """Yield quantity, value and unit of a variant beside others, round by round, as far as these were timed."""
    own_s, variant = timed.iterations_s(name), variants[name]
    unbalanced = next((other for other, variant in variants.items() if variant is None), None)
    if unbalanced is not None:
        yield "over_unbalanced", ratios(own_s, timed.iterations_s(unbalanced)), "1"
        yield "cpu_over_unbalanced", ratios(timed.cpu_s(name), timed.cpu_s(unbalanced)), "1"
    if variant is None:
        return
    baseline = _name_of(variants, Variant(skewness=variant.skewness, moves=variant.moves))
    if baseline is not None:
        yield "speedup", ratios(timed.iterations_s(baseline), own_s), "1"
        yield "epoch_saved", _saved(own_s, timed.iterations_s(baseline)), "%"
    for quantity, twin, compare, unit in _twins(variant):
        other = _name_of(variants, twin)
        if other is not None:
            other_s = timed.iterations_s(other)
            yield quantity, compare(own_s, other_s), unit
    plain = _name_of(variants, Variant())
    if baseline is not None and plain is not None and variant.skewness:
        yield from _best_possible(variant, ratios(timed.iterations_s(baseline), own_s), _parts(timed, plain))


def _saved(own_s: Sequence[float], other_s: Sequence[float]) -> list[float]:
    return [100 * (1 - ratio) for ratio in ratios(own_s, other_s)]


def _gap(own_s: Sequence[float], other_s: Sequence[float]) -> list[float]:
    return [ratio - 1 for ratio in ratios(other_s, own_s)]


def _twins(variant: Variant) -> Iterator[tuple[str, Variant, Callable[..., list[float]], str]]:
    """Yield the variants that differ from this one by selection or scheme alone: quantity, twin, comparison, unit."""
    if variant.solution == Solution.ZERO and variant.selection == Selection.DIFFERENTIATED.value:
        yield "epoch_saved_over_pri", replace(variant, selection=Selection.PRIORITY.value), _saved, "%"
    if variant.solution == Solution.ZERO and variant.selection == Selection.PRIORITY.value:
        yield "over_random", replace(variant, selection=Selection.RANDOM.value), ratios, "1"
    if variant.migrated is not None and variant.scheme == Scheme.BROADCAST_REDUCE:
        yield "gap", replace(variant, scheme=Scheme.SCATTER_GATHER), _gap, "1"


def _name_of(variants: Variants, wanted: Variant) -> str | None:
    wanted = _without_idle_stragglers(wanted)
    for name, variant in variants.items():
        if variant is not None and _without_idle_stragglers(variant) == wanted:
            return name
    return None


def _without_idle_stragglers(variant: Variant) -> Variant:
    """A straggler that is no slower than others is none."""
    slow = variant.skewness if max(variant.skewness, default=1) > 1 else ()
    return replace(variant, skewness=slow, moves=variant.moves and bool(slow))


def _best_possible(
    variant: Variant, speedups: Sequence[float], plain: Sequence[Breakdown]
) -> Iterator[tuple[str, list[float], str]]:
    """Yield the speedup of a balance without costs and, for ZERO, the largest one of Eq. 1."""
    others = [(fmean(part.other_s) + part.transfer_s) / fmean(part.product_s) for part in plain]
    num_ranks = len(plain[0].product_s)
    chis = [*variant.skewness, *[1.0] * (num_ranks - len(variant.skewness))]
    times = ([RankTimes(own_s=other + chi, product_s=chi) for chi in chis] for other in others)
    ideals = [max(rank.own_s for rank in ranks) / ideal_s(ranks) for ranks in times]
    yield "ideal_speedup", ideals, "1"
    yield "share_of_ideal", ratios(speedups, ideals), "1"
    if variant.solution == Solution.ZERO and variant.pruning_ratio is None and len(variant.skewness) == 1:
        bounds = [_bound(variant, num_ranks, other) for other in others]
        yield "bound", bounds, "1"
        yield "share_of_bound", ratios(speedups, bounds), "1"


def _bound(variant: Variant, num_ranks: int, other: float) -> float:
    """Return the largest speedup of Eq. 1: down to the first mean or, planned again and again, to the other ranks."""
    (skewness,) = variant.skewness
    if variant.policy(num_ranks).reference is Reference.MEAN:
        return speedup_bound(skewness, num_ranks, other=other)
    return (other + skewness) / (other + 1)


def along_axis(rounds: Rounds, keys: Keys, rows: Sequence[Mapping], along: str) -> list[dict]:
    """Return rows that compare places of a figure's axis, round by round; `rounds` holds seconds by variant.

    Over skewness: growth and distance from a straight line. Over the number of senders: SEMI beside the given
    divisions.
    """
    if along == "skewness":
        return list(_along_skewness(rounds, keys))
    return [*_divisions(rounds, keys, rows), *_slowest(rows)] if along == "num_senders" else []


def _along_skewness(rounds: Rounds, keys: Keys) -> Iterator[dict]:
    by_solution: dict[str, dict[float, Sequence[float]]] = {}
    for name, columns in keys.items():
        by_solution.setdefault(columns["solution"], {})[columns["skewness"]] = rounds[name]
    for solution, places in by_solution.items():
        if len(places) > 2:
            ordered = sorted(places.items())
            yield ratio_row("growth", ordered[-1][1], ordered[0][1], solution=solution)
            yield median_row("off_straight_line", _furthest_off(ordered), solution=solution)


def _furthest_off(places: Sequence[tuple[float, Sequence[float]]]) -> list[float]:
    """Return the distance of each round from the line, at the place whose median is furthest from it."""
    (first, at_first), (last, at_last) = places[0], places[-1]

    def off(place: float, values: Sequence[float]) -> list[float]:
        share = (place - first) / (last - first)
        return [value / (a + share * (b - a)) - 1 for value, a, b in zip(values, at_first, at_last, strict=True)]

    return max((off(*place) for place in places[1:-1]), key=lambda distances: abs(median(distances)))


def _divisions(rounds: Rounds, keys: Keys, rows: Sequence[Mapping]) -> Iterator[dict]:
    by_solution = {columns["solution"]: name for name, columns in keys.items()}
    given = [name for name, columns in keys.items() if columns["solution"] == DIVISION]
    if PLANNED not in by_solution:
        return
    planned, fastest = rounds[by_solution[PLANNED]], min(given, key=lambda name: median(rounds[name]))
    yield ratio_row("over_fastest_division", planned, rounds[fastest], solution=PLANNED)
    dropped = {_place(row): row["value"] for row in rows if row["quantity"] == "dropped_share"}
    gentler = [name for name in given if dropped[_place(keys[name])] < dropped[PLANNED, None]]
    over_planned = [ratios(rounds[name], planned) for name in gentler]
    intervals = [median_interval(values) for values in over_planned]
    yield value_row(
        "better_divisions",
        sum(median(values) < 1 for values in over_planned),
        low=sum(high < 1 for _, high in intervals),
        high=sum(low < 1 for low, _ in intervals),
        solution=PLANNED,
    )


def _place(keys: Mapping) -> tuple[str, int | None]:
    return keys["solution"], keys.get("num_senders")


def _slowest(rows: Sequence[Mapping]) -> Iterator[dict]:
    for solution in (DIVISION, "Baseline"):
        epochs = [row for row in rows if (row["quantity"], row["solution"]) == ("epoch_s", solution)]
        slowest = max(epochs, key=lambda row: row["value"])
        ends = {name: slowest[name] for name in ("low", "high")}
        yield value_row("slowest_epoch_s", slowest["value"], "s", **ends, solution=solution)
