"""What a page shows of one item: its claims, values, figure, files, failure and recorded runs, as plain text.

Source: the record of the item (record.json), its declaration in the catalogue, and the recorded runs beside it.
Simplified: everything is text by the time it is here, so that the templates hold no arithmetic.
Left out: reading and writing files (gather.py, the package itself).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from workbench.reproduction.comparing import ORDERS

from .numbers import key_text, number_text, pairs_text, relative_text, seconds_text, value_text

__all__ = [
    "VERDICTS",
    "ClaimView",
    "FailureView",
    "Finding",
    "ItemView",
    "RecordedFigure",
    "RecordedView",
    "RowView",
    "claim_views",
    "count_recorded",
    "count_verdicts",
    "facts_of",
    "machine_text",
    "normal_verdict",
    "slug",
    "value_rows",
    "when_text",
]

VERDICTS = ("DISAGREES", "AGREES", "NOT_COMPARABLE", "NOT_RUN")  # the order in which a reader looks for them
HASH_SHOWN = 12  # characters of a checksum that tell two files apart
EXPLAINED = {"DISAGREES", "NOT_COMPARABLE"}  # the verdicts that a reader wants explained
VALUE_COLUMNS = {"quantity", "value", "unit", "low", "high"}


@dataclass(frozen=True, kw_only=True, slots=True)
class RowView:
    """One comparison of a claim."""

    where: str
    published: str
    published_exact: str
    ours: str
    ours_exact: str
    difference: str
    source: str
    verdict: str = ""  # of this row alone
    reason: str = ""
    recorded: str = ""  # the same value in the recorded run with its spread, where there is one
    wide: bool = False  # texts too long to keep on one line
    by_definition: bool = False  # `published` is what the paper's definition implies


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedView:
    """The verdict of one claim in a recorded run."""

    profile: str
    machine: str
    date: str
    verdict: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedFigure:
    """The figure of a recorded run."""

    profile: str
    machine: str
    date: str
    picture: str  # as a data address
    link: str  # the file, from the page


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What a run answers to its notebook's question."""

    run: str  # "this run", or a recorded one with its date
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimView:
    """One claim with its rows and its verdict."""

    name: str
    anchor: str
    verdict: str
    reason: str
    explanation: str
    rule: str
    rows: tuple[RowView, ...]
    recorded: tuple[RecordedView, ...] = ()

    @property
    def is_explained(self) -> bool:
        """Whether the explanation belongs to the claim's own verdict."""
        return bool(self.explanation) and self.verdict in EXPLAINED

    @property
    def explains_recorded(self) -> bool:
        """Whether the explanation belongs to the verdict of a recorded run alone."""
        told = any(other.verdict in EXPLAINED for other in self.recorded)
        return bool(self.explanation) and told and not self.is_explained

    @property
    def has_recorded(self) -> bool:
        """Whether any row has a value of a recorded run beside ours."""
        return any(row.recorded for row in self.rows)

    @property
    def has_verdicts(self) -> bool:
        """Whether any row has a verdict of its own that means something."""
        return any(row.verdict for row in self.rows)

    @property
    def has_differences(self) -> bool:
        """Whether the rows are judged by how far ours lies from the published value; those of an order are not."""
        return any(row.difference for row in self.rows)

    @property
    def has_sources(self) -> bool:
        """Whether any row says where the paper gives its value."""
        return any(row.source for row in self.rows)

    @property
    def published_label(self) -> str:
        """Say what ours is compared with: numbers the paper prints, or what its definition implies."""
        return "By definition" if any(row.by_definition for row in self.rows) else "Published"

    @property
    def recorded_label(self) -> str:
        """Name the recorded run whose values stand beside ours."""
        return f"{self.recorded[0].profile} run" if self.recorded else "run"


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureView:
    """The last failure of an item."""

    message: str
    traceback: str
    when: str
    links: tuple[tuple[str, str], ...] = ()  # the failed run's notebook and log


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemView:
    """One item of the catalogue as the report shows it."""

    id: str
    technique: str
    item: str
    evidence: str
    title: str
    page: str
    anchor: str
    has_record: bool
    date: str = ""
    duration: str = ""
    seconds: float = 0.0
    claims: tuple[ClaimView, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    values: tuple[Mapping[str, str], ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    figure: str = ""
    figure_link: str = ""
    thumbnail: str = ""
    recorded_figures: tuple[RecordedFigure, ...] = ()
    findings: tuple[Finding, ...] = ()
    failure: FailureView | None = None
    not_run: str = ""
    no_verdicts: str = ""
    refused: tuple[str, ...] = ()  # records of it that cannot be trusted, each in one line that names it
    wrong_files: tuple[str, ...] = ()  # files that are not those its record was sealed with
    standin: str = ""
    running: bool = False
    data: tuple[Mapping[str, str], ...] = ()
    machine: str = ""

    @property
    def recorded_counts(self) -> Mapping[str, Mapping[str, int]]:
        """Verdicts of its claims in each recorded run, by profile."""
        return count_recorded([self])

    @property
    def figure_anchor(self) -> str:
        """Where its first figure stands: this run's, or else that of a recorded run."""
        return (
            f"{self.anchor}-figure"
            if self.figure or not self.recorded_figures
            else f"{self.anchor}-figure-{self.recorded_figures[0].profile}"
        )


def slug(text: str) -> str:
    """Turn a name into what an address can carry."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def normal_verdict(word: Any) -> str:
    """Give a verdict's name as the enum spells it, whatever a record holds ("not comparable", "Verdict.AGREES", ...)."""
    return str(getattr(word, "name", word)).rsplit(".", 1)[-1].upper().replace(" ", "_").replace("-", "_")


def count_verdicts(words: Sequence[str]) -> dict[str, int]:
    """Count each verdict, in the order in which the report lists them."""
    return {word: sum(1 for other in words if other == word) for word in VERDICTS}


def count_recorded(items: Iterable[ItemView]) -> Mapping[str, Mapping[str, int]]:
    """Count each verdict of recorded runs, by profile."""
    words: dict[str, list[str]] = {}
    for item in items:
        for claim in item.claims:
            for other in claim.recorded:
                words.setdefault(other.profile, []).append(other.verdict)
    return {profile: count_verdicts(found) for profile, found in words.items()}


def when_text(stamp: Any) -> str:
    """Write a time stamp (ISO text or seconds since 1970) as a date and minute of this machine."""
    if isinstance(stamp, (int, float)):
        return datetime.fromtimestamp(stamp).strftime("%Y-%m-%d %H:%M")
    try:
        moment = datetime.fromisoformat(str(stamp))
    except ValueError:
        return str(stamp or "")
    return (moment.astimezone() if moment.tzinfo else moment).strftime("%Y-%m-%d %H:%M")


def machine_text(machine: Any) -> str:
    """Name a machine in one line from what the record holds of it."""
    if not isinstance(machine, Mapping):
        return str(machine or "")
    gpus = machine.get("gpus") or []
    cores = machine.get("cores")
    words = [str(machine.get("cpu") or ""), f"{cores} cores" if cores else "", ", ".join(map(str, gpus))]
    found = ", ".join(word for word in words if word)
    return found or key_text(machine)


def claim_views(
    verdicts: Sequence[Mapping[str, Any]],
    anchor: str,
    rules: Mapping[str, str],
    recorded: Sequence[tuple[str, Mapping[str, Any], Sequence[Mapping[str, Any]]]],
) -> tuple[ClaimView, ...]:
    """Turn verdicts into what a page shows.

    Args:
        verdicts: one mapping a claim, as records hold them.
        anchor: the item's anchor on its page.
        rules: by claim name, the rule and the reason of its tolerance.
        recorded: (profile, record, verdicts) of each recorded run of the item.

    Returns:
        One view a claim, in the order given.
    """
    return tuple(_claim_view(verdict, anchor, rules, recorded) for verdict in verdicts)


def _claim_view(verdict, anchor, rules, recorded) -> ClaimView:
    name = str(verdict.get("claim", ""))
    twins = [
        (profile, record, twin) for profile, record, others in recorded for twin in others if twin.get("claim") == name
    ]
    beside = {key_text(row.get("where")): row for row in (twins[0][2].get("rows") or ())} if twins else {}
    return ClaimView(
        name=name,
        anchor=f"{anchor}-{slug(name)}",
        verdict=normal_verdict(verdict.get("verdict")),
        reason=str(verdict.get("reason") or ""),
        explanation=str(verdict.get("explanation") or ""),
        rule=rules.get(name, ""),
        rows=tuple(_row_view(row, beside, verdict) for row in verdict.get("rows") or ()),
        recorded=tuple(
            RecordedView(
                profile=profile,
                machine=machine_text(record.get("machine")),
                date=when_text(record.get("started")),
                verdict=normal_verdict(twin.get("verdict")),
                reason=str(twin.get("reason") or ""),
            )
            for profile, record, twin in twins
        ),
    )


def _row_view(row: Mapping[str, Any], beside: Mapping[str, Mapping[str, Any]], claim: Mapping[str, Any]) -> RowView:
    unit, published, ours, where = row.get("unit"), row.get("published"), row.get("ours"), key_text(row.get("where"))
    word = normal_verdict(row.get("verdict") or "")
    silent = (
        normal_verdict(claim.get("verdict")) == "NOT_COMPARABLE" != word
    )  # what overrides the claim overrides its rows
    of_order = claim.get("kind") in ORDERS
    recorded = beside.get(where, {})
    return RowView(
        where=where,
        published=value_text(published, unit),
        ours=_ours_text(row),
        difference="" if of_order else relative_text(ours, published),
        source=str(row.get("source") or ""),
        reason="" if silent else str(row.get("reason") or ""),
        published_exact=_exact(published, unit),
        ours_exact=_exact(ours, unit),
        recorded=_ours_text(recorded) if recorded else "",
        verdict="" if silent or of_order else word,
        wide=bool(_spread_text(row) or _spread_text(recorded)),
        by_definition=bool(row.get("by_definition")),
    )


def _ours_text(row: Mapping[str, Any]) -> str:
    return value_text(row.get("ours"), row.get("unit")) + _spread_text(row)


def _spread_text(row: Mapping[str, Any]) -> str:
    unit, low, high = row.get("unit"), row.get("low"), row.get("high")
    return f" ({value_text(low, unit)} to {value_text(high, unit)})" if low is not None and high is not None else ""


def _origins_text(record: Mapping[str, Any]) -> str:
    """Say where a record's cells came from: "120 of commit abc on machine X, 30 here; they took 3 h 20 min"."""
    origins = record.get("cells") or ()
    told = []
    for origin in origins:
        here = _same_machine(origin.get("machine"), record.get("machine"))
        commit = (
            ""
            if here and origin.get("commit") == record.get("commit")
            else f" of commit {str(origin.get('commit'))[:HASH_SHOWN]}"
        )
        place = "here" if here else f"on {machine_text(origin.get('machine'))}"
        told.append(f"{origin.get('num_cells')}{commit} {place}")
    took = seconds_text(round(sum(float(origin.get("seconds") or 0) for origin in origins)))
    return f"{', '.join(told)}; they took {took}" if told else ""


def _same_machine(one: Any, other: Any) -> bool:
    return (
        isinstance(one, Mapping)
        and isinstance(other, Mapping)
        and all(one.get(name) == other.get(name) for name in ("host", "cpu"))
    )


def _exact(value: Any, unit: str | None) -> str:
    return "" if value is None else f"{value} {unit or ''}".strip()


def value_rows(values: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, str], ...]:
    """Turn a record's values into (name, text, exact) rows."""
    rows = []
    for value in values:
        keys = {name: part for name, part in value.items() if name not in VALUE_COLUMNS and part is not None}
        spread = (
            f" ({number_text(value['low'])} to {number_text(value['high'])})"
            if isinstance(value.get("low"), (int, float)) and isinstance(value.get("high"), (int, float))
            else ""
        )
        name = ", ".join(part for part in (str(value.get("quantity", "")).replace("_", " "), key_text(keys)) if part)
        rows.append(
            {
                "name": name,
                "text": value_text(value.get("value"), value.get("unit")) + spread,
                "exact": _exact(value.get("value"), value.get("unit")),
            }
        )
    return tuple(rows)


def facts_of(record: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """List what a reader needs to repeat the run: machine, data, configuration, versions."""
    pairs = [
        ("Machine", machine_text(record.get("machine"))),
        ("Date", when_text(record.get("started"))),
        ("Took", seconds_text(float(record.get("seconds") or 0))),
        ("Commit", str(record.get("commit") or "")),
    ]
    for title, name in (
        ("Parameters", "parameters"),
        ("Configuration", "configuration"),
        ("Calibrated on", "calibration"),
        ("Versions", "versions"),
        ("Environment", "environment"),
    ):
        held = record.get(name)
        pairs.append((title, pairs_text(held) if isinstance(held, Mapping) else str(held or "")))
    pairs.append(("Cells", _origins_text(record)))
    pairs.append(("Seeds", ", ".join(map(str, record.get("seeds") or ()))))
    for source in record.get("data") or ():
        digest = str(source.get("sha256") or "")[:HASH_SHOWN]
        words = (source.get("source"), source.get("detail"), f"sha256 {digest}" if digest else "")
        pairs.append((f"Data: {source.get('name')}", ", ".join(str(word) for word in words if word)))
    return tuple((name, text) for name, text in pairs if text)
