"""The course: solutions in place for the teacher, out of sight for the student, and all of them pass their checks."""

import ast
import contextlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import cloudpickle
import nbformat
import numpy as np
import pytest
import torch
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from workbench.cli import exit_code
from workbench.course import code_exercises, course_lessons, grade_, solved, write_course
from workbench.course.slides import slides_of, write_slides
from workbench.explore import Standing
from workbench.reproduction import Project, UsageError

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as from a notebook: ranks import no test
PROJECT = Project(Path(__file__).parents[2])
LESSONS = sorted(PROJECT.notebooks.glob("*/lesson*.ipynb"))
CELL = 'def mean(x):\n    """Return the mean."""\n    ...\n\nlesson.check_mean(mean)'
SOLUTIONS = '''"""Solutions."""

import math

SCALE = 2
OTHER = 3


def mean(x):
    """Return the mean."""
    # of all
    return math.fsum(x) / len(x) * _one()


def _one():
    return SCALE / 2
'''
SOLVED = '''def mean(x):
    """Return the mean."""
    ### BEGIN SOLUTION
    import math
    SCALE = 2
    def _one():
        return SCALE / 2
    # of all
    return math.fsum(x) / len(x) * _one()
    ### END SOLUTION'''
NEEDS_NBGRADER = pytest.mark.skipif(
    importlib.util.find_spec("nbgrader") is None, reason="nbgrader is missing: pip install -e .[course]"
)


def notebook_of(*cells):
    return new_notebook(cells=[new_code_cell(cell, id=f"cell-{number}") for number, cell in enumerate(cells)])


def of_lesson(path):
    """The exercises of a lesson, and the names that its cells import."""
    notebook = nbformat.read(path, as_version=4)
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code" and "import " in cell.source]
    nodes = [node for cell in cells for node in ast.parse(re.sub("^[%!].*", "", cell, flags=re.M)).body]
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return code_exercises(notebook), ast.unparse(imports)


@pytest.fixture
def _warm_ranks(pools, monkeypatch):
    """Checks on ranks take ranks that are there."""
    for place in ("workbench.launch.Ranks", "workbench.explore.hang.Ranks"):
        monkeypatch.setattr(place, lambda num_ranks, **_: contextlib.nullcontext(pools(num_ranks)))


def retyped(value):
    """The same answer as somebody else writes it: numbers as tensors of one value, tensors as lists."""
    if isinstance(value, bytes):
        return torch.tensor(list(value), dtype=torch.uint8)
    if isinstance(value, float | int):
        return torch.tensor([value], dtype=torch.float64 if isinstance(value, float) else None)
    if isinstance(value, list | tuple):
        return [*map(retyped, value)]
    return value if isinstance(value, range) or np.ravel(value).size == 1 else value.tolist()


def in_other_types(function):
    return lambda *arguments: retyped(function(*arguments))


EXERCISES = [(path, exercise) for path in LESSONS for exercise in of_lesson(path)[0]]


@pytest.mark.usefixtures("_warm_ranks")
@pytest.mark.parametrize(
    ("path", "exercise"), EXERCISES, ids=[f"{path.parent.name}-{exercise.name}" for path, exercise in EXERCISES]
)
def test_each_solution_passes_the_check_of_its_lesson_and_each_stub_is_no_answer(path, exercise):
    names = {}
    exec(of_lesson(path)[1], names)
    exec(exercise.stub, names)
    assert eval(exercise.check, names).standing is Standing.NOT_ANSWERED
    exec(solved(exercise, path.with_name("solutions.py").read_text()), names)
    for answer in (names[exercise.name], in_other_types(names[exercise.name])):
        names[exercise.name] = answer
        feedback = eval(exercise.check, names)
        assert feedback.is_right, feedback


def test_a_number_is_an_exercise_too_whose_answer_the_library_computes():
    notebook = notebook_of("answer = None\ncheck(lesson.pulled_bytes(), answer)")
    assert grade_(notebook, "") == 1
    solution, test = notebook.cells
    assert test.metadata.nbgrader.points == 1 and "feedback = check(lesson.pulled_bytes(), answer)" in test.source
    names = {}
    exec(f"from workbench.explore import check, zen as lesson\n{solution.source}\n{test.source}", names)
    assert names["answer"] == 400 and names["feedback"].is_right


def test_every_function_of_every_solutions_file_solves_an_exercise():
    public = {
        (path.parent.name, node.name)
        for path in PROJECT.notebooks.glob("*/solutions.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }
    assert public == {(path.parent.name, exercise.name) for path, exercise in EXERCISES}


def test_a_solution_stands_between_nbgraders_marks_with_what_it_needs_and_a_cell_to_grade_behind_it():
    notebook = notebook_of("x = 1", CELL, "y = 2")
    assert grade_(notebook, SOLUTIONS) == 1
    _, solution, test, last = notebook.cells
    assert solution.source == SOLVED and solution.metadata.nbgrader.solution and last.source == "y = 2"
    assert "### BEGIN HIDDEN TESTS\nassert feedback.is_right" in test.source
    marks = test.metadata.nbgrader
    assert (marks.grade, marks.locked, marks.points) == (True, True, 1)
    names = {}
    exec(solution.source, names)
    assert names["mean"]([1, 2, 3]) == 2


@pytest.mark.parametrize(
    ("cell", "solutions", "words"),
    [
        (CELL.replace("...", "return 0"), SOLUTIONS, "the body of a stub"),
        ("mean = None\nlesson.check_mean(mean)", SOLUTIONS, "there is no function mean"),
        (CELL, SOLUTIONS.replace("def mean", "def median"), "there is no function mean"),
        (CELL.replace("(x)", "(x, y)", 1), SOLUTIONS, "must take x, y"),
    ],
)
def test_an_exercise_without_stub_or_fitting_solution_is_refused(cell, solutions, words):
    with pytest.raises(ValueError, match=words):
        grade_(notebook_of(cell), solutions)


def test_the_page_joins_all_lessons_and_its_links_lead_somewhere():
    page = PROJECT.root / "docs" / "course.md"
    assert sorted(course_lessons(PROJECT)) == LESSONS
    for link in re.findall(r"\]\((?!\w+:)([^)]+)\)", page.read_text()):
        assert (page.parent / link).exists(), link
    assert page.read_text().count("\n**") == len(LESSONS), "each lesson has questions to discuss"


def test_a_slide_is_a_section_and_the_set_up_before_the_first_is_skipped():
    texts = [new_markdown_cell(text) for text in ("# Title\n\ncard", "## 1 · Why", "and so")]
    setup, first, second = notebook_of("import torch", "x = 1", "x").cells
    notebook = new_notebook(cells=[texts[0], setup, texts[1], first, texts[2], second])
    assert slides_of(notebook) == [[texts[0]], [texts[1], first], [texts[2], second]]


def test_slides_need_neither_a_script_nor_a_network_and_draw_formulas(tmp_path):
    lesson = tmp_path / "hang" / "lesson.ipynb"
    lesson.parent.mkdir()
    (code,) = notebook_of("1 + 1").cells
    texts = [new_markdown_cell("# Who waits for whom\n\n$x^2$"), new_markdown_cell("## 1 · Why")]
    nbformat.write(new_notebook(cells=[*texts, code]), lesson)
    write_slides([lesson], tmp_path / "slides", run=True)
    page = (tmp_path / "slides" / "hang-lesson.slides.html").read_text()
    assert page.count("<section") == 2 and 'aria-label="x^2"' in page and "<title>Who waits for whom<" in page
    assert "<pre>2</pre>" in page
    assert "<script" not in page and not re.search(r"(src|href)=.?https?:", page)


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("course")
    numbers = sum(path.read_text().count('"answer = None\\n"') for path in LESSONS)
    number = write_course(PROJECT, teacher=folder / "teacher", student=folder / "student")
    assert number == len(EXERCISES) + numbers > 40
    return folder / "teacher", folder / "student"


@NEEDS_NBGRADER
@pytest.mark.slow
def test_the_students_copy_has_every_lesson_with_its_stubs_and_no_line_of_a_solution(copies):
    _, student = copies
    text = "\n".join(file.read_text() for file in student.rglob("*") if file.is_file())
    assert not list(student.rglob("*.py")) and "BEGIN" not in text and "solution(" not in text
    for path in LESSONS:
        cells = nbformat.read(student / path.relative_to(PROJECT.notebooks), as_version=4).cells
        stubs = [cell.source for cell in cells if cell.metadata.get("nbgrader", {}).get("solution")]
        functions = [stub for stub in stubs if stub != "answer = ..."]
        assert functions == [exercise.stub for exercise in of_lesson(path)[0]]
        assert len(stubs) - len(functions) == path.read_text().count('"answer = None\\n"')
        assert (student / "slides" / f"{path.parent.name}-{path.stem}.slides.html").exists()
    public = "".join(path.read_text() for path in PROJECT.notebooks.rglob("*.ipynb"))
    for path, exercise in EXERCISES:
        for line in map(str.strip, solved(exercise, path.with_name("solutions.py").read_text()).splitlines()):
            written = json.dumps(line, ensure_ascii=False)[1:-1]
            assert written not in text or written in public, line
    for link in re.findall(r"\]\((?!\w+:)([^)]+)\)", (student / "index.md").read_text()):
        assert (student / link).exists(), link


@NEEDS_NBGRADER
@pytest.mark.slow
def test_a_students_lesson_runs_with_its_stub(copies, tmp_path):
    stub, executed = copies[1] / "hang/lesson.ipynb", tmp_path / "executed.ipynb"
    subprocess.run([sys.executable, "-m", "papermill", stub, executed, "--no-progress-bar"], check=True)
    assert "○ **not answered yet.**" in executed.read_text()


@NEEDS_NBGRADER
@pytest.mark.timeout(400)
@pytest.mark.slow
def test_a_student_fills_a_stub_in_and_the_teachers_nbgrader_gives_the_point_and_none_for_the_stub(copies):
    teacher, student = copies
    stub, solutions = student / "hang/lesson.ipynb", (PROJECT.notebooks / "hang/solutions.py").read_text()
    notebook = nbformat.read(stub, as_version=4)
    (cell,) = [cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("solution")]
    cell.source = solutions[solutions.index("import") :]
    for name, handed_in in (("ada", notebook), ("bob", nbformat.read(stub, as_version=4))):
        place = teacher / "submitted" / name / "hang" / "lesson.ipynb"
        place.parent.mkdir(parents=True)
        nbformat.write(handed_in, place)
    assert _points(teacher) == {"ada": "1.0", "bob": "0.0"}
    graded = {name: (teacher / f"autograded/{name}/hang/lesson.ipynb").read_text() for name in ("ada", "bob")}
    assert "✓ **right.**" in graded["ada"] and "AssertionError" not in graded["ada"]
    assert '"evalue": "not answered yet' in graded["bob"]


def _points(teacher):
    nbgrader = [sys.executable, "-m", "nbgrader"]
    for words in (["autograde", "hang", "--create"], ["export", "--to", "grades.csv"]):
        ended = subprocess.run([*nbgrader, *words], cwd=teacher, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr[-3000:]
    rows = [line.split(",") for line in (teacher / "grades.csv").read_text().splitlines()]
    return {row[rows[0].index("student_id")]: row[rows[0].index("score")] for row in rows if row[0] == "hang"}


def test_a_folder_with_something_in_it_is_refused(tmp_path):
    (tmp_path / "kept").touch()
    with pytest.raises(UsageError, match="not an empty folder|nbgrader is missing"):
        write_course(PROJECT, teacher=tmp_path)


def test_without_nbgrader_the_command_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert exit_code(["course", "--student", str(tmp_path / "student")]) == 2
    assert "pip install nbgrader" in capsys.readouterr().err
    assert exit_code(["course"]) == 2
