"""Verdicts, and the comparisons behind them: within a tolerance, against a bound, rising, crossing once.

Two values whose intervals overlap cannot be told apart. A claim's verdict is the worst verdict of its rows: disagrees,
then not run, then not comparable, then agrees.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from workbench.reproduction.errors import ClaimError
from workbench.rows import Key, Row, canonical, matches

if TYPE_CHECKING:
    from workbench.reproduction.claims import Bound, Claim, Crossover, Ordering, Trend, Within

__all__ = ["CALIBRATED", "MANIFOLD", "ORDERS", "ClaimVerdict", "Comparison", "Verdict", "bounded", "crossing", "gaps"]
__all__ += ["keys_text", "listed", "missing", "numeric", "rising", "within", "worst"]

ORDERS = ("Ordering", "Trend")  # the kinds of claim whose rows have a verdict only together
CALIBRATED = "the cost model was calibrated on this cell, so it does not count"
CALIBRATED_SWEEP = "the cost model was calibrated on all places of this sweep but one at most, so it does not count"
MANIFOLD = 10  # a ratio from which a factor reads better than a percentage


class Verdict(StrEnum):
    """The result of a comparison; always computed."""

    AGREES = "agrees"
    DISAGREES = "disagrees"
    NOT_COMPARABLE = "not comparable"
    NOT_RUN = "not run"


SEVERITY = (Verdict.DISAGREES, Verdict.NOT_RUN, Verdict.NOT_COMPARABLE, Verdict.AGREES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One published value beside ours."""

    where: Mapping[str, Key | None]  # the key columns of the row
    published: float | None  # the printed or implied value in `unit`; None if the paper gives none
    ours: float | None  # ours in `unit`; None where there is none
    unit: str  # unit of published, ours, difference, low and high
    verdict: Verdict  # verdict on this row alone
    reason: str = ""  # why, where it is not AGREES
    source: str = ""  # where the paper says it
    low: float | None = None  # lower end of our spread
    high: float | None = None  # upper end of our spread
    by_definition: bool = False  # `published` is implied by a definition, not printed
    counts: bool = True  # False for calibrated cells and for comparisons with calibrated cells alone

    @property
    def difference(self) -> float | None:
        """Ours minus published, in `unit`; None where one of them is missing."""
        if self.published is None or self.ours is None:
            return None
        return self.ours - self.published

    def to_json(self) -> dict[str, Any]:
        """Return the row of the record."""
        names = ("published", "ours", "unit", "difference", "source", "low", "high", "reason", "by_definition")
        return {
            "where": dict(self.where),
            "verdict": self.verdict.value,
            **{name: getattr(self, name) for name in names},
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimVerdict:
    """The verdict of one claim, with its comparisons."""

    claim: str  # name of the claim
    kind: str  # Within, Bound, Ordering, Trend or Crossover
    verdict: Verdict  # the worst of the rows, or the override
    reason: str = ""  # why, where it is not AGREES
    because: str = ""  # reason of the tolerance or rule
    explanation: str = ""  # shown beside the verdict
    source: str = ""  # where the paper says it
    whose: str = "paper"  # maker of the claim: paper, ours or construction
    changed: str = ""  # change of the rule after results were seen, and its reason
    repeats: str = ""  # id of another item whose trainings judge it
    rows: Sequence[Comparison] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the record."""
        names = ("claim", "kind", "reason", "because", "explanation", "source", "whose", "changed", "repeats")
        rows = [row.to_json() for row in self.rows]
        return {"verdict": self.verdict.value, "rows": rows, **{name: getattr(self, name) for name in names}}


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the worst verdict; nothing compared is NOT_RUN."""
    return next((verdict for verdict in SEVERITY if verdict in verdicts), Verdict.NOT_RUN)


def _inside(ours: float, published: float, claim: "Within | Crossover") -> bool:
    """Say whether ours lies within the tolerance of a claim; values that are not finite never do."""
    if not (math.isfinite(ours) and math.isfinite(published)):
        return False
    if claim.rel is not None:
        return abs(ours - published) <= claim.rel * abs(published - _no_effect(claim))
    assert claim.abs is not None  # exactly one is given
    return abs(ours - published) <= claim.abs


def _no_effect(claim: "Within | Crossover") -> float:
    return getattr(claim, "no_effect", 0.0)


def _outside(ours: float, published: float, claim: "Within | Crossover") -> str:
    """Say by how much ours lies outside the tolerance."""
    if not (math.isfinite(ours) and math.isfinite(published)):
        return f"ours is {ours:g}, published {published:g}; a value that is not finite agrees with nothing"
    if claim.rel is None:
        return _beyond(ours - published, claim.abs, "") if claim.abs else f"ours is {ours:.10g}, not {published:.10g}"
    if neutral := _no_effect(claim):
        tolerance = f"tolerance {100 * claim.rel:.4g} % of the published effect"
        return f"ours is {ours:.4g}, published is {published:.4g}; {tolerance}, {abs(published - neutral):.4g}"
    if published == 0:
        return f"ours is {ours:g} where the published value is 0"
    if abs(times := ours / published) >= MANIFOLD:
        return f"ours is {times:,.0f} times the published value, off by more than {100 * claim.rel:.4g} %"
    return _beyond(100 * (ours - published) / abs(published), 100 * claim.rel, " %")


def _beyond(off: float, tolerance: float, unit: str) -> str:
    digits = _digits(abs(off), tolerance)
    return f"off by {off:+.{digits}g}{unit}, more than {tolerance:.{digits}g}{unit}"


def _digits(first: float, second: float) -> int:
    """Return the significant digits that tell two numbers apart, at least four."""
    if first == second:
        return 4
    return next((digits for digits in range(4, 17) if f"{first:.{digits}g}" != f"{second:.{digits}g}"), 17)


def within(ours: Row, published: Row, claim: "Within") -> Comparison:
    """Compare a value with a published value; the reason says if only its interval reaches the tolerance."""
    if _inside(ours.value, published.value, claim):
        return _comparison(ours, published, Verdict.AGREES, "")
    (low, high), reason = ours.interval, _outside(ours.value, published.value, claim)
    if ours.spread_known and _inside(min(max(published.value, low), high), published.value, claim):
        reason += f"; our interval {low:.4g} to {high:.4g} reaches the tolerance"
    return _comparison(ours, published, Verdict.DISAGREES, reason)


def bounded(ours: Row, asked: Row, claim: "Bound") -> Comparison:
    """Compare a value and its interval with a bound."""
    (low, high), limit = ours.interval, asked.value
    words = f"at most {limit:.10g}" if claim.at_least is None else f"at least {limit:.10g}"
    keeps, misses = (high <= limit, low > limit) if claim.at_least is None else (low >= limit, high < limit)
    if not math.isfinite(ours.value):
        reason = f"ours is {ours.value:g}; a value that is not finite keeps no bound"
        return _comparison(ours, asked, Verdict.DISAGREES, reason)
    if keeps:
        return _comparison(ours, asked, Verdict.AGREES, "")
    if misses or not ours.spread_known:
        return _comparison(ours, asked, Verdict.DISAGREES, f"ours is {_with_interval(ours, 4)}, not {words}")
    reason = f"ours is {_with_interval(ours, 4)}: {words} is inside the interval, so it is not shown"
    return _comparison(ours, asked, Verdict.NOT_COMPARABLE, reason)


def keys_text(keys: Mapping[str, Key | None]) -> str:
    """Write keys for a reader."""
    return ", ".join(f"{name}={key}" for name, key in keys.items()) or "no keys"


def _comparison(ours: Row, published: Row | None, verdict: Verdict, reason: str) -> Comparison:
    """Put one of our rows beside the published one."""
    return Comparison(
        where=ours.keys,
        published=None if published is None else published.value,
        ours=ours.value,
        unit=ours.unit,
        verdict=verdict,
        reason=reason,
        source="" if published is None else published.source,
        low=ours.low,
        high=ours.high,
    )


def missing(where: Mapping[str, Key | None], unit: str, published: Row | None = None) -> Comparison:
    """Say that a value of ours is missing."""
    value, source = (None, "") if published is None else (published.value, published.source)
    reason = f"no value of ours for {keys_text(where)}" if where else "no value of ours"
    verdict = Verdict.NOT_RUN
    return Comparison(where=where, published=value, ours=None, unit=unit, source=source, verdict=verdict, reason=reason)


def listed(claim: "Claim") -> list[tuple[str, Key | None]]:
    """Return the values that lists in `where` require, each with its column."""
    lists = ((name, wanted) for name, wanted in claim.where.items() if isinstance(wanted, (list, tuple)))
    return [(name, canonical(value)) for name, wanted in lists for value in wanted]


def gaps(
    claim: "Claim", ours: Sequence[Row], published: Sequence[Row], compared: Iterable[Comparison]
) -> list[Comparison]:
    """Return a comparison for each published row or listed value that ours and `compared` both lack."""
    known = [row for row in compared if row.ours is None]
    result: list[Comparison] = []
    asked: list[tuple[Mapping[str, Key | None], Row | None]] = [(row.keys, row) for row in published]
    asked += [({name: key}, None) for name, key in listed(claim)]
    lacking = [(keys, row) for keys, row in asked if not any(matches(our_row, keys) for our_row in ours)]
    for keys, row in lacking:
        if not any(keys.items() <= other.where.items() for other in [*known, *result]):
            result.append(missing(keys, row.unit if row else "", row))
    return result


def numeric(row: Row, claim: "Trend | Crossover") -> float:
    """Return the place of a row along the column of a claim."""
    key = row.keys[claim.along]
    if isinstance(key, str):
        raise ClaimError(f"claim {claim.name!r}: column {claim.along!r} holds {key!r}; it must hold numbers")
    return float(key)


def rising(ordered: Sequence[Row], published: Sequence[Row], claim: "Ordering | Trend") -> list[Comparison]:
    """Compare each row with the one before it; a pair does not count where the cost model was calibrated on both."""
    result: list[Comparison] = []
    before, before_published = None, None
    for row in ordered:
        printed = _published_for(row, published, claim)
        if row.calibrated and (before is None or before.calibrated):
            result.append(replace(_comparison(row, printed, Verdict.NOT_COMPARABLE, CALIBRATED), counts=False))
        else:
            falls = _published_fall(before_published, printed, claim.along)
            verdict, reason = (Verdict.DISAGREES, falls) if falls else _step(before, row, claim.along)
            result.append(_comparison(row, printed, verdict, reason))
        before, before_published = row, printed or before_published
    return result


def _published_for(row: Row, published: Sequence[Row], claim: "Ordering | Trend") -> Row | None:
    fitting = [printed for printed in published if claim.along in printed.keys and matches(row, printed.keys)]
    if len(fitting) > 1:
        count, keys = len(fitting), keys_text(row.keys)
        raise ClaimError(f"claim {claim.name!r}: {count} published rows fit ours with {keys}; say in `where` which")
    if not fitting:
        return None
    claim.same_unit(row, fitting[0])
    return fitting[0]


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
    reason = f"{_expected(before, row, along)}; found {_pair(before, row)}"
    if row.interval[1] < before.interval[0] or not (before.spread_known or row.spread_known):
        return Verdict.DISAGREES, reason
    return Verdict.NOT_COMPARABLE, f"{reason}: the intervals overlap, so neither order is shown"


def _expected(before: Row, now: Row, along: str) -> str:
    lower, upper = before.keys[along], now.keys[along]
    named = isinstance(lower, str) or isinstance(upper, str)
    return f"expected {lower} below {upper}" if named else f"expected less at {lower} than at {upper}"


def _pair(before: Row, now: Row) -> str:
    digits = _digits(before.value, now.value)
    return " and ".join(_with_interval(row, digits) for row in (before, now))


def _with_interval(row: Row, digits: int) -> str:
    low, high = row.interval
    return f"{row.value:.{digits}g}" + (f" ({low:.4g} to {high:.4g})" if row.spread_known else "")


def crossing(rest: Mapping[str, Key], group: Sequence[Row], claim: "Crossover") -> Comparison:
    """Compare the place where two series of a group cross with the published place, without calibrated places."""
    first, second = (
        {numeric(row, claim): row for row in group if matches(row, {claim.series: name})} for name in claim.between
    )
    points = [(place, first[place], second[place]) for place in sorted(first.keys() & second.keys())]
    counted = [(place, a, b) for place, a, b in points if not (a.calibrated or b.calibrated)]
    if len(points) < 2:
        return missing({**rest, claim.along: "at least two places"}, claim.unit)
    place, verdict, reason = None, Verdict.NOT_COMPARABLE, CALIBRATED_SWEEP
    if counts := len(counted) >= 2:
        place, verdict, reason = _judged_crossing(counted, claim)
    return Comparison(
        where=dict(rest),
        published=claim.at,
        ours=place,
        unit=claim.unit,
        verdict=verdict,
        reason=reason,
        source=claim.source,
        counts=counts,
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
    if _inside(places[0], claim.at, claim):
        return places[0], Verdict.AGREES, ""
    return places[0], Verdict.DISAGREES, _outside(places[0], claim.at, claim)


def _apart(a: Row, b: Row) -> bool:
    return a.value != b.value and (a.interval[1] < b.interval[0] or b.interval[1] < a.interval[0])


def _places(differences: Sequence[tuple[float, float]], scale: str) -> list[float]:
    signed = [(place, difference) for place, difference in differences if difference != 0]
    places: list[float] = []
    for (left, before), (right, after) in zip(signed, signed[1:], strict=False):
        if (before < 0) == (after < 0):
            continue
        touching = [place for place, difference in differences if left < place < right]
        share = before / (before - after)
        between = left * (right / left) ** share if scale == "log" else left + (right - left) * share
        places.append(touching[len(touching) // 2] if touching else between)
    return places
