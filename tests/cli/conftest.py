"""The command line on a small project, in this process or in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from toy_project import ToyProject

from workbench.cli import exit_code

HEAVY = ("torch", "papermill", "pandas", "matplotlib", "transformers")


class Done(NamedTuple):
    """An ended command."""

    code: int
    out: str
    err: str


class CommandLine:
    """`workbench ...` on a project of three items: the second fails, and the third is slow."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture):
        self.root, self.capsys, self.toy = root, capsys, ToyProject(root)
        slow = 'item("fig-3", "slow", parameters={"full": {}})'
        self.toy.declare('item("table-1")', 'item("table-2", "bad")', slow)
        self.toy.notebook("bad", 'raise RuntimeError("boom")')
        self.toy.notebook("slow", "import time\nprint('slow begins')\ntime.sleep(100)")

    def __call__(self, *words: str) -> Done:
        """Run in this process."""
        self.capsys.readouterr()
        code = exit_code(list(words))
        return Done(code, *self.capsys.readouterr())

    def said(self, *words: str) -> str:
        """Run a command that must succeed; return its output as one line."""
        done = self(*words)
        assert done.code == 0, done.out + done.err
        return " ".join(done.out.split())

    def start(self, *words: str) -> subprocess.Popen:
        """Start in a process of its own."""
        command = [sys.executable, "-c", "from workbench.cli import main; main()", *words]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, text=True, **pipes)

    def alone(self, *words: str) -> Done:
        """Run in a process of its own, as runs with kernels must."""
        process = self.start(*words)
        out, err = process.communicate(timeout=200)
        return Done(process.returncode, out, err)

    def heavy_imports(self, *commands: tuple[str, ...]) -> list[str]:
        """Run commands in one process of their own; return the slow packages that they import and their exit codes."""
        code = (
            f"import sys; from workbench.cli import exit_code; codes = [exit_code(words) for words in {commands!r}]\n"
        )
        code += f"print(*(name for name in {HEAVY!r} if name in sys.modules), *codes)"
        done = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()[-1].split()


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> CommandLine:
    monkeypatch.setenv("WORKBENCH_ROOT", str(tmp_path / "project"))
    monkeypatch.delenv("WORKBENCH_DATA", raising=False)
    return CommandLine(tmp_path / "project", capsys)
