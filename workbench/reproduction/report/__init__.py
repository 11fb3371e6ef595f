"""The report: one static page for all items of a profile and one per technique; no page needs another file.

A page's policy forbids scripts, fonts and the network; only the search of claims and the charts have their own script,
which the policy names by its digest. Only the harmless part of an executed notebook's HTML is shown.
"""

from __future__ import annotations

import os
import re
import shutil
from base64 import b64encode
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.reproduction.declare import Profile, Reproduction
from workbench.reproduction.differing import Compared, compare
from workbench.reproduction.errors import UsageError
from workbench.reproduction.files import misfits, write_whole
from workbench.reproduction.project import ItemRun, Project
from workbench.reproduction.schema import ARTIFACTS, inside, read_text

from .charts import chart_script
from .claims import WHOSE_MEANINGS, rule_text, trusted_record
from .compared import compared_view, difference_texts
from .first import add_cards, findings_markdown
from .foreign import FORMULA, harmless_html
from .gather import EVIDENCE_MEANINGS, PROFILE_MEANINGS, VERDICT_MEANINGS, gather
from .pictures import formula_html
from .publish import single_file, write_site
from .texts import MARKS, View, about_text, number_text, relative_text, seconds_text, took_text, value_text, when_text

if TYPE_CHECKING:
    from jinja2 import Environment
    from nbformat import NotebookNode

__all__ = ["EVIDENCE_MEANINGS", "PROFILE_MEANINGS", "VERDICT_MEANINGS", "about_text", "findings_markdown"]
__all__ += ["compared_page", "difference_texts"]
__all__ += ["formula_html", "gather", "notebook_html", "number_text", "relative_text", "report_path", "rule_text"]
__all__ += ["seconds_text"]
__all__ += ["single_file", "style_sheet", "took_text", "value_text", "write_report", "write_site"]

NOTEBOOK_FILE = ARTIFACTS["notebook"]
SHOWN = (
    "text/html",
    "text/markdown",
    "text/latex",
    "image/png",
    "image/jpeg",
    "text/plain",
)  # allowed forms of an output, best first; no scripts
CLAIMS, ERRATA, COMPARED = "claims.html", "errata.html", "compare.html"


def report_path(project: Project, profile: str) -> Path:
    """Return the first page of a profile's report."""
    return project.results_of(profile) / "report" / "index.html"


def write_report(
    project: Project,
    catalogue: Sequence[Reproduction],
    profile: str,
    *,
    running: Sequence[str] = (),
    progress: str = "",
    under_way: bool = False,
    changed: Collection[str] | None = None,
    notebooks: bool = False,
    anew: bool = False,
    report: View | None = None,
) -> Path:
    """Write a profile's pages and return the first.

    Args:
        project: where records and pages lie.
        catalogue: the items of the report.
        profile: the profile of the records.
        running: ids of running items.
        progress: a sentence on the run under way.
        under_way: whether a run is under way.
        changed: techniques whose pages are written; None for all.
        notebooks: whether executed notebooks are rendered, in seconds each.
        anew: whether to remove earlier pages and pictures first, since another person may have written them.
        report: the report as `gather` has just laid it out; it is gathered again where a notebook is rendered.

    Raises:
        RecordError: if the report's folder is a symbolic link.
    """
    templates, first = _templates(), report_path(project, profile)
    for name in ("notebooks", "thumbnails"):
        inside(project.results_of(profile), "report", name)
    if anew and first.parent.exists():
        shutil.rmtree(first.parent)
    first.parent.mkdir(parents=True, exist_ok=True)
    style = style_sheet()
    stale = list(_stale_notebooks(project, catalogue, profile)) if notebooks else []
    for _, _, page in stale:  # the report links to existing pages
        page.parent.mkdir(parents=True, exist_ok=True)
        page.touch()
    if report is None or stale:
        state: dict[str, Any] = {"running": running, "progress": progress, "under_way": under_way}
        report = gather(project, catalogue, profile, **state, kept=changed is not None)
    views = {view.id: view for technique in report.techniques for view in technique.items}
    for item, notebook, page in stale:
        body, template = _notebook_body(notebook), templates.get_template("notebook.html.j2")
        write_whole(page, template.render(report=report, item=views[item.id], body=body, style=style))
        changed_ns = notebook.stat().st_mtime_ns
        os.utime(page, ns=(changed_ns, changed_ns))  # marks the page as a page of this run
    add_cards(report, project, catalogue)
    template = templates.get_template("technique.html.j2")
    for technique in report.techniques:
        if changed is not None and technique.name.replace(" ", "_") not in changed:
            continue
        charts = chart_script() if any(item.chart for item in technique.items) else {}
        write_whole(
            first.with_name(technique.page),
            template.render(report=report, technique=technique, style=style, charts=charts),
        )
    compared = _compared_with_recorded(project, catalogue, profile, report) if changed is None else ""
    report.compared = bool(compared) or (changed is not None and first.with_name(COMPARED).exists())
    write_whole(first, templates.get_template("index.html.j2").render(report=report, style=style))
    if changed is None:
        script = files(__package__).joinpath("templates", "claims.js").read_text(encoding="utf-8")
        about = {"script": script, "digest": b64encode(sha256(script.encode()).digest()).decode("ascii")}
        claims = templates.get_template("claims.html.j2").render(report=report, style=style, **about)
        write_whole(first.with_name(CLAIMS), claims)
        errata = templates.get_template("errata.html.j2").render(report=report, style=style)
        write_whole(first.with_name(ERRATA), errata)
        if compared:
            write_whole(first.with_name(COMPARED), compared)
    pages = {
        first.name,
        CLAIMS,
        ERRATA,
        *([COMPARED] if report.compared else []),
        *(technique.page for technique in report.techniques),
    }
    _remove_old_pages(first.parent, pages, {ItemRun(project, item, profile).notebook_page.stem for item in catalogue})
    return first


def compared_page(compared: Compared, before: str, after: str, *, written: str = "", linked: bool = False) -> str:
    """Return a page of two sets of records compared; as a page of the report it links to the first one."""
    style = style_sheet()
    about = View(written=written or when_text(datetime.now().astimezone().isoformat()))
    view = compared_view(compared, before, after)
    return _templates().get_template("compare.html.j2").render(view=view, report=about, style=style, linked=linked)


def _compared_with_recorded(project: Project, catalogue: Sequence[Reproduction], profile: str, report: View) -> str:
    """Return the page that compares this machine's runs with the recorded ones; "" where one side has none."""
    if profile == Profile.SMOKE or not any(
        item.has_record for technique in report.techniques for item in technique.items
    ):
        return ""
    try:
        compared = compare(project, catalogue, profile, str(project.results_of(profile)))
    except UsageError:  # no item has both
        return ""
    return compared_page(compared, f"recorded {profile} run", "this machine", written=report.written, linked=True)


@lru_cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup, escape

    environment = Environment(
        loader=PackageLoader(__package__, "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {
        "mark": lambda word: MARKS.get(word, "·"),
        "words": lambda word: str(word).replace("_", " "),
        "css": lambda word: str(word).lower().replace("_", "-"),
        "whose": lambda word: WHOSE_MEANINGS[word],
        "explain": lambda word: EVIDENCE_MEANINGS.get(word, ""),
        "code": lambda text: Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))),
        "trusted": Markup,  # our own style sheet and script, and the HTML of notebooks once it is harmless
    }
    return environment


def _remove_old_pages(folder: Path, pages: set[str], items: set[str]) -> None:
    for path in folder.glob("*.html"):
        if path.name not in pages:
            path.unlink(missing_ok=True)
    for path in (*folder.glob("notebooks/*.html"), *folder.glob("thumbnails/*.png")):
        if path.stem not in items:
            path.unlink(missing_ok=True)


def _stale_notebooks(
    project: Project, catalogue: Sequence[Reproduction], profile: str
) -> Iterator[tuple[Reproduction, Path, Path]]:
    """Return item, executed notebook and page where the page of this run is missing; notebooks match their records."""
    for item in catalogue:
        run = ItemRun(project, item, profile)
        notebook, page = run.folder / NOTEBOOK_FILE, run.notebook_page
        if not notebook.is_file() or (page.is_file() and page.stat().st_mtime_ns == notebook.stat().st_mtime_ns):
            continue
        record, _ = trusted_record(run)
        if record is not None and "notebook" not in misfits(run.folder, record):
            yield item, notebook, page


def _notebook_body(notebook: Path) -> str:
    """Turn an executed notebook into harmless HTML without a head; figures are embedded."""
    import nbformat

    try:
        return notebook_html(nbformat.reads(read_text(notebook), as_version=4))
    except Exception as error:  # any error of nbconvert on a foreign notebook: other pages are still written
        return f"<p>This notebook cannot be shown: {escape(type(error).__name__)}: {escape(str(error))}</p>"


def notebook_html(content: NotebookNode) -> str:
    """Turn cells into harmless HTML without a head, with drawn formulas and embedded figures; drops other outputs."""
    for cell in content.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if "data" not in output or _is_shown(output.data)]
    return harmless_html(_exporter().from_notebook_node(content)[0])


def style_sheet() -> str:
    """Return the style sheet of the report's pages."""
    return files(__package__).joinpath("templates", "style.css").read_text(encoding="utf-8")


def _is_shown(forms: dict[str, Any]) -> bool:
    """Say whether an output has an allowed form; an SVG drawing becomes an image, which runs no script."""
    if drawing := forms.pop("image/svg+xml", None):
        content = b64encode("".join(drawing).encode()).decode("ascii")
        forms.setdefault("text/html", f'<img src="data:image/svg+xml;base64,{content}" alt="drawing">')
    return any(kind in forms for kind in SHOWN)


@lru_cache
def _exporter() -> Any:
    """Return nbconvert's exporter with drawn formulas; made once, since its templates take long to compile."""
    from jinja2 import pass_context
    from nbconvert import HTMLExporter
    from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
    from traitlets.config import Config

    class Renderer(IPythonRenderer):
        def block_math(self, body: str) -> str:
            return FORMULA.format("math block", escape(body))

        def inline_math(self, body: str) -> str:
            return FORMULA.format("math", escape(body))

    class Exporter(HTMLExporter):
        @pass_context
        def markdown2html(self, context: Any, source: str) -> str:
            attachments = context.get("cell", {}).get("attachments", {})
            return MarkdownWithMath(renderer=Renderer(escape=False, attachments=attachments)).render(source)

    shown = Config({"NbConvertBase": {"display_data_priority": list(SHOWN)}})
    return Exporter(config=shown, template_name="basic", exclude_input_prompt=True, exclude_output_prompt=True)
