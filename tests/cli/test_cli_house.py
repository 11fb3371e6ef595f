"""The doctor names a remedy, kernels and benchmarks come and go, cleaning asks, a new technique passes its own test."""

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
from workbench.datasets import manifest
from workbench.reproduction import Project, doctor, load_catalogue
from workbench.reproduction.catalogue import load_page
from workbench.reproduction.doctor import Check, examine
from workbench.reproduction.files import hold_lock
from workbench.reproduction.scaffold import furniture, notebook_json

BENCHMARKS = """
from workbench.study.measuring import Benchmark, BenchmarkRow

def row(name, figure, holds):
    result = BenchmarkRow(name=name, figure=figure, unit="x", asked="at least 5", holds=holds)
    return Benchmark(name=name, asks="", run=lambda: [result])

BENCHMARKS = [row("fast-enough", 7.0, True), row("too-slow", 3.0, False)]
"""


@pytest.fixture
def data(line, monkeypatch, tmp_path) -> Path:
    """A folder of data that does not exist yet, in a project with the manifest."""
    (line.root / "data").mkdir()
    shutil.copy(Path(__file__).parents[2] / "data/manifest.csv", line.root / "data/manifest.csv")
    monkeypatch.setenv("WORKBENCH_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def test_the_doctor_looks_at_everything_and_advises_on_all_that_is_missing(line):
    done = line("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(done.out)}
    required = {"python", "packages", "catalogue", "results", "ranks", "kernels"}
    assert {name for name, check in checks.items() if check["required"]} == required
    assert {"GPUs", "shaped hosts", "browser"} <= set(checks)
    assert any(name.startswith("data") for name in checks)
    assert checks["ranks"]["state"] == "ok" and checks["catalogue"]["found"].startswith("3 items")
    assert all(check["advice"] for check in checks.values() if check["state"] != "ok")
    assert (done.code, done.err) == (int(any(check["state"] == "missing" for check in checks.values())), "")


def test_a_required_check_that_is_missing_gives_exit_code_1_and_an_optional_one_does_not(line, monkeypatch):
    checks = [Check(name="GPUs", ok=False, required=False, detail="none", advice="not needed")]
    monkeypatch.setattr("workbench.reproduction.doctor.examine", lambda project: iter(checks))
    assert "○ optional GPUs none" in line.said("doctor")
    checks.append(Check(name="ranks", ok=False, required=True, detail="none", advice="install them"))
    done = line("doctor")
    assert done.code == 1
    assert "✕ missing ranks  none\n    install them" in done.out and "Missing and required: ranks." in done.out


def test_a_data_folder_that_is_not_there_or_holds_wrong_bytes_is_the_variables_fault(line, data):
    (check,) = doctor._data()
    assert check.advice == "Set WORKBENCH_DATA to a folder that exists, or unset it."
    entry = next(entry for entry in manifest.list_data() if not entry.is_model)
    for file in entry.files:
        path = data / file.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("cut")
    check = next(check for check in doctor._data() if check.name == f"data {entry.name}")
    assert (check.ok, check.advice) == (False, "Mend it, or unset WORKBENCH_DATA.")


def test_verifying_an_empty_folder_ends_with_a_summary(line, data):
    data.mkdir()
    assert "None of these files is on this machine" in line.said("data", "verify", "glue")


def test_a_catalogue_that_cannot_be_used_is_broken(line):
    (line.root / "reproductions/toy/catalogue.py").write_text("CATALOGUE = 3\n")
    check = next(check for check in examine(Project()) if check.name == "catalogue")
    assert check.state == "broken" and "CATALOGUE must be a tuple" in check.detail


def test_a_benchmark_that_does_not_hold_gives_exit_code_1_and_a_pattern_leaves_it_out(line):
    (line.root / "tests/benchmarks").mkdir(parents=True)
    (line.root / "tests/benchmarks/bench_toy.py").write_text(BENCHMARKS)
    done = line("bench")
    assert done.code == 1 and "too-slow  3 x  does not hold: asked at least 5" in done.out
    assert line("bench", "fast-*").out == "fast-enough  7 x  holds: asked at least 5\n"


def test_kernels_are_installed_listed_and_removed(line, monkeypatch, tmp_path):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    kernel = tmp_path / "jupyter/kernels/workbench-3-ranks"
    line.said("kernels", "install", "--ranks", "3", "--user")
    assert f"workbench-3-ranks {kernel}" in line.said("kernels", "list")
    line.said("kernels", "remove", "workbench-3-ranks")
    assert not kernel.exists()


def test_cleaning_keeps_a_profile_in_use_and_all_files_that_are_not_its_own(line):
    results = line.root / "results"
    for profile in ("smoke", "laptop"):
        (results / profile / "toy").mkdir(parents=True)
        (results / profile / "toy" / "file").write_text("x")
    with hold_lock(results / "laptop"):
        done = line("clean", "laptop", "--yes")
        assert done.code == 2 and "in use by another run" in done.err
    assert (results / "laptop/toy/file").exists()
    assert f"Removed what {results}/laptop held." in line.said("clean", "laptop", "--yes")
    assert not (results / "laptop/toy").exists() and (results / "smoke/toy/file").exists()


# new technique


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """A copy of the library alone, with nothing declared."""
    root = tmp_path / "checkout"
    shutil.copytree(Path(workbench.__file__).parent, root / "workbench")  # with its compiled files
    (root / "reproductions").mkdir()
    monkeypatch.setenv("WORKBENCH_ROOT", str(root))
    return root


NEW_TECHNIQUE = """
import json, pathlib, pytest
assert pytest.main(["-q", "-p", "no:cacheprovider", "-W", "error", "tests/techniques/ring_sum"]) == 0
values = {}
for path in sorted(pathlib.Path("notebooks/ring_sum").glob("*.ipynb")):
    names = {}
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    values[path.stem] = names.get("values")
print(json.dumps(values))
"""


def python(root: Path, *words: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WORKBENCH_")}
    environment["PYTHONPATH"] = str(root)  # and no warm process, which has imported another copy
    done = subprocess.run([sys.executable, *words], cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_new_technique_is_listed_has_valid_short_notebooks_runs_and_passes_its_own_test(checkout, capsys):
    assert exit_code(["new", "technique", "ring_sum"]) == 0
    written = capsys.readouterr().out.splitlines()[: len(furniture("ring_sum"))]
    assert written == list(furniture("ring_sum")) and all((checkout / path).is_file() for path in written)

    assert exit_code(["list", "--json"]) == 0
    ids = [item["id"] for item in json.loads(capsys.readouterr().out)]
    assert ids == ["ring-sum/table-1/counted", "ring-sum/fig-2/measured", "ring-sum/fig-2/simulated"]
    timed = [claim for item in load_catalogue(Project()) for claim in item.claims if item.item == "fig-2"]
    assert load_page(Project(), "ring_sum").use and all(claim.any_regime for claim in timed)

    for path in (checkout / "notebooks/ring_sum").glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert all(cell.source.count("\n") < 15 for cell in notebook.cells)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert not any(cell.outputs or cell.execution_count for cell in code)

    assert exit_code(["reproduce", "ring-sum", "--profile", "smoke", "--dry-run"]) == 0
    assert "3 of 3 items would run" in capsys.readouterr().out
    values = json.loads(python(checkout, "-c", NEW_TECHNIQUE).splitlines()[-1])
    assert [(row["num_ranks"], row["value"]) for row in values["counted"]] == [(2, 1000), (4, 1500), (8, 1750)]
    times = values["measured"]
    assert [row["message_bytes"] for row in times] == [1000, 4000000] and all(row["low"] > 0 for row in times)


def test_a_name_that_is_taken_is_refused_and_nothing_is_overwritten(checkout, capsys):
    assert exit_code(["new", "technique", "activation_compression"]) == 2
    message = "'activation_compression' exists already: workbench/techniques/activation_compression"
    assert message in capsys.readouterr().err
    assert not (checkout / "reproductions/activation_compression").exists()


def test_cells_are_cut_at_their_marks_and_the_parameters_are_tagged():
    held = json.loads(notebook_json("# %% [markdown]\n# Title\n\n# %% [parameters]\nsize = 1\n\n# %%\nprint(size)\n"))
    assert [(cell["cell_type"], "".join(cell["source"]), cell["metadata"]) for cell in held["cells"]] == [
        ("markdown", "# Title", {}),
        ("code", "size = 1", {"tags": ["parameters"]}),
        ("code", "print(size)", {}),
    ]
