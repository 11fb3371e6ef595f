"""Executed notebooks as pages beside the report, for readers without Jupyter.

Source: nbconvert's "basic" template, which adds no script and nothing from the network, inside the report's own style;
scripts that outputs or Markdown hold do not run, since the page's Content-Security-Policy forbids them.
Simplified: formulas are drawings, see `formulas`.
Left out: widgets, of which the picture is shown; a notebook is complete with no control touched.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.reproduction.artifacts import misfits
from workbench.reproduction.declare import Reproduction
from workbench.reproduction.project import Project

from .formulas import formula_html
from .judged import trusted_record

__all__ = ["mark_current", "notebook_body", "notebook_page", "stale_notebooks"]

NOTEBOOK_FILE = "notebook.ipynb"
SHOWN = (
    "text/html",
    "text/markdown",
    "image/svg+xml",
    "text/latex",
    "image/png",
    "image/jpeg",
    "text/plain",
)  # best first; no scripts


def notebook_page(project: Project, item: Reproduction, profile: str) -> Path:
    """Return where the page of an item's executed notebook lies, whether it is there or not."""
    return project.results_of(profile) / "report" / "notebooks" / f"{item.id.replace('/', '-')}.html"


def stale_notebooks(
    project: Project, catalogue: Sequence[Reproduction], profile: str
) -> tuple[tuple[Reproduction, Path], ...]:
    """Return the items whose executed notebook has no page yet, or one of an earlier run.

    A notebook that is not the one its record was sealed with gets none.
    """
    found = ((item, project.folder(item, profile) / NOTEBOOK_FILE) for item in catalogue)
    return tuple(
        (item, notebook)
        for item, notebook in found
        if notebook.is_file()
        and not _current(notebook_page(project, item, profile), notebook)
        and _sealed(notebook, item, profile)
    )


def _sealed(notebook: Path, item: Reproduction, profile: str) -> bool:
    record, _ = trusted_record(notebook.with_name("record.json"), item, profile)
    return record is not None and "notebook" not in misfits(notebook.parent, record)


def _current(page: Path, notebook: Path) -> bool:
    return page.is_file() and page.stat().st_mtime_ns == notebook.stat().st_mtime_ns


def notebook_body(notebook: Path) -> str:
    """Turn an executed notebook into HTML without a head; figures are embedded.

    Raises:
        Exception: whatever nbconvert raises for a notebook that it cannot read.
    """
    import nbformat
    from traitlets.config import Config

    held = nbformat.read(notebook, as_version=4)
    for cell in held.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if _can_be_shown(output)]
    shown = Config({"NbConvertBase": {"display_data_priority": list(SHOWN)}})
    exporter = _exporter_class()(
        config=shown, template_name="basic", exclude_input_prompt=True, exclude_output_prompt=True
    )
    body, _ = exporter.from_notebook_node(held)
    return body


def _can_be_shown(output: Any) -> bool:
    """Say whether an output is text of a stream or an error, or has a form that is no script."""
    return "data" not in output or any(kind in output.data for kind in SHOWN)


def _exporter_class() -> type[Any]:
    """Return nbconvert's exporter with formulas drawn; made here, since importing nbconvert takes a second."""
    from jinja2 import pass_context
    from nbconvert import HTMLExporter
    from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

    class Renderer(IPythonRenderer):
        def block_math(self, body: str) -> str:
            return formula_html(body, block=True)

        def inline_math(self, body: str) -> str:
            return formula_html(body)

    class Exporter(HTMLExporter):
        @pass_context
        def markdown2html(self, context: Any, source: str) -> str:
            attachments = context.get("cell", {}).get("attachments", {})
            return MarkdownWithMath(renderer=Renderer(escape=False, attachments=attachments)).render(source)

    return Exporter


def mark_current(page: Path, notebook: Path) -> None:
    """Give a page the notebook's time of change, by which it is known to be of this run."""
    changed_ns = notebook.stat().st_mtime_ns
    os.utime(page, ns=(changed_ns, changed_ns))
