"""The report: one static page over all items of a profile and one a technique, readable from disk and on a phone.

Source: the workbench's own rule: of each claim the paper's value, ours, the difference, the evidence and the verdict.
Simplified: every page is written anew at each update; figures are embedded, so a page needs no other file.
Left out: scripts, fonts and anything from the network; a page's policy forbids them, also those in a notebook's outputs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.reproduction.declare import Reproduction
from workbench.reproduction.project import Project
from workbench.reproduction.records import write_whole

from .gather import EVIDENCE_MEANINGS, PROFILE_MEANINGS, VERDICT_MEANINGS, Report, gather
from .judged import rule_text
from .notebooks import mark_current, notebook_body, notebook_page, stale_notebooks

__all__ = [
    "EVIDENCE_MEANINGS",
    "PROFILE_MEANINGS",
    "VERDICT_MEANINGS",
    "gather",
    "report_path",
    "rule_text",
    "write_report",
]

if TYPE_CHECKING:
    from jinja2 import Environment

MARKS = {"AGREES": "✓", "DISAGREES": "✕", "NOT_COMPARABLE": "?", "NOT_RUN": "○"}


def report_path(project: Project, profile: str) -> Path:
    """Return where the report of a profile begins: results/<profile>/report/index.html."""
    return project.results_of(profile) / "report" / "index.html"


def write_report(
    project: Project,
    catalogue: Sequence[Reproduction],
    profile: str,
    *,
    running: Sequence[str] = (),
    progress: str = "",
    under_way: bool = False,
    notebooks: bool = False,
) -> Path:
    """Write the pages of one profile, each moved into place when it is whole.

    Args:
        project: where the folders are.
        catalogue: the declared items.
        profile: "smoke", "laptop", "full" or "paper".
        running: ids of the items that run now.
        progress: a sentence on the run under way.
        under_way: whether a run is under way; the first page then reloads itself.
        notebooks: whether to turn executed notebooks into pages too, which takes seconds where one is new.

    Returns:
        The path of the first page.
    """
    templates, first = _templates(), report_path(project, profile)
    first.parent.mkdir(parents=True, exist_ok=True)
    style = files(__package__).joinpath("templates", "style.css").read_text(encoding="utf-8")
    report = gather(project, catalogue, profile, running=running, progress=progress, under_way=under_way)
    for item, notebook in stale_notebooks(project, catalogue, profile) if notebooks else ():
        _write_notebook(templates, report, project, item, notebook, style)
    if notebooks:
        report = gather(project, catalogue, profile, running=running, progress=progress, under_way=under_way)
    page = templates.get_template("technique.html.j2")
    for technique in report.techniques:
        write_whole(first.with_name(technique.page), page.render(report=report, technique=technique, style=style))
    write_whole(first, templates.get_template("index.html.j2").render(report=report, style=style))
    for stale in {*first.parent.glob("*.html")} - {
        first,
        *(first.with_name(technique.page) for technique in report.techniques),
    }:
        stale.unlink(missing_ok=True)  # of a technique that is gone
    _remove_pages_of_no_item(project, catalogue, profile)
    return first


def _remove_pages_of_no_item(project: Project, catalogue: Sequence[Reproduction], profile: str) -> None:
    report, names = (
        report_path(project, profile).parent,
        {notebook_page(project, item, profile).stem for item in catalogue},
    )
    for path in (*report.glob("notebooks/*.html"), *report.glob("thumbnails/*.png")):
        if path.stem not in names:
            path.unlink(missing_ok=True)


def _write_notebook(
    templates: Environment, report: Report, project: Project, item: Reproduction, notebook: Path, style: str
) -> None:
    page = notebook_page(project, item, report.profile)
    page.parent.mkdir(parents=True, exist_ok=True)
    view = next(view for technique in report.techniques for view in technique.items if view.id == item.id)
    template = templates.get_template("notebook.html.j2")
    write_whole(
        page,
        template.render(
            report=report, item=item, page=view.page, anchor=view.anchor, body=notebook_body(notebook), style=style
        ),
    )
    mark_current(page, notebook)


def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup, escape

    environment = Environment(
        loader=PackageLoader(__package__, "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["mark"] = lambda word: MARKS.get(word, "·")
    environment.filters["words"] = lambda word: str(word).replace("_", " ")
    environment.filters["css"] = lambda word: str(word).lower().replace("_", "-")
    environment.filters["explain"] = lambda word: EVIDENCE_MEANINGS.get(word, "")
    environment.filters["code"] = lambda text: Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
    environment.filters["trusted"] = (
        Markup  # our own style sheet, and what nbconvert made, whose scripts the page's policy forbids
    )
    return environment
