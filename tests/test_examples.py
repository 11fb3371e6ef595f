"""Every technique has a short script, which runs as a new user would run it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
TECHNIQUES = sorted(path.parent.name for path in (ROOT / "workbench" / "techniques").glob("*/__init__.py"))
MOST_LINES = 30
ADVICE = "do not compress: "  # what Cupcake warns of where a network is as fast as that within a machine


def test_each_technique_has_one_example_of_at_most_thirty_lines():
    assert TECHNIQUES and sorted(path.stem for path in EXAMPLES.glob("*.py")) == TECHNIQUES
    assert max(len(path.read_text(encoding="utf-8").splitlines()) for path in EXAMPLES.glob("*.py")) <= MOST_LINES


@pytest.mark.slow
@pytest.mark.parametrize("technique", TECHNIQUES)
def test_an_example_runs_and_says_something_without_a_warning(technique):
    command, environment = [sys.executable, EXAMPLES / f"{technique}.py"], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert not [line for line in done.stderr.splitlines() if "Warning" in line and ADVICE not in line]
