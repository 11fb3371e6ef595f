"""Scheduling, locking and placing, without kernels."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from toy_project import ToyProject, kill

from workbench.reproduction import Project, UsageError, load_catalogue, run
from workbench.reproduction.cells import CellProgress
from workbench.reproduction.files import hold_lock, write_record
from workbench.reproduction.records import SCHEMA, read_record
from workbench.reproduction.runner import (
    Action,
    Failure,
    ItemFinished,
    ItemOutcome,
    ItemRun,
    ItemStarted,
    PlannedItem,
    Progress,
    Schedule,
    Status,
    expected_s,
    in_order,
    place_failure,
    sweep,
)


def planned(id, times=False, expected=1.0):
    return PlannedItem(id=id, action=Action.RUN, why="", expected_s=expected, times=times)


class Beside:
    """Notes which fake items run beside which."""

    def __init__(self):
        self.lock, self.running, self.seen = threading.Lock(), set(), []

    def runs(self, ids, **options):
        return {id: FakeRun(self, id, **options) for id in ids}


class FakeRun:
    """Sleeps instead of running a kernel."""

    def __init__(self, beside, id, seconds=0.15, cells=None):
        self.beside, self.id, self.seconds, self.cells = beside, id, seconds, cells or {}
        self.stopped, self.began, self.end = "", False, threading.Event()

    def run(self):
        with self.beside.lock:
            self.began = True
            self.beside.running.add(self.id)
            self.beside.seen.append(frozenset(self.beside.running))
        self.end.wait(self.seconds)
        with self.beside.lock:
            self.beside.running.discard(self.id)
        return ItemOutcome(id=self.id, status=Status.FAILED if self.stopped else Status.RECORDED, reason=self.stopped)

    def stop(self, because):
        self.stopped = self.stopped or because
        self.end.set()

    def seconds_so_far(self):
        return 1.0 if self.began else 0.0

    def cells_so_far(self):
        return self.cells.get(self.id)


def schedule(runs, items, jobs=2, timeout_s=None, on_event=lambda event: None):
    return Schedule(runs=runs, jobs=jobs, timeout_s=timeout_s, on_event=on_event).run(items)


def test_timed_items_run_alone_and_the_others_side_by_side_up_to_the_jobs():
    beside, events = Beside(), []
    items = [planned("t1", times=True), *map(planned, "abcd"), planned("t2", times=True)]
    done = schedule(beside.runs(item.id for item in items), items, on_event=events.append)
    assert set(done) == {item.id for item in items}
    assert max(map(len, beside.seen)) == 2
    assert [seen for seen in beside.seen if seen & {"t1", "t2"}] == [{"t1"}, {"t2"}]
    started = [event for event in events if isinstance(event, ItemStarted)]
    assert [event.id for event in started] == ["a", "b", "c", "d", "t1", "t2"]
    assert [event.number for event in started] == [1, 2, 3, 4, 5, 6]
    assert sum(isinstance(event, ItemFinished) for event in events) == 6


def test_quick_items_of_all_techniques_come_first_in_turn_and_of_each_the_quickest():
    items = [
        planned("one/accuracy", expected=250),
        planned("one/fig-1", expected=8),
        planned("one/fig-2", expected=6),
        planned("one/fig-3", expected=30),
        planned("one/speed", expected=25, times=True),
        planned("two/long-speed", expected=100, times=True),
        planned("two/fig-1", expected=20),
        planned("two/speed", expected=10, times=True),
    ]
    assert [item.id for item in in_order(items)] == [
        *("one/fig-2", "two/fig-1", "one/fig-1", "one/fig-3"),  # untimed and at most 30 s
        *("one/speed", "two/speed"),
        "one/accuracy",
        "two/long-speed",
    ]


@pytest.mark.timeout(10)
def test_an_item_whose_thread_raises_has_failed_and_the_run_goes_on(monkeypatch):
    def run(self):
        raise NotADirectoryError(20, "Not a directory", "results/laptop/toy")

    monkeypatch.setattr(FakeRun, "run", run)
    done = schedule(Beside().runs("ab"), [planned("a"), planned("b")], jobs=1)
    assert [outcome.status for outcome in done.values()] == [Status.FAILED, Status.FAILED]
    assert done["a"].reason == "NotADirectoryError: [Errno 20] Not a directory: 'results/laptop/toy'"


@pytest.mark.parametrize(
    ("cells", "remaining_s"),
    [({}, (3.0 - 1.0) + 5.0), ({"a": CellProgress(num_done=3, num_cells=9, remaining_s=600.0)}, 600.0 + 5.0)],
)
def test_progress_names_the_running_items_and_the_time_to_go_which_cells_know_best(cells, remaining_s):
    events = []
    items = [planned("a", expected=3.0), planned("t", times=True, expected=5.0)]
    schedule(Beside().runs("at", seconds=1.15, cells=cells), items, on_event=events.append)
    first = next(event for event in events if isinstance(event, Progress))
    assert first.running == {"a": 1.0} and (first.num_done, first.num_items) == (0, 2)
    assert (first.remaining_s, first.cells) == (remaining_s, cells)


def test_the_expected_time_adds_timed_items_and_divides_the_others():
    items = [planned("a", expected=4), planned("b", expected=2), planned("t", times=True, expected=10)]
    assert expected_s(items, jobs=1) == 16.0
    assert expected_s(items, jobs=2) == 14.0  # the longest of the shared ones, 4, bounds them
    assert expected_s(items, jobs=2, spent={"t": 11}) == 4.0


def test_an_item_past_its_timeout_is_stopped():
    done = schedule(Beside().runs("a", seconds=5.0), [planned("a")], timeout_s=0.5)
    assert done["a"].reason == "took longer than the timeout of 0.5 s"


def test_an_interrupt_stops_every_item_before_it_goes_on():
    runs = Beside().runs("ab", seconds=30.0)

    def interrupt(event):
        if isinstance(event, ItemStarted) and event.number == 2:
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        schedule(runs, [planned("a"), planned("b")], on_event=interrupt)
    assert runs["a"].stopped and time.monotonic() - began < 5.0


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
    project = Project()
    with pytest.raises(UsageError, match=rf"is in use by another run: pid {holder.pid} on \S+, since 20"):
        run(project, load_catalogue(project))
    assert [path.name for path in folder.iterdir()] == [".lock"]
    kill(holder.pid)
    holder.communicate()
    with hold_lock(folder):
        assert json.loads((folder / ".lock").read_text())["pid"] == os.getpid()


PLACES = """
import json, os, pathlib, signal, sys
from workbench.reproduction import Project, load_catalogue
from workbench.reproduction.runner import ItemRun, place_record

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
run = ItemRun(project, item, "laptop", started="now", seconds=1.0)
run.folder.mkdir(parents=True)
(run.folder / "recording.json").write_bytes(pathlib.Path(sys.argv[2]).read_bytes())
(run.folder / "notebook.ipynb").write_text("new")
place_record(run)
"""


@pytest.mark.parametrize(("moves", "left"), [(0, "old"), (1, "new"), (2, "new"), (3, "new")])
def test_a_runner_killed_at_any_step_of_placing_leaves_the_old_record_or_the_new_one_whole(
    toy: ToyProject, tmp_path, moves, left
):
    recording = {"data": [], "calibration": None, "not_comparable": {}, "artifacts": {}}
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


def whole_folder(folder: Path, id: str) -> None:
    folder.mkdir(parents=True)
    write_record(folder / "record.json", {"schema": SCHEMA, "id": id, "profile": "laptop", "artifacts": {}})


def test_sweeping_keeps_a_finished_folder_that_cannot_be_moved_and_goes_on_with_the_others(tmp_path):
    results = tmp_path / "laptop"
    names = ["barred/table-1/counted", "free/table-1/counted"]
    for name in names:
        whole_folder(results / ".partial-1" / name, name)
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
    place_failure(ItemRun(project, item, "laptop"), Failure(reason="boom", traceback=""))
    assert barred.read_text() == "put there while the item ran"


@pytest.mark.parametrize("barred", ["toy", "toy/table-1", "toy/table-1/counted"])
@pytest.mark.parametrize("dangling", [False, True])
def test_a_file_where_a_folder_of_results_belongs_is_refused_by_name_before_anything_runs(
    toy: ToyProject, barred, dangling
):
    path = toy.root / "results/laptop" / barred
    path.parent.mkdir(parents=True)
    path.symlink_to(toy.root / "nowhere") if dangling else path.write_text("a file")
    project, message = Project(), f"{path} is not a folder, and the record of toy/table-1/counted belongs there"
    with pytest.raises(UsageError, match=message):
        run(project, load_catalogue(project))


def test_a_technique_folder_on_another_disk_is_refused_before_anything_runs(toy: ToyProject):
    if not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == toy.root.stat().st_dev:
        pytest.skip("no second file system is here")
    link = toy.root / "results/laptop/toy"
    link.parent.mkdir(parents=True)
    project = Project()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        link.symlink_to(other)
        with pytest.raises(UsageError, match=f"{link} lies on another disk than {link.parent}"):
            run(project, load_catalogue(project))


class Raised(Exception):
    """What papermill raises for a cell."""

    def __init__(self, ename, evalue, traceback):
        super().__init__(evalue)
        self.ename, self.evalue, self.traceback = ename, evalue, traceback


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
    failure = Failure.of(Raised("ValueError", evalue, [f"\x1b[31m{last}\x1b[0m", ""]))
    assert failure.reason == reason
    assert "\x1b" not in failure.traceback and failure.traceback.encode("utf-8")
