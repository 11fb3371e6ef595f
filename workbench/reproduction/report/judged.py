"""The claims of one item as the report shows them: judged anew, beside recorded runs, with each rule in words.

Source: the workbench's own rule: verdicts come from `workbench.reproduction.judge` alone, computed from the recorded values
and the published numbers as these are now, so that a change in either shows without a new run.
Simplified: a claim that cannot be judged as it is written is shown as not run, with the error.
Left out: running anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from workbench.reproduction.claims import Bound, Claim, Crossover, Ordering, Trend, Within
from workbench.reproduction.declare import Profile, Reproduction
from workbench.reproduction.errors import RecordError
from workbench.reproduction.project import Project
from workbench.reproduction.recorded import promoted_path
from workbench.reproduction.recording import verdicts_of
from workbench.reproduction.records import read_record

from .numbers import number_text
from .views import ClaimView, claim_views

__all__ = ["RecordedRun", "claims_of", "recorded_beside", "rule_text", "trusted_record"]

RecordedRun = tuple[str, Mapping[str, Any], Sequence[Mapping[str, Any]]]  # profile, record, its verdicts as of now

NOTHING_RECORDED = MappingProxyType(
    {"values": (), "data": (), "calibration": None, "not_comparable": MappingProxyType({})}
)


def trusted_record(path: Path, item: Reproduction, profile: str) -> tuple[dict[str, Any] | None, str]:
    """Read a record.

    Args:
        path: where it lies.
        item: whose record belongs there.
        profile: the profile whose record belongs there.

    Returns:
        The record or None, and why it was refused where it is there and cannot be trusted.
    """
    try:
        return read_record(path, id=item.id, profile=profile), ""
    except FileNotFoundError:
        return None, ""
    except RecordError as error:
        return None, str(error)


def recorded_beside(
    project: Project, item: Reproduction, profile: str, record: Mapping[str, Any] | None
) -> tuple[tuple[RecordedRun, ...], tuple[str, ...]]:
    """Read the promoted records that say more than this machine's own.

    Returns:
        Those that can be trusted, and one line for each that was refused.
    """
    if profile == Profile.SMOKE:
        return (), ()
    found = [
        (other, *trusted_record(promoted_path(project, item, other), item, other))
        for other in _profiles_beside(profile, record)
    ]
    runs = tuple((other, held, _verdicts(project, item, held)) for other, held, _ in found if held is not None)
    return runs, tuple(refused for _, _, refused in found if refused)


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
    """Judge the claims of an item.

    Args:
        project: where the published numbers lie.
        item: the item.
        profile: the profile the report is of; smoke gives no verdicts.
        record: the item's record, or None.
        beside: recorded runs to show beside it.
        anchor: the item's anchor on its page.
        missing: what is missing, where there is no record.

    Returns:
        One view a claim.
    """
    if profile == Profile.SMOKE:
        return ()
    verdicts = _verdicts(project, item, record) if record else _without_record(project, item, missing)
    return claim_views(verdicts, anchor, {claim.name: rule_text(claim) for claim in item.claims}, beside)


def _profiles_beside(profile: str, record: Mapping[str, Any] | None) -> Sequence[str]:
    """Larger profiles, whose recorded runs say more; the profile itself too where this machine has no record."""
    order = [known.value for known in Profile]
    return order[order.index(profile) + (record is not None) :]


def _verdicts(project: Project, item: Reproduction, record: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        return [verdict.to_json() for verdict in verdicts_of(project, item, record)]
    except (ValueError, KeyError) as error:  # the claims changed since the record was made
        return [_bare(claim, f"It cannot be judged: {error}") for claim in item.claims]


def _without_record(project: Project, item: Reproduction, missing: str) -> list[dict[str, Any]]:
    found = _verdicts(project, item, NOTHING_RECORDED)
    return [
        verdict | {"verdict": "not run", "reason": missing, "rows": [row | {"reason": ""} for row in verdict["rows"]]}
        for verdict in found
    ]


def _bare(claim: Claim, reason: str) -> dict[str, Any]:
    return {"claim": claim.name, "verdict": "not run", "reason": reason, "explanation": claim.explanation, "rows": []}


def rule_text(claim: Claim) -> str:
    """Say a claim's rule in words, with the reason of its tolerance."""
    sentences = [_rule(claim), f"Reason: {claim.because}", f"Paper: {claim.source}" if claim.source else ""]
    return " ".join(f"{text[:1].upper()}{text[1:].rstrip('.')}." for text in sentences if text)


def _rule(claim: Claim) -> str:
    quantity = claim.quantity.replace("_", " ")
    if isinstance(claim, Within):
        nearness = "equal to" if 0 in (claim.rel, claim.abs) else f"within {_tolerance(claim)} of"
        other = (
            "the published value"
            if claim.expected is None
            else f"{number_text(claim.expected)}, expected by definition"
        )
        return f"{quantity} {nearness} {other}"
    if isinstance(claim, Bound):
        return f"{quantity} {'at most' if claim.at_least is None else 'at least'} {number_text(claim.limit)}, whole interval"
    if isinstance(claim, Ordering):
        return f"{quantity} rises in the order {', '.join(map(str, claim.order))}"
    if isinstance(claim, Trend):
        return f"{quantity} is {claim.direction} along {claim.along.replace('_', ' ')}"
    if isinstance(claim, Crossover):
        return (
            f"{quantity} of {claim.between[0]} and {claim.between[1]} cross once along {claim.along.replace('_', ' ')}, "
            f"within {_tolerance(claim)} of {number_text(claim.at)} {claim.unit}".rstrip()
        )
    return quantity


def _tolerance(claim: Within | Crossover) -> str:
    return number_text(claim.abs) if claim.rel is None else f"{number_text(100 * claim.rel)} %"
