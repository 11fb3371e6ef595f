"""The cards of the first page: a paper's main statements, our findings, and what they mean for a user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workbench.reproduction.audit import audit_of, share_noticed
from workbench.reproduction.declare import Profile, Reproduction
from workbench.reproduction.findings import BestRun, Found, Paper, best_runs, papers_of
from workbench.reproduction.project import Project

from .items import ItemView
from .texts import MARKS, View, slug

__all__ = ["add_cards", "findings_markdown"]

SCORE_WORDS = {"agree": "AGREES", "disagree": "DISAGREES", "could not be tested": "NOT_COMPARABLE"}


def add_cards(report: View, project: Project, catalogue: Sequence[Reproduction]) -> None:
    """Give each technique of a report its card, and the report its score and the findings that disagree."""
    report.score, report.cautions, report.audit = "", (), ""
    for technique in report.techniques:
        technique.card = None
    if report.profile == Profile.SMOKE:
        return
    runs = best_runs(project, catalogue)
    papers = {paper.technique: paper for paper in papers_of(project, runs)}
    for technique in report.techniques:
        paper = papers[technique.name.replace(" ", "_")]
        technique.card = _card(paper, runs, {item.id: item for item in technique.items})
        technique.title = paper.name
    report.cautions = tuple(
        (technique, finding) for technique in report.techniques for finding in technique.card.disagreeing
    )
    agree, disagree, rest = (
        sum(technique.card.score[word][1] for technique in report.techniques) for word in SCORE_WORDS.values()
    )
    noticed, applying = share_noticed([claim for run in runs.values() for claim in audit_of(project, run)])
    kinds = "no effect, the opposite effect, twice the effect, rows shuffled"
    report.audit = f"The claims notice {noticed} of {applying} falsified results ({kinds})."
    num_papers = len(report.techniques)
    report.score = (
        f"{num_papers} paper{'s' if num_papers != 1 else ''}, {agree + disagree + rest} claims: "
        f"{agree} agree with the results here, {disagree} disagree, {rest} could not be tested."
    )


def _card(paper: Paper, runs: Mapping[str, BestRun], views: Mapping[str, ItemView]) -> View:
    page, findings = paper.page, tuple(_finding(finding, runs) for finding in paper.findings)
    pictured = views.get(f"{slug(paper.technique)}/{page.picture}") if page is not None else None
    picture = ""
    if pictured is not None:
        picture = next((figure.picture for figure in reversed(pictured.recorded_figures)), pictured.figure)
    return View(
        scale=page.scale if page is not None else "",
        findings=findings,
        disagreeing=tuple(finding for finding in findings if finding.mark in ("DISAGREES", "IN_PART")),
        pictured=pictured,
        picture=picture,
        score={SCORE_WORDS[word]: (word, number) for word, number in paper.score.items()},
    )


def findings_markdown(project: Project, catalogue: Sequence[Reproduction]) -> str:
    """Return one table per paper: its statements, our findings, verdicts and evidence."""
    tables = []
    for paper in papers_of(project, best_runs(project, catalogue)):
        score = ", ".join(f"{number} {word}" for word, number in paper.score.items())
        tables += [f"**{paper.name}** · claims of the paper: {score}\n"]
        tables += ["| the paper says | found here | verdict | evidence |", "|:--|:--|:--|:--|"]
        tables += [f"| {' | '.join(_cell(text) for text in _texts(finding))} |" for finding in paper.findings]
        tables += [""]
    return "\n".join(tables)


def _texts(found: Found) -> tuple[str, ...]:
    says, sentence = f"{found.says} ({found.source})", found.sentence or "; ".join(found.missing)
    evidence = "; ".join(", ".join([kind, *tags]) for kind, tags in found.evidence)
    mark = f"{MARKS[_word(found.mark)]} {found.mark}"
    return says, sentence, mark, f"{evidence}: {'; '.join(found.runs)}"


def _cell(text: str) -> str:
    """Escape bars and dollars, which Markdown reads as columns and formulas."""
    return text.replace("|", r"\|").replace("$", r"\$")


def _finding(found: Found, runs: Mapping[str, BestRun]) -> View:
    links = []
    for id, verdict in found.claims:
        item = runs[id].item
        anchor = f"{slug(f'{item.item} {item.evidence.value}')}-{slug(verdict.claim)}"
        links.append(
            View(name=verdict.claim, word=_word(verdict.verdict), link=f"{slug(item.technique)}.html#{anchor}")
        )
    mark = _word(found.mark)
    deciding = sorted(links, key=lambda link: (link.word != mark, link.word != "DISAGREES"))
    return View(
        says=found.says,
        source=found.source,
        sentence=found.sentence,
        missing="; ".join(found.missing),
        mark=mark,
        link=deciding[0].link if deciding else "",  # link to the claim that decides the mark
        evidence=found.evidence,
        runs=", ".join(found.runs),
        claims=tuple(links),
        means=found.means,
    )


def _word(word: str) -> str:
    return word.upper().replace(" ", "_")
