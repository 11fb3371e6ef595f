"""Where the command line looks for a project and keeps its results, and what scripts ask of it."""

import json
import os
import subprocess
import sys

import pytest

from workbench.checkout import HOME, find_results, find_root


def test_the_nearest_root_above_the_current_folder_is_taken_and_a_named_one_before_it(tmp_path, monkeypatch):
    monkeypatch.delenv("WORKBENCH_ROOT", raising=False)
    monkeypatch.delenv("WORKBENCH_RESULTS", raising=False)
    monkeypatch.chdir(tmp_path)
    assert find_root() == HOME
    for name in ("reproductions", "notebooks/zen"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "notebooks" / "zen")
    assert find_root() == tmp_path and find_results(tmp_path) == tmp_path / "results"
    monkeypatch.setenv("WORKBENCH_ROOT", str(tmp_path / "other"))
    monkeypatch.setenv("WORKBENCH_RESULTS", str(tmp_path / "kept"))
    assert find_root() == tmp_path / "other" and find_results(tmp_path) == tmp_path / "kept"


def test_a_copy_to_edit_is_written_into_an_empty_folder_alone(line, tmp_path):
    assert "Wrote" in line.said("init", str(tmp_path / "copy"))
    assert (tmp_path / "copy/reproductions/toy/catalogue.py").exists()
    again = line("init", str(tmp_path / "copy"))
    assert again.code == 2 and "not empty" in again.err


def test_what_would_run_and_one_item_can_be_read_by_a_program(line):
    planned = json.loads(line("reproduce", "table-1", "--profile", "laptop", "--dry-run", "--json").out)
    assert [(item["id"], item["action"], item["expected_s"]) for item in planned] == [("toy/table-1/counted", "run", 3)]
    (shown,) = json.loads(line("show", "table-1", "--json").out)
    assert shown["parameters"]["laptop"] == {"size": 4} and "run" not in shown
    assert {"name", "here", "licence"} <= set(json.loads(line("data", "list", "--json").out)[0])


IMPORTS = """
import sys
def new(*names):
    found = [name for name in names if name in sys.modules]
    assert not found, found
import workbench
new("IPython", "ipywidgets", "torch")
import workbench.cluster, workbench.launch, workbench.launch.kernels
workbench.launch.kernels.installed()
new("torch")
from workbench.datasets import glue, manifest
manifest.list_data(), manifest.verify("glue/rte"), glue.load("rte", "validation")
new("torch", "datasets", "huggingface_hub", "transformers")
from workbench.explore.gemini import solve
new(*(f"workbench.techniques.gemini.{room}" for room in ("cost", "runtime", "simulated", "study")))
"""


def test_what_is_asked_for_at_once_imports_nothing_slow():
    environment = {**os.environ, "WORKBENCH_DATA": ""}
    done = subprocess.run([sys.executable, "-c", IMPORTS], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "message"), [(("--json",), "goes with --dry-run"), (("--quiet", "--verbose"), "exclude each other")]
)
def test_options_that_do_not_go_together_are_refused(line, words, message):
    done = line("reproduce", *words)
    assert done.code == 2 and message in done.err


HELPS = [("list",), ("show",), ("reproduce",), ("report",), ("records", "export"), ("data", "fetch"), ("bench",)]


def test_flags_and_arguments_are_shown_without_a_python_type_and_completion_is_offered(line):
    assert not [words for words in HELPS if "<" in line(*words, "--help").out]
    assert "--install-completion" in line("--help").out
