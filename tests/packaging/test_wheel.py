"""A wheel is a whole workbench: it carries catalogue, notebooks and small data, and needs no checkout."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from workbench.checkout import FOLDERS, copy_root

ROOT = Path(__file__).parents[2]
LEFT_BY_RUNS = {"__pycache__", ".ipynb_checkpoints", "downloads"}
DATA = "from workbench.datasets import step_times; print(len(step_times.load('SE').seconds))"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A wheel of this checkout, built in a copy, since building leaves files beside the source."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "workbench", source / "workbench", ignore=shutil.ignore_patterns("__pycache__"))
    copy_root(ROOT, source)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        target,
        source,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = target.glob("*.whl")
    return path


def test_a_wheel_carries_every_file_of_the_catalogue_the_notebooks_and_the_small_data(wheel):
    folders = [ROOT / name for name in (*FOLDERS, "data")]
    files = [path.relative_to(ROOT) for folder in folders for path in folder.rglob("*") if path.is_file()]
    wanted = {f"workbench/carried/{file.as_posix()}" for file in files if not LEFT_BY_RUNS & set(file.parts)}
    assert {Path(name).suffix for name in wanted} >= {".py", ".csv", ".json", ".png", ".ipynb", ".parquet", ".md"}
    names = set(zipfile.ZipFile(wheel).namelist())
    assert wanted <= names
    of_jupyter = {"labconfig/default_setting_overrides.json", "kernels/python3/kernel.json"}
    assert {f"workbench/explore/jupyter/{name}" for name in of_jupyter} <= names
    assert not [name for name in names if "__pycache__" in name or "/results/" in name]


@pytest.fixture
def workbench(wheel, tmp_path):
    """The unpacked wheel's `workbench ...` in an empty folder; returns what a command that succeeds prints."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    (tmp_path / "elsewhere").mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WORKBENCH_")}
    environment |= {"PYTHONPATH": str(tmp_path / "site"), "HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf")}

    def run(*words: str, code: str = "from workbench.cli import main; main()", below: str = "") -> str:
        command, place = [sys.executable, "-c", code, *words], tmp_path / "elsewhere" / below
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run.folder = tmp_path / "elsewhere"
    return run


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_installed_wheel_lists_runs_reports_and_begins_a_technique_outside_any_checkout(workbench):
    carried = workbench.folder.parent / "site" / "workbench" / "carried"
    assert len(json.loads(workbench("list", "zen", "--json"))) > 10
    assert f"items in {carried / 'reproductions'}" in workbench("doctor")
    assert workbench(code=DATA) == "4\n"
    workbench("reproduce", "gemini/table-2-1", "--profile", "smoke", "--results", "kept")
    assert list((workbench.folder / "kept/smoke/gemini/table-2-1/counted").glob("record.json"))
    assert not (carried / "results").exists()

    workbench("init", "copy")
    assert str(workbench.folder / "copy") in workbench("doctor", below="copy/notebooks/zen")
    (workbench.folder / "own").mkdir()
    workbench("new", "technique", "ring_sum", below="own")
    workbench("reproduce", "ring-sum/table-1", "--profile", "smoke", below="own")
    assert (workbench.folder / "own/results/smoke/ring-sum/table-1/counted/record.json").exists()
