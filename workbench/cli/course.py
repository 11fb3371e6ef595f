"""`workbench course` writes the lessons for a class: the teacher's copy and the students'."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from . import common

__all__ = ["course", "register"]


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command("course", rich_help_panel=common.AUTHOR)(course)


def course(
    teacher: Annotated[Path | None, Option("--teacher", metavar="DIR", help="An nbgrader course.")] = None,
    student: Annotated[Path | None, Option("--student", metavar="DIR", help="The same without solutions.")] = None,
    run: Annotated[
        bool, Option("--run", help="Run the lessons first: slides have their pictures, after some minutes.")
    ] = False,
) -> None:
    """Write the lessons for a class: notebooks, slides, and a page with their order, hours and questions.

    nbgrader takes the solutions out and grades: pip install nbgrader.

    \b
    Examples
      workbench course --teacher teacher --student student
      cd teacher && nbgrader autograde hang    what students handed in as submitted/STUDENT/hang/lesson.ipynb
    """
    from workbench.reproduction import Project, UsageError

    if teacher is None and student is None:
        raise UsageError("name a folder with --teacher DIR, --student DIR or both")
    from workbench.course import write_course

    number = write_course(Project(), teacher=teacher, student=student, run=run)
    for target in filter(None, (teacher, student)):
        common.console().print(f"{target}: {number} exercises; begin with {target / 'index.md'}", markup=False)
