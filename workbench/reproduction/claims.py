"""The five kinds of claim: a value within a tolerance, a bound, an ordering, a trend, a crossover.

The key columns that a claim does not name form groups, and the claim has to hold in every group. A missing value of
ours is "not run" where a row is published or where `where` or an order lists it: missing values never make a claim
agree.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import StrEnum
from typing import Any

from workbench.reproduction import comparing
from workbench.reproduction.comparing import Comparison
from workbench.reproduction.errors import ClaimError
from workbench.rows import Key, Row, canonical, grouped, matches

__all__ = ["Bound", "Claim", "Crossover", "Decidable", "Ordering", "Trend", "Whose", "Within"]


class Whose(StrEnum):
    """Who makes a claim; a technique's score counts the paper's alone."""

    PAPER = "paper"
    OURS = "ours"  # a promise of this project
    CONSTRUCTION = "construction"  # a check of the program, true by construction or fitted to the value it is judged by


@dataclass(frozen=True, kw_only=True, slots=True)
class Decidable:
    """When trainings can decide a claim: not at chance, not after too few steps, not within a score's error.

    Scores, losses and steps are rows as `workbench.study.training` builds them.
    """

    baseline: Mapping[str, Key | None]  # key columns of the baseline's rows; None if they lack the column
    num_tested: int  # examples behind a score
    score: str = "score"  # quantity of the score, in per cent
    by_accuracy: bool = False  # accuracy decides on chance: a constant answer has a high F1
    where: Mapping[str, Any] = field(default_factory=dict)  # scores that decide, if the claim names none
    least_steps: int = 0  # baseline steps before which a loss mostly shows unfinished learning
    learns_after: int = 0  # steps before which a variant at chance may still learn later
    steps_of: str = ""  # data source for which both numbers of steps hold
    contrast: Mapping[str, Key] = field(default_factory=dict)  # variant that should lose more than a bound allows
    printed: Mapping[str, float] = field(default_factory=dict)  # the paper's value by setting, if we have one setting

    def __post_init__(self) -> None:
        if not self.baseline:
            raise ValueError(f"baseline is {self.baseline!r}; it must name the key columns of the baseline's rows")
        if self.num_tested < 1:
            raise ValueError(f"num_tested is {self.num_tested!r}; it must be at least 1")
        if (self.least_steps or self.learns_after) and not self.steps_of:
            raise ValueError(f"steps_of is {self.steps_of!r}; it must name the data source of these steps")


@dataclass(frozen=True, slots=True)
class Claim(ABC):
    """A statement about one quantity; see the kinds of claim below."""

    name: str  # the claim in words, unique within its item
    _: KW_ONLY
    quantity: str  # the rows that it judges
    because: str  # reason of the tolerance, or of the rule
    where: Mapping[str, Any] = field(default_factory=dict)  # column to a value or a list of values, each required
    needs_real_data: bool = False  # stand-in data then gives "not comparable"
    source: str = ""  # where the paper says it
    explanation: str = ""  # shown beside every verdict
    whose: Whose = Whose.PAPER
    changed: str = ""  # change of the rule after results were seen, and its reason; "" if none
    repeats: str = ""  # id of another item that judges it by the same trainings; the score counts it there
    erratum: str = ""  # the two places where the paper contradicts itself, if this claim shows it
    neutral: float | None = None  # value of a technique that does nothing; only the audit uses it
    insensitive: str = ""  # why no falsified result can change the verdict, if so; see `audit`
    any_regime: str = ""  # why it holds in any regime, if so; see `regimes`
    decidable: Decidable | None = None  # for claims about trainings: when they can decide

    def __post_init__(self) -> None:
        for text in ("name", "quantity", "because"):
            value = getattr(self, text)
            self.require(text, isinstance(value, str) and bool(value.strip()), "be a non-empty text")
        self.require("where", isinstance(self.where, Mapping), "be a dictionary of key columns")
        self.require("whose", isinstance(self.whose, Whose), "be Whose.PAPER, Whose.OURS or Whose.CONSTRUCTION")

    def require(self, field: str, holds: bool, rule: str) -> None:
        """Raise ValueError unless a rule on a field holds."""
        if not holds:
            raise ValueError(f"{field} of claim {self.name!r} is {getattr(self, field)!r}; it must {rule}")

    def require_one(self, *fields: str) -> str:
        """Return the name of the only field that is set; raise ValueError if none or several are."""
        given = [field for field in fields if getattr(self, field) is not None]
        if len(given) != 1:
            values = ", ".join(repr(getattr(self, field)) for field in fields)
            raise ValueError(f"{', '.join(fields)} of claim {self.name!r} are {values}; give exactly one")
        return given[0]

    @abstractmethod
    def compare(self, ours: Sequence[Row], published: Sequence[Row]) -> tuple[Comparison, ...]:
        """Compare row by row; implemented by each kind."""

    def select(self, ours: Sequence[Row], published: Sequence[Row]) -> tuple[list[Row], list[Row]]:
        """Return our rows and the published rows that fit `where`; published rows may lack its columns."""
        ours, published = ([row for row in rows if row.quantity == self.quantity] for rows in (ours, published))
        columns = {name for row in published for name in row.keys}
        known = columns | {name for row in ours for name in row.keys}
        if ours and (strange := set(self.where) - known):  # without rows of ours their columns are unknown
            raise ClaimError(
                f"claim {self.name!r}: where names {sorted(strange)}; "
                f"the columns of {self.quantity!r} are {sorted(known)}"
            )
        return (
            [row for row in ours if matches(row, self.where)],
            [row for row in published if matches(row, self.where, columns)],
        )

    def same_unit(self, ours: Row, published: Row) -> None:
        """Raise ClaimError unless both rows are in one unit."""
        if ours.unit != published.unit:
            raise ClaimError(
                f"claim {self.name!r}: {self.quantity!r} is published in {published.unit!r} "
                f"and ours is in {ours.unit!r}; write both in one unit"
            )


@dataclass(frozen=True, slots=True)
class Within(Claim):
    """Ours lies within a tolerance of the published value: |ours - published| <= rel * |published|, or <= abs.

    `no_effect` is the value of a technique that does nothing, such as 1 for a speedup. The effect is then judged, not
    the ratio that contains it: |ours - published| <= rel * |published - no_effect|.
    Where the paper prints no number and its definition implies one, `expected` takes the place of the published rows:
    every row of ours that fits `where` is compared with it, and `source` says why it is expected.
    """

    _: KW_ONLY
    rel: float | None = None  # tolerance as a share of the published value
    abs: float | None = None  # tolerance in the unit of the row
    no_effect: float = 0.0  # in the unit of the row
    expected: float | None = None  # value implied by the paper's definition, in the unit of our rows
    pick: str = ""  # "largest" or "least" for a claim "up to": that row of ours alone is compared with `expected`

    def __post_init__(self) -> None:
        Claim.__post_init__(self)
        _check_tolerance(self)
        self.require("pick", not self.pick or self.expected is not None, "be left out without an expected value")
        self.require("no_effect", self.no_effect == 0 or self.rel is not None, "be left out where abs is the tolerance")
        if self.expected is None:
            return
        _check_by_definition(self, "expected")
        if self.expected == 0 and self.rel is not None:
            raise ValueError(f"expected of claim {self.name!r} is 0, of which rel is no tolerance; give abs")

    def compare(self, ours: Sequence[Row], published: Sequence[Row]) -> tuple[Comparison, ...]:
        """Compare each published row of the quantity with our row that has all its keys."""
        if self.expected is not None:
            rows, _ = self.select(ours, ())
            implied = Row(quantity=self.quantity, value=self.expected, unit="", source=self.source)
            picked = rows
            if self.pick and rows:
                picked = [(max if self.pick == "largest" else min)(rows, key=lambda row: row.value)]
            compared = [comparing.within(row, implied, self) for row in picked]
            return _beside_definition(self, rows, self.expected, compared)
        candidates, printed = self.select(ours, published)
        columns = {name for row in printed for name in row.keys}
        for name, key in comparing.listed(self):
            if not any(matches(row, {name: key}) for row in printed) and (name in columns or not printed):
                raise ClaimError(
                    f"claim {self.name!r}: where lists {name}={key!r}, and no published row of {self.quantity!r} has it"
                )
        compared = [self._one(row, candidates) for row in printed]
        return (*compared, *comparing.gaps(self, candidates, (), compared))

    def _one(self, published: Row, candidates: Sequence[Row]) -> Comparison:
        fitting = [row for row in candidates if matches(row, published.keys)]
        if not fitting:
            return comparing.missing(published.keys, published.unit, published)
        if len(fitting) > 1:
            more = sorted({name for row in fitting for name in row.keys} - set(published.keys))
            raise ClaimError(
                f"claim {self.name!r}: {len(fitting)} of our rows fit the published one with "
                f"{comparing.keys_text(published.keys)}; say in `where` which {', '.join(more)}"
            )
        self.same_unit(fitting[0], published)
        return comparing.within(fitting[0], published, self)


@dataclass(frozen=True, slots=True)
class Bound(Claim):
    """Every value of ours, with its whole interval if known, is at most or at least the bound.

    An interval that contains the bound leaves the claim undecided. `source` says where the bound comes from.
    """

    _: KW_ONLY
    at_most: float | None = None  # in the unit of our rows
    at_least: float | None = None

    def __post_init__(self) -> None:
        Claim.__post_init__(self)
        _check_by_definition(self, self.require_one("at_most", "at_least"))

    @property
    def limit(self) -> float:
        """The bound."""
        limit = self.at_most if self.at_least is None else self.at_least
        assert limit is not None  # exactly one is given
        return limit

    def compare(self, ours: Sequence[Row], published: Sequence[Row]) -> tuple[Comparison, ...]:
        """Compare each of our rows with the bound, in place of a published row."""
        ours = self.select(ours, ())[0]
        asked = Row(quantity=self.quantity, value=self.limit, unit="", source=self.source)
        return _beside_definition(self, ours, self.limit, [comparing.bounded(row, asked, self) for row in ours])


@dataclass(frozen=True, slots=True)
class Ordering(Claim):
    """Values rise strictly in a given order of one key column, in every group of the other columns."""

    _: KW_ONLY
    along: str  # the key column that is ordered
    order: Sequence[Key]  # its values, from the smallest value of the quantity to the largest

    def __post_init__(self) -> None:
        Claim.__post_init__(self)
        is_order = isinstance(self.order, (list, tuple)) and len(self.order) == len(set(self.order)) >= 2
        self.require("order", is_order, "list at least two different values")

    def compare(self, ours: Sequence[Row], published: Sequence[Row]) -> tuple[Comparison, ...]:
        """Compare each row with the one before it in the order."""
        rows, printed = self.select(ours, published)
        result: list[Comparison] = []
        for rest, group in grouped(rows, {self.along}):
            ordered = [[row for row in group if matches(row, {self.along: key})] for key in self.order]
            absent = [key for key, fitting in zip(self.order, ordered, strict=True) if not fitting]
            result += [comparing.missing({**rest, self.along: canonical(key)}, group[0].unit) for key in absent]
            result += comparing.rising([fitting[0] for fitting in ordered if fitting], printed, self)
        needed = [row for row in printed if matches(row, {self.along: self.order})]
        return (*result, *comparing.gaps(self, rows, needed, result))


@dataclass(frozen=True, slots=True)
class Trend(Claim):
    """Values rise (or fall) strictly along a numeric key column, in every group of the other columns."""

    _: KW_ONLY
    along: str  # the numeric key column
    direction: str  # "increasing" or "decreasing"

    def __post_init__(self) -> None:
        Claim.__post_init__(self)
        is_known = self.direction in ("increasing", "decreasing")
        self.require("direction", is_known, "be 'increasing' or 'decreasing'")

    def compare(self, ours: Sequence[Row], published: Sequence[Row]) -> tuple[Comparison, ...]:
        """Compare each row with the one before it along the column."""
        rows, printed = self.select(ours, published)
        result: list[Comparison] = []
        for rest, group in grouped([row for row in rows if self.along in row.keys], {self.along}):
            ordered = sorted(
                group, key=lambda row: comparing.numeric(row, self), reverse=self.direction == "decreasing"
            )
            if len(ordered) < 2:
                result.append(comparing.missing({**rest, self.along: "a second value"}, group[0].unit))
            result += comparing.rising(ordered, printed, self)
        return (*result, *comparing.gaps(self, rows, [row for row in printed if self.along in row.keys], result))


@dataclass(frozen=True, slots=True)
class Crossover(Claim):
    """Two series change places exactly once along a numeric key column, within a tolerance of the published place.

    The place is found by linear interpolation of the difference between the two neighbouring points, along the
    column itself or (`scale="log"`) along its logarithm. Points that a cost model was calibrated on are passed over.
    """

    _: KW_ONLY
    between: tuple[Key, Key]  # the two series
    series: str  # the key column that names them
    along: str  # the numeric key column
    at: float  # where they cross, in the unit of the column
    smaller_before: Key | None = None  # the smaller series below the crossing; None for either
    scale: str = "linear"  # "linear" or "log"
    unit: str = ""  # unit of the column
    rel: float | None = None  # tolerance as a share of `at`
    abs: float | None = None  # tolerance in the unit of the column

    def __post_init__(self) -> None:
        Claim.__post_init__(self)
        _check_tolerance(self)
        is_pair = isinstance(self.between, (tuple, list)) and len(set(self.between)) == 2
        self.require("between", is_pair, "name two different series")
        self.require("smaller_before", self.smaller_before in (None, *self.between), f"be one of {self.between!r}")
        self.require("scale", self.scale in ("linear", "log"), "be 'linear' or 'log'")
        is_place = math.isfinite(self.at) and (self.scale == "linear" or self.at > 0)
        self.require("at", is_place, "be finite, and positive on a log scale")

    def compare(self, ours: Sequence[Row], published: Sequence[Row]) -> tuple[Comparison, ...]:
        """Find the crossing of every group and compare it with the published one."""
        rows = [row for row in self.select(ours, published)[0] if self.along in row.keys]
        crossings = [comparing.crossing(rest, group, self) for rest, group in grouped(rows, {self.along, self.series})]
        return (*crossings, *comparing.gaps(self, rows, (), crossings))


def _beside_definition(
    claim: Within | Bound, ours: Sequence[Row], value: float, rows: Sequence[Comparison]
) -> tuple[Comparison, ...]:
    """Add missing rows to comparisons with a value that no table prints, and mark them all as such."""
    rows = [*rows, *(replace(gap, published=value, source=claim.source) for gap in comparing.gaps(claim, ours, (), ()))]
    single = {name: canonical(key) for name, key in claim.where.items() if not isinstance(key, (list, tuple))}
    implied = Row(quantity=claim.quantity, value=value, unit="", source=claim.source)
    return tuple(replace(row, by_definition=True) for row in rows or [comparing.missing(single, "", implied)])


def _check_tolerance(claim: Within | Crossover) -> None:
    field = claim.require_one("rel", "abs")
    tolerance = getattr(claim, field)
    claim.require(field, _is_finite(tolerance) and tolerance >= 0, "be a finite number, zero or more")


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _check_by_definition(claim: Within | Bound, field: str) -> None:
    claim.require(field, _is_finite(getattr(claim, field)), "be a finite number")
    claim.require("source", bool(claim.source.strip()), "say why this is expected")
