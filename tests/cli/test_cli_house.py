"""What looks after the house: the doctor names what to do, kernels and benchmarks come and go, cleaning asks."""

import json
import shutil
from pathlib import Path

import pytest

from workbench.cli import exit_code
from workbench.datasets import manifest
from workbench.reproduction import Project, doctor
from workbench.reproduction.doctor import Check, examine

pytestmark = pytest.mark.timeout(60)

BENCHMARKS = """
from workbench.training.measuring import Benchmark, BenchmarkRow

def row(name, figure, holds):
    result = BenchmarkRow(name=name, figure=figure, unit="x", asked="at least 5", holds=holds)
    return Benchmark(name=name, asks="", run=lambda: [result])

BENCHMARKS = [row("fast-enough", 7.0, True), row("too-slow", 3.0, False)]
"""


def test_the_doctor_looks_at_everything_and_says_what_to_do_about_what_is_missing(line):
    code, out, err = line.run("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(out)}
    required = {"python", "packages", "catalogue", "results", "ranks", "kernels"}
    assert {name for name, check in checks.items() if check["required"]} == required
    assert {"GPUs", "shaped hosts", "browser"} <= set(checks)
    assert any(name.startswith("data") for name in checks)
    assert checks["ranks"]["state"] == "ok" and checks["catalogue"]["found"].startswith("3 items")
    assert all(check["advice"] for check in checks.values() if check["state"] != "ok")
    assert (code, err) == (int(any(check["state"] == "missing" for check in checks.values())), "")


def test_what_is_required_and_missing_gives_exit_code_1_and_what_is_optional_does_not(line, capsys, monkeypatch):
    def look(project):
        yield Check(name="GPUs", ok=False, required=False, found="none", advice="not needed")
        if project.root.joinpath("broken").exists():
            yield Check(name="ranks", ok=False, required=True, found="none", advice="install them")

    monkeypatch.setattr("workbench.reproduction.doctor.examine", look)
    assert exit_code(["doctor"]) == 0
    assert "○ optional GPUs  none" in capsys.readouterr().out
    (line.root / "broken").touch()
    assert exit_code(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "✕ missing ranks  none\n    install them" in text and "Missing and required: ranks." in text


def test_a_data_folder_that_is_not_there_or_holds_wrong_bytes_is_the_variables_fault(line, monkeypatch, tmp_path):
    monkeypatch.setenv("WORKBENCH_DATA", str(tmp_path / "nowhere"))
    (check,) = doctor._data()
    assert check.advice == "Set WORKBENCH_DATA to a folder that exists, or unset it."
    (line.root / "data").mkdir()
    shutil.copy(Path(__file__).parents[2] / "data/manifest.csv", line.root / "data/manifest.csv")
    entry = next(entry for entry in manifest.list_data() if not entry.is_model)
    for file in entry.files:
        path = tmp_path / "data" / file.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("cut")
    monkeypatch.setenv("WORKBENCH_DATA", str(tmp_path / "data"))
    check = next(check for check in doctor._data() if check.name == f"data {entry.name}")
    assert (check.ok, check.advice) == (False, "Mend it, or unset WORKBENCH_DATA.")


def test_verifying_where_nothing_is_ends_with_a_summary(line, capsys, monkeypatch, tmp_path):
    (line.root / "data").mkdir()
    shutil.copy(Path(__file__).parents[2] / "data/manifest.csv", line.root / "data/manifest.csv")
    monkeypatch.setenv("WORKBENCH_DATA", str(tmp_path))
    assert exit_code(["data", "verify", "glue"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("None of these files is on this machine")


def test_a_catalogue_that_cannot_be_used_is_broken(line):
    (line.root / "reproductions/toy/catalogue.py").write_text("CATALOGUE = 3\n")
    check = next(check for check in examine(Project()) if check.name == "catalogue")
    assert check.state == "broken" and "CATALOGUE must be a tuple" in check.found


def test_a_benchmark_that_does_not_hold_gives_exit_code_1_and_a_pattern_leaves_it_out(line):
    folder = line.root / "tests/benchmarks"
    folder.mkdir(parents=True)
    (folder / "bench_toy.py").write_text(BENCHMARKS)
    code, out, _ = line.run("bench")
    assert code == 1 and "too-slow  3 x  does not hold: asked at least 5" in out
    code, out, _ = line.run("bench", "fast-*")
    assert code == 0 and out == "fast-enough  7 x  holds: asked at least 5\n"


def test_kernels_are_installed_listed_and_removed(line, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    assert exit_code(["kernels", "install", "--ranks", "3", "--user"]) == 0
    assert exit_code(["kernels", "list"]) == 0
    assert f"workbench-3-ranks  {tmp_path}/jupyter/kernels/workbench-3-ranks" in capsys.readouterr().out
    assert exit_code(["kernels", "remove", "workbench-3-ranks"]) == 0
    assert not (tmp_path / "jupyter/kernels/workbench-3-ranks").exists()


def test_cleaning_keeps_what_is_in_use_and_what_is_not_its_own(line, capsys):
    from workbench.reproduction.files import hold_lock

    results = line.root / "results"
    for profile in ("smoke", "laptop"):
        (results / profile / "toy").mkdir(parents=True)
        (results / profile / "toy" / "file").write_text("x")
    with hold_lock(results / "laptop"):
        assert exit_code(["clean", "laptop", "--yes"]) == 2
        assert "in use by another run" in capsys.readouterr().err
    assert (results / "laptop/toy/file").exists()
    assert exit_code(["clean", "laptop", "--yes"]) == 0
    assert f"Removed what {results}/laptop held." in capsys.readouterr().out
    assert not (results / "laptop/toy").exists() and (results / "smoke/toy/file").exists()
