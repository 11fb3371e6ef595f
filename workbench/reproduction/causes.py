"""The causes of disagreements: one thing is changed in the same item, and our number moves to the paper's.

A row of causes.csv names the claim, the change and the recorded value after it. A cause explains a disagreement only if
that value is at least twice as near to the paper's; else the disagreement is unexplained.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

from workbench.reproduction.catalogue import load_page
from workbench.reproduction.claims import Bound, Claim, Crossover, Ordering, Trend, Whose, Within
from workbench.reproduction.claims_table import read_table
from workbench.reproduction.comparing import ClaimVerdict, Verdict
from workbench.reproduction.declare import Reproduction
from workbench.reproduction.errors import CatalogueError, ClaimError
from workbench.reproduction.findings import BestRun
from workbench.reproduction.project import Project
from workbench.reproduction.regimes import Formula, read_formula

__all__ = ["Cause", "Disagreement", "Kind", "disagreements", "read_causes", "summary"]

FILE = "causes.csv"
NEEDED = ("item", "claim", "kind", "changed", "after")
MOST_TIMES = 1.5  # a disagreement by more needs a cause
SHARE_LEFT = 0.5  # most of the distance to the paper's number that an explained disagreement keeps


class Kind(StrEnum):
    """What an intervention showed to be the cause."""

    PAPER = "the paper contradicts itself"
    REGIME = "another regime"
    MODEL = "our model leaves something out"
    MACHINE = "this machine"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """One intervention."""

    kind: Kind
    changed: str  # the one thing that was changed
    item: str  # id of the item whose record holds the number after it
    after: Formula  # of an order, the value that should be larger over the one that should be smaller
    line: str  # file and line


@dataclass(frozen=True, kw_only=True, slots=True)
class Disagreement:
    """A claim that disagrees and needs a cause."""

    item: str  # id
    claim: Claim
    is_finding: bool  # whether a finding of the first page rests on it
    paper: float  # the paper's number; 1 for an order
    ours: float  # ours, that is furthest off; for an order, the quotient of the two values
    times: float  # how many times off; infinite where the signs differ
    cause: Cause | None
    after: float | None  # ours after the intervention; None where it is not recorded

    @property
    def is_explained(self) -> bool:
        """Whether the intervention brings our number at least twice as near to the paper's."""
        if self.after is None:
            return False
        return self._distance(self.after) <= SHARE_LEFT * self._distance(self.ours)

    def _distance(self, value: float) -> float:
        distance = value - self.paper
        if isinstance(self.claim, Bound):
            return max(0.0, distance if self.claim.at_least is None else -distance)
        return max(0.0, -distance) if isinstance(self.claim, (Ordering, Trend)) else abs(distance)

    def to_json(self) -> dict[str, Any]:
        """Return it as a dictionary; an infinite number of times is a text."""
        about: dict[str, Any] = {"item": self.item, "claim": self.claim.name, "whose": self.claim.whose.value}
        about |= {"finding": self.is_finding, "paper": self.paper, "ours": self.ours}
        times = self.times if math.isfinite(self.times) else "other sign, or 0"
        cause = self.cause and {"kind": self.cause.kind.value, "changed": self.cause.changed, "item": self.cause.item}
        explained = "explained" if self.is_explained else "unexplained"
        return about | {"times": times, "cause": cause, "after": self.after, "verdict": explained}


def disagreements(project: Project, runs: Mapping[str, BestRun]) -> tuple[Disagreement, ...]:
    """Return the disagreements that need a cause: of findings, and of the paper by more than 1.5 times."""
    disagreeing: list[Disagreement] = []
    for technique in dict.fromkeys(run.item.technique for run in runs.values()):
        causes = read_causes(project.reproductions / technique, [run.item for run in runs.values()])
        page, folder = load_page(project, technique), technique.replace("_", "-")
        of_page = {f"{folder}/{claim}" for finding in (page.findings if page else ()) for claim in finding.claims}
        for run in (run for run in runs.values() if run.item.technique == technique):
            for claim, verdict in _disagreeing(run):
                paper, ours, times = _off(claim, verdict)
                is_finding = f"{run.item.id}: {claim.name}" in of_page
                if not is_finding and (times <= MOST_TIMES or claim.whose is not Whose.PAPER or claim.repeats):
                    continue
                cause = causes.get((run.item.id, claim.name))
                disagreeing.append(
                    Disagreement(
                        item=run.item.id,
                        claim=claim,
                        is_finding=is_finding,
                        paper=paper,
                        ours=ours,
                        times=times,
                        cause=cause,
                        after=_after(cause, runs) if cause else None,
                    )
                )
    return tuple(disagreeing)


def _disagreeing(run: BestRun) -> list[tuple[Claim, ClaimVerdict]]:
    claims = {claim.name: claim for claim in run.item.claims}
    return [(claims[verdict.claim], verdict) for verdict in run.verdicts if verdict.verdict is Verdict.DISAGREES]


def _off(claim: Claim, verdict: ClaimVerdict) -> tuple[float, float, float]:
    """Return the paper's number, ours and how many times they differ, for the row that is furthest off."""
    if isinstance(claim, (Ordering, Trend)):
        steps = [(smaller.ours, row) for smaller, row in pairwise(verdict.rows)]
        quotients = [
            row.ours / smaller if smaller else math.inf
            for smaller, row in steps
            if row.verdict is Verdict.DISAGREES and row.ours is not None and smaller is not None
        ]
        least = min(quotients, default=0.0)
        return 1.0, least, _times(1.0, least)
    neutral = claim.no_effect if isinstance(claim, Within) else 0.0
    off = [
        (row.published, row.ours, _times(row.published - neutral, row.ours - neutral))
        for row in verdict.rows
        if row.verdict is Verdict.DISAGREES and row.published is not None and row.ours is not None
    ]
    asked = claim.at if isinstance(claim, Crossover) else math.nan
    return max(off, key=lambda numbers: numbers[2], default=(asked, math.nan, math.inf))


def _times(a: float, b: float) -> float:
    if a == b:
        return 1.0
    return max(a / b, b / a) if a * b > 0 else math.inf


def _after(cause: Cause, runs: Mapping[str, BestRun]) -> float | None:
    try:
        return cause.after.value(runs[cause.item].rows) if cause.item in runs else None
    except ClaimError as error:
        raise ClaimError(f"{cause.line}: {error}") from None


def summary(disagreeing: Sequence[Disagreement]) -> str:
    """Return how many disagreements have a cause, in a sentence."""
    unexplained = sum(not disagreement.is_explained for disagreement in disagreeing)
    return (
        f"Disagreements of main findings, and those by more than {MOST_TIMES} times: {len(disagreeing)}. "
        f"An intervention shows the cause of {len(disagreeing) - unexplained}; unexplained: {unexplained}."
    )


def read_causes(folder: Path, items: Iterable[Reproduction]) -> dict[tuple[str, str], Cause]:
    """Return the causes of a technique's folder by id of the item and claim; nothing where it has no causes.csv.

    `after` is a formula as in regimes.csv, of the item itself, or of another one that stands before ": ".
    """
    path = folder / FILE
    if not path.is_file():
        return {}
    prefix = folder.name.replace("_", "-")
    claims = {item.id: [claim.name for claim in item.claims] for item in items}
    causes: dict[tuple[str, str], Cause] = {}
    for line, row in read_table(path, NEEDED):
        id, (other, _, formula) = f"{prefix}/{row['item']}", row["after"].rpartition(": ")
        try:
            of_item = f"{prefix}/{other or row['item']}"
            if unknown := [name for name in (id, of_item) if name not in claims]:
                raise ValueError(f"item is {unknown[0]!r}, which is not declared")
            if row["claim"] not in claims[id]:
                raise ValueError(f"claim is {row['claim']!r}, which {id} does not have")
            if (id, row["claim"]) in causes:
                raise ValueError(f"claim {row['claim']!r} has two causes; give the one that explains it")
            if row["kind"] not in list(Kind):
                raise ValueError(f"kind is {row['kind']!r}; it must be one of {', '.join(Kind)}")
            if not row["changed"].strip():
                raise ValueError("changed is empty; it must say the one thing that was changed")
            after, place = read_formula(formula), f"{path}:{line}"
        except ValueError as error:
            raise CatalogueError(f"{path}:{line}: {error}") from None
        kind = Kind(row["kind"])
        causes[id, row["claim"]] = Cause(kind=kind, changed=row["changed"], item=of_item, after=after, line=place)
    return causes
