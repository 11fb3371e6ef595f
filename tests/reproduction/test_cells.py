"""A study runs what is missing, keeps each result at once, and reuses what is still what it would compute."""

import contextlib
import json
import math
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cell_functions import drawn, score
from toy_project import ToyProject

from workbench.reproduction import CellsFailed, RecordError, UsageError, run_cells
from workbench.reproduction.cells import Cell, CellClaims, Ended, Estimate, Finished, describe, study
from workbench.reproduction.cells.cell import make_cell, perform
from workbench.reproduction.files import write_record

ITEM = "toy/table-1/counted"
TASKS = [{"task": "rte", "seed": 1}, {"task": "rte", "seed": 2}, {"task": "cola", "seed": 1}]


class OneAfterTheOther:
    """Takes the place of the pool: ends a cell as soon as it is asked for, and says how long it took."""

    def __init__(self):
        self.jobs, self.began, self.waiting, self.seconds = 1, [], None, lambda arguments: 1.0

    def __call__(self, jobs, preload, timeout_s):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    @property
    def has_room(self):
        return self.waiting is None

    def running(self):
        return [] if self.waiting is None else [(self.waiting, 0.0)]

    def start(self, cell):
        self.waiting = cell
        self.began.append(cell.arguments)

    def ended(self):
        cell, self.waiting = self.waiting, None
        if cell is None:
            time.sleep(0.01)
            return
        run = {"started": "2026-01-01T00:00:00+00:00", "machine": {"host": "here"}}
        values = {"score": cell.arguments.get("seed", 0) * 2.0}
        yield Ended(cell=cell, finished=Finished(values=values, seconds=self.seconds(cell.arguments), **run))


@pytest.fixture
def pool(monkeypatch) -> OneAfterTheOther:
    pool = OneAfterTheOther()
    monkeypatch.setattr(study, "Pool", pool)
    return pool


def cells_folder(toy: ToyProject, name: str = "score") -> Path:
    return toy.root / "results/laptop/toy/cells" / name


def files(toy: ToyProject, name: str = "score") -> list[Path]:
    return sorted(cells_folder(toy, name).glob("*.json"))


def change(path: Path, **fields) -> None:
    """Change a cell and seal it again, as another checkout or machine would have."""
    held = json.loads(path.read_text())
    held.pop("checksum")
    write_record(path, held | fields)


def test_cells_that_raise_die_hang_or_return_no_mapping_fail_by_name_while_the_others_stay(toy, capsys):
    strange = [{"task": task, "seed": 1} for task in ("raises", "dies", "hangs", "counts")]
    with pytest.raises(CellsFailed) as failed:
        run_cells(ITEM, score, [*TASKS, *strange], jobs=2, timeout_s=10.0)
    text = str(failed.value)
    assert text.startswith("4 of 7 cells failed (") and text.splitlines()[0].endswith("); the others are kept")
    assert re.search(r"^raises seed 1: [\s\S]*cell_functions.py[\s\S]*^ValueError: no such task$", text, re.MULTILINE)
    assert re.search(r"^dies seed 1: .*signal 9", text, re.MULTILINE)
    assert "hangs seed 1: did not answer within 10 s" in text
    assert "returned a value of type int; it must be a mapping or dataclass" in text
    assert len(files(toy)) == 3

    results = run_cells(ITEM, score, TASKS)
    scores = [("rte", 2.0), ("rte", 4.0), ("cola", 2.0)]
    assert [result.values for result in results] == [{"task": task, "score": score} for task, score in scores]
    assert all(result.reused for result in results)
    assert "3 cells: 3 are there, 0 to run" in capsys.readouterr().out
    assert [result.arguments for result in run_cells(ITEM, score, TASKS[::-1])] == TASKS[::-1]  # in the order asked for


def test_a_cell_gives_the_same_whatever_ran_before_it_in_its_process(toy, pools):
    both = run_cells(ITEM, drawn, [{"seed": 1}, {"seed": 2}], jobs=1)
    (alone, _) = pools(2).run(perform, make_cell(drawn, 0, {"seed": 2}), 0)
    assert alone.values == both[1].values != both[0].values
    assert alone.values["threads"] == 1 and math.isnan(float(alone.values["nan"]))


def test_two_items_share_a_cell_and_one_that_is_asked_for_twice_runs_once(toy, pool):
    toy.declare_each(**{"table-1": "", "fig-2": ""})
    run_cells(ITEM, score, [TASKS[0], TASKS[0], TASKS[1]], jobs=1)
    results = run_cells("toy/fig-2/counted", score, TASKS, jobs=1)
    assert [result.reused for result in results] == [True, True, False]
    assert pool.began == [TASKS[0], TASKS[1], TASKS[2]]


def test_a_cell_is_kept_apart_by_function_arguments_and_profile(toy, pool):
    run_cells(ITEM, score, TASKS[:1], jobs=1)
    run_cells(ITEM, score, [{"seed": 1, "task": "rte"}], jobs=1)  # the order of the arguments says nothing
    run_cells(ITEM, score, TASKS[:1], jobs=1, profile="full")
    run_cells(ITEM, score, [TASKS[0] | {"size": 1}], jobs=1)
    run_cells(ITEM, drawn, [{"seed": 1}], jobs=1)
    assert len(pool.began) == 4
    name = Cell(function="cell_functions.score", arguments=TASKS[0]).digest
    assert (toy.root / f"results/full/toy/cells/score/{name}.json").exists() and len(files(toy)) == 2


def test_the_longest_expected_cell_is_first_and_the_time_left_is_told(toy, pool, capsys):
    pool.seconds = lambda arguments: 100.0 if arguments["task"] == "rte" else 10.0
    run_cells(ITEM, score, [{"task": "cola", "seed": 0}, {"task": "rte", "seed": 0}], jobs=1)
    pool.began.clear()
    capsys.readouterr()
    run_cells(ITEM, score, [{"task": task, "seed": seed} for seed in (1, 2) for task in ("cola", "rte")], jobs=1)
    assert [arguments["task"] for arguments in pool.began] == ["rte", "rte", "cola", "cola"]
    assert capsys.readouterr().out.splitlines() == [
        "4 cells: 0 are there, 4 to run",
        "cell 1 of 4 · rte seed 1 · 100 s · about 2 min 00 s left",  # 100 + 10 + 10
        "cell 2 of 4 · rte seed 2 · 100 s · about 20 s left",
        "cell 3 of 4 · cola seed 1 · 10 s · about 10 s left",
        "cell 4 of 4 · cola seed 2 · 10 s",
    ]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("library", {"cell_functions": "0" * 16}, "library: cell_functions changed"),
        ("versions", {"python": "2.7"}, "versions: "),
        ("data", {"hub": "0"}, "data: hub changed"),
    ],
)
def test_a_cell_of_another_library_version_or_data_runs_again_unless_accepted(toy, pool, capsys, field, value, message):
    run_cells(ITEM, score, TASKS, jobs=1)
    change(files(toy)[0], **{field: value})
    capsys.readouterr()
    kept = run_cells(ITEM, score, TASKS, jobs=1, keep_cells=True)
    assert all(result.reused for result in kept) and f"; 1 kept ({message}" in capsys.readouterr().out
    again = run_cells(ITEM, score, TASKS, jobs=1)
    assert sum(result.reused for result in again) == 2
    assert f"3 cells: 2 are there, 1 to run; 1 out of date ({message}" in capsys.readouterr().out


def test_a_cell_holds_its_modules_and_another_machine_or_commit_alone_does_not_outdate_it(toy, pool):
    run_cells(ITEM, score, TASKS[:1], jobs=1)
    assert json.loads(files(toy)[0].read_text())["library"].keys() == {"cell_functions"}
    change(files(toy)[0], machine={"host": "elsewhere"}, commit="abc")
    (result,) = run_cells(ITEM, score, TASKS[:1], jobs=1)
    assert (result.reused, result.machine, result.commit) == (True, "elsewhere", "abc")


@pytest.mark.parametrize("keep", [False, True])
def test_a_cell_that_cannot_be_trusted_is_refused_by_name_before_anything_runs_and_stays(toy, pool, keep):
    run_cells(ITEM, score, [*TASKS, {"task": "cola", "seed": 2}], jobs=1)
    first, second, third, fourth = files(toy)
    fourth.write_text(first.read_text())
    first.write_text(first.read_text().replace('"score": ', '"score": 1'))
    write_record(second, json.loads(second.read_text()) | {"schema": 99})
    third.write_text("{")
    before = [path.read_text() for path in files(toy)]
    with pytest.raises(RecordError) as refused:
        run_cells(ITEM, score, [*pool.began, {"task": "new", "seed": 1}], jobs=1, keep_cells=keep)
    assert f"{first}: refused, its checksum does not fit its content" in str(refused.value)
    assert f"{second}: refused, it is no cell of schema 1" in str(refused.value)
    assert f"{third}: refused, it cannot be read" in str(refused.value)
    assert f"{fourth}: refused, it is the cell of other arguments" in str(refused.value)
    assert [path.read_text() for path in files(toy)] == before and len(pool.began) == 4


def test_a_result_that_cannot_be_written_is_told_and_nothing_more_is_begun(toy, pool, monkeypatch):
    def full(path, record):
        raise OSError(28, "No space left on device", str(path))

    run_cells(ITEM, score, TASKS[:1], jobs=1)
    monkeypatch.setattr("workbench.reproduction.cells.store.write_record", full)
    with pytest.raises(CellsFailed) as failed:
        run_cells(ITEM, score, TASKS, jobs=1)
    assert str(failed.value).startswith("1 of 3 cells failed (rte seed 2); 1 were not begun; the others are kept")
    assert "No space left on device" in str(failed.value) and 'Its values: {"score":4.0}' in str(failed.value)
    monkeypatch.undo()
    assert len(files(toy)) == 1


LOCKLESS = """
import errno, fcntl
def flock(*_):
    raise OSError(errno.ENOLCK, "no locks here")
fcntl.flock = flock
"""
CLAIMS = """
import pathlib, sys
from workbench.reproduction.files import claim
free = claim(pathlib.Path(sys.argv[1]))
print(free is not None, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("prologue", ["", LOCKLESS], ids=["locks", "no locks"])
def test_what_a_process_has_claimed_is_free_once_it_is_killed(tmp_path, prologue):
    command = [sys.executable, "-c", prologue + CLAIMS, str(tmp_path / "cell")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    answers = []
    with contextlib.ExitStack() as stack:
        processes = []
        for turn in range(3):
            if turn == 2:
                processes[0].kill()
                processes[0].wait(20)
            processes.append(stack.enter_context(subprocess.Popen(command, **pipes)))
            stack.callback(processes[-1].kill)
            answers.append(processes[-1].stdout.readline().strip())
    assert answers == ["True", "False", "True"]


@pytest.mark.parametrize("has_locks", [True, False])
def test_a_cell_that_another_study_runs_is_waited_for_and_not_run_twice(toy, pool, monkeypatch, has_locks):
    if not has_locks:
        monkeypatch.setattr("fcntl.flock", lambda *_: (_ for _ in ()).throw(OSError("no locks here")))
    run_cells(ITEM, score, TASKS[:2], jobs=1)
    _, other = (Cell(function="cell_functions.score", arguments=arguments) for arguments in TASKS[:2])
    result = (cells_folder(toy) / f"{other.digest}.json").read_text()
    for path in files(toy):
        path.unlink()
    monkeypatch.setattr(study, "LOOK_S", 0.01)
    looks = []

    def take(claims, cell, take=CellClaims.take):
        looks.append(cell.digest)
        if cell.digest == other.digest and looks.count(other.digest) == 3:  # the other one finishes it meanwhile
            (cells_folder(toy) / f"{other.digest}.json").write_text(result)
            other_study.free(other.digest)
        return take(claims, cell)

    with CellClaims(cells_folder(toy)) as other_study:
        assert other_study.take(other)
        monkeypatch.setattr(CellClaims, "take", take)
        results = run_cells(ITEM, score, TASKS[:2], jobs=1)
    assert [result.reused for result in results] == [False, True] and pool.began[2:] == [TASKS[0]]
    assert not list(cells_folder(toy).glob(".*"))  # no claim is left


@pytest.mark.parametrize(
    ("function", "cells", "options", "message"),
    [
        (lambda seed: {}, [{"seed": 1}], {}, "function is .*<lambda>.*; it must be a function at the top"),
        (Cell.digest.fget, [{}], {}, "it must be a function at the top level"),
        (score, [{"task": "rte", "seed": (1, 2)}], {}, r"cells\[0\]\['seed'\] is \(1, 2\), a tuple"),
        (score, [{"task": "rte", "sead": 1}], {}, r"cells\[0\] is .*; score refuses it: "),
        (score, [{"task": "rte", "seed": 1}, 7], {}, r"cells\[1\] is 7; it must be a dictionary"),
        (score, TASKS, {"jobs": 0}, "jobs is 0; it must be a whole number of at least 1"),
        (score, TASKS, {"timeout_s": 0}, "timeout_s is 0; it must be above 0"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(toy, function, cells, options, message):
    with pytest.raises(ValueError, match=message):
        run_cells(ITEM, function, cells, **options)
    assert not (toy.root / "results").exists()


def test_a_function_of_a_notebook_and_an_unknown_item_are_refused_and_no_cells_are_no_work(toy, monkeypatch):
    with pytest.raises(UsageError, match="no item 'toy/table-9/counted'"):
        run_cells("toy/table-9/counted", score, TASKS)
    assert run_cells(ITEM, score, []) == []
    monkeypatch.setattr(score, "__module__", "__main__")
    with pytest.raises(ValueError, match="function is 'score' of __main__; it must be .* not of a notebook"):
        run_cells(ITEM, score, TASKS)


def cell(**arguments) -> Cell:
    return Cell(function="module.function", arguments=arguments)


def test_nothing_is_expected_before_anything_has_run_and_each_run_changes_the_expectation():
    estimate, rte = Estimate([]), cell(task="rte")
    assert estimate.seconds(rte) == 0 and estimate.remaining_s([rte], [], 2) is None
    for task, seconds in (("cola", 10.0), ("rte", 100.0)):
        estimate.add({"task": task}, seconds)
        assert estimate.seconds(rte) == seconds


def test_an_argument_that_explains_the_times_counts_more_than_one_that_does_not():
    times = {("rte", 0): 100.0, ("rte", 1): 110.0, ("cola", 0): 10.0, ("cola", 1): 12.0}
    estimate = Estimate([({"task": task, "seed": seed}, seconds) for (task, seed), seconds in times.items()])
    assert estimate.seconds(cell(task="rte", seed=2)) == 105.0  # the mean of its task
    assert estimate.seconds(cell(task="sst2", seed=1)) == 61.0  # an unknown task: the mean of its seed, (110 + 12) / 2
    assert estimate.seconds(cell(task="cola", seed=1)) == 12.0


def test_two_arguments_that_both_matter_are_both_looked_at():
    times = {("rte", "A1"): 10.0, ("rte", "Q1"): 40.0, ("cola", "A1"): 100.0, ("cola", "Q1"): 400.0}
    pairs = [({"task": task, "method": method}, seconds) for (task, method), seconds in times.items()]
    estimate = Estimate([(pair | {"seed": seed}, seconds) for pair, seconds in pairs for seed in (0, 1)])
    assert [estimate.seconds(cell(task=task, method=method, seed=2)) for task, method in times] == list(times.values())


@pytest.mark.parametrize(("jobs", "seconds"), [(1, 210.0), (2, 105.0), (4, 100.0)])
def test_the_time_left_is_shared_by_the_jobs_and_no_shorter_than_the_longest_cell(jobs, seconds):
    estimate = Estimate([({"task": "rte"}, 100.0), ({"task": "cola"}, 10.0)])
    waiting = [cell(task="rte"), cell(task="cola"), cell(task="cola")]
    running = [(cell(task="rte"), 10.0), (cell(task="cola"), 25.0)]
    assert estimate.remaining_s(waiting, running, jobs) == seconds  # 100 + 10 + 10, 90 of the one, none of the other


def test_a_cell_is_named_by_the_arguments_in_which_the_cells_differ():
    same = {"method": "A1", "epochs": 3}
    cells = [cell(task="rte", seed=2, feedback=True, **same), cell(task="cola", seed=1, feedback=False, **same)]
    assert describe(cells[0], cells) == "rte seed 2 feedback true"
    assert describe(cells[0], cells[:1]) == "function"
