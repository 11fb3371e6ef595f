"""Code exercises found in lessons, their solutions put in place, and both in nbgrader's form.

A code exercise is a cell that defines a function with the body `...` and ends with `lesson.check_<name>(<function>)`.
Its solution is the function of that name in solutions.py beside the lesson. An exercise whose answer is a number is the
cell `answer = None` with `check(lesson.<name>(), answer)`.
"""

import ast
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from workbench.reproduction import Project

__all__ = ["PAGE", "CodeExercise", "code_exercises", "course_lessons", "grade_", "solved"]

PAGE = Path("docs/course.md")  # of a project: joins the lessons, in their order
LESSON = re.compile(r"\]\(\.\./notebooks/(\w+/lesson\w*\.ipynb)\)")  # a link of that page
CHECK = re.compile(r"lesson\.check_\w+\((\w+)\)")
NUMBER = re.compile(r"answer = None\n(check\(lesson\.(\w+)\(\), answer\))")
SOLVED_NUMBER = "answer = (\n    ### BEGIN SOLUTION\n    lesson.{}().answer\n    ### END SOLUTION\n)"
POINTS = 1  # of an exercise
# nbgrader takes the hidden lines out of the student's copy, and puts them back before it grades.
GRADED = "feedback = {}\n### BEGIN HIDDEN TESTS\nassert feedback.is_right, feedback\n### END HIDDEN TESTS\nfeedback"


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeExercise:
    """A function that the reader of a lesson writes."""

    cell: int  # where its cell stands in the notebook
    name: str  # of the function
    stub: str  # source of the cell without its last line
    check: str  # the last line: the call that returns a Feedback


def course_lessons(project: Project) -> list[Path]:
    """Return the lessons in the order of the course's page."""
    page = (project.root / PAGE).read_text(encoding="utf-8")
    return [project.notebooks / name for name in dict.fromkeys(LESSON.findall(page))]


def code_exercises(notebook: NotebookNode) -> tuple[CodeExercise, ...]:
    """Return the code exercises of a lesson in their order."""
    exercises = []
    for number, cell in enumerate(notebook.cells):
        stub, _, check = cell.source.rpartition("\n")
        if cell.cell_type == "code" and (call := CHECK.fullmatch(check)):
            exercise = CodeExercise(cell=number, name=call[1], stub=stub.rstrip(), check=check)
            _blank_of(exercise)  # refuses what is no stub
            exercises.append(exercise)
    return tuple(exercises)


def solved(exercise: CodeExercise, solutions: str) -> str:
    """Return the stub with its solution between nbgrader's marks, and with what solutions.py imports for it."""
    stub, solution = _function(exercise.stub, exercise.name), _function(solutions, exercise.name)
    if _arguments(stub) != _arguments(solution):
        raise ValueError(f"{exercise.name}({_arguments(solution)}) in solutions.py must take {_arguments(stub)}")
    blank, lines = _blank_of(exercise), exercise.stub.splitlines()
    first = solution.body[0]
    start = first.end_lineno if ast.get_docstring(solution) else first.lineno - 1
    body = textwrap.dedent("\n".join(solutions.splitlines()[start : solution.end_lineno]))
    region = "\n".join(["### BEGIN SOLUTION", *_needed(solutions, solution), body, "### END SOLUTION"])
    placed = textwrap.indent(region, " " * blank.col_offset).splitlines()
    return "\n".join([*lines[: blank.lineno - 1], *placed, *lines[blank.end_lineno :]])


def grade_(notebook: NotebookNode, solutions: str) -> int:
    """Put solutions in place and make each exercise a cell to solve and a cell to grade; return how many there are."""
    graded = {
        exercise.cell: (exercise.name, solved(exercise, solutions), exercise.check)
        for exercise in code_exercises(notebook)
    }
    for at, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and (number := NUMBER.fullmatch(cell.source)):
            graded[at] = (number[2], SOLVED_NUMBER.format(number[2]), number[1])
    for at in sorted(graded, reverse=True):
        name, solution, check = graded[at]
        cell = notebook.cells[at]
        cell.source = solution
        cell.metadata["nbgrader"] = _marks(name, solution=True)
        test = new_code_cell(GRADED.format(check), id=f"{cell.id}-check")
        test.metadata["nbgrader"] = _marks(f"{name}-check", grade=True, locked=True, points=POINTS)
        notebook.cells.insert(at + 1, test)
    return len(graded)


def _marks(grade_id: str, **marks: bool | int) -> dict:
    unmarked = dict.fromkeys(("grade", "locked", "solution", "task"), False)
    return {**unmarked, "grade_id": grade_id, "schema_version": 3, **marks}


def _function(source: str, name: str) -> ast.FunctionDef:
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    raise ValueError(f"there is no function {name}; a stub and its solution have the name that is checked")


def _blank_of(exercise: CodeExercise) -> ast.stmt:
    """Return the `...` that the solution takes the place of."""
    stub = _function(exercise.stub, exercise.name)
    blank = stub.body[-1]
    if ast.unparse(blank) != "..." or len(stub.body) > 2 or blank.lineno == stub.lineno:
        raise ValueError(f"{exercise.name} is {ast.unparse(stub)!r}; the body of a stub is a line with `...`")
    return blank


def _arguments(function: ast.FunctionDef) -> str:
    return ", ".join(node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg))


def _needed(solutions: str, solution: ast.FunctionDef) -> list[str]:
    """Return the lines of solutions.py outside its public functions that a solution refers to."""
    used = _names(solution)
    kept: list[str] = []
    for node in reversed(ast.parse(solutions).body):
        public = isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        if not public and _bound(node) & used:
            kept.insert(0, ast.get_source_segment(solutions, node) or "")
            used |= _names(node)
    return kept


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _bound(node: ast.stmt) -> set[str]:
    """Return the names that a statement of a module makes."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    if isinstance(node, ast.FunctionDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else []
    return set().union(*map(_names, targets))
