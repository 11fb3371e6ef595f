"""A small project and the command line on it, in this process or in one of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CATALOGUE = """
from workbench.reproduction import Evidence, Reproduction, Within

CLAIMS = (Within("It sends 1500 bytes", quantity="bytes", rel=0.0, because="a count is exact"),)


def item(name, notebook, profiles=("smoke", "laptop")):
    return Reproduction(
        technique="toy", item=name, evidence=Evidence.COUNTED, title=f"Bytes of {name}", published="table.csv",
        notebook=f"notebooks/toy/{notebook}.ipynb", parameters={profile: {"num_ranks": 4} for profile in profiles},
        expected_s={"laptop": 3}, claims=CLAIMS,
    )


CATALOGUE = (item("table-1", "good"), item("table-2", "bad"), item("fig-3", "slow", profiles=("full",)))
"""
VALUE = '{"quantity": "bytes", "num_ranks": num_ranks, "value": 1500, "unit": "bytes"}'
RECORD = f"from workbench.reproduction import record\nrecord(item, [{VALUE}])"
HEAVY = ("torch", "papermill", "pandas", "matplotlib", "transformers")
NOTEBOOKS = {
    "good": RECORD,
    "bad": 'raise RuntimeError("boom")',
    "slow": "import time\nprint('slow begins')\ntime.sleep(100)",
}


def notebook(code: str) -> str:
    """Return a notebook of a parameters cell and one cell of code."""
    common = {"cell_type": "code", "outputs": [], "execution_count": None}
    parameters = 'item = "toy/table-1/counted"  # id\nnum_ranks = 4  # ranks'
    first = common | {"id": "cell-0", "metadata": {"tags": ["parameters"]}, "source": parameters}
    second = common | {"id": "cell-1", "metadata": {}, "source": code}
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": [first, second]})


class CommandLine:
    """`workbench ...` on one project."""

    def __init__(self, root: Path):
        self.root = root
        self.environment = {**os.environ, "WORKBENCH_ROOT": str(root)}
        self.environment.pop("WORKBENCH_DATA", None)

    def start(self, *words: str) -> subprocess.Popen:
        command = [sys.executable, "-c", "from workbench.cli import main; main()", *words]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, env=self.environment, text=True, **pipes)

    def run(self, *words: str) -> tuple[int, str, str]:
        """Run in a process of its own; return exit code, output and errors."""
        process = self.start(*words)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def heavy_imports(self, *words: str) -> str:
        """Run in a process of its own; return its first line, which slow packages it imported, and the exit code."""
        code = f"import sys; from workbench.cli import exit_code; code = exit_code({list(words)!r})\n"
        code += f"print([name for name in {HEAVY!r} if name in sys.modules], code)"
        options = {"env": self.environment, "capture_output": True, "text": True, "check": True}
        done = subprocess.run([sys.executable, "-c", code], **options)
        lines = done.stdout.splitlines()
        return f"{lines[0]} {lines[-1]}"


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command line on a project of three items: one that works, one that fails, one that is slow."""
    root = tmp_path / "project"
    (root / "reproductions/toy/published").mkdir(parents=True)
    (root / "notebooks/toy").mkdir(parents=True)
    (root / "reproductions/toy/catalogue.py").write_text(CATALOGUE)
    table = "quantity,num_ranks,value,unit,source\nbytes,4,1500,bytes,by hand\n"
    (root / "reproductions/toy/published/table.csv").write_text(table)
    for name, code in NOTEBOOKS.items():
        (root / f"notebooks/toy/{name}.ipynb").write_text(notebook(code))
    monkeypatch.setenv("WORKBENCH_ROOT", str(root))
    return CommandLine(root)
