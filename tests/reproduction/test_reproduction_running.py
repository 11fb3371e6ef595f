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
from workbench.reproduction.cells.notes import CellProgress
from workbench.reproduction.records import SCHEMA, read_record, write_record
from workbench.reproduction.runner.events import (
    Action,
    ItemFinished,
    ItemOutcome,
    ItemStarted,
    PlannedItem,
    Progress,
    Status,
)
from workbench.reproduction.runner.execute import Execution, Failure
from workbench.reproduction.runner.lock import hold_lock
from workbench.reproduction.runner.placing import place_failure, sweep
from workbench.reproduction.runner.schedule import Schedule, expected_s


def planned(id, times=False, expected=1.0):
    return PlannedItem(id=id, action=Action.RUN, why="", expected_s=expected, times=times)


class FakeWork:
    """Sleeps instead of running a kernel and notes who ran beside whom."""

    def __init__(self, seconds=0.15):
        self.seconds, self.running, self.seen, self.stopped = seconds, set(), [], {}
        self.lock, self.ends = threading.Lock(), {}

    def run(self, id):
        with self.lock:
            self.running.add(id)
            self.seen.append(frozenset(self.running))
            self.ends[id] = threading.Event()
        self.ends[id].wait(self.seconds)
        with self.lock:
            self.running.discard(id)
        return ItemOutcome(
            id=id, status=Status.FAILED if id in self.stopped else Status.RECORDED, reason=self.stopped.get(id, "")
        )

    def stop(self, id, because):
        self.stopped.setdefault(id, because)
        if id in self.ends:
            self.ends[id].set()

    def seconds_so_far(self, id):
        return 0.0 if id not in self.ends else 1.0

    def cells_so_far(self, id):
        return None


def test_timed_items_run_alone_and_the_others_side_by_side_up_to_the_jobs():
    work, events = FakeWork(), []
    items = [planned("t1", times=True), *map(planned, "abcd"), planned("t2", times=True)]
    done = Schedule(work=work, jobs=2, timeout_s=None, on_event=events.append).run(items)
    assert set(done) == {item.id for item in items}
    assert max(len(beside) for beside in work.seen) == 2
    assert [beside for beside in work.seen if beside & {"t1", "t2"}] == [{"t1"}, {"t2"}]
    started = [event for event in events if isinstance(event, ItemStarted)]
    assert [event.id for event in started] == ["a", "b", "c", "d", "t1", "t2"]
    assert [event.number for event in started] == [1, 2, 3, 4, 5, 6]
    assert sum(isinstance(event, ItemFinished) for event in events) == 6


class BrokenWork(FakeWork):
    """Raises where it should give an outcome."""

    def run(self, id):
        raise NotADirectoryError(20, "Not a directory", "results/laptop/toy")


@pytest.mark.timeout(10)
def test_an_item_whose_thread_raises_has_failed_and_the_run_goes_on():
    done = Schedule(work=BrokenWork(), jobs=1, timeout_s=None, on_event=lambda event: None).run(
        [planned("a"), planned("b")]
    )
    assert [outcome.status for outcome in done.values()] == [Status.FAILED, Status.FAILED]
    assert done["a"].reason == "NotADirectoryError: [Errno 20] Not a directory: 'results/laptop/toy'"


def test_progress_tells_who_runs_and_how_long_it_will_take():
    work, events = FakeWork(seconds=1.15), []
    Schedule(work=work, jobs=2, timeout_s=None, on_event=events.append).run(
        [planned("a", expected=3.0), planned("t", times=True, expected=5.0)]
    )
    first = next(event for event in events if isinstance(event, Progress))
    assert first.running == {"a": 1.0} and (first.num_done, first.num_items) == (0, 2)
    assert first.remaining_s == (3.0 - 1.0) + 5.0


class WorkInCells(FakeWork):
    def cells_so_far(self, id):
        return CellProgress(num_done=3, num_cells=9, remaining_s=600.0) if id == "a" else None


def test_the_time_to_go_of_an_item_in_cells_is_what_its_cells_say():
    events = []
    schedule = Schedule(work=WorkInCells(seconds=1.15), jobs=1, timeout_s=None, on_event=events.append)
    schedule.run([planned("a", expected=3.0), planned("b", expected=5.0)])
    first = next(event for event in events if isinstance(event, Progress))
    assert first.cells["a"].num_done == 3 and first.remaining_s == 600.0 + 5.0


def test_the_expected_time_adds_timed_items_and_divides_the_others():
    items = [planned("a", expected=4), planned("b", expected=2), planned("t", times=True, expected=10)]
    assert expected_s(items, jobs=1) == 16.0
    assert expected_s(items, jobs=2) == 14.0  # the longest of the shared ones, 4, bounds them
    assert expected_s(items, jobs=2, spent={"t": 11}) == 4.0


def test_an_item_past_its_timeout_is_stopped_and_the_next_runs():
    work = FakeWork(seconds=5.0)
    done = Schedule(work=work, jobs=2, timeout_s=0.5, on_event=lambda event: None).run([planned("a")])
    assert done["a"].reason == "took longer than the timeout of 0.5 s"


def test_an_interrupt_stops_every_item_before_it_goes_on():
    work = FakeWork(seconds=30.0)

    def interrupt(event):
        if isinstance(event, ItemStarted) and event.number == 2:
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        Schedule(work=work, jobs=2, timeout_s=None, on_event=interrupt).run([planned("a"), planned("b")])
    assert "a" in work.stopped and time.monotonic() - began < 5.0


HOLDER = "import sys, time, pathlib\nfrom workbench.reproduction.runner.lock import hold_lock\nwith hold_lock(pathlib.Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)"


def test_the_lock_names_its_holder_and_is_free_as_soon_as_that_is_dead(tmp_path: Path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with (
        pytest.raises(UsageError, match=rf"is in use by another run: pid {holder.pid} on \S+, since 20"),
        hold_lock(tmp_path),
    ):
        pass
    kill(holder.pid)
    holder.communicate()
    with hold_lock(tmp_path):
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()


def test_a_second_runner_in_one_profile_runs_nothing(toy: ToyProject):
    folder = toy.root / "results/laptop"
    folder.mkdir(parents=True)
    project = Project()
    with hold_lock(folder), pytest.raises(UsageError, match=f"pid {os.getpid()} on "):
        run(project, load_catalogue(project))
    assert [path.name for path in folder.iterdir()] == [".lock"]


PLACES = """
import json, os, pathlib, signal, sys
from workbench.reproduction import Project, load_catalogue
from workbench.reproduction.runner import placing
from workbench.reproduction.runner.execute import Execution
from workbench.reproduction.runner.work import partial_folder

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
folder = partial_folder(project.results_of("laptop")) / item.id
folder.mkdir(parents=True)
(folder / "recording.json").write_bytes(pathlib.Path(sys.argv[2]).read_bytes())
(folder / "notebook.ipynb").write_text("new")
execution = Execution(project=project, item=item, profile="laptop", kernel_name="python3", folder=folder, started="now", seconds=1.0)
placing.place_record(execution, {}, project.folder(item, "laptop"))
"""


@pytest.mark.parametrize(("moves", "left"), [(0, "old"), (1, "new"), (2, "new"), (3, "new")])
def test_a_runner_killed_at_any_step_of_placing_leaves_the_old_record_or_the_new_one_whole(
    toy: ToyProject, tmp_path, moves, left
):
    recording = {
        "values": [{"quantity": "bytes", "method": "A1", "value": 8, "unit": "bytes"}],
        "data": [],
        "calibration": None,
        "not_comparable": {},
        "artifacts": {},
    }
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
    folder = toy.root / "results/laptop/.partial-1" / item.id
    execution = Execution(project=project, item=item, profile="laptop", kernel_name="python3", folder=folder)
    place_failure(execution, Failure(reason="boom", traceback=""), {}, project.folder(item, "laptop"))
    assert barred.read_text() == "put there while the item ran"


@pytest.mark.parametrize("barred", ["toy", "toy/table-1", "toy/table-1/counted"])
@pytest.mark.parametrize("dangling", [False, True])
def test_a_file_where_a_folder_of_results_belongs_is_refused_by_name_before_anything_runs(
    toy: ToyProject, barred, dangling
):
    path = toy.root / "results/laptop" / barred
    path.parent.mkdir(parents=True)
    path.symlink_to(toy.root / "nowhere") if dangling else path.write_text("a file")
    project = Project()
    with pytest.raises(
        UsageError, match=f"{path} is not a folder, and the record of toy/table-1/counted belongs there"
    ):
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
