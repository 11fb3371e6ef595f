"""Fixtures of the reproduction room."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from report_project import ReportProject
from toy_project import ToyProject


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReportProject:
    """A project whose records are written by hand, which is also what Project() finds."""
    monkeypatch.setenv("WORKBENCH_ROOT", str(tmp_path / "project"))
    return ReportProject(tmp_path / "project")


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ToyProject]:
    """A project of one item, which is also what Project() finds."""
    for variable in ("WORKBENCH_RUN_DIR", "WORKBENCH_RUN_ITEM", "WORKBENCH_RUN_PROFILE", "WORKBENCH_DATA"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("WORKBENCH_ROOT", str(tmp_path / "project"))
    project = ToyProject(tmp_path / "project")
    yield project
    for runner in project.runners:  # those of a test that failed may wait for ever
        runner.kill()
        runner.communicate(timeout=200)  # ends its pipes, which the next test would be blamed for
