"""What every notebook keeps to, read from the files without running them."""

import ast
import functools
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest
from papermill import inspect_notebook
from test_names import vague_names

from workbench.reproduction import Project, load_catalogue
from workbench.reproduction.notebook_cells import check_parameters, parameter_types, read_notebook

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))
MAX_CELL_LINES = 15
MAX_FUNCTION_LINES = 5
WITH_PARAMETERS = [path for path in NOTEBOOKS if '"parameters"' in path.read_text(encoding="utf-8")]
TOPICS = [path for path in NOTEBOOKS if not path.name.startswith("lesson") and path.parent.name != "notebooks"]


def named(paths):
    return pytest.mark.parametrize("path", paths, ids=lambda path: str(path.relative_to(ROOT / "notebooks")))


@functools.cache
def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def parsed(cell):
    return parsed_source(cell.source)


@functools.cache
def parsed_source(source):
    lines = source.splitlines()
    return ast.parse("\n".join("pass" if line.startswith(("%", "!")) else line for line in lines))


@named(NOTEBOOKS)
def test_a_notebook_is_valid_begins_with_its_card_and_is_committed_without_outputs(path):
    notebook = read(path)
    nbformat.validate(notebook)
    assert all(not cell.outputs and cell.execution_count is None for cell in code_cells(notebook))
    assert not {"widgets", "papermill"} & set(notebook.metadata)
    ids = [cell.id for cell in notebook.cells]
    assert len(ids) == len(set(ids))
    first = notebook.cells[0]
    assert first.cell_type == "markdown" and first.source.startswith("# ")


@named(NOTEBOOKS)
def test_a_text_has_no_two_headings_in_a_row_and_its_links_to_other_files_lead_somewhere(path):
    for cell in read(path).cells:
        if cell.cell_type == "markdown":
            lines = [line.startswith("#") for line in cell.source.splitlines() if line]
            assert not any(first and second for first, second in pairwise(lines)), cell.source
            for target in _relative_links(cell.source):
                assert (path.parent / target).exists(), target


@named(NOTEBOOKS)
def test_no_cell_is_longer_than_fifteen_lines_no_function_than_five_and_none_writes_out_what_a_plot_returns(path):
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for cell in code_cells(read(path)):
        assert len(cell.source.splitlines()) <= MAX_CELL_LINES, cell.source
        tree = parsed(cell)
        for node in ast.walk(tree):
            if isinstance(node, functions):
                assert node.end_lineno - node.lineno + 1 <= MAX_FUNCTION_LINES, ast.unparse(node)
        last = tree.body[-1]
        if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
            assert not ast.unparse(last.value.func).startswith("plots."), cell.source
            assert ".set_title" not in ast.unparse(last.value.func), cell.source


@named(NOTEBOOKS)
def test_variables_say_what_they_hold(path):
    cells = [cell for cell in code_cells(read(path)) if "parameters" not in cell.metadata.get("tags", [])]
    assert [name for cell in cells for name in vague_names(parsed(cell))] == []


@named(NOTEBOOKS)
def test_every_name_that_a_notebook_imports_from_the_library_is_there(path):
    nodes = [node for cell in code_cells(read(path)) for node in ast.walk(parsed(cell))]
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "workbench"]
    exec(compile(ast.Module(imports, []), str(path), "exec"), {})


@named(WITH_PARAMETERS)
def test_papermill_lists_every_parameter_with_its_type_default_and_comment(path):
    notebook, listed = read_notebook(path), inspect_notebook(path)
    types = parameter_types(notebook)  # refuses a default that is not of its type
    assert list(listed) == list(types)
    exec("\n".join(cell.source for cell in code_cells(read(path)) if "parameters" in cell.metadata.get("tags", [])), {})
    for name, (default, annotation) in notebook.parameters.items():
        assert annotation, f"{name} has no type"
        assert listed[name]["inferred_type_name"] == ast.unparse(annotation).strip("'")
        assert ast.literal_eval(listed[name]["default"]) == ast.literal_eval(default)
        assert listed[name]["help"], f"{name} has no comment"


def test_all_profiles_of_all_items_give_parameters_of_the_types_that_notebooks_ask_for():
    project = Project(ROOT)
    for item in load_catalogue(project):
        check_parameters(item, read_notebook(project.notebook(item)))


@named(TOPICS)
def test_a_topic_begins_with_its_item_as_a_parameter_and_ends_by_recording_it(path):
    assert next(iter(parameter_types(read_notebook(path)))) == "item"
    last = code_cells(read(path))[-1]
    calls = [node.func.id for node in ast.walk(parsed(last)) if isinstance(node, ast.Call) and hasattr(node.func, "id")]
    assert "record" in calls


def _relative_links(markdown):
    targets = [part.split(")", 1)[0] for part in markdown.split("](")[1:]]
    return [target.split("#")[0] for target in targets if "://" not in target and not target.startswith("#")]


@pytest.mark.slow
@named([path for path in NOTEBOOKS if path not in TOPICS])
def test_the_start_notebook_and_every_lesson_run_from_top_to_bottom_with_no_control_touched(path, tmp_path):
    executed = tmp_path / "executed.ipynb"
    command = [sys.executable, "-m", "papermill", path, executed, "--no-progress-bar", "--cwd", path.parent]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stderr[-3000:]
    outputs = [output for cell in code_cells(read(executed)) for output in cell.outputs]
    assert not [output.text for output in outputs if output.get("name") == "stderr"]
