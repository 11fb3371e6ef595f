"""The two copies of the course: notebooks, the page that joins them, slides."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbconvert.filters import markdown2html

from workbench.reproduction import Project, UsageError

from .exercises import PAGE, course_lessons, grade_
from .slides import write_slides

__all__ = ["write_course"]

UNGRADED = ("00_start_here.ipynb", "planners.ipynb")  # notebooks that are not lessons
CONFIG = """c = get_config()  # noqa: F821  # nbgrader reads this file where it is called
c.CourseDirectory.course_id = "distributed_training"
c.ClearSolutions.code_stub = {"python": "..."}
c.ExecutePreprocessor.timeout = 600  # seconds that a cell may take
"""
LINK = re.compile(r"\[([^\[\]]+)\]\((?!#|\w+:)([^)#]+)[^)]*\)")  # to a file, beside the notebook or not
ANSWERS = re.compile(r" ?`solution\([^`]*`[^.]*\.")  # the sentence of a lesson that says how to see an answer
TEACHERS_PART = "## For the teacher"  # heading on the page
LOOK = "body { max-width: 52rem; margin: 2rem auto; font: 1rem/1.5 sans-serif } td, th { padding: 0 .5rem }"


def write_course(
    project: Project, *, teacher: Path | None = None, student: Path | None = None, run: bool = False
) -> int:
    """Write the copies that have a folder.

    Args:
        teacher: gets an nbgrader course: the lessons with solutions, their release, a gradebook.
        student: gets the lessons that nbgrader releases. Both get the page and slides; a folder must be new or empty.
        run: whether lessons are run for the pictures of their slides.

    Returns:
        The number of exercises, each of one point.
    """
    if importlib.util.find_spec("nbgrader") is None:
        raise UsageError("nbgrader is missing: pip install nbgrader")
    targets = {target: place for target, place in ((teacher, "source/"), (student, "")) if target is not None}
    for target in targets:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise UsageError(f"{target} is not an empty folder; name another place")
    with tempfile.TemporaryDirectory() as made:
        course = Path(made, "course")
        number = _make_sources(project, course_lessons(project), course / "source")
        (course / "nbgrader_config.py").write_text(CONFIG, encoding="utf-8")
        _release(course)
        released = sorted((course / "release").rglob("lesson*.ipynb"))
        for path in released:
            _forget_answers(path)
        write_slides(released, Path(made, "slides"), run=run)
        for target, place in targets.items():
            shutil.copytree(course if place else course / "release", target, dirs_exist_ok=True)
            shutil.copytree(Path(made, "slides"), target / "slides")
            _write_page(project, target, place)
    return number


def _make_sources(project: Project, lessons: Sequence[Path], folder: Path) -> int:
    """Write the ungraded notebooks, and the lessons with their solutions; return the number of solutions."""
    copied, number = [*(project.notebooks / name for name in UNGRADED), *lessons], 0
    for path in copied:
        notebook, solutions = nbformat.read(path, as_version=4), path.with_name("solutions.py")
        number += grade_(notebook, solutions.read_text(encoding="utf-8") if solutions.exists() else "")
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = _without_dead_links(cell.source, path.parent, copied)
        place = folder / path.relative_to(project.notebooks)
        place.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, place)
    return number


def _without_dead_links(text: str, folder: Path, copied: Sequence[Path]) -> str:
    """Turn links to files outside the copies into their plain text."""
    return LINK.sub(lambda link: link[0] if (folder / link[2]).resolve() in copied else link[1], text)


def _release(course: Path) -> None:
    """Let nbgrader take the solutions out of every lesson."""
    command = [sys.executable, "-m", "nbgrader", "generate_assignment", "*"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # it calls alembic by name
    ended = subprocess.run(command, cwd=course, capture_output=True, text=True, env={**os.environ, "PATH": path})
    if ended.returncode:
        lines = [line for line in ended.stderr.splitlines() if "INFO" not in line]
        raise UsageError(f"nbgrader could not release the lessons: {' '.join(lines)[-2000:]}")
    for name in UNGRADED:
        shutil.copy(course / "source" / name, course / "release" / name)


def _forget_answers(path: Path) -> None:
    """Remove from a released lesson the sentence on how to see an answer, and the brackets round a number's place."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        text = ANSWERS.sub("", cell.source) if cell.cell_type == "markdown" else cell.source
        text = text.replace("answer = (\n    ...\n)", "answer = ...")
        cell.source = text.replace("import check, solution\n", "import check\n")
    nbformat.write(notebook, path)


def _write_page(project: Project, copy: Path, place: str) -> None:
    """Write the course's page as index.md and index.html, with a link to the slides after each link to a lesson."""
    page = (project.root / PAGE).read_text(encoding="utf-8")
    page = page if place else page.partition(TEACHERS_PART)[0]
    slides = rf"({place}\1/\2.ipynb) ([slides](slides/\1-\2.slides.html))"
    page = re.sub(r"\(\.\./notebooks/(\w+)/(lesson\w*)\.ipynb\)", slides, page).replace("../notebooks/", place)
    (copy / "index.md").write_text(page, encoding="utf-8")
    head = f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>Course</title><style>{LOOK}</style>\n'
    (copy / "index.html").write_text(f"{head}{markdown2html(page)}\n", encoding="utf-8")
