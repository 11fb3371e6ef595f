"""`new technique` writes furniture that passes its own test, is listed, and runs in the smoke profile."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

import workbench
from workbench.cli import exit_code
from workbench.reproduction.scaffold import furniture, notebook_json

pytestmark = pytest.mark.timeout(100)


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """A copy of the library alone, with nothing declared."""
    root = tmp_path / "checkout"
    shutil.copytree(Path(workbench.__file__).parent, root / "workbench", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "reproductions").mkdir()
    monkeypatch.setenv("WORKBENCH_ROOT", str(root))
    return root


def python(root: Path, *words: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("WORKBENCH_DATA", None)
    done = subprocess.run([sys.executable, *words], cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_new_technique_is_listed_runs_and_passes_its_own_test(checkout, capsys):
    assert exit_code(["new", "technique", "ring_sum"]) == 0
    written = capsys.readouterr().out.splitlines()[: len(furniture("ring_sum"))]
    assert written == list(furniture("ring_sum")) and all((checkout / path).is_file() for path in written)

    assert exit_code(["list", "--json"]) == 0
    assert [item["id"] for item in json.loads(capsys.readouterr().out)] == [
        "ring-sum/table-1/counted",
        "ring-sum/fig-2/measured",
        "ring-sum/fig-2/simulated",
    ]

    python(checkout, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "tests/techniques/ring_sum")
    python(checkout, "-m", "workbench.cli", "reproduce", "ring-sum", "--profile", "smoke")
    record = json.loads((checkout / "results/smoke/ring-sum/table-1/counted/record.json").read_text())
    assert [(row["num_ranks"], row["value"]) for row in record["values"]] == [(2, 1000), (4, 1500), (8, 1750)]
    times = json.loads((checkout / "results/smoke/ring-sum/fig-2/measured/record.json").read_text())["values"]
    assert [row["message_bytes"] for row in times] == [1000, 4000000] and all(row["low"] > 0 for row in times)


def test_a_name_that_is_taken_is_refused_and_nothing_is_overwritten(checkout, capsys):
    assert exit_code(["new", "technique", "activation_compression"]) == 2
    message = "'activation_compression' exists already: workbench/techniques/activation_compression"
    assert message in capsys.readouterr().err
    assert not (checkout / "reproductions/activation_compression").exists()


def test_notebooks_are_valid_have_no_outputs_and_keep_to_short_cells(checkout):
    exit_code(["new", "technique", "ring_sum"])
    for path in (checkout / "notebooks/ring_sum").glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert all(cell.source.count("\n") < 15 for cell in notebook.cells)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert not any(cell.outputs or cell.execution_count for cell in code)


def test_cells_are_cut_at_their_marks_and_the_parameters_are_tagged():
    held = json.loads(notebook_json("# %% [markdown]\n# Title\n\n# %% [parameters]\nsize = 1\n\n# %%\nprint(size)\n"))
    assert [(cell["cell_type"], "".join(cell["source"]), cell["metadata"]) for cell in held["cells"]] == [
        ("markdown", "# Title", {}),
        ("code", "size = 1", {"tags": ["parameters"]}),
        ("code", "print(size)", {}),
    ]
