"""The four kinds of claim: a value within a tolerance, an ordering, a trend, a crossover.

Source: the workbench's own rules, stated at each class. Tolerances are fixed before the first run, each with its reason.
Simplified: groups are formed by the key columns a claim does not name; each group has to hold by itself.
Left out: statistical tests; a spread is an interval, and an ordering inside it is not a finding.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from workbench.reproduction.errors import ClaimError
from workbench.reproduction.rows import Key, Row, grouped, matches
from workbench.reproduction.verdicts import Comparison, Verdict

__all__ = ["Claim", "Crossover", "Ordering", "Trend", "Within"]


@dataclass(frozen=True, slots=True)
class Claim:
    """What the paper says about one quantity; see the four kinds."""

    name: str  # the claim in words, unique within its item
    _: KW_ONLY
    quantity: str  # which rows it is about
    because: str  # reason of the tolerance, or of the rule
    where: Mapping[str, Any] = field(default_factory=dict)  # key column to its value, or a list of which any will do
    needs_real_data: bool = False  # a stand-in then gives "not comparable"
    source: str = ""  # where the paper says it
    explanation: str = ""  # shown where the claim disagrees

    def __post_init__(self) -> None:
        for text in ("name", "quantity", "because"):
            value = getattr(self, text)
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"{text} of claim {self.name!r} is {value!r}; it must be a non-empty text")
        if not isinstance(self.where, Mapping):
            raise ValueError(f"where of claim {self.name!r} is {self.where!r}; it must be a dictionary of key columns")

    def compare(self, ours: Sequence[Row], published: Sequence[Row]) -> tuple[Comparison, ...]:
        """Compare row by row; implemented by each kind."""
        raise NotImplementedError

    def select(self, ours: Sequence[Row], published: Sequence[Row]) -> tuple[list[Row], list[Row]]:
        """Return our rows and the published rows of the quantity that fit `where`.

        Ours must have every column of `where`; a published table may lack one that only ours needs.
        """
        mine, theirs = ([row for row in rows if row.quantity == self.quantity] for rows in (ours, published))
        their_columns = {name for row in theirs for name in row.keys}
        known = their_columns | {name for row in mine for name in row.keys}
        if known and (strange := set(self.where) - known):
            raise ClaimError(
                f"claim {self.name!r}: where names {sorted(strange)}; the columns of {self.quantity!r} are {sorted(known)}"
            )
        return (
            [row for row in mine if matches(row, self.where)],
            [row for row in theirs if matches(row, self.where, their_columns)],
        )

    def same_unit(self, ours: Row, published: Row) -> None:
        """Raise ClaimError unless both rows are in one unit."""
        if ours.unit != published.unit:
            raise ClaimError(f"claim {self.name!r}: {self.quantity!r} is published in {published.unit!r} and ours is in {ours.unit!r}; write both in one unit")


@dataclass(frozen=True, slots=True)
class Within(Claim):
    """Ours lies within a tolerance of the published value: |ours - published| <= rel * |published|, or <= abs."""

    _: KW_ONLY
    rel: float | None = None  # tolerance as a share of the published value
    abs: float | None = None  # tolerance in the unit of the row

    def __post_init__(self) -> None:
        Claim.__post_init__(self)
        _check_tolerance(self)

    def compare(self, ours: Sequence[Row], published: Sequence[Row]) -> tuple[Comparison, ...]:
        """Compare each published row of the quantity with the one of ours that has all its keys."""
        candidates, theirs = self.select(ours, published)
        return tuple(self._one(row, candidates) for row in theirs)

    def _one(self, published: Row, candidates: Sequence[Row]) -> Comparison:
        found = [row for row in candidates if matches(row, published.keys)]
        if not found:
            return Comparison(
                where=published.keys, published=published.value, ours=None, unit=published.unit, source=published.source,
                verdict=Verdict.NOT_RUN, reason=f"no value of ours for {_told(published.keys)}",
            )  # fmt: skip
        if len(found) > 1:
            more = sorted({name for row in found for name in row.keys} - set(published.keys))
            raise ClaimError(f"claim {self.name!r}: {len(found)} of our rows fit the published one with {_told(published.keys)}; say in `where` which {', '.join(more)}")
        self.same_unit(found[0], published)
        agrees = _inside(found[0].value, published.value, self)
        reason = "" if agrees else _outside(found[0].value, published.value, self)
        return _comparison(found[0], published, Verdict.AGREES if agrees else Verdict.DISAGREES, reason)


@dataclass(frozen=True, slots=True)
class Ordering(Claim):
    """Values rise strictly in the given order of one key column, in every group of the other columns."""

    _: KW_ONLY
    along: str  # the key column that is ordered
    order: Sequence[Key]  # its values, from the smallest value of the quantity to the largest

    def __post_init__(self) -> None:
        Claim.__post_init__(self)
        if not isinstance(self.order, (list, tuple)) or len(self.order) < 2 or len(set(self.order)) < len(self.order):
            raise ValueError(f"order of claim {self.name!r} is {self.order!r}; it must list at least two different values")

    def compare(self, ours: Sequence[Row], published: Sequence[Row]) -> tuple[Comparison, ...]:
        """Compare each row with the one before it in the order."""
        rows, theirs = self.select(ours, published)
        result: list[Comparison] = []
        for rest, group in grouped(rows, {self.along}):
            ordered = [[row for row in group if matches(row, {self.along: key})] for key in self.order]
            missing = [key for key, found in zip(self.order, ordered, strict=True) if not found]
            result += [_missing({**rest, self.along: key}, group[0].unit) for key in missing]
            result += _rising([found[0] for found in ordered if found], theirs, self)
        return tuple(result)


@dataclass(frozen=True, slots=True)
class Trend(Claim):
    """Values rise (or fall) strictly from each value of a numeric key column to the next, in every group of the others."""

    _: KW_ONLY
    along: str  # the numeric key column
    direction: str  # "increasing" or "decreasing"

    def __post_init__(self) -> None:
        Claim.__post_init__(self)
        if self.direction not in ("increasing", "decreasing"):
            raise ValueError(f"direction of claim {self.name!r} is {self.direction!r}; it must be 'increasing' or 'decreasing'")

    def compare(self, ours: Sequence[Row], published: Sequence[Row]) -> tuple[Comparison, ...]:
        """Compare each row with the one before it along the column."""
        rows, theirs = self.select(ours, published)
        result: list[Comparison] = []
        for rest, group in grouped([row for row in rows if self.along in row.keys], {self.along}):
            ordered = sorted(group, key=lambda row: _numeric(row, self), reverse=self.direction == "decreasing")
            if len(ordered) < 2:
                result.append(_missing({**rest, self.along: "a second value"}, group[0].unit))
            result += _rising(ordered, theirs, self)
        return tuple(result)


@dataclass(frozen=True, slots=True)
class Crossover(Claim):
    """Two series change places exactly once along a numeric key column, within a tolerance of the published place.

    The place is found by linear interpolation of the difference between the two neighbouring points, along the
    column itself or (`scale="log"`) along its logarithm.
    """

    _: KW_ONLY
    between: tuple[Key, Key]  # the two series
    series: str  # the key column that names them
    along: str  # the numeric key column
    at: float  # where they cross, in the unit of the column
    smaller_before: Key | None = None  # which of the two is the smaller below the crossing; None: either
    scale: str = "linear"  # "linear" or "log"
    unit: str = ""  # unit of the column
    rel: float | None = None  # tolerance as a share of `at`
    abs: float | None = None  # tolerance in the unit of the column

    def __post_init__(self) -> None:
        Claim.__post_init__(self)
        _check_tolerance(self)
        if not isinstance(self.between, (tuple, list)) or len(set(self.between)) != 2:
            raise ValueError(f"between of claim {self.name!r} is {self.between!r}; it must name two different series")
        if self.smaller_before is not None and self.smaller_before not in self.between:
            raise ValueError(f"smaller_before of claim {self.name!r} is {self.smaller_before!r}; it must be one of {self.between!r}")
        if self.scale not in ("linear", "log"):
            raise ValueError(f"scale of claim {self.name!r} is {self.scale!r}; it must be 'linear' or 'log'")
        if not math.isfinite(self.at) or (self.scale == "log" and self.at <= 0):
            raise ValueError(f"at of claim {self.name!r} is {self.at!r}; it must be finite, and positive on a log scale")

    def compare(self, ours: Sequence[Row], published: Sequence[Row]) -> tuple[Comparison, ...]:
        """Find the crossing of every group and compare it with the published one."""
        rows = [row for row in self.select(ours, published)[0] if self.along in row.keys]
        groups = grouped(rows, {self.along, self.series})
        return tuple(_crossing(rest, group, self) for rest, group in groups)


def _check_tolerance(claim: Within | Crossover) -> None:
    given = [value for value in (claim.rel, claim.abs) if value is not None]
    if len(given) != 1:
        raise ValueError(f"rel, abs of claim {claim.name!r} are {claim.rel!r}, {claim.abs!r}; give exactly one")
    if isinstance(given[0], bool) or not isinstance(given[0], (int, float)) or not math.isfinite(given[0]) or given[0] < 0:
        raise ValueError(f"tolerance of claim {claim.name!r} is {given[0]!r}; it must be a finite number, zero or more")


def _inside(ours: float, published: float, claim: Within | Crossover) -> bool:
    if not (math.isfinite(ours) and math.isfinite(published)):
        return False
    return abs(ours - published) <= (claim.abs if claim.rel is None else claim.rel * abs(published))


def _outside(ours: float, published: float, claim: Within | Crossover) -> str:
    if not (math.isfinite(ours) and math.isfinite(published)):
        return f"ours is {ours:g}, published {published:g}; a value that is not finite agrees with nothing"
    if claim.rel is None:
        return f"off by {ours - published:+.4g}, more than {claim.abs:g}"
    if published == 0:
        return f"ours is {ours:g} where the published value is 0"
    return f"off by {(ours - published) / abs(published):+.2%}, more than {claim.rel:.2%}"


def _told(keys: Mapping[str, Key]) -> str:
    return ", ".join(f"{name}={key}" for name, key in keys.items()) or "no keys"


def _comparison(ours: Row, published: Row | None, verdict: Verdict, reason: str) -> Comparison:
    return Comparison(
        where=ours.keys, published=None if published is None else published.value, ours=ours.value, unit=ours.unit,
        source="" if published is None else published.source, low=ours.low, high=ours.high, verdict=verdict, reason=reason,
    )  # fmt: skip


def _missing(where: Mapping[str, Key], unit: str) -> Comparison:
    return Comparison(where=where, published=None, ours=None, unit=unit, verdict=Verdict.NOT_RUN, reason=f"no value of ours for {_told(where)}")


def _numeric(row: Row, claim: Trend | Crossover) -> float:
    key = row.keys[claim.along]
    if isinstance(key, str):
        raise ClaimError(f"claim {claim.name!r}: column {claim.along!r} holds {key!r}; it must hold numbers")
    return float(key)


def _rising(ordered: Sequence[Row], published: Sequence[Row], claim: Ordering | Trend) -> list[Comparison]:
    result: list[Comparison] = []
    before: tuple[Row, Row | None] | None = None
    for row in ordered:
        theirs = _published_for(row, published, claim)
        verdict, reason = _step(before, (row, theirs), claim.along)
        result.append(_comparison(row, theirs, verdict, reason))
        before = (row, theirs)
    return result


def _published_for(row: Row, published: Sequence[Row], claim: Ordering | Trend) -> Row | None:
    found = [theirs for theirs in published if claim.along in theirs.keys and matches(row, theirs.keys)]
    if len(found) != 1:
        return None
    claim.same_unit(row, found[0])
    return found[0]


def _step(before: tuple[Row, Row | None] | None, now: tuple[Row, Row | None], along: str) -> tuple[Verdict, str]:
    row, theirs = now
    if not math.isfinite(row.value):
        return Verdict.DISAGREES, f"ours is {row.value:g}; a value that is not finite agrees with nothing"
    if before is None:
        return Verdict.AGREES, ""
    smaller, their_smaller = before
    names = f"{smaller.keys[along]} ({smaller.value:.6g}) and {row.keys[along]} ({row.value:.6g})"
    if their_smaller is not None and theirs is not None and not their_smaller.value < theirs.value:
        return Verdict.DISAGREES, f"the published values themselves do not rise from {smaller.keys[along]} ({their_smaller.value:.6g}) to {row.keys[along]} ({theirs.value:.6g})"
    if smaller.unit != row.unit:
        raise ClaimError(f"{names} are in different units, {smaller.unit!r} and {row.unit!r}")
    if smaller.interval[1] < row.interval[0]:
        return Verdict.AGREES, ""
    if row.interval[1] < smaller.interval[0] or not (smaller.spread_known or row.spread_known):
        return Verdict.DISAGREES, f"{names} do not rise"
    return Verdict.NOT_COMPARABLE, f"{names} lie within each other's spread: not a finding"


def _crossing(rest: Mapping[str, Key], group: Sequence[Row], claim: Crossover) -> Comparison:
    first, second = ({_numeric(row, claim): row for row in group if matches(row, {claim.series: name})} for name in claim.between)
    points = [(place, first[place], second[place]) for place in sorted(first.keys() & second.keys())]
    if len(points) < 2:
        return _missing({**rest, claim.along: "at least two places"}, claim.unit)
    base = {"where": dict(rest), "published": claim.at, "unit": claim.unit, "source": claim.source}
    if any(not math.isfinite(row.value) for _, *pair in points for row in pair):
        return Comparison(**base, ours=None, verdict=Verdict.DISAGREES, reason="a value that is not finite agrees with nothing")
    if not all(_apart(*points[end][1:]) for end in (0, -1)):
        return Comparison(**base, ours=None, verdict=Verdict.NOT_COMPARABLE, reason="at an end of the sweep the two series lie within each other's spread")
    places = _places([(place, a.value - b.value) for place, a, b in points], claim.scale)
    if len(places) != 1:
        return Comparison(**base, ours=None, verdict=Verdict.DISAGREES, reason=f"the series cross {len(places)} times between {points[0][0]:g} and {points[-1][0]:g}")
    smaller = claim.between[0] if points[0][1].value < points[0][2].value else claim.between[1]
    if claim.smaller_before is not None and smaller != claim.smaller_before:
        return Comparison(**base, ours=places[0], verdict=Verdict.DISAGREES, reason=f"{smaller} is the smaller before the crossing, not {claim.smaller_before}")
    agrees = _inside(places[0], claim.at, claim)
    return Comparison(**base, ours=places[0], verdict=Verdict.AGREES if agrees else Verdict.DISAGREES, reason="" if agrees else _outside(places[0], claim.at, claim))


def _apart(a: Row, b: Row) -> bool:
    return a.value != b.value and (a.interval[1] < b.interval[0] or b.interval[1] < a.interval[0])


def _places(differences: Sequence[tuple[float, float]], scale: str) -> list[float]:
    signed = [(place, difference) for place, difference in differences if difference != 0]
    found: list[float] = []
    for (left, before), (right, after) in zip(signed, signed[1:], strict=False):
        if (before < 0) == (after < 0):
            continue
        touching = [place for place, difference in differences if left < place < right]
        found.append(touching[len(touching) // 2] if touching else _between(left, right, before / (before - after), scale))
    return found


def _between(left: float, right: float, share: float, scale: str) -> float:
    return left * (right / left) ** share if scale == "log" else left + (right - left) * share
