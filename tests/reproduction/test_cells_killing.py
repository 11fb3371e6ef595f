"""A study that is killed, wherever and however, loses the cells under way and nothing else."""

import shutil
from pathlib import Path

import cell_functions
import psutil
import pytest
from toy_project import ToyProject, alive, kill, processes_below, wait_for

STUDY = """
from cell_functions import waits
from workbench.reproduction import run_cells
results = run_cells(item, waits, [{{"place": place, "folder": {folder!r}}} for place in range(5)], jobs=2)
"""
RECORD = """
from workbench.reproduction import record
record(item, [{"quantity": "bytes", "method": "A1", "value": results[0].values["bytes"], "unit": "bytes"}])
"""


@pytest.fixture
def marks(toy: ToyProject, tmp_path: Path) -> Path:
    """The folder in which each cell leaves a mark and finds its permission to end."""
    folder = tmp_path / "marks"
    folder.mkdir()
    shutil.copy(cell_functions.__file__, toy.root / "notebooks/toy/cell_functions.py")
    toy.notebook("one", STUDY.format(folder=str(folder)), RECORD)
    return folder


def times_run(marks: Path) -> list[int]:
    paths = [marks / f"ran-{place}" for place in range(5)]
    return [len(path.read_text().split()) if path.exists() else 0 for path in paths]


def pid_of(marks: Path, place: int) -> int:
    return int((marks / f"ran-{place}").read_text().split()[-1])


def kernel_of(runner: int) -> int:
    return next(pid for pid in processes_below(runner) if "ipykernel_launcher" in psutil.Process(pid).cmdline()[2:4])


def all_end(pids: list[int]) -> bool:
    return not any(map(alive, pids))


@pytest.mark.timeout(120)
def test_a_killed_kernel_runner_or_rank_loses_the_cells_under_way_and_each_next_run_goes_on(toy, marks):
    runner = toy.start()
    wait_for(lambda: times_run(marks) == [1, 1, 1, 0, 0])  # the first has ended, two are under way
    ranks = [pid_of(marks, 1), pid_of(marks, 2)]
    kill(kernel_of(runner.pid))
    out, err = runner.communicate(timeout=20)
    assert runner.returncode == 1 and "killed by signal 9" in out, err
    wait_for(lambda: all_end(ranks))

    (marks / "go-1").touch()
    runner = toy.start()
    wait_for(lambda: times_run(marks) == [1, 2, 2, 1, 0])
    below = processes_below(runner.pid)
    kill(runner.pid)
    runner.communicate(timeout=20)
    wait_for(lambda: all_end(below))

    (marks / "go-2").touch()
    runner = toy.start()
    wait_for(lambda: times_run(marks) == [1, 2, 3, 2, 1])
    kill(pid_of(marks, 3))
    (marks / "go-4").touch()
    out, err = runner.communicate(timeout=30)
    assert runner.returncode == 1, err
    failure = toy.failure("table-1")["reason"]
    assert failure == "CellsFailed: 1 of 5 cells failed (place 3); the others are kept"

    (marks / "go-3").touch()
    code, outcome, err = toy.run()
    assert (code, outcome["items"][0]["status"]) == (0, "recorded"), err
    assert times_run(marks) == [1, 2, 3, 3, 1]  # none ran again once it had ended
    record = toy.record()
    (origin,) = record["cells"]
    assert (origin["num_cells"], origin["commit"]) == (5, record["commit"])
    assert origin["machine"]["host"] == record["machine"]["host"]
    left = [path for pattern in (".partial-*", "toy/cells/*/.*") for path in toy.root.glob(f"results/laptop/{pattern}")]
    assert not left
    assert toy.run()[1]["items"][0]["status"] == "up to date"
