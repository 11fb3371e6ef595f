"""Judge every claim on falsified rows: a claim that agrees with falsified rows tests nothing.

The rows have the values that the claim states (published values, a bound, an order) and the keys of our recorded rows.
Our values are never used. The claim must first agree with unchanged rows; else it is not audited. Then one function
falsifies the rows in each of these ways:

- no effect: the technique does nothing. Every value is the claim's `neutral` or `no_effect`, where it declares one;
  else every row is equal to the first, its baseline; a single value judged by `abs` is 0.
- opposite: the effect has the other sign, an order is reversed.
- factor 2: the effect is twice as large. Orders and bounds do not change under it, so it does not apply to them.
- shuffled: each row has the value of the next.
- another regime: a ratio that decides the claim lies outside the paper's range; the rows are unchanged.
- switched off: a ratio that says how much the technique does, such as the share of compressed bytes, is what it is
  without the technique; the rows are unchanged.

A falsification that leaves the rows unchanged does not apply: "makes iterations no longer" already states no effect. It
does not apply either to a bound without a value for no effect, since every bound notices a value beyond it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from workbench.reproduction.catalogue import published_rows
from workbench.reproduction.claims import Bound, Claim, Crossover, Ordering, Trend, Whose, Within
from workbench.reproduction.comparing import Comparison, Verdict, numeric, worst
from workbench.reproduction.declare import Reproduction
from workbench.reproduction.errors import ClaimError
from workbench.reproduction.files import stamp
from workbench.reproduction.findings import BestRun, best_runs
from workbench.reproduction.project import Project
from workbench.reproduction.records import MOST_KEPT, SealedRecord, merged_rows
from workbench.reproduction.regimes import Placed, place, withdraw
from workbench.rows import Row, canonical, matches

__all__ = ["FALSIFICATIONS", "NAMES", "Audited", "audit", "audit_claim", "audit_of", "share_noticed"]

Values = list[float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Audited:
    """Which falsifications a claim notices."""

    item: str  # id of the item
    claim: Claim
    noticed: Mapping[str, bool | None]  # falsification to whether it is noticed; None where it does not apply

    @property
    def is_blind(self) -> bool:
        """Whether it notices neither no effect nor the opposite, where they apply."""
        answers = [self.noticed[name] for name in ("no effect", "opposite") if self.noticed[name] is not None]
        return bool(answers) and not any(answers)

    @property
    def is_unexplained(self) -> bool:
        """Whether it is a blind claim of the paper that does not say why."""
        return self.is_blind and self.claim.whose is Whose.PAPER and not self.claim.insensitive

    def to_json(self) -> dict[str, Any]:
        """Return it as a dictionary."""
        about = {"item": self.item, "claim": self.claim.name, "kind": type(self.claim).__name__}
        about |= {"whose": self.claim.whose.value, "insensitive": self.claim.insensitive}
        return about | {"noticed": dict(self.noticed)}


def audit(project: Project, catalogue: Sequence[Reproduction]) -> tuple[Audited, ...]:
    """Audit every claim of a catalogue."""
    runs = best_runs(project, catalogue)
    return tuple(audited for run in runs.values() for audited in audit_of(project, run))


def audit_of(project: Project, run: BestRun) -> tuple[Audited, ...]:
    """Audit the claims of one item."""
    path = project.published(run.item)
    return _audited(project, run.item, run.record, stamp(path) if path else (0, 0, 0))


@lru_cache(maxsize=MOST_KEPT)
def _audited(
    project: Project, item: Reproduction, record: SealedRecord | None, _: tuple[int, int, int]
) -> tuple[Audited, ...]:
    rows = merged_rows(record) if record else ()
    published, placed = published_rows(project, item), place(item.regimes, rows)
    return tuple(
        Audited(item=item.id, claim=claim, noticed=audit_claim(claim, rows, published, placed)) for claim in item.claims
    )


def share_noticed(audited: Sequence[Audited]) -> tuple[int, int]:
    """Return how many of the falsifications that apply are noticed, and how many apply."""
    answers = [noticed for claim in audited for noticed in claim.noticed.values() if noticed is not None]
    return sum(answers), len(answers)


def audit_claim(
    claim: Claim, ours: Sequence[Row], published: Sequence[Row], placed: Sequence[Placed] = ()
) -> dict[str, bool | None]:
    """Return which falsifications a claim notices; none applies where its own statement does not agree."""
    rows = stated(claim, ours, published)
    values = [row.value for row in rows]
    compared = _compared(claim, rows, published) if rows else ()
    if worst([row.verdict for row in compared]) is not Verdict.AGREES:
        return dict.fromkeys(NAMES)
    noticed: dict[str, bool | None] = {}
    for name, falsify in FALSIFICATIONS.items():
        changed = falsify(claim, values)
        if changed is None or changed == values:  # it does not apply
            noticed[name] = None
        else:
            noticed[name] = _verdict(claim, rows, changed, published) is not Verdict.AGREES
    deciding = [ratio for ratio in placed if any(ratio.regime.covers(claim, row.where) for row in compared)]
    off = [ratio.switched_off() for ratio in deciding if ratio.regime.off is not None]
    for name, elsewhere in ((REGIME, [ratio.moved() for ratio in deciding]), (OFF, off)):
        withdrawn = worst([row.verdict for row in withdraw(claim, compared, elsewhere)])
        noticed[name] = withdrawn is not Verdict.AGREES if elsewhere else None
    return noticed


def _verdict(claim: Claim, rows: Sequence[Row], values: Values, published: Sequence[Row]) -> Verdict:
    changed = [replace(row, value=value) for row, value in zip(rows, values, strict=True)]
    return worst([row.verdict for row in _compared(claim, changed, published)])


def _compared(claim: Claim, rows: Sequence[Row], published: Sequence[Row]) -> Sequence[Comparison]:
    try:
        return claim.compare(rows, published)
    except ClaimError:
        return ()


def _neutral(claim: Claim) -> float | None:
    """Return the value of a technique that does nothing, where the claim declares one."""
    return claim.neutral if claim.neutral is not None else getattr(claim, "no_effect", 0.0) or None


def no_effect(claim: Claim, values: Values) -> Values | None:
    """Return the values of a technique that does nothing."""
    declared = _neutral(claim)
    if declared is not None:
        return [declared] * len(values)
    if isinstance(claim, Bound):
        return None
    if len(set(values)) > 1:
        return [values[0]] * len(values)
    return [0.0] * len(values) if isinstance(claim, Within) and claim.abs is not None else None


def opposite(claim: Claim, values: Values) -> Values | None:
    """Return the values of the opposite effect."""
    if (neutral := _neutral(claim)) is not None:
        return [2 * neutral - value for value in values]
    if isinstance(claim, Bound):
        return None
    if len(set(values)) > 1:
        return [max(values) + min(values) - value for value in values]
    return [-value for value in values] if isinstance(claim, Within) and claim.abs is not None else None


def factor_two(claim: Claim, values: Values) -> Values | None:
    """Return the values of an effect of twice the size."""
    if not isinstance(claim, Within):
        return None
    neutral = _neutral(claim) or 0.0
    return [neutral + 2 * (value - neutral) for value in values]


def shuffled(claim: Claim, values: Values) -> Values | None:
    """Return the values, each at the place of the one before."""
    return None if isinstance(claim, (Bound, Crossover)) else values[1:] + values[:1]


FALSIFICATIONS: Mapping[str, Callable[[Claim, Values], Values | None]] = {
    "no effect": no_effect,
    "opposite": opposite,
    "factor 2": factor_two,
    "shuffled": shuffled,
}
REGIME, OFF = "another regime", "switched off"
NAMES = (*FALSIFICATIONS, REGIME, OFF)


def stated(claim: Claim, ours: Sequence[Row], published: Sequence[Row]) -> list[Row]:
    """Return rows as the claim states them, with the keys of ours, or of the published ones where there are none."""
    fixed = {name: canonical(key) for name, key in claim.where.items() if not isinstance(key, (list, tuple))}
    printed = [row for row in published if row.quantity == claim.quantity]
    columns = {name for row in printed for name in row.keys}
    printed = [_bare(row, {**fixed, **row.keys}) for row in printed if matches(row, claim.where, columns)]
    if isinstance(claim, Within) and claim.expected is None:
        return printed
    recorded = [_bare(row, row.keys) for row in ours if row.quantity == claim.quantity and matches(row, claim.where)]
    rows = recorded or printed or _from_order(claim, fixed)
    if isinstance(claim, Within) and claim.expected is not None:
        return [replace(row, value=claim.expected) for row in rows]
    if isinstance(claim, Bound):
        return [replace(row, value=claim.limit) for row in rows]
    assert isinstance(claim, (Ordering, Trend, Crossover))
    return _in_order(claim, [row for row in rows if claim.along in row.keys])


def _bare(row: Row, keys: Mapping) -> Row:
    return replace(row, low=None, high=None, seed=None, source="", keys=keys)


def _from_order(claim: Claim, fixed: Mapping) -> list[Row]:
    """Return rows for a claim of which nothing is recorded or published."""
    places: list[dict[str, Any]] = [{}]
    if isinstance(claim, Ordering):
        places = [{claim.along: canonical(key)} for key in claim.order]
    return [Row(quantity=claim.quantity, value=0.0, unit="", keys={**fixed, **place}) for place in places]


def _in_order(claim: Ordering | Trend | Crossover, rows: Sequence[Row]) -> list[Row]:
    if isinstance(claim, Ordering):
        order = [canonical(key) for key in claim.order]
        place = {key: 1.0 + order.index(key) for key in order}
        return [replace(row, value=place[row.keys[claim.along]]) for row in rows if row.keys[claim.along] in place]
    if isinstance(claim, Trend):
        sign = 1 if claim.direction == "increasing" else -1
        return [replace(row, value=sign * numeric(row, claim)) for row in rows]
    first = claim.smaller_before or claim.between[0]
    return [
        replace(row, value=numeric(row, claim) if matches(row, {claim.series: first}) else claim.at)
        for row in rows
        if matches(row, {claim.series: claim.between})
    ]
