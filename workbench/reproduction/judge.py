"""Compute verdicts from values and claims; no other module does."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workbench.reproduction.claims import Bound, Claim, Decidable, Ordering, Trend, Within
from workbench.reproduction.comparing import CALIBRATED, ClaimVerdict, Comparison, Verdict, worst
from workbench.reproduction.regimes import Regime, place, withdraw
from workbench.rows import Row, canonical, matches, merge_seeds
from workbench.study.training import (
    CHANCE_ERRORS,
    PER_CENT,
    chance_of_accuracy,
    chance_reason,
    is_at_chance,
    score_text,
    standard_error,
)

__all__ = ["judge"]

STAND_IN = "stand-in"
MOST_TOLERATED = 0.5  # share of the points above a constant answer


def judge(
    claims: Sequence[Claim],
    ours: Sequence[Row],
    published: Sequence[Row],
    *,
    sources: Sequence[Mapping[str, Any]] = (),
    calibrated_on: Iterable[Mapping[str, Any]] = (),
    not_comparable: Mapping[str, str] | None = None,
    regimes: Sequence[Regime] = (),
    merged: Sequence[Row] | None = None,
) -> tuple[ClaimVerdict, ...]:
    """Compute one verdict a claim; rows of ours that differ by seed alone are merged first.

    Args:
        sources: where our data came from, each with `name` and `source`.
        calibrated_on: keys (and `quantity`) of the published cells that a cost model was calibrated on.
        not_comparable: name of a claim to a reason of this run, such as data that is missing.
        regimes: ratios that decide the paper's claims, with the paper's range of each.
        merged: our rows with their seeds merged, where that was done before.
    """
    reasons = dict(not_comparable or {})
    if strange := set(reasons) - {claim.name for claim in claims}:
        raise ValueError(f"not_comparable names {sorted(strange)[0]!r}, which is no claim of this item")
    if bare := [name for name, reason in reasons.items() if not str(reason).strip()]:
        raise ValueError(f"not_comparable gives no reason for {bare[0]!r}")
    merged, cells = merge_seeds(ours) if merged is None else merged, list(calibrated_on)
    marked = [replace(row, calibrated=_is_calibrated(row, cells)) for row in merged] if cells else merged
    # By identity, since a rule holds mappings and cannot be hashed; claims share it.
    rules = {id(claim.decidable): claim.decidable for claim in claims if claim.decidable is not None}
    trained = {key: list(_trained(rule, merged, sources)) for key, rule in rules.items()}
    placed, verdicts = place(regimes, merged), []
    for claim in claims:
        rows = [_without_calibration(row, claim, cells) for row in claim.compare(marked, published)]
        rows = withdraw(claim, rows, placed)
        override = reasons.get(claim.name, "") or _undecidable(
            claim, trained.get(id(claim.decidable), ()), merged, ours, published
        )
        verdicts.append(_verdict(claim, rows, override or (_no_real_data(sources) if claim.needs_real_data else "")))
    return tuple(verdicts)


def _verdict(claim: Claim, rows: Sequence[Comparison], override: str) -> ClaimVerdict:
    counted = [row for row in rows if row.counts] or rows
    verdict = worst([row.verdict for row in counted])
    reason = _reason(claim, verdict, counted)
    if override and verdict is not Verdict.NOT_RUN:
        verdict, reason = Verdict.NOT_COMPARABLE, override
        rows = [replace(row, verdict=verdict, reason=override) for row in rows]
    about = {name: getattr(claim, name) for name in ("because", "explanation", "source", "whose", "changed", "repeats")}
    kind = type(claim).__name__
    return ClaimVerdict(claim=claim.name, kind=kind, verdict=verdict, reason=reason, rows=tuple(rows), **about)


def _is_calibrated(row: Row, cells: Sequence[Mapping[str, Any]]) -> bool:
    return any(
        cell.get("quantity", row.quantity) == row.quantity
        and matches(row, {name: key for name, key in cell.items() if name != "quantity"})
        for cell in cells
    )


def _without_calibration(row: Comparison, claim: Claim, cells: Sequence[Mapping[str, Any]]) -> Comparison:
    if isinstance(claim, (Ordering, Trend)):  # these count a pair of which one value was calibrated
        return row
    keys = {name: key for name, key in row.where.items() if key is not None}
    if not _is_calibrated(Row(quantity=claim.quantity, value=0.0, unit=row.unit, keys=keys), cells):
        return row
    return replace(row, verdict=Verdict.NOT_COMPARABLE, reason=CALIBRATED, counts=False)


def _no_real_data(sources: Sequence[Mapping[str, Any]]) -> str:
    if not sources:
        return "the claim needs real data, and the run names no data source"
    names = [str(source["name"]) for source in sources if source["source"] == STAND_IN]
    return f"stand-in data: {', '.join(names)}" if names else ""


def _reason(claim: Claim, verdict: Verdict, rows: Sequence[Comparison]) -> str:
    if not rows:
        return f"claim {claim.name!r} matches no rows of {claim.quantity!r}"
    if verdict is Verdict.AGREES:
        return ""
    guilty = [row for row in rows if row.verdict is verdict]
    first = guilty[0].reason
    return first if len(guilty) == 1 else f"{len(guilty)} of {len(rows)} rows; the first: {first}"


# Claims about trainings: a verdict is withdrawn only where our value cannot support it.


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trained:
    """The score of one variant, the mean over its seeds, as a share."""

    row: Row  # row of the score
    chance: float  # score of a constant answer
    known: float  # the score that decides on chance: accuracy in place of an F1
    known_chance: float  # that score of a constant answer
    measure: str  # name of that score
    rule: Decidable
    steps: float  # fewest steps of any seed; infinite where the record does not say

    @property
    def score(self) -> float:
        return self.row.value / PER_CENT

    @property
    def is_baseline(self) -> bool:
        return all(self.row.keys.get(name) == canonical(key) for name, key in self.rule.baseline.items())

    @property
    def is_at_chance(self) -> bool:
        return is_at_chance(self.known, self.known_chance, self.rule.num_tested)

    @property
    def name(self) -> str:
        return " ".join(map(str, self.row.keys.values()))

    @property
    def text(self) -> str:
        return f"{self.name}: {score_text(self.known, self.known_chance, self.rule.num_tested, self.measure)}"

    def fits(self, where: Mapping[str, Any]) -> bool:
        return matches(self.row, where, self.row.keys)


def _trained(rule: Decidable, rows: Sequence[Row], sources: Sequence[Mapping[str, Any]]) -> Iterator[_Trained]:
    beside = {(row.quantity, tuple(sorted(row.keys.items()))): row for row in rows}
    steps_count = any(source["name"] == rule.steps_of for source in sources)
    for row in (row for row in rows if row.quantity == rule.score):
        keys = tuple(sorted(row.keys.items()))
        chance, accuracy, steps = (beside.get((name, keys)) for name in ("chance", "accuracy", "num_steps"))
        if chance is None or not matches(row, rule.where):
            continue
        known, known_chance, measure = row.value / PER_CENT, chance.value / PER_CENT, rule.score
        if rule.by_accuracy and accuracy is not None:
            known, known_chance, measure = accuracy.value / PER_CENT, chance_of_accuracy(known_chance), "accuracy"
        yield _Trained(
            row=row,
            chance=chance.value / PER_CENT,
            known=known,
            known_chance=known_chance,
            measure=measure,
            rule=rule,
            steps=steps.interval[0] if steps is not None and steps_count else float("inf"),
        )


def _undecidable(
    claim: Claim, trained: Sequence[_Trained], rows: Sequence[Row], ours: Sequence[Row], published: Sequence[Row]
) -> str:
    """Return why the trainings cannot decide a claim, by its declaration; empty where they can."""
    rule = claim.decidable
    if rule is None:
        return ""
    task = {name: key for name, key in claim.where.items() if name not in rule.baseline}
    of_task = [variant for variant in trained if variant.fits(task)]
    baseline = next((variant for variant in of_task if variant.is_baseline), None)
    if baseline is None:
        return ""
    compared = [variant for variant in trained if variant.fits(claim.where) and not variant.is_baseline]
    return (
        chance_reason(baseline.known, baseline.known_chance, rule.num_tested, baseline.measure)
        or _unfinished(baseline)
        or _order_at_chance(claim, rule, [variant for variant in trained if variant.fits(claim.where)])
        or _not_learned(claim, compared)
        or _order_of_no_loss(claim, baseline, compared)
        or _few_points(claim, baseline, compared)
        or _no_contrast(claim, baseline, [variant for variant in of_task if variant.fits(rule.contrast)])
        or _undecidable_share(claim, baseline, [row for row in rows if _is_kept_share(row, claim)], published, ours)
    )


def _unfinished(baseline: _Trained) -> str:
    enough = baseline.rule.least_steps
    if baseline.steps >= enough:
        return ""
    return f"{baseline.steps:.0f} steps are too few: before {enough:,} a loss mostly shows unfinished learning"


def _in_order(claim: Claim, variants: Sequence[_Trained]) -> list[list[_Trained]]:
    """Group variants by the values that an order compares; all of them for the other kinds of claim."""
    if not isinstance(claim, Ordering):
        return [list(variants)]
    keys = [canonical(key) for key in claim.order]
    return [[variant for variant in variants if variant.row.keys.get(claim.along) == key] for key in keys]


def _order_at_chance(claim: Claim, rule: Decidable, variants: Sequence[_Trained]) -> str:
    if not isinstance(claim, Ordering) or claim.quantity != rule.score:
        return ""
    groups = _in_order(claim, variants)
    if not all(group and all(variant.is_at_chance for variant in group) for group in groups):
        return ""
    return f"{' and '.join(group[0].text for group in groups)}: at chance, no order can be seen"


def _not_learned(claim: Claim, compared: Sequence[_Trained]) -> str:
    for variant in (variant for group in _in_order(claim, compared) for variant in group):
        if variant.steps < variant.rule.learns_after and variant.is_at_chance:
            return f"{variant.name} is at chance after {variant.steps:.0f} steps: it may still learn later"
    return ""


def _order_of_no_loss(claim: Claim, baseline: _Trained, compared: Sequence[_Trained]) -> str:
    """Return a reason where even the lowest variant of an order scores no less than the baseline."""
    if not isinstance(claim, Ordering) or claim.quantity != baseline.rule.score:
        return ""
    of_baseline = baseline.rule.baseline.get(claim.along)
    lowest = _in_order(claim, compared)[0]
    if of_baseline is None or of_baseline in claim.order or not lowest or lowest[0].score < baseline.score:
        return ""
    scores = f"{lowest[0].score:.1%}, no less than the baseline's {baseline.score:.1%}"
    return f"{claim.order[0]} scores {scores}: no variant does harm, so there is nothing to order"


def _few_points(claim: Claim, baseline: _Trained, compared: Sequence[_Trained]) -> str:
    """Return a reason where the baseline has too few points above chance for the bound to mean anything."""
    if not (isinstance(claim, Bound) and claim.quantity == "points_below" and compared):
        return ""
    most = PER_CENT * (baseline.score - baseline.chance)
    if claim.at_least is not None:
        return f"{baseline.text}: only {most:.1f} points can be lost" if most < claim.limit else ""
    lost = PER_CENT * (baseline.score - compared[0].score)
    if lost > claim.limit:
        return ""
    if claim.limit > MOST_TOLERATED * most:
        return f"only {most:.1f} points above a constant answer can be lost, and {claim.limit:.0f} are most of them"
    if not compared[0].is_at_chance:
        return ""
    return f"{compared[0].text}: at chance, where no more than {lost:.1f} points can be lost"


def _no_contrast(claim: Claim, baseline: _Trained, contrast: Sequence[_Trained]) -> str:
    """Return a reason where the variant that should lose more than the claim allows does not."""
    if not (baseline.rule.contrast and isinstance(claim, Bound) and claim.at_most is not None and contrast):
        return ""
    lost = PER_CENT * (baseline.score - contrast[0].score)
    if lost > claim.limit:
        return ""
    return f"{contrast[0].name}, which should lose more, loses only {lost:.1f} points: neither does enough harm to tell"


def _is_kept_share(row: Row, claim: Claim) -> bool:
    return row.quantity == claim.quantity == "relative_score" and matches(row, claim.where)


def _undecidable_share(
    claim: Claim, baseline: _Trained, kept: Sequence[Row], published: Sequence[Row], ours: Sequence[Row]
) -> str:
    """Return a reason why comparing our share of the score with the paper's would mean nothing."""
    target = next((row.value for row in published if _is_kept_share(row, claim)), None)
    if not (isinstance(claim, Within) and claim.abs is not None and kept) or target is None:
        return ""
    share, tolerance, constant = kept[0].value, claim.abs, baseline.chance / baseline.score
    of_seeds = [
        row.value / PER_CENT for row in ours if (row.quantity, row.keys) == (baseline.row.quantity, baseline.row.keys)
    ]
    # A mean of shares is as uncertain as the share of the seed with the lowest score.
    error = standard_error(baseline.chance, baseline.rule.num_tested) / min(score for score in of_seeds if score > 0)
    off = abs(share - target)
    of_constant = f"a constant answer keeps {constant:.2f} of the score"
    if tolerance < error and off <= tolerance + CHANCE_ERRORS * error:
        return (
            f"the tolerance, {tolerance:.2f}, is less than the score's standard error, {error:.2f} of it, and ours, "
            f"{share:.2f}, is within two of them of {target:.2f}"
        )
    if off <= tolerance and abs(constant - target) <= tolerance:
        return f"{of_constant}, which is within the tolerance of {target:.2f}, too"
    if off <= tolerance and tolerance > MOST_TOLERATED * (1 - constant):
        return f"{of_constant}: the tolerance, {tolerance:.2f}, is most of what can be lost"
    return _near_one_of_two(share, tolerance, baseline.rule.printed)


def _near_one_of_two(share: float, tolerance: float, printed: Mapping[str, float]) -> str:
    """Return a reason where the paper prints values further apart than both tolerances, and ours is near one."""
    near = any(abs(share - value) <= tolerance for value in printed.values())
    if not near or max(printed.values()) - min(printed.values()) <= 2 * tolerance:
        return ""
    values = " and ".join(f"{value:.2f} at {setting}" for setting, value in printed.items())
    return f"the paper prints {values}, which are one setting here; ours, {share:.2f}, is near one of them"
