"""The claims of one item as the report shows them: judged anew, beside recorded runs, with each rule in words.

Source: DESIGN, "How a number travels". Verdicts come from `workbench.reproduction.judge` alone; they are computed from the
recorded values and the published numbers as these are now, so that a change in either shows without a new run.
Simplified: a claim that cannot be judged as it is written is shown as not run, with the error.
Left out: running anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from workbench.reproduction.claims import Claim, Crossover, Ordering, Trend, Within
from workbench.reproduction.declare import Profile, Reproduction
from workbench.reproduction.errors import RecordError
from workbench.reproduction.project import Project
from workbench.reproduction.recorded import promoted_path
from workbench.reproduction.recording import verdicts_of
from workbench.reproduction.records import read_record

from .numbers import number_text
from .views import ClaimView, claim_views

__all__ = ["claims_of", "rule_text", "trusted_record"]

NOTHING_RECORDED = MappingProxyType({"values": (), "data": (), "calibration": None, "not_comparable": MappingProxyType({})})


def trusted_record(path: Path) -> tuple[dict[str, Any] | None, str]:
    """Read a record.

    Returns:
        The record or None, and why it was refused where it is there and cannot be trusted.
    """
    try:
        return read_record(path), ""
    except FileNotFoundError:
        return None, ""
    except RecordError as error:
        return None, str(error)


def claims_of(project: Project, item: Reproduction, profile: str, record: Mapping[str, Any] | None, *, anchor: str,
              missing: str) -> tuple[ClaimView, ...]:
    """Judge the claims of an item.

    Args:
        project: where the published numbers and the recorded runs lie.
        item: the item.
        profile: the profile the report is of; smoke gives no verdicts.
        record: the item's record, or None.
        anchor: the item's anchor on its page.
        missing: what is missing, where there is no record.

    Returns:
        One view a claim.
    """
    if profile == Profile.SMOKE:
        return ()
    beside = []
    for other in _profiles_beside(profile, record):
        held, _ = trusted_record(promoted_path(project, item, other))
        if held is not None:
            beside.append((other, held, _verdicts(project, item, held)))
    verdicts = _verdicts(project, item, record) if record else _without_record(project, item, missing)
    return claim_views(verdicts, anchor, {claim.name: rule_text(claim) for claim in item.claims}, beside)


def _profiles_beside(profile: str, record: Mapping[str, Any] | None) -> Sequence[str]:
    """Larger profiles, whose recorded runs say more; the profile itself too where this machine has no record."""
    order = [known.value for known in Profile]
    return order[order.index(profile) + (record is not None):]


def _verdicts(project: Project, item: Reproduction, record: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        return [verdict.to_json() for verdict in verdicts_of(project, item, record)]
    except (ValueError, KeyError) as error:  # the claims changed since the record was made
        return [_bare(claim, f"It cannot be judged: {error}") for claim in item.claims]


def _without_record(project: Project, item: Reproduction, missing: str) -> list[dict[str, Any]]:
    found = _verdicts(project, item, NOTHING_RECORDED)
    return [verdict | {"verdict": "not run", "reason": missing, "rows": [row | {"reason": ""} for row in verdict["rows"]]}
            for verdict in found]


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
        other = "the published value" if claim.expected is None else f"{number_text(claim.expected)}, expected by definition"
        return f"{quantity} {nearness} {other}"
    if isinstance(claim, Ordering):
        return f"{quantity} rises in the order {', '.join(map(str, claim.order))}"
    if isinstance(claim, Trend):
        return f"{quantity} is {claim.direction} along {claim.along.replace('_', ' ')}"
    if isinstance(claim, Crossover):
        return (f"{quantity} of {claim.between[0]} and {claim.between[1]} cross once along {claim.along.replace('_', ' ')}, "
                f"within {_tolerance(claim)} of {number_text(claim.at)} {claim.unit}".rstrip())
    return quantity


def _tolerance(claim: Within | Crossover) -> str:
    return number_text(claim.abs) if claim.rel is None else f"{number_text(100 * claim.rel)} %"
