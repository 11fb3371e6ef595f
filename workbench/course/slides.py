"""Slides of a lesson as one page that needs neither scripts nor a network: Page Down and the arrow keys go on."""

import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_notebook

from workbench.reproduction import UsageError
from workbench.reproduction.files import write_whole
from workbench.reproduction.report import notebook_html, style_sheet

__all__ = ["slides_of", "write_slides"]

TIMEOUT_S = 600  # time limit of a cell
PAGE = Template(
    """<!doctype html>
<html lang="en">
<head>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>$style
html { scroll-snap-type: y mandatory; scroll-padding: 0; font-size: 125%; }
body { margin: 0; max-width: none; counter-reset: slide; }
section { box-sizing: border-box; min-height: 100vh; padding: 4vh 8vw; margin: 0 auto; position: relative;
  max-width: 80rem; scroll-snap-align: start; display: flex; flex-direction: column; justify-content: center; }
section::after { counter-increment: slide; content: counter(slide) " / $count"; position: absolute;
  right: 2vw; bottom: 1vh; color: var(--soft); }
.notebook .text_cell_render :is(th, td) { text-align: left; }
.notebook .output_png img { max-height: 70vh; }
@media print { section { break-after: page; } }
</style>
</head>
<body>
$slides
</body>
</html>
"""
)


def slides_of(notebook: NotebookNode) -> list[list[NotebookNode]]:
    """Return the cells of each slide: a text begins it, and code stays on it.

    Code before the second slide is left out: it has only parameters and imports.
    """
    slides: list[list[NotebookNode]] = []
    for cell in notebook.cells:
        if cell.cell_type != "code":
            slides.append([cell])
        elif len(slides) > 1:
            slides[-1].append(cell)
    return slides


def write_slides(lessons: Sequence[Path], target: Path, *, run: bool = False) -> None:
    """Write slides of lessons to a folder as <technique>-<lesson>.slides.html, after running them if asked for."""
    target.mkdir(parents=True, exist_ok=True)
    for lesson in lessons:
        notebook = nbformat.read(lesson, as_version=4)
        if run:
            _execute(notebook, lesson)
        slides = [
            f'<section class="notebook"><div>{notebook_html(new_notebook(cells=cells))}</div></section>'
            for cells in slides_of(notebook)
        ]
        title = notebook.cells[0].source.splitlines()[0].lstrip("# ")
        page = {"title": escape(title), "style": style_sheet(), "count": len(slides), "slides": "\n".join(slides)}
        write_whole(target / f"{lesson.parent.name}-{lesson.stem}.slides.html", PAGE.substitute(page))


def _execute(notebook: NotebookNode, lesson: Path) -> None:
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    with tempfile.TemporaryDirectory() as folder:
        try:
            NotebookClient(notebook, timeout=TIMEOUT_S, resources={"metadata": {"path": folder}}).execute()
        except CellExecutionError as error:
            raise UsageError(f"{lesson} could not be run for its slides: {error}") from None
