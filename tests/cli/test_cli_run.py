"""`reproduce` says what it will do, does it, keeps the report current, reuses cells, and ends with its exit code."""

import io
import json
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from bs4 import BeautifulSoup
from processes_seen import assert_all_dead_within, family, wait_for
from rich.console import Console
from toy_project import PUBLISHED, RECORD, VALUE

from workbench.cli import reproduce
from workbench.cli.progress import LineDisplay, num_done, running_words
from workbench.reproduction import ItemRun, Project, load_catalogue
from workbench.reproduction.cells import Cell, CellStore, Finished, Notes
from workbench.reproduction.files import write_record
from workbench.reproduction.machine import machine_facts
from workbench.reproduction.runner import ItemFinished, ItemOutcome, ItemStarted, Progress, Status
from workbench.rows.progress import HowFar

FIGURE = {"figure": "figure.png"}


def report(results: Path, profile: str = "laptop") -> BeautifulSoup:
    return BeautifulSoup((results / profile / "report/index.html").read_text(), "html.parser")


def test_a_dry_run_says_what_would_run_and_why_and_writes_nothing(line):
    text = line.said("reproduce", "--dry-run")
    assert "it has no record" in text and "not declared for laptop; it has full" in text
    assert "2 of 3 items would run in the profile laptop, about 6 s" in text
    assert not (line.root / "results").exists()


def test_a_run_gives_its_time_first_fails_one_item_and_goes_on_then_does_nothing(line, tmp_path):
    kept = tmp_path / "kept"
    line.toy.notebook("bad", "raise RuntimeError('long ' * 30 + 'end')")
    line.toy.sealed("table-2", files={}, fingerprint={}, seconds=99.0, folder=kept / "laptop/toy/table-2/counted")
    done = line.alone("reproduce", "--results", str(kept))
    assert (done.code, done.err) == (1, "") and not (line.root / "results").exists()
    lines = done.out.splitlines()
    assert lines[0].startswith("2 of 3 items to run in the profile laptop: about ")
    assert "1 not declared for it" in lines[0]
    assert any(text.startswith("toy/table-1/counted  COUNTED   ✓ 1 agrees") for text in lines)
    row = next(text for text in lines if text.startswith("toy/table-2/counted  COUNTED   failed RuntimeError: long"))
    assert len(row.rstrip()) < 120 and "99" not in row  # its own time, not that of the record beside it
    assert done.out.count("long end") == 1  # the whole reason is written once
    assert f"toy/table-2/counted failed: {kept}/laptop/toy/table-2/counted/failure.txt" in lines
    assert lines[-1] == f"Report: {kept}/laptop/report/index.html"
    assert "long end" in report(kept).select_one("#failures ~ div").get_text()
    assert not report(kept).select_one("meta[http-equiv=refresh]")

    again = ("reproduce", "table-1", "--results", str(kept))
    assert "Nothing to do: 1 up to date in the profile laptop. (--fresh runs it again.)" in line.said(*again)
    assert line.heavy_imports(again) == ["0"]
    assert f"{kept}/laptop: 2 records, " in line.said("clean", "--dry-run", "--results", str(kept))
    assert (kept / "laptop/toy").exists()


def test_a_record_is_reported_promoted_compared_and_cleaned(line):
    line.toy.sealed(files=FIGURE)
    line.toy.publish(PUBLISHED.replace("A1,8", "A1,7"))
    assert line("report").out == f"{line.root}/results/laptop/report/index.html\n"
    assert line.heavy_imports(["report"]) == ["0"]
    assert "1 disagree" in report(line.root / "results").select_one(".paper .marks").get_text()

    promoted = line.root / "reproductions/toy/recorded/laptop/table-1/counted.json"
    assert line.said("records", "promote", "table-1") == str(promoted)
    assert promoted.with_suffix(".png").read_text() == "content of figure.png"
    assert "1 item compared, 1 without difference" in line.said("records", "diff")
    line.toy.sealed(files=FIGURE, value=9.0)
    assert "bytes method=A1: 8 B → 9 B +12.5 %" in line.said("records", "diff")
    line.said("compare", "laptop", f"{line.root}/results", "--page", f"{line.root}/page.html")
    assert "1 values" in (line.root / "page.html").read_text()

    done = line("clean", "laptop")
    assert done.code == 2 and "--yes" in done.err  # there is no terminal to ask on
    line.said("clean", "laptop", "--yes")
    assert not (line.root / "results/laptop/toy").exists() and promoted.exists()


def test_a_data_folder_that_is_not_there_stops_only_items_that_use_data(line, monkeypatch):
    monkeypatch.setenv("WORKBENCH_DATA", str(line.root / "nowhere"))
    line.said("reproduce", "table-1", "--dry-run")
    line.toy.notebook("one", "import workbench.datasets", RECORD)
    done = line("reproduce", "table-1", "--dry-run")
    assert done.code == 2
    assert "nowhere', which is not a folder, and toy/table-1/counted uses data" in done.err


def test_ctrl_c_is_a_clean_message_and_exit_code_130_and_leaves_no_process_and_no_partial_folder(line):
    process = line.start("reproduce", "fig-3", "--profile", "full")
    log = line.root / "results/full"
    wait_for(lambda: list(log.glob(".partial-*/toy/fig-3/counted/log.txt")))
    time.sleep(0.5)
    below = family(process.pid)[1:]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 130
    assert "Stopping: waiting for the processes of toy/fig-3/counted to end (at most 10 s); press Ctrl-C again" in out
    kept = "Interrupted. Kept: nothing new, and every earlier record."
    assert err.strip() == f"{kept} The same command goes on with what is missing."
    assert_all_dead_within(below, 20.0)
    assert not list(log.glob(".partial-*")) and not list(log.rglob("record.json"))
    assert not report(line.root / "results", "full").select_one("meta[http-equiv=refresh]")


def test_a_run_that_is_interrupted_writes_its_report_without_reading_the_library(line, monkeypatch):
    project = Project(line.root)
    catalogue = load_catalogue(project)
    run = reproduce.Run(project, catalogue, catalogue, "laptop")
    run.write_report(under_way=True)
    monkeypatch.setattr(sys.modules["workbench.reproduction.report.gather"], "Fingerprinter", None)
    run.fell_behind(catalogue[0].id)
    run.interrupted()
    assert not run.report_trouble and not report(line.root / "results").select_one("meta[http-equiv=refresh]")


# cells

MODULE = "def measure(seed):\n    return {'bytes': 8}\n"
STUDY = f"""from study import measure
from workbench.reproduction import record, run_cells
results = run_cells(item, measure, [{{"seed": seed}} for seed in range(3)], jobs=1)
record(item, [{VALUE.replace("2 * size", 'results[0].values["bytes"]')}])"""


@pytest.fixture
def study(line):
    """Table 1 as a study of three cells, of which two are there: one made here, one on another machine."""
    source = line.root / "notebooks/toy/study.py"
    source.write_text(MODULE)
    line.toy.notebook("one", STUDY)
    project = Project(line.root)
    cells = [Cell(function="study.measure", arguments={"seed": seed}, place=("study", "measure")) for seed in range(3)]
    Notes(needs=ItemRun(project, load_catalogue(project)[0], "laptop").needed_cells, run_folder=None).begin(cells)
    elsewhere = {"host": "x", "cpu": "X1", "cores": 64}
    for cell, machine, commit in ((cells[0], machine_facts(), "unknown"), (cells[1], elsewhere, "abc")):
        store = CellStore.of(project, "toy", "laptop", cell, source, keep=False)
        finished = Finished(values={"bytes": 8}, started="2026-01-01T00:00:00+00:00", seconds=60.0, machine=machine)
        write_record(store.path(cell), {**store.write(cell, finished), "commit": commit})
    return source


def test_plans_and_lists_say_how_many_cells_are_there_and_which_are_out_of_date(line, study):
    dry_run = ("reproduce", "table-1", "--dry-run")
    plan = line.said(*dry_run)
    assert "it has no record; 2 of 3 cells are there" in plan
    assert "about 75 s" in plan  # one cell of 60 s, and 15 for the notebook
    assert "Bytes of table-1 (laptop: 2 of 3 cells)" in line.said("list", "table-1")
    assert json.loads(line.said("list", "--json", "table-1"))[0]["cells"] == {"laptop": {"there": 2, "of": 3}}
    assert "cells 2 of 3 are there (laptop)" in line.said("show", "table-1")
    assert "cells" not in line.said("reproduce", "table-2", "--dry-run")
    looks = (["list"], ["list", "--json"], ["show", "table-1"], ["reproduce", "--dry-run"])
    assert line.heavy_imports(*looks, ["records", "promote", "--cells"]) == ["0"] * 5  # neither torch nor papermill

    study.write_text(MODULE.replace("8", "9"))
    assert "2 of 3 cells are there, 2 of them out of date" in line.said(*dry_run)
    plan = line.said(*dry_run, "--keep-cells")
    assert "2 of 3 cells are there" in plan and "out of date" not in plan


def test_cells_are_promoted_survive_clean_and_are_accepted_where_they_are_asked_for(line, study):
    folder = line.root / "results/laptop/toy/cells/measure"
    promoted = line.root / "reproductions/toy/recorded/laptop/cells/measure.jsonl"
    assert line.said("records", "promote", "--cells") == f"{promoted} 2 cells"
    finished = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    assert [json.loads(text) for text in promoted.read_text().splitlines()] == finished

    assert "Nothing to remove" in line.said("clean", "laptop", "--yes") and len(list(folder.glob("*.json"))) == 2
    (line.root / "results/laptop/toy/table-9").mkdir()
    assert "2 finished cells stay (--cells)" in line.said("clean", "laptop", "--yes")
    assert len(list(folder.glob("*.json"))) == 2 and not (line.root / "results/laptop/toy/table-9").exists()
    assert "0 records, 0.0 MB, 2 finished cells" in line.said("clean", "laptop", "--yes", "--cells")
    assert not (line.root / "results/laptop/toy").exists()

    study.write_text(MODULE + "\n# another library\n")
    done = line.alone("reproduce", "table-1", "--keep-cells", "--quiet")
    assert done.code == 0, done.out + done.err
    record = line.toy.record()
    origins = {origin["commit"]: (origin["machine"]["host"], origin["num_cells"]) for origin in record["cells"]}
    assert origins == {"abc": ("x", 1), "unknown": (record["machine"]["host"], 2)}
    page = BeautifulSoup((line.root / "results/laptop/report/toy.html").read_text(), "html.parser").get_text(" ")
    assert "2 here, 1 from commit abc on X1, 64 cores" in page
    assert "2 min 00 s of machine time in 3 cells" in page
    assert len(list(folder.glob("*.json"))) == 1  # what was accepted is not copied
    assert f"{promoted} 3 cells" in line.said("records", "promote", "table-1")  # the new one joins the committed ones


def test_a_committed_line_that_was_changed_is_refused_by_its_number(line, study):
    line.said("records", "promote", "--cells")
    promoted = line.root / "reproductions/toy/recorded/laptop/cells/measure.jsonl"
    promoted.write_text(promoted.read_text().replace("60.0", "61.0", 1))
    done = line("records", "promote", "--cells")
    assert done.code == 2 and f"{promoted}:1: refused, its checksum does not fit its content" in done.err


def progress(*, running=(), parts=None) -> Progress:
    running = dict.fromkeys(running, 1.0)
    return Progress(running=running, num_done=1, num_items=9, elapsed_s=1.0, remaining_s=1.0, parts=parts or {})


def far(num_done, num_parts, what, remaining_s=None) -> HowFar:
    return HowFar(num_done=num_done, num_parts=num_parts, what=what, remaining_s=remaining_s)


def test_an_item_under_way_shows_how_far_it_is_and_the_bar_moves_within_it():
    event = progress(running="abc", parts={"a": far(12, 150, "cells", 6600.0), "b": far(1, 4, "turns")})
    assert running_words(event) == "a (12 of 150 cells, about 1 h 50 min left), b (1 of 4 turns), c"
    assert num_done(progress(running="a", parts={"a": far(1, 9, "turns", 3.0)})) == 1.25  # 1 s of 4 are spent
    assert num_done(progress(running="a", parts={"a": far(4, 4, "turns")})) == 1.99  # it has not ended


def test_an_item_that_ends_says_why_claims_are_not_comparable_a_line_a_reason():
    reasons = {"first": "no data", "second": "no data", "third": "at chance"}
    verdicts = {"agrees": 1, "not comparable": 3}
    outcome = ItemOutcome(id="a", status=Status.RECORDED, seconds=2.0, verdicts=verdicts, not_comparable=reasons)
    console = Console(file=io.StringIO(), width=100, highlight=False)
    LineDisplay(console)(ItemFinished(outcome=outcome))
    first, *rest = console.file.getvalue().splitlines()
    assert first.startswith("a  recorded in 2 s") and "3 not comparable" in first
    assert [text.strip() for text in rest] == ["? first and 1 more: no data", "? third: at chance"]


# the report of a run under way


@pytest.fixture
def run(line, monkeypatch):
    """A run whose clock stands still, whose reports cost a known time, and which notes when each was written."""
    now, written = SimpleNamespace(s=0.0, cost_s=0.1), []

    def write(*arguments, under_way, **options):
        written.append((now.s, under_way))
        now.s += now.cost_s

    monkeypatch.setattr("workbench.cli.reproduce.monotonic", lambda: now.s)
    monkeypatch.setattr("workbench.reproduction.report.write_report", write)
    monkeypatch.setattr("workbench.reproduction.findings.news_of", lambda *_: ())
    run = reproduce.Run(None, (), (), "laptop")

    def at(at_s, event):
        now.s = at_s
        run.on_event(event, lambda event: None)

    return SimpleNamespace(now=now, written=written, at=at, write_report=run.write_report)


STARTED = ItemStarted(id="a", number=1, num_items=9, expected_s=1.0)
FINISHED = ItemFinished(outcome=ItemOutcome(id="a", status=Status.RECORDED))


def test_a_run_writes_its_report_at_most_every_five_seconds_and_catches_up(run):
    run.at(1.0, STARTED)
    run.at(1.5, FINISHED)
    run.at(2.0, progress())
    assert run.written == [(1.0, True)]
    run.at(6.2, progress())  # 5 s after the end of the last one, which was at 1.1 s
    run.at(30.0, progress())  # nothing has changed
    assert run.written[1:] == [(6.2, True)]
    run.at(31.0, FINISHED)
    run.write_report()
    assert run.written[2:] == [(31.0, True), (31.1, False)]  # the last one at once


def test_a_report_that_is_slow_to_write_is_written_a_third_of_the_time(run):
    run.now.cost_s = 4.0
    run.at(0.0, STARTED)
    run.at(11.9, FINISHED)  # 2 x 4 s after the end of the last one is 12 s
    assert run.written == [(0.0, True)]
    run.at(12.0, progress())
    assert run.written[1:] == [(12.0, True)]
