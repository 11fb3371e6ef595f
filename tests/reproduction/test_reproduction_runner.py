"""The runner with real kernels: what it records, what it leaves alone, what it survives."""

import hashlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import cell_functions
import psutil
import pytest
from toy_project import RECORD, ToyProject, alive, kill, processes_below, wait_for

HOLDS_THE_INTERPRETER = """
import ctypes, subprocess, sys, pathlib
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path("{flag}").write_text("held")
ctypes.PyDLL(None).sleep(600)
"""

pytestmark = pytest.mark.timeout(90)


def test_a_run_records_a_second_does_nothing_and_a_changed_published_number_turns_the_verdict_red(toy: ToyProject):
    code, outcome, err = toy.run()
    assert code == 0, err
    assert outcome["items"][0]["status"] == "recorded" and outcome["items"][0]["verdicts"] == {"agrees": 1}
    record = toy.record()
    assert record["values"] == [{"quantity": "bytes", "method": "A1", "value": 8.0, "unit": "bytes"}]
    assert record["parameters"] == {"size": 4}
    assert sorted(path.name for path in toy.folder().iterdir()) == ["log.txt", "notebook.ipynb", "record.json"]
    executed = (toy.folder() / "notebook.ipynb").read_bytes()
    assert record["artifact_sha256"]["notebook"] == hashlib.sha256(executed).hexdigest()

    code, outcome, err = toy.run()
    assert (code, outcome["items"][0]["status"], outcome["heavy"]) == (0, "up to date", [])
    assert toy.record() == record

    toy.publish("quantity,method,value,unit,source\nbytes,A1,9,bytes,table 1\n")
    code, outcome, err = toy.run()
    assert (code, outcome["items"][0]["verdicts"]) == (0, {"disagrees": 1})
    assert toy.record()["verdicts"][0]["rows"][0]["difference"] == -1.0


def test_items_that_fail_in_different_ways_say_why_and_stop_no_other(toy: ToyProject):
    toy.declare_each(
        killed="import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
        raises="raise ValueError('size is 4; it must be 5')",
        good="",
        forgets="",
        rank="""
        import os, signal
        from workbench.launch import run_on_ranks
        run_on_ranks(lambda: os.kill(os.getpid(), signal.SIGKILL), 2)
        """,
    )
    toy.notebook("forgets", "pass")
    code, outcome, err = toy.run(jobs=5)
    assert code == 1, err
    reasons = {item["id"].split("/")[1]: item["reason"] for item in outcome["items"] if item["status"] == "failed"}
    assert reasons["killed"] == "the kernel was killed by signal 9, likely out of memory or from outside"
    assert reasons["raises"] == "ValueError: size is 4; it must be 5"
    assert reasons["rank"].startswith("RankFailed") and "signal 9" in toy.failure("rank")["traceback"]
    assert "without calling record" in reasons["forgets"]
    assert toy.record("good")["verdicts"][0]["verdict"] == "agrees"
    assert "raise ValueError('size is 4; it must be 5')" in toy.failure("raises")["traceback"]
    assert (toy.folder("raises") / "failure.ipynb").exists()


def test_an_item_past_its_timeout_fails_even_while_its_kernel_holds_the_interpreter(toy: ToyProject, tmp_path):
    flag = tmp_path / "held"
    toy.declare_each(hangs=HOLDS_THE_INTERPRETER.format(flag=flag))
    runner = toy.start(timeout_s=6)
    wait_for(flag.exists)
    below = processes_below(runner.pid)
    assert runner.wait(timeout=20) == 1
    runner.communicate()
    assert toy.failure("hangs")["reason"] == "took longer than the timeout of 6 s"
    assert "ctypes.PyDLL(None).sleep(600)" in toy.failure("hangs")["traceback"]
    wait_for(lambda: not any(alive(pid) for pid in below), seconds=1.0)


def test_killing_the_runner_leaves_no_process_and_no_half_record_and_the_next_run_resumes(toy: ToyProject, tmp_path):
    flag = tmp_path / "held"
    toy.declare_each(first="", second=HOLDS_THE_INTERPRETER.format(flag=flag))
    runner = toy.start(jobs=1)
    wait_for(flag.exists)
    below = processes_below(runner.pid)
    assert len(below) >= 3  # tether, kernel and the kernel's own child

    code, _, err = toy.run()
    assert code == 2 and f"pid {runner.pid} on " in err and err.count("\n") == 1

    kill(runner.pid)
    runner.communicate()
    wait_for(lambda: not any(alive(pid) for pid in below), seconds=2.0)
    assert toy.record("first")["id"] == "toy/first/counted" and not toy.folder("second").exists()

    toy.notebook("second", "", RECORD)
    code, outcome, err = toy.run()
    assert code == 0, err
    assert [item["status"] for item in outcome["items"]] == ["up to date", "recorded"]
    assert not list((toy.root / "results/laptop").glob(".partial-*"))


def test_ctrl_c_ends_the_kernels_keeps_what_was_finished_and_leaves_no_partial_folder(toy: ToyProject, tmp_path):
    flag = tmp_path / "held"
    toy.declare_each(first="", second=HOLDS_THE_INTERPRETER.format(flag=flag))
    runner = toy.start(jobs=1)
    wait_for(flag.exists)
    below = processes_below(runner.pid)
    os.kill(runner.pid, signal.SIGINT)
    _, err = runner.communicate(timeout=20)
    assert runner.returncode == 130, err
    wait_for(lambda: not any(alive(pid) for pid in below), seconds=1.0)
    assert (toy.folder("first") / "record.json").exists() and not toy.folder("second").exists()
    assert not list((toy.root / "results/laptop").glob(".partial-*"))


def test_a_disk_that_fills_up_fails_the_item_and_keeps_its_old_record(toy: ToyProject, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can mount the small disk this test fills")
    try:
        (toy.root / "results").symlink_to(disk)
        old = toy.sealed(files={}, fingerprint={})
        toy.notebook("one", "print('x' * 400_000)", RECORD)
        code, outcome, err = toy.run(min_free_bytes=0)
        assert code == 1, err
        assert "No space left on device" in outcome["items"][0]["reason"]
        assert toy.record() == old
        assert "No space left on device" in toy.failure("table-1")["reason"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_recording_that_cannot_be_written_fails_the_item_and_keeps_its_old_record(toy: ToyProject):
    old = toy.sealed(files={}, fingerprint={})
    toy.notebook("one", "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))", RECORD)
    code, outcome, err = toy.run()
    assert code == 1, err
    assert outcome["items"][0]["reason"] == "OSError: [Errno 27] File too large"
    assert toy.record() == old


# a study in a notebook

STUDY = """
from cell_functions import waits
from workbench.reproduction import run_cells
results = run_cells(item, waits, [{{"place": place, "folder": {folder!r}}} for place in range(5)], jobs=2)
"""


@pytest.fixture
def marks(toy: ToyProject, tmp_path: Path) -> Path:
    """The folder in which each cell leaves a mark and finds its permission to end."""
    folder = tmp_path / "marks"
    folder.mkdir()
    shutil.copy(cell_functions.__file__, toy.root / "notebooks/toy/cell_functions.py")
    recording = RECORD.replace("2 * size", 'results[0].values["bytes"]')
    toy.notebook("one", STUDY.format(folder=str(folder)), recording)
    return folder


def pids(marks: Path, place: int) -> list[int]:
    """Return the processes that have begun a cell, the last of which may still run it."""
    path = marks / f"ran-{place}"
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


def wait_until_run(marks: Path, *times: int) -> None:
    wait_for(lambda: [len(pids(marks, place)) for place in range(5)] == list(times), seconds=40.0)


@pytest.mark.timeout(120)
def test_a_killed_kernel_rank_or_runner_loses_the_cells_under_way_and_each_next_run_goes_on(toy, marks):
    runner = toy.start()
    wait_until_run(marks, 1, 1, 1, 0, 0)  # the first has ended, two are under way
    ranks = [*pids(marks, 1), *pids(marks, 2)]
    below = processes_below(runner.pid)
    kill(next(pid for pid in below if "ipykernel_launcher" in psutil.Process(pid).cmdline()[2:4]))
    out, err = runner.communicate(timeout=20)
    assert runner.returncode == 1 and "killed by signal 9" in out, err
    wait_for(lambda: not any(map(alive, ranks)))

    (marks / "go-1").touch()
    runner = toy.start()
    wait_until_run(marks, 1, 2, 2, 1, 0)
    kill(pids(marks, 3)[-1])
    wait_until_run(marks, 1, 2, 2, 1, 1)  # the study goes on without the killed rank's cell
    below = processes_below(runner.pid)
    kill(runner.pid)
    runner.communicate(timeout=20)
    wait_for(lambda: not any(map(alive, below)))

    for place in (2, 3, 4):
        (marks / f"go-{place}").touch()
    code, outcome, err = toy.run()
    assert (code, outcome["items"][0]["status"]) == (0, "recorded"), err
    wait_until_run(marks, 1, 2, 3, 2, 2)  # none ran again once it had ended
    record = toy.record()
    (origin,) = record["cells"]
    assert (origin["num_cells"], origin["commit"]) == (5, record["commit"])
    assert origin["machine"]["host"] == record["machine"]["host"]
    left = [path for pattern in (".partial-*", "toy/cells/*/.*") for path in toy.root.glob(f"results/laptop/{pattern}")]
    assert not left
