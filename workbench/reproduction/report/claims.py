"""The claims of one item for the report: verdicts computed anew, recorded runs beside them, rules in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from workbench.reproduction.claims import Bound, Claim, Crossover, Ordering, Trend, Whose, Within
from workbench.reproduction.comparing import ORDERS, Verdict
from workbench.reproduction.declare import Profile
from workbench.reproduction.errors import RecordError
from workbench.reproduction.machine import machine_text
from workbench.reproduction.project import ON, ItemRun
from workbench.reproduction.recording import verdicts_of
from workbench.reproduction.records import record_of

from .texts import View, exact_text, key_text, number_text, relative_text, slug, value_text, when_text

__all__ = ["VERDICTS", "ClaimView", "RecordedRun", "claims_of", "count_verdicts", "recorded_beside", "rule_text"]
__all__ += ["WHOSE_MEANINGS", "spread_text", "trusted_record"]

VERDICTS = ("DISAGREES", "AGREES", "NOT_COMPARABLE", "NOT_RUN")  # in the order of a reader's interest
RecordedRun = tuple[str, Mapping[str, Any], Sequence[Mapping[str, Any]]]  # profile, record, present verdicts

WHOSE_MEANINGS = {
    Whose.PAPER: "The paper makes this claim.",
    Whose.OURS: "We make this claim: the paper's text leads one to expect it, but does not state it.",
    Whose.CONSTRUCTION: "True by construction: it checks the program and says nothing about the paper.",
}
NOT_OURS = {"ours": None, "low": None, "high": None, "verdict": "", "reason": ""}  # for a row that only another run has
NOTHING_RECORDED: Mapping[str, Any] = MappingProxyType(
    {"values": (), "data": (), "calibration": None, "not_comparable": MappingProxyType({})}
)


def trusted_record(run: ItemRun, promoted: bool = False) -> tuple[Mapping[str, Any] | None, str]:
    """Return an item's record or None, and the reason if the record was refused."""
    try:
        return record_of(run, promoted), ""
    except RecordError as error:
        return None, str(error)


def recorded_beside(run: ItemRun, record: Mapping[str, Any] | None) -> tuple[tuple[RecordedRun, ...], tuple[str, ...]]:
    """Read the promoted records of larger profiles, and of this profile if `record` is None; also name refused ones.

    Those of further machines come first, since the last ones speak.
    """
    if run.profile == Profile.SMOKE:
        return (), ()
    order = [known.value for known in Profile]
    runs, refused = [], []
    larger = order[order.index(run.profile) :]
    further = [
        f"{recorded.profile}{ON}{recorded.machine}"
        for recorded in run.recorded
        if recorded.machine and recorded.profile in larger
    ]
    for other in further + larger[record is not None :]:
        promoted, why = trusted_record(run.at(other), promoted=True)
        if promoted is not None:
            runs.append((other, promoted, _verdicts(run, promoted)))
        refused += [why] if why else []
    return tuple(runs), tuple(refused)


def claims_of(
    run: ItemRun, record: Mapping[str, Any] | None, *, beside: Sequence[RecordedRun], anchor: str, missing: str
) -> tuple[ClaimView, ...]:
    """Judge an item's claims, the paper's first, by this machine's run and by recorded runs.

    `missing` is the reason shown if no run judges a claim.
    """
    if run.profile == Profile.SMOKE:
        return ()
    runs: list[RecordedRun] = [("Ours", record, _verdicts(run, record))] if record else []
    runs += [(f"Recorded {other} run", held, verdicts) for other, held, verdicts in beside]
    nothing: dict[str, Any] = {}
    if not runs:
        nothing = {verdict["claim"]: verdict for verdict in _verdicts(run, NOTHING_RECORDED)}
    views = []
    for claim in sorted(run.item.claims, key=lambda claim: list(Whose).index(claim.whose)):
        held = [
            View(label=label, record=record, verdict=verdict)
            for label, record, verdicts in runs
            for verdict in verdicts
            if verdict["claim"] == claim.name
        ]
        views.append(_claim_view(claim, anchor, held or [_nothing(nothing[claim.name], missing)]))
    return tuple(views)


def _nothing(verdict: Mapping[str, Any], missing: str) -> View:
    rows = [row | {"reason": ""} for row in verdict["rows"]]
    silent = {"verdict": Verdict.NOT_RUN.value, "reason": missing, "rows": rows}
    return View(label="Ours", record=None, verdict={**verdict, **silent})


def _verdicts(run: ItemRun, record: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        return [verdict.to_json() for verdict in verdicts_of(run.project, run.item, record)]
    except (ValueError, KeyError) as error:  # the claims changed since the record was made
        failed = {"verdict": "not run", "reason": f"The claim cannot be judged: {error}", "rows": []}
        return [{"claim": claim.name, "explanation": claim.explanation} | failed for claim in run.item.claims]


def rule_text(claim: Claim) -> str:
    """Return a claim's rule in words, with the reason of its tolerance and what else a reader must know of it."""
    parts = {
        "": _rule(claim),
        "Why this rule": claim.because,
        "In the paper": claim.source,
        "Whose": "" if claim.whose is Whose.PAPER else WHOSE_MEANINGS[claim.whose],
        "Changed after results were seen": claim.changed,
        "Judged by the trainings of": claim.repeats,
    }
    return " ".join(f"{name}: {_sentence(text)}" if name else _sentence(text) for name, text in parts.items() if text)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _rule(claim: Claim) -> str:
    quantity = claim.quantity.replace("_", " ")
    if isinstance(claim, Within):
        quantity = f"the {claim.pick} {quantity}" if claim.pick else quantity
        exact, tolerance = 0 in (claim.rel, claim.abs), _tolerance(claim)
        if claim.no_effect and not exact:
            effect = f"the effect, the distance of {quantity} from {number_text(claim.no_effect)},"
            return f"{effect} must be within {tolerance} of the published effect"
        target = "the published value" if claim.expected is None else f"{number_text(claim.expected)}, by definition"
        return f"{quantity} must equal {target}" if exact else f"{quantity} must be within {tolerance} of {target}"
    if isinstance(claim, Bound):
        side = "at most" if claim.at_least is None else "at least"
        return f"{quantity} must be {side} {number_text(claim.limit)}, with its whole interval"
    if isinstance(claim, Ordering):
        return f"{quantity} must rise in this order: {', '.join(map(str, claim.order))}"
    if isinstance(claim, Trend):
        return f"{quantity} must be {claim.direction} along {claim.along.replace('_', ' ')}"
    if isinstance(claim, Crossover):
        first, second = claim.between
        place = f"within {_tolerance(claim)} of {number_text(claim.at)} {claim.unit}".rstrip()
        return f"{quantity} of {first} and of {second} must cross once along {claim.along.replace('_', ' ')}, {place}"
    return quantity


def _tolerance(claim: Within | Crossover) -> str:
    return number_text(claim.abs or 0.0) if claim.rel is None else f"{number_text(100 * claim.rel)} %"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimView:
    """One claim with its rows and its verdict, as texts."""

    name: str
    anchor: str
    verdict: str  # of this machine's run, or else of the recorded run with the largest profile
    reason: str
    explanation: str
    rule: str
    because: str
    source: str
    whose: str
    changed: str
    repeats: str
    erratum: str
    label: str  # heading of the values of that run
    is_own: bool  # whether that run is this machine's
    rows: tuple[View, ...]  # its comparisons, then the comparisons of other runs only
    others: tuple[View, ...]  # the other runs, with their verdicts

    @property
    def is_scored(self) -> bool:
        """Whether a count of claims includes it: the paper's own claims, each once."""
        return self.whose == Whose.PAPER and not self.repeats

    def has(self, name: str) -> bool:
        """Say whether any row has a text of this name."""
        return any(getattr(row, name) for row in self.rows)

    @property
    def published_label(self) -> str:
        """The heading of the expected values: the paper's, or those that follow from a claim of ours."""
        is_printed = not any(row.by_definition for row in self.rows)
        return "Paper" if is_printed or self.whose == Whose.PAPER else "Expected"


def _normal(verdict: Any) -> str:
    """Return a verdict's name as the report spells it, from the words of a record ("not comparable")."""
    return str(verdict or "").upper().replace(" ", "_")


def count_verdicts(words: Sequence[str]) -> dict[str, int]:
    """Count each verdict, in the order in which the report lists them."""
    return {word: list(words).count(word) for word in VERDICTS}


def _claim_view(claim: Claim, anchor: str, runs: Sequence[View]) -> ClaimView:
    ordered = [run for run in runs if run.label == "Ours"] + [run for run in reversed(runs) if run.label != "Ours"]
    # This machine's run speaks, or else the recorded one of the largest profile; first those with a verdict.
    speaking = next((run for run in ordered if run.verdict["verdict"] != Verdict.NOT_RUN), ordered[0])
    others = [run for run in runs if run is not speaking]
    rows: dict[str, Mapping[str, Any]]
    rows = {key_text(row["where"]): {**row, **NOT_OURS} for run in others for row in run.verdict["rows"]}
    rows |= {key_text(row["where"]): row for row in speaking.verdict["rows"]}
    values = {run.label: {key_text(row["where"]): _ours_text(row) for row in run.verdict["rows"]} for run in others}
    verdict = speaking.verdict
    return ClaimView(
        name=claim.name,
        anchor=f"{anchor}-{slug(claim.name)}",
        verdict=_normal(verdict["verdict"]),
        reason=verdict["reason"],
        explanation=claim.explanation,
        rule=_sentence(_rule(claim)),
        because=_sentence(claim.because) if claim.because else "",
        source=claim.source,
        whose=claim.whose.value,
        changed=_sentence(claim.changed) if claim.changed else "",
        repeats=claim.repeats,
        erratum=claim.erratum,
        label=speaking.label,
        is_own=speaking.label == "Ours",
        rows=tuple(_row_view(row, values, verdict) for row in rows.values()),
        others=tuple(
            View(
                label=run.label,
                machine=machine_text(run.record.get("machine")),
                date=when_text(run.record.get("started")),
                verdict=_normal(run.verdict["verdict"]),
                reason=run.verdict["reason"],
            )
            for run in others
        ),
    )


def _row_view(row: Mapping[str, Any], others: Mapping[str, Mapping[str, str]], claim: Mapping[str, Any]) -> View:
    unit, published, ours, where = row["unit"], row["published"], row["ours"], key_text(row["where"])
    word = _normal(row["verdict"])
    of_order = claim.get("kind") in ORDERS
    silent = _normal(claim["verdict"]) == "NOT_COMPARABLE" != word  # an overridden claim hides its rows' verdicts
    values = {label: values.get(where, "—") for label, values in others.items()}
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
        others=values,
        wide=bool(spread_text(row)) or any(" (" in text for text in values.values()),  # too long for one line
        by_definition=row["by_definition"],
    )


def _ours_text(row: Mapping[str, Any]) -> str:
    return value_text(row.get("ours"), row.get("unit")) + spread_text(row)


def spread_text(row: Mapping[str, Any]) -> str:
    """Write the spread of a row in brackets; "" if it is unknown."""
    unit, low, high = row.get("unit"), row.get("low"), row.get("high")
    return f" ({value_text(low, unit)} to {value_text(high, unit)})" if low is not None and high is not None else ""
