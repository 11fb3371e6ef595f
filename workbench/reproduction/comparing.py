"""How values are compared: within a tolerance, rising step by step, crossing once.

Source: the workbench's own rules, see `workbench.reproduction.claims`, whose classes call these functions.
Simplified: a spread is an interval; two overlapping ones cannot be told apart.
Left out: which rows are compared with which.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.reproduction.errors import ClaimError
from workbench.reproduction.verdicts import Comparison, Verdict
from workbench.study.rows import Key, Row, canonical, matches

if TYPE_CHECKING:
    from workbench.reproduction.claims import Bound, Claim, Crossover, Ordering, Trend, Within

__all__ = [
    "CALIBRATED",
    "bounded",
    "comparison",
    "crossing",
    "gaps",
    "inside",
    "listed",
    "missing",
    "numeric",
    "outside",
    "reaching",
    "rising",
    "told",
]

CALIBRATED = "the cost model was calibrated on this cell, so it does not count"
CALIBRATED_SWEEP = "the cost model was calibrated on all places of this sweep but one at most, so it does not count"
ALONE = "the cost model was calibrated on every other value beside this one, so it does not count"
MANIFOLD = 10  # times the published value, from which on a factor reads better than percents


def inside(ours: float, published: float, claim: "Within | Crossover") -> bool:
    """Say whether ours lies within the tolerance of a claim; what is not finite never does."""
    if not (math.isfinite(ours) and math.isfinite(published)):
        return False
    return abs(ours - published) <= (claim.abs if claim.rel is None else claim.rel * abs(published))


def outside(ours: float, published: float, claim: "Within | Crossover") -> str:
    """Say in words by how much ours lies outside."""
    if not (math.isfinite(ours) and math.isfinite(published)):
        return f"ours is {ours:g}, published {published:g}; a value that is not finite agrees with nothing"
    if claim.rel is None:
        return _beyond(ours - published, claim.abs, "") if claim.abs else f"ours is {ours:.10g}, not {published:.10g}"
    if published == 0:
        return f"ours is {ours:g} where the published value is 0"
    if abs(times := ours / published) >= MANIFOLD:
        return f"ours is {times:,.0f} times the published value, off by more than {100 * claim.rel:.4g} %"
    return _beyond(100 * (ours - published) / abs(published), 100 * claim.rel, " %")


def _beyond(off: float, tolerance: float, unit: str) -> str:
    digits = _digits(abs(off), tolerance)
    return f"off by {off:+.{digits}g}{unit}, more than {tolerance:.{digits}g}{unit}"


def _digits(one: float, other: float) -> int:
    """Return how many significant digits tell two numbers apart, at least the four that suffice for one alone."""
    if one == other:
        return 4
    return next((digits for digits in range(4, 17) if f"{one:.{digits}g}" != f"{other:.{digits}g}"), 17)


def reaching(ours: Row, published: float, claim: "Within") -> str:
    """Say of a value outside of the tolerance that its interval reaches into it, where it does."""
    low, high = ours.interval
    if not (ours.spread_known and inside(min(max(published, low), high), published, claim)):
        return ""
    return f"; our interval {low:.4g} to {high:.4g} reaches the tolerance"


def bounded(ours: Row, asked: Row, claim: "Bound") -> Comparison:
    """Compare a value, with its interval, with a bound."""
    (low, high), limit = ours.interval, asked.value
    words = f"at most {limit:.10g}" if claim.at_least is None else f"at least {limit:.10g}"
    keeps, misses = (high <= limit, low > limit) if claim.at_least is None else (low >= limit, high < limit)
    if not math.isfinite(ours.value):
        return comparison(
            ours, asked, Verdict.DISAGREES, f"ours is {ours.value:g}; a value that is not finite keeps no bound"
        )
    if keeps:
        return comparison(ours, asked, Verdict.AGREES, "")
    if misses or not ours.spread_known:
        return comparison(ours, asked, Verdict.DISAGREES, f"ours is {_with_interval(ours, 4)}, not {words}")
    reason = f"ours is {_with_interval(ours, 4)}: {words} is inside the interval, so it is not shown"
    return comparison(ours, asked, Verdict.NOT_COMPARABLE, reason)


def told(keys: Mapping[str, Key]) -> str:
    """Write keys for a reader."""
    return ", ".join(f"{name}={key}" for name, key in keys.items()) or "no keys"


def comparison(ours: Row, published: Row | None, verdict: Verdict, reason: str) -> Comparison:
    """Put one of our rows beside the published one."""
    return Comparison(
        where=ours.keys,
        published=None if published is None else published.value,
        ours=ours.value,
        unit=ours.unit,
        source="" if published is None else published.source,
        low=ours.low,
        high=ours.high,
        verdict=verdict,
        reason=reason,
    )


def missing(where: Mapping[str, Key], unit: str, published: Row | None = None) -> Comparison:
    """Say that we have no value where one is needed."""
    return Comparison(
        where=where,
        published=None if published is None else published.value,
        ours=None,
        unit=unit,
        source="" if published is None else published.source,
        verdict=Verdict.NOT_RUN,
        reason=f"no value of ours for {told(where)}" if where else "no value of ours",
    )


def listed(claim: "Claim") -> list[tuple[str, Key]]:
    """Return what the lists in `where` ask for, each value with its column."""
    lists = ((name, wanted) for name, wanted in claim.where.items() if isinstance(wanted, (list, tuple)))
    return [(name, canonical(value)) for name, wanted in lists for value in wanted]


def gaps(
    claim: "Claim", ours: Sequence[Row], published: Sequence[Row], told_of: Iterable[Comparison]
) -> list[Comparison]:
    """Say which published rows, and which values listed in `where`, no row of ours has.

    Args:
        claim: the claim that asks for them.
        ours: our rows that fit the claim.
        published: the published rows that ours must have.
        told_of: comparisons made already; what they say is missing is not said again.
    """
    known = [row for row in told_of if row.ours is None]
    found: list[Comparison] = []
    asked = [(row.keys, row) for row in published if not any(matches(mine, row.keys) for mine in ours)]
    asked += [
        ({name: key}, None) for name, key in listed(claim) if not any(matches(mine, {name: key}) for mine in ours)
    ]
    for keys, row in asked:
        if not any(keys.items() <= other.where.items() for other in [*known, *found]):
            found.append(missing(keys, row.unit if row else "", row))
    return found


def numeric(row: Row, claim: "Trend | Crossover") -> float:
    """Return the place of a row along the column of a claim."""
    key = row.keys[claim.along]
    if isinstance(key, str):
        raise ClaimError(f"claim {claim.name!r}: column {claim.along!r} holds {key!r}; it must hold numbers")
    return float(key)


def rising(ordered: Sequence[Row], published: Sequence[Row], claim: "Ordering | Trend") -> list[Comparison]:
    """Compare each row with the one before it: the value must rise, and the published one with it if there is one.

    Rows of the calibration are shown and passed over, so that the rows beside them are neighbours.
    """
    result: list[Comparison] = []
    before, before_published = None, None
    passed_over = [
        row.calibrated or sum(not each.calibrated for each in ordered) < 2 <= len(ordered) for row in ordered
    ]
    for row, passed in zip(ordered, passed_over, strict=True):
        theirs = _published_for(row, published, claim)
        if passed:
            reason = CALIBRATED if row.calibrated else ALONE
            result.append(replace(comparison(row, theirs, Verdict.NOT_COMPARABLE, reason), counts=False))
            continue
        falls = _published_fall(before_published, theirs, claim.along)
        verdict, reason = (Verdict.DISAGREES, falls) if falls else _step(before, row, claim.along)
        result.append(comparison(row, theirs, verdict, reason))
        before, before_published = row, theirs or before_published
    return result


def _published_for(row: Row, published: Sequence[Row], claim: "Ordering | Trend") -> Row | None:
    found = [theirs for theirs in published if claim.along in theirs.keys and matches(row, theirs.keys)]
    if len(found) > 1:
        raise ClaimError(
            f"claim {claim.name!r}: {len(found)} published rows fit ours with {told(row.keys)}; say in `where` which"
        )
    if not found:
        return None
    claim.same_unit(row, found[0])
    return found[0]


def _published_fall(before: Row | None, now: Row | None, along: str) -> str:
    if before is None or now is None or before.value < now.value:
        return ""
    return f"{_expected(before, now, along)}, but the published values are {_pair(before, now)}"


def _step(before: Row | None, row: Row, along: str) -> tuple[Verdict, str]:
    if not math.isfinite(row.value):
        return Verdict.DISAGREES, f"ours is {row.value:g}; a value that is not finite agrees with nothing"
    if before is None:
        return Verdict.AGREES, ""
    if before.unit != row.unit:
        names = f"{before.keys[along]} and {row.keys[along]}"
        raise ClaimError(f"the values at {names} are in different units, {before.unit!r} and {row.unit!r}")
    if before.interval[1] < row.interval[0]:
        return Verdict.AGREES, ""
    told_of = f"{_expected(before, row, along)}; found {_pair(before, row)}"
    if row.interval[1] < before.interval[0] or not (before.spread_known or row.spread_known):
        return Verdict.DISAGREES, told_of
    return Verdict.NOT_COMPARABLE, f"{told_of}: the intervals overlap, so neither order is shown"


def _expected(before: Row, now: Row, along: str) -> str:
    lower, upper = before.keys[along], now.keys[along]
    named = isinstance(lower, str) or isinstance(upper, str)
    return f"expected {lower} below {upper}" if named else f"expected less at {lower} than at {upper}"


def _pair(before: Row, now: Row) -> str:
    """Write two values, each with its interval where it is known."""
    digits = _digits(before.value, now.value)
    return " and ".join(_with_interval(row, digits) for row in (before, now))


def _with_interval(row: Row, digits: int) -> str:
    low, high = row.interval
    return f"{row.value:.{digits}g}" + (f" ({low:.4g} to {high:.4g})" if row.spread_known else "")


def crossing(rest: Mapping[str, Key], group: Sequence[Row], claim: "Crossover") -> Comparison:
    """Find where the two series of one group change places and compare that with the published place.

    Places at which a row of the calibration stands are passed over.
    """
    first, second = (
        {numeric(row, claim): row for row in group if matches(row, {claim.series: name})} for name in claim.between
    )
    points = [(place, first[place], second[place]) for place in sorted(first.keys() & second.keys())]
    counted = [(place, a, b) for place, a, b in points if not (a.calibrated or b.calibrated)]
    if len(points) < 2:
        return missing({**rest, claim.along: "at least two places"}, claim.unit)
    if len(counted) < 2:
        return Comparison(
            where=dict(rest),
            published=claim.at,
            unit=claim.unit,
            source=claim.source,
            ours=None,
            verdict=Verdict.NOT_COMPARABLE,
            reason=CALIBRATED_SWEEP,
            counts=False,
        )
    place, verdict, reason = _judged_crossing(counted, claim)
    return Comparison(
        where=dict(rest),
        published=claim.at,
        unit=claim.unit,
        source=claim.source,
        ours=place,
        verdict=verdict,
        reason=reason,
    )


def _judged_crossing(points: Sequence[tuple[float, Row, Row]], claim: "Crossover") -> tuple[float | None, Verdict, str]:
    """Judge the places (place, first series, second series) of one sweep: where they cross, verdict, reason."""
    if any(not math.isfinite(row.value) for _, *pair in points for row in pair):
        return None, Verdict.DISAGREES, "a value that is not finite agrees with nothing"
    if not all(_apart(*points[end][1:]) for end in (0, -1)):
        return None, Verdict.NOT_COMPARABLE, "at an end of the sweep the two series cannot be told apart"
    places = _places([(place, a.value - b.value) for place, a, b in points], claim.scale)
    if len(places) != 1:
        times = f"the series cross {len(places)} times between {points[0][0]:g} and {points[-1][0]:g}"
        return None, Verdict.DISAGREES, times
    smaller = claim.between[0] if points[0][1].value < points[0][2].value else claim.between[1]
    if claim.smaller_before is not None and smaller != claim.smaller_before:
        order = f"{smaller} is the smaller before the crossing, not {claim.smaller_before}"
        return places[0], Verdict.DISAGREES, order
    if inside(places[0], claim.at, claim):
        return places[0], Verdict.AGREES, ""
    return places[0], Verdict.DISAGREES, outside(places[0], claim.at, claim)


def _apart(a: Row, b: Row) -> bool:
    return a.value != b.value and (a.interval[1] < b.interval[0] or b.interval[1] < a.interval[0])


def _places(differences: Sequence[tuple[float, float]], scale: str) -> list[float]:
    signed = [(place, difference) for place, difference in differences if difference != 0]
    found: list[float] = []
    for (left, before), (right, after) in zip(signed, signed[1:], strict=False):
        if (before < 0) == (after < 0):
            continue
        touching = [place for place, difference in differences if left < place < right]
        found.append(
            touching[len(touching) // 2] if touching else _between(left, right, before / (before - after), scale)
        )
    return found


def _between(left: float, right: float, share: float, scale: str) -> float:
    return left * (right / left) ** share if scale == "log" else left + (right - left) * share
