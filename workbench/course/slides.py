"""Slides of a lesson with nbconvert and reveal.js: each section is a slide, with its further texts below."""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from workbench.reproduction import UsageError

__all__ = ["slide_types", "write_slides"]

TIMEOUT_S = 600  # time limit of a cell
OPTIONS = tuple(
    f"--SlidesExporter.reveal_{option}" for option in ("scroll=True", "width=1280", "height=800", "number=c/t")
)


def slide_types(notebook: NotebookNode) -> list[str]:
    """Return reveal's word for each cell: text begins a slide, code stays on it, set-up code is skipped."""
    words: list[str] = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            begins = any("slide" in word for word in words[1:])  # before the first section only parameters and imports
            words.append("-" if begins else "skip")
        else:
            words.append("slide" if cell.source.startswith(("# ", "## ")) else "subslide")
    return words


def write_slides(lessons: Sequence[Path], target: Path, *, run: bool = False) -> None:
    """Write slides of lessons to a folder as <technique>-<lesson>.slides.html, after running them if asked for."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for lesson in lessons:
            notebook = nbformat.read(lesson, as_version=4)
            for cell, word in zip(notebook.cells, slide_types(notebook), strict=True):
                cell.metadata["slideshow"] = {"slide_type": word}
            paths.append(Path(folder, f"{lesson.parent.name}-{lesson.name}"))
            nbformat.write(notebook, paths[-1])
        execute = ("--execute", f"--ExecutePreprocessor.timeout={TIMEOUT_S}") if run else ()
        command = (sys.executable, "-m", "jupyter", "nbconvert", "--to", "slides", *execute, *OPTIONS)
        ended = subprocess.run([*command, "--output-dir", target, *paths], capture_output=True, text=True)
    if ended.returncode:
        raise UsageError(f"slides could not be written: {ended.stderr.strip()[-2000:]}")
