"""The findings that begin a technique's page: sentences with numbers from records, and a mark from their claims.

Each item contributes one run: the run of the largest profile, this machine's before the recorded run.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.reproduction.catalogue import find_item, load_catalogue, load_page
from workbench.reproduction.claims import Claim, Whose
from workbench.reproduction.comparing import ClaimVerdict, Verdict
from workbench.reproduction.declare import Finding, Page, Profile, Reproduction, Value
from workbench.reproduction.errors import CatalogueError, RecordError
from workbench.reproduction.judge import STAND_IN
from workbench.reproduction.project import ItemRun, Project
from workbench.reproduction.recording import verdicts_of
from workbench.reproduction.records import SealedRecord, merged_rows, record_of
from workbench.rows import Row, matches

__all__ = ["BestRun", "Found", "Paper", "best_runs", "check_page", "findings_of", "last_runs", "news_of", "papers_of"]
__all__ += ["recorded_values", "score"]

MOST_CLAIMS = 2  # claims printed for an item without a complete finding
IN_PART = "in part"  # mark of a finding some of whose claims agree and some do not
DECIDED = (Verdict.AGREES, Verdict.DISAGREES)
PROFILES = (Profile.PAPER, Profile.FULL, Profile.LAPTOP, Profile.QUICK)  # profiles with verdicts, the largest first


@dataclass(frozen=True, kw_only=True)
class BestRun:
    """An item with the run that the findings use."""

    item: Reproduction
    run: str  # "recorded full run" or "laptop run on this machine"; "" where there is none
    record: SealedRecord | None
    verdicts: tuple[ClaimVerdict, ...]
    is_own: bool = False  # whether this machine made it

    @property
    def rows(self) -> tuple[Row, ...]:
        """Its values, seeds merged into their mean."""
        return merged_rows(self.record) if self.record else ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A finding, ready to be read."""

    says: str
    source: str
    sentence: str  # "" where a number is missing
    missing: tuple[str, ...]  # missing numbers
    mark: str  # a verdict's word, or "in part"
    evidence: tuple[tuple[str, tuple[str, ...]], ...]  # kind of evidence and tags of the items it rests on
    runs: tuple[str, ...]
    claims: tuple[tuple[str, ClaimVerdict], ...]  # id of the item, and verdict
    means: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Paper:
    """What a paper is known for and what was found of it."""

    technique: str
    name: str
    page: Page | None  # None where its catalogue declares none
    findings: tuple[Found, ...]
    use: tuple[Found, ...]  # what it gains, and what it loses; () where its catalogue does not say
    score: Mapping[str, int]  # numbers of claims that agree, disagree and could not be tested
    num_slips: int = 0  # disagreements that are slips of the paper itself: its errata


def best_runs(project: Project, catalogue: Iterable[Reproduction]) -> dict[str, BestRun]:
    """Judge each item by its run of the largest profile, by id; records that cannot be trusted are skipped."""
    return {item.id: next(_runs(project, item, (True, False)), _no_run(item)) for item in catalogue}


def recorded_values(id: str, project: Project | None = None) -> list[dict[str, Any]]:
    """Return the values of an item's run of the largest profile for another item's picture; [] where there is none."""
    project = project or Project()
    record = best_runs(project, [find_item(load_catalogue(project), id)])[id].record
    return record["values"] if record else []


def last_runs(project: Project, catalogue: Iterable[Reproduction]) -> dict[str, BestRun]:
    """Judge each item by its last run, by id: this machine's run or the recorded run, whichever is newer."""
    last = {}
    for item in catalogue:
        runs = [run for is_own in (True, False) for run in [next(_runs(project, item, (is_own,)), None)] if run]
        last[item.id] = max(runs, key=lambda run: run.record["started"] if run.record else "", default=_no_run(item))
    return last


def news_of(project: Project, catalogue: Iterable[Reproduction], id: str, profile: str) -> tuple[str, ...]:
    """Return the results of this machine's run of an item, in sentences.

    These are the answer of its notebook, else the findings that this run completes, else the first claims of the paper.
    A run on stand-in data says nothing about the paper.
    """
    catalogue = list(catalogue)
    technique = find_item(catalogue, id).technique
    page, name = load_page(project, technique), id.partition("/")[2]
    findings = [finding for finding in page.findings if name in _items_of(finding)] if page else []
    named = {f"{id.partition('/')[0]}/{other}" for finding in findings for other in _items_of(finding)} | {id}
    runs = {
        item.id: next(_runs(project, item, (True,), (profile,)), _no_run(item))
        for item in catalogue
        if item.id in named
    }
    by_name = {run.item.id.partition("/")[2]: run for run in runs.values()}
    sources = [source for run in runs.values() if run.record for source in run.record["data"]]
    if names := [str(source["name"]) for source in sources if source["source"] == STAND_IN]:
        return (f"Stand-in data ({', '.join(dict.fromkeys(names))}): this says nothing about the paper.",)
    run = by_name[name]
    if run.record and run.record["finding"]:
        return (run.record["finding"],)
    complete = [finding for finding in findings if all(by_name[other].record for other in _items_of(finding))]
    results = [result for finding in complete if (result := _found(finding, by_name)).sentence]
    sentences = [f"{result.sentence} Paper: {result.says} {result.mark.capitalize()}." for result in results]
    decided = [verdict for verdict in run.verdicts if verdict.whose == Whose.PAPER and verdict.verdict in DECIDED]
    claims = [f"{verdict.claim}: {_numbers(verdict)}{verdict.verdict}." for verdict in decided[:MOST_CLAIMS]]
    return tuple(sentences or claims)


def _items_of(finding: Finding) -> list[str]:
    of_values = [value.item for value in finding.values.values()]
    return list(dict.fromkeys([*of_values, *(claim.partition(": ")[0] for claim in finding.claims)]))


def _numbers(verdict: ClaimVerdict) -> str:
    """Return our first value of that verdict beside the paper's, where both are numbers."""
    for row in verdict.rows:
        if row.verdict is verdict.verdict and row.ours is not None and row.published is not None:
            unit = "" if row.unit == "1" else f" {row.unit}"
            ours, published = (f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}" for x in (row.ours, row.published))
            return f"{ours}{unit} here, {published} in the paper; "
    return ""


def _no_run(item: Reproduction) -> BestRun:
    return BestRun(item=item, run="", record=None, verdicts=())


def _runs(
    project: Project, item: Reproduction, order: Sequence[bool], profiles: Sequence[str] = PROFILES
) -> Iterator[BestRun]:
    """Read an item's runs, largest profile first; `order` lists this machine's (True) and recorded (False) in order."""
    for profile in profiles:
        for is_own in order:
            run = f"{profile} run on this machine" if is_own else f"recorded {profile} run"
            try:
                record = record_of(ItemRun(project, item, profile), promoted=not is_own)
                verdicts = verdicts_of(project, item, record) if record is not None else ()
            except (RecordError, ValueError, KeyError):
                continue  # the report names it beside the item
            if record is not None:
                yield BestRun(item=item, run=run, record=record, verdicts=verdicts, is_own=is_own)


ADVICE = "espresso/advisor/measured"  # the blind test of `workbench advise`


def advice_tested(runs: Mapping[str, BestRun]) -> str:
    """Say what the blind test of `workbench advise` came to, or that it was not made."""
    values = {row.quantity: row.value for row in runs[ADVICE].rows if not row.keys} if ADVICE in runs else {}
    if not values:
        return "Its predictions are not tested blind yet."
    return (
        f"Tested blind in {values['settings']:.0f} drawn settings of 4 ranks on one machine: the advised scheme took "
        f"at most 10 % longer than the fastest in {values['num_within']:.0f}, the best plain one by prediction in "
        f"{values['num_plain_within']:.0f}; the median error of a predicted time was {values['median_error']:.0f} %."
    )


def papers_of(project: Project, runs: Mapping[str, BestRun]) -> tuple[Paper, ...]:
    """Return each paper with its findings, filled with the numbers of runs."""
    papers = []
    for technique in dict.fromkeys(run.item.technique for run in runs.values()):
        page = load_page(project, technique)
        if page is not None:
            check_page(page, technique, runs)
        papers.append(
            Paper(
                technique=technique,
                name=page.name if page and page.name else technique.replace("_", " ").capitalize(),
                page=page,
                findings=findings_of(page.findings, technique, runs) if page else (),
                use=findings_of(page.use.findings, technique, runs) if page and page.use else (),
                score=score(run for run in runs.values() if run.item.technique == technique),
                num_slips=sum(num_slips(run) for run in runs.values() if run.item.technique == technique),
            )
        )
    return tuple(papers)


def check_page(page: Page, technique: str, runs: Mapping[str, BestRun]) -> None:
    """Raise a CatalogueError where a page names an item or a claim that is not declared."""
    folder = technique.replace("_", "-")
    findings = [*page.findings, *(page.use.findings if page.use else ())]
    claims = [claim.partition(": ") for finding in findings for claim in finding.claims]
    values = [value for finding in findings for value in finding.values.values()]
    named = [page.picture, *(value.item for value in values), *(name for name, _, _ in claims)]
    if unknown := [name for name in named if f"{folder}/{name}" not in runs]:
        raise CatalogueError(f"PAGE of {technique} names the item {unknown[0]!r}, which is not declared")
    for name, _, claim in claims:
        if claim not in [known.name for known in runs[f"{folder}/{name}"].item.claims]:
            raise CatalogueError(f"PAGE of {technique} names the claim {claim!r}, which {name} does not declare")


def findings_of(findings: Iterable[Finding], technique: str, runs: Mapping[str, BestRun]) -> tuple[Found, ...]:
    """Fill each sentence and mark it."""
    by_name = {id.partition("/")[2]: run for id, run in runs.items() if run.item.technique == technique}
    return tuple(_found(finding, by_name) for finding in findings)


def _found(finding: Finding, runs: Mapping[str, BestRun]) -> Found:
    numbers = {name: _number(value, runs[value.item]) for name, value in finding.values.items()}
    missing = tuple(dict.fromkeys(number for number in numbers.values() if isinstance(number, str)))
    named = [(name, claim) for name, _, claim in (text.partition(": ") for text in finding.claims)]
    claims = []
    for name, claim in named:
        unknown = ClaimVerdict(claim=claim, kind="", verdict=Verdict.NOT_RUN, reason="no run yet")
        verdict = next((verdict for verdict in runs[name].verdicts if verdict.claim == claim), unknown)
        claims.append((runs[name].item.id, verdict))
    used = [runs[name] for name in _items_of(finding)]
    tags: dict[str, dict[str, None]] = {}
    for run in used:
        tags.setdefault(run.item.evidence.name, {}).update(dict.fromkeys(run.item.tags))
    return Found(
        says=finding.says,
        source=finding.source,
        sentence="" if missing else finding.ours.format(**numbers),
        missing=missing,
        mark=_mark([verdict.verdict for _, verdict in claims]),
        evidence=tuple((kind, tuple(of_kind)) for kind, of_kind in tags.items()),
        runs=tuple(dict.fromkeys(run.run for run in used if run.run)),
        claims=tuple(claims),
        means=finding.means,
    )


def _number(value: Value, run: BestRun) -> float | str:
    """Return the named number, or a text that says what is missing."""
    if run.record is None:
        return f"{value.item} has no run yet"
    rows = [row for row in run.rows if row.quantity == value.quantity and matches(row, value.where)]
    if len(rows) != 1:
        keys = ", ".join(f"{name} {key}" for name, key in value.where.items())
        return f"{value.item} ({run.run}) has {len(rows) or 'no'} rows of {value.quantity} for {keys or 'no key'}"
    return (rows[0].value - value.minus) * value.times


def _mark(words: Sequence[Verdict]) -> str:
    if Verdict.AGREES in words and Verdict.DISAGREES in words:
        return IN_PART
    order = (Verdict.AGREES, Verdict.DISAGREES, Verdict.NOT_COMPARABLE)
    return next((word for word in order if word in words), Verdict.NOT_RUN).value


def num_slips(run: BestRun) -> int:
    """Count the disagreements of a run that are slips of the paper itself, such as a sum that it prints wrong."""
    errata = {claim.name for claim in run.item.claims if claim.erratum and _is_scored(claim)}
    return sum(verdict.claim in errata for verdict in run.verdicts if verdict.verdict is Verdict.DISAGREES)


def _is_scored(claim: Claim) -> bool:
    return claim.whose is Whose.PAPER and not claim.repeats


def score(runs: Iterable[BestRun]) -> dict[str, int]:
    """Count the paper's own claims, each once: how many agree, disagree and could not be tested."""
    words = []
    for run in runs:
        verdicts = {verdict.claim: verdict.verdict for verdict in run.verdicts}
        claims = [claim for claim in run.item.claims if _is_scored(claim)]
        words += [verdicts.get(claim.name, Verdict.NOT_RUN) for claim in claims]
    tested = {"agree": words.count(Verdict.AGREES), "disagree": words.count(Verdict.DISAGREES)}
    return tested | {"could not be tested": len(words) - sum(tested.values())}
