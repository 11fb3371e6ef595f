"""Records travel between machines and people: each hostile one is refused by name, and the rest is still shown."""

import csv
import io
import json
import os
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from report_project import ReportProject, soup

from workbench.cli import exit_code
from workbench.reproduction import CatalogueError, RecordError, UsageError, load_catalogue, read_record
from workbench.reproduction.cells import Cell
from workbench.reproduction.files import LOCK_FILE, checksum, hold_lock, write_record
from workbench.reproduction.report import gather
from workbench.reproduction.schema import RECORD

DEEP = 100_000  # brackets, more than Python's parser can nest


@pytest.fixture
def held(held: ReportProject) -> ReportProject:
    held.record()
    held.record("fig-2", values={"A1": 0.7, "plain": 0.9})
    return held


def reseal(path: Path, **changed) -> None:
    """Change a record and give it the checksum that fits."""
    record = json.loads(path.read_text()) | changed
    without = {name: value for name, value in record.items() if value is not ...}
    write_record(path, without)


VALUE = {"quantity": "bytes", "value": 1.0, "unit": "bytes"}
WRONG_SHAPES = {
    "values a text": {"values": "none"},
    "values a number": {"values": 3},
    "a value without a unit": {"values": [{"quantity": "bytes", "value": 1.0}]},
    "a value that is a list": {"values": [VALUE | {"value": [1.0]}]},
    "a key that is an object": {"values": [VALUE | {"method": {}}]},
    "too many values": {"values": [VALUE | {"n": n} for n in range(1001)]},
    "no seconds": {"seconds": ...},
    "seconds a text": {"seconds": "12"},
    "fingerprint a list": {"fingerprint": []},
    "artifacts a text": {"artifacts": "figure.png"},
    "verdicts missing": {"verdicts": ...},
    "verdicts a number": {"verdicts": 1},
    "data a text": {"data": "hub"},
    "calibration a list": {"calibration": [1]},
    "cells a text": {"cells": "all"},
    "started a number": {"started": 7},
}


@pytest.mark.parametrize("changed", WRONG_SHAPES.values(), ids=WRONG_SHAPES)
def test_a_record_of_a_wrong_shape_with_a_right_checksum_is_refused_by_name(held, changed, monkeypatch):
    monkeypatch.setitem(RECORD["properties"]["values"], "maxItems", 1000)
    path = held.folder("table-1") / "record.json"
    reseal(path, **changed)
    with pytest.raises(RecordError, match=f"{path}: refused, "):
        read_record(path, id="toy-sum/table-1/counted", profile="laptop")


def test_the_commands_name_a_refused_record_and_go_on_with_the_rest(held, capsys):
    path = held.folder("table-1") / "record.json"
    reseal(path, values="none")
    assert exit_code(["report"]) == 2
    assert f"workbench: {path}: refused, " in capsys.readouterr().err
    page = soup(held.root / "results/laptop/report/toy-sum.html")
    assert str(path) in page.select_one("#table-1-counted").get_text()
    assert "Not run" not in page.select_one("#fig-2-measured").get_text()  # the rest is shown
    assert exit_code(["records", "promote", "table-1"]) == 2


def write_infinite(path: Path) -> None:
    path.write_text(path.read_text().replace('"seconds": 12.5', '"seconds": 1e999'))


def nest(path: Path) -> None:
    path.write_text("[" * DEEP + "]" * DEEP)


def write_surrogate(path: Path) -> None:
    path.write_text(path.read_text().replace('"commit": "abc123"', '"commit": "\\ud800"'))


def make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link_elsewhere(path: Path) -> None:
    path.rename(path.with_name("elsewhere.json"))
    path.symlink_to(path.with_name("elsewhere.json"))


def link_to_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def swell(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(65 * 1024**2)


SPOILED = [write_infinite, nest, write_surrogate, make_fifo, link_elsewhere, link_to_device, swell]


@pytest.mark.parametrize("spoil", SPOILED)
def test_a_file_that_is_no_record_is_refused_by_name_and_neither_hangs_nor_fills_the_memory(held, spoil, capsys):
    path = held.folder("table-1") / "record.json"
    spoil(path)
    assert exit_code(["report"]) == 2
    assert f"workbench: {path}: refused, " in capsys.readouterr().err
    assert exit_code(["records", "promote", "table-1"]) == 2


def huge_png() -> bytes:
    """Return a PNG of 30,000 by 30,000 pixels in a few bytes; a reader of its head alone sees the size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        body = kind + content
        return len(content).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")

    side = (30_000).to_bytes(4, "big")
    content = io.BytesIO(b"\x89PNG\r\n\x1a\n")
    content.seek(0, io.SEEK_END)
    content.write(chunk(b"IHDR", side * 2 + bytes([1, 0, 0, 0, 0])) + chunk(b"IDAT", zlib.compress(b"")))
    return content.getvalue() + chunk(b"IEND", b"")


def test_a_figure_that_unpacks_to_900_million_pixels_is_named_and_not_shown(held, capsys):
    held.record(figure=huge_png())
    assert exit_code(["report"]) == 0
    assert "figure.png unpacks to" in capsys.readouterr().err
    page = soup(held.root / "results/laptop/report/toy-sum.html")
    assert not page.select("#table-1-counted figure")
    assert exit_code(["records", "promote", "table-1"]) == 2


DIGEST = "0" * 32
WRONG_NEEDS = {
    "a name elsewhere": {"../../../../outside": [DIGEST]},
    "an absolute name": {"/outside": [DIGEST]},
    "a digest elsewhere": {"measure": ["../../../secret"]},
    "a digest with a line": {"measure": [DIGEST + "\n"]},
    "digests a text": {"measure": DIGEST},
    "digests nested": {"measure": [[DIGEST]]},
    "a list": [DIGEST],
}


@pytest.mark.parametrize("needs", WRONG_NEEDS.values(), ids=WRONG_NEEDS)
def test_a_file_of_needs_that_leads_elsewhere_is_refused_by_name_and_nothing_is_written(held, needs, capsys):
    cells = held.root / "results/laptop/toy-sum/cells"
    stored = {"schema": 1, "function": "toy/outside", "module": "m", "arguments": {}, "commit": "", "started": ""}
    stored |= dict.fromkeys(("data", "library", "machine", "values", "versions"), {}) | {"seconds": 1.0}
    (cells / "measure").mkdir(parents=True)
    digest = Cell(function="toy/outside", arguments={}).digest
    text = json.dumps(needs).replace(DIGEST, digest)
    for folder in (cells / "measure", held.root.parent, held.root):
        write_record(folder / f"{digest}.json", stored)
    (cells / "table-1.counted.json").write_text(text)
    before = sorted(held.root.parent.rglob("*"))
    assert exit_code(["records", "promote"]) == 2
    assert f"workbench: {cells / 'table-1.counted.json'}: refused, " in capsys.readouterr().err
    assert sorted(held.root.parent.rglob("*")) == before
    assert exit_code(["list"]) == exit_code(["show", "table-1"]) == 0


@pytest.mark.parametrize("name", ["", "laptop", "laptop/table-1", "laptop/table-1/counted.json", "laptop/cells"])
def test_records_are_not_promoted_through_a_link(held, name, tmp_path, capsys):
    place, target = held.root / "reproductions/toy_sum/recorded" / name, tmp_path / "elsewhere"
    place.parent.mkdir(parents=True, exist_ok=True)
    target.mkdir()
    place.symlink_to(target)
    if name.endswith("cells"):
        needs = held.root / "results/laptop/toy-sum/cells/table-1.counted.json"
        needs.parent.mkdir()
        needs.write_text(json.dumps({"measure": [DIGEST]}))
    assert exit_code(["records", "promote"]) == 2
    assert f"workbench: {place}: refused, it is a symbolic link" in capsys.readouterr().err
    assert not list(target.iterdir()) and not list((held.root / "reproductions/toy_sum").rglob("counted.png"))


def test_a_lock_that_is_a_link_leaves_what_it_points_to_as_it_is(tmp_path):
    (tmp_path / "kept.txt").write_text("kept")
    (tmp_path / LOCK_FILE).symlink_to(tmp_path / "kept.txt")
    with pytest.raises(UsageError, match="cannot be locked"), hold_lock(tmp_path):
        pass
    assert (tmp_path / "kept.txt").read_text() == "kept"


@pytest.mark.parametrize("kept", [[1], {"toy-sum/table-1/counted": 3}, {"x": {"stamp": 1, "summary": {"more": 1}}}])
def test_verdicts_that_were_kept_in_another_shape_are_judged_again(held, kept, capsys):
    (held.root / "results/.verdicts.json").write_text(json.dumps(kept))
    assert exit_code(["list", "--json", "table-1"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["run"]["verdicts"] == {"agrees": 2}


FORMULAS = ("=1+1", "+1", "-1", "@SUM(1)", "\t=1", "\r=1")


@pytest.mark.parametrize("unit", FORMULAS)
def test_a_text_that_a_spreadsheet_would_run_leaves_as_a_text_and_numbers_stay_numbers(held, unit, tmp_path):
    (held.root / "CITATION.cff").write_text("title: toy\nlicense: MIT\nversion: 1\n")
    path = held.promoted("fig-2", values={"A1": -0.5, "plain": 0.9}, started=unit)
    reseal(path, commit=unit)
    assert exit_code(["records", "export", str(tmp_path / "runs.csv"), "fig-2"]) == 0
    with (tmp_path / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["commit"] for row in rows} == {f"'{unit}"}
    assert "-0.5" in {row["ours"] for row in rows}


def test_a_failure_of_a_wrong_shape_is_named(held):
    (held.folder("table-1") / "failure.json").write_text('{"reason": [1]}')
    held.report()
    text = soup(held.root / "results/laptop/report/toy-sum.html").select_one("#table-1-counted").get_text()
    assert "failure.json: refused, " in text


def test_a_catalogue_that_ends_the_program_is_refused_by_file_and_line(held):
    held.catalogue.write_text("raise SystemExit(0)\n")
    with pytest.raises(CatalogueError, match=r"catalogue\.py:1: "):
        load_catalogue(held.project)


def test_a_changed_value_with_a_new_checksum_turns_its_verdict_whatever_the_record_says(held):
    path = held.folder("table-1") / "record.json"
    values = json.loads(path.read_text())["values"]
    assert json.loads(path.read_text())["verdicts"][0]["verdict"] == "agrees"
    reseal(path, values=[value | {"value": 2 * value["value"]} for value in values])
    held.report()
    page = soup(held.root / "results/laptop/report/toy-sum.html")
    assert "✕DISAGREES" in page.select_one("#table-1-counted details.claim summary").get_text()


LEAVES = some.one_of(some.none(), some.booleans(), some.integers(), some.floats(), some.text(max_size=5))
NAMES = some.text(max_size=3)
JSON = some.recursive(LEAVES, lambda inner: some.lists(inner, max_size=3) | some.dictionaries(NAMES, inner))


@pytest.fixture(scope="module")
def one_record(tmp_path_factory) -> ReportProject:
    held = ReportProject(tmp_path_factory.mktemp("mutated") / "project")
    held.record()
    return held


@settings(max_examples=100, deadline=None)
@given(data=some.data())
def test_a_mutated_record_is_shown_or_refused_by_name_and_ends_nothing(one_record, data):
    path = one_record.folder("table-1") / "record.json"
    original = path.read_text()
    sealed = json.loads(original)
    field = data.draw(some.sampled_from(sorted(sealed)), "field")
    mutated = sealed | {field: data.draw(JSON, "value")}
    text = json.dumps(mutated | ({} if field == "checksum" else {"checksum": _checksum(mutated)}))
    cut = data.draw(some.one_of(some.just(len(text)), some.integers(0, len(text))), "cut")
    try:
        path.write_text(text[:cut])
        catalogue = load_catalogue(one_record.project)
        view = gather(one_record.project, catalogue, "laptop", under_way=True).techniques[0].items[0]
        assert view.has_record or (str(path) in view.refused[0] and "\n" not in view.refused[0])
    finally:
        path.write_text(original)


def _checksum(record: dict) -> str:
    try:
        return checksum(record)
    except ValueError:
        return ""
