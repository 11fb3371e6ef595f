"""Cells are counted where that costs nothing, promoted, kept by clean, and accepted where that is asked for."""

import json

import pytest
from bs4 import BeautifulSoup

from workbench.cli import exit_code
from workbench.cli.progress import running_words
from workbench.reproduction import Project, load_catalogue
from workbench.reproduction.cells import Cell, CellProgress, CellStore, Finished, Notes, needs_file
from workbench.reproduction.files import write_record
from workbench.reproduction.machine import machine_facts
from workbench.reproduction.runner import Progress

pytestmark = pytest.mark.timeout(90)
MODULE = "def measure(seed):\n    return {'bytes': 1500}\n"
STUDY = """from study import measure
from workbench.reproduction import record, run_cells
results = run_cells(item, measure, [{"seed": seed} for seed in range(3)], jobs=1)
record(item, [{"quantity": "bytes", "num_ranks": num_ranks, "value": results[0].values["bytes"], "unit": "bytes"}])"""


@pytest.fixture
def study(line):
    """Table 1 as a study of three cells, of which two are there: one made here, one on another machine."""
    source = line.root / "notebooks/toy/study.py"
    source.write_text(MODULE)
    path = line.root / "notebooks/toy/good.ipynb"
    notebook = json.loads(path.read_text())
    notebook["cells"][1]["source"] = STUDY
    path.write_text(json.dumps(notebook))
    project = Project(line.root)
    item = load_catalogue(project)[0]
    place = ("study", "measure")
    cells = [Cell(function="study.measure", arguments={"seed": seed}, place=place) for seed in range(3)]
    Notes(needs=needs_file(project, item, "laptop"), run_folder=None).begin(cells)
    elsewhere = {"host": "x", "cpu": "X1", "cores": 64}
    for cell, machine, commit in ((cells[0], machine_facts(), "unknown"), (cells[1], elsewhere, "abc")):
        store = CellStore.of(project, "toy", "laptop", cell, source, keep=False)
        finished = Finished(values={"bytes": 1500}, started="2026-01-01T00:00:00+00:00", seconds=60.0, machine=machine)
        held = store.write(cell, finished)
        write_record(store.path(cell), {**held, "commit": commit})
    return cells


def said(capsys, *words: str) -> str:
    assert exit_code(list(words)) == 0
    return " ".join(capsys.readouterr().out.split())


def test_plans_and_lists_say_how_many_cells_are_there_and_which_are_out_of_date(line, study, capsys):
    told = said(capsys, "reproduce", "table-1", "--dry-run")
    assert "it has no record; 2 of 3 cells are there" in told
    assert "about 75 s" in told  # one cell of 60 s, and 15 for the notebook
    assert "smoke laptop (2 of 3 cells)" in said(capsys, "list", "table-1")
    assert json.loads(said(capsys, "list", "--json", "table-1"))[0]["cells"] == {"laptop": {"there": 2, "of": 3}}
    assert "Cells (laptop) 2 of 3 are there" in said(capsys, "show", "table-1")
    assert "cells" not in said(capsys, "reproduce", "table-2", "--dry-run")

    (line.root / "notebooks/toy/study.py").write_text(MODULE.replace("1500", "1501"))
    assert "2 of 3 cells are there, 2 of them out of date" in said(capsys, "reproduce", "table-1", "--dry-run")
    told = said(capsys, "reproduce", "table-1", "--dry-run", "--keep-cells")
    assert "2 of 3 cells are there" in told and "out of date" not in told


def test_looking_at_cells_imports_no_torch(line, study):
    for words in (["list"], ["show", "table-1"], ["reproduce", "--dry-run"], ["records", "promote", "--cells"]):
        assert line.heavy_imports(*words).endswith(" [] 0")


def test_cells_are_promoted_survive_clean_and_are_accepted_where_they_are_asked_for(line, study, capsys):
    folder = line.root / "results/laptop/toy/cells/measure"
    promoted = line.root / "reproductions/toy/recorded/laptop/cells/measure.jsonl"
    assert said(capsys, "records", "promote", "--cells") == f"{promoted} 2 cells"
    finished = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    assert [json.loads(text) for text in promoted.read_text().splitlines()] == finished

    code, out, err = line.run("clean", "laptop", "--yes")
    assert code == 0 and "Nothing to remove" in out and len(list(folder.glob("*.json"))) == 2
    (line.root / "results/laptop/toy/table-9").mkdir()
    told = said(capsys, "clean", "laptop", "--yes")
    assert "2 finished cells stay (--cells)" in told and len(list(folder.glob("*.json"))) == 2
    assert not (line.root / "results/laptop/toy/table-9").exists()
    assert "0 records, 0.0 MB, 2 finished cells" in said(capsys, "clean", "laptop", "--yes", "--cells")
    assert not (line.root / "results/laptop/toy").exists()

    (line.root / "notebooks/toy/study.py").write_text(MODULE + "\n# another library\n")
    code, out, err = line.run("reproduce", "table-1", "--keep-cells")
    assert code == 0, out + err
    record = json.loads((line.root / "results/laptop/toy/table-1/counted/record.json").read_text())
    origins = {origin["commit"]: (origin["machine"]["host"], origin["num_cells"]) for origin in record["cells"]}
    assert origins == {"abc": ("x", 1), "unknown": (record["machine"]["host"], 2)}
    page = BeautifulSoup((line.root / "results/laptop/report/toy.html").read_text(), "html.parser").get_text(" ")
    assert "2 here, 1 of commit abc on X1, 64 cores; they took 2 min 00 s" in page
    assert len(list(folder.glob("*.json"))) == 1  # what was accepted is not copied
    assert exit_code(["records", "promote", "table-1"]) == 0
    assert f"{promoted}  3 cells" in capsys.readouterr().out  # the new one joins the committed ones

    assert line.run("reproduce", "table-1", "--fresh")[0] == 0
    assert len(list(folder.glob("*.json"))) == 3  # without being asked, none of another library is taken


def test_a_committed_line_that_was_changed_is_refused_by_its_number(line, study, capsys):
    assert exit_code(["records", "promote", "--cells"]) == 0
    promoted = line.root / "reproductions/toy/recorded/laptop/cells/measure.jsonl"
    promoted.write_text(promoted.read_text().replace("1500", "1600", 1))
    assert exit_code(["records", "promote", "--cells"]) == 2
    assert f"{promoted}:1: refused, its checksum does not fit its content" in capsys.readouterr().err


def test_an_item_under_way_shows_how_far_its_cells_are():
    timed = CellProgress(num_done=12, num_cells=150, remaining_s=6600.0)
    cells = {"a": timed, "b": CellProgress(num_done=0, num_cells=3, remaining_s=None)}
    running = dict.fromkeys("abc", 1.0)
    progress = Progress(running=running, num_done=0, num_items=3, elapsed_s=1.0, remaining_s=1.0, cells=cells)
    assert running_words(progress) == "a (12 of 150 cells, about 1 h 50 min left), b (0 of 3 cells), c"
