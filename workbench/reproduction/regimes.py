"""The regime of an item: the few ratios that decide its claims, the paper's value of each, and ours from the record.

A row of regimes.csv is one ratio. Outside the paper's range by more than the stated factor, a claim of the paper is not
comparable, whatever it would have said; nor is it where the record does not hold the ratio.
"""

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workbench.reproduction.claims import Claim, Ordering, Whose
from workbench.reproduction.claims_table import NUMBER, read_table, read_where
from workbench.reproduction.comparing import Comparison, Verdict
from workbench.reproduction.errors import CatalogueError, ClaimError
from workbench.rows import Row, canonical, matches

__all__ = ["Formula", "Placed", "Regime", "place", "read_formula", "read_regimes", "withdraw"]

FILE = "regimes.csv"
NEEDED = ("item", "ratio", "ours", "paper", "factor", "where", "decides", "source", "because")
TERM = re.compile(r"(spread of )?(\w+)(?: \((.+)\))?")
RANGE = re.compile(rf"(>= |<= )?({NUMBER})(?: to ({NUMBER}))?")
FORMS = "'quantity (column=value; column=value)', two of them with ' / ' between, '1 - ' before, or 'spread of ' one"


@dataclass(frozen=True, kw_only=True, slots=True)
class Term:
    """One recorded value."""

    quantity: str
    where: Mapping[str, Any]  # columns that pick its row
    is_spread: bool  # the width of its interval, in place of its value

    def value(self, rows: Sequence[Row]) -> float | None:
        """Return the value of the only row that fits, its seeds merged; None where no row does."""
        fitting = [row for row in rows if row.quantity == self.quantity and matches(row, self.where)]
        if len(fitting) > 1:
            keys = [dict(row.keys) for row in fitting[:2]]
            raise ClaimError(f"{len(fitting)} rows of {self.quantity!r} fit {dict(self.where)}, such as {keys}")
        if not fitting or (self.is_spread and fitting[0].seed is not None):  # of one seed no spread is known
            return None
        low, high = fitting[0].interval
        return high - low if self.is_spread else fitting[0].value


@dataclass(frozen=True, kw_only=True, slots=True)
class Formula:
    """A recorded value, a quotient of two, or what either lacks to 1."""

    text: str
    terms: Sequence[Term]  # one, or numerator and denominator
    is_rest: bool  # whether it is 1 minus that

    def value(self, rows: Sequence[Row]) -> float | None:
        """Compute it from recorded rows; None where one of its values is not recorded, or the denominator is 0."""
        first, *second = [term.value(rows) for term in self.terms]
        if first is None or None in second or second == [0]:
            return None
        quotient = first / second[0] if second and second[0] is not None else first
        return 1 - quotient if self.is_rest else quotient


def read_formula(text: str) -> Formula:
    """Read "1 - samples_per_s (scheme=FP32) / samples_per_s (scheme=Upper Bound)" and its shorter forms."""
    matched = [TERM.fullmatch(part) for part in text.removeprefix("1 - ").split(" / ")]
    terms = [
        Term(quantity=match[2], where=read_where(match[3] or ""), is_spread=bool(match[1]))
        for match in matched
        if match
    ]
    if len(terms) != len(matched) or len(terms) > 2:
        raise ValueError(f"{text!r} cannot be read; it must be {FORMS}")
    return Formula(text=text, terms=terms, is_rest=text.startswith("1 - "))


@dataclass(frozen=True, kw_only=True, slots=True)
class Regime:
    """One ratio that decides claims of an item."""

    ratio: str  # the words that people read
    ours: Formula
    paper: str  # the paper's value or range, as it is written in the table
    low: float | None  # ends of that range; None where it is open
    high: float | None
    factor: float  # how far outside the range still counts as inside, 1 or more
    where: Mapping[str, Any]  # comparisons that it decides, such as model=ugatit; all where it is empty
    decides: Sequence[str]  # quantities whose claims it decides; all where it is empty
    source: str  # place in the paper or the release
    because: str  # why this ratio, range and factor
    line: str  # file and line
    off: float | None = None  # the ratio with the technique switched off; None where it does not depend on it

    def place(self, rows: Sequence[Row]) -> "Placed":
        """Put our value beside the paper's."""
        try:
            return Placed(regime=self, ours=self.ours.value(rows))
        except ClaimError as error:
            raise ClaimError(f"{self.line}: {error}") from None

    def covers(self, claim: Claim, where: Mapping[str, Any]) -> bool:
        """Say whether it decides one comparison of a claim; a column that neither names does not exclude it."""
        if claim.whose is not Whose.PAPER or claim.any_regime or (self.decides and claim.quantity not in self.decides):
            return False
        known = {**{name: key for name, key in claim.where.items() if not isinstance(key, (list, tuple))}, **where}
        if isinstance(claim, Ordering) and self.where.get(claim.along) in claim.order:
            known.pop(claim.along, None)  # both values of a comparison are in the order
        row = Row(quantity=claim.quantity, value=0.0, unit="", keys={n: canonical(k) or "" for n, k in known.items()})
        return matches(row, self.where, known)


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """A regime with our value."""

    regime: Regime
    ours: float | None  # None where the record does not hold it

    @property
    def is_outside(self) -> bool:
        """Whether ours is outside the paper's range by more than the factor."""
        low, high, factor = self.regime.low, self.regime.high, self.regime.factor
        if self.ours is None:
            return False
        return (low is not None and self.ours < low / factor) or (high is not None and self.ours > high * factor)

    @property
    def word(self) -> str:
        """The verdict of the table of regimes."""
        return "not recorded" if self.ours is None else "outside" if self.is_outside else "inside"

    @property
    def reason(self) -> str:
        """Both numbers, for a comparison that it withdraws."""
        if self.ours is None:
            return f"the record does not hold its regime: {self.regime.ratio}, {self.regime.paper} in the paper"
        place = f"{self.regime.source}; up to {self.regime.factor:g} times off counts"
        return (
            f"another regime: {self.regime.ratio} is {self.ours:.3g} here, {self.regime.paper} in the paper ({place})"
        )

    def moved(self) -> "Placed":
        """Return it with our value moved out of the paper's range; the audit of claims uses it."""
        low, high, factor = self.regime.low, self.regime.high, self.regime.factor
        return replace(self, ours=low / (2 * factor) if low is not None else 2 * factor * (high or 0.0))

    def switched_off(self) -> "Placed":
        """Return it with our value as it is when the technique does nothing; the audit of claims uses it."""
        return replace(self, ours=self.regime.off)


def place(regimes: Sequence[Regime], rows: Sequence[Row]) -> tuple[Placed, ...]:
    """Put our value beside each regime; `rows` have their seeds merged."""
    return tuple(regime.place(rows) for regime in regimes)


def withdraw(claim: Claim, compared: Sequence[Comparison], placed: Sequence[Placed]) -> list[Comparison]:
    """Make the comparisons of a claim not comparable where one of its regimes is outside the paper's range, or unknown.

    Where one is outside, its numbers are the reason.
    """
    result = []
    for row in compared:
        unfit = [ratio for ratio in placed if (ratio.is_outside or ratio.ours is None)]
        unfit = [ratio for ratio in unfit if ratio.regime.covers(claim, row.where)]
        if unfit and row.verdict is not Verdict.NOT_RUN:
            first = min(unfit, key=lambda ratio: ratio.ours is None)
            row = replace(row, verdict=Verdict.NOT_COMPARABLE, reason=first.reason)
        result.append(row)
    return result


def read_regimes(folder: Path, items: Iterable[str]) -> dict[str, list[Regime]]:
    """Return the regimes of a technique's folder by item and evidence; nothing where it has no regimes.csv.

    Args:
        folder: reproductions/<technique>.
        items: its items with their evidence, such as "table-2/measured". A counted item has no regime.
    """
    path = folder / FILE
    if not path.is_file():
        return {}
    known = [item for item in items if not item.endswith("/counted")]
    regimes: dict[str, list[Regime]] = {}
    for line, row in read_table(path, NEEDED):
        fitting = fnmatch.filter(known, row["item"])
        try:
            if not fitting:
                raise ValueError(f"item is {row['item']!r}, which is no measured or simulated item")
            regime = _regime(row, f"{path}:{line}")
        except ValueError as error:
            raise CatalogueError(f"{path}:{line}: {error}") from None
        for item in fitting:
            regimes.setdefault(item, []).append(regime)
    return regimes


def _regime(row: Mapping[str, str], line: str) -> Regime:
    for column in ("ratio", "source", "because"):
        if not row[column].strip():
            raise ValueError(f"{column} is empty")
    match = RANGE.fullmatch(row["paper"])
    if not match or (match[1] and match[3]):
        raise ValueError(f"paper is {row['paper']!r}; it must be of the form '0.49', '0.4 to 0.6', '>= 0.6' or '<= 1'")
    value = float(match[2])
    low = None if match[1] == "<= " else value
    high = None if match[1] == ">= " else float(match[3] or value)
    factor = float(row["factor"])
    if not (0 < value <= (high or value) and factor >= 1):
        raise ValueError(f"paper is {row['paper']!r} and factor {factor:g}; both are positive, the factor at least 1")
    off = float(row["off"]) if row.get("off") else None
    regime = Regime(
        ratio=row["ratio"],
        ours=read_formula(row["ours"]),
        paper=row["paper"],
        low=low,
        high=high,
        factor=factor,
        where=read_where(row["where"]),
        decides=tuple(filter(None, row["decides"].split(" | "))),
        source=row["source"],
        because=row["because"],
        line=line,
        off=off,
    )
    if off is not None and not Placed(regime=regime, ours=off).is_outside:
        raise ValueError(f"off is {off:g}, which is inside the paper's range: it cannot tell the technique from none")
    return regime
