"""From values and claims to verdicts: the one place where a verdict comes from.

Source: the workbench's own rules.
Simplified: a claim about real data is comparable with real data alone; nothing in between.
Left out: how each kind of claim compares, see `workbench.reproduction.claims`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.reproduction.claims import Claim
from workbench.reproduction.comparing import CALIBRATED
from workbench.reproduction.verdicts import ClaimVerdict, Comparison, Verdict, worst
from workbench.study.rows import Row, matches, merge_seeds

__all__ = ["judge"]

STAND_IN = "stand-in"


def judge(
    claims: Sequence[Claim],
    ours: Sequence[Row],
    published: Sequence[Row],
    *,
    sources: Sequence[Mapping[str, Any]] = (),
    calibrated_on: Iterable[Mapping[str, Any]] = (),
    not_comparable: Mapping[str, str] | None = None,
) -> tuple[ClaimVerdict, ...]:
    """Compute the verdict of every claim.

    Args:
        claims: the claims of one item.
        ours: our values; rows that differ by seed alone are merged first.
        published: the paper's values.
        sources: where our data came from, each with `name` and `source`.
        calibrated_on: keys (and `quantity`) of the published cells that a cost model was calibrated on.
        not_comparable: name of a claim to the reason why it cannot be compared.

    Returns:
        One verdict a claim, in their order.

    Raises:
        ClaimError: where a claim cannot be judged as it is written.
        ValueError: where `not_comparable` names no claim.
    """
    reasons = dict(not_comparable or {})
    if strange := set(reasons) - {claim.name for claim in claims}:
        raise ValueError(f"not_comparable names {sorted(strange)[0]!r}, which is no claim of this item")
    if bare := [name for name, reason in reasons.items() if not str(reason).strip()]:
        raise ValueError(f"not_comparable gives no reason for {bare[0]!r}")
    merged, cells = merge_seeds(ours), list(calibrated_on)
    return tuple(_judge_one(claim, merged, published, sources, cells, reasons.get(claim.name, "")) for claim in claims)


def _judge_one(
    claim: Claim,
    ours: Sequence[Row],
    published: Sequence[Row],
    sources: Sequence[Mapping[str, Any]],
    cells: Sequence[Mapping[str, Any]],
    not_comparable: str,
) -> ClaimVerdict:
    marked = [replace(row, calibrated=_is_calibrated(row, cells)) for row in ours]
    rows = [_without_calibration(row, claim, cells) for row in claim.compare(marked, published)]
    counted = [row for row in rows if row.counts] or rows
    verdict = worst([row.verdict for row in counted])
    reason = _reason(claim, verdict, counted)
    override = not_comparable or (_unreal(sources) if claim.needs_real_data else "")
    if override and verdict is not Verdict.NOT_RUN:
        verdict, reason = Verdict.NOT_COMPARABLE, override
        rows = [replace(row, verdict=verdict, reason=override) for row in rows]
    return ClaimVerdict(
        claim=claim.name,
        kind=type(claim).__name__,
        verdict=verdict,
        reason=reason,
        because=claim.because,
        explanation=claim.explanation,
        source=claim.source,
        rows=tuple(rows),
    )


def _is_calibrated(row: Row, cells: Sequence[Mapping[str, Any]]) -> bool:
    return any(
        cell.get("quantity", row.quantity) == row.quantity
        and matches(row, {name: key for name, key in cell.items() if name != "quantity"})
        for cell in cells
    )


def _without_calibration(row: Comparison, claim: Claim, cells: Sequence[Mapping[str, Any]]) -> Comparison:
    if not _is_calibrated(Row(quantity=claim.quantity, value=0.0, unit=row.unit, keys=row.where), cells):
        return row
    return replace(row, verdict=Verdict.NOT_COMPARABLE, reason=CALIBRATED, counts=False)


def _unreal(sources: Sequence[Mapping[str, Any]]) -> str:
    if not sources:
        return "the claim needs real data, and the run names no data source"
    names = [str(source["name"]) for source in sources if source["source"] == STAND_IN]
    return f"a stand-in took the place of {', '.join(names)}" if names else ""


def _reason(claim: Claim, verdict: Verdict, rows: Sequence[Comparison]) -> str:
    if not rows:
        return f"claim {claim.name!r} matches no rows of {claim.quantity!r}"
    if verdict is Verdict.AGREES:
        return ""
    guilty = [row for row in rows if row.verdict is verdict]
    first = guilty[0].reason
    return first if len(guilty) == 1 else f"{len(guilty)} of {len(rows)} rows; the first: {first}"
