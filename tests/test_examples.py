"""Every technique has a short script, which runs as a new user would run it."""

import os
import re
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
@pytest.mark.parametrize("starter", ["python", "torchrun"])
@pytest.mark.parametrize("technique", TECHNIQUES)
def test_an_example_runs_and_says_something_without_a_warning(technique, starter):
    script = EXAMPLES / f"{technique}.py"
    command = [sys.executable, script]
    if starter == "torchrun":
        ranks = re.search(r"run_on_ranks\(train, (\d),", script.read_text(encoding="utf-8"))
        if ranks is None:
            pytest.skip("it starts its own ranks, and anew after a failure: see run_under_torchrun")
        command[1:1] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks[1]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert not [line for line in done.stderr.splitlines() if "Warning" in line and ADVICE not in line]
