"""The runner: its schedule, its lock and the places of its files; then real kernels, and what it survives."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import cell_functions
import psutil
import pytest
from processes_seen import assert_all_dead_within, family, wait_for
from toy_project import BARE, RECORD, ToyProject

from workbench.reproduction import ItemRun, Project, UsageError, load_catalogue, run
from workbench.reproduction.files import hold_lock, write_record
from workbench.reproduction.records import read_record
from workbench.reproduction.runner import (
    Action,
    Execution,
    Failure,
    ItemFinished,
    ItemOutcome,
    ItemStarted,
    PlannedItem,
    Progress,
    Schedule,
    Status,
    Stopping,
    expected_s,
    in_order,
    place_failure,
    plan,
    sweep,
)
from workbench.reproduction.runner.watch import Watch
from workbench.rows.progress import PROGRESS_VARIABLE, HowFar, say_progress


def planned(id, times=False, expected=1.0):
    return PlannedItem(id=id, action=Action.RUN, why="", expected_s=expected, times=times)


class FakeRun:
    """Sleeps instead of running a kernel, and notes which fake items run beside it."""

    has_kernel = True

    def __init__(self, id, running, seen, *, seconds=0.15, far=None):
        self.id, self.running, self.seen, self.seconds, self.far = id, running, seen, seconds, far or {}
        self.stopped, self.end = "", threading.Event()

    def run(self):
        self.running.add(self.id)
        self.seen.append(frozenset(self.running))
        self.end.wait(self.seconds)
        self.running.discard(self.id)
        return ItemOutcome(id=self.id, status=Status.FAILED if self.stopped else Status.RECORDED, reason=self.stopped)

    def stop(self, because):
        self.stopped = self.stopped or because
        self.end.set()

    def seconds_so_far(self):
        return 1.0 if self.id in self.running else 0.0

    def how_far(self, expected_s):
        return self.far.get(self.id)


def fake_runs(ids, seen=None, **options):
    running, seen = set(), [] if seen is None else seen
    return {id: FakeRun(id, running, seen, **options) for id in ids}


def schedule(runs, items, jobs=2, timeout_s=None, on_event=lambda event: None):
    return Schedule(runs=runs, jobs=jobs, timeout_s=timeout_s, on_event=on_event).run(items)


def test_timed_items_run_alone_and_the_others_side_by_side_up_to_the_jobs():
    seen, events = [], []
    items = [planned("t1", times=True), *map(planned, "abcd"), planned("t2", times=True)]
    done = schedule(fake_runs((item.id for item in items), seen), items, on_event=events.append)
    assert set(done) == {item.id for item in items}
    assert max(map(len, seen)) == 2
    assert [together for together in seen if together & {"t1", "t2"}] == [{"t1"}, {"t2"}]
    started = [(event.number, event.id) for event in events if isinstance(event, ItemStarted)]
    assert started == [*enumerate(["t1", "a", "b", "c", "d", "t2"], start=1)]
    assert sum(isinstance(event, ItemFinished) for event in events) == 6


def test_quick_items_of_all_techniques_come_first_in_turn_and_of_each_the_quickest():
    seconds_of = {"one/accuracy": 250, "one/fig-1": 8, "one/fig-2": 6, "one/fig-3": 30, "one/speed": 25}
    seconds_of |= {"two/long-speed": 100, "two/fig-1": 20, "two/speed": 10}
    items = [planned(id, times="speed" in id, expected=seconds) for id, seconds in seconds_of.items()]
    assert [item.id for item in in_order(items)] == [
        "two/speed",  # the quickest timed one leads
        *("one/fig-2", "two/fig-1", "one/fig-1", "one/fig-3"),  # untimed and at most 30 s
        "one/speed",
        "one/accuracy",
        "two/long-speed",
    ]


def test_an_item_whose_thread_raises_has_failed_and_the_run_goes_on(monkeypatch):
    def run(self):
        raise NotADirectoryError(20, "Not a directory", "results/laptop/toy")

    monkeypatch.setattr(FakeRun, "run", run)
    done = schedule(fake_runs("ab"), [planned("a"), planned("b")], jobs=1)
    assert [outcome.status for outcome in done.values()] == [Status.FAILED, Status.FAILED]
    assert done["a"].reason == "NotADirectoryError: [Errno 20] Not a directory: 'results/laptop/toy'"


@pytest.mark.parametrize(
    ("far", "remaining_s"),
    [({}, (3.0 - 1.0) + 50.0), ({"a": HowFar(num_done=3, num_parts=9, what="cells", remaining_s=600.0)}, 600.0 + 50.0)],
)
def test_progress_names_the_running_items_and_the_time_to_go_which_a_study_knows_best(far, remaining_s):
    events = []
    items = [planned("a", expected=3.0), planned("t", times=True, expected=50.0)]
    schedule(fake_runs("at", seconds=1.15, far=far), items, on_event=events.append)
    first = next(event for event in events if isinstance(event, Progress))
    assert first.running == {"a": 1.0} and (first.num_done, first.num_items) == (0, 2)
    assert (first.remaining_s, first.parts) == (remaining_s, far)


def test_the_expected_time_adds_timed_items_and_divides_the_others():
    items = [planned("a", expected=4), planned("b", expected=2), planned("t", times=True, expected=10)]
    assert expected_s(items, jobs=1) == 16.0
    assert expected_s(items, jobs=2) == 14.0  # the longest of the shared ones, 4, bounds them
    assert expected_s(items, jobs=2, spent={"t": 11}) == 4.0


def test_an_item_past_its_timeout_is_stopped():
    done = schedule(fake_runs("a", seconds=5.0), [planned("a")], timeout_s=0.5)
    assert done["a"].reason == "took longer than the timeout of 0.5 s"


def test_an_interrupt_stops_every_item_before_it_goes_on():
    runs = fake_runs("ab", seconds=30.0)

    def interrupt(event):
        if isinstance(event, ItemStarted) and event.number == 2:
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        schedule(runs, [planned("a"), planned("b")], on_event=interrupt)
    assert runs["a"].stopped and time.monotonic() - began < 25.0


def test_an_interrupt_names_the_items_it_waits_for_and_a_second_one_does_not_wait():
    runs, events = fake_runs("ab", seconds=30.0), []
    runs["a"].stop = lambda because: None  # its processes do not end

    def interrupt(event):
        events.append(event)
        if isinstance(event, Stopping):
            threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
        elif isinstance(event, ItemStarted) and event.number == 2:
            signal.raise_signal(signal.SIGINT)

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        schedule(runs, [planned("a"), planned("b")], on_event=interrupt)
    assert time.monotonic() - began < 9.0
    assert events[-1] == Stopping(ids=("a",), at_most_s=10.0)
    runs["a"].end.set()


HOLDER = """
import pathlib, sys, time
from workbench.reproduction.files import hold_lock
with hold_lock(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_runner_of_one_profile_names_the_first_and_runs_as_soon_as_that_is_dead(toy: ToyProject):
    folder = toy.root / "results/laptop"
    folder.mkdir(parents=True)
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(UsageError, match=rf"is in use by another run: pid {holder.pid} on \S+, since 20"):
        run(Project(), load_catalogue())
    assert [path.name for path in folder.iterdir()] == [".lock"]
    holder.kill()
    holder.communicate()
    with hold_lock(folder):
        assert json.loads((folder / ".lock").read_text())["pid"] == os.getpid()


PLACES = """
import json, os, pathlib, signal, sys
from workbench.reproduction import ItemRun, Project, load_catalogue
from workbench.reproduction.runner import Execution, place_record

renames, replaces = os.rename, os.replace
count = int(sys.argv[1])
def dying(move):
    def moved(*arguments):
        global count
        if count == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        count -= 1
        move(*arguments)
    return moved
os.rename, os.replace = dying(renames), dying(replaces)
project = Project()
item = load_catalogue(project)[0]
run = Execution(ItemRun(project, item, "laptop"), started="now", seconds=1.0)
run.folder.mkdir(parents=True)
(run.folder / "recording.json").write_bytes(pathlib.Path(sys.argv[2]).read_bytes())
(run.folder / "notebook.ipynb").write_text("new")
place_record(run)
"""

RECORDING = ("data", "calibration", "not_comparable", "artifacts", "seeds", "configuration", "machine", "versions")
RECORDING += ("environment",)


@pytest.mark.parametrize(("moves", "left"), [(0, "old"), (1, "new"), (2, "new"), (3, "new")])
def test_a_runner_killed_at_any_step_of_placing_leaves_the_old_record_or_the_new_one_whole(
    toy: ToyProject, tmp_path, moves, left
):
    recording = {name: BARE[name] for name in RECORDING}
    recording["values"] = [{"quantity": "bytes", "method": "A1", "value": 8, "unit": "bytes"}]
    (tmp_path / "recording.json").write_text(json.dumps(recording))
    place = [sys.executable, "-c", PLACES]
    subprocess.run([*place, "99", tmp_path / "recording.json"], check=True)
    old = read_record(toy.folder() / "record.json", id="toy/table-1/counted", profile="laptop")
    (toy.folder() / "notebook.ipynb").write_text("old")
    done = subprocess.run([*place, str(moves), tmp_path / "recording.json"], check=False)
    assert done.returncode == (0 if moves == 3 else -9)
    sweep(toy.root / "results/laptop")
    record = read_record(toy.folder() / "record.json", id="toy/table-1/counted", profile="laptop")
    assert (toy.folder() / "notebook.ipynb").read_text() == left
    assert record == old if left == "old" else record["values"] == old["values"]
    assert not [path for path in (toy.root / "results/laptop").iterdir() if path.name.startswith(".partial")]


def test_sweeping_keeps_a_finished_folder_that_cannot_be_moved_and_goes_on_with_the_others(tmp_path):
    results = tmp_path / "laptop"
    for name in ("barred/table-1/counted", "free/table-1/counted"):
        path = results / ".partial-1" / name / "record.json"
        path.parent.mkdir(parents=True)
        write_record(path, BARE | {"id": name, "profile": "laptop"})
    (results / "barred").write_text("a file where a folder belongs")
    sweep(results)
    assert (results / "free/table-1/counted/record.json").exists()
    assert (results / ".partial-1/barred/table-1/counted/record.json").exists()
    (results / "barred").unlink()
    sweep(results)
    assert (results / "barred/table-1/counted/record.json").exists() and not (results / ".partial-1").exists()


def test_a_failure_that_cannot_be_kept_raises_nothing(toy: ToyProject):
    project = Project()
    (item,) = load_catalogue(project)
    barred = toy.root / "results/laptop/toy"
    barred.parent.mkdir(parents=True)
    barred.write_text("put there while the item ran")
    place_failure(Execution(ItemRun(project, item, "laptop")), Failure(reason="boom", traceback=""))
    assert barred.read_text() == "put there while the item ran"


@pytest.mark.parametrize("barred", ["toy", "toy/table-1", "toy/table-1/counted"])
@pytest.mark.parametrize("dangling", [False, True])
def test_a_file_where_a_folder_of_results_belongs_is_refused_by_name_before_anything_runs(
    toy: ToyProject, barred, dangling
):
    path = toy.root / "results/laptop" / barred
    path.parent.mkdir(parents=True)
    path.symlink_to(toy.root / "nowhere") if dangling else path.write_text("a file")
    message = f"{path} is not a folder, and the record of toy/table-1/counted belongs there"
    with pytest.raises(UsageError, match=message):
        run(Project(), load_catalogue())


def test_a_technique_folder_on_another_disk_is_refused_before_anything_runs(toy: ToyProject):
    if not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == toy.root.stat().st_dev:
        pytest.skip("no second file system is here")
    link = toy.root / "results/laptop/toy"
    link.parent.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        link.symlink_to(other)
        with pytest.raises(UsageError, match=f"{link} lies on another disk than {link.parent}"):
            run(Project(), load_catalogue())


@pytest.mark.parametrize(
    ("evalue", "last", "reason"),
    [
        ("", "ValueError: bad \udc80 byte", r"ValueError: bad \udc80 byte"),
        ("", "ValueError: ", "ValueError"),
        ("", "", "ValueError"),
        ("", "of two lines", "ValueError: of two lines"),
        ("\n\nsecond line", "second line", "ValueError: second line"),
        ("size is \udcff", "", r"ValueError: size is \udcff"),
    ],
)
def test_the_reason_of_a_failure_is_never_empty_and_can_always_be_written(evalue, last, reason):
    of_papermill = {"ename": "ValueError", "evalue": evalue, "traceback": [f"\x1b[31m{last}\x1b[0m", ""]}
    failure = Failure.of(SimpleNamespace(**of_papermill))
    assert failure.reason == reason
    assert "\x1b" not in failure.traceback and failure.traceback.encode("utf-8")


def test_a_study_says_how_far_it_is_until_its_end_then_the_notebook_does(tmp_path, monkeypatch):
    progress, notebook, now = tmp_path / "progress.json", tmp_path / "notebook.ipynb", SimpleNamespace(s=100.0)
    monkeypatch.setattr("workbench.reproduction.runner.watch.monotonic", lambda: now.s)
    monkeypatch.setenv(PROGRESS_VARIABLE, str(progress))
    monkeypatch.setattr("workbench.rows.progress.LEAST_BETWEEN_S", 0.0)
    watch = Watch(progress, notebook)
    assert watch.look(9.0) is None
    states = [("code", "completed"), ("markdown", "completed"), ("code", "running")]
    cells = [{"cell_type": kind, "metadata": {"papermill": {"status": state}}} for kind, state in states]
    notebook.write_text(json.dumps({"cells": cells}))
    assert watch.look(9.0) == HowFar(num_done=1, num_parts=2, what="notebook cells", remaining_s=9.0)
    say_progress(2, 12, "turns")
    assert watch.look(0.0) == HowFar(num_done=2, num_parts=12, what="turns")  # no pace yet
    now.s += 20.0
    say_progress(4, 12, "turns")
    assert watch.look(30.0).remaining_s == 80.0  # 10 s a turn, and 8 to go
    assert watch.look(90.0).remaining_s == 90.0  # the notebook has more to do than this study
    say_progress(1, 12, "turns")  # the next study of the notebook
    assert watch.look(0.0).remaining_s is None
    say_progress(12, 12, "turns")
    assert watch.look(0.0).what == "notebook cells"


# with kernels

HOLDS_THE_INTERPRETER = """
import ctypes, subprocess, sys, pathlib, tempfile
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path("{flag}").write_text(tempfile.mkdtemp())
ctypes.PyDLL(None).sleep(600)
"""


def start_until_held(toy: ToyProject, *, timeout_s=None, **cells) -> tuple[subprocess.Popen, list[int]]:
    """Start a runner; return it, and its processes, once the kernel of its last item holds the interpreter."""
    flag = toy.root / "held"
    toy.declare_each(**cells, held=HOLDS_THE_INTERPRETER.format(flag=flag))
    runner = toy.start(jobs=1, timeout_s=timeout_s)
    wait_for(flag.exists, within_s=200.0)  # four kernels start, perhaps on a busy machine
    return runner, family(runner.pid)[1:]


def test_a_run_records_a_second_does_nothing_and_a_changed_published_number_makes_it_run_again(toy: ToyProject):
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
    assert plan(Project(), load_catalogue(), "laptop")[0].why == "published changed"


def test_items_that_fail_in_different_ways_say_why_and_stop_no_other(toy: ToyProject):
    toy.declare_each(
        killed="import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
        raises="raise ValueError('size is 4; it must be 5')",
        good="",
        forgets="",
        unwritten="import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))",
    )
    toy.notebook("forgets", "pass")
    old = toy.sealed("unwritten", files={}, fingerprint={})
    code, outcome, err = toy.run(jobs=5)
    assert code == 1, err
    reasons = {item["id"].split("/")[1]: item["reason"] for item in outcome["items"] if item["status"] == "failed"}
    assert reasons["killed"] == "the kernel was killed by signal 9, likely out of memory or from outside"
    assert reasons["raises"] == "ValueError: size is 4; it must be 5"
    assert reasons["unwritten"] == "OSError: [Errno 27] File too large" and toy.record("unwritten") == old
    assert "without calling record" in reasons["forgets"]
    assert toy.record("good")["verdicts"][0]["verdict"] == "agrees"
    assert "raise ValueError('size is 4; it must be 5')" in toy.failure("raises")["traceback"]
    assert (toy.folder("raises") / "failure.ipynb").exists()


def test_an_item_past_its_timeout_fails_even_while_its_kernel_holds_the_interpreter(toy: ToyProject):
    runner, below = start_until_held(toy, timeout_s=15)
    runner.communicate(timeout=200)
    assert runner.returncode == 1
    assert toy.failure("held")["reason"] == "took longer than the timeout of 15 s"
    assert "ctypes.PyDLL(None).sleep(600)" in toy.failure("held")["traceback"]
    assert_all_dead_within(below, 20.0)


FRESH = """
import os, pathlib, random, sys, tempfile
assert {"torch", "workbench.launch.kernel_server"} <= sys.modules.keys()  # the library has not changed
assert sys.modules["torch"].get_num_threads() == int(os.environ["WORKBENCH_THREADS"])  # others run beside it
assert tempfile.gettempdir() == os.environ["TMPDIR"] and not hasattr(sys.modules["__main__"], "seen")
seen = random.random()
pathlib.Path("numbers.txt").open("a").write(f"{seen}\\n")
"""


def test_forked_kernels_are_fresh_end_with_their_runner_leave_no_half_record_and_the_next_run_resumes(toy: ToyProject):
    toy.forked_with = "torch ipykernel.kernelapp"
    runner, below = start_until_held(toy, first=FRESH, second=FRESH, third=FRESH)
    assert len(below) >= 3  # tether, kernel and the kernel's own child
    assert len(set((toy.root / "notebooks/toy/numbers.txt").read_text().split())) == 3

    code, _, err = toy.run()
    assert code == 2 and f"pid {runner.pid} on " in err and err.count("\n") == 1

    temporary = Path((toy.root / "held").read_text())
    assert temporary.is_dir()
    runner.kill()
    runner.communicate()
    assert_all_dead_within(below, 20.0)
    assert all(toy.record(name)["id"] == f"toy/{name}/counted" for name in ("first", "second", "third"))
    assert not toy.folder("held").exists()

    toy.notebook("held", "", RECORD)
    code, outcome, err = toy.run()
    assert code == 0, err
    assert [item["status"] for item in outcome["items"]] == ["up to date"] * 3 + ["recorded"]
    assert not temporary.exists()
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
    wait_for(lambda: [len(pids(marks, place)) for place in range(5)] == list(times), within_s=200.0)


def test_a_killed_kernel_rank_or_runner_loses_the_cells_under_way_and_each_next_run_goes_on(toy, marks):
    runner = toy.start()
    wait_until_run(marks, 1, 1, 1, 0, 0)  # the first has ended, two are under way
    ranks = [*pids(marks, 1), *pids(marks, 2)]
    below = family(runner.pid)[1:]
    kernel = next(pid for pid in below if "ipykernel_launcher" in psutil.Process(pid).cmdline()[2:4])
    os.kill(kernel, signal.SIGKILL)
    out, err = runner.communicate(timeout=200)
    assert runner.returncode == 1 and "killed by signal 9" in out, err
    assert_all_dead_within(ranks, 20.0)

    (marks / "go-1").touch()
    runner = toy.start()
    wait_until_run(marks, 1, 2, 2, 1, 0)
    os.kill(pids(marks, 3)[-1], signal.SIGKILL)
    wait_until_run(marks, 1, 2, 2, 1, 1)  # the study goes on without the killed rank's cell
    below = [*family(runner.pid)[1:], pids(marks, 2)[-1], pids(marks, 4)[-1]]  # ranks may be forked from elsewhere
    runner.kill()
    runner.communicate(timeout=200)
    assert_all_dead_within(below, 20.0)

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
