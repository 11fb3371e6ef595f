"""The four verdicts, one comparison a row, and what a claim comes to.

Source: the workbench's own rules. A claim's verdict is the worst of its rows: disagrees, then not run, then not
comparable, then agrees.
Simplified: no degrees of agreement.
Left out: how each kind of claim compares its rows, see `workbench.reproduction.claims`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from workbench.study.rows import Key

__all__ = ["ORDERS", "ClaimVerdict", "Comparison", "Verdict", "worst"]

ORDERS = ("Ordering", "Trend")  # the kinds of claim whose rows have a verdict only together


class Verdict(StrEnum):
    """What a comparison comes to; always computed."""

    AGREES = "agrees"
    DISAGREES = "disagrees"
    NOT_COMPARABLE = "not comparable"
    NOT_RUN = "not run"


SEVERITY = (Verdict.DISAGREES, Verdict.NOT_RUN, Verdict.NOT_COMPARABLE, Verdict.AGREES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One published value beside ours."""

    where: Mapping[str, Key]  # the key columns of the row
    published: float | None  # the paper's value in `unit`, or what it implies; None where the paper gives none
    ours: float | None  # ours in `unit`; None where there is none
    unit: str  # of published, ours, difference, low and high
    verdict: Verdict  # of this row alone
    reason: str = ""  # why, where it is not AGREES
    source: str = ""  # where the paper says it
    low: float | None = None  # lower end of our spread
    high: float | None = None  # upper end of our spread
    by_definition: bool = False  # `published` is what the paper's definition implies, not a number it prints
    counts: bool = True  # False: of a cell of the calibration, or with nothing but such beside it

    @property
    def difference(self) -> float | None:
        """Ours minus published, in `unit`; None where one of them is missing."""
        if self.published is None or self.ours is None:
            return None
        return self.ours - self.published

    def to_json(self) -> dict[str, Any]:
        """Return the row of the record."""
        return {
            "where": dict(self.where),
            "published": self.published,
            "ours": self.ours,
            "unit": self.unit,
            "difference": self.difference,
            "source": self.source,
            "low": self.low,
            "high": self.high,
            "verdict": self.verdict.value,
            "reason": self.reason,
            "by_definition": self.by_definition,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimVerdict:
    """What one claim comes to."""

    claim: str  # name of the claim
    kind: str  # Within, Bound, Ordering, Trend or Crossover
    verdict: Verdict  # the worst of the rows, or what overrides them
    reason: str = ""  # why, where it is not AGREES
    because: str = ""  # reason of the tolerance or rule, fixed before the first run
    explanation: str = ""  # shown where the claim disagrees or cannot be compared
    source: str = ""  # where the paper says it
    rows: Sequence[Comparison] = field(default_factory=tuple)  # one comparison a row

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the record."""
        return {
            "claim": self.claim,
            "kind": self.kind,
            "verdict": self.verdict.value,
            "reason": self.reason,
            "because": self.because,
            "explanation": self.explanation,
            "source": self.source,
            "rows": [row.to_json() for row in self.rows],
        }


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the worst verdict; nothing compared is NOT_RUN."""
    return next((verdict for verdict in SEVERITY if verdict in verdicts), Verdict.NOT_RUN)
