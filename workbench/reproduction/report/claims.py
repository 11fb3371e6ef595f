"""The claims of one item as the report shows them: judged anew, beside recorded runs, with each rule in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from workbench.reproduction.claims import Bound, Claim, Crossover, Ordering, Trend, Within
from workbench.reproduction.comparing import ORDERS
from workbench.reproduction.declare import Profile, Reproduction
from workbench.reproduction.errors import RecordError
from workbench.reproduction.project import Project
from workbench.reproduction.recording import verdicts_of
from workbench.reproduction.records import promoted_path, record_of

from .texts import View, exact_text, key_text, machine_text, number_text, relative_text, slug, value_text, when_text

__all__ = ["VERDICTS", "ClaimView", "RecordedRun", "claims_of", "count_verdicts", "recorded_beside", "rule_text"]
__all__ += ["spread_text", "trusted_record"]

VERDICTS = ("DISAGREES", "AGREES", "NOT_COMPARABLE", "NOT_RUN")  # the order in which a reader looks for them
RecordedRun = tuple[str, Mapping[str, Any], Sequence[Mapping[str, Any]]]  # profile, record, its verdicts as of now

NOTHING_RECORDED = MappingProxyType(
    {"values": (), "data": (), "calibration": None, "not_comparable": MappingProxyType({})}
)


def trusted_record(path: Path, item: Reproduction, profile: str) -> tuple[dict[str, Any] | None, str]:
    """Return an item's record or None, and why it was refused where it cannot be trusted."""
    try:
        return record_of(path, item, profile), ""
    except RecordError as error:
        return None, str(error)


def recorded_beside(
    project: Project, item: Reproduction, profile: str, record: Mapping[str, Any] | None
) -> tuple[tuple[RecordedRun, ...], tuple[str, ...]]:
    """Read the promoted records of larger profiles, and of this one where there is no record; with the refused ones."""
    if profile == Profile.SMOKE:
        return (), ()
    order = [known.value for known in Profile]
    runs, refused = [], []
    for other in order[order.index(profile) + (record is not None) :]:
        promoted, why = trusted_record(promoted_path(project, item, other), item, other)
        if promoted is not None:
            runs.append((other, promoted, _verdicts(project, item, promoted)))
        refused += [why] if why else []
    return tuple(runs), tuple(refused)


def claims_of(
    project: Project,
    item: Reproduction,
    profile: str,
    record: Mapping[str, Any] | None,
    *,
    beside: Sequence[RecordedRun],
    anchor: str,
    missing: str,
) -> tuple[ClaimView, ...]:
    """Judge the claims of an item beside recorded runs; `missing` says what is missing where there is no record."""
    if profile == Profile.SMOKE:
        return ()
    verdicts = _verdicts(project, item, record or NOTHING_RECORDED)
    if not record:
        silent = {"verdict": "not run", "reason": missing}
        verdicts = [old | silent | {"rows": [row | {"reason": ""} for row in old["rows"]]} for old in verdicts]
    rules = {claim.name: rule_text(claim) for claim in item.claims}
    return tuple(_claim_view(verdict, anchor, rules[verdict["claim"]], beside) for verdict in verdicts)


def _verdicts(project: Project, item: Reproduction, record: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        return [verdict.to_json() for verdict in verdicts_of(project, item, record)]
    except (ValueError, KeyError) as error:  # the claims changed since the record was made
        failed = {"verdict": "not run", "reason": f"It cannot be judged: {error}", "rows": []}
        return [{"claim": claim.name, "explanation": claim.explanation} | failed for claim in item.claims]


def rule_text(claim: Claim) -> str:
    """Return a claim's rule in words, with the reason of its tolerance."""
    sentences = [_rule(claim), f"Reason: {claim.because}", f"Paper: {claim.source}" if claim.source else ""]
    return " ".join(f"{text[:1].upper()}{text[1:].rstrip('.')}." for text in sentences if text)


def _rule(claim: Claim) -> str:
    quantity = claim.quantity.replace("_", " ")
    if isinstance(claim, Within):
        nearness = "equal to" if 0 in (claim.rel, claim.abs) else f"within {_tolerance(claim)} of"
        if claim.expected is None:
            return f"{quantity} {nearness} the published value"
        return f"{quantity} {nearness} {number_text(claim.expected)}, expected by definition"
    if isinstance(claim, Bound):
        side = "at most" if claim.at_least is None else "at least"
        return f"{quantity} {side} {number_text(claim.limit)}, whole interval"
    if isinstance(claim, Ordering):
        return f"{quantity} rises in the order {', '.join(map(str, claim.order))}"
    if isinstance(claim, Trend):
        return f"{quantity} is {claim.direction} along {claim.along.replace('_', ' ')}"
    if isinstance(claim, Crossover):
        one, other = claim.between
        place = f"within {_tolerance(claim)} of {number_text(claim.at)} {claim.unit}".rstrip()
        return f"{quantity} of {one} and {other} cross once along {claim.along.replace('_', ' ')}, {place}"
    return quantity


def _tolerance(claim: Within | Crossover) -> str:
    return number_text(claim.abs) if claim.rel is None else f"{number_text(100 * claim.rel)} %"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimView:
    """One claim with its rows and its verdict, as texts."""

    name: str
    anchor: str
    verdict: str
    reason: str
    explanation: str
    rule: str
    rows: tuple[View, ...]  # its comparisons
    recorded: tuple[View, ...]  # its verdicts in recorded runs

    def has(self, name: str) -> bool:
        """Say whether any row has a text of this name."""
        return any(getattr(row, name) for row in self.rows)

    @property
    def published_label(self) -> str:
        """The heading of the paper's column: values it prints, or those its definition implies."""
        return "By definition" if any(row.by_definition for row in self.rows) else "Published"

    @property
    def recorded_label(self) -> str:
        """Name the recorded run whose values stand beside ours."""
        return f"{self.recorded[0].profile} run" if self.recorded else "run"


def _normal(verdict: Any) -> str:
    """Return a verdict's name as the report spells it, from the words of a record ("not comparable")."""
    return str(verdict or "").upper().replace(" ", "_")


def count_verdicts(words: Sequence[str]) -> dict[str, int]:
    """Count each verdict, in the order in which the report lists them."""
    return {word: list(words).count(word) for word in VERDICTS}


def _claim_view(verdict: Mapping[str, Any], anchor: str, rule: str, beside: Sequence[RecordedRun]) -> ClaimView:
    name = verdict["claim"]
    twins = [(run, twin) for run in beside for twin in run[2] if twin["claim"] == name]
    recorded_rows = {key_text(row["where"]): row for row in twins[0][1]["rows"]} if twins else {}
    recorded = (
        View(
            profile=profile,
            machine=machine_text(record.get("machine")),
            date=when_text(record.get("started")),
            verdict=_normal(twin["verdict"]),
            reason=twin["reason"],
        )
        for (profile, record, _), twin in twins
    )
    return ClaimView(
        name=name,
        anchor=f"{anchor}-{slug(name)}",
        verdict=_normal(verdict["verdict"]),
        reason=verdict["reason"],
        explanation=verdict["explanation"],
        rule=rule,
        rows=tuple(_row_view(row, recorded_rows, verdict) for row in verdict["rows"]),
        recorded=tuple(recorded),
    )


def _row_view(row: Mapping[str, Any], recorded_rows: Mapping[str, Mapping], claim: Mapping[str, Any]) -> View:
    unit, published, ours, where = row["unit"], row["published"], row["ours"], key_text(row["where"])
    word, of_order = _normal(row["verdict"]), claim.get("kind") in ORDERS
    silent = _normal(claim["verdict"]) == "NOT_COMPARABLE" != word  # what overrides the claim overrides its rows
    recorded = recorded_rows.get(where, {})
    return View(
        where=where,
        published=value_text(published, unit),
        published_exact=exact_text(published, unit),
        ours=_ours_text(row),
        ours_exact=exact_text(ours, unit),
        difference="" if of_order else relative_text(ours, published),
        source=row["source"],
        verdict="" if silent or of_order else word,
        reason="" if silent else row["reason"],
        recorded=_ours_text(recorded) if recorded else "",  # the same value in the recorded run
        wide=bool(spread_text(row) or spread_text(recorded)),  # texts too long to keep on one line
        by_definition=row["by_definition"],
    )


def _ours_text(row: Mapping[str, Any]) -> str:
    return value_text(row.get("ours"), row.get("unit")) + spread_text(row)


def spread_text(row: Mapping[str, Any]) -> str:
    """Write the spread of a row in brackets, nothing where none is known."""
    unit, low, high = row.get("unit"), row.get("low"), row.get("high")
    return f" ({value_text(low, unit)} to {value_text(high, unit)})" if low is not None and high is not None else ""
