"""The cards of the first page: a paper's main statements, our findings, and what they mean for a user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from workbench.reproduction.audit import audit_of, share_noticed
from workbench.reproduction.causes import Disagreement, disagreements, summary
from workbench.reproduction.declare import Profile, Reproduction
from workbench.reproduction.findings import BestRun, Found, Paper, advice_tested, best_runs, papers_of
from workbench.reproduction.project import Project
from workbench.reproduction.regimes import place

from .items import ItemView
from .texts import MARKS, View, number_text, slug

__all__ = ["add_cards", "findings_markdown"]

SCORE_WORDS = {"agree": "AGREES", "disagree": "DISAGREES", "could not be tested": "NOT_COMPARABLE"}


def add_cards(report: View, project: Project, catalogue: Sequence[Reproduction]) -> None:
    """Give each technique of a report its card, and the report its score and the findings that disagree."""
    report.score, report.cautions, report.audit, report.causes, report.helpful, report.tested = "", (), "", "", (), ""
    for technique in report.techniques:
        technique.card, technique.regimes, technique.causes = None, (), ()
    if report.profile == Profile.SMOKE:
        return
    runs = best_runs(project, catalogue)
    papers = {paper.technique: paper for paper in papers_of(project, runs)}
    disagreeing = disagreements(project, runs)
    for technique in report.techniques:
        paper = papers[technique.name.replace(" ", "_")]
        technique.card = _card(paper, runs, {item.id: item for item in technique.items})
        technique.title = paper.name
        technique.causes = tuple(_cause(row) for row in disagreeing if runs[row.item].item.technique == paper.technique)
        technique.regimes = _regimes(run for run in runs.values() if run.item.technique == paper.technique)
    report.tested = advice_tested(runs)
    report.helpful = tuple(technique for technique in report.techniques if technique.card.use)
    report.cautions = tuple(
        (technique, finding) for technique in report.techniques for finding in technique.card.disagreeing
    )
    agree, disagree, rest = (
        sum(technique.card.score[word][1] for technique in report.techniques) for word in SCORE_WORDS.values()
    )
    noticed, applying = share_noticed([claim for run in runs.values() for claim in audit_of(project, run)])
    kinds = "no effect, the opposite effect, twice the effect, rows shuffled, another regime, switched off"
    report.audit = f"The claims notice {noticed} of {applying} falsified results ({kinds})."
    report.causes = summary(disagreeing)
    num_papers = len(report.techniques)
    num_slips = sum(paper.num_slips for paper in papers.values())
    slips = f" (slips of the papers themselves: {num_slips})" if num_slips else ""
    report.score = (
        f"{num_papers} paper{'s' if num_papers != 1 else ''}, {agree + disagree + rest} claims: "
        f"{agree} agree with the results here, {disagree} disagree{slips}, {rest} could not be tested."
    )


def _card(paper: Paper, runs: Mapping[str, BestRun], views: Mapping[str, ItemView]) -> View:
    page, findings = paper.page, tuple(_finding(finding, runs) for finding in paper.findings)
    pictured = views.get(f"{slug(paper.technique)}/{page.picture}") if page is not None else None
    picture = ""
    if pictured is not None:
        picture = next((figure.picture for figure in reversed(pictured.recorded_figures)), pictured.figure)
    return View(
        scale=page.scale if page is not None else "",
        use=tuple(_finding(finding, runs) for finding in paper.use),
        findings=findings,
        disagreeing=tuple(finding for finding in findings if finding.mark in ("DISAGREES", "IN_PART")),
        pictured=pictured,
        picture=picture,
        score={SCORE_WORDS[word]: (word, number) for word, number in paper.score.items()},
        num_slips=paper.num_slips,
    )


def _regimes(runs: Iterable[BestRun]) -> tuple[View, ...]:
    """Return a row for each ratio that decides claims: the paper's value, and ours by kind of evidence."""
    rows: dict[tuple[str, ...], View] = {}
    for run in runs:
        for placed in place(run.item.regimes, run.rows):
            regime = placed.regime
            key = (run.item.item, regime.ratio, regime.paper, regime.source)
            about = View(item=run.item.item, regime=regime, ours={})
            view = rows.setdefault(key, about)
            view.ours[run.item.evidence.name] = View(
                text="" if placed.ours is None else number_text(placed.ours), word=placed.word
            )
    return tuple(rows.values())


def _cause(row: Disagreement) -> View:
    """Return a disagreement with its cause, as texts."""
    cause = f"{row.cause.kind}: {row.cause.changed}" if row.cause and row.is_explained else "unexplained"
    after = "" if row.after is None else number_text(row.after)
    return View(
        claim=row.claim.name, paper=number_text(row.paper), ours=number_text(row.ours), after=after, cause=cause
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


def _texts(finding: Found) -> tuple[str, ...]:
    says, sentence = f"{finding.says} ({finding.source})", finding.sentence or "; ".join(finding.missing)
    evidence = "; ".join(", ".join([kind, *tags]) for kind, tags in finding.evidence)
    mark = f"{MARKS[_word(finding.mark)]} {finding.mark}"
    return says, sentence, mark, f"{evidence}: {'; '.join(finding.runs)}"


def _cell(text: str) -> str:
    """Escape bars and dollars, which Markdown reads as columns and formulas."""
    return text.replace("|", r"\|").replace("$", r"\$")


def _finding(finding: Found, runs: Mapping[str, BestRun]) -> View:
    links = []
    for id, verdict in finding.claims:
        item = runs[id].item
        anchor = f"{slug(f'{item.item} {item.evidence.value}')}-{slug(verdict.claim)}"
        links.append(
            View(name=verdict.claim, word=_word(verdict.verdict), link=f"{slug(item.technique)}.html#{anchor}")
        )
    mark = _word(finding.mark)
    deciding = sorted(links, key=lambda link: (link.word != mark, link.word != "DISAGREES"))
    return View(
        says=finding.says,
        source=finding.source,
        sentence=finding.sentence,
        missing="; ".join(finding.missing),
        mark=mark,
        link=deciding[0].link if deciding else "",  # link to the claim that decides the mark
        evidence=finding.evidence,
        runs=", ".join(finding.runs),
        claims=tuple(links),
        means=finding.means,
    )


def _word(word: str) -> str:
    return word.upper().replace(" ", "_")
