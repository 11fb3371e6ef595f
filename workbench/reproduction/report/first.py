"""The cards of the first page: what a paper is known for, what was found, and what that means for a user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workbench.reproduction.audit import audit_of, share_noticed
from workbench.reproduction.catalogue import load_page, published_rows
from workbench.reproduction.declare import Profile, Reproduction
from workbench.reproduction.findings import BestRun, Found, best_runs, check_page, findings_of, score
from workbench.reproduction.project import Project

from .items import ItemView
from .texts import View, slug

__all__ = ["add_cards"]

SCORE_WORDS = {"agree": "AGREES", "disagree": "DISAGREES", "could not be tested": "NOT_COMPARABLE"}


def add_cards(report: View, project: Project, catalogue: Sequence[Reproduction]) -> None:
    """Give each technique of a report its card, and the report its score and what disagrees of its findings."""
    report.score, report.cautions, report.audit = "", (), ""
    for technique in report.techniques:
        technique.card = None
    if report.profile == Profile.SMOKE:
        return
    runs = best_runs(project, catalogue)
    for technique in report.techniques:
        technique.card = _card(
            project, technique.name.replace(" ", "_"), runs, {item.id: item for item in technique.items}
        )
        technique.title = technique.card.name or technique.title
    report.cautions = tuple(
        (technique, finding) for technique in report.techniques for finding in technique.card.disagreeing
    )
    agree, disagree, rest = (
        sum(technique.card.score[word][1] for technique in report.techniques) for word in SCORE_WORDS.values()
    )
    audited = [audit_of(run, published_rows(project, run.item)) for run in runs.values()]
    noticed, applying = share_noticed([claim for item in audited for claim in item])
    falsified = f"{applying} falsified results (no effect, the opposite, twice the effect, rows shuffled)"
    report.audit = f"Of {falsified} the claims notice {noticed}."
    report.score = (
        f"{len(report.techniques)} paper{'s' if len(report.techniques) != 1 else ''}, {agree + disagree + rest} claims "
        f"of theirs: {agree} agree with what was found here, {disagree} disagree, {rest} could not be tested."
    )


def _card(project: Project, technique: str, runs: Mapping[str, BestRun], views: Mapping[str, ItemView]) -> View:
    page = load_page(project, technique)
    own = [run for run in runs.values() if run.item.technique == technique]
    findings: tuple[View, ...] = ()
    if page is not None:
        check_page(page, technique, runs)
        findings = tuple(_finding(found, runs) for found in findings_of(page, technique, runs))
    pictured = views.get(f"{slug(technique)}/{page.picture}") if page is not None else None
    return View(
        name=page.name if page is not None else "",
        scale=page.scale if page is not None else "",
        findings=findings,
        disagreeing=tuple(finding for finding in findings if finding.mark in ("DISAGREES", "IN_PART")),
        pictured=pictured,
        picture=_picture(pictured),
        score={SCORE_WORDS[word]: (word, number) for word, number in score(own).items()},
    )


def _picture(item: ItemView | None) -> str:
    if item is None:
        return ""
    return next((figure.picture for figure in reversed(item.recorded_figures)), item.figure)


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
        link=deciding[0].link if deciding else "",  # of the claim that decides the mark
        evidence=found.evidence,
        runs=", ".join(found.runs),
        claims=tuple(links),
        means=found.means,
    )


def _word(word: str) -> str:
    return word.upper().replace(" ", "_")
